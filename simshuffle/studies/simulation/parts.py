"""The parts of a result of ``run``: tables and texts for terminals and documents."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simshuffle.report import intervals, report
from simshuffle.report.excerpt import shorten_numbers
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.studies.simulation import mishaps, text
from simshuffle.studies.simulation.contest import warm_epochs
from simshuffle.studies.simulation.tables import (
    Means,
    means_over_seeds,
)
from simshuffle.studies.simulation.warm import is_dlio_workload, warm_table
from simshuffle.study.study import LINE, Meta, Result

if TYPE_CHECKING:
    from rich.table import Table


def list_parts(result: Result) -> Iterable[str | Table]:
    """Return what a terminal shows: the table of warm epochs, mishaps, and cautions.

    A warm epoch is the last one of a run. Of many runs the table has not all: only as
    many as `warm_table` shows by default.
    """
    run_means = means_of(result)
    rows = warm_epochs(run_means.epochs, run_means.epoch_half)
    interval_meta = result.meta.get("intervals")
    table = warm_table(
        run_means,
        rows,
        interval_meta,
        booking_of(result.meta),
        is_dlio=is_dlio_workload(result),
    )
    return [
        table,
        *list_measured(interval_meta),
        *mishaps.list_tables(result),
        *text.list_cautions(result),
    ]


def list_details(result: Result) -> Iterable[str | Table]:
    """Return all epochs by label and cause, intervals, bytes, and notes on the
    computation, as a terminal shows them with -v.

    90 % intervals are there if the result has any.
    """
    run_means = means_of(result)
    booking = booking_of(result.meta)
    legend = textwrap.fill(report.legend(run_means.breakdown, booking), LINE)
    interval_meta = result.meta.get("intervals")
    interval_parts = [] if interval_meta is None else intervals.details(interval_meta)
    return [
        text.seconds_table(run_means, booking),
        legend,
        *interval_parts,
        *text.bytes_tables(run_means),
        *_notes(result),
    ]


def export_parts(result: Result) -> Iterable[str | Table]:
    """Return the tables of the warm epochs, intervals, mishaps, and bytes, with three
    significant digits, for a page of a paper; then notes.

    The first table has all runs. It has a column for each label and for waiting if the
    result stores a booking, as with --labels paper.
    """
    run_means = means_of(result)
    warm = warm_epochs(run_means.epochs, run_means.epoch_half)
    interval_meta = result.meta.get("intervals")
    interval_tables = [] if interval_meta is None else [intervals.table(interval_meta)]
    interval_tables = [*list_measured(interval_meta), *interval_tables]
    warm_means = replace(run_means, epochs=report.rows_of_last_epoch(run_means.epochs))
    booking = result.meta.get("labels")
    if booking is None:
        first_table = warm_table(run_means, warm, interval_meta, max_rows=math.inf)
    else:
        first_table = text.seconds_table(warm_means, booking)
    tables = [
        first_table,
        *interval_tables,
        *mishaps.list_tables(result),
        *text.bytes_tables(warm_means),
    ]
    return [*map(shorten_numbers, tables), *_notes(result)]


def _notes(result: Result) -> list[str]:
    """Return the lines below the tables: intervals, storage, routing, the timeline."""
    run_means = means_of(result)
    lines = []
    if run_means.epoch_half is not None:
        lines.append(text.describe_interval(run_means.interval_subject))
    if run_means.half_intervals is not None:
        lines.append("summary.csv has the interval of every measure.")
    timeline = timeline_of(result.meta)
    return [*lines, *text.list_notes(result), *text.describe_timeline(timeline)]


def list_measured(interval_meta: Mapping[str, Any] | None) -> list[Table]:
    """Return the table of measured runs beside their predictions; [] without any."""
    table = None if interval_meta is None else intervals.measured_table(interval_meta)
    return [] if table is None else [table]


def means_of(result: Result) -> Means:
    """Return the means over the seeds of a result, with the ends of its 90 % intervals.

    With one seed the means are its own values; without intervals the ends are {}.
    """
    run_means = means_over_seeds(result.tables["epochs"], result.tables["breakdown"])
    interval_meta = result.meta.get("intervals")
    return replace(
        run_means,
        ends=intervals.interval_ends(interval_meta),
        num_measured=intervals.measured_count(interval_meta),
    )


def booking_of(meta: Meta) -> report.Booking:
    """Return the booking of waiting in a result: 'paper', or by default 'cause'."""
    return "paper" if meta.get("labels") == "paper" else "cause"


def timeline_of(meta: Meta) -> KeptRanks:
    """Return the ranks of which a result has the timeline; 'full' by default."""
    timeline: KeptRanks = meta.get("timeline", "full")
    return timeline

"""The table of warm epochs that a terminal shows without -v."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals, report
from simshuffle.report.console import new_table
from simshuffle.report.names import without_schedule
from simshuffle.studies.simulation.contest import Row
from simshuffle.studies.simulation.tables import Means, label_column
from simshuffle.studies.simulation.text import count_decimals
from simshuffle.study.study import Result

MAX_ROWS = 24
"""Runs of the table: with the verdict of a few scales below it, it fits a screen of 40
lines.
"""
AU = "AU"
"""Column of accelerator utilisation, which a scenario of DLIO has in this table."""
WAITING, FIRST = "waiting", "first"
"""Columns of waiting for other ranks, and of all that comes before the second epoch."""


def warm_table(
    run_means: Means,
    rows: pd.DataFrame,
    interval_meta: Mapping[str, Any] | None,
    booking: report.Booking = "cause",
    *,
    max_rows: float = MAX_ROWS,
    is_dlio: bool = False,
) -> Table:
    """Return the table of warm epochs of a result of ``run``.

    Args:
        run_means: means over seeds.
        rows: the warm epoch of each run, of
            `simshuffle.studies.simulation.contest.warm_epochs`.
        interval_meta: intervals of the result, if it has any.
        booking: how waiting is booked.
        max_rows: most runs of which all have a row; of more, `_choose_rows` chooses at
            most `MAX_ROWS`.
        is_dlio: true if the scenario was a workload of DLIO, by `is_dlio_workload`.
    """
    displayed_rows = _choose_rows(rows, max_rows)
    seconds = _seconds_by_column(run_means, displayed_rows, booking)
    table = _build_table(
        displayed_rows,
        len(rows),
        seconds,
        run_means.seeds,
        interval_meta,
        is_dlio=is_dlio,
    )
    if booking == "paper":
        table.title = f"{table.title}, waiting booked as in the authors' timers"
    return table


def warm_table_of_sweep(
    rows: pd.DataFrame,
    seeds: int,
    interval_meta: Mapping[str, Any] | None,
    measure: tuple[str, pd.Series[float]] | None = None,
    is_dlio: bool = False,
) -> Table:
    """Return the table of warm epochs of a result of ``sweep``.

    Args:
        rows: of `warm_epochs`, with a column of seconds for each label and for waiting
            for it. Time by which the backward pass is slowed counts under GE+WU.
        seeds: seeds of each run.
        interval_meta: intervals of the result, if it has any.
        measure: heading and values by run of the measure of the figure, if it is not
            the epoch.
        is_dlio: true if the scenario was a workload of DLIO, by `is_dlio_workload`.
    """
    displayed_rows = _choose_rows(rows)
    seconds = {
        label: displayed_rows[label_column(label)].tolist() for label in report.LABELS
    }
    waiting_columns = [label_column(label, waiting=True) for label in report.LABELS]
    waiting_columns.remove(slowed_column := label_column(report.SLOWING, waiting=True))
    slowed_seconds = (
        displayed_rows[label_column(report.SLOWING)] + displayed_rows[slowed_column]
    )
    seconds |= {
        report.SLOWING: slowed_seconds.tolist(),
        WAITING: displayed_rows[waiting_columns].sum(axis=1).tolist(),
    }
    if measure is not None:
        heading, values = measure
        seconds[heading] = [float(values[run]) for run in displayed_rows["run"]]
    return _build_table(
        displayed_rows, len(rows), seconds, seeds, interval_meta, is_dlio=is_dlio
    )


def is_dlio_workload(result: Result) -> bool:
    """Return true if the scenario of a result was a workload of DLIO: its text has
    `report.DLIO_PAUSES` as a source.
    """
    return report.DLIO_PAUSES in result.documents["scenario.yaml"]


def _build_table(
    displayed_rows: pd.DataFrame,
    num_runs: int,
    seconds: Mapping[str, Sequence[float]],
    seeds: int,
    interval_meta: Mapping[str, Any] | None,
    *,
    is_dlio: bool,
) -> Table:
    """Build the table of the displayed runs with the columns of ``seconds`` that are
    not 0 throughout.

    Names leave out a schedule that all share. The title says of how many runs the rows
    are chosen.

    Args:
        displayed_rows: the warm epochs that have a row.
        num_runs: runs of the result.
        seconds: seconds of each row, by column.
        seeds: seeds of each run.
        interval_meta: intervals of the result, if it has any.
        is_dlio: true for a column of accelerator utilisation.
    """
    columns = {
        "epoch": [format_epoch(row) for row in displayed_rows.to_dict("records")]
    }
    if intervals.measured_count(interval_meta):
        columns[intervals.WITH_MEASURED] = [
            intervals.centre_of(interval_meta or {}, str(run))
            for run in displayed_rows["run"]
        ]
    if interval_meta is not None:
        columns["90 %"] = [
            intervals.range_of(interval_meta, str(run)) for run in displayed_rows["run"]
        ]
    if is_dlio:
        columns[AU] = [
            f"{share:.1%}" for share in displayed_rows["accelerator_utilisation"]
        ]
    for name, values in seconds.items():
        if any(values):
            columns[name] = [format_three_digits(value) for value in values]
    title = "Seconds of the last epoch" + (
        f", mean over {seeds} seeds" if seeds > 1 else ""
    )
    if is_dlio:
        title += "; AU: accelerator utilisation"
    if FIRST in columns:
        title += "; first: staging and the cold epoch"
    if len(displayed_rows) < num_runs:
        title += f" ({len(displayed_rows)} of {num_runs} runs; -v has all)"
    names = without_schedule(displayed_rows["run"].tolist())
    rows = zip(names, *columns.values(), strict=True)
    table = new_table(title, ["run"], list(columns), rows)
    table.show_edge = False  # no empty lines around it
    return table


def _choose_rows(rows: pd.DataFrame, max_rows: float = MAX_ROWS) -> pd.DataFrame:
    """Return all runs, or at most `MAX_ROWS` where they are more than ``max_rows``.

    Then of each number of ranks the fastest ones and the slowest are chosen, at least
    two. Of too many numbers of ranks, the last rows stay. The order is that of ``rows``.
    """
    if len(rows) <= max_rows:
        return rows
    by_time = rows.sort_values("epoch_s", kind="stable")
    groups = by_time.groupby("world_size", sort=True)
    rows_a_group = max(2, MAX_ROWS // groups.ngroups)
    indices: list[int] = []
    for _, group in groups:
        indices += [*group.index[: rows_a_group - 1], group.index[-1]]
    return rows.loc[sorted(set(indices))].tail(MAX_ROWS)


def _seconds_by_column(
    run_means: Means, rows: pd.DataFrame, booking: report.Booking
) -> dict[str, list[float]]:
    """Return the seconds of each column, (rows,) by its name.

    The columns are own work by label, all waiting for other ranks, and the staging with
    the cold epoch, 0 where that is the last one. By cause, what gradients in flight add
    to the backward pass counts under GE+WU. With waiting booked as in the papers, labels
    contain both, and the column of waiting is 0.
    """
    breakdown = report.arrange_labels(run_means.breakdown.astype({"run": str}), booking)
    keys = ["run", "epoch", "waiting", "label"]
    seconds_of_part: Mapping[Any, float] = breakdown.set_index(keys)[
        "seconds"
    ].to_dict()
    epochs = run_means.epochs.astype({"run": str}).set_index(["run", "epoch"])
    cold_seconds: Mapping[Any, float] = (
        epochs["staging_s"] + epochs["epoch_s"]
    ).to_dict()

    columns: dict[str, list[float]] = {}
    for run, epoch in rows[["run", "epoch"]].itertuples(index=False, name=None):
        seconds_of_run = {
            label: seconds_of_part.get((run, epoch, False, label), 0.0)
            for label in report.ALL_LABELS
        }
        waiting_seconds = {
            label: seconds_of_part.get((run, epoch, True, label), 0.0)
            for label in report.ALL_LABELS
        }
        seconds_of_run[report.SLOWING] += waiting_seconds.pop(report.SLOWING)
        seconds_of_run[WAITING] = sum(waiting_seconds.values())
        seconds_of_run[FIRST] = cold_seconds[run, 1] if epoch > 1 else 0.0
        for name, value in seconds_of_run.items():
            columns.setdefault(name, []).append(value)
    return columns


def format_epoch(row: Row) -> str:
    """Format the seconds of an epoch with four digits, at most three decimals, and half
    its interval with as many decimals, if it has one; without a unit.
    """
    seconds = float(row["epoch_s"])
    digits = count_decimals(seconds)
    text = f"{seconds:,.{digits}f}"
    return f"{text} ± {row['half']:,.{digits}f}" if row["half"] else text


def format_three_digits(seconds: float) -> str:
    """Format seconds with three digits, and at most three decimals, without a unit;
    '-' below 0.5 ms.
    """
    if seconds < 5e-4:
        return "-"
    return f"{seconds:,.{max(0, min(3, 2 - math.floor(math.log10(seconds))))}f}"

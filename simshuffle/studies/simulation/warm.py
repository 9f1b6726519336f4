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
from simshuffle.studies.simulation.text import decimals
from simshuffle.study.study import Result

MOST_ROWS = 24
"""Runs of the table: with the verdict of a few scales below it, it fits a screen of 40 lines."""
AU = "AU"
"""Column of accelerator utilisation, which a scenario of DLIO has in this table."""
WAITING, FIRST = "waiting", "first"
"""Columns of waiting for other ranks, and of all that comes before the second epoch."""


def warm_table(
    of: Means,
    rows: pd.DataFrame,
    found: Mapping[str, Any] | None,
    labels: report.Booking = "cause",
    *,
    most_rows: float = MOST_ROWS,
    of_dlio: bool = False,
) -> Table:
    """Return the table of warm epochs of a result of ``run``.

    Args:
        of: means over seeds.
        rows: the warm epoch of each run, of `simshuffle.studies.simulation.contest.warm_epochs`.
        found: intervals of the result, if it has any.
        labels: how waiting is booked.
        most_rows: runs of the table; of more the fastest and the slowest are chosen.
        of_dlio: whether the scenario was a workload of DLIO, see `is_of_dlio`.
    """
    shown = _chosen(rows, most_rows)
    seconds = _seconds_by_column(of, shown, labels)
    table = _table(shown, len(rows), seconds, of.seeds, found, of_dlio=of_dlio)
    if labels == "paper":
        table.title = f"{table.title}, waiting booked as in the authors' timers"
    return table


def warm_table_of_sweep(
    rows: pd.DataFrame,
    seeds: int,
    found: Mapping[str, Any] | None,
    measure: tuple[str, pd.Series[float]] | None = None,
    of_dlio: bool = False,
) -> Table:
    """Return the table of warm epochs of a result of ``sweep``.

    Args:
        rows: of `warm_epochs`, with a column of seconds for each label and for waiting for it.
        seeds: that each run has.
        found: intervals of the result, if it has any.
        measure: heading and values by run of what the figure shows, if that is not the epoch.
    """
    shown = _chosen(rows)
    seconds = {label: shown[label_column(label)].tolist() for label in report.LABELS}
    waits = [label_column(label, waiting=True) for label in report.LABELS]
    waits.remove(slowed := label_column(report.SLOWING, waiting=True))
    both = shown[label_column(report.SLOWING)] + shown[slowed]
    seconds |= {report.SLOWING: both.tolist(), WAITING: shown[waits].sum(axis=1).tolist()}
    if measure is not None:
        heading, values = measure
        seconds[heading] = [float(values[run]) for run in shown["run"]]
    return _table(shown, len(rows), seconds, seeds, found, of_dlio=of_dlio)


def is_of_dlio(result: Result) -> bool:
    """Return whether the scenario of a result was a workload of DLIO."""
    return report.DLIO_PAUSES in result.documents["scenario.yaml"]


def _table(
    shown: pd.DataFrame,
    count: int,
    seconds: Mapping[str, Sequence[float]],
    seeds: int,
    found: Mapping[str, Any] | None,
    *,
    of_dlio: bool,
) -> Table:
    """The runs ``shown`` of ``count``, with the columns of ``seconds`` that are not empty."""
    columns = {"epoch": [epoch_with_half(row) for row in shown.to_dict("records")]}
    if found is not None:
        columns["90 %"] = [intervals.range_of(found, str(run)) for run in shown["run"]]
    if of_dlio:
        columns[AU] = [f"{share:.1%}" for share in shown["accelerator_utilisation"]]
    for name, values in seconds.items():
        if any(values):
            columns[name] = [three_digits(value) for value in values]
    title = "Seconds of the last epoch" + (f", mean over {seeds} seeds" if seeds > 1 else "")
    if of_dlio:
        title += "; AU: accelerator utilisation"
    if FIRST in columns:
        title += "; first: staging and the cold epoch"
    if len(shown) < count:
        title += f" ({len(shown)} of {count} runs; -v has all)"
    names = without_schedule(shown["run"].tolist())
    rows = zip(names, *columns.values(), strict=True)
    table = new_table(title, ["run"], list(columns), rows)
    table.show_edge = False  # no empty lines around it
    return table


def _chosen(rows: pd.DataFrame, most_rows: float = MOST_ROWS) -> pd.DataFrame:
    """All runs, or the fastest ones of each number of ranks, and of these the slowest."""
    if len(rows) <= most_rows:
        return rows
    by_time = rows.sort_values("epoch_s", kind="stable")
    groups = by_time.groupby("world_size", sort=True)
    each = max(2, MOST_ROWS // groups.ngroups)
    chosen = [index for _, own in groups for index in [*own.index[: each - 1], own.index[-1]]]
    return rows.loc[sorted(set(chosen))].tail(MOST_ROWS)


def _seconds_by_column(
    of: Means, rows: pd.DataFrame, labels: report.Booking
) -> dict[str, list[float]]:
    """(rows,) seconds of each column: own work by label, all waiting for other ranks, and what
    comes before the second epoch. What gradients in flight add to the backward pass is theirs."""
    parts = report.arrange_labels(of.breakdown.astype({"run": str}), labels)
    keys = ["run", "epoch", "waiting", "label"]
    known: Mapping[Any, float] = parts.set_index(keys)["seconds"].to_dict()
    epochs = of.epochs.astype({"run": str}).set_index(["run", "epoch"])
    before: Mapping[Any, float] = (epochs["staging_s"] + epochs["epoch_s"]).to_dict()

    columns: dict[str, list[float]] = {}
    for run, epoch in rows[["run", "epoch"]].itertuples(index=False, name=None):
        own = {label: known.get((run, epoch, False, label), 0.0) for label in report.ALL_LABELS}
        waits = {label: known.get((run, epoch, True, label), 0.0) for label in report.ALL_LABELS}
        own[report.SLOWING] += waits.pop(report.SLOWING)
        own[WAITING] = sum(waits.values())
        own[FIRST] = before[run, 1] if epoch > 1 else 0.0
        for name, value in own.items():
            columns.setdefault(name, []).append(value)
    return columns


def epoch_with_half(row: Row) -> str:
    """Seconds of an epoch with four digits, and half its interval, if it has one."""
    seconds = float(row["epoch_s"])
    digits = decimals(seconds)
    text = f"{seconds:,.{digits}f}"
    return f"{text} ± {row['half']:,.{digits}f}" if row["half"] else text


def three_digits(seconds: float) -> str:
    """Seconds with three digits, and no more than 1 ms; '-' for less than half of that."""
    if seconds < 5e-4:
        return "-"
    return f"{seconds:,.{max(0, min(3, 2 - math.floor(math.log10(seconds))))}f}"

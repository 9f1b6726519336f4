"""A measure of runs over ranks or Q, a line for each way of running."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, nothing
from simshuffle.figures.runs import last_epochs, lines_of, wide
from simshuffle.studies.simulation.sweep_figures import MOST_LINES, sweep_figure
from simshuffle.studies.simulation.tables import Axis

NAMES = {"world_size": "world_size", "exchange_fraction": "exchanged fraction Q"}


def table_over(given: Sequence[Given], across: str, measure: str) -> pd.DataFrame:
    """Mean and interval of ``measure`` in the last epochs: columns line, ``across``, the measure,
    low, high and seeds. Lines with one value, or none of the measure, are left out.

    Raises:
        InputError: no line is left, there are more than can be told apart, or two runs lie on one
            spot of a line.
    """
    found = last_epochs(given)
    found = found[found["measure"] == measure]
    rows = wide(found.assign(line=lines_of(found, across)), measure, ["line", across])
    rows = rows[rows[across].notna()]
    several = rows.groupby("line")[across].transform("nunique") > 1
    some = rows.groupby("line")[measure].transform("max") > 0
    rows = rows[several & some].reset_index(drop=True)
    what = "two world sizes" if across == "world_size" else "two values of Q"
    if rows.empty:
        key = "world_size=8,16"
        if across != "world_size":
            key = "workload.exchange.exchange_fraction=0.1,0.3"
        exchange = " with an exchange" if measure.startswith("exchange") else ""
        rule = f"needs runs of one kind{exchange} with at least {what}"
        raise nothing(rule, given, f"Simulate them: simshuffle sweep SCENARIO --over {key}")
    if (count := rows["line"].nunique()) > MOST_LINES:
        rule = f"draws at most {MOST_LINES} lines, as more cannot be told apart; there are {count}"
        raise nothing(rule, given, "Sweep fewer keys, or give fewer results.")
    if rows.duplicated(["line", across]).any():
        rule = f"needs lines with one run for each {NAMES[across]}"
        raise nothing(rule, given, "Name the runs with --label, with all axes in braces.")
    order = {line: place for place, line in enumerate(rows["line"].unique())}
    rows = rows.assign(place=rows["line"].map(order)).sort_values(["place", across])
    return rows.drop(columns="place").reset_index(drop=True)


def figure_over(rows: pd.DataFrame, across: str, measure: str, ideal: bool = False) -> Figure:
    """The figure of `table_over`'s rows; ``ideal``: with dotted lines of ideal scaling."""
    axes: list[Axis] = [
        {"name": across, "key": NAMES[across], "numbers": True},
        {"name": "line", "key": "line", "numbers": False},
    ]
    values = rows.rename(columns={measure: "mean"})
    values = values.assign(label=values["line"], epoch=1, measure=measure)
    return sweep_figure(values, axes, measure, ideal=ideal)

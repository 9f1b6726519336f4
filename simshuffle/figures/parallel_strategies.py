"""What an iteration takes under each way to divide training, by number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind, nothing
from simshuffle.studies.oracle.figures import TIMES, shown_points, times_figure


def draw(given: Sequence[Given]) -> Figure:
    """A column for each strategy."""
    table(given)
    return times_figure(given[0].result.all_tables)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """What is drawn: s of an iteration in parts."""
    tables = given[0].result.tables
    shown = shown_points(tables["points"], tables["measured"])
    if shown.empty:
        rule = "needs a strategy that fits the memory"
        raise nothing(rule, given, "Use more GPUs, or another --budget-memory.")
    parts = {
        f"{label}_s": shown[list(names)].sum(axis=1) / shown["iterations"]
        for label, (names, _) in TIMES.items()
    }
    return shown[["world_size", "strategy"]].assign(**parts).reset_index(drop=True)


KIND = Kind(("oracle",), draw, table)

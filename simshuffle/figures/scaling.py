"""Time of an epoch against the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import RUNS, Given, Kind
from simshuffle.figures.lines import figure_over, table_over


def draw(given: Sequence[Given]) -> Figure:
    """A line for each kind of run, and a dotted one for ideal scaling from its smallest size."""
    return figure_over(
        table_over(given, "world_size", "epoch_s"), "world_size", "epoch_s", ideal=True
    )


def table(given: Sequence[Given]) -> pd.DataFrame:
    """The times, speed-up and efficiency over the smallest size of each line."""
    rows = table_over(given, "world_size", "epoch_s")
    first = rows.groupby("line", sort=False)[["world_size", "epoch_s"]].transform("first")
    speedup = first["epoch_s"] / rows["epoch_s"]
    ideal = rows["world_size"] / first["world_size"]
    return rows.assign(speedup=speedup, efficiency=speedup / ideal)


KIND = Kind(RUNS, draw, table, together=RUNS)

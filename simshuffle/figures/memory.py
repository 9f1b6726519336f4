"""Memory of a GPU under each way to divide training."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind
from simshuffle.studies.oracle.figures import memory_figure, memory_rows
from simshuffle.studies.oracle.tables import MEMORY


def draw(given: Sequence[Given]) -> Figure:
    """A bar for each strategy at the scale of the best point, and the budget."""
    result = given[0].result
    return memory_figure(result.all_tables, result.meta["says"].get("budget_nbytes"))


def table(given: Sequence[Given]) -> pd.DataFrame:
    """What is drawn: bytes in parts."""
    parts = [f"{part}_nbytes" for part in MEMORY]
    columns = ["world_size", "strategy", *parts, "memory_nbytes", "fits"]
    return memory_rows(given[0].result.all_tables)[columns].reset_index(drop=True)


KIND = Kind(("oracle",), draw, table)

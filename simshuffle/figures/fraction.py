"""Time of an epoch against the exchanged fraction."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import RUNS, Given, Kind
from simshuffle.figures.lines import figure_over, table_over


def draw(given: Sequence[Given]) -> Figure:
    """A line for each strategy and schedule."""
    return figure_over(table(given), "exchange_fraction", "epoch_s")


def table(given: Sequence[Given]) -> pd.DataFrame:
    """The times."""
    return table_over(given, "exchange_fraction", "epoch_s")


KIND = Kind(RUNS, draw, table, together=RUNS)

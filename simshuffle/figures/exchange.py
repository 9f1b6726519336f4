"""Time of the exchange against the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import RUNS, Given, Kind
from simshuffle.figures.lines import figure_over, table_over

MEASURE = "exchange_total_s"


def draw(given: Sequence[Given]) -> Figure:
    """A line for each kind of run: what the exchange shows and what other work hides."""
    return figure_over(table(given), "world_size", MEASURE)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """The times."""
    return table_over(given, "world_size", MEASURE)


KIND = Kind(RUNS, draw, table, together=RUNS)

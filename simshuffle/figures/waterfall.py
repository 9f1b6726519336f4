"""From one exchange to another, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind
from simshuffle.studies.ablation.figures import waterfall_figure


def draw(given: Sequence[Given]) -> Figure:
    """A step for each switch."""
    return waterfall_figure(given[0].result.all_tables)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """What each switch changes of the whole epoch."""
    rows = given[0].result.all_tables["contributions"]
    return rows[rows["label"] == "epoch"].drop(columns="label").reset_index(drop=True)


KIND = Kind(("ablation",), draw, table)

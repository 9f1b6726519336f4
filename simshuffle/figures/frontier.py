"""Accuracy against time, storage and requests: which settings no other one beats."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind, nothing
from simshuffle.studies.time_to_accuracy.frontier import frontier_figure

COLUMNS = ["setting", "total_s", "storage_nbytes", "total_requests", "accuracy", "low", "high"]


def draw(given: Sequence[Given]) -> Figure:
    """A panel each for time, storage and requests; filled is what is on the front.

    Raises:
        InputError: none of the settings was simulated.
    """
    return frontier_figure(_simulated(given), given[0].result.meta)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Each setting that was simulated: what it costs, its accuracy with a 95 % interval, and
    whether it is on the front."""
    return _simulated(given)[[*COLUMNS, "on_front"]].reset_index(drop=True)


def _simulated(given: Sequence[Given]) -> pd.DataFrame:
    settings = given[0].result.tables["settings"]
    settings = settings[settings["message"] == ""]
    if settings.empty:
        raise nothing("needs a setting that was simulated", given, "Its settings.csv says why not.")
    return settings


KIND = Kind(("time_to_accuracy",), draw, table)

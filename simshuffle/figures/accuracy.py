"""Accuracy against simulated time."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind, nothing
from simshuffle.studies.time_to_accuracy.figures import time_figure


def draw(given: Sequence[Given]) -> Figure:
    """A line for each strategy, a panel for each Q, with 95 % bands.

    Raises:
        InputError: none of the settings was simulated.
    """
    of = given[0].result
    settings = of.tables["settings"]
    settings = settings[settings["message"] == ""]
    if settings.empty:
        raise nothing("needs a setting that was simulated", given, "Its settings.csv says why not.")
    curves = of.tables["curves"]
    return time_figure(settings, curves[curves["setting"].isin(settings["setting"])], of.meta)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """When each setting reached each target, with 95 % intervals."""
    columns = ["setting", "target", "name", "n", "reached", "time_s", "time_low_s", "time_high_s"]
    return given[0].result.tables["targets"][[*columns, "epochs"]]


KIND = Kind(("time_to_accuracy",), draw, table)

"""Figures for papers of accuracy against time, from the tables of a result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.figures import named, places_across, time_unit
from simshuffle.report.chart import GREY, Axis, Chart, Look, Mark, Panel, Ramp
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation.catalogue import Kind
from simshuffle.studies.presentation.named_results import (
    NamedResult,
    declared_figure,
    unsuitable_results,
)
from simshuffle.studies.training.figures import in_percent, look_of, strategies

TAKES = ("time_to_accuracy",)
INTERVAL = Look(colour=GREY, width=0.9)
COSTS = ["setting", "total_s", "storage_nbytes", "total_requests"]
KNOWN = ["accuracy", "low", "high"]


def simulated(given: Sequence[NamedResult]) -> pd.DataFrame:
    """The settings of which there is a time.

    Raises:
        InputError: there is none.
    """
    settings = given[0].result.tables["settings"]
    settings = settings[settings["message"] == ""]
    if settings.empty:
        raise unsuitable_results(
            "needs a setting that was simulated", given, "Its settings.csv says why not."
        )
    return settings


def accuracy_table(given: Sequence[NamedResult]) -> pd.DataFrame:
    """When each setting reached each target, with 95 % intervals."""
    columns = ["setting", "target", "name", "n", "reached", "time_s", "time_low_s", "time_high_s"]
    return given[0].result.tables["targets"][[*columns, "epochs"]]


def frontier_table(given: Sequence[NamedResult]) -> pd.DataFrame:
    """Each setting that was simulated: what it costs, its accuracy with a 95 % interval, and
    whether it is on the front."""
    return simulated(given)[[*COSTS, *KNOWN, "on_front"]].reset_index(drop=True)


def storage_accuracy_table(given: Sequence[NamedResult]) -> pd.DataFrame:
    """Each setting that was simulated, with what its hosts store, its final accuracy with a 95 %
    interval, and its time."""
    columns = ["setting", "strategy", "exchange_fraction", "storage_nbytes", *KNOWN]
    return simulated(given)[[*columns, "total_s", "on_front"]].reset_index(drop=True)


def storage_accuracy(given: Sequence[NamedResult]) -> Chart:
    """Points with Q beside them: what a host stores from left to right, accuracy upwards, the time
    of all epochs in colour."""
    rows = in_percent(storage_accuracy_table(given))
    unit, name = time_unit(float(rows["total_s"].max()))
    nbytes = rows["storage_nbytes"]
    x, axis = places_across("stored on a host", nbytes, lambda n: readable(n, Dimension.NBYTES, 2))
    times, known = rows["total_s"] / unit, strategies(rows)
    texts = [named(row) for row in rows.to_dict("records")]
    tips = rows["setting"] + (100 * rows["accuracy"]).map(": {:.4g} %".format)
    rows = rows.assign(x=x, value=times, text=texts, size=4.0, colour="#333333", tip=tips)
    looks = {n: Look(n, "#777777", look_of(n, known)["marker"], size=4.0) for n in known}
    marks = [
        Mark("interval", rows, y="low", y2="high", look=INTERVAL),
        Mark("point", rows, look="strategy", value="value"),
        Mark("label", rows),
    ]
    log, most = bool(times.max() > 4 * times.min()), float(times.max()) or 1.0
    title = f"simulated time of all epochs ({name})"
    ends = rows[["y", "low", "high"]].to_numpy(float)
    least, greatest = float(np.nanmin(ends)), float(np.nanmax(ends))
    room = 0.12 * (greatest - least) or 1.0
    y = Axis("final test accuracy (%)", low=least - room, high=greatest + room)
    return Chart(
        [Panel(marks, axis, y)],
        2.6,
        looks,
        "Storage of a host against accuracy, with the time in colour.",
        legend=str(given[0].result.meta.get("model", "")),
        ramp=Ramp(title, "viridis", float(times.min()), most, log, below=False),
    )


ACCURACY = Kind(TAKES, declared_figure("accuracy_time", simulated), accuracy_table)
FRONTIER = Kind(TAKES, declared_figure("frontier", simulated), frontier_table)
STORAGE_ACCURACY = Kind(TAKES, storage_accuracy, storage_accuracy_table)

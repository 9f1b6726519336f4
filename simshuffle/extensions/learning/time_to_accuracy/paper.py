"""Figures for papers of accuracy against time, from the tables of a result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.figures import (
    place_on_log_axis,
    point_label,
    time_unit,
)
from simshuffle.report.chart import GREY, Axis, Chart, Look, Mark, Panel, Ramp
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation.catalogue import Kind
from simshuffle.studies.presentation.named_results import (
    NamedResult,
    declared_figure,
    unsuitable_results,
)
from simshuffle.studies.training.figures import (
    look_of,
    order_strategies,
    scale_to_percent,
)

TAKES = ("time_to_accuracy",)
INTERVAL = Look(colour=GREY, width=0.9)
COST_COLUMNS = ["setting", "total_s", "storage_nbytes", "total_requests"]
ACCURACY_COLUMNS = ["accuracy", "low", "high"]


def simulated_settings(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the rows of settings.csv that were simulated, of the first result alone.

    Raises:
        InputError: there is none.
    """
    settings = results[0].result.tables["settings"]
    settings = settings[settings["message"] == ""]
    if settings.empty:
        raise unsuitable_results(
            "needs a setting that was simulated",
            results,
            "The result's settings.csv says why none was.",
        )
    return settings


def accuracy_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the columns of targets.csv on reaching and times, of the first result."""
    columns = [
        "setting",
        "target",
        "name",
        "n",
        "reached",
        "time_s",
        "time_low_s",
        "time_high_s",
    ]
    return results[0].result.tables["targets"][[*columns, "epochs"]]


def frontier_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return costs, accuracy and membership of the front of each simulated setting.

    Accuracy (share) has a 95 % interval; only the first result is read.
    """
    return simulated_settings(results)[
        [*COST_COLUMNS, *ACCURACY_COLUMNS, "on_front"]
    ].reset_index(drop=True)


def storage_accuracy_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return storage of a host, final accuracy and time of each simulated setting.

    Storage is in bytes, time in s of all epochs. Accuracy (share) has a 95 % interval.
    A last column says whether the setting is on the front. Only the first result is
    read.
    """
    columns = [
        "setting",
        "strategy",
        "exchange_fraction",
        "storage_nbytes",
        *ACCURACY_COLUMNS,
    ]
    return simulated_settings(results)[[*columns, "total_s", "on_front"]].reset_index(
        drop=True
    )


def storage_accuracy(results: Sequence[NamedResult]) -> Chart:
    """Draw final accuracy against storage of a host, with Q beside points and time in
    colour.
    """
    rows = scale_to_percent(storage_accuracy_table(results))
    unit, name = time_unit(float(rows["total_s"].max()))
    nbytes = rows["storage_nbytes"]
    x, axis = place_on_log_axis(
        "stored on a host", nbytes, lambda value: readable(value, Dimension.NBYTES, 2)
    )
    times = rows["total_s"] / unit
    strategy_order = order_strategies(rows)
    texts = [point_label(row) for row in rows.to_dict("records")]
    tips = rows["setting"] + (100 * rows["accuracy"]).map(": {:.4g} %".format)
    rows = rows.assign(
        x=x, value=times, text=texts, size=4.0, colour="#333333", tip=tips
    )
    looks = {
        strategy: Look(
            strategy, "#777777", look_of(strategy, strategy_order)["marker"], size=4.0
        )
        for strategy in strategy_order
    }
    marks = [
        Mark("interval", rows, y="low", y2="high", look=INTERVAL),
        Mark("point", rows, look="strategy", value="value"),
        Mark("label", rows),
    ]
    log = bool(times.max() > 4 * times.min())
    longest = float(times.max()) or 1.0
    title = f"simulated time of all epochs ({name})"
    bounds = rows[["y", "low", "high"]].to_numpy(float)
    lowest = float(np.nanmin(bounds))
    highest = float(np.nanmax(bounds))
    margin = 0.12 * (highest - lowest) or 1.0
    y = Axis("final test accuracy (%)", low=lowest - margin, high=highest + margin)
    return Chart(
        [Panel(marks, axis, y)],
        2.6,
        looks,
        "Storage of a host against accuracy, with the time in colour.",
        legend=str(results[0].result.meta.get("model", "")),
        ramp=Ramp(title, "viridis", float(times.min()), longest, log, below=False),
    )


ACCURACY = Kind(
    TAKES, declared_figure("accuracy_time", simulated_settings), accuracy_table
)
FRONTIER = Kind(TAKES, declared_figure("frontier", simulated_settings), frontier_table)
STORAGE_ACCURACY = Kind(TAKES, storage_accuracy, storage_accuracy_table)

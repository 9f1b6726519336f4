"""Figures of studies other than runs: accuracy against what it costs, contention, mechanisms, and
ways to divide training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from simshuffle.figures.kinds import Given, nothing
from simshuffle.results.chart import GREY, Axis, Chart, Look, Mark, Panel, Ramp
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.congestion.figures import largest, upwards
from simshuffle.studies.congestion.tables import VARIANT
from simshuffle.studies.oracle.figures import (
    memory_rows,
    parts_of,
    shown_points,
)
from simshuffle.studies.oracle.tables import MEMORY
from simshuffle.studies.time_to_accuracy.figures import named, places_across, time_unit
from simshuffle.studies.training.figures import in_percent, look_of, strategies

Table = Callable[[Sequence[Given]], pd.DataFrame]
INTERVAL = Look(colour=GREY, width=0.9)
COSTS = ["setting", "total_s", "storage_nbytes", "total_requests"]
KNOWN = ["accuracy", "low", "high"]

# ---------------------------------------------------------------------------- accuracy and its cost


def own(name: str, check: Table | None = None) -> Callable[[Sequence[Given]], Chart]:
    """The figure of that name which the study itself declares; ``check`` raises InputError where it
    has nothing for it."""

    def chart(given: Sequence[Given]) -> Chart:
        if check:
            check(given)
        result = given[0].result
        return result.study.figures(result)[name]

    return chart


def simulated(given: Sequence[Given]) -> pd.DataFrame:
    """The settings of which there is a time.

    Raises:
        InputError: there is none.
    """
    settings = given[0].result.tables["settings"]
    settings = settings[settings["message"] == ""]
    if settings.empty:
        raise nothing("needs a setting that was simulated", given, "Its settings.csv says why not.")
    return settings


def accuracy_table(given: Sequence[Given]) -> pd.DataFrame:
    """When each setting reached each target, with 95 % intervals."""
    columns = ["setting", "target", "name", "n", "reached", "time_s", "time_low_s", "time_high_s"]
    return given[0].result.tables["targets"][[*columns, "epochs"]]


def frontier_table(given: Sequence[Given]) -> pd.DataFrame:
    """Each setting that was simulated: what it costs, its accuracy with a 95 % interval, and
    whether it is on the front."""
    return simulated(given)[[*COSTS, *KNOWN, "on_front"]].reset_index(drop=True)


def storage_accuracy_table(given: Sequence[Given]) -> pd.DataFrame:
    """Each setting that was simulated, with what its hosts store, its final accuracy with a 95 %
    interval, and its time."""
    columns = ["setting", "strategy", "exchange_fraction", "storage_nbytes", *KNOWN]
    return simulated(given)[[*columns, "total_s", "on_front"]].reset_index(drop=True)


def storage_accuracy(given: Sequence[Given]) -> Chart:
    """Points with Q beside them: what a host stores from left to right, accuracy upwards, the time
    of all epochs in colour."""
    rows = in_percent(storage_accuracy_table(given))
    unit, name = time_unit(float(rows["total_s"].max()))
    x, axis = places_across(
        "stored on a host",
        rows["storage_nbytes"],
        lambda value: readable(value, Dimension.NBYTES, 2),
    )
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


# ------------------------------------------------------------------------ contention and mechanisms


def congestion_table(given: Sequence[Given]) -> pd.DataFrame:
    """Mean and busiest utilisation of each tier and pattern, means over seeds."""
    tables = given[0].result.tables
    tiers = largest(tables, tables["tiers"])
    keys = ["routing", *VARIANT, "tier"]
    columns = ["links", "mean_utilisation", "max_utilisation"]
    rows = tiers.groupby(keys, sort=False, observed=True)[columns].mean().reset_index()
    rows = rows.astype({"links": int, "tier": str, "barrier": bool})
    place = {tier: number for number, tier in enumerate(upwards(list(rows["tier"].unique())))}
    by = rows.assign(place=rows["tier"].map(place)).groupby(keys[:-1], sort=False)
    ordered: pd.DataFrame = pd.concat([of.sort_values("place") for _, of in by], ignore_index=True)
    del ordered["place"]
    return ordered


def waterfall_table(given: Sequence[Given]) -> pd.DataFrame:
    """What each switch changes of the whole epoch."""
    rows = given[0].result.all_tables["contributions"]
    return rows[rows["label"] == "epoch"].drop(columns="label").reset_index(drop=True)


# -------------------------------------------------------------------------- ways to divide training


def parallel_strategies_table(given: Sequence[Given]) -> pd.DataFrame:
    """What is drawn: s of an iteration in parts."""
    tables = given[0].result.tables
    shown = shown_points(tables["points"], tables["measured"])
    if shown.empty:
        rule = "needs a strategy that fits the memory"
        raise nothing(rule, given, "Use more GPUs, or another --budget-memory.")
    parts = parts_of(shown).add_suffix("_s")
    return pd.concat([shown[["world_size", "strategy"]], parts], axis=1).reset_index(drop=True)


def memory_table(given: Sequence[Given]) -> pd.DataFrame:
    """What is drawn: bytes in parts."""
    parts = [f"{part}_nbytes" for part in MEMORY]
    columns = ["world_size", "strategy", *parts, "memory_nbytes", "fits"]
    return memory_rows(given[0].result.all_tables)[columns].reset_index(drop=True)

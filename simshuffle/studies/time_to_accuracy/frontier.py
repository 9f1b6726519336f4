"""The frontier: final accuracy against time, against what a host stores and against requests to the
file system, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.results.chart import Axis, Chart, Look, Mark, Panel, key
from simshuffle.results.style import COLUMN_INCHES, width
from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.time_to_accuracy.drawing import note, places_across, time_axis, time_unit
from simshuffle.studies.training.figures import in_percent
from simshuffle.studies.training.looks import look_of, strategies

MANY = 8
"""More strategies than that are numbered: colours and letters beside points no longer do."""
ON, OFF = 4.6, 3.0
"""Points across of what is on the front, and of what is not."""
BEATEN = "#666666"
"""Names of what is not on the front."""
WIDE = 1.5
"""Widths of a column from which on all panels stand in one row."""
KEYS = {
    "on the front": Look("on the front", "#777777", "o", size=3.5),
    "beaten": Look("beaten", "#777777", "o", size=3.5, fill="none"),
}


def frontier_chart(settings: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """Final accuracy with 95 % intervals in three panels: against the time of all epochs, against
    what a host stores, and against requests. Filled and in colour if on the front.

    Points have Q beside them, or a number where there are more than `MANY` strategies.

    Args:
        settings: columns `SETTING_COLUMNS`, those that were simulated.
        meta: as of `simshuffle.studies.time_to_accuracy.figures.figures`.
    """
    rows = _rows(settings)
    unit, name = time_unit(float(settings["total_s"].max()))
    times = settings["total_s"] / unit
    epochs = int(settings["epochs"].iloc[0])
    title = f"simulated time of {epochs} epochs, staging included ({name})"
    axis = time_axis(title, times, float(times.min()))
    if not axis.log:
        room = 0.08 * (times.max() - times.min()) or 0.1 * times.max()
        axis = replace(axis, low=times.min() - room, high=times.max() + 1.6 * room)
    ends = rows[["low", "y", "high"]].to_numpy(float)
    room = 0.06 * (np.nanmax(ends) - np.nanmin(ends)) or 1.0
    up = Axis(
        low=max(np.nanmin(ends) - room, 0.0), high=min(np.nanmax(ends) + room, 104.0), small=True
    )
    stored, requests = settings["storage_nbytes"], settings["total_requests"]
    bytes_axis = places_across(
        "stored on a host", stored, lambda value: readable(value, Dimension.NBYTES, 2), 0.5, 0.15
    )
    files_axis = places_across("requests to the PFS", requests, readable_count, room=0.15)
    wide = width() > WIDE * COLUMN_INCHES
    first = _panel(rows, times, replace(axis, small=True), up, every=True)
    others = [_panel(rows, *of, up) for of in (bytes_axis, files_axis)]
    looks = _looks(rows, settings)
    return Chart(
        [
            replace(
                first,
                marks=[*first.marks, *(key(name, "point") for name in looks if looks[name].label)],
                span=1 if wide else 2,
                weight=1.6,
            ),
            *others,
        ],
        2.5 if wide else 3.7,
        looks,
        "Final accuracy against time, storage of a host and requests; filled is on the front.",
        legend=str(meta.get("model", "")),
        note=note(meta),
        across=3 if wide else 2,
        widths=(1.7, 1, 1) if wide else (),
        share="y",
        y="final test accuracy (%)",
        dense=len(strategies(settings)) > MANY,
    )


def named(row: Mapping[Any, Any]) -> str:
    """What stands beside a point: Q, or where global shuffle reads from; nothing where the strategy
    says it all."""
    if row["strategy"] == "global":
        return str(row["setting"]).partition("(")[2].rstrip(")")
    fraction = row["exchange_fraction"]
    return "" if row["strategy"] == "local" or math.isnan(fraction) else f"{fraction:g}"


def _rows(settings: pd.DataFrame) -> pd.DataFrame:
    """Settings as they are drawn, those on the front last: y, low and high (%), name in the legend,
    look, text beside the point and its colour, and size."""
    known = strategies(settings)
    texts = [named(row) for row in settings.to_dict("records")]
    names = settings["strategy"]
    if len(known) > MANY:
        texts = [str(number) for number in range(1, len(settings) + 1)]
        names = pd.Series(texts, settings.index) + " " + settings["setting"]
    front = settings["on_front"].astype(bool)
    colours = settings["strategy"].map({name: look_of(name, known)["color"] for name in known})
    rows = settings.assign(
        name=names,
        look=names.where(front, names + ", beaten"),
        text=texts,
        colour=colours.map(dark).where(front, BEATEN),
        size=np.where(front, ON, OFF),
    )
    rows["tip"] = rows["setting"] + (100 * rows["accuracy"]).map(": {:.4g} %".format)
    return in_percent(rows)


def _looks(rows: pd.DataFrame, settings: pd.DataFrame) -> dict[str, Look]:
    known, out = strategies(settings), {}
    for name, strategy in rows[["name", "strategy"]].itertuples(index=False, name=None):
        of = look_of(strategy, known)
        out[name] = Look(name, of["color"], of["marker"], size=ON)
    beaten = {
        f"{name}, beaten": replace(look, label="", fill="none", size=OFF)
        for name, look in out.items()
    }
    return {**out, **KEYS, **beaten}


def _panel(
    rows: pd.DataFrame, x: pd.Series[float], axis: Axis, up: Axis, *, every: bool = False
) -> Panel:
    """Points with their intervals, and texts beside those on the front, or beside ``every`` one."""
    placed = rows.assign(x=x)
    front = placed["on_front"].astype(bool)
    labels = placed.assign(text=placed["text"].where(front | every, ""))
    marks = []
    for of in (placed[~front], placed[front]):
        marks += [Mark("interval", of, y="low", y2="high"), Mark("point", of)]
    return Panel([*marks, Mark("label", pd.concat([labels[front], labels[~front]]))], axis, up)


def dark(colour: str) -> str:
    """The same colour, dark enough for small letters on white."""
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(0.65 * part):02x}" for part in parts)

"""The figures, from tables alone: accuracy against time; and the frontier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.tables import JoinTables
from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    hollow_looks,
    key,
    log_axis,
    with_intervals,
)
from simshuffle.report.style import COLUMN_INCHES, width
from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.training.figures import (
    PANEL_INCHES,
    WITHOUT_FRACTION,
    lines_and_bands,
    look_of,
    looks_of,
    order_strategies,
    scale_to_percent,
)
from simshuffle.studies.training.summary import estimate

MUCH_LONGER = 4.0
"""Axes of time are logarithmic where the longest takes so many times as long as the shortest."""
HOUR = 3600.0
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


def figures(tables: JoinTables, meta: Mapping[str, Any]) -> dict[str, Chart]:
    """Every figure that the tables have something for, by the name of its file. All state
    ``model``, ``rule`` and ``schedules`` of ``meta``; results of before lack the first and the
    last."""
    simulated = tables.settings[tables.settings["message"] == ""]
    if not len(simulated):
        return {}
    out = {"frontier": frontier_chart(simulated, meta)}
    curves = tables.curves[tables.curves["setting"].isin(simulated["setting"])]
    if len(curves):
        out["accuracy_time"] = time_chart(simulated, curves, meta)
    return out


def time_chart(settings: pd.DataFrame, curves: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """Accuracy against simulated time with 95 % bands, a panel for each Q with global and local."""
    everywhere = settings[settings["strategy"].isin(WITHOUT_FRACTION)]
    others = settings.drop(everywhere.index)
    exchanged = others[others["exchange_fraction"].notna()]
    loaders = others.drop(exchanged.index)
    groups = {f"Q = {q:g}": of for q, of in exchanged.groupby("exchange_fraction")}
    groups |= {"loaders": loaders} if len(loaders) else {}
    groups = groups or {"": others}
    unit, name = time_unit(float(settings["total_s"].max()))
    known, lines = order_strategies(settings), _lines(settings, curves, unit)
    x = time_axis(f"simulated time ({name})", settings["total_s"] / unit, lines["x"].min())
    panels = []
    for title, rows in groups.items():
        own = _once(pd.concat([everywhere, rows]))
        here = lines.merge(own[["setting", "strategy", "look"]], on="setting")
        colour = {each: look_of(each, known)["color"] for each in known}
        here = here.assign(colour=here["strategy"].map(colour))
        panels.append(Panel(lines_and_bands(here), x, Axis(small=True), title))
    across = 1 if len(panels) == 1 else 2
    names = _once(settings)[["strategy", "look"]].itertuples(index=False, name=None)
    return Chart(
        panels,
        -(-len(panels) // across) * PANEL_INCHES + (0.9 if across == 1 else 0.35),
        looks_of(list(names), known),
        "Test accuracy against simulated time, with 95 % bands.",
        legend=str(meta.get("model", "")),
        note=note(meta),
        across=across,
        share="xy",
        y="test accuracy (%)",
    )


def _lines(settings: pd.DataFrame, curves: pd.DataFrame, unit: float) -> pd.DataFrame:
    """Mean accuracy and its interval in %, after each epoch of each setting."""
    found = [
        {
            "setting": setting,
            "x": of["time_s"].iloc[0] / unit,
            **vars(estimate(of["accuracy"].tolist())),
        }
        for (setting, _), of in curves.groupby(["setting", "epoch"])
    ]
    return scale_to_percent(pd.DataFrame(found).rename(columns={"mean": "accuracy"}))


def _once(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings that have a line, with its name in the legend as ``look``: the first of each
    strategy, and of each source of global shuffle."""
    looks = settings["strategy"].where(settings["strategy"] != "global", settings["setting"])
    return settings.assign(look=looks).drop_duplicates("look")


# ------------------------------------------------------------------------------------- the frontier


def frontier_chart(settings: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """Final accuracy with 95 % intervals against the time of all epochs, what a host stores, and
    requests, filled and in colour if on the front; with Q, or a number if more than `MANY`."""
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
        dense=len(order_strategies(settings)) > MANY,
    )


def named(row: Mapping[Any, Any]) -> str:
    """What stands beside a point: Q, or where global reads from; nothing if the strategy is all."""
    if row["strategy"] == "global":
        return str(row["setting"]).partition("(")[2].rstrip(")")
    fraction = row["exchange_fraction"]
    return "" if row["strategy"] == "local" or math.isnan(fraction) else f"{fraction:g}"


def _rows(settings: pd.DataFrame) -> pd.DataFrame:
    """Settings as they are drawn, those on the front last: y, low and high (%), name in the legend,
    look, text beside the point and its colour, and size."""
    known = order_strategies(settings)
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
    return scale_to_percent(rows)


def _looks(rows: pd.DataFrame, settings: pd.DataFrame) -> dict[str, Look]:
    known, out = order_strategies(settings), {}
    for name, strategy in rows[["name", "strategy"]].itertuples(index=False, name=None):
        of = look_of(strategy, known)
        out[name] = Look(name, of["color"], of["marker"], size=ON)
    return {**out, **KEYS, **hollow_looks(out, ", beaten", size=OFF)}


def _panel(
    rows: pd.DataFrame, x: pd.Series[float], axis: Axis, up: Axis, *, every: bool = False
) -> Panel:
    """Points with their intervals, and texts beside those on the front, or beside ``every`` one."""
    placed = rows.assign(x=x)
    front = placed["on_front"].astype(bool)
    labels = placed.assign(text=placed["text"].where(front | every, ""))
    marks = []
    for of in (placed[~front], placed[front]):
        marks += with_intervals("point", of)
    return Panel([*marks, Mark("label", pd.concat([labels[front], labels[~front]]))], axis, up)


def dark(colour: str) -> str:
    """The same colour, dark enough for small letters on white."""
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(0.65 * part):02x}" for part in parts)


# ----------------------------------------------------------------------------------- what both need


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds of the unit that times are shown in, and its name."""
    return (HOUR, "h") if longest >= 2 * HOUR else (60.0, "min") if longest >= 600 else (1.0, "s")


def note(meta: Mapping[str, Any]) -> str:
    """Scale and schedule, which stand below what is drawn."""
    schedules = " and ".join(meta.get("schedules", []))
    said = f" Schedule of the exchange: {schedules}." if schedules else ""
    return f"Scale: {meta['rule']}.{said}"


def time_axis(title: str, totals: pd.Series[float], least: float) -> Axis:
    """From 0; or logarithmic from ``least`` on where some settings take much longer than others.
    ``totals`` of the settings and ``least`` are in the unit of the title."""
    if totals.max() > MUCH_LONGER * totals.min():
        return log_axis(title, 0.85 * least, 1.15 * totals.max())
    return Axis(title, low=0.0, high=1.03 * totals.max())


def places_across(
    title: str,
    values: pd.Series[float],
    text: Callable[[float], str],
    apart: float = 0.3,
    room: float = 0.12,
) -> tuple[pd.Series[float], Axis]:
    """Where ``values`` (n,) from 0 stand, in powers of ten, and the axis; a 0 stands left of all
    others. Ticks, with ``text``, are at least ``apart`` of the range away; ``room`` of it is on
    both sides."""
    some = values[values > 0]
    if some.empty:
        return values * 0.0, Axis(title, ticks={0.0: "none"}, small=True)
    low, high = np.log10(float(some.min())), np.log10(float(some.max()))
    none = low - max(0.4 * (high - low), 0.1)
    ticks = {float(np.log10(value)): text(value) for value in _round(some, apart)}
    if (values == 0).any():
        ticks[none] = "none"
    places = values.where(values > 0, 10.0**none).map(np.log10)
    aside = room * float(places.max() - places.min()) or 0.05
    ends: Any = {"low": float(places.min()) - aside, "high": float(places.max()) + aside}
    return places, Axis(title, ticks=dict(sorted(ticks.items())), small=True, **ends)


def _round(values: pd.Series[float], apart: float) -> list[float]:
    """Few values for ticks: round ones between the ends that are far apart, or the ends."""
    low, high = float(values.min()), float(values.max())
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    best = sorted({low, high}) if high > 1.5 * low else [low]
    for every, steps in ((3, (1,)), (2, (1,)), (1, (1,)), (1, (1, 3)), (1, (1, 2, 5))):
        powers = range(first - first % every, last + 1, every)
        found = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
        if len(found) > 2 and np.diff(np.log10(found)).min() > apart * np.log10(high / low):
            best = found
    return best

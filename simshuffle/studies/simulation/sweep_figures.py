"""The figure of a sweep: a measure over one axis, a line for each combination of the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    MIN_LOG_RATIO,
    Axis,
    Chart,
    Look,
    Mark,
    Marker,
    Panel,
    key,
    log_axis,
    spaced_ticks,
)
from simshuffle.report.intervals import HIGH, LOW
from simshuffle.report.intervals import WHISKER as OF_90
from simshuffle.report.names import without_schedule
from simshuffle.report.style import BRIGHT
from simshuffle.studies.simulation.tables import WHOLE_EPOCH, measure_name
from simshuffle.studies.simulation.tables import SweptAxis as Swept
from simshuffle.studies.simulation.text import number

MARKERS: tuple[Marker, ...] = ("o", "s", "D", "^", "v", "P", "*", "X")
MOST_LINES = 12  # lines of one figure; more cannot be told apart
NARROW = 0.9
"""Share of the largest value that the smallest is at least where an axis leaves out 0."""
NEAR = 0.01
"""Share of the axis, half a marker, that curves which lie on each other are apart at most."""
MOSTLY = 0.5  # share of the points from which on a curve lies on another for the most part
RINGS = 3
"""Curves that are seen as rings around the points of those that lie on them, at most."""
IDEAL = Look("ideal (dotted)", "#555555", dash=":", width=0.8)


def sweep_chart(
    summary: pd.DataFrame,
    axes: Sequence[Swept],
    measure: str = WHOLE_EPOCH,
    *,
    samples: Iterable[float] = (),
    ideal: bool = False,
) -> Chart:
    """A measure of the last epoch, mean and 95 % interval over seeds, from the summary of a sweep
    and its axes in their order; the 90 % interval where there are columns `LOW` and `HIGH`;
    ``samples`` of an epoch of each run, as far as known. With ``ideal`` a dotted line from the
    first point of each, for half the time with twice the value; both axes are logarithmic then."""
    table = summary[summary["measure"] == measure]
    table = table.assign(**{name: table.get(name, np.nan) for name in (LOW, HIGH)})
    table["label"] = without_schedule(table["label"].tolist())
    keys = ["label", *(axis["name"] for axis in axes)]
    table = table[table["epoch"] == table.groupby(keys)["epoch"].transform("max")]
    across = _across(table, axes)
    swept = next((axis for axis in axes if axis["name"] == across), None)
    values = list(dict.fromkeys(table[across])) if across else [""]
    lines = _lines(table, axes, across)
    shown = dict(list(lines.items())[:MOST_LINES])
    numbers = bool(swept and swept["numbers"])
    rows = pd.concat([_placed(of, name, across, values, numbers) for name, of in shown.items()])
    y = _upwards(rows, measure_name(measure), ideal)
    close = _close(rows, y)
    looks = {
        name: Look(
            name,
            BRIGHT[n % len(BRIGHT)],
            MARKERS[n % len(MARKERS)],
            size=3 + 1.6 * min(RINGS, sum(share >= MOSTLY for share in close[name].values())),
            width=1.0,
        )
        for n, name in enumerate(shown)
    }
    whiskers, of_whiskers = _whiskers(rows, looks)
    points = [
        *whiskers,
        Mark("interval", rows[rows["low"].notna()], y="low", y2="high"),
        Mark("line" if numbers else "point", rows),
    ]
    marks = [*_ideal(rows, looks), *points] if ideal else points
    title = f"{MOST_LINES} of {len(lines)} lines; sweep.parquet has all"
    panel = Panel(marks, _below(swept, values), y, title if len(lines) > MOST_LINES else "")
    looks = {**({"ideal": IDEAL} if ideal else {}), **looks, **of_whiskers}
    about = f"{measure_name(measure).capitalize()} of the last epoch."
    cut = [] if y.log or y.low is not None else ["The axis leaves out 0."]
    note = " ".join([*_lengths(samples), _seeds(rows), *cut, *_on_each_other(rows, close)])
    return Chart([panel], 2.3, looks, about, note=note)


def _whiskers(rows: pd.DataFrame, looks: dict[str, Look]) -> tuple[list[Mark], dict[str, Look]]:
    """The 90 % intervals, in the colours of their lines, and how they look; nothing where there
    are none."""
    there = rows[rows[HIGH].notna()]
    if there.empty:
        return [], {}
    own = {
        name + OF_90.label: replace(OF_90, label="", colour=look.colour, alpha=0.6)
        for name, look in looks.items()
    }
    drawn = Mark("interval", there.assign(look=there["look"] + OF_90.label), y=LOW, y2=HIGH)
    return [drawn, key(OF_90.label, "interval")], {**own, OF_90.label: OF_90}


def _lengths(samples: Iterable[float]) -> list[str]:
    ends = sorted({round(count) for count in samples})
    if not ends:
        return []
    some = f"{ends[0]:,}" if len(ends) == 1 else f"{ends[0]:,} to {ends[-1]:,}"
    return [f"An epoch has {some} samples."]


def _seeds(rows: pd.DataFrame) -> str:
    least, most = int(rows["seeds"].min()), int(rows["seeds"].max())
    if most == 1:
        return "One seed, so no interval over seeds."
    some = f"{most}" if least == most else f"{least} to {most}"
    return f"Mean and 95 % interval of {some} seeds."


def _close(rows: pd.DataFrame, y: Axis) -> dict[str, dict[str, float]]:
    """For each line, of those drawn after it, the share of its points at which they meet."""
    wide = rows.pivot_table("y", "x", "look", sort=False)
    names, values = list(map(str, wide)), wide.to_numpy(float)
    there = ~np.isnan(values)
    low, high = (np.nanmin(values), np.nanmax(values)) if y.low is None else (y.low, y.high or 0.0)
    if y.log:
        values = np.log(np.where(values > 0, values, np.nan))
        low, high = math.log(low), math.log(high)

    def share(one: int, two: int) -> float:
        near = np.abs(values[:, one] - values[:, two]) <= NEAR * (high - low)
        return float(near.sum()) / max(1, int((there[:, one] | there[:, two]).sum()))

    return {
        name: {names[two]: share(one, two) for two in range(one + 1, len(names))}
        for one, name in enumerate(names)
    }


def _on_each_other(rows: pd.DataFrame, close: dict[str, dict[str, float]]) -> list[str]:
    """Which curves cannot be told apart, and how far they are; which meet for the most part."""
    said, left = [], list(close)
    while left:
        first, *others = left
        group = [first, *(name for name in others if close[first][name] == 1)]
        left = [name for name in left if name not in group]
        if len(group) > 1:
            at = rows[rows["look"].isin(group)].groupby("x")["y"]
            apart_by = float((1 - at.min() / at.max()).fillna(0.0).max())
            much = f"at most {math.ceil(1000 * apart_by - 1e-6) / 10:g}\u00a0% apart"
            names = f"{', '.join(group[:-1])} and {group[-1]}"
            said.append(f"{names} ({much if apart_by else 'equal'})")
        if half := [name for name in left if close[first][name] >= MOSTLY]:
            share = f"{100 * close[first][half[0]]:.0f}\u00a0%"
            said.append(f"{first} and {half[0]} (at {share} of the points)")
    return [f"On each other: {'; '.join(said)}."] if said else []


def _across(table: pd.DataFrame, axes: Sequence[Swept]) -> str:
    """The axis from left to right: ranks, else that of most numbers, else the first one; or ''."""
    numbers = [axis["name"] for axis in axes if axis["numbers"]]
    if "world_size" in numbers:
        return "world_size"
    return max(
        numbers, key=lambda name: table[name].nunique(), default=axes[0]["name"] if axes else ""
    )


def _lines(table: pd.DataFrame, axes: Sequence[Swept], across: str) -> dict[str, pd.DataFrame]:
    names = [axis["name"] for axis in axes if axis["name"] != across]
    groups = list(table.groupby(names, sort=False, dropna=False)) if names else [((), table)]
    return {
        _common(rows, across) or ", ".join(map(_text, names, values)) or " ": rows
        for values, rows in groups
    }


def name_without(run: str, across: str, value: Any) -> str:
    """Return the name of a run without the words that give ``across`` its value."""
    words = [word for word in run.split() if word not in {f"@{value}", f"{across}={value}"}]
    if across.endswith("exchange_fraction"):
        fraction = f"{value:g}"
        words = [word for word in words if word != f"{across}={fraction}"]
        words = [word.removesuffix(f"-{fraction}") for word in words]
    return " ".join(words)


def _common(rows: pd.DataFrame, across: str) -> str:
    """What the labels of a line share beside the axis from left to right; '' if they differ."""
    values = rows[across] if across else rows["label"]
    texts = {
        name_without(label, across, value)
        for label, value in zip(rows["label"], values, strict=True)
    }
    return texts.pop() if len(texts) == 1 else ""


def _text(name: str, value: Any) -> str:
    is_number = isinstance(value, int | float | np.number)
    words = name.rsplit(".", 1)[-1].replace("_", " ")
    return f"{words} {value:g}" if is_number else f"{words} {value}"


def _placed(
    rows: pd.DataFrame, name: str, across: str, values: Sequence[Any], numbers: bool
) -> pd.DataFrame:
    x = rows[across] if numbers else rows[across].map(values.index) if across else 0.0
    tips = [
        f"{label}: {number(mean)}" for label, mean in zip(rows["label"], rows["mean"], strict=True)
    ]
    return rows.assign(x=x, y=rows["mean"], look=name, tip=tips).sort_values("x", kind="stable")


def _ideal(rows: pd.DataFrame, looks: dict[str, Look]) -> list[Mark]:
    first = rows.groupby("look", sort=False)[["x", "y"]].transform("first")
    ends = rows.assign(y=first["y"] * first["x"] / rows["x"])
    thin = {"label": "", "marker": "", "dash": ":", "width": 0.8}
    lines = [
        Mark("line", ends[ends["look"] == name], look=replace(look, **thin))  # type: ignore[arg-type]
        for name, look in looks.items()
    ]
    return [*lines, key("ideal")]


def _upwards(rows: pd.DataFrame, title: str, ideal: bool) -> Axis:
    top = float(np.nanmax(rows[["high", HIGH, "mean"]].to_numpy(float)))
    bottom = float(np.nanmin(rows[["low", LOW, "mean"]].to_numpy(float)))
    least = float(rows["mean"].min())
    if ideal:
        ends = rows.groupby("look")[["x", "mean"]].agg(["first", "last"])
        last = ends["mean", "first"] * ends["x", "first"] / ends["x", "last"]
        low = min(0.8 * bottom if bottom > 0 else 1.25 * top, 0.8 * float(last.min()))
        return log_axis(title, low, 1.25 * top)
    if least > 0 and top / least >= MIN_LOG_RATIO:
        # an interval that reaches 0 has no end on the axis
        return log_axis(title, (0.7 * bottom) if bottom > 0 else 0.5 * least, 1.3 * top)
    if least < NARROW * top or top <= 0:
        return Axis(title, low=0.0, high=1.08 * top if top > 0 else 1.0)
    return Axis(title)


def _below(axis: Swept | None, values: Sequence[Any]) -> Axis:
    if axis is None:
        return Axis(ticks={})
    title = {"world_size": "GPUs"}.get(axis["name"], axis["key"])
    if not axis["numbers"]:
        names = {float(place): str(value) for place, value in enumerate(values)}
        return Axis(title, ticks=names, turned=20)
    least, most = min(values), max(values)
    # ranks are doubled, not added
    log = least > 0 and most / least >= (1.01 if axis["name"] == "world_size" else MIN_LOG_RATIO)
    return Axis(title, log, ticks=spaced_ticks(values, log))

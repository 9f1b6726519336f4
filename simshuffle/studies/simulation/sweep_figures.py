"""The figure of a sweep: a measure over one axis, a line for each combination of the
others.
"""

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
from simshuffle.report.intervals import CENTRE, HIGH, LOW, MIDDLE, whisker
from simshuffle.report.names import without_schedule
from simshuffle.report.report import rows_of_last_epoch
from simshuffle.report.style import BRIGHT
from simshuffle.studies.simulation.tables import (
    WHOLE_EPOCH,
    keys_of_combinations,
    measure_name,
)
from simshuffle.studies.simulation.tables import SweptAxis as Swept
from simshuffle.studies.simulation.text import format_seconds

MARKERS: tuple[Marker, ...] = ("o", "s", "D", "^", "v", "P", "*", "X")
MAX_LINES = 12  # lines of one figure; more cannot be told apart
NARROW_RATIO = 0.9
"""Smallest share of the largest value that the smallest has where an axis leaves out 0."""
TOUCHING_SHARE = 0.01
"""Largest distance of curves that lie on each other, as a share of the axis: half a
marker.
"""
MOST_POINTS_SHARE = 0.5
"""Share of the points from which on a curve lies on another for the most part."""
MAX_RINGS = 3
"""Largest number of curves that are visible as rings around points of curves that lie
on them.
"""
IDEAL = Look("ideal (dotted)", "#555555", dash=":", width=0.8)


def sweep_chart(
    summary: pd.DataFrame,
    axes: Sequence[Swept],
    measure: str = WHOLE_EPOCH,
    *,
    samples: Iterable[float] = (),
    ideal: bool = False,
    num_measured: int = 0,
) -> Chart:
    """Draw a measure of the last epoch over one axis of a sweep, a line for each
    combination of the others.

    Points are means over seeds with their 95 % interval, and with the 90 % interval
    where there are columns `LOW` and `HIGH`. At most `MAX_LINES` lines are drawn; the
    title says so. Rows that are NaN on an axis are left out.

    Args:
        summary: the summary of the sweep: label, the columns of ``axes``, `SUMMARY`.
        axes: the axes of the sweep in their order.
        measure: the measure to draw, a value of column ``measure``.
        samples: samples of an epoch of each run, as far as known, for a note.
        ideal: true for a dotted line from the first point of each line, which halves
            the time with twice the value; both axes are logarithmic then.
        num_measured: measured runs that the 90 % intervals take in.
    """
    table = _rows_of_last_epochs(summary, axes, measure)
    across = _choose_across(table, axes)
    swept = next((axis for axis in axes if axis["name"] == across), None)
    values = list(dict.fromkeys(table[across])) if across else [""]
    lines = _rows_by_line(table, axes, across)
    displayed_lines = dict(list(lines.items())[:MAX_LINES])
    is_number = bool(swept and swept["numbers"])
    rows = pd.concat(
        [
            _positioned_rows(line_rows, name, across, values, is_number)
            for name, line_rows in displayed_lines.items()
        ]
    )
    y = _value_axis(rows, measure_name(measure), ideal)
    touching = _touching_shares(rows, y)
    looks = _line_looks(list(displayed_lines), touching)
    whiskers, whisker_looks = _whiskers(rows, looks, num_measured)
    points = [
        *whiskers,
        Mark("interval", rows[rows["low"].notna()], y="low", y2="high"),
        Mark("line" if is_number else "point", rows),
    ]
    marks = [*_ideal_lines(rows, looks), *points] if ideal else points
    title = f"{MAX_LINES} of {len(lines)} lines; sweep.parquet has all"
    panel = Panel(
        marks, _across_axis(swept, values), y, title if len(lines) > MAX_LINES else ""
    )
    looks = {**({"ideal": IDEAL} if ideal else {}), **looks, **whisker_looks}
    caption = f"{measure_name(measure).capitalize()} of the last epoch."
    axis_notes = [] if y.log or y.low is not None else ["The axis does not begin at 0."]
    note = " ".join(
        [
            *_describe_samples(samples),
            _describe_seeds(rows),
            *axis_notes,
            *_describe_overlaps(rows, touching),
        ]
    )
    return Chart([panel], 2.3, looks, caption, note=note)


def _rows_of_last_epochs(
    summary: pd.DataFrame, axes: Sequence[Swept], measure: str
) -> pd.DataFrame:
    """Return the rows of a measure in the last epoch of each run, with shortened labels.

    `LOW` and `HIGH` are the ends of the 90 % interval, NaN where there is none. Rows that
    are NaN on an axis are left out.
    """
    table = summary[summary["measure"] == measure]
    table = table.assign(
        **{name: table.get(name, np.nan) for name in (LOW, HIGH, CENTRE)}
    )
    table["label"] = without_schedule(table["label"].tolist())
    return rows_of_last_epoch(table, keys_of_combinations(axes))


def _line_looks(
    names: Sequence[str], touching: dict[str, dict[str, float]]
) -> dict[str, Look]:
    """Return the look of each line, by its name; colours and markers repeat.

    A line on which others lie has larger markers, which are seen as rings.

    Args:
        names: names of the lines in their order.
        touching: shares of the points of each line at which later lines touch it, of
            `_touching_shares`.
    """
    looks = {}
    for index, name in enumerate(names):
        # a curve under others has larger markers, which are seen as rings around theirs
        num_above = sum(share >= MOST_POINTS_SHARE for share in touching[name].values())
        looks[name] = Look(
            name,
            BRIGHT[index % len(BRIGHT)],
            MARKERS[index % len(MARKERS)],
            size=3 + 1.6 * min(MAX_RINGS, num_above),
            width=1.0,
        )
    return looks


def _whiskers(
    rows: pd.DataFrame, looks: dict[str, Look], num_measured: int
) -> tuple[list[Mark], dict[str, Look]]:
    """Return the marks and looks of the 90 % intervals, in the colours of their lines;
    none without intervals.
    """
    of_90 = whisker(num_measured)
    rows_with_interval = rows[rows[HIGH].notna()]
    if rows_with_interval.empty:
        return [], {}
    line_looks = {
        name + of_90.label: replace(of_90, label="", colour=look.colour, alpha=0.6)
        for name, look in looks.items()
    }
    look = rows_with_interval["look"] + of_90.label
    interval_mark = Mark(
        "interval", rows_with_interval.assign(look=look), y=LOW, y2=HIGH
    )
    marks = [interval_mark, key(of_90.label, "interval")]
    middles = rows[rows[CENTRE].notna()]
    if len(middles):
        marks.append(Mark("point", middles.assign(look="middle"), y=CENTRE))
    return marks, {**line_looks, of_90.label: of_90, "middle": MIDDLE}


def _describe_samples(samples: Iterable[float]) -> list[str]:
    """Return the sentence on the samples of an epoch; [] if they are unknown."""
    counts = sorted({round(count) for count in samples})
    if not counts:
        return []
    count_text = (
        f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    )
    return [f"An epoch has {count_text} samples."]


def _describe_seeds(rows: pd.DataFrame) -> str:
    """Return the sentence on the number of seeds: of the fewest and of the most."""
    min_seeds = int(rows["seeds"].min())
    max_seeds = int(rows["seeds"].max())
    if max_seeds == 1:
        return "One seed, so no interval over seeds."
    count_text = (
        f"{max_seeds}" if min_seeds == max_seeds else f"{min_seeds} to {max_seeds}"
    )
    return f"Mean and 95 % interval of {count_text} seeds."


def _touching_shares(rows: pd.DataFrame, y: Axis) -> dict[str, dict[str, float]]:
    """Return for each line the share of points at which each later line touches it:
    {line: {later line: share}}.

    Points count that one of both has; they touch within `TOUCHING_SHARE` of the axis. A
    point that only one has touches none.
    """
    # (points, lines) values; NaN where a line has no point
    values_by_line = rows.pivot_table("y", "x", "look", sort=False)
    names = list(map(str, values_by_line))
    # (x, lines), NaN where a line has no point
    values = values_by_line.to_numpy(float)
    is_present = ~np.isnan(values)
    low, high = (
        (np.nanmin(values), np.nanmax(values))
        if y.low is None
        else (y.low, y.high or 0.0)
    )
    if y.log:
        values = np.log(np.where(values > 0, values, np.nan))
        low = math.log(low)
        high = math.log(high)

    def share(first: int, second: int) -> float:
        """Return the share of points at which two lines, by index, touch."""
        is_touching = np.abs(values[:, first] - values[:, second]) <= TOUCHING_SHARE * (
            high - low
        )
        num_points = int((is_present[:, first] | is_present[:, second]).sum())
        return float(is_touching.sum()) / max(1, num_points)

    return {
        name: {
            names[second]: share(first, second)
            for second in range(first + 1, len(names))
        }
        for first, name in enumerate(names)
    }


def _describe_overlaps(
    rows: pd.DataFrame, touching: dict[str, dict[str, float]]
) -> list[str]:
    """Return the sentence on curves that cannot be told apart, with their distance, and
    on curves that mostly touch; [] if there are none.

    Of the curves that mostly touch another one, only the first is named.
    """
    phrases = []
    remaining = list(touching)
    while remaining:
        first, *later_lines = remaining
        group = [first, *(name for name in later_lines if touching[first][name] == 1)]
        remaining = [name for name in remaining if name not in group]
        if len(group) > 1:
            values_at_x = rows[rows["look"].isin(group)].groupby("x")["y"]
            max_distance = float(
                (1 - values_at_x.min() / values_at_x.max()).fillna(0.0).max()
            )
            distance_text = (
                f"at most {math.ceil(1000 * max_distance - 1e-6) / 10:g}\u00a0% apart"
            )
            names = f"{', '.join(group[:-1])} and {group[-1]}"
            phrases.append(f"{names} ({distance_text if max_distance else 'equal'})")
        if mostly_touching := [
            name for name in remaining if touching[first][name] >= MOST_POINTS_SHARE
        ]:
            share = f"{100 * touching[first][mostly_touching[0]]:.0f}\u00a0%"
            phrases.append(
                f"{first} and {mostly_touching[0]} (at {share} of the points)"
            )
    return [f"Lines on top of each other: {'; '.join(phrases)}."] if phrases else []


def _choose_across(table: pd.DataFrame, axes: Sequence[Swept]) -> str:
    """Return the axis from left to right: ranks, else that with the most numbers, else
    the first one; '' without axes.
    """
    numbers = [axis["name"] for axis in axes if axis["numbers"]]
    if "world_size" in numbers:
        return "world_size"
    return max(
        numbers,
        key=lambda name: table[name].nunique(),
        default=axes[0]["name"] if axes else "",
    )


def _rows_by_line(
    table: pd.DataFrame, axes: Sequence[Swept], across: str
) -> dict[str, pd.DataFrame]:
    """Return the rows of each line of the figure, by the name of the line.

    The name is the words that its labels share, else the values of its axes, else ' '.
    Lines whose labels share the same words have both in their names.
    """
    names = [axis["name"] for axis in axes if axis["name"] != across]
    groups = (
        list(table.groupby(names, sort=False, dropna=False)) if names else [((), table)]
    )
    common_names = [_common_name(rows, across) for _, rows in groups]
    lines: dict[str, pd.DataFrame] = {}
    for common_name, (values, rows) in zip(common_names, groups, strict=True):
        words = [common_name] if common_name else []
        if common_names.count(common_name) > 1 or not common_name:
            words += map(_axis_text, names, values)
        lines[", ".join(words) or " "] = rows
    return lines


def name_without(run: str, across: str, value: Any) -> str:
    """Return the name of a run without the words that give ``across`` its value.

    The words are '@16' and 'world_size=16'; of the exchanged fraction also the end of
    'partial-0.1', which becomes 'partial'.
    """
    words = [
        word for word in run.split() if word not in {f"@{value}", f"{across}={value}"}
    ]
    if across.endswith("exchange_fraction"):
        fraction = f"{value:g}"
        words = [word for word in words if word != f"{across}={fraction}"]
        words = [word.removesuffix(f"-{fraction}") for word in words]
    return " ".join(words)


def _common_name(rows: pd.DataFrame, across: str) -> str:
    """Return the words that the labels of a line share beside the axis from left to
    right; '' if they differ.
    """
    values = rows[across] if across else rows["label"]
    texts = {
        name_without(label, across, value)
        for label, value in zip(rows["label"], values, strict=True)
    }
    return texts.pop() if len(texts) == 1 else ""


def _axis_text(name: str, value: Any) -> str:
    """Return the last part of the name of an axis and its value: 'batch size 32'."""
    is_number = isinstance(value, int | float | np.number)
    words = name.rsplit(".", 1)[-1].replace("_", " ")
    return f"{words} {value:.15g}" if is_number else f"{words} {value}"


def _positioned_rows(
    rows: pd.DataFrame, name: str, across: str, values: Sequence[Any], is_number: bool
) -> pd.DataFrame:
    """Return the rows of a line with columns x, y, look (the name) and tip, ascending in
    x.

    x is the number of the axis, else the index of its value in ``values``; 0 without an
    axis. y is the mean.
    """
    x = rows[across] if is_number else rows[across].map(values.index) if across else 0.0
    tips = [
        f"{label}: {format_seconds(mean)}"
        for label, mean in zip(rows["label"], rows["mean"], strict=True)
    ]
    return rows.assign(x=x, y=rows["mean"], look=name, tip=tips).sort_values(
        "x", kind="stable"
    )


def _ideal_lines(rows: pd.DataFrame, looks: dict[str, Look]) -> list[Mark]:
    """Draw a dotted line from the first point of each line: half the time at twice the
    value.

    The last mark stands for all in the legend.
    """
    first = rows.groupby("look", sort=False)[["x", "y"]].transform("first")
    ends = rows.assign(y=first["y"] * first["x"] / rows["x"])
    thin = {"label": "", "marker": "", "dash": ":", "width": 0.8}
    lines = [
        Mark("line", ends[ends["look"] == name], look=replace(look, **thin))  # type: ignore[arg-type]
        for name, look in looks.items()
    ]
    return [*lines, key("ideal")]


def _value_axis(rows: pd.DataFrame, title: str, ideal: bool) -> Axis:
    """Return the axis of the measure.

    It is logarithmic with ``ideal`` or from `MIN_LOG_RATIO` between largest and
    smallest; else it begins at 0 unless values differ by less than 1 - `NARROW_RATIO`.
    Ends of intervals count as largest values, means alone as smallest.
    """
    top = float(np.nanmax(rows[["high", HIGH, "mean"]].to_numpy(float)))
    bottom = float(np.nanmin(rows[["low", LOW, "mean"]].to_numpy(float)))
    min_mean = float(rows["mean"].min())
    if ideal:
        ends = rows.groupby("look")[["x", "mean"]].agg(["first", "last"])
        ideal_ends = ends["mean", "first"] * ends["x", "first"] / ends["x", "last"]
        low = min(
            0.8 * bottom if bottom > 0 else 1.25 * top, 0.8 * float(ideal_ends.min())
        )
        return log_axis(title, low, 1.25 * top)
    if min_mean > 0 and top / min_mean >= MIN_LOG_RATIO:
        # an interval that reaches 0 has no end on the axis
        return log_axis(
            title, (0.7 * bottom) if bottom > 0 else 0.5 * min_mean, 1.3 * top
        )
    if min_mean < NARROW_RATIO * top or top <= 0:
        return Axis(title, low=0.0, high=1.08 * top if top > 0 else 1.0)
    return Axis(title)


def _across_axis(axis: Swept | None, values: Sequence[Any]) -> Axis:
    """Return the axis from left to right; without one, an axis without ticks.

    Values that are no numbers stand by their index, with their names; numbers above 0
    are logarithmic from `MIN_LOG_RATIO` on, ranks always.
    """
    if axis is None:
        return Axis(ticks={})
    title = {"world_size": "GPUs"}.get(axis["name"], axis["key"])
    if not axis["numbers"]:
        names = {float(index): str(value) for index, value in enumerate(values)}
        return Axis(title, ticks=names, turned=20)
    min_value = min(values)
    max_value = max(values)
    # ranks are doubled, not added
    is_log = min_value > 0 and max_value / min_value >= (
        1.01 if axis["name"] == "world_size" else MIN_LOG_RATIO
    )
    return Axis(title, is_log, ticks=spaced_ticks(values, is_log))

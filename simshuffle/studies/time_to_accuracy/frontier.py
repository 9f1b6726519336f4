"""The frontier: final accuracy against time, against what a host stores and against requests to the
file system, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simshuffle.results.style import COLUMN_INCHES, STYLE, legend_above, width
from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.time_to_accuracy.drawing import (
    framed,
    places_across,
    time_axis,
    time_unit,
)
from simshuffle.studies.time_to_accuracy.labels import Spot, dark, label_points
from simshuffle.studies.training.looks import look_of, strategies

MANY = 8
"""More strategies than that are numbered: colours and letters beside points no longer do."""
ON, OFF = 4.6, 3.0
"""Points across of what is on the front, and of what is not."""
_DENSE: Any = {
    "legend.fontsize": 6,
    "legend.labelspacing": 0.25,
    "legend.handlelength": 0.8,
    "legend.handletextpad": 0.3,
    "legend.columnspacing": 0.6,
}
"""Of a legend with many names."""
BEATEN = "#666666"
"""Names of what is not on the front."""
WIDE = 1.5
"""Widths of a column from which on all panels stand in one row."""


@dataclass(frozen=True)
class _Point:
    """A setting as it is drawn.

    Attributes:
        look: colour and marker.
        text: what stands beside it; '' for nothing.
        name: in the legend.
        on_front: whether it is filled, and named in colour.
        interval: mean and both ends (%), between 0 and 100; the ends are not numbers if there is
            none.
    """

    look: Mapping[str, Any]
    text: str
    name: str
    on_front: bool
    interval: tuple[float, float, float]

    @property
    def size(self) -> float:
        """Points across."""
        return ON if self.on_front else OFF


def frontier_figure(settings: pd.DataFrame, meta: Mapping[str, Any]) -> Figure:
    """Final accuracy with 95 % intervals in three panels: against the time of all epochs, against
    what a host stores, and against requests. Filled and in colour if on the front.

    Points have Q beside them, or a number where there are more than `MANY` strategies.

    Args:
        settings: columns `SETTING_COLUMNS`, those that were simulated.
        meta: as of `figures`.
    """
    points = _points(settings)
    style: Any = {**STYLE, **(_DENSE if len(strategies(settings)) > MANY else {})}
    unit, name = time_unit(float(settings["total_s"].max()))
    with matplotlib.rc_context(style):
        figure, (time, *others) = _panels(meta)
        across = [(settings["total_s"] / unit).tolist()]
        for ax, column, (text, apart) in zip(others, _OTHERS, _TICKS, strict=True):
            across.append(places_across(ax, settings[column], text, apart))
            ax.set_xlabel(_OTHERS[column])
            ax.margins(x=0.15)
        for ax, places in zip((time, *others), across, strict=True):
            for point, x in zip(points, places, strict=True):
                _draw(ax, point, x)
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize=6)
        time_axis(time, settings["total_s"], unit)
        if time.get_xscale() == "linear":
            _tight(time, settings["total_s"] / unit)
        epochs = int(settings["epochs"].iloc[0])
        time.set_xlabel(f"simulated time of {epochs} epochs, staging included ({name})")
        time.set_ylim(max(time.get_ylim()[0], 0.0), min(time.get_ylim()[1], 104.0))
        figure.supylabel("final test accuracy (%)", fontsize=STYLE["axes.labelsize"])
        legend_above(figure, _handles(points), str(meta.get("model", "")))
        figure.draw_without_rendering()  # so that pixels are where they will be
        for ax, places in zip((time, *others), across, strict=True):
            _name(figure, ax, points, places, every=ax is time)
        return figure


_OTHERS = {"storage_nbytes": "stored on a host", "total_requests": "requests to the PFS"}
_TICKS = ((lambda value: readable(value, Dimension.NBYTES, 2), 0.5), (readable_count, 0.3))


def named(row: Mapping[Any, Any]) -> str:
    """What stands beside a point: Q, or where global shuffle reads from; nothing where the strategy
    says it all."""
    if row["strategy"] == "global":
        return str(row["setting"]).partition("(")[2].rstrip(")")
    fraction = row["exchange_fraction"]
    return "" if row["strategy"] == "local" or math.isnan(fraction) else f"{fraction:g}"


def _points(settings: pd.DataFrame) -> list[_Point]:
    known = strategies(settings)
    many = len(known) > MANY
    out = []
    for number, row in enumerate(settings.to_dict("records"), 1):
        mean, *ends = (100 * float(row[name]) for name in ("accuracy", "low", "high"))
        low, high = (end if math.isnan(end) else min(max(end, 0.0), 100.0) for end in ends)
        text, name = named(row), str(row["strategy"])
        if many:
            text, name = str(number), f"{number} {row['setting']}"
        look = look_of(str(row["strategy"]), known)
        out.append(_Point(look, text, name, bool(row["on_front"]), (mean, low, high)))
    return out


def _panels(meta: Mapping[str, Any]) -> tuple[Figure, list[Axes]]:
    """Of time, of storage and of requests: the first above the others, or beside them in a wide
    figure."""
    if width() > WIDE * COLUMN_INCHES:
        figure = framed(2.5, meta)
        return figure, list(figure.subplots(1, 3, sharey=True, width_ratios=[1.7, 1, 1]))
    figure = framed(3.7, meta)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.6, 1])
    time = figure.add_subplot(grid[0, :])
    storage = figure.add_subplot(grid[1, 0], sharey=time)
    requests = figure.add_subplot(grid[1, 1], sharey=time)
    requests.tick_params(labelleft=False)
    return figure, [time, storage, requests]


def _tight(ax: Axes, times: pd.Series[float]) -> None:
    room = 0.08 * (times.max() - times.min()) or 0.1 * times.max()
    ax.set_xlim(times.min() - room, times.max() + 1.6 * room)


def _draw(ax: Axes, point: _Point, x: float) -> None:
    mean, low, high = point.interval
    colour, order = point.look["color"], 1 if point.on_front else 0
    if not math.isnan(low):
        bars: dict[str, Any] = {"linewidth": 0.7, "capsize": 1.3, "linestyle": ""}
        ends = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]
        alpha = 1.0 if point.on_front else 0.5
        ax.errorbar([x], [mean], ends, color=colour, alpha=alpha, zorder=2 + order, **bars)
    face: dict[str, Any] = {"markerfacecolor": colour if point.on_front else "white"}
    face |= {"markersize": point.size, "markeredgewidth": 0.8, "linestyle": ""}
    ax.plot([x], [mean], zorder=4 + order, **point.look, **face)


def _name(
    figure: Figure, ax: Axes, points: Sequence[_Point], across: Sequence[float], *, every: bool
) -> None:
    """Texts beside the points of a panel, those on the front first; only those if not ``every``.
    All else is drawn before."""
    first = sorted(zip(points, across, strict=True), key=lambda each: not each[0].on_front)
    spots = [
        Spot(
            (x, point.interval[0]),
            point.interval[1:],
            point.size,
            point.text if every or point.on_front else "",
            dark(point.look["color"]) if point.on_front else BEATEN,
        )
        for point, x in first
    ]
    label_points(figure, ax, spots, [], float(ax.get_window_extent().x1))


def _handles(points: Sequence[_Point]) -> list[Line2D]:
    """Strategies, each once, or numbered settings; and what is not filled."""
    looks = {point.name: point.look for point in points}
    size: dict[str, Any] = {"linestyle": "", "markersize": 3.5}
    handles = [Line2D([], [], label=name, **size, **look) for name, look in looks.items()]
    grey: dict[str, Any] = {"marker": "o", "color": "#777777"}
    handles.append(Line2D([], [], label="on the front", **size, **grey))
    handles.append(Line2D([], [], label="beaten", markerfacecolor="white", **size, **grey))
    return handles

"""Names beside points: each where it lies on no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from simshuffle.studies.time_to_accuracy.placement import Box, Wanted, placed


@dataclass(frozen=True)
class Spot:
    """A point that may have a name: where it is, its interval from bottom to top (not a number for
    none), both as drawn; its size in points, the name or '', and its colour."""

    at: tuple[float, float]
    interval: tuple[float, float]
    size: float
    text: str
    colour: Any


def label_points(
    figure: Figure, ax: Axes, spots: Sequence[Spot], lines: Sequence[Box], right: float
) -> None:
    """Write the names of points, the most important first, each where it lies on no other; one that
    finds no place has none.

    Args:
        figure: laid out as it will be drawn.
        ax: where the points are.
        spots: all points.
        lines: boxes in pixels of other things that are better not hidden.
        right: where the room for names ends, in pixels.
    """
    point = figure.dpi / 72
    texts: list[Annotation] = []
    wanted: list[Wanted] = []
    marks: list[Box] = []
    others = list(lines)
    for spot in spots:
        low, high = np.clip(spot.interval, 0, 100)
        at, bottom = spot.at, spot.at[1] if np.isnan(low) else low
        ends = [at, (at[0], bottom), (at[0], np.nanmax([at[1], high]))]
        (x, y), (_, bottom), (_, top) = ax.transData.transform(ends)
        half = (spot.size / 2 + 0.4) * point
        marks.append((x - half, y - half, x + half, y + half))
        others.append((x - 1.3 * point, bottom, x + 1.3 * point, top))
        if spot.text:
            texts.append(_text(ax, spot))
            extent = texts[-1].get_window_extent()
            wanted.append(Wanted(marks[-1], (bottom, top), extent.width, extent.height))
    inside = ax.get_window_extent()
    room = (inside.x0 + point, inside.y0 + point, right - 2 * point, inside.y1 + 2 * point)
    places = placed(wanted, marks, others, room, point)
    for words, of, place in zip(texts, wanted, places, strict=True):
        if place is None:
            words.remove()
            continue
        across, up = ((sum(place.box[i::2]) - sum(of.mark[i::2])) / 2 / point for i in (0, 1))
        words.xyann = (across, up)
        if place.led:
            _lead(ax, words)


def dark(colour: str) -> tuple[float, ...]:
    """The same colour, dark enough for small letters on white."""
    return tuple(0.65 * part for part in to_rgb(colour))


def _text(ax: Axes, spot: Spot) -> Annotation:
    look: dict[str, Any] = {"color": spot.colour, "fontsize": 6, "ha": "center", "va": "center"}
    # legible where a line lies beneath
    look["path_effects"] = [withStroke(linewidth=1.2, foreground="white")]
    out = ax.annotate(spot.text, spot.at, (0, 0), textcoords="offset points", zorder=4, **look)
    out.set_in_layout(False)
    return out


def _lead(ax: Axes, text: Annotation) -> None:
    """A line from a label to its point."""
    line: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "color": text.get_color()}
    line |= {"shrinkA": 3.5, "shrinkB": 2.0}
    led = ax.annotate("", text.xy, text.xyann, textcoords="offset points", arrowprops=line)
    led.set_in_layout(False)

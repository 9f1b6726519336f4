"""Names beside points: each where it lies on no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from simshuffle.results.placement import Box, Wanted, placed
from simshuffle.results.style import SMALL


def label_points(figure: Figure, ax: Axes, spots: pd.DataFrame) -> None:
    """Write the names of points, the most important first, each where it lies on no other; one that
    finds no place has none.

    Args:
        figure: laid out as it will be drawn.
        ax: where the points are.
        spots: all points: x, y; low and high, the ends of an interval upwards, not a number for
            none; size in points; text, or ''; colour.
    """
    point = figure.dpi / 72
    texts: list[Annotation] = []
    wanted: list[Wanted] = []
    marks: list[Box] = []
    others: list[Box] = []
    for spot in spots.to_dict("records"):
        at, ends = spot["x"], [spot["low"], spot["y"], spot["high"]]
        corners = [(at, spot["y"]), (at, np.nanmin(ends)), (at, np.nanmax(ends))]
        (x, y), (_, bottom), (_, top) = ax.transData.transform(corners)
        half = (spot["size"] / 2 + 0.4) * point
        marks.append((x - half, y - half, x + half, y + half))
        others.append((x - 1.3 * point, bottom, x + 1.3 * point, top))
        if spot["text"]:
            texts.append(_text(ax, spot))
            extent = texts[-1].get_window_extent()
            wanted.append(Wanted(marks[-1], (bottom, top), extent.width, extent.height))
    inside = ax.get_window_extent()
    room = (inside.x0 + point, inside.y0 + point, inside.x1 - 2 * point, inside.y1 + 2 * point)
    places = placed(wanted, marks, others, room, point)
    for words, of, place in zip(texts, wanted, places, strict=True):
        if place is None:
            words.remove()
            continue
        words.xyann = _between(of.mark, place.box, point)
        if place.led:
            _lead(ax, words)


def _between(mark: Sequence[float], box: Sequence[float], point: float) -> tuple[float, float]:
    """How far the middle of a box is from that of a mark, in points."""
    across, up = ((sum(box[i::2]) - sum(mark[i::2])) / 2 / point for i in (0, 1))
    return across, up


def _text(ax: Axes, spot: Mapping[Any, Any]) -> Annotation:
    look: dict[str, Any] = {
        "color": spot["colour"],
        "fontsize": SMALL,
        "ha": "center",
        "va": "center",
    }
    # legible where a line lies beneath
    look["path_effects"] = [withStroke(linewidth=1.2, foreground="white")]
    at = (spot["x"], spot["y"])
    out = ax.annotate(spot["text"], at, (0, 0), textcoords="offset points", zorder=4, **look)
    out.set_in_layout(False)
    return out


def _lead(ax: Axes, text: Annotation) -> None:
    """A line from a label to its point."""
    line: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "color": text.get_color()}
    line |= {"shrinkA": 3.5, "shrinkB": 2.0}
    led = ax.annotate("", text.xy, text.xyann, textcoords="offset points", arrowprops=line)
    led.set_in_layout(False)

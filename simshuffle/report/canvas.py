"""A figure of matplotlib in the style of now: empty, its legend, names beside points, files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from simshuffle.report.style import (
    SANS,
    SERIF,
    SMALL,
    STYLE,
    least_height,
    letters,
    line_spacing,
    metadata,
    width,
)

LETTERS = 62
"""Letters of a legend's title in a line across `simshuffle.report.style.COLUMN_INCHES`."""
NO_LAYOUT: dict[Any, Any] = {"figure.autolayout": False, "figure.constrained_layout.use": False}
"""For a figure without an engine of its own."""


# matplotlib's own fonts are found by these names, and no other ones that the machine may have, so
# that a figure is the same to the last byte wherever it is drawn
for _name, _file in ((SANS, "DejaVuSans.ttf"), (SERIF, "STIXGeneral.ttf")):
    if all(entry.name != _name for entry in fontManager.ttflist):
        _path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _file
        _look: dict[str, Any] = {"style": "normal", "variant": "normal", "stretch": "normal"}
        _font = FontEntry(fname=str(_path), name=_name, weight=400, size="scalable", **_look)
        fontManager.ttflist.append(_font)


class _Figure(Figure):
    """A figure that knows how high it would be if it could be of any height."""

    wanted: float = 0.0


def new_figure(height: float) -> Figure:
    """An empty figure, one column wide and ``height`` inches high without its legend; higher in a
    style whose figures have a least height."""
    figure = _Figure(figsize=(width(), height), layout="constrained")
    figure.wanted = height
    FigureCanvasAgg(figure)
    _stretch(figure, 0.0)
    return figure


def _stretch(figure: Figure, more: float) -> None:
    """Make a figure higher by ``more`` inches, or as high as its style wants it at least."""
    if not isinstance(figure, _Figure):
        figure.set_figheight(figure.get_figheight() + more)
        return
    figure.wanted += more
    figure.set_figheight(max(figure.wanted, least_height()))


def legend_above(
    figure: Figure,
    handles: Sequence[Any],
    title: str = "",
    place: str = "upper center",
    **look: Any,
) -> None:
    """Set the legend above the panels of a figure from `new_figure`, or at another ``place``
    outside of them, in as few rows as there is width for, and make the figure that much higher;
    none without ``handles``. ``title`` has two lines at most; ``look`` is as of matplotlib."""
    title = textwrap.fill(
        title, letters(LETTERS), max_lines=2, placeholder=" ...", break_on_hyphens=False
    )
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        given: Any = {**look, "loc": f"outside {place}", "title": title or None}
        legend = figure.legend(handles=handles, ncols=columns, **given)
        for text in legend.get_texts():
            text.set_linespacing(line_spacing())
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            _stretch(figure, extent.height / figure.dpi)
            return
        legend.remove()


def save(figure: Figure, stem: Path, about: str = "") -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf, the same bytes for the same figure, which say
    ``about`` of themselves; returns both paths."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT}):
        figure.savefig(png, dpi=300, metadata=metadata(".png", about))
        layout = figure.get_layout_engine()
        # all stands where it is to stand; with any engine it would be drawn once more, to no effect
        figure.set_layout_engine(None)
        figure.savefig(pdf, metadata=metadata(".pdf", about))
        figure.set_layout_engine(layout)
    return [png, pdf]


def svg(figure: Figure) -> str:
    """A figure as SVG, the same text for the same figure; letters are outlines."""
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def label_points(figure: Figure, ax: Axes, spots: pd.DataFrame) -> None:
    """Write the names of points of a figure that is laid out, the most important first, each where
    it lies on no other, or not at all. ``spots``: x, y; low and high, the ends of an interval
    upwards, not a number for none; size in points; text, or ''; colour."""
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
        # how far the middle of its box is from that of the mark, in points
        across, up = ((sum(place.box[i::2]) - sum(of.mark[i::2])) / 2 / point for i in (0, 1))
        words.xyann = across, up
        if place.led:
            line: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5}
            line |= {"color": words.get_color(), "shrinkA": 3.5, "shrinkB": 2.0}
            beside: Any = {"textcoords": "offset points", "arrowprops": line}
            ax.annotate("", words.xy, words.xyann, **beside).set_in_layout(False)


def _text(ax: Axes, spot: Mapping[Any, Any]) -> Annotation:
    look: dict[str, Any] = {"color": spot["colour"], "fontsize": SMALL}
    look |= {"ha": "center", "va": "center"}
    # legible where a line lies beneath
    look["path_effects"] = [withStroke(linewidth=1.2, foreground="white")]
    at = (spot["x"], spot["y"])
    out = ax.annotate(spot["text"], at, (0, 0), textcoords="offset points", zorder=4, **look)
    out.set_in_layout(False)
    return out


Box = tuple[float, float, float, float]  # left, bottom, right and top, all in one unit
GAP = 1.0  # around a label, in points
AWAY = (0.0, 2.0, 5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0)
"""How far from its point a label may stand, in points."""
FAR = 5.0  # in points: from there on a line leads from a label to its point
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
"""Right, left, above, below, and the corners; the first that are free are taken."""
ON_MARK, ON_LEADER, ON_LINE = 400.0, 120.0, 25.0
"""Costs of lying on a mark, a leading line, or another line; a point of distance costs 1."""
STEPS = 12  # pieces in which a leading line is looked at


@dataclass(frozen=True)
class Wanted:
    """A label to place: the box of its mark, its interval from bottom to top, width and height."""

    mark: Box
    interval: tuple[float, float]
    width: float
    height: float


@dataclass(frozen=True)
class LabelPlace:
    """Where a label stands, and whether a line must lead to it."""

    box: Box
    led: bool


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def placed(
    wanted: Sequence[Wanted],
    marks: Sequence[Box],
    lines: Sequence[Box],
    room: Box,
    point: float = 1.0,
) -> list[LabelPlace | None]:
    """A place inside ``room`` for each label, the most important first; None where all are taken.
    Boxes of ``marks`` should not be hidden, those of ``lines`` may be; ``point`` is a typographic
    point in the unit of the boxes."""
    out: list[LabelPlace | None] = []
    taken: list[Box] = []
    leaders: list[Box] = []
    for label in wanted:
        best, least = None, float("inf")
        for away, box in _candidates(label, point):
            inside = room[0] <= box[0] and room[1] <= box[1]
            inside = inside and box[2] <= room[2] and box[3] <= room[3]
            if not inside or any(overlap(box, other) for other in taken):
                continue
            leader = _leader(label.mark, box, point) if away >= FAR else []
            cost = away + _cost(box, label.mark, marks, lines, leaders)
            cost += ON_LEADER * _count(leader, taken) + ON_LINE * _count(leader, marks)
            if cost < least:
                best, least = (LabelPlace(box, away >= FAR), leader), cost
        out.append(best and best[0])
        if best:
            taken.append(best[0].box)
            leaders += best[1]
    return out


def _candidates(label: Wanted, point: float) -> Iterator[tuple[float, Box]]:
    """Boxes around a mark, the nearest first, each with its distance in points."""
    left, bottom, right, top = label.mark
    ends = min(bottom, label.interval[0]), max(top, label.interval[1])
    middle = (left + right) / 2, (bottom + top) / 2
    half = label.width / 2 + GAP * point, label.height / 2 + GAP * point
    for away in AWAY:
        for across, up in SIDES:
            x = middle[0] + across * ((right - left) / 2 + half[0] + away * point)
            y = middle[1] + up * ((top - bottom) / 2 + half[1] + away * point)
            beyond = 0.0
            if not across:
                y = (ends[1] if up > 0 else ends[0]) + up * (half[1] + away * point)
                beyond = (ends[1] - top if up > 0 else bottom - ends[0]) / point
            yield away + beyond / 4, (x - half[0], y - half[1], x + half[0], y + half[1])


def _leader(mark: Box, box: Box, point: float) -> list[Box]:
    """The line from a mark to the middle of its label's box, in small boxes outside both."""
    ends = [((of[0] + of[2]) / 2, (of[1] + of[3]) / 2) for of in (mark, box)]
    shares = [step / STEPS for step in range(1, STEPS)]
    dots = [tuple(a + share * (b - a) for a, b in zip(*ends, strict=True)) for share in shares]
    size = point / 2
    boxes = [(x - size, y - size, x + size, y + size) for x, y in dots]
    return [dot for dot in boxes if not overlap(dot, mark) and not overlap(dot, box)]


def _cost(
    box: Box, own: Box, marks: Sequence[Box], lines: Sequence[Box], leaders: Sequence[Box]
) -> float:
    on_marks = sum(overlap(box, mark) for mark in marks if mark != own)
    return (
        ON_MARK * on_marks
        + ON_LINE * sum(overlap(box, line) for line in lines)
        + ON_LEADER * any(overlap(box, leader) for leader in leaders)
    )


def _count(dots: Sequence[Box], boxes: Sequence[Box]) -> int:
    return sum(any(overlap(dot, box) for dot in dots) for box in boxes)

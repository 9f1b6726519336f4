"""Make figures of matplotlib in the current style: empty figures, legends, names beside
points, and files.
"""

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
    letters_in_line,
    metadata,
    min_height,
    spacing_of_lines,
    width,
)

LETTERS = 62
"""Letters of a legend's title in a line across `simshuffle.report.style.COLUMN_INCHES`."""
NO_LAYOUT: dict[Any, Any] = {
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
"""For a figure without an engine of its own."""


# matplotlib's own fonts are found by these names, and no other ones that the machine may have, so
# that a figure is the same to the last byte wherever it is drawn
for _name, _file in ((SANS, "DejaVuSans.ttf"), (SERIF, "STIXGeneral.ttf")):
    if all(entry.name != _name for entry in fontManager.ttflist):
        _path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _file
        _font_style: dict[str, Any] = {
            "style": "normal",
            "variant": "normal",
            "stretch": "normal",
        }
        _font = FontEntry(
            fname=str(_path), name=_name, weight=400, size="scalable", **_font_style
        )
        fontManager.ttflist.append(_font)


class _Figure(Figure):
    """A figure that remembers the height it would have without a least height."""

    natural_height: float = 0.0


def new_figure(height: float) -> Figure:
    """Return an empty figure of the current style's width and ``height`` inches high
    without its legend; higher in a style whose figures have a least height.

    It draws by Agg, without a window, and lays itself out (constrained layout).
    """
    figure = _Figure(figsize=(width(), height), layout="constrained")
    figure.natural_height = height
    FigureCanvasAgg(figure)
    _stretch(figure, 0.0)
    return figure


def _stretch(figure: Figure, extra_inches: float) -> None:
    """Make a figure higher by ``extra_inches``, at least as high as its style's
    figures; a figure that is not from `new_figure` has no least height.
    """
    if not isinstance(figure, _Figure):
        figure.set_figheight(figure.get_figheight() + extra_inches)
        return
    figure.natural_height += extra_inches
    figure.set_figheight(max(figure.natural_height, min_height()))


def legend_above(
    figure: Figure,
    handles: Sequence[Any],
    title: str = "",
    location: str = "upper center",
    **legend_options: Any,
) -> None:
    """Set the legend above the panels of a figure from `new_figure`, and make the
    figure higher by it.

    It has as few rows as there is width for. There is no legend without ``handles``.

    Args:
        figure: the figure.
        handles: matplotlib's handles, one for each name.
        title: folded; after two lines the rest is cut, and ' ...' stands for it. '' for
            none.
        location: where it stands outside of the panels, as matplotlib calls it.
        legend_options: options of matplotlib's legend.
    """
    title = textwrap.fill(
        title,
        letters_in_line(LETTERS),
        max_lines=2,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        options: Any = {
            **legend_options,
            "loc": f"outside {location}",
            "title": title or None,
        }
        legend = figure.legend(handles=handles, ncols=columns, **options)
        for text in legend.get_texts():
            text.set_linespacing(spacing_of_lines())
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            _stretch(figure, extent.height / figure.dpi)
            return
        legend.remove()


def save(figure: Figure, stem: Path, description: str = "") -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf with a ``description`` in their
    metadata; return both paths, in this order. The same figure gives the same bytes.

    Files of these names are overwritten. The folder must exist.
    """
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT}):
        figure.savefig(png, dpi=300, metadata=metadata(".png", description))
        layout = figure.get_layout_engine()
        # all stands where it is to stand; with any engine it would be drawn once more, to no effect
        figure.set_layout_engine(None)
        figure.savefig(pdf, metadata=metadata(".pdf", description))
        figure.set_layout_engine(layout)
    return [png, pdf]


def svg(figure: Figure) -> str:
    """Return a figure as SVG, in which letters are outlines; equal figures give equal
    texts.
    """
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def label_points(figure: Figure, ax: Axes, spots: pd.DataFrame) -> None:
    """Write the names of points of a figure that is laid out, the most important first.

    Each stands where it lies on no other name, with a line to its point if that is far,
    or not at all. It does not change the layout.

    Args:
        figure: laid out, so that places in pixels are final.
        ax: the panel.
        spots: a row for each point, with columns x and y, in units of the axes; low and
            high, the ends of an upright interval, NaN for none; size in points; text,
            '' for a point without a name, which others avoid; and colour.
    """
    point = figure.dpi / 72
    texts: list[Annotation] = []
    labels: list[Label] = []
    mark_boxes: list[Box] = []
    interval_boxes: list[Box] = []
    for spot in spots.to_dict("records"):
        x_value = spot["x"]
        ends = [spot["low"], spot["y"], spot["high"]]
        corners = [
            (x_value, spot["y"]),
            (x_value, np.nanmin(ends)),
            (x_value, np.nanmax(ends)),
        ]
        (x, y), (_, bottom), (_, top) = ax.transData.transform(corners)
        half_size = (spot["size"] / 2 + 0.4) * point
        mark_boxes.append((x - half_size, y - half_size, x + half_size, y + half_size))
        interval_boxes.append((x - 1.3 * point, bottom, x + 1.3 * point, top))
        if spot["text"]:
            texts.append(_write_label(ax, spot))
            extent = texts[-1].get_window_extent()
            labels.append(
                Label(mark_boxes[-1], (bottom, top), extent.width, extent.height)
            )
    inside = ax.get_window_extent()
    area = (
        inside.x0 + point,
        inside.y0 + point,
        inside.x1 - 2 * point,
        inside.y1 + 2 * point,
    )
    places = place_labels(labels, mark_boxes, interval_boxes, area, point)
    for annotation, label, label_place in zip(texts, labels, places, strict=True):
        if label_place is None:
            annotation.remove()
            continue
        # how far the middle of its box is from that of the mark, in points
        across, upwards = (
            (sum(label_place.box[i::2]) - sum(label.mark[i::2])) / 2 / point
            for i in (0, 1)
        )
        annotation.xyann = across, upwards
        if label_place.led:
            line: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5}
            line |= {"color": annotation.get_color(), "shrinkA": 3.5, "shrinkB": 2.0}
            leader_options: Any = {"textcoords": "offset points", "arrowprops": line}
            ax.annotate(
                "", annotation.xy, annotation.xyann, **leader_options
            ).set_in_layout(False)


def _write_label(ax: Axes, spot: Mapping[Any, Any]) -> Annotation:
    """Annotate the point ``spot`` with its text, in its colour, in the point's middle."""
    style: dict[str, Any] = {"color": spot["colour"], "fontsize": SMALL}
    style |= {"ha": "center", "va": "center"}
    # legible where a line lies beneath
    style["path_effects"] = [withStroke(linewidth=1.2, foreground="white")]
    position = (spot["x"], spot["y"])
    annotation = ax.annotate(
        spot["text"], position, (0, 0), textcoords="offset points", zorder=4, **style
    )
    annotation.set_in_layout(False)
    return annotation


Box = tuple[float, float, float, float]  # left, bottom, right and top, all in one unit
GAP = 1.0  # around a label, in points
LABEL_DISTANCES = (0.0, 2.0, 5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0)
"""How far from its point a label may stand, in points."""
LEADER_DISTANCE = 5.0  # in points: from there on a line leads from a label to its point
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
"""Right, left, above, below, and the corners; the first that are free are taken."""
ON_MARK, ON_LEADER, ON_LINE = 400.0, 120.0, 25.0
"""Costs of lying on a mark, a leading line, or another line; a point of distance costs
1.
"""
LEADER_PIECES = 12  # pieces in which a leading line is looked at


@dataclass(frozen=True)
class Label:
    """A label to place: the box of its mark, its interval from bottom to top, width and
    height.
    """

    mark: Box
    interval: tuple[float, float]
    width: float
    height: float


@dataclass(frozen=True)
class LabelPlace:
    """The box of a placed label, and whether a line must lead to it."""

    box: Box
    led: bool


def overlap(first: Box, second: Box) -> bool:
    """Return whether two boxes have an area in common."""
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


def place_labels(
    labels: Sequence[Label],
    marks: Sequence[Box],
    lines: Sequence[Box],
    area: Box,
    point: float = 1.0,
) -> list[LabelPlace | None]:
    """Return a place inside ``area`` for each label, in their order, or None where all
    places are taken.

    A place never lies on the place of an earlier label. Of the others the one with the
    lowest cost is taken: its distance in points, and the costs of what it lies on
    (`ON_MARK`).

    Args:
        labels: to place, the most important first.
        marks: boxes that should not be hidden, those of the labels among them.
        lines: boxes that may be hidden, at a lower cost.
        area: where labels may stand.
        point: a typographic point in the unit of the boxes.
    """
    label_places: list[LabelPlace | None] = []
    used_boxes: list[Box] = []
    leaders: list[Box] = []
    for label in labels:
        cheapest = None
        least_cost = float("inf")
        for distance, box in _candidates(label, point):
            is_inside = area[0] <= box[0] and area[1] <= box[1]
            is_inside = is_inside and box[2] <= area[2] and box[3] <= area[3]
            if not is_inside or any(overlap(box, used_box) for used_box in used_boxes):
                continue
            leader = (
                _leader(label.mark, box, point) if distance >= LEADER_DISTANCE else []
            )
            cost = distance + _cost_of_box(box, label.mark, marks, lines, leaders)
            cost += ON_LEADER * count_crossed_boxes(
                leader, used_boxes
            ) + ON_LINE * count_crossed_boxes(leader, marks)
            if cost < least_cost:
                cheapest = (LabelPlace(box, distance >= LEADER_DISTANCE), leader)
                least_cost = cost
        label_places.append(cheapest and cheapest[0])
        if cheapest:
            used_boxes.append(cheapest[0].box)
            leaders += cheapest[1]
    return label_places


def _candidates(label: Label, point: float) -> Iterator[tuple[float, Box]]:
    """Yield boxes around a mark, the nearest first, each with its distance in points.

    Above and below they stand beyond the interval, of whose length a quarter counts as
    distance. Each box has a gap of `GAP` points around the label.
    """
    mark_left, mark_bottom, mark_right, mark_top = label.mark
    ends = min(mark_bottom, label.interval[0]), max(mark_top, label.interval[1])
    middle = (mark_left + mark_right) / 2, (mark_bottom + mark_top) / 2
    half_size = label.width / 2 + GAP * point, label.height / 2 + GAP * point
    for distance in LABEL_DISTANCES:
        for across, upwards in SIDES:
            x = middle[0] + across * (
                (mark_right - mark_left) / 2 + half_size[0] + distance * point
            )
            y = middle[1] + upwards * (
                (mark_top - mark_bottom) / 2 + half_size[1] + distance * point
            )
            beyond = 0.0
            if not across:
                y = (ends[1] if upwards > 0 else ends[0]) + upwards * (
                    half_size[1] + distance * point
                )
                beyond = (
                    ends[1] - mark_top if upwards > 0 else mark_bottom - ends[0]
                ) / point
            yield (
                distance + beyond / 4,
                (
                    x - half_size[0],
                    y - half_size[1],
                    x + half_size[0],
                    y + half_size[1],
                ),
            )


def _leader(mark: Box, box: Box, point: float) -> list[Box]:
    """Return the line from the middle of a mark to the middle of its label's box, as
    small boxes outside both; [] if nothing lies between mark and box.
    """
    middles = [
        ((end_box[0] + end_box[2]) / 2, (end_box[1] + end_box[3]) / 2)
        for end_box in (mark, box)
    ]
    shares = [step / LEADER_PIECES for step in range(1, LEADER_PIECES)]
    dots = [
        tuple(a + share * (b - a) for a, b in zip(*middles, strict=True))
        for share in shares
    ]
    size = point / 2
    boxes = [(x - size, y - size, x + size, y + size) for x, y in dots]
    return [dot for dot in boxes if not overlap(dot, mark) and not overlap(dot, box)]


def _cost_of_box(
    box: Box,
    own_mark: Box,
    marks: Sequence[Box],
    lines: Sequence[Box],
    leaders: Sequence[Box],
) -> float:
    """Return the cost of what a label's box lies on, in points of distance.

    Its own mark costs nothing. Any number of leading lines cost as much as one.
    """
    on_marks = sum(overlap(box, mark) for mark in marks if mark != own_mark)
    return (
        ON_MARK * on_marks
        + ON_LINE * sum(overlap(box, line) for line in lines)
        + ON_LEADER * any(overlap(box, leader) for leader in leaders)
    )


def count_crossed_boxes(dots: Sequence[Box], boxes: Sequence[Box]) -> int:
    """Return how many of ``boxes`` any dot lies on."""
    return sum(any(overlap(dot, box) for dot in dots) for box in boxes)

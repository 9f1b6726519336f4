"""Chart: the declaration of a figure (data, marks, axes, looks and a caption), which is
drawn twice: for paper by `simshuffle.report.paper` (matplotlib), for a browser by
`simshuffle.studies.presentation.page_vega` (Vega-Lite).

No library does both: vl-convert's PDF of a Vega-Lite specification differs from call to
call, its width grows with the letters beside the axes, and it has no .pgf; plotnine and
seaborn.objects have no hatching and no page. So the declaration is our own and thin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

Kind = Literal[
    "bar", "line", "point", "interval", "rule", "band", "text", "label", "cell"
]
"""What a row is drawn as: a bar from x to x2 or from y to y2; a point of a line; a
point; a line with caps from x to x2 or from y to y2; one without caps, or through the
whole panel where there is no end; the upper and the lower edge of a band; a text; a
text beside a point, where it lies on no other; a cell from x to x2 and from y to y2 in
the colour of its value.
"""
Marker = Literal["", "o", "s", "^", "v", "D", "P", "X", "x", "<", ">", "*", "p", "h"]
"""A marker of points in matplotlib's spelling; '' for none. `SHAPES` draws each on a
page.
"""
DIAGONAL_CROSS = (
    "M-.9,-.5L-.5,-.9L0,-.4L.5,-.9L.9,-.5L.4,0L.9,.5L.5,.9L0,.4L-.5,.9L-.9,.5L-.4,0Z"
)
STAR = "M0,-1L.24,-.32H.95L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.32H-.24Z"
SHAPES: Mapping[Marker, str] = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "D": "diamond",
    "P": "cross",
    "X": DIAGONAL_CROSS,
    "x": DIAGONAL_CROSS,
    "<": "triangle-left",
    ">": "triangle-right",
    "*": STAR,
    "p": "M0,-1L.95,-.31L.59,.81H-.59L-.95,-.31Z",
    "h": "M0,-1L.87,-.5V.5L0,1L-.87,.5V-.5Z",
}
"""Shapes of Vega by marker: its names, or an SVG path within [-1, 1]."""
GREY = "#888888"
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
"""Of lines of one colour: matplotlib's '-', or points on and off."""
LETTER_SHARE = 0.025  # share of an axis that a letter below it takes
MIN_LOG_RATIO = 8.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


MAX_INCHES = 8.1
"""Height of a figure without legend and note, with which it fits a page of a paper."""


@dataclass(frozen=True)
class Look:
    """The look of marks, and their name in the legend."""

    label: str = ""  # in the legend; '' for none
    colour: str = GREY  # as '#rrggbb'
    marker: Marker = ""  # of points
    dash: Any = "-"  # one of `DASHES`
    size: float = 2.6  # of points, and of intervals' caps, in points
    width: float = 0.9  # of lines, in points
    # of bars and points: 'plain', 'none' for hollow, or hatched for 'waiting' and 'hidden'
    fill: Literal["plain", "none", "waiting", "hidden"] = "plain"
    alpha: float = 1.0  # opacity


@dataclass(frozen=True)
class Mark:
    """Rows that are drawn as one kind of mark, above the marks before them."""

    kind: Kind  # what they are drawn as
    data: pd.DataFrame  # a row each
    # x, y, x2, y2: columns of places, as far as the table has them
    x: str = "x"
    y: str = "y"
    x2: str = "x2"
    y2: str = "y2"
    look: Look | str = (
        "look"  # of all rows; or the column that names one of `Chart.looks`
    )
    text: str = "text"  # column of texts
    value: str = ""  # column of numbers that colour rows by `Chart.ramp`
    thick: float = 0.66  # of bars, in units of the axis
    # points that texts stand to the right of their place, and above it
    aside: tuple[float, float] = (0.0, 0.0)
    # the edge of a text that is there: 'left', 'right' or 'center'; and 'bottom' or so
    align: tuple[str, str] = ("left", "center")
    turned: float = 0.0  # degrees that a text is turned
    small: bool = True  # whether texts have the smallest letters
    backed: bool = False  # whether texts are on white

    def places(self) -> pd.DataFrame:
        """Return the rows with columns x, y, x2, y2, look, text, tip, size and value.

        Columns that the data do not have are left out; and ``look`` if all rows have
        one. Order and index of the rows stay.
        """
        names = {
            "x": self.x,
            "y": self.y,
            "x2": self.x2,
            "y2": self.y2,
            "text": self.text,
        }
        names |= {"look": self.look} if isinstance(self.look, str) else {}
        names |= {"value": self.value, "tip": "tip", "size": "size"}
        columns = {
            name: self.data[column]
            for name, column in names.items()
            if column in self.data
        }
        return pd.DataFrame(columns, index=self.data.index)


@dataclass(frozen=True)
class Axis:
    """An axis of a panel: its title, scale, ends and ticks."""

    title: str = ""  # with its unit
    log: bool = False  # whether it is logarithmic
    # low, high: its ends; None for those of the data
    low: float | None = None
    high: float | None = None
    ticks: Mapping[float, str] | None = (
        None  # texts by place; None for numbers where there is room
    )
    unit: str = ""  # that stands behind such numbers on a page
    max_ticks: int = 0  # such numbers; 0 for as many as there is room for
    names: bool = False  # whether these are names, which need no ticks
    down: bool = False  # whether it grows downwards
    turned: float = 0.0  # degrees that texts are turned
    small: bool = False  # whether texts have the smallest letters


@dataclass(frozen=True)
class Panel:
    """Marks on a pair of axes, as one panel of a chart."""

    marks: Sequence[Mark]  # the first ones lowest
    # x, y: axes
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    title: str = ""  # above it
    top: Axis | None = None  # what stands above it instead of a title
    weight: float = 1.0  # of its height over that of others
    span: int = 1  # columns that it takes
    equal: bool = False  # whether a unit is as long on both axes
    turned: bool = False  # whether its title is upright


@dataclass(frozen=True)
class Ramp:
    """A colour scale for values."""

    title: str  # of the scale
    # as matplotlib and Vega both call them: 'magma' or 'viridis'; light is low
    colours: str = "magma"
    # low, high: its ends
    low: float = 0.0
    high: float = 1.0
    log: bool = False  # whether it is logarithmic
    below: bool = True  # whether it stands below the panels, and not at their right


@dataclass(frozen=True)
class Chart:
    """A figure: panels with their marks, looks, caption and legend."""

    panels: Sequence[Panel]  # row by row
    height: float  # inches in one column, without legend and note
    # of marks, by what their column says; the legend has them in this order
    looks: Mapping[Any, Look] = field(default_factory=dict)
    caption: str = ""  # what it shows
    legend: str = ""  # what stands over the legend
    note: str = ""  # what stands below all
    names: Sequence[str] = ()  # what is listed below all, in columns
    across: int = 1  # columns of panels
    widths: Sequence[float] = ()  # of these, over one another
    share: str = ""  # axes whose scale all panels share: '', 'x', 'y' or 'xy'
    # x, y: titles of axes of all panels
    x: str = ""
    y: str = ""
    ramp: Ramp | None = None  # colours of values
    shares: bool = False  # whether a page can show bars as shares of their sums too
    dense: bool = False  # whether the legend has many names

    @property
    def rows(self) -> int:
        """Number of rows of all marks together."""
        return sum(len(mark.data) for panel in self.panels for mark in panel.marks)

    def legend_keys(self) -> list[tuple[set[str], Look]]:
        """Return the kinds of marks and the look of each entry of the legend, in its
        order: `looks`, then looks of single marks; equal ones are one entry.

        Looks without a label, and those that no row has, have no entry. Texts and
        labels, whose looks are named by a column, do not count as rows.
        """
        keys: dict[Any, tuple[set[str], Look]] = {
            name: (set(), look) for name, look in self.looks.items() if look.label
        }
        for mark in (mark for panel in self.panels for mark in panel.marks):
            if isinstance(mark.look, Look):
                if mark.look.label and len(mark.data):
                    keys.setdefault(mark.look, (set(), mark.look))[0].add(mark.kind)
            elif mark.look in mark.data and mark.kind not in {"text", "label"}:
                for name in mark.data[mark.look].unique():
                    if name in keys:
                        keys[name][0].add(mark.kind)
        return [key for key in keys.values() if key[0]]


# ------------------------------------------------------------------------------- parts of a figure


def key(name: str, kind: Kind = "line") -> Mark:
    """Return a mark without a place, which shows the look ``name`` of a chart in the
    legend.
    """
    return Mark(kind, pd.DataFrame({"look": [name]}))


def rule(look: Look | str, **places: float) -> Mark:
    """Return a line through the whole panel, at ``x`` or ``y``, or a band from there up
    to ``x2`` or ``y2``. ``look`` is a look, or the name of one of the chart.
    """
    kind: Kind = "rule" if len(places) == 1 else "band"
    if isinstance(look, Look):
        return Mark(kind, pd.DataFrame([places]), look=look)
    return Mark(kind, pd.DataFrame([{**places, "look": look}]))


def message_panel(text: str) -> Panel:
    """Return a panel that shows ``text`` in place of marks."""
    row = pd.DataFrame({"x": [0.5], "y": [0.5], "text": [text]})
    ends: dict[str, Any] = {"low": 0.0, "high": 1.0, "ticks": {}, "names": True}
    return Panel(
        [Mark("text", row, align=("center", "center"))], Axis(**ends), Axis(**ends)
    )


def in_rows(names: Sequence[str], **options: Any) -> Axis:
    """Return an axis of names, from top to bottom at 0, 1, ...; ``options`` are fields
    of `Axis`.
    """
    ticks = {float(index): name for index, name in enumerate(names)}
    return Axis(
        ticks=ticks, low=-0.6, high=len(names) - 0.4, names=True, down=True, **options
    )


def with_intervals(kind: Kind, data: pd.DataFrame) -> list[Mark]:
    """Return lines or points of the rows, and below them intervals ``low`` to ``high``.

    ``data`` has columns x, y, low, high and look. The intervals are the first mark.
    """
    return [Mark("interval", data, y="low", y2="high"), Mark(kind, data)]


def hollow_looks(
    looks: Mapping[str, Look], suffix: str, **changes: Any
) -> dict[str, Look]:
    """Return the hollow twin of each look, which no legend lists, by its name with
    ``suffix`` at the end. ``changes`` are further fields of `Look`.
    """
    return {
        f"{name}{suffix}": replace(look, label="", fill="none", **changes)
        for name, look in looks.items()
    }


def spread_points(
    data: pd.DataFrame, group_column: str, step: float, *, log: bool = False
) -> pd.DataFrame:
    """Return the rows with each group moved aside in x, so that intervals stay apart.

    On a logarithmic axis x is multiplied by powers of ``step``, else steps are added.
    Groups lie in the order of their first rows around x: of an odd number the middle
    one stays.
    """
    index_of_group = {
        name: index for index, name in enumerate(dict.fromkeys(data[group_column]))
    }
    aside = (
        data[group_column].map(index_of_group).astype(float)
        - (len(index_of_group) - 1) / 2
    )
    return data.assign(x=data["x"] * step**aside if log else data["x"] + step * aside)


def stack_rows(
    data: pd.DataFrame, bar_column: str, size: str, ends: tuple[str, str]
) -> pd.DataFrame:
    """Return the rows, stacked within each bar in their order, from 0 on.

    Columns ``ends`` have where a row begins and ends, in the unit of column ``size``.
    Rows stay in their order.
    """
    end = data.groupby(bar_column, sort=False)[size].cumsum()
    return data.assign(**{ends[0]: end - data[size], ends[1]: end})


def stacked_bars(
    sizes: pd.DataFrame,
    bar_column: str = "y",
    size: str = "size",
    ends: tuple[str, str] = ("x", "x2"),
) -> pd.DataFrame:
    """Return the pieces of a bar for each row of ``sizes``, one for each column, end to
    end: a row each, column by column. Column ``look`` has the column's name.

    Args:
        sizes: a row for each bar; its index names the bars, its columns are names of
            looks.
        bar_column: the column of the result that holds the index.
        size: the column that holds the sizes.
        ends: the columns that hold where a piece begins and ends.
    """
    pieces = sizes.reset_index(names=bar_column).melt(
        bar_column, var_name="look", value_name=size
    )
    return stack_rows(pieces, bar_column, size, ends)


# ------------------------------------------------------------------------------------------- ticks


def plain_number(value: float) -> str:
    """Return a number as a tick shows it: six significant digits at most."""
    return f"{value:g}"


def percent(value: float) -> str:
    """Return a share (1 is all) as a tick shows it: 0.125 as '12.5 %'."""
    return f"{100 * value:g} %"


def ticks(values: Any, text: Callable[[Any], str] = plain_number) -> dict[float, str]:
    """Return ticks at those values: the ``text`` of each by its value."""
    return {float(value): text(value) for value in values}


def round_values(low: float, high: float, max_count: int = 7) -> list[float]:
    """Return round values for ticks of a logarithmic axis, ascending, at most
    ``max_count``.

    Of 1, 1.5, 2, 3, 4, 5, 7, ..., of 1, 2, 5, ..., of 1, 3, 10, ... or powers of ten,
    the finest that fits; else every second, third, ... power of ten. The ends of the
    axis where fewer than two fit. ``low`` and ``high`` are above 0.
    """
    first = math.floor(math.log10(low))
    last = math.ceil(math.log10(high))
    for steps in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        candidates = [
            step * 10.0**power for power in range(first, last + 1) for step in steps
        ]
        candidates = [
            value for value in candidates if 0.999 * low <= value <= 1.001 * high
        ]
        if len(candidates) <= max_count:
            return candidates if len(candidates) > 1 else sorted({low, high})
    stride = -(-len(candidates) // max_count)
    return candidates[::stride]


def log_axis(
    title: str,
    low: float,
    high: float,
    *,
    max_ticks: int = 7,
    text: Callable[[float], str] = plain_number,
) -> Axis:
    """Return a logarithmic axis from ``low`` to ``high``, above 0, with round numbers
    as ticks, at most ``max_ticks``, whose texts ``text`` returns.
    """
    return Axis(title, True, low, high, ticks(round_values(low, high, max_ticks), text))


def spaced_ticks(values: Sequence[float], log: bool) -> dict[float, str]:
    """Return ticks at those values, at least one, '' for texts that would cover others.

    The text of the largest value stays. Ticks ascend, equal values are one. With
    ``log`` values are above 0.
    """
    values = sorted(map(float, set(values)))
    texts = [plain_number(value) for value in values]
    positions = np.log(values) if log else np.array(values)
    least_distance = max(map(len, texts)) * LETTER_SHARE * np.ptp(positions)
    text_of_value = {values[-1]: texts[-1]}
    last_position = positions[-1]
    for value, position, text in list(zip(values, positions, texts, strict=True))[
        -2::-1
    ]:
        has_room = last_position - position >= least_distance
        text_of_value[value] = text if has_room else ""
        last_position = position if has_room else last_position
    return dict(sorted(text_of_value.items()))

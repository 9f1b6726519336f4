"""A declared figure, drawn by matplotlib for a column of a paper."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from simshuffle.report.canvas import label_points, legend_above, new_figure
from simshuffle.report.chart import (
    MOST_INCHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    Ramp,
    round_values,
    ticks,
)
from simshuffle.report.style import SMALL, STYLE, letters, line_spacing

MANY = 2000  # marks of a kind, beyond which they are a picture inside the figure
UNSEEN = 0.004
"""Share of the longest bar below which a piece has no edge, which would be all of it."""
_FILLS: dict[str, dict[str, Any]] = {
    "waiting": {"hatch": "/////", "edgecolor": "white", "alpha": 0.75, "linewidth": 0},
    "hidden": {"hatch": "......", "facecolor": "none", "linewidth": 0.6},
    "none": {"facecolor": "none", "linewidth": 0.6},
}
_DENSE: dict[str, Any] = {
    "fontsize": SMALL,
    "labelspacing": 0.25,
    "handlelength": 0.8,
    "handletextpad": 0.3,
    "columnspacing": 0.6,
}
NOTE_LETTERS, TITLE_LETTERS = 76, 56  # letters of a line across the figure
NOTE_INCHES = 0.11
Which = Literal["x", "y"]


def draw(chart: Chart) -> Figure:
    """A figure in the style of now."""
    with matplotlib.rc_context(STYLE):
        note = textwrap.fill(chart.note, letters(NOTE_LETTERS), break_on_hyphens=False)
        height = min(chart.height, MOST_INCHES)
        figure = new_figure(height + NOTE_INCHES * len(note.splitlines()))
        axes = _axes(figure, chart)
        for ax, panel in zip(axes, chart.panels, strict=True):
            _panel(ax, panel, chart)
        if chart.ramp:
            _ramp(figure, axes, chart.ramp)
        if chart.y:
            figure.supylabel(chart.y, fontsize=STYLE["axes.labelsize"])
        if note:
            figure.supxlabel(note, x=0.01, ha="left", fontsize=SMALL, color="#555555")
        elif chart.x:
            figure.supxlabel(chart.x, fontsize=STYLE["axes.labelsize"])
        handles = [_handle(kinds, look) for kinds, look in chart.legend_keys()]
        legend_above(figure, handles, chart.legend, **(_DENSE if chart.dense else {}))
        if chart.names:
            listed = [Line2D([], [], linestyle="", label=name) for name in chart.names]
            look: Any = {**_DENSE, "handlelength": 0, "handletextpad": 0, "columnspacing": 1.5}
            legend_above(figure, listed, place="lower left", **look)
        _labels(figure, axes, chart)
        return figure


def _axes(figure: Figure, chart: Chart) -> list[Axes]:
    rows: list[list[Panel]] = [[]]
    for panel in chart.panels:
        if sum(each.span for each in rows[-1]) + panel.span > chart.across:
            rows.append([])
        rows[-1].append(panel)
    heights = [max(panel.weight for panel in row) for row in rows]
    widths = chart.widths or [1.0] * chart.across
    grid = figure.add_gridspec(len(rows), chart.across, height_ratios=heights, width_ratios=widths)
    axes: list[Axes] = []
    shared: dict[str, Axes] = {}
    for down, row in enumerate(rows):
        left = 0
        for panel in row:
            ax = figure.add_subplot(grid[down, left : left + panel.span], **shared)
            inner = down + 1 < len(rows) and sum(p.span for p in rows[down + 1]) > left
            ax.tick_params(labelleft=not ("y" in chart.share and left > 0))
            ax.tick_params(labelbottom=not ("x" in chart.share and inner))
            shared = {f"share{of}": axes[0] if axes else ax for of in chart.share}
            left += panel.span
            axes.append(ax)
    return axes


def _panel(ax: Axes, panel: Panel, chart: Chart) -> None:
    if panel.title:
        across = max(1, round(chart.across / panel.span))
        title = "\n".join(
            textwrap.fill(line, letters(TITLE_LETTERS // across), break_on_hyphens=False)
            for line in panel.title.splitlines()
        )
        upright: Any = {"rotation": 90} if panel.turned else {}
        size = SMALL if across > 1 else 6.5
        ax.set_title(panel.title if panel.turned else title, fontsize=size, pad=3, **upright)
    # scales first: what is hatched or has caps is drawn on them
    _axis(ax, "x", panel.x)
    _axis(ax, "y", panel.y)
    for number, mark in enumerate(panel.marks):
        for rows, look in _groups(mark, chart):
            _DRAW[mark.kind](ax, rows, look, _Of(mark, chart.ramp, 2 + 0.01 * number))
    if panel.equal:
        ax.set_aspect("equal", "datalim")
    else:
        _ends(ax, "x", panel.x)
        _ends(ax, "y", panel.y)
    if panel.top:
        above = ax.twiny()
        _axis(above, "x", panel.top)
        above.set_xlim(ax.get_xlim())
        above.spines[["right", "left", "top", "bottom"]].set_visible(False)
    bare = [side for side, of in (("left", panel.y), ("bottom", panel.x)) if of.names]
    ax.spines[["top", "right", *bare]].set_visible(False)


def _groups(mark: Mark, chart: Chart) -> Iterator[tuple[pd.DataFrame, Look]]:
    rows = mark.places()
    if rows.empty or mark.kind == "label" or not {"x", "y"} & set(rows):
        return
    if isinstance(mark.look, Look) or "look" not in rows:
        yield rows, mark.look if isinstance(mark.look, Look) else Look()
        return
    for name, of in rows.groupby("look", sort=False):
        yield of, chart.looks[name]


# -------------------------------------------------------------------------------------------- axes


def _axis(ax: Axes, which: Which, of: Axis) -> None:
    axis = getattr(ax, f"{which}axis")
    getattr(ax, f"set_{which}scale")("log" if of.log else "linear")
    axis.set_label_text(of.title)
    size = SMALL if of.small else STYLE[f"{which}tick.labelsize"]
    slanted = of.turned % 90 != 0
    ax.tick_params(axis=which, labelsize=size, rotation=of.turned)
    if of.ticks is not None:
        axis.set_ticks(list(of.ticks), list(of.ticks.values()), linespacing=line_spacing())
        axis.set_minor_locator(NullLocator())
        for text in axis.get_ticklabels() if slanted else ():
            text.set(ha="right", rotation_mode="anchor")
    elif of.most:
        axis.set_major_locator(MaxNLocator(of.most))
    elif of.log:
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    if of.names:
        ax.tick_params(axis=which, length=0)


def _ends(ax: Axes, which: Which, of: Axis) -> None:
    found = getattr(ax, f"get_{which}lim")()
    low, high = min(found), max(found)
    low, high = (low if of.low is None else of.low), (high if of.high is None else of.high)
    getattr(ax, f"set_{which}lim")(*((high, low) if of.down else (low, high)))


# ------------------------------------------------------------------------------------------- marks


def _face(look: Look) -> dict[str, Any]:
    plain = {"facecolor": look.colour, "edgecolor": "white", "linewidth": 0.3, "alpha": look.alpha}
    own = _FILLS.get(look.fill, {})
    edge = {} if "edgecolor" in own or not own else {"edgecolor": look.colour}
    return {**plain, **edge, **own}


def _line(look: Look) -> dict[str, Any]:
    face = {"markerfacecolor": "white", "markeredgewidth": 0.7} if look.fill == "none" else {}
    return {
        "color": look.colour,
        "linestyle": look.dash,
        "linewidth": look.width,
        "marker": look.marker or None,
        "markersize": look.size,
        "alpha": look.alpha,
        **face,
    }


class _Of(NamedTuple):
    """What rows belong to: their mark, the colours of values, and how far in front they are."""

    mark: Mark
    ramp: Ramp | None
    order: float


def _bars(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    face = {**_face(look), "zorder": of.order}
    across = "x2" in rows
    start, end = ("x", "x2") if across else ("y", "y2")
    low = rows.get(start, 0.0)
    sizes, places = rows[end] - low, rows["y" if across else "x"]
    if look.fill == "plain":
        longest = of.mark.places()[end].abs().max()
        face["linewidth"] = np.where(sizes.abs() > UNSEEN * longest, face["linewidth"], 0.0)
    if across:
        ax.barh(places, sizes, of.mark.thick, low, **face)
    else:
        ax.bar(places, sizes, of.mark.thick, low, **face)


def _lines(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    ax.plot(rows["x"], rows["y"], **_line(look), zorder=of.order)


def _points(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    style = {**_line(look), "linestyle": "", "zorder": of.order, "rasterized": len(rows) > MANY}
    if "value" not in rows or of.ramp is None:
        ax.plot(rows["x"], rows["y"], **style)
        return
    colours = _mapped(of.ramp)
    for row in rows.to_dict("records"):
        edge: Any = {"markeredgecolor": "black", "markeredgewidth": 0.3}
        ax.plot(row["x"], row["y"], **{**style, "color": colours.to_rgba(row["value"]), **edge})


def _intervals(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    upwards = "y2" in rows
    low, high = (rows[name].to_numpy(float) for name in (("y", "y2") if upwards else ("x", "x2")))
    known = ~(np.isnan(low) | np.isnan(high))
    middle, half = ((low + high) / 2)[known], ((high - low) / 2)[known]
    at = rows["x" if upwards else "y"].to_numpy(float)[known]
    style: Any = {"ecolor": look.colour, "elinewidth": 0.8 * look.width, "alpha": look.alpha}
    style |= {"capsize": look.size / 2, "capthick": 0.7, "linestyle": "", "zorder": of.order}
    style |= {"yerr": half} if upwards else {"xerr": half}
    if len(middle):
        ax.errorbar(*((at, middle) if upwards else (middle, at)), **style)


def _rules(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    style: Any = {"color": look.colour, "linewidth": look.width, "linestyle": look.dash}
    style |= {"alpha": look.alpha, "zorder": of.order}
    for row in rows.to_dict("records"):
        if "x" not in row:
            ax.axhline(row["y"], **style)
        elif "y" not in row:
            ax.axvline(row["x"], **style)
        else:
            ends = [row["x"], row.get("x2", row["x"])], [row["y"], row.get("y2", row["y"])]
            ax.plot(*ends, **style, clip_on=False, solid_capstyle="butt")


def _bands(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    style: Any = {"color": look.colour, "alpha": look.alpha, "linewidth": 0, "zorder": of.order}
    if "y" not in rows:
        ax.axvspan(rows["x"].iloc[0], rows["x2"].iloc[0], **style)
    elif "x" not in rows:
        ax.axhspan(rows["y"].iloc[0], rows["y2"].iloc[0], **style)
    else:
        ax.fill_between(rows["x"], rows["y"], rows["y2"], **style)


def _texts(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    across, up = of.mark.align
    style: Any = {"ha": across, "va": up, "rotation": of.mark.turned, "zorder": 3 + of.order}
    style |= {"fontsize": SMALL} if of.mark.small else {}
    style |= {"color": look.colour} if isinstance(of.mark.look, Look) or "look" in rows else {}
    style |= {"bbox": {"facecolor": "white", "linewidth": 0, "pad": 0.5}} if of.mark.backed else {}
    for row in rows.to_dict("records"):
        place = (row["x"], row["y"])
        above: Any = {"textcoords": "offset points", "annotation_clip": False}
        ax.annotate(row["text"], place, of.mark.aside, **above, **style)


def _cells(ax: Axes, rows: pd.DataFrame, look: Look, of: _Of) -> None:
    corners = [("x", "y"), ("x2", "y"), ("x2", "y2"), ("x", "y2")]
    boxes = np.stack([rows[list(corner)].to_numpy(float) for corner in corners], axis=1)
    edges: Any = {"linewidth": 0.4, "edgecolor": "white"} if look.fill == "none" else {}
    # without smooth edges cells that touch have no seams
    drawn = PolyCollection(list(boxes), **edges, zorder=of.order, antialiased=bool(edges))
    drawn.set_rasterized(len(rows) > MANY)
    colours: Any = _mapped(of.ramp or Ramp("")).to_rgba(rows["value"].to_numpy(float))
    drawn.set_facecolor(colours)
    ax.add_collection(drawn)


_DRAW: dict[str, Callable[[Axes, pd.DataFrame, Look, _Of], None]] = {
    "bar": _bars,
    "line": _lines,
    "point": _points,
    "interval": _intervals,
    "rule": _rules,
    "band": _bands,
    "text": _texts,
    "cell": _cells,
}


# ------------------------------------------------------------------------- legend, scale and labels


def _handle(kinds: set[str], look: Look) -> Patch | Line2D:
    if kinds & {"bar", "band"}:
        return Patch(label=look.label, **_face(look))
    style = {**_line(look), "label": look.label}
    if "point" in kinds and not kinds & {"line", "rule"}:
        style["linestyle"] = ""
    style["markersize"] = max(3.0, min(look.size, 4.5))
    return Line2D([], [], **style)


def _mapped(ramp: Ramp) -> matplotlib.cm.ScalarMappable:
    norm = (LogNorm if ramp.log else Normalize)(ramp.low, ramp.high)
    return matplotlib.cm.ScalarMappable(norm, f"{ramp.colours}_r")


def _ramp(figure: Figure, axes: Sequence[Axes], ramp: Ramp) -> None:
    place, aspect = ("bottom", 40) if ramp.below else ("right", 25)
    look: Any = {"location": place, "aspect": aspect, "pad": 0.02}
    bar = figure.colorbar(_mapped(ramp), ax=list(axes), **look)
    bar.set_label(ramp.title, fontsize=7)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
    if ramp.log:
        marks = ticks(round_values(ramp.low, ramp.high))
        bar.set_ticks(list(marks), labels=list(marks.values()))
        bar.minorticks_off()


def _labels(figure: Figure, axes: Sequence[Axes], chart: Chart) -> None:
    """Texts beside points, once all else stands where it is to stand."""
    marks = [
        (ax, mark.data)
        for ax, panel in zip(axes, chart.panels, strict=True)
        for mark in panel.marks
        if mark.kind == "label"
    ]
    if marks:
        figure.draw_without_rendering()  # so that pixels are where they will be
    for ax, rows in marks:
        label_points(figure, ax, rows)

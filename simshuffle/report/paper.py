"""Draw a declared figure with matplotlib, for a column of a paper."""

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
    MAX_INCHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    Ramp,
    round_values,
    ticks,
)
from simshuffle.report.style import SMALL, STYLE, letters_in_line, spacing_of_lines

MAX_VECTOR_MARKS = (
    2000  # marks of a kind, beyond which they are a picture inside the figure
)
LEAST_EDGED_SHARE = 0.004
"""Share of the longest bar below which a piece has no edge, which would be all of it."""
_FILLS: dict[str, dict[str, Any]] = {
    "waiting": {"hatch": "/////", "edgecolor": "white", "alpha": 0.75, "linewidth": 0},
    "hidden": {"hatch": "......", "facecolor": "none", "linewidth": 0.6},
    "none": {"facecolor": "none", "linewidth": 0.6},
}
_DENSE_LEGEND: dict[str, Any] = {
    "fontsize": SMALL,
    "labelspacing": 0.25,
    "handlelength": 0.8,
    "handletextpad": 0.3,
    "columnspacing": 0.6,
}
NOTE_LETTERS, TITLE_LETTERS = 76, 56  # letters of a line across the figure
NOTE_INCHES = 0.11
AxisName = Literal["x", "y"]


def draw(chart: Chart) -> Figure:
    """Draw a chart as a figure in the current style, at most `MAX_INCHES` high.

    Legend and note come on top of that. A note takes the place of `Chart.x`.
    """
    with matplotlib.rc_context(STYLE):
        note = textwrap.fill(
            chart.note, letters_in_line(NOTE_LETTERS), break_on_hyphens=False
        )
        height = min(chart.height, MAX_INCHES)
        figure = new_figure(height + NOTE_INCHES * len(note.splitlines()))
        axes = _make_axes(figure, chart)
        for ax, panel in zip(axes, chart.panels, strict=True):
            _draw_panel(ax, panel, chart)
        if chart.ramp:
            _draw_ramp(figure, axes, chart.ramp)
        if chart.y:
            figure.supylabel(chart.y, fontsize=STYLE["axes.labelsize"])
        if note:
            figure.supxlabel(note, x=0.01, ha="left", fontsize=SMALL, color="#555555")
        elif chart.x:
            figure.supxlabel(chart.x, fontsize=STYLE["axes.labelsize"])
        handles = [_legend_handle(kinds, look) for kinds, look in chart.legend_keys()]
        legend_above(
            figure, handles, chart.legend, **(_DENSE_LEGEND if chart.dense else {})
        )
        if chart.names:
            name_handles = [
                Line2D([], [], linestyle="", label=name) for name in chart.names
            ]
            look: Any = {**_DENSE_LEGEND, "handlelength": 0, "handletextpad": 0}
            look["columnspacing"] = 1.5
            legend_above(figure, name_handles, location="lower left", **look)
        _draw_labels(figure, axes, chart)
        return figure


def _make_axes(figure: Figure, chart: Chart) -> list[Axes]:
    """Make the axes of all panels in a grid, row by row."""
    rows: list[list[Panel]] = [[]]
    for panel in chart.panels:
        if sum(panel.span for panel in rows[-1]) + panel.span > chart.across:
            rows.append([])
        rows[-1].append(panel)
    heights = [max(panel.weight for panel in row) for row in rows]
    widths = chart.widths or [1.0] * chart.across
    grid = figure.add_gridspec(
        len(rows), chart.across, height_ratios=heights, width_ratios=widths
    )
    axes: list[Axes] = []
    shared: dict[str, Axes] = {}
    for row_index, row in enumerate(rows):
        column = 0
        for panel in row:
            ax = figure.add_subplot(
                grid[row_index, column : column + panel.span], **shared
            )
            has_panel_below = (
                row_index + 1 < len(rows)
                and sum(p.span for p in rows[row_index + 1]) > column
            )
            ax.tick_params(labelleft=not ("y" in chart.share and column > 0))
            ax.tick_params(labelbottom=not ("x" in chart.share and has_panel_below))
            shared = {
                f"share{letter}": axes[0] if axes else ax for letter in chart.share
            }
            column += panel.span
            axes.append(ax)
    return axes


def _draw_panel(ax: Axes, panel: Panel, chart: Chart) -> None:
    """Draw the axes, marks and title of a panel."""
    if panel.title:
        panels_across = max(1, round(chart.across / panel.span))
        columns = letters_in_line(TITLE_LETTERS // panels_across)
        title = "\n".join(
            textwrap.fill(line, columns, break_on_hyphens=False)
            for line in panel.title.splitlines()
        )
        title_style: Any = {"rotation": 90} if panel.turned else {}
        size = SMALL if panels_across > 1 else 6.5
        ax.set_title(
            panel.title if panel.turned else title, fontsize=size, pad=3, **title_style
        )
    # scales first: what is hatched or has caps is drawn on them
    _draw_axis(ax, "x", panel.x)
    _draw_axis(ax, "y", panel.y)
    for mark_index, mark in enumerate(panel.marks):
        for rows, look in _groups(mark, chart):
            _DRAW[mark.kind](
                ax, rows, look, _Drawing(mark, chart.ramp, 2 + 0.01 * mark_index)
            )
    if panel.equal:
        ax.set_aspect("equal", "datalim")
    else:
        _set_limits(ax, "x", panel.x)
        _set_limits(ax, "y", panel.y)
    if panel.top:
        top_axes = ax.twiny()
        _draw_axis(top_axes, "x", panel.top)
        top_axes.set_xlim(ax.get_xlim())
        top_axes.spines[["right", "left", "top", "bottom"]].set_visible(False)
    name_sides = [
        side for side, axis in (("left", panel.y), ("bottom", panel.x)) if axis.names
    ]
    ax.spines[["top", "right", *name_sides]].set_visible(False)


def _groups(mark: Mark, chart: Chart) -> Iterator[tuple[pd.DataFrame, Look]]:
    """Yield the rows of a mark that have one look, with the look.

    Nothing for labels, which are drawn last, and for rows without a place or look.
    """
    rows = mark.places()
    if rows.empty or mark.kind == "label" or not {"x", "y"} & set(rows):
        return
    if isinstance(mark.look, Look) or "look" not in rows:
        yield rows, mark.look if isinstance(mark.look, Look) else Look()
        return
    for name, look_rows in rows.groupby("look", sort=False):
        yield look_rows, chart.looks[name]


# -------------------------------------------------------------------------------------------- axes


def _draw_axis(ax: Axes, axis_name: AxisName, declared: Axis) -> None:
    """Set scale, title and ticks of an axis."""
    axis = getattr(ax, f"{axis_name}axis")
    getattr(ax, f"set_{axis_name}scale")("log" if declared.log else "linear")
    axis.set_label_text(declared.title)
    size = SMALL if declared.small else STYLE[f"{axis_name}tick.labelsize"]
    slanted = declared.turned % 90 != 0
    ax.tick_params(axis=axis_name, labelsize=size, rotation=declared.turned)
    if declared.ticks is not None:
        axis.set_ticks(
            list(declared.ticks),
            list(declared.ticks.values()),
            linespacing=spacing_of_lines(),
        )
        axis.set_minor_locator(NullLocator())
        for text in axis.get_ticklabels() if slanted else ():
            text.set(ha="right", rotation_mode="anchor")
    elif declared.max_ticks:
        axis.set_major_locator(MaxNLocator(declared.max_ticks))
    elif declared.log:
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    if declared.names:
        ax.tick_params(axis=axis_name, length=0)


def _set_limits(ax: Axes, axis_name: AxisName, declared: Axis) -> None:
    """Set both ends of an axis, as declared, or else as the data have them."""
    limits = getattr(ax, f"get_{axis_name}lim")()
    low = min(limits)
    high = max(limits)
    low = low if declared.low is None else declared.low
    high = high if declared.high is None else declared.high
    getattr(ax, f"set_{axis_name}lim")(*((high, low) if declared.down else (low, high)))


# ------------------------------------------------------------------------------------------- marks


def _face_style(look: Look) -> dict[str, Any]:
    """Return matplotlib's options for a filled area."""
    default = {
        "facecolor": look.colour,
        "edgecolor": "white",
        "linewidth": 0.3,
        "alpha": look.alpha,
    }
    fill_style = _FILLS.get(look.fill, {})
    edge = (
        {}
        if "edgecolor" in fill_style or not fill_style
        else {"edgecolor": look.colour}
    )
    return {**default, **edge, **fill_style}


def _line_style(look: Look) -> dict[str, Any]:
    """Return matplotlib's options for a line and its markers."""
    face = (
        {"markerfacecolor": "white", "markeredgewidth": 0.7}
        if look.fill == "none"
        else {}
    )
    return {
        "color": look.colour,
        "linestyle": look.dash,
        "linewidth": look.width,
        "marker": look.marker or None,
        "markersize": look.size,
        "alpha": look.alpha,
        **face,
    }


class _Drawing(NamedTuple):
    """The context of drawn rows: their mark, the colours of values, and how far in
    front they are.
    """

    mark: Mark
    ramp: Ramp | None
    order: float


def _draw_bars(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Draw bars from x to x2, or upright from y to y2; short plain ones have no edge."""
    face = {**_face_style(look), "zorder": drawing.order}
    is_horizontal = "x2" in rows
    start, end = ("x", "x2") if is_horizontal else ("y", "y2")
    starts = rows.get(start, 0.0)
    sizes = rows[end] - starts
    places = rows["y" if is_horizontal else "x"]
    if look.fill == "plain":
        longest = drawing.mark.places()[end].abs().max()
        face["linewidth"] = np.where(
            sizes.abs() > LEAST_EDGED_SHARE * longest, face["linewidth"], 0.0
        )
    if is_horizontal:
        ax.barh(places, sizes, drawing.mark.thick, starts, **face)
    else:
        ax.bar(places, sizes, drawing.mark.thick, starts, **face)


def _draw_lines(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Draw one line through all rows, in their order."""
    ax.plot(rows["x"], rows["y"], **_line_style(look), zorder=drawing.order)


def _draw_points(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Draw points, coloured by their value where there is one and a ramp."""
    style = {
        **_line_style(look),
        "linestyle": "",
        "zorder": drawing.order,
        "rasterized": len(rows) > MAX_VECTOR_MARKS,
    }
    if "value" not in rows or drawing.ramp is None:
        ax.plot(rows["x"], rows["y"], **style)
        return
    colours = _colour_map(drawing.ramp)
    for row in rows.to_dict("records"):
        edge: Any = {"markeredgecolor": "black", "markeredgewidth": 0.3}
        ax.plot(
            row["x"],
            row["y"],
            **{**style, "color": colours.to_rgba(row["value"]), **edge},
        )


def _draw_intervals(
    ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing
) -> None:
    """Draw lines with caps from y to y2, or x to x2; none where an end is NaN."""
    is_upright = "y2" in rows
    low, high = (
        rows[name].to_numpy(float)
        for name in (("y", "y2") if is_upright else ("x", "x2"))
    )
    is_known = ~(np.isnan(low) | np.isnan(high))
    middle = ((low + high) / 2)[is_known]
    half_width = ((high - low) / 2)[is_known]
    positions = rows["x" if is_upright else "y"].to_numpy(float)[is_known]
    style: Any = {
        "ecolor": look.colour,
        "elinewidth": 0.8 * look.width,
        "alpha": look.alpha,
    }
    style |= {
        "capsize": look.size / 2,
        "capthick": 0.7,
        "linestyle": "",
        "zorder": drawing.order,
    }
    style |= {"yerr": half_width} if is_upright else {"xerr": half_width}
    if len(middle):
        ax.errorbar(
            *((positions, middle) if is_upright else (middle, positions)), **style
        )


def _draw_rules(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Draw lines through the whole panel, or between two ends where x and y are given."""
    style: Any = {"color": look.colour, "linewidth": look.width, "linestyle": look.dash}
    style |= {"alpha": look.alpha, "zorder": drawing.order}
    for row in rows.to_dict("records"):
        if "x" not in row:
            ax.axhline(row["y"], **style)
        elif "y" not in row:
            ax.axvline(row["x"], **style)
        else:
            ends = (
                [row["x"], row.get("x2", row["x"])],
                [row["y"], row.get("y2", row["y"])],
            )
            ax.plot(*ends, **style, clip_on=False, solid_capstyle="butt")


def _draw_bands(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Draw a band: between curves, or through the whole panel from the first row."""
    style: Any = {
        "color": look.colour,
        "alpha": look.alpha,
        "linewidth": 0,
        "zorder": drawing.order,
    }
    if "y" not in rows:
        ax.axvspan(rows["x"].iloc[0], rows["x2"].iloc[0], **style)
    elif "x" not in rows:
        ax.axhspan(rows["y"].iloc[0], rows["y2"].iloc[0], **style)
    else:
        ax.fill_between(rows["x"], rows["y"], rows["y2"], **style)


def _draw_texts(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Write texts beside their places, in the look's colour."""
    horizontal, vertical = drawing.mark.align
    style: Any = {
        "ha": horizontal,
        "va": vertical,
        "rotation": drawing.mark.turned,
        "zorder": 3 + drawing.order,
    }
    style |= {"fontsize": SMALL} if drawing.mark.small else {}
    style |= (
        {"color": look.colour}
        if isinstance(drawing.mark.look, Look) or "look" in rows
        else {}
    )
    style |= (
        {"bbox": {"facecolor": "white", "linewidth": 0, "pad": 0.5}}
        if drawing.mark.backed
        else {}
    )
    for row in rows.to_dict("records"):
        position = (row["x"], row["y"])
        offset: Any = {"textcoords": "offset points", "annotation_clip": False}
        ax.annotate(row["text"], position, drawing.mark.aside, **offset, **style)


def _draw_cells(ax: Axes, rows: pd.DataFrame, look: Look, drawing: _Drawing) -> None:
    """Draw cells in the colours of their values; hollow looks have white edges."""
    corners = [("x", "y"), ("x2", "y"), ("x2", "y2"), ("x", "y2")]
    boxes = np.stack([rows[list(corner)].to_numpy(float) for corner in corners], axis=1)
    edges: Any = {"linewidth": 0.4, "edgecolor": "white"} if look.fill == "none" else {}
    # without smooth edges cells that touch have no seams
    collection = PolyCollection(
        list(boxes), **edges, zorder=drawing.order, antialiased=bool(edges)
    )
    collection.set_rasterized(len(rows) > MAX_VECTOR_MARKS)
    colours: Any = _colour_map(drawing.ramp or Ramp("")).to_rgba(
        rows["value"].to_numpy(float)
    )
    collection.set_facecolor(colours)
    ax.add_collection(collection)


_DRAW: dict[str, Callable[[Axes, pd.DataFrame, Look, _Drawing], None]] = {
    "bar": _draw_bars,
    "line": _draw_lines,
    "point": _draw_points,
    "interval": _draw_intervals,
    "rule": _draw_rules,
    "band": _draw_bands,
    "text": _draw_texts,
    "cell": _draw_cells,
}


# ------------------------------------------------------------------------- legend, scale and labels


def _legend_handle(kinds: set[str], look: Look) -> Patch | Line2D:
    """Return a look's sample in the legend: an area for bars and bands, else a line."""
    if kinds & {"bar", "band"}:
        return Patch(label=look.label, **_face_style(look))
    style = {**_line_style(look), "label": look.label}
    if "point" in kinds and not kinds & {"line", "rule"}:
        style["linestyle"] = ""
    style["markersize"] = max(3.0, min(look.size, 4.5))
    return Line2D([], [], **style)


def _colour_map(ramp: Ramp) -> matplotlib.cm.ScalarMappable:
    """Return the colour scale of a ramp for matplotlib, with light for low values."""
    norm = (LogNorm if ramp.log else Normalize)(ramp.low, ramp.high)
    return matplotlib.cm.ScalarMappable(norm, f"{ramp.colours}_r")


def _draw_ramp(figure: Figure, axes: Sequence[Axes], ramp: Ramp) -> None:
    """Draw the colour bar of a ramp."""
    location, aspect = ("bottom", 40) if ramp.below else ("right", 25)
    look: Any = {"location": location, "aspect": aspect, "pad": 0.02}
    bar = figure.colorbar(_colour_map(ramp), ax=list(axes), **look)
    bar.set_label(ramp.title, fontsize=7)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
    if ramp.log:
        marks = ticks(round_values(ramp.low, ramp.high))
        bar.set_ticks(list(marks), labels=list(marks.values()))
        bar.minorticks_off()


def _draw_labels(figure: Figure, axes: Sequence[Axes], chart: Chart) -> None:
    """Write the texts beside points, after everything else is laid out."""
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

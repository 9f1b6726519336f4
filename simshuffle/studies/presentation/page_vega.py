"""A declared figure as Vega-Lite, which a page draws and a reader asks for its numbers:
a chart for each panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from simshuffle.report.chart import SHAPES, Axis, Chart, Look, Mark, Panel
from simshuffle.report.style import COLOURS
from simshuffle.studies.presentation.page_parts import Spec
from simshuffle.studies.presentation.page_parts import chart as html_chart

MOST_ROWS = 6000
"""Most rows of a chart on a page; a figure with more rows is a picture."""
PIXELS = 125
"""Pixels for an inch of a paper."""
LEGEND_COLUMNS, LEGEND_LETTERS = 4, 90
"""Most columns and letters of a legend, so that it is no wider than a chart on a narrow
screen.
"""
STROKE = "M-1,-0.15H1V0.15H-1Z"
"""Shape of a line in the legend."""
DASHED: Mapping[Any, list[float]] = {
    "-": [1, 0],
    "--": [6, 3],
    ":": [2, 2],
    "-.": [6, 2, 2, 2],
}


def number_channel(field: str, **properties: Any) -> dict[str, Any]:
    """Return the channel of a column of numbers."""
    return {"field": field, "type": "quantitative", **properties}


def text_channel(field: str, **properties: Any) -> dict[str, Any]:
    """Return the channel of a column of texts."""
    return {"field": field, "type": "nominal", **properties}


TIP = {"tooltip": text_channel("tip"), "description": text_channel("tip")}
"""Channels with the text of a mark under the pointer or the focus."""
NO_SHARE = 1e12
"""Divisor of a position that is drawn in seconds alone."""
DIGITS = 6
"""Digits of numbers, so that a page is small."""


def html_figure(chart: Chart, title: str, note: str = "") -> str:
    """Return a figure as HTML: its panels below one another, under a caption with
    ``note``; '' without any rows.

    ``title`` begins the heading of every panel; the caption stands at the first alone.
    """
    about = " ".join(filter(None, (chart.caption, chart.note, note.strip())))
    text = ""
    for panel, spec in panel_specs(chart):
        name = ", ".join(filter(None, (title.rstrip("."), panel))) + "."
        text += html_chart(spec, name, "" if text else about)
    return text


def panel_specs(chart: Chart) -> Iterator[tuple[str, Spec]]:
    """Yield title and Vega-Lite chart of each panel; the first has the legend of all.

    Titles are one line; '' for a panel without one. Panels without rows are left out,
    but not the first one if there is a legend.
    """
    height = PIXELS * chart.height / max(1, -(-len(chart.panels) // chart.across))
    mean_weight = sum(panel.weight for panel in chart.panels) / len(chart.panels)
    for index, panel in enumerate(chart.panels):
        layers = [
            layer for mark in panel.marks for layer in _layers(mark, panel, chart)
        ]
        if index == 0 and (legend := _legend(chart)):
            layers.insert(0, legend)
        if not layers:
            continue
        spec: dict[str, Any] = {
            "width": "container",
            "height": round(max(90.0, height * panel.weight / mean_weight)),
            "layer": layers,
            "resolve": {"scale": {"color": "independent", "shape": "independent"}},
        }
        if chart.shares:
            options = {
                "input": "select",
                "options": ["values", "shares"],
                "name": "Show",
            }
            spec["params"] = [{"name": "show", "value": "values", "bind": options}]
        yield panel.title.replace("\n", ", "), spec


def hatch_patterns() -> str:
    """Return the hatching of waiting and of hidden work as SVG, which charts name.

    The patterns have the ids 'waiting-rrggbb' and 'hidden-rrggbb', for each of
    `COLOURS` and grey. A page needs them once.
    """
    waiting = (
        '<pattern id="waiting-{0}" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect width="6" height="6" fill="#{0}" fill-opacity="0.3"/>'
        '<rect width="3" height="6" fill="#{0}"/></pattern>'
    )
    hidden = (
        '<pattern id="hidden-{0}" width="5" height="5" patternUnits="userSpaceOnUse">'
        '<circle cx="2" cy="2" r="1.2" fill="#{0}"/></pattern>'
    )
    colours = [colour[1:] for colour in (*COLOURS.values(), "#999999")]
    all_patterns = "".join(
        pattern.format(colour) for pattern in (waiting, hidden) for colour in colours
    )
    head = '<svg class="patterns" width="0" height="0" aria-hidden="true">'
    return f"{head}<defs>{all_patterns}</defs></svg>"


def _scale(axis: Axis) -> dict[str, Any]:
    """Return the scale of an axis for Vega-Lite: kind, ends, and direction.

    An end that is None is left to the data; no axis is lengthened to 0.
    """
    scale: dict[str, Any] = {
        "type": "log" if axis.log else "linear",
        "zero": False,
        "nice": False,
    }
    if axis.low is not None:
        scale["domainMin"] = axis.low
    if axis.high is not None:
        scale["domainMax"] = axis.high
    return scale | ({"reverse": True} if axis.down else {"padding": 8})


def _axis(axis: Axis, title: str) -> dict[str, Any]:
    """Return the properties of an axis for Vega-Lite: title, ticks and their texts.

    ``title`` is for an axis without one of its own.
    """
    properties: dict[str, Any] = {
        "title": (axis.title or title).split("\n") or None,
        "grid": False,
    }
    if axis.ticks is not None:
        texts = ", ".join(_quote(text.split("\n")) for text in axis.ticks.values())
        properties |= {
            "values": list(axis.ticks),
            "labelOverlap": False if axis.names else "greedy",
        }
        properties |= {
            "labelExpr": f"[{texts}][indexof({list(axis.ticks)}, datum.value)]"
        }
    else:
        properties |= {"tickCount": axis.max_ticks or 6}
        properties |= (
            {"format": "~s" if axis.unit else ",~r"} if axis.log or axis.unit else {}
        )
    if axis.names:
        properties |= {"ticks": False, "domain": False, "labelPadding": 8}
    if axis.turned:
        properties["labelAngle"] = -axis.turned
    return properties


def _quote(value: str | list[str]) -> str:
    """Quote a text for an expression of Vega; several become an array, one a text."""
    if isinstance(value, list):
        return (
            f"[{', '.join(map(_quote, value))}]" if len(value) > 1 else _quote(value[0])
        )
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _position_channels(panel: Panel, chart: Chart, columns: set[str]) -> dict[str, Any]:
    """Return the channels of the positions that a mark's rows have.

    ``columns`` are the columns of the rows. Positions without a column have no channel.
    Where a page can show shares, x and x2 are read from `x_shown` and `x2_shown`.
    """
    channels: dict[str, Any] = {}
    for name, axis, title in (("x", panel.x, chart.x), ("y", panel.y, chart.y)):
        properties = _axis(axis, title)
        scale = _scale(axis)
        suffix = ""
        if chart.shares and name == "x":
            suffix = "_shown"
            scale.pop("domainMax", None)
            seconds = f"datum.label + '{axis.unit}'"
            share = "format(datum.value, '.0%')"
            properties["labelExpr"] = f"show === 'values' ? {seconds} : {share}"
        if name in columns:
            channels[name] = number_channel(
                f"{name}{suffix}", scale=scale, axis=properties
            )
        if f"{name}2" in columns:
            channels[f"{name}2"] = {"field": f"{name}2{suffix}"}
    return channels


def _layers(mark: Mark, panel: Panel, chart: Chart) -> Iterator[Spec]:
    """Yield the layers of a mark: one for each look, or one for all bars, cells or
    texts; none for a mark without rows or without a place.

    Bars, points and cells get a text under the pointer, unless the data have a column
    ``tip``.
    """
    rows = mark.places()
    if rows.empty or not {"x", "y"} & set(rows):
        return
    rows = _bars_as_boxes(rows, mark) if mark.kind == "bar" else rows
    if "look" not in rows or isinstance(mark.look, Look):
        rows["look"] = ""
    if chart.shares:
        rows["whole"] = _bar_lengths(rows, panel)
    in_one_layer = mark.kind in {"bar", "cell", "text", "label"}
    for _, series in [("", rows)] if in_one_layer else rows.groupby("look", sort=False):
        looks = [_look_of_series(mark, name, chart) for name in series["look"]]
        coloured = series.assign(colour=[_colour(look) for look in looks]).drop(
            columns="look"
        )
        if "tip" not in coloured and mark.kind in {"bar", "point", "cell"}:
            pairs = zip(_plain_records(coloured), looks, strict=True)
            coloured["tip"] = [
                _describe_row(row, look, panel, chart) for row, look in pairs
            ]
        spec: dict[str, Any] = {"data": {"values": _plain_records(coloured)}}
        if chart.shares:
            spec["transform"] = [
                {
                    "calculate": f"datum.{name} / (show === 'values' ? 1 : datum.whole)",
                    "as": shown_column,
                }
                for name, shown_column in (("x", "x_shown"), ("x2", "x2_shown"))
            ]
        columns = {*coloured}
        channels = _position_channels(panel, chart, columns)
        yield {**spec, **_mark_and_channels(mark, looks[0], channels, chart, columns)}


def _mark_and_channels(
    mark: Mark, look: Look, encoding: dict[str, Any], chart: Chart, columns: set[str]
) -> Spec:
    """Return mark and channels of a layer.

    Args:
        mark: the mark of which the layer is.
        look: the look of its rows; their colours are in the column ``colour``.
        encoding: the channels of the positions; further ones are added in place.
        chart: the figure, for the colour scale of values.
        columns: columns of the layer's rows.
    """
    properties: dict[str, Any] = {"opacity": look.alpha, "aria": "tip" in columns}
    horizontal, vertical = mark.align
    filled = look.fill != "none"
    if mark.kind in {"bar", "cell"}:
        edge = 0.0 if mark.kind == "cell" and filled else 0.7
        properties |= {"type": "rect", "stroke": "var(--card)", "strokeWidth": edge}
    elif mark.kind == "line":
        properties |= {
            "type": "line",
            "strokeWidth": 1.6 * look.width,
            "strokeDash": _dash(look),
        }
        if look.marker:
            size = max(25, round(2.8 * look.size**2))
            properties["point"] = {
                "size": size,
                "filled": filled,
                "shape": SHAPES[look.marker],
            }
    elif mark.kind == "point":
        properties |= {"type": "point", "filled": filled, "size": 8 + 6 * look.size**2}
        properties |= {"shape": SHAPES[look.marker or "o"]}
    elif mark.kind == "band":
        properties |= {"type": "area" if {"x", "y"} <= columns else "rect"}
    elif mark.kind in {"text", "label"}:
        right, above = mark.aside if mark.kind == "text" else (4, 0)
        if mark.turned:  # what is turned begins at its place, and is moved along itself
            horizontal = "left"
            vertical = "center"
            right = above
            above = 0
        baseline = vertical.replace("center", "middle")
        properties |= {"type": "text", "align": horizontal, "baseline": baseline}
        properties |= {"dx": 2 * right, "dy": -2 * above, "angle": -mark.turned % 360}
        encoding |= {"text": text_channel("text")}
    else:
        properties |= {
            "type": "rule",
            "strokeWidth": 1.6 * look.width,
            "strokeDash": _dash(look),
        }
    colour = text_channel("colour", scale=None)
    if mark.kind in {"text", "label"}:
        colour = {"value": "var(--text)"}
    elif mark.value and chart.ramp:
        ramp = chart.ramp
        scale = {
            "scheme": ramp.colours,
            "reverse": True,
            "domain": [ramp.low, ramp.high],
        }
        scale |= {"type": "log"} if ramp.log else {}
        legend = {"title": ramp.title, "titleLimit": 400}
        colour = number_channel("value", scale=scale, legend=legend)
    if "tip" in columns:
        encoding |= TIP
    return {"mark": properties, "encoding": {**encoding, "color": colour}}


def _dash(look: Look) -> list[float]:
    """Return the lengths of dashes and of gaps, in pixels, alternating."""
    return DASHED[look.dash] if isinstance(look.dash, str) else list(look.dash[1])


def _look_of_series(mark: Mark, name: Any, chart: Chart) -> Look:
    """Return the look of a series: the mark's own, else the chart's of that name.

    A name without a look has a default one.
    """
    return mark.look if isinstance(mark.look, Look) else chart.looks.get(name, Look())


def _colour(look: Look) -> str:
    """Return the colour of a look in the page's style.

    Black follows the page, which may be dark; a hatching is a pattern of the page.
    """
    if look.fill in {"waiting", "hidden"}:
        return f"url(#{look.fill}-{look.colour[1:]})"
    return "var(--text)" if look.colour == "#000000" else look.colour


def _bars_as_boxes(rows: pd.DataFrame, mark: Mark) -> pd.DataFrame:
    """Return bars as boxes, from edge to edge: rows with x, x2, y and y2.

    Bars with x2 lie along x, other ones along y. A bar without a start begins at 0.
    """
    along, across = ("x", "y") if "x2" in rows else ("y", "x")
    low = rows[across] - mark.thick / 2
    high = rows[across] + mark.thick / 2
    return rows.assign(**{along: rows.get(along, 0.0), across: low, f"{across}2": high})


def _bar_lengths(rows: pd.DataFrame, panel: Panel) -> pd.Series:
    """Return (rows,) the length (s) of the bar in whose row each row of a mark lies.

    Rows without a bar, or with one of 0, have 1; a mark without ``y`` has `NO_SHARE`.
    Of several marks of bars, the first with a column ``seconds`` counts, else the first.
    The panel must have one.
    """
    bars = [
        mark.data
        for mark in panel.marks
        if mark.kind == "bar" and "seconds" in mark.data
    ]
    bars = bars or [mark.data for mark in panel.marks if mark.kind == "bar"]
    bar_end = bars[0].groupby("y")["x2"].max()
    if (
        "y" not in rows
    ):  # what is shaded by the other panel's scale has no share of a bar
        return pd.Series(NO_SHARE, rows.index)
    row_of_position = (rows["y"] + rows["y2"]) / 2 if "y2" in rows else rows["y"]
    return row_of_position.round().map(bar_end).fillna(1.0).replace(0.0, 1.0)


def _describe_row(
    row: Mapping[str, Any], look: Look, panel: Panel, chart: Chart
) -> str:
    """Describe a row: its series, and its value on both axes, a line each.

    The value is the end of a row that has two. An axis of names has no line.
    """
    lines = [look.label.replace("\n", " ")] if look.label else []
    for name, axis, title in (("x", panel.x, chart.x), ("y", panel.y, chart.y)):
        value = row.get(f"{name}2", row.get(name))
        if value is not None and not axis.names:
            lines.append(f"{(axis.title or title).replace(chr(10), ' ')}: {value:.4g}")
    return "\n".join(lines)


def _plain_records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain values, a dictionary each, with `DIGITS` digits; NaN becomes
    None.
    """
    return [
        {
            str(name): (None if math.isnan(value) else float(f"{value:.{DIGITS}g}"))
            if isinstance(value, float)
            else value
            for name, value in row.items()
        }
        for row in rows.astype(object).to_dict("records")
    ]


def _legend(chart: Chart) -> Spec | None:
    """Return a layer that shows the legend alone; None without labelled looks.

    Looks that no row has are left out, too.
    """
    keys = [
        (kinds, look, look.label.replace("\n", " "))
        for kinds, look in chart.legend_keys()
    ]
    if not keys:
        return None
    shapes = [_legend_shape(kinds, look) for kinds, look, _ in keys]
    names = [label for *_, label in keys]
    colours = [_colour(look) for _, look, _ in keys]
    columns = LEGEND_LETTERS // (4 + max(map(len, names)))
    legend = {"title": chart.legend or None, "symbolOpacity": 1}
    legend["columns"] = max(1, min(LEGEND_COLUMNS, columns))
    values = [{"series": name} for name in names]
    scales = {
        channel: text_channel(
            "series", scale={"domain": names, "range": looks}, legend=legend
        )
        for channel, looks in (("color", colours), ("shape", shapes))
    }
    mark = {"type": "point", "filled": True, "size": 0, "opacity": 0, "aria": False}
    return {"data": {"values": values}, "mark": mark, "encoding": scales}


def _legend_shape(kinds: set[str], look: Look) -> str:
    """Return the shape of a series in the legend: its marker, else a square for areas,
    else a stroke.

    ``kinds`` are the kinds of the marks that have the look.
    """
    if look.marker:
        return SHAPES[look.marker]
    return "square" if kinds & {"bar", "band", "cell"} else STROKE

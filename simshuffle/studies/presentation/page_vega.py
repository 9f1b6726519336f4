"""A declared figure as Vega-Lite, which a page draws and a reader asks for its numbers: a chart for
each panel."""

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
"""Of a figure on a page; one with more is a picture."""
PIXELS = 125
"""Of an inch of a paper."""
LEGEND_COLUMNS, LEGEND_LETTERS = 4, 90
"""Of a legend at most, so that it is no wider than a chart on a narrow screen."""
STROKE = "M-1,-0.15H1V0.15H-1Z"
"""Of a line in the legend."""
DASHED: Mapping[Any, list[float]] = {"-": [1, 0], "--": [6, 3], ":": [2, 2], "-.": [6, 2, 2, 2]}


def number(field: str, **more: Any) -> dict[str, Any]:
    """The channel of a column of numbers."""
    return {"field": field, "type": "quantitative", **more}


def named(field: str, **more: Any) -> dict[str, Any]:
    """The channel of a column of texts."""
    return {"field": field, "type": "nominal", **more}


TIP = {"tooltip": named("tip"), "description": named("tip")}
"""What a mark says where the pointer or the focus is."""
NO_SHARE = 1e12
"""What a place is divided by that is drawn in seconds alone."""
DIGITS = 6
"""Of numbers, so that a page is small."""


def figure(chart: Chart, title: str, more: str = "") -> str:
    """A figure on the page: its panels one below another, under one caption with ``more``."""
    about = " ".join(filter(None, (chart.caption, chart.note, more.strip())))
    text = ""
    for panel, spec in specs(chart):
        name = ", ".join(filter(None, (title.rstrip("."), panel))) + "."
        text += html_chart(spec, name, "" if text else about)
    return text


def specs(chart: Chart) -> Iterator[tuple[str, Spec]]:
    """The title of each panel, and its chart; the first one has the legend of all."""
    height = PIXELS * chart.height / max(1, -(-len(chart.panels) // chart.across))
    whole = sum(panel.weight for panel in chart.panels) / len(chart.panels)
    for number, panel in enumerate(chart.panels):
        layers = [layer for mark in panel.marks for layer in _layers(mark, panel, chart)]
        if number == 0 and (legend := _legend(chart)):
            layers.insert(0, legend)
        if not layers:
            continue
        spec: dict[str, Any] = {
            "width": "container",
            "height": round(max(90.0, height * panel.weight / whole)),
            "layer": layers,
            "resolve": {"scale": {"color": "independent", "shape": "independent"}},
        }
        if chart.shares:
            options = {"input": "select", "options": ["values", "shares"], "name": "Show"}
            spec["params"] = [{"name": "show", "value": "values", "bind": options}]
        yield panel.title.replace("\n", ", "), spec


def patterns() -> str:
    """The hatching of waiting and of hidden work as SVG, which charts name."""
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
    each = "".join(of.format(colour) for of in (waiting, hidden) for colour in colours)
    head = '<svg class="patterns" width="0" height="0" aria-hidden="true">'
    return f"{head}<defs>{each}</defs></svg>"


def _scale(of: Axis) -> dict[str, Any]:
    scale: dict[str, Any] = {"type": "log" if of.log else "linear", "zero": False, "nice": False}
    if of.low is not None:
        scale["domainMin"] = of.low
    if of.high is not None:
        scale["domainMax"] = of.high
    return scale | ({"reverse": True} if of.down else {"padding": 8})


def _axis(of: Axis, title: str) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": (of.title or title).split("\n") or None, "grid": False}
    if of.ticks is not None:
        texts = ", ".join(_quoted(text.split("\n")) for text in of.ticks.values())
        axis |= {"values": list(of.ticks), "labelOverlap": False if of.names else "greedy"}
        axis |= {"labelExpr": f"[{texts}][indexof({list(of.ticks)}, datum.value)]"}
    else:
        axis |= {"tickCount": of.most or 6}
        axis |= {"format": "~s" if of.unit else ",~r"} if of.log or of.unit else {}
    if of.names:
        axis |= {"ticks": False, "domain": False, "labelPadding": 8}
    if of.turned:
        axis["labelAngle"] = -of.turned
    return axis


def _quoted(value: str | list[str]) -> str:
    """A text, or several, in an expression of Vega."""
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]" if len(value) > 1 else _quoted(value[0])
    plain = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"


def _places(panel: Panel, chart: Chart, there: set[str]) -> dict[str, Any]:
    """The channels of places that a mark has."""
    out: dict[str, Any] = {}
    for name, of, title in (("x", panel.x, chart.x), ("y", panel.y, chart.y)):
        axis, scale, suffix = _axis(of, title), _scale(of), ""
        if chart.shares and name == "x":
            suffix = "_shown"
            scale.pop("domainMax", None)
            seconds, share = f"datum.label + '{of.unit}'", "format(datum.value, '.0%')"
            axis["labelExpr"] = f"show === 'values' ? {seconds} : {share}"
        if name in there:
            out[name] = number(f"{name}{suffix}", scale=scale, axis=axis)
        if f"{name}2" in there:
            out[f"{name}2"] = {"field": f"{name}2{suffix}"}
    return out


def _layers(mark: Mark, panel: Panel, chart: Chart) -> Iterator[Spec]:
    """What is drawn of a mark: a layer for each look, or for all bars together."""
    rows = mark.places()
    if rows.empty or not {"x", "y"} & set(rows):
        return
    rows = _boxes(rows, mark) if mark.kind == "bar" else rows
    if "look" not in rows or isinstance(mark.look, Look):
        rows["look"] = ""
    if chart.shares:
        rows["whole"] = _wholes(rows, panel)
    together = mark.kind in {"bar", "cell", "text", "label"}
    for _, own in [("", rows)] if together else rows.groupby("look", sort=False):
        looks = [_look(mark, name, chart) for name in own["look"]]
        of = own.assign(colour=[_colour(look) for look in looks]).drop(columns="look")
        if "tip" not in of and mark.kind in {"bar", "point", "cell"}:
            pairs = zip(_plain(of), looks, strict=True)
            of["tip"] = [_tip(row, look, panel, chart) for row, look in pairs]
        spec: dict[str, Any] = {"data": {"values": _plain(of)}}
        if chart.shares:
            spec["transform"] = [
                {"calculate": f"datum.{name} / (show === 'values' ? 1 : datum.whole)", "as": to}
                for name, to in (("x", "x_shown"), ("x2", "x2_shown"))
            ]
        yield {**spec, **_drawn(mark, looks[0], _places(panel, chart, {*of}), chart, {*of})}


def _drawn(mark: Mark, look: Look, encoding: dict[str, Any], chart: Chart, there: set[str]) -> Spec:
    """Mark and channels of a layer."""
    shown: dict[str, Any] = {"opacity": look.alpha, "aria": "tip" in there}
    across, up = mark.align
    filled = look.fill != "none"
    if mark.kind in {"bar", "cell"}:
        edge = 0.0 if mark.kind == "cell" and filled else 0.7
        shown |= {"type": "rect", "stroke": "var(--card)", "strokeWidth": edge}
    elif mark.kind == "line":
        shown |= {"type": "line", "strokeWidth": 1.6 * look.width, "strokeDash": _dash(look)}
        if look.marker:
            size = max(25, round(2.8 * look.size**2))
            shown["point"] = {"size": size, "filled": filled, "shape": SHAPES[look.marker]}
    elif mark.kind == "point":
        shown |= {"type": "point", "filled": filled, "size": 8 + 6 * look.size**2}
        shown |= {"shape": SHAPES[look.marker or "o"]}
    elif mark.kind == "band":
        shown |= {"type": "area" if {"x", "y"} <= there else "rect"}
    elif mark.kind in {"text", "label"}:
        right, above = mark.aside if mark.kind == "text" else (4, 0)
        if mark.turned:  # what is turned begins at its place, and is moved along itself
            across, up, right, above = "left", "center", above, 0
        shown |= {"type": "text", "align": across, "baseline": up.replace("center", "middle")}
        shown |= {"dx": 2 * right, "dy": -2 * above, "angle": -mark.turned % 360}
        encoding |= {"text": named("text")}
    else:
        shown |= {"type": "rule", "strokeWidth": 1.6 * look.width, "strokeDash": _dash(look)}
    colour = named("colour", scale=None)
    if mark.kind in {"text", "label"}:
        colour = {"value": "var(--text)"}
    elif mark.value and chart.ramp:
        ramp = chart.ramp
        scale = {"scheme": ramp.colours, "reverse": True, "domain": [ramp.low, ramp.high]}
        scale |= {"type": "log"} if ramp.log else {}
        legend = {"title": ramp.title, "titleLimit": 400}
        colour = number("value", scale=scale, legend=legend)
    if "tip" in there:
        encoding |= TIP
    return {"mark": shown, "encoding": {**encoding, "color": colour}}


def _dash(look: Look) -> list[float]:
    """Lengths on and off."""
    return DASHED[look.dash] if isinstance(look.dash, str) else list(look.dash[1])


def _look(mark: Mark, name: Any, chart: Chart) -> Look:
    return mark.look if isinstance(mark.look, Look) else chart.looks.get(name, Look())


def _colour(look: Look) -> str:
    """Black follows the page, which may be dark; a hatching is a pattern of the page."""
    if look.fill in {"waiting", "hidden"}:
        return f"url(#{look.fill}-{look.colour[1:]})"
    return "var(--text)" if look.colour == "#000000" else look.colour


def _boxes(rows: pd.DataFrame, mark: Mark) -> pd.DataFrame:
    """Bars as boxes, from edge to edge."""
    along, across = ("x", "y") if "x2" in rows else ("y", "x")
    low, high = rows[across] - mark.thick / 2, rows[across] + mark.thick / 2
    return rows.assign(**{along: rows.get(along, 0.0), across: low, f"{across}2": high})


def _wholes(rows: pd.DataFrame, panel: Panel) -> pd.Series:
    """The length of the bar in whose row each place is."""
    bars = [mark.data for mark in panel.marks if mark.kind == "bar" and "seconds" in mark.data]
    bars = bars or [mark.data for mark in panel.marks if mark.kind == "bar"]
    whole = bars[0].groupby("y")["x2"].max()
    if "y" not in rows:  # what is shaded by the other panel's scale has no share of a bar
        return pd.Series(NO_SHARE, rows.index)
    middle = (rows["y"] + rows["y2"]) / 2 if "y2" in rows else rows["y"]
    return middle.round().map(whole).fillna(1.0).replace(0.0, 1.0)


def _tip(row: Mapping[str, Any], look: Look, panel: Panel, chart: Chart) -> str:
    """Which series it is, and where it stands on both axes."""
    lines = [look.label.replace("\n", " ")] if look.label else []
    for name, of, title in (("x", panel.x, chart.x), ("y", panel.y, chart.y)):
        value = row.get(f"{name}2", row.get(name))
        if value is not None and not of.names:
            lines.append(f"{(of.title or title).replace(chr(10), ' ')}: {value:.4g}")
    return "\n".join(lines)


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values with few digits; what is no number is None."""
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
    """A layer that shows nothing but the legend."""
    keys = [(kinds, look, look.label.replace("\n", " ")) for kinds, look in chart.legend_keys()]
    if not keys:
        return None
    shapes = [_shape(kinds, look) for kinds, look, _ in keys]
    names = [label for *_, label in keys]
    colours = [_colour(look) for _, look, _ in keys]
    columns = LEGEND_LETTERS // (4 + max(map(len, names)))
    legend = {"title": chart.legend or None, "symbolOpacity": 1}
    legend["columns"] = max(1, min(LEGEND_COLUMNS, columns))
    values = [{"series": name} for name in names]
    scales = {
        channel: named("series", scale={"domain": names, "range": looks}, legend=legend)
        for channel, looks in (("color", colours), ("shape", shapes))
    }
    mark = {"type": "point", "filled": True, "size": 0, "opacity": 0, "aria": False}
    return {"data": {"values": values}, "mark": mark, "encoding": scales}


def _shape(kinds: set[str], look: Look) -> str:
    if look.marker:
        return SHAPES[look.marker]
    return "square" if kinds & {"bar", "band", "cell"} else STROKE

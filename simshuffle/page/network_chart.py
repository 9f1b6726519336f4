"""The drawing of a network as Vega-Lite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from simshuffle.page.markup import Chart, Rows, Spec
from simshuffle.page.network import Drawing, line_places
from simshuffle.page.vega import TIP

CLASSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Where the colour of a link changes: shares of its capacity."""
LAYOUT_COLUMNS = ("line", "x", "y", "x2", "y2", "a", "b", "name", "about")
_WAYS = [f"{way}{of}" for way in ("up", "down") for of in ("", "_least", "_most", "_peak")]
LOAD_COLUMNS = ("line", "pick", *_WAYS)
MANY = 600
"""Lines, beyond which they are thinner."""
_ROW = 105
_ROUND = 620


def network_spec(of: Drawing, rows: Rows, picks: Sequence[str]) -> Chart:
    """Nodes by level, and links coloured by how much of their capacity was used.

    Args:
        of: the drawing.
        rows: from `simshuffle.page.network.loads`.
        picks: runs and epochs, for people, by the numbers in ``rows``.
    """
    pick = {"input": "select", "options": [*range(len(picks))], "labels": [*picks], "name": "Run"}
    colour = {"input": "select", "options": ["mean", "peak"], "name": "Colour by utilisation"}
    levels = [{"name": text, "x": 0, "y": height} for text, height in of.levels]
    span = max(y for _, y in of.nodes.values()) - min(y for _, y in of.nodes.values())
    domain = [-1.35, 1.35] if of.is_round else [0, 1]
    x: dict[str, Any] = {
        "field": "x",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": domain, "nice": False, "zero": False},
    }
    y_scale = {"domain": domain, "nice": False} if of.is_round else {"nice": False, "padding": 14}
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": y_scale}
    text = {"align": "right", "dx": -12, "fontSize": 11, "aria": False}
    spec: Spec = {
        "params": [
            {"name": "pick", "value": len(picks) - 1, "bind": pick},
            {"name": "measure", "value": "mean", "bind": colour},
        ],
        "width": "container",
        "height": _ROUND if of.is_round else max(160, round(_ROW * (span + 0.4))),
        "padding": {"left": 5 if of.is_round else 110, "right": 5, "top": 5, "bottom": 5},
        "encoding": {"x": x, "y": y},
        "layer": [
            {
                "data": {"name": "layout"},
                "mark": {
                    "type": "rule",
                    "strokeWidth": 0.5,
                    "stroke": "var(--idle)",
                    "aria": False,
                },
                "encoding": {"x2": {"field": "x2"}, "y2": {"field": "y2"}},
            },
            *_loaded(of),
            {
                "data": {"values": _nodes(of)},
                "mark": {
                    "type": "square",
                    "size": max(8.0, min(90.0, 6000 / len(of.nodes))),
                    "fill": "var(--text)",
                    "opacity": 1,
                },
                "encoding": TIP,
            },
            {
                "data": {"values": levels},
                "mark": {"type": "text", "color": "var(--text)", **text},
                "encoding": {"text": {"field": "name", "type": "nominal"}},
            },
        ],
    }
    tables = {"layout": (LAYOUT_COLUMNS, _layout(of)), "loads": (LOAD_COLUMNS, rows)}
    return Chart(spec, tables)


def _layout(of: Drawing) -> list[list[Any]]:
    return [
        [number, *(round(value, 5) for value in (*a, *b)), *line.ends, line.name, line.about]
        for number, (line, (a, b)) in enumerate(zip(of.lines, line_places(of), strict=True))
    ]


def _nodes(of: Drawing) -> list[dict[str, Any]]:
    beside: dict[str, int] = {}
    for line in of.lines:
        for end in line.ends:
            beside[end] = beside.get(end, 0) + max(map(len, line.links))
    return [
        {
            "x": round(x, 5),
            "y": round(y, 5),
            "tip": f"{name}\n{of.kinds[name]}, {beside[name]} links",
        }
        for name, (x, y) in of.nodes.items()
    ]


def _direction(end: str, way: str) -> str:
    """An expression of Vega that tells the load of one direction."""
    mean = (
        f"(datum.{way}_least < datum.{way}_most ? format(datum.{way}_least, '.2~p') + ' to ' : '')"
        f" + format(datum.{way}_most, '.2~p')"
    )
    told = f"'mean ' + {mean} + ', peak ' + format(datum.{way}_peak, '.3~p')"
    moved = f"replace(format(datum.{way}, '.3s'), regexp('([a-zA-Z]?)$'), ' $1B, ')"
    load = f"datum.{way} > 0 ? {moved} + {told} : 'nothing'"
    return f"'\\nto ' + datum.{end} + ': ' + ({load})"


def _class_names() -> list[str]:
    """What the legend calls the classes."""
    ends = [f"{100 * each:.0f}" for each in CLASSES]
    between = [f"{low} to {high} %" for low, high in pairwise(ends)]
    return [f"below {ends[0]} %", *between, f"{ends[-1]} % or more"]


def _loaded(of: Drawing) -> list[Spec]:
    """The links of the chosen run, and over them what pointer and focus reach: wider, and shown
    only where they are."""
    data = {"name": "loads"}
    fields = list(LAYOUT_COLUMNS[1:])
    text = f"datum.name + ' (' + datum.about + ')' + {_direction('b', 'up')}"
    thin = 0.8 if len(of.lines) > MANY else 1.2
    steps = " + ".join(f"(datum.used >= {each})" for each in CLASSES)
    names = _class_names()
    transform = [
        {"filter": "datum.pick === pick"},
        {
            "calculate": "measure === 'mean' ? max(datum.up_most, datum.down_most)"
            " : max(datum.up_peak, datum.down_peak)",
            "as": "used",
        },
        {"calculate": f"{thin} + {0.3 * thin} * ({steps})", "as": "width"},
        {"calculate": f"{json.dumps(names)}[{steps}]", "as": "class"},
        {"lookup": "line", "from": {"data": {"name": "layout"}, "key": "line", "fields": fields}},
        {"calculate": f"{text} + {_direction('a', 'down')}", "as": "tip"},
    ]
    ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    width = {"field": "width", "type": "quantitative", "scale": None, "legend": None}
    colour = {
        "field": "class",
        "type": "nominal",
        "scale": {"domain": names, "range": [f"var(--u{each})" for each in range(len(names))]},
        "legend": {
            "title": "share of the capacity",
            "symbolType": "stroke",
            "symbolStrokeWidth": 6,
        },
    }
    return [
        {
            "data": data,
            "transform": transform,
            "mark": {"type": "rule", "aria": False},
            "encoding": {**ends, "stroke": colour, "strokeWidth": width},
        },
        {
            "data": data,
            "transform": transform,
            "mark": {"type": "rule", "strokeWidth": 7, "stroke": "var(--focus)", "opacity": 0},
            "encoding": {**ends, **TIP},
        },
    ]

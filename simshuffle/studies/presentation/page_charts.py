"""Charts of a run that a page alone has: where its bytes come from, how ranks differ, and the
network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, in_rows, stacked_bars
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation.page_network import Drawing, line_places
from simshuffle.studies.presentation.page_parts import Rows, Spec, chart
from simshuffle.studies.presentation.page_vega import TIP, named, number
from simshuffle.studies.simulation.figures import ROW_INCHES
from simshuffle.studies.simulation.tables import Means

MOST_BARS = 48
SOURCES = {
    "pfs": Look("PFS", "#EE6677"),
    "object_store": Look("object store", "#AA3377"),
    "ssd": Look("SSD", "#4477AA"),
    "memory": Look("memory", "#66CCEE"),
    "peer": Look("peers", "#CCBB44"),
}
EXCHANGE = {"exchange": "#EE6677", "wait_exchange": "#AA3377", "exchange_hidden": "#4477AA"}
"""Colours of the phases of an exchange."""
CLASSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Where the colour of a link changes: shares of its capacity."""
LAYOUT_COLUMNS = ("line", "x", "y", "x2", "y2", "a", "b", "name", "about")
_WAYS = [f"{way}{of}" for way in ("up", "down") for of in ("", "_least", "_most", "_peak")]
LOAD_COLUMNS = ("line", "pick", *_WAYS)
MANY = 600
"""Lines, beyond which they are thinner."""
_ROW = 105
_ROUND = 620


def shown_epochs(epochs: pd.DataFrame) -> list[tuple[str, int]]:
    """Runs and epochs that have a bar: the first and the last epoch of every run, the last alone
    where these are too many, and no more than `MOST_BARS`."""
    names = epochs["run"].astype(str)
    ends = epochs.groupby(names, sort=False)["epoch"].agg(["min", "max"])
    first, last = (
        [(str(run), int(epoch)) for run, epoch in ends[name].items()] for name in ("min", "max")
    )
    both = list(dict.fromkeys(one for pair in zip(first, last, strict=True) for one in pair))
    return (both if len(both) <= MOST_BARS else last)[:MOST_BARS]


def bar_name(run: str, epoch: int, several: bool) -> str:
    """What stands beside a bar."""
    return f"{run}, epoch {epoch}{' cold' if epoch == 1 else ''}" if several else run


def sources(of: Means) -> Chart | None:
    """Bytes of epochs by where they came from; None where nothing was read."""
    epochs = of.epochs.assign(run=of.epochs["run"].astype(str)).set_index(["run", "epoch"])
    several = of.epochs["epoch"].nunique() > 1
    shown = shown_epochs(of.epochs)
    names = [bar_name(run, epoch, several) for run, epoch in shown]
    rows = epochs.reindex(shown)[[f"nbytes_{name}" for name in SOURCES]]
    rows = rows.set_axis(list(SOURCES), axis=1).reset_index(drop=True)
    whole = rows.sum(axis=1)
    pieces = stacked_bars(rows)
    pieces = pieces[pieces["size"] > 0]
    if pieces.empty:
        return None
    pieces["tip"] = [
        f"{names[y]}\n{SOURCES[name].label}: {readable(size, Dimension.NBYTES, 3)},"
        f" {100 * size / whole[y]:.3g} % of all bytes"
        for y, name, size in pieces[["y", "look", "size"]].itertuples(index=False, name=None)
    ]
    panel = Panel([Mark("bar", pieces)], Axis("bytes", low=0.0, unit="B"), in_rows(names))
    height = ROW_INCHES * max(2, len(names)) + 0.3
    return Chart([panel], height, SOURCES, "By where they came from.", shares=True)


def _picked(name: str, title: str, options: Sequence[Any], value: Any, **more: Any) -> Spec:
    """A value that the reader picks."""
    bind = {"input": "select", "options": [*options], "name": title, **more}
    return {"name": name, "value": value, "bind": bind}


def exchange(rows: Rows, runs: Sequence[str], epochs: Sequence[int], about: str) -> str:
    """Seconds of the exchange by iteration: mean over ranks, and from the least to the most.
    ``rows``: run (its place in ``runs``), epoch, iteration, phase, mean, least, most."""
    text = (
        "datum.phase + ', iteration ' + datum.iteration + '\\nmean ' + format(datum.mean, '.3s')"
        " + 's, least ' + format(datum.least, '.3s') + 's, most ' + format(datum.most, '.3s') + 's'"
    )
    x = {
        "scale": {"zero": False, "nice": False},
        "axis": {"title": "iteration", "tickMinStep": 1, "grid": False},
    }
    colour = {
        "scale": {"domain": list(EXCHANGE), "range": list(EXCHANGE.values())},
        "legend": {"title": None, "symbolOpacity": 1},
    }
    milliseconds = "format(datum.value * 1000, ',~r') + ' ms'"
    least = number("least", axis={"title": "of a rank", "labelExpr": milliseconds})
    spec: Spec = {
        "params": [
            _picked("run", "Run", range(len(runs)), 0, labels=list(runs)),
            _picked("epoch", "Epoch", epochs, epochs[-1]),
        ],
        "data": {"name": "iterations"},
        "transform": [
            {"filter": "datum.run === run && datum.epoch === epoch"},
            {"calculate": text, "as": "tip"},
        ],
        "width": "container",
        "height": 220,
        "encoding": {"x": number("iteration", **x), "color": named("phase", **colour)},
        # the band, the line in it, and points at its upper end, which pointer and focus reach
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.25, "aria": False},
                "encoding": {"y": least, "y2": {"field": "most"}},
            },
            {"mark": {"type": "line", "aria": False}, "encoding": {"y": number("mean")}},
            {
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.9},
                "encoding": {"y": number("most"), **TIP},
            },
        ],
    }
    columns = ("run", "epoch", "iteration", "phase", "mean", "least", "most")
    title = "Seconds of the exchange by iteration."
    return chart(spec, title, about, named={"iterations": (columns, rows)})


def network(of: Drawing, rows: Rows, picks: Sequence[str], about: str) -> str:
    """Nodes by level, and links coloured by how much of their capacity was used. ``rows`` are those
    of `loads`; ``picks``: runs and epochs, for people, by the numbers in them."""
    levels = [{"name": text, "x": 0, "y": height} for text, height in of.levels]
    span = max(y for _, y in of.nodes.values()) - min(y for _, y in of.nodes.values())
    domain = [-1.35, 1.35] if of.is_round else [0, 1]
    x = {"domain": domain, "nice": False, "zero": False}
    y = {"domain": domain, "nice": False} if of.is_round else {"nice": False, "padding": 14}
    text = {"align": "right", "dx": -12, "fontSize": 11, "aria": False}
    size = max(8.0, min(90.0, 6000 / len(of.nodes)))
    idle = {"type": "rule", "strokeWidth": 0.5, "stroke": "var(--idle)", "aria": False}
    spec: Spec = {
        "params": [
            _picked("pick", "Run", range(len(picks)), len(picks) - 1, labels=[*picks]),
            _picked("measure", "Colour by utilisation", ["mean", "peak"], "mean"),
        ],
        "width": "container",
        "height": _ROUND if of.is_round else max(160, round(_ROW * (span + 0.4))),
        "padding": {"left": 5 if of.is_round else 110, "right": 5, "top": 5, "bottom": 5},
        "encoding": {"x": number("x", axis=None, scale=x), "y": number("y", axis=None, scale=y)},
        "layer": [
            {"data": {"name": "layout"}, "mark": idle, "encoding": _ENDS},
            *_loaded(of),
            {
                "data": {"values": _nodes(of)},
                "mark": {"type": "square", "size": size, "fill": "var(--text)", "opacity": 1},
                "encoding": TIP,
            },
            {
                "data": {"values": levels},
                "mark": {"type": "text", "color": "var(--text)", **text},
                "encoding": {"text": named("name")},
            },
        ],
    }
    layout = [
        [line, *(round(value, 5) for value in (*a, *b)), *drawn.ends, drawn.name, drawn.about]
        for line, (drawn, (a, b)) in enumerate(zip(of.lines, line_places(of), strict=True))
    ]
    tables = {"layout": (LAYOUT_COLUMNS, layout), "loads": (LOAD_COLUMNS, rows)}
    return chart(spec, "The network by level.", about, "network", tables)


_ENDS = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}


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
    used = f"'mean ' + {mean} + ', peak ' + format(datum.{way}_peak, '.3~p')"
    moved = f"replace(format(datum.{way}, '.3s'), regexp('([a-zA-Z]?)$'), ' $1B, ')"
    load = f"datum.{way} > 0 ? {moved} + {used} : 'nothing'"
    return f"'\\nto ' + datum.{end} + ': ' + ({load})"


def _loaded(of: Drawing) -> list[Spec]:
    """The links of the chosen run, and over them what pointer and focus reach: wider, and shown
    only where they are."""
    fields = list(LAYOUT_COLUMNS[1:])
    text = f"datum.name + ' (' + datum.about + ')' + {_direction('b', 'up')}"
    thin = 0.8 if len(of.lines) > MANY else 1.2
    steps = " + ".join(f"(datum.used >= {each})" for each in CLASSES)
    ends = [f"{100 * each:.0f}" for each in CLASSES]
    between = [f"{low} to {high} %" for low, high in pairwise(ends)]
    classes = [f"below {ends[0]} %", *between, f"{ends[-1]} % or more"]
    transform = [
        {"filter": "datum.pick === pick"},
        {
            "calculate": "measure === 'mean' ? max(datum.up_most, datum.down_most)"
            " : max(datum.up_peak, datum.down_peak)",
            "as": "used",
        },
        {"calculate": f"{thin} + {0.3 * thin} * ({steps})", "as": "width"},
        {"calculate": f"{json.dumps(classes)}[{steps}]", "as": "class"},
        {"lookup": "line", "from": {"data": {"name": "layout"}, "key": "line", "fields": fields}},
        {"calculate": f"{text} + {_direction('a', 'down')}", "as": "tip"},
    ]
    colours = [f"var(--u{each})" for each in range(len(classes))]
    legend = {"title": "share of the capacity", "symbolType": "stroke", "symbolStrokeWidth": 6}
    colour = named("class", scale={"domain": classes, "range": colours}, legend=legend)
    width = number("width", scale=None, legend=None)
    reached = {"type": "rule", "strokeWidth": 7, "stroke": "var(--focus)", "opacity": 0}
    layers: list[tuple[Spec, Spec]] = [
        ({"type": "rule", "aria": False}, {"stroke": colour, "strokeWidth": width}),
        (reached, TIP),
    ]
    return [
        {
            "data": {"name": "loads"},
            "transform": transform,
            "mark": mark,
            "encoding": {**_ENDS, **more},
        }
        for mark, more in layers
    ]

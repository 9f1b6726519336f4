"""Charts of a run that a page alone has: where its bytes come from, how ranks differ,
and the network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import pandas as pd

from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    stacked_bars,
)
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation.page_network import Drawing, place_lines
from simshuffle.studies.presentation.page_parts import Rows, Spec, chart
from simshuffle.studies.presentation.page_vega import TIP, number_channel, text_channel
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
EXCHANGE = {
    "exchange": "#EE6677",
    "wait_exchange": "#AA3377",
    "exchange_hidden": "#4477AA",
}
"""Colours of the phases of an exchange."""
CLASSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Shares of a link's capacity at which its colour changes."""
LAYOUT_COLUMNS = ("line", "x", "y", "x2", "y2", "a", "b", "name", "about")
"""Columns of a line: its number, the positions of both ends, their nodes, and its texts."""
_WAYS = [
    f"{direction}{measure}"
    for direction in ("up", "down")
    for measure in ("", "_least", "_most", "_peak")
]
LOAD_COLUMNS = ("line", "pick", *_WAYS)
"""Columns of the load of a line: its number, the run and epoch, and both directions.

'up' leads from end a to end b. Numbers are bytes, and utilisation as a share.
"""
MANY = 600
"""Number of lines beyond which lines are drawn thinner."""
_ROW = 105
_ROUND = 620


def select_epochs(epochs: pd.DataFrame) -> list[tuple[str, int]]:
    """Return the (run, epoch) that have a bar: the first and the last epoch of every
    run.

    Where these are too many, the last alone, and no more than `MOST_BARS`.
    """
    names = epochs["run"].astype(str)
    ends = epochs.groupby(names, sort=False)["epoch"].agg(["min", "max"])
    first = [(str(run), int(epoch)) for run, epoch in ends["min"].items()]
    last = [(str(run), int(epoch)) for run, epoch in ends["max"].items()]
    alternating = chain.from_iterable(zip(first, last, strict=True))
    first_and_last = list(dict.fromkeys(alternating))
    return (first_and_last if len(first_and_last) <= MOST_BARS else last)[:MOST_BARS]


def name_bar(run: str, epoch: int, with_epoch: bool) -> str:
    """Return the text beside a bar: its run, and its epoch if ``with_epoch``.

    Epoch 1 is marked as 'cold'.
    """
    return f"{run}, epoch {epoch}{' cold' if epoch == 1 else ''}" if with_epoch else run


def chart_sources(averages: Means) -> Chart | None:
    """Chart the bytes that epochs read by their source; return None where nothing was
    read.
    """
    epochs = averages.epochs
    with_epoch = epochs["epoch"].nunique() > 1
    bars = select_epochs(epochs)
    names = [name_bar(run, epoch, with_epoch) for run, epoch in bars]
    rows = epochs.assign(run=epochs["run"].astype(str)).set_index(["run", "epoch"])
    rows = rows.reindex(bars)[[f"nbytes_{name}" for name in SOURCES]]
    rows = rows.set_axis(list(SOURCES), axis=1).reset_index(drop=True)
    total_nbytes = rows.sum(axis=1)
    segments = stacked_bars(rows)
    segments = segments[segments["size"] > 0]
    if segments.empty:
        return None
    segments["tip"] = [
        f"{names[y]}\n{SOURCES[name].label}: {readable(size, Dimension.NBYTES, 3)},"
        f" {100 * size / total_nbytes[y]:.3g} % of all bytes"
        for y, name, size in segments[["y", "look", "size"]].itertuples(
            index=False, name=None
        )
    ]
    panel = Panel(
        [Mark("bar", segments)], Axis("bytes", low=0.0, unit="B"), in_rows(names)
    )
    height = ROW_INCHES * max(2, len(names)) + 0.3
    return Chart(
        [panel], height, SOURCES, "Colours show the source of the bytes.", shares=True
    )


def _selector(
    name: str, title: str, options: Sequence[Any], value: Any, **options_of_input: Any
) -> Spec:
    """Return a parameter of Vega-Lite, whose value the reader picks from ``options``.

    ``value`` is the one at first; ``options_of_input`` are those of Vega's input.
    """
    bind = {"input": "select", "options": [*options], "name": title, **options_of_input}
    return {"name": name, "value": value, "bind": bind}


def chart_exchange(
    rows: Rows, runs: Sequence[str], epochs: Sequence[int], about: str
) -> str:
    """Return a chart of the exchange's seconds by iteration: mean, minimum and maximum
    over ranks.

    ``rows``: run (its index in ``runs``), epoch, iteration, phase (of `EXCHANGE`), and
    mean, least and most (s). The reader picks run and epoch; at first the chart shows
    the first run and the last of ``epochs``.
    """
    tip = (
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
    lower_edge = number_channel(
        "least", axis={"title": "of a rank", "labelExpr": milliseconds}
    )
    spec: Spec = {
        "params": [
            _selector("run", "Run", range(len(runs)), 0, labels=list(runs)),
            _selector("epoch", "Epoch", epochs, epochs[-1]),
        ],
        "data": {"name": "iterations"},
        "transform": [
            {"filter": "datum.run === run && datum.epoch === epoch"},
            {"calculate": tip, "as": "tip"},
        ],
        "width": "container",
        "height": 220,
        "encoding": {
            "x": number_channel("iteration", **x),
            "color": text_channel("phase", **colour),
        },
        # the band, the line in it, and points at its upper end, which pointer and focus reach
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.25, "aria": False},
                "encoding": {"y": lower_edge, "y2": {"field": "most"}},
            },
            {
                "mark": {"type": "line", "aria": False},
                "encoding": {"y": number_channel("mean")},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.9},
                "encoding": {"y": number_channel("most"), **TIP},
            },
        ],
    }
    columns = ("run", "epoch", "iteration", "phase", "mean", "least", "most")
    title = "Seconds of the exchange by iteration."
    return chart(spec, title, about, named_tables={"iterations": (columns, rows)})


def chart_network(
    drawing: Drawing, rows: Rows, picks: Sequence[str], about: str
) -> str:
    """Return a chart of nodes by level, whose links are coloured by their utilisation.

    ``rows`` are those of `link_loads`; ``picks`` name the run and epoch of each number
    in ``rows``.
    """
    levels = [{"name": text, "x": 0, "y": height} for text, height in drawing.levels]
    heights = [y for _, y in drawing.nodes.values()]
    span = max(heights) - min(heights)
    domain = [-1.35, 1.35] if drawing.is_round else [0, 1]
    x = {"domain": domain, "nice": False, "zero": False}
    y = (
        {"domain": domain, "nice": False}
        if drawing.is_round
        else {"nice": False, "padding": 14}
    )
    text = {"align": "right", "dx": -12, "fontSize": 11, "aria": False}
    size = max(8.0, min(90.0, 6000 / len(drawing.nodes)))
    square = {"type": "square", "size": size, "fill": "var(--text)", "opacity": 1}
    idle = {"type": "rule", "strokeWidth": 0.5, "stroke": "var(--idle)", "aria": False}
    spec: Spec = {
        "params": [
            _selector(
                "pick", "Run", range(len(picks)), len(picks) - 1, labels=[*picks]
            ),
            _selector("measure", "Colour by utilisation", ["mean", "peak"], "mean"),
        ],
        "width": "container",
        "height": _ROUND if drawing.is_round else max(160, round(_ROW * (span + 0.4))),
        "padding": {
            "left": 5 if drawing.is_round else 110,
            "right": 5,
            "top": 5,
            "bottom": 5,
        },
        "encoding": {
            "x": number_channel("x", axis=None, scale=x),
            "y": number_channel("y", axis=None, scale=y),
        },
        "layer": [
            {"data": {"name": "layout"}, "mark": idle, "encoding": _ENDS},
            *_load_layers(drawing),
            {
                "data": {"values": _nodes(drawing)},
                "mark": square,
                "encoding": TIP,
            },
            {
                "data": {"values": levels},
                "mark": {"type": "text", "color": "var(--text)", **text},
                "encoding": {"text": text_channel("name")},
            },
        ],
    }
    tables = {
        "layout": (LAYOUT_COLUMNS, _layout(drawing)),
        "loads": (LOAD_COLUMNS, rows),
    }
    return chart(spec, "The network by level.", about, "network", tables)


_ENDS = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}


def _layout(drawing: Drawing) -> list[list[Any]]:
    """Return the rows of `LAYOUT_COLUMNS`: where each line is drawn, and what it joins."""
    ends = zip(drawing.lines, place_lines(drawing), strict=True)
    return [
        [
            index,
            *(round(value, 5) for value in (*a, *b)),
            *line.ends,
            line.name,
            line.about,
        ]
        for index, (line, (a, b)) in enumerate(ends)
    ]


def _nodes(drawing: Drawing) -> list[dict[str, Any]]:
    """Return the nodes of the drawing, with position and tip: kind and number of links."""
    num_links: dict[str, int] = {}
    for line in drawing.lines:
        for end in line.ends:
            num_links[end] = num_links.get(end, 0) + max(map(len, line.links))
    return [
        {
            "x": round(x, 5),
            "y": round(y, 5),
            "tip": f"{name}\n{drawing.kinds[name]}, {num_links[name]} links",
        }
        for name, (x, y) in drawing.nodes.items()
    ]


def _describe_load(end: str, direction: str) -> str:
    """Return an expression of Vega that tells the load of one direction of a line.

    ``direction`` is 'up' or 'down'; ``end`` is the column of the node that it leads to.
    """
    low = f"datum.{direction}_least"
    high = f"datum.{direction}_most"
    low_text = f"({low} < {high} ? format({low}, '.2~p') + ' to ' : '')"
    mean = f"{low_text} + format({high}, '.2~p')"
    used = f"'mean ' + {mean} + ', peak ' + format(datum.{direction}_peak, '.3~p')"
    moved = (
        f"replace(format(datum.{direction}, '.3s'), regexp('([a-zA-Z]?)$'), ' $1B, ')"
    )
    load = f"datum.{direction} > 0 ? {moved} + {used} : 'nothing'"
    return f"'\\nto ' + datum.{end} + ': ' + ({load})"


def _load_layers(drawing: Drawing) -> list[Spec]:
    """Return the layers of the links of the chosen run.

    A link has the colour and width of its busier direction. Over the visible links lie
    wider, invisible ones that pointer and focus reach.
    """
    fields = list(LAYOUT_COLUMNS[1:])
    text = f"datum.name + ' (' + datum.about + ')' + {_describe_load('b', 'up')}"
    thin = 0.8 if len(drawing.lines) > MANY else 1.2
    class_of_link = " + ".join(
        f"(datum.used >= {share_bound})" for share_bound in CLASSES
    )
    percents = [f"{100 * share_bound:.0f}" for share_bound in CLASSES]
    middle_classes = [f"{low} to {high} %" for low, high in pairwise(percents)]
    classes = [f"below {percents[0]} %", *middle_classes, f"{percents[-1]} % or more"]
    transform = [
        {"filter": "datum.pick === pick"},
        {
            "calculate": "measure === 'mean' ? max(datum.up_most, datum.down_most)"
            " : max(datum.up_peak, datum.down_peak)",
            "as": "used",
        },
        {"calculate": f"{thin} + {0.3 * thin} * ({class_of_link})", "as": "width"},
        {"calculate": f"{json.dumps(classes)}[{class_of_link}]", "as": "class"},
        {
            "lookup": "line",
            "from": {"data": {"name": "layout"}, "key": "line", "fields": fields},
        },
        {"calculate": f"{text} + {_describe_load('a', 'down')}", "as": "tip"},
    ]
    colours = [f"var(--u{class_index})" for class_index in range(len(classes))]
    legend = {
        "title": "share of the capacity",
        "symbolType": "stroke",
        "symbolStrokeWidth": 6,
    }
    colour = text_channel(
        "class", scale={"domain": classes, "range": colours}, legend=legend
    )
    width = number_channel("width", scale=None, legend=None)
    pointer_target = {
        "type": "rule",
        "strokeWidth": 7,
        "stroke": "var(--focus)",
        "opacity": 0,
    }
    layers: list[tuple[Spec, Spec]] = [
        ({"type": "rule", "aria": False}, {"stroke": colour, "strokeWidth": width}),
        (pointer_target, TIP),
    ]
    return [
        {
            "data": {"name": "loads"},
            "transform": transform,
            "mark": mark,
            "encoding": {**_ENDS, **channels},
        }
        for mark, channels in layers
    ]

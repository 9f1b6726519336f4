"""Charts of a run as Vega-Lite: where seconds and bytes go, how it scales, how ranks differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from simshuffle.page.markup import Chart, Rows, Spec
from simshuffle.results import report
from simshuffle.results.style import COLOURS
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.intervals import Means
from simshuffle.studies.simulation.text import number

MOST_BARS = 48
BAR_HEIGHT = 24
SOURCES = {
    "PFS": "pfs",
    "object store": "object_store",
    "SSD": "ssd",
    "memory": "memory",
    "peers": "peer",
}
SOURCE_COLOURS = {
    "PFS": "#EE6677",
    "object store": "#AA3377",
    "SSD": "#4477AA",
    "memory": "#66CCEE",
    "peers": "#CCBB44",
}
LINE_COLOURS = ["#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE"]
TEXT: dict[str, Any] = {
    "tooltip": {"field": "text", "type": "nominal"},
    "description": {"field": "text", "type": "nominal"},
}
"""What a mark says where the pointer or the focus is."""
LEGEND_COLUMNS = 4
"""So that a legend is no wider than a chart on a narrow screen."""
SHARE = 0.6
"""Of a row that a bar fills."""


def shown_epochs(epochs: pd.DataFrame) -> list[tuple[str, int]]:
    """Runs and epochs that have a bar: the first and the last epoch of every run, the last alone
    where these are too many, and no more than `MOST_BARS`."""
    names = epochs["run"].astype(str)
    ends = epochs.groupby(names, sort=False)["epoch"].agg(["min", "max"])
    both = [
        (str(run), int(epoch))
        for run, row in ends.iterrows()
        for epoch in dict.fromkeys(row.tolist())
    ]
    if len(both) > MOST_BARS:
        both = [(str(run), int(row["max"])) for run, row in ends.iterrows()]
    return both[:MOST_BARS]


def bar_name(run: str, epoch: int, several: bool) -> str:
    """What stands beside a bar."""
    return f"{run}, epoch {epoch}{' cold' if epoch == 1 else ''}" if several else run


def breakdown(of: Means, labels: report.Booking) -> Chart:
    """Seconds of epochs, by own work and by what is waited for."""
    parts = report.shown(of.breakdown, labels)
    shown = shown_epochs(of.epochs)
    several = of.epochs["epoch"].nunique() > 1
    rows, order = [], _parts(parts)
    for run, epoch in shown:
        here = parts[(parts["run"].astype(str) == run) & (parts["epoch"] == epoch)]
        whole = float(here["seconds"].sum())
        found = {
            (str(row["label"]), bool(row["waiting"])): float(row["seconds"])
            for row in here.to_dict("records")
        }
        for label, waits in order:
            if (seconds := found.get((label, waits), 0.0)) > 0:
                part = part_name(label, waits)
                share = f"{100 * seconds / whole:.3g} % of {number(whole)} s"
                bar = bar_name(run, epoch, several)
                text = f"{bar}\n{part}: {number(seconds)} s, {share}"
                rows.append(_piece(bar, part, seconds, whole, text))
    colours = {part_name(label, waits): _colour(label, waits) for label, waits in order}
    return stacked(rows, colours, "datum.label + ' s'", ",~r")


def _parts(parts: pd.DataFrame) -> list[tuple[str, bool]]:
    """Labels and whether they are waiting, as they follow one another in a bar."""
    there = set(zip(parts["label"].astype(str), parts["waiting"].astype(bool), strict=True))
    return [
        (label, waits) for label in COLOURS for waits in (False, True) if (label, waits) in there
    ]


def part_name(label: str, waits: bool) -> str:
    """A piece of a bar, in the words of the terminal."""
    if not waits:
        return label
    return f"slowed by {label}" if label == report.SLOWING else f"wait for {label}"


def _colour(label: str, waits: bool) -> str:
    """Waiting is hatched, in the colour of what it is for: a pattern of the page."""
    return f"url(#wait-{list(COLOURS).index(label)})" if waits else COLOURS[label]


def _piece(bar: str, part: str, value: float, whole: float, text: str) -> dict[str, Any]:
    share = value / whole if whole else 0.0
    return {"bar": bar, "part": part, "value": value, "share": share, "text": text}


def patterns() -> str:
    """The hatching of waiting as SVG, which charts name."""
    one = (
        '<pattern id="wait-{0}" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect width="6" height="6" fill="{1}" fill-opacity="0.3"/>'
        '<rect width="3" height="6" fill="{1}"/></pattern>'
    )
    each = "".join(one.format(place, colour) for place, colour in enumerate(COLOURS.values()))
    return (
        f'<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{each}</defs></svg>'
    )


def sources(of: Means) -> Chart | None:
    """Bytes of epochs by where they came from; None where nothing was read."""
    epochs = of.epochs.assign(run=of.epochs["run"].astype(str)).set_index(["run", "epoch"])
    several = of.epochs["epoch"].nunique() > 1
    rows = []
    for run, epoch in shown_epochs(of.epochs):
        values = {name: float(epochs[f"nbytes_{key}"][run, epoch]) for name, key in SOURCES.items()}
        whole, bar = sum(values.values()), bar_name(run, epoch, several)
        for name, value in values.items():
            if value > 0:
                share = f"{100 * value / whole:.3g} % of all bytes"
                text = f"{bar}\n{name}: {readable(value, Dimension.NBYTES, 3)}, {share}"
                rows.append(_piece(bar, name, value, whole, text))
    there = {row["part"] for row in rows}
    colours = {name: colour for name, colour in SOURCE_COLOURS.items() if name in there}
    return (
        stacked(rows, colours, "replace(datum.label, /([kMGTPE]?)$/, ' $1B')", "~s")
        if rows
        else None
    )


def stacked(
    rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str], label: str, look: str
) -> Chart:
    """Bars of pieces one after another, as values or as shares of their bar.

    Args:
        rows: bar, part, value, share, text.
        colours: by part, in their order.
        label: an expression of Vega, which writes a value of the axis.
        look: the format of the axis.
    """
    place = {part: number for number, part in enumerate(colours)}
    values = [{**row, "place": place[str(row["part"])]} for row in rows]
    bars = len({row["bar"] for row in rows})
    options = {"input": "select", "options": ["values", "shares"], "name": "Show"}
    axis = {
        "format": look,
        "labelExpr": f"show === 'values' ? {label} : format(datum.value, '.0%')",
        "title": None,
    }
    spec: Spec = {
        "params": [{"name": "show", "value": "values", "bind": options}],
        "data": {"values": values},
        "transform": [{"calculate": "show === 'values' ? datum.value : datum.share", "as": "x"}],
        "width": "container",
        "height": round(BAR_HEIGHT / SHARE * max(bars, 2)),
        "mark": {"type": "bar", "stroke": "var(--card)", "strokeWidth": 0.7},
        "encoding": {
            "y": {
                "field": "bar",
                "type": "nominal",
                "sort": None,
                "axis": {"title": None, "ticks": False, "domain": False, "labelPadding": 8},
                "scale": {"paddingInner": 1 - SHARE, "paddingOuter": 0.2},
            },
            "x": {"field": "x", "type": "quantitative", "axis": axis},
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": list(colours), "range": list(colours.values())},
                "legend": {"title": None, "columns": LEGEND_COLUMNS},
            },
            "order": {"field": "place", "type": "quantitative"},
            **TEXT,
        },
    }
    return Chart(spec)


def scaling(epochs: pd.DataFrame) -> Chart | None:
    """Seconds of the last epoch by ranks; None where all have the same number of ranks.

    Args:
        epochs: columns series, world_size, epoch_s, of the last epochs.
    """
    if epochs["world_size"].nunique() < 2:
        return None
    rows = [
        {
            "series": str(row["series"]),
            "ranks": int(row["world_size"]),
            "seconds": float(row["epoch_s"]),
            "text": f"{row['series']}\n{row['world_size']} ranks: {number(row['epoch_s'])} s",
        }
        for row in epochs.to_dict("records")
    ]
    sizes = sorted(int(size) for size in epochs["world_size"].unique())
    names = list(dict.fromkeys(row["series"] for row in rows))
    x_axis = {"title": "ranks", "values": sizes, "format": "d", "grid": False}
    colour = {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": names, "range": LINE_COLOURS},
        "legend": {"title": None, "columns": 1},
    }
    spec: Spec = {
        "data": {"values": rows},
        "width": "container",
        "height": 260,
        "encoding": {
            "x": {
                "field": "ranks",
                "type": "quantitative",
                "scale": {"type": "log", "base": 2, "nice": False},
                "axis": x_axis,
            },
            "y": {
                "field": "seconds",
                "type": "quantitative",
                "scale": {"type": "log"},
                "axis": {"title": "s per epoch", "tickCount": 5, "format": ",~r"},
            },
            "color": colour,
        },
        "layer": [
            {"mark": {"type": "line", "aria": False}},
            {
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {
                    **TEXT,
                    "shape": {
                        "field": "series",
                        "type": "nominal",
                        "scale": {"domain": names},
                        "legend": {"title": None, "columns": 1},
                    },
                },
            },
        ],
    }
    return Chart(spec)


def spread(rows: Rows, runs: Sequence[str], epochs: Sequence[int]) -> Chart:
    """Seconds of the exchange by iteration: mean over ranks, and from the least to the most.

    Args:
        rows: run (its place in ``runs``), epoch, iteration, phase, mean, least, most.
        runs, epochs: that there are.
    """
    picks = [
        {"input": "select", "options": list(range(len(runs))), "labels": list(runs), "name": "Run"},
        {"input": "select", "options": list(epochs), "name": "Epoch"},
    ]
    text = (
        "datum.phase + ', iteration ' + datum.iteration + '\\nmean ' + format(datum.mean, '.3s')"
        " + 's, least ' + format(datum.least, '.3s') + 's, most ' + format(datum.most, '.3s') + 's'"
    )
    columns = ("run", "epoch", "iteration", "phase", "mean", "least", "most")
    spec: Spec = {
        "params": [
            {"name": "run", "value": 0, "bind": picks[0]},
            {"name": "epoch", "value": epochs[-1], "bind": picks[1]},
        ],
        "data": {"name": "iterations"},
        "transform": [
            {"filter": "datum.run === run && datum.epoch === epoch"},
            {"calculate": text, "as": "text"},
        ],
        "width": "container",
        "height": 220,
        "encoding": {
            "x": {
                "field": "iteration",
                "type": "quantitative",
                "scale": {"zero": False, "nice": False},
                "axis": {"title": "iteration", "tickMinStep": 1, "grid": False},
            },
            "color": {
                "field": "phase",
                "type": "nominal",
                "scale": {
                    "domain": ["exchange", "wait_exchange", "exchange_hidden"],
                    "range": ["#EE6677", "#AA3377", "#4477AA"],
                },
                "legend": {"title": None, "symbolOpacity": 1},
            },
        },
        "layer": _spread_layers(),
    }
    return Chart(spec, {"iterations": (columns, rows)})


def _spread_layers() -> list[Spec]:
    """The band, the line in it, and points at its upper end, which pointer and focus reach."""
    milliseconds = "format(datum.value * 1000, ',~r') + ' ms'"
    return [
        {
            "mark": {"type": "area", "opacity": 0.25, "aria": False},
            "encoding": {
                "y": {
                    "field": "least",
                    "type": "quantitative",
                    "axis": {"title": "of a rank", "labelExpr": milliseconds},
                },
                "y2": {"field": "most"},
            },
        },
        {
            "mark": {"type": "line", "aria": False},
            "encoding": {"y": {"field": "mean", "type": "quantitative"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.9},
            "encoding": {"y": {"field": "most", "type": "quantitative"}, **TEXT},
        },
    ]

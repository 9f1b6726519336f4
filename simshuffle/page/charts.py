"""Charts of a run that a page alone has: where its bytes come from, and how ranks differ."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from simshuffle.page.markup import Chart as Drawn
from simshuffle.page.markup import Rows, Spec
from simshuffle.page.vega import TIP
from simshuffle.results.chart import Axis, Chart, Look, Mark, Panel, in_rows, stacked
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.figures import ROW_INCHES
from simshuffle.studies.simulation.seeds import Means

MOST_BARS = 48
SOURCES = {
    "pfs": Look("PFS", "#EE6677"),
    "object_store": Look("object store", "#AA3377"),
    "ssd": Look("SSD", "#4477AA"),
    "memory": Look("memory", "#66CCEE"),
    "peer": Look("peers", "#CCBB44"),
}


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


def sources(of: Means) -> Chart | None:
    """Bytes of epochs by where they came from; None where nothing was read."""
    epochs = of.epochs.assign(run=of.epochs["run"].astype(str)).set_index(["run", "epoch"])
    several = of.epochs["epoch"].nunique() > 1
    shown = shown_epochs(of.epochs)
    names = [bar_name(run, epoch, several) for run, epoch in shown]
    rows = epochs.reindex(shown)[[f"nbytes_{name}" for name in SOURCES]]
    rows = rows.set_axis(list(SOURCES), axis=1).reset_index(drop=True)
    whole = rows.sum(axis=1)
    pieces = rows.reset_index(names="y").melt("y", var_name="look", value_name="size")
    pieces = pieces[pieces["size"] > 0]
    if pieces.empty:
        return None
    pieces["tip"] = [
        f"{names[y]}\n{SOURCES[name].label}: {readable(size, Dimension.NBYTES, 3)},"
        f" {100 * size / whole[y]:.3g} % of all bytes"
        for y, name, size in pieces[["y", "look", "size"]].itertuples(index=False, name=None)
    ]
    bars = Mark("bar", stacked(pieces, "y", "size", ("x", "x2")))
    panel = Panel([bars], Axis("bytes", low=0.0, unit="B"), in_rows(names))
    height = ROW_INCHES * max(2, len(names)) + 0.3
    return Chart([panel], height, SOURCES, "By where they came from.", shares=True)


def spread(rows: Rows, runs: Sequence[str], epochs: Sequence[int]) -> Drawn:
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
            {"calculate": text, "as": "tip"},
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
    return Drawn(spec, {"iterations": (columns, rows)})


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
            "encoding": {"y": {"field": "most", "type": "quantitative"}, **TIP},
        },
    ]

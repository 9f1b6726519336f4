"""The figures of an ablation and of a search, from tables alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    hollow_looks,
    in_rows,
    percent,
    rule,
    ticks,
)
from simshuffle.report.style import COLOURS
from simshuffle.studies.mechanisms.tables import ALL, NAMES, title_of
from simshuffle.study.study import Tables

WHISKER = Look(colour="#000000", size=3)
STEP = Look(colour="#555555", width=0.5)


def waterfall_chart(tables: Tables) -> Chart:
    """From the epoch of the start to that of the end, a row for each switch, coloured by the label
    that most of it is in, from all tables of an ablation. Steps are means over orders and seeds;
    whiskers are the seeds' range. The axis begins above 0, so that small steps are seen."""
    rows = _rows(tables)
    ends = rows[rows["look"] == "ends"]
    low = float(rows[["to", "low"]].to_numpy().min())
    high = float(rows[["to", "high"]].to_numpy().max())
    room = 0.2 * (high - low) or 0.1 * high or 1.0
    left = max(0.0, low - room)
    cut = left > 0
    joints = pd.DataFrame({"x": rows["to"].iloc[:-1], "y": rows["y"].iloc[:-1]})
    joints = joints.assign(x2=joints["x"], y2=joints["y"] + 1.31)
    bars = rows.assign(at=rows["at"].clip(lower=left))
    beside = rows.assign(x=rows[["at", "to", "high"]].max(axis=1))
    marks = [
        Mark("bar", bars, x="at", x2="to", thick=0.62),
        Mark("rule", joints, look=STEP),
        Mark("interval", rows, x="low", x2="high", look=WHISKER),
        Mark("text", beside, aside=(3, 0), look=Look(colour="#000000"), small=False),
    ]
    if cut:
        cuts = ends.assign(x=left, text="//")
        marks.append(Mark("text", cuts, look=Look(colour="#FFFFFF"), aside=(5, 0), small=False))
    title = f"time per epoch (s){'; bars are cut' * cut}"
    x = Axis(title, low=left, high=high + 0.9 * room, most=4)
    labels = {label: Look(label, colour) for label, colour in COLOURS.items()}
    return Chart(
        [Panel(marks, x, in_rows(list(rows["name"]), small=True))],
        0.65 + 0.27 * len(rows),
        {"ends": Look(colour="#BBBBBB"), **labels},
        "Epochs from start to end, a step for each switch.",
        legend="step, most of it in",
    )


def _rows(tables: Tables) -> pd.DataFrame:
    """The start, each switch and the end: y, name, at and to where its bar begins and ends, low and
    high the range of seeds, look, and text beside it."""
    table = tables["contributions"]
    own = table[table["switch"] != ALL]
    parts = own.pivot(index="switch", columns="label", values="mean_s").drop(columns="epoch")
    most = parts.abs().idxmax(axis=1)
    start, end = _epochs(tables, "0"), _epochs(tables, "1")
    at = float(start.mean())
    rows: list[dict[str, Any]] = [_end(start)]
    for step in own[own["label"] == "epoch"].to_dict("records"):
        to = at + step["mean_s"]
        text = f"{step['mean_s']:+.3f}".replace("-", "\N{MINUS SIGN}")
        reach = {"low": at + step["min_s"], "high": at + step["max_s"]}
        rows.append({"at": at, "to": to, **reach, "look": most[step["switch"]], "text": text})
        at = to
    rows.append(_end(end))
    return pd.DataFrame(rows).assign(y=range(len(rows)), name=_names(tables))


def _epochs(tables: Tables, state: str) -> pd.Series:
    """Epochs (s) with all switches in that state, by seed."""
    runs = tables["runs"]
    here = (runs["label"] == "epoch") & (runs["state"] == state * len(tables["switches"]))
    return runs.loc[here, "seconds"]


def _end(of: pd.Series) -> dict[str, Any]:
    mean, reach = float(of.mean()), {"low": float(of.min()), "high": float(of.max())}
    return {"at": 0.0, "to": mean, **reach, "look": "ends", "text": f"{mean:.3f}"}


def _names(tables: Tables) -> list[str]:
    ends = tables["ends"].set_index("place")
    changed = [
        f"{r['switch'].replace('_', ' ')}\n{_short(r['start'])} → {_short(r['end'])}"
        for r in tables["switches"].to_dict("records")
    ]
    start, end = (name.replace(" @", "\n@") for name in ends.loc[["start", "end"], "name"])
    return [start, *changed, "all switched" if ends["switched_more"].any() else end]


def _short(value: object) -> str:
    return str(value).replace("importance_sorted", "sorted").replace("_", " ")


LEGEND_LETTERS = 40
"""Of a line of the legend, which fits one column."""
LOOKS = {
    "own": Look(NAMES["own"], "#AA3377", "v", size=3.5),
    "own 2": Look(NAMES["own 2"], "#CCBB44", "<", size=3.5),
    "own 3": Look(NAMES["own 3"], "#66CCEE", ">", size=3.5),
    "own 4": Look(NAMES["own 4"], "#BBBBBB", "P", size=3.5),
    "authors": Look(NAMES["authors"], "#EE6677", "o", size=3.5),
    "pair": Look(NAMES["pair"], "#4477AA", "s", size=3.5),
    "encoded": Look(NAMES["encoded"], "#228833", "^", size=3.5),
    "wire": Look(NAMES["wire"], "#000000", "D", size=3.5),
}
NONE = hollow_looks(LOOKS, ", none")
STRIP = Look(colour="#EEEEEE")


def hiding_chart(tables: Tables, titles: Mapping[str, str]) -> Chart:
    """The largest hidden exchange fraction against the world size, both logarithmic, a line for
    each way of carrying the exchange out; where nothing is hidden, hollow in a strip of its own
    below. Above, the iterations of an epoch. ``titles`` are what the scenario's own ways are
    called."""
    limits = tables["limits"]
    rows = limits.rename(columns={"world_size": "x", "exchange_fraction": "y", "way": "look"})
    looks = {
        way: replace(look, label=textwrap.fill(title_of(way, titles), LEGEND_LETTERS))
        for way, look in LOOKS.items()
    }
    rows["tip"] = rows["look"].map(lambda way: looks[way].label) + rows["x"].map(
        ", {} ranks: ".format
    )
    rows["tip"] += rows["y"].map(percent)
    some = rows["y"] > 0
    floor = (float(rows.loc[some, "y"].min()) if some.any() else 0.01) / 2
    none = rows[rows["y"] == 0]
    none = none.assign(y=floor, look=none["look"] + ", none")
    # a line does not go on through a size at which nothing is hidden
    lines = rows.assign(y=rows["y"].where(some))
    marks = [Mark("line", lines), Mark("point", none)]
    upwards = _upwards(floor)
    if len(none):
        marks.insert(0, rule(STRIP, y=floor * 0.8, y2=floor * 1.25))
        upwards = {floor: "none", **upwards}
    once = limits.drop_duplicates("world_size").sort_values("world_size")
    sizes = once["world_size"].tolist()
    above = dict(zip(map(float, sizes), once["iterations"].map(str), strict=True))
    ends: Any = {"low": sizes[0] / 1.2, "high": sizes[-1] * 1.2}
    return Chart(
        [
            Panel(
                marks,
                Axis("ranks M", True, **ends, ticks=ticks(sizes)),
                Axis("largest hidden Q", True, floor * 0.8, 1.4, upwards),
                top=Axis("iterations of an epoch", True, **ends, ticks=above),
            )
        ],
        2.4,
        {**looks, **NONE},
        "The largest exchanged fraction Q that is hidden behind other work, by ranks.",
    )


def _upwards(floor: float) -> dict[float, str]:
    """Ticks; a number beside the strip of those that hide nothing would be taken for theirs."""
    steps = (1, 2, 5) if floor > 0.02 else (1,)
    values = [step * 10.0**power for power in range(-6, 1) for step in steps]
    return ticks([value for value in values if 1.6 * floor < value <= 1.0], percent)

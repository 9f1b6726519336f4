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
    """Return the waterfall from the epoch of the start to the epoch of the end.

    A row for each switch is coloured by the label that changes most by it. Steps are
    means over orders and seeds; whiskers are the seeds' range. The axis begins above 0
    if steps are small; the title then says that bars are cut. ``tables`` are all tables
    of an ablation.
    """
    rows = _waterfall_rows(tables)
    ends = rows[rows["look"] == "ends"]
    low = float(rows[["to", "low"]].to_numpy().min())
    high = float(rows[["to", "high"]].to_numpy().max())
    margin = 0.2 * (high - low) or 0.1 * high or 1.0
    axis_start = max(0.0, low - margin)
    is_cut = axis_start > 0
    joints = pd.DataFrame({"x": rows["to"].iloc[:-1], "y": rows["y"].iloc[:-1]})
    joints = joints.assign(x2=joints["x"], y2=joints["y"] + 1.31)
    bars = rows.assign(at=rows["at"].clip(lower=axis_start))
    text_places = rows.assign(x=rows[["at", "to", "high"]].max(axis=1))
    marks = [
        Mark("bar", bars, x="at", x2="to", thick=0.62),
        Mark("rule", joints, look=STEP),
        Mark("interval", rows, x="low", x2="high", look=WHISKER),
        Mark(
            "text", text_places, aside=(3, 0), look=Look(colour="#000000"), small=False
        ),
    ]
    if is_cut:
        cuts = ends.assign(x=axis_start, text="//")
        marks.append(
            Mark("text", cuts, look=Look(colour="#FFFFFF"), aside=(5, 0), small=False)
        )
    title = f"time per epoch (s){'; bars are cut' * is_cut}"
    x = Axis(title, low=axis_start, high=high + 0.9 * margin, max_ticks=4)
    labels = {label: Look(label, colour) for label, colour in COLOURS.items()}
    return Chart(
        [Panel(marks, x, in_rows(list(rows["name"]), small=True))],
        0.65 + 0.27 * len(rows),
        {"ends": Look(colour="#BBBBBB"), **labels},
        "Epochs from start to end, a step for each switch.",
        legend="step, mostly in",
    )


def _waterfall_rows(tables: Tables) -> pd.DataFrame:
    """Return the rows of the start, each switch and the end, from top to bottom.

    Columns: y, name, ``at`` and ``to`` (s) where the bar begins and ends, ``low`` and
    ``high`` (s) the range of seeds, look, and the text beside the bar. Look is 'ends',
    or the label of the largest mean change.
    """
    table = tables["contributions"]
    switch_rows = table[table["switch"] != ALL]
    seconds_by_label = switch_rows.pivot(
        index="switch", columns="label", values="mean_s"
    ).drop(columns="epoch")
    main_label = seconds_by_label.abs().idxmax(axis=1)
    start = _epoch_seconds(tables, "0")
    end = _epoch_seconds(tables, "1")
    bar_start = float(start.mean())
    rows: list[dict[str, Any]] = [_end_row(start)]
    for step in switch_rows[switch_rows["label"] == "epoch"].to_dict("records"):
        bar_end = bar_start + step["mean_s"]
        text = f"{step['mean_s']:+.3f}".replace("-", "\N{MINUS SIGN}")
        seed_range = {
            "low": bar_start + step["min_s"],
            "high": bar_start + step["max_s"],
        }
        rows.append(
            {
                "at": bar_start,
                "to": bar_end,
                **seed_range,
                "look": main_label[step["switch"]],
                "text": text,
            }
        )
        bar_start = bar_end
    rows.append(_end_row(end))
    return pd.DataFrame(rows).assign(y=range(len(rows)), name=_row_names(tables))


def _epoch_seconds(tables: Tables, state: str) -> pd.Series:
    """Return the epochs (s) of all seeds with all switches in ``state`` ("0" or "1").

    They are in the order of table ``runs``, and keep its index.
    """
    runs = tables["runs"]
    is_state_epoch = (runs["label"] == "epoch") & (
        runs["state"] == state * len(tables["switches"])
    )
    return runs.loc[is_state_epoch, "seconds"]


def _end_row(epochs: pd.Series) -> dict[str, Any]:
    """Return the row of the start or the end, from its epochs (s); its bar begins at 0."""
    mean = float(epochs.mean())
    seed_range = {"low": float(epochs.min()), "high": float(epochs.max())}
    return {"at": 0.0, "to": mean, **seed_range, "look": "ends", "text": f"{mean:.3f}"}


def _row_names(tables: Tables) -> list[str]:
    """Return the names of the rows of the waterfall: start, each switch, and end.

    The end is 'all switched' where more is switched than start and end differ in.
    """
    ends = tables["ends"].set_index("place")
    changed = [
        f"{r['switch'].replace('_', ' ')}\n{_short(r['start'])} → {_short(r['end'])}"
        for r in tables["switches"].to_dict("records")
    ]
    start, end = (
        name.replace(" @", "\n@") for name in ends.loc[["start", "end"], "name"]
    )
    return [start, *changed, "all switched" if ends["switched_more"].any() else end]


def _short(value: object) -> str:
    """Return a value of a switch as the figure writes it."""
    return str(value).replace("importance_sorted", "sorted").replace("_", " ")


LEGEND_LETTERS = 40
"""Most letters in a line of the legend, which fits a column of a paper."""
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
    """Return the chart of the largest hidden exchange fraction against the world size.

    Both axes are logarithmic, with a line for each way of carrying the exchange out.
    Where nothing is hidden, the line breaks, and marks are hollow, in a strip below.
    Above are the iterations of an epoch.

    Args:
        tables: of a search; ``limits`` is used.
        titles: labels of the scenario's own ways, by way; a way may be missing.
    """
    limits = tables["limits"]
    rows = limits.rename(
        columns={"world_size": "x", "exchange_fraction": "y", "way": "look"}
    )
    looks = {
        way_name: replace(
            look, label=textwrap.fill(title_of(way_name, titles), LEGEND_LETTERS)
        )
        for way_name, look in LOOKS.items()
    }
    rows["tip"] = rows["look"].map(lambda way_name: looks[way_name].label) + rows[
        "x"
    ].map(", {} ranks: ".format)
    rows["tip"] += rows["y"].map(percent)
    is_hidden = rows["y"] > 0
    floor = (float(rows.loc[is_hidden, "y"].min()) if is_hidden.any() else 0.01) / 2
    unhidden = rows[rows["y"] == 0]
    unhidden = unhidden.assign(y=floor, look=unhidden["look"] + ", none")
    # a line does not go on through a size at which nothing is hidden
    lines = rows.assign(y=rows["y"].where(is_hidden))
    marks = [Mark("line", lines), Mark("point", unhidden)]
    fraction_ticks = _fraction_ticks(floor)
    if len(unhidden):
        marks.insert(0, rule(STRIP, y=floor * 0.8, y2=floor * 1.25))
        fraction_ticks = {floor: "none", **fraction_ticks}
    row_of_size = limits.drop_duplicates("world_size").sort_values("world_size")
    sizes = row_of_size["world_size"].tolist()
    iteration_labels = dict(
        zip(map(float, sizes), row_of_size["iterations"].map(str), strict=True)
    )
    ends: Any = {"low": sizes[0] / 1.2, "high": sizes[-1] * 1.2}
    return Chart(
        [
            Panel(
                marks,
                Axis("ranks M", True, **ends, ticks=ticks(sizes)),
                Axis("largest hidden Q", True, floor * 0.8, 1.4, fraction_ticks),
                top=Axis(
                    "iterations of an epoch", True, **ends, ticks=iteration_labels
                ),
            )
        ],
        2.4,
        {**looks, **NONE},
        "The largest exchanged fraction Q that is hidden behind other work, by ranks.",
    )


def _fraction_ticks(floor: float) -> dict[float, str]:
    """Return ticks in percent at fractions above the strip at ``floor``, up to 1.

    They are at powers of ten, and at 2 and 5 times these if ``floor`` is above 0.02.
    None is beside the strip, where it would be taken for the fraction of the strip's
    marks.
    """
    steps = (1, 2, 5) if floor > 0.02 else (1,)
    values = [step * 10.0**power for power in range(-6, 1) for step in steps]
    return ticks([value for value in values if 1.6 * floor < value <= 1.0], percent)

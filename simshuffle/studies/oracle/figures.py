"""The figures of an oracle, from tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    message_panel,
    rule,
    stacked_bars,
)
from simshuffle.report.names import cut_text
from simshuffle.report.style import letters_in_line
from simshuffle.studies.oracle.tables import GIB, MEMORY, usable
from simshuffle.studies.oracle.text import chosen_scale
from simshuffle.study.study import Tables

TIMES = {
    "compute": (("compute_s", "waiting_s"), "#228833"),
    "bubble": (("bubble_s",), "#BBBBBB"),
    "communication": (("exposed_s",), "#CCBB44"),
    "exchange": (("exchange_s",), "#EE6677"),
    "input": (("input_s", "startup_s"), "#4477AA"),
}
"""What a column is made of, from its foot on, and its colour."""
MEMORY_COLOURS = ("#4477AA", "#66CCEE", "#AA3377", "#228833", "#BBBBBB")
SCALES, COLUMNS, ROWS = 4, 20, 18
"""Most scales and columns of the first figure, and rows of the second."""
CUT = 3.0
"""A column is cut at so many times the highest of the fastest ones."""
UNSEEN = 0.01
"""Share of a column that is too little to be seen."""
NOTHING = "nothing fits"


def times_chart(tables: Tables) -> Chart:
    """What an iteration takes in ms, a column for each strategy, by number of GPUs; over a column
    how close it comes to what was measured."""
    shown = shown_points(tables["points"], tables["measured"]).reset_index(drop=True)
    longest = max(map(len, shown["strategy"]), default=0)
    looks = {label: Look(label, colour) for label, (_, colour) in TIMES.items()}
    about = "What an iteration takes under each way to divide training, by number of GPUs."
    panel = message_panel(NOTHING) if shown.empty else _columns(shown, tables["measured"])
    return Chart([panel], 1.75 + 0.055 * longest, looks, about)


def parts_of(points: pd.DataFrame) -> pd.DataFrame:
    """Seconds of an iteration in the parts of `TIMES`, a row for each point."""
    return pd.DataFrame(
        {
            label: points[list(names)].sum(axis=1) / points["iterations"]
            for label, (names, _) in TIMES.items()
        }
    )


def shown_points(points: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The points of the first figure: of a few scales, the fastest of each kind, and all that were
    measured.

    Scales are those that were measured, or as many as there is width for, evenly from the smallest
    to the largest at which something fits.
    """
    fitting = usable(points)
    keys = pd.MultiIndex.from_frame(measured[["world_size", "strategy"]])
    own = pd.MultiIndex.from_frame(points[["world_size", "strategy"]]).isin(keys)
    sizes = sorted(fitting["world_size"].unique())
    if len(measured):
        sizes = sorted(measured["world_size"].unique())
    if len(sizes) > SCALES:
        places = np.linspace(0, len(sizes) - 1, SCALES).round().astype(int)
        sizes = [sizes[place] for place in places]
    best = best_of_each(fitting[fitting["world_size"].isin(sizes)])
    most = COLUMNS // max(len(sizes), 1)
    best = best.groupby("world_size", sort=False).head(most)
    given = points[own & points["feasible"] & points["world_size"].isin(sizes)]
    # in the order of the table, which is the same at every scale
    return points[points.index.isin([*best.index, *given.index])]


def best_of_each(points: pd.DataFrame) -> pd.DataFrame:
    """Of each scale the fastest of each kind, alone or with replicas."""
    divided = points["replicas"] > 1
    ordered = points.assign(divided=divided).sort_values(
        ["world_size", "epoch_s", "loop_s"], kind="stable"
    )
    return ordered.drop_duplicates(["world_size", "kind", "divided"]).drop(columns="divided")


def _columns(shown: pd.DataFrame, measured: pd.DataFrame) -> Panel:
    """Columns of the parts of an iteration, grouped by number of GPUs; those that are much higher
    than the fastest ones are cut."""
    groups = shown["world_size"].rank(method="dense") - 1
    places = (shown.index + 0.8 * groups).rename("x")
    parts = 1e3 * parts_of(shown)
    total = parts.sum(axis=1)
    highest = min(CUT * float(total.groupby(groups).min().max()), float(total.max()))
    pieces = stacked_bars(parts, "row", "ms", ("y", "y2"))
    pieces["x"] = pieces["row"].map(places)
    seen = pieces["ms"] > UNSEEN * pieces["row"].map(total)
    there = pieces["look"].isin(pieces.loc[seen, "look"])
    names = pieces["row"].map(shown["strategy"])
    pieces["tip"] = names + ": " + pieces["look"] + pieces["ms"].map(" {:.3g} ms".format)
    pieces = pieces[there & (pieces["y"] < highest)].assign(y2=pieces["y2"].clip(upper=highest))
    keys = ["world_size", "strategy"]
    accuracy = shown.merge(measured[[*keys, "accuracy"]], "left", on=keys)["accuracy"]
    cut = total.map("{:.0f}".format).where(total > highest, "")
    close = (100 * accuracy).map("{:.0f} %".format).where(accuracy.notna(), "")
    texts = [", ".join(filter(None, pair)) for pair in zip(cut, close, strict=True)]
    ends = pd.DataFrame({"x": places, "y": total.clip(upper=highest), "text": texts})
    middles = places.groupby(groups).agg(["min", "max"])
    sizes = shown.groupby(groups)["world_size"].first().map(str)
    marks = [
        Mark("bar", pieces, thick=0.8),
        Mark("text", ends, aside=(0, 2), align=("center", "bottom"), turned=90),
        *(rule(Look(colour="#999999", width=0.4), x=first - 0.9) for first in middles["min"][1:]),
    ]
    title = "ms an iteration" + (", high ones cut" if total.max() > highest else "")
    across: Any = {"low": float(places.iloc[0]) - 0.8, "high": float(places.iloc[-1]) + 0.8}
    below = dict(zip(places, shown["strategy"], strict=True))
    above = dict(zip((middles["min"] + middles["max"]) / 2, "GPUs: " + sizes, strict=True))
    return Panel(
        marks,
        Axis(ticks=below, names=True, turned=90, small=True, **across),
        Axis(title, low=0.0, high=1.28 * highest),
        top=Axis(ticks=above, names=True, **across),
    )


def memory_chart(tables: Tables, budget: float | None) -> Chart:
    """Memory of the fullest GPU at the scale of the best point by what it is for, a row for each
    strategy, and the budget (bytes), if there is one, as a line."""
    rows = memory_rows(tables).reset_index(drop=True)
    height, about = 0.62 + 0.145 * max(len(rows), 3), "Memory of the fullest GPU by strategy."
    if rows.empty:
        return Chart([message_panel(NOTHING)], height, caption=about)
    parts = rows[[f"{part}_nbytes" for part in MEMORY]].set_axis(list(MEMORY), axis=1) / GIB
    pieces = stacked_bars(parts)
    pieces["tip"] = pieces["look"] + pieces["size"].map(": {:.3g} GiB".format)
    whole = parts.sum(axis=1)
    ends = pd.DataFrame({"x": whole, "y": rows.index, "text": whole.map("{:.3g}".format)})
    marks = [
        Mark("bar", pieces[pieces["size"] > 0], thick=0.75),
        Mark("text", ends, aside=(2, 0), backed=True),
    ]
    longest = max(float(whole.max()), (budget or 0.0) / GIB)
    if budget is not None:
        marks.insert(1, rule("budget", x=budget / GIB))
    most = letters_in_line(28)
    names = [cut_text(name, most) for name in rows["strategy"]]
    title = f"GiB of the fullest of {rows['world_size'].iloc[0]} GPUs"
    looks = {n: Look(n, of) for n, of in zip(MEMORY, MEMORY_COLOURS, strict=True)}
    looks["budget"] = Look("budget", "#000000", dash=DASHES[1], width=0.8)
    x = Axis(title, low=0.0, high=1.16 * longest or 1.0)
    return Chart([Panel(marks, x, in_rows(names, small=True))], height, looks, about)


def memory_rows(tables: Tables) -> pd.DataFrame:
    """The points of the second figure: all of the scale of the best point, or where they are many
    the fastest of each kind; least memory first."""
    points = tables["points"]
    size = chosen_scale(tables["recommended"], points)
    here = points[(points["world_size"] == size) & points["feasible"]]
    shown = here if len(here) <= ROWS else best_of_each(here)
    return shown.sort_values("memory_nbytes", kind="stable").head(ROWS)

"""Draw the figures of an oracle, from tables alone."""

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
"""Parts of a column from its foot on, and their colours."""
MEMORY_COLOURS = ("#4477AA", "#66CCEE", "#AA3377", "#228833", "#BBBBBB")
SCALES, COLUMNS, ROWS = 4, 20, 18
"""Most scales, and about the most columns, of the first figure; most rows of the second."""
CUT = 3.0
"""A column is cut at so many times the highest of the fastest ones."""
UNSEEN = 0.01
"""Share of a column that is too little to be seen."""
NOTHING = "nothing fits"


def times_chart(tables: Tables) -> Chart:
    """Return the chart of the time of an iteration in ms, from all tables.

    A column for each of `shown_points`, by number of GPUs; over a column the accuracy
    of the epoch in percent, if it was measured. If no point is shown, it says so.
    """
    displayed_points = shown_points(tables["points"], tables["measured"]).reset_index(
        drop=True
    )
    longest = max(map(len, displayed_points["strategy"]), default=0)
    looks = {label: Look(label, colour) for label, (_, colour) in TIMES.items()}
    caption = (
        "What an iteration takes under each way to divide training, by number of GPUs."
    )
    panel = (
        message_panel(NOTHING)
        if displayed_points.empty
        else _columns(displayed_points, tables["measured"])
    )
    return Chart([panel], 1.75 + 0.055 * longest, looks, caption)


def parts_of(points: pd.DataFrame) -> pd.DataFrame:
    """Return the s of a mean iteration in the parts of `TIMES`: a row for each point.

    Columns are the names of the parts; the index is that of ``points``.
    """
    return pd.DataFrame(
        {
            label: points[list(names)].sum(axis=1) / points["iterations"]
            for label, (names, _) in TIMES.items()
        }
    )


def shown_points(points: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return the points of the first figure, in the order of ``points``.

    At each of up to `SCALES` world sizes they are the fastest usable points of each
    kind, as many as there is width for, and the possible points that were measured.

    The world sizes are those that were measured; if none was, those at which something
    fits. Of more than `SCALES` the smallest, the largest and some evenly between are
    shown.
    """
    fitting = usable(points)
    keys = pd.MultiIndex.from_frame(measured[["world_size", "strategy"]])
    is_measured = pd.MultiIndex.from_frame(points[["world_size", "strategy"]]).isin(
        keys
    )
    sizes = sorted(fitting["world_size"].unique())
    if len(measured):
        sizes = sorted(measured["world_size"].unique())
    if len(sizes) > SCALES:
        places = np.linspace(0, len(sizes) - 1, SCALES).round().astype(int)
        sizes = [sizes[place] for place in places]
    best = best_of_each(fitting[fitting["world_size"].isin(sizes)])
    columns_per_scale = COLUMNS // max(len(sizes), 1)
    best = best.groupby("world_size", sort=False).head(columns_per_scale)
    measured_points = points[
        is_measured & points["feasible"] & points["world_size"].isin(sizes)
    ]
    # in the order of the table, which is the same at every scale
    return points[points.index.isin([*best.index, *measured_points.index])]


def best_of_each(points: pd.DataFrame) -> pd.DataFrame:
    """Return for each scale the fastest point of each kind, alone and with replicas.

    They are in the order of scales, then of time. ``points`` are possible ones; whether
    they fit does not count.
    """
    has_replicas = points["replicas"] > 1
    ordered = points.assign(divided=has_replicas).sort_values(
        ["world_size", "epoch_s", "loop_s"], kind="stable"
    )
    return ordered.drop_duplicates(["world_size", "kind", "divided"]).drop(
        columns="divided"
    )


def _columns(displayed_points: pd.DataFrame, measured: pd.DataFrame) -> Panel:
    """Return the panel with the parts of an iteration as columns, grouped by GPUs.

    A column above `CUT` times the fastest one of any scale is cut, and its ms stand
    over it. A part that is at most `UNSEEN` of every column is left out. The index of
    ``displayed_points`` counts from 0.
    """
    groups = displayed_points["world_size"].rank(method="dense") - 1
    # one place for each column, and 0.8 more between scales
    places = (displayed_points.index + 0.8 * groups).rename("x")
    parts = 1e3 * parts_of(displayed_points)
    total = parts.sum(axis=1)
    highest = min(CUT * float(total.groupby(groups).min().max()), float(total.max()))
    pieces = stacked_bars(parts, "row", "ms", ("y", "y2"))
    pieces["x"] = pieces["row"].map(places)
    is_visible = pieces["ms"] > UNSEEN * pieces["row"].map(total)
    in_a_visible_part = pieces["look"].isin(pieces.loc[is_visible, "look"])
    names = pieces["row"].map(displayed_points["strategy"])
    pieces["tip"] = (
        names + ": " + pieces["look"] + pieces["ms"].map(" {:.3g} ms".format)
    )
    pieces = pieces[in_a_visible_part & (pieces["y"] < highest)].assign(
        y2=pieces["y2"].clip(upper=highest)
    )
    keys = ["world_size", "strategy"]
    accuracy = displayed_points.merge(measured[[*keys, "accuracy"]], "left", on=keys)[
        "accuracy"
    ]
    cut_text_of_column = total.map("{:.0f}".format).where(total > highest, "")
    accuracy_text = (100 * accuracy).map("{:.0f} %".format).where(accuracy.notna(), "")
    texts = [
        ", ".join(filter(None, pair))
        for pair in zip(cut_text_of_column, accuracy_text, strict=True)
    ]
    ends = pd.DataFrame({"x": places, "y": total.clip(upper=highest), "text": texts})
    group_ends = places.groupby(groups).agg(["min", "max"])
    sizes = displayed_points.groupby(groups)["world_size"].first().map(str)
    marks = [
        Mark("bar", pieces, thick=0.8),
        Mark("text", ends, aside=(0, 2), align=("center", "bottom"), turned=90),
        *(
            rule(Look(colour="#999999", width=0.4), x=first - 0.9)
            for first in group_ends["min"][1:]
        ),
    ]
    title = "ms an iteration" + (", high ones cut" if total.max() > highest else "")
    x_range: Any = {
        "low": float(places.iloc[0]) - 0.8,
        "high": float(places.iloc[-1]) + 0.8,
    }
    strategy_ticks = dict(zip(places, displayed_points["strategy"], strict=True))
    size_ticks = dict(
        zip((group_ends["min"] + group_ends["max"]) / 2, "GPUs: " + sizes, strict=True)
    )
    return Panel(
        marks,
        Axis(ticks=strategy_ticks, names=True, turned=90, small=True, **x_range),
        Axis(title, low=0.0, high=1.28 * highest),
        top=Axis(ticks=size_ticks, names=True, **x_range),
    )


def memory_chart(tables: Tables, budget: float | None) -> Chart:
    """Return the chart of the memory of the fullest GPU, in GiB, of `memory_rows`.

    A row for each strategy is divided by use, and the budget (bytes) is a line; None
    for no line. If no point is possible, the chart says that nothing fits.
    """
    rows = memory_rows(tables).reset_index(drop=True)
    height = 0.62 + 0.145 * max(len(rows), 3)
    caption = "Memory of the fullest GPU by strategy."
    if rows.empty:
        return Chart([message_panel(NOTHING)], height, caption=caption)
    parts = (
        rows[[f"{part}_nbytes" for part in MEMORY]].set_axis(list(MEMORY), axis=1) / GIB
    )
    pieces = stacked_bars(parts)
    pieces["tip"] = pieces["look"] + pieces["size"].map(": {:.3g} GiB".format)
    total_gib = parts.sum(axis=1)
    ends = pd.DataFrame(
        {"x": total_gib, "y": rows.index, "text": total_gib.map("{:.3g}".format)}
    )
    marks = [
        Mark("bar", pieces[pieces["size"] > 0], thick=0.75),
        Mark("text", ends, aside=(2, 0), backed=True),
    ]
    longest = max(float(total_gib.max()), (budget or 0.0) / GIB)
    if budget is not None:
        marks.insert(1, rule("budget", x=budget / GIB))
    max_letters = letters_in_line(28)
    names = [cut_text(name, max_letters) for name in rows["strategy"]]
    title = f"GiB of the fullest of {rows['world_size'].iloc[0]} GPUs"
    looks = {
        n: Look(n, colour) for n, colour in zip(MEMORY, MEMORY_COLOURS, strict=True)
    }
    looks["budget"] = Look("budget", "#000000", dash=DASHES[1], width=0.8)
    x = Axis(title, low=0.0, high=1.16 * longest or 1.0)
    return Chart([Panel(marks, x, in_rows(names, small=True))], height, looks, caption)


def memory_rows(tables: Tables) -> pd.DataFrame:
    """Return the points of the second figure, least memory first, at most `ROWS`.

    They are the possible points at the scale of the best one, over the budget or not.
    If there are more than `ROWS`, they are the fastest of each kind. The scale is the
    largest if nothing fits.
    """
    points = tables["points"]
    size = chosen_scale(tables["recommended"], points)
    scale_points = points[(points["world_size"] == size) & points["feasible"]]
    displayed_points = (
        scale_points if len(scale_points) <= ROWS else best_of_each(scale_points)
    )
    return displayed_points.sort_values("memory_nbytes", kind="stable").head(ROWS)

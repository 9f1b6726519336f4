"""The figure of an accuracy, from tables alone: points lost against the time of an
epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simshuffle.report.chart import (
    MIN_LOG_RATIO,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    log_axis,
    message_panel,
    rule,
    with_intervals,
)
from simshuffle.study.study import Tables

LOOKS = {
    "front": Look("on the front", "#4477AA", "o", size=3.5),
    "beaten": Look("beaten", "#888888", "o", size=3.0, fill="none"),
    "network": Look("another network", "#228833", "D", size=3.0, fill="none"),
    "tolerance": Look("may be lost", "#AA3377", dash=(0, (4, 1.5))),
}
MARGIN = 0.12  # of the axes, beside points


def accuracy_chart(tables: Tables, meta: Mapping[str, Any]) -> Chart:
    """Draw points lost against seconds of an epoch, a panel for each number of ranks.

    Intervals are of 90 %. Points on the front are filled. Rows without time or loss are
    left out; if none is left, a panel says so. Runs without remedies that share a panel
    are called by their strategies.
    """
    remedies = tables["remedies"]
    is_only_remedy = (
        remedies.groupby(["world_size", "strategy"])["remedy"].transform("size") == 1
    )
    several_runs = remedies.groupby("world_size")["strategy"].transform("nunique") > 1
    names = remedies["strategy"].where(
        is_only_remedy & several_runs, remedies["remedy"]
    )
    remedies = remedies.assign(remedy=names)
    known_rows = remedies[remedies["epoch_s"].notna() & remedies["loss_points"].notna()]
    sizes = sorted(known_rows["world_size"].unique())
    has_several_sizes = len(sizes) > 1
    tolerance = float(meta["asked"]["tolerance"])
    panels = [
        _panel(
            known_rows[known_rows["world_size"] == size],
            tolerance,
            f"{size:,} ranks" * has_several_sizes,
        )
        for size in sizes
    ]
    return Chart(
        panels or [message_panel("nothing is known")],
        2.1 * max(len(panels), 1),
        LOOKS,
        "Points of accuracy lost, with 90 % intervals, against the time of an epoch; filled"
        " marks are on the front.",
        legend=str(meta["sensitivity"]["model"]),
        x="warm epoch (s)",
        y="points lost",
    )


def _panel(rows: pd.DataFrame, tolerance: float, title: str) -> Panel:
    """Draw the remedies on one number of ranks, and the points that may be lost.

    Only remedies on the front and chosen ones have a label; chosen ones have a star.
    Seconds are on a logarithmic axis where they differ by more than `MIN_LOG_RATIO`.
    """
    look = rows["front"].map({True: "front", False: "beaten"})
    look = look.where(rows["kind"] != "group norm", "network")
    has_label = rows["front"] | rows["chosen"]
    short = (
        rows["remedy"].str.replace("local batch", "b =").str.replace("momentum", "m =")
    )
    rows = rows.assign(
        x=rows["epoch_s"],
        y=rows["loss_points"],
        low=rows["low_points"],
        high=rows["high_points"],
        look=look,
        text=short.where(has_label, "") + rows["chosen"].map({True: " *", False: ""}),
        tip=rows["remedy"],
        colour=look.map({name: mark_look.colour for name, mark_look in LOOKS.items()}),
        size=rows["front"].map(
            {True: LOOKS["front"].size, False: LOOKS["beaten"].size}
        ),
    )
    rows = rows.sort_values(["front", "chosen"], kind="stable")  # these over the others
    low = float(rows["x"].min())
    high = float(rows["x"].max())
    span = (high - low) or low
    # more on the right, where labels stand beside the points
    x = Axis(low=low - MARGIN * span, high=high + 3 * MARGIN * span)
    if high > MIN_LOG_RATIO * low > 0:
        x = log_axis("", low / 1.3, high * 2.0)
    bounds = rows[["low", "high"]].assign(tolerance=tolerance).to_numpy(float)
    height = (bounds.max() - bounds.min()) or 1.0
    y = Axis(
        low=float(bounds.min() - MARGIN * height),
        high=float(bounds.max() + MARGIN * height),
    )
    marks = [
        rule("tolerance", y=tolerance),
        *with_intervals("point", rows),
        Mark("label", rows),
    ]
    return Panel(marks, x, y, title)

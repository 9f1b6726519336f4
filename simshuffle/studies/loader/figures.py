"""Figures of loaders and of their settings, drawn from tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    GREY,
    Axis,
    Chart,
    Look,
    Mark,
    Marker,
    Panel,
    plain_number,
    rule,
    spaced_ticks,
    ticks,
)
from simshuffle.studies.loader.tables import LOOP

LOOKS = {
    "sample": Look("by sample", "#4477AA", "o", size=6.0),
    "block": Look("by block", "#228833", "^", size=5.0),
    "shard": Look("by shard", "#EE6677", "s", size=3.5),
    "random": Look("a random order", GREY, dash=DASHES[1]),
}
"""How a loader is drawn by the unit that it fetches at once, so that each can be seen
where several are at one place; and the rule of a random order.
"""
MIN_LABEL_DISTANCE = 0.06
"""Points that are closer than this share of the panel have one label."""
MIN_DATA_SHARE = 0.01
"""Shares of the data set below are drawn as if they were none."""


def loader_chart(loaders: pd.DataFrame, facts: Mapping[str, Any]) -> Chart:
    """Draw how often samples meet again on a rank, against the bytes fetched in the
    last epoch.

    Bytes are those of the last epoch over those of the data set. Both axes are
    logarithmic. Each loader is a point with a number, and the caption says which number
    stands for which loader. Loaders with a problem, and of a single epoch, are left
    out. Bytes below `MIN_DATA_SHARE` of the data set are drawn at the tick '0'.

    Args:
        loaders: the table `loaders`.
        facts: the shape and the shares of a random order, as ``meta.json`` has them.
    """
    drawn_loaders = loaders[
        (loaders["problem"] == "") & loaders["rank_companions"].notna()
    ]
    names = [
        f"{number} {name}" for number, name in enumerate(drawn_loaders["loader"], 1)
    ]
    random_share = facts["rank_companions"]
    min_y = max(min([*drawn_loaders["rank_companions"], random_share, 1.0]) / 1.6, 1e-6)
    x = (drawn_loaders["last_nbytes"] / max(facts["nbytes"], 1)).clip(
        lower=MIN_DATA_SHARE
    )
    y = drawn_loaders["rank_companions"].clip(lower=min_y)
    rows = drawn_loaders.assign(x=x, y=y, tip=names)
    max_x = max(2.0, 1.6 * float(x.max() if len(x) else 0.0))
    x_limits = (MIN_DATA_SHARE / 1.5, max_x)
    y_limits = (min_y, 2.0)
    labels = _label_points(rows, x_limits, y_limits)
    marks = [
        rule("random", y=max(random_share, min_y)),
        *(
            Mark("point", rows[rows["unit"] == unit], look="unit")
            for unit in list(LOOKS)[:3]
        ),
        Mark("label", labels),
    ]
    x_ticks = {**ticks(_powers_of_ten(MIN_DATA_SHARE, max_x)), MIN_DATA_SHARE: "0"}
    y_ticks = ticks(_powers_of_ten(*y_limits), plain_number)
    panel = Panel(
        marks,
        Axis("bytes fetched in the last epoch / data set", True, *x_limits, x_ticks),
        Axis("pairs on one rank again", True, *y_limits, y_ticks),
    )
    description = "How well loaders mix, against the bytes that they fetch."
    return Chart([panel], 2.2, LOOKS, description, names=names)


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Return the powers of ten from ``low`` to ``high``, of those from 1e-6 to 1e5."""
    return [10.0**power for power in range(-6, 6) if low <= 10.0**power <= high]


def _label_points(
    rows: pd.DataFrame, x_limits: tuple[float, float], y_limits: tuple[float, float]
) -> pd.DataFrame:
    """Return ``rows`` with columns for labels: numbers, from 1, of points near each
    other.

    Such points have one label, at the rightmost of them; the others have ''. Points
    are near if a chain of points leads from one to the other. Added columns: text,
    size (of the point's mark), low and high (NaN), colour.

    Args:
        rows: points, with columns x, y and unit, in the order of their numbers.
        x_limits: ends of the logarithmic axis.
        y_limits: ends of the logarithmic axis.
    """
    # (points, 2) position in the panel: log(x / low) / log(high / low), from 0 to 1
    x = np.log(rows["x"] / x_limits[0]) / np.log(x_limits[1] / x_limits[0])
    y = np.log(rows["y"] / y_limits[0]) / np.log(y_limits[1] / y_limits[0])
    positions = np.stack([x, y], axis=1)
    # (points, points): the larger distance of both axes, as a share of the panel
    is_near = np.abs(positions[:, None] - positions).max(axis=2) < MIN_LABEL_DISTANCE
    texts = [""] * len(rows)
    for group in map(sorted, nx.connected_components(nx.from_numpy_array(is_near))):
        rightmost = max(group, key=lambda point: positions[point, 0])
        texts[rightmost] = ", ".join(str(point + 1) for point in group)
    size = rows["unit"].map({unit: look.size for unit, look in LOOKS.items()})
    return rows.assign(text=texts, size=size, low=np.nan, high=np.nan, colour="#000000")


COLOURS = ("#CCBB44", "#4477AA", "#228833", "#AA3377", "#66CCEE", "#EE6677")
MARKERS: tuple[Marker, ...] = ("v", "o", "^", "s", "D", "P")
NEED_LOOK = "what the loops need"
ANSWER_LOOK = "smallest setting without waste"
SCENARIO_LOOK = "the scenario's own"


def tuning_chart(settings: pd.DataFrame, answers: pd.DataFrame) -> Chart:
    """Draw samples a second against workers, with a panel for each run.

    A line stands for each number of batches ahead of a worker and of its threads. A
    rule shows what the loops need. Settings whose batches ahead are no multiple of the
    workers are on no line. The scenario's own setting and the answer are marked.

    Args:
        settings: the table `settings`.
        answers: the table `answers`, with a row for each run.
    """
    rows = settings.assign(
        x=settings["workers"].astype(float),
        y=settings["samples_per_s"],
        # what a line is called: batches ahead for each worker, and threads
        look=(settings["prefetch"] / settings["workers"]).map(
            "{:.3g} batches ahead a worker".format
        )
        + settings["threads"].map(
            lambda threads: f", {threads} threads" if threads > 1 else ""
        ),
    )
    rows["tip"] = (
        rows["look"] + ", " + rows["binds"].where(rows["binds"] != LOOP, "no stall")
    )
    line_rows = rows[
        rows["prefetch"] % rows["workers"] == 0
    ]  # as many ahead for each worker
    line_rows = line_rows.sort_values(["threads", "prefetch", "workers"])
    names = list(dict.fromkeys(line_rows["look"]))
    looks = {
        name: Look(
            name, COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], size=3.0
        )
        for index, name in enumerate(names)
    }
    looks[NEED_LOOK] = Look(NEED_LOOK, GREY, dash=(0, (4, 1.5)))
    looks[SCENARIO_LOOK] = Look(SCENARIO_LOOK, "#000000", "x", size=4.5)
    looks[ANSWER_LOOK] = Look(ANSWER_LOOK, "#000000", "o", size=6.5, fill="none")
    panels = []
    for run, run_rows in rows.groupby("run", sort=False):
        answer = answers[answers["run"] == run].iloc[0]
        setting = answer[["workers", "threads", "prefetch"]].to_frame().T.astype(int)
        answer_rows = run_rows.merge(setting)
        lines = run_rows[run_rows["look"].isin(names)].sort_values("workers")
        worker_ticks = spaced_ticks(run_rows["x"].unique().tolist(), True)
        max_rate = float(max(run_rows["y"].max(), answer["needed_per_s"]))
        panels.append(
            Panel(
                [
                    rule(NEED_LOOK, y=float(answer["needed_per_s"])),
                    Mark("line", lines),
                    Mark("point", lines),
                    Mark("point", run_rows[run_rows["own"]].assign(look=SCENARIO_LOOK)),
                    Mark("point", answer_rows.assign(look=ANSWER_LOOK)),
                ],
                Axis("workers of a rank", True, ticks=worker_ticks),
                Axis(low=0.0, high=1.1 * max_rate),
                title=str(run),
            )
        )
    description = "Samples that loaders bring in a second, by their workers and the batches ahead."
    height = 1.4 * len(panels)
    return Chart(panels, height, looks, description, y="samples/s")

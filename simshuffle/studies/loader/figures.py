"""The figure of loaders, from tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.results.chart import (
    DASHES,
    GREY,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    plain,
    rule,
    ticks,
)

LOOKS = {
    "sample": Look("by sample", "#4477AA", "o", size=6.0),
    "block": Look("by block", "#228833", "^", size=5.0),
    "shard": Look("by shard", "#EE6677", "s", size=3.5),
    "random": Look("a random order", GREY, dash=DASHES[1]),
}
"""How a loader is drawn that fetches so much at once, so that each can be seen where several are at
one place."""
NEAR = 0.06
"""Points that are closer than this share of the panel have one label."""
LEAST = 0.01
"""Shares of the data set below are drawn as if they were none."""


def loader_chart(loaders: pd.DataFrame, says: Mapping[str, Any]) -> Chart:
    """Companions on a rank against the bytes of the last epoch over those of the data set, both
    logarithmic, a point for each loader; below, which number stands for which.

    Args:
        loaders: table `loaders`.
        says: of the result.
    """
    shown = loaders[(loaders["problem"] == "") & loaders["rank_companions"].notna()]
    names = [f"{number} {name}" for number, name in enumerate(shown["loader"], 1)]
    random = says["rank_companions"]
    least = max(min([*shown["rank_companions"], random, 1.0]) / 1.6, 1e-6)
    x = (shown["last_nbytes"] / max(says["nbytes"], 1)).clip(lower=LEAST)
    y = shown["rank_companions"].clip(lower=least)
    rows = shown.assign(x=x, y=y, tip=names)
    most = max(2.0, 1.6 * float(x.max() if len(x) else 0.0))
    across, up = (LEAST / 1.5, most), (least, 2.0)
    labels = _labelled(rows, across, up)
    marks = [
        rule("random", y=max(random, least)),
        *(Mark("point", rows[rows["unit"] == unit], look="unit") for unit in list(LOOKS)[:3]),
        Mark("label", labels),
    ]
    below = [10.0**power for power in range(-2, 6) if 10.0**power <= most]
    title = "bytes fetched in the last epoch / data set"
    panel = Panel(
        marks,
        Axis(title, True, *across, {**ticks(below), LEAST: "0"}),
        Axis("pairs on one rank again", True, *up, ticks(_powers(*up), plain)),
    )
    about = "How well loaders mix, against the bytes that they fetch."
    return Chart([panel], 2.2, LOOKS, about, names=names)


def _powers(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(-6, 1) if low <= 10.0**power <= high]


def _labelled(
    rows: pd.DataFrame, across: tuple[float, float], up: tuple[float, float]
) -> pd.DataFrame:
    """Points with the numbers from 1 on of those that are near each other as text of the rightmost
    of them."""
    place = np.stack(
        [
            np.log(rows[name] / low) / np.log(high / low)
            for name, (low, high) in (("x", across), ("y", up))
        ],
        axis=1,
    )
    groups: list[list[int]] = []
    for point in range(len(rows)):
        near = [
            group
            for group in groups
            if any(np.abs(place[point] - place[other]).max() < NEAR for other in group)
        ]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([point, *(other for group in near for other in group)]))
    texts = [""] * len(rows)
    for group in groups:
        right = max(group, key=lambda point: place[point, 0])
        texts[right] = ", ".join(str(point + 1) for point in group)
    size = rows["unit"].map({unit: look.size for unit, look in LOOKS.items()})
    return rows.assign(text=texts, size=size, low=np.nan, high=np.nan, colour="#000000")

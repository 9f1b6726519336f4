"""The figures of loaders and of their settings, from tables alone."""

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
    plain,
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
"""How a loader is drawn that fetches so much at once, so that each can be seen where several are at
one place."""
NEAR = 0.06
"""Points that are closer than this share of the panel have one label."""
LEAST = 0.01
"""Shares of the data set below are drawn as if they were none."""


def loader_chart(loaders: pd.DataFrame, says: Mapping[str, Any]) -> Chart:
    """Companions on a rank against the bytes of the last epoch over those of the data set, both
    logarithmic, a point for each loader; below, which number stands for which."""
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
    title = "bytes fetched in the last epoch / data set"
    panel = Panel(
        marks,
        Axis(title, True, *across, {**ticks(_powers(LEAST, most)), LEAST: "0"}),
        Axis("pairs on one rank again", True, *up, ticks(_powers(*up), plain)),
    )
    about = "How well loaders mix, against the bytes that they fetch."
    return Chart([panel], 2.2, LOOKS, about, names=names)


def _powers(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(-6, 6) if low <= 10.0**power <= high]


def _labelled(
    rows: pd.DataFrame, across: tuple[float, float], up: tuple[float, float]
) -> pd.DataFrame:
    """Points with the numbers from 1 on of those that are near each other as text of the rightmost
    of them."""
    x, y = np.log(rows["x"] / across[0]), np.log(rows["y"] / up[0])
    place = np.stack([x / np.log(across[1] / across[0]), y / np.log(up[1] / up[0])], axis=1)
    near = np.abs(place[:, None] - place).max(axis=2) < NEAR
    texts = [""] * len(rows)
    for group in map(sorted, nx.connected_components(nx.from_numpy_array(near))):
        right = max(group, key=lambda point: place[point, 0])
        texts[right] = ", ".join(str(point + 1) for point in group)
    size = rows["unit"].map({unit: look.size for unit, look in LOOKS.items()})
    return rows.assign(text=texts, size=size, low=np.nan, high=np.nan, colour="#000000")


COLOURS = ("#CCBB44", "#4477AA", "#228833", "#AA3377", "#66CCEE", "#EE6677")
MARKERS: tuple[Marker, ...] = ("v", "o", "^", "s", "D", "P")
NEED = "what the loops need"
ANSWER, OWN = "smallest that wastes nothing", "the scenario's own"


def tuning_chart(settings: pd.DataFrame, answers: pd.DataFrame) -> Chart:
    """Samples a second against workers, a panel for each run, a line for each number of batches
    ahead of a worker and of its threads; the need of the loops is a rule."""
    rows = settings.assign(
        x=settings["workers"].astype(float),
        y=settings["samples_per_s"],
        # what a line is called: batches ahead for each worker, and threads
        look=(settings["prefetch"] / settings["workers"]).map("{:.3g} ahead for a worker".format)
        + settings["threads"].map(lambda n: f", {n} threads" if n > 1 else ""),
    )
    rows["tip"] = rows["look"] + ", " + rows["binds"].where(rows["binds"] != LOOP, "no stall")
    whole = rows[rows["prefetch"] % rows["workers"] == 0]
    names = list(dict.fromkeys(whole.sort_values(["threads", "prefetch", "workers"])["look"]))
    looks = {
        name: Look(name, COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)], size=3.0)
        for n, name in enumerate(names)
    }
    looks[NEED] = Look(NEED, GREY, dash=(0, (4, 1.5)))
    looks[OWN] = Look(OWN, "#000000", "x", size=4.5)
    looks[ANSWER] = Look(ANSWER, "#000000", "o", size=6.5, fill="none")
    panels = []
    for run, own in rows.groupby("run", sort=False):
        best = answers[answers["run"] == run].iloc[0]
        places = own.merge(best[["workers", "threads", "prefetch"]].to_frame().T.astype(int))
        lines = own[own["look"].isin(names)].sort_values("workers")
        panels.append(
            Panel(
                [
                    rule(NEED, y=float(best["needed_per_s"])),
                    Mark("line", lines),
                    Mark("point", lines),
                    Mark("point", own[own["own"]].assign(look=OWN)),
                    Mark("point", places.assign(look=ANSWER)),
                ],
                Axis(
                    "workers of a rank", True, ticks=spaced_ticks(own["x"].unique().tolist(), True)
                ),
                Axis(low=0.0, high=1.1 * float(max(own["y"].max(), best["needed_per_s"]))),
                title=str(run),
            )
        )
    about = "Samples that loaders bring in a second, by their workers and the batches ahead."
    height = 1.4 * len(panels)
    return Chart(panels, height, looks, about, y="samples/s")

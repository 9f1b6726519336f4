"""The figure of sizes, from tables alone: how many ranks have how many bytes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.report.chart import DASHES, Axis, Chart, Look, Mark, Panel

BINS = 24  # equal ranges of bytes, from the fewest to the most of any rank
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE")
PREFIXES = ("", "k", "M", "G", "T", "P")
"""Decimal prefixes of bytes, each 1000 times the one before."""


def sizes_chart(ranks: pd.DataFrame, quantities: dict[str, str]) -> Chart:
    """Return a histogram of ranks by their bytes, a line for each run.

    Args:
        ranks: the table `ranks`.
        quantities: the meaning of each column ``NAME_nbytes``, by NAME; a panel for
            each that is not 0 throughout.
    """
    runs = list(dict.fromkeys(ranks["run"]))
    looks = {
        run: Look(
            run, COLOURS[n % len(COLOURS)], dash=DASHES[n // len(COLOURS) % len(DASHES)]
        )
        for n, run in enumerate(runs)
    }
    panels = [
        _panel(ranks, f"{name}_nbytes", meaning)
        for name, meaning in quantities.items()
        if ranks[f"{name}_nbytes"].any()
    ]
    caption = "Ranks by the bytes that they hold, read and send in an epoch."
    return Chart(panels, 1.1 * max(len(panels), 1), looks, caption, y="ranks")


def _panel(ranks: pd.DataFrame, column: str, meaning: str) -> Panel:
    """Return the panel of ranks in each of `BINS` ranges of bytes, at its middle.

    All runs have the same ranges. The unit of the axis suits the most bytes of any rank.
    A run without any bytes has no line; some run must have bytes.
    """
    ranks = ranks[ranks.groupby("run", sort=False)[column].transform("max") > 0]
    power = int(np.log10(max(float(ranks[column].max()), 1.0)) // 3)
    power = min(power, len(PREFIXES) - 1)
    unit = 1000.0**power
    low = float(ranks[column].min()) / unit
    high = float(ranks[column].max()) / unit
    if low == high:  # all alike: in the middle of the axis
        low = 0.95 * low
        high = 1.05 * high
    edges = np.linspace(low, high, BINS + 1)
    width = edges[1] - edges[0]
    # a line falls to none beside the first and the last range
    middles = np.concatenate(
        [[edges[0] - width / 2], edges[:-1] + width / 2, [edges[-1] + width / 2]]
    )
    rows = []
    for run, own in ranks.groupby("run", sort=False):
        counts = np.histogram(own[column] / unit, edges)[0]
        found = zip(middles, [0, *counts.tolist(), 0], strict=True)
        rows += [{"look": run, "x": x, "y": float(y)} for x, y in found]
    return Panel(
        [Mark("line", pd.DataFrame(rows))],
        Axis(f"{meaning} ({PREFIXES[power]}B)"),
        Axis(low=0.0),
    )

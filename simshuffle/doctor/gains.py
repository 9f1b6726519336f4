"""How much faster one run of a training is than another, from the records of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import SimshuffleError
from simshuffle.records.record import Record

LEAST = 8
"""Blocks of batches below which nothing is said (chosen: resampling fewer gives no interval)."""
MOST = 40
"""Blocks that batches are put into at most (chosen: longer blocks keep more of what hangs together
between neighbours)."""
DRAWS, SEED = 1000, 0
"""Of the bootstrap."""
PERCENTILES = (5.0, 95.0)
"""Of an interval of 90 %."""
Key = tuple[int, int]  # epoch and batch


class Gain(NamedTuple):
    """What is saved of the time of a batch, as a share of it; below 0 for what takes longer."""

    share: float
    # low, high: its 90 % interval
    low: float
    high: float

    @property
    def interval(self) -> str:
        """Its interval, for people."""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %"


def batch_seconds(record: Record) -> pd.Series[float]:
    """Wait and step of every batch of the loader that takes the most time, s, by epoch and batch;
    the mean over the ranks. A batch whose step was cut is left out."""
    rows = record.of("wait", "step")
    rows = rows[rows["batch"] >= 0]
    if rows.empty:
        return pd.Series(dtype=float)
    loader = rows.groupby("loader")["seconds"].sum().idxmax()
    by = ["epoch", "batch", "rank", "operation"]
    each = rows[rows["loader"] == loader].groupby(by, observed=True)["seconds"].sum()
    whole = each.unstack("operation").dropna().sum(axis=1)
    found: pd.Series[float] = whole.groupby(["epoch", "batch"]).mean()
    return found


def gain(control: Record, tried: Record, first: int = 0) -> Gain:
    """What ``tried`` saves of the time of a batch of ``control``.

    Compared are the batches that both did, by their number in the epoch, without the ``first`` ones
    and those that workers had fetched ahead of these. Their mean counts, not the median: batches of
    several workers come together, so that most wait for nothing and one for all. The interval is a
    bootstrap over blocks of neighbours (Künsch 1989, here without overlap), each of whole turns of
    the workers where there are enough batches.

    Raises:
        SimshuffleError: there are too few such batches.
    """
    both = batch_seconds(control), batch_seconds(tried)
    workers, ahead = zip(*map(_fetched_ahead, (control, tried)), strict=True)
    common = both[0].index.intersection(both[1].index)[first + max(1, *ahead) :]
    turn = max(1, *workers)
    length = max(len(common) // MOST // turn, 1) * turn
    if len(common) // length < LEAST:
        length = len(common) // LEAST
    if length == 0:
        raise SimshuffleError(f"both did only {len(common)} batches after the first ones")
    generator = np.random.default_rng(SEED)
    means, drawn = [], []
    for each in both:
        values = each.loc[common].to_numpy()
        values = values[: len(values) // length * length]
        blocks = values.reshape(-1, length).mean(axis=1)
        means.append(blocks.mean())
        drawn.append(generator.choice(blocks, (DRAWS, len(blocks))).mean(axis=1))
    low, high = np.percentile(1.0 - drawn[1] / drawn[0], PERCENTILES)
    return Gain(float(1.0 - means[1] / means[0]), float(low), float(high))


def _fetched_ahead(record: Record) -> tuple[int, int]:
    """Workers of the loader that has the most of them, and the batches that they fetch ahead."""
    loaders = record.about.get("loaders", ())
    found = [(of.get("num_workers") or 0, of.get("prefetch_factor") or 2) for of in loaders]
    workers, each = max(found, default=(0, 1))
    return workers, workers * each

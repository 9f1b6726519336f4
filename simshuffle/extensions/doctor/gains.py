"""How much faster one run of a training is than another, from the records of both."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.doctor.records.record import Record

LEAST = 8
"""Blocks of batches below which nothing is said (chosen: resampling fewer gives no interval)."""
MOST = 40
"""Blocks that batches are put into at most (chosen: longer blocks keep more of what hangs together
between neighbours)."""
DRAWS, SEED = 1000, 0
"""Of the bootstrap."""
PERCENTILES = (5.0, 95.0)
"""Of an interval of 90 %."""


class Gain(NamedTuple):
    """What is saved of the time of a batch, as a share of it; below 0 for what takes longer."""

    share: float
    # low, high: its 90 % interval
    low: float
    high: float

    @property
    def interval(self) -> str:
        """Its interval, for people."""
        low, high = (round(100 * end, 1) + 0.0 for end in (self.low, self.high))  # no minus 0
        return f"{low:.1f} to {high:.1f} %"


def batch_seconds(record: Record) -> pd.Series[float]:
    """Wait and step of the batches of the loader that takes the most time and of those that are
    made like it, as by a script with a new one for each epoch; s, the mean over the ranks, by
    loader, epoch and place in it. A batch whose step was cut is left out."""
    rows = record.of("wait", "step")
    rows = rows[rows["batch"] >= 0]
    if rows.empty:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []]))
    rows = rows[rows["loader"].isin(_alike(record, rows))]
    by = ["rank", "loader", "epoch", "operation"]
    # not the batch's own number: one that is played again keeps that
    rows = rows.assign(place=rows.groupby(by, observed=True).cumcount())
    each = rows.set_index([*by, "place"])["seconds"].unstack("operation").dropna().sum(axis=1)
    found: pd.Series[float] = each.groupby(["loader", "epoch", "place"]).mean()
    return found


def _alike(record: Record, rows: pd.DataFrame) -> list[int]:
    most: Any = rows.groupby("loader")["seconds"].sum().idxmax()
    known = dict(enumerate(record.about.get("loaders", ())))
    return [most, *(of for of, made in known.items() if made == known.get(most))]


def gain(control: Record, tried: Record, first: int = 0) -> Gain:
    """What ``tried`` saves of the time of a batch of ``control``.

    Compared are the batches that both did, by their place in the epoch, without those that the
    workers had fetched ahead of the first one, or of the ``first`` ones of each new loader. Their
    mean counts, not the median: batches of several workers come together, so that most wait for
    nothing and one for all. The interval is a bootstrap over blocks of neighbours (Künsch 1989,
    here without overlap), each of whole turns of the workers where there are enough batches.

    Raises:
        SimshuffleError: there are too few such batches.
    """
    both = batch_seconds(control), batch_seconds(tried)
    workers, ahead = zip(*map(_fetched_ahead, (control, tried)), strict=True)
    common = both[0].index.intersection(both[1].index).sort_values()
    loader, epoch, place = (common.get_level_values(level) for level in range(3))
    begun = (epoch == 0) & ((loader == loader.min()) | (first > 0))
    common = common[~(begun & (place < first + max(1, *ahead)))]
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

"""Measure how much faster one run of a training is than another, from the records of
both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.spec.arrays import Floats

MIN_BLOCKS = 8
"""Blocks of batches below which no gain is stated (chosen: resampling fewer gives no
interval).
"""
MAX_BLOCKS = 40
"""Blocks that batches are put into at most (chosen: longer blocks keep more of what
hangs together between neighbours).
"""
DRAWS = 1000
"""Resamples of the bootstrap."""
SEED = 0
"""Seed of the bootstrap."""
PERCENTILES = (5.0, 95.0)
"""Percentiles of the resamples at the ends of a 90 % interval."""


class Gain(NamedTuple):
    """Share of the time of a batch that a change saves; below 0 if batches take longer."""

    share: float
    # low, high: its 90 % interval
    low: float
    high: float

    @property
    def interval(self) -> str:
        """The 90 % interval in percent, as text."""
        low, high = (
            round(100 * end, 1) + 0.0 for end in (self.low, self.high)
        )  # no minus 0
        return f"{low:.1f} to {high:.1f} %"


def batch_seconds(record: Record) -> pd.Series[float]:
    """Return the s of each batch's wait and step, the mean over the ranks, of the main
    loader.

    The main loader takes the most time; loaders with equal settings count, too, as of a
    script with a new one for each epoch. The index is loader, epoch and position of the
    batch in its epoch, from 0. A batch without a step, or without a wait, is left out
    on that rank. Empty if no batch was recorded.
    """
    rows = record.rows_of("wait", "step")
    rows = rows[rows["batch"] >= 0]
    if rows.empty:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []]))
    rows = rows[rows["loader"].isin(_main_loaders(record, rows))]
    # not the batch's own number, which a batch that is played again keeps
    turn_columns = ["rank", "loader", "epoch", "operation"]
    position = rows.groupby(turn_columns, observed=True).cumcount()
    rows = rows.assign(position=position).set_index([*turn_columns, "position"])
    seconds_of_rank = rows["seconds"].unstack("operation").dropna().sum(axis=1)
    seconds: pd.Series[float] = seconds_of_rank.groupby(
        ["loader", "epoch", "position"]
    ).mean()
    return seconds


def _main_loaders(record: Record, rows: pd.DataFrame) -> list[int]:
    """Return the loader that takes the most time, and all loaders with its settings;
    the first one may come twice.
    """
    longest: Any = rows.groupby("loader")["seconds"].sum().idxmax()
    settings_of = dict(enumerate(record.about.get("loaders", ())))
    equal_loaders = [
        loader
        for loader, settings in settings_of.items()
        if settings == settings_of.get(longest)
    ]
    return [longest, *equal_loaders]


def gain(control: Record, changed: Record, num_skipped: int = 0) -> Gain:
    """Return the share of a batch's time of ``control`` that ``changed`` saves.

    Compared are the batches that both did, by their position in the epoch, without
    those of the first epoch that the workers had fetched ahead of the first one, at
    least that one. Their mean counts, not the median: batches of several workers come
    together, so that most wait for nothing and one for all. The last batches that fill
    no block are left out. The interval is a bootstrap over blocks of neighbours (Künsch
    1989, here without overlap), each of whole turns of the workers where there are
    enough batches. It is the same in every call.

    Args:
        control: the record of the training as it is.
        changed: the record of the training with a change.
        num_skipped: first batches of each loader's first epoch that are left out,
            beside those that were fetched ahead; 0 leaves out only the latter, and only
            of the first loader.

    Raises:
        SimshuffleError: there are fewer than `MIN_BLOCKS` such batches.
    """
    seconds_of_runs = batch_seconds(control), batch_seconds(changed)
    workers, ahead = zip(*map(_fetched_ahead, (control, changed)), strict=True)
    common = (
        seconds_of_runs[0].index.intersection(seconds_of_runs[1].index).sort_values()
    )
    loader, epoch, position = (common.get_level_values(level) for level in range(3))
    is_first_epoch = (epoch == 0) & ((loader == loader.min()) | (num_skipped > 0))
    common = common[~(is_first_epoch & (position < num_skipped + max(1, *ahead)))]

    turn = max(1, *workers)
    block_length = max(len(common) // MAX_BLOCKS // turn, 1) * turn
    if len(common) // block_length < MIN_BLOCKS:
        block_length = len(common) // MIN_BLOCKS
    if block_length == 0:
        raise SimshuffleError(
            f"both runs did only {len(common)} batches after the first ones"
        )

    generator = np.random.default_rng(SEED)
    means = []
    resampled_means = []
    for seconds in seconds_of_runs:
        blocks = _block_means(seconds.loc[common].to_numpy(), block_length)
        means.append(blocks.mean())
        # (DRAWS, blocks) drawn blocks, and the mean of each draw
        resampled_means.append(
            generator.choice(blocks, (DRAWS, len(blocks))).mean(axis=1)
        )
    low, high = np.percentile(
        1.0 - resampled_means[1] / resampled_means[0], PERCENTILES
    )
    return Gain(float(1.0 - means[1] / means[0]), float(low), float(high))


def _block_means(seconds: Floats, block_length: int) -> Floats:
    """Return the mean s of blocks of batches, (blocks,), without the last batches that
    fill no block.
    """
    in_blocks = seconds[: len(seconds) // block_length * block_length]
    means: Floats = in_blocks.reshape(-1, block_length).mean(axis=1)
    return means


def _fetched_ahead(record: Record) -> tuple[int, int]:
    """Return the workers of the loader that has the most, and the batches that they
    fetch ahead; (0, 0) if no loader has any.

    Where the prefetch factor is not known, it is 2, as torch takes it.
    """
    counts = [
        (settings.get("num_workers") or 0, settings.get("prefetch_factor") or 2)
        for settings in record.about.get("loaders", ())
    ]
    workers, prefetch = max(counts, default=(0, 1))
    return workers, workers * prefetch

"""Make the rows of batches whose times are known and whose moments are not: one after
the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from simshuffle.spec.arrays import Floats

MAX_BATCHES = 1000
"""Batches of a rank for which a mean stands at most."""


def rows_in_turn(
    rank: int, epoch: int, times: Mapping[str, Floats], **columns: int
) -> pd.DataFrame:
    """Return the rows of an epoch's batches, each with its wait and then its step, from
    0 s on; all rows of one operation stand together.

    Args:
        rank: of all rows.
        epoch: of all rows.
        times: (B,) s of each operation, of which wait and step must be there; those
            that are neither are parts of the step, one after the other in this order.
        columns: further columns of all rows.

    Returns:
        Columns rank, epoch, batch (from 0), ``columns``, operation, start_s, seconds.
    """
    batch_s = times["wait"] + times["step"]
    # (B,) a batch begins when all before it have ended
    wait_start = np.cumsum(batch_s) - batch_s
    step_start = wait_start + times["wait"]
    parts = []
    part_start = step_start
    for operation, seconds in times.items():
        start = {"wait": wait_start, "step": step_start}.get(operation, part_start)
        if operation not in {"wait", "step"}:
            part_start = part_start + seconds
        rows = {
            "rank": rank,
            "epoch": epoch,
            "batch": np.arange(len(seconds)),
            **columns,
            "operation": operation,
            "start_s": start,
            "seconds": seconds,
        }
        parts.append(pd.DataFrame(rows))
    return pd.concat(parts, ignore_index=True)


def rows_of_means(
    rank: int, means: Mapping[str, float], num_batches: int, **columns: int
) -> tuple[pd.DataFrame, list[str]]:
    """Return equal rows for batches of which only the means are known, all of epoch 0,
    and notes on them.

    Args:
        rank: of all rows.
        means: mean s of each operation, of which wait and step must be there.
        num_batches: batches that the means are of; at most `MAX_BATCHES` get rows.
        columns: further columns of all rows.

    Returns:
        The rows, as of `rows_in_turn`, and the notes: a second one if some batches have
        no rows.
    """
    num_rows = min(num_batches, MAX_BATCHES)
    times = {
        operation: np.full(num_rows, seconds) for operation, seconds in means.items()
    }
    notes = [
        "Only the mean over the batches of a rank is known, not how batches differ."
    ]
    if num_rows < num_batches:
        notes.append(f"The first {MAX_BATCHES} of {num_batches} batches stand for all.")
    return rows_in_turn(rank, 0, times, **columns), notes

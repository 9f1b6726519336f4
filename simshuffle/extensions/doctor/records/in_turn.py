"""Rows where only times are told, and not when: one batch after the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from simshuffle.spec.arrays import Floats

MOST = 1000
"""Batches of a rank for which a mean stands, at most."""


def rows_in_turn(
    rank: int, epoch: int, times: Mapping[str, Floats], **columns: int
) -> pd.DataFrame:
    """Rows of an epoch's batches, of which each waits, and then takes its step; whatever else
    ``times`` (s, (N,) by operation) holds is part of the step, one after the other."""
    begin = np.cumsum(times["wait"] + times["step"])
    begin = begin - (times["wait"] + times["step"])
    parts, inside = [], begin + times["wait"]
    for operation, seconds in times.items():
        start = {"wait": begin, "step": begin + times["wait"]}.get(operation, inside)
        if operation not in {"wait", "step"}:
            inside = inside + seconds
        known = {"operation": operation, "start_s": start, "seconds": seconds}
        numbers = {"rank": rank, "epoch": epoch, "batch": np.arange(len(seconds)), **columns}
        parts.append(pd.DataFrame({**numbers, **known}))
    return pd.concat(parts, ignore_index=True)


def of_means(
    rank: int, means: Mapping[str, float], batches: int, **columns: int
) -> tuple[pd.DataFrame, list[str]]:
    """Rows for batches of which only the means are told (s, by operation): at most `MOST`, all
    alike, and what is to be said of them."""
    shown = min(batches, MOST)
    times = {name: np.full(shown, seconds) for name, seconds in means.items()}
    note = "Only the mean of the batches of a rank is told: how they differ is not known."
    fewer = [f"The first {MOST} of {batches} batches stand for all."] if shown < batches else []
    return rows_in_turn(rank, 0, times, **columns), [note, *fewer]

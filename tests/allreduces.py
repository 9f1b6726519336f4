"""What tests of allreduces share: ranks on hosts, and steps carried out."""

from __future__ import annotations

from typing import Any

import numpy as np

from simshuffle.allreduce.steps import Steps


def hosts(world_size: int, gpus: int) -> Any:
    """(M,) the host of each rank, ``gpus`` on each."""
    return (np.arange(world_size) // gpus).astype(np.int32)


def carried_out(steps: Steps, contributors: int) -> np.ndarray:
    """(ranks, parts, contributors) how often each has the contribution of a rank in each part;
    ranks from ``contributors`` on have none of their own."""
    last = max(int(ends.max(initial=0)) for ends in (steps.src, steps.dst))
    has = np.zeros((max(last + 1, contributors), steps.parts, contributors), np.int64)
    has[np.arange(contributors), :, np.arange(contributors)] = 1
    for step in range(steps.count):
        before = has.copy()
        for k in np.flatnonzero(steps.step == step):
            part = slice(steps.first[k], steps.end[k])
            sent = before[steps.src[k], part]
            has[steps.dst[k], part] = sent + (has[steps.dst[k], part] if steps.adds[k] else 0)
    return has

"""Combine two causes: the times of a loop that has neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simshuffle.extensions.doctor.replay import LoopTimes
from simshuffle.spec.arrays import Floats

OVERLAP = 0.1
"""Share of the smaller of two reductions that may lie beyond the whole time, before the
two are taken to be the same time (chosen: parts that are timed one by one never do).
"""


def without_both(base: LoopTimes, first: LoopTimes, second: LoopTimes) -> LoopTimes:
    """Return the times of a loop without two causes.

    What the causes take off adds up where they are parts of a time. Where it is more
    than that time, as of slow samples and of the code of all samples, the larger one
    counts.

    Args:
        base: the loop with both causes.
        first: without the first one alone.
        second: without the second one alone; of the two at most one has other workers.
    """
    if first.workers != base.workers:
        first, second = second, first
    load_s, step_s = (
        _subtract_both(*(getattr(times, name) for times in (base, first, second)))
        for name in ("load_s", "step_s")
    )
    if second.workers != base.workers:
        return replace(second, load_s=load_s, step_s=step_s)
    shape = base.load_s.shape
    send_s, handover_s = (
        _subtract_both(
            *(
                np.broadcast_to(getattr(times, name), shape)
                for times in (base, first, second)
            )
        )
        for name in ("send_s", "handover_s")
    )
    return replace(
        second,
        load_s=load_s,
        step_s=step_s,
        send_s=send_s,
        handover_s=handover_s,
        busy_extra_s=min(first.busy_extra_s, second.busy_extra_s),
        worker_start_s=np.minimum(first.worker_start_s, second.worker_start_s),
    )


def _subtract_both(base_s: Floats, first_s: Floats, second_s: Floats) -> Floats:
    """Return (B, M) s without what two causes take off (B, M) s each."""
    first_saved_s = np.maximum(base_s - first_s, 0.0)
    second_saved_s = base_s - second_s
    beyond_s = np.maximum(first_saved_s + second_saved_s - base_s, 0.0).sum()
    smaller_s = min(first_saved_s.sum(), np.maximum(second_saved_s, 0.0).sum())
    if beyond_s > OVERLAP * smaller_s:
        return np.minimum(first_s, second_s)
    return np.maximum(second_s - first_saved_s, 0.0)

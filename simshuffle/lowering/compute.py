"""What the accelerators compute, batch by batch, and how much any duration varies."""

from __future__ import annotations

import numpy as np

from simshuffle.plan.epochs import Reads
from simshuffle.scenario.model import StepTimes
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import lognormal_factor


def compute_factor(
    rng: np.random.Generator, spread: float, reads: Reads, times: StepTimes
) -> Floats:
    """By what the passes over each batch take longer than ``times`` say: (iterations, M). Jitter,
    log-normal, and what its samples are to compute, which the fixed part does not feel."""
    jitter = lognormal_factor(rng, spread, reads.samples.shape)
    if reads.work is None:
        return jitter
    growing = times.per_sample * reads.samples
    share = np.divide(
        growing, growing + times.fixed_seconds, out=np.zeros_like(jitter), where=growing > 0
    )
    factor: Floats = jitter * (1.0 + (reads.work - 1.0) * share)
    return factor


def by_rank(seconds: Floats) -> list[list[float]]:
    """A list for each rank, one number for each of its batches, of (iterations, M) seconds."""
    lists: list[list[float]] = seconds.T.tolist()
    return lists

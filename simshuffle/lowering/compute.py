"""What the accelerators compute, batch by batch, and how much any duration varies."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def lognormal_factor(rng: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Floats:
    """Random factors of mean 1 and standard deviation ``spread``, log-normal: ``shape`` of them."""
    if spread == 0:
        return np.ones(shape)
    variance = math.log1p(spread**2)
    return rng.lognormal(-variance / 2, math.sqrt(variance), shape)


def by_rank(seconds: Floats) -> list[list[float]]:
    """A list for each rank, one number for each of its batches, of (iterations, M) seconds."""
    lists: list[list[float]] = seconds.T.tolist()
    return lists

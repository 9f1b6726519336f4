"""Named random streams: from one seed, each independent of every other and the same on every
machine; and what is drawn from them."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from simshuffle.spec.arrays import Floats


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """The random stream of that name (and numbers, such as the epoch). Adding a reader of another
    stream never shifts this one."""
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng([seed, word, *numbers])


def lognormal_factor(rng: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Floats:
    """Random factors of mean 1 and standard deviation ``spread``, log-normal: ``shape`` of them."""
    if spread == 0:
        return np.ones(shape)
    variance = math.log1p(spread**2)
    return rng.lognormal(-variance / 2, math.sqrt(variance), shape)

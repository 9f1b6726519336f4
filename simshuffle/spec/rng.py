"""Named random streams: from one seed, each independent of every other and equal on
every machine; and random factors drawn from them.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from simshuffle.spec.arrays import Floats


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """Return the random stream of a name and numbers, such as the epoch. Adding a
    reader of another stream never shifts this one.

    Every call begins the stream anew: equal arguments draw equal numbers. ``seed`` and
    ``numbers`` are not negative, else numpy raises a ValueError.
    """
    name_word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng([seed, name_word, *numbers])


def lognormal_factor(
    rng: np.random.Generator, spread: float, shape: tuple[int, ...]
) -> Floats:
    """Draw an array of ``shape`` of random factors with mean 1 and standard deviation
    ``spread``, log-normal; nothing is drawn, and all are 1, if that is 0.
    """
    if spread == 0:
        return np.ones(shape)
    variance = math.log1p(spread**2)
    return rng.lognormal(-variance / 2, math.sqrt(variance), shape)

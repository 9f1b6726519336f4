"""Named random streams: from one seed, each independent of every other and the same on every
machine."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """The random stream of that name (and numbers, such as the epoch). Adding a reader of another
    stream never shifts this one."""
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng([seed, word, *numbers])

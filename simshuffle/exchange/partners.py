"""Pairs of ranks: a matching drawn at random, and a pairing by sorted importance. Both are involutions: a partner's partner is the rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]


def couples(order: Ints, world_size: int) -> NDArray[np.int32]:
    """Partners if the first two ranks of ``order`` are a pair, the next two, ...

    Args:
        order: (..., k) different ranks; in random order they make a random matching.
        world_size: M, at least k.

    Returns:
        (..., M) int32, a partner for each rank. The last of an odd number is its own, and so are ranks that ``order`` lacks.
    """
    partner = np.tile(np.arange(world_size, dtype=np.int32), (*order.shape[:-1], 1))
    even = order.shape[-1] // 2 * 2
    left, right = order[..., 0:even:2], order[..., 1:even:2]
    np.put_along_axis(partner, left, right.astype(np.int32), axis=-1)
    np.put_along_axis(partner, right, left.astype(np.int32), axis=-1)
    return partner


def sorted_pairs(importance: Floats, order: Ints) -> NDArray[np.int32]:
    """Partners if the rank of i-th lowest importance is paired with that of i-th highest.

    "we pair the worker that holds the most important sample with the worker that holds the least importance of samples, and so on"
    (Nguyen and Tanimura, Efficient Sample Exchanging, poster).

    Args:
        importance: (..., M) of each rank.
        order: (..., M) all ranks; of equal importance, the earlier in ``order`` counts as lower.

    Returns:
        (..., M) int32, a partner for each rank. With odd M the rank in the middle is its own.
    """
    rising = np.argsort(np.take_along_axis(importance, order, axis=-1), axis=-1, kind="stable")
    ranked = np.take_along_axis(order, rising, axis=-1)
    partner = np.empty(ranked.shape, np.int32)
    np.put_along_axis(partner, ranked, ranked[..., ::-1].astype(np.int32), axis=-1)
    return partner

"""Matchings of ranks: of a random order, or by sorted importance; of all ranks, or within groups.

Matchings are involutions: a partner's partner is the rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]


def by_group(order: Ints, group: Ints) -> Ints:
    """``order`` (..., M) with the ranks of group 0 first, then those of group 1, ..., each in their
    order."""
    return np.take_along_axis(order, np.argsort(group[order], axis=-1, kind="stable"), axis=-1)


def couples(order: Ints, world_size: int) -> NDArray[np.int32]:
    """Partners if the first two ranks of ``order`` are a pair, the next two, ...

    Args:
        order: (..., k) different ranks; in random order they make a random matching.
        world_size: M, at least k.

    Returns:
        (..., M) int32, a partner for each rank. The last of an odd number is its own, and so are
        ranks that ``order`` lacks.
    """
    partner = np.tile(np.arange(world_size, dtype=np.int32), (*order.shape[:-1], 1))
    even = order.shape[-1] // 2 * 2
    left, right = order[..., 0:even:2], order[..., 1:even:2]
    np.put_along_axis(partner, left, right.astype(np.int32), axis=-1)
    np.put_along_axis(partner, right, left.astype(np.int32), axis=-1)
    return partner


def sorted_pairs(importance: Floats, order: Ints, group: Ints | None = None) -> NDArray[np.int32]:
    """Partners if the rank of i-th lowest importance is paired with that of i-th highest, among all
    ranks or those of a group.

    "we pair the worker that holds the most important sample with the worker that holds the least
    importance of samples, and so on" (Nguyen and Tanimura, Efficient Sample Exchanging, poster).

    Args:
        importance: (..., M) of each rank.
        order: (..., M) all ranks; of equal importance, the earlier in ``order`` counts as lower.
        group: (M,) number of each rank's group; None for one group.

    Returns:
        (..., M) int32, a partner for each rank. In an odd group the rank in the middle is its own.
    """
    # ranked[i]: the rank of i-th lowest importance; the i-th is paired with the i-th from the end
    rising = np.argsort(np.take_along_axis(importance, order, axis=-1), axis=-1, kind="stable")
    ranked = np.take_along_axis(order, rising, axis=-1)
    partner = np.empty(ranked.shape, np.int32)
    mirrored = np.arange(ranked.shape[-1])[::-1]
    if group is not None:
        ranked, sizes = by_group(ranked, group), np.bincount(group)
        ends = np.cumsum(sizes)
        # place i of a group that begins at s and ends at e is mirrored to s + e - 1 - i
        mirrored = np.repeat(2 * ends - sizes - 1, sizes) - np.arange(len(group))
    np.put_along_axis(partner, ranked, ranked[..., mirrored].astype(np.int32), axis=-1)
    return partner

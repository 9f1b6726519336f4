"""Who sends to whom in each step of a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange.partners import couples, sorted_pairs
from simshuffle.studies.congestion.patterns.fabric import Fabric, Floats, Ints
from simshuffle.studies.congestion.patterns.variant import PATTERNS, needs_power_of_two


def partners(
    pattern: str, steps: int, fabric: Fabric, rng: np.random.Generator, importance: Floats
) -> Ints:
    """Receiver of each rank's message in every step: (steps, M) int32, a permutation in each row; a
    rank's own number if it stays alone.

    Raises:
        ValueError: the pattern cannot be made for that many ranks, or is none that goes in steps.
    """
    count = fabric.world_size
    if needs_power_of_two(pattern, count):
        raise ValueError(f"xor needs a power of two of ranks; got {count}")
    ranks = np.arange(count, dtype=np.int32)
    if pattern == "random_permutations":
        return np.array([_permutation(count, rng) for _ in range(steps)], np.int32)
    if pattern == "linear_shift":
        return np.asarray((ranks + distances(steps, count - 1)[:, None]) % count, np.int32)
    if pattern == "xor":
        return np.asarray(ranks ^ distances(steps, count - 1)[:, None], np.int32)
    pairings: dict[str, Callable[[], Ints]] = {
        "pairing_random": lambda: couples(rng.permutation(count), count),
        "pairing_importance": lambda: sorted_pairs(importance, ranks),
        "pairing_topology": lambda: _by_topology(fabric, rng),
    }
    if pattern not in pairings:
        raise ValueError(f"no pattern in steps: {pattern!r}; known: {', '.join(PATTERNS)}")
    return np.broadcast_to(pairings[pattern](), (steps, count))


def distances(steps: int, most: int) -> NDArray[np.int64]:
    """(steps,) numbers from 1 to ``most``: all of them in turn, as often as they fit whole, and the
    rest spread evenly."""
    rounds, rest = divmod(steps, most)
    spread = 1 + (2 * np.arange(rest) + 1) * most // (2 * max(rest, 1))
    return np.concatenate([np.tile(np.arange(1, most + 1), rounds), spread])


def _permutation(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random permutation without a fixed point, all of them alike: one that has any is drawn
    again."""
    while True:
        drawn = rng.permutation(count)
        if not np.any(drawn == np.arange(count)):
            return drawn


def _by_topology(fabric: Fabric, rng: np.random.Generator) -> Ints:
    """Random pairs on each leaf switch; those left over, one a switch at most, in pairs by
    distance, the nearest first."""
    count = fabric.world_size
    order = rng.permutation(count)
    order = order[np.argsort(fabric.leaf[order], kind="stable")]
    sizes = np.bincount(fabric.leaf)
    odd = np.cumsum(sizes)[sizes % 2 == 1] - 1
    partner = couples(np.delete(order, odd), count)
    left = rng.permutation(order[odd])
    for a, b in _nearest_first(fabric, left):
        partner[a], partner[b] = b, a
    return partner


def _nearest_first(fabric: Fabric, ranks: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Pairs of ``ranks``: as many as can be of those that the fewest links join, then of the next,
    ...; each takes the first it finds."""
    src, dst = (index.ravel() for index in np.meshgrid(ranks, ranks, indexing="ij"))
    hops = (
        (fabric.resources.afresh().message(src, dst)[0] >= 0)
        .sum(axis=1)
        .reshape(len(ranks), len(ranks))
    )
    np.fill_diagonal(hops, 0)
    free = np.ones(len(ranks), bool)
    for distance in np.unique(hops[hops > 0]):
        for i in range(len(ranks)):
            near = free & (hops[i] == distance)
            if free[i] and near.any():
                j = int(np.argmax(near))
                free[i] = free[j] = False
                yield int(ranks[i]), int(ranks[j])

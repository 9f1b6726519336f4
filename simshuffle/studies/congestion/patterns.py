"""Exchange patterns and their variants: who sends to whom in each step, how many samples travel
together, and whether all ranks wait for each other. All move the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.workload.exchange.partners import couple_neighbours, pair_by_importance

if TYPE_CHECKING:
    from simshuffle.studies.congestion.traffic import UsedFabric

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Batching = Literal["sample", "iteration", "all"]
BATCHINGS: dict[Batching, str] = {
    "sample": "a sample",
    "iteration": "an iteration",
    "all": "an epoch",
}
"""What a message carries, and what tables, figures and sentences call that."""


@dataclass(frozen=True)
class PatternSteps:
    """What partners are chosen for: ``count`` steps; (M,) ``importance`` of each rank."""

    count: int
    fabric: UsedFabric
    rng: np.random.Generator
    importance: Floats

    @property
    def ranks(self) -> Ints:
        """(M,) numbers of the ranks."""
        return np.arange(self.fabric.world_size, dtype=np.int32)

    @property
    def distances(self) -> NDArray[np.int64]:
        """(count, 1) a distance from 1 to M - 1 for each step."""
        return distances(self.count, self.fabric.world_size - 1)[:, None]


def distances(steps: int, most: int) -> NDArray[np.int64]:
    """(steps,) numbers from 1 to ``most``, all in turn as often as they fit; the rest spread
    evenly."""
    rounds, rest = divmod(steps, most)
    spread = 1 + (2 * np.arange(rest) + 1) * most // (2 * max(rest, 1))
    return np.concatenate([np.tile(np.arange(1, most + 1), rounds), spread])


def _permutation(of: PatternSteps) -> NDArray[np.int64]:
    """A random permutation without a fixed point, all of them alike."""
    while True:
        drawn = of.rng.permutation(len(of.ranks))
        if not np.any(drawn == of.ranks):
            return drawn


def _by_topology(of: PatternSteps) -> Ints:
    """Random pairs on each leaf switch; of those left over the nearest."""
    fabric, rng, count = of.fabric, of.rng, of.fabric.world_size
    order = rng.permutation(count)
    order = order[np.argsort(fabric.leaf[order], kind="stable")]
    sizes = np.bincount(fabric.leaf)
    odd = np.cumsum(sizes)[sizes % 2 == 1] - 1
    partner = couple_neighbours(np.delete(order, odd), count)
    left = rng.permutation(order[odd])
    for a, b in _nearest_first(fabric, left):
        partner[a], partner[b] = b, a
    return partner


def _nearest_first(fabric: UsedFabric, ranks: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Pairs of ``ranks``, those of the fewest links first; each takes the first it finds."""
    src, dst = (index.ravel() for index in np.meshgrid(ranks, ranks, indexing="ij"))
    routes = fabric.resources.afresh().message(src, dst)[0]
    hops = (routes >= 0).sum(axis=1).reshape(len(ranks), len(ranks))
    np.fill_diagonal(hops, 0)
    free = np.ones(len(ranks), bool)
    for distance in np.unique(hops[hops > 0]):
        for i in range(len(ranks)):
            near = free & (hops[i] == distance)
            if free[i] and near.any():
                j = int(np.argmax(near))
                free[i] = free[j] = False
                yield int(ranks[i]), int(ranks[j])


@dataclass(frozen=True)
class ExchangePattern:
    """Who sends to whom in an exchange."""

    label: str  # what tables, figures and sentences call the pattern
    # the receivers of each rank's message, (M,) for all steps or (steps, M) for each; None where
    # every rank sends to all others at once
    receivers: Callable[[PatternSteps], NDArray[np.integer]] | None


FIXED = ("all_to_all", "linear_shift", "xor")
"""Patterns whose receivers do not depend on the seed."""
PATTERNS: dict[str, ExchangePattern] = {
    # every rank's bytes cut equally over all other ranks, all messages at once
    "all_to_all": ExchangePattern("all-to-all", None),
    # for every message a fresh random permutation of the ranks in which none keeps its own
    "random_permutations": ExchangePattern(
        "random permutations",
        lambda steps: np.array([_permutation(steps) for _ in range(steps.count)]),
    ),
    # message k goes to rank (r + s_k) mod M, the distances s_k spread evenly over 1 to M - 1
    "linear_shift": ExchangePattern(
        "shift", lambda steps: (steps.ranks + steps.distances) % len(steps.ranks)
    ),
    # message k goes to rank r xor s_k, spread likewise; M must be a power of two
    "xor": ExchangePattern("xor", lambda steps: steps.ranks ^ steps.distances),
    # one partner for the epoch: a random matching of the ranks
    "pairing_random": ExchangePattern(
        "random pairs",
        lambda steps: couple_neighbours(steps.rng.permutation(len(steps.ranks)), len(steps.ranks)),
    ),
    # the rank of i-th lowest importance with that of i-th highest
    "pairing_importance": ExchangePattern(
        "pairs by importance", lambda steps: pair_by_importance(steps.importance, steps.ranks)
    ),
    # at random on the same leaf switch; those left over with the nearest
    "pairing_topology": ExchangePattern("pairs on one leaf", _by_topology),
}
"""The exchange patterns by their keys."""


def partners(
    pattern: str, steps: int, fabric: UsedFabric, rng: np.random.Generator, importance: Floats
) -> Ints:
    """Receiver of each rank's message in every step: (steps, M) int32, a permutation in each row; a
    rank's own number if it stays alone. A ValueError if xor is given no power of two of ranks."""
    count = fabric.world_size
    if needs_power_of_two(pattern, count):
        raise ValueError(f"xor needs a power of two of ranks; got {count}")
    receivers = PATTERNS[pattern].receivers
    if receivers is None:
        raise ValueError(f"{pattern} does not go in steps")
    found = receivers(PatternSteps(steps, fabric, rng, importance))
    return np.broadcast_to(found.astype(np.int32), (steps, count))


@dataclass(frozen=True, order=True)
class Variant:
    """One way of carrying out an exchange."""

    pattern: str  # one of `PATTERNS`
    # samples in a message: one 'sample', those of one 'iteration', or 'all'
    batching: Batching = "all"
    # whether a message waits until the messages before it have ended on all ranks, and not on its
    # sender alone
    barrier: bool = False

    @property
    def keeps_partner(self) -> bool:
        """Whether every rank has one partner for the epoch."""
        return self.pattern.startswith("pairing")

    @property
    def label(self) -> str:
        """Return what sentences call the variant."""
        pattern = PATTERNS[self.pattern].label
        return pattern if self.pattern == "all_to_all" else f"{pattern}, {self.message_label}"

    @property
    def message_label(self) -> str:
        """Return what tables and sentences call the messages of the variant."""
        if self.pattern == "all_to_all":
            return "one message to every rank"
        return f"one message {BATCHINGS[self.batching]}{', with a barrier' * self.barrier}"

    @property
    def row_label(self) -> str:
        """Return what the row of a figure says of the messages of the variant."""
        if self.pattern == "all_to_all":
            return "to every rank"
        return f"{BATCHINGS[self.batching]}{', barrier' * self.barrier}"

    def __str__(self) -> str:
        if self.pattern == "all_to_all":
            return self.pattern
        return f"{self.pattern} {self.batching}{' barrier' if self.barrier else ''}"


def variants(patterns: Iterable[str]) -> list[Variant]:
    """The variants that make sense: barriers between messages, all-to-all at once."""
    several = [(batching, barrier) for batching in [*BATCHINGS][:2] for barrier in (True, False)]
    return [
        Variant(pattern, *how)
        for pattern in patterns
        for how in ([] if pattern == "all_to_all" else several) + [("all", False)]
    ]


def needs_power_of_two(pattern: str, world_size: int) -> bool:
    """Whether ``pattern`` cannot be made for that many ranks."""
    return pattern == "xor" and world_size & (world_size - 1) != 0

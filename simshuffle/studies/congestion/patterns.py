"""Exchange patterns and their variants: who sends to whom in each step, how many
samples travel together, and whether all ranks wait for each other. All patterns move
the same bytes.
"""

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
"""Contents of a message, with their names in tables, figures and sentences."""


@dataclass(frozen=True)
class PatternSteps:
    """The input of an `ExchangePattern`: ``count`` steps on a fabric, and (M,)
    ``importance`` of the ranks.
    """

    count: int  # steps: messages that a rank sends one after the other
    fabric: UsedFabric  # the network between the ranks
    rng: np.random.Generator  # drawn from by random patterns
    importance: Floats  # (M,), which pairs by importance alone use

    @property
    def ranks(self) -> Ints:
        """Return the indices of the ranks, (M,)."""
        return np.arange(self.fabric.world_size, dtype=np.int32)

    @property
    def distances(self) -> NDArray[np.int64]:
        """Return a distance from 1 to M - 1 for each step, (count, 1)."""
        return distances(self.count, self.fabric.world_size - 1)[:, None]


def distances(steps: int, max_distance: int) -> NDArray[np.int64]:
    """Return a distance from 1 to ``max_distance`` for each step, (steps,).

    They are all distances in turn as often as they fit, and for the remaining steps
    distances that are evenly spread.
    """
    rounds, remaining_steps = divmod(steps, max_distance)
    remaining_distances = 1 + (2 * np.arange(remaining_steps) + 1) * max_distance // (
        2 * max(remaining_steps, 1)
    )
    return np.concatenate(
        [np.tile(np.arange(1, max_distance + 1), rounds), remaining_distances]
    )


def _shift_in_balance(steps: PatternSteps) -> NDArray[np.int64]:
    """Return the receivers, (count, M), of a shift that loads all racks alike in each
    step.

    Of the S ranks of a rack, about S^2 / M stay inside in every step, where a shift by d
    keeps S - d, or none: on a tapered tree, no step waits for the cables above the racks
    while another leaves them idle. For racks of equal size, Prisacari, Rodriguez,
    Minkenberg and Hoefler (ICS 2013) have such schedules, which need half the bisection.
    """
    rack = steps.fabric.rack
    count = len(rack)
    # by place: the ranks rack by rack, and the places of each rack in turn
    ranks = np.argsort(rack, kind="stable")
    rack = rack[ranks]
    sizes = np.bincount(rack)[rack]
    place = np.arange(count)
    place_in_rack = place - np.searchsorted(rack, rack)
    # all racks in turn, each as often as it has ranks: of any S in a row, S^2 / M are of one
    mixed = np.lexsort((rack, (place_in_rack + 0.5) / sizes))
    receiver = mixed[(place + distances(steps.count, count)[:, None]) % count]

    # whoever would keep its message swaps with a neighbour, of its rack if there is one
    neighbour = (
        place + np.where((place_in_rack + 1 < sizes) | (sizes == 1), 1, -1)
    ) % count
    for step, sender in np.argwhere(receiver == place):
        if receiver[step, sender] == sender:
            pair = [sender, neighbour[sender]]
            receiver[step, pair] = receiver[step, pair[::-1]]
    receiver_of_rank: NDArray[np.int64] = np.empty_like(receiver)
    receiver_of_rank[:, ranks] = ranks[receiver]
    return receiver_of_rank


def _draw_permutation(steps: PatternSteps) -> NDArray[np.int64]:
    """Draw a permutation of the ranks uniformly from those without a fixed point.

    There are at least two ranks; one rank alone would never end. Rejected draws are
    taken from ``steps.rng``, too.
    """
    while True:
        receivers = steps.rng.permutation(len(steps.ranks))
        if not np.any(receivers == steps.ranks):
            return receivers


def _pair_by_leaf(steps: PatternSteps) -> Ints:
    """Return the partner of each rank, (M,), on its leaf switch where it can be.

    Ranks of a leaf are paired at random; of leaves with an odd number of ranks, the
    unpaired ranks with the nearest. Of an odd number of ranks, one is its own partner.
    """
    fabric = steps.fabric
    rng = steps.rng
    count = steps.fabric.world_size
    order = rng.permutation(count)
    order = order[np.argsort(fabric.leaf[order], kind="stable")]
    sizes = np.bincount(fabric.leaf)
    odd_positions = np.cumsum(sizes)[sizes % 2 == 1] - 1
    partner = couple_neighbours(np.delete(order, odd_positions), count)
    unpaired = rng.permutation(order[odd_positions])
    for rank, peer in _pair_nearest(fabric, unpaired):
        partner[rank], partner[peer] = peer, rank
    return partner


def _pair_nearest(
    fabric: UsedFabric, ranks: NDArray[np.integer]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of ``ranks``, those with the fewest links between them first.

    Each rank takes the first free rank, in the order of ``ranks``. The last rank of an
    odd number is in no pair.
    """
    src, dst = (index.ravel() for index in np.meshgrid(ranks, ranks, indexing="ij"))
    routes = fabric.resources.with_fresh_routes().message(src, dst)[0]
    # [i, j]: links from ranks[i] to ranks[j]; 0 from a rank to itself
    hops = (routes >= 0).sum(axis=1).reshape(len(ranks), len(ranks))
    np.fill_diagonal(hops, 0)
    is_free = np.ones(len(ranks), bool)
    for distance in np.unique(hops[hops > 0]):
        for i in range(len(ranks)):
            is_near = is_free & (hops[i] == distance)
            if is_free[i] and is_near.any():
                j = int(np.argmax(is_near))
                is_free[i] = is_free[j] = False
                yield int(ranks[i]), int(ranks[j])


@dataclass(frozen=True)
class ExchangePattern:
    """A rule for who sends to whom in an exchange."""

    label: str  # what tables, figures and sentences call the pattern
    # the receivers of each rank's message, (M,) for all steps or (steps, M) for each; None where
    # every rank sends to all others at once
    receivers: Callable[[PatternSteps], NDArray[np.integer]] | None


FIXED = ("all_to_all", "linear_shift", "balanced_shift", "xor")
"""Patterns whose receivers do not depend on the seed: nothing is drawn for them."""
PATTERNS: dict[str, ExchangePattern] = {
    # every rank's bytes cut equally over all other ranks, all messages at once
    "all_to_all": ExchangePattern("all-to-all", None),
    # for every message a fresh random permutation of the ranks in which none keeps its own
    "random_permutations": ExchangePattern(
        "random permutations",
        lambda steps: np.array([_draw_permutation(steps) for _ in range(steps.count)]),
    ),
    # message k goes to rank (r + s_k) mod M, the distances s_k spread evenly over 1 to M - 1
    "linear_shift": ExchangePattern(
        "shift", lambda steps: (steps.ranks + steps.distances) % len(steps.ranks)
    ),
    # as far in an order that takes ranks of all racks in turn, so every step loads racks alike
    "balanced_shift": ExchangePattern("balanced shift", _shift_in_balance),
    # message k goes to rank r xor s_k, spread likewise; M must be a power of two
    "xor": ExchangePattern("xor", lambda steps: steps.ranks ^ steps.distances),
    # one partner for the epoch: a random matching of the ranks
    "pairing_random": ExchangePattern(
        "random pairs",
        lambda steps: couple_neighbours(
            steps.rng.permutation(len(steps.ranks)), len(steps.ranks)
        ),
    ),
    # the rank of i-th lowest importance with that of i-th highest
    "pairing_importance": ExchangePattern(
        "pairs by importance",
        lambda steps: pair_by_importance(steps.importance, steps.ranks),
    ),
    # at random on the same leaf switch; those left over with the nearest
    "pairing_topology": ExchangePattern("pairs on one leaf", _pair_by_leaf),
}
"""The exchange patterns by their keys."""


def choose_partners(
    pattern: str,
    steps: int,
    fabric: UsedFabric,
    rng: np.random.Generator,
    importance: Floats,
) -> Ints:
    """Return the receiver of each rank's message in every step: (steps, M) int32.

    Each row is a permutation; a rank that stays alone is its own receiver. The array is
    read-only, and a view of one row where all steps are equal.

    Raises:
        ValueError: xor is given no power of two of ranks, or the pattern does not go in
            steps.
    """
    world_size = fabric.world_size
    if needs_power_of_two(pattern, world_size):
        raise ValueError(f"xor needs a power of two of ranks; got {world_size}")
    receivers = PATTERNS[pattern].receivers
    if receivers is None:
        raise ValueError(f"{pattern} does not go in steps")
    receiver = receivers(PatternSteps(steps, fabric, rng, importance))
    return np.broadcast_to(receiver.astype(np.int32), (steps, world_size))


@dataclass(frozen=True, order=True)
class Variant:
    """A variant of an exchange: its pattern, the content of a message, and its
    barriers.
    """

    pattern: str  # one of `PATTERNS`
    # samples in a message: one 'sample', those of one 'iteration', or 'all'
    batching: Batching = "all"
    # whether a message waits until the messages before it have ended on all ranks, and not on its
    # sender alone
    barrier: bool = False

    @property
    def keeps_partner(self) -> bool:
        """Return true if every rank has one partner for the epoch, as in a pairing."""
        return self.pattern.startswith("pairing")

    @property
    def label(self) -> str:
        """Return the variant's label in sentences: its pattern and its messages, such
        as 'shift, one message a sample, with a barrier'.
        """
        pattern = PATTERNS[self.pattern].label
        return (
            pattern
            if self.pattern == "all_to_all"
            else f"{pattern}, {self.message_label}"
        )

    @property
    def message_label(self) -> str:
        """Return the label of the variant's messages in tables and sentences, such as
        'one message a sample, with a barrier'.
        """
        if self.pattern == "all_to_all":
            return "one message to every rank"
        return (
            f"one message {BATCHINGS[self.batching]}{', with a barrier' * self.barrier}"
        )

    @property
    def row_label(self) -> str:
        """Return the label of the variant's messages in the row of a figure, such as
        'a sample, barrier'.
        """
        if self.pattern == "all_to_all":
            return "to every rank"
        return f"{BATCHINGS[self.batching]}{', barrier' * self.barrier}"

    def __str__(self) -> str:
        """Return the key of the variant in tables, such as 'xor sample barrier';
        'all_to_all' for every all-to-all.
        """
        if self.pattern == "all_to_all":
            return self.pattern
        return f"{self.pattern} {self.batching}{' barrier' if self.barrier else ''}"


def variants(patterns: Iterable[str]) -> list[Variant]:
    """Return the variants of ``patterns`` that make sense, by pattern, then by
    batching.

    Of a batching, the variant with barriers comes first. An epoch's message has no
    barriers. An all-to-all has one variant: batching 'all', without barriers.
    """
    message_modes = [
        (batching, barrier)
        for batching in [*BATCHINGS][:2]
        for barrier in (True, False)
    ]
    return [
        Variant(pattern, *mode)
        for pattern in patterns
        for mode in ([] if pattern == "all_to_all" else message_modes)
        + [("all", False)]
    ]


def needs_power_of_two(pattern: str, world_size: int) -> bool:
    """Return true if ``pattern`` cannot be made for ``world_size`` ranks.

    Only xor cannot, where it is no power of two.
    """
    return pattern == "xor" and world_size & (world_size - 1) != 0

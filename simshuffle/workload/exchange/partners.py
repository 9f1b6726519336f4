"""Rules by which ranks find their partners: a random order, or matchings, in which the
partner of a rank's partner is the rank itself.

To add a rule, write a function and add it to `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from simshuffle.spec.arrays import Floats, Ints, Ints32


@dataclass(frozen=True)
class Pool:
    """The facts from which a rule finds the partners of an epoch: one row for each
    pairing.
    """

    order: Ints  # (pairings, M) a random order of all ranks, the same under every rule
    group: (
        Ints  # (M,) index of the group of each rank; partners are found within groups
    )
    # (pairings, M) importance of each rank as the pairing begins; None for rules that need none
    importance: Floats | None = None
    # share of the higher importance; see `simshuffle.workload.exchange.schedule.Pairing`
    least_difference: float = 0.0


@dataclass(frozen=True)
class PartnerRule:
    """A rule by which ranks find their partners."""

    # finds the rank that each rank of a pool sends to: (pairings, M) integers, a permutation of the
    # ranks in each row. Raises a ValueError where importance is needed and not there.
    partners: Callable[[Pool], Ints]
    needs_importance: bool = False  # whether it needs the importance of each rank
    # keys of the schedule that only this rule uses; any other refuses them
    keys: tuple[str, ...] = ()


def random_permutation_partners(pool: Pool) -> Ints:
    """Send along the drawn order itself: rank r sends to ``order[r]``, which may be r.

    Several groups are permuted each within itself.
    """
    target = np.empty_like(pool.order)
    # the i-th rank of a group, by its index, sends to the i-th of the group in the drawn order
    ranks_by_group = np.argsort(pool.group, kind="stable")
    target[:, ranks_by_group] = sort_by_group(pool.order, pool.group)
    return target


def random_pair_partners(pool: Pool) -> Ints:
    """Pair the ranks of each group at random.

    Each group of an odd number leaves one rank over. These ranks are paired with each
    other, in the order of their groups. Among an odd number of ranks in all, one is its
    own partner.
    """
    group_sizes = np.bincount(pool.group)
    # position of the last rank of every odd group, once the ranks are sorted by group
    last_of_odd = np.cumsum(group_sizes)[group_sizes % 2 == 1] - 1
    order = sort_by_group(pool.order, pool.group)
    evens = np.delete(order, last_of_odd, axis=1)
    coupled_order = np.concatenate([evens, order[:, last_of_odd]], axis=1)
    return couple_neighbours(coupled_order, len(pool.group)).astype(np.int64)


def importance_sorted_partners(pool: Pool) -> Ints:
    """Pair ranks by `pair_by_importance`, ranks of equal importance in the drawn order.

    With a ``least_difference`` above 0, ranks are their own partners if their
    importances are equal or differ by less than this share of the higher one.

    Raises:
        ValueError: if the pool has no importance.
    """
    importance = pool.importance
    if importance is None:
        raise ValueError(
            "partners sorted by importance need the importance (pairings, M) of each rank"
        )
    partner = pair_by_importance(importance, pool.order, pool.group).astype(np.int64)
    if pool.least_difference == 0:
        return partner
    partner_importance = np.take_along_axis(importance, partner, axis=1)
    min_difference = pool.least_difference * np.maximum(importance, partner_importance)
    is_similar = np.abs(importance - partner_importance) < min_difference
    is_similar |= importance == partner_importance
    return np.where(is_similar, np.arange(importance.shape[1]), partner)


RULES = {
    "random": PartnerRule(random_permutation_partners),
    "random_pairs": PartnerRule(random_pair_partners),
    "importance_sorted": PartnerRule(
        importance_sorted_partners,
        needs_importance=True,
        keys=("rank_importance", "least_difference"),
    ),
}
"""All rules by the name that ``partner_rule`` gives them."""

if TYPE_CHECKING:
    PartnerRuleName = str
else:
    PartnerRuleName = Literal[tuple(RULES)]


def sort_by_group(order: Ints, group: Ints) -> Ints:
    """Sort ``order`` (..., M) by group, stably: the ranks of group 0 first, then those
    of group 1, ...
    """
    return np.take_along_axis(
        order, np.argsort(group[order], axis=-1, kind="stable"), axis=-1
    )


def couple_neighbours(order: Ints, world_size: int) -> Ints32:
    """Couple neighbours of an order: its first two ranks, the next two, and so on.

    In a random order, this makes a random matching. The last rank of an odd number is
    its own partner, and so is each rank that ``order`` lacks.

    Args:
        order: (..., k) ranks.
        world_size: M.

    Returns:
        (..., M) int32, the partner of each rank.
    """
    partner = np.tile(np.arange(world_size, dtype=np.int32), (*order.shape[:-1], 1))
    num_coupled = order.shape[-1] // 2 * 2
    first_ranks = order[..., 0:num_coupled:2]
    second_ranks = order[..., 1:num_coupled:2]
    np.put_along_axis(partner, first_ranks, second_ranks.astype(np.int32), axis=-1)
    np.put_along_axis(partner, second_ranks, first_ranks.astype(np.int32), axis=-1)
    return partner


def pair_by_importance(
    importance: Floats, order: Ints, group: Ints | None = None
) -> Ints32:
    """Pair the rank of i-th lowest importance with that of i-th highest, in all or in
    each group.

    "we pair the worker that holds the most important sample with the worker that holds
    the least importance of samples, and so on" (Nguyen and Tanimura, Efficient Sample
    Exchanging, poster). In an odd group the rank in the middle is its own partner.

    Args:
        importance: (..., M) of each rank.
        order: (..., M) all ranks; of equal importance, the earlier in ``order`` counts
            as lower.
        group: (M,) index of each rank's group; None for one group.

    Returns:
        (..., M) int32, the partner of each rank.
    """
    # ranked[i]: the rank of i-th lowest importance; the i-th is paired with the i-th from the end
    rising = np.argsort(
        np.take_along_axis(importance, order, axis=-1), axis=-1, kind="stable"
    )
    ranked = np.take_along_axis(order, rising, axis=-1)
    partner = np.empty(ranked.shape, np.int32)
    mirrored_position = np.arange(ranked.shape[-1])[::-1]
    if group is not None:
        ranked = sort_by_group(ranked, group)
        group_sizes = np.bincount(group)
        group_end = np.cumsum(group_sizes)
        # position i of a group that begins at s and ends at e is mirrored to s + e - 1 - i
        start_plus_end = 2 * group_end - group_sizes
        mirrored_position = np.repeat(start_plus_end - 1, group_sizes) - np.arange(
            len(group)
        )
    mirrored_ranks = ranked[..., mirrored_position].astype(np.int32)
    np.put_along_axis(partner, ranked, mirrored_ranks, axis=-1)
    return partner

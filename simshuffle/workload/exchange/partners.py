"""Rules by which ranks find their partners: a random order, or matchings, whose partners' partners
are the ranks themselves. To add one, write a function and add it to `RULES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from simshuffle.spec.arrays import Floats, Ints, Ints32


@dataclass(frozen=True)
class Pool:
    """What the partners of an epoch are found from; a row for each time that they are."""

    order: Ints  # (pairings, M) a random order of all ranks, the same under every rule
    group: Ints  # (M,) number of the group of each rank; partners are found within groups
    # (pairings, M) of each rank then; None for rules that need none
    importance: Floats | None = None
    least_difference: float = 0.0  # see `simshuffle.workload.exchange.schedule.Pairing`


@dataclass(frozen=True)
class PartnerRule:
    """A rule by which ranks find their partners."""

    # whom each rank of a pool sends to: (pairings, M) integers, a permutation of the ranks in each
    # row. Raises a ValueError where importance is needed and not there.
    partners: Callable[[Pool], Ints]
    needs_importance: bool = False  # whether it needs the importance of each rank
    # keys of the schedule that only this rule uses; any other refuses them
    keys: tuple[str, ...] = ()


def random_permutation(pool: Pool) -> Ints:
    """The drawn order itself: rank r sends to ``order[r]``; several groups are permuted each in
    itself."""
    target = np.empty_like(pool.order)
    # the i-th rank of a group by number sends to the i-th of the group in the drawn order
    target[:, np.argsort(pool.group, kind="stable")] = by_group(pool.order, pool.group)
    return target


def random_pairs(pool: Pool) -> Ints:
    """A random matching. Of each odd group one rank is left over; these are paired in the order of
    their groups. Of an odd number of ranks one is its own partner."""
    sizes = np.bincount(pool.group)
    # of every odd group the last place, once the ranks are put in the order of their groups
    odd = np.cumsum(sizes)[sizes % 2 == 1] - 1
    order = by_group(pool.order, pool.group)
    paired = np.concatenate([np.delete(order, odd, axis=1), order[:, odd]], axis=1)
    return couples(paired, len(pool.group)).astype(np.int64)


def importance_sorted(pool: Pool) -> Ints:
    """`sorted_pairs`, equals in the drawn order. Ranks that differ by less than
    ``least_difference`` of the higher importance are their own partners."""
    importance = pool.importance
    if importance is None:
        raise ValueError(
            "partners sorted by importance need the importance (pairings, M) of each rank"
        )
    partner = sorted_pairs(importance, pool.order, pool.group).astype(np.int64)
    if pool.least_difference == 0:
        return partner
    of_partner = np.take_along_axis(importance, partner, axis=1)
    least = pool.least_difference * np.maximum(importance, of_partner)
    alike = (np.abs(importance - of_partner) < least) | (importance == of_partner)
    return np.where(alike, np.arange(importance.shape[1]), partner)


RULES = {
    "random": PartnerRule(random_permutation),
    "random_pairs": PartnerRule(random_pairs),
    "importance_sorted": PartnerRule(
        importance_sorted, needs_importance=True, keys=("rank_importance", "least_difference")
    ),
}
"""All rules by the name that ``partner_rule`` gives them."""

if TYPE_CHECKING:
    PartnerRuleName = str
else:
    PartnerRuleName = Literal[tuple(RULES)]


def by_group(order: Ints, group: Ints) -> Ints:
    """``order`` (..., M) with the ranks of group 0 first, then those of group 1, ..., each in their
    order."""
    return np.take_along_axis(order, np.argsort(group[order], axis=-1, kind="stable"), axis=-1)


def couples(order: Ints, world_size: int) -> Ints32:
    """Partners, (..., M) int32, if the first two ranks of ``order``, (..., k), are a pair, the next
    two, ... In random order they make a random matching. The last of an odd number is its own, and
    so are ranks that ``order`` lacks."""
    partner = np.tile(np.arange(world_size, dtype=np.int32), (*order.shape[:-1], 1))
    even = order.shape[-1] // 2 * 2
    left, right = order[..., 0:even:2], order[..., 1:even:2]
    np.put_along_axis(partner, left, right.astype(np.int32), axis=-1)
    np.put_along_axis(partner, right, left.astype(np.int32), axis=-1)
    return partner


def sorted_pairs(importance: Floats, order: Ints, group: Ints | None = None) -> Ints32:
    """Partners if the rank of i-th lowest importance is paired with that of i-th highest, among all
    ranks or those of a group. "we pair the worker that holds the most important sample with the
    worker that holds the least importance of samples, and so on" (Nguyen and Tanimura, Efficient
    Sample Exchanging, poster). Returns (..., M) int32, a partner for each rank. In an odd group the
    rank in the middle is its own.

    Args:
        importance: (..., M) of each rank.
        order: (..., M) all ranks; of equal importance, the earlier in ``order`` counts as lower.
        group: (M,) number of each rank's group; None for one group.
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

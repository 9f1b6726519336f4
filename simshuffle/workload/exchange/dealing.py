"""Deal samples to other ranks, so that few samples move. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange.plan import random_order


@dataclass(frozen=True)
class Redistribution:
    """The owners of all samples before and after they were dealt anew.

    Both are ranks as they are numbered afterwards; -1 stands for ranks that are gone.
    """

    previous_owner: Ints  # (N,)
    new_owner: Ints  # (N,)

    def cost(self, nbytes: Floats | Ints64) -> RedistributionCost:
        """Count the samples that stay, are sent or are read anew, and their bytes.

        ``nbytes`` is (N,), as long as the owners: empty where nobody owns samples.
        """
        is_read = self.previous_owner < 0
        changes_rank = self.previous_owner != self.new_owner
        is_sent = changes_rank & ~is_read
        return RedistributionCost(
            stayed=int((~changes_rank).sum()),
            sent=int(is_sent.sum()),
            read=int(is_read.sum()),
            sent_nbytes=float(nbytes[is_sent].sum()),
            read_nbytes=float(nbytes[is_read].sum()),
            read_samples=np.flatnonzero(is_read),
        )


@dataclass(frozen=True)
class RedistributionCost:
    """The samples of the whole set that dealing moves, and their bytes."""

    stayed: int  # samples that stay with their rank
    sent: int  # samples sent from one rank that goes on to another
    read: int  # samples read again from the source: their rank is gone
    sent_nbytes: float
    read_nbytes: float
    # (read,) the samples that are read again
    read_samples: Ints64 = field(
        default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False
    )


def deal_samples(
    owner: Ints, remaining: Flags, world_size: int, rng: np.random.Generator
) -> Ints:
    """Deal all samples to the ranks, so that ranks differ by one at most and few
    samples move.

    Ranks differ by one at most in the samples that remain to be trained on, and in all
    samples. As few of the remaining samples change their rank as is possible, and then
    as few of the others; which samples change, and to which rank, is drawn.

    Args:
        owner: (N,) the rank that has each sample, -1 for nobody.
        remaining: (N,) True for samples that remain to be trained on.
        world_size: M.
        rng: yields the same on every rank.

    Returns:
        (N,) the rank that gets each sample.
    """
    order = random_order(len(owner), rng)
    new_owner = owner.copy()
    # the samples of each kind in random order, and how many of them each rank has: (M,)
    remaining_samples = order[remaining[order]]
    finished_samples = order[~remaining[order]]
    kinds = (remaining_samples, finished_samples)
    counts = [
        np.bincount(owner[kind] + 1, minlength=world_size + 1)[1:] for kind in kinds
    ]
    totals = len(remaining_samples), len(finished_samples)
    quotas = balance_quotas(counts[0], counts[1], totals)

    for samples, quota in zip(kinds, quotas, strict=True):
        by_rank = np.argsort(owner[samples], kind="stable")
        rank = owner[samples][by_rank]
        # index of each sample among those of its rank: the first ``quota`` of them stay
        index_in_rank = np.arange(len(rank)) - np.searchsorted(rank, rank)
        stays = np.empty(len(samples), np.bool_)
        stays[by_rank] = (rank >= 0) & (index_in_rank < quota[rank])
        num_staying = np.bincount(owner[samples[stays]], minlength=world_size)
        new_owner[samples[~stays]] = np.repeat(
            np.arange(world_size), quota - num_staying
        )
    return new_owner


def balance_quotas(
    num_remaining: Ints64, num_finished: Ints64, totals: tuple[int, int]
) -> tuple[Ints64, Ints64]:
    """Decide how many remaining and how many finished samples each rank gets, (M,)
    each.

    Ranks differ by one at most in remaining samples, and in all. Most samples stay with
    their rank, remaining ones before finished ones: the ranks that get one more of a
    kind are those that have one more.

    Args:
        num_remaining: (M,) remaining samples that each rank has.
        num_finished: (M,) finished samples that each rank has.
        totals: of remaining and of finished samples, those that nobody has included.
    """
    world_size = len(num_remaining)
    min_remaining, ranks_with_extra_remaining = divmod(totals[0], world_size)
    min_samples, ranks_with_extra = divmod(sum(totals), world_size)
    base = (
        min_samples - min_remaining
    )  # finished samples of a rank that gets no extra one
    remaining_quota = np.full(world_size, min_remaining)
    finished_quota = np.full(world_size, base)

    # Among ranks with as many remaining samples, those with the fewest finished ones get the extra
    # remaining sample, and one finished sample less.
    finished_near_base = np.clip(num_finished, base - 1, base + 1)
    has_no_extra = num_remaining <= min_remaining
    order = np.lexsort((finished_near_base, has_no_extra))
    with_extra_remaining = order[:ranks_with_extra_remaining]
    remaining_quota[with_extra_remaining] += 1
    finished_quota[with_extra_remaining] -= 1

    # The extra samples go first to ranks whose quota is below none, then to those that have more.
    order = np.lexsort((num_finished <= finished_quota, finished_quota >= 0))
    finished_quota[order[:ranks_with_extra]] += 1
    return remaining_quota, finished_quota

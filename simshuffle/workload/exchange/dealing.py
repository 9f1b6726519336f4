"""Samples dealt out anew to other ranks, such that few of them move. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange.plan import random_order


@dataclass(frozen=True)
class Dealt:
    """Who had each sample, by the number that the rank has now and -1 for ranks that are gone, and
    who has it now."""

    before: Ints  # (N,)
    after: Ints  # (N,)

    def moved(self, nbytes: Floats | Ints64) -> Moved:
        """What that costs, given the bytes (N,) of each sample."""
        lost, changed = self.before < 0, self.before != self.after
        sent = changed & ~lost
        return Moved(
            int((~changed).sum()),
            int(sent.sum()),
            int(lost.sum()),
            float(nbytes[sent].sum()),
            float(nbytes[lost].sum()),
        )


@dataclass(frozen=True)
class Moved:
    """What dealing costs, in samples of the whole set and their bytes."""

    stay: int  # with their rank
    sent: int  # from one rank that goes on to another
    read: int  # again from the source: their rank is gone
    sent_nbytes: float
    read_nbytes: float


def dealt(owner: Ints, left: Flags, world_size: int, rng: np.random.Generator) -> Ints:
    """(N,) who gets each sample, such that ranks differ by one at most both in those that are
    ``left`` to be trained on, (N,), and in all. ``owner`` is (N,) who has it, -1 for nobody. As few
    of those that are left change their rank as is possible, and then as few of the others; which
    ones, and where to, is drawn."""
    order, after = random_order(len(owner), rng), owner.copy()
    parts = [order[which[order]] for which in (left, ~left)]
    has = [np.bincount(owner[part] + 1, minlength=world_size + 1)[1:] for part in parts]
    sizes = len(parts[0]), len(parts[1])
    for part, quota in zip(parts, quotas(has[0], has[1], sizes), strict=True):
        by_rank = np.argsort(owner[part], kind="stable")
        rank = owner[part][by_rank]
        place = np.arange(len(rank)) - np.searchsorted(rank, rank)
        keeps = np.empty(len(part), np.bool_)
        keeps[by_rank] = (rank >= 0) & (place < quota[rank])
        kept = np.bincount(owner[part[keeps]], minlength=world_size)
        after[part[~keeps]] = np.repeat(np.arange(world_size), quota - kept)
    return after


def quotas(left: Ints64, others: Ints64, sizes: tuple[int, int]) -> tuple[Ints64, Ints64]:
    """How many samples each rank gets, (M,) of those that are left and (M,) of the others, given
    how many it has of both and how many there are, ``sizes``. Most stay by it, of those that are
    left before others: the ranks that get one more are those that have it."""
    low, more = divmod(sizes[0], len(left))
    least, most = divmod(sum(sizes), len(left))
    base = least - low  # of the others, for a rank that gets one more of neither
    get_left, get = np.full(len(left), low), np.full(len(left), base)
    # where as many have one more left, it is taken from the others of those who have fewest
    first = np.lexsort((np.clip(others, base - 1, base + 1), left <= low))[:more]
    get_left[first] += 1
    get[first] -= 1
    # nobody can get less than none; then those who have one more
    get[np.lexsort((others <= get, get >= 0))[:most]] += 1
    return get_left, get

"""Random pairs: a matching of all ranks, or of those of a group."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simshuffle.exchange.partners.base import Ints, PartnerRule, Pool
from simshuffle.exchange.partners.matching import by_group, couples


class RandomPairs(PartnerRule):
    """Whoever a rank sends to sends to it. Of each odd group one is left over; these are paired in
    the order of their groups. Of an odd number of ranks one keeps its samples."""

    name: ClassVar[str] = "random_pairs"

    def partners(self, pool: Pool) -> Ints:
        """(pairings, M): a random matching, its own partner for a rank that has none."""
        sizes = np.bincount(pool.group)
        # of every odd group the last place, once the ranks are put in the order of their groups
        odd = np.cumsum(sizes)[sizes % 2 == 1] - 1
        order = by_group(pool.order, pool.group)
        paired = np.concatenate([np.delete(order, odd, axis=1), order[:, odd]], axis=1)
        return couples(paired, len(pool.group)).astype(np.int64)

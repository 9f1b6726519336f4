"""Random: a permutation of all ranks, or of those of a group."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simshuffle.exchange.partners.base import Ints, PartnerRule, Pool
from simshuffle.exchange.partners.matching import by_group


class RandomPermutation(PartnerRule):
    """The drawn order itself, drawn from a seed that all share: rank r sends to ``order[r]``. With
    several groups, each is permuted in itself."""

    name: ClassVar[str] = "random"

    def partners(self, pool: Pool) -> Ints:
        """(pairings, M): a random permutation that leaves every group to itself."""
        target = np.empty_like(pool.order)
        # the i-th rank of a group by number sends to the i-th of the group in the drawn order
        target[:, np.argsort(pool.group, kind="stable")] = by_group(pool.order, pool.group)
        return target

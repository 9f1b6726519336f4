"""Sorted by importance: the rank of i-th lowest importance with that of i-th highest."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simshuffle.exchange.partners.base import Ints, PartnerRule, Pool
from simshuffle.exchange.partners.matching import sorted_pairs


class ImportanceSorted(PartnerRule):
    """A matching by sorted importance, equals in the drawn order (`matching.sorted_pairs`). Pairs
    that differ by less than ``least_difference`` of the higher importance exchange nothing."""

    name: ClassVar[str] = "importance_sorted"
    needs_importance: ClassVar[bool] = True
    keys: ClassVar[tuple[str, ...]] = ("rank_importance", "least_difference")

    def partners(self, pool: Pool) -> Ints:
        """(pairings, M): the matching, its own partner for a rank that keeps its samples."""
        importance = pool.importance
        if importance is None:
            raise ValueError(
                "partners sorted by importance need the importance (pairings, M) of each rank"
            )
        partner = sorted_pairs(importance, pool.order, pool.group).astype(np.int64)
        if pool.least_difference == 0:
            return partner
        of_partner = np.take_along_axis(importance, partner, axis=1)
        close = np.abs(importance - of_partner) < pool.least_difference * np.maximum(
            importance, of_partner
        )
        own = np.arange(importance.shape[1])
        return np.where(close | (importance == of_partner), own, partner)

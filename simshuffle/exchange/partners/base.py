"""What every partner rule answers, and what it may look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """What the partners of an epoch are found from; a row for each time that they are.

    Attributes:
        order: (pairings, M) a random order of all ranks, the same under every rule.
        group: (M,) number of the group of each rank; partners are found within groups.
        importance: (pairings, M) of each rank then; None for rules that need none.
        least_difference: see `simshuffle.exchange.schedule.Pairing`.
    """

    order: Ints
    group: Ints
    importance: Floats | None = None
    least_difference: float = 0.0


class PartnerRule(Protocol):
    """A rule by which ranks find their partners.

    Attributes:
        name: the value of ``partner_rule`` that names it.
        needs_importance: whether it needs the importance of each rank.
        keys: keys of the schedule that only this rule uses; any other refuses them.
    """

    name: ClassVar[str]
    needs_importance: ClassVar[bool] = False
    keys: ClassVar[tuple[str, ...]] = ()

    def partners(self, pool: Pool) -> Ints:
        """Whom each rank sends to: (pairings, M) integers, a permutation of the ranks in each row.

        Raises:
            ValueError: importance is needed, and the pool has none.
        """

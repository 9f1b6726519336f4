"""Global shuffle: every epoch a new random partition of the whole data set."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange.base import Source
from simshuffle.exchange.plan import (
    ExchangePlan,
    Places,
    Shards,
    empty_plan,
    initial_owner,
    random_order,
)
from simshuffle.exchange.schedule import ExchangeSchedule
from simshuffle.spec.record import Spec


class GlobalShuffle(Spec):
    """Each rank reads a random 1/M of all samples in every epoch: from the 'pfs', or from an 'ssd'
    that holds the whole set."""

    kind: Literal["global_shuffle"]
    source: Source = "pfs"

    @property
    def fraction(self) -> float | None:
        """None: nothing is exchanged between ranks."""
        return None

    @property
    def carried_out(self) -> ExchangeSchedule | None:
        """None: nothing is exchanged between ranks."""
        return None

    @property
    def needs_importance(self) -> bool:
        """False."""
        return False

    @property
    def lagging(self) -> bool:
        """False."""
        return False

    @property
    def measures_importance(self) -> bool:
        """False."""
        return False

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """1 on the SSD, 0 from the PFS."""
        return 1.0 if self.source == "ssd" else 0.0

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> NDArray[np.integer]:
        """A random partition."""
        return initial_owner(num_samples, world_size, rng)

    def shards(
        self, owner: NDArray[np.integer], world_size: int, rng: np.random.Generator
    ) -> Shards:
        """A random permutation of all samples, cut into M parts."""
        order = random_order(len(owner), rng)
        return Shards(order, np.arange(world_size + 1) * len(owner) // world_size)

    def plan(
        self,
        shards: Shards,
        *,
        batch_size: int,
        iterations: int,
        epoch: int,
        importance: NDArray[np.float64] | None,
        rng: np.random.Generator,
        places: Places | None = None,
    ) -> ExchangePlan:
        """Nothing moves between ranks."""
        return empty_plan(len(shards.sizes))

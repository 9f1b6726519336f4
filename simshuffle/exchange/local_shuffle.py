"""Local shuffle: every rank keeps its shard and shuffles it."""

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
    shuffled_shards,
)
from simshuffle.exchange.schedule import ExchangeSchedule
from simshuffle.spec.record import Spec


class LocalShuffle(Spec):
    """Each rank trains on its own N/M samples, in a new order every epoch; kept on the SSD, or read
    from the PFS each time."""

    kind: Literal["local_shuffle"]
    source: Source = "ssd"

    @property
    def fraction(self) -> float | None:
        """0."""
        return 0.0

    @property
    def carried_out(self) -> ExchangeSchedule | None:
        """None: nothing is exchanged."""
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
        """The host's ranks times 1/M."""
        return ranks_on_host / world_size if self.source == "ssd" else 0.0

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> NDArray[np.integer]:
        """A random partition."""
        return initial_owner(num_samples, world_size, rng)

    def shards(
        self, owner: NDArray[np.integer], world_size: int, rng: np.random.Generator
    ) -> Shards:
        """Each rank's own samples in a new order."""
        return shuffled_shards(owner, world_size, rng)

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
        """Nothing moves."""
        return empty_plan(len(shards.sizes))

"""Global shuffle: every epoch a new random partition of the whole data set."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.exchange.base import Source, Strategy
from simshuffle.exchange.plan import Shards, random_order
from simshuffle.spec.arrays import Ints


class GlobalShuffle(Strategy):
    """Each rank reads a random 1/M of all samples in every epoch: from the 'pfs', from the
    'object_store' of the cluster, or from an 'ssd' that holds the whole set.

    Attributes:
        source: what samples are read from.
    """

    kind: Literal["global_shuffle"]
    redraws: ClassVar[bool] = True
    source: Source = "pfs"

    @property
    def tier(self) -> Source:
        """``source``."""
        return self.source

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """1 on the SSD, 0 from what all hosts share."""
        return 1.0 if self.source == "ssd" else 0.0

    def first_owner(self, num_samples: int, world_size: int, rng: np.random.Generator) -> Ints:
        """Rank 0 for all, which says nothing: nobody owns samples. It takes no memory."""
        return np.broadcast_to(np.int32(0), num_samples)

    def shards(self, owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
        """A random permutation of all samples, cut into M parts."""
        order = random_order(len(owner), rng)
        return Shards(order, np.arange(world_size + 1) * len(owner) // world_size)

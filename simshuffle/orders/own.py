"""This project's strategies without exchange, as orders."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import handed_out
from simshuffle.spec.rng import stream


class Own(Order):
    """Global and local shuffle, as `global_shuffle` and `local_shuffle` have them: a new random
    partition of the set for each epoch, or one for all, in a new order each epoch. The same law,
    from streams of its own. A rank's samples are dealt to its workers in turn.

    Attributes:
        shuffle: which of the two.
    """

    kind: Literal["own"]
    unit: ClassVar[Unit] = "sample"
    shuffle: Literal["global", "local"]

    @property
    def short_name(self) -> str:
        """'own global' or 'own local'."""
        return f"own {self.shuffle}"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Every set and every reader will do."""
        local = self.shuffle == "local"
        partition = stream(seed, "orders/own/partition", 0 if local else epoch)
        ends = np.arange(readers.world_size + 1) * data.size // readers.world_size
        parts = np.split(partition.permutation(data.size), ends[1:-1])
        if local:
            rng = stream(seed, "orders/own/order", epoch)
            parts = [rng.permutation(part) for part in parts]
        return handed_out(
            (rank, worker, part[worker :: readers.workers])
            for rank, part in enumerate(parts)
            for worker in range(readers.workers)
        )

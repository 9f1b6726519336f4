"""Orders that no library has: this project's strategies without exchange, and synchronised
shuffle."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import handed_out, handed_out_by_ranks
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


class Synchronised(Order):
    """Synchronised shuffling (Yun, Rajput & Sra, arXiv 2110.10342): every rank keeps its N/M
    samples, drawn once, and in each epoch all go through the places of their parts in the same
    random order. Nothing is sent. A rank reads by itself: worker 0 hands out everything."""

    kind: Literal["synchronised"]
    unit: ClassVar[Unit] = "sample"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError if the parts of the ranks are not of one size, so that
        they have no permutation in common."""
        size, left = divmod(data.size, readers.world_size)
        if left or not size:
            rule = (
                f"must hold a multiple of {readers.world_size} samples: one permutation serves"
                " all ranks"
            )
            remedy = f"Leave out {left}." if size else "Read with fewer ranks."
            refuse("data.samples", rule, f"{data.size} samples", remedy, "")
        parts = stream(seed, "orders/synchronised/parts").permutation(data.size)
        order = stream(seed, "orders/synchronised/places", epoch).permutation(size)
        return handed_out_by_ranks(part[order] for part in parts.reshape(readers.world_size, size))

"""Two orders whose mixing is known: one that draws all samples anew, and one that keeps shards."""

from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit


def handed_out(of_rank: Ints64, readers: Readers) -> EpochOrder:
    """The order in which each rank takes its row of samples, batch by batch from its workers."""
    ranks, each = of_rank.shape
    place = np.arange(each)
    batch = place // readers.batch_size
    worker = batch % readers.workers
    position = batch // readers.workers * readers.batch_size + place % readers.batch_size
    return EpochOrder(
        np.repeat(np.arange(ranks), each),
        np.tile(worker, ranks),
        np.tile(position, ranks),
        of_rank.ravel(),
    )


class Drawn(Order):
    """All samples anew in every epoch, read one by one."""

    kind: Literal["drawn"] = "drawn"
    unit: ClassVar[Unit] = "sample"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        drawn = stream(seed, "drawn", epoch).permutation(data.size)
        return handed_out(drawn.reshape(-1, readers.world_size).T, readers)


class Kept(Order):
    """Each rank the same samples in every epoch, in another order, by whole shards."""

    kind: Literal["kept"] = "kept"
    unit: ClassVar[Unit] = "shard"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        own = np.arange(data.size).reshape(readers.world_size, -1)
        return handed_out(stream(seed, "kept", epoch).permuted(own, axis=1), readers)

"""Ray Data: batches from a local shuffle buffer."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import (
    handed_out_by_ranks,
    joined,
    need_shards_for,
    need_smaller,
    samples_of,
)
from simshuffle.spec.arrays import Ints64


class RayLocal(Order):
    """Ray Data 2.60.0: `iter_batches(batch_size, local_shuffle_buffer_size, local_shuffle_seed)`
    with the seed + epoch, the same on all ranks; bit by bit given the blocks of a rank.

    Blocks are shards, dealt to ranks in turn as they are listed. (`streaming_split` deals them to
    whoever asks first, which no seed decides.) Blocks wait until there are 1.5 times as many
    samples as the buffer must have, and a batch more; then all are permuted, and batches are cut
    off while half of that is left. What is left is permuted again together with the blocks that
    come next. A rank reads by itself, so worker 0 hands out everything.

    Attributes:
        buffer_size: samples that the buffer has at least (`local_shuffle_buffer_size`); the library
            takes a batch where that is larger.
    """

    kind: Literal["ray_local"]
    unit: ClassVar[Unit] = "shard"  # a shard, which is a block of Ray
    buffer_size: int = Field(ge=1)

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer shards than ranks, where Ray gives no block
        to some; or a buffer that is larger than the set."""
        need_shards_for(
            data, "readers.ranks", readers.world_size, "ranks", "Ray gives the others no block"
        )
        need_smaller("buffer_size", self.buffer_size, data)
        blocks = [samples_of(data, [shard]) for shard in range(len(data.samples))]

        def read(rank: int) -> Ints64:
            own, rng = blocks[rank :: readers.world_size], np.random.default_rng(seed + epoch)
            return batched(own, readers.batch_size, self.buffer_size, rng)

        return handed_out_by_ranks(map(read, range(readers.world_size)))


def batched(blocks: list[Ints64], batch: int, size: int, rng: np.random.Generator) -> Ints64:
    """What comes out of the buffer of a rank that gets those blocks, batch after batch."""
    size = max(size, batch)
    enough, full = max(1, size // 2), int(size * 1.5)
    mixed = joined([])
    waiting: list[Ints64] = []
    out = []
    for block in (*blocks, None):
        waiting += [block] if block is not None and len(block) else []
        while count := len(mixed) + sum(map(len, waiting)):
            ready = count >= batch and (len(mixed) >= enough or count - batch >= full)
            if block is not None and not ready:
                break
            if waiting and (block is None or len(mixed) <= enough):
                mixed, waiting = rng.permutation(joined([*waiting, mixed])), []
            out.append(mixed[:batch])
            mixed = mixed[batch:]
    return joined(out)

"""CorgiPile and Corgi²: blocks in random order, a few of them at a time shuffled in memory."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import (
    blocks_of,
    handed_out_by_ranks,
    joined,
    need_shards,
    need_smaller,
)


class _Piled(Order):
    """What both do in an epoch.

    Attributes:
        block_size: samples of a block; the last block of a shard may be smaller.
        buffer_blocks: blocks that are in memory at once.
    """

    unit: ClassVar[Unit] = "block"
    block_size: int = Field(ge=1)
    buffer_blocks: int = Field(ge=1)

    @property
    def block(self) -> int:
        """``block_size``."""
        return self.block_size

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError if there are no shards, or the buffer is larger than
        the set."""
        need_shards(data)
        need_smaller("buffer_blocks", self.buffer_blocks * self.block_size, data)
        blocks = blocks_of(data, self.block_size)
        order = stream(seed, "orders/corgipile/blocks", epoch).permutation(len(blocks))
        stored = np.argsort(self.places(data, seed))
        ends = np.arange(readers.world_size + 1) * len(blocks) // readers.world_size

        def read(rank: int) -> Ints64:
            own = [blocks[block] for block in order[ends[rank] : ends[rank + 1]]]
            rng = stream(seed, "orders/corgipile/samples", epoch, rank)
            return stored[shuffled_by_groups(own, self.buffer_blocks, rng)]

        return handed_out_by_ranks(map(read, range(readers.world_size)))


class CorgiPile(_Piled):
    """CorgiPile (Xu et al., arXiv 2206.05830): the order of all blocks is drawn for each epoch, the
    same on all ranks, and each rank takes its part of them. It reads ``buffer_blocks`` at a time,
    shuffles their samples, and hands them out; worker 0 does. Its law: no library's draws are made.

    Attributes:
        block_size: samples of a block; the last block of a shard may be smaller.
        buffer_blocks: blocks that a rank holds in memory.
    """

    kind: Literal["corgipile"]


class Corgi2(_Piled):
    """Corgi² (Livne et al., arXiv 2309.01640): CorgiPile, of a set that was rewritten once.

    Before training, ``buffer_blocks`` random blocks at a time are read, their samples shuffled, and
    written as as many new blocks, until all are. That reads and writes the whole set, once for all
    epochs. Blocks are drawn without replacement, so that every sample is kept.

    Attributes:
        block_size: samples of a block; the last block of a shard may be smaller.
        buffer_blocks: blocks that are in memory at once, before training and by a rank in it.
    """

    kind: Literal["corgi2"]

    def places(self, data: ShardedSet, seed: int) -> Ints64:
        """(N,) where each sample lies after the set was rewritten."""
        blocks = blocks_of(data, self.block_size)
        rng = stream(seed, "orders/corgi2/offline")
        read = [blocks[block] for block in rng.permutation(len(blocks))]
        places = np.empty(data.size, dtype=np.int64)
        places[shuffled_by_groups(read, self.buffer_blocks, rng)] = joined(read)
        return places


def shuffled_by_groups(blocks: list[Ints64], size: int, rng: np.random.Generator) -> Ints64:
    """The samples of those blocks, ``size`` blocks at a time shuffled."""
    groups = [joined(blocks[first : first + size]) for first in range(0, len(blocks), size)]
    return joined([rng.permutation(group) for group in groups])

"""CorgiPile and Corgi²: blocks in random order, a few blocks at a time shuffled in
memory.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.streams import (
    concatenate_or_empty,
    order_from_ranks,
    require_buffer_below_set,
    require_shards,
    split_into_blocks,
)


class _CorgiOrder(Order):
    """The common part of CorgiPile and Corgi²: an epoch of blocks that are shuffled in
    memory.

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

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0; all rows are of worker 0.

        With fewer blocks than ranks, some ranks have no samples.

        Raises:
            InputError: if there are no shards, or the buffer is larger than the set.
        """
        require_shards(data)
        require_buffer_below_set(
            "buffer_blocks", self.buffer_blocks * self.block_size, data
        )
        blocks = split_into_blocks(data, self.block_size)
        order = stream(seed, "orders/corgipile/blocks", epoch).permutation(len(blocks))
        sample_at = np.argsort(
            self.places(data, seed)
        )  # (N,) the sample at each position
        ends = np.arange(readers.world_size + 1) * len(blocks) // readers.world_size

        def read(rank: int) -> Ints64:
            """Return the samples of a rank's part of the blocks, shuffled: (n,)."""
            rank_blocks = [
                blocks[block] for block in order[ends[rank] : ends[rank + 1]]
            ]
            rng = stream(seed, "orders/corgipile/samples", epoch, rank)
            return sample_at[
                shuffle_groups_of_blocks(rank_blocks, self.buffer_blocks, rng)
            ]

        return order_from_ranks(map(read, range(readers.world_size)))


class CorgiPile(_CorgiOrder):
    """CorgiPile (Xu et al., arXiv 2206.05830): the order of all blocks is drawn for
    each epoch, the same on all ranks, and each rank takes its part of them. It reads
    ``buffer_blocks`` at a time, shuffles their samples, and hands them out; worker 0
    does. Its law: no library's draws are made.

    Attributes:
        block_size: samples of a block; the last block of a shard may be smaller.
        buffer_blocks: blocks that a rank holds in memory.
    """

    kind: Literal["corgipile"]


class Corgi2(_CorgiOrder):
    """Corgi² (Livne et al., arXiv 2309.01640): CorgiPile, of a set that was rewritten
    once.

    Before training, ``buffer_blocks`` random blocks at a time are read, their samples
    shuffled, and written as as many new blocks, until all are. That reads and writes
    the whole set, once for all epochs. Blocks are drawn without replacement, so that
    every sample is kept.

    Attributes:
        block_size: samples of a block; the last block of a shard may be smaller.
        buffer_blocks: blocks that are in memory at once, before training and by a rank
            in it.
    """

    kind: Literal["corgi2"]

    def places(self, data: ShardedSet, seed: int) -> Ints64:
        """Return the position of each sample after the set was rewritten, (N,)."""
        blocks = split_into_blocks(data, self.block_size)
        rng = stream(seed, "orders/corgi2/offline")
        shuffled_blocks = [blocks[block] for block in rng.permutation(len(blocks))]
        positions = np.empty(data.size, dtype=np.int64)
        shuffled_samples = shuffle_groups_of_blocks(
            shuffled_blocks, self.buffer_blocks, rng
        )
        # the k-th sample after shuffling is written where the k-th lay before it
        positions[shuffled_samples] = concatenate_or_empty(shuffled_blocks)
        return positions


def shuffle_groups_of_blocks(
    blocks: list[Ints64], group_size: int, rng: np.random.Generator
) -> Ints64:
    """Return the samples of ``blocks``, (n,), shuffled in groups of consecutive blocks.

    Each group but the last has ``group_size`` blocks. Groups stay in their order. A
    permutation is drawn from ``rng`` for each group.
    """
    groups = [
        concatenate_or_empty(blocks[first : first + group_size])
        for first in range(0, len(blocks), group_size)
    ]
    return concatenate_or_empty([rng.permutation(group) for group in groups])

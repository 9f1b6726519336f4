"""tf.data: files read in turn, and a shuffle buffer from which the next sample is drawn."""

from __future__ import annotations

from itertools import islice
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import handed_out_by_ranks, need_shards_for, need_smaller
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream


class TfData(Order):
    """TensorFlow 2: `Dataset.list_files(...).shard(M, rank).interleave(...).shuffle(...)`, as the
    API's documentation has it. Its law, not its bits: its own generator is not drawn from.

    The order of the files is drawn for each epoch, the same on all ranks, and a rank gets every
    M-th. ``cycle_length`` of them are open at once and give ``block_length`` samples in turn; where
    one ends, the next takes its place. The buffer is filled, then each sample is drawn from it
    uniformly and replaced by the next that comes. So nothing leaves more than the buffer's size
    before its turn, and a sample stays in it for B draws on average. A rank reads in one pipeline,
    so worker 0 hands out everything.

    Attributes:
        buffer_size: B, samples in the buffer of a rank.
        cycle_length: files that are open at once.
        block_length: samples that are taken from a file in its turn.
        reshuffle: whether each epoch draws anew (`reshuffle_each_iteration`), or all alike.
    """

    kind: Literal["tf_data"]
    unit: ClassVar[Unit] = "shard"  # a shard: a TFRecord file is read from its beginning
    buffer_size: int = Field(ge=1)
    cycle_length: int = Field(default=1, ge=1)
    block_length: int = Field(default=1, ge=1)
    reshuffle: bool = True

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer shards than ranks, where `shard` gives an
        empty set to some; or a buffer that is larger than the set."""
        need_shards_for(
            data,
            "readers.ranks",
            readers.world_size,
            "ranks",
            "tf.data's shard leaves the others an empty set, and training ends or hangs there",
        )
        need_smaller("buffer_size", self.buffer_size, data)
        drawn = epoch if self.reshuffle else 0
        files = stream(seed, "orders/tf_data/files", drawn).permutation(len(data.samples))

        def read(rank: int) -> Ints64:
            samples = self._interleaved(data, files[rank :: readers.world_size].tolist())
            rng = stream(seed, "orders/tf_data/samples", drawn, rank)
            return replaced(samples, self.buffer_size, rng)

        return handed_out_by_ranks(map(read, range(readers.world_size)))

    def _interleaved(self, data: ShardedSet, files: list[int]) -> Ints64:
        """The samples of those files, as they come to the buffer."""
        begin = data.begin.tolist()
        closed = iter(files)
        slots = [
            iter(range(begin[file], begin[file + 1])) for file in islice(closed, self.cycle_length)
        ]
        out: list[int] = []
        while slots:
            staying = []
            for slot in slots:
                taken = list(islice(slot, self.block_length))
                out += taken
                if len(taken) == self.block_length:
                    staying.append(slot)
                elif (file := next(closed, None)) is not None:
                    staying.append(iter(range(begin[file], begin[file + 1])))
            slots = staying
        return np.array(out, dtype=np.int64)


def replaced(samples: Ints64, size: int, rng: np.random.Generator) -> Ints64:
    """What comes out of a buffer that is filled first, and then gives one sample at random for each
    that it takes; at the end all that is left, in random order."""
    held = samples[:size].copy()
    coming = samples[size:]
    places = rng.integers(0, max(1, len(held)), size=len(coming))
    out = np.empty(len(coming), dtype=np.int64)
    for turn, place in enumerate(places):
        out[turn] = held[place]
        held[place] = coming[turn]
    return np.concatenate([out, rng.permutation(held)])

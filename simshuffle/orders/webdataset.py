"""WebDataset: shards dealt to ranks and workers, and a buffer of samples in each."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import handed_out, need_shards_for, need_smaller, samples_of
from simshuffle.spec.arrays import Ints64


class WebDataset(Order):
    """`webdataset` 1.0.2: `WebDataset(urls, nodesplitter=split_by_node, ...).shuffle(...)`.

    Shards go to ranks and then to their workers, in turn and as they are listed. Only then their
    order is shuffled, so a worker reads the same shards in every epoch: local shuffling. A buffer
    follows, which takes two samples for each that it hands out until it is full.

    With ``detshuffle`` (`detshuffle=True`, and `webdataset.detshuffle` for the samples) what is
    drawn follows from seed + epoch, the same for all workers, bit by bit as in the library. Without
    it, the default, shards come in the same order in every epoch, and the library draws samples by
    the clock: here a stream for each epoch and worker stands for that, and the law is the same.

    Attributes:
        shard_shuffle: shards among which the next one is drawn (`shardshuffle`); 0 for none.
        buffer_size: samples in the buffer of a worker.
        initial: samples that are in it before the first is handed out.
        detshuffle: whether what is drawn follows from the seed.
    """

    kind: Literal["webdataset"]
    unit: ClassVar[Unit] = "shard"  # a shard: a tar file is read from its beginning
    shard_shuffle: int = Field(default=100, ge=0)
    buffer_size: int = Field(default=1000, ge=1)
    initial: int = Field(default=100, ge=0)
    detshuffle: bool = False

    default_sources: ClassVar[dict[str, str]] = {
        "shard_shuffle": "webdataset 1.0.2, what shardshuffle=True means",
        "buffer_size": "webdataset 1.0.2, shuffle",
        "initial": "webdataset 1.0.2, shuffle",
    }

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer shards than workers, where the library says
        that it found no samples; or a buffer that is larger than the set."""
        streams = readers.world_size * readers.workers
        need_shards_for(
            data,
            "readers.workers",
            streams,
            "workers of all ranks",
            "webdataset ends those without shards with 'No samples found in dataset'",
        )
        need_smaller("buffer_size", self.buffer_size, data)
        return handed_out(
            (rank, worker, self._worker(data, readers, rank, worker, seed, epoch))
            for rank in range(readers.world_size)
            for worker in range(readers.workers)
        )

    def _worker(
        self, data: ShardedSet, readers: Readers, rank: int, worker: int, seed: int, epoch: int
    ) -> Ints64:
        """What a worker hands out."""
        shards = list(range(len(data.samples)))[rank :: readers.world_size]
        clock = f"webdataset {seed} {epoch} {rank} {worker}"
        of_shards = random.Random(seed + epoch if self.detshuffle else seed)  # noqa: S311
        of_samples = random.Random(seed + epoch if self.detshuffle else clock)  # noqa: S311
        # the library's own stage for shards starts at 100 of them, whatever is asked
        order = buffered(shards[worker :: readers.workers], self.shard_shuffle, 100, of_shards)
        stream = samples_of(data, order).tolist()
        return np.array(buffered(stream, self.buffer_size, self.initial, of_samples), dtype=int)


def buffered(stream: list[int], size: int, initial: int, rng: random.Random) -> list[int]:
    """What comes out of a buffer that hands out from ``initial`` on, and meanwhile grows to
    ``size`` by one for each that it hands out."""
    held: list[int] = []
    out: list[int] = []
    taken = 0
    while taken < len(stream):
        more = 2 if len(held) + 1 < size else 1
        held += stream[taken : taken + more]
        taken += more
        if len(held) >= min(initial, size):
            out.append(_drawn(held, rng))
    while held:
        out.append(_drawn(held, rng))
    return out


def _drawn(held: list[int], rng: random.Random) -> int:
    """One of them at random, which leaves the buffer; the last takes its place."""
    place = rng.randint(0, len(held) - 1)
    held[place], held[-1] = held[-1], held[place]
    return held.pop()

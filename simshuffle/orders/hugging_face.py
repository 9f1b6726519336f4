"""Hugging Face datasets: the shuffle of an IterableDataset, split among ranks and workers."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import handed_out, joined, need_shards_for, need_smaller, samples_of
from simshuffle.spec.arrays import Ints64


class HuggingFace(Order):
    """`datasets` 5.2.0: `split_dataset_by_node(ds.shuffle(seed, buffer_size), rank, world_size)`
    with `set_epoch(epoch)`, bit by bit.

    The order of the shards is drawn anew in each epoch, the same on all ranks. If their number is
    a multiple of the ranks, a rank gets every M-th of them. If not, every rank reads the whole set
    and keeps every M-th sample, so M times as much is read. Workers share the shards of their rank.
    A worker reads up to ``max_buffer_input_shards`` runs of its shards in turn into a buffer. Once
    that is full it is shuffled, one half is handed out and the other half stays. (4.4.1 still read
    one shard after the other and replaced one sample at a time: the law of `tf_data` with one file
    open.)

    One worker means that the rank reads by itself (`num_workers=0`).

    Attributes:
        buffer_size: samples in the buffer of a worker.
        max_buffer_input_shards: runs of shards that are read in turn.
        formatted: whether the set is stored as tables (Arrow, Parquet) and `with_format` was
            called: then samples come to the buffer as pieces of tables.
    """

    kind: Literal["hugging_face"]
    unit: ClassVar[Unit] = "shard"  # a shard, which is streamed
    buffer_size: int = Field(default=1000, ge=1)
    max_buffer_input_shards: int = Field(default=10, ge=1)
    formatted: bool = False

    default_sources: ClassVar[dict[str, str]] = {
        "buffer_size": "datasets 5.2.0, IterableDataset.shuffle",
        "max_buffer_input_shards": "datasets 5.2.0, IterableDataset.shuffle",
    }

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer shards than a rank has workers, where the
        library stops those without shards; or a buffer that is larger than the set."""
        whole = len(data.samples) % readers.world_size != 0
        need_shards_for(
            data,
            "readers.workers",
            readers.workers * (1 if whole else readers.world_size),
            "workers of a rank" if whole else "workers of all ranks",
            "datasets warns of too many workers, and stops those without shards",
        )
        need_smaller("buffer_size", self.buffer_size, data)
        order = _shard_order(len(data.samples), seed, epoch)
        read = partial(self._read, data, readers, seed, epoch)
        if whole:
            by_worker = [read(order, worker) for worker in range(readers.workers)]
            streams = [
                [stream[rank :: readers.world_size] for stream in by_worker]
                for rank in range(readers.world_size)
            ]
        else:
            streams = [
                [read(order[rank :: readers.world_size], w) for w in range(readers.workers)]
                for rank in range(readers.world_size)
            ]
        return handed_out(
            (rank, worker, stream)
            for rank, of_rank in enumerate(streams)
            for worker, stream in enumerate(of_rank)
        )

    def _read(
        self,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
        shards: list[int],
        worker: int,
    ) -> Ints64:
        """What comes out of the buffer of a worker of the rank that reads those shards."""
        rng = np.random.default_rng(seed)
        # the library makes a new generator of the first number of the old one for each of these
        if epoch:
            rng = np.random.default_rng(rng.integers(0, 1 << 63) - epoch)
        if readers.workers > 1:
            rng = np.random.default_rng(rng.integers(0, 1 << 63) - worker)
        samples, ends = self._pieces(data, shards[worker :: readers.workers])
        return _halves(samples, ends, self.buffer_size, rng)

    def _pieces(self, data: ShardedSet, shards: list[int]) -> tuple[Ints64, Ints64]:
        """The samples of those shards as they come to the buffer, runs of shards in turn, and where
        each piece ends that comes at once."""
        count = min(len(shards), self.max_buffer_input_shards)
        runs = [samples_of(data, run) for run in np.array_split(shards, count)]
        size = max(1, self.buffer_size // self.max_buffer_input_shards) if self.formatted else 1
        turn = joined([np.arange(len(run)) // size * count + at for at, run in enumerate(runs)])
        order = np.argsort(turn, kind="stable")
        return joined(runs)[order], np.cumsum(np.unique(turn, return_counts=True)[1])


def _shard_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order of the shards: as `shuffle` draws it, and from epoch 1 on shuffled once more."""
    order = list(range(count))
    np.random.default_rng(seed).shuffle(order)
    again = list(range(count))
    if epoch:
        np.random.default_rng(epoch).shuffle(again)
    return [order[place] for place in again]


def _halves(samples: Ints64, ends: Ints64, size: int, rng: np.random.Generator) -> Ints64:
    """What comes out of a buffer that takes pieces with those ends, is shuffled once it is full,
    and then keeps one half."""
    held = samples[:0]
    taken = 0
    out = []
    while (piece := np.searchsorted(ends, taken + size - len(held))) < len(ends):
        held = rng.permutation(joined([held, samples[taken : ends[piece]]]))
        taken = ends[piece]
        out.append(held[: len(held) - size // 2])
        held = held[len(held) - size // 2 :]
    return joined([*out, rng.permutation(joined([held, samples[taken:]]))])

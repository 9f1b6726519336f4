"""Loaders that read shards and mix samples in a buffer: tf.data, WebDataset, Hugging Face's
datasets and Ray Data."""

from __future__ import annotations

import random
from functools import partial
from itertools import islice
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import (
    handed_out,
    handed_out_by_ranks,
    joined,
    need_shards_for,
    need_smaller,
    samples_of,
)


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
        return buffered(samples_of(data, order), self.buffer_size, self.initial, of_samples)


def buffered(stream: Ints64 | list[int], size: int, initial: int, rng: random.Random) -> Ints64:
    """Return the samples of ``stream`` in the order in which a buffer hands them out.

    The buffer hands out samples as soon as it holds ``initial``. Meanwhile it grows to ``size`` by
    one sample for each that it hands out. ``rng`` is of no use afterwards.
    """
    from simshuffle.workload.orders.kernels import mix  # noqa: PLC0415 - numba

    samples = np.asarray(stream, np.int64)
    # a draw takes fewer than two words on average: n draws need more than this once in 2^700
    words = np.frombuffer(rng.randbytes(4 * (4 * len(samples) + 1024)), np.dtype("<u4"))
    out = np.empty_like(samples)
    mix(samples, size, initial, words, np.empty(min(size, len(samples)) + 2, np.int64), out)
    return out


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
        formatted: whether the set is stored as tables (`Dataset`, Arrow, Parquet) and not made by a
            generator: then samples come to the buffer as pieces of tables. `with_format` changes
            nothing of that.
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
        read = partial(self._read, data, readers, seed, epoch)
        every = range(readers.workers)
        if whole:
            by_worker = [read(0, worker) for worker in every]
            streams = [
                [stream[rank :: readers.world_size] for stream in by_worker]
                for rank in range(readers.world_size)
            ]
        else:
            streams = [[read(rank, w) for w in every] for rank in range(readers.world_size)]
        return handed_out(
            (rank, worker, stream)
            for rank, of_rank in enumerate(streams)
            for worker, stream in enumerate(of_rank)
        )

    def _read(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, rank: int, worker: int
    ) -> Ints64:
        """What comes out of the buffer of a worker."""
        shards = self.shards(data, readers, seed, epoch, rank)[worker :: readers.workers]
        runs = [samples_of(data, run) for run in self.runs(shards)]
        samples, turn = in_turn(runs, self.piece)
        ends = np.cumsum(np.unique(turn, return_counts=True)[1])
        rng = self.generator(readers, seed, epoch, worker)
        return joined(halves(samples, ends, self.buffer_size, rng))

    @staticmethod
    def shards(data: ShardedSet, readers: Readers, seed: int, epoch: int, rank: int) -> list[int]:
        """The shards that a rank reads, in the order in which they are dealt to its workers."""
        order = _shard_order(len(data.samples), seed, epoch)
        even = len(order) % readers.world_size == 0
        return order[rank :: readers.world_size] if even else order

    @staticmethod
    def generator(readers: Readers, seed: int, epoch: int, worker: int) -> np.random.Generator:
        """What the buffer of a worker draws from."""
        rng = np.random.default_rng(seed)
        # the library makes a new generator of the first number of the old one for each of these
        if epoch:
            rng = np.random.default_rng(rng.integers(0, 1 << 63) - epoch)
        if readers.workers > 1:
            rng = np.random.default_rng(rng.integers(0, 1 << 63) - worker)
        return rng

    def runs(self, shards: list[int]) -> list[list[int]]:
        """The shards of a worker, as runs that are read in turn."""
        count = min(len(shards), self.max_buffer_input_shards)
        return [run.tolist() for run in np.array_split(np.array(shards, np.int64), count)]

    @property
    def piece(self) -> int:
        """Samples of a run that come to the buffer at once."""
        each = self.buffer_size // self.max_buffer_input_shards
        return max(1, each) if self.formatted else 1


def in_turn(runs: list[Ints64], size: int, first: int = 0) -> tuple[Ints64, Ints64]:
    """The samples of those runs, a piece of each in turn from run ``first`` on, and (n,) the turn
    of each sample: that of piece k of a run, counted from ``first``, is k R plus its number."""
    count = len(runs)
    turn = joined(
        [np.arange(len(run)) // size * count + (at - first) % count for at, run in enumerate(runs)]
    )
    order = np.argsort(turn, kind="stable")
    return joined(runs)[order], turn[order]


def _shard_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order of the shards: as `shuffle` draws it, and from epoch 1 on shuffled once more."""
    order = list(range(count))
    np.random.default_rng(seed).shuffle(order)
    again = list(range(count))
    if epoch:
        np.random.default_rng(epoch).shuffle(again)
    return [order[place] for place in again]


def halves(samples: Ints64, ends: Ints64, size: int, rng: np.random.Generator) -> list[Ints64]:
    """What comes out of a buffer that takes pieces with those ends, is shuffled once it is full,
    and then keeps one half; what comes out at once is an array, the last of them what was left
    (perhaps nothing)."""
    held = samples[:0]
    taken = 0
    out = []
    while (piece := np.searchsorted(ends, taken + size - len(held))) < len(ends):
        held = rng.permutation(joined([held, samples[taken : ends[piece]]]))
        taken = ends[piece]
        out.append(held[: len(held) - size // 2])
        held = held[len(held) - size // 2 :]
    return [*out, rng.permutation(joined([held, samples[taken:]]))]


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

"""Loaders that read shards and mix samples in a buffer: tf.data, WebDataset, Hugging
Face's datasets and Ray Data.
"""

from __future__ import annotations

import random
from functools import partial
from itertools import islice
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
from simshuffle.workload.orders.shuffle_buffers import (
    interleave_runs,
    shuffle_by_halves,
    shuffle_by_replacement,
    shuffle_in_batches,
    shuffle_in_buffer,
    worker_generator,
)
from simshuffle.workload.orders.streams import (
    concatenate_or_empty,
    order_from_ranks,
    order_from_streams,
    require_buffer_below_set,
    require_shard_for_each,
    samples_of_shards,
)


class TfData(Order):
    """TensorFlow 2: `Dataset.list_files(...).shard(M,
    rank).interleave(...).shuffle(...)`, as the API's documentation has it. Its law, not
    its bits: its own generator is not drawn from.

    The order of the files is drawn for each epoch, the same on all ranks, and a rank
    gets every M-th. ``cycle_length`` of them are open at once and give ``block_length``
    samples in turn; where one ends, the next takes its place. The buffer is filled,
    then each sample is drawn from it uniformly and replaced by the next that comes. So
    nothing leaves more than the buffer's size before its turn, and a sample stays in it
    for B draws on average. A rank reads in one pipeline, so worker 0 hands out
    everything.

    Attributes:
        buffer_size: B, samples in the buffer of a rank.
        cycle_length: files that are open at once.
        block_length: samples that are taken from a file in its turn.
        reshuffle: whether each epoch draws anew (`reshuffle_each_iteration`), or all
            alike.
    """

    kind: Literal["tf_data"]
    unit: ClassVar[Unit] = (
        "shard"  # a shard: a TFRecord file is read from its beginning
    )
    buffer_size: int = Field(ge=1)
    cycle_length: int = Field(default=1, ge=1)
    block_length: int = Field(default=1, ge=1)
    reshuffle: bool = True

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0; all rows are of worker 0.

        Raises:
            InputError: for fewer shards than ranks, where `shard` gives an empty set to
                some; or a buffer that is larger than the set.
        """
        require_shard_for_each(
            data,
            "readers.ranks",
            readers.world_size,
            "ranks",
            "tf.data's shard leaves the others an empty set, and training ends or hangs there",
        )
        require_buffer_below_set("buffer_size", self.buffer_size, data)
        drawn_epoch = epoch if self.reshuffle else 0
        files = stream(seed, "orders/tf_data/files", drawn_epoch).permutation(
            len(data.samples)
        )

        def read(rank: int) -> Ints64:
            """Return the samples of a rank, every M-th file, after its buffer."""
            samples = self._interleave_files(
                data, files[rank :: readers.world_size].tolist()
            )
            rng = stream(seed, "orders/tf_data/samples", drawn_epoch, rank)
            return shuffle_by_replacement(samples, self.buffer_size, rng)

        return order_from_ranks(map(read, range(readers.world_size)))

    def _interleave_files(self, data: ShardedSet, files: list[int]) -> Ints64:
        """Return the samples of ``files``, (n,), in the order in which they come to the
        buffer.
        """
        begin = data.begin.tolist()
        closed_files = iter(files)
        open_files = [
            iter(range(begin[file], begin[file + 1]))
            for file in islice(closed_files, self.cycle_length)
        ]
        samples: list[int] = []
        while open_files:
            next_open = []
            for open_file in open_files:
                block = list(islice(open_file, self.block_length))
                samples += block
                # a file of whole blocks ends only in its next turn, with an empty block
                if len(block) == self.block_length:
                    next_open.append(open_file)
                elif (file := next(closed_files, None)) is not None:
                    next_open.append(iter(range(begin[file], begin[file + 1])))
            open_files = next_open
        return np.array(samples, dtype=np.int64)


class WebDataset(Order):
    """`webdataset` 1.0.2: `WebDataset(urls, nodesplitter=split_by_node,
    ...).shuffle(...)`.

    Shards go to ranks and then to their workers, in turn and as they are listed. Only
    then their order is shuffled, so a worker reads the same shards in every epoch:
    local shuffling. A buffer follows, which takes two samples for each that it hands
    out until it is full.

    With ``detshuffle`` (`detshuffle=True`, and `webdataset.detshuffle` for the samples)
    what is drawn follows from seed + epoch, the same for all workers, bit by bit as in
    the library. Without it, the default, shards come in the same order in every epoch,
    and the library draws samples by the clock: here a stream for each epoch and worker
    stands for that, and the law is the same.

    Attributes:
        shard_shuffle: shards among which the next one is drawn (`shardshuffle`); 0 for
            none.
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

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0.

        Raises:
            InputError: for fewer shards than workers, where the library says that it
                found no samples; or a buffer that is larger than the set.
        """
        require_shard_for_each(
            data,
            "readers.workers",
            readers.world_size * readers.workers,
            "workers of all ranks",
            "webdataset ends those without shards with 'No samples found in dataset'",
        )
        require_buffer_below_set("buffer_size", self.buffer_size, data)
        samples = partial(self._samples_of_worker, data, readers, seed, epoch)
        return order_from_streams(
            (rank, worker, samples(rank=rank, worker=worker))
            for rank in range(readers.world_size)
            for worker in range(readers.workers)
        )

    def _samples_of_worker(
        self,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
        *,
        rank: int,
        worker: int,
    ) -> Ints64:
        """Return the samples that a worker hands out in an epoch, in their order: (n,).

        ``rank`` and ``worker`` choose the shards; draws depend on both only without
        ``detshuffle``.
        """
        shards = list(range(len(data.samples)))[rank :: readers.world_size]
        clock = f"webdataset {seed} {epoch} {rank} {worker}"
        shard_rng = random.Random(seed + epoch if self.detshuffle else seed)  # noqa: S311
        sample_rng = random.Random(seed + epoch if self.detshuffle else clock)  # noqa: S311
        # the library's own stage for shards starts at 100 of them, whatever is asked
        shard_order = shuffle_in_buffer(
            shards[worker :: readers.workers], self.shard_shuffle, 100, shard_rng
        )
        samples = samples_of_shards(data, shard_order)
        return shuffle_in_buffer(samples, self.buffer_size, self.initial, sample_rng)


class HuggingFace(Order):
    """`datasets` 5.2.0: `split_dataset_by_node(ds.shuffle(seed, buffer_size), rank,
    world_size)` with `set_epoch(epoch)`, bit by bit.

    The order of the shards is drawn anew in each epoch, the same on all ranks. If their
    number is a multiple of the ranks, a rank gets every M-th of them. If not, every
    rank reads the whole set and keeps every M-th sample, so M times as much is read.
    Workers share the shards of their rank. A worker reads up to
    ``max_buffer_input_shards`` runs of its shards in turn into a buffer. Once that is
    full it is shuffled, one half is handed out and the other half stays. (4.4.1 still
    read one shard after the other and replaced one sample at a time: the law of
    `tf_data` with one file open.)

    One worker means that the rank reads by itself (`num_workers=0`).

    Attributes:
        buffer_size: samples in the buffer of a worker.
        max_buffer_input_shards: runs of shards that are read in turn.
        formatted: whether the set is stored as tables (`Dataset`, Arrow, Parquet) and
            not made by a generator: then samples come to the buffer as pieces of
            tables. `with_format` changes nothing of that.
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

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0.

        Each rank has all shards if their number is no multiple of the ranks.

        Raises:
            InputError: if a rank has fewer shards than workers, where the library
                stops those without shards; or a buffer that is larger than the set.
        """
        reads_all = len(data.samples) % readers.world_size != 0
        require_shard_for_each(
            data,
            "readers.workers",
            readers.workers * (1 if reads_all else readers.world_size),
            "workers of a rank" if reads_all else "workers of all ranks",
            "datasets warns of too many workers, and stops those without shards",
        )
        require_buffer_below_set("buffer_size", self.buffer_size, data)
        ranks = range(readers.world_size)
        workers = range(readers.workers)
        samples = partial(self._samples_of_worker, data, readers, seed, epoch)
        if reads_all:
            # all ranks read the same, and keep every M-th sample
            by_worker = [samples(rank=0, worker=worker) for worker in workers]
            return order_from_streams(
                (rank, worker, by_worker[worker][rank :: readers.world_size])
                for rank in ranks
                for worker in workers
            )
        return order_from_streams(
            (rank, worker, samples(rank=rank, worker=worker))
            for rank in ranks
            for worker in workers
        )

    def _samples_of_worker(
        self,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
        *,
        rank: int,
        worker: int,
    ) -> Ints64:
        """Return the samples that come out of a worker's buffer in an epoch, in their
        order: (n,).

        Where every rank reads all shards, these are the samples of all ranks.
        """
        shards = self.shards(data, readers, seed, epoch, rank)[
            worker :: readers.workers
        ]
        runs = [samples_of_shards(data, run) for run in self.runs(shards)]
        samples, piece = interleave_runs(runs, self.piece_size)
        piece_ends = np.cumsum(np.unique(piece, return_counts=True)[1])
        rng = worker_generator(seed, epoch, worker, readers.workers)
        return concatenate_or_empty(
            shuffle_by_halves(samples, piece_ends, self.buffer_size, rng)
        )

    @staticmethod
    def shards(
        data: ShardedSet, readers: Readers, seed: int, epoch: int, rank: int
    ) -> list[int]:
        """Return the shards that a rank reads, in the order in which they are dealt to
        its workers.

        They are all shards if the number of shards is no multiple of the ranks.
        """
        order = _shard_order(len(data.samples), seed, epoch)
        is_divisible = len(order) % readers.world_size == 0
        return order[rank :: readers.world_size] if is_divisible else order

    def runs(self, shards: list[int]) -> list[list[int]]:
        """Divide the shards of a worker into consecutive runs, which are read in turn.

        There are ``max_buffer_input_shards`` of them, or as many as shards if these are
        fewer. Their lengths differ by one at most, the first ones being longer.

        Args:
            shards: at least one, in the order of reading.
        """
        num_runs = min(len(shards), self.max_buffer_input_shards)
        return [
            run.tolist() for run in np.array_split(np.array(shards, np.int64), num_runs)
        ]

    @property
    def piece_size(self) -> int:
        """The samples of a run that come to the buffer at once.

        1 unless formatted, else ``buffer_size`` over ``max_buffer_input_shards``.
        """
        share = self.buffer_size // self.max_buffer_input_shards
        return max(1, share) if self.formatted else 1


def _shard_order(num_shards: int, seed: int, epoch: int) -> list[int]:
    """Return the shards in the order that `shuffle` draws, shuffled once more from
    epoch 1 on.
    """
    order = list(range(num_shards))
    np.random.default_rng(seed).shuffle(order)
    epoch_order = list(range(num_shards))
    if epoch:
        np.random.default_rng(epoch).shuffle(epoch_order)
    return [order[index] for index in epoch_order]


class RayLocal(Order):
    """Ray Data 2.60.0: `iter_batches(batch_size, local_shuffle_buffer_size,
    local_shuffle_seed)` with the seed + epoch, the same on all ranks; bit by bit given
    the blocks of a rank.

    Blocks are shards, dealt to ranks in turn as they are listed. (`streaming_split`
    deals them to whoever asks first, which no seed decides.) Blocks wait until there
    are 1.5 times as many samples as the buffer must have, and a batch more; then all
    are permuted, and batches are cut off while half of that is left. What is left is
    permuted again together with the blocks that come next. A rank reads by itself, so
    worker 0 hands out everything.

    Attributes:
        buffer_size: samples that the buffer has at least (`local_shuffle_buffer_size`);
            the library takes a batch where that is larger.
    """

    kind: Literal["ray_local"]
    unit: ClassVar[Unit] = "shard"  # a shard, which is a block of Ray
    buffer_size: int = Field(ge=1)

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0; all rows are of worker 0.

        Raises:
            InputError: for fewer shards than ranks, where Ray gives no block to some;
                or a buffer that is larger than the set.
        """
        consequence = "Ray gives the others no block"
        require_shard_for_each(
            data, "readers.ranks", readers.world_size, "ranks", consequence
        )
        require_buffer_below_set("buffer_size", self.buffer_size, data)
        blocks = [
            samples_of_shards(data, [shard]) for shard in range(len(data.samples))
        ]

        def read(rank: int) -> Ints64:
            """Return the samples of a rank, every M-th block, after its buffer."""
            rank_blocks = blocks[rank :: readers.world_size]
            rng = np.random.default_rng(seed + epoch)
            return shuffle_in_batches(
                rank_blocks, readers.batch_size, self.buffer_size, rng
            )

        return order_from_ranks(map(read, range(readers.world_size)))

"""LitData: chunks shared among the workers, shuffled in whole or in windows. A chunk is
a shard.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count, PositiveNBytes
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.streams import (
    check_inputs,
    cut_spans,
    number_positions,
    reseeded_twister,
    samples_of_shards,
)

_DATASET = "litdata 0.2.76, litdata/streaming/dataset.py"
_SHUFFLE = "litdata 0.2.76, litdata/streaming/shuffle.py"


class ChunkPart(NamedTuple):
    """The part of a chunk that a worker reads."""

    worker: int  # counted through all ranks
    chunk: int
    samples: Ints64  # (n,) in the order of storage


class _LitData(Order):
    """The common part of both shuffles: chunks in an order, shared among workers, and
    the shuffle of the samples of a worker's part of a chunk.

    Attributes:
        drop_last: whether what cannot be shared evenly is left out; by default with
            several ranks.
        item_shuffle_window: samples of a block within a chunk: blocks are permuted, and
            samples in a block. 0 or 1 permutes all of them.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "item_shuffle_window": f"default of {_DATASET}"
    }

    unit: ClassVar[Unit] = "shard"
    drop_last: bool | None = None
    item_shuffle_window: Annotated[int, Field(ge=0)] = 256

    @property
    def short_name(self) -> str:
        """'litdata full' or 'litdata window'."""
        return self.kind.replace("_", " ")

    @abstractmethod
    def _share_chunks(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> list[ChunkPart]:
        """Share the chunks among the workers, in an epoch counted from 1.

        Returns:
            The parts, sorted by worker and then in the order of reading. Samples of no
            part are left out. The arrays of samples may be changed.
        """

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch; epoch 0 is what the library counts as 1.

        Raises:
            InputError: for no samples or readers, or a seed out of range; or a rank
                without samples, which the library silently allows, so that the ranks no
                longer take as many steps.
        """
        check_inputs(data, readers, seed, epoch, 2**32 - 1)
        parts = self._share_chunks(data, readers, seed, epoch + 1)
        ranks = readers.world_size
        reading_ranks = {
            part.worker // readers.workers for part in parts if part.samples.size
        }
        if len(reading_ranks) < ranks:
            rule = (
                "each rank gets a sample; the library silently gives "
                f"{ranks - len(reading_ranks)} of {ranks} ranks none"
            )
            remedy = "Take fewer ranks or workers, a smaller batch, or more and smaller shards"
            value = f"{data.size} samples in {len(data.samples)} shards"
            refuse("readers", rule, value, remedy, "order")
        samples = []
        for part in parts:
            rng = reseeded_twister([seed, len(data.samples), epoch + 1, part.chunk])
            samples.append(
                _shuffle_in_blocks(part.samples, self.item_shuffle_window, rng)
            )
        sizes = [len(part) for part in samples]
        worker = np.repeat([part.worker for part in parts], sizes)
        return number_positions(
            worker // readers.workers, worker % readers.workers, np.concatenate(samples)
        )

    def drops_remainder(self, readers: Readers) -> bool:
        """Return True if samples that cannot be shared evenly are left out.

        That is ``drop_last``, or where that is None, whether there are several ranks.
        """
        return readers.world_size > 1 if self.drop_last is None else self.drop_last


class LitdataFull(_LitData):
    """``StreamingDataset(shuffle=True)`` (litdata 0.2.76, litdata/streaming/shuffle.py,
    ``FullShuffle``). Chunks are permuted, laid out, and cut into the workers' equal
    parts; a chunk is downloaded whole by each node that has a part of it.

    On several nodes the first epoch decides which chunks a node has. If they fit in its
    cache, all later epochs permute them within the node; a chunk that two nodes had
    parts of is then read whole by both, and one that was dropped is never read. If not,
    all epochs permute all chunks.

    Attributes:
        kind: its name.
        max_cache_size: what a node keeps; None if all chunks fit. The library's own
            default is three quarters of the disk that is free.
    """

    kind: Literal["litdata_full"]
    max_cache_size: PositiveNBytes | None = None

    def _share_chunks(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> list[ChunkPart]:
        """Share all chunks among all workers; from epoch 2 on within each node.

        One node, or nodes of which one has more than its cache keeps, share all chunks
        anew in each epoch.
        """
        if readers.nodes == 1:
            return self._share_among_all(data, readers, seed, epoch)
        first_epoch = self._share_among_all(data, readers, seed, 1)
        if epoch == 1:
            return first_epoch
        workers_per_node = readers.ranks * readers.workers
        # chunks of each node in the order in which they first came to it
        chunks_of_nodes: list[dict[int, None]] = [{} for _ in range(readers.nodes)]
        for part in first_epoch:
            chunks_of_nodes[part.worker // workers_per_node][part.chunk] = None
        cached_chunks = [np.array(list(chunks), np.int64) for chunks in chunks_of_nodes]
        cached_nbytes = max(data.nbytes[chunks].sum() for chunks in cached_chunks)
        if self.max_cache_size and cached_nbytes > self.max_cache_size:
            return self._share_among_all(data, readers, seed, epoch)
        parts = []
        for node, chunks in enumerate(cached_chunks):
            rng = reseeded_twister([seed, epoch, node])
            node_parts = self._cut_chunks(
                data, rng.permutation(chunks), readers, readers.ranks
            )
            first_worker = node * workers_per_node
            parts += [
                part._replace(worker=first_worker + part.worker) for part in node_parts
            ]
        return parts

    def _share_among_all(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> list[ChunkPart]:
        """Permute all chunks, by seed and epoch, and share them among all ranks."""
        chunks = reseeded_twister([seed, epoch]).permutation(len(data.samples))
        return self._cut_chunks(data, chunks, readers, readers.world_size)

    def _cut_chunks(
        self, data: ShardedSet, chunks: Ints64, readers: Readers, ranks: int
    ) -> list[ChunkPart]:
        """Lay ``chunks`` out and cut them into the workers' parts of ``ranks`` ranks.

        Each rank gets as many whole batches, its first workers one more than the
        others. The samples that remain go to the worker of the last rank whose turn it
        is, or are left out (`drops_remainder`).

        Args:
            data: the set in shards.
            chunks: (n,) in the order in which they are laid out.
            readers: the processes that read.
            ranks: among which ``chunks`` are shared.

        Returns:
            The parts by rising worker, counted from 0 through these ranks.
        """
        size = int(data.samples[chunks].sum())
        batch_size = readers.batch_size
        batches_per_rank = size // batch_size // ranks
        batches_per_worker, with_extra_batch = divmod(batches_per_rank, readers.workers)
        # (workers,) samples of each worker of a rank, then (ranks * workers,)
        has_extra_batch = np.arange(readers.workers) < with_extra_batch
        samples_of_workers = batch_size * (batches_per_worker + has_extra_batch)
        shares = np.tile(samples_of_workers, ranks)
        if not self.drops_remainder(readers):
            shares[(ranks - 1) * readers.workers + with_extra_batch] += (
                size - shares.sum()
            )
        samples = samples_of_shards(data, chunks)
        return [
            ChunkPart(
                worker=span.part,
                chunk=span.shard,
                samples=samples[span.begin : span.end],
            )
            for span in cut_spans(data, chunks, np.cumsum(shares))
        ]


class LitdataWindow(_LitData):
    """The shuffle of a set on a parallel file system, which is read in place (litdata
    0.2.76, litdata/streaming/shuffle.py, ``WindowShuffle``). Each worker has whole
    chunks that follow one another, the same in all epochs, and permutes them within a
    window. A chunk is read ahead whole.

    With fewer chunks than workers, some workers have none.

    Attributes:
        kind: its name.
        window: a chunk comes at most ``window`` - 1 places earlier than it is stored; 1
            moves none.
    """

    default_sources: ClassVar[dict[str, str]] = {
        **_LitData.default_sources,
        "window": f"default of {_SHUFFLE}",
    }

    kind: Literal["litdata_window"]
    window: Count = 16

    def _share_chunks(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> list[ChunkPart]:
        """Give each worker its own chunks, in a new order within the window.

        Where the remainder is dropped, a worker's last chunks are cut off or left out,
        so that all workers that have chunks read equally many samples.
        """
        num_workers = readers.world_size * readers.workers
        owner = _owner_of_chunks(data.samples.tolist(), num_workers)
        samples_read = data.samples
        is_read = np.ones(len(owner), bool)
        if self.drops_remainder(readers):
            samples_read = _samples_in_equal_steps(data, owner, readers)
            is_read = samples_read > 0
        parts = []
        for worker in range(num_workers):
            rng = reseeded_twister([seed, epoch, worker])
            worker_chunks = np.flatnonzero((owner == worker) & is_read)
            for chunk in _shuffle_in_window(worker_chunks, self.window, rng):
                samples = data.begin[chunk] + np.arange(samples_read[chunk])
                parts.append(ChunkPart(worker, chunk, samples))
        return parts


def _owner_of_chunks(sizes: list[int], num_workers: int) -> Ints64:
    """Return the worker of each chunk, (S,), given the samples of each.

    The next worker begins where the middle of a chunk is beyond the share of the
    samples that the workers before it should have. The numbers do not decrease; with
    few chunks the last workers have none.
    """
    total = sum(sizes)
    owner: list[int] = []
    worker = 0
    samples_before = 0
    for size in sizes:
        share_end = (worker + 1) * total / num_workers
        is_beyond = samples_before + size / 2 > share_end
        if owner and worker < num_workers - 1 and is_beyond:
            worker += 1
        owner.append(worker)
        samples_before += size
    return np.array(owner, np.int64)


def _samples_in_equal_steps(
    data: ShardedSet, owner: Ints64, readers: Readers
) -> Ints64:
    """Return the samples of each chunk that are read, (S,), if all workers take as many
    steps.

    No worker reads more than the whole batches of the one that has fewest samples; a
    worker without samples does not count. All are 0 where that one has no whole batch.
    """
    samples_of_worker = np.bincount(owner, data.samples).astype(np.int64)
    fewest = int(samples_of_worker[samples_of_worker > 0].min())
    read_per_worker = fewest // readers.batch_size * readers.batch_size
    # (S,) samples of the chunk's worker that come before the chunk
    first_of_worker = np.cumsum(samples_of_worker) - samples_of_worker
    samples_before = data.begin[:-1] - first_of_worker[owner]
    samples_read: Ints64 = np.clip(read_per_worker - samples_before, 0, data.samples)
    return samples_read


def _shuffle_in_window(
    chunks: Ints64, window: int, rng: np.random.RandomState
) -> list[int]:
    """Return ``chunks`` after each position in turn was swapped with one of the
    ``window`` positions from it on; a window of 1 keeps the order.
    """
    shuffled: list[int] = chunks.tolist()
    if window > 1:
        for position in range(len(shuffled) - 1):
            end = min(position + window, len(shuffled))
            partner = int(rng.randint(position, end))
            shuffled[position], shuffled[partner] = (
                shuffled[partner],
                shuffled[position],
            )
    return shuffled


def _shuffle_in_blocks(
    samples: Ints64, window: int, rng: np.random.RandomState
) -> Ints64:
    """Permute samples within blocks of ``window``, then the blocks; below 2, all
    samples. ``samples`` (n,) is changed too.
    """
    if window <= 1:
        rng.shuffle(samples)
        return samples
    blocks = [
        samples[begin : begin + window] for begin in range(0, len(samples), window)
    ]
    for block in blocks:
        rng.shuffle(block)
    rng.shuffle(blocks)
    return np.concatenate([samples[:0], *blocks])

"""LitData: chunks shared among the workers, shuffled in whole or in windows. A chunk is a shard."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count, PositiveNBytes
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import check, numbered, reseeded_twister, samples_of, spans

_DATASET = "litdata 0.2.76, litdata/streaming/dataset.py"
_SHUFFLE = "litdata 0.2.76, litdata/streaming/shuffle.py"
Piece = tuple[int, int, Ints64]
"""A worker, counted through all ranks, a chunk, and the samples of it that the worker reads."""


class _LitData(Order):
    """What both shuffles have: chunks in an order, shared among workers; and what is done to the
    samples of a worker's part of a chunk.

    Attributes:
        drop_last: whether what cannot be shared evenly is left out; by default with several ranks.
        item_shuffle_window: samples of a block within a chunk: blocks are permuted, and samples in
            a block. 0 or 1 permutes all of them.
    """

    default_sources: ClassVar[dict[str, str]] = {"item_shuffle_window": f"default of {_DATASET}"}

    unit: ClassVar[Unit] = "shard"
    drop_last: bool | None = None
    item_shuffle_window: Annotated[int, Field(ge=0)] = 256

    @property
    def short_name(self) -> str:
        """'litdata full' or 'litdata window'."""
        return self.kind.replace("_", " ")

    @abstractmethod
    def _shared(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> list[Piece]:
        """What the workers read, sorted by worker and then as read; epochs from 1."""

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch. Epoch 0 is what the library counts as 1. Raises an InputError for
        no samples or readers, or a seed out of range; or a rank without samples, which the library
        silently lets be, so that the ranks no longer take as many steps."""
        check(data, readers, seed, epoch, 2**32 - 1)
        pieces = self._shared(data, readers, seed, epoch + 1)
        ranks = readers.world_size
        reading = {worker // readers.workers for worker, _, own in pieces if own.size}
        if len(reading) < ranks:
            rule = (
                "each rank gets a sample; the library silently gives "
                f"{ranks - len(reading)} of {ranks} ranks none"
            )
            remedy = "Take fewer ranks or workers, a smaller batch, or more and smaller shards"
            found = f"{data.size} samples in {len(data.samples)} shards"
            refuse("readers", rule, found, remedy, "order")
        samples = [
            _in_blocks(
                own,
                self.item_shuffle_window,
                reseeded_twister([seed, len(data.samples), epoch + 1, chunk]),
            )
            for _, chunk, own in pieces
        ]
        worker = np.repeat([piece[0] for piece in pieces], [len(own) for own in samples])
        return numbered(
            worker // readers.workers, worker % readers.workers, np.concatenate(samples)
        )

    def drops(self, readers: Readers) -> bool:
        """Whether what cannot be shared evenly is left out."""
        return readers.world_size > 1 if self.drop_last is None else self.drop_last


class LitdataFull(_LitData):
    """``StreamingDataset(shuffle=True)`` (litdata 0.2.76, litdata/streaming/shuffle.py,
    ``FullShuffle``). Chunks are permuted, laid out, and cut into the workers' equal parts; a chunk
    is downloaded whole by each node that has a part of it.

    On several nodes the first epoch decides which chunks a node has. If they fit in its cache, all
    later epochs permute them within the node; a chunk that two nodes had parts of is then read
    whole by both, and one that was dropped is never read. If not, all epochs permute all chunks.

    Attributes:
        kind: its name.
        max_cache_size: what a node keeps; None if all chunks fit. The library's own default is
            three quarters of the disk that is free.
    """

    kind: Literal["litdata_full"]
    max_cache_size: PositiveNBytes | None = None

    def _shared(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> list[Piece]:
        if readers.nodes == 1:
            return self._global(data, readers, seed, epoch)
        first = self._global(data, readers, seed, 1)
        if epoch == 1:
            return first
        on_node = readers.ranks * readers.workers
        # chunks of each node as it first came to them
        own: list[dict[int, None]] = [{} for _ in range(readers.nodes)]
        for worker, chunk, _ in first:
            own[worker // on_node][chunk] = None
        held = [np.array(list(chunks), np.int64) for chunks in own]
        if self.max_cache_size and max(data.nbytes[c].sum() for c in held) > self.max_cache_size:
            return self._global(data, readers, seed, epoch)
        pieces = []
        for node, chunks in enumerate(held):
            rng = reseeded_twister([seed, epoch, node])
            pieces += [
                (node * on_node + worker, chunk, samples)
                for worker, chunk, samples in self._cut(
                    data, rng.permutation(chunks), readers, readers.ranks
                )
            ]
        return pieces

    def _global(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> list[Piece]:
        """All chunks, shared among all ranks."""
        chunks = reseeded_twister([seed, epoch]).permutation(len(data.samples))
        return self._cut(data, chunks, readers, readers.world_size)

    def _cut(self, data: ShardedSet, chunks: Ints64, readers: Readers, ranks: int) -> list[Piece]:
        """``chunks``, shared among ``ranks`` ranks: as many whole batches for each, the first
        workers of a rank with one more. What is left goes to the worker of the last rank whose
        turn it is."""
        size, batch = int(data.samples[chunks].sum()), readers.batch_size
        batches, more = divmod(size // batch // ranks, readers.workers)
        of_rank = batch * (batches + (np.arange(readers.workers) < more))
        shares = np.tile(of_rank, ranks)
        if not self.drops(readers):
            shares[(ranks - 1) * readers.workers + more] += size - shares.sum()
        samples = samples_of(data, chunks)
        return [
            (worker, chunk, samples[begin:end])
            for worker, chunk, begin, end in spans(data, chunks, np.cumsum(shares))
        ]


class LitdataWindow(_LitData):
    """The shuffle of a set on a parallel file system, which is read in place (litdata 0.2.76,
    litdata/streaming/shuffle.py, ``WindowShuffle``). Each worker has whole chunks that follow one
    another, the same in all epochs, and permutes them within a window. A chunk is read ahead whole.

    With fewer chunks than workers, some workers have none.

    Attributes:
        kind: its name.
        window: a chunk comes at most ``window`` - 1 places earlier than it is stored; 1 moves none.
    """

    default_sources: ClassVar[dict[str, str]] = {
        **_LitData.default_sources,
        "window": f"default of {_SHUFFLE}",
    }

    kind: Literal["litdata_window"]
    window: Count = 16

    def _shared(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> list[Piece]:
        workers = readers.world_size * readers.workers
        owner, count = _stripes(data.samples.tolist(), workers), data.samples
        kept = np.ones(len(owner), bool)
        if self.drops(readers):
            count = _within_least(data, owner, readers)
            kept = count > 0
        pieces = []
        for worker in range(workers):
            rng = reseeded_twister([seed, epoch, worker])
            pieces += [
                (worker, chunk, data.begin[chunk] + np.arange(count[chunk]))
                for chunk in _in_window(np.flatnonzero((owner == worker) & kept), self.window, rng)
            ]
        return pieces


def _stripes(sizes: list[int], workers: int) -> Ints64:
    """(S,) the worker of each chunk: the next one begins where the middle of a chunk is beyond the
    share of the samples that those before should have."""
    total, worker, before = sum(sizes), 0, 0
    owner, has = [], False
    for size in sizes:
        if worker < workers - 1 and has and before + size / 2 > (worker + 1) * total / workers:
            worker, has = worker + 1, False
        owner.append(worker)
        before, has = before + size, True
    return np.array(owner, np.int64)


def _within_least(data: ShardedSet, owner: Ints64, readers: Readers) -> Ints64:
    """(S,) samples of each chunk that are read if nobody reads more than those who have fewest, in
    whole batches."""
    has = np.bincount(owner, data.samples).astype(np.int64)
    least = int(has[has > 0].min()) // readers.batch_size * readers.batch_size
    before = data.begin[:-1] - (np.cumsum(has) - has)[owner]
    read: Ints64 = np.clip(least - before, 0, data.samples)
    return read


def _in_window(chunks: Ints64, window: int, rng: np.random.RandomState) -> list[int]:
    """Each place in turn is swapped with one of the ``window`` from it on."""
    moved: list[int] = chunks.tolist()
    if window > 1:
        for place in range(len(moved) - 1):
            other = int(rng.randint(place, min(place + window, len(moved))))
            moved[place], moved[other] = moved[other], moved[place]
    return moved


def _in_blocks(samples: Ints64, window: int, rng: np.random.RandomState) -> Ints64:
    """Samples permuted within blocks of ``window``, and the blocks; without blocks, all of them."""
    if window <= 1:
        rng.shuffle(samples)
        return samples
    blocks = [samples[begin : begin + window] for begin in range(0, len(samples), window)]
    for block in blocks:
        rng.shuffle(block)
    rng.shuffle(blocks)
    return np.concatenate([samples[:0], *blocks])

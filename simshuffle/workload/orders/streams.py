"""What orders of several libraries share: shards laid out and cut, dealing, rows, and what they
refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet


class _ThreadTwister(threading.local):
    """A Mersenne Twister for each thread."""

    def __init__(self) -> None:
        self.twister = np.random.RandomState(0)


_THREAD = _ThreadTwister()


def reseeded_twister(seed: int | list[int]) -> np.random.RandomState:
    """Return this thread's Mersenne Twister, seeded like a new ``RandomState(seed)``.

    Seeding takes a tenth of the time of making another. The caller draws all it needs of one seed
    before it asks for the next.
    """
    _THREAD.twister.seed(seed)
    return _THREAD.twister


def samples_of(data: ShardedSet, shards: Ints64 | list[int]) -> Ints64:
    """The samples of those shards, one shard after another."""
    shards = np.asarray(shards, np.int64)
    sizes = data.samples[shards]
    first = data.begin[shards] - np.cumsum(sizes) + sizes
    return np.repeat(first, sizes) + np.arange(sizes.sum())


def joined(parts: Sequence[Ints64]) -> Ints64:
    """Those parts as one array, also where there is none."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def blocks_of(data: ShardedSet, block: int) -> list[Ints64]:
    """The places of each block of ``block`` samples. None crosses the end of a shard, so the last
    of a shard may be smaller."""
    return [
        np.arange(first, min(first + block, end))
        for begin, end in zip(data.begin[:-1], data.begin[1:], strict=True)
        for first in range(begin, end, block)
    ]


def spans(data: ShardedSet, shards: Ints64, ends: Ints64) -> list[tuple[int, int, int, int]]:
    """``shards`` one after another, cut where a part ends: runs of samples of one shard that belong
    to one part. ``ends`` are (P,) the place after the last sample of each part, ascending; what
    comes after the last of them is nobody's. Returns of each run its part, ascending; its shard;
    and where it begins and ends among all samples that are laid out."""
    last = np.cumsum(data.samples[shards])
    cuts = np.unique(np.concatenate([[0], last, ends]))
    cuts = cuts[cuts <= min(ends[-1], last[-1] if last.size else 0)]
    begin, end = cuts[:-1], cuts[1:]
    part = np.searchsorted(ends, begin, side="right")
    shard = shards[np.searchsorted(last, begin, side="right")]
    return list(zip(part.tolist(), shard.tolist(), begin.tolist(), end.tolist(), strict=True))


def numbered(rank: Ints64, worker: Ints64, sample: Ints64) -> EpochOrder:
    """The order whose rows are those, sorted by rank and worker already."""
    who = rank * (worker.max(initial=0) + 1) + worker
    first = np.searchsorted(who, who, side="left")
    return EpochOrder(rank, worker, np.arange(len(who)) - first, sample)


def dealt(sequences: Ints64, readers: Readers) -> EpochOrder:
    """Each rank's samples, (M, n) in their order and -1 where there is none, in batches, of which
    batch k goes to worker k mod workers."""
    worker = np.arange(sequences.shape[1]) // readers.batch_size % readers.workers
    by_worker = np.argsort(worker, kind="stable")
    rank, column = np.nonzero(sequences[:, by_worker] >= 0)
    column = by_worker[column]
    return numbered(rank, worker[column], sequences[rank, column])


def handed_out(streams: Iterable[tuple[int, int, Ints64]]) -> EpochOrder:
    """The rows of an epoch, from the rank, the worker and the samples (n,) of each stream, sorted
    by rank and worker."""
    ranks, workers, samples = zip(*streams, strict=True)
    counts = [len(part) for part in samples]
    return numbered(np.repeat(ranks, counts), np.repeat(workers, counts), joined(samples))


def handed_out_by_ranks(parts: Iterable[Ints64]) -> EpochOrder:
    """The same where each rank reads its part by itself: worker 0 hands out everything."""
    return handed_out((rank, 0, part) for rank, part in enumerate(parts))


def need_shards(data: ShardedSet) -> None:
    """Raise an InputError for a set without a shard."""
    if len(data.samples) == 0:
        rule = "must hold a shard at least: it is shards whose order is drawn"
        remedy = "Name the shards of the data set."
        refuse("data.samples", rule, "no shards", remedy, "")


def need_shards_for(data: ShardedSet, path: str, readers: int, who: str, otherwise: str) -> None:
    """Raise an InputError for fewer shards than there are ``readers``, whose number the key
    ``path`` says; ``who`` they are, and what the library does ``otherwise``."""
    need_shards(data)
    if len(data.samples) < readers:
        rule = f"must not exceed the {len(data.samples)} shards: {otherwise}"
        remedy = "Split the set into more shards, or read with fewer."
        refuse(path, rule, f"{readers} {who}", remedy, "")


def need_smaller(path: str, buffered: int, data: ShardedSet) -> None:
    """Raise an InputError for a buffer that is larger than the set."""
    if buffered > data.size:
        rule = (
            f"must not exceed the {data.size} samples of the set: such a buffer never fills, and"
            " the whole set is shuffled in memory"
        )
        refuse(path, rule, f"{buffered} samples", "Make it smaller.", "")


def check(data: ShardedSet, readers: Readers, seed: int, epoch: int, seeds: int) -> None:
    """Raise an InputError for no samples, a negative number of them, no readers, or a seed out of
    range: seed and epoch together stay below ``seeds``, as many as the library has."""
    problems, remedy = [], "Give the samples of each shard"
    if data.samples.size and data.samples.min() < 0:
        rule = "a shard has no negative number of samples"
        problems.append(Problem("data.samples", rule, str(data.samples.min()), remedy))
    elif data.size == 0:
        rule = "a data set has at least one shard with a sample"
        problems.append(Problem("data.samples", rule, f"{data.samples.size} shards", remedy))
    problems += [
        Problem(f"readers.{name}", "must be at least 1", str(value), remedy)
        for name, value, remedy in (
            ("nodes", readers.nodes, "Give the hosts that read"),
            ("ranks", readers.ranks, "Give the ranks of a node"),
            ("workers", readers.workers, "A rank that reads by itself counts as 1 worker"),
            ("batch_size", readers.batch_size, "Give the samples of a rank in an iteration"),
        )
        if value < 1
    ]
    if seed < 0 or epoch < 0 or seed + epoch >= seeds:
        rule = f"seed and epoch are not negative, and together less than {seeds}"
        problems.append(Problem("seed", rule, f"seed {seed}, epoch {epoch}", "Take another seed"))
    if problems:
        raise InputError(problems, "order")

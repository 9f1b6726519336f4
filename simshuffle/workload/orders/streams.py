"""Shared parts of the orders of several libraries: shards laid out and cut, batches
dealt, refusals.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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

    Seeding takes a tenth of the time of making another. The caller draws all it needs
    of one seed before it asks for the next.
    """
    _THREAD.twister.seed(seed)
    return _THREAD.twister


def samples_of_shards(data: ShardedSet, shards: Ints64 | list[int]) -> Ints64:
    """Return the samples of ``shards``, (n,), one shard after another."""
    shards = np.asarray(shards, np.int64)
    sizes = data.samples[shards]
    # sample k of the result is k plus the offset of its shard
    offset = data.begin[shards] - np.cumsum(sizes) + sizes
    return np.repeat(offset, sizes) + np.arange(sizes.sum())


def concatenate_or_empty(parts: Sequence[Ints64]) -> Ints64:
    """Concatenate ``parts``; without any, return an empty int64 array."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def split_into_blocks(data: ShardedSet, block: int) -> list[Ints64]:
    """Return the positions (n,) in the set of each block of ``block`` samples.

    No block crosses the end of a shard, so the last block of a shard may be smaller. A
    shard without samples has no block.
    """
    return [
        np.arange(first, min(first + block, end))
        for begin, end in zip(data.begin[:-1], data.begin[1:], strict=True)
        for first in range(begin, end, block)
    ]


class Span(NamedTuple):
    """A run of samples of one shard that belong to one part."""

    part: int
    shard: int
    begin: int  # position of the first sample among all samples that are laid out
    end: int  # position after the last one


def cut_spans(data: ShardedSet, shards: Ints64, ends: Ints64) -> list[Span]:
    """Lay ``shards`` out one after another, and cut them where a part ends.

    Args:
        data: the set in shards.
        shards: in the order in which they are laid out.
        ends: (P,) the position after the last sample of each part, ascending, at least
            one; samples after the last of them belong to no part.

    Returns:
        The spans, by ascending part and position; none of an empty part or shard.
    """
    # positions where a shard or a part ends, none beyond the last part
    shard_end = np.cumsum(data.samples[shards])
    cuts = np.unique(np.concatenate([[0], shard_end, ends]))
    cuts = cuts[cuts <= min(ends[-1], shard_end[-1] if shard_end.size else 0)]
    begin = cuts[:-1]
    end = cuts[1:]
    part = np.searchsorted(ends, begin, side="right")
    shard = shards[np.searchsorted(shard_end, begin, side="right")]
    columns = (part.tolist(), shard.tolist(), begin.tolist(), end.tolist())
    return [Span(*row) for row in zip(*columns, strict=True)]


def number_positions(rank: Ints64, worker: Ints64, sample: Ints64) -> EpochOrder:
    """Return the order with these rows, (n,) each and sorted by rank and worker
    already.

    Positions count from 0 for each pair of rank and worker.
    """
    # a number for each pair of rank and worker; equal ones follow one another
    stream = rank * (worker.max(initial=0) + 1) + worker
    first_row = np.searchsorted(stream, stream, side="left")
    return EpochOrder(rank, worker, np.arange(len(stream)) - first_row, sample)


def deal_batches(sequences: Ints64, readers: Readers) -> EpochOrder:
    """Deal each rank's samples to its workers: batch k goes to worker k mod workers.

    Columns count as places of a batch also where they hold -1, which gives no row.

    Args:
        sequences: (M, n) the samples of each rank in their order, -1 where it has none.
        readers: the processes that read.
    """
    # (n,) the worker of each column of ``sequences``
    worker = np.arange(sequences.shape[1]) // readers.batch_size % readers.workers
    by_worker = np.argsort(worker, kind="stable")
    rank, column = np.nonzero(sequences[:, by_worker] >= 0)
    column = by_worker[column]
    return number_positions(rank, worker[column], sequences[rank, column])


def order_from_streams(streams: Iterable[tuple[int, int, Ints64]]) -> EpochOrder:
    """Return the order in which the streams of an epoch hand out samples.

    Args:
        streams: rank, worker and samples (n,) of each, sorted by rank and worker; at
            least one. A stream without samples gives no row.
    """
    ranks, workers, samples = zip(*streams, strict=True)
    sizes = [len(stream) for stream in samples]
    return number_positions(
        np.repeat(ranks, sizes),
        np.repeat(workers, sizes),
        concatenate_or_empty(samples),
    )


def order_from_ranks(samples_of_ranks: Iterable[Ints64]) -> EpochOrder:
    """Return the order in which each rank reads its samples (n,) by itself, as worker
    0.
    """
    return order_from_streams(
        (rank, 0, samples) for rank, samples in enumerate(samples_of_ranks)
    )


def require_shards(data: ShardedSet) -> None:
    """Raise an InputError for a set without a shard."""
    if len(data.samples) == 0:
        rule = "must hold at least one shard: the order of shards is drawn"
        remedy = "Name the shards of the data set."
        refuse("data.samples", rule, "no shards", remedy, "")


def require_shard_for_each(
    data: ShardedSet, path: str, num_readers: int, readers: str, consequence: str
) -> None:
    """Raise an InputError for fewer shards than readers, or no shard at all.

    Args:
        data: the set in shards.
        path: the key that decides how many readers there are.
        num_readers: how many there are.
        readers: what they are, as 'ranks'.
        consequence: what the library does with too few shards.
    """
    require_shards(data)
    if len(data.samples) < num_readers:
        rule = f"must not exceed the {len(data.samples)} shards: {consequence}"
        remedy = "Split the set into more shards, or read with fewer."
        refuse(path, rule, f"{num_readers} {readers}", remedy, "")


def require_buffer_below_set(path: str, buffer_size: int, data: ShardedSet) -> None:
    """Raise an InputError, at key ``path``, for a buffer of more samples than the set
    has.
    """
    if buffer_size > data.size:
        rule = (
            f"must not exceed the {data.size} samples of the set: such a buffer never fills, and"
            " the whole set is shuffled in memory"
        )
        refuse(path, rule, f"{buffer_size} samples", "Make it smaller.", "")


def check_inputs(
    data: ShardedSet, readers: Readers, seed: int, epoch: int, num_seeds: int
) -> None:
    """Raise an InputError for a set without samples, a shard of negative size, no
    readers, or a bad seed; one error for all problems.

    Args:
        data: the set in shards.
        readers: the processes that read.
        seed: not negative.
        epoch: not negative; seed and epoch together stay below ``num_seeds``.
        num_seeds: as many seeds as the library has.
    """
    problems = []
    remedy = "Give the samples of each shard"
    if data.samples.size and data.samples.min() < 0:
        rule = "a shard has no negative number of samples"
        problems.append(Problem("data.samples", rule, str(data.samples.min()), remedy))
    elif data.size == 0:
        rule = "a data set has at least one shard with a sample"
        problems.append(
            Problem("data.samples", rule, f"{data.samples.size} shards", remedy)
        )
    problems += [
        Problem(f"readers.{name}", "must be at least 1", str(value), remedy)
        for name, value, remedy in (
            ("nodes", readers.nodes, "Give the hosts that read"),
            ("ranks", readers.ranks, "Give the ranks of a node"),
            (
                "workers",
                readers.workers,
                "A rank that reads by itself counts as 1 worker",
            ),
            (
                "batch_size",
                readers.batch_size,
                "Give the samples of a rank in an iteration",
            ),
        )
        if value < 1
    ]
    if seed < 0 or epoch < 0 or seed + epoch >= num_seeds:
        rule = f"seed and epoch are not negative, and together less than {num_seeds}"
        problems.append(
            Problem("seed", rule, f"seed {seed}, epoch {epoch}", "Take another seed")
        )
    if problems:
        raise InputError(problems, "order")

"""What the orders of shards and buffers share: dealing, blocks, rows, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.orders.order import EpochOrder, ShardedSet
from simshuffle.spec.arrays import Ints64


def samples_of(data: ShardedSet, shards: Iterable[int]) -> Ints64:
    """The samples of those shards, one shard after the other."""
    parts = [np.arange(data.begin[shard], data.begin[shard + 1]) for shard in shards]
    return joined(parts)


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


def handed_out(streams: Iterable[tuple[int, int, Ints64]]) -> EpochOrder:
    """The rows of an epoch, from the rank, the worker and the samples (n,) of each stream."""
    streams = list(streams)
    counts = [len(samples) for _, _, samples in streams]
    return EpochOrder(
        rank=np.repeat([rank for rank, _, _ in streams], counts),
        worker=np.repeat([worker for _, worker, _ in streams], counts),
        position=joined([np.arange(count) for count in counts]),
        sample=joined([samples for _, _, samples in streams]),
    )


def handed_out_by_ranks(parts: Iterable[Ints64]) -> EpochOrder:
    """The same where each rank reads its part by itself: worker 0 hands out everything."""
    return handed_out((rank, 0, part) for rank, part in enumerate(parts))


def need_shards(data: ShardedSet) -> None:
    """Raise an InputError for a set without a shard."""
    if len(data.samples) == 0:
        rule = "must hold a shard at least: it is shards whose order is drawn"
        remedy = "Name the shards of the data set."
        raise InputError(Problem("data.samples", rule, "no shards", remedy))


def need_shards_for(data: ShardedSet, path: str, readers: int, who: str, otherwise: str) -> None:
    """Raise an InputError for fewer shards than there are ``readers``, whose number the key
    ``path`` says; ``who`` they are, and what the library does ``otherwise``."""
    need_shards(data)
    if len(data.samples) < readers:
        rule = f"must not exceed the {len(data.samples)} shards: {otherwise}"
        remedy = "Split the set into more shards, or read with fewer."
        raise InputError(Problem(path, rule, f"{readers} {who}", remedy))


def need_smaller(path: str, buffered: int, data: ShardedSet) -> None:
    """Raise an InputError for a buffer that is larger than the set."""
    if buffered > data.size:
        rule = (
            f"must not exceed the {data.size} samples of the set: such a buffer never fills, and"
            " the whole set is shuffled in memory"
        )
        raise InputError(Problem(path, rule, f"{buffered} samples", "Make it smaller."))

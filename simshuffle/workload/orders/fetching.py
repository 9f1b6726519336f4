"""What is fetched of an order, by counting: requests to the remote storage and their bytes, what
the caches of the nodes answer, and how full these are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

import numpy as np

from simshuffle.spec.arrays import Flags, Ints64
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit


@dataclass(frozen=True)
class Pieces:
    """What can be fetched at once."""

    of_sample: Ints64  # (N,) the piece of each sample
    nbytes: Ints64  # (P,) bytes of each piece, whole numbers


@dataclass(frozen=True)
class Fetched:
    """What is fetched in an epoch, over all nodes."""

    samples: int  # handed out
    hits: int  # of these, samples whose piece was there already
    requests: int  # to the remote storage: one for each piece that was not there
    nbytes: int  # of these requests
    evictions: int  # pieces that a cache dropped for others
    held_nbytes: int  # the most bytes that one node held at once


def pieces(data: ShardedSet, unit: Unit, block: int = 1, places: Ints64 | None = None) -> Pieces:
    """What is fetched at once of ``data``: a sample, a block of ``block`` samples, of which the
    last of a shard may have fewer, or a shard. ``places`` is (N,) where each sample is stored; None
    for where its number says. Bytes of a shard are divided among its samples as evenly as whole
    bytes can be."""
    place = np.arange(data.size)
    shard = data.shard_of(place)
    if unit == "sample":
        of_place = place
    elif unit == "shard":
        of_place = shard
    else:
        first = np.concatenate([[0], np.cumsum(-(-data.samples // block))])
        of_place = first[shard] + (place - data.begin[shard]) // block
    # whole bytes of each sample; together those of the shard
    within, many = place - data.begin[shard], data.samples[shard]
    whole = np.rint(data.nbytes).astype(np.int64)[shard]
    sizes = (within + 1) * whole // many - within * whole // many
    nbytes = np.bincount(of_place, sizes).astype(np.int64)
    return Pieces(of_place if places is None else of_place[places], nbytes)


def in_time(order: EpochOrder, readers: Readers) -> Ints64:
    """(n,) the rows of ``order`` in the order in which a node meets them, all nodes mixed. A rank
    takes a batch of each of its workers in turn, and each worker hands out its samples by position.
    So in every iteration come the batches of all ranks, rank by rank."""
    turn = iteration(order, readers)
    return np.lexsort((order.position, order.rank, turn))


def iteration(order: EpochOrder, readers: Readers) -> Ints64:
    """(n,) the iteration of the rank in which each row is handed out, from 0; where a worker has
    fewer batches than another, later turns are empty."""
    return order.position // readers.batch_size * readers.workers + order.worker


def fetched(
    orders: Iterable[EpochOrder], readers: Readers, of: Pieces, cache_nbytes: int | None
) -> Iterator[Fetched]:
    """What is fetched in one epoch after another, which are taken one by one, with a cache on each
    node; arguments as of `Caches`."""
    caches = Caches(readers, of, cache_nbytes)
    for order in orders:
        rows = in_time(order, readers)
        yield caches.epoch(order.rank[rows], order.worker[rows], order.sample[rows])[1]


class Caches:
    """The caches of all nodes, from epoch to epoch.

    Args:
        readers: who reads.
        of: what is fetched at once.
        cache_nbytes: what each node keeps, the least recently used being dropped; what is larger
            is fetched and not kept. None for no limit. 0 for no cache: each worker holds a piece
            from its first sample of it to its last in the epoch, shares it with nobody, and keeps
            nothing for the next epoch.
    """

    def __init__(self, readers: Readers, of: Pieces, cache_nbytes: int | None) -> None:
        self._readers, self._of, self._streams = readers, of, cache_nbytes == 0
        self._nodes = [_Node(cache_nbytes, of.nbytes) for _ in range(readers.nodes)]

    def piece_nbytes(self, sample: Ints64) -> Ints64:
        """(n,) bytes of the piece of each sample."""
        return np.asarray(self._of.nbytes[self._of.of_sample[sample]])

    def epoch(self, rank: Ints64, worker: Ints64, sample: Ints64) -> tuple[Flags, Fetched]:
        """What is fetched in the next epoch, given rank, worker and sample, (n,), of what is handed
        out, in the order in which a node meets it: (n,) for which of them their piece is fetched;
        and the sums."""
        node, piece = rank // self._readers.ranks, self._of.of_sample[sample]
        missed, found = np.zeros(len(piece), np.bool_), []
        # the rows of each node, in their order
        by_node = np.argsort(node, kind="stable")
        ends = np.searchsorted(node[by_node], np.arange(len(self._nodes) + 1))
        for number, each in enumerate(self._nodes):
            here = by_node[ends[number] : ends[number + 1]]
            if self._streams:
                owner = rank[here] * self._readers.workers + worker[here]
                missed[here], one = _streamed(piece[here], owner, self._of)
            else:
                missed[here], one = each.epoch(piece[here])
            found.append(one)
        # of all nodes: sums, but for the last column, the most that one held
        whole = np.array([astuple(one) for one in found])
        whole[0, :-1] = whole[:, :-1].sum(axis=0)
        whole[0, -1] = whole[:, -1].max()
        return missed, Fetched(*whole[0].tolist())


class _Node:
    """The cache of a node."""

    def __init__(self, limit: int | None, nbytes: Ints64) -> None:
        self._limit, self._nbytes = limit, nbytes
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._held = 0

    def epoch(self, piece: Ints64) -> tuple[Flags, Fetched]:
        """Ask for the piece of one sample after another."""
        # those that are asked for, in the order of the last time, and the first time of each
        last = len(piece) - 1 - np.unique(piece[::-1], return_index=True)[1]
        asked, first = np.unique(piece, return_index=True)
        new = np.array([one not in self._kept for one in asked.tolist()], np.bool_)
        more = int(self._nbytes[asked[new]].sum())
        if self._limit is None or self._held + more <= self._limit:  # nothing is dropped
            missed = np.zeros(len(piece), np.bool_)
            missed[first[new]] = True
            for one in asked[np.argsort(last)].tolist():
                self._kept[one] = int(self._nbytes[one])
                self._kept.move_to_end(one)
            self._held += more
            count = int(new.sum())
            return missed, Fetched(len(piece), len(piece) - count, count, more, 0, self._held)
        return self._one_by_one(piece, self._limit)

    def _one_by_one(self, piece: Ints64, limit: int) -> tuple[Flags, Fetched]:
        # a sample of the same piece as the one before it changes nothing where that is kept
        again = np.zeros(len(piece), np.bool_)
        again[1:] = piece[1:] == piece[:-1]
        again &= self._nbytes[piece] <= limit
        kept, missed = self._kept, np.zeros(len(piece), np.bool_)
        evictions, most = 0, self._held
        rows = np.flatnonzero(~again)
        sizes = self._nbytes[piece[rows]].tolist()
        for row, one, size in zip(rows.tolist(), piece[rows].tolist(), sizes, strict=True):
            if one in kept:
                kept.move_to_end(one)
                continue
            missed[row] = True
            if size > limit:
                most = max(most, self._held + size)
                continue
            while self._held + size > limit:
                self._held -= kept.popitem(last=False)[1]
                evictions += 1
            kept[one] = size
            self._held += size
            most = max(most, self._held)
        requests, nbytes = int(missed.sum()), int(self._nbytes[piece[missed]].sum())
        return missed, Fetched(len(piece), len(piece) - requests, requests, nbytes, evictions, most)


def _streamed(piece: Ints64, owner: Ints64, of: Pieces) -> tuple[Flags, Fetched]:
    """What workers of a node fetch who share nothing, in an epoch."""
    _, first, held = np.unique(
        owner * len(of.nbytes) + piece, return_index=True, return_inverse=True
    )
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, held, np.arange(len(piece)))
    size = of.nbytes[piece[first]]
    change = np.zeros(len(piece) + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    most = int(np.cumsum(change).max(initial=0))
    missed = np.zeros(len(piece), np.bool_)
    missed[first] = True
    sums = Fetched(len(piece), len(piece) - len(first), len(first), int(size.sum()), 0, most)
    return missed, sums

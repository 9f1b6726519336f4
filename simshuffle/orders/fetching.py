"""What is fetched of an order, by counting: requests to the remote storage and their bytes, what
the caches of the nodes answer, and how full these are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from simshuffle.orders.order import EpochOrder, Ints, Readers, ShardedSet, Unit


@dataclass(frozen=True)
class Pieces:
    """What can be fetched at once.

    Attributes:
        of_sample: (N,) the piece of each sample.
        nbytes: (P,) bytes of each piece, whole numbers.
    """

    of_sample: Ints
    nbytes: Ints


@dataclass(frozen=True)
class Fetched:
    """What is fetched in an epoch, over all nodes.

    Attributes:
        samples: handed out.
        hits: of these, samples whose piece was there already.
        requests: to the remote storage: one for each piece that was not there.
        nbytes: of these requests.
        evictions: pieces that a cache dropped for others.
        held_nbytes: the most bytes that one node held at once.
    """

    samples: int
    hits: int
    requests: int
    nbytes: int
    evictions: int
    held_nbytes: int


def pieces(data: ShardedSet, unit: Unit, block: int = 1, places: Ints | None = None) -> Pieces:
    """What is fetched at once of ``data``.

    Bytes of a shard are divided among its samples as evenly as whole bytes can be.

    Args:
        data: the set.
        unit: a sample, a block or a shard.
        block: samples of a block; the last one of a shard may have fewer.
        places: (N,) where each sample is stored; None for where its number says.
    """
    place = np.arange(data.size)
    shard = data.shard_of(place)
    if unit == "sample":
        of_place = place
    elif unit == "shard":
        of_place = shard
    else:
        first = np.concatenate([[0], np.cumsum(-(-data.samples // block))])
        of_place = first[shard] + (place - data.begin[shard]) // block
    nbytes = np.bincount(of_place, _sample_nbytes(data)).astype(np.int64)
    return Pieces(of_place if places is None else of_place[places], nbytes)


def _sample_nbytes(data: ShardedSet) -> Ints:
    """(N,) whole bytes of each sample; together those of the shard."""
    shard = data.shard_of(np.arange(data.size))
    place = np.arange(data.size) - data.begin[shard]
    whole, many = np.rint(data.nbytes).astype(np.int64)[shard], data.samples[shard]
    return (place + 1) * whole // many - place * whole // many


def in_time(order: EpochOrder, readers: Readers) -> Ints:
    """(n,) the rows of ``order`` in the order in which a node meets them, all nodes mixed.

    A rank takes a batch of each of its workers in turn, and each worker hands out its samples by
    position. So in every iteration come the batches of all ranks, rank by rank.
    """
    turn = iteration(order, readers)
    return np.lexsort((order.position, order.rank, turn))


def iteration(order: EpochOrder, readers: Readers) -> Ints:
    """(n,) the iteration of the rank in which each row is handed out, from 0; where a worker has
    fewer batches than another, later turns are empty."""
    return order.position // readers.batch_size * readers.workers + order.worker


def fetched(
    orders: Iterable[EpochOrder],
    readers: Readers,
    of: Pieces,
    cache_nbytes: int | None,
) -> Iterator[Fetched]:
    """What is fetched in one epoch after another, with a cache on each node.

    Args:
        orders: of the epochs; they are taken one by one.
        readers: who reads.
        of: what is fetched at once.
        cache_nbytes: what each node keeps, the least recently used being dropped; what is larger
            is fetched and not kept. None for no limit. 0 for no cache: each worker holds a piece
            from its first sample of it to its last in the epoch, shares it with nobody, and keeps
            nothing for the next epoch.
    """
    nodes = [_Node(cache_nbytes, of.nbytes) for _ in range(readers.nodes)]
    for order in orders:
        rows = in_time(order, readers)
        node = order.rank[rows] // readers.ranks
        piece = of.of_sample[order.sample[rows]]
        owner = order.rank[rows] * readers.workers + order.worker[rows]
        found = []
        for number, each in enumerate(nodes):
            here = node == number
            if cache_nbytes == 0:
                found.append(_streamed(piece[here], owner[here], of))
            else:
                found.append(each.epoch(piece[here]))
        yield Fetched(
            samples=sum(one.samples for one in found),
            hits=sum(one.hits for one in found),
            requests=sum(one.requests for one in found),
            nbytes=sum(one.nbytes for one in found),
            evictions=sum(one.evictions for one in found),
            held_nbytes=max(one.held_nbytes for one in found),
        )


class _Node:
    """The cache of a node."""

    def __init__(self, limit: int | None, nbytes: Ints) -> None:
        self.limit = limit
        self.nbytes = nbytes.tolist()
        self.kept: OrderedDict[int, int] = OrderedDict()
        self.held = 0

    def epoch(self, piece: Ints) -> Fetched:
        """Ask for the piece of one sample after another."""
        # a sample of the same piece as the one before it changes nothing where that is kept
        again = np.zeros(len(piece), np.bool_)
        again[1:] = piece[1:] == piece[:-1]
        if self.limit is not None:
            again &= np.array(self.nbytes, np.int64)[piece] <= self.limit
        hits, requests, fetched_nbytes, evictions, most = int(again.sum()), 0, 0, 0, self.held
        for one in piece[~again].tolist():
            if one in self.kept:
                self.kept.move_to_end(one)
                hits += 1
                continue
            size = self.nbytes[one]
            requests += 1
            fetched_nbytes += size
            if self.limit is not None:
                if size > self.limit:
                    most = max(most, self.held + size)
                    continue
                while self.held + size > self.limit:
                    self.held -= self.kept.popitem(last=False)[1]
                    evictions += 1
            self.kept[one] = size
            self.held += size
            most = max(most, self.held)
        return Fetched(len(piece), hits, requests, fetched_nbytes, evictions, most)


def _streamed(piece: Ints, owner: Ints, of: Pieces) -> Fetched:
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
    return Fetched(len(piece), len(piece) - len(first), len(first), int(size.sum()), 0, most)

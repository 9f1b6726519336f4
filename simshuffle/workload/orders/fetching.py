"""Count the fetches of an order: requests to the remote storage and their bytes, hits
in the caches of the nodes, and how full these are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

import numpy as np

from simshuffle.spec.arrays import Flags, Ints64
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit


@dataclass(frozen=True)
class Pieces:
    """The pieces in which a set is fetched: samples, blocks or shards."""

    piece_of_sample: Ints64  # (N,) the piece of each sample
    nbytes: Ints64  # (P,) bytes of each piece, whole numbers


@dataclass(frozen=True)
class FetchCounts:
    """The fetches of an epoch, over all nodes or of one."""

    samples: int  # handed out
    hits: int  # samples whose piece was in their node's cache, or held by their worker
    requests: int  # to the remote storage: one for each sample that was no hit
    nbytes: int  # bytes of these requests
    evictions: int  # pieces that a cache dropped for others
    # the most bytes that one node held at once, pieces too large for the cache included
    held_nbytes: int


def divide_into_pieces(
    data: ShardedSet, unit: Unit, block: int = 1, places: Ints64 | None = None
) -> Pieces:
    """Divide a set into the pieces that are fetched at once.

    Bytes of a shard are rounded to whole ones, and divided among its samples as evenly
    as whole bytes can be. Bytes of a shard without samples are left out: its piece has
    0 bytes, or does not exist if only such shards follow.

    Args:
        data: the set in shards.
        unit: a sample, a block or a shard.
        block: samples of a block, for that unit; the last block of a shard may have
            fewer.
        places: (N,) the position at which each sample is stored; None if it is its own
            index.

    Returns:
        The piece of each sample, by sample and not by position; bytes by piece.
    """
    position = np.arange(data.size)
    shard = data.shard_of(position)
    index_in_shard = position - data.begin[shard]
    if unit == "sample":
        piece = position
    elif unit == "shard":
        piece = shard
    else:
        first_block = np.concatenate([[0], np.cumsum(-(-data.samples // block))])
        piece = first_block[shard] + index_in_shard // block

    # whole bytes of each sample, so that those of a shard sum to the shard's:
    # of sample i of n in a shard of B bytes, floor((i + 1) B / n) - floor(i B / n)
    samples_in_shard = data.samples[shard]
    shard_nbytes = np.rint(data.nbytes).astype(np.int64)[shard]
    nbytes_before = index_in_shard * shard_nbytes // samples_in_shard
    nbytes_through = (index_in_shard + 1) * shard_nbytes // samples_in_shard
    piece_nbytes = np.bincount(piece, nbytes_through - nbytes_before).astype(np.int64)
    return Pieces(piece if places is None else piece[places], piece_nbytes)


def rows_in_time(order: EpochOrder, readers: Readers) -> Ints64:
    """Return the indices of the rows of ``order`` in the order in which nodes meet
    them, (n,), all nodes mixed.

    A rank takes a batch of each of its workers in turn, and each worker hands out its
    samples by position. So in every iteration come the batches of all ranks, rank by
    rank.
    """
    return np.lexsort((order.position, order.rank, iteration_of_rows(order, readers)))


def iteration_of_rows(order: EpochOrder, readers: Readers) -> Ints64:
    """Return the iteration, from 0, in which the rank of each row takes the row's
    sample: (n,).

    Where a worker has fewer batches than another, its later turns are empty.
    """
    return order.position // readers.batch_size * readers.workers + order.worker


def count_fetches(
    orders: Iterable[EpochOrder],
    readers: Readers,
    pieces: Pieces,
    cache_nbytes: int | None,
) -> Iterator[FetchCounts]:
    """Count the fetches of one epoch after another, with a cache on each node.

    The orders are taken one by one, as counts are asked for. The caches are empty
    before the first epoch, and stay from epoch to epoch.

    Args:
        orders: of the epochs, in time.
        readers: the processes that read.
        pieces: that are fetched at once.
        cache_nbytes: bytes that each node keeps; None for no limit, 0 for no cache, as
            of `Caches`.

    Yields:
        The counts of each epoch over all nodes.
    """
    caches = Caches(readers, pieces, cache_nbytes)
    for order in orders:
        rows = rows_in_time(order, readers)
        yield caches.fetch_epoch(
            order.rank[rows], order.worker[rows], order.sample[rows]
        )[1]


class Caches:
    """The caches of all nodes, from epoch to epoch.

    Args:
        readers: the processes that read.
        pieces: that are fetched at once.
        cache_nbytes: bytes that each node keeps, the least recently used piece being
            dropped; a larger piece is fetched and not kept. None for no limit. 0 for no
            cache: each worker holds a piece from its first sample of it to its last in
            the epoch, shares it with nobody, and keeps nothing for the next epoch.
    """

    def __init__(
        self, readers: Readers, pieces: Pieces, cache_nbytes: int | None
    ) -> None:
        self._readers = readers
        self._pieces = pieces
        self._has_no_cache = cache_nbytes == 0
        self._nodes = [
            _NodeCache(cache_nbytes, pieces.nbytes) for _ in range(readers.nodes)
        ]

    def piece_nbytes(self, sample: Ints64) -> Ints64:
        """Return the bytes of the piece of each of the samples ``sample``, (n,)."""
        piece = self._pieces.piece_of_sample[sample]
        return np.asarray(self._pieces.nbytes[piece])

    def fetch_epoch(
        self, rank: Ints64, worker: Ints64, sample: Ints64
    ) -> tuple[Flags, FetchCounts]:
        """Fetch the samples of the next epoch, in the order in which a node meets them.

        The caches change, and serve for the epoch after.

        Args:
            rank: (n,) of each sample that is handed out.
            worker: (n,) of that rank.
            sample: (n,) sample indices.

        Returns:
            (n,) True for samples whose piece is fetched; and the counts: sums over all
            nodes, but for ``held_nbytes``, which is that of the node with most.
        """
        node = rank // self._readers.ranks
        piece = self._pieces.piece_of_sample[sample]
        is_fetched = np.zeros(len(piece), np.bool_)
        counts_of_nodes = []
        # the rows of each node, in their order
        by_node = np.argsort(node, kind="stable")
        ends = np.searchsorted(node[by_node], np.arange(len(self._nodes) + 1))
        for index, cache in enumerate(self._nodes):
            rows = by_node[ends[index] : ends[index + 1]]
            if self._has_no_cache:
                reader = rank[rows] * self._readers.workers + worker[rows]
                is_fetched[rows], counts = _fetch_without_cache(
                    piece[rows], reader, self._pieces
                )
            else:
                is_fetched[rows], counts = cache.fetch_epoch(piece[rows])
            counts_of_nodes.append(counts)
        # (nodes, columns): sums, but for the last column, the most bytes that one node held
        table = np.array([astuple(counts) for counts in counts_of_nodes])
        table[0, :-1] = table[:, :-1].sum(axis=0)
        table[0, -1] = table[:, -1].max()
        return is_fetched, FetchCounts(*table[0].tolist())


class _NodeCache:
    """The cache of a node.

    Args:
        limit: bytes that it may hold; None for no limit.
        nbytes: (P,) bytes of each piece.
    """

    def __init__(self, limit: int | None, nbytes: Ints64) -> None:
        self._limit = limit
        self._nbytes = nbytes
        self._cached: OrderedDict[int, int] = (
            OrderedDict()
        )  # bytes by piece, the oldest use first
        self._cached_nbytes = 0

    def fetch_epoch(self, piece: Ints64) -> tuple[Flags, FetchCounts]:
        """Fetch the pieces (n,) of one sample after another, as far as they are not
        cached; the cache changes.

        If all new pieces fit below the limit they are counted at once, else one by one.
        Both count alike.

        Returns:
            (n,) True for samples whose piece is fetched; and the counts.
        """
        # the distinct pieces, the first row of each, and the last
        pieces, first_row = np.unique(piece, return_index=True)
        last_row = len(piece) - 1 - np.unique(piece[::-1], return_index=True)[1]
        is_new = np.array(
            [piece not in self._cached for piece in pieces.tolist()], np.bool_
        )
        new_nbytes = int(self._nbytes[pieces[is_new]].sum())
        if self._limit is not None and self._cached_nbytes + new_nbytes > self._limit:
            return self._fetch_one_by_one(piece, self._limit)

        # nothing is dropped
        is_fetched = np.zeros(len(piece), np.bool_)
        is_fetched[first_row[is_new]] = True
        for used_piece in pieces[np.argsort(last_row)].tolist():
            self._cached[used_piece] = int(self._nbytes[used_piece])
            self._cached.move_to_end(used_piece)
        self._cached_nbytes += new_nbytes
        requests = int(is_new.sum())
        return is_fetched, FetchCounts(
            samples=len(piece),
            hits=len(piece) - requests,
            requests=requests,
            nbytes=new_nbytes,
            evictions=0,
            held_nbytes=self._cached_nbytes,
        )

    def _fetch_one_by_one(self, piece: Ints64, limit: int) -> tuple[Flags, FetchCounts]:
        """Fetch the pieces (n,) of one sample after another; the cache changes.

        The least recently used pieces are dropped where ``limit`` bytes are exceeded.
        A piece larger than ``limit`` is fetched for each of its samples, and not kept.

        Returns:
            (n,) True for samples whose piece is fetched; and the counts.
        """
        # a sample of the same piece as the one before it changes nothing where that is cached
        is_repeated = np.zeros(len(piece), np.bool_)
        is_repeated[1:] = piece[1:] == piece[:-1]
        is_repeated &= self._nbytes[piece] <= limit
        rows = np.flatnonzero(~is_repeated)
        sizes = self._nbytes[piece[rows]].tolist()

        cached = self._cached
        is_fetched = np.zeros(len(piece), np.bool_)
        evictions = 0
        max_held = self._cached_nbytes
        for row, row_piece, size in zip(
            rows.tolist(), piece[rows].tolist(), sizes, strict=True
        ):
            if row_piece in cached:
                cached.move_to_end(row_piece)
                continue
            is_fetched[row] = True
            if size > limit:
                max_held = max(max_held, self._cached_nbytes + size)
                continue
            while self._cached_nbytes + size > limit:
                self._cached_nbytes -= cached.popitem(last=False)[1]
                evictions += 1
            cached[row_piece] = size
            self._cached_nbytes += size
            max_held = max(max_held, self._cached_nbytes)
        requests = int(is_fetched.sum())
        return is_fetched, FetchCounts(
            samples=len(piece),
            hits=len(piece) - requests,
            requests=requests,
            nbytes=int(self._nbytes[piece[is_fetched]].sum()),
            evictions=evictions,
            held_nbytes=max_held,
        )


def _fetch_without_cache(
    piece: Ints64, reader: Ints64, pieces: Pieces
) -> tuple[Flags, FetchCounts]:
    """Count the fetches of an epoch by workers of a node that share nothing.

    Each worker holds a piece from its first sample of it to its last.

    Args:
        piece: (n,) the piece of each sample, in the order in which the node meets them.
        reader: (n,) the worker that hands each of them out, an index over all ranks.
        pieces: of the set.

    Returns:
        (n,) True for samples whose piece is fetched; and the counts.
    """
    # a hold is a pair of worker and piece: the first and the last row of each
    key = reader * len(pieces.nbytes) + piece
    _, first_row, hold = np.unique(key, return_index=True, return_inverse=True)
    last_row = np.zeros(len(first_row), np.int64)
    np.maximum.at(last_row, hold, np.arange(len(piece)))

    hold_nbytes = pieces.nbytes[piece[first_row]]
    # bytes held after each row are the sum of all changes up to it
    change = np.zeros(len(piece) + 1, np.int64)
    np.add.at(change, first_row, hold_nbytes)
    np.add.at(change, last_row + 1, -hold_nbytes)

    is_fetched = np.zeros(len(piece), np.bool_)
    is_fetched[first_row] = True
    return is_fetched, FetchCounts(
        samples=len(piece),
        hits=len(piece) - len(first_row),
        requests=len(first_row),
        nbytes=int(hold_nbytes.sum()),
        evictions=0,
        held_nbytes=int(np.cumsum(change).max(initial=0)),
    )

"""What nodes fetch of a loader's order, and what they find in their caches: piece by piece, exact,
without a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange import LoaderShuffle, Shards, ShardsContext
from simshuffle.orders.fetching import Caches
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.arrays import Flags, Floats, Ints64


@dataclass(frozen=True)
class Fetches:
    """What the ranks fetch in the iterations of an epoch."""

    # (iterations, M) pieces, each by a request and by opening a file of its own
    requests: Ints64
    nbytes: Ints64  # (iterations, M) their bytes, whole numbers
    held_nbytes: int  # the most that one node held at once
    cached_in: Literal["ssd", "memory"]  # where samples are read from whose piece was there already


@dataclass(frozen=True)
class NodeReads:
    """What the ranks read in an epoch under a loader's order."""

    fetches: Fetches  # pieces from the file system
    # (iterations, M) samples from the caches, and their bytes
    hit_samples: Ints64
    hit_nbytes: Floats


class NodeCaches:
    """The caches of all nodes under a loader's order, from epoch to epoch; ``context`` is of any
    epoch, ``nbytes`` (N,) bytes of every sample."""

    def __init__(
        self, scenario: Scenario, strategy: LoaderShuffle, context: ShardsContext, nbytes: Floats
    ) -> None:
        cluster = scenario.cluster
        readers = strategy.readers(context)
        of = strategy.pieces(context.owner, context.world_size, context.seed, nbytes)
        room = strategy.room(cluster.capacity(strategy.cache_in), float(of.nbytes.sum()))
        self._caches = Caches(readers, of, room)
        self._nbytes, self._size = nbytes, readers.batch_size
        self._cached_in = strategy.held_in

    def epoch(self, shards: Shards, iterations: int) -> NodeReads:
        """What is read in the first ``iterations`` batches of each rank in the next epoch."""
        world_size = len(shards.sizes)
        rank = np.repeat(np.arange(world_size), shards.sizes)
        iteration = (np.arange(len(shards.order)) - shards.start[:-1][rank]) // self._size
        # of a node rank by rank in every iteration, each in its order
        rows = np.argsort(iteration, kind="stable")
        rows = rows[: int(np.searchsorted(iteration[rows], iterations))]
        sample = shards.order[rows].astype(np.int64)
        worker = np.zeros(len(rows), np.int64)
        if shards.worker is not None:
            worker[:] = shards.worker[rows]
        missed, found = self._caches.epoch(np.asarray(rank[rows], np.int64), worker, sample)
        batch = iteration[rows] * world_size + rank[rows]

        def summed(which: Flags, values: NDArray[np.generic] | None) -> Floats:
            weights = None if values is None else values[which]
            sums = np.bincount(batch[which], weights, iterations * world_size)
            return np.asarray(sums.reshape(iterations, world_size))

        piece_nbytes = self._caches.piece_nbytes(sample)
        fetches = Fetches(
            summed(missed, None).astype(np.int64),
            summed(missed, piece_nbytes).astype(np.int64),
            found.held_nbytes,
            self._cached_in,
        )
        hit = ~missed
        hit_nbytes = summed(hit, self._nbytes[sample])
        return NodeReads(fetches, summed(hit, None).astype(np.int64), hit_nbytes)

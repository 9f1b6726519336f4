"""The reads that a cache answers, one after the other, by what it evicts when it is
full.

As libCacheSim has them (github.com/1a1a11a/libCacheSim): sizes are whole bytes, room is
made before something is stored, and nothing is stored that is larger than the cache.
Checked against it, to the read, in tests/physics/test_cache_tier.py.

The loops are plain Python, since each read depends on the one before; arrays by number
of the sample make them four times as fast as dictionaries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict, deque

import numpy as np

from simshuffle.job.scenario.cache_tier import Eviction
from simshuffle.spec.arrays import Flags, Ints64

AT_ONCE = 1 << 20
"""Reads that are looked at in one piece."""


class Cache(ABC):
    """A cache of ``capacity`` bytes for samples of (N,) ``nbytes`` bytes, empty at
    first.
    """

    def __init__(self, capacity: float, nbytes: Ints64) -> None:
        self._capacity = self._free = int(capacity)
        self._nbytes = nbytes
        self._sizes = array("q", nbytes.tobytes())

    def read(self, samples: Ints64) -> tuple[Flags, Flags]:
        """Return (n,) whether each of n reads finds its sample, and (n,) whether it is
        stored.

        ``samples`` are their numbers, (n,), in the order of the reads. What is found is
        not stored again; room is made by eviction. What is too large is not stored. The
        cache goes on from there at the next call.
        """
        hits = np.empty(len(samples), bool)
        for first in range(0, len(samples), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            hits[part] = np.frombuffer(self._read_all(samples[part].tolist()), bool)
        return hits, ~hits & self._can_store(self._nbytes[samples])

    def _can_store(self, nbytes: Ints64) -> Flags:
        """Tell which samples, of (n,) bytes, are not larger than the cache, (n,)."""
        return nbytes <= self._capacity

    @abstractmethod
    def _read_all(self, samples: list[int]) -> bytearray:
        """Read ``samples`` one after the other; return 1 for every read that finds its
        sample, else 0.
        """


class Keeping:
    """A cache that evicts nothing: what does not fit any more is not stored. It stands
    for every other kind while all samples fit, and has the methods of `Cache`, without
    a loop.
    """

    def __init__(self, capacity: float, nbytes: Ints64) -> None:
        self._free = int(capacity)
        self._nbytes = nbytes
        self._is_stored = np.zeros(len(nbytes), bool)

    def read(self, samples: Ints64) -> tuple[Flags, Flags]:
        """Return which reads find their sample, and which store it, as `Cache.read`.

        A call may read each sample once only: a second read would count as stored, too.
        A sample that does not fit is left out, and smaller ones after it may still fit.
        """
        hits = self._is_stored[samples]
        nbytes = self._nbytes[samples]
        stored = np.zeros(len(samples), bool)
        candidates = np.flatnonzero(
            ~hits
        )  # those that may yet be stored, in their order
        while len(candidates := candidates[nbytes[candidates] <= self._free]):
            needed = np.cumsum(nbytes[candidates])
            fit = int(np.searchsorted(needed, self._free, side="right"))
            stored[candidates[:fit]] = True
            self._free -= int(needed[fit - 1])
            candidates = candidates[fit:]
        self._is_stored[samples[stored]] = True
        return hits, stored


class Queue(Cache):
    """Eviction of the sample that was stored longest ago: 'fifo', 'lru' and 'clock'.

    Under 'lru' a read counts as storing the sample again. Under 'clock' it counts so
    when the sample's turn to go comes.
    """

    def __init__(self, capacity: float, nbytes: Ints64, kind: Eviction) -> None:
        super().__init__(capacity, nbytes)
        self._kind = kind
        # the next to go first; with 'lru' a sample stands there once for each read
        self._queue: deque[int] = deque()
        # how often a sample stands there; with 'clock' 2 if it was read since
        self._mark = array("i", bytes(4 * len(nbytes)))

    def _read_all(self, samples: list[int]) -> bytearray:
        """See `Cache`; what goes first is at the front of the queue."""
        mark = self._mark
        sizes = self._sizes
        free = self._free
        capacity = self._capacity
        is_lru = self._kind == "lru"
        is_clock = self._kind == "clock"
        push = self._queue.append
        pop = self._queue.popleft
        hits = bytearray(len(samples))
        for index, sample in enumerate(samples):
            if mark[sample]:
                hits[index] = 1
                if is_lru:
                    mark[sample] += 1
                    push(sample)
                elif is_clock:
                    mark[sample] = 2
                continue
            size = sizes[sample]
            if size > capacity:
                continue
            while free < size:
                oldest = pop()
                mark[oldest] -= 1
                if not mark[oldest]:
                    free += sizes[oldest]
                elif is_clock:
                    push(oldest)
            mark[sample] = 1
            push(sample)
            free -= size
        self._free = free
        return hits


class Random(Cache):
    """Eviction of a random sample; all stored samples have equal probability."""

    def __init__(
        self, capacity: float, nbytes: Ints64, rng: np.random.Generator
    ) -> None:
        super().__init__(capacity, nbytes)
        self._rng = rng
        self._stored: list[int] = []
        self._is_stored = bytearray(len(nbytes))
        self._draws: list[float] = []

    def _read_all(self, samples: list[int]) -> bytearray:
        """See `Cache`; numbers are drawn 4096 at once."""
        stored = self._stored
        is_stored = self._is_stored
        sizes = self._sizes
        free = self._free
        hits = bytearray(len(samples))
        for index, sample in enumerate(samples):
            size = sizes[sample]
            if is_stored[sample]:
                hits[index] = 1
            elif size <= self._capacity:
                while free < size:
                    if not self._draws:
                        self._draws = self._rng.random(1 << 12).tolist()
                    victim = int(self._draws.pop() * len(stored))
                    evicted = stored[victim]
                    stored[victim] = stored[-1]
                    stored.pop()
                    is_stored[evicted] = 0
                    free += sizes[evicted]
                stored.append(sample)
                is_stored[sample] = 1
                free -= size
        self._free = free
        return hits


SMALL, MAIN = 1, 2


class S3Fifo(Cache):
    """Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023; in the
    version of libCacheSim 0.3.5.

    A new sample goes to a small queue of a tenth of the room, and from there on to the
    main queue if it was read twice meanwhile; else it leaves, and its number is kept
    for a while (ghost): if it is read within that, it goes to the main queue at once.
    In the main queue a sample that was read goes round again, up to three times. Until
    the first eviction new samples go to the main queue when the small one is full. A
    sample as large as the small queue is never stored.
    """

    SHARE, GHOST, READ_TWICE, ROUNDS = 0.1, 0.9, 2, 3

    def __init__(self, capacity: float, nbytes: Ints64) -> None:
        super().__init__(capacity, nbytes)
        self._most_small = int(self._capacity * self.SHARE)
        self._most_main = self._capacity - self._most_small
        self._most_ghost = int(self._capacity * self.GHOST)
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._where = bytearray(len(nbytes))  # SMALL, MAIN, or 0
        self._reads = array("i", bytes(4 * len(nbytes)))  # since it was stored there
        self._ghost: OrderedDict[int, int] = (
            OrderedDict()
        )  # sizes by sample, oldest first
        self._in_small = self._in_main = self._in_ghost = 0
        self._evicted = False

    def _can_store(self, nbytes: Ints64) -> Flags:
        """Tell which samples are smaller than the small queue, (n,)."""
        return nbytes < self._most_small

    def _read_all(self, samples: list[int]) -> bytearray:
        """See `Cache`; a ghost that is read goes to the main queue at once."""
        queue_of = self._where
        reads = self._reads
        sizes = self._sizes
        ghost = self._ghost
        hits = bytearray(len(samples))
        for index, sample in enumerate(samples):
            if queue_of[sample]:
                hits[index] = 1
                reads[sample] += 1
                continue
            ghost_nbytes = ghost.pop(sample, 0)
            self._in_ghost -= ghost_nbytes
            size = sizes[sample]
            if size >= self._most_small:
                continue
            while self._in_small + self._in_main + size > self._capacity:
                self._evict()
            if ghost_nbytes or (
                not self._evicted and self._in_small >= self._most_small
            ):
                self._to_main(sample, size)
            else:
                self._small.append(sample)
                queue_of[sample], reads[sample] = SMALL, 0
                self._in_small += size
        return hits

    def _to_main(self, sample: int, size: int) -> None:
        """Append a sample to the main queue, with no read counted."""
        self._main.append(sample)
        self._where[sample], self._reads[sample] = MAIN, 0
        self._in_main += size

    def _evict(self) -> None:
        """Evict one sample at most, from the main queue if that is too long or the
        other empty.

        Samples of the small queue that were read twice go to the main queue on the way.
        """
        self._evicted = True
        if self._in_main > self._most_main or not self._small:
            self._evict_from_main()
            return
        while self._small:
            sample = self._small.popleft()
            size = self._sizes[sample]
            self._in_small -= size
            if self._reads[sample] < self.READ_TWICE:
                self._where[sample] = 0
                self._remember(sample, size)
                return
            self._to_main(sample, size)

    def _evict_from_main(self) -> None:
        """Evict the first sample of the main queue with no read left; others go round
        again.
        """
        while True:
            sample = self._main.popleft()
            if not self._reads[sample]:
                self._where[sample] = 0
                self._in_main -= self._sizes[sample]
                return
            self._reads[sample] = min(self._reads[sample], self.ROUNDS) - 1
            self._main.append(sample)

    def _remember(self, sample: int, size: int) -> None:
        """Keep the number of a sample as a ghost, the oldest of which give way."""
        if size > self._most_ghost:
            return
        while self._in_ghost + size > self._most_ghost:
            self._in_ghost -= self._ghost.popitem(last=False)[1]
        self._ghost[sample] = size
        self._in_ghost += size


def cache_of(
    eviction: Eviction, capacity: float, nbytes: Ints64, rng: np.random.Generator
) -> Cache | Keeping:
    """Make an empty cache for samples of (N,) ``nbytes`` bytes; 'random' draws from
    ``rng``.

    `Keeping` for 'none', and for all but 's3fifo' if all samples fit: nothing is drawn
    then, and each call of ``read`` may read a sample once.
    """
    fits = int(nbytes.sum()) <= int(capacity)
    if eviction == "none" or (
        fits and eviction != "s3fifo"
    ):  # which refuses large ones
        return Keeping(capacity, nbytes)
    if eviction == "random":
        return Random(capacity, nbytes, rng)
    if eviction == "s3fifo":
        return S3Fifo(capacity, nbytes)
    return Queue(capacity, nbytes, eviction)

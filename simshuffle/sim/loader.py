"""The data loaders: batches are loaded ahead of the training loop, up to a bound."""

from __future__ import annotations

from collections import deque

import simpy

from simshuffle.lowering.reads import ReadChains
from simshuffle.network.batch import NONE
from simshuffle.scenario.workload import Loader
from simshuffle.sim.clock import NetworkClock


class Loaders:
    """The loaders of all ranks for one pass over their samples.

    As in PyTorch, each worker loads a whole batch by itself: one thread opens and reads its files
    and then decodes them; several threads do both at the same time, each on a core; the workers
    take the batches in turn. A loaded batch is copied to the GPU over its PCIe slot. At most
    ``loader.prefetch`` batches are ahead of the loop that uses them.
    """

    def __init__(
        self, loader: Loader, clock: NetworkClock, chains: ReadChains, world_size: int
    ) -> None:
        self._loader, self._clock, self.chains = loader, clock, chains
        self._loaded = [0] * world_size
        # of every rank and worker the last transfer of its latest batch (FluidNetwork.last)
        self._turns = [[(NONE, 0)] * loader.workers for _ in range(world_size)]
        self._turn = 0  # the worker whose turn the first batch is
        self._next: Loaders | None = None
        self._groups: list[deque[int]] = [deque() for _ in range(world_size)]

    def followed_by(self, loaders: Loaders) -> None:
        """Let the workers go on with the batches of the next epoch when they have loaded all of
        this one."""
        self._next = loaders
        loaders._turns = self._turns
        loaders._turn = (self._turn + self.chains.iterations) % self._loader.workers

    def begin(self, rank: int) -> None:
        """Load the first batches of a rank, as many as may be ahead and are not loaded yet."""
        for _ in range(self._loader.prefetch - len(self._groups[rank])):
            self._load_one(rank)

    def _load_one(self, rank: int) -> None:
        """Let one more batch be loaded, of this epoch or else of the next, if there is one."""
        if self._loaded[rank] < self.chains.iterations:
            self._load(rank)
        elif self._next is not None:
            self._next._load_one(rank)

    def _load(self, rank: int) -> None:
        """Let the rank's next batch be loaded, once the worker whose turn it is has done with its
        last one."""
        iteration = self._loaded[rank]
        self._loaded[rank] = iteration + 1
        group = self._clock.open(2)
        self._groups[rank].append(group)
        turns = self._turns[rank]
        worker = (self._turn + iteration) % len(turns)
        self._clock.post(self.chains.batch(rank, iteration, group, turns[worker]))
        turns[worker] = self._clock.network.last

    def awaited(self, rank: int) -> simpy.Event | None:
        """The event of the rank's next batch being ready; None if it is."""
        return self._clock.completion(self._groups[rank][0])

    def take(self, rank: int) -> float:
        """Take the next batch, which is ready, and let another be loaded; returns when its last
        byte was read (s)."""
        read_at, _ = self._clock.close(self._groups[rank].popleft())
        self._load_one(rank)
        return read_at

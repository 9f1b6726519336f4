"""What all epochs of a run share, and the data loaders."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from simshuffle.allreduce import NoOverlap
from simshuffle.lowering.division import Division
from simshuffle.lowering.gradients import Allreduces
from simshuffle.lowering.reads import ReadChains, compute_factor, read_chains
from simshuffle.network.batch import NONE
from simshuffle.plan.epochs import Reads
from simshuffle.plan.resources import Resources
from simshuffle.scenario.scenario import Scenario
from simshuffle.scenario.workload import Loader
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.gradients import (
    GradientSum,
    Passes,
    Posting,
    SumAfterBackward,
    SumDuringBackward,
)
from simshuffle.sim.groups import StepInGroups, StepOfAll
from simshuffle.sim.recorder import Recorder
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.rng import lognormal_factor


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
        """Let the workers go on with the next epoch when they have loaded all of this one."""
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
        """Let the next batch be loaded, once the worker whose turn it is has done with its last."""
        iteration = self._loaded[rank]
        self._loaded[rank] = iteration + 1
        group = self._clock.open(2)
        self._groups[rank].append(group)
        turns = self._turns[rank]
        worker = (self._turn + iteration) % len(turns)
        self._clock.post(self.chains.batch(rank, iteration, group, turns[worker]))
        turns[worker] = self._clock.network.last

    def next_batch(self, rank: int) -> Generator[simpy.Event, Any, float]:
        """Take the next batch when it is there, load another; returns when it was read (s)."""
        read_at, _ = yield from self._clock.ended(self._groups[rank][0])
        self._groups[rank].popleft()
        self._load_one(rank)
        return read_at


class Simulation:
    """What all epochs of a run share: resources, the clock of their network, allreduces.

    Attributes:
        scenario: the whole one, without sweep.
        division: how ranks divide a step; None if each goes through it by itself.
        recorder: notes what tables do not hold; None for nobody.
    """

    def __init__(self, scenario: Scenario, recorder: Recorder | None) -> None:
        self.scenario, self.recorder = scenario, recorder
        workload, cluster, rng = scenario.workload, scenario.cluster, scenario.rng
        self.resources = Resources(cluster, scenario.world_size, rng("placement"))
        network = self.resources.network(scenario.network, accounts=scenario.world_size)
        env = simpy.Environment()
        self.clock = NetworkClock(env, network)
        if recorder is not None:
            self.clock = recorder.clock(env, network, self.resources)
        allreduce = workload.allreduce_on(cluster)
        self.allreduces = Allreduces(allreduce, self.resources, rng("host_order"))
        by_data = workload.parallelism.by_data
        self.division = None if by_data else Division(scenario, self.resources)

    def compute_jitter(self, stream: str, epoch: int, reads: Reads) -> Floats:
        """(iterations, M) factors of what the accelerators compute, from that random stream."""
        rng = self.scenario.rng(stream, epoch)
        return compute_factor(
            rng, self.scenario.workload.jitter.compute, reads, self.scenario.step_times
        )

    def loaders(self, reads: Reads, stream: str, epoch: int) -> Loaders:
        """Those of a pass; ``stream`` begins the names of the random streams of its reads."""
        scenario, workload, resources = self.scenario, self.scenario.workload, self.resources
        rng = scenario.rng(f"{stream}_jitter", epoch)
        jitter = lognormal_factor(rng, workload.jitter.read, reads.nbytes.shape)
        latencies = scenario.rng(f"{stream}_latency", epoch)
        spread, hosts = workload.jitter.host_decode, (resources.num_hosts,)
        decoding = lognormal_factor(scenario.rng("host_decode"), spread, hosts)[resources.host_of]
        chains = read_chains(reads, workload, resources, jitter, latencies, decoding)
        return Loaders(workload.loader, self.clock, chains, scenario.world_size)

    def gradient_sum(self, samples: Ints64, jitter: Floats) -> GradientSum:
        """How ranks go through a step and sum their gradients, given the samples of each batch and
        the factors of its computing, (iterations, M) each."""
        posting = Posting(self.clock, self.allreduces)
        if self.division is not None:
            kind = StepOfAll if self.division.together else StepInGroups
            return kind(posting, self.division, samples, jitter)
        times, workload = self.scenario.step_times, self.scenario.workload
        model, overlap = workload.model, workload.allreduce.overlap
        forward = (times.forward_of(samples) * jitter).T.tolist()
        backward = (times.backward_of(samples) * jitter).T.tolist()
        passes = Passes(forward, backward, times.update)
        if isinstance(overlap, NoOverlap):
            return SumAfterBackward(posting, passes, model.gradient_size)
        return SumDuringBackward(posting, passes, model.gradient_arrival, overlap)

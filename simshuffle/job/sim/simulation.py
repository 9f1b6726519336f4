"""Resources and checkpoints that all epochs of a run share, the data loaders, and steps
that ranks go through together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import simpy

from simshuffle.fabric.allreduce import NoOverlap
from simshuffle.fabric.network.batch import NONE
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.lowering.division import StepDivision, StepPart
from simshuffle.job.lowering.reads import ReadChains, compute_factor, read_chains
from simshuffle.job.plan.epochs import Reads
from simshuffle.job.plan.faults import RunFaults
from simshuffle.job.plan.jobs import hosts_beside, writes_to_pfs
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.faults import needs_every_cable
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim.checkpoints import Checkpoints
from simshuffle.job.sim.clock import Barrier, NetworkClock, Steps, let_go
from simshuffle.job.sim.faults import ActiveFaults, Row
from simshuffle.job.sim.gradients import (
    GradientPasses,
    GradientSum,
    Posting,
    SumAfterBackward,
    SumDuringBackward,
)
from simshuffle.job.sim.recorder import GROUP_STEP, JOINT_STEP, PhaseEnds, Recorder
from simshuffle.spec.arrays import Floats, Ints, Ints64
from simshuffle.spec.rng import lognormal_factor


class DividedStep(GradientSum):
    """A step that several ranks compute together, which lasts as long as with the
    slowest. A rank's phases say first what it computes, then what it waits for and
    sends.

    Args:
        posting: posts the transfers of the step.
        division: how ranks divide it.
        samples: (iterations, M) of each batch.
        jitter: (iterations, M) factors of its computing.
        slower: (M,) how many times as long each rank takes for what it begins now,
            changed in place by faults; None if none ever does.
    """

    def __init__(
        self,
        posting: Posting,
        division: StepDivision,
        samples: Ints64,
        jitter: Floats,
        slower: list[float] | None = None,
    ) -> None:
        super().__init__(posting)
        self._division = division
        self._slower = slower
        self._all_ranks = Barrier(self._env, samples.shape[1], self._start_joint_part)
        self._samples = samples
        self._jitter = jitter
        self._joint: StepPart
        self._iteration = -1  # that all did together last
        self._start_factor = 1.0

    def _start_joint_part(self, event: simpy.Event) -> None:
        """Post what all ranks do together in the next iteration, once all have arrived;
        ``event`` is triggered when it is done.
        """
        self._iteration += 1
        self._joint = self._division.joint(self._samples[self._iteration])
        self._start_factor = self._slowest(self._jitter[self._iteration])
        self._posting.post(
            self._joint.scaled_batch(self._factor), lambda _: let_go(event)
        )

    @property
    def _factor(self) -> float:
        """The factor by which the slowest rank prolongs common work: that of the rank
        that was slowest when the work began.
        """
        return self._start_factor

    def _slowest(self, jitter: Floats, members: Ints | None = None) -> float:
        """Return the largest of the factors (n,) of ``members`` that begin now.

        A factor is the ``jitter``, (n,), times that of the faults. ``members`` are
        ranks; None for all.
        """
        if self._slower is None:
            return float(jitter.max())
        slower = np.array(self._slower)
        return float((jitter * (slower if members is None else slower[members])).max())


class StepInGroups(DividedStep):
    """A step that each group of ranks computes together, once all its ranks have their
    batches. All ranks sum their gradients when the last group has ended.
    """

    parts = GROUP_STEP

    def __init__(
        self,
        posting: Posting,
        division: StepDivision,
        samples: Ints64,
        jitter: Floats,
        slower: list[float] | None = None,
    ) -> None:
        super().__init__(posting, division, samples, jitter, slower)
        self._groups = [
            GroupPass(self._env, posting, division, group)
            for group in range(division.groups)
        ]
        self._of_rank = [self._groups[group] for group in division.group_of.tolist()]
        for group, members in zip(self._groups, division.members, strict=True):
            group.batches = self._samples[:, members], self._jitter[:, members]
            group.slowest = partial(self._slowest, members=members)

    def compute(self, rank: int, iteration: int, times: PhaseEnds) -> Steps:
        """Run the passes of the rank's group once all its ranks are here; note the ends
        of the parts in ``times`` (s).

        Ranks must go through the iterations in order: ``iteration`` is not read.
        """
        group = self._of_rank[rank]
        yield group.barrier.arrive()
        times.slowed = self._env.now
        times.gathered = min(max(group.begun_at, times.loaded), times.slowed)
        part = group.part
        factor = group.factor
        times.forwarded = min(times.gathered + factor * part.forward, times.slowed)
        times.computed = min(times.forwarded + factor * part.backward, times.slowed)
        times.idle = min(times.computed + factor * part.bubble, times.slowed)

    def reduce(self, iteration: int, times: PhaseEnds) -> Steps:
        """Wait for all groups, the sum of the gradients and the update of the weights;
        note their ends in ``times`` (s).
        """
        yield self._all_ranks.arrive()
        times.computed_by_all = self._all_ranks.complete_at
        times.updated = self._env.now
        times.reduced = max(times.updated - self._joint.update, times.computed_by_all)

    @property
    def _factor(self) -> float:
        """1: all ranks together do not compute, but sum gradients and update."""
        return 1.0


class GroupPass:
    """The passes of a group through its part of the step, iteration by iteration.

    Attributes:
        barrier: where the ranks of the group meet; it lets them go on when the passes
            are done.
        batches: (iterations, ways) samples of its members, and (iterations, ways)
            factors of their computing. Set by the step before the first meeting.
        slowest: returns the factor that counts, of (ways,) ones. Set like ``batches``.
        begun_at: s at which the last rank arrived; 0 before the first meeting.
        factor: how many times as long the present passes take.
        part: what the group does in the present iteration; unset before the first.
    """

    def __init__(
        self,
        env: simpy.Environment,
        posting: Posting,
        division: StepDivision,
        group: int,
    ) -> None:
        self.barrier = Barrier(env, division.ways, self._start_group)
        self.batches: tuple[Ints64, Floats]
        self.slowest: Callable[[Floats], float]
        self.begun_at = 0.0
        self.factor = 1.0
        self.part: StepPart
        self._env = env
        self._posting = posting
        self._division = division
        self._group = group
        self._iteration = 0

    def _start_group(self, event: simpy.Event) -> None:
        """Post the passes of the next iteration; ``event`` is triggered at their end."""
        samples, jitter = self.batches
        self.factor = self.slowest(jitter[self._iteration])
        self.part = self._division.local(self._group, samples[self._iteration])
        self._iteration += 1
        self.begun_at = self._env.now
        self._posting.post(self.part.scaled_batch(self.factor), lambda _: let_go(event))


class StepOfAll(DividedStep):
    """A step that all ranks compute together once each has its batch, for example with
    sharded weights.
    """

    parts = JOINT_STEP

    def compute(self, rank: int, iteration: int, times: PhaseEnds) -> Steps:
        """Run the whole step, once all ranks are here: passes, what ranks send, and the
        update; note the ends of all parts in ``times`` (s).
        """
        yield self._all_ranks.arrive()
        times.updated = self._env.now
        times.gathered = min(
            max(self._all_ranks.complete_at, times.loaded), times.updated
        )
        times.forwarded = times.gathered + self._factor * self._joint.forward
        times.computed = times.forwarded + self._factor * self._joint.backward
        times.reduced = times.updated - self._joint.update
        times.slowed = times.computed

    def reduce(self, iteration: int, times: PhaseEnds) -> Steps:
        """Do nothing: `compute` has summed the gradients and updated the weights."""
        yield from ()


class Loaders:
    """The loaders of all ranks for one pass over their samples.

    As in PyTorch, workers take the batches in turn, and each loads a whole batch by
    itself. At most ``loader.prefetch`` batches are ahead of the loop that uses them.

    ``chains`` are the transfers of the batches; after ``chains.end()`` none can be
    loaded.
    """

    def __init__(
        self, loader: Loader, clock: NetworkClock, chains: ReadChains, world_size: int
    ) -> None:
        self._loader = loader
        self._clock = clock
        self.chains = chains
        self._loaded = [0] * world_size
        # the last transfer (`FluidNetwork.last_transfer`) of the latest batch of rank and worker
        self._last_transfers = [[(NONE, 0)] * loader.workers for _ in range(world_size)]
        self._first_worker = 0  # the worker whose turn the first batch is
        self._next: Loaders | None = None
        self._groups: list[deque[int]] = [deque() for _ in range(world_size)]

    @property
    def requested_batches(self) -> Ints64:
        """Batches that each rank has begun to load so far, (M,): a copy."""
        return np.array(self._loaded)

    def followed_by(self, loaders: Loaders) -> None:
        """Hand the workers to the next epoch's loaders, once they have loaded this one.

        ``loaders`` share the workers from now on, and load first batches before their
        own epoch begins.
        """
        self._next = loaders
        loaders._last_transfers = self._last_transfers
        loaders._first_worker = (
            self._first_worker + self.chains.iterations
        ) % self._loader.workers

    def begin(self, rank: int) -> None:
        """Load the first batches of a rank, as many as may be ahead and are not loaded
        yet.
        """
        for _ in range(self._loader.prefetch - len(self._groups[rank])):
            self._load_one(rank)

    def _load_one(self, rank: int) -> None:
        """Start loading one more batch, of this epoch or else of the next; do nothing
        if there is none.
        """
        if self._loaded[rank] < self.chains.iterations:
            self._load(rank)
        elif self._next is not None:
            self._next._load_one(rank)

    def _load(self, rank: int) -> None:
        """Start loading the next batch when the worker that owns it has ended its last
        one.
        """
        iteration = self._loaded[rank]
        self._loaded[rank] = iteration + 1
        group = self._clock.open(2)
        self._groups[rank].append(group)
        transfers = self._last_transfers[rank]
        worker = (self._first_worker + iteration) % len(transfers)
        self._clock.post(self.chains.batch(rank, iteration, group, transfers[worker]))
        transfers[worker] = self._clock.network.last_transfer

    def next_batch(self, rank: int) -> Generator[simpy.Event, Any, float]:
        """Take the next batch when it is loaded and start loading another.

        Returns s of simulated time at which the last byte of the batch was read. A
        batch must have been asked for (`begin`).
        """
        read_at, _ = yield from self._clock.wait_for(self._groups[rank][0])
        self._groups[rank].popleft()
        self._load_one(rank)
        return read_at


class Simulation:
    """The parts of a simulation that all epochs of a run share.

    Faults begin with it, unless it shares a machine.

    Attributes:
        resources, clock: the resources of the run, and the clock of their network.
        allreduces: the allreduces of gradients.
        division: how ranks divide a step; None if each goes through it by itself.
        slower: (M,) how many times as long each rank computes what it begins now,
            changed in place by faults; None without faults.
        checkpoints: None if there are none.

    Args:
        scenario: without sweep and jobs.
        recorder: gives the clock of a machine of the run's own; None for none.
        struck: the faults are added to it when they begin
            (`simshuffle.job.sim.faults.Row`).
        begin: the time (s) at which the clock begins.
        on: the part of a machine that several jobs share, and the clock of that
            machine.
        slower: with ``on``, the attribute of that name; else faults of the scenario
            replace it.

    Raises:
        ScenarioError: as `RunFaults`; or training is divided by layers, and the model
            does not list them.
        TopologyError: as `Resources`.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder | None,
        *,
        struck: list[Row] | None = None,
        begin: float = 0.0,
        on: tuple[Resources, NetworkClock] | None = None,
        slower: list[float] | None = None,
    ) -> None:
        self.scenario = scenario
        self.recorder = recorder
        workload = scenario.workload
        cluster = scenario.cluster
        rng = scenario.rng
        self.resources, self.clock = on or self._machine(scenario, recorder, begin)
        allreduce = workload.allreduce_on(cluster)
        self.allreduces = Allreduces(allreduce, self.resources, rng("host_order"))
        by_data = workload.parallelism.is_data_parallel
        self.division = None if by_data else StepDivision(scenario, self.resources)
        self.slower = slower
        if scenario.faults and on is None:
            run_faults = RunFaults(scenario, self.resources)
            rows = [] if struck is None else struck
            self.slower = ActiveFaults(
                run_faults, self.resources, self.clock, rows
            ).slower
        self.checkpoints: Checkpoints | None = None
        if workload.checkpoint is not None:
            self.checkpoints = Checkpoints(scenario, self.resources, self.clock)

    @staticmethod
    def _machine(
        scenario: Scenario, recorder: Recorder | None, begin: float
    ) -> tuple[Resources, NetworkClock]:
        """Return the resources and the clock of a machine of the run's own."""
        rng = scenario.rng("placement")
        ranks = scenario.world_size
        cables = needs_every_cable(scenario.faults)
        writes = writes_to_pfs([scenario])
        arguments = scenario.cluster, ranks, rng, hosts_beside(scenario)
        resources = Resources(*arguments, every_cable=cables, writes=writes)
        network = resources.network(scenario.network, accounts=ranks)
        env = simpy.Environment(begin)
        if recorder is not None:
            return resources, recorder.clock(env, network, resources)
        return resources, NetworkClock(env, network)

    def compute_jitter(self, stream: str, epoch: int, reads: Reads) -> Floats:
        """Draw (iterations, M) factors of computing from the random stream ``stream``.

        They hold the jitter and the work of each batch. One stream and epoch always
        give the same factors.
        """
        rng = self.scenario.rng(stream, epoch)
        jitter = self.scenario.workload.jitter
        return compute_factor(rng, jitter.compute, reads, self.scenario.step_times)

    def loaders(self, reads: Reads, stream: str, epoch: int) -> Loaders:
        """Return new loaders of a pass of ``epoch``, which have loaded nothing.

        ``stream`` begins the names of the random streams of its reads: one stream and
        epoch always give the same reads. A host decodes as fast in every epoch.
        """
        scenario = self.scenario
        workload = self.scenario.workload
        resources = self.resources
        rng = scenario.rng(f"{stream}_jitter", epoch)
        jitter = lognormal_factor(rng, workload.jitter.read, reads.nbytes.shape)
        latencies = scenario.rng(f"{stream}_latency", epoch)
        spread = workload.jitter.host_decode
        hosts = (resources.num_hosts,)
        decoding = lognormal_factor(scenario.rng("host_decode"), spread, hosts)[
            resources.host_of
        ]
        chains = read_chains(
            reads, workload, resources, jitter=jitter, rng=latencies, decoding=decoding
        )
        return Loaders(workload.loader, self.clock, chains, scenario.world_size)

    def gradient_sum(self, samples: Ints64, jitter: Floats) -> GradientSum:
        """Return how ranks go through a step and sum their gradients: together if the
        step is divided, else each by itself, with the sum after or during the backward
        pass.

        Args:
            samples: (iterations, M) of each batch.
            jitter: (iterations, M) factors of its computing.
        """
        posting = Posting(self.clock, self.allreduces)
        if self.division is not None:
            kind = StepOfAll if self.division.is_joint else StepInGroups
            return kind(posting, self.division, samples, jitter, self.slower)
        times = self.scenario.step_times
        workload = self.scenario.workload
        model = workload.model
        overlap = workload.allreduce.overlap
        forward = (times.forward_of(samples) * jitter).T.tolist()
        backward = (times.backward_of(samples) * jitter).T.tolist()
        passes = GradientPasses(forward, backward, times.update, self.slower)
        if isinstance(overlap, NoOverlap):
            return SumAfterBackward(posting, passes, model.gradient_size)
        return SumDuringBackward(posting, passes, model.gradient_arrival, overlap)

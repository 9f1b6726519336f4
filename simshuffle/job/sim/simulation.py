"""Resources and checkpoints that all epochs of a run share, the data loaders, and steps
that ranks go through together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import simpy

from simshuffle.fabric.allreduce import NoOverlap
from simshuffle.fabric.network.batch import NONE, TransferBatch, delays, join_items
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
from simshuffle.job.sim.clock import NetworkClock, Steps
from simshuffle.job.sim.faults import ActiveFaults, Row
from simshuffle.job.sim.gradients import (
    GradientPasses,
    GradientSum,
    Posting,
    SumAfterBackward,
    SumDuringBackward,
)
from simshuffle.job.sim.iteration import Iteration
from simshuffle.job.sim.recorder import GROUP_STEP, JOINT_STEP, Recorder
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
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
        self._samples = samples
        self._jitter = jitter
        self._passes: dict[int, Floats] = {}  # when passes began, and their s
        self._meeting: simpy.Event  # at which all ranks begin what they do together
        self._joint: StepPart

    def _run_joint_part(self, number: int, factor: float) -> Steps:
        """Run what all ranks do together in an iteration (from 0), with computing that
        takes ``factor`` times as long.
        """
        self._joint = self._division.joint(self._samples[number])
        yield from self._posting.run(self._joint.scaled_batch(factor))

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

    def lay_out(self, iteration: Iteration) -> None:
        """Have each group begin its passes once all its ranks are here."""
        clock = iteration.clock
        number = iteration.number
        self._meeting = clock.gather(iteration.arrived)
        # (4, M) of the group of every rank: s at which it began, and s of its parts
        self._passes[number] = passes = np.zeros((4, len(iteration.taken)))

        def begin(group: int, members: Ints, _: simpy.Event) -> None:
            """Post the passes of a group; their end lets its ranks go on."""
            factor = self._slowest(self._jitter[number, members], members)
            part = self._division.local(group, self._samples[number, members])
            seconds = np.array([part.forward, part.backward, part.bubble])
            passes[:, members] = np.array([clock.env.now, *(factor * seconds)])[:, None]
            order = members[clock.network.order(iteration.taken[members])]
            self._posting.post(
                part.scaled_batch(factor),
                lambda _: clock.count_down(iteration.computed[order]),
            )

        for group, members in enumerate(self._division.members):
            clock.gather(iteration.taken[members]).callbacks.append(
                partial(begin, group, members)
            )

    def run(self, iteration: Iteration, lay_out_next: Callable[[], None]) -> Steps:
        """Sum the gradients of all groups when all ranks have arrived, and update."""
        times = iteration.times
        yield self._meeting
        times.computed_by_all = self._env.now
        yield from self._run_joint_part(iteration.number, 1.0)
        reduced = self._env.now - self._joint.update
        times.reduced = max(reduced, times.computed_by_all)
        lay_out_next()
        iteration.clock.release(iteration.released, iteration.arrived)

    def note(self, iteration: Iteration) -> None:
        """Note the ends of the passes of groups, and of the update."""
        times = iteration.times
        begun_at, forward, backward, bubble = self._passes.pop(iteration.number)
        times.slowed = iteration.clock.network.ends(iteration.computed)
        times.gathered = np.minimum(np.maximum(begun_at, times.loaded), times.slowed)
        times.forwarded = np.minimum(times.gathered + forward, times.slowed)
        times.computed = np.minimum(times.forwarded + backward, times.slowed)
        times.idle = np.minimum(times.computed + bubble, times.slowed)
        times.updated = iteration.clock.network.ends(iteration.released)


class StepOfAll(DividedStep):
    """A step that all ranks compute together once each has its batch, for example with
    sharded weights. Ranks that have their gradients go on at once.
    """

    parts = JOINT_STEP

    def lay_out(self, iteration: Iteration) -> None:
        """Have ranks begin once all are here."""
        iteration.released = iteration.arrived
        self._meeting = iteration.clock.gather(iteration.taken)

    def run(self, iteration: Iteration, lay_out_next: Callable[[], None]) -> Steps:
        """Run the whole step: passes, what ranks send, and the update."""
        number = iteration.number
        yield self._meeting
        begun_at = self._env.now
        factor = self._slowest(self._jitter[number])
        yield from self._run_joint_part(number, factor)
        joint = self._joint
        seconds = factor * joint.forward, factor * joint.backward, joint.update
        self._passes[number] = np.array([begun_at, *seconds])
        lay_out_next()
        iteration.clock.release(iteration.computed, iteration.taken)

    def note(self, iteration: Iteration) -> None:
        """Note the ends of all parts of the step."""
        times = iteration.times
        begun_at, forward, backward, update = self._passes.pop(iteration.number)
        times.updated = iteration.clock.network.ends(iteration.computed)
        times.gathered = np.minimum(np.maximum(begun_at, times.loaded), times.updated)
        times.forwarded = times.gathered + forward
        times.slowed = times.computed = times.forwarded + backward
        times.reduced = times.updated - update


class Loaders:
    """The loaders of all ranks for one pass over their samples.

    As in PyTorch, workers take the batches in turn, and each loads a whole batch by
    itself. At most ``loader.prefetch`` batches are ahead of the loop that uses them.

    Attributes:
        chains: the transfers of the batches; after ``chains.end()`` none can be loaded.
        taken: for each batch whose loading is laid out, (M,) groups: the batch of a rank
            is loaded, and the rank is there to take it, which is counted by others.

    Args:
        queues: (workers, M) queue of the batches of each worker of a rank.
    """

    def __init__(
        self, loader: Loader, clock: NetworkClock, chains: ReadChains, queues: Ints32
    ) -> None:
        self._loader = loader
        self._clock = clock
        self.chains = chains
        self.taken: list[Ints32] = []
        self._queues = queues
        self._first_worker = 0  # the worker whose turn the first batch is
        self._next: Loaders | None = None
        self._begun: Ints32  # (M,) groups: a rank has begun to load
        self._closed = (
            0  # batches that all ranks have taken, whose groups are given back
        )
        self._parked: list[int] = []  # what is posted at the begin, and by each batch

    @property
    def requested_batches(self) -> Ints64:
        """Batches that each rank has begun to load so far, (M,)."""
        are_complete = self._clock.network.are_complete
        has_begun = self._closed > 0 or are_complete(self._begun)
        requested = np.full(self._queues.shape[1], self._closed)
        requested += self._loader.prefetch * has_begun
        for groups in self.taken[self._closed :]:
            requested += are_complete(groups)
        return requested.clip(max=self.chains.iterations)

    def followed_by(self, loaders: Loaders) -> None:
        """Hand the workers to the next epoch's loaders, once they have loaded this one.

        ``loaders`` load first batches before their own epoch begins.
        """
        self._next = loaders
        loaders._first_worker = (
            self._first_worker + self.chains.iterations
        ) % self._loader.workers

    def begin(self, begun: Ints32) -> None:
        """Have ranks load their first batches when groups ``begun`` are complete: as
        many as may be ahead and are not loaded yet.
        """
        self._begun = begun
        count = self._loader.prefetch - len(self.taken)
        self._park(begun, [self._load_next() for _ in range(count)])
        if self.taken:
            self._clock.network.set_parents(begun, self.taken[0])

    def take(
        self,
        batch: int,
        computed: Ints32,
        seconds: Callable[[], Floats] | None,
    ) -> None:
        """Have ranks load one more batch when they take a batch (from 0), and compute.

        Args:
            batch: number of the batch that is taken.
            computed: (M,) groups that count the end of computing.
            seconds: makes the (M,) s that ranks compute; None if others count that.
        """
        makers = [self._load_next()]
        if seconds is not None:
            makers.append(lambda: delays(seconds(), computed))
        self._park(self.taken[batch], makers)

    def _load_next(self) -> Callable[[], TransferBatch] | None:
        """Open the groups of the next batch, of this epoch or else of the next; return
        what makes its transfers, None if there is none.
        """
        batch = len(self.taken)
        if batch == self.chains.iterations:
            return None if self._next is None else self._next._load_next()
        queues = self._queues[(self._first_worker + batch) % self._loader.workers]
        # the last byte of the batch, its copy, and the rank
        groups = self._clock.network.open_groups(3, len(queues))
        self.taken.append(groups)
        return partial(self.chains.batch, batch, groups, queues)

    def _park(
        self, groups: Ints32, makers: Sequence[Callable[[], TransferBatch] | None]
    ) -> None:
        """Have groups post what ``makers`` make, rank by rank."""
        chosen = [make for make in makers if make is not None]
        index = NONE
        if chosen:
            index = self._clock.park(
                groups,
                lambda: join_items([make() for make in chosen], len(groups)),
            )
        self._parked.append(index)

    def close(self) -> None:
        """Give back what the first batch took that is not closed; all ranks have taken
        it.
        """
        closed = self._parked[: 2 if self._closed == 0 else 1]
        del self._parked[: len(closed)]
        for index in closed:
            if index != NONE:
                self._clock.unpark(index)
        self._clock.network.close_groups(self.taken[self._closed])
        self._closed += 1


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
        self._queues: dict[str, Ints32] = {}  # of loaders, by the stream of their reads
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
        workload = scenario.workload
        resources = self.resources
        rng = scenario.rng(f"{stream}_jitter", epoch)
        jitter = lognormal_factor(rng, workload.jitter.read, reads.nbytes.shape)
        latencies = scenario.rng(f"{stream}_latency", epoch)
        decoding_of_host = lognormal_factor(
            scenario.rng("host_decode"),
            workload.jitter.host_decode,
            (resources.num_hosts,),
        )
        chains = read_chains(
            reads,
            workload,
            resources,
            jitter=jitter,
            rng=latencies,
            decoding=decoding_of_host[resources.host_of],
        )
        # in a later epoch all transfers in them have ended
        if stream not in self._queues:
            shape = workload.loader.workers, scenario.world_size
            queues = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
            queues += self.clock.network.open_queues(queues.size)
            self._queues[stream] = queues
        return Loaders(workload.loader, self.clock, chains, self._queues[stream])

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
        forward = times.forward_of(samples) * jitter
        backward = times.backward_of(samples) * jitter
        passes = GradientPasses(forward, backward, times.update, self.slower)
        if isinstance(overlap, NoOverlap):
            return SumAfterBackward(posting, passes, model.gradient_size)
        return SumDuringBackward(posting, passes, model.gradient_arrival, overlap)

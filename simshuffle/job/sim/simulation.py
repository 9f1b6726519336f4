"""Resources and checkpoints that all epochs of a run share, the data loaders, and steps
that ranks go through together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy

from simshuffle.fabric.allreduce import NoOverlap
from simshuffle.fabric.network.batch import TransferBatch, delays, join_items
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.lowering.division import StepDivision
from simshuffle.job.lowering.reads import ReadChains, compute_factor, read_chains
from simshuffle.job.plan.epochs import Reads
from simshuffle.job.plan.jobs import hosts_beside, writes_to_pfs
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.faults import needs_every_cable
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim.background import send
from simshuffle.job.sim.checkpoints import Checkpoints
from simshuffle.job.sim.clock import NetworkClock, Steps
from simshuffle.job.sim.faults import ActiveFaults, Row
from simshuffle.job.sim.gradients import (
    GradientPasses,
    GradientSum,
    SumAfterBackward,
    SumDuringBackward,
)
from simshuffle.job.sim.iteration import Iteration
from simshuffle.job.sim.links import EpochLinkStatistics, Peaks
from simshuffle.job.sim.recorder import GROUP_STEP, JOINT_STEP, Recorder
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
from simshuffle.spec.rng import lognormal_factor


class DividedStep(GradientSum):
    """A step that several ranks compute together, which lasts as long as with the
    slowest. A rank's phases say first what it computes, then what it waits for and
    sends.

    Args:
        clock: of the network on which its transfers are posted.
        division: how ranks divide it.
        samples: (iterations, M) of each batch.
        jitter: (iterations, M) factors of its computing.
        slower: (M,) how many times as long each rank takes for what it begins now,
            changed in place by faults.
    """

    def __init__(
        self,
        clock: NetworkClock,
        division: StepDivision,
        samples: Ints64,
        jitter: Floats,
        slower: Floats,
    ) -> None:
        super().__init__(clock)
        self._division = division
        self._slower = slower
        self._samples = samples
        self._jitter = jitter
        self._passes: dict[int, Floats] = {}  # when passes began, and their s
        self._meeting: simpy.Event  # at which all ranks begin what they do together

    def _slowest(self, number: int, members: Ints | slice = slice(None)) -> float:
        """Return the largest factor of the computing of ``members``, ranks that begin
        iteration ``number`` now: its jitter times that of the faults.
        """
        return float((self._jitter[number, members] * self._slower[members]).max())


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
            factor = self._slowest(number, members)
            part = self._division.local(group, self._samples[number, members])
            seconds = np.array([part.forward, part.backward, part.bubble])
            passes[:, members] = np.array([clock.env.now, *(factor * seconds)])[:, None]
            order = members[clock.network.order(iteration.taken[members])]
            self._clock.post_and_call(
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
        joint = self._division.joint(self._samples[iteration.number])
        yield from self._clock.post_and_wait(joint.scaled_batch(1.0))
        reduced = self._env.now - joint.update
        times.reduced = max(reduced, times.computed_by_all)
        lay_out_next()
        iteration.clock.release(iteration.released, iteration.arrived)

    def note(self, iteration: Iteration) -> None:
        """Note the ends of the passes of groups, and of the update."""
        times = iteration.times
        begun_at, forward, backward, bubble = self._passes.pop(iteration.number)
        times.slowed = self._ends(iteration.computed)
        times.gathered = np.clip(begun_at, times.loaded, times.slowed)
        times.forwarded = np.minimum(times.gathered + forward, times.slowed)
        times.computed = np.minimum(times.forwarded + backward, times.slowed)
        times.idle = np.minimum(times.computed + bubble, times.slowed)
        times.updated = self._ends(iteration.released)


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
        factor = self._slowest(number)
        joint = self._division.joint(self._samples[number])
        yield from self._clock.post_and_wait(joint.scaled_batch(factor))
        self._passes[number] = np.array(
            [begun_at, factor * joint.forward, factor * joint.backward, joint.update]
        )
        lay_out_next()
        iteration.clock.release(iteration.computed, iteration.taken)

    def note(self, iteration: Iteration) -> None:
        """Note the ends of all parts of the step."""
        times = iteration.times
        begun_at, forward, backward, update = self._passes.pop(iteration.number)
        times.updated = self._ends(iteration.computed)
        times.gathered = np.clip(begun_at, times.loaded, times.updated)
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
        # batches that all ranks have taken, whose groups are given back
        self._closed = 0
        # what is parked until a batch is taken, by its number
        self._parked: defaultdict[int, list[int]] = defaultdict(list)

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
        self._park(0, begun, [self._load_next() for _ in range(count)])
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
        self._park(batch, self.taken[batch], makers)

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
        self,
        batch: int,
        groups: Ints32,
        makers: Sequence[Callable[[], TransferBatch] | None],
    ) -> None:
        """Have groups post what ``makers`` make, rank by rank, until all ranks have
        taken a ``batch``.
        """
        chosen = [make for make in makers if make is not None]
        if chosen:
            index = self._clock.park(
                groups, lambda: join_items([make() for make in chosen], len(groups))
            )
            self._parked[batch].append(index)

    def close(self) -> None:
        """Give back what the first batch took that is not closed; all ranks have taken
        it.
        """
        for index in self._parked.pop(self._closed, ()):
            self._clock.unpark(index)
        self._clock.network.close_groups(self.taken[self._closed])
        self._closed += 1


@dataclass(frozen=True)
class MachinePart:
    """What a job uses of a machine: its hosts and links, the clock, and how much slower
    each rank computes. Jobs that share a machine share its clock.
    """

    resources: Resources
    clock: NetworkClock  # of the machine
    links: EpochLinkStatistics  # count what all jobs carried
    # (M,) how many times as long each rank computes what it begins now, changed in place by
    # faults
    slower: Floats
    recorder: Recorder | None = None


def own_machine(
    scenario: Scenario,
    recorder: Recorder | None = None,
    *,
    struck: list[Row] | None = None,
    begin: float = 0.0,
) -> MachinePart:
    """Return a machine of the run's own, with faults and background traffic on its
    clock.

    Args:
        scenario: without sweep and jobs.
        recorder: gives the clock; None for none.
        struck: the faults are added to it when they begin
            (`simshuffle.job.sim.faults.Row`).
        begin: the time (s) at which the clock begins.

    Raises:
        ScenarioError: as `RunFaults`.
        TopologyError: as `Resources`.
    """
    resources = Resources(
        scenario.cluster,
        scenario.world_size,
        scenario.rng("placement"),
        hosts_beside(scenario),
        every_cable=needs_every_cable(scenario.faults),
        writes=writes_to_pfs([scenario]),
    )
    network = resources.network(scenario.network, accounts=scenario.world_size)
    env = simpy.Environment(begin)
    clock = (
        NetworkClock(env, network)
        if recorder is None
        else recorder.clock(env, network, resources)
    )
    slower = np.ones(resources.world_size)
    if scenario.faults:
        slower = ActiveFaults(scenario, resources, clock, struck).slower
    peaks = None if scenario.background is None else Peaks(clock)
    links = EpochLinkStatistics(resources, network, peaks, since=begin)
    send(scenario, resources, clock)
    return MachinePart(resources, clock, links, slower, recorder)


class Simulation:
    """The parts of a simulation that all epochs of a run share.

    Attributes:
        resources, clock, links, slower, recorder: those of ``part``.
        allreduces: the allreduces of gradients.
        division: how ranks divide a step; None if each goes through it by itself.
        checkpoints: None if there are none.

    Args:
        scenario: without sweep and jobs.
        part: the machine of the run, or the part of it that the job has.

    Raises:
        ScenarioError: training is divided by layers, and the model does not list them.
    """

    def __init__(self, scenario: Scenario, part: MachinePart) -> None:
        self.scenario = scenario
        self.resources = part.resources
        self.clock = part.clock
        self.links = part.links
        self.slower = part.slower
        self.recorder = part.recorder
        workload = scenario.workload
        self.allreduces = Allreduces(
            workload.allreduce_on(scenario.cluster),
            self.resources,
            scenario.rng("host_order"),
        )
        by_data = workload.parallelism.is_data_parallel
        self.division = None if by_data else StepDivision(scenario, self.resources)
        self._queues: dict[str, Ints32] = {}  # of loaders, by the stream of their reads
        self.checkpoints = (
            None
            if workload.checkpoint is None
            else Checkpoints(scenario, self.resources, self.clock)
        )

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
            count = workload.loader.workers * scenario.world_size
            first = self.clock.network.open_queues(count)
            queues = np.arange(first, first + count, dtype=np.int32)
            self._queues[stream] = queues.reshape(-1, scenario.world_size)
        return Loaders(workload.loader, self.clock, chains, self._queues[stream])

    def gradient_sum(self, samples: Ints64, jitter: Floats) -> GradientSum:
        """Return how ranks go through a step and sum their gradients: together if the
        step is divided, else each by itself, with the sum after or during the backward
        pass.

        Args:
            samples: (iterations, M) of each batch.
            jitter: (iterations, M) factors of its computing.
        """
        clock = self.clock
        if self.division is not None:
            kind = StepOfAll if self.division.is_joint else StepInGroups
            return kind(clock, self.division, samples, jitter, self.slower)
        times = self.scenario.step_times
        workload = self.scenario.workload
        model = workload.model
        overlap = workload.allreduce.overlap
        forward = times.forward_of(samples) * jitter
        backward = times.backward_of(samples) * jitter
        passes = GradientPasses(forward, backward, times.update, self.slower)
        if isinstance(overlap, NoOverlap):
            return SumAfterBackward(clock, self.allreduces, passes, model.gradient_size)
        return SumDuringBackward(
            clock, self.allreduces, passes, model.gradient_arrival, overlap
        )

"""The training loops: one SimPy process for every rank, which also keeps its loader going."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simshuffle.allreduce import NoOverlap
from simshuffle.lowering.compute import by_rank, compute_factor, lognormal_factor
from simshuffle.lowering.costs import exchange_costs
from simshuffle.lowering.division import Division
from simshuffle.lowering.gradients import Allreduces, gather_seconds
from simshuffle.lowering.reads import read_chains
from simshuffle.plan.epochs import EpochPlan, Floats, Reads
from simshuffle.plan.resources import Resources
from simshuffle.plan.thinning import Thinning
from simshuffle.results.timeline import hidden_rows, phase_rows
from simshuffle.scenario.model import StepTimes
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.barrier import Barrier, succeed_after
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.exchange import Exchange
from simshuffle.sim.gradients import (
    GradientSum,
    Posting,
    SumAfterBackward,
    SumDuringBackward,
)
from simshuffle.sim.groups import StepInGroups, StepOfAll
from simshuffle.sim.loader import Loaders
from simshuffle.sim.phases import FINAL, MEASURING, PhaseLog, Times
from simshuffle.sim.recorder import Recorder
from simshuffle.sim.rest import RestOfPass

Steps = Generator[simpy.Event, Any, None]


class Epoch:
    """One epoch of training by all ranks.

    Args:
        scenario, resources, clock: what is simulated, on what.
        plan: what the ranks read and exchange.
        loaders: those of the plan.
        allreduces: those of the run.
        division: how ranks divide a step; None if each goes through it by itself.
        nbytes: (N,) bytes of every sample in storage.
        progress: called after each iteration with the number of iterations done.
        thinning: whose scenario the plan is of; ``scenario`` is the whole one.
        recorder: notes messages; None for nobody.

    Attributes:
        inference: loaders of the pass that measures importance; None if there is none.
        exchange: None if nothing is exchanged.
    """

    def __init__(
        self,
        scenario: Scenario,
        resources: Resources,
        clock: NetworkClock,
        plan: EpochPlan,
        loaders: Loaders,
        allreduces: Allreduces,
        division: Division | None,
        nbytes: Floats,
        progress: Callable[[int], None],
        thinning: Thinning,
        recorder: Recorder | None = None,
    ) -> None:
        self._scenario, self._resources, self._clock, self._plan = scenario, resources, clock, plan
        env, workload, world_size = clock.env, scenario.workload, scenario.world_size
        self._env, self._world_size, self._progress = env, world_size, progress
        self.loaders = loaders
        self.inference: Loaders | None = None
        times = workload.model.accelerators[scenario.cluster.host.accelerator]
        if plan.inference is not None:
            self._prepare_inference(plan.inference, times, thinning)
        self._gather_seconds = gather_seconds(
            workload.exchange.gathered(workload.dataset.num_samples / world_size), resources
        )
        self._gathering = Barrier(env, world_size, self._gather)
        schedule = workload.exchange.exchange_schedule
        self.exchange: Exchange | None = None
        if schedule is not None and len(plan.exchange.iteration):
            costs = exchange_costs(
                plan.exchange,
                schedule,
                workload.dataset,
                nbytes,
                plan.sent_from_cache,
                plan.iterations,
            )
            self.exchange = Exchange(scenario, resources, clock, schedule, costs, recorder)
            self._remove = costs.remove * thinning.factor
        jitter = self._compute_jitter("compute_jitter", plan.training, times)
        self._gradients = _gradient_sum(
            scenario, clock, allreduces, division, plan.training.samples, jitter
        )
        self._finish = Barrier(env, world_size, _succeed)
        self._iterations_done = 0
        self._measuring = PhaseLog(MEASURING, world_size)
        self._iterations = PhaseLog(self._gradients.parts, world_size)
        self._final = PhaseLog(FINAL, world_size)
        # of every exchange: when the rank was free again, when it began to wait for the messages,
        # and when they were there
        self._free_at, self._awaited_from, self._delivered_at = np.zeros(
            (3, plan.iterations, world_size)
        )

    def _prepare_inference(self, reads: Reads, times: StepTimes, thinning: Thinning) -> None:
        """Make ready for the pass that measures importance."""
        scenario, resources = self._scenario, self._resources
        self.inference = loaders_of(
            scenario, resources, self._clock, reads, "inference_read", self._plan.epoch
        )
        jitter = self._compute_jitter("inference_compute_jitter", reads, times)
        self._inference = by_rank(times.inference_of(reads.samples) * jitter)
        alike = scenario.workload.jitter.host_decode == 0
        groups = np.zeros(self._world_size, np.int64) if alike else resources.host_of
        at_once = scenario.workload.loader.at_once
        self._rest = RestOfPass(self._env, thinning.left_out, len(jitter), groups, at_once)

    def _compute_jitter(self, stream: str, reads: Reads, times: StepTimes) -> Floats:
        """(iterations, M) factors of what the accelerators compute."""
        rng = self._scenario.rng(stream, self._plan.epoch)
        return compute_factor(rng, self._scenario.workload.jitter.compute, reads, times)

    def run(self) -> Steps:
        """The epoch as a process: starts all ranks and ends when the last one does."""
        yield self._env.all_of(
            [self._env.process(self._rank(rank)) for rank in range(self._world_size)]
        )
        self.loaders.chains.end()  # the tables need their room

    def rows(self) -> list[dict[str, Any]]:
        """What the epoch leaves behind when it is over: phase rows (see
        `simshuffle.results.timeline.phase_rows`)."""
        plan, epoch = self._plan, self._plan.epoch
        measured = 0.0 if plan.inference is None else plan.inference.nbytes.sum(axis=0)
        gradients = self._scenario.workload.model.gradient_size if self._world_size > 1 else 0.0
        nbytes = {"read": plan.training.nbytes, "reduced": gradients}
        if self.exchange is not None:
            nbytes["sent"] = self.exchange.costs.sent
        rows = [
            self._measuring.rows(epoch, {"measured": measured}, final=True),
            self._iterations.rows(epoch, nbytes),
            self._final.rows(epoch, final=True),
        ]
        if self.exchange is not None:
            until = np.minimum(self._delivered_at, self._awaited_from)
            hidden = np.stack([self._free_at, np.maximum(until, self._free_at)], axis=-1)
            nothing = np.zeros((*self._free_at.shape, 1))
            rows.append(phase_rows(epoch, ["exchange_hidden"], hidden, nothing))
        rows += hidden_rows(epoch, self._gradients.hidden, self._world_size)
        return rows

    @property
    def measured_spread(self) -> float:
        """How well the end of a thinned inference pass is known (s), see `RestOfPass`."""
        return 0.0 if self.inference is None else self._rest.spread

    # ------------------------------------------------------------------------------------- one rank

    def _rank(self, rank: int) -> Steps:
        env, exchange, loaders = self._env, self.exchange, self.loaders
        yield from self._measure_importance(rank)
        loaders.begin(rank)
        pending = -1  # iteration whose messages have not been waited for
        for iteration in range(self._plan.iterations):
            times = Times(begin=env.now)
            awaited = loaders.awaited(rank)
            if awaited is not None:
                yield awaited
            read_at = loaders.take(rank)
            times.loaded = env.now
            times.read = min(max(read_at, times.begin), times.loaded)
            yield from self._gradients.compute(rank, iteration, times)
            times.stored = times.stored_by_all = env.now
            if exchange is not None and pending >= 0:
                yield from self._synchronise(exchange, rank, pending, times)
                pending = -1
            yield from self._gradients.reduce(iteration, times)
            times.sent = times.free = env.now
            if exchange is not None and exchange.sends(iteration):
                yield from self._communicate(exchange, rank, iteration, times)
                pending = iteration
                if not exchange.overlap:
                    yield from self._finish_exchange(exchange, rank, iteration, times)
                    pending = -1
            self._iterations.add(rank, times)
            self._count(rank)
        yield from self._wind_up(rank, pending)

    def _measure_importance(self, rank: int) -> Steps:
        """The inference pass over the rank's shard, if importance is measured; the exchange of what
        pairing needs to know."""
        env, loaders = self._env, self.inference
        times = Times(begin=env.now)
        if loaders is not None:
            loaders.begin(rank)
            for batch, seconds in enumerate(self._inference[rank]):
                awaited = loaders.awaited(rank)
                if awaited is not None:
                    yield awaited
                loaders.take(rank)
                yield env.timeout(seconds)
                self._rest.note(rank, batch)
            rest = self._rest.passes(rank)
            if rest is not None:
                yield rest
        if self._gather_seconds is not None:
            yield self._gathering.arrive()
        times.measured = env.now
        self._measuring.add(rank, times)

    def _gather(self, event: simpy.Event) -> None:
        succeed_after(self._env, self._gather_seconds or 0.0, event)

    def _count(self, rank: int) -> None:
        if rank == 0:
            self._iterations_done += 1
            self._progress(self._iterations_done)

    def _communicate(self, exchange: Exchange, rank: int, iteration: int, times: Times) -> Steps:
        """Host work and barriers of sending; the work is noted before the waiting, whatever their
        order was."""
        begin = self._env.now
        before = float(self._clock.network.accounts[rank])
        group = exchange.start(rank, iteration)
        free = self._clock.completion(group)
        if free is not None:
            yield free
        self._clock.close(group)
        worked = float(self._clock.network.accounts[rank]) - before
        times.free = self._free_at[iteration, rank] = self._env.now
        times.sent = min(begin + worked, times.free)

    def _synchronise(self, exchange: Exchange, rank: int, iteration: int, times: Times) -> Steps:
        """Wait for the own messages, store what came, then meet the others."""
        self._awaited_from[iteration, rank] = self._env.now
        # a rank that neither sends nor receives has nothing in flight
        delivered = self._free_at[iteration, rank]
        group = exchange.delivery(rank)
        if group >= 0:
            event = self._clock.completion(group)
            if event is not None:
                yield event
            _, delivered = self._clock.close(group)
        self._delivered_at[iteration, rank] = delivered
        stored, closed = exchange.store(rank, iteration)
        if closed is not None:
            yield closed
        else:
            written = self._clock.completion(stored)
            if written is not None:
                yield written
        _, written_at = self._clock.close(stored)
        times.stored_by_all = self._env.now
        times.stored = min(written_at, times.stored_by_all)

    def _finish_exchange(
        self, exchange: Exchange, rank: int, iteration: int, times: Times
    ) -> Steps:
        """Without overlap: synchronise at once. Sending and storing are then one part of the
        iteration: work, then waiting."""
        storing = Times(begin=times.free)
        yield from self._synchronise(exchange, rank, iteration, storing)
        worked = times.sent - times.updated + storing.stored - storing.begin
        times.free = storing.stored_by_all
        times.sent = min(times.updated + worked, times.free)

    def _wind_up(self, rank: int, pending: int) -> Steps:
        """After the last iteration: its messages, the removal of what was sent, and the end of the
        epoch, which all reach together."""
        times = Times(begin=self._env.now)
        times.stored = times.stored_by_all = times.begin
        if self.exchange is not None:
            if pending >= 0:
                yield from self._synchronise(self.exchange, rank, pending, times)
            yield self._env.timeout(float(self._remove[rank]))
        times.removed = self._env.now
        yield self._finish.arrive()
        times.finished = self._env.now
        self._final.add(rank, times)


def _gradient_sum(
    scenario: Scenario,
    clock: NetworkClock,
    allreduces: Allreduces,
    division: Division | None,
    samples: NDArray[np.int64],
    jitter: Floats,
) -> GradientSum:
    """How the ranks of a scenario go through a step and sum their gradients, given the samples of
    each batch and the factors of its computing, (iterations, M) each."""
    posting = Posting(clock, allreduces)
    if division is not None:
        kind = StepOfAll if division.together else StepInGroups
        return kind(posting, division, samples, jitter)
    model, overlap = scenario.workload.model, scenario.workload.allreduce.overlap
    times = model.accelerators[scenario.cluster.host.accelerator]
    forward = by_rank(times.forward_of(samples) * jitter)
    backward = by_rank(times.backward_of(samples) * jitter)
    update = times.update
    if isinstance(overlap, NoOverlap):
        return SumAfterBackward(posting, forward, backward, update, model.gradient_size)
    arrival = model.gradient_arrival
    return SumDuringBackward(posting, forward, backward, update, arrival, overlap)


def loaders_of(
    scenario: Scenario,
    resources: Resources,
    clock: NetworkClock,
    reads: Reads,
    stream: str,
    epoch: int,
) -> Loaders:
    """The loaders of a pass; ``stream`` begins the names of the random ones of its reads."""
    workload = scenario.workload
    jitter = lognormal_factor(
        scenario.rng(f"{stream}_jitter", epoch), workload.jitter.read, reads.nbytes.shape
    )
    latencies = scenario.rng(f"{stream}_latency", epoch)
    spread, hosts = workload.jitter.host_decode, (resources.num_hosts,)
    decoding = lognormal_factor(scenario.rng("host_decode"), spread, hosts)[resources.host_of]
    chains = read_chains(reads, workload, resources, jitter, latencies, decoding)
    return Loaders(workload.loader, clock, chains, scenario.world_size)


def _succeed(event: simpy.Event) -> None:
    event.succeed()

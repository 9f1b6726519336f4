"""The training loops: one SimPy process for every rank, which also keeps its loader going; and the
exchange of samples on the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simshuffle.fabric.network.batch import NONE
from simshuffle.job.lowering.collectives import gather_seconds
from simshuffle.job.lowering.messages import (
    ExchangeCosts,
    MessageGraph,
    MessageLowering,
    StoreLowering,
    delivery_counts,
    exchange_costs,
    messages_of,
)
from simshuffle.job.plan.effort import Thinning
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.job.sim.checkpoints import Checkpoints, Killed
from simshuffle.job.sim.clock import Barrier, Steps, let_go, succeed_after
from simshuffle.job.sim.recorder import FINAL, MEASURING, SAVING, PhaseEnds, PhaseLog
from simshuffle.job.sim.served import RestOfPass
from simshuffle.job.sim.simulation import Loaders, Simulation
from simshuffle.report.timeline import hidden_rows, phase_rows
from simshuffle.spec.arrays import Floats


class Exchange:
    """The exchange of one epoch by its ``schedule``; ``remove`` is (M,) s at the end. ``delivered``
    are the groups of the messages of each rank in the iteration started last; NONE for none."""

    def __init__(self, simulation: Simulation, costs: ExchangeCosts, remove: Floats) -> None:
        scenario, resources, clock = simulation.scenario, simulation.resources, simulation.clock
        self._recorder, self.costs, self.remove = simulation.recorder, costs, remove
        self._resources, self._clock, self.schedule = resources, clock, costs.schedule
        self._reads_in_flight = scenario.workload.loader.reads_in_flight
        self._world_size = resources.world_size
        self._sending = frozenset(costs.plan.iteration.tolist())
        pairs, in_memory = scenario.network.serial_pairs, scenario.workload.source == "memory"
        self._lowering = MessageLowering(resources, costs.schedule, serial_pairs=pairs)
        self._stores = StoreLowering(resources, costs, in_memory=in_memory)
        # of the iteration whose messages were prepared last: its groups, of each rank the one of
        # its host work and the one of its messages; and its transfers
        self._prepared = -1
        self._work_done: list[int] = []
        self.delivered: list[int] = []
        self._graph: MessageGraph
        # the ranks that begin at this instant, if no barrier lets all begin together
        self._beginning: list[int] = []
        self._opening = Barrier(clock.env, self._world_size, self._open)
        # the barrier after the receipt: its group, its event, and the ranks that are still missing
        self._closing = NONE
        self._closed = clock.env.event()
        self._closing_missing = 0

    def sends(self, iteration: int) -> bool:
        """Whether anything is exchanged after ``iteration`` (from 0)."""
        return iteration in self._sending

    def start(self, rank: int, iteration: int) -> int:
        """Rank ``rank`` begins to exchange after ``iteration``; the group is complete when its main
        thread is free again."""
        self._prepare(iteration)
        if self.schedule.barriers == "none":
            if not self._beginning:
                self._clock.env.timeout(0.0).callbacks.append(self._begin)
            self._beginning.append(rank)
        else:
            self._opening.arrive()
        return self._work_done[rank]

    def store(self, rank: int, iteration: int) -> tuple[int, simpy.Event | None]:
        """Re-encode what the rank received and write it, then meet the others if barriers are
        scheduled. Returns the group that is complete when the rank has written, and the event that
        lets all go on, if they meet."""
        group = self._clock.open(1)
        if self.schedule.barriers == "none":
            self._clock.post(self._stores.batch(rank, iteration, group))
            return group, None
        if self._closing == NONE:
            self._open_closing()
        batch, closed = self._stores.batch(rank, iteration, group, self._closing), self._closed
        self._closing_missing -= 1
        if self._closing_missing == 0:
            self._closing = NONE
        self._clock.post(batch)
        return group, closed

    def _open_closing(self) -> None:
        """The barrier after the receipt: all ranks' writes, then the latency of the barrier."""
        group = self._closing = self._clock.open(self._world_size)
        closed = self._closed = self._clock.env.event()
        self._closing_missing = self._world_size
        latency = barrier_seconds(self._resources.cluster, self._world_size)
        self._clock.then(group, lambda _: succeed_after(self._clock.env, latency, closed))

    def _begin(self, _: simpy.Event) -> None:
        """Post the messages of the ranks that began at this instant, in one batch: all ranks go on
        together when their gradients are summed."""
        self._clock.post(self._graph.select_ranks(self._beginning))
        self._beginning = []

    def _open(self, event: simpy.Event) -> None:
        """All ranks have begun: post the messages of all."""
        event.succeed()
        self._clock.post(self._graph.batch)

    def _prepare(self, iteration: int) -> None:
        """Open the groups of an iteration when its first rank arrives."""
        if self._prepared == iteration:
            return
        self._prepared = iteration
        messages = messages_of(self.costs, iteration, self._resources, self._reads_in_flight)
        counts = delivery_counts(messages, self._world_size).tolist()
        self._work_done = [self._clock.open(1) for _ in range(self._world_size)]
        self.delivered = [self._clock.open(count) if count else NONE for count in counts]
        tag = NONE if self._recorder is None else self._recorder.note(iteration, messages)
        self._graph = self._lowering.graph(messages, self._work_done, self.delivered, tag)


@dataclass(frozen=True)
class Measuring:
    """The inference pass that measures importance."""

    loaders: Loaders
    seconds: list[list[float]]  # of each batch, by rank
    rest: RestOfPass


def _measuring(simulation: Simulation, plan: EpochPlan, thinning: Thinning) -> Measuring | None:
    reads, workload, resources = plan.inference, simulation.scenario.workload, simulation.resources
    if reads is None:
        return None
    jitter = simulation.compute_jitter("inference_compute_jitter", plan.epoch, reads)
    alike = workload.jitter.host_decode == 0
    groups = np.zeros(resources.world_size, np.int64) if alike else resources.host_of
    env, at_once = simulation.clock.env, workload.loader.at_once
    return Measuring(
        simulation.loaders(reads, "inference_read", plan.epoch),
        (simulation.scenario.step_times.inference_of(reads.samples) * jitter).T.tolist(),
        RestOfPass(env, thinning.left_out, len(jitter), groups, at_once),
    )


def _exchange(
    simulation: Simulation, plan: EpochPlan, nbytes: Floats, thinning: Thinning
) -> Exchange | None:
    """None if nothing is exchanged."""
    workload = simulation.scenario.workload
    schedule = workload.exchange.exchange_schedule
    if schedule is None or not len(plan.exchange.iteration):
        return None
    costs = exchange_costs(
        plan.exchange, schedule, workload.dataset, nbytes, plan.sent_from_cache, plan.iterations
    )
    return Exchange(simulation, costs, costs.remove * thinning.factor)


class Epoch:
    """One epoch of training by all ranks: ``nbytes`` are (N,) of every sample, ``progress`` is
    called after each iteration with the number of iterations done, ``thinning`` is that of the
    plan's scenario. `measuring` is None if importance is not measured, `exchange` if nothing is;
    `done` are the iterations that it has, fewer than `planned` if the job was killed, or broken
    off."""

    def __init__(
        self,
        simulation: Simulation,
        plan: EpochPlan,
        loaders: Loaders,
        nbytes: Floats,
        progress: Callable[[int], None],
        thinning: Thinning,
    ) -> None:
        scenario, clock, resources = simulation.scenario, simulation.clock, simulation.resources
        self._clock, self._env, self._plan, self._progress = clock, clock.env, plan, progress
        workload, world_size = scenario.workload, scenario.world_size
        self._world_size, self._first_rank = world_size, resources.first_rank
        self._gradient_size = workload.model.gradient_size if world_size > 1 else 0.0
        self.loaders = loaders
        self.measuring = _measuring(simulation, plan, thinning)
        self._gather_seconds = gather_seconds(
            workload.exchange.gathered(workload.dataset.num_samples / world_size), resources
        )
        self._gathering = Barrier(self._env, world_size, self._gather)
        self.exchange = _exchange(simulation, plan, nbytes, thinning)
        jitter = simulation.compute_jitter("compute_jitter", plan.epoch, plan.training)
        self._slower = simulation.slower
        self._gradients = simulation.gradient_sum(plan.training.samples, jitter)
        self._finish = Barrier(self._env, world_size, let_go)
        self._iterations_done = 0
        self.planned = self.done = plan.iterations
        self._log = PhaseLog(MEASURING, world_size)
        self._checkpoints = simulation.checkpoints
        parts = {**self._gradients.parts, **(SAVING if self._checkpoints is not None else {})}
        self._iterations = PhaseLog(parts, world_size)
        self._current = [PhaseEnds(0.0)] * world_size  # of the iteration in which each rank is
        self.killed: Killed | None = None
        self._final = PhaseLog(FINAL, world_size)
        # of every exchange: when the rank was free again, when it began to wait for the messages,
        # and when they were there
        self._free_at, self._awaited_from, self._delivered_at = np.zeros(
            (3, plan.iterations, world_size)
        )

    def run(self) -> Steps:
        """The epoch as a process: starts all ranks and ends when the last one does."""
        ranks = range(self._world_size)
        through = self._env.all_of([self._env.process(self._rank(rank)) for rank in ranks])
        if self._checkpoints is None:
            yield through
        else:
            yield through | self._checkpoints.kill
            self.killed = self._checkpoints.killed
            if self.killed is not None:
                self.done = self.killed.iteration - self._checkpoints.first
                for rank in ranks:  # none has come through this save
                    self._iterations.cut(rank, self._current[rank], self._env.now)
        self.loaders.chains.end()  # the tables need their room

    def rows(self) -> list[dict[str, Any]]:
        """Phase rows of the epoch that is over, see `simshuffle.report.timeline.phase_rows`."""
        plan, epoch, done = self._plan, self._plan.epoch, self.done
        measured = 0.0 if plan.inference is None else plan.inference.nbytes.sum(axis=0)
        nbytes: dict[str, Any] = {"read": plan.training.nbytes[:done]}
        nbytes["reduced"] = self._gradient_size
        if self.exchange is not None:
            nbytes["sent"] = self.exchange.costs.sent[:done]
        if self._checkpoints is not None:
            nbytes["saved"] = np.tile(self._checkpoints.nbytes, (self.done, 1))
            if self.killed is not None:  # that one is not there
                nbytes["saved"][-1] = 0.0
        rows = [
            self._log.rows(epoch, {"measured": measured}, final=True),
            self._iterations.rows(epoch, nbytes),
        ]
        if self.killed is None:
            rows.append(self._final.rows(epoch, final=True))
        if self.exchange is not None:
            free_at = self._free_at[:done]
            until = np.minimum(self._delivered_at, self._awaited_from)[:done]
            hidden = np.stack([free_at, np.maximum(until, free_at)], axis=-1)
            nothing = np.zeros((*free_at.shape, 1))
            rows.append(phase_rows(epoch, ["exchange_hidden"], hidden, nothing))
        rows += hidden_rows(epoch, self._gradients.hidden, self._world_size)
        return rows

    def break_off(self) -> None:
        """Leave it as it is: its rows are those of the iterations that all ranks have done."""
        self.done = self._iterations.complete
        self._log.keep(self._log.complete)
        self._iterations.keep(self.done)
        self._final.keep(0)

    @property
    def saved(self) -> int:
        """Iterations that the last checkpoint has that is written by now, of those planned here; -1
        if it is from before."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return -1
        return max(checkpoints.saved(self._plan.epoch) - checkpoints.first, -1)

    @property
    def measured_spread(self) -> float:
        """How well the end of a thinned inference pass is known (s), see `RestOfPass`."""
        return 0.0 if self.measuring is None else self.measuring.rest.spread

    # ------------------------------------------------------------------------------------- one rank

    def _rank(self, rank: int) -> Steps:
        env, exchange, loaders = self._env, self.exchange, self.loaders
        yield from self._measure_importance(rank)
        loaders.begin(rank)
        pending = -1  # iteration whose messages have not been waited for
        for iteration in range(self._plan.iterations):
            times = self._current[rank] = PhaseEnds(begin=env.now)
            read_at = yield from loaders.next_batch(rank)
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
                if not exchange.schedule.overlap:
                    yield from self._finish_exchange(exchange, rank, iteration, times)
                    pending = -1
            if self._checkpoints is not None:
                yield from self._save(self._checkpoints, rank, iteration, times)
            self._iterations.add(rank, times)
            if rank == 0:
                self._iterations_done += 1
                self._progress(self._iterations_done)
        yield from self._wind_up(rank, pending)

    def _save(self, checkpoints: Checkpoints, rank: int, iteration: int, times: PhaseEnds) -> Steps:
        """What the loop waits for of a checkpoint, if one is due."""
        if checkpoints.due(self._plan.epoch, iteration):
            yield from checkpoints.save(rank)
        times.saved = self._env.now

    def _measure_importance(self, rank: int) -> Steps:
        """The inference pass, if importance is measured; the gathering of what pairing needs."""
        env, measuring = self._env, self.measuring
        times = PhaseEnds(begin=env.now)
        if measuring is not None:
            loaders = measuring.loaders
            loaders.begin(rank)
            for batch, seconds in enumerate(measuring.seconds[rank]):
                yield from loaders.next_batch(rank)
                yield env.timeout(seconds if self._slower is None else seconds * self._slower[rank])
                measuring.rest.note(rank, batch)
            rest = measuring.rest.passes(rank)
            if rest is not None:
                yield rest
        if self._gather_seconds is not None:
            yield self._gathering.arrive()
        times.measured = env.now
        self._log.add(rank, times)

    def _gather(self, event: simpy.Event) -> None:
        succeed_after(self._env, self._gather_seconds or 0.0, event)

    def _communicate(
        self, exchange: Exchange, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Host work and barriers of sending; the work is noted before the waiting, whatever their
        order was."""
        begin, account = self._env.now, self._first_rank + rank
        before = float(self._clock.network.accounts[account])
        yield from self._clock.ended(exchange.start(rank, iteration))
        worked = float(self._clock.network.accounts[account]) - before
        times.free = self._free_at[iteration, rank] = self._env.now
        times.sent = min(begin + worked, times.free)

    def _synchronise(
        self, exchange: Exchange, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Wait for the own messages, store what came, then meet the others."""
        self._awaited_from[iteration, rank] = self._env.now
        # a rank that neither sends nor receives has nothing in flight
        delivered = self._free_at[iteration, rank]
        group = exchange.delivered[rank]
        if group >= 0:
            _, delivered = yield from self._clock.ended(group)
        self._delivered_at[iteration, rank] = delivered
        stored, closed = exchange.store(rank, iteration)
        if closed is not None:
            yield closed
            _, written_at = self._clock.close(stored)
        else:
            _, written_at = yield from self._clock.ended(stored)
        times.stored_by_all = self._env.now
        times.stored = min(written_at, times.stored_by_all)

    def _finish_exchange(
        self, exchange: Exchange, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Without overlap: synchronise at once. Sending and storing are then one part."""
        storing = PhaseEnds(begin=times.free)
        yield from self._synchronise(exchange, rank, iteration, storing)
        worked = times.sent - times.updated + storing.stored - storing.begin
        times.free = storing.stored_by_all
        times.sent = min(times.updated + worked, times.free)

    def _wind_up(self, rank: int, pending: int) -> Steps:
        """After the last iteration: its messages, the removal of what was sent, and a barrier."""
        times = PhaseEnds(begin=self._env.now)
        times.stored = times.stored_by_all = times.begin
        if self.exchange is not None:
            if pending >= 0:
                yield from self._synchronise(self.exchange, rank, pending, times)
            yield self._env.timeout(float(self.exchange.remove[rank]))
        times.removed = self._env.now
        yield self._finish.arrive()
        times.finished = self._env.now
        self._final.add(rank, times)

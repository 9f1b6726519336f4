"""The training loops: one SimPy process for every rank, which also keeps its loader
going.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simshuffle.job.lowering.collectives import gather_seconds
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.sim.checkpoints import Checkpoints, Killed
from simshuffle.job.sim.clock import Barrier, Steps, let_go, succeed_after
from simshuffle.job.sim.exchange import Exchange, plan_exchange
from simshuffle.job.sim.recorder import FINAL, MEASURING, SAVING, PhaseEnds, PhaseLog
from simshuffle.job.sim.served import OmittedBatches
from simshuffle.job.sim.simulation import Loaders, Simulation
from simshuffle.report.timeline import hidden_rows, phase_rows
from simshuffle.spec.arrays import Floats


@dataclass(frozen=True)
class Measuring:
    """The inference pass that measures importance."""

    loaders: Loaders
    # (M lists of batches) s that the GPU of a rank computes on each batch, without faults
    seconds: list[list[float]]
    omitted_batches: OmittedBatches


def _plan_measuring(
    simulation: Simulation, plan: EpochPlan, thinning: Thinning
) -> Measuring | None:
    """Return the inference pass of an epoch; None if importance is not measured."""
    reads = plan.inference
    workload = simulation.scenario.workload
    resources = simulation.resources
    if reads is None:
        return None
    jitter = simulation.compute_jitter("inference_compute_jitter", plan.epoch, reads)
    hosts_decode_alike = workload.jitter.host_decode == 0
    groups = (
        np.zeros(resources.world_size, np.int64)
        if hosts_decode_alike
        else resources.host_of
    )
    env = simulation.clock.env
    at_once = workload.loader.at_once
    return Measuring(
        simulation.loaders(reads, "inference_read", plan.epoch),
        (
            simulation.scenario.step_times.inference_of(reads.samples) * jitter
        ).T.tolist(),
        OmittedBatches(env, thinning.left_out, len(jitter), groups, at_once),
    )


class Epoch:
    """An epoch of training by all ranks.

    Attributes:
        measuring: the inference pass; None if importance is not measured.
        exchange: the exchange of samples; None if there is none.
        loaders: the loaders of the training.
        planned: iterations of the plan.
        iterations_done: iterations that the epoch has; fewer than ``planned`` if the
            job was killed or broken off. Of a killed job it counts the iteration in
            whose save it ended.
        killed: the end of the job by its watchdog; None if there is none.

    Args:
        simulation: what all epochs of the run share.
        plan: the plan of this epoch.
        loaders: the loaders of its training.
        nbytes: (N,) bytes of every sample.
        progress: called after each iteration of rank 0 with the number of iterations
            that rank 0 has done.
        thinning: how the plan's scenario is thinned.
    """

    def __init__(
        self,
        simulation: Simulation,
        plan: EpochPlan,
        loaders: Loaders,
        nbytes: Floats,
        *,
        progress: Callable[[int], None],
        thinning: Thinning,
    ) -> None:
        scenario = simulation.scenario
        clock = simulation.clock
        resources = simulation.resources
        self._clock = clock
        self._env = clock.env
        self._plan = plan
        self._progress = progress
        workload = scenario.workload
        world_size = scenario.world_size
        self._world_size = world_size
        self._first_rank = resources.first_rank
        self._gradient_size = workload.model.gradient_size if world_size > 1 else 0.0
        self.loaders = loaders
        self.measuring = _plan_measuring(simulation, plan, thinning)
        self._gather_seconds = gather_seconds(
            workload.exchange.gathered(workload.dataset.num_samples / world_size),
            resources,
        )
        self._gathering = Barrier(self._env, world_size, self._gather)
        self.exchange = plan_exchange(simulation, plan, nbytes, thinning)
        jitter = simulation.compute_jitter("compute_jitter", plan.epoch, plan.training)
        self._slower = simulation.slower
        self._gradients = simulation.gradient_sum(plan.training.samples, jitter)
        self._finish = Barrier(self._env, world_size, let_go)
        self._reported_iterations = 0
        self.planned = self.iterations_done = plan.iterations
        self._log = PhaseLog(MEASURING, world_size)
        self._checkpoints = simulation.checkpoints
        parts = {
            **self._gradients.parts,
            **(SAVING if self._checkpoints is not None else {}),
        }
        self._iterations = PhaseLog(parts, world_size)
        self._current = [
            PhaseEnds(0.0)
        ] * world_size  # of the iteration in which each rank is
        self.killed: Killed | None = None
        self._final = PhaseLog(FINAL, world_size)
        # of every exchange: when the rank was free again, when it began to wait for the messages,
        # and when they were there
        self._free_at, self._awaited_from, self._delivered_at = np.zeros(
            (3, plan.iterations, world_size)
        )

    def run(self) -> Steps:
        """Run the epoch as a process: start all ranks, and end when the last one does.

        A watchdog that kills the job ends it too: ``killed`` is then set, and the
        interrupted iteration of each rank is logged. The reads of ``loaders`` are freed
        at the end, not their sums.
        """
        ranks = range(self._world_size)
        all_ranks_ended = self._env.all_of(
            [self._env.process(self._rank(rank)) for rank in ranks]
        )
        if self._checkpoints is None:
            yield all_ranks_ended
        else:
            yield all_ranks_ended | self._checkpoints.kill
            self.killed = self._checkpoints.killed
            if self.killed is not None:
                self.iterations_done = self.killed.iteration - self._checkpoints.first
                for rank in ranks:  # none has come through this save
                    self._iterations.add_interrupted(
                        rank, self._current[rank], self._env.now
                    )
        self.loaders.chains.end()  # the tables need their room

    def rows(self) -> list[dict[str, Any]]:
        """Return the phase rows of the epoch that is over; they can be taken once.

        Each item is the columns of some rows, as `phase_rows` returns them: importance,
        iterations, what follows them (unless the job was killed), hidden exchanges (if
        samples are exchanged), and hidden allreduces.
        """
        plan = self._plan
        epoch = self._plan.epoch
        iterations = self.iterations_done
        measured = 0.0 if plan.inference is None else plan.inference.nbytes.sum(axis=0)
        nbytes: dict[str, Any] = {"read": plan.training.nbytes[:iterations]}
        nbytes["reduced"] = self._gradient_size
        if self.exchange is not None:
            nbytes["sent"] = self.exchange.costs.sent[:iterations]
        if self._checkpoints is not None:
            nbytes["saved"] = np.tile(
                self._checkpoints.nbytes, (self.iterations_done, 1)
            )
            if self.killed is not None:  # that one is not there
                nbytes["saved"][-1] = 0.0
        rows = [
            self._log.rows(epoch, {"measured": measured}, final=True),
            self._iterations.rows(epoch, nbytes),
        ]
        if self.killed is None:
            rows.append(self._final.rows(epoch, final=True))
        if self.exchange is not None:
            free_at = self._free_at[:iterations]
            waited_until = np.minimum(self._delivered_at, self._awaited_from)[
                :iterations
            ]
            hidden = np.stack([free_at, np.maximum(waited_until, free_at)], axis=-1)
            no_nbytes = np.zeros((*free_at.shape, 1))
            rows.append(phase_rows(epoch, ["exchange_hidden"], hidden, no_nbytes))
        rows += hidden_rows(epoch, self._gradients.hidden, self._world_size)
        return rows

    def break_off(self) -> None:
        """Break the epoch off: keep only the rows of iterations that all ranks have
        done, and set ``iterations_done`` to their number.

        Phases after the last iteration are dropped, too; and importance, unless all
        ranks have it.
        """
        self.iterations_done = self._iterations.complete
        self._log.keep(self._log.complete)
        self._iterations.keep(self.iterations_done)
        self._final.keep(0)

    @property
    def saved(self) -> int:
        """Iterations of the plan that the last written checkpoint holds.

        -1 if there is none, or it is from before the plan.
        """
        checkpoints = self._checkpoints
        if checkpoints is None:
            return -1
        return max(
            checkpoints.saved_iterations(self._plan.epoch) - checkpoints.first, -1
        )

    @property
    def measured_spread(self) -> float:
        """Standard deviation of the end of a thinned inference pass (s).

        0 if there is no inference pass, none of its batches are left out, or it has not
        ended.
        """
        return 0.0 if self.measuring is None else self.measuring.omitted_batches.spread

    # ------------------------------------------------------------------------------------- one rank

    def _rank(self, rank: int) -> Steps:
        """Run the training loop of a rank, from measuring importance to the last
        barrier.
        """
        env = self._env
        exchange = self.exchange
        loaders = self.loaders
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
                self._reported_iterations += 1
                self._progress(self._reported_iterations)
        yield from self._finish_rank(rank, pending)

    def _save(
        self, checkpoints: Checkpoints, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Write a checkpoint if one is due, until the training loop of the rank may go
        on; note that time, or now, in ``times.saved``.
        """
        if checkpoints.due(self._plan.epoch, iteration):
            yield from checkpoints.save(rank)
        times.saved = self._env.now

    def _measure_importance(self, rank: int) -> Steps:
        """Run the inference pass if importance is measured, and gather what pairing
        needs; log the phase of importance, which may take no time.
        """
        env = self._env
        measuring = self.measuring
        times = PhaseEnds(begin=env.now)
        if measuring is not None:
            loaders = measuring.loaders
            loaders.begin(rank)
            for batch, seconds in enumerate(measuring.seconds[rank]):
                yield from loaders.next_batch(rank)
                yield env.timeout(
                    seconds if self._slower is None else seconds * self._slower[rank]
                )
                measuring.omitted_batches.note(rank, batch)
            omitted_passed = measuring.omitted_batches.passes(rank)
            if omitted_passed is not None:
                yield omitted_passed
        if self._gather_seconds is not None:
            yield self._gathering.arrive()
        times.measured = env.now
        self._log.add(rank, times)

    def _gather(self, event: simpy.Event) -> None:
        """Trigger ``event``, on which the ranks wait, when importance is gathered."""
        succeed_after(self._env, self._gather_seconds or 0.0, event)

    def _communicate(
        self, exchange: Exchange, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Send after ``iteration`` (from 0): do the host work and the barriers.

        Sets ``times.sent`` and ``times.free``. The work is booked before the waiting,
        whatever their order was. Messages may still be under way at the end.
        """
        begin = self._env.now
        account = self._first_rank + rank
        account_before = float(self._clock.network.accounts[account])
        yield from self._clock.wait_for(exchange.start(rank, iteration))
        work_seconds = float(self._clock.network.accounts[account]) - account_before
        times.free = self._free_at[iteration, rank] = self._env.now
        times.sent = min(begin + work_seconds, times.free)

    def _synchronise(
        self, exchange: Exchange, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Wait for the messages of the rank, store the received samples, then meet the
        other ranks if scheduled.

        The messages are those sent or received after ``iteration`` (from 0). Sets
        ``times.stored``, which counts the wait as work, and ``times.stored_by_all``.
        """
        self._awaited_from[iteration, rank] = self._env.now
        # a rank that neither sends nor receives has nothing in flight
        delivered = self._free_at[iteration, rank]
        group = exchange.delivered[rank]
        if group >= 0:
            _, delivered = yield from self._clock.wait_for(group)
        self._delivered_at[iteration, rank] = delivered
        stored, closed = exchange.store(rank, iteration)
        if closed is not None:
            yield closed
            _, written_at = self._clock.close(stored)
        else:
            _, written_at = yield from self._clock.wait_for(stored)
        times.stored_by_all = self._env.now
        times.stored = min(written_at, times.stored_by_all)

    def _finish_exchange(
        self, exchange: Exchange, rank: int, iteration: int, times: PhaseEnds
    ) -> Steps:
        """Synchronise at once, where nothing overlaps.

        Sending and storing become one part up to ``times.sent``, and all waiting the
        part up to ``times.free``.
        """
        storing = PhaseEnds(begin=times.free)
        yield from self._synchronise(exchange, rank, iteration, storing)
        worked = times.sent - times.updated + storing.stored - storing.begin
        times.free = storing.stored_by_all
        times.sent = min(times.updated + worked, times.free)

    def _finish_rank(self, rank: int, pending: int) -> Steps:
        """End a rank after its last iteration: take its messages, remove the sent
        samples, meet the others; log these times.

        ``pending`` is the iteration whose messages have not been waited for; -1 if
        there is none.
        """
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

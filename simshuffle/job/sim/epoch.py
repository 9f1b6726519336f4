"""An epoch of training by all ranks, which go through it inside the network: here it is
laid out iteration by iteration, and all ranks meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

from simshuffle.job.lowering.collectives import gather_seconds
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.sim.checkpoints import Checkpoints, Killed
from simshuffle.job.sim.clock import Steps
from simshuffle.job.sim.exchange import plan_exchange
from simshuffle.job.sim.iteration import Iteration, Receipt
from simshuffle.job.sim.measuring import plan_inference_pass
from simshuffle.job.sim.recorder import FINAL, MEASURING, PhaseEnds, PhaseLog
from simshuffle.job.sim.simulation import Loaders, Simulation
from simshuffle.report.timeline import hidden_rows, phase_rows
from simshuffle.spec.arrays import Floats, Ints32


class Epoch:
    """An epoch of training by all ranks.

    Attributes:
        measuring: the inference pass; None if importance is not measured.
        exchange: the exchange of samples; None if there is none.
        loaders: the loaders of the training.
        plan: the plan of the epoch.
        iterations_done: iterations that the epoch has; fewer than its plan has if the
            job was killed or broken off. Of a killed job it counts the iteration in
            whose save it ended.
        killed: the end of the job by its watchdog; None if there is none.

    Args:
        simulation: what all epochs of the run share.
        plan: the plan of the epoch.
        loaders: the loaders of its training.
        progress: called after each iteration of rank 0 with the number of iterations
            that rank 0 has done.
        thinning: how the plan's scenario is thinned.
    """

    def __init__(
        self,
        simulation: Simulation,
        plan: EpochPlan,
        loaders: Loaders,
        *,
        progress: Callable[[int], None],
        thinning: Thinning,
    ) -> None:
        scenario = simulation.scenario
        resources = simulation.resources
        workload = scenario.workload
        world_size = scenario.world_size
        self._first_rank = resources.first_rank
        self._clock = simulation.clock
        self._env = simulation.clock.env
        self._network = simulation.clock.network
        self.plan = plan
        self._progress = progress
        self._world_size = world_size
        self._gradient_size = workload.model.gradient_size if world_size > 1 else 0.0
        self.loaders = loaders
        self.measuring = plan_inference_pass(simulation, plan, thinning)
        self._gather_seconds = gather_seconds(
            workload.exchange.gathered(workload.dataset.num_samples / world_size),
            resources,
        )
        self.exchange = plan_exchange(simulation, plan, thinning)
        jitter = simulation.compute_jitter("compute_jitter", plan.epoch, plan.training)
        self._gradients = simulation.gradient_sum(plan.training.samples, jitter)
        self.iterations_done = plan.iterations
        self._log = PhaseLog(MEASURING, world_size)
        self._checkpoints = simulation.checkpoints
        self._iterations = PhaseLog(self._gradients.parts, world_size)
        self.killed: Killed | None = None
        self._final = PhaseLog(FINAL, world_size)
        # of every exchange: when the rank was free again, when it began to wait for the messages,
        # and when they were there
        self._free_at, self._awaited_from, self._delivered_at = np.zeros(
            (3, plan.iterations, world_size)
        )
        # laid out and not noted, in order; the last one of all is what follows the iterations
        self._open: list[Iteration] = []
        self._logged: Iteration | None = None  # the last one, whose groups are open
        self._began_at = 0.0  # s
        self._finished: simpy.Event  # all ranks have come to the end

    def run(self) -> Steps:
        """Run the epoch as a process, which ends when the last rank does.

        A watchdog that kills the job ends it too: ``killed`` is then set, and the
        interrupted iteration of each rank is logged. The reads of ``loaders`` are freed
        at the end, not their sums.
        """
        training = self._env.process(self._train())
        checkpoints = self._checkpoints
        yield training if checkpoints is None else training | checkpoints.kill
        if checkpoints is not None and checkpoints.killed is not None:
            self.killed = checkpoints.killed
            self.iterations_done = self.killed.iteration - checkpoints.first
            unlogged = self.iterations_done - len(self._iterations)
            for iteration in self._open[:unlogged]:
                is_last = iteration.number == self.iterations_done - 1
                self._note(iteration, self._env.now if is_last else None)
        self.loaders.chains.end()  # the tables need their room

    def rows(self) -> list[dict[str, Any]]:
        """Return the phase rows of the epoch that is over; they can be taken once.

        Each item is the columns of some rows, as `phase_rows` returns them: importance,
        iterations, what follows them (unless the job was killed), hidden exchanges (if
        samples are exchanged), and hidden allreduces.
        """
        plan = self.plan
        epoch = plan.epoch
        iterations = self.iterations_done
        measured = 0.0 if plan.inference is None else plan.inference.nbytes.sum(axis=0)
        nbytes: dict[str, Any] = {
            "read": plan.training.nbytes[:iterations],
            "reduced": self._gradient_size,
        }
        if self.exchange is not None:
            nbytes["sent"] = self.exchange.costs.sent[:iterations]
        if self._checkpoints is not None:
            nbytes["saved"] = np.tile(self._checkpoints.nbytes, (iterations, 1))
            if self.killed is not None:  # that one is not there
                nbytes["saved"][-1] = 0.0
        rows = [
            self._log.rows(epoch, {"measured": measured}, final=True),
            self._iterations.rows(epoch, nbytes),
        ]
        if self.killed is None:
            rows.append(self._final.rows(epoch, {}, final=True))
        if self.exchange is not None:
            waited_until = np.minimum(self._delivered_at, self._awaited_from)
            hidden = np.stack([self._free_at, waited_until], axis=-1)[:iterations]
            rows.append(phase_rows(epoch, ["exchange_hidden"], hidden, np.zeros(1)))
        rows += hidden_rows(epoch, self._gradients.hidden, self._world_size)
        return rows

    def break_off(self) -> None:
        """Break the epoch off: keep only the rows of iterations that all ranks have
        done, and set ``iterations_done`` to their number.

        Phases after the last iteration are dropped, too; and importance, unless all
        ranks have it.
        """
        for iteration in self._open:
            if iteration.number == self.plan.iterations:
                break
            if not self._network.are_complete(iteration.ended).all():
                if self._network.are_complete(iteration.released).all():
                    self._gradients.note(iteration)  # what was hidden in it
                break
            self._note(iteration)
        self.iterations_done = len(self._iterations)
        if not self.iterations_done and self._open:
            self._log_importance(self._open[0])

    @property
    def saved(self) -> int:
        """Iterations of the plan that the last written checkpoint holds.

        -1 if there is none, or it is from before the plan.
        """
        checkpoints = self._checkpoints
        if checkpoints is None:
            return -1
        return max(
            checkpoints.saved_iterations(self.plan.epoch) - checkpoints.first, -1
        )

    @property
    def measured_spread(self) -> float:
        """Standard deviation of the end of a thinned inference pass (s).

        0 if there is no inference pass, none of its batches are left out, or it has not
        ended.
        """
        return 0.0 if self.measuring is None else self.measuring.omitted_batches.spread

    # ----------------------------------------------------------------------------- what ranks do

    def _train(self) -> Steps:
        """Bring all ranks through the epoch, from measuring importance to the last
        barrier.
        """
        begun = self._network.open_groups(1, self._world_size)
        self._began_at = self._env.now
        self._work_before = self._work()
        self.loaders.begin(begun)
        self._lay_out(0, begun)
        yield from self._measure_importance(begun)
        for _ in range(self.plan.iterations):
            yield from self._gradients.run(self._open[-1], self._lay_out_next)
        yield self._finished
        *iterations, final = self._open
        remove = 0.0 if self.exchange is None else self.exchange.remove
        final.times.removed = self._network.ends(final.ended) + remove
        last = float(final.times.removed.max())
        if last > self._env.now:
            yield self._env.timeout(last - self._env.now)
        for iteration in iterations:
            self._note(iteration)
        self._note_final(final)

    def _measure_importance(self, begun: Ints32) -> Steps:
        """Run the inference pass if importance is measured, and gather what pairing
        needs; count ``begun`` down when a rank is through.
        """
        clock = self._clock
        measured = begun
        if self._gather_seconds is not None:
            measured = self._network.open_groups(1, self._world_size)
            gathering = clock.gather(measured)
        if self.measuring is None:
            clock.count_down(measured)
        else:
            self.measuring.run(clock, measured)
        if self._gather_seconds is not None:
            yield gathering
            yield self._env.timeout(self._gather_seconds)
            clock.release(begun, measured)
            self._network.close_groups(measured)

    def _lay_out(self, number: int, begun: Ints32) -> None:
        """Lay out an iteration (from 0), or what follows the last one, for ranks that
        begin it when groups ``begun`` are complete.
        """
        if number == self.plan.iterations:
            self._lay_out_final(begun)
            return
        iteration = Iteration(self._clock, number, begun, self.loaders.taken[number])
        self._network.set_parents(begun, iteration.taken)
        iteration.arrived = self._receive(iteration, iteration.computed)
        seconds = self._gradients.lay_out(iteration)
        self.loaders.take(number, iteration.computed, seconds)
        self._open.append(iteration)

    def _receive(self, iteration: Iteration, ready: Ints32) -> Ints32:
        """Have ranks that are ``ready`` synchronise the exchange before an iteration,
        if it is still under way; return the groups that are complete then.
        """
        exchange = self.exchange
        previous = iteration.number - 1
        if exchange is None or not (
            exchange.schedule.overlap and exchange.sends(previous)
        ):
            return ready
        iteration.receipt = exchange.receive(previous, iteration, ready)
        return iteration.receipt.stored

    def _lay_out_next(self) -> None:
        """Lay out what ranks do when they are released, and the next iteration."""
        iteration = self._open[-1]
        number = iteration.number
        exchange = self.exchange
        iteration.ended = iteration.released
        if exchange is not None and exchange.sends(number):
            iteration.ended = iteration.worked = exchange.send(iteration)
            if not exchange.schedule.overlap:
                receipt = exchange.receive(number, iteration, iteration.worked)
                iteration.own_receipt = receipt
                iteration.ended = receipt.stored
        checkpoints = self._checkpoints
        if checkpoints is not None and checkpoints.may_be_due(self.plan.epoch, number):
            self._lay_out_save(checkpoints, iteration)
        ended_by_first = iteration.ended[:1]
        self._clock.watch(ended_by_first, lambda _: self._progress(number + 1))
        if len(self._open) > 1:
            self._note(self._open.pop(0))
        self._lay_out(number + 1, iteration.ended)

    def _lay_out_save(self, checkpoints: Checkpoints, iteration: Iteration) -> None:
        """Have each rank end an iteration only when its save lets it go on, if one is
        due.
        """
        clock = self._clock
        saved = iteration.open()

        def save(rank: int) -> Steps:
            yield from checkpoints.save(rank)
            clock.count_down(saved[rank : rank + 1])

        def begin(rank: int) -> None:
            if checkpoints.due(self.plan.epoch, iteration.number):
                self._env.process(save(rank))
            else:
                clock.count_down(saved[rank : rank + 1])

        clock.watch(iteration.ended, begin)
        iteration.ended = saved

    def _lay_out_final(self, begun: Ints32) -> None:
        """Lay out the end of ranks after the last iteration: take the messages; they
        then remove the sent samples, and meet.
        """
        final = Iteration(self._clock, self.plan.iterations, begun, begun)
        final.ended = self._receive(final, begun)
        self._finished = self._clock.gather(final.ended)
        self._open.append(final)

    # ------------------------------------------------------------------------------ when it ended

    def _work(self) -> Floats:
        """Return (M,) s of host work that every rank has done so far."""
        accounts = self._network.accounts[self._first_rank :]
        return accounts[: self._world_size].copy()

    def _note(self, iteration: Iteration, interrupted_at: float | None = None) -> None:
        """Log an iteration that all ranks have ended, or in which the job ended (s)."""
        ends = self._network.ends
        times = iteration.times
        times.begin = ends(iteration.begun)
        self._log_importance(iteration)
        times.loaded = ends(iteration.taken)
        read_at = self._network.marks(iteration.taken)
        times.read = np.clip(read_at, times.begin, times.loaded)
        self._gradients.note(iteration)
        times.stored = times.stored_by_all = ends(iteration.computed)
        if iteration.receipt is not None:
            self._note_receipt(iteration.receipt, times)
        times.sent = times.free = released = ends(iteration.released)
        if iteration.worked is not None:
            times.free = self._free_at[iteration.number] = ends(iteration.worked)
            work = self._work()
            times.sent = np.minimum(released + (work - self._work_before), times.free)
            self._work_before = work
        if iteration.own_receipt is not None:
            self._note_own_receipt(iteration, iteration.own_receipt)
        times.saved = ends(iteration.ended)
        self._iterations.add(times, interrupted_at)
        self.loaders.close()
        self._close_logged()
        self._logged = iteration

    def _note_receipt(self, receipt: Receipt, times: PhaseEnds) -> None:
        """Note in ``times`` when a receipt ended, and how long its messages took."""
        ends = self._network.ends
        times.stored_by_all = ends(receipt.stored)
        times.stored = np.minimum(ends(receipt.written), times.stored_by_all)
        self._awaited_from[receipt.sent_after] = ends(receipt.awaited)
        # a rank that neither sends nor receives has nothing in flight
        delivered_at = ends(receipt.delivered)
        self._delivered_at[receipt.sent_after] = np.where(
            receipt.delivered >= 0, delivered_at, self._free_at[receipt.sent_after]
        )

    def _note_own_receipt(self, iteration: Iteration, receipt: Receipt) -> None:
        """Note the receipt of samples where nothing overlaps.

        Sending and storing become one part up to ``times.sent``, and all waiting the
        part up to ``times.free``.
        """
        times = iteration.times
        storing = PhaseEnds(begin=times.free)
        self._note_receipt(receipt, storing)
        worked = times.sent - times.updated + storing.stored - storing.begin
        times.free = storing.stored_by_all
        times.sent = np.minimum(times.updated + worked, times.free)

    def _log_importance(self, iteration: Iteration) -> None:
        """Log the phase of importance, which may take no time, if ``iteration`` is the
        first after it and all ranks have begun that.
        """
        begun = iteration.begun
        if iteration.number == 0 and self._network.are_complete(begun).all():
            measured = self._network.ends(begun)
            self._log.add(PhaseEnds(begin=self._began_at, measured=measured))
            if self.measuring is not None:
                self.measuring.close()

    def _note_final(self, final: Iteration) -> None:
        """Log what followed the last iteration, now that all ranks are through."""
        times = final.times
        begun_at = self._network.ends(final.begun)
        times.begin = times.stored = times.stored_by_all = begun_at
        self._log_importance(final)
        if final.receipt is not None:
            self._note_receipt(final.receipt, times)
        times.finished = self._env.now
        self._final.add(times)
        self._close_logged()
        final.close()

    def _close_logged(self) -> None:
        """Give back the groups of the iteration noted last."""
        if self._logged is not None:
            self._logged.close()

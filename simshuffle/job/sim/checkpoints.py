"""Checkpoints on the clock: when one is due, what ranks wait for, and what goes on
beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simpy

from simshuffle.job.lowering.checkpoints import CheckpointTransfers
from simshuffle.job.plan.checkpoint_bounds import checkpoint_of
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import NetworkClock, Steps
from simshuffle.spec.arrays import Floats


@dataclass(frozen=True)
class Killed:
    """The end of a job by its watchdog."""

    epoch: int  # from 1
    iteration: int  # from 1, after which the checkpoint was that is not written
    at_s: float  # of simulated time
    waited_s: float  # that a rank had waited
    writing: int  # number of ranks that were still writing
    rank: int  # the first of them
    what: str  # what they did, in words


class Checkpoints:
    """The checkpoints of a run, over all epochs.

    A rank has one save under way at most: before it saves again, it waits for the rest
    of its last save. Ranks end a synchronous save together.

    Attributes:
        first: iterations of the epoch that were done before those that are counted
            here.
        killed: the end of the job by its watchdog; None if there is none.
        kill: event that is triggered when the watchdog ends the job.
    """

    def __init__(
        self, scenario: Scenario, resources: Resources, clock: NetworkClock
    ) -> None:
        self._scenario = scenario
        self._clock = clock
        self._env = clock.env
        self._record = checkpoint_of(scenario)
        self._transfers = CheckpointTransfers(scenario, resources)
        self._world_size = resources.world_size
        self._all_written = self._env.event()  # of the save under way
        self._waiting: set[int] = set()  # ranks that have written and wait for others
        # epoch and iteration that `due` was last asked about, and whether a save follows
        self._current_iteration = (0, -1)
        self._due = False
        self._resumed_at = (
            clock.env.now
        )  # when the last rank went on after the last save
        self.first = 0
        # of every rank the epoch, and iterations of it, in its last save
        self._written = [(0, 0)] * self._world_size
        # by rank the group of the transfers that are under way in the background, and
        # the epoch, and iterations of it, that they save
        self._under_way: dict[int, tuple[int, tuple[int, int]]] = {}
        self.killed: Killed | None = None
        self.kill = self._env.event()  # happens when a watchdog ends the job

    @property
    def nbytes(self) -> Floats:
        """Bytes that each rank writes in a save, (M,); 0 if it writes nothing."""
        written = self._transfers.written
        nbytes = np.zeros(self._world_size)
        nbytes[: written.ranks] = written.nbytes
        return nbytes

    def saved_iterations(self, epoch: int) -> int:
        """Return how many iterations of an epoch are in the last save that all ranks
        have written.

        -1 if that save is of another epoch, or there is none.
        """
        written = self._written.copy()
        for rank, (group, saved_state) in self._under_way.items():
            if self._clock.network.is_complete(group):
                written[rank] = saved_state
        saved_epoch, iterations = min(written)
        return iterations if saved_epoch == epoch else -1

    def may_be_due(self, epoch: int, iteration: int) -> bool:
        """Return whether a save may follow ``iteration``, from 0, as far as is known
        before any rank asks.
        """
        return self._record.period is not None or self._is_due(epoch, iteration)

    def due(self, epoch: int, iteration: int) -> bool:
        """Return whether a save follows ``iteration``, from 0; note it as the one that
        `save` saves.

        The first rank that asks decides it for all ranks. A save follows if the period
        has passed since the last rank went on after the last save, or if the number of
        the iteration over all epochs, from 1, is a multiple of the scenario's.
        """
        if self._current_iteration != (epoch, iteration):
            self._current_iteration = (epoch, iteration)
            self._due = self._is_due(epoch, iteration)
        return self._due

    def _is_due(self, epoch: int, iteration: int) -> bool:
        """Return whether a save follows ``iteration`` (from 0) by the period or the
        number.
        """
        if self._record.period is not None:
            return self._env.now - self._resumed_at >= self._record.period
        iterations = self._scenario.workload.iterations
        in_epochs = (iterations(self._world_size, number) for number in range(1, epoch))
        completed = sum(in_epochs) + self.first + iteration + 1
        return completed % (self._record.every or 1) == 0

    def save(self, rank: int) -> Steps:
        """Save what a rank holds after the iteration that `due` was last asked about.

        The process ends when the training loop of the rank may go on. Writing in the
        background goes on after that.
        """
        clock = self._clock
        epoch, iteration = self._current_iteration
        saved_state = epoch, self.first + iteration + 1
        if rank in self._under_way:
            group, previous_state = self._under_way[rank]
            yield from clock.wait_for(group)
            self._written[rank] = previous_state
            del self._under_way[rank]
        yield from clock.post_and_wait(self._transfers.blocking_transfers(rank))
        if self._record.mode == "synchronous":
            if not self._waiting:
                self._watch()
            self._waiting.add(rank)
            all_written = self._all_written
            if len(self._waiting) == self._world_size:
                self._waiting.clear()
                self._all_written = self._env.event()
                all_written.succeed()  # the watchdog has no effect any more
            yield all_written
        self._resumed_at = self._env.now
        if (batch := self._transfers.background_transfers(rank)) is None:
            self._written[rank] = saved_state
        else:
            self._under_way[rank] = clock.post_group(batch), saved_state

    def _watch(self) -> None:
        """Start the watchdog when the first rank begins to wait for the others.

        If this save is still under way when its time is over, the watchdog sets
        ``killed`` and triggers ``kill``.
        """
        all_written = self._all_written
        epoch, iteration = self._current_iteration

        def bark(_: simpy.Event) -> None:
            if all_written.triggered or self.killed is not None:
                return
            late = [
                rank for rank in range(self._world_size) if rank not in self._waiting
            ]
            self.killed = Killed(
                epoch,
                self.first + iteration + 1,
                at_s=self._env.now,
                waited_s=self._record.watchdog,
                writing=len(late),
                rank=late[0],
                what=f"saving a checkpoint ({self._record.describe()})",
            )
            self.kill.succeed()

        self._env.timeout(self._record.watchdog).callbacks.append(bark)

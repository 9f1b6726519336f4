"""Checkpoints on the clock: when one is due, what ranks wait for, and what goes on beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import simpy

from simshuffle.fabric.network.batch import NONE, TransferBatch
from simshuffle.job.lowering.checkpoints import CheckpointTransfers
from simshuffle.job.plan.checkpoint_bounds import checkpoint_of
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import Barrier, NetworkClock, Steps, let_go


@dataclass(frozen=True)
class Killed:
    """That a watchdog ended the job."""

    epoch: int  # from 1
    iteration: int  # from 1, after which the checkpoint was that is not written
    at_s: float  # of simulated time
    waited_s: float  # that a rank had waited
    writing: int  # ranks that were still at it
    rank: int  # the first of them
    what: str  # they did, in words

    def plain(self) -> dict[str, Any]:
        """Plain values, which JSON can hold."""
        return asdict(self)


class Checkpoints:
    """Those of a run, over all epochs. A rank has one save under way at most: it waits for what is
    left of its last one. Ranks end a synchronous save together. Iterations are counted from
    ``first``, those of the epoch that were done before."""

    def __init__(self, scenario: Scenario, resources: Resources, clock: NetworkClock) -> None:
        self._scenario, self._clock, self._env = scenario, clock, clock.env
        self._record = checkpoint_of(scenario)
        self._transfers = CheckpointTransfers(scenario, resources)
        self._world_size = resources.world_size
        self._behind = [NONE] * self._world_size  # of every rank the group under way beside it
        self._together = Barrier(self._env, self._world_size, self._all_written)
        self._waiting: set[int] = set()  # ranks that have written and wait for others
        self._save = 0  # the number of the save under way
        # the iteration that was asked for last, whether it is followed by a save, and the epoch
        self._asked, self._due = (0, -1), False
        self._resumed_at = clock.env.now  # when the last rank went on after the last save
        self.first = 0
        # of every rank the epoch, and iterations of it, in its last save, and in the one under way
        self._written = [(0, 0)] * self._world_size
        self._under_way = [(0, 0)] * self._world_size
        self.killed: Killed | None = None
        self.kill = self._env.event()  # happens when a watchdog ends the job

    @property
    def nbytes(self) -> list[float]:
        """(M,) what every rank writes in a save."""
        count = self._transfers.written.ranks
        return [self._transfers.written.nbytes * (rank < count) for rank in range(self._world_size)]

    def saved(self, epoch: int) -> int:
        """Iterations of an epoch that are in the last save that all ranks have written by now; -1
        if it is of another epoch, or there is none."""
        network, behind = self._clock.network, self._behind
        done = [group == NONE or network.is_complete(group) for group in behind]
        of, iterations = min(
            self._under_way[rank] if ended and behind[rank] != NONE else self._written[rank]
            for rank, ended in enumerate(done)
        )
        return iterations if of == epoch else -1

    def due(self, epoch: int, iteration: int) -> bool:
        """Whether a save follows ``iteration``, from 0: as the first rank that asks finds it."""
        if self._asked != (epoch, iteration):
            self._asked = (epoch, iteration)
            self._due = self._is_due(epoch, iteration)
        return self._due

    def _is_due(self, epoch: int, iteration: int) -> bool:
        if self._record.period is not None:
            return self._env.now - self._resumed_at >= self._record.period
        of, ranks = self._scenario.workload, self._world_size
        before = sum(of.iterations(ranks, each) for each in range(1, epoch)) + self.first
        return (before + iteration + 1) % (self._record.every or 1) == 0

    def save(self, rank: int) -> Steps:
        """What the training loop of a rank waits for."""
        clock, (epoch, iteration) = self._clock, self._asked
        of = epoch, self.first + iteration + 1
        if self._behind[rank] != NONE:
            yield from clock.ended(self._behind[rank])
            self._behind[rank], self._written[rank] = NONE, self._under_way[rank]
        if (batch := self._transfers.blocking_transfers(rank)) is not None:
            yield from clock.ended(self._post(batch))
        if self._record.mode == "synchronous":
            if not self._waiting:
                self._watch()
            self._waiting.add(rank)
            yield self._together.arrive()
        self._resumed_at = self._env.now
        if (batch := self._transfers.background_transfers(rank)) is None:
            self._written[rank] = of
        else:
            self._behind[rank], self._under_way[rank] = self._post(batch), of

    def _post(self, batch: TransferBatch) -> int:
        batch.tasks["group"] = group = self._clock.open(len(batch))
        self._clock.post(batch)
        return group

    def _all_written(self, event: simpy.Event) -> None:
        self._waiting.clear()
        self._save += 1
        let_go(event)

    def _watch(self) -> None:
        """The first rank begins to wait for the others."""
        this, (epoch, iteration) = self._save, self._asked
        of = self.first + iteration + 1

        def bark(_: simpy.Event) -> None:
            if self._save != this or self.killed is not None:
                return
            late = [rank for rank in range(self._world_size) if rank not in self._waiting]
            what = f"saving a checkpoint ({self._record.describe()})"
            waited = self._record.watchdog
            now, count = self._env.now, len(late)
            found = Killed(epoch, of, now, waited, count, late[0], what)
            self.killed = found
            self.kill.succeed()

        self._env.timeout(self._record.watchdog).callbacks.append(bark)

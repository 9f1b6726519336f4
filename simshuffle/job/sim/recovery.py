"""A run that loses hosts: it is broken off, goes back to its last checkpoint, and goes on with a
spare host or with fewer ranks.

Every stretch between two losses is simulated on a machine of its own, whose time goes on where the
last one stood. What was done after the last checkpoint is booked as `lost`, the time until training
goes on as `restart`. Page caches of hosts that stay are kept; that of a new host is cold, and so
are all from the epoch on that follows an elastic restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.job.plan.checkpoint_bounds import restore_seconds
from simshuffle.job.plan.effort import Thinning
from simshuffle.job.plan.epochs import Began, EpochPlan, plan_epochs, sample_nbytes
from simshuffle.job.plan.recovery import (
    ResumedLoader,
    check_losses,
    clear_caches,
    divide_among,
    drop_iterations,
    owners_after_loss,
    readers_of,
    spare_hosts,
)
from simshuffle.job.scenario.recovery import Recovery
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.losses import EpochParts, Loss
from simshuffle.job.sim.machine import NOTHING, SimulatedEpoch, SimulatedMachine, Staged, reporter
from simshuffle.report.timeline import Timeline
from simshuffle.spec.arrays import Flags
from simshuffle.workload.exchange import ExchangePlan, empty_plan
from simshuffle.workload.exchange.dealing import deal_samples
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.law import Refusal, ResumptionLaw

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Stretch:
    """Iterations of an epoch, from number ``first`` (from 0) on, that are to be done."""

    plan: EpochPlan  # of these iterations alone
    first: int = 0

    def since(self, done: int) -> Stretch:
        """What is left when so many of them are done."""
        return Stretch(drop_iterations(self.plan, done), self.first + done)


def with_losses(
    scenario: Scenario,
    run: str,
    progress: Progress | None,
    struck: list[dict[str, Any]] | None = None,
) -> Iterator[Timeline]:
    """As `simshuffle.job.sim.simulate.simulate_epochs`, for a scenario that loses hosts. Its
    timelines say what was lost, and what share of the data set each epoch has seen, and seen twice.

    Raises:
        ScenarioError: a lost host never returns, and no spare is left for it.
    """
    job = RecoveringJob(scenario, progress, struck)
    for number in range(1, scenario.epochs + 1):
        parts = EpochParts(run, number, job.scenario.world_size, scenario)
        job.epoch(parts)
        yield parts.timeline()
        if job.stopped:
            return


class RecoveringJob:
    """A job from epoch to epoch: who takes part, what it has saved, and what is still to do.
    ``scenario`` is that of those who take part now."""

    def __init__(
        self,
        scenario: Scenario,
        progress: Progress | None,
        struck: list[dict[str, Any]] | None = None,
    ) -> None:
        self.scenario, self.stopped, self._struck = scenario, False, struck
        self._progress, self._epochs = progress, scenario.epochs
        self._recovery = scenario.recovery or Recovery()
        self._nbytes = sample_nbytes(scenario)
        self._plans = plan_epochs(scenario, self._nbytes)
        strategy, rng = scenario.workload.exchange, scenario.rng("partition")
        # whose each sample is as the epoch begins, and what the epoch exchanges
        self._owner = strategy.first_owner(len(self._nbytes), scenario.world_size, rng)
        self._exchange: ExchangePlan
        self._machine = SimulatedMachine(scenario, struck=struck)
        self._hosts = list(self._machine.hosts)
        self._spares = spare_hosts(scenario, self._hosts)
        self._losses = sorted(scenario.lost_hosts, key=lambda loss: loss.at or 0.0)
        check_losses(scenario, self._hosts, len(self._spares))
        # from the last checkpoint on, or else from the beginning
        self._undone: list[Stretch] = []
        self._saved = False
        # the first partition, which says where samples lie, and the state that a loader went on
        # with last: who read then, and its epoch and iterations
        self._first = self._owner, scenario.world_size
        self._state: tuple[Readers, int, int] | None = None

    def epoch(self, parts: EpochParts) -> None:
        """Do the next epoch, and after every loss what it has undone."""
        plan = next(self._plans)
        self._exchange = plan.exchange
        self._undone.append(Stretch(plan))
        ahead = self._undone[-1:]
        while ahead and not self.stopped:
            stretch, *ahead = ahead
            simulated = self._simulate(stretch)
            parts.add(stretch.plan, stretch.first, simulated)
            if simulated.saved >= 0:
                self._saved = True
                place = self._undone.index(stretch)
                self._undone[: place + 1] = [stretch.since(simulated.saved)]
            if simulated.killed is not None:
                self.stopped = True
            elif not simulated.over:
                self._lose(parts)
                ahead = list(self._undone)
        if not self.stopped:
            self._owner = self._exchange.apply(self._owner)

    def _simulate(self, stretch: Stretch) -> SimulatedEpoch:
        while self._losses and self._losses[0].what not in self._hosts:
            self._losses.pop(0)  # it does not belong to the job, or was lost before
        until = (self._losses[0].at or 0.0) if self._losses else math.inf
        machine, plan = self._machine, stretch.plan
        before = (plan.epoch - 1) * (stretch.first + plan.iterations) + stretch.first
        total = self._epochs * (stretch.first + plan.iterations)
        report = reporter(self._progress, before, total)
        whole = Thinning(self.scenario)
        of = plan, machine.loaders(plan), whole, self._nbytes, report
        return machine.epoch(*of, until, stretch.first)

    # ------------------------------------------------------------------------ when a host is lost

    def _lose(self, parts: EpochParts) -> None:
        """Lose the next host, and let those go on that the policy says."""
        loss, recovery, old = self._losses.pop(0), self._recovery, self.scenario
        at, place = loss.at or 0.0, self._hosts.index(loss.what)
        gone: Flags = old.cluster.host_of(old.world_size) == place
        told = Loss(loss.what, parts.epoch, at, recovery.policy)
        if recovery.policy == "stop":
            self.stopped = True
            parts.lose(told, gone, at)
            return
        wait, resume = 0.0, recovery.resume
        if resume is not None:
            told = replace(told, loader=resume.short_name)
        elastic = recovery.policy == "elastic"
        if elastic:
            del self._hosts[place]
        elif self._spares:
            self._hosts[place] = self._spares.pop(0)
        else:
            wait = loss.lasts or 0.0
        if resume is not None:
            read, refused = NOTHING, self._resumed(parts, resume, int((~(gone & elastic)).sum()))
            if refused:
                self.stopped = True
                parts.lose(replace(told, refused=refused), gone, at)
                return
        else:
            read = self._shrink(parts, gone) if elastic else self._replaced(gone)
        restore = restore_seconds(self.scenario) if self._saved else 0.0
        spent = recovery.detect + recovery.restart + restore + read.seconds
        told = replace(
            told,
            ranks=self.scenario.world_size,
            detect_s=recovery.detect,
            restart_s=recovery.restart,
            restore_s=restore,
            reread_s=read.seconds,
            reread_nbytes=read.nbytes,
            waited_s=max(wait - spent, 0.0),
        )
        resumed = at + spent + told.waited_s
        parts.lose(told, gone & elastic, resumed)
        self._machine = SimulatedMachine(self.scenario, None, self._struck, resumed)

    @property
    def _saved_at(self) -> tuple[int, int]:
        """The epoch of the last state and the iterations of it that were done; the next epoch and 0
        if all of them were."""
        for stretch in self._undone:
            if stretch.plan.iterations:
                return stretch.plan.epoch, stretch.first
        return self._undone[-1].plan.epoch + 1, 0

    def _state_readers(self) -> Readers:
        """Who read when the last state was saved. Raises an InputError if the epoch of the state
        has already gone on from another one."""
        epoch, step = self._saved_at
        if self._state is None or self._state[1] != epoch:
            return readers_of(self.scenario, self._owner)
        if self._state[2] != step:
            rule = "knows of one state in an epoch; a loader went on from two in this one"
            found = f"epoch {epoch}, after iterations {self._state[2]} and {step}"
            remedy = "Let hosts be lost in different epochs, or leave it out."
            refuse("recovery.resume", rule, found, remedy, self.scenario.name)
        return self._state[0]

    def _resumed(self, parts: EpochParts, law: ResumptionLaw, ranks: int) -> str:
        """Let a loader go on by its ``law``, on so many ranks, with the last state. Returns its
        error if it does not."""
        readers, (epoch, step) = self._state_readers(), self._saved_at
        self.scenario = self._placed({"world_size": ranks})
        self._owner = np.minimum(self._first[0], ranks - 1).astype(self._owner.dtype)
        loader = ResumedLoader(law, self.scenario, readers, *self._first, self._nbytes, epoch, step)
        rest = loader.rest()
        if isinstance(rest, Refusal):
            return rest.message
        self._state = readers, epoch, step
        left = [rest] if rest.iterations else []
        self._plans = chain(left, loader.later(epoch + 1))
        again = islice(self._plans, parts.epoch - epoch + len(left))
        self._undone = [Stretch(plan, step * (plan.epoch == epoch)) for plan in again]
        self._exchange = empty_plan(ranks)
        return ""

    def _placed(self, update: dict[str, Any]) -> Scenario:
        """The scenario on the hosts that there are now, with other values."""
        cluster = self.scenario.cluster.model_copy(update={"placement": list(self._hosts)})
        return self.scenario.model_copy(update={"cluster": cluster, **update})

    def _replaced(self, gone: Flags) -> Staged:
        """Let the ranks that are ``gone``, (M,), go on on the hosts that there are now; returns
        what is read again there."""
        self._undone = [replace(of, plan=clear_caches(of.plan, gone)) for of in self._undone]
        self.scenario = self._placed({})
        shards = np.bincount(self._owner, self._nbytes, len(gone)).astype(float)
        return SimulatedMachine(self.scenario).read_again(shards, gone & self._recovery.reread)

    def _shrink(self, parts: EpochParts, gone: Flags) -> Staged:
        """Go on without the ranks that are ``gone``, (M,), on the hosts that there are now; returns
        what the others read in their place."""
        workload = self.scenario.workload
        own = workload.source in {"ssd", "memory"} and not workload.exchange.redraws
        of_epoch = self._exchange, self._owner, parts.reached  # files that were sent are there
        owner, missing = owners_after_loss(*of_epoch, gone & own)
        taken = self._recovery.reread or not own
        read = self._nbytes * missing
        if not taken:
            self._nbytes, owner, read = self._nbytes[~missing], owner[~missing], 0.0 * read
        left = int((~gone).sum())
        held = np.where(gone[owner], -1, (np.cumsum(~gone) - 1)[owner]).astype(np.int32)
        # each keeps what it has, as far as all are even: as the scheduler for real ranks deals
        rng = self.scenario.rng("recovery", parts.epoch, left)
        self._owner = deal_samples(held, np.zeros(len(held), np.bool_), left, rng)
        size = workload.local_batch_size
        self._undone = [
            replace(of, plan=divide_among(of.plan, ~gone, size, dealt=taken)) for of in self._undone
        ]
        self._exchange = empty_plan(left)
        dataset = workload.dataset.model_copy(update={"num_samples": len(self._nbytes)})
        smaller = workload.model_copy(update={"dataset": dataset})
        self.scenario = self._placed({"world_size": left, "workload": smaller})
        began = Began(parts.epoch + 1, self._owner)
        self._plans = plan_epochs(self.scenario, self._nbytes, began)
        evenly = np.full(left, float(read.sum()) / left)
        everyone = np.full(left, own and taken)
        return SimulatedMachine(self.scenario).read_again(evenly, everyone)

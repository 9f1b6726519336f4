"""A run that loses hosts: it is broken off, goes back to its last checkpoint, and goes
on with a spare host or with fewer ranks.

Every stretch between two losses is simulated on a machine of its own, whose time goes
on where the last one stood. What was done after the last checkpoint is booked as
`lost`, the time until training goes on as `restart`. Page caches of hosts that stay are
kept; that of a new host is cold, and so are all from the epoch on that follows an
elastic restart.

After a loss is noticed, the job waits for its hosts. It then starts its processes, and
reads the checkpoint and the samples of new hosts. A loss meanwhile begins all of this
anew; a loss before the start only changes for which hosts the job waits. A month with
failures follows the same law (docs/failures.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.job.plan.checkpoint_bounds import restore_seconds
from simshuffle.job.plan.epochs import (
    EpochPlan,
    TrainingState,
    first_owner,
    plan_epochs,
    sample_nbytes,
)
from simshuffle.job.plan.lost_hosts import HostLoss, HostPool, check_losses
from simshuffle.job.plan.recovery import (
    ResumedLoader,
    clear_caches,
    divide_among,
    drop_iterations,
    readers_of,
)
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.scenario.recovery import Recovery
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.losses import EpochParts, Loss
from simshuffle.job.sim.machine import (
    NOTHING,
    Progress,
    SimulatedEpoch,
    SimulatedMachine,
    Staged,
    reporter,
)
from simshuffle.report.timeline import Timeline
from simshuffle.spec.arrays import Flags, Ints
from simshuffle.workload.exchange import ExchangePlan, empty_plan
from simshuffle.workload.exchange.dealing import deal_samples
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.law import Refusal, ResumptionLaw


@dataclass(frozen=True)
class Stretch:
    """Iterations of an epoch, from number ``first`` (from 0) on, that are to be done."""

    plan: EpochPlan  # of these iterations alone; without any where all are saved
    first: int = 0

    def drop_first(self, iterations: int) -> Stretch:
        """Return the rest of the stretch when its first ``iterations`` iterations are
        done.
        """
        return Stretch(drop_iterations(self.plan, iterations), self.first + iterations)


def simulate_with_losses(
    scenario: Scenario,
    run: str,
    progress: Progress | None,
    struck: list[dict[str, Any]] | None,
) -> Iterator[Timeline]:
    """Simulate the epochs of a scenario that loses hosts, as `simulate_epochs` does.

    Yields the timeline of each epoch. Its facts have the losses, and the share of the
    data set that the epoch has seen, and seen twice. It ends early when a job stops or
    is killed.

    Args:
        scenario: resolved, with hosts that it loses.
        run: name of the run in the tables.
        progress: called with the share of iterations done, which falls when iterations
            are done again.
        struck: to which a row is added for every other fault that has begun.

    Raises:
        InputError: as `check_losses`; or ``recovery.resume`` and an epoch that is
            resumed twice from different states.
        ScenarioError: as `RunFaults`.
    """
    job = RecoveringJob(scenario, progress, struck)
    for epoch in range(1, scenario.epochs + 1):
        parts = EpochParts(run, epoch, job.scenario.world_size, scenario)
        job.epoch(parts)
        yield parts.timeline()
        if job.stopped:
            return


class RecoveringJob:
    """A job from epoch to epoch: its hosts, what it has saved, and the stretches still
    to do. Arguments and errors as of `simulate_with_losses`.

    Attributes:
        scenario: that of the hosts, ranks and samples that take part now.
        stopped: whether the job has ended before its last epoch.
    """

    def __init__(
        self,
        scenario: Scenario,
        progress: Progress | None,
        struck: list[dict[str, Any]] | None,
    ) -> None:
        self.scenario = scenario
        self.stopped = False
        self._struck = struck
        self._progress = progress
        self._recovery = scenario.recovery or Recovery()
        self._nbytes = sample_nbytes(scenario)
        self._plans = plan_epochs(scenario, self._nbytes)
        # whose each sample is as the epoch begins, and what the epoch exchanges
        self._owner = first_owner(scenario, len(self._nbytes))
        self._exchange: ExchangePlan
        self._machine = SimulatedMachine(scenario, struck=struck)
        check_losses(scenario, self._machine.hosts)
        self._pool = HostPool(scenario, self._machine.hosts)
        # from the last checkpoint on, or else from the beginning
        self._undone: list[Stretch] = []
        self._saved = False
        # the first partition, which says where samples lie, and the state that a loader went on
        # with last: who read then, and its epoch and iterations
        self._first = self._owner, scenario.world_size
        self._state: tuple[Readers, int, int] | None = None

    def epoch(self, parts: EpochParts) -> None:
        """Simulate the next epoch into ``parts``, and after every loss the stretches
        that it has undone, stretches of earlier epochs included.

        Sets ``stopped`` when the job stops or is killed.
        """
        plan = next(self._plans)
        self._exchange = plan.exchange
        self._undone.append(Stretch(plan))
        stretches = self._undone[-1:]
        while stretches and not self.stopped:
            stretch, *stretches = stretches
            simulated = self._simulate(stretch)
            parts.add(stretch.plan, stretch.first, simulated)
            if simulated.saved >= 0:
                self._saved = True
                index = self._undone.index(stretch)
                self._undone[: index + 1] = [stretch.drop_first(simulated.saved)]
            if simulated.killed is not None:
                self.stopped = True
            elif not simulated.over:
                self._lose(parts)
                stretches = list(self._undone)
        if not self.stopped:
            self._owner = self._exchange.apply(self._owner)

    def _simulate(self, stretch: Stretch) -> SimulatedEpoch:
        """Simulate a stretch until the next loss of one of the job's hosts, or to its
        end.
        """
        plan = stretch.plan
        iterations = stretch.first + plan.iterations
        iterations_before = (plan.epoch - 1) * iterations + stretch.first
        return self._machine.epoch(
            plan,
            self._machine.loaders(plan),
            Thinning(self.scenario),
            reporter(
                self._progress, iterations_before, self.scenario.epochs * iterations
            ),
            until=self._pool.next_loss_s,
            first=stretch.first,
        )

    # ------------------------------------------------------------------------ when a host is lost

    def _lose(self, parts: EpochParts) -> None:
        """Lose the next host, and let the ranks go on that the policy says.

        Books the loss in ``parts``, and all losses until training goes on. Sets what is
        to be done again, and begins a new machine at the time when training goes on; or
        stops the job.
        """
        pool = self._pool
        policy = self._recovery.policy
        # (M,) places of the hosts of the ranks that trained
        places = self.scenario.cluster.host_of(self.scenario.world_size)
        # a loss during the restart sets back all that the restart sets
        before_restart = dict(vars(self))
        records: list[Loss] = []
        resumed = 0.0
        host_loss = pool.next_loss(math.inf)
        while host_loss is not None:
            num_losses = len(pool.losses)
            vars(self).update(before_restart)
            record = self._attempt_restart(parts, host_loss, places)
            if self.stopped:
                records.append(record)
                parts.lose(records, _are_gone(places, pool), record.at_s)
                return
            joint_losses = pool.losses[num_losses:]
            resumed = record.at_s + record.absent_s
            host_loss = pool.next_loss(resumed)
            if host_loss is not None:
                record = record.cut_off(host_loss.at_s - record.at_s)
            records.append(record)
            records += [
                Loss(joint.host, parts.epoch, joint.at_s, policy, loader=record.loader)
                for joint in joint_losses
            ]
        ranks = self.scenario.world_size
        records = [replace(record, ranks=ranks) for record in records]
        are_gone = _are_gone(places, pool) & (policy == "elastic")
        parts.lose(records, are_gone, resumed)
        pool.settle()
        self._machine = SimulatedMachine(
            self.scenario, struck=self._struck, begin=resumed
        )

    def _attempt_restart(
        self, parts: EpochParts, host_loss: HostLoss, places: Ints
    ) -> Loss:
        """Restart the job after a loss; return what it costs if no other host is lost.

        Losses before the restart are taken from the pool. Sets ``stopped`` if policy or
        loader end the job. ``places`` are those of the hosts of its ranks, (M,).
        """
        recovery = self._recovery
        loss = Loss(host_loss.host, parts.epoch, host_loss.at_s, recovery.policy)
        if recovery.policy == "stop":
            self.stopped = True
            return loss
        if recovery.resume is not None:
            loss = replace(loss, loader=recovery.resume.short_name)
        noticed = loss.at_s + recovery.detect
        while self._pool.next_loss(noticed) is not None:
            pass  # it is noticed with the first
        waited = self._pool.gather(noticed) - noticed
        read = self._prepare_restart(parts, _are_gone(places, self._pool))
        if isinstance(read, Refusal):
            self.stopped = True
            return replace(loss, refused=read.message)
        return replace(
            loss,
            detect_s=recovery.detect,
            waited_s=waited,
            restart_s=recovery.restart,
            restore_s=restore_seconds(self.scenario) if self._saved else 0.0,
            reread_s=read.seconds,
            reread_nbytes=read.nbytes,
        )

    def _prepare_restart(self, parts: EpochParts, is_gone: Flags) -> Staged | Refusal:
        """Prepare the job to go on without some hosts, as policy and loader say.

        ``is_gone`` is (M,) whether the host of each rank is lost. Returns what new
        hosts, or the ranks that go on, read again; or the refusal of the loader.
        """
        elastic = self._recovery.policy == "elastic"
        law = self._recovery.resume
        if law is not None:
            ranks = int((~(is_gone & elastic)).sum())
            return self._resume_loader(parts, law, ranks) or NOTHING
        return self._shrink(parts, is_gone) if elastic else self._replace_hosts(is_gone)

    @property
    def _saved_at(self) -> tuple[int, int]:
        """Return the epoch of the last saved state and the number of its completed
        iterations.

        If all of them were completed, return the next epoch and 0.
        """
        for stretch in self._undone:
            if stretch.plan.iterations:
                return stretch.plan.epoch, stretch.first
        return self._undone[-1].plan.epoch + 1, 0

    def _state_readers(self) -> Readers:
        """Return the ranks that read when the last state was saved.

        Raises:
            InputError: the epoch of the state has already gone on from another state.
        """
        epoch, step = self._saved_at
        if self._state is None or self._state[1] != epoch:
            return readers_of(self.scenario, self._owner)
        if self._state[2] != step:
            rule = "follows one resumption in an epoch; the loader was resumed twice in this one"
            states = f"epoch {epoch}, after iterations {self._state[2]} and {step}"
            remedy = "Let hosts be lost in different epochs, or leave it out."
            refuse("recovery.resume", rule, states, remedy, self.scenario.name)
        return self._state[0]

    def _resume_loader(
        self, parts: EpochParts, law: ResumptionLaw, ranks: int
    ) -> Refusal | None:
        """Resume a loader by its ``law`` from the last state, on ``ranks`` ranks.

        Sets scenario, owners, plans and stretches. Returns the error that ends the job,
        or None.
        """
        readers = self._state_readers()
        epoch, step = self._saved_at
        self.scenario = self._place_on_hosts({"world_size": ranks})
        owner, num_owners = self._first
        self._owner = np.minimum(owner, ranks - 1).astype(self._owner.dtype)
        loader = ResumedLoader(
            law,
            self.scenario,
            readers,
            owner=owner,
            ranks=num_owners,
            nbytes=self._nbytes,
            epoch=epoch,
            step=step,
        )
        remaining_plan = loader.remaining_plan()
        if isinstance(remaining_plan, Refusal):
            return remaining_plan
        self._state = readers, epoch, step
        remaining_plans = [remaining_plan] if remaining_plan.iterations else []
        self._plans = chain(remaining_plans, loader.later_plans(epoch + 1))
        repeated_plans = islice(self._plans, parts.epoch - epoch + len(remaining_plans))
        self._undone = [
            Stretch(plan, step * (plan.epoch == epoch)) for plan in repeated_plans
        ]
        self._exchange = empty_plan(ranks)
        return None

    def _place_on_hosts(self, update: dict[str, Any]) -> Scenario:
        """Return the scenario on the present hosts, with the values of ``update``."""
        cluster = self.scenario.cluster.model_copy(
            update={"placement": self._pool.present_hosts}
        )
        return self.scenario.model_copy(update={"cluster": cluster, **update})

    def _replace_hosts(self, is_gone: Flags) -> Staged:
        """Move the ranks of which ``is_gone``, (M,), is true to the present hosts.

        Sets scenario and stretches: page caches of these ranks are cold. Returns what
        is staged again there; `NOTHING` without ``recovery.reread``.
        """
        self._undone = [
            replace(stretch, plan=clear_caches(stretch.plan, is_gone))
            for stretch in self._undone
        ]
        self.scenario = self._place_on_hosts({})
        shards = np.bincount(self._owner, self._nbytes, len(is_gone)).astype(float)
        return SimulatedMachine(self.scenario).read_again(
            shards, is_gone & self._recovery.reread
        )

    def _shrink(self, parts: EpochParts, is_gone: Flags) -> Staged:
        """Go on without the ranks of which ``is_gone``, (M,), is true, on the present
        hosts.

        Their samples are dealt out, or, if they lay on lost hosts and are not read
        again, leave the data set. The rest of the epoch exchanges nothing. Sets
        scenario, owners, plans and stretches. Returns what the others read in their
        place; `NOTHING` if hosts keep no shards, or shards are not read again.
        """
        workload = self.scenario.workload
        reads_shards = (
            workload.source in {"ssd", "memory"} and not workload.exchange.redraws
        )
        # files that were sent are there
        loses_shard = is_gone & reads_shards
        owner = self._exchange.owners_at(
            self._owner, parts.reached_iterations, loses_shard
        )
        missing = loses_shard[owner]
        read = self._nbytes * missing
        are_taken_over = self._recovery.reread or not reads_shards
        if not are_taken_over:
            self._nbytes = self._nbytes[~missing]
            owner = owner[~missing]
        num_ranks = int((~is_gone).sum())
        rank_after = np.where(is_gone, -1, np.cumsum(~is_gone) - 1).astype(np.int32)
        new_rank = rank_after[owner]
        # each keeps what it has, as far as all are even: as the scheduler for real ranks deals
        rng = self.scenario.rng("recovery", parts.epoch, num_ranks)
        self._owner = deal_samples(
            new_rank, np.zeros(len(new_rank), np.bool_), num_ranks, rng
        )
        size = workload.local_batch_size
        self._undone = [
            replace(
                stretch,
                plan=divide_among(stretch.plan, ~is_gone, size, dealt=are_taken_over),
            )
            for stretch in self._undone
        ]
        self._exchange = empty_plan(num_ranks)
        dataset = workload.dataset.model_copy(update={"num_samples": len(self._nbytes)})
        smaller = workload.model_copy(update={"dataset": dataset})
        self.scenario = self._place_on_hosts(
            {"world_size": num_ranks, "workload": smaller}
        )
        began = TrainingState(parts.epoch + 1, self._owner)
        self._plans = plan_epochs(self.scenario, self._nbytes, began)
        evenly = np.full(num_ranks, float(read.sum()) / num_ranks)
        everyone = np.full(num_ranks, reads_shards and are_taken_over)
        return SimulatedMachine(self.scenario).read_again(evenly, everyone)


def _are_gone(places: Ints, pool: HostPool) -> Flags:
    """Return (M,) whether the host of each rank, at one of ``places``, was lost since
    the job trained last.
    """
    are_gone: Flags = np.isin(places, [loss.place for loss in pool.losses])
    return are_gone

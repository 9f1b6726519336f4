"""Several jobs on one machine: a process for each, on one clock and one network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
import simpy

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.job.plan.effort import check_size
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.jobs import share_machine
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.background import send
from simshuffle.job.sim.clock import NetworkClock, Steps
from simshuffle.job.sim.faults import ActiveFaults, Row
from simshuffle.job.sim.links import EpochLinkStatistics, Peaks
from simshuffle.job.sim.machine import (
    Progress,
    SimulatedMachine,
    reporter,
    with_loaders,
    without_cycle_collection,
)
from simshuffle.job.sim.simulation import MachinePart
from simshuffle.report.timeline import Timeline, WindowRow


class JobEpoch(NamedTuple):
    """An epoch of a job that is over, and its timeline."""

    job: str  # the name of the job in the scenario
    timeline: Timeline


def simulate_jobs(
    scenario: Scenario,
    names: dict[str, str],
    progress: Progress | None = None,
    struck: list[Row] | None = None,
) -> Iterator[JobEpoch]:
    """Simulate all jobs of a scenario side by side, until the last one has ended.

    A job that its watchdog kills has no later epochs; the other jobs go on.

    Args:
        scenario: with jobs, all of which name their hosts
            (`simshuffle.job.plan.jobs.place_jobs`).
        names: name of the run of each job in the tables, by job.
        progress: called with the share of iterations that is done, from 0 to 1; it ends
            below 1 if a job is killed.
        struck: list to which a row is added for every fault of the scenario that has
            begun.

    Yields:
        Each epoch of each job when it is over, in the order in which epochs end.

    Raises:
        ScenarioError: a job begins when all others have ended, which is a run of its
            own; as `check_size` for a job; or as `RunFaults`.
    """
    yield from _Machine(scenario, names, progress, struck).epochs()


class _Machine:
    """The machine that all jobs of a scenario share, with their clock and network.

    To make one checks the size of each job, and puts faults and background traffic on
    the clock; jobs start in `epochs`. Faults are added to ``struck`` when they begin.
    Raises as `simulate_jobs`.
    """

    def __init__(
        self,
        scenario: Scenario,
        names: dict[str, str],
        progress: Progress | None,
        struck: list[Row] | None,
    ) -> None:
        self._scenario = scenario
        self._names = names
        shared = self._shared = share_machine(scenario)
        for job in shared.jobs.values():
            check_size(job)
        env = simpy.Environment()
        machine_resources = shared.resources
        network = machine_resources.network(
            scenario.network, accounts=machine_resources.all_ranks
        )
        clock = NetworkClock(env, network)
        self._env = env
        peaks = Peaks(clock)
        faults = None
        self._machines = {}
        if scenario.faults:
            faults = ActiveFaults(scenario, machine_resources, clock, struck)
        for name, job in shared.jobs.items():
            part = shared.parts[name]
            links = EpochLinkStatistics(
                part, network, peaks, part.foreign_links(machine_resources)
            )
            slower = (
                np.ones(part.world_size)
                if faults is None
                else faults.slower_for_job(part)
            )
            self._machines[name] = SimulatedMachine(
                job, part=MachinePart(part, clock, links, slower)
            )
        send(scenario, machine_resources, clock)
        total = sum(
            job.workload.iterations(job.world_size, epoch)
            for job in shared.jobs.values()
            for epoch in range(1, job.epochs + 1)
        )
        # all jobs count together, whichever has done an iteration
        report = reporter(progress, 0, total)
        iterations_done = count(1)
        self._report_iteration: Callable[[int], None] = lambda _: report(
            next(iterations_done)
        )
        # epochs that are over, and the event that says so
        self._ended_epochs: deque[JobEpoch] = deque()
        self._epoch_ended = env.event()
        self._running = set(shared.jobs)
        self._refusal: InputError | None = None

    def epochs(self) -> Iterator[JobEpoch]:
        """Yield each epoch when it is over; only once.

        Raises:
            InputError: a job was refused. Epochs that were not yielded are lost.
        """
        for name in self._machines:
            self._env.process(self._run(name))
        while self._running or self._ended_epochs:
            if not self._ended_epochs:
                with without_cycle_collection():
                    self._env.run(until=self._epoch_ended)
            if self._refusal is not None:
                raise self._refusal
            self._epoch_ended = self._env.event()
            while self._ended_epochs:
                yield self._ended_epochs.popleft()

    def _run(self, name: str) -> Steps:
        """Run a job as a process, then mark it as ended and wake `epochs`.

        An InputError of the job is kept for `epochs`, since SimPy would change it.
        """
        try:
            yield from self._train(name)
        except InputError as error:
            self._refusal = error
        self._running.remove(name)
        self._announce()

    def _train(self, name: str) -> Steps:
        """Train a job from its start to the end of its last epoch, or until it is
        killed. Each epoch that is over is put into the queue of `epochs`.

        Raises:
            ScenarioError: all other jobs had ended before its start.
        """
        machine = self._machines[name]
        scenario = self._shared.jobs[name]
        yield self._env.timeout(self._shared.starts[name])
        if self._running == {name} and len(self._machines) > 1:
            self._refuse(name)
        plans = plan_epochs(scenario, sample_nbytes(scenario))
        for plan, loaders in with_loaders(machine, plans):
            running = machine.begin(
                plan, loaders, Thinning(scenario), self._report_iteration
            )
            yield self._env.process(running.epoch.run())
            simulated = machine.end(running)
            row = WindowRow(plan.iterations)
            self._ended_epochs.append(
                JobEpoch(name, simulated.timeline(self._names[name], row))
            )
            killed = simulated.killed
            del running, plan, loaders, simulated  # the next one needs their room
            self._announce()
            if killed is not None:
                return

    def _announce(self) -> None:
        """Wake `epochs`, unless it has been woken already."""
        if not self._epoch_ended.triggered:
            self._epoch_ended.succeed()

    def _refuse(self, name: str) -> None:
        """Raise a ScenarioError for a job that starts now and meets no other one."""
        rule = "must be before all other jobs have ended, so that they meet"
        start = f"{self._env.now:g} s"
        remedy = "Let it start earlier, or simulate it as a scenario of its own."
        raise ScenarioError(
            Problem(f"jobs.{name}.start", rule, start, remedy), self._scenario.name
        )

"""The epochs of one run, one after the other; with a tolerance of time as windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.job.plan.effort import WORTH_LEAVING_OUT, check_size, first_window
from simshuffle.job.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.plan.thinning import Thinning, thin_scenario
from simshuffle.job.scenario.scenario import Scenario, refuse_jobs
from simshuffle.job.sim.machine import (
    Progress,
    SimulatedEpoch,
    SimulatedMachine,
    reporter,
    with_loaders,
)
from simshuffle.job.sim.recorder import Recorder
from simshuffle.job.sim.recovery import simulate_with_losses
from simshuffle.job.sim.steady import SteadyWindow, WindowSeconds, fit_window
from simshuffle.report.timeline import (
    Timeline,
    WindowRow,
    concatenate,
    seconds_by_iteration,
    seconds_in,
)

TOO_LONG = "the epoch is too short to leave any out"
NOT_ALIKE = "they keep changing in the course of the epoch"
TOO_DIFFERENT = "they vary too much for a few to stand for all"
IMPORTANCE_UNKNOWN = "the time to measure importance varies too much between ranks"
LATE = "a rare late batch could be missed"
FAULTS = "faults come at their times"
CHECKPOINTS = "those after which a checkpoint is saved are unlike the others"
"""Why all iterations are simulated, after 'All iterations were simulated, because'."""


def why_whole(scenario: Scenario) -> str:
    """Return why all iterations of a scenario's epochs are simulated, as the end of a
    sentence; '' if not so, or without a time tolerance.
    """
    if scenario.time_tolerance == 0:
        return ""
    if scenario.workload.checkpoint is not None:
        return CHECKPOINTS
    if scenario.workload.loader.across_epochs:
        return "loaders go on into the next epoch"
    if scenario.faults:
        return FAULTS
    return scenario.workload.exchange.whole_because


def simulate_windows(
    scenario: Scenario,
    run: str,
    progress: Progress | None,
    first_epoch: int,
    recorder: Recorder | None = None,
) -> Iterator[Timeline]:
    """Simulate epochs with a tolerance of time; arguments as of `simulate_epochs`.

    An epoch is thinned to a window of iterations. If their mean is not known well
    enough, the epoch is simulated again with a longer window, or with all iterations:
    the share that ``progress`` is told then falls. Yields the timeline of each epoch's
    last window; seconds of earlier windows are taken off its times.
    """
    machine = SimulatedMachine(scenario, recorder)
    plans = ThinnedPlans(scenario)
    tolerance = scenario.time_tolerance
    count = scenario.epochs + 1 - first_epoch
    size = first_window(scenario)
    previous_because = ""
    earlier = 0.0
    for epoch in range(first_epoch, scenario.epochs + 1):
        all_iterations = scenario.workload.iterations(scenario.world_size, epoch)
        # two warm epochs are alike in that as well
        because = previous_because if epoch > 2 else ""
        spent = 0  # iterations of windows that did not do
        while True:
            thinning, plan = plans.plan(epoch, all_iterations if because else size)
            planned = plan.iterations
            report = reporter(
                progress, (epoch - first_epoch) * planned, count * planned
            )
            simulated = machine.epoch(plan, machine.loaders(plan), thinning, report)
            del plan, report  # the next one needs their room
            windows = _candidate_windows(scenario, simulated, thinning, all_iterations)
            sufficient = [window for window in windows if window.suffices(tolerance)]
            window = (sufficient or windows)[0]
            if not thinning.left_out or sufficient:
                break
            earlier += simulated.end - simulated.begin
            spent += window.simulated
            size = min(candidate.next_size(tolerance) for candidate in windows)
            is_too_long = size >= min(
                all_iterations - spent, WORTH_LEAVING_OUT * all_iterations
            )
            if window.late or is_too_long:
                because = _reason(window, tolerance)
        if because:
            size = first_window(scenario)
        elif not thinning.left_out:
            because = TOO_LONG
        previous_because = because
        row = WindowRow(
            window.simulated, window.first, window.last, window.half_width, because
        )
        yield simulated.timeline(run, row, earlier)
        del simulated


def _candidate_windows(
    scenario: Scenario,
    simulated: SimulatedEpoch,
    thinning: Thinning,
    all_iterations: int,
) -> list[SteadyWindow]:
    """Return the windows that may stand for the epoch, one or two: from alike
    iterations first.

    The window of the servers is the second if ranks wait for one. Without iterations
    left out the whole epoch is the only window.
    """
    if not thinning.left_out:
        return [SteadyWindow(all_iterations, all_iterations)]
    workload = scenario.workload
    world_size = scenario.world_size
    loading = seconds_in(simulated.rows, world_size, ("io", "decode"))
    simulated_seconds = WindowSeconds(
        seconds_by_iteration(simulated.rows, world_size),
        loading.max(axis=1),
        loading[0],
        simulated.measured_spread,
        workload.allreduce.overlap.cycle,
    )
    loader = workload.loader
    tolerance = scenario.time_tolerance
    window = fit_window(simulated_seconds, all_iterations, loader, tolerance)
    served = simulated.served
    if served is None:
        return [window]
    lengths = simulated_seconds.seconds.sum(axis=1)
    long_enough = served.hold_at_least(window, lengths, all_iterations)
    of_server = served.window(lengths, all_iterations, loader, tolerance)
    return [long_enough] if of_server is None else [long_enough, of_server]


def _reason(window: SteadyWindow, tolerance: float) -> str:
    """Return why a window does not do, and no longer one is worth it: one of the
    constants `LATE`, `NOT_ALIKE`, `TOO_DIFFERENT` and `IMPORTANCE_UNKNOWN`.
    """
    if window.late:
        return LATE
    if not window.settled:
        return NOT_ALIKE
    return TOO_DIFFERENT if window.mean_half_width > tolerance else IMPORTANCE_UNKNOWN


class ThinnedPlans:
    """Plans of epochs, asked for in order, in each epoch with more and more iterations."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._plans_by_size: dict[int, tuple[Thinning, Iterator[EpochPlan]]] = {}

    def plan(self, epoch: int, iterations: int) -> tuple[Thinning, EpochPlan]:
        """Return how an epoch is thinned, and its plan.

        It has ``iterations`` iterations (2 or more), or all from the share
        `WORTH_LEAVING_OUT` of them on. Plans of each size can only be asked for in the
        order of epochs, each once; those of the epochs between are drawn, too. When the
        last epoch is asked for, plans of this size and smaller ones are dropped.

        Raises:
            StopIteration: that epoch, or a later one, was asked for with this size.
        """
        scenario = self._scenario
        all_iterations = scenario.workload.iterations(scenario.world_size)
        size = (
            all_iterations
            if iterations >= WORTH_LEAVING_OUT * all_iterations
            else iterations
        )
        if size not in self._plans_by_size:
            thinning = thin_scenario(scenario, size)
            nbytes = sample_nbytes(thinning.scenario)
            self._plans_by_size[size] = thinning, plan_epochs(thinning.scenario, nbytes)
        thinning, plans = self._plans_by_size[size]
        if epoch == scenario.epochs:  # nobody asks for these again
            self._plans_by_size = {
                planned: plans_of_size
                for planned, plans_of_size in self._plans_by_size.items()
                if planned > size
            }
        return thinning, next(plan for plan in plans if plan.epoch == epoch)


def simulate(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    first_epoch: int = 1,
) -> Timeline:
    """Simulate all epochs of a scenario and return their timeline; arguments and errors
    as of `simulate_epochs`.
    """
    return concatenate(
        list(simulate_epochs(scenario, run, progress, first_epoch=first_epoch))
    )


def simulate_epochs(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    *,
    first_epoch: int = 1,
    recorder: Recorder | None = None,
    struck: list[dict[str, Any]] | None = None,
) -> Iterator[Timeline]:
    """Simulate the epochs of a scenario, one after the other.

    It ends after the epoch in which the job is killed by its watchdog, or stops since a
    host is lost. The scenario is checked when the first epoch is asked for.

    Args:
        scenario: without sweep (see `Scenario.runs`).
        run: name of the run in the tables; the scenario's label if None or ''.
        progress: called with the share done, from 0 to 1; the share may fall when
            iterations are simulated again.
        first_epoch: the epochs before it are planned only, so those from it on are as
            if all had been simulated.
        recorder: whose ``record`` is of the epoch yielded last. It changes no phase.
        struck: to which a row is added for every fault of the scenario that has begun.

    Yields:
        The timeline of each epoch; simulated time starts at 0 s with ``first_epoch``.

    Raises:
        ScenarioError: it has jobs; there are too many packets; a fault is at something
            that does not exist; or epochs are left out whose loaders read ahead for the
            next one (``loader.across_epochs``).
        TopologyError: the same as of `place_jobs`, or its routes could deadlock.
        InputError: hosts are lost, and ``first_epoch`` is above 1, there is a recorder,
            or the job cannot go on.
    """
    name = run or scenario.label()
    refuse_jobs(scenario)
    scenario = place_jobs(scenario)
    if first_epoch > 1 and scenario.workload.loader.across_epochs:
        rule = f"must be false where epoch {first_epoch} is simulated alone"
        problem = Problem(
            "workload.loader.across_epochs", rule, "true", "Set it to false."
        )
        raise ScenarioError(problem, scenario.name)
    check_size(scenario)
    if scenario.lost_hosts:
        if first_epoch > 1 or recorder is not None:
            what = "recorded" if first_epoch == 1 else "simulated from a later epoch on"
            rule = f"must lose no host in a run that is {what}"
            fault = scenario.lost_hosts[0].what
            refuse("faults", rule, fault, "Leave that fault out.", scenario.name)
        yield from simulate_with_losses(scenario, name, progress, struck)
        return
    because = why_whole(scenario)
    if scenario.time_tolerance > 0 and not because:
        yield from simulate_windows(scenario, name, progress, first_epoch, recorder)
        return
    machine = SimulatedMachine(scenario, recorder, struck=struck)
    epochs = range(first_epoch, scenario.epochs + 1)
    iterations = scenario.workload.iterations
    total = sum(iterations(scenario.world_size, epoch) for epoch in epochs)
    iterations_before = 0
    plans = filter(
        lambda plan: plan.epoch >= first_epoch,
        plan_epochs(scenario, sample_nbytes(scenario)),
    )
    for plan, loaders in with_loaders(machine, plans):
        report = reporter(progress, iterations_before, total)
        simulated = machine.epoch(plan, loaders, Thinning(scenario), report)
        iterations_before += plan.iterations
        del plan, loaders, report  # the tables need their room, and then the next epoch
        killed = simulated.killed
        row = WindowRow(simulated.iterations_done, whole_because=because)
        yield simulated.timeline(name, row)
        del simulated
        if killed is not None:
            return

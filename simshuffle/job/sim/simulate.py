"""The epochs of one run, one after the other; with a tolerance of time as windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.job.plan.effort import (
    WORTH_LEAVING_OUT,
    Thinning,
    check_size,
    first_window,
    thinned,
)
from simshuffle.job.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.job.plan.jobs import settled
from simshuffle.job.scenario.scenario import Scenario, refuse_jobs
from simshuffle.job.sim.machine import SimulatedEpoch, SimulatedMachine, reporter, with_loaders
from simshuffle.job.sim.recorder import Recorder
from simshuffle.job.sim.recovery import with_losses
from simshuffle.job.sim.steady import Seen, SteadyWindow, window_of
from simshuffle.report.timeline import (
    Timeline,
    WindowRow,
    concatenate,
    seconds_by_iteration,
    seconds_in,
)
from simshuffle.spec.arrays import Floats

TOO_LONG = "the epoch is too short to leave any out"
NOT_ALIKE = "they keep changing in the course of the epoch"
TOO_DIFFERENT = "they vary too much for a few to stand for all"
IMPORTANCE_UNKNOWN = "the time to measure importance varies too much between ranks"
LATE = "a rare late batch could be missed"
FAULTS = "faults come at their times"
CHECKPOINTS = "those after which a checkpoint is saved are unlike the others"
"""Why all iterations are simulated, after 'All iterations were simulated, because'."""


def why_whole(scenario: Scenario) -> str:
    """Why no epoch of a scenario can do with fewer iterations; '' if it may, or need not."""
    if scenario.time_tolerance == 0:
        return ""
    if scenario.workload.checkpoint is not None:
        return CHECKPOINTS
    if scenario.workload.loader.across_epochs:
        return "loaders go on into the next epoch"
    if scenario.faults:
        return FAULTS
    return scenario.workload.exchange.whole_because


def windows(
    scenario: Scenario,
    run: str,
    progress: Callable[[float], None] | None,
    first_epoch: int,
    recorder: Recorder | None = None,
) -> Iterator[Timeline]:
    """`simulate_epochs` with a tolerance of time. An epoch is thinned to a window of iterations. If
    their mean is not known well enough, it is simulated again with a longer one, or with all."""
    machine, plans = SimulatedMachine(scenario, recorder), ThinnedPlans(scenario)
    tolerance, count = scenario.time_tolerance, scenario.epochs + 1 - first_epoch
    size, before, earlier = first_window(scenario), "", 0.0
    for epoch in range(first_epoch, scenario.epochs + 1):
        whole = scenario.workload.iterations(scenario.world_size, epoch)
        # two warm epochs are alike in that as well
        because = before if epoch > 2 else ""
        spent = 0  # iterations of windows that did not do
        while True:
            thinning, plan, nbytes = plans.of(epoch, whole if because else size)
            each = plan.iterations
            report = reporter(progress, (epoch - first_epoch) * each, count * each)
            simulated = machine.epoch(plan, machine.loaders(plan), thinning, nbytes, report)
            del plan, nbytes, report  # the next one needs their room
            window, *others = _windows(scenario, simulated, thinning, whole)
            if does := [each for each in (window, *others) if each.does(tolerance)]:
                window = does[0]
            if not thinning.left_out or does:
                break
            earlier += simulated.end - simulated.begin
            spent += window.simulated
            size = min(each.needed(tolerance) for each in (window, *others))
            if window.late or spent + size >= whole or size >= WORTH_LEAVING_OUT * whole:
                because = _reason(window, tolerance)
        if because:
            size = first_window(scenario)
        elif not thinning.left_out:
            because = TOO_LONG
        before = because
        row = WindowRow(window.simulated, window.first, window.last, window.half_width, because)
        yield simulated.timeline(run, row, earlier)
        del simulated


def _windows(
    scenario: Scenario, simulated: SimulatedEpoch, thinning: Thinning, whole: int
) -> list[SteadyWindow]:
    """What alike iterations say of the whole epoch, and the servers if ranks wait for one."""
    if not thinning.left_out:
        return [SteadyWindow(whole, whole)]
    workload = scenario.workload
    world_size = scenario.world_size
    loading = seconds_in(simulated.rows, world_size, ("io", "decode"))
    seen = Seen(
        seconds_by_iteration(simulated.rows, world_size),
        loading.max(axis=1),
        loading[0],
        simulated.measured_spread,
        workload.allreduce.overlap.cycle,
    )
    found = [window_of(seen, whole, workload.loader, scenario.time_tolerance)]
    if simulated.served is not None:
        lengths = seen.seconds.sum(axis=1)
        of = (lengths, whole, workload.loader, scenario.time_tolerance)
        found = [simulated.served.hold_at_least(found[0], lengths, whole)]
        found += filter(None, [simulated.served.window(*of)])
    return found


def _reason(window: SteadyWindow, tolerance: float) -> str:
    """Why a window does not do, and no longer one is worth it."""
    if window.late:
        return LATE
    if not window.settled:
        return NOT_ALIKE
    return TOO_DIFFERENT if window.mean_half_width > tolerance else IMPORTANCE_UNKNOWN


class ThinnedPlans:
    """Plans of epochs, asked for in their order, with more and more iterations in each."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._of: dict[int, tuple[Thinning, Floats, Iterator[EpochPlan]]] = {}

    def of(self, epoch: int, iterations: int) -> tuple[Thinning, EpochPlan, Floats]:
        """The plan of an epoch of so many iterations, or of all where few are left out; how it is
        thinned, and (N,) bytes of every sample."""
        workload = self._scenario.workload
        whole = workload.iterations(self._scenario.world_size)
        size = whole if iterations >= WORTH_LEAVING_OUT * whole else iterations
        if size not in self._of:
            thinning = thinned(self._scenario, size)
            nbytes = sample_nbytes(thinning.scenario)
            self._of[size] = thinning, nbytes, plan_epochs(thinning.scenario, nbytes)
        thinning, nbytes, plans = self._of[size]
        if epoch == self._scenario.epochs:  # nobody asks for these again
            self._of = {more: of for more, of in self._of.items() if more > size}
        return thinning, next(plan for plan in plans if plan.epoch == epoch), nbytes


Progress = Callable[[float], None]


def simulate(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    first_epoch: int = 1,
) -> Timeline:
    """The timeline of all epochs of a scenario; arguments and errors as of `simulate_epochs`."""
    return concatenate(list(simulate_epochs(scenario, run, progress, first_epoch)))


def simulate_epochs(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    first_epoch: int = 1,
    recorder: Recorder | None = None,
    struck: list[dict[str, Any]] | None = None,
) -> Iterator[Timeline]:
    """Simulate the epochs of a scenario, one after the other.

    Args:
        scenario: without sweep (see `Scenario.runs`).
        run: name of the run in the tables; the scenario's label if None.
        progress: called with the share done, from 0 to 1.
        first_epoch: the epochs before it are planned only, so those from it on are as if all had
            been simulated.
        recorder: whose ``record`` is of the epoch yielded last. It changes no phase.
        struck: to which a row is added for every fault of the scenario that has begun.

    Yields:
        The timeline of each epoch; simulated time starts at 0 s with ``first_epoch``.

    Raises:
        ScenarioError: it has jobs; there are too many packets; or epochs are left out whose loaders
            read ahead for the next one (``loader.across_epochs``).
        TopologyError: the same, and its routes could deadlock.
    """
    name = run or scenario.label()
    refuse_jobs(scenario)
    scenario = settled(scenario)
    if first_epoch > 1 and scenario.workload.loader.across_epochs:
        rule = f"must be false where epoch {first_epoch} is simulated alone"
        problem = Problem("workload.loader.across_epochs", rule, "true", "Set it to false.")
        raise ScenarioError(problem, scenario.name)
    check_size(scenario)
    if scenario.lost_hosts:
        if first_epoch > 1 or recorder is not None:
            what = "recorded" if first_epoch == 1 else "simulated from a later epoch on"
            rule, found = f"must lose no host in a run that is {what}", scenario.lost_hosts[0].what
            refuse("faults", rule, found, "Leave that fault out.", scenario.name)
        yield from with_losses(scenario, name, progress, struck)
        return
    because = why_whole(scenario)
    if scenario.time_tolerance > 0 and not because:
        yield from windows(scenario, name, progress, first_epoch, recorder)
        return
    machine, nbytes = SimulatedMachine(scenario, recorder, struck), sample_nbytes(scenario)
    whole = Thinning(scenario)
    epochs, iterations = range(first_epoch, scenario.epochs + 1), scenario.workload.iterations
    total = sum(iterations(scenario.world_size, epoch) for epoch in epochs)
    done = 0
    plans = filter(lambda plan: plan.epoch >= first_epoch, plan_epochs(scenario, nbytes))
    for plan, loaders in with_loaders(machine, plans):
        report = reporter(progress, done, total)
        planned = plan.iterations
        done += planned
        simulated = machine.epoch(plan, loaders, whole, nbytes, report)
        del plan, loaders, report  # the tables need their room, and then the next epoch
        killed = simulated.killed
        simulated_iterations = planned if killed is None else killed.iteration
        yield simulated.timeline(name, WindowRow(simulated_iterations, whole_because=because))
        del simulated
        if killed is not None:
            return

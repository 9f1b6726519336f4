"""simulate(scenario): the epochs of one run, one after the other, on one cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simshuffle.errors import Problem, ScenarioError
from simshuffle.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.plan.packets import check_size
from simshuffle.plan.thinning import Thinning
from simshuffle.results.timeline import Timeline, WindowRow, concatenate
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.loader import Loaders
from simshuffle.sim.machine import Machine, reporter
from simshuffle.sim.recorder import Recorder
from simshuffle.sim.window import why_whole, windows

Progress = Callable[[float], None]


def simulate(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    first_epoch: int = 1,
) -> Timeline:
    """Simulate the epochs of a scenario; arguments and errors as of `simulate_epochs`.

    Returns:
        The timeline of all epochs.
    """
    return concatenate(list(simulate_epochs(scenario, run, progress, first_epoch)))


def simulate_epochs(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    first_epoch: int = 1,
    recorder: Recorder | None = None,
) -> Iterator[Timeline]:
    """Simulate the epochs of a scenario, one after the other.

    Args:
        scenario: without sweep (see `Scenario.runs`).
        run: name of the run in the tables; the scenario's label if None.
        progress: called with the share done, from 0 to 1.
        first_epoch: the epochs before it are planned only: what they leave in shards and page
            caches is there, their time is not. Nothing else of an epoch reaches into the next one,
            so those from it on are as if all had been simulated.
        recorder: whose ``record`` is of the epoch yielded last; None for none. Phases are the same
            to the last bit with one.

    Yields:
        The timeline of each epoch when it is over, of which nothing is kept here; simulated time
        starts at 0 s with ``first_epoch``.

    Raises:
        ScenarioError: the network is to be simulated packet by packet, and these are too many; or
            epochs are left out whose loaders read ahead for the next one
            (``loader.across_epochs``).
        TopologyError: the same, and its routes could deadlock.
    """
    name = run or scenario.label()
    _refuse_epochs_that_go_together(scenario, first_epoch)
    check_size(scenario)
    because = why_whole(scenario)
    if scenario.time_tolerance > 0 and not because:
        yield from windows(scenario, name, progress, first_epoch, recorder)
        return
    machine, nbytes = Machine(scenario, recorder), sample_nbytes(scenario)
    whole = Thinning(scenario)
    total = sum(
        scenario.workload.iterations(scenario.world_size, epoch)
        for epoch in range(first_epoch, scenario.epochs + 1)
    )
    done = 0
    plans = filter(lambda plan: plan.epoch >= first_epoch, plan_epochs(scenario, nbytes))
    for plan, loaders in _with_loaders(machine, plans):
        report = reporter(progress, done, total)
        done += plan.iterations
        window = WindowRow(plan.iterations, whole_because=because)
        simulated = machine.epoch(plan, loaders, whole, nbytes, report)
        del plan, loaders, report  # the tables need their room, and then the next epoch
        yield simulated.timeline(name, window)
        del simulated


def _refuse_epochs_that_go_together(scenario: Scenario, first_epoch: int) -> None:
    if first_epoch > 1 and scenario.workload.loader.across_epochs:
        rule = f"must be false where epoch {first_epoch} is simulated alone"
        raise ScenarioError(
            Problem("workload.loader.across_epochs", rule, "true", "Set it to false."),
            scenario.name,
        )


def _with_loaders(
    machine: Machine, plans: Iterator[EpochPlan]
) -> Iterator[tuple[EpochPlan, Loaders]]:
    """Each plan with its loaders; where those go on into the next epoch, its plan is made an epoch
    ahead."""
    if not machine.scenario.workload.loader.across_epochs:
        # which holds none of them
        yield from map(lambda plan: (plan, machine.loaders(plan)), plans)  # noqa: C417
        return
    plan = next(plans)
    loaders = machine.loaders(plan)
    for following in plans:
        ahead = machine.loaders(following)
        loaders.followed_by(ahead)
        yield plan, loaders
        plan, loaders = following, ahead
    yield plan, loaders

"""simulate(scenario): the epochs of one run, one after the other, on one cluster."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
import simpy

from simshuffle.errors import Problem, ScenarioError
from simshuffle.lowering.gradients import Allreduces
from simshuffle.network.shared import SharedNetwork
from simshuffle.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.plan.packets import check_size
from simshuffle.plan.resources import Resources
from simshuffle.results.timeline import SOURCE_COLUMNS, Timeline, concatenate, phase_table
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.epoch import Epoch, loaders_of
from simshuffle.sim.loader import Loaders
from simshuffle.sim.staging import NOTHING, Staged, stage

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
) -> Iterator[Timeline]:
    """Simulate the epochs of a scenario, one after the other.

    Args:
        scenario: without sweep (see `Scenario.runs`).
        run: name of the run in the tables; the scenario's label if None.
        progress: called with the share done, from 0 to 1.
        first_epoch: the epochs before it are planned only: what they leave in shards and page
            caches is there, their time is not. Nothing else of an epoch reaches into the next one,
            so those from it on are as if all had been simulated.

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
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    check_size(scenario)
    env = simpy.Environment()
    network = resources.network(scenario.network, accounts=scenario.world_size)
    clock = NetworkClock(env, network)
    nbytes = sample_nbytes(scenario)
    allreduces = Allreduces(scenario.workload.allreduce, resources, scenario.rng("host_order"))
    links = LinkStatistics(name, resources, network)
    staged = NOTHING
    total = sum(
        scenario.workload.iterations(scenario.world_size, epoch)
        for epoch in range(first_epoch, scenario.epochs + 1)
    )
    done = 0
    plans = filter(lambda plan: plan.epoch >= first_epoch, plan_epochs(scenario, nbytes))
    for plan, loaders in _with_loaders(scenario, resources, clock, plans):
        if plan.epoch == 1:
            staged = stage(
                scenario.workload,
                resources,
                np.add.reduceat(nbytes[plan.shards.order], plan.shards.start[:-1]),
            )
        report = _reporter(progress, done, total)
        epoch = Epoch(scenario, resources, clock, plan, loaders, allreduces, nbytes, report)
        done += plan.iterations
        with without_cycle_collection():
            env.run(until=env.process(epoch.run()))
        sources = _source_row(name, scenario, plan, epoch, staged if plan.epoch == 1 else NOTHING)
        number, rows = plan.epoch, epoch.rows()
        del plan, loaders, epoch, report  # the tables need their room, and then the next epoch
        yield Timeline(phase_table(name, rows), links.close_epoch(number, env.now), sources)


def _refuse_epochs_that_go_together(scenario: Scenario, first_epoch: int) -> None:
    if first_epoch > 1 and scenario.workload.loader.across_epochs:
        rule = f"must be false where epoch {first_epoch} is simulated alone"
        raise ScenarioError(
            Problem("workload.loader.across_epochs", rule, "true", "Set it to false."),
            scenario.name,
        )


def _with_loaders(
    scenario: Scenario, resources: Resources, clock: NetworkClock, plans: Iterator[EpochPlan]
) -> Iterator[tuple[EpochPlan, Loaders]]:
    """Each plan with its loaders; where those go on into the next epoch, its plan is made an epoch
    ahead."""

    def of(plan: EpochPlan) -> Loaders:
        return loaders_of(scenario, resources, clock, plan.training, "read", plan.epoch)

    def with_its_own(plan: EpochPlan) -> tuple[EpochPlan, Loaders]:
        return plan, of(plan)

    if not scenario.workload.loader.across_epochs:
        yield from map(with_its_own, plans)  # which holds none of them
        return
    plan = next(plans)
    loaders = of(plan)
    for following in plans:
        ahead = of(following)
        loaders.followed_by(ahead)
        yield plan, loaders
        plan, loaders = following, ahead
    yield plan, loaders


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Keep Python from searching for reference cycles: a run leaves none, and the search takes a
    sixth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reporter(progress: Progress | None, before: int, total: int) -> Callable[[int], None]:
    if progress is None:
        return lambda _: None
    return lambda done: progress((before + done) / total)


def _source_row(
    run: str, scenario: Scenario, plan: EpochPlan, epoch: Epoch, staged: Staged
) -> pd.DataFrame:
    passes = [each.chains for each in (epoch.loaders, epoch.inference) if each is not None]
    costs = None if epoch.exchange is None else epoch.exchange.costs
    fraction = scenario.workload.exchange.fraction
    row = (
        run,
        scenario.workload.exchange.kind,
        scenario.world_size,
        np.nan if fraction is None else fraction,
        plan.epoch,
        plan.iterations,
        int(plan.training.samples.sum()),
        plan.exchange.samples_moved,
        float(costs.sent.sum()) if costs else 0.0,
        sum(chains.read_pfs for chains in passes),
        sum(chains.read_ssd for chains in passes) + (costs.read_ssd if costs else 0.0),
        sum(chains.read_memory for chains in passes) + (costs.read_memory if costs else 0.0),
        float(costs.received.sum()) if costs and scenario.workload.source != "memory" else 0.0,
        staged.seconds,
        staged.nbytes,
    )
    table = pd.DataFrame([row], columns=list(SOURCE_COLUMNS))
    for column in ("run", "strategy"):
        table[column] = pd.Categorical(table[column])
    return table


class LinkStatistics:
    """Per-epoch differences of the network's link counters."""

    def __init__(self, run: str, resources: Resources, network: SharedNetwork) -> None:
        self._run, self._resources, self._network = run, resources, network
        self._before = network.links.copy()
        self._since = 0.0

    def close_epoch(self, epoch: int, now: float) -> pd.DataFrame:
        """What every link carried since the last call, as the links table of the epoch; ``now`` in
        s."""
        network, table = self._network, self._resources.links
        network.settle()
        after = network.links
        work = after["work"] - self._before["work"]
        used = np.flatnonzero(work > 0)
        elapsed = max(now - self._since, np.finfo(float).tiny)
        carried = pd.DataFrame(
            {
                "run": pd.Categorical.from_codes(
                    np.zeros(len(used), np.int8), pd.Index([self._run])
                ),
                "epoch": np.full(len(used), epoch, np.int16),
                "link": np.array(table.names, object)[used],
                "tier": pd.Categorical(np.array(table.tiers, object)[used]),
                "capacity": table.capacity[used],
                "unit": pd.Categorical(np.array(table.units, object)[used]),
                "nbytes": (after["nbytes"] - self._before["nbytes"])[used],
                "mean_utilisation": work[used] / table.capacity[used] / elapsed,
                "peak_utilisation": after["peak"][used],
                "busy_s": (after["busy"] - self._before["busy"])[used],
            }
        )
        network.restart_peaks()
        self._before = after.copy()
        self._since = now
        return carried

"""simulate(scenario): the epochs of one run, one after the other, on one cluster."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import simpy

from simshuffle.network.fluid import FluidNetwork
from simshuffle.plan import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.resources import Resources
from simshuffle.scenario import Scenario
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.training import Epoch
from simshuffle.timeline import SOURCE_COLUMNS, Timeline, phase_table

Progress = Callable[[float], None]


def simulate(scenario: Scenario, run: str | None = None, progress: Progress | None = None) -> Timeline:
    """Simulate all epochs of a scenario.

    Args:
        scenario: without sweep (see `Scenario.runs`).
        run: name of the run in the tables; the scenario's label if None.
        progress: called with the share done, from 0 to 1.

    Returns:
        The timeline; simulated time starts at 0 s with the first epoch.
    """
    name = run or scenario.label()
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    env = simpy.Environment()
    network = FluidNetwork(resources.links.capacity, width=resources.width, accounts=scenario.world_size)
    clock = NetworkClock(env, network)
    nbytes = sample_nbytes(scenario)
    rows: list[dict[str, Any]] = []
    links = LinkStatistics(name, resources, network)
    sources = []
    total = scenario.epochs * scenario.workload.iterations(scenario.world_size)
    for plan in plan_epochs(scenario, nbytes):
        done_before = (plan.epoch - 1) * plan.iterations
        epoch = Epoch(scenario, resources, clock, plan, nbytes, _reporter(progress, done_before, total))
        with without_cycle_collection():
            env.run(until=env.process(epoch.run()))
        record = epoch.record()
        rows += record.rows
        links.close_epoch(plan.epoch, env.now)
        sources.append(_source_row(name, scenario, plan, epoch))
    table = pd.DataFrame(sources, columns=list(SOURCE_COLUMNS))
    for column in ("run", "strategy"):
        table[column] = pd.Categorical(table[column])
    return Timeline(phase_table(name, rows), links.table(), table)


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Keep Python from searching for reference cycles: a run leaves none, and the search takes a sixth of its time."""
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


def _source_row(run: str, scenario: Scenario, plan: EpochPlan, epoch: Epoch) -> tuple[Any, ...]:
    exchange, loaders = epoch.exchange, epoch.loaders
    fraction = scenario.workload.exchange.fraction
    return (
        run,
        scenario.workload.exchange.kind,
        scenario.world_size,
        np.nan if fraction is None else fraction,
        plan.epoch,
        plan.iterations,
        int(plan.batch_samples.sum()),
        plan.exchange.samples_moved,
        float(exchange.sent.sum()) if exchange else 0.0,
        loaders.read_pfs,
        loaders.read_ssd + (exchange.read_ssd if exchange else 0.0),
        loaders.read_memory + (exchange.read_memory if exchange else 0.0),
        exchange.written if exchange else 0.0,
    )


class LinkStatistics:
    """Per-epoch differences of the network's link counters."""

    def __init__(self, run: str, resources: Resources, network: FluidNetwork) -> None:
        self._run, self._resources, self._network = run, resources, network
        self._frames: list[pd.DataFrame] = []
        self._before = network.links.copy()
        self._since = 0.0

    def close_epoch(self, epoch: int, now: float) -> None:
        """Note what every link carried since the last call; ``now`` in s."""
        network, table = self._network, self._resources.links
        network.settle()
        after = network.links
        work = after["work"] - self._before["work"]
        used = np.flatnonzero(work > 0)
        elapsed = max(now - self._since, np.finfo(float).tiny)
        self._frames.append(
            pd.DataFrame(
                {
                    "run": pd.Categorical.from_codes(np.zeros(len(used), np.int8), pd.Index([self._run])),
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
        )
        network.links["peak"] = 0.0
        self._before = after.copy()
        self._since = now

    def table(self) -> pd.DataFrame:
        """The links table of the run."""
        return pd.concat(self._frames, ignore_index=True)

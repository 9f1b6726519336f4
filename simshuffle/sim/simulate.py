"""simulate(scenario): the epochs of one run, one after the other, on one cluster."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import simpy

from simshuffle.errors import Problem, ScenarioError
from simshuffle.exchange.schedule import epoch_quota
from simshuffle.network import Links, Packet
from simshuffle.network.shared import SharedNetwork, shared_network
from simshuffle.plan.epochs import EpochPlan, cached_share, plan_epochs, sample_nbytes
from simshuffle.plan.resources import Resources
from simshuffle.results.timeline import SOURCE_COLUMNS, Timeline, phase_table
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.epoch import Epoch
from simshuffle.sim.loader import Loaders
from simshuffle.sim.staging import NOTHING, Staged, stage
from simshuffle.spec.units import Dimension, readable

Progress = Callable[[float], None]

MOST_PACKETS = 1e9
"""Packets of a run beyond which it is refused: one core moves 1 to 2 million a second over 4 to 6
cables each."""


def simulate(
    scenario: Scenario,
    run: str | None = None,
    progress: Progress | None = None,
    first_epoch: int = 1,
) -> Timeline:
    """Simulate the epochs of a scenario.

    Args:
        scenario: without sweep (see `Scenario.runs`).
        run: name of the run in the tables; the scenario's label if None.
        progress: called with the share done, from 0 to 1.
        first_epoch: the epochs before it are planned only: what they leave in shards and page
            caches is there, their time is not. Nothing else of an epoch reaches into the next one,
            so those from it on are as if all had been simulated.

    Returns:
        The timeline; simulated time starts at 0 s with ``first_epoch``.

    Raises:
        ScenarioError: the network is to be simulated packet by packet, and these are too many; or
            epochs are left out whose loaders read ahead for the next one
            (``loader.across_epochs``).
        TopologyError: the same, and its routes could deadlock.
    """
    name = run or scenario.label()
    if first_epoch > 1 and scenario.workload.loader.across_epochs:
        rule = f"must be false where epoch {first_epoch} is simulated alone"
        raise ScenarioError(
            Problem("workload.loader.across_epochs", rule, "true", "Set it to false."),
            scenario.name,
        )
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    _refuse_too_many_packets(scenario, resources)
    env = simpy.Environment()
    everything = Links(resources.links.capacity, resources.links.latency, resources.links.names)
    network = shared_network(
        scenario.network,
        everything,
        resources.links.cable,
        width=resources.width,
        accounts=scenario.world_size,
    )
    clock = NetworkClock(env, network)
    nbytes = sample_nbytes(scenario)
    rows: list[dict[str, Any]] = []
    links = LinkStatistics(name, resources, network)
    sources = []
    staged = NOTHING
    total = sum(
        scenario.workload.iterations(scenario.world_size, epoch)
        for epoch in range(first_epoch, scenario.epochs + 1)
    )
    done = 0
    plans = (plan for plan in plan_epochs(scenario, nbytes) if plan.epoch >= first_epoch)
    for plan, loaders in _with_loaders(scenario, resources, clock, plans):
        if plan.epoch == 1:
            staged = stage(
                scenario,
                resources,
                np.add.reduceat(nbytes[plan.shards.order], plan.shards.start[:-1]),
            )
        epoch = Epoch(
            scenario, resources, clock, plan, loaders, nbytes, _reporter(progress, done, total)
        )
        done += plan.iterations
        with without_cycle_collection():
            env.run(until=env.process(epoch.run()))
        record = epoch.record()
        rows += record.rows
        links.close_epoch(plan.epoch, env.now)
        sources.append(
            _source_row(name, scenario, plan, epoch, staged if plan.epoch == 1 else NOTHING)
        )
    table = pd.DataFrame(sources, columns=list(SOURCE_COLUMNS))
    for column in ("run", "strategy"):
        table[column] = pd.Categorical(table[column])
    return Timeline(phase_table(name, rows), links.table(), table)


def _with_loaders(
    scenario: Scenario, resources: Resources, clock: NetworkClock, plans: Iterator[EpochPlan]
) -> Iterator[tuple[EpochPlan, Loaders]]:
    """Each plan with its loaders; where those go on into the next epoch, its plan is made an epoch
    ahead."""

    def loaders_of(plan: EpochPlan) -> Loaders:
        return Loaders(
            scenario, resources, clock, plan.training, scenario.rng("read_jitter", plan.epoch)
        )

    if not scenario.workload.loader.across_epochs:
        yield from ((plan, loaders_of(plan)) for plan in plans)
        return
    plan = next(plans)
    loaders = loaders_of(plan)
    for following in plans:
        ahead = loaders_of(following)
        loaders.followed_by(ahead)
        yield plan, loaders
        plan, loaders = following, ahead
    yield plan, loaders


def expected_packets(scenario: Scenario, resources: Resources, mtu: float) -> dict[str, float]:
    """Packets of ``mtu`` bytes that cross cables in a run, about: of 'gradients', 'exchange' and
    'reads' from the PFS."""
    workload, dataset, world_size = (
        scenario.workload,
        scenario.workload.dataset,
        scenario.world_size,
    )
    epochs = range(1, scenario.epochs + 1)
    out = dict.fromkeys(("gradients", "exchange", "reads"), 0.0)
    flows = workload.allreduce.flows(resources.host_of, workload.model.gradient_size)
    if flows is not None:
        far = resources.host_of[flows.src] != resources.host_of[flows.dst]
        out["gradients"] = (
            float(np.ceil(flows.nbytes[far] / mtu).sum())
            * workload.iterations(world_size)
            * scenario.epochs
        )
    schedule, fraction = workload.exchange.carried_out, workload.exchange.fraction
    if schedule is not None and fraction is not None:
        size = (
            dataset.decoded_size.mean if schedule.payload == "decoded" else dataset.sample_size.mean
        )
        samples = world_size * sum(
            epoch_quota(fraction, dataset.num_samples, world_size, epoch) for epoch in epochs
        )
        out["exchange"] = samples * (1 - 1 / scenario.hosts) * math.ceil(size / mtu)
    if workload.exchange.source == "pfs":
        out["reads"] = (
            sum(1 - cached_share(scenario, epoch) for epoch in epochs) * dataset.nbytes / mtu
        )
    return out


def check_size(scenario: Scenario) -> None:
    """Raises a ScenarioError if a run is to be simulated packet by packet, and has more than
    `MOST_PACKETS`; else returns nothing."""
    if isinstance(scenario.network, Packet):
        _refuse_too_many_packets(
            scenario, Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
        )


def _refuse_too_many_packets(scenario: Scenario, resources: Resources) -> None:
    if not isinstance(scenario.network, Packet):
        return
    mtu = scenario.network.mtu
    packets = expected_packets(scenario, resources, mtu)
    total = sum(packets.values())
    if total > MOST_PACKETS:
        parts = ", ".join(f"{count:.1e} of {name}" for name, count in packets.items() if count)
        raise ScenarioError(
            Problem(
                "network.kind",
                f"a run packet by packet must have at most {MOST_PACKETS:.0e} packets; this one has"
                f" about {total:.1e} ({parts})",
                f"'packet' with network.mtu = {readable(mtu, Dimension.NBYTES)}",
                "Use fewer epochs, a larger local_batch_size, larger network.mtu and"
                " network.port_buffer, or network.kind: fluid.",
            ),
            scenario.name,
        )


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
) -> tuple[Any, ...]:
    exchange = epoch.exchange
    passes = [loaders for loaders in (epoch.loaders, epoch.inference) if loaders is not None]
    fraction = scenario.workload.exchange.fraction
    return (
        run,
        scenario.workload.exchange.kind,
        scenario.world_size,
        np.nan if fraction is None else fraction,
        plan.epoch,
        plan.iterations,
        int(plan.training.samples.sum()),
        plan.exchange.samples_moved,
        float(exchange.sent.sum()) if exchange else 0.0,
        sum(loaders.read_pfs for loaders in passes),
        sum(loaders.read_ssd for loaders in passes) + (exchange.read_ssd if exchange else 0.0),
        sum(loaders.read_memory for loaders in passes)
        + (exchange.read_memory if exchange else 0.0),
        exchange.written if exchange else 0.0,
        staged.seconds,
        staged.nbytes,
    )


class LinkStatistics:
    """Per-epoch differences of the network's link counters."""

    def __init__(self, run: str, resources: Resources, network: SharedNetwork) -> None:
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
        )
        network.restart_peaks()
        self._before = after.copy()
        self._since = now

    def table(self) -> pd.DataFrame:
        """The links table of the run."""
        return pd.concat(self._frames, ignore_index=True)

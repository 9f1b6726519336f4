"""The cluster on which the epochs of one run are simulated, one after the other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.lowering.staging import staging_traffic
from simshuffle.network import Fluid
from simshuffle.network.models import shared_network
from simshuffle.plan.effort import Thinning
from simshuffle.plan.epochs import EpochPlan
from simshuffle.plan.resources import Resources
from simshuffle.results.timeline import SOURCE_COLUMNS, Timeline, WindowRow, phase_table
from simshuffle.scenario.scenario import Scenario
from simshuffle.scenario.workload import Workload
from simshuffle.sim.checkpoints import Killed
from simshuffle.sim.epoch import Epoch
from simshuffle.sim.recorder import Recorder
from simshuffle.sim.served import Served, ServerWatch
from simshuffle.sim.simulation import Loaders, Simulation
from simshuffle.spec.arrays import Floats

if TYPE_CHECKING:
    from simshuffle.network.fluid import FluidNetwork


@dataclass(frozen=True)
class Staged:
    """What staging took, and ``nbytes`` read from the PFS or object store by ``read_requests``."""

    seconds: float
    nbytes: float
    read_requests: float


NOTHING = Staged(0.0, 0.0, 0.0)


def stage(
    workload: Workload, resources: Resources, shard_nbytes: Floats, tolerance: float = 0.0
) -> Staged:
    """Copy what the workload keeps on the hosts, in a fluid network of its own, of that tolerance;
    see `simshuffle.lowering.staging.staging_traffic`."""
    traffic = staging_traffic(workload, resources, shard_nbytes)
    if traffic is None:
        return NOTHING
    count, width = traffic.batch.routes.shape
    # the kernel that the run needs as well, and not `Fluid.finish_times`, which is another
    model, no_cables = Fluid(tolerance=tolerance), np.zeros(len(traffic.links), bool)
    network = shared_network(model, traffic.links, no_cables, width=width, tags=count)
    network.post(0.0, traffic.batch)
    network.advance(np.inf)
    seconds = float(network.finish[:count].max())
    return Staged(seconds, traffic.nbytes, traffic.read_requests)


STAGED = 0.1
"""Share of the tolerance of time that staging may use up, in which hosts end one after another."""


class Machine:
    """A cluster with its network and its clock; arguments as of `Simulation`."""

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder | None = None,
        struck: list[dict[str, Any]] | None = None,
    ) -> None:
        self.scenario, self._simulation = scenario, Simulation(scenario, recorder, struck)
        clock = self._simulation.clock
        self._env = clock.env
        self._links = LinkStatistics(self._simulation.resources, clock.network)
        self._stage: Staged | None = None

    def loaders(self, plan: EpochPlan) -> Loaders:
        """Those of the training of an epoch."""
        return self._simulation.loaders(plan.training, "read", plan.epoch)

    def epoch(
        self,
        plan: EpochPlan,
        loaders: Loaders,
        thinning: Thinning,
        nbytes: Floats,
        progress: Callable[[int], None],
    ) -> SimulatedEpoch:
        """Simulate an epoch; arguments as of `Epoch`."""
        env, recorder = self._env, self._simulation.recorder
        staged = self._staged(plan, thinning, nbytes)  # its copy of all sizes is gone after it
        watch = self._watch(plan, loaders, thinning)
        told = progress if watch is None else watch.telling(progress)
        epoch = Epoch(self._simulation, plan, loaders, nbytes, told, thinning)
        begin = env.now
        if recorder is not None:
            recorder.begin(begin)
        with without_cycle_collection():
            env.run(until=env.process(epoch.run()))
        if recorder is not None:
            recorder.end(env.now)
        return SimulatedEpoch(
            rows=epoch.rows(),
            links=self._links.close_epoch(plan.epoch, env.now),
            sources=_sources(self.scenario, plan, _until(thinning, plan, epoch), epoch, staged),
            begin=begin,
            end=env.now,
            measured_spread=epoch.measured_spread,
            served=None if watch is None else watch.served(),
            killed=epoch.killed,
        )

    def _watch(self, plan: EpochPlan, loaders: Loaders, thinning: Thinning) -> ServerWatch | None:
        """Of an epoch of which iterations are left out; none where another pass reads as well."""
        if not thinning.left_out or plan.inference is not None:
            return None
        clock, resources = self._simulation.clock, self._simulation.resources
        factor = thinning.read_factor(int(plan.training.samples.sum()))
        return ServerWatch(clock, resources.links, resources.servers, loaders.chains, factor)

    def _staged(self, plan: EpochPlan, thinning: Thinning, nbytes: Floats) -> Staged:
        """The staging before the first epoch."""
        if plan.epoch > 1:
            return NOTHING
        if self._stage is None:  # a longer window of the epoch stages the same
            shards = plan.shards.sums(nbytes)
            # sums of so many times as many samples differ by the square root of that
            factor = thinning.factor
            whole = shards * factor + (shards - shards.mean()) * (factor**0.5 - factor)
            tolerance = STAGED * self.scenario.time_tolerance
            resources = self._simulation.resources
            self._stage = stage(self.scenario.workload, resources, whole, tolerance)
        return self._stage


@dataclass(frozen=True)
class SimulatedEpoch:
    """An epoch that is over."""

    rows: list[dict[str, NDArray[Any]]]  # of its phases
    links: pd.DataFrame  # its links table, without the name of the run
    # its row of that table, by column, as if all iterations had been simulated
    sources: dict[str, Any]
    # begin, end: of simulated time (s)
    begin: float
    end: float
    measured_spread: float = 0.0  # see `Epoch.measured_spread`
    served: Served | None = None  # what the servers did, if iterations were left out
    killed: Killed | None = None  # by what the job was ended in it, if it was

    def timeline(self, run: str, window: WindowRow, earlier: float = 0.0) -> Timeline:
        """Its tables, which use up the rows; ``earlier`` s before it belong to no epoch."""
        if earlier:
            for part in self.rows:
                for bound in ("start_s", "end_s"):
                    part[bound] = np.maximum(part[bound] - earlier, 0.0)  # whatever rounding says
        links = self.links.copy(deep=False)
        label = pd.Categorical.from_codes(np.zeros(len(links), np.int8), pd.Index([run]))
        links.insert(0, "run", pd.Series(label, index=links.index))
        row = {"run": run, **self.sources, **window._asdict()}
        sources = pd.DataFrame([row], columns=list(SOURCE_COLUMNS))
        for column in ("run", "strategy", "whole_because"):
            sources[column] = pd.Categorical(sources[column])
        killed = None if self.killed is None else self.killed.plain()
        return Timeline(phase_table(run, self.rows), links, sources, killed)


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


def reporter(
    progress: Callable[[float], None] | None, before: int, total: int
) -> Callable[[int], None]:
    """What tells ``progress`` the share of ``total`` iterations that is done."""
    if progress is None:
        return lambda _: None
    return lambda done: progress((before + done) / total)


def _until(thinning: Thinning, plan: EpochPlan, epoch: Epoch) -> Thinning:
    """As if iterations after the end of a job had been left out of the plan."""
    if epoch.killed is None:
        return thinning
    lost, samples = plan.iterations - epoch.done, thinning.scenario.workload.dataset.num_samples
    share = epoch.done / plan.iterations
    return Thinning(thinning.scenario, -lost, share, round(share * samples))


def _sources(
    scenario: Scenario, plan: EpochPlan, thinning: Thinning, epoch: Epoch, staged: Staged
) -> dict[str, Any]:
    """Where the bytes of an epoch come from: what was left out is like what was not."""
    costs = None if epoch.exchange is None else epoch.exchange.costs
    trained = int(plan.training.samples.sum())
    sent, factor = thinning.sent_factor(plan.epoch), thinning.factor
    read = {"pfs": 0.0, "ssd": 0.0, "memory": 0.0, "object_store": 0.0}
    requests, opens = {"pfs": 0.0, "ssd": 0.0, "object_store": 0.0}, 0.0
    passes = [(epoch.loaders, thinning.read_factor(trained))]
    if epoch.measuring is not None:
        passes.append((epoch.measuring.loaders, factor))
    for loaders, times in passes:
        sums = loaders.chains.sums
        for of, found in ((read, sums.nbytes), (requests, sums.requests)):
            for source in of:
                of[source] += times * found[source]
        opens += times * sums.file_opens
    if costs is not None:
        read["ssd"] += sent * costs.read_ssd
        read["memory"] += sent * costs.read_memory
        requests["ssd"] += sent * costs.read_requests
    written = costs is not None and scenario.workload.source != "memory"
    fraction, fetches = scenario.workload.exchange.fraction, plan.training.fetches
    return {
        "strategy": scenario.workload.exchange.kind,
        "world_size": scenario.world_size,
        "exchange_fraction": np.nan if fraction is None else fraction,
        "epoch": plan.epoch,
        "iterations": plan.iterations + thinning.left_out,
        "samples": round(trained * thinning.read_factor(trained)),
        "samples_moved": round(plan.exchange.samples_moved * sent),
        "nbytes_peer": sent * float(costs.sent.sum()) if costs else 0.0,
        **{f"nbytes_{source}": nbytes for source, nbytes in read.items()},
        "nbytes_cached": 0.0 if fetches is None else float(fetches.held_nbytes),
        "read_requests": round(requests["pfs"]),
        "read_requests_ssd": round(requests["ssd"]),
        "read_requests_object_store": round(requests["object_store"]),
        "file_opens": opens,
        "nbytes_ssd_written": sent * float(costs.received.sum()) if costs and written else 0.0,
        "staging_s": staged.seconds,
        "nbytes_staged": staged.nbytes,
        "read_requests_staged": round(staged.read_requests),
        "object_store_usd": _charge(scenario, requests, read, staged),
    }


def _charge(
    scenario: Scenario, requests: Mapping[str, float], read: Mapping[str, float], staged: Staged
) -> float:
    """US dollars for what an epoch, and its staging, ask of the object store."""
    store = scenario.cluster.object_store
    if store is None:
        return 0.0
    asked, nbytes = requests["object_store"], read["object_store"]
    if scenario.workload.staging.source == "object_store":
        asked, nbytes = asked + staged.read_requests, nbytes + staged.nbytes
    return store.charge(asked, nbytes)


class LinkStatistics:
    """Per-epoch differences of the network's link counters."""

    def __init__(self, resources: Resources, network: FluidNetwork) -> None:
        self._resources, self._network = resources, network
        self._before = network.links.copy()
        self._since = 0.0

    def close_epoch(self, epoch: int, now: float) -> pd.DataFrame:
        """What every link carried since the last call, as the links table of the epoch without
        the name of the run; ``now`` in s."""
        network, table = self._network, self._resources.links
        network.settle()
        after = network.links
        work = after["work"] - self._before["work"]
        used = np.flatnonzero(work > 0)
        elapsed = max(now - self._since, np.finfo(float).tiny)
        carried = pd.DataFrame(
            {
                "epoch": np.full(len(used), epoch, np.int16),
                "link": np.array(table.names, object)[used],
                "tier": _of_kinds(table.tiers, used),
                "capacity": table.capacity[used],
                "unit": _of_kinds(table.units, used),
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


def _of_kinds(names: list[str], used: NDArray[np.intp]) -> pd.Categorical:
    """The names of the links ``used``; made of them, not of codes, pandas would copy all of them
    into strings of Arrow."""
    kinds, codes = np.unique(np.array(names, object)[used], return_inverse=True)
    return pd.Categorical.from_codes(codes, pd.Index(kinds))

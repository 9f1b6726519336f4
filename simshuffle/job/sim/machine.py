"""The cluster on which the epochs of one run are simulated, one after the other."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.models import shared_network
from simshuffle.job.lowering.read_requests import read_sums
from simshuffle.job.lowering.staging import staging_traffic
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.recovery import stop_after
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.thinning import Thinning
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Workload
from simshuffle.job.sim.checkpoints import Killed
from simshuffle.job.sim.epoch import Epoch
from simshuffle.job.sim.recorder import Recorder
from simshuffle.job.sim.served import Served, ServerWatch
from simshuffle.job.sim.simulation import Loaders, MachinePart, Simulation, own_machine
from simshuffle.report.timeline import SOURCE_COLUMNS, Timeline, WindowRow, phase_table
from simshuffle.spec.arrays import Flags, Floats

Progress = Callable[[float], None]
"""Called with the share that is done, from 0 to 1."""


@dataclass(frozen=True)
class Staged:
    """The seconds of staging, until the last host has its copy, and what it read from
    the PFS or the object store: ``nbytes`` bytes by ``read_requests`` requests.
    """

    seconds: float
    nbytes: float
    read_requests: float


NOTHING = Staged(0.0, 0.0, 0.0)


def stage(
    workload: Workload,
    resources: Resources,
    shard_nbytes: Floats,
    tolerance: float = 0.0,
    only: Flags | None = None,
) -> Staged:
    """Simulate the copying of what the workload keeps on the hosts; `NOTHING` if
    nothing is staged.

    It has a fluid network of its own, without other traffic or faults. The clock of a
    run does not advance.

    Args:
        workload: says what is staged.
        resources: of the run.
        shard_nbytes: (M,) bytes of every rank's shard.
        tolerance: share of its work with which a transfer may end early.
        only: (M,) ranks that copy; None for all.
    """
    traffic = staging_traffic(workload, resources, shard_nbytes, only)
    if traffic is None:
        return NOTHING
    count, width = traffic.batch.routes.shape
    no_cables = np.zeros(len(traffic.links), bool)
    # the kernel that the run needs as well, and not `Fluid.finish_times`, which is another
    network = shared_network(
        Fluid(tolerance=tolerance), traffic.links, no_cables, width=width, tags=count
    )
    network.post(0.0, traffic.batch)
    network.advance(np.inf)
    seconds = float(network.finish[:count].max())
    return Staged(seconds, traffic.nbytes, traffic.read_requests)


STAGED = 0.1
"""Share of the tolerance of time that staging may use up, in which hosts end one after
another.
"""


@dataclass(frozen=True)
class Running:
    """An epoch that has begun."""

    epoch: Epoch
    thinning: Thinning
    staged: Staged  # before it; `NOTHING` if that was before an earlier one
    watch: ServerWatch | None  # None unless iterations are left out
    begin: float  # s of simulated time


class SimulatedMachine:
    """A cluster with its network and its clock. Epochs are simulated on it one after
    the other, from ``begin`` (s) on.

    It is the ``part`` that a job has of a shared machine, or else a machine of its own:
    other arguments are as of `own_machine`, and errors as of that and `Simulation`.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorder: Recorder | None = None,
        *,
        struck: list[dict[str, Any]] | None = None,
        begin: float = 0.0,
        part: MachinePart | None = None,
    ) -> None:
        self.scenario = scenario
        self._simulation = Simulation(
            scenario,
            part or own_machine(scenario, recorder, struck=struck, begin=begin),
        )
        self._env = self._simulation.clock.env
        self._resources = self._simulation.resources
        self._links = self._simulation.links
        self._begin = begin
        self._stage: Staged | None = None

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts of the run, each once, in the order of its ranks."""
        return self._resources.hosts

    def read_again(self, shard_nbytes: Floats, ranks: Flags) -> Staged:
        """Return what it takes to stage again what the hosts of some ``ranks`` keep,
        while nothing else goes on; `NOTHING` without ranks. The clock stands still.

        ``shard_nbytes`` is (M,) bytes, and ``ranks`` (M,) whether a rank reads again.
        """
        if not ranks.any():
            return NOTHING
        workload = self.scenario.workload
        return stage(workload, self._resources, shard_nbytes, only=ranks)

    def loaders(self, plan: EpochPlan) -> Loaders:
        """Return new loaders of the training of an epoch, which have loaded nothing."""
        return self._simulation.loaders(plan.training, "read", plan.epoch)

    def epoch(
        self,
        plan: EpochPlan,
        loaders: Loaders,
        thinning: Thinning,
        progress: Callable[[int], None],
        *,
        until: float = math.inf,
        first: int = 0,
    ) -> SimulatedEpoch:
        """Simulate an epoch; arguments as of `Epoch`. It is broken off at ``until`` (s
        of simulated time) if it is not over by then. ``first`` of its iterations were
        done before, and are not in the plan.

        The machine is of no use after an epoch that was broken off or whose job was
        killed.
        """
        checkpoints = self._simulation.checkpoints
        if checkpoints is not None:
            checkpoints.first = first
        running = self.begin(plan, loaders, thinning, progress)
        env = self._env
        process = env.process(running.epoch.run())
        with without_cycle_collection():
            if until == math.inf:
                env.run(until=process)
            elif until > env.now:
                env.run(until=process | env.timeout(until - env.now))
        if not process.triggered:
            running.epoch.break_off()
        return replace(self.end(running), over=process.triggered)

    def begin(
        self,
        plan: EpochPlan,
        loaders: Loaders,
        thinning: Thinning,
        progress: Callable[[int], None],
    ) -> Running:
        """Begin an epoch now; arguments as of `Epoch`.

        Stages before the first one. The caller runs ``epoch.run`` of the result as a
        process, and then calls `end`.
        """
        recorder = self._simulation.recorder
        staged = self._stage_once(
            plan, thinning
        )  # its copy of all sizes is gone after it
        watch = self._watch(plan, loaders, thinning)
        report_iteration = progress if watch is None else watch.wrap_progress(progress)
        epoch = Epoch(
            self._simulation,
            plan,
            loaders,
            progress=report_iteration,
            thinning=thinning,
        )
        self._links.open_epoch(begin := self._env.now)
        if recorder is not None:
            recorder.begin(begin)
        return Running(epoch, thinning, staged, watch, begin)

    def end(self, running: Running) -> SimulatedEpoch:
        """Return the epoch that has just run, as far as it did.

        Closes its links table and its record. Call it once: it uses up the rows.
        """
        recorder = self._simulation.recorder
        now = self._env.now
        if recorder is not None:
            recorder.end(now)
        epoch = running.epoch
        plan = epoch.plan
        if epoch.iterations_done < plan.iterations:
            plan = stop_after(
                plan, epoch.iterations_done, epoch.loaders.requested_batches
            )
        return SimulatedEpoch(
            rows=epoch.rows(),
            links=self._links.close_epoch(plan.epoch, now),
            sources=_sources(
                self.scenario, plan, running.thinning, epoch, running.staged
            ),
            begin=running.begin,
            end=now,
            measured_spread=epoch.measured_spread,
            served=None if running.watch is None else running.watch.summarise(),
            killed=epoch.killed,
            iterations_done=epoch.iterations_done,
            saved=epoch.saved,
        )

    def _watch(
        self, plan: EpochPlan, loaders: Loaders, thinning: Thinning
    ) -> ServerWatch | None:
        """Return the watch over the servers of a thinned epoch.

        None where no iterations are left out, or an inference pass reads as well.
        """
        if not thinning.left_out or plan.inference is not None:
            return None
        return ServerWatch(
            self._simulation.clock,
            self._resources,
            loaders.chains,
            thinning.read_factor(int(plan.training.samples.sum())),
        )

    def _stage_once(self, plan: EpochPlan, thinning: Thinning) -> Staged:
        """Stage before the first epoch, once; return what that took.

        `NOTHING` for later epochs, and on a machine that begins after 0 s. Of a thinned
        epoch the shards of the whole data set are staged, as they are expected.
        """
        if plan.epoch > 1 or self._begin > 0:
            return NOTHING
        if self._stage is None:  # a longer window of the epoch stages the same
            shards = plan.shards.sums(plan.nbytes)
            # sums of so many times as many samples differ by the square root of that
            factor = thinning.factor
            expected_shards = shards * factor + (shards - shards.mean()) * (
                factor**0.5 - factor
            )
            tolerance = STAGED * self.scenario.time_tolerance
            self._stage = stage(
                self.scenario.workload, self._resources, expected_shards, tolerance
            )
        return self._stage


@dataclass(frozen=True)
class SimulatedEpoch:
    """An epoch that is over or was broken off."""

    rows: list[dict[str, NDArray[Any]]]  # of its phases, as `Epoch.rows`
    links: pd.DataFrame  # its links table, without the name of the run
    # its row of that table, by column, as if all iterations had been simulated
    sources: dict[str, Any]
    # begin, end: of simulated time (s)
    begin: float
    end: float
    measured_spread: float = 0.0  # see `Epoch.measured_spread`
    served: Served | None = None  # what the busiest server did; None if not watched
    killed: Killed | None = None  # by what the job was ended in it, if it was
    over: bool = True  # false if it was broken off; true if the job was killed
    iterations_done: int = 0  # of the plan, by all ranks; with that of a killed save
    saved: int = -1  # of them those that its last checkpoint has; -1 if it made none

    def timeline(self, run: str, window: WindowRow, earlier: float = 0.0) -> Timeline:
        """Return the tables of the epoch under the name ``run``; only once, since it
        uses up the rows.

        ``earlier`` s before it belong to no epoch: they are taken off the times of
        phases, down to 0 s at least. Events have ``killed`` if the job was.
        """
        if earlier:
            for part in self.rows:
                for bound in ("start_s", "end_s"):
                    part[bound] = np.maximum(
                        part[bound] - earlier, 0.0
                    )  # whatever rounding says
        links = self.links.copy(deep=False)
        label = pd.Categorical.from_codes(
            np.zeros(len(links), np.int8), pd.Index([run])
        )
        links.insert(0, "run", pd.Series(label, index=links.index))
        row = {"run": run, **self.sources, **window._asdict()}
        sources = pd.DataFrame([row], columns=list(SOURCE_COLUMNS))
        for column in ("run", "strategy", "whole_because"):
            sources[column] = pd.Categorical(sources[column])
        events = {} if self.killed is None else {"killed": [asdict(self.killed)]}
        return Timeline(phase_table(run, self.rows), links, sources, events)


def with_loaders(
    machine: SimulatedMachine, plans: Iterator[EpochPlan]
) -> Iterator[tuple[EpochPlan, Loaders]]:
    """Yield each plan with its loaders.

    Where loaders go on into the next epoch, plan one epoch ahead; ``plans`` must then
    have at least one.
    """
    # a map holds none of them
    planned = map(lambda plan: (plan, machine.loaders(plan)), plans)  # noqa: C417
    if not machine.scenario.workload.loader.across_epochs:
        yield from planned
        return
    plan, loaders = next(planned)
    for next_plan, next_loaders in planned:
        loaders.followed_by(next_loaders)
        yield plan, loaders
        plan = next_plan
        loaders = next_loaders
    yield plan, loaders


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Keep Python from searching for reference cycles: a run leaves none, and the
    search takes a sixth of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def reporter(
    progress: Progress | None, iterations_before: int, total: int
) -> Callable[[int], None]:
    """Return a function that takes the iterations done in an epoch, adds
    ``iterations_before``, and reports their share of ``total`` to ``progress``, if any.
    """
    if progress is None:
        return lambda _: None
    return lambda iterations_done: progress(
        (iterations_before + iterations_done) / total
    )


def _sources(
    scenario: Scenario,
    plan: EpochPlan,
    thinning: Thinning,
    epoch: Epoch,
    staged: Staged,
) -> dict[str, Any]:
    """Return the row of table `sources` of an epoch, as if it had been simulated whole.

    Iterations that were left out are like those that were not. Of an epoch that was
    broken off ``plan`` has the part that was done. Keys are those of `SOURCE_COLUMNS`
    without ``run`` and the columns of the window. ``exchange_fraction`` is nan for
    strategies without one; ``nbytes_cached`` is not scaled.
    """
    workload = scenario.workload
    costs = None if epoch.exchange is None else epoch.exchange.costs
    training = epoch.loaders.chains.sums
    if epoch.iterations_done < plan.iterations:
        training = read_sums(plan.training, workload)
        costs = None if costs is None else costs.truncate(epoch.iterations_done)
    trained = int(plan.training.samples[: epoch.iterations_done].sum())
    sent = thinning.sent_factor(plan.epoch)
    read_factor = thinning.read_factor(trained) if trained else 1.0
    passes = [(training, read_factor)]
    if epoch.measuring is not None:
        passes.append((epoch.measuring.loaders.chains.sums, thinning.factor))
    read = {
        source: sum(factor * sums.nbytes[source] for sums, factor in passes)
        for source in training.nbytes
    }
    requests = {
        source: sum(factor * sums.requests[source] for sums, factor in passes)
        for source in training.requests
    }
    sent_nbytes = written_nbytes = 0.0
    if costs is not None:
        read["ssd"] += sent * costs.read_ssd
        read["memory"] += sent * costs.read_memory
        requests["ssd"] += sent * costs.read_requests
        sent_nbytes = sent * float(costs.sent.sum())
        if workload.source != "memory":
            written_nbytes = sent * float(costs.received.sum())
    fraction = workload.exchange.fraction
    fetches = plan.training.fetches
    return {
        "strategy": workload.exchange.kind,
        "world_size": scenario.world_size,
        "exchange_fraction": np.nan if fraction is None else fraction,
        "epoch": plan.epoch,
        "iterations": epoch.iterations_done + thinning.left_out,
        "samples": round(trained * read_factor),
        "samples_moved": round(plan.exchange.samples_moved * sent),
        "nbytes_peer": sent_nbytes,
        **{f"nbytes_{source}": nbytes for source, nbytes in read.items()},
        "nbytes_cached": 0.0 if fetches is None else float(fetches.held_nbytes),
        "read_requests": round(requests["pfs"]),
        "read_requests_ssd": round(requests["ssd"]),
        "read_requests_object_store": round(requests["object_store"]),
        "file_opens": sum(factor * sums.file_opens for sums, factor in passes),
        "nbytes_ssd_written": written_nbytes,
        "staging_s": staged.seconds,
        "nbytes_staged": staged.nbytes,
        "read_requests_staged": round(staged.read_requests),
        "object_store_usd": _charge(scenario, requests, read, staged),
    }


def _charge(
    scenario: Scenario,
    requests: Mapping[str, float],
    read: Mapping[str, float],
    staged: Staged,
) -> float:
    """Return US dollars for what the object store served to an epoch and its staging.

    ``requests`` and ``read`` (bytes) are by source. 0 without an object store; staging
    from elsewhere is free.
    """
    store = scenario.cluster.object_store
    if store is None:
        return 0.0
    request_count = requests["object_store"]
    nbytes = read["object_store"]
    if scenario.workload.staging.source == "object_store":
        request_count += staged.read_requests
        nbytes += staged.nbytes
    return store.charge(request_count, nbytes)

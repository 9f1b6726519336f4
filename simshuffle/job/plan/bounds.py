"""Lower bounds of an epoch, resource by resource, before anything is simulated: no
clock, no draws.

Every bound holds in the mean; where all ranks wait for the slowest, that is the
expected largest of as many draws. Left out are contention on cables, and waiting for
one another at shared devices.

N samples, M ranks, b samples a batch, Q the exchange fraction, I iterations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.job.plan.allreduce_alone import allreduce_alone
from simshuffle.job.plan.exchange_bound import (
    ExchangeBound,
    exchange_bound,
    expected_largest,
    moving_share,
    sample_seconds,
    step_seconds,
)
from simshuffle.job.plan.reading_bounds import SSD, reading_bounds
from simshuffle.job.scenario.scenario import Scenario

MOST_RANKS = 10**6
"""Number of ranks above which allreduces have no bound: too many flows to list."""


@dataclass(frozen=True)
class Compute:
    """Computing of a rank in an epoch: its forward and backward passes and updates."""

    given: float  # s that the step times say
    hooks: float  # s that summing the gradients beside the backward pass adds to it
    jitter: float  # s of waiting for the slowest rank
    # s by which gradients that travel slow the backward pass, each allreduce as if it were alone;
    # in no bound, as what is slowed down hides more of them
    slowed: float


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the last epoch of a run, which is the most like a steady one."""

    iterations: int  # of the epoch
    passes: Compute  # all of them, and the updates
    allreduce: float  # s of all allreduces
    exchange: ExchangeBound  # of samples
    importance: float  # s of the pass that measures importance; 0 without
    first_batch: float  # s until every rank has its first batch
    last_batch: float  # s from the last byte of the epoch to its end
    # s of each resource through which the samples come, by its name
    resources: dict[str, float]

    @property
    def compute(self) -> float:
        """Seconds of a rank's passes and updates in the epoch, with hooks and jitter.

        `Compute.slowed` is not among them.
        """
        return self.passes.given + self.passes.hooks + self.passes.jitter

    @property
    def steps(self) -> float:
        """Seconds of all iterations of a rank that never waits for data.

        Only the part of the exchange that is not hidden counts.
        """
        return (
            self.compute + self.allreduce + self.exchange.seconds - self.exchange.hidden
        )

    @property
    def loop(self) -> float:
        """Seconds of a rank's training loop: its first batch, its iterations without
        waits for data, and the pass that measures importance.
        """
        return self.first_batch + self.steps + self.importance

    @property
    def epoch(self) -> float:
        """Least seconds of the epoch: the seconds of the loop, or, if longer, of the
        slowest resource and the last batch.
        """
        return max(self.loop, max(self.resources.values()) + self.last_batch)

    @property
    def bottleneck(self) -> str:
        """Name of what takes longest: a key of ``resources``, or a part of the loop.

        It is the slowest resource if that and the last batch take longer than the loop.
        Otherwise it is the longest of 'compute', 'allreduce', 'exchange', 'importance
        pass' and 'first batch'. Here the hidden part of the exchange counts, too.
        """
        slowest = max(self.resources, key=lambda name: self.resources[name])
        if self.resources[slowest] + self.last_batch > self.loop:
            return slowest
        parts = {
            "compute": self.compute,
            "allreduce": self.allreduce,
            "exchange": self.exchange.seconds,
            "importance pass": self.importance,
            "first batch": self.first_batch,
        }
        return max(parts, key=lambda name: parts[name])


def bounds(scenario: Scenario) -> Bounds:
    """Return the lower bounds of a scenario's last epoch.

    All ranks wait for the slowest of M at every allreduce, by jitter, which is left out
    of the last batch. Where training is divided otherwise than by data, updates,
    allreduces and their hooks, and the fixed seconds of a step are left out. A loader
    that goes on across epochs has loaded the first batches in the epoch before: their
    time is 0, and the resources serve only the rest of the epoch.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    iterations = workload.iterations(world_size, scenario.epochs)
    samples, last = _samples(scenario, iterations)
    times = scenario.step_times
    overlap = workload.allreduce.overlap
    slowest = expected_largest(world_size, workload.jitter.compute)
    fixed_seconds = times.fixed_seconds + times.update
    passes = 1.0
    update_seconds = times.update
    hooks = overlap.hooks
    if not workload.parallelism.is_data_parallel:
        fixed_seconds = 0.0
        hooks = 0.0
        update_seconds = 0.0
        passes = min(1.0, getattr(workload.parallelism, "compute_factor", 1.0))
    waiting = (iterations - 1) * step_seconds(scenario) * (slowest - 1.0)
    reduced = allreduce_seconds(scenario)
    shard = workload.dataset.num_samples / world_size
    inference = float(times.inference_of(np.asarray(shard * workload.mean_work)))
    exchange = exchange_bound(scenario, iterations, reduced)
    first, resources = reading_bounds(scenario, samples, iterations)
    if (
        workload.loader.across_epochs and scenario.epochs > 1
    ):  # the epoch before has loaded those
        first = 0.0
        remaining_share = max(1.0 - workload.loader.prefetch / iterations, 0.0)
        resources = {
            name: remaining_share * seconds for name, seconds in resources.items()
        }
    if workload.source == "ssd":
        stored = (
            exchange.samples * moving_share(scenario) * workload.dataset.stored.mean
        )
        ranks = scenario.cluster.ranks_per_host(world_size)
        resources[SSD] += ranks * scenario.cluster.ssd.write_seconds(stored)
    return Bounds(
        iterations=iterations,
        passes=Compute(
            given=passes * samples * sample_seconds(scenario)
            + iterations * fixed_seconds,
            hooks=iterations * hooks,
            jitter=passes * waiting,
            slowed=iterations * _slowdown_seconds(scenario),
        ),
        allreduce=iterations * reduced,
        exchange=exchange,
        importance=inference if workload.exchange.inference_pass else 0.0,
        first_batch=first,
        last_batch=last * passes * sample_seconds(scenario) + reduced + update_seconds,
        resources=resources,
    )


def _samples(scenario: Scenario, iterations: int) -> tuple[float, int]:
    """Return the mean samples of a rank in the epoch, and the fewest of a rank in its
    last batch, which may be 0.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    full_samples = iterations * workload.local_batch_size
    if workload.last_batch == "carry":
        return float(full_samples), workload.local_batch_size
    smallest, larger = divmod(workload.dataset.num_samples, world_size)
    trained = min(smallest, full_samples)
    mean = trained + (min(smallest + 1, full_samples) - trained) * larger / world_size
    return mean, max(trained - full_samples + workload.local_batch_size, 0)


def allreduce_seconds(scenario: Scenario) -> float:
    """Least time (s) that the allreduces of an iteration show: latency, then the
    longest chain of flows as if each were alone.

    Of allreduces that overlap with the backward pass, the last part always shows. With
    DDP all that lasts longer than the pass shows, too. Horovod may fuse the parts
    before the last, which are left out. 0 for one rank or more than `MOST_RANKS`, for
    domains whose hosts or order are drawn or named, and where training is divided
    otherwise than by data.
    """
    model = scenario.workload.model
    overlap = scenario.workload.allreduce.overlap
    if not _has_allreduce_bound(scenario):
        return 0.0
    if overlap.kind == "none":
        return allreduce_alone(scenario, model.gradient_size)
    parts = overlap.parts(model.gradient_arrival)[:, 0].tolist()
    # Horovod may fuse all that comes before the last layer
    total_seconds = sum(
        allreduce_alone(scenario, nbytes)
        for nbytes in (parts if overlap.kind == "ddp" else [])
    )
    return max(
        allreduce_alone(scenario, parts[-1]),
        total_seconds - _backward_seconds(scenario),
    )


def allreduce_seconds_alone(scenario: Scenario) -> float:
    """Least time (s) that the allreduces of an iteration take, one after the other,
    whether computing hides them or not.

    With Horovod, which may fuse all, it is one allreduce of the whole gradient. 0 where
    the allreduce has no bound, as for `allreduce_seconds`.
    """
    model = scenario.workload.model
    overlap = scenario.workload.allreduce.overlap
    if not _has_allreduce_bound(scenario):
        return 0.0
    if overlap.kind != "ddp":  # Horovod may fuse all
        return allreduce_alone(scenario, model.gradient_size)
    sizes = overlap.parts(model.gradient_arrival)[:, 0].tolist()
    return sum(allreduce_alone(scenario, nbytes) for nbytes in sizes)


def _slowdown_seconds(scenario: Scenario) -> float:
    """Return the seconds by which the backward pass of an iteration is longer because
    gradients travel beside it.

    Ranks are taken to begin the pass together, and each allreduce to be alone on the
    network. 0 without overlap, and where the allreduce has no bound.
    """
    overlap = scenario.workload.allreduce.overlap
    if (
        overlap.kind == "none"
        or not overlap.slowdown
        or not _has_allreduce_bound(scenario)
    ):
        return 0.0
    backward = _backward_seconds(scenario) + overlap.hooks
    rate = 1.0 - overlap.slowdown
    arrival = scenario.workload.model.gradient_arrival
    pass_seconds = travel_seconds = (
        0.0  # s of the pass, and s in which gradients travelled meanwhile
    )
    for nbytes, share in overlap.messages(
        arrival, backward, scenario.world_size
    ).tolist():
        pass_seconds = max(pass_seconds, share * backward)
        travelled = min(
            allreduce_alone(scenario, nbytes), (backward - pass_seconds) / rate
        )
        pass_seconds += rate * travelled
        travel_seconds += travelled
    return overlap.slowdown * travel_seconds


def _has_allreduce_bound(scenario: Scenario) -> bool:
    """Return whether the allreduce has a bound: training is divided by data over 2 to
    `MOST_RANKS` ranks, and no domains have hosts or an order that are drawn or named.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    drawn = (
        workload.allreduce.order == "shuffled"
        or scenario.cluster.placement != "compact"
    )
    unknown = drawn and scenario.cluster.topology.domains is not None
    return (
        workload.parallelism.is_data_parallel
        and not unknown
        and 1 < world_size <= MOST_RANKS
    )


def _backward_seconds(scenario: Scenario) -> float:
    """Return the mean seconds of the backward pass of a batch, or of a shard that is
    smaller.
    """
    workload = scenario.workload
    batch = min(
        workload.dataset.num_samples / scenario.world_size, workload.local_batch_size
    )
    return float(
        scenario.step_times.backward_of(np.asarray(batch * workload.mean_work))
    )

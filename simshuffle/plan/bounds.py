"""Lower bounds of an epoch, resource by resource, before anything is simulated: no clock, no draws.

Every bound holds in the mean; where all ranks wait for the slowest, that is the expected largest of
as many draws. Left out are contention on cables, and waiting for one another at shared devices.

N samples, M ranks, b samples a batch, Q the exchange fraction, I iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simshuffle.exchange.schedule import (
    MessageSchedule,
    Pairing,
    epoch_quota,
    spread_over_iterations,
)
from simshuffle.plan.allreduce_alone import allreduce_alone
from simshuffle.plan.reading_bounds import SSD, reading_bounds
from simshuffle.scenario.host_work import barrier_seconds, host_work, payload_nbytes
from simshuffle.scenario.scenario import Scenario


@dataclass(frozen=True)
class ExchangeBound:
    """What the exchange of an epoch takes of the training loop of every rank, in s."""

    samples: int = 0  # that a rank sends
    messages: int = 0  # in which they travel
    sending: int = 0  # iterations after which samples are sent
    # of the loop's thread (`simshuffle.scenario.host_work`), and of the device that stores samples
    work: float = 0.0
    # where all ranks meet, for the one with the largest sample, or for those of the fullest host,
    # which share the device that stores what they receive
    waiting: float = 0.0
    barriers: float = 0.0  # latencies of the barriers
    wire: float = 0.0  # of messages that nothing hides

    @property
    def seconds(self) -> float:
        """All of it (s)."""
        return self.work + self.waiting + self.barriers + self.wire


MOST_STEPS = 10**7
"""Samples that a rank sends, or iterations, which are counted one by one."""


def exchange_bound(scenario: Scenario, iterations: int) -> ExchangeBound:
    """Least time that the exchange of the last epoch takes of the training loops.

    A rank sends Q N/M samples, Q b after an iteration (docs/model-exchange.md). In an iteration
    that sends, ranks meet at the next allreduce at the latest, so the largest sample of all ranks
    counts once (or, if that is longer, storing by the r ranks of a host one after the other); with
    a barrier before every message, once a message. The wire counts only without ``overlap``: then
    the last message's. Reading what is sent from the device is left out.
    """
    exchange, world_size = scenario.workload.exchange, scenario.world_size
    schedule, fraction = exchange.exchange_schedule, exchange.fraction
    dataset = scenario.workload.dataset
    if schedule is None or not fraction:
        return ExchangeBound()
    quota = epoch_quota(fraction, dataset.num_samples, world_size, scenario.epochs)
    if not quota:
        return ExchangeBound()
    rate = fraction * scenario.workload.local_batch_size
    sending, messages, draws = _counts(schedule, quota, rate, iterations)
    moving, work = moving_share(scenario), host_work(schedule, dataset)
    sized = work.decode + work.pickle  # in proportion to the sample, as is storing it
    stored = work.write + _store_seconds(scenario)
    each = work.read + work.zero_buffer + sized + stored + work.remove
    spread = dataset.stored.spread / dataset.stored.mean
    excess = expected_largest(max(1, round(moving * world_size)), spread) - 1.0
    met = messages - sending if schedule.barriers == "message" else 0
    once = max(max(sized, stored) * excess, _crowding(scenario, sized, quota / sending))
    # in an iteration that sends they wait for the slowest compute anyway
    jitter = expected_largest(world_size, scenario.workload.jitter.compute) - 1.0
    once = max(once - step_seconds(scenario) * jitter, 0.0)
    # and once for those whose last batch has a sample more
    unequal = min(once, sample_seconds(scenario)) * (dataset.num_samples % world_size > 0)
    barriers = {"message": messages + sending, "iteration": 2 * sending, "none": 0}
    passing, wire = scenario.cluster.message_passing, 0.0
    if moving and not schedule.overlap:
        nbytes = payload_nbytes(schedule, dataset)
        wire = sending * (passing.latency + nbytes / (passing.stream_bandwidth or math.inf))
    return ExchangeBound(
        samples=quota,
        messages=messages,
        sending=sending,
        work=moving * quota * each + draws * work.draw * world_size,
        waiting=met * sized * excess + sending * once - unequal,
        barriers=barriers[schedule.barriers] * barrier_seconds(scenario.cluster, world_size),
        wire=wire,
    )


_last_counts: list[tuple[tuple[MessageSchedule, int, float, int], tuple[int, int, int]]] = []
"""What `_counts` was asked last, and its answer: sensitivities ask again and again."""


def _counts(
    schedule: MessageSchedule, quota: int, rate: float, iterations: int
) -> tuple[int, int, int]:
    """Return `_count_sending`, looked up where the last question was the same."""
    for (known, *sizes), counts in _last_counts:
        if known is schedule and sizes == [quota, rate, iterations]:
            return counts
    counts = _count_sending(schedule, quota, rate, iterations)
    _last_counts[:] = [((schedule, quota, rate, iterations), counts)]
    return counts


def _count_sending(
    schedule: MessageSchedule, quota: int, rate: float, iterations: int
) -> tuple[int, int, int]:
    """Iterations after which ``quota`` samples are sent, ``rate`` after each; messages; draws of
    partners. Beyond `MOST_STEPS` no more messages than iterations are counted, and no draws."""
    if max(quota, iterations) > MOST_STEPS:
        sending = min(quota, iterations)
        return sending, sending, 0
    when = spread_over_iterations(quota, rate, iterations)
    draws = len(np.unique(schedule.pairing_of(when))) if isinstance(schedule, Pairing) else 0
    return len(np.unique(when)), len(np.unique(schedule.messages(when))), draws


def _crowding(scenario: Scenario, sized: float, samples: float) -> float:
    """Least time (s) that ranks wait for one another at the device of their host, when each stores
    ``samples`` samples.

    The first has sent and computed earlier than the mean by no more than the last later, as
    log-normal times lean to the right.
    """
    workload, size = scenario.workload, scenario.workload.dataset.stored
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    head_start = step_seconds(scenario) * (expected_largest(ranks, workload.jitter.compute) - 1.0)
    head_start += samples * sized * min(1.0, expected_largest(ranks, size.spread / size.mean) - 1.0)
    stored = moving_share(scenario) * samples * _store_seconds(scenario)
    return max((ranks - 1) * stored - head_start, 0.0)


def _store_seconds(scenario: Scenario) -> float:
    """Seconds in which the device stores a sample of mean size."""
    nbytes = scenario.workload.dataset.stored.mean
    if scenario.workload.source == "memory":
        return nbytes / scenario.cluster.memory.bandwidth
    return scenario.cluster.ssd.write_seconds(nbytes)


def moving_share(scenario: Scenario) -> float:
    """Share of the samples to be sent that surely leave their rank, in the mean.

    A random permutation of a group leaves one rank in place on average, a matching of an odd number
    one. Where pairs may exchange nothing (``least_difference``) none is sure to leave.
    """
    schedule, world_size = scenario.workload.exchange.exchange_schedule, scenario.world_size
    if schedule is None or world_size == 1:
        return 0.0
    groups = 1
    if isinstance(schedule, Pairing):
        if schedule.least_difference > 0.0:
            return 0.0
        groups = 1 if schedule.partner_scope == "all" else scenario.hosts
        if schedule.partner_rule != "random":
            return 1.0 - world_size % 2 / world_size
    return max(0.0, 1.0 - groups / world_size)


def step_seconds(scenario: Scenario) -> float:
    """s of the forward and backward pass of a batch, or of a shard that is smaller."""
    workload = scenario.workload
    shard = workload.dataset.num_samples / scenario.world_size
    batch = min(shard, workload.local_batch_size)
    return batch * sample_seconds(scenario) + scenario.step_times.fixed_seconds


def sample_seconds(scenario: Scenario) -> float:
    """s that a sample adds to the forward and backward pass of its batch."""
    return scenario.step_times.per_sample * scenario.workload.mean_work


@lru_cache(maxsize=256)
def expected_largest(count: int, spread: float) -> float:
    """Expected largest of ``count`` log-normal numbers of mean 1 and standard deviation ``spread``.

    By F(x)^count on a grid of the underlying normal variable; within 1e-4 for a spread up to 1.
    """
    if spread == 0.0 or count == 1:
        return 1.0
    variance = math.log1p(spread**2)
    edges = np.linspace(-9.0, 9.0, 3601)
    below = np.array([0.5 * math.erfc(-edge / math.sqrt(2.0)) for edge in edges.tolist()]) ** count
    middle = (edges[1:] + edges[:-1]) / 2.0
    values = np.exp(math.sqrt(variance) * middle - variance / 2.0)
    return float((np.diff(below) * values).sum())


MOST_RANKS = 10**6
"""Ranks whose flows are listed."""


@dataclass(frozen=True)
class Compute:
    """What the forward and backward passes and updates of a rank are made of, in an epoch."""

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
    # whether they may run while a rank exchanges samples, as those that overlap with the backward
    # pass do
    beside_exchange: bool
    exchange: ExchangeBound  # of samples
    importance: float  # s of the pass that measures importance; 0 without
    first_batch: float  # s until every rank has its first batch
    last_batch: float  # s from the last byte of the epoch to its end
    resources: dict[str, float]  # s of each resource through which the samples come, by its name

    @property
    def compute(self) -> float:
        """s of all forward and backward passes and updates."""
        return self.passes.given + self.passes.hooks + self.passes.jitter

    @property
    def steps(self) -> float:
        """s of all iterations of a rank that never waits for data."""
        after_compute = (self.allreduce, self.exchange.seconds)
        shown = max(after_compute) if self.beside_exchange else sum(after_compute)
        return self.compute + shown

    @property
    def loop(self) -> float:
        """s of the training loop of a rank that never waits for data after its first batch."""
        return self.first_batch + self.steps + self.importance

    @property
    def epoch(self) -> float:
        """s of the epoch, at least: the loop; or the slowest resource, and what follows it."""
        return max(self.loop, max(self.resources.values()) + self.last_batch)

    @property
    def bottleneck(self) -> str:
        """What takes longest: the slowest resource if it takes longer than the loop, else the
        largest part of the loop."""
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
    """The bounds of a scenario's last epoch.

    All wait for the slowest of M at every allreduce, by jitter, which is left out of the last
    batch. Where training is divided otherwise than by data only the passes count.
    """
    workload, world_size = scenario.workload, scenario.world_size
    iterations = workload.iterations(world_size, scenario.epochs)
    samples, last = _samples(scenario, iterations)
    times, overlap = scenario.step_times, workload.allreduce.overlap
    slowest = expected_largest(world_size, workload.jitter.compute)
    each_time, passes, after = times.fixed_seconds + times.update, 1.0, times.update
    hooks = overlap.hooks
    if not workload.parallelism.by_data:
        each_time, hooks, after = 0.0, 0.0, 0.0
        passes = min(1.0, getattr(workload.parallelism, "compute_factor", 1.0))
    waiting = (iterations - 1) * step_seconds(scenario) * (slowest - 1.0)
    reduced, shard = allreduce_seconds(scenario), workload.dataset.num_samples / world_size
    inference = float(times.inference_of(np.asarray(shard * workload.mean_work)))
    exchange = exchange_bound(scenario, iterations)
    first, resources = reading_bounds(scenario, samples, iterations)
    if workload.loader.across_epochs and scenario.epochs > 1:  # the epoch before has loaded those
        first = 0.0
        left = max(1.0 - workload.loader.prefetch / iterations, 0.0)
        resources = {name: left * seconds for name, seconds in resources.items()}
    if workload.source == "ssd":
        stored = exchange.samples * moving_share(scenario) * workload.dataset.stored.mean
        ranks = scenario.cluster.ranks_per_host(world_size)
        resources[SSD] += ranks * scenario.cluster.ssd.write_seconds(stored)
    return Bounds(
        iterations=iterations,
        passes=Compute(
            given=passes * samples * sample_seconds(scenario) + iterations * each_time,
            hooks=iterations * hooks,
            jitter=passes * waiting,
            slowed=iterations * _slowed(scenario),
        ),
        allreduce=iterations * reduced,
        beside_exchange=overlap.kind != "none",
        exchange=exchange,
        importance=inference if workload.exchange.inference_pass else 0.0,
        first_batch=first,
        last_batch=last * passes * sample_seconds(scenario) + reduced + after,
        resources=resources,
    )


def _samples(scenario: Scenario, iterations: int) -> tuple[float, int]:
    """Samples that a rank trains on in the epoch, in the mean; and in its last batch, at least."""
    workload, world_size = scenario.workload, scenario.world_size
    whole = iterations * workload.local_batch_size
    if workload.last_batch == "carry":
        return float(whole), workload.local_batch_size
    smallest, larger = divmod(workload.dataset.num_samples, world_size)
    trained = min(smallest, whole)
    mean = trained + (min(smallest + 1, whole) - trained) * larger / world_size
    return mean, max(trained - whole + workload.local_batch_size, 0)


def allreduce_seconds(scenario: Scenario) -> float:
    """Least time (s) that the allreduces of an iteration show: latency, then the longest chain of
    flows as if each were alone.

    Of what overlaps with the backward pass the last part always shows, and all that lasts longer
    than the pass. 0 for one rank or more than `MOST_RANKS`, for domains whose hosts or order are
    drawn or named, and where training is divided otherwise than by data.
    """
    model, overlap = scenario.workload.model, scenario.workload.allreduce.overlap
    if not _is_looked_at(scenario):
        return 0.0
    if overlap.kind == "none":
        return allreduce_alone(scenario, model.gradient_size)
    parts = overlap.parts(model.gradient_arrival)[:, 0].tolist()
    # Horovod may fuse all that comes before the last layer
    whole = sum(
        allreduce_alone(scenario, nbytes) for nbytes in (parts if overlap.kind == "ddp" else [])
    )
    return max(allreduce_alone(scenario, parts[-1]), whole - _backward(scenario))


def allreduce_seconds_alone(scenario: Scenario) -> float:
    """Least time (s) that the allreduces of an iteration take, one after the other, whatever hides
    them; 0 where `allreduce_seconds` says nothing."""
    model, overlap = scenario.workload.model, scenario.workload.allreduce.overlap
    if not _is_looked_at(scenario):
        return 0.0
    if overlap.kind != "ddp":  # Horovod may fuse all
        return allreduce_alone(scenario, model.gradient_size)
    sizes = overlap.parts(model.gradient_arrival)[:, 0].tolist()
    return sum(allreduce_alone(scenario, nbytes) for nbytes in sizes)


def _slowed(scenario: Scenario) -> float:
    """s by which the backward pass of an iteration is longer because gradients travel beside it.
    Ranks are taken to begin it together, each allreduce as if it were alone."""
    overlap = scenario.workload.allreduce.overlap
    if overlap.kind == "none" or not overlap.slowdown or not _is_looked_at(scenario):
        return 0.0
    backward, rate = _backward(scenario) + overlap.hooks, 1.0 - overlap.slowdown
    arrival = scenario.workload.model.gradient_arrival
    done = beside = 0.0  # s of the pass, and s in which gradients travelled meanwhile
    for nbytes, share in overlap.messages(arrival, backward, scenario.world_size).tolist():
        done = max(done, share * backward)
        travelled = min(allreduce_alone(scenario, nbytes), (backward - done) / rate)
        done += rate * travelled
        beside += travelled
    return overlap.slowdown * beside


def _is_looked_at(scenario: Scenario) -> bool:
    """Whether anything is said of the allreduce: see `allreduce_seconds`."""
    workload, world_size = scenario.workload, scenario.world_size
    drawn = workload.allreduce.order == "shuffled" or scenario.cluster.placement != "compact"
    unknown = drawn and scenario.cluster.topology.domains is not None
    return workload.parallelism.by_data and not unknown and 1 < world_size <= MOST_RANKS


def _backward(scenario: Scenario) -> float:
    """s of the backward pass of a batch, or of a shard that is smaller, in the mean."""
    workload = scenario.workload
    batch = min(workload.dataset.num_samples / scenario.world_size, workload.local_batch_size)
    return float(scenario.step_times.backward_of(np.asarray(batch * workload.mean_work)))

"""Lower bounds of what ranks do together: the exchange of samples, and waiting for the slowest (see
`simshuffle.plan.bounds`)."""

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
from simshuffle.plan.host_work import host_work, payload_nbytes
from simshuffle.scenario.scenario import Scenario


@dataclass(frozen=True)
class ExchangeBound:
    """What the exchange of an epoch takes of the training loop of every rank, in s."""

    samples: int  # that a rank sends
    messages: int  # in which they travel
    sending: int  # iterations after which samples are sent
    # of the loop's thread, as the schedule says (`simshuffle.plan.host_work`), and of the device
    # that stores what is received
    work: float
    # where all ranks meet, for the one with the largest sample, or for those of the fullest host,
    # which share the device that stores what they receive
    waiting: float
    barriers: float  # latencies of the barriers
    wire: float  # of messages that nothing hides

    @property
    def seconds(self) -> float:
        """All of it (s)."""
        return self.work + self.waiting + self.barriers + self.wire


MOST_STEPS = 10**7
"""Samples that a rank sends, or iterations, which are counted one by one."""
NO_EXCHANGE = ExchangeBound(0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def exchange_bound(scenario: Scenario, iterations: int) -> ExchangeBound:
    """Least time that the exchange of the last epoch takes of the training loops.

    A rank sends Q N/M samples, Q b after an iteration (docs/model-exchange.md). Of each it reads,
    zeroes, decodes, pickles, draws; of each that it receives it encodes and stores. In an iteration
    that sends, ranks meet at the next allreduce at the latest, so the largest sample of all ranks
    counts once (or, if that is longer, storing by the r ranks of a host one after the other); with
    a barrier before every message, once a message. A barrier takes ceil(log2 M) message latencies.
    The wire counts only without ``overlap``: then the last message's. Reading what is sent from the
    device is left out.

    ``iterations`` are those of the epoch.
    """
    exchange, world_size = scenario.workload.exchange, scenario.world_size
    schedule, fraction = exchange.exchange_schedule, exchange.fraction
    dataset = scenario.workload.dataset
    if schedule is None or not fraction:
        return NO_EXCHANGE
    quota = epoch_quota(fraction, dataset.num_samples, world_size, scenario.epochs)
    if not quota:
        return NO_EXCHANGE
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
        barriers=barriers[schedule.barriers] * barrier_seconds(scenario),
        wire=wire,
    )


def _counts(
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

    r of them take r times as long as one, from the moment when the first has sent and computed. The
    first is earlier than the mean by no more than the last is later, as log-normal times lean to
    the right.
    """
    workload, size = scenario.workload, scenario.workload.dataset.stored
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    head_start = step_seconds(scenario) * (expected_largest(ranks, workload.jitter.compute) - 1.0)
    head_start += samples * sized * min(1.0, expected_largest(ranks, size.spread / size.mean) - 1.0)
    stored = moving_share(scenario) * samples * _store_seconds(scenario)
    return max((ranks - 1) * stored - head_start, 0.0)


def barrier_seconds(scenario: Scenario) -> float:
    """Seconds of a barrier: ceil(log2 M) message latencies (dissemination: Hensgen, Finkel and
    Manber 1988)."""
    return math.ceil(math.log2(scenario.world_size)) * scenario.cluster.message_passing.latency


def _store_seconds(scenario: Scenario) -> float:
    """Seconds in which the device stores a sample of mean size."""
    nbytes = scenario.workload.dataset.stored.mean
    if scenario.workload.source == "memory":
        return nbytes / scenario.cluster.memory.bandwidth
    return scenario.cluster.ssd.write_seconds(nbytes)


def moving_share(scenario: Scenario) -> float:
    """Share of the samples to be sent that surely leave their rank, in the mean.

    A random permutation of a group of ranks leaves one of them in place on average, a matching of
    an odd number one. At most every host is a group of its own. Pairs that exchange nothing where
    importances are alike (``least_difference``) are not foreseen: then none is sure to.
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
    fixed = workload.model.accelerators[scenario.cluster.host.accelerator].fixed_seconds
    return min(shard, workload.local_batch_size) * sample_seconds(scenario) + fixed


def sample_seconds(scenario: Scenario) -> float:
    """s that a sample adds to the forward and backward pass of its batch."""
    times = scenario.workload.model.accelerators[scenario.cluster.host.accelerator]
    return times.per_sample * scenario.workload.mean_work


@lru_cache(maxsize=256)
def expected_largest(count: int, spread: float) -> float:
    """Expected largest of ``count`` log-normal numbers of mean 1 and standard deviation ``spread``.

    The integral of x over the distribution F(x)^count of the largest, on a grid of the underlying
    normal variable; within 1e-4 for a spread up to 1.
    """
    if spread == 0.0 or count == 1:
        return 1.0
    variance = math.log1p(spread**2)
    edges = np.linspace(-9.0, 9.0, 3601)
    below = np.array([0.5 * math.erfc(-edge / math.sqrt(2.0)) for edge in edges.tolist()]) ** count
    middle = (edges[1:] + edges[:-1]) / 2.0
    values = np.exp(math.sqrt(variance) * middle - variance / 2.0)
    return float((np.diff(below) * values).sum())

"""The least seconds that an exchange takes of the training loops of an epoch, by closed
forms.

N samples, M ranks, b samples a batch, Q the exchange fraction, I iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simshuffle.job.scenario.host_work import barrier_seconds, host_work, payload_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import lognormal_factor
from simshuffle.workload.exchange.schedule import (
    MessageSchedule,
    Pairing,
    epoch_quota,
    spread_over_iterations,
)


@dataclass(frozen=True)
class ExchangeBound:
    """The least seconds that the exchange of an epoch takes of the training loop of
    every rank; all 0 if nothing is exchanged.
    """

    samples: int = 0  # that a rank exchanges, with those that stay with it by chance
    messages: int = 0  # in which they travel
    sending: int = 0  # iterations after which samples are sent
    # of the loop's thread (`simshuffle.job.scenario.host_work`), and of the device that stores
    # samples
    work: float = 0.0
    # where all ranks meet, for the one with the largest sample, or for those of the fullest host,
    # which share the device that stores what they receive
    waiting: float = 0.0
    barriers: float = 0.0  # latencies of the barriers
    wire: float = 0.0  # of messages that nothing hides
    hidden: float = 0.0  # of all that, beside allreduces and waits for slower ranks

    @property
    def seconds(self) -> float:
        """Seconds of the exchange, hidden or not."""
        return self.work + self.waiting + self.barriers + self.wire


MOST_STEPS = 10**7
"""Samples that a rank sends, or iterations, which are counted one by one."""


def exchange_bound(
    scenario: Scenario, iterations: int, reduced: float
) -> ExchangeBound:
    """Least time that the exchange of the last epoch takes of the training loops.

    A rank sends Q N/M samples, Q b after an iteration (docs/model-exchange.md). In an
    iteration that sends, ranks meet at the next allreduce at the latest, so the largest
    sample of all ranks counts once (or, if that is longer, storing by the r ranks of a
    host one after the other); with a barrier before every message, once a message. The
    wire counts only without ``overlap``: then one sample of the last message. Reading
    what is sent from the device is left out.

    Args:
        scenario: with or without an exchange.
        iterations: of the epoch.
        reduced: s that the allreduces of an iteration show, from `allreduce_seconds`.

    Returns:
        The bound; all 0 without an exchange, or if the quota of the epoch is 0.
    """
    exchange = scenario.workload.exchange
    world_size = scenario.world_size
    schedule = exchange.exchange_schedule
    fraction = exchange.fraction
    dataset = scenario.workload.dataset
    if schedule is None or not fraction:
        return ExchangeBound()
    quota = epoch_quota(fraction, dataset.num_samples, world_size, scenario.epochs)
    if not quota:
        return ExchangeBound()
    rate = fraction * scenario.workload.local_batch_size
    sending, messages, draws = _counts(schedule, quota, rate, iterations)
    moving = moving_share(scenario)
    work = host_work(schedule, dataset)
    sized_seconds = (
        work.decode + work.pickle
    )  # in proportion to the sample, as is storing it
    stored = work.write + _store_seconds(scenario)
    sample_work = work.read + work.zero_buffer + sized_seconds + stored + work.remove
    spread = dataset.stored.spread / dataset.stored.mean
    excess = expected_largest(max(1, round(moving * world_size)), spread) - 1.0
    message_barriers = messages - sending if schedule.barriers == "message" else 0
    meeting_seconds = max(
        max(sized_seconds, stored) * excess,
        _device_wait_seconds(scenario, sized_seconds, quota / sending),
    )
    # in an iteration that sends they wait for the slowest compute anyway
    jitter = expected_largest(world_size, scenario.workload.jitter.compute) - 1.0
    meeting_seconds = max(meeting_seconds - step_seconds(scenario) * jitter, 0.0)
    # and once for those whose last batch has a sample more
    unequal = min(meeting_seconds, sample_seconds(scenario)) * (
        dataset.num_samples % world_size > 0
    )
    latency = barrier_seconds(scenario.cluster, world_size)
    meets = schedule.barriers != "none"
    received = moving * quota * stored / sending + meets * latency
    barriers = {"message": messages + sending, "iteration": 2 * sending, "none": 0}
    passing = scenario.cluster.message_passing
    wire = 0.0
    if moving and not schedule.overlap:
        nbytes = payload_nbytes(schedule, dataset)
        wire = sending * (
            passing.latency + nbytes / (passing.stream_bandwidth or math.inf)
        )
    return ExchangeBound(
        samples=quota,
        messages=messages,
        sending=sending,
        work=moving * quota * sample_work + draws * work.draw * world_size,
        waiting=message_barriers * sized_seconds * excess
        + sending * meeting_seconds
        - unequal,
        barriers=barriers[schedule.barriers] * latency,
        wire=wire,
        hidden=(sending - 1) * _hidden_receipt(scenario, received, reduced),
    )


def _hidden_receipt(scenario: Scenario, received: float, reduced: float) -> float:
    """Return the seconds of ``received``, in which a rank stores what came, that other
    work hides: allreduces beside the backward pass, and, unless ranks meet after they
    have stored, waits for slower ranks.

    Seconds are of one iteration, the mean of `ROUNDS` drawn ones. 0 if allreduces do
    not overlap the backward pass.
    """
    workload = scenario.workload
    schedule = scenario.workload.exchange.exchange_schedule
    if workload.allreduce.overlap.kind == "none" or schedule is None:
        return 0.0
    excess = max(received - reduced, 0.0)
    spread = workload.jitter.compute
    if excess == 0.0 or spread == 0.0 or schedule.barriers != "none":
        return received - excess
    # (ROUNDS, ranks): a row is one iteration of all ranks
    times = _compute_times(min(scenario.world_size, MOST_DRAWN), spread)
    lateness = np.zeros(times.shape[1])
    shown_seconds = 0.0
    step = step_seconds(scenario)
    for factors in times:
        ready = lateness + step * factors
        shown_seconds += float(ready.max() - step * factors.max())
        lateness = np.maximum(
            ready + excess - ready.max(), 0.0
        )  # behind those that waited
    return received - shown_seconds / len(times)


MOST_DRAWN, ROUNDS = 4096, 64
"""Ranks, and iterations, of which compute times are drawn."""


@lru_cache(maxsize=8)
def _compute_times(ranks: int, spread: float) -> Floats:
    """Return (`ROUNDS`, ranks) log-normal factors of mean 1, equal at each call; the
    array is cached, not to be changed.
    """
    return lognormal_factor(np.random.default_rng(0), spread, (ROUNDS, ranks))


_last_counts: list[
    tuple[tuple[MessageSchedule, int, float, int], tuple[int, int, int]]
] = []
"""The last arguments of `_counts` with its answer; sensitivities call it again and
again.
"""


def _counts(
    schedule: MessageSchedule, quota: int, rate: float, iterations: int
) -> tuple[int, int, int]:
    """Return `_count_sending`, looked up if the last call had these arguments."""
    for (known_schedule, *sizes), counts in _last_counts:
        if known_schedule is schedule and sizes == [quota, rate, iterations]:
            return counts
    counts = _count_sending(schedule, quota, rate, iterations)
    _last_counts[:] = [((schedule, quota, rate, iterations), counts)]
    return counts


def _count_sending(
    schedule: MessageSchedule, quota: int, rate: float, iterations: int
) -> tuple[int, int, int]:
    """Return the iterations that send, the messages, and the draws of partners of an
    epoch.

    ``quota`` samples are sent, ``rate`` after each iteration. Beyond `MOST_STEPS` no
    more messages than iterations are counted, and no draws. Draws are also 0 if the
    schedule does not say how partners are found.
    """
    if max(quota, iterations) > MOST_STEPS:
        sending = min(quota, iterations)
        return sending, sending, 0
    iteration_of_sample = spread_over_iterations(quota, rate, iterations)
    draws = (
        len(np.unique(schedule.pairing_of(iteration_of_sample)))
        if isinstance(schedule, Pairing)
        else 0
    )
    return (
        len(np.unique(iteration_of_sample)),
        len(np.unique(schedule.messages(iteration_of_sample))),
        draws,
    )


def _device_wait_seconds(scenario: Scenario, sized: float, samples: float) -> float:
    """Least time (s) that ranks wait for one another at the device of their host, when
    each stores ``samples`` samples. ``sized`` is the s that a rank's thread takes to
    decode and pickle a sample of mean size. 0 if they need not wait.

    The first has sent and computed earlier than the mean by no more than the last
    later, as log-normal times lean to the right.
    """
    workload = scenario.workload
    size = scenario.workload.dataset.stored
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    head_start = step_seconds(scenario) * (
        expected_largest(ranks, workload.jitter.compute) - 1.0
    )
    head_start += (
        samples
        * sized
        * min(1.0, expected_largest(ranks, size.spread / size.mean) - 1.0)
    )
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

    A random permutation of a group leaves one rank in place on average, a matching of
    an odd number one. Where pairs may exchange nothing (``least_difference``) none is
    sure to leave. Groups of a rack or leaf count as if each host were one. 0 for one
    rank, or without an exchange.
    """
    schedule = scenario.workload.exchange.exchange_schedule
    world_size = scenario.world_size
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
    """Return the seconds of the forward and backward pass of a batch of mean work, or
    of a shard that is smaller; without update and jitter.
    """
    workload = scenario.workload
    shard = workload.dataset.num_samples / scenario.world_size
    batch = min(shard, workload.local_batch_size)
    return batch * sample_seconds(scenario) + scenario.step_times.fixed_seconds


def sample_seconds(scenario: Scenario) -> float:
    """Return the seconds that a sample adds to the forward and backward pass of its
    batch.
    """
    return scenario.step_times.per_sample * scenario.workload.mean_work


@lru_cache(maxsize=256)
def expected_largest(count: int, spread: float) -> float:
    """Expected largest of ``count`` log-normal numbers of mean 1 and standard deviation
    ``spread``.

    By F(x)^count on a grid of the underlying normal variable; within 1e-4 for a spread
    up to 1. Exactly 1 for one number, or a spread of 0.
    """
    if spread == 0.0 or count == 1:
        return 1.0
    variance = math.log1p(spread**2)
    edges = np.linspace(-9.0, 9.0, 3601)
    below = (
        np.array([0.5 * math.erfc(-edge / math.sqrt(2.0)) for edge in edges.tolist()])
        ** count
    )
    middle = (edges[1:] + edges[:-1]) / 2.0
    values = np.exp(math.sqrt(variance) * middle - variance / 2.0)
    return float((np.diff(below) * values).sum())

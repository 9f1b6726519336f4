"""What is left of an epoch's plan when its hosts are lost: from an iteration on, read again by
other hosts, or divided among fewer ranks. Pure numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simshuffle.job.plan.epochs import EpochPlan, Reads
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange import ExchangePlan, Shards, empty_plan


def since(plan: EpochPlan, first: int) -> EpochPlan:
    """The iterations of a plan from ``first`` (from 0) on, which is fewer than it has."""
    if first == 0:
        return plan
    steps = plan.exchange.iteration >= first
    return replace(
        plan,
        shards=_slots(plan.shards, plan.training.samples[:first].sum(axis=0), plan.shards.sizes),
        exchange=_steps(plan.exchange, steps, first),
        training=_rows(plan.training, slice(first, None)),
        inference=None,
        sent_from_cache=plan.sent_from_cache[steps],
    )


def trained(plan: EpochPlan, iterations: int) -> Ints:
    """The samples of the first so many iterations, by rank."""
    return _slots(plan.shards, 0, plan.training.samples[:iterations].sum(axis=0)).order


def until(plan: EpochPlan, iterations: int, loaded: Ints64) -> EpochPlan:
    """What was done of a plan that was broken off: the exchange after so many ``iterations``, and
    the batches that each rank had asked for, (M,) ``loaded``, the others being empty."""
    steps = plan.exchange.iteration < iterations
    asked = np.arange(plan.iterations)[:, None] < loaded
    return replace(
        plan,
        exchange=_steps(plan.exchange, steps, 0),
        training=_masked(plan.training, asked),
        sent_from_cache=plan.sent_from_cache[steps],
    )


def cold(plan: EpochPlan, ranks: Flags) -> EpochPlan:
    """The same, where of the ``ranks`` (M,) nothing is in the page cache, since their host is
    another one."""
    training = plan.training
    hits = training.hit_samples * ~ranks, training.hit_nbytes * ~ranks
    sent = plan.sent_from_cache & ~ranks
    training = replace(training, hit_samples=hits[0], hit_nbytes=hits[1])
    return replace(plan, training=training, sent_from_cache=sent)


def with_fewer(plan: EpochPlan, left: Flags, batch_size: int, *, dealt: bool) -> EpochPlan:
    """The same by the ranks that are ``left``, (M,), which exchange nothing more in this epoch. If
    the samples of the others are ``dealt`` out, each that is left reads an even part of them after
    its own, in batches of at most ``batch_size``; else nobody does."""
    training, world_size = plan.training, int(left.sum())
    own = Reads(
        training.samples[:, left],
        training.nbytes[:, left],
        training.hit_samples[:, left],
        training.hit_nbytes[:, left],
        work=None if training.work is None else training.work[:, left],
    )
    samples = int(training.samples[:, ~left].sum()) if dealt else 0
    if samples:
        mean = float(training.nbytes[:, ~left].sum()) / samples
        own = _appended(own, _even(samples, world_size, batch_size), mean)
    nothing = empty_plan(world_size)
    return replace(
        plan,
        shards=Shards(plan.shards.order[:0], np.zeros(world_size + 1, np.int64)),  # not followed
        exchange=nothing,
        training=own,
        sent_from_cache=np.zeros(nothing.sample.shape, bool),
    )


def owners(exchange: ExchangePlan, owner: Ints, iterations: int, lost: Flags) -> tuple[Ints, Flags]:
    """Whose every sample is once an epoch has been broken off: (N,) ranks, and (N,) whether nobody
    has it any more.

    What was sent after the first ``iterations`` is with its receiver; what a lost rank had received
    is still with its sender, who removes it at the end of the epoch only. ``lost`` is (M,): ranks
    whose samples are gone with them; ``owner`` (N,) as when the epoch began.
    """
    done = exchange.iteration < iterations
    sample, target = exchange.sample[done], exchange.target[done]
    after = owner.copy()
    after[sample.ravel()] = target.ravel()
    sender = np.broadcast_to(np.arange(len(lost)), sample.shape)
    back = lost[target] & ~lost[sender]
    after[sample[back]] = sender[back]
    return after, np.asarray(lost[after])


def _slots(shards: Shards, begin: Ints | int, end: Ints) -> Shards:
    """From each rank's samples those from one place to another, (M,)."""
    low = np.minimum(begin, shards.sizes)
    high = np.minimum(end, shards.sizes)
    rank = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
    place = np.arange(len(shards.order)) - shards.start[:-1][rank]
    kept = (place >= low[rank]) & (place < high[rank])
    return Shards(
        shards.order[kept],
        np.concatenate([[0], np.cumsum(high - low)]),
        worker=None if shards.worker is None else shards.worker[kept],
    )


def _steps(plan: ExchangePlan, steps: Flags, first: int) -> ExchangePlan:
    draws = None if plan.draws is None else plan.draws[steps]
    iteration = plan.iteration[steps] - first
    return ExchangePlan(
        plan.sample[steps], plan.target[steps], iteration, plan.message[steps], draws
    )


def _rows(reads: Reads, rows: slice) -> Reads:
    fetches = reads.fetches
    if fetches is not None:
        fetches = replace(fetches, requests=fetches.requests[rows], nbytes=fetches.nbytes[rows])
    return Reads(
        reads.samples[rows],
        reads.nbytes[rows],
        reads.hit_samples[rows],
        reads.hit_nbytes[rows],
        fetches,
        None if reads.work is None else reads.work[rows],
    )


def _masked(reads: Reads, kept: Flags) -> Reads:
    fetches = reads.fetches
    if fetches is not None:
        fetches = replace(fetches, requests=fetches.requests * kept, nbytes=fetches.nbytes * kept)
    return Reads(
        reads.samples * kept,
        reads.nbytes * kept,
        reads.hit_samples * kept,
        reads.hit_nbytes * kept,
        fetches,
        reads.work,
    )


def _even(samples: int, world_size: int, batch_size: int) -> Ints64:
    """(iterations, M) batches of an even part of so many samples each."""
    each = samples // world_size + (np.arange(world_size) < samples % world_size)
    rows = -(-int(each.max()) // batch_size)
    left = each - batch_size * np.arange(rows)[:, None]
    return np.asarray(np.clip(left, 0, batch_size), np.int64)


def _appended(reads: Reads, samples: Ints64, mean: float) -> Reads:
    """With more batches behind them, of samples of ``mean`` bytes, none of them in memory."""
    nothing = np.zeros_like(samples)
    work: Floats | None = None
    if reads.work is not None:
        work = np.concatenate([reads.work, np.ones(samples.shape)])
    return Reads(
        np.concatenate([reads.samples, samples]),
        np.concatenate([reads.nbytes, samples * mean]),
        np.concatenate([reads.hit_samples, nothing]),
        np.concatenate([reads.hit_nbytes, nothing.astype(float)]),
        work=work,
    )

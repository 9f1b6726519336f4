"""Plans of a job that loses hosts: no clock. Pure numpy.

A job that can go on (`simshuffle.job.plan.lost_hosts`) goes back to its last
checkpoint. Either the plan of the epoch is followed further: from an iteration on
(`drop_iterations`), with cold caches where a host is new (`clear_caches`), or divided
among fewer ranks (`divide_among`). Or a loader goes on from its
saved state, by a law of its own (`ResumedLoader`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.job.plan.cache_tier import TierReads
from simshuffle.job.plan.epochs import (
    BatchSums,
    EpochPlan,
    Reads,
    first_owner,
    mean_work,
    node_reads,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange import ExchangePlan, LoaderShuffle, Shards, empty_plan
from simshuffle.workload.exchange.loader_shuffle import stored_samples
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import (
    NOTHING,
    Batches,
    Crash,
    Refusal,
    ResumptionLaw,
    join_batches,
)

# ---------------------------------------------------------------------- the plan, followed further


def drop_iterations(plan: EpochPlan, first: int) -> EpochPlan:
    """Drop ``first`` (not all) iterations of a plan, and inference; 0 drops nothing."""
    if first == 0:
        return plan
    steps = plan.exchange.iteration >= first
    trained_by_rank = plan.training.samples[:first].sum(axis=0)
    return replace(
        plan,
        shards=slice_shards(plan.shards, trained_by_rank, plan.shards.sizes),
        exchange=select_steps(plan.exchange, steps, first),
        training=change_reads(plan.training, lambda values: values[first:]),
        inference=None,
        sent_from_cache=plan.sent_from_cache[steps],
    )


def trained_samples(plan: EpochPlan, iterations: int) -> Ints:
    """Return the samples of the first ``iterations`` iterations, rank by rank."""
    return slice_shards(
        plan.shards, 0, plan.training.samples[:iterations].sum(axis=0)
    ).order


def stop_after(plan: EpochPlan, iterations: int, loaded: Ints64) -> EpochPlan:
    """Return what was done of a plan that was broken off after ``iterations``
    iterations.

    Its number of iterations, its shards and its inference stay.

    Args:
        plan: of the epoch.
        iterations: whose exchange was begun; later steps are dropped.
        loaded: (M,) batches that each rank had asked for; the others become empty.
    """
    steps = plan.exchange.iteration < iterations
    was_loaded = np.arange(plan.iterations)[:, None] < loaded  # (K, M)
    training = change_reads(plan.training, lambda values: values * was_loaded)
    return replace(
        plan,
        exchange=select_steps(plan.exchange, steps, 0),
        training=replace(training, work=plan.training.work),
        sent_from_cache=plan.sent_from_cache[steps],
    )


def clear_caches(plan: EpochPlan, ranks: Flags) -> EpochPlan:
    """Return a plan whose reads find no page cache of ``ranks``, (M,), warm."""

    def clear(reads: Reads) -> Reads:
        """Return what is read, with the caches of ``ranks`` cold."""
        hit_samples = reads.hit_samples * ~ranks
        return replace(
            reads, hit_samples=hit_samples, hit_nbytes=reads.hit_nbytes * ~ranks
        )

    return replace(
        plan,
        training=clear(plan.training),
        inference=None if plan.inference is None else clear(plan.inference),
        sent_from_cache=plan.sent_from_cache & ~ranks,
    )


def divide_among(
    plan: EpochPlan, staying: Flags, batch_size: int, *, dealt: bool
) -> EpochPlan:
    """Return a plan of the ranks that are ``staying``, (M,), which exchange nothing in
    this epoch.

    If the samples of the other ranks are ``dealt`` out, each staying rank reads an even
    part of them after its own, in batches of at most ``batch_size``. Else nobody reads
    them. Shards become empty and fetches are dropped. Nobody measures the importance of
    samples that are dealt out.
    """

    def drop_lost_ranks(reads: Reads) -> Reads:
        """Return what the staying ranks read."""
        return change_reads(reads, lambda values: values[:, staying], fetches=False)

    training = plan.training
    world_size = int(staying.sum())
    reads = drop_lost_ranks(training)
    samples = int(training.samples[:, ~staying].sum()) if dealt else 0
    if samples:
        mean_nbytes = float(training.nbytes[:, ~staying].sum()) / samples
        batches = even_batches(samples, world_size, batch_size)
        tier = None
        if training.tier is not None:
            tier_of_lost = training.tier.change(lambda values: values[:, ~staying])
            tier = tier_of_lost.deal(batches, mean_nbytes, samples)
        reads = append_batches(reads, batches, mean_nbytes, tier)
    nothing = empty_plan(world_size)
    return replace(
        plan,
        shards=Shards(
            plan.shards.order[:0], np.zeros(world_size + 1, np.int64)
        ),  # not followed
        exchange=nothing,
        training=reads,
        inference=None if plan.inference is None else drop_lost_ranks(plan.inference),
        sent_from_cache=np.zeros(nothing.sample.shape, bool),
    )


def slice_shards(shards: Shards, begin: Ints | int, end: Ints) -> Shards:
    """Return of each rank's samples those from position ``begin`` up to ``end``, both
    (M,), as far as the rank has that many.
    """
    low = np.minimum(begin, shards.sizes)
    high = np.minimum(end, shards.sizes)
    rank = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
    position = np.arange(len(shards.order)) - shards.start[:-1][rank]
    is_inside = (position >= low[rank]) & (position < high[rank])
    return Shards(
        shards.order[is_inside],
        np.concatenate([[0], np.cumsum(high - low)]),
        worker=None if shards.worker is None else shards.worker[is_inside],
    )


def select_steps(plan: ExchangePlan, steps: Flags, first: int) -> ExchangePlan:
    """Return the steps of an exchange of which ``steps`` is true; iteration ``first``
    is 0.
    """
    draws = None if plan.draws is None else plan.draws[steps]
    iteration = plan.iteration[steps] - first
    return ExchangePlan(
        plan.sample[steps], plan.target[steps], iteration, plan.message[steps], draws
    )


def change_reads(
    reads: Reads, change: Callable[[Any], Any], *, fetches: bool = True
) -> Reads:
    """Apply ``change`` to every (K, M) array of what is read.

    Drops the fetches unless ``fetches``. A cache tier is on hosts of its own: its reads
    are kept and changed, too.
    """
    changed = reads.fetches if fetches else None
    if changed is not None:
        requests = change(changed.requests)
        nbytes = change(changed.nbytes)
        changed = replace(changed, requests=requests, nbytes=nbytes)
    return Reads(
        change(reads.samples),
        change(reads.nbytes),
        change(reads.hit_samples),
        change(reads.hit_nbytes),
        changed,
        None if reads.work is None else change(reads.work),
        None if reads.tier is None else reads.tier.change(change),
    )


def even_batches(samples: int, world_size: int, batch_size: int) -> Ints64:
    """Return (K, M) batches of at most ``batch_size``, of an even part of ``samples`` a
    rank: the first ranks have one more. K is 0 for no samples.
    """
    samples_of_rank = samples // world_size + (
        np.arange(world_size) < samples % world_size
    )
    iterations = -(-int(samples_of_rank.max()) // batch_size)
    unread = samples_of_rank - batch_size * np.arange(iterations)[:, None]
    return np.asarray(np.clip(unread, 0, batch_size), np.int64)


def append_batches(
    reads: Reads, samples: Ints64, mean_nbytes: float, tier: TierReads | None
) -> Reads:
    """Append batches of ``samples``, (K, M), of ``mean_nbytes`` bytes a sample.

    None is in memory, work is 1, and fetches are dropped. ``tier`` is what a cache tier
    has of the appended batches, and None where ``reads`` have none.
    """
    nothing = np.zeros_like(samples)
    work: Floats | None = None
    if reads.work is not None:
        work = np.concatenate([reads.work, np.ones(samples.shape)])
    if reads.tier is not None and tier is not None:
        tier = reads.tier.append(tier)
    return Reads(
        np.concatenate([reads.samples, samples]),
        np.concatenate([reads.nbytes, samples * mean_nbytes]),
        np.concatenate([reads.hit_samples, nothing]),
        np.concatenate([reads.hit_nbytes, nothing.astype(float)]),
        work=work,
        tier=tier,
    )


# ------------------------------------------------------------------------ a loader's saved state


class ResumedLoader:
    """The epochs of a loader from a saved state on, with cold caches that each plan
    fills further: ask for plans once and in order.

    Args:
        law: what it does with the state.
        scenario: of those who go on.
        readers_before: who read when the state was saved.
        owner: (N,) the rank of each sample when the set was written, of ``ranks``.
        nbytes: (N,) bytes of each sample.
        epoch, step: the epoch of the state, from 1, and the iterations of it that were
            done.
    """

    def __init__(
        self,
        law: ResumptionLaw,
        scenario: Scenario,
        readers_before: Readers,
        *,
        owner: Ints,
        ranks: int,
        nbytes: Floats,
        epoch: int,
        step: int,
    ) -> None:
        strategy = loader_of(scenario)
        self._law = law
        self._scenario = scenario
        self._nbytes = nbytes
        self._seed = scenario.seed
        readers_after = readers_of(scenario, owner)
        self._crash = Crash(readers_before, readers_after, epoch - 1, step)
        self._data = strategy.sharded_set(
            len(owner), scenario.shards_context(owner, epoch).sample_nbytes
        )
        self._stored = stored_samples(owner, ranks, scenario.seed)
        pieces = strategy.fetched_pieces(owner, ranks, scenario.seed, nbytes)
        capacity = scenario.cluster.capacity(strategy.cache_in)
        self._caches = strategy.caches(readers_after, pieces, capacity)
        self._cached_in = strategy.cache_device
        self._work = scenario.workload.draw_work(scenario.rng("sample_size"))

    def remaining_plan(self) -> EpochPlan | Refusal:
        """Return the plan of the rest of the epoch; without iterations if nothing is
        left. Samples that are read and thrown away before are fetched in the first
        iteration. A `Refusal` if the library does not go on from the state.
        """
        crash = self._crash
        if crash.step == 0:
            batches = self._law.epoch(
                self._data, crash.readers_after, self._seed, crash.epoch
            )
            return self._plan(crash.epoch + 1, batches)
        resumed = self._law.resume(self._data, crash, self._seed)
        if isinstance(resumed, Refusal):
            return resumed
        return self._plan(crash.epoch + 1, resumed.remaining, resumed.skipped)

    def later_plans(self, epoch: int) -> Iterator[EpochPlan]:
        """The plans from an epoch (from 1) on, which come after that of the state."""
        for following in range(epoch, self._scenario.epochs + 1):
            batches = self._law.later_epoch(
                self._data, self._crash, self._seed, following - 1
            )
            yield self._plan(following, batches)

    def _plan(
        self, epoch: int, batches: Batches, skipped: Batches = NOTHING
    ) -> EpochPlan:
        """Return the plan of an epoch that reads ``batches``, after fetching
        ``skipped``.

        What is skipped is fetched and thrown away in the first iteration; nothing is
        exchanged.
        """
        readers = self._crash.readers_after
        ranks = readers.world_size
        exchange = empty_plan(ranks)
        counts = np.bincount(batches.rank, minlength=ranks)
        shards = Shards(
            self._stored[batches.sample],
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        )
        # in time, what is thrown away before the first batch
        first = skipped.sort_by_time() if batches.steps else NOTHING
        first = Batches(first.rank, 0 * first.step, first.sample)
        rank, step, sample = join_batches(first, batches.sort_by_time()).columns
        is_kept = np.arange(len(rank)) >= len(first.rank)
        sample = self._stored[sample].astype(np.int64)
        sums = BatchSums(step * ranks + rank, batches.steps, ranks)
        reads = node_reads(
            self._caches,
            self._cached_in,
            self._nbytes,
            sums,
            rank=rank,
            worker=step % readers.workers,
            sample=sample,
            is_kept=is_kept,
        )
        samples = sums.sum_selected(is_kept).astype(np.int64)
        work = None
        if self._work is not None:
            work = mean_work(sums.sum_selected(is_kept, self._work[sample]), samples)
        cached = reads.hit_samples, reads.hit_nbytes
        nbytes = sums.sum_selected(is_kept, self._nbytes[sample])
        training = Reads(samples, nbytes, *cached, reads.fetches, work)
        sent = np.zeros(exchange.sample.shape, bool)
        return EpochPlan(epoch, shards, exchange, training, None, sent, self._nbytes)


def loader_of(scenario: Scenario) -> LoaderShuffle:
    """Return the loader's order that a scenario with ``recovery.resume`` follows."""
    strategy = scenario.workload.exchange
    assert isinstance(strategy, LoaderShuffle), "scenarios are checked"  # noqa: S101
    return strategy


def readers_of(scenario: Scenario, owner: Ints) -> Readers:
    """Return who reads in a scenario under a loader's order: nodes, ranks and workers."""
    return loader_of(scenario).readers(scenario.shards_context(owner, 1))


POINTS = 8
"""Moments of an epoch at which it is broken off to see what an interruption costs on
average.
"""


@dataclass(frozen=True)
class Interruption:
    """The effect of breaking an epoch off at any moment on its samples, in shares of
    the set.
    """

    # means over the moments at which the library goes on, 0 if there are none
    repeated: float  # rows that come again
    lost: float  # samples that the epoch no longer has
    refused: float  # share of the moments at which the library does not go on


def mean_interruption(scenario: Scenario) -> Interruption | None:
    """Return the mean cost of breaking off the second epoch at `POINTS` moments.

    With the ranks of a host fewer where the policy is elastic; None where no law is
    named. Moments that fall in one iteration count once.
    """
    recovery = scenario.recovery
    if recovery is None or recovery.resume is None:
        return None
    strategy = loader_of(scenario)
    law = recovery.resume
    count = scenario.workload.dataset.num_samples
    owner = first_owner(scenario, count)
    context = scenario.shards_context(owner, 2)
    readers = readers_after = strategy.readers(context)
    if recovery.policy == "elastic" and readers.nodes > 1:
        readers_after = replace(readers, nodes=readers.nodes - 1)
    data = strategy.sharded_set(count, context.sample_nbytes)
    batches = law.epoch(data, readers, scenario.seed, 1)
    shares = []
    refused = 0
    moments = batches.steps * np.arange(1, 2 * POINTS, 2) // (2 * POINTS)
    steps = np.unique(np.maximum(moments, 1)).tolist()
    for step in steps:
        resumed = law.resume(
            data, Crash(readers, readers_after, 1, step), scenario.seed
        )
        if isinstance(resumed, Refusal):
            refused += 1
        else:
            counts = account_for_epoch(count, batches, step, resumed.remaining)
            shares.append((counts.repeated / count, counts.lost / count))
    repeated, lost = np.mean(shares, axis=0).tolist() if shares else (0.0, 0.0)
    return Interruption(repeated, lost, refused / len(steps))

"""What a loader reads that goes on with a saved state, after hosts were lost. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.job.plan.epochs import BatchSums, EpochPlan, Reads, node_reads
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.workload.exchange import LoaderShuffle, Shards, empty_plan
from simshuffle.workload.exchange.loader_shuffle import stored_samples
from simshuffle.workload.orders.fetching import Caches
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import account
from simshuffle.workload.resuming.law import NOTHING, Batches, Crash, Refused, Resume, joined


class ResumedLoader:
    """The epochs of a loader from a saved state on, with cold caches.

    Args:
        law: what it does with the state.
        scenario: of those who go on.
        before: who read when the state was saved.
        owner: (N,) the rank of each sample when the set was written, of ``ranks``.
        nbytes: (N,) bytes of each sample.
        epoch, step: the epoch of the state, from 1, and the iterations of it that were done.
    """

    def __init__(
        self,
        law: Resume,
        scenario: Scenario,
        before: Readers,
        owner: Ints,
        ranks: int,
        nbytes: Floats,
        epoch: int,
        step: int,
    ) -> None:
        strategy = scenario.workload.exchange
        assert isinstance(strategy, LoaderShuffle), "losses are checked before"  # noqa: S101
        self._law, self._scenario, self._nbytes, self._seed = law, scenario, nbytes, scenario.seed
        after = readers_of(scenario, owner)
        self._crash = Crash(before, after, epoch - 1, step)
        self._data = strategy.data(len(owner), scenario.shards_context(owner, epoch).sample_nbytes)
        self._stored = stored_samples(owner, ranks, scenario.seed)
        pieces = strategy.pieces(owner, ranks, scenario.seed, nbytes)
        room = strategy.room(
            scenario.cluster.capacity(strategy.cache_in), float(pieces.nbytes.sum())
        )
        self._caches, self._cached_in = Caches(after, pieces, room), strategy.held_in
        self._work = scenario.workload.draw_work(scenario.rng("sample_size"))

    def rest(self) -> EpochPlan | Refused:
        """What is left of the epoch; of none of it, a plan without iterations. What is read and
        thrown away before is fetched in the first iteration."""
        crash = self._crash
        if crash.step == 0:
            whole = self._law.epoch(self._data, crash.after, self._seed, crash.epoch)
            return self._plan(crash.epoch + 1, whole)
        resumed = self._law.resumed(self._data, crash, self._seed)
        if isinstance(resumed, Refused):
            return resumed
        return self._plan(crash.epoch + 1, resumed.rest, resumed.skipped)

    def later(self, epoch: int) -> Iterator[EpochPlan]:
        """The plans from an epoch (from 1) on, which come after that of the state."""
        for number in range(epoch, self._scenario.epochs + 1):
            batches = self._law.later(self._data, self._crash, self._seed, number - 1)
            yield self._plan(number, batches)

    def _plan(self, epoch: int, batches: Batches, skipped: Batches = NOTHING) -> EpochPlan:
        readers = self._crash.after
        ranks = readers.world_size
        exchange = empty_plan(ranks)
        counts = np.bincount(batches.rank, minlength=ranks)
        shards = Shards(
            self._stored[batches.sample], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        )
        # in time, what is thrown away before the first batch
        first = skipped.in_time() if batches.steps else NOTHING
        first = Batches(first.rank, 0 * first.step, first.sample)
        rank, step, sample = joined(first, batches.in_time()).columns
        kept = np.arange(len(rank)) >= len(first.rank)
        sample = self._stored[sample].astype(np.int64)
        sums = BatchSums(step * ranks + rank, batches.steps, ranks)
        caches = self._caches, self._cached_in, self._nbytes
        found = node_reads(*caches, sums, rank, step % readers.workers, sample, kept)
        samples, work = sums.of(kept).astype(np.int64), None
        if self._work is not None:
            whole = sums.of(kept, self._work[sample])
            work = np.divide(whole, samples, out=np.ones_like(whole), where=samples > 0)
        cached = found.hit_samples, found.hit_nbytes
        nbytes = sums.of(kept, self._nbytes[sample])
        training = Reads(samples, nbytes, *cached, found.fetches, work)
        sent = np.zeros(exchange.sample.shape, bool)
        return EpochPlan(epoch, shards, exchange, training, None, sent)


def readers_of(scenario: Scenario, owner: Ints) -> Readers:
    """Who reads in a scenario under a loader's order."""
    strategy = scenario.workload.exchange
    assert isinstance(strategy, LoaderShuffle), "losses are checked before"  # noqa: S101
    return strategy.readers(scenario.shards_context(owner, 1))


POINTS = 8
"""Moments of an epoch at which it is broken off to see what an interruption costs on average."""


@dataclass(frozen=True)
class Interruption:
    """What a loader does to an epoch that is broken off at any moment, in shares of the set."""

    repeated: float  # rows that come again, mean
    lost: float  # samples that the epoch no longer has, mean
    refused: float  # share of the moments at which the library does not go on


def interruption(scenario: Scenario) -> Interruption | None:
    """The mean over `POINTS` moments of the second epoch, with the ranks of a host fewer where the
    policy is elastic; None where no law is named."""
    recovery = scenario.recovery
    if recovery is None or recovery.resume is None:
        return None
    strategy, law = scenario.workload.exchange, recovery.resume
    assert isinstance(strategy, LoaderShuffle), "scenarios are checked"  # noqa: S101
    count = scenario.workload.dataset.num_samples
    owner = strategy.first_owner(count, scenario.world_size, scenario.rng("partition"))
    context = scenario.shards_context(owner, 2)
    before = after = strategy.readers(context)
    if recovery.policy == "elastic" and before.nodes > 1:
        after = replace(before, nodes=before.nodes - 1)
    data = strategy.data(count, context.sample_nbytes)
    whole = law.epoch(data, before, scenario.seed, 1)
    found, refused = [], 0
    moments = whole.steps * np.arange(1, 2 * POINTS, 2) // (2 * POINTS)
    steps = np.unique(np.maximum(moments, 1)).tolist()
    for step in steps:
        resumed = law.resumed(data, Crash(before, after, 1, step), scenario.seed)
        if isinstance(resumed, Refused):
            refused += 1
        else:
            of = account(count, whole, step, resumed.rest)
            found.append((of.repeated / count, of.lost / count))
    repeated, lost = np.mean(found, axis=0).tolist() if found else (0.0, 0.0)
    return Interruption(repeated, lost, refused / len(steps))

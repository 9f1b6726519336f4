"""Plans of every epoch, before any clock runs: the samples that are read and sent. Pure
numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simshuffle.job.plan.cache_epoch import BatchSizes, batch_edges, batch_sums
from simshuffle.job.plan.cache_tier import SharedCache, TierReads
from simshuffle.job.plan.page_cache import Hits, PageCaches, all_hits
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange import (
    EpochContext,
    ExchangePlan,
    LoaderShuffle,
    RankPlaces,
    Shards,
    ShardsContext,
    empty_plan,
)
from simshuffle.workload.orders.fetching import Caches


@dataclass(frozen=True)
class Fetches:
    """The pieces that ranks fetch in the iterations of an epoch."""

    # (iterations, M) pieces, each by a request and by opening a file of its own
    requests: Ints64
    nbytes: Ints64  # (iterations, M) their bytes, also of samples that are thrown away
    held_nbytes: int  # bytes, the most that one node held at once
    # where samples are read from whose piece was there already
    cached_in: Literal["ssd", "memory"]


@dataclass(frozen=True)
class NodeReads:
    """The reads of ranks in an epoch under a loader's order."""

    fetches: Fetches  # pieces from the file system
    # (iterations, M) samples whose piece was there already, and their bytes
    hit_samples: Ints64
    hit_nbytes: Floats


class NodeCaches:
    """The caches of all nodes under a loader's order, from epoch to epoch; ``context``
    is of any epoch, ``nbytes`` (N,) bytes of every sample.
    """

    def __init__(
        self,
        scenario: Scenario,
        strategy: LoaderShuffle,
        context: ShardsContext,
        nbytes: Floats,
    ) -> None:
        capacity = scenario.cluster.capacity(strategy.cache_in)
        pieces = strategy.fetched_pieces(
            context.owner, context.world_size, context.seed, nbytes
        )
        self._caches = strategy.caches(strategy.readers(context), pieces, capacity)
        self._nbytes = nbytes
        self._size = context.batch_size
        self._cached_in = strategy.cache_device

    def epoch(self, shards: Shards, iterations: int) -> NodeReads:
        """Return the reads of each rank's first ``iterations`` batches in the next
        epoch.

        The caches go on from there; samples of later batches are not fetched.
        """
        world_size = len(shards.sizes)
        rank = np.repeat(np.arange(world_size), shards.sizes)
        iteration = (
            np.arange(len(shards.order)) - shards.start[:-1][rank]
        ) // self._size
        # positions in the order, iteration by iteration, then rank by rank, each in its order
        rows = np.argsort(iteration, kind="stable")
        rows = rows[: int(np.searchsorted(iteration[rows], iterations))]
        sample = shards.order[rows].astype(np.int64)
        worker = np.zeros(len(rows), np.int64)
        if shards.worker is not None:
            worker[:] = shards.worker[rows]
        of_rank = np.asarray(rank[rows], np.int64)
        sums = BatchSums(
            iteration[rows] * world_size + rank[rows], iterations, world_size
        )
        is_kept = np.ones(len(rows), np.bool_)
        return node_reads(
            self._caches,
            self._cached_in,
            self._nbytes,
            sums,
            rank=of_rank,
            worker=worker,
            sample=sample,
            is_kept=is_kept,
        )


@dataclass(frozen=True)
class BatchSums:
    """Sums over the samples of each batch."""

    batch: Ints64  # (n,) the batch of each sample: its iteration times the ranks, and its rank
    iterations: int
    world_size: int  # M

    def sum_selected(
        self, selected: Flags, values: NDArray[np.generic] | None = None
    ) -> Floats:
        """Return (iterations, M) sums of ``values``, (n,), over the ``selected``, (n,),
        samples of each batch; None counts them.
        """
        weights = None if values is None else values[selected]
        sums = np.bincount(
            self.batch[selected], weights, self.iterations * self.world_size
        )
        return np.asarray(sums.reshape(self.iterations, self.world_size))


def node_reads(
    caches: Caches,
    cached_in: Literal["ssd", "memory"],
    nbytes: Floats,
    sums: BatchSums,
    *,
    rank: Ints64,
    worker: Ints64,
    sample: Ints64,
    is_kept: Flags,
) -> NodeReads:
    """Return the reads of an epoch that nodes meet in this order: (n,) rank, worker and
    sample, of ``nbytes`` (N,). Samples that are not ``is_kept`` are fetched and thrown
    away: their pieces count, their hits do not. ``caches`` change, for the next epoch.
    """
    missed, fetched = caches.fetch_epoch(rank, worker, sample)
    fetches = Fetches(
        sums.sum_selected(missed).astype(np.int64),
        sums.sum_selected(missed, caches.piece_nbytes(sample)).astype(np.int64),
        fetched.held_nbytes,
        cached_in,
    )
    hit = is_kept & ~missed
    return NodeReads(
        fetches,
        sums.sum_selected(hit).astype(np.int64),
        sums.sum_selected(hit, nbytes[sample]),
    )


@dataclass(frozen=True)
class Reads:
    """The batches that all ranks read in one pass over their samples.

    What is neither a hit nor in the tier is read from the workload's source.
    """

    samples: Ints64  # (iterations, M) samples of each batch
    nbytes: Floats  # (iterations, M) bytes of each batch in storage
    # hit_samples, hit_nbytes: (iterations, M) of them those in memory: in the host's page cache, or
    # staged there; where a loader fetches pieces, those in the cache of the node
    hit_samples: Ints64
    hit_nbytes: Floats
    # what a loader fetches for the others; None where each is read by itself
    fetches: Fetches | None = None
    # (iterations, M) computing of each batch over that of as many samples of the model's step
    # times; None if it is 1 for all
    work: Floats | None = None
    # what a cache tier has of the others; None if there is none
    tier: TierReads | None = None


@dataclass(frozen=True)
class EpochPlan:
    """The traffic of one epoch."""

    epoch: int  # from 1
    shards: Shards  # who trains on what
    exchange: ExchangePlan  # which samples move
    training: Reads  # what is read to train on
    # what is read before that to measure importance; None if it is not measured
    inference: Reads | None
    # (steps, M) whether the sample that a rank sends is in memory when it is sent
    sent_from_cache: Flags
    nbytes: Floats  # (N,) bytes of every sample in storage

    @property
    def iterations(self) -> int:
        """Iterations of the epoch."""
        return len(self.training.samples)


def sample_nbytes(scenario: Scenario) -> Floats:
    """Size of every sample in storage: (N,) bytes, drawn once for all epochs."""
    return scenario.workload.dataset.draw_nbytes(scenario.rng("sample_size"))


class TrainingState(NamedTuple):
    """The state of a training that is planned from there on, with empty page caches."""

    epoch: int  # the next one
    owner: Ints  # (N,) the rank of each sample


def plan_epochs(
    scenario: Scenario, nbytes: Floats, state: TrainingState | None = None
) -> Iterator[EpochPlan]:
    """Yield the plans of epochs 1, 2, ... in order, or those from ``state`` on.

    Before the first one that is yielded, nothing is in a cache but what a warm cache
    tier begins with, and every sample has just come to its rank. Each plan continues
    the caches and owners of the one before. A plan is made when it is asked for.

    Args:
        scenario: without sweep.
        nbytes: (N,), from `sample_nbytes`.
        state: the next epoch and who owns each sample; None for the beginning. Beyond
            the scenario's epochs nothing is yielded.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    strategy = workload.exchange
    if state is None:
        state = TrainingState(1, first_owner(scenario, len(nbytes)))
    owner = state.owner
    held_samples = strategy.first_held(len(nbytes))
    work = workload.draw_work(scenario.rng("sample_size"))
    host_of = scenario.cluster.host_of(world_size)
    # objects of a store are no files: the page cache keeps none
    room = scenario.cluster.memory.cache_nbytes * (workload.source != "object_store")
    caches = PageCaches(room, nbytes, host_of, redrawn=strategy.redraws)
    nodes: NodeCaches | None = None
    tier = scenario.used_tier
    shared = SharedCache(tier, nbytes, scenario.rng("cache_tier")) if tier else None
    places = _draw_places(scenario)

    for epoch in range(state.epoch, scenario.epochs + 1):
        context = scenario.shards_context(owner, epoch)
        shards = strategy.epoch_shards(context)
        if isinstance(strategy, LoaderShuffle) and nodes is None:
            nodes = NodeCaches(scenario, strategy, context, nbytes)
        exchange = strategy.plan(
            EpochContext(
                shards,
                batch_size=workload.local_batch_size,
                iterations=workload.iterations(world_size, epoch),
                epoch=epoch,
                rng=scenario.rng("exchange", epoch),
                importance=_draw_importance(scenario, epoch, len(nbytes)),
                places=places,
                held=held_samples,
            )
        )
        inference = None
        if strategy.inference_pass:
            inference = _plan_inference(
                scenario, owner, nbytes=nbytes, work=work, caches=caches, shared=shared
            )
        training, sent = _plan_training(
            scenario,
            epoch,
            shards,
            exchange,
            nbytes=nbytes,
            work=work,
            caches=nodes or caches,
            shared=shared,
        )
        if epoch == scenario.epochs:
            caches.forget()
        yield EpochPlan(epoch, shards, exchange, training, inference, sent, nbytes)
        owner = exchange.apply(owner)
        held_samples = exchange.held_after(held_samples)
        caches.note()
        del shards  # the next epoch's take its room


def first_owner(scenario: Scenario, num_samples: int) -> Ints:
    """Draw the rank of each sample before the first epoch, (N,)."""
    return scenario.workload.exchange.first_owner(
        num_samples, scenario.world_size, scenario.rng("partition")
    )


def _draw_places(scenario: Scenario) -> RankPlaces | None:
    """Draw the place of each rank in the cluster; None if the strategy needs no places."""
    if not scenario.workload.exchange.needs_places:
        return None
    rng = scenario.rng("placement")
    return Resources(scenario.cluster, scenario.world_size, rng).places


def _draw_importance(scenario: Scenario, epoch: int, num_samples: int) -> Floats | None:
    """Draw the importance of each sample, (N,), in place of a real one: it decides on
    partners.

    None if the strategy needs no importance.
    """
    if not scenario.workload.exchange.needs_importance:
        return None
    return scenario.rng("importance", epoch).exponential(size=num_samples)


def _plan_inference(
    scenario: Scenario,
    owner: Ints,
    *,
    nbytes: Floats,
    work: Floats | None,
    caches: PageCaches,
    shared: SharedCache | None,
) -> Reads:
    """Return the reads of a pass over all shards in the order in which samples are
    numbered, in as many batches as the largest shard has. The caches go on from there.
    """
    size = scenario.workload.local_batch_size
    world_size = scenario.world_size
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=world_size))])
    shards = Shards(np.argsort(owner, kind="stable").astype(np.int32), start)
    batches, working = _batches(
        shards, nbytes, work, size, -(-int(shards.sizes.max()) // size)
    )
    hits = _hits(scenario, caches, shards, empty_plan(world_size), batches)
    return _reads(shards, batches, hits, working, shared)


def _reads(
    shards: Shards,
    batches: BatchSizes,
    hits: Hits,
    work: Floats | None,
    shared: SharedCache | None,
) -> Reads:
    """Return the reads of a pass, with the hits of page caches and of a cache tier,
    which goes on from there.
    """
    tier = None if shared is None else shared.read(shards, batches, hits.is_hit)
    of_hosts = hits.samples, hits.nbytes
    return Reads(batches.samples, batches.nbytes, *of_hosts, work=work, tier=tier)


def _plan_training(
    scenario: Scenario,
    epoch: int,
    shards: Shards,
    exchange: ExchangePlan,
    *,
    nbytes: Floats,
    work: Floats | None,
    caches: PageCaches | NodeCaches,
    shared: SharedCache | None,
) -> tuple[Reads, Flags]:
    """Return the reads of training, and (steps, M) whether each sample that is sent is
    in memory then: never under a loader's order. The caches go on from there.
    """
    workload = scenario.workload
    world_size = scenario.world_size
    size = workload.local_batch_size
    iterations = workload.iterations(world_size, epoch)
    # then the samples left out are the next epoch's first: they count as read in this one
    carried = workload.last_batch == "carry"
    planned = workload.iterations(world_size) if carried else iterations
    batches, working = _batches(shards, nbytes, work, size, planned)
    if isinstance(caches, NodeCaches):
        node_reads = caches.epoch(shards, iterations)
        cached = node_reads.hit_samples, node_reads.hit_nbytes
        none_sent = np.zeros(exchange.sample.shape, bool)
        return Reads(
            batches.samples, batches.nbytes, *cached, node_reads.fetches, working
        ), none_sent
    hits = _hits(scenario, caches, shards, exchange, batches)
    reads = _reads(shards, batches, hits, working, shared)
    return _fill_last_batch(reads, size, iterations) if carried else reads, hits.sent


def _hits(
    scenario: Scenario,
    caches: PageCaches,
    shards: Shards,
    exchange: ExchangePlan,
    batches: BatchSizes,
) -> Hits:
    """Return the hits of page caches, which go on from there; if samples are staged in
    memory, all reads are hits.
    """
    in_memory = scenario.workload.source == "memory"
    return (
        all_hits(batches, exchange)
        if in_memory
        else caches.epoch(shards, exchange, batches)
    )


def _batches(
    shards: Shards, nbytes: Floats, work: Floats | None, size: int, iterations: int
) -> tuple[BatchSizes, Floats | None]:
    """Return all batches, and (iterations, M) the mean of ``work`` over their samples.

    The mean is 1 for an empty batch, and None if ``work``, (N,), is.
    """
    edges = batch_edges(shards, size, iterations)
    samples = np.diff(edges, axis=0)

    def sums(values: Floats) -> Floats:
        return batch_sums(shards, edges, lambda slots: values.take(shards.order[slots]))

    mean = None if work is None else mean_work(sums(work), samples)
    return BatchSizes(samples, sums(nbytes), size), mean


def mean_work(work_sums: Floats, samples: Ints64) -> Floats:
    """Return (iterations, M) the mean work of the samples of each batch, from its sums
    over them; 1 for an empty batch.
    """
    return np.divide(work_sums, samples, out=np.ones_like(work_sums), where=samples > 0)


def _fill_last_batch(reads: Reads, size: int, iterations: int) -> Reads:
    """Return the first ``iterations`` iterations, each batch filled up to ``size``
    samples: those from the next epoch are like its own, in size and in memory. A batch
    without samples of its own is like the mean batch of its rank, and a rank without
    any like the mean of all; the cache tier answers nothing of it.
    """
    samples = reads.samples[:iterations]
    has_samples = samples > 0
    factor = np.where(has_samples, size / np.maximum(samples, 1), 0.0)
    samples_of_rank = reads.samples.sum(axis=0)

    def fill(values: Ints64 | Floats) -> Floats:
        """Return ``values``, (iterations, M), scaled to batches of ``size`` samples."""
        mean_of_rank = np.where(
            samples_of_rank > 0,
            values.sum(axis=0) / np.maximum(samples_of_rank, 1),
            values.sum() / max(samples_of_rank.sum(), 1),
        )
        filled: Floats = np.where(
            has_samples, values[:iterations] * factor, size * mean_of_rank
        )
        return filled

    hit = np.rint(fill(reads.hit_samples)).astype(np.int64)
    return Reads(
        np.full_like(samples, size),
        fill(reads.nbytes),
        np.minimum(hit, size),
        fill(reads.hit_nbytes),
        work=None if reads.work is None else reads.work[:iterations],
        tier=None if reads.tier is None else reads.tier.scale(iterations, factor),
    )


def cached_share(scenario: Scenario, epoch: int) -> float:
    """Expected share of an epoch's reads that are in memory. Plans count it exactly.

    0 in the first epoch and for an object store. Under global shuffle a host reads a new
    random 1/H of the set in each; else its shards again. 1, the most there can be, where
    samples are staged in memory, or a loader fetches pieces.
    """
    memory = scenario.cluster.memory
    workload = scenario.workload
    if workload.source == "memory" or workload.exchange.fetches:  # in these at best
        return 1.0
    if epoch == 1 or workload.source == "object_store":
        return 0.0
    if workload.exchange.redraws:
        return memory.redrawn_hits(
            workload.dataset.nbytes, 1.0 / scenario.hosts, epoch - 1
        )
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    return memory.repeat_hits(ranks / scenario.world_size * workload.dataset.nbytes)

"""The cache that hosts share: which of the reads that no page cache answers find their
sample in it. Decided sample by sample, without a clock.

Reads come to it batch by batch: the first batch of every rank, one rank after the
other, then the second of each. Nothing of that is taken as an expected value; what
evicts what is in `simshuffle.job.plan.eviction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.job.plan.cache_epoch import BatchSizes
from simshuffle.job.plan.eviction import cache_of
from simshuffle.job.scenario.cache_tier import CacheTier, Eviction
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Flags, Floats, Ints64
from simshuffle.workload.exchange import Shards


@dataclass(frozen=True)
class TierReads:
    """The reads of the batches of all ranks in a pass that a cache tier answers or
    stores; all are (iterations, M).
    """

    # hit_samples, hit_nbytes: read from it
    hit_samples: Ints64
    hit_nbytes: Floats
    # stored_samples, stored_nbytes: read from behind it and written to it
    stored_samples: Ints64
    stored_nbytes: Floats

    def scale(self, iterations: int, factor: Floats) -> TierReads:
        """Return the first ``iterations`` with ``factor``, (iterations, M), times as
        many reads. Counts of samples are rounded down, bytes are not.
        """

        def count(samples: Ints64) -> Ints64:
            """Scale counts of samples, rounded down."""
            return np.floor(samples[:iterations] * factor).astype(np.int64)

        return TierReads(
            count(self.hit_samples),
            self.hit_nbytes[:iterations] * factor,
            count(self.stored_samples),
            self.stored_nbytes[:iterations] * factor,
        )

    def change(self, change: Callable[[Any], Any]) -> TierReads:
        """Return the reads with ``change`` applied to each of the four arrays."""
        return TierReads(
            change(self.hit_samples),
            change(self.hit_nbytes),
            change(self.stored_samples),
            change(self.stored_nbytes),
        )

    def append(self, later: TierReads) -> TierReads:
        """Return these reads, followed by the reads of the iterations of ``later``."""
        return TierReads(
            np.concatenate([self.hit_samples, later.hit_samples]),
            np.concatenate([self.hit_nbytes, later.hit_nbytes]),
            np.concatenate([self.stored_samples, later.stored_samples]),
            np.concatenate([self.stored_nbytes, later.stored_nbytes]),
        )

    def deal(self, samples: Ints64, mean_nbytes: float, count: int) -> TierReads:
        """Return the reads of batches of ``samples``, (K, M), that take the place of
        these.

        Hosts share the tier: it answers, or stores, the same part of the samples
        whoever reads them. Counts are rounded down; bytes keep parts of a sample.

        Args:
            samples: (K, M) samples of each batch.
            mean_nbytes: bytes of a sample.
            count: the samples, at least 1, of which these are the reads.
        """
        hit_share = float(self.hit_samples.sum()) / count
        stored_share = float(self.stored_samples.sum()) / count
        return TierReads(
            np.floor(samples * hit_share).astype(np.int64),
            np.asarray(samples * hit_share * mean_nbytes, np.float64),
            np.floor(samples * stored_share).astype(np.int64),
            np.asarray(samples * stored_share * mean_nbytes, np.float64),
        )


class SharedCache:
    """A cache tier from pass to pass; ``nbytes`` (N,) bytes of every sample.

    A warm tier begins with the samples of lowest number that fit, else it is empty. A
    sample takes its size rounded to whole bytes, at least 1. `Random` draws from
    ``rng``.
    """

    def __init__(
        self, tier: CacheTier, nbytes: Floats, rng: np.random.Generator
    ) -> None:
        self._nbytes = nbytes
        rounded_nbytes = np.maximum(np.rint(nbytes), 1.0).astype(np.int64)
        self._cache = cache_of(tier.eviction, tier.capacity, rounded_nbytes, rng)
        if tier.warm:
            fit = int(
                np.searchsorted(
                    np.cumsum(rounded_nbytes), int(tier.capacity), side="right"
                )
            )
            self._cache.read(np.arange(fit))

    def read(
        self, shards: Shards, batches: BatchSizes, cached: Flags | bool
    ) -> TierReads:
        """Return the reads of the next pass that the tier answers or stores; it goes on
        from there.

        ``cached`` says of every slot, (N,) or one for all, whether the page cache of
        its host answers the read. Such reads, and samples in no batch, do not come to
        the tier and leave it as it is.
        """
        iterations, ranks = batches.samples.shape
        rank = np.repeat(np.arange(ranks, dtype=np.int32), shards.sizes)
        batch = (np.arange(len(rank)) - shards.start[:-1][rank]) // batches.size
        missed = (batch < iterations) & ~np.broadcast_to(
            np.asarray(cached), batch.shape
        )
        slots = np.flatnonzero(missed)
        # stable: of a batch rank by rank, each in its order
        slots = slots[np.argsort(batch[slots], kind="stable")]
        samples = shards.order[slots].astype(np.int64)
        batch_index = batch[slots] * ranks + rank[slots]
        hits, stored = self._cache.read(samples)

        def sum_by_batch(which: Flags, values: Floats | None) -> NDArray[np.generic]:
            """(iterations, M) sums of values (N,), or counts, of the reads ``which``."""
            weights = None if values is None else values[samples[which]]
            sums = np.bincount(batch_index[which], weights, iterations * ranks)
            return np.asarray(sums.reshape(iterations, ranks))

        return TierReads(
            sum_by_batch(hits, None).astype(np.int64),
            sum_by_batch(hits, self._nbytes).astype(np.float64),
            sum_by_batch(stored, None).astype(np.int64),
            sum_by_batch(stored, self._nbytes).astype(np.float64),
        )


MOST_PASSES, SAMPLES = 8, 20_000
"""Epochs, and samples, of which hits are counted where they are estimated."""


def tier_share(scenario: Scenario, epoch: int, cached: float = 0.0) -> float:
    """Return the expected share of reads from storage that the cache tier answers.

    Of epoch ``epoch``, from 1; 0 if no tier is used. For estimates before a run: its
    plans count sample by sample. Counted with `SAMPLES` samples of one size in a new
    random order each epoch, from a fixed seed; epoch `MOST_PASSES` stands for all later
    ones.

    Args:
        scenario: its tier and the bytes of its data set count.
        epoch: from 1.
        cached: share of all reads that page caches answer, of samples at random; such
            reads are not in the share's denominator. The first epoch has none.
    """
    tier = scenario.used_tier
    if tier is None:
        return 0.0
    share = min(tier.capacity / scenario.workload.dataset.nbytes, 1.0)
    passes = min(epoch, MOST_PASSES)
    return _shares(tier.eviction, tier.warm, round(share, 6), round(cached, 3))[
        passes - 1
    ]


@lru_cache(maxsize=64)
def _shares(
    eviction: Eviction, warm: bool, share: float, cached: float
) -> tuple[float, ...]:
    """Share of hits in each of the first `MOST_PASSES` epochs, of a cache that holds
    the share ``share`` of the samples; 0 where nothing is read from it.
    """
    rng = np.random.default_rng(0)
    cache = cache_of(eviction, round(share * SAMPLES), np.ones(SAMPLES, np.int64), rng)
    if warm:
        cache.read(np.arange(round(share * SAMPLES)))
    shares = []
    for epoch in range(MOST_PASSES):
        samples = rng.permutation(SAMPLES)
        if epoch and cached:  # the first epoch finds nothing in page caches
            samples = samples[rng.random(SAMPLES) >= cached]
        hits, _ = cache.read(samples)
        shares.append(float(hits.mean()) if len(hits) else 0.0)
    return tuple(shares)

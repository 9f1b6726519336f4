"""Reads that a cache tier answers and stores, batch by batch, by hand."""

from typing import Any

import numpy as np
import pytest

from simshuffle.job.lowering.read_requests import ReadRequests, split_by_tier
from simshuffle.job.plan.cache_epoch import BatchSizes
from simshuffle.job.plan.cache_tier import SharedCache, TierReads, tier_share
from simshuffle.job.plan.epochs import Reads
from simshuffle.job.scenario.cache_tier import CacheTier
from simshuffle.workload.exchange import Shards
from tests.small import small

NBYTES = np.array([10.0, 20.2, 29.6, 40.0, 50.0])
# two batches of rank 0, one of rank 1: 3, 0, 2 and 4 are read first, then 1
SHARDS = Shards(np.array([3, 0, 1, 2, 4], np.int32), np.array([0, 3, 5]))
BATCHES = BatchSizes(np.array([[2, 2], [1, 0]]), np.array([[50.0, 79.6], [20.2, 0.0]]), 2)


def cache(**values: Any) -> SharedCache:
    tier = {"capacity": "80 B", "bandwidth": "1 GB/s", "eviction": "none", **values}
    return SharedCache(CacheTier.model_validate(tier), NBYTES, np.random.default_rng(0))


def tables(reads: TierReads) -> list[Any]:
    return [
        reads.hit_samples.tolist(),
        reads.hit_nbytes.tolist(),
        reads.stored_samples.tolist(),
        reads.stored_nbytes.tolist(),
    ]


NONE = [[0, 0], [0, 0]]


def test_what_is_stored_in_a_pass_is_found_in_the_next():
    """40, 10 and 30 bytes fill 80; what comes later has no room."""
    tier = cache()
    kept = [[[2, 1], [0, 0]], [[50.0, 29.6], [0.0, 0.0]]]
    assert tables(tier.read(SHARDS, BATCHES, False)) == [NONE, NONE, *kept]
    assert tables(tier.read(SHARDS, BATCHES, False)) == [*kept, NONE, NONE]


def test_what_page_caches_have_does_not_come_to_the_tier():
    """Without sample 3 and its 40 bytes there is room for 1 in its place, not for 4."""
    tier = cache()
    cached = np.array([True, False, False, False, False])
    stored = [[[1, 1], [1, 0]], [[10.0, 29.6], [20.2, 0.0]]]
    assert tables(tier.read(SHARDS, BATCHES, cached)) == [NONE, NONE, *stored]
    assert tables(cache().read(SHARDS, BATCHES, True)) == [NONE] * 4


def test_samples_in_no_batch_do_not_come_to_the_tier():
    tier = cache()
    first = BatchSizes(BATCHES.samples[:1], BATCHES.nbytes[:1], 2)
    tier.read(SHARDS, first, np.array([True, False, False, False, False]))
    found = tier.read(SHARDS, BATCHES, False)  # there was room for 1
    assert found.hit_samples.tolist() == [[1, 1], [0, 0]]
    assert found.stored_samples.tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("capacity", "hits"),
    [
        ("60 B", [[1, 1], [1, 0]]),  # 10, 20 and 30 bytes
        ("59 B", [[1, 0], [1, 0]]),
        ("9 B", NONE),
        ("150 B", [[2, 2], [1, 0]]),
    ],
)
def test_a_warm_tier_begins_with_the_first_samples_that_fit(capacity, hits):
    found = cache(capacity=capacity, warm=True).read(SHARDS, BATCHES, False)
    assert found.hit_samples.tolist() == hits


def test_samples_of_less_than_a_byte_take_one():
    tier = CacheTier.model_validate({"capacity": "2 B", "bandwidth": "1 B/s", "eviction": "none"})
    tiny = SharedCache(tier, np.full(5, 0.2), np.random.default_rng(0))
    assert tiny.read(SHARDS, BATCHES, False).stored_samples.tolist() == [[2, 0], [0, 0]]


READS = TierReads(
    np.array([[3, 1], [0, 0]]),
    np.array([[30.0, 10.0], [0.0, 0.0]]),
    np.array([[1, 0], [1, 1]]),
    np.array([[11.0, 0.0], [12.0, 13.0]]),
)


def test_batches_that_are_dealt_out_have_as_large_a_part_in_the_tier():
    """Of 10 samples 4 were hits and 3 were stored."""
    dealt = READS.deal(np.array([[3, 2, 10]]), 7.0, 10)
    assert dealt.hit_samples.tolist() == [[1, 0, 4]]
    assert dealt.stored_samples.tolist() == [[0, 0, 3]]
    assert dealt.hit_nbytes[0] == pytest.approx(7.0 * 0.4 * np.array([3, 2, 10]))
    assert dealt.stored_nbytes[0] == pytest.approx(7.0 * 0.3 * np.array([3, 2, 10]))


def test_reads_are_scaled_changed_and_appended_table_by_table():
    scaled = READS.scale(1, np.array([[0.5, 3.0]]))
    assert tables(scaled) == [[[1, 3]], [[15.0, 30.0]], [[0, 0]], [[5.5, 0.0]]]
    assert tables(READS.change(lambda table: table[:, 1:])) == [
        [row[1:] for row in table] for table in tables(READS)
    ]
    assert tables(READS.append(scaled)) == [
        a + b for a, b in zip(tables(READS), tables(scaled), strict=True)
    ]


@pytest.mark.parametrize("exchange", ["global_shuffle:source=pfs", "local_shuffle"])
def test_a_share_is_expected_of_a_tier_that_is_used(exchange):
    """Half of the set, of which nothing goes: from the second epoch on, or at once if warm."""
    tier = {"capacity": "40 MB", "bandwidth": "1 GB/s", "eviction": "none"}
    cold = small(workload__exchange=exchange, cluster__cache_tier=tier)
    warm = small(workload__exchange=exchange, cluster__cache_tier=tier | {"warm": True})
    used = 0.5 * (exchange != "local_shuffle")
    assert [tier_share(cold, epoch) for epoch in (1, 2, 50)] == pytest.approx([0, used, used])
    assert [tier_share(warm, epoch) for epoch in (1, 2, 50)] == pytest.approx([used] * 3)
    whole = small(workload__exchange=exchange, cluster__cache_tier=tier | {"capacity": "1 GB"})
    assert tier_share(whole, 2) == 2 * used
    assert tier_share(small(), 2) == tier_share(cold, 2, 1.0) == 0.0  # of no reads none


@pytest.mark.parametrize("stored", [[0, 0, 0, 0], [3, 1, 1, 0], [3, 2, 1, 2]])
def test_what_is_not_written_into_the_tier_is_the_rest(stored):
    """Batches of 3, 2, 1 and 2 samples of 0.1 B: of one that is written whole no byte is left,
    however sums are rounded."""
    samples, stored = np.array([[3, 2, 1, 2]]), np.array([stored])
    missed = ReadRequests(samples.astype(float), samples / 10, 20, 5)
    nothing = np.zeros_like(samples)
    tier = TierReads(nothing, 0.0 * nothing, stored, 0.1 * stored)
    parts = split_by_tier(missed, Reads(samples, missed.nbytes, nothing, 0.0 * nothing, tier=tier))
    left = samples - stored
    found = {written: part.samples.tolist() for part, written in parts}
    both = {True: stored.tolist(), False: left.tolist()}
    assert found == {written: count for written, count in both.items() if np.any(count)}
    assert [written for _, written in parts] == sorted(found, reverse=True)
    for part, written in parts:
        expected = 0.1 * (stored if written else left)
        assert part.nbytes == pytest.approx(expected, rel=1e-12, abs=0)
        assert (part.per_file, part.per_request) == (20, 5)

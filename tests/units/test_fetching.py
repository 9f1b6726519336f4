"""What is fetched of an order: counted by hand, and by an independent simulator of caches."""

import json
from pathlib import Path

import numpy as np
import pytest

from simshuffle.workload.orders.fetching import (
    Caches,
    FetchCounts,
    count_fetches,
    divide_into_pieces,
    rows_in_time,
)
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from tests.shared import needs_peers
from tests.toy_orders import Drawn, Kept

RECORDED = Path(__file__).parents[1] / "data" / "orders" / "libcachesim-0.3.5.json"
LIMITS = (2_500, 7_000, 20_000)


def sharded(shards, samples, nbytes):
    return ShardedSet(np.full(shards, samples), np.full(shards, float(nbytes)))


def one_worker(samples):
    """One rank that reads ``samples`` in that order."""
    rows = np.array(samples)
    return EpochOrder(rows * 0, rows * 0, np.arange(len(rows)), rows)


ALONE = Readers(nodes=1, ranks=1, workers=1, batch_size=1)
FOUR = sharded(4, 2, 100)
"""Shards 0 to 3 of samples 01, 23, 45, 67."""


def test_pieces_are_samples_blocks_or_shards_and_their_bytes_add_up():
    data = ShardedSet(np.array([3, 5]), np.array([10.0, 12.0]))
    assert divide_into_pieces(data, "sample").nbytes.tolist() == [3, 3, 4, 2, 2, 3, 2, 3]
    assert divide_into_pieces(data, "shard").nbytes.tolist() == [10, 12]
    blocks = divide_into_pieces(data, "block", 2)
    assert blocks.piece_of_sample.tolist() == [0, 0, 1, 2, 2, 3, 3, 4]
    assert blocks.nbytes.tolist() == [6, 4, 4, 5, 3]
    # a set that was rewritten: sample 0 is stored last
    assert divide_into_pieces(
        data, "shard", 1, np.roll(np.arange(8), 1)
    ).piece_of_sample.tolist() == [
        *(1, 0, 0, 0),
        *(1, 1, 1, 1),
    ]


def test_ranks_and_workers_of_a_node_take_turns_by_batch():
    readers = Readers(nodes=1, ranks=2, workers=2, batch_size=2)
    rank, worker, position = (each.ravel() for each in np.mgrid[:2, :2, :3])
    order = EpochOrder(rank, worker, position, np.arange(12))
    # iteration 0: batches of worker 0, rank by rank; 1: of worker 1; 2 and 3: what is left of them
    assert rows_in_time(order, readers).tolist() == [0, 1, 6, 7, 3, 4, 9, 10, 2, 8, 5, 11]


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        # a cache of two shards: 0 1 0 2 (drops 1) 1 (drops 0) 1; then 1 0 (drops 2) 3 (drops 1)
        (200, [FetchCounts(6, 2, 4, 400, 2, 200), FetchCounts(3, 1, 2, 200, 2, 200)]),
        # without a limit each node fetches a shard once for all epochs
        (None, [FetchCounts(6, 3, 3, 300, 0, 300), FetchCounts(3, 2, 1, 100, 0, 400)]),
        # without a cache a worker holds a shard from its first sample to its last: shard 0 at
        # places 0 to 2, 1 at 1 to 5, 2 at 3
        (0, [FetchCounts(6, 3, 3, 300, 0, 200), FetchCounts(3, 0, 3, 300, 0, 100)]),
    ],
)
def test_the_least_recently_used_shard_is_dropped(limit, found):
    epochs = [one_worker([0, 2, 1, 4, 2, 3]), one_worker([3, 0, 6])]
    assert list(count_fetches(epochs, ALONE, divide_into_pieces(FOUR, "shard"), limit)) == found


def test_what_is_larger_than_the_cache_is_fetched_and_not_kept():
    data = ShardedSet(np.array([1, 1, 1]), np.array([100.0, 500.0, 100.0]))
    found = next(
        count_fetches([one_worker([0, 1, 1, 0, 2])], ALONE, divide_into_pieces(data, "shard"), 200)
    )
    assert found == FetchCounts(5, 1, 4, 1200, 0, 600)


def test_nodes_share_no_cache_and_workers_of_one_do():
    readers = Readers(nodes=2, ranks=1, workers=2, batch_size=1)
    order = EpochOrder(
        np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([0, 0, 0]), np.array([0, 1, 0])
    )
    of = divide_into_pieces(FOUR, "shard")
    assert next(count_fetches([order], readers, of, None)) == FetchCounts(3, 1, 2, 200, 0, 100)
    # without a cache each worker has shard 0 by itself, in its own turn
    assert next(count_fetches([order], readers, of, 0)) == FetchCounts(3, 0, 3, 300, 0, 100)


def cases():
    """Orders and their pieces, of unequal shards, by name."""
    draw = np.random.default_rng(3)
    data = ShardedSet(np.full(32, 8), draw.integers(300, 2000, 32).astype(np.float64))
    readers = Readers(nodes=1, ranks=4, workers=2, batch_size=4)
    for order in (Drawn(), Kept()):
        for unit in ("sample", "block", "shard"):
            epochs = [order.epoch(data, readers, 1, epoch) for epoch in range(2)]
            yield f"{order.kind}, {unit}", epochs, readers, divide_into_pieces(data, unit, 3)


def misses(cachesim, limit, asked, nbytes):
    """How often the LRU of libCacheSim has not got what is asked for, and the bytes of that."""
    cache = cachesim.LRU(cache_size=limit)
    count = fetched_nbytes = 0
    for piece in asked:
        request = cachesim.Request()
        request.obj_id, request.obj_size = piece + 1, int(nbytes[piece])
        if not cache.get(request):
            count, fetched_nbytes = count + 1, fetched_nbytes + int(nbytes[piece])
    return [count, fetched_nbytes]


def test_an_independent_simulator_of_caches_counts_the_same():
    """tests/data/orders has what libCacheSim 0.3.5 counted, as the test below does it."""
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded["counts"]) == 18
    for name, epochs, readers, of in cases():
        for limit in LIMITS:
            found = list(count_fetches(epochs, readers, of, limit))
            counts = [sum(one.requests for one in found), sum(one.nbytes for one in found)]
            assert counts == recorded["counts"][f"{name}, {limit}"], name
            assert all(one.held_nbytes <= limit for one in found)


def counted(cachesim):
    return {
        f"{name}, {limit}": misses(
            cachesim,
            limit,
            np.concatenate(
                [of.piece_of_sample[e.sample[rows_in_time(e, readers)]] for e in epochs]
            ).tolist(),
            of.nbytes,
        )
        for name, epochs, readers, of in cases()
        for limit in LIMITS
    }


@needs_peers
def test_libcachesim_still_counts_what_was_recorded():
    cachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed")
    assert counted(cachesim) == json.loads(RECORDED.read_text())["counts"]


def test_a_shard_just_as_large_as_the_cache_is_kept():
    epochs = [one_worker([0, 2, 3]), one_worker([3, 0])]
    counts = count_fetches(epochs, ALONE, divide_into_pieces(FOUR, "shard"), 100)
    # 1 drops 0, and is there for its second sample and in the next epoch, where 0 drops it
    assert list(counts) == [FetchCounts(3, 1, 2, 200, 1, 100), FetchCounts(2, 1, 1, 100, 1, 100)]


def test_counts_are_sums_over_nodes_but_for_the_bytes_of_the_fullest():
    """Node 0 reads shards 0, 1, 0, node 1 shard 3 twice. A cache of one shard drops twice."""
    readers = Readers(nodes=2, ranks=1, workers=1, batch_size=1)
    rank = np.array([0, 0, 0, 1, 1])
    order = EpochOrder(rank, rank * 0, np.array([0, 1, 2, 0, 1]), np.array([0, 2, 1, 6, 7]))
    pieces = divide_into_pieces(FOUR, "shard")
    for limit, found in (
        (None, FetchCounts(5, 2, 3, 300, 0, 200)),
        (100, FetchCounts(5, 1, 4, 400, 2, 100)),
        (0, FetchCounts(5, 2, 3, 300, 0, 200)),
    ):
        assert next(count_fetches([order], readers, pieces, limit)) == found
    # node by node, in the order of rows
    caches = Caches(readers, pieces, 100)
    fetched, _ = caches.fetch_epoch(order.rank, order.worker, order.sample)
    assert fetched.tolist() == [True, True, True, True, False]


def test_bytes_of_the_pieces_of_samples():
    data = ShardedSet(np.array([3, 1]), np.array([10.0, 12.4]))
    caches = Caches(ALONE, divide_into_pieces(data, "shard"), None)
    assert caches.piece_nbytes(np.array([3, 0, 2])).tolist() == [12, 10, 10]


def test_without_a_cache_workers_hold_pieces_side_by_side():
    """Rank 1 has its shard from row 1 to 4, rank 0 shard 0 from 0 to 2 and shard 1 at 3: two at
    once. A worker that comes back to a shard has held it all along."""
    readers = Readers(nodes=1, ranks=2, workers=2, batch_size=1)
    caches = Caches(readers, divide_into_pieces(FOUR, "shard"), 0)
    rank, worker = np.array([0, 1, 0, 0, 1]), np.array([0, 1, 0, 0, 1])
    fetched, counts = caches.fetch_epoch(rank, worker, np.array([0, 0, 1, 2, 1]))
    assert fetched.tolist() == [True, True, False, True, False]
    assert counts == FetchCounts(5, 2, 3, 300, 0, 200)
    # the second worker of rank 0 is not the first of rank 1
    apart = caches.fetch_epoch(np.array([0, 1]), np.array([1, 0]), np.array([0, 1]))[1]
    assert apart == FetchCounts(2, 0, 2, 200, 0, 100)
    # nor is worker 0 with shard 1 worker 1 with shard 0
    crossed = caches.fetch_epoch(np.array([0, 0]), np.array([0, 1]), np.array([2, 0]))[1]
    assert crossed == FetchCounts(2, 0, 2, 200, 0, 100)


def test_a_block_is_a_sample_unless_its_size_is_given():
    assert divide_into_pieces(FOUR, "block").piece_of_sample.tolist() == list(range(8))

"""Measures of how an order mixes, by hand and for a random order."""

import numpy as np
import pytest

from simshuffle.workload.orders.mixing import (
    Coverage,
    batch_of_rows,
    companion_share,
    count_coverage,
    label_divergence,
    mean_in_windows,
    moved_share,
    position_entropy,
    shards_per_iteration,
)
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from tests.toy_orders import Drawn, Kept, handed_out

READERS = Readers(nodes=4, ranks=2, workers=2, batch_size=8)
DATA = ShardedSet(np.full(64, 32), np.full(64, 1e6))
"""2,048 samples; of each of the 8 ranks 256, 32 batches of 8."""
OF_SHARD = np.repeat(np.arange(64), 32)
PAIR = Readers(nodes=2, ranks=1, workers=1, batch_size=2)
"""Two ranks on nodes of their own."""


def epochs(order, count=4):
    return [order.epoch(DATA, READERS, 7, epoch) for epoch in range(count)]


def by_rank(*rows):
    return handed_out(np.array(rows), PAIR)


def test_companions_by_hand():
    before, after = by_rank([0, 1, 2, 3], [4, 5, 6, 7]), by_rank([1, 0, 4, 5], [2, 3, 6, 7])
    # of 4 batches 01 23 45 67 all are together again; of 12 pairs of ranks 01 23 45 67 alone
    ranks = companion_share(before, before.rank, after, after.rank)
    assert (
        companion_share(before, batch_of_rows(before, PAIR), after, batch_of_rows(after, PAIR))
        == 1.0
    )
    assert ranks == 4 / 12
    # a sample that is missing next time is in no pair again, and what comes twice counts once
    less = by_rank([0, 1, 2, 2], [4, 5, 6, 7])
    assert companion_share(before, before.rank, less, less.rank) == (3 + 6) / 12


def test_companions_of_a_random_order():
    first, second = epochs(Drawn(), 2)
    by_batch = companion_share(
        first, batch_of_rows(first, READERS), second, batch_of_rows(second, READERS)
    )
    assert by_batch == pytest.approx((8 - 1) / (2048 - 1), rel=0.3)
    assert companion_share(first, first.rank, second, second.rank) == pytest.approx(
        255 / 2047, rel=0.01
    )


def test_companions_where_ranks_keep_their_samples():
    first, second = epochs(Kept(), 2)
    assert companion_share(first, first.rank, second, second.rank) == 1.0
    by_batch = companion_share(
        first, batch_of_rows(first, READERS), second, batch_of_rows(second, READERS)
    )
    assert by_batch == pytest.approx((8 - 1) / (256 - 1), rel=0.15)


def test_moves_of_both():
    first, second = epochs(Drawn(), 2)
    assert moved_share(first, second, READERS) == pytest.approx(1 - 1 / 4, rel=0.04)
    assert moved_share(*epochs(Kept(), 2), READERS) == 0.0
    # 4 and 5 go to the first node, 2 and 3 to the second; 8 and 9 are new
    assert moved_share(
        by_rank([0, 1, 2, 3], [4, 5, 6, 7]), by_rank([0, 8, 4, 5], [2, 3, 9, 7]), PAIR
    ) == (4 / 6)


def test_divergence_of_labels_by_hand():
    # the whole has a half of each; one rank 3 of 4, the other 1 of 4
    labels, ranks = np.array([0, 0, 0, 1, 0, 1, 1, 1]), np.repeat([0, 1], 4)
    wanted = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    assert label_divergence(labels, ranks) == pytest.approx(wanted)
    assert label_divergence(labels, labels) == pytest.approx(np.log(2))
    assert label_divergence(labels, ranks * 0) == 0.0


def test_divergence_of_a_random_order_is_that_of_sampling():
    order = epochs(Drawn(), 1)[0]
    # multinomial counts: (classes - 1) / 2 n, less what is drawn without replacement
    wanted = 9 / (2 * 256) * (1 - 256 / 2048)
    assert label_divergence(order.sample * 10 // 2048, order.rank) == pytest.approx(
        wanted, rel=0.35
    )


def test_position_entropy():
    halves = [by_rank([0, 1, 2, 3], [4, 5, 6, 7]), by_rank([2, 3, 0, 1], [4, 5, 6, 7])]
    assert position_entropy(halves, 8, PAIR, 2) == pytest.approx(0.5)  # those of rank 0 alone
    assert position_entropy(halves[:1] * 3, 8, PAIR, 2) == 0.0
    assert position_entropy(halves[:1], 8, PAIR, 2) == 0.0
    # two epochs: the same of 8 parts with a chance of 1 in 8
    random = position_entropy(epochs(Drawn(), 2), DATA.size, READERS, 8)
    assert random == pytest.approx(1 - 1 / 8, abs=0.03)


def test_shards_of_batches_and_their_tail():
    shard = np.repeat(np.arange(4), 2)
    order = by_rank([0, 1, 2, 4], [6, 7, 3, 5])
    assert shards_per_iteration(order, shard, PAIR).tolist() == [2, 2]
    assert shards_per_iteration(by_rank([0, 2, 4, 5], [6, 1, 3, 7]), shard, PAIR).tolist() == [3, 3]
    assert mean_in_windows(np.array([1, 3, 5, 5]), 2).tolist() == [2, 5]
    assert np.isnan(mean_in_windows(np.array([1]), 2)).tolist() == [False, True]
    # 64 of 64 shards; a batch of all ranks has 64 samples
    found = shards_per_iteration(epochs(Drawn(), 1)[0], OF_SHARD, READERS).mean()
    assert found == pytest.approx(64 * (1 - (1 - 1 / 64) ** 64), rel=0.02)
    # the 8 samples of each rank are all from its own 8 shards
    kept = shards_per_iteration(epochs(Kept(), 1)[0], OF_SHARD, READERS).mean()
    assert kept == pytest.approx(64 * (1 - (1 - 1 / 8) ** 8), rel=0.03)


def test_coverage_counts_what_is_never_and_more_than_once():
    order = EpochOrder(
        np.array([0, 0, 0, 1]), np.zeros(4, int), np.array([0, 1, 2, 0]), np.array([5, 5, 5, 0])
    )
    assert count_coverage(order, 6, PAIR) == Coverage(
        never=4, repeated=1, surplus=2, least=1, most=3
    )
    assert count_coverage(epochs(Drawn(), 1)[0], 2048, READERS) == Coverage(0, 0, 0, 256, 256)


def test_an_epoch_that_shares_no_sample_has_no_companions_and_no_moves():
    before, after = by_rank([0, 1], [2, 3]), by_rank([4, 5], [6, 7])
    assert companion_share(before, before.rank, after, after.rank) == 0.0
    assert moved_share(before, after, PAIR) == 0.0
    alone = by_rank([0], [1])
    assert companion_share(alone, alone.rank, alone, alone.rank) == 0.0  # no pair at all


def test_batches_are_numbered_iteration_by_iteration():
    """Batches of two samples of two ranks: the second of rank 0 comes after the first of rank 1."""
    order = by_rank([0, 1, 2, 3], [4, 5, 6, 7])
    assert batch_of_rows(order, PAIR).tolist() == [0, 0, 2, 2, 1, 1, 3, 3]


def test_nodes_of_two_ranks_move_what_changes_the_node_alone():
    """Ranks 0 and 1 are on node 0: sample 0 goes to the other rank of it, sample 1 to node 1."""
    readers = Readers(nodes=2, ranks=2, workers=1, batch_size=1)
    before, after = (
        EpochOrder(np.array(ranks), np.zeros(4, int), np.zeros(4, int), np.arange(4))
        for ranks in ([0, 1, 2, 3], [1, 2, 0, 3])
    )
    assert moved_share(before, after, readers) == 2 / 4


def test_groups_and_labels_may_have_any_numbers():
    # shares 2/3 and 1/3 of one group, 0 and 1 of the other, against 2/5 and 3/5
    labels, group = np.array([7, 7, 9, 9, 9]), np.array([4, 4, 4, 11, 11])
    first = 2 / 3 * np.log(2 / 3 / 0.4) + 1 / 3 * np.log(1 / 3 / 0.6)
    wanted = (first + np.log(1 / 0.6)) / 2
    assert label_divergence(labels, group) == pytest.approx(wanted)


def test_the_first_row_of_a_sample_says_at_which_place_it_is():
    """Three epochs and two halves, so that at most two places: sample 0 is twice in the first half
    and once in the second, sample 1 always in the first, whatever comes again later."""
    readers = Readers(nodes=1, ranks=1, workers=1, batch_size=1)

    def alone(*samples):
        rows = np.array(samples)
        return EpochOrder(rows * 0, rows * 0, np.arange(len(rows)), rows)

    orders = [alone(0, 1, 0, 0), alone(1, 0, 2, 2), alone(1, 2, 0, 1)]
    of_0 = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    # sample 2: once in the second half, once in the first
    wanted = (of_0 + 0 + np.log(2)) / 3 / np.log(2)
    assert position_entropy(orders, 5, readers, 2) == pytest.approx(wanted)


def test_values_in_windows_of_unequal_length():
    # 5 values in 3 windows: 0 1 | 2 3 | 4, as k 3 / 5 is 0, 0.6, 1.2, 1.8, 2.4
    assert mean_in_windows(np.array([1, 2, 4, 8, 7]), 3).tolist() == [1.5, 6, 7]

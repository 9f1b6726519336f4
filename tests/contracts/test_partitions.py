"""What every partition must satisfy: all samples dealt out, shards balanced, the same seed the same
owners."""

from typing import get_args

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.train.partition import (
    DirichletPartition,
    Partition,
    RandomPartition,
    ShardsPartition,
    SortedPartition,
    label_divergence,
)

EXAMPLES = [
    RandomPartition(kind="random"),
    DirichletPartition(kind="dirichlet", alpha=100),
    DirichletPartition(kind="dirichlet", alpha=0.1),
    DirichletPartition(kind="dirichlet", alpha=1e-4),
    SortedPartition(kind="sorted"),
    ShardsPartition(kind="shards"),
    ShardsPartition(kind="shards", shards_per_rank=7),
]
TARGETS = np.random.default_rng(3).permutation(
    np.repeat(np.arange(10), [100, 90, 110, 100, 100, 5, 195, 100, 103, 100])
)


def rng(seed=0):
    return np.random.default_rng(seed)


def owners(partition, world_size, seed=0, targets=TARGETS):
    return partition.owner(targets, world_size, rng(seed))


def test_every_member_of_the_union_has_an_example():
    assert {type(example) for example in EXAMPLES} == set(get_args(get_args(Partition)[0]))


@pytest.mark.parametrize("world_size", [1, 2, 7, 64, 501, 1002, 1003])
@pytest.mark.parametrize("partition", EXAMPLES, ids=str)
def test_all_samples_are_dealt_out_and_shards_are_balanced(partition, world_size):
    owner = owners(partition, world_size)
    assert owner.shape == TARGETS.shape
    assert owner.dtype == np.int32
    sizes = np.bincount(owner, minlength=world_size)
    assert len(sizes) == world_size
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == len(TARGETS)


@pytest.mark.parametrize("partition", EXAMPLES, ids=str)
def test_the_same_seed_gives_the_same_owners_and_another_one_others(partition):
    """Targets are only read, labels may be any numbers, and ranks no more than samples."""
    before, owner = TARGETS.copy(), owners(partition, 16)
    assert np.array_equal(owner, owners(partition, 16))
    assert not np.array_equal(owner, owners(partition, 16, seed=1))
    assert np.array_equal(TARGETS, before)
    assert np.array_equal(owners(partition, 16, targets=1000 + 7 * TARGETS), owner)
    with pytest.raises(InputError, match=r"world_size: must not .* samples, 1003; got 1004"):
        owners(partition, 1004)


def labels_of(owner, world_size):
    return [np.unique(TARGETS[owner == rank]) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 10, 37, 200])
def test_a_sorted_shard_holds_few_neighbouring_labels(world_size):
    """A shard of n samples covers at most the labels that n - 2 samples between its ends can hold,
    and the two at its ends."""
    owner = owners(SortedPartition(kind="sorted"), world_size)
    counts = np.bincount(TARGETS)
    for labels in labels_of(owner, world_size):
        assert np.array_equal(labels, np.arange(labels[0], labels[-1] + 1))
    most = -(-len(TARGETS) // world_size)
    frequent = [
        len([k for k in labels if counts[k] >= 90]) for labels in labels_of(owner, world_size)
    ]
    assert max(frequent) <= np.ceil(most / 90) + 1
    firsts = [labels[0] for labels in labels_of(owner, world_size)]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_rank_of_the_shards_partition_has_the_labels_of_its_pieces(k):
    """A piece is shorter than any frequent label, so it holds two labels at most, or three with the
    label of 5 samples between."""
    owner = owners(ShardsPartition(kind="shards", shards_per_rank=k), 20)
    assert max(len(labels) for labels in labels_of(owner, 20)) <= 2 * k + 1
    assert len(labels_of(owner, 20)[0]) >= 1


def test_pieces_are_dealt_out_at_random():
    """With one piece a rank, the partition is the sorted one with the ranks' names permuted."""
    owner = owners(ShardsPartition(kind="shards", shards_per_rank=1), 17)
    held = sorted(tuple(np.sort(TARGETS[owner == rank])) for rank in range(17))
    plain = sorted(
        tuple(np.sort(TARGETS[owners(SortedPartition(kind="sorted"), 17) == rank]))
        for rank in range(17)
    )
    # sizes differ by one, so cuts may
    assert sum(one == other for one, other in zip(held, plain, strict=True)) >= 5
    firsts = [TARGETS[owner == rank].min() for rank in range(17)]
    assert firsts != sorted(firsts)


def test_label_divergence_by_hand():
    targets = np.array([0, 0, 1, 1])
    assert label_divergence(np.array([0, 1, 0, 1]), targets, 2) == 0
    assert label_divergence(np.array([0, 0, 1, 1]), targets, 2) == pytest.approx(0.5)
    assert label_divergence(np.array([0, 0, 0, 1]), targets, 2) == pytest.approx((1 / 6 + 0.5) / 2)


def test_dirichlet_goes_from_sorted_to_random_as_alpha_grows():
    targets = np.arange(20_000) % 10
    alphas = (1e-3, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
    skews = [
        label_divergence(
            owners(DirichletPartition(kind="dirichlet", alpha=a), 40, targets=targets), targets, 40
        )
        for a in alphas
    ]
    assert (np.diff(skews) < 0).all(), skews
    assert skews[0] > 0.7
    assert skews[-1] < 0.07
    even = label_divergence(
        owners(RandomPartition(kind="random"), 40, targets=targets), targets, 40
    )
    assert (
        label_divergence(
            owners(DirichletPartition(kind="dirichlet", alpha=1e6), 40, targets=targets),
            targets,
            40,
        )
        < 1.2 * even
    )


def test_dirichlet_mixes_have_the_variance_of_the_distribution():
    """The share of a label in a rank's mix has variance p (1 - p) / (alpha K + 1); multinomial
    draws add p (1 - p) / n and a bit."""
    targets, alpha, world_size = np.arange(50_000) % 10, 5.0, 100
    owner = owners(DirichletPartition(kind="dirichlet", alpha=alpha), world_size, targets=targets)
    counts = (
        np.bincount(owner.astype(np.int64) * 10 + targets, minlength=1000).reshape(100, 10) / 500
    )
    mixes, draws = 0.09 / (10 * alpha + 1), 0.09 / 500
    assert counts.var() == pytest.approx(mixes + draws * (1 - 1 / (10 * alpha + 1)), rel=0.15)


def test_dirichlet_follows_the_frequency_of_labels():
    targets = np.repeat([0, 1], [9000, 1000])
    owner = owners(DirichletPartition(kind="dirichlet", alpha=1e5), 10, targets=targets)
    rare = [int(targets[owner == rank].sum()) for rank in range(10)]
    assert sum(rare) == 1000
    assert min(rare) > 60

"""Partitions: the rank that holds each sample before the first epoch. Shards differ in
size by one sample at most, whatever the rule.

``owner`` gives the rank of each sample, (N,) int32, by the labels (N,); it raises
InputError if there are fewer samples than ranks.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints, Ints64
from simshuffle.spec.record import Count, Spec, whole_as_float
from simshuffle.workload.exchange import initial_owner

Concentration = Annotated[
    float, BeforeValidator(whole_as_float), Field(ge=1e-4, le=1e6)
]


class RandomPartition(Spec):
    """Random shards, whatever the labels of the samples."""

    kind: Literal["random"]

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """Return the rank of each sample, (N,) int32.

        Raises:
            InputError: there are fewer samples than ranks.
        """
        check_ranks(len(targets), world_size)
        return initial_owner(len(targets), world_size, rng)


class DirichletPartition(Spec):
    """Shards with a mix of labels for each rank, drawn from a Dirichlet distribution
    (Hsu, Qi and Brown 2019, arXiv 1909.06335).

    With K labels of which label k makes up the part p_k of the set, rank r draws its
    mix q_r from Dirichlet(alpha K p): with equally frequent labels every parameter is
    alpha. A large alpha gives every rank the set's own mix, a small one few labels a
    rank.

    Shards are balanced nevertheless, by turns: in a turn every rank takes one sample,
    of a label drawn from its mix among the labels of which samples are left; where a
    turn wants more samples of a label than are left, ranks drawn by lot get them and
    the others draw again. A rank whose mix holds no label that is left draws from what
    is left. In the last turn only the ranks with a larger shard take part. So what a
    rank gets deviates from its mix as labels run out, the more the fewer ranks there
    are.

    Attributes:
        alpha: concentration.
    """

    kind: Literal["dirichlet"]
    alpha: Concentration

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """Return the rank of each sample, (N,) int32.

        Raises:
            InputError: there are fewer samples than ranks.
        """
        shard_sizes = _sizes(len(targets), world_size)
        _, label = np.unique(targets, return_inverse=True)
        label_counts = np.bincount(label)
        parameters = np.maximum(
            self.alpha * len(label_counts) * label_counts / len(targets), 1e-6
        )
        if world_size == 1:
            return np.zeros(len(targets), np.int32)
        mixes = rng.dirichlet(parameters, world_size)
        dealt_counts = _deal_by_turns(mixes, label_counts, shard_sizes, rng)
        owner = np.empty(len(targets), np.int32)
        owner[_sort_by_label(targets, rng)] = np.concatenate(
            [
                np.repeat(np.arange(world_size), rank_counts)
                for rank_counts in dealt_counts.T
            ]
        )
        return owner


class SortedPartition(Spec):
    """Shards of samples sorted by label and cut into M pieces: a rank has one label or
    a few.
    """

    kind: Literal["sorted"]

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """Return the rank of each sample, (N,) int32.

        Raises:
            InputError: there are fewer samples than ranks.
        """
        sizes = _sizes(len(targets), world_size)
        owner = np.empty(len(targets), np.int32)
        owner[_sort_by_label(targets, rng)] = np.repeat(np.arange(world_size), sizes)
        return owner


class ShardsPartition(Spec):
    """Shards of the samples sorted by label and cut into M times k pieces, of which
    every rank gets k at random (McMahan et al. 2017, AISTATS).

    Pieces differ in size by one sample at most.

    Attributes:
        shards_per_rank: k.
    """

    kind: Literal["shards"]
    shards_per_rank: Annotated[Count, Field(le=10_000)] = 2

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """Return the rank of each sample, (N,) int32.

        Raises:
            InputError: there are fewer samples than ranks.
        """
        sizes = _sizes(len(targets), world_size)
        k = self.shards_per_rank
        # the rank of each piece, in the order of labels
        ranks = rng.permutation(np.repeat(np.arange(world_size), k))
        pieces = np.empty(len(ranks), np.int64)
        # a rank's shard is divided evenly over its pieces, so that the rank's size is met whichever
        # pieces it has
        pieces[np.argsort(ranks, kind="stable")] = np.diff(
            np.arange(k + 1) * sizes[:, None] // k, axis=1
        ).ravel()
        owner = np.empty(len(targets), np.int32)
        owner[_sort_by_label(targets, rng)] = np.repeat(ranks, pieces)
        return owner


Partition = Annotated[
    RandomPartition | DirichletPartition | SortedPartition | ShardsPartition,
    Field(discriminator="kind"),
]


def check_ranks(num_samples: int, world_size: int) -> None:
    """Raise an InputError if there are fewer samples than ranks."""
    if world_size > num_samples:
        rule = f"must not exceed the number of training samples, {num_samples}"
        remedy = "Use fewer ranks or more samples."
        refuse("world_size", rule, str(world_size), remedy, "partition")


def label_divergence(
    owner: Ints, targets: Ints, world_size: int, samples: Ints | None = None
) -> float:
    """Return how much the ranks' labels differ from the set's, from 0 to 1.

    It is the mean over ranks of the total variation distance: half the sum of absolute
    differences of shares. It is NaN if a rank has no sample.

    Args:
        owner: (n,) the rank of each sample, or of each of ``samples``.
        targets: (N,) the label of each sample.
        world_size: M.
        samples: (n,) the samples that ranks have, where that is not each sample once.
    """
    _, label = np.unique(targets, return_inverse=True)
    classes = int(label.max()) + 1
    owned_label = label if samples is None else label[samples]
    # (M, classes) samples of each
    pair = owner.astype(np.int64) * classes + owned_label
    counts = np.bincount(pair, minlength=world_size * classes).reshape(
        world_size, classes
    )
    share = counts / counts.sum(axis=1, keepdims=True)
    overall_share = np.bincount(label) / len(targets)
    return float(0.5 * np.abs(share - overall_share).sum(axis=1).mean())


def _sizes(num_samples: int, world_size: int) -> Ints:
    """Return the samples of each rank, (M,), which differ by one at most.

    Raises:
        InputError: there are fewer samples than ranks.
    """
    check_ranks(num_samples, world_size)
    return np.bincount(
        np.arange(num_samples) * world_size // num_samples, minlength=world_size
    )


def _sort_by_label(targets: Ints64, rng: np.random.Generator) -> Ints:
    """Return sample indices sorted by label, samples of one label in random order:
    (N,).
    """
    shuffled = rng.permutation(len(targets))
    return np.asarray(shuffled[np.argsort(targets[shuffled], kind="stable")])


def _deal_by_turns(
    mixes: Floats, label_counts: Ints, shard_sizes: Ints, rng: np.random.Generator
) -> Ints:
    """Decide how many samples of each label each rank gets, (M, K), as
    `DirichletPartition` says.

    Args:
        mixes: (M, K) the share of each label for each rank.
        label_counts: (K,) samples of each label.
        shard_sizes: (M,) samples of each rank.
        rng: that draws.
    """
    dealt = np.zeros(mixes.shape, np.int64)
    remaining = label_counts.copy()
    for turn in range(int(shard_sizes.max())):
        waiting = rng.permutation(np.flatnonzero(shard_sizes > turn))
        while len(waiting):
            label = _draw_labels(mixes[waiting], remaining, rng)
            # the first ranks that drew a label get it, as many as samples remain
            order = np.argsort(label, kind="stable")
            first = np.searchsorted(label[order], label[order])
            is_dealt = np.empty(len(waiting), np.bool_)
            is_dealt[order] = np.arange(len(waiting)) - first < remaining[label[order]]
            np.add.at(dealt, (waiting[is_dealt], label[is_dealt]), 1)
            remaining -= np.bincount(label[is_dealt], minlength=len(remaining))
            waiting = waiting[~is_dealt]
    return dealt


def _draw_labels(mixes: Floats, remaining: Ints, rng: np.random.Generator) -> Ints:
    """Draw a label for each rank, (n,), by its mix among the labels of which samples
    remain; by the remaining samples where its mix has no such label.

    Args:
        mixes: (n, K) the share of each label for each rank.
        remaining: (K,) samples of each label.
        rng: that draws.
    """
    weights = mixes * (remaining > 0)
    has_no_label = weights.sum(axis=1) <= 0
    weights[has_no_label] = remaining
    # the label in whose part of the cumulated weights a uniform number falls
    cumulative = np.cumsum(weights, axis=1)
    threshold = (rng.random(len(mixes)) * cumulative[:, -1])[:, None]
    label = (cumulative <= threshold).sum(axis=1)
    return np.asarray(np.minimum(label, np.max(np.flatnonzero(remaining > 0))))

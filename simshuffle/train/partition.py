"""Partitions: who holds which sample before the first epoch. Shards differ in size by one sample at
most, whatever the rule.

``owner`` gives the rank of each sample, (N,) int32, by the labels (N,); it raises InputError if
there are fewer samples than ranks.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints, Ints64
from simshuffle.spec.record import Count, Spec, whole_as_float
from simshuffle.workload.exchange import initial_owner

Concentration = Annotated[float, BeforeValidator(whole_as_float), Field(ge=1e-4, le=1e6)]


class RandomPartition(Spec):
    """Every rank gets samples at random, whatever their labels."""

    kind: Literal["random"]

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """The rank of each sample."""
        check_ranks(len(targets), world_size)
        return initial_owner(len(targets), world_size, rng)


class DirichletPartition(Spec):
    """Every rank has its own mix of labels, drawn from a Dirichlet distribution (Hsu, Qi and Brown
    2019, arXiv 1909.06335).

    With K labels of which label k makes up the part p_k of the set, rank r draws its mix q_r from
    Dirichlet(alpha K p): with equally frequent labels every parameter is alpha. A large alpha gives
    every rank the set's own mix, a small one few labels a rank.

    Shards are balanced nevertheless, by turns: in a turn every rank takes one sample, of a label
    drawn from its mix among the labels of which samples are left; where a turn wants more samples
    of a label than are left, ranks drawn by lot get them and the others draw again. A rank whose
    mix holds no label that is left draws from what is left. In the last turn only the ranks with a
    larger shard take part. So what a rank gets deviates from its mix as labels run out, the more
    the fewer ranks there are.

    Attributes:
        alpha: concentration.
    """

    kind: Literal["dirichlet"]
    alpha: Concentration

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """The rank of each sample."""
        sizes = _sizes(len(targets), world_size)
        _, label = np.unique(targets, return_inverse=True)
        left = np.bincount(label)
        parameters = np.maximum(self.alpha * len(left) * left / len(targets), 1e-6)
        if world_size == 1:
            return np.zeros(len(targets), np.int32)
        mixes = rng.dirichlet(parameters, world_size)
        taken = _by_turns(mixes, left, sizes, rng)
        owner = np.empty(len(targets), np.int32)
        owner[_by_label(targets, rng)] = np.concatenate(
            [np.repeat(np.arange(world_size), column) for column in taken.T]
        )
        return owner


class SortedPartition(Spec):
    """The samples sorted by label and cut into M pieces: a rank sees one label or a few."""

    kind: Literal["sorted"]

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """The rank of each sample."""
        sizes = _sizes(len(targets), world_size)
        owner = np.empty(len(targets), np.int32)
        owner[_by_label(targets, rng)] = np.repeat(np.arange(world_size), sizes)
        return owner


class ShardsPartition(Spec):
    """The samples sorted by label and cut into M times k pieces, of which every rank gets k at
    random (McMahan et al. 2017, AISTATS).

    Pieces differ in size by one sample at most.

    Attributes:
        shards_per_rank: k.
    """

    kind: Literal["shards"]
    shards_per_rank: Annotated[Count, Field(le=10_000)] = 2

    def owner(self, targets: Ints64, world_size: int, rng: np.random.Generator) -> Ints:
        """The rank of each sample."""
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
        owner[_by_label(targets, rng)] = np.repeat(ranks, pieces)
        return owner


Partition = Annotated[
    RandomPartition | DirichletPartition | SortedPartition | ShardsPartition,
    Field(discriminator="kind"),
]


def check_ranks(num_samples: int, world_size: int) -> None:
    """See that every rank can get a sample, or raise InputError."""
    if world_size > num_samples:
        rule = f"must not exceed the number of training samples, {num_samples}"
        remedy = "Take fewer ranks or more samples."
        refuse("world_size", rule, str(world_size), remedy, "partition")


def label_divergence(
    owner: Ints, targets: Ints, world_size: int, samples: Ints | None = None
) -> float:
    """How much the ranks' labels differ from the set's: mean over ranks of the total variation
    distance, half the sum of absolute differences of shares, 0 to 1. ``owner`` is the rank of each
    sample, or of each of ``samples``, which the ranks have where that is not each sample once."""
    _, label = np.unique(targets, return_inverse=True)
    classes = int(label.max()) + 1
    of_rank = label if samples is None else label[samples]
    counts = np.bincount(
        owner.astype(np.int64) * classes + of_rank, minlength=world_size * classes
    ).reshape(world_size, classes)
    share = counts / counts.sum(axis=1, keepdims=True)
    whole = np.bincount(label) / len(targets)
    return float(0.5 * np.abs(share - whole).sum(axis=1).mean())


def _sizes(num_samples: int, world_size: int) -> Ints:
    """Samples of each rank, (M,): the same as in a random partition."""
    check_ranks(num_samples, world_size)
    return np.bincount(np.arange(num_samples) * world_size // num_samples, minlength=world_size)


def _by_label(targets: Ints64, rng: np.random.Generator) -> Ints:
    """The samples' numbers sorted by label, those of one label in random order: (N,)."""
    shuffled = rng.permutation(len(targets))
    return np.asarray(shuffled[np.argsort(targets[shuffled], kind="stable")])


def _by_turns(mixes: Floats, left: Ints, sizes: Ints, rng: np.random.Generator) -> Ints:
    """How many samples of each label each rank gets, (M, K), by mixes (M, K), samples of labels
    (K,) and of ranks (M,)."""
    taken, left = np.zeros(mixes.shape, np.int64), left.copy()
    for turn in range(int(sizes.max())):
        waiting = rng.permutation(np.flatnonzero(sizes > turn))
        while len(waiting):
            label = _drawn(mixes[waiting], left, rng)
            order = np.argsort(label, kind="stable")
            first = np.searchsorted(label[order], label[order])
            served = np.empty(len(waiting), np.bool_)
            served[order] = np.arange(len(waiting)) - first < left[label[order]]
            np.add.at(taken, (waiting[served], label[served]), 1)
            left -= np.bincount(label[served], minlength=len(left))
            waiting = waiting[~served]
    return taken


def _drawn(mixes: Floats, left: Ints, rng: np.random.Generator) -> Ints:
    """A label, of which samples are left (K,), for each of the ranks (n,), by their mixes (n,
    K)."""
    weights = mixes * (left > 0)
    hopeless = weights.sum(axis=1) <= 0
    weights[hopeless] = left
    upto = np.cumsum(weights, axis=1)
    label = (upto <= (rng.random(len(mixes)) * upto[:, -1])[:, None]).sum(axis=1)
    return np.asarray(np.minimum(label, np.max(np.flatnonzero(left > 0))))

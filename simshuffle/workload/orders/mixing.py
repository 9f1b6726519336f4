"""How well an order mixes, by counting over epochs: who meets whom again, what a rank sees of the
whole, where a sample comes, and who gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.workload.orders.fetching import iteration
from simshuffle.workload.orders.order import EpochOrder, Readers


@dataclass(frozen=True)
class Coverage:
    """Which samples an epoch has."""

    never: int  # samples that are not handed out
    repeated: int  # samples that are handed out more than once
    surplus: int  # rows beyond the first of each sample
    # least, most: samples of the rank that has fewest, and most
    least: int
    most: int


def coverage(order: EpochOrder, size: int, readers: Readers) -> Coverage:
    """Which samples of ``size`` an epoch has, and how unequal ranks are."""
    times = np.bincount(order.sample, minlength=size)
    of_rank = np.bincount(order.rank, minlength=readers.world_size)
    repeated = int((times > 1).sum())
    surplus = int((times[times > 1] - 1).sum())
    return Coverage(
        int((times == 0).sum()), repeated, surplus, int(of_rank.min()), int(of_rank.max())
    )


def batches(order: EpochOrder, readers: Readers) -> Ints64:
    """(n,) the batch of a rank that each row is in: a number for each rank and iteration."""
    return iteration(order, readers) * readers.world_size + order.rank


class HandedOut(Protocol):
    """Rows of samples."""

    @property
    def sample(self) -> Ints64:
        """(n,) their numbers."""


def companions(
    before: HandedOut, group_before: Ints64, after: HandedOut, group_after: Ints64
) -> float:
    """Share of the pairs of samples that were in one group in an epoch and are so again in another;
    0 if there are no pairs. Groups are (n,) of each row: the rank, or `batches`. Where a sample is
    handed out more than once, the first time counts. A random order gives (b - 1) / (N - 1) for
    groups of b of N samples."""
    first = np.unique(before.sample, return_index=True)[1]
    pairs = _pairs(np.unique(group_before[first], return_counts=True)[1])
    _, here, there = np.intersect1d(before.sample, after.sample, return_indices=True)
    _, left = np.unique(group_before[here], return_inverse=True)
    _, right = np.unique(group_after[there], return_inverse=True)
    again = _pairs(np.unique(left * (len(right) + 1) + right, return_counts=True)[1])
    return again / pairs if pairs else 0.0


def _pairs(counts: Ints64) -> int:
    return int((counts * (counts - 1) // 2).sum())


def moves(before: EpochOrder, after: EpochOrder, readers: Readers) -> float:
    """Share of the samples that both epochs have which are on another node than an epoch before;
    the first time counts. A random order gives 1 - 1 / nodes."""
    _, here, there = np.intersect1d(before.sample, after.sample, return_indices=True)
    moved = before.rank[here] // readers.ranks != after.rank[there] // readers.ranks
    return float(moved.mean()) if len(here) else 0.0


def divergence(labels: Ints64, group: Ints64) -> float:
    """Mean over groups, (n,) the rank or the iteration of each row, of how far their labels are
    from those of all rows: the Kullback-Leibler divergence of the shares of labels of the group to
    those of all, in nats. Labels, (n,) from 0, are classes."""
    _, group = np.unique(group, return_inverse=True)
    _, labels = np.unique(labels, return_inverse=True)
    groups, kinds = int(group.max()) + 1, int(labels.max()) + 1
    counts = np.bincount(group * kinds + labels, minlength=groups * kinds).reshape(groups, kinds)
    share = counts / counts.sum(axis=1, keepdims=True)
    whole = counts.sum(axis=0) / counts.sum()
    ratio = np.where(share > 0, share / whole, 1.0)
    return float((share * np.log(ratio)).sum(axis=1).mean())


def position_entropy(orders: Sequence[EpochOrder], size: int, readers: Readers, bins: int) -> float:
    """How much the place of a sample in the epoch varies over epochs, from 0 (always in the same of
    ``bins`` equal parts of the epoch) to 1 (in as many parts as there can be); 0 for a single epoch
    or part. It is the mean over samples of the entropy of the parts in which they come, over the
    largest that so many epochs and parts allow."""
    most = np.log(min(len(orders), bins))
    if most == 0:
        return 0.0
    keys = []
    for order in orders:
        turn = iteration(order, readers)
        sample, first = np.unique(order.sample, return_index=True)
        keys.append(sample * bins + turn[first] * bins // (int(turn.max()) + 1))
    key, counts = np.unique(np.concatenate(keys), return_counts=True)
    sample = key // bins
    times = np.bincount(sample, counts, minlength=size)
    share = counts / times[sample]
    entropy = np.bincount(sample, -share * np.log(share), minlength=size)
    return float(entropy[times > 0].mean() / most)


def shards_of_batches(order: EpochOrder, shard: Ints64, readers: Readers) -> Ints64:
    """(T,) of how many shards the batches of all ranks together have samples, in each iteration
    from the first to the last; ``shard`` is (N,) that of each sample."""
    turn, shards = iteration(order, readers), int(shard.max()) + 1
    pair = np.unique(turn * shards + shard[order.sample])
    return np.bincount(pair // shards, minlength=int(turn.max()) + 1)


def along(values: Ints64, windows: int) -> Floats:
    """(windows,) the mean of ``values`` in equal parts from first to last; nan in a part that has
    none."""
    part = np.arange(len(values)) * windows // len(values)
    counts = np.bincount(part, minlength=windows)
    with np.errstate(invalid="ignore"):
        return np.bincount(part, values, minlength=windows) / counts

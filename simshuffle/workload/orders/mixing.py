"""Measures of how well an order mixes, counted over epochs.

Which samples meet again, how a rank's samples differ from the whole set, at which
position a sample comes, and on which node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.workload.orders.fetching import iteration_of_rows
from simshuffle.workload.orders.order import EpochOrder, Readers


@dataclass(frozen=True)
class Coverage:
    """Counts of the samples that an epoch leaves out or repeats, and of the samples of
    ranks.
    """

    never: int  # samples that are not handed out
    repeated: int  # samples that are handed out more than once
    surplus: int  # rows beyond the first of each sample
    least: int  # samples of the rank that has fewest
    most: int  # samples of the rank that has most


def count_coverage(order: EpochOrder, num_samples: int, readers: Readers) -> Coverage:
    """Count which of ``num_samples`` samples an epoch has, and how unequal ranks are.

    A rank without rows counts with 0 samples.
    """
    times = np.bincount(order.sample, minlength=num_samples)
    rows_of_rank = np.bincount(order.rank, minlength=readers.world_size)
    return Coverage(
        never=int((times == 0).sum()),
        repeated=int((times > 1).sum()),
        surplus=int((times[times > 1] - 1).sum()),
        least=int(rows_of_rank.min()),
        most=int(rows_of_rank.max()),
    )


def batch_of_rows(order: EpochOrder, readers: Readers) -> Ints64:
    """Return the batch of each row, (n,): iteration * M + rank."""
    return iteration_of_rows(order, readers) * readers.world_size + order.rank


class SampleRows(Protocol):
    """Rows of samples, as an `EpochOrder` has them."""

    @property
    def sample(self) -> Ints64:
        """(n,) sample indices."""


def companion_share(
    previous: SampleRows,
    previous_group: Ints64,
    current: SampleRows,
    current_group: Ints64,
) -> float:
    """Return the share of pairs in one group in an epoch that are so again in another
    epoch.

    0 if there are no pairs. A pair counts as parted if the other epoch lacks a sample
    of the two. Where a sample is handed out more than once, the first time counts. A
    random order gives (b - 1) / (N - 1) for groups of b of N samples.

    Args:
        previous: rows of the first epoch.
        previous_group: (n,) the group of each row: its rank, or its batch
            (`batch_of_rows`).
        current: rows of the other epoch.
        current_group: (n,) the group of each of them.
    """
    first_row = np.unique(previous.sample, return_index=True)[1]
    num_pairs = _count_pairs(
        np.unique(previous_group[first_row], return_counts=True)[1]
    )
    # rows of the samples that both epochs have, sample by sample
    _, previous_row, current_row = np.intersect1d(
        previous.sample, current.sample, return_indices=True
    )
    _, from_group = np.unique(previous_group[previous_row], return_inverse=True)
    _, to_group = np.unique(current_group[current_row], return_inverse=True)
    # samples of each pair of a previous and a current group
    sizes = np.unique(from_group * (len(to_group) + 1) + to_group, return_counts=True)[
        1
    ]
    return _count_pairs(sizes) / num_pairs if num_pairs else 0.0


def _count_pairs(group_sizes: Ints64) -> int:
    """Return how many pairs there are within groups of these sizes."""
    return int((group_sizes * (group_sizes - 1) // 2).sum())


def moved_share(previous: EpochOrder, current: EpochOrder, readers: Readers) -> float:
    """Return the share of the samples of both epochs that are on another node than
    before.

    Samples that one of the epochs lacks do not count. Of a sample with several rows in
    an epoch, the first row counts. 0 if no sample is in both epochs. A random order
    gives 1 - 1 / nodes.
    """
    _, previous_row, current_row = np.intersect1d(
        previous.sample, current.sample, return_indices=True
    )
    previous_node = previous.rank[previous_row] // readers.ranks
    current_node = current.rank[current_row] // readers.ranks
    return float((previous_node != current_node).mean()) if len(previous_row) else 0.0


def label_divergence(labels: Ints64, group: Ints64) -> float:
    """Return how far the labels of groups are from the labels of all rows, in nats.

    It is the mean over groups, each of equal weight, of the Kullback-Leibler divergence
    of the shares of labels in the group to the shares among all rows. 0 if all groups
    have equal shares.

    Args:
        labels: (n,) the class of each row; at least one row.
        group: (n,) the group of each row: its rank or its iteration.
    """
    _, group = np.unique(group, return_inverse=True)
    _, labels = np.unique(labels, return_inverse=True)
    num_groups = int(group.max()) + 1
    num_labels = int(labels.max()) + 1
    # (groups, labels) rows of each
    counts = np.bincount(group * num_labels + labels, minlength=num_groups * num_labels)
    counts = counts.reshape(num_groups, num_labels)
    share = counts / counts.sum(axis=1, keepdims=True)
    overall_share = counts.sum(axis=0) / counts.sum()
    ratio = np.where(share > 0, share / overall_share, 1.0)
    return float((share * np.log(ratio)).sum(axis=1).mean())


def position_entropy(
    orders: Sequence[EpochOrder], num_samples: int, readers: Readers, bins: int
) -> float:
    """Return how much the position of a sample in the epoch varies over epochs, from 0
    to 1.

    0: always in the same of ``bins`` equal parts of the epoch, or only one epoch or
    part. 1: in as many parts as there can be. It is the mean over the samples that are
    handed out of the entropy of the parts in which they come, over the largest entropy
    that so many epochs and parts allow. Of a sample with several rows in an epoch, the
    first row counts; epochs that lack a sample do not count for it.

    Args:
        orders: of the epochs, at least one; none without rows.
        num_samples: N.
        readers: the processes that read.
        bins: equal parts of the iterations of an epoch.
    """
    max_entropy = np.log(min(len(orders), bins))
    if max_entropy == 0:
        return 0.0
    # a key for each sample of each epoch: sample * bins + its part of the epoch
    keys = []
    # of a sample that an epoch has twice, `np.unique` finds the first row
    for order in orders:
        iteration = iteration_of_rows(order, readers)
        num_iterations = int(iteration.max()) + 1
        sample, first_row = np.unique(order.sample, return_index=True)
        keys.append(sample * bins + iteration[first_row] * bins // num_iterations)
    key, counts = np.unique(np.concatenate(keys), return_counts=True)
    sample = key // bins
    times = np.bincount(sample, counts, minlength=num_samples)
    share = counts / times[sample]
    entropy = np.bincount(sample, -share * np.log(share), minlength=num_samples)
    return float(entropy[times > 0].mean() / max_entropy)


def shards_per_iteration(order: EpochOrder, shard: Ints64, readers: Readers) -> Ints64:
    """Count the shards from which the batches of all ranks together have samples.

    Args:
        order: of an epoch.
        shard: (N,) the shard of each sample.
        readers: the processes that read.

    Returns:
        (T,) distinct shards in each iteration, from 0 to the last.
    """
    iteration = iteration_of_rows(order, readers)
    num_shards = int(shard.max()) + 1
    # each pair of iteration and shard once, as one number
    pairs = np.unique(iteration * num_shards + shard[order.sample])
    return np.bincount(pairs // num_shards, minlength=int(iteration.max()) + 1)


def mean_in_windows(values: Ints64, windows: int) -> Floats:
    """Return the mean of ``values`` in each of ``windows`` equal parts, from first to
    last.

    nan in a part that has none.
    """
    # value k of n is in window k W / n, rounded down
    window = np.arange(len(values)) * windows // len(values)
    counts = np.bincount(window, minlength=windows)
    with np.errstate(invalid="ignore"):
        return np.bincount(window, values, minlength=windows) / counts

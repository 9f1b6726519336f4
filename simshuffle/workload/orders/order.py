"""The interface of an order: which reader hands out which sample when, and what is
fetched at once.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Sourced

Unit = Literal["sample", "block", "shard"]
"""The portion that is fetched at once: a sample, a run of samples of a shard, or a
whole shard.
"""
COLUMNS = ("epoch", "rank", "worker", "position", "sample")
"""The columns of a file of an order: it has a row for each sample that was handed out."""


@dataclass(frozen=True)
class ShardedSet:
    """A data set as files: shards of samples, which are numbered from the first shard
    on.
    """

    samples: Ints64  # (S,) samples of each shard
    nbytes: Floats  # (S,) bytes of each shard

    @cached_property
    def begin(self) -> Ints64:
        """(S + 1,) the first sample of each shard, and last N."""
        return np.concatenate([[0], np.cumsum(self.samples)])

    @property
    def size(self) -> int:
        """N, the number of samples."""
        return int(self.begin[-1])

    def shard_of(self, sample: Ints64) -> Ints64:
        """Return the shard of each sample (0 to N - 1), in the shape of ``sample``."""
        return np.searchsorted(self.begin, sample, side="right") - 1


@dataclass(frozen=True)
class Readers:
    """The processes that read: ranks on nodes, each with workers."""

    nodes: int  # hosts
    ranks: int  # of a node
    workers: int  # of a rank; 1 also where the rank reads by itself
    batch_size: int  # samples of a rank in an iteration

    @property
    def world_size(self) -> int:
        """M."""
        return self.nodes * self.ranks


@dataclass(frozen=True)
class EpochOrder:
    """The samples of an epoch, and the workers that hand them out when.

    It has a row for each sample that is handed out, sorted by rank, worker and
    position. A sample of the set may have several rows, or none.
    """

    rank: Ints64  # (n,) the rank that trains on it
    worker: Ints64  # (n,) the worker of that rank which loads it
    position: (
        Ints64  # (n,) its index among all samples that this worker hands out, from 0
    )
    sample: Ints64  # (n,) its index in the set


class Order(Sourced):
    """An order in which a library or a paper shuffles. It follows from seed and epoch
    alone.

    Attributes:
        kind: its name.
        unit: the portion that is fetched at once.
    """

    kind: str
    unit: ClassVar[Unit]

    @property
    def short_name(self) -> str:
        """The order's name in labels, tables and figures."""
        return self.kind

    @property
    def block(self) -> int:
        """The samples of a block, where `unit` is a block. By default 1."""
        return 1

    def places(self, data: ShardedSet, seed: int) -> Ints64:
        """Return the position in the shards at which each sample is stored, (N,).

        By default it is the sample's own index; an order that rewrites the set before
        training overrides this.
        """
        return np.arange(data.size)

    @abstractmethod
    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch: which worker hands out which sample when.

        Epochs are counted from 0, as libraries do.

        Args:
            data: the set in shards.
            readers: the processes that read it.
            seed: of the run.
            epoch: from 0.

        Raises:
            InputError: if the order cannot deal with the set or the readers: where its
                library fails, or silently does something else.
        """

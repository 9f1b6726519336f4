"""What every order answers: who reads which sample when, and in what portions it is fetched."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Sourced

Unit = Literal["sample", "block", "shard"]
"""What is fetched at once: a sample, a run of samples of a shard, or a whole shard."""
COLUMNS = ("epoch", "rank", "worker", "position", "sample")
"""Of a file of an order: a row for each sample that was handed out."""


@dataclass(frozen=True)
class ShardedSet:
    """A data set as files: shards of samples, numbered through from the first shard on."""

    samples: Ints64  # (S,) samples of each shard
    nbytes: Floats  # (S,) bytes of each shard

    @cached_property
    def begin(self) -> Ints64:
        """(S + 1,) the first sample of each shard, and their number."""
        return np.concatenate([[0], np.cumsum(self.samples)])

    @property
    def size(self) -> int:
        """N, samples."""
        return int(self.begin[-1])

    def shard_of(self, sample: Ints64) -> Ints64:
        """The shard of each sample."""
        return np.searchsorted(self.begin, sample, side="right") - 1


@dataclass(frozen=True)
class Readers:
    """Who reads: ranks on nodes, each with workers."""

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
    """Who hands out which sample when in an epoch: a row for each, by rank, worker, position."""

    rank: Ints64  # (n,) the rank that trains on it
    worker: Ints64  # (n,) the worker of that rank which loads it
    position: Ints64  # (n,) its place among all that this worker hands out, from 0
    sample: Ints64  # (n,) its number


class Order(Sourced):
    """A way to shuffle, as a library or a paper has it. What it draws follows from the seed and the
    epoch alone.

    Attributes:
        kind: its name.
        unit: what is fetched at once.
    """

    kind: str
    unit: ClassVar[Unit]

    @property
    def short_name(self) -> str:
        """Its name in labels, tables and figures."""
        return self.kind

    @property
    def block(self) -> int:
        """Samples of a block, where `unit` is a block. By default 1."""
        return 1

    def places(self, data: ShardedSet, seed: int) -> Ints64:
        """(N,) where each sample is stored, as the number of a place in the shards. By default each
        is where its number says; some orders rewrite the set before they train."""
        return np.arange(data.size)

    @abstractmethod
    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch, from 0 as libraries count them. Raises an InputError if the set or
        the readers are not what it can do with; as its library fails, or what it does there
        silently."""

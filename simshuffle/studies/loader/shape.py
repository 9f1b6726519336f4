"""The shape that orders are looked at on: a data set in shards, and who reads it."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from simshuffle.errors import InputError, Problem
from simshuffle.orders.order import Readers, ShardedSet
from simshuffle.spec.record import Count, Few, Spec

MOST_ROWS = 2**28
"""Samples times epochs."""
_Nbytes = Annotated[int, Field(ge=0, le=2**53)]
Size = Annotated[int, Field(ge=1, le=MOST_ROWS)]


class Shape(Spec):
    """A data set in shards, and who reads it."""

    samples: Size  # N
    samples_per_shard: Count  # of every shard but the last, which has what is left
    shard_nbytes: _Nbytes  # whole bytes of a full shard
    nodes: Size  # hosts
    gpus: Few  # ranks of a node
    workers: Few  # of a rank
    batch_size: Size  # of a rank
    cache_nbytes: _Nbytes | None  # what each node keeps; None for no limit, 0 for no cache
    epochs: Annotated[int, Field(ge=1, le=100_000)]  # that are looked at
    seed: Annotated[int, Field(ge=0, le=2**53)] = 0  # of the orders
    classes: Size = 10  # labels; the samples stand sorted by label, and equally many have each

    @property
    def readers(self) -> Readers:
        """Who reads."""
        return Readers(self.nodes, self.gpus, self.workers, self.batch_size)

    @property
    def data(self) -> ShardedSet:
        """The set."""
        each = min(self.samples_per_shard, self.samples)
        full, rest = divmod(self.samples, each)
        samples = np.array([each] * full + [rest] * (rest > 0))
        return ShardedSet(samples, np.rint(samples * (self.shard_nbytes / each)))

    @property
    def rows(self) -> int:
        """Samples that are handed out in all epochs, roughly."""
        return self.samples * self.epochs

    def check(self) -> None:
        """See that it can be counted.

        Raises:
            InputError: there are too many rows, or fewer samples than ranks.
        """
        problems = []
        if self.rows > MOST_ROWS:
            rule = f"samples times epochs must be at most {MOST_ROWS}"
            problems.append(
                Problem("--samples", rule, str(self.rows), "Use fewer samples, or fewer --epochs.")
            )
        if self.samples < self.readers.world_size:
            rule = f"each of the {self.readers.world_size} ranks needs a sample"
            remedy = "Use more samples, or fewer --nodes or --gpus."
            problems.append(Problem("--samples", rule, str(self.samples), remedy))
        if problems:
            raise InputError(problems, "command line")


def said(shape: Shape) -> dict[str, Any]:
    """What figures and texts say beside the tables: the shape, and what a random order gives."""
    size, ranks = shape.samples, shape.readers.world_size
    pairs = max(size - 1, 1)
    return {
        "samples": size,
        "shards": len(shape.data.samples),
        "nbytes": int(shape.data.nbytes.sum()),
        "nodes": shape.nodes,
        "ranks": ranks,
        "workers": shape.workers,
        "batch_size": shape.batch_size,
        "epochs": shape.epochs,
        "cache_nbytes": shape.cache_nbytes,
        "classes": shape.classes,
        "batch_companions": (shape.batch_size - 1) / pairs,
        "rank_companions": max(size / ranks - 1, 0) / pairs,
        "moves": 1 - 1 / shape.nodes,
    }

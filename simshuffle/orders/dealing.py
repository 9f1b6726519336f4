"""What orders of several libraries have in common: shards cut into parts, sequences dealt to
workers, and the checks of what all of them are asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.spec.arrays import Ints64


def check(data: ShardedSet, readers: Readers, seed: int, epoch: int, seeds: int) -> None:
    """Raise an InputError for no samples, a negative number of them, no readers, or a seed out of
    range: seed and epoch together stay below ``seeds``, as many as the library has."""
    problems = []
    if data.samples.size and data.samples.min() < 0:
        rule = "a shard has no negative number of samples"
        problems.append(
            Problem("data.samples", rule, str(data.samples.min()), "Give the samples of each shard")
        )
    elif data.size == 0:
        rule = "a data set has at least one shard with a sample"
        problems.append(
            Problem(
                "data.samples",
                rule,
                f"{data.samples.size} shards",
                "Give the samples of each shard",
            )
        )
    problems += [
        Problem(f"readers.{name}", "must be at least 1", str(value), remedy)
        for name, value, remedy in (
            ("nodes", readers.nodes, "Give the hosts that read"),
            ("ranks", readers.ranks, "Give the ranks of a node"),
            ("workers", readers.workers, "A rank that reads by itself counts as 1 worker"),
            ("batch_size", readers.batch_size, "Give the samples of a rank in an iteration"),
        )
        if value < 1
    ]
    if seed < 0 or epoch < 0 or seed + epoch >= seeds:
        rule = f"seed and epoch are not negative, and together less than {seeds}"
        problems.append(Problem("seed", rule, f"seed {seed}, epoch {epoch}", "Take another seed"))
    if problems:
        raise InputError(problems, "order")


@dataclass(frozen=True)
class Spans:
    """Runs of samples of one shard that belong to one part."""

    shard: Ints64  # (n,) the shard
    # begin, end: (n,) its samples, by their place among all that are laid out
    begin: Ints64
    end: Ints64
    part: Ints64  # (n,) whose they are, ascending


def laid_out(data: ShardedSet, shards: Ints64) -> Ints64:
    """The samples of ``shards``, one shard after another."""
    sizes = data.samples[shards]
    first = data.begin[shards] - np.cumsum(sizes) + sizes
    return np.repeat(first, sizes) + np.arange(sizes.sum())


def spans(data: ShardedSet, shards: Ints64, ends: Ints64) -> Spans:
    """``shards`` one after another, cut where a part ends.

    Args:
        shards: in their order; those without samples have no span.
        ends: (P,) the place after the last sample of each part, ascending; what comes after the
            last of them is nobody's.
    """
    last = np.cumsum(data.samples[shards])
    cuts = np.unique(np.concatenate([[0], last, ends]))
    cuts = cuts[cuts <= min(ends[-1], last[-1] if last.size else 0)]
    begin, end = cuts[:-1], cuts[1:]
    return Spans(
        shards[np.searchsorted(last, begin, side="right")],
        begin,
        end,
        np.searchsorted(ends, begin, side="right"),
    )


def numbered(rank: Ints64, worker: Ints64, sample: Ints64) -> EpochOrder:
    """The order whose rows are those, sorted by rank and worker already."""
    who = rank * (worker.max(initial=0) + 1) + worker
    first = np.searchsorted(who, who, side="left")
    return EpochOrder(rank, worker, np.arange(len(who)) - first, sample)


def dealt(sequences: Ints64, readers: Readers) -> EpochOrder:
    """Each rank's samples, (M, n) in their order and -1 where there is none, in batches, of which
    batch k goes to worker k mod workers."""
    worker = np.arange(sequences.shape[1]) // readers.batch_size % readers.workers
    by_worker = np.argsort(worker, kind="stable")
    rank, column = np.nonzero(sequences[:, by_worker] >= 0)
    column = by_worker[column]
    return numbered(rank, worker[column], sequences[rank, column])

"""Who reads what when: the random order of every epoch, as one worker sees it, on a data set that
may be thinned out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.studies.policies.system import Case

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Small = NDArray[np.int32]

BLOCKS = 1 << 17
"""Blocks that a data set is thinned out to, if it has more samples; a worker has at least
`OWN_BLOCKS` of them in an epoch."""
OWN_BLOCKS = 1024
MOST_READS = 1 << 23
"""Blocks times epochs, unless there are more workers; keeps the table of readers at 32 MiB."""


@dataclass(frozen=True)
class Accesses:
    """The reads of all epochs. Samples that travel together are one block; all workers read equally
    many blocks in an epoch.

    Attributes:
        reader: (epochs, blocks) which worker reads a block.
        nbytes: (blocks,) bytes; the mean is that of the data set, so that its size is exact.
        samples: samples of a block (a number that need not be whole).
        workers: number of workers.
    """

    reader: Small
    nbytes: Floats
    samples: float
    workers: int

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self.reader)

    @property
    def own(self) -> int:
        """Blocks that a worker reads in an epoch."""
        return len(self.nbytes) // self.workers

    def stream(self, epoch: int) -> Ints:
        """Numbers of the blocks that worker 0 reads in an epoch, in order: (own,).

        Blocks have no order of their own, so that their numbers may stand for one; what matters is
        which of them come, and from where.
        """
        return np.flatnonzero(self.reader[epoch] == 0)

    def rank_in_first_epoch(self) -> Ints:
        """(blocks,) how many blocks the reader of a block has read before it in the first epoch."""
        order = np.argsort(self.reader[0], kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) % self.own
        return rank

    def fit(self, capacity: float) -> int:
        """Blocks of mean size that ``capacity`` bytes hold."""
        return int(min(capacity / float(self.nbytes.mean()) * (1 + 1e-12), len(self.nbytes)))


def draw(case: Case, workers: int, seed: int) -> Accesses:
    """The accesses of a case on ``workers`` workers: in each epoch every sample is read once, by a
    random worker.

    Sizes are log-normal (`SampleSize`); the mean of m of them has a standard deviation smaller by
    the root of m.

    Raises:
        InputError: there are fewer samples than workers.
    """
    if case.num_samples < workers:
        rule = f"every one of the {workers} workers needs a sample"
        raise InputError(
            Problem(
                "num_samples",
                rule,
                str(case.num_samples),
                "Use fewer workers or a larger data set.",
            )
        )
    most = max(MOST_READS // case.epochs, workers)
    blocks = (
        int(min(case.num_samples, max(BLOCKS, OWN_BLOCKS * workers), most)) // workers * workers
    )
    samples = case.num_samples / blocks
    rng = np.random.default_rng([seed, 0])
    sizes = case.sample_size.model_copy(
        update={"std": case.sample_size.spread / samples**0.5}
    ).draw(rng, blocks)
    sizes *= case.nbytes / float(sizes.sum())
    turns = (np.arange(blocks) % workers).astype(np.int32)
    reader = np.stack([rng.permutation(turns) for _ in range(case.epochs)])
    return Accesses(reader, sizes, samples, workers)

"""NoPFS's placement: a worker keeps the samples that it will read most often (the study, Sec. 3.1
and 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.studies.policies.accesses import Accesses, Floats, Ints, Small
from simshuffle.studies.policies.sources import (
    OWN_MEMORY,
    OWN_SSD,
    PFS,
    REMOTE_MEMORY,
    REMOTE_SSD,
    Codes,
    bandwidths,
)
from simshuffle.studies.policies.system import System

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """Which samples a class keeps: all that are read more than ``count`` times, and the share
    ``share`` of those read ``count`` times."""

    count: int
    share: float

    def keeps(self, counts: Ints) -> Floats:
        """(n,) share of the samples read so often that is kept in this class or a faster one."""
        return np.where(
            counts > self.count,
            1.0,
            np.where((counts == self.count) & (counts > 0), self.share, 0.0),
        )


def cut(counts: Ints, room: int) -> Cut:
    """The cut that fills ``room`` places; what is never read takes none."""
    histogram = np.bincount(counts)
    left = room
    for count in range(len(histogram) - 1, 0, -1):
        if histogram[count] > left:
            return Cut(count, left / histogram[count])
        left -= int(histogram[count])
    return Cut(0, 0.0)


def placed_by_frequency(
    accesses: Accesses, system: System, rng: np.random.Generator
) -> tuple[list[Codes], int, int]:
    """Sources of worker 0 in every epoch, and the blocks that it keeps in memory and on its SSD.

    Worker 0's own placement is exact. All workers have the same distribution of frequencies,
    Binomial(E, 1/N), and so the same cuts; among blocks equally often read, chance decides, for
    every worker anew.
    """
    counts = (accesses.reader == 0).sum(axis=0)
    memory, both = accesses.fit(system.memory.capacity), accesses.fit(system.storage)
    memory_cut, both_cut = cut(counts, memory), cut(counts, both)
    order = np.lexsort((rng.random(len(counts)), -counts))[: np.count_nonzero(counts)]
    in_memory, on_ssd = np.full((2, len(counts)), False)
    in_memory[order[:memory]] = True
    on_ssd[order[memory:both]] = True
    read = np.flatnonzero(counts)
    elsewhere = np.full((2, len(counts)), False)
    elsewhere[:, read] = kept_by_others(accesses.reader[:, read], (memory_cut, both_cut), rng)
    # the file system's as it is while all workers read from it
    rates = bandwidths(system, float(system.workers))
    # the last of equally fast ones wins: the own
    places = {
        REMOTE_SSD: elsewhere[1],
        REMOTE_MEMORY: elsewhere[0],
        OWN_SSD: on_ssd,
        OWN_MEMORY: in_memory,
    }
    best = np.full(len(counts), PFS, np.int8)
    for code in sorted(places, key=lambda code: rates[code]):
        if rates[code] > rates[PFS]:
            best[places[code]] = code
    later = [best[accesses.stream(epoch)] for epoch in range(1, accesses.epochs)]
    return [np.full(accesses.own, PFS, np.int8), *later], int(in_memory.sum()), int(on_ssd.sum())


def kept_by_others(reader: Small, cuts: tuple[Cut, Cut], rng: np.random.Generator) -> Bools:
    """Whether any worker but 0 keeps a block in memory, or on its SSD: (2, blocks).

    Args:
        reader: (epochs, blocks) who reads a block.
        cuts: of memory; of memory and SSD together.
        rng: who keeps which of the blocks that are read equally often.
    """
    ordered = np.sort(reader, axis=0)
    out = np.zeros((2, ordered.shape[1]), bool)
    run = np.zeros(ordered.shape[1], np.int64)
    for epoch, worker in enumerate(ordered):
        run = np.where(worker == ordered[epoch - 1], run + 1, 1) if epoch else run + 1
        last = (
            worker != ordered[epoch + 1] if epoch + 1 < len(ordered) else np.full(len(worker), True)
        )
        counts = np.where(last & (worker != 0), run, 0)
        dice = rng.random(len(worker))
        memory = dice < cuts[0].keeps(counts)
        out[0] |= memory
        out[1] |= ~memory & (dice < cuts[1].keeps(counts))
    return out

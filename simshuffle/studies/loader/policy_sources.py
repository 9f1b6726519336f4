"""The policies: where each lets worker 0 find every sample of every epoch. No times yet.

What each policy does is from the NoPFS study, Sec. 2 (frameworks), 5.1 (NoPFS), 6 (list of
policies) and 7 (LBANN's dynamic mode). Where that leaves something open, the docstring says what is
assumed here. NoPFS's placement is of Sec. 3.1 and 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints32, Ints64
from simshuffle.studies.loader.policy_reads import Accesses, Codes, PolicyCase, System, bandwidths
from simshuffle.studies.loader.tables import (
    OWN_MEMORY,
    OWN_SSD,
    PFS,
    READY,
    REMOTE_MEMORY,
    REMOTE_SSD,
)


@dataclass(frozen=True)
class Plan:
    """Where worker 0 finds its samples."""

    # for each epoch, the code of the source of each of its blocks
    sources: list[Codes] = field(default_factory=list)
    prefetches: bool = True  # whether fetching runs ahead of training
    # bytes that every worker reads from the file system before training: into memory, into the SSD
    staged: tuple[float, float] = (0.0, 0.0)
    coverage: float = 1.0  # share of the data set that is ever read, by all workers together
    memory: float = 0.0  # bytes of memory that a worker fills, beside its staging buffer
    ssd: float = 0.0  # bytes of SSD that a worker fills
    problem: str = ""  # why the policy cannot be used here; empty if it can


@dataclass(frozen=True)
class Setup:
    """What a policy is planned for; ``rng`` draws where chance decides."""

    accesses: Accesses
    system: System
    case: PolicyCase
    rng: np.random.Generator

    def own(self, capacity: float) -> int:
        """Blocks that ``capacity`` bytes hold, of those that a worker reads in an epoch."""
        return min(self.accesses.fit(capacity), self.accesses.own)

    @property
    def memory(self) -> int:
        """Blocks of its own that a worker's memory holds."""
        return self.own(self.system.memory.capacity)

    def nbytes(self, blocks: float) -> float:
        """Bytes of so many blocks."""
        return blocks * float(self.accesses.nbytes.mean())

    def everything(self, code: int) -> list[Codes]:
        """All blocks of all epochs from one source."""
        return [np.full(self.accesses.own, code, np.int8) for _ in range(self.accesses.epochs)]

    def by_chance(self, share: float, code: int, other: int) -> list[Codes]:
        """Each block of all epochs from ``code`` with probability ``share``, else from
        ``other``."""
        own, epochs = self.accesses.own, self.accesses.epochs
        dice = (self.rng.random(own) for _ in range(epochs))
        return [np.where(of < share, code, other).astype(np.int8) for of in dice]

    def of_random_worker(self) -> list[Codes]:
        """Everything from the memory of any worker, all with the same probability."""
        return self.by_chance(1.0 / self.accesses.workers, OWN_MEMORY, REMOTE_MEMORY)

    def of_first_reader(self, room: int) -> list[Codes]:
        """The first epoch from the file system; then the first ``room`` blocks that each worker
        read come from its memory, and the rest from the file system."""
        accesses = self.accesses
        rank, sources = accesses.rank_in_first_epoch(), self.everything(PFS)[:1]
        for epoch in range(1, accesses.epochs):
            blocks = accesses.stream(epoch)
            where = np.where(accesses.reader[0, blocks] == 0, OWN_MEMORY, REMOTE_MEMORY)
            sources.append(np.where(rank[blocks] < room, where, PFS).astype(np.int8))
        return sources

    @property
    def too_large(self) -> str:
        """Why the set does not fit into the memory of all workers; '' if it does."""
        system = self.system
        room = system.workers * (system.memory.capacity + system.staging_buffer.capacity)
        if self.case.nbytes <= room:
            return ""
        times = f"{self.case.nbytes / room:.3g}"
        return f"the data set is {times} times as large as the memory of all workers"


def perfect(of: Setup) -> Plan:
    """No wait ever: the lower bound S / (N c) of an epoch."""
    return Plan(of.everything(READY))


def naive(of: Setup) -> Plan:
    """Every sample from the file system when it is needed; nothing is prefetched or kept."""
    return Plan(of.everything(PFS), prefetches=False)


def staging_buffer(of: Setup) -> Plan:
    """Every sample from the file system, prefetched into the staging buffer: double buffering,
    tf.data."""
    return Plan(of.everything(PFS))


def deepio_ordered(of: Setup) -> Plan:
    """DeepIO's ordered mode: memory keeps what was read first; other samples come from the file
    system, in the order of training."""
    return Plan(of.of_first_reader(of.memory), memory=of.nbytes(of.memory))


def deepio_opportunistic(of: Setup) -> Plan:
    """DeepIO's optimistic mode: training takes what is in the memory of any worker, in whatever
    order, once memory is full.

    Assumed: the worker that holds it is any worker with the same probability.
    """
    room = of.memory
    if room == 0:  # nothing can be kept
        return Plan(of.everything(PFS))
    sources = of.of_random_worker()
    sources[0][:room] = PFS
    return Plan(sources, coverage=room / of.accesses.own, memory=of.nbytes(room))


def parallel_staging(of: Setup) -> Plan:
    """Data sharding: before training, every worker copies its shard into memory and SSD, and then
    reads nothing else.

    Assumed: a shard is S / N, or what fits; it fills memory first.
    """
    memory, both = of.memory, of.own(of.system.storage)
    if both == 0:
        return Plan(problem="a worker has no room for a single sample")
    sources = of.by_chance(memory / both, OWN_MEMORY, OWN_SSD)
    staged = of.nbytes(memory), of.nbytes(both - memory)
    share = both / of.accesses.own
    return Plan(sources, staged=staged, coverage=share, memory=staged[0], ssd=staged[1])


def lbann_dynamic(of: Setup) -> Plan:
    """LBANN's data store, dynamic: each sample stays in the memory of its first reader. Works only
    if the set fits in all memory.

    Memory is class 1 and the staging buffer here. With the printed sizes that decides for
    OpenImages, which the study lets run.
    """
    if of.too_large:
        return Plan(problem=of.too_large)
    own = of.accesses.own
    return Plan(of.of_first_reader(own), memory=of.nbytes(own))


def lbann_preloading(of: Setup) -> Plan:
    """LBANN's data store, preloading: as dynamic, but every worker reads an N-th of the set before
    training."""
    if of.too_large:
        return Plan(problem=of.too_large)
    share = of.nbytes(of.accesses.own)
    return Plan(of.of_random_worker(), staged=(share, 0.0), memory=share)


def unbalanced_share(batch: int, workers: int) -> float:
    """Share of a worker's reads that locality-aware loading takes from other workers to make
    batches equal.

    Of a global batch of N b random samples, Binomial(N b, 1/N) are with a worker. What exceeds b
    has to go elsewhere; its mean is half of the mean absolute deviation, in the normal
    approximation sqrt(b (1 - 1/N) / (2 pi)). Derived here.
    """
    return min(math.sqrt((1.0 - 1.0 / workers) / (2.0 * math.pi * batch)), 1.0 - 1.0 / workers)


def locality_aware(of: Setup) -> Plan:
    """Locality-aware loading (C.-C. Yang, G. Cong, arXiv 1910.01196): a global batch goes to the
    workers that hold its samples.

    The first epoch comes from the file system and memory keeps it, as far as it goes; the samples
    of each global batch stay the same. What is kept nowhere comes from the file system, what
    exceeds a worker's batch from another worker (`unbalanced_share`).
    """
    own = of.accesses.own
    moved = unbalanced_share(of.case.local_batch_size, of.accesses.workers)
    sources = of.everything(PFS)
    for codes in sources[1:]:
        dice = of.rng.random((2, own))
        kept = dice[0] < of.memory / own
        codes[kept] = np.where(dice[1, kept] < moved, REMOTE_MEMORY, OWN_MEMORY)
    return Plan(sources, memory=of.nbytes(of.memory))


def kept_shares(counts: Ints64, room: int, most: int) -> Floats:
    """(most + 1,) share of the samples read so often that fill ``room`` places, those read most
    often first; what is never read takes none. ``counts``: how often each sample is read, at most
    ``most`` times.
    """
    shares, left = np.zeros(most + 1), room
    for count, samples in list(enumerate(np.bincount(counts, minlength=most + 1)))[:0:-1]:
        if samples > left:
            shares[count] = left / samples
            break
        shares[count] = 1.0
        left -= int(samples)
    return shares


def placed_by_frequency(
    accesses: Accesses, system: System, rng: np.random.Generator
) -> tuple[list[Codes], int, int]:
    """Sources of worker 0 in every epoch, and the blocks that it keeps in memory and on its SSD.

    Worker 0's own placement is exact. All workers have the same distribution of frequencies,
    Binomial(E, 1/N), and so the same shares; among blocks equally often read, chance decides, for
    every worker anew.
    """
    counts = (accesses.reader == 0).sum(axis=0)
    memory, both = accesses.fit(system.memory.capacity), accesses.fit(system.storage)
    shares = [kept_shares(counts, room, accesses.epochs) for room in (memory, both)]
    order = np.lexsort((rng.random(len(counts)), -counts))[: np.count_nonzero(counts)]
    in_memory, on_ssd = np.full((2, len(counts)), False)
    in_memory[order[:memory]] = True
    on_ssd[order[memory:both]] = True
    read = np.flatnonzero(counts)
    elsewhere = np.full((2, len(counts)), False)
    elsewhere[:, read] = kept_by_others(accesses.reader[:, read], shares, rng)
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


def kept_by_others(reader: Ints32, shares: Sequence[Floats], rng: np.random.Generator) -> Flags:
    """Whether any worker but 0 keeps a block in memory, or on its SSD: (2, blocks).
    ``reader``: (epochs, blocks) who reads a block; ``shares``: `kept_shares` of memory, and of both
    together."""
    ordered = np.sort(reader, axis=0)
    out = np.zeros((2, ordered.shape[1]), bool)
    run = np.zeros(ordered.shape[1], np.int64)
    for epoch, worker in enumerate(ordered):
        run = np.where(worker == ordered[epoch - 1], run + 1, 1) if epoch else run + 1
        at_end = epoch + 1 == len(ordered)
        last = np.full(len(worker), True) if at_end else worker != ordered[epoch + 1]
        counts = np.where(last & (worker != 0), run, 0)
        dice = rng.random(len(worker))
        memory = dice < shares[0][counts]
        out[0] |= memory
        out[1] |= ~memory & (dice < shares[1][counts])
    return out


def nopfs(of: Setup) -> Plan:
    """NoPFS: every worker keeps what it will read most often in memory, then in its SSD; each read
    takes the fastest place there is.

    Assumed: the first epoch comes from the file system, and all that is to be kept is where it
    belongs when it ends. The study fills its classes in the background and in the order of access;
    that this takes no longer errs on the fast side.
    """
    sources, memory, ssd = placed_by_frequency(of.accesses, of.system, of.rng)
    return Plan(sources, memory=of.nbytes(memory), ssd=of.nbytes(ssd))


POLICIES: dict[str, Callable[[Setup], Plan]] = {
    policy.__name__: policy
    for policy in (
        *(perfect, naive, staging_buffer, deepio_ordered, deepio_opportunistic, parallel_staging),
        *(lbann_dynamic, lbann_preloading, locality_aware, nopfs),
    )
}
"""The eight policies of the study in its order; two of them have two modes."""

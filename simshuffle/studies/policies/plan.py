"""The policies: where each lets worker 0 find every sample of every epoch. No times yet.

What each policy does is from the NoPFS study, Sec. 2 (frameworks), 5.1 (NoPFS), 6 (list of
policies) and 7 (LBANN's dynamic mode). Where that leaves something open, the docstring says what is
assumed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simshuffle.studies.policies.accesses import Accesses
from simshuffle.studies.policies.frequency import placed_by_frequency
from simshuffle.studies.policies.sources import (
    OWN_MEMORY,
    OWN_SSD,
    PFS,
    READY,
    REMOTE_MEMORY,
    Codes,
)
from simshuffle.studies.policies.system import Case, System


@dataclass(frozen=True)
class Plan:
    """Where worker 0 finds its samples.

    Attributes:
        sources: for each epoch, the code of the source of each of its blocks.
        prefetches: whether fetching runs ahead of training.
        staged: bytes that every worker reads from the file system before training: into memory,
            into the SSD.
        coverage: share of the data set that is ever read, by all workers together.
        memory: bytes of memory that a worker fills, beside its staging buffer.
        ssd: bytes of SSD that a worker fills.
        problem: why the policy cannot be used here; empty if it can.
    """

    sources: list[Codes] = field(default_factory=list)
    prefetches: bool = True
    staged: tuple[float, float] = (0.0, 0.0)
    coverage: float = 1.0
    memory: float = 0.0
    ssd: float = 0.0
    problem: str = ""


def _everything(accesses: Accesses, code: int) -> list[Codes]:
    return [np.full(accesses.own, code, np.int8) for _ in range(accesses.epochs)]


def perfect(accesses: Accesses, system: System, case: Case, rng: np.random.Generator) -> Plan:
    """No wait ever: the lower bound S / (N c) of an epoch."""
    return Plan(_everything(accesses, READY))


def naive(accesses: Accesses, system: System, case: Case, rng: np.random.Generator) -> Plan:
    """Every sample from the file system when it is needed; nothing is prefetched or kept."""
    return Plan(_everything(accesses, PFS), prefetches=False)


def staging_buffer(
    accesses: Accesses, system: System, case: Case, rng: np.random.Generator
) -> Plan:
    """Every sample from the file system, prefetched into the staging buffer: double buffering,
    tf.data."""
    return Plan(_everything(accesses, PFS))


def _kept_by_first_reader(accesses: Accesses, room: int) -> list[Codes]:
    """The first epoch from the file system; then what its first reader keeps comes from there, and
    the rest from the file system."""
    rank, sources = accesses.rank_in_first_epoch(), _everything(accesses, PFS)[:1]
    for epoch in range(1, accesses.epochs):
        blocks = accesses.stream(epoch)
        where = np.where(accesses.reader[0, blocks] == 0, OWN_MEMORY, REMOTE_MEMORY)
        sources.append(np.where(rank[blocks] < room, where, PFS).astype(np.int8))
    return sources


def _filled(accesses: Accesses, blocks: float) -> float:
    return blocks * float(accesses.nbytes.mean())


def deepio_ordered(
    accesses: Accesses, system: System, case: Case, rng: np.random.Generator
) -> Plan:
    """DeepIO's ordered mode: memory keeps what was read first; other samples come from the file
    system, in the order of training."""
    room = min(accesses.fit(system.memory.capacity), accesses.own)
    return Plan(_kept_by_first_reader(accesses, room), memory=_filled(accesses, room))


def deepio_opportunistic(
    accesses: Accesses, system: System, case: Case, rng: np.random.Generator
) -> Plan:
    """DeepIO's optimistic mode: training takes what is in the memory of any worker, in whatever
    order, once memory is full.

    Assumed: the worker that holds it is any worker with the same probability.
    """
    room = min(accesses.fit(system.memory.capacity), accesses.own)
    sources = [_of_random_worker(accesses, rng) for _ in range(accesses.epochs)]
    sources[0][:room] = PFS
    if room == 0:  # nothing can be kept
        sources = _everything(accesses, PFS)
    return Plan(
        sources, coverage=room / accesses.own if room else 1.0, memory=_filled(accesses, room)
    )


def _of_random_worker(accesses: Accesses, rng: np.random.Generator) -> Codes:
    own = rng.random(accesses.own) < 1.0 / accesses.workers
    return np.where(own, OWN_MEMORY, REMOTE_MEMORY).astype(np.int8)


def parallel_staging(
    accesses: Accesses, system: System, case: Case, rng: np.random.Generator
) -> Plan:
    """Data sharding: before training, every worker copies its shard into memory and SSD, and then
    reads nothing else.

    Assumed: a shard is S / N, or what fits; it fills memory first.
    """
    memory = min(accesses.fit(system.memory.capacity), accesses.own)
    ssd = min(accesses.fit(system.storage), accesses.own) - memory
    if memory + ssd == 0:
        return Plan(problem="a worker has no room for a single sample")
    share = memory / (memory + ssd)
    sources = [
        np.where(rng.random(accesses.own) < share, OWN_MEMORY, OWN_SSD).astype(np.int8)
        for _ in range(accesses.epochs)
    ]
    staged = _filled(accesses, memory), _filled(accesses, ssd)
    return Plan(
        sources,
        staged=staged,
        coverage=(memory + ssd) / accesses.own,
        memory=staged[0],
        ssd=staged[1],
    )


def _too_large_for_memory(system: System, case: Case) -> str:
    room = system.memory.capacity + system.staging_buffer.capacity
    if case.nbytes <= system.workers * room:
        return ""
    return (
        f"the data set is {case.nbytes / (system.workers * room):.3g} times as large as the memory"
        " of all workers"
    )


def lbann_dynamic(accesses: Accesses, system: System, case: Case, rng: np.random.Generator) -> Plan:
    """LBANN's data store, dynamic: each sample stays in the memory of its first reader. Works only
    if the set fits in all memory.

    Memory is class 1 and the staging buffer here. With the printed sizes that decides for
    OpenImages, which the study lets run.
    """
    if problem := _too_large_for_memory(system, case):
        return Plan(problem=problem)
    return Plan(
        _kept_by_first_reader(accesses, accesses.own), memory=_filled(accesses, accesses.own)
    )


def lbann_preloading(
    accesses: Accesses, system: System, case: Case, rng: np.random.Generator
) -> Plan:
    """LBANN's data store, preloading: as dynamic, but every worker reads an N-th of the set before
    training."""
    if problem := _too_large_for_memory(system, case):
        return Plan(problem=problem)
    share = _filled(accesses, accesses.own)
    return Plan(
        [_of_random_worker(accesses, rng) for _ in range(accesses.epochs)],
        staged=(share, 0.0),
        memory=share,
    )


def unbalanced_share(batch: int, workers: int) -> float:
    """Share of a worker's reads that locality-aware loading takes from other workers to make
    batches equal.

    Of a global batch of N b random samples, Binomial(N b, 1/N) are with a worker. What exceeds b
    has to go elsewhere; its mean is half of the mean absolute deviation, in the normal
    approximation sqrt(b (1 - 1/N) / (2 pi)). Derived here.
    """
    return min(math.sqrt((1.0 - 1.0 / workers) / (2.0 * math.pi * batch)), 1.0 - 1.0 / workers)


def locality_aware(
    accesses: Accesses, system: System, case: Case, rng: np.random.Generator
) -> Plan:
    """Locality-aware loading (C.-C. Yang, G. Cong, arXiv 1910.01196): a global batch goes to the
    workers that hold its samples.

    The first epoch comes from the file system and memory keeps it, as far as it goes; the samples
    of each global batch stay the same. What is kept nowhere comes from the file system, what
    exceeds a worker's batch from another worker (`unbalanced_share`).
    """
    room = min(accesses.fit(system.memory.capacity), accesses.own)
    moved = unbalanced_share(case.local_batch_size, accesses.workers)
    sources = _everything(accesses, PFS)
    for codes in sources[1:]:
        dice = rng.random((2, accesses.own))
        kept = dice[0] < room / accesses.own
        codes[kept] = np.where(dice[1, kept] < moved, REMOTE_MEMORY, OWN_MEMORY)
    return Plan(sources, memory=_filled(accesses, room))


def nopfs(accesses: Accesses, system: System, case: Case, rng: np.random.Generator) -> Plan:
    """NoPFS: every worker keeps what it will read most often in memory, then in its SSD; each read
    takes the fastest place there is.

    Assumed: the first epoch comes from the file system, and all that is to be kept is where it
    belongs when it ends. The study fills its classes in the background and in the order of access;
    that this takes no longer errs on the fast side.
    """
    sources, memory, ssd = placed_by_frequency(accesses, system, rng)
    return Plan(sources, memory=_filled(accesses, memory), ssd=_filled(accesses, ssd))


Policy = Callable[[Accesses, System, Case, np.random.Generator], Plan]

POLICIES: dict[str, Policy] = {
    "perfect": perfect,
    "naive": naive,
    "staging_buffer": staging_buffer,
    "deepio_ordered": deepio_ordered,
    "deepio_opportunistic": deepio_opportunistic,
    "parallel_staging": parallel_staging,
    "lbann_dynamic": lbann_dynamic,
    "lbann_preloading": lbann_preloading,
    "locality_aware": locality_aware,
    "nopfs": nopfs,
}
"""The eight policies of the study in its order; two of them have two modes."""

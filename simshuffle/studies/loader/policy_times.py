"""From a plan to times: the recurrences of the NoPFS study (Sec. 4), vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.studies.loader.policy_reads import (
    Accesses,
    Codes,
    PolicyCase,
    System,
    draw,
    fetch_seconds,
    pfs_seconds,
    write_seconds,
)
from simshuffle.studies.loader.policy_sources import POLICIES, Plan, Setup
from simshuffle.studies.loader.tables import PFS, READY, SOURCES

FEW = 30
"""Samples in a buffer below which one at a time is faster than all that fit at once."""


@dataclass(frozen=True)
class PolicyEpoch:
    """One epoch of worker 0."""

    # from the end of the one before (the first: from the beginning of staging) to its last sample's
    # training
    seconds: float
    compute: float  # seconds of it in training
    nbytes: tuple[float, ...]  # bytes by source, in the order of `SOURCES`
    fetch: tuple[float, ...]  # seconds of fetching by source
    readers: float  # workers that read from the file system at a moment [gamma]; 0 if none does


@dataclass(frozen=True)
class PolicyOutcome:
    """What a policy comes to. ``epochs`` is empty, and ``plan.problem`` says why, if it cannot be
    used; ``staging`` is in s."""

    policy: str
    plan: Plan
    staging: float
    epochs: tuple[PolicyEpoch, ...]

    @property
    def seconds(self) -> float:
        """All epochs together, with the staging before them."""
        return sum(epoch.seconds for epoch in self.epochs)


def compare(
    system: System, case: PolicyCase, seed: int = 0, policies: Sequence[str] = ()
) -> list[PolicyOutcome]:
    """The outcome of each of ``policies`` (default: of all), all on the same accesses.

    Raises:
        InputError: there are fewer samples than workers.
    """
    system = case.on(system)
    accesses = draw(case, system.workers, seed)
    chosen = (name for name in POLICIES if not policies or name in policies)
    return [_outcome(name, accesses, system, case, seed) for name in chosen]


def _outcome(
    policy: str, accesses: Accesses, system: System, case: PolicyCase, seed: int
) -> PolicyOutcome:
    rng = np.random.default_rng([seed, 1, list(POLICIES).index(policy)])
    plan = POLICIES[policy](Setup(accesses, system, case, rng))
    if plan.problem:
        return PolicyOutcome(policy, plan, 0.0, ())
    sizes = [accesses.nbytes[accesses.stream(epoch)] for epoch in range(accesses.epochs)]
    fetched = [
        fetch_seconds(system, codes, size, accesses.samples)
        for codes, size in zip(plan.sources, sizes, strict=True)
    ]
    opening = system.parallel_file_system.latency * accesses.samples
    reads = [
        _read(system, plan, codes, size, fetch[0], opening)
        for codes, size, fetch in zip(plan.sources, sizes, fetched, strict=True)
    ]
    staging, stream = staging_seconds(system, plan, case.sample_size.mean), np.concatenate(sizes)
    read, compute = np.concatenate(reads), stream / system.compute_bandwidth
    if plan.prefetches:
        room = max(system.staging_buffer.capacity, case.sample_size.mean)
        done = overlapped(read, compute, stream, room, staging)
    else:
        done = staging + np.cumsum(read + compute)
    ends = np.concatenate(([0.0], done[np.cumsum([len(size) for size in sizes]) - 1]))
    epochs = [
        PolicyEpoch(
            seconds=float(ends[number + 1] - ends[number]),
            compute=float(size.sum()) / system.compute_bandwidth,
            nbytes=_by_source(codes, size),
            fetch=_by_source(codes, fetch),
            readers=readers,
        )
        for number, (codes, size, (fetch, readers)) in enumerate(
            zip(plan.sources, sizes, fetched, strict=True)
        )
    ]
    return PolicyOutcome(policy, plan, staging, tuple(epochs))


def _read(
    system: System, plan: Plan, codes: Codes, nbytes: Floats, fetch: Floats, latency: float
) -> Floats:
    """read_i(f) = fetch_i(f) + write_i(f) (the study, Sec. 4); nothing for what is ready.

    The study sums this over all samples and divides by p_0, the rates being a thread's. Here they
    are the worker's, all threads together (`class_bandwidth`, `pfs_seconds`, `write_seconds`), and
    so the sum is not divided. ``latency`` (s) of opening the files of a block: with prefetching the
    threads wait for it side by side, while bytes of others come.
    """
    from_pfs = codes == PFS
    if plan.prefetches:
        fetch = np.maximum(fetch, np.where(from_pfs, latency / system.staging_buffer.threads, 0.0))
    else:
        fetch = fetch + np.where(from_pfs, latency, 0.0)
    return np.where(codes == READY, 0.0, fetch + write_seconds(system, nbytes))


def _by_source(codes: Codes, values: Floats) -> tuple[float, ...]:
    return tuple(float(total) for total in np.bincount(codes, values, len(SOURCES)))


def staging_seconds(system: System, plan: Plan, sample: float) -> float:
    """Seconds before training: all workers read their share from the file system and write it, at
    the speed of the slower of the two.

    ``sample``: mean bytes of a sample, each of which is a file to open.
    """
    memory, ssd = plan.staged
    if memory + ssd == 0:
        return 0.0
    read = float(
        pfs_seconds(system, np.array([memory + ssd]), (memory + ssd) / sample, system.workers)[0]
    )
    write = memory / system.memory.write_bandwidth
    write += ssd / system.ssd.write_bandwidth if system.ssd is not None else 0.0
    return max(read, write)


def running_max_plus(steps: Floats, earliest: Floats, before: float) -> Floats:
    """x_f = max(x_{f-1}, earliest_f) + steps_f with x_{-1} = ``before``: (n,), without a loop.

    With C_f = steps_0 + ... + steps_f it is x_f = C_f + max over g <= f of (earliest_g - C_{g-1}),
    and of ``before``.
    """
    total = np.cumsum(steps)
    slack = earliest - (total - steps)
    return np.asarray(total + np.maximum(np.maximum.accumulate(slack), before))


def _one_by_one(read: Floats, compute: Floats, freed: Ints64, begin: float) -> Floats:
    """What `overlapped` returns, by its definition; sample f can be read when the first
    ``freed[f]`` samples are used."""
    used, available = [begin], begin
    for reading, training, wait in zip(
        read.tolist(), compute.tolist(), freed.tolist(), strict=True
    ):
        available = max(available, used[wait]) + reading
        used.append(max(available, used[-1]) + training)
    return np.array(used[1:])


def overlapped(read: Floats, compute: Floats, nbytes: Floats, room: float, begin: float) -> Floats:
    """When the training on each sample ends, while a staging buffer of ``room`` bytes is filled
    ahead of it: (n,) seconds.

    The study, Sec. 4: avail_f is when sample f is in the buffer, t_f = max(avail_f, t_{f-1} +
    s_{f-1} / c) when it is taken; it is dropped after its use (Sec. 5.1). Here a read begins when
    there is room: avail_f = max(avail_{f-1}, end of use of the last sample that must go) + read_f.
    Samples that fit in the buffer together are worked out at once, since they wait only for earlier
    ones.

    Args:
        read: (n,) seconds to fetch, prepare and write each sample, one after another.
        compute: (n,) seconds of training.
        nbytes: (n,) bytes.
        room: bytes of the buffer; a larger sample fills it alone.
        begin: when reading begins (s).
    """
    total = np.cumsum(nbytes)
    gone = np.searchsorted(total, total - np.maximum(room, nbytes) * (1 + 1e-12), side="left")
    # sample f can be read when the first `freed[f]` samples are used: those up to the first that
    # lets the rest and f fit
    freed = np.where(total <= room, 0, gone + 1)
    freed = np.minimum(freed, np.arange(len(total)))
    if float((np.arange(len(total)) - freed).mean()) < FEW:
        return _one_by_one(read, compute, freed, begin)
    done, first, available = np.empty(len(total)), 0, begin
    while first < len(total):
        last = max(int(np.searchsorted(freed, first, side="right")), first + 1)
        part, wait = slice(first, last), freed[first:last]
        release = np.where(wait > 0, done[wait - 1], begin)
        ready = running_max_plus(read[part], release, available)
        available = float(ready[-1])
        done[part] = running_max_plus(compute[part], ready, done[first - 1] if first else begin)
        first = last
    return done

"""The loading of batches: each is a chain of transfers (open, read, decode, copy to the GPU)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simshuffle.lowering.latency import slowest_thread
from simshuffle.network.batch import TransferBatch, chain, pad_routes, tasks
from simshuffle.plan.epochs import Reads
from simshuffle.plan.resources import Resources
from simshuffle.scenario.workload import Workload

Floats = NDArray[np.float64]
Edges = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass
class _Stages:
    """Stages of all chains, in their order: for each the work, delay and bytes of every batch,
    (iterations, M), and what its routes and caps are made of.

    Attributes:
        route: by stage, for every rank its links.
        cap: by stage, units/s.
    """

    shape: tuple[int, ...]
    work: list[Floats] = field(default_factory=list)
    delay: list[Floats] = field(default_factory=list)
    nbytes: list[Floats] = field(default_factory=list)
    route: list[list[list[int]]] = field(default_factory=list)
    cap: list[float] = field(default_factory=list)

    def add(
        self,
        work: Floats,
        route: list[list[int]],
        *,
        nbytes: Floats | None = None,
        delay: Floats | None = None,
        cap: float = np.inf,
    ) -> None:
        """Append a stage."""
        nothing = np.zeros(self.shape)
        self.work.append(work)
        self.delay.append(nothing if delay is None else delay)
        self.nbytes.append(nothing if nbytes is None else nbytes)
        self.route.append(route)
        self.cap.append(cap)

    def __len__(self) -> int:
        return len(self.work)


@dataclass(frozen=True)
class ReadChains:
    """The loading of all batches of one pass of all ranks.

    Attributes:
        iterations: batches of each rank.
        work, delay, nbytes: (M, iterations, stages) of every transfer, in the units of
            `simshuffle.network.batch.TASK`.
        open_cap: (M, iterations) opens a second of a batch's worker; None where it is the same for
            all batches.
        heads: stages that wait for the worker's previous batch.
        last_read: the stage that reads the last byte, whose end is marked.
        read_pfs, read_ssd, read_memory: bytes of the whole pass by source.
        templates: for every rank the batch that `batch` fills.
    """

    iterations: int
    work: Floats
    delay: Floats
    nbytes: Floats
    open_cap: Floats | None
    heads: tuple[int, ...]
    last_read: int
    read_pfs: float
    read_ssd: float
    read_memory: float
    templates: list[TransferBatch]

    def batch(self, rank: int, iteration: int, group: int) -> TransferBatch:
        """The chain of a batch; valid until the next call for the same rank, which fills the same
        arrays.

        Args:
            rank: whose batch.
            iteration: from 0.
            group: counts the last read (marked) and the copy.
        """
        template = self.templates[rank]
        records = template.tasks
        records["work"] = self.work[rank, iteration]
        records["delay"] = self.delay[rank, iteration]
        records["nbytes"] = self.nbytes[rank, iteration]
        if self.open_cap is not None:
            records["cap"][0] = self.open_cap[rank, iteration]
        records["group"][self.last_read] = group
        records["group"][-1] = group
        return template


def read_chains(
    reads: Reads,
    workload: Workload,
    resources: Resources,
    jitter: Floats,
    rng: np.random.Generator,
    decoding: Floats | float = 1.0,
) -> ReadChains:
    """The chains that load ``reads``.

    A batch's samples that are not in memory are read from the PFS (opens, then bytes) or the SSD,
    then those that are from memory; all are decoded and copied to the GPU. A stage that no batch of
    any rank needs is left out.

    Args:
        reads: of one pass of all ranks.
        workload: data set, loader and model.
        resources: what is read from, over what.
        jitter: (iterations, M) factors of the reads from storage.
        rng: the latencies of requests to the PFS; untouched where all are alike.
        decoding: (M,) factors of the work of decoding.
    """
    hit, missed = reads.hit_nbytes, reads.nbytes - reads.hit_nbytes
    any_hit = bool(reads.hit_samples.any())
    any_missed = bool((reads.hit_samples < reads.samples).any()) or not any_hit
    hosts, source, dataset = resources.host_of, workload.source, workload.dataset
    stages, open_cap = _Stages(reads.nbytes.shape), None
    if any_missed:
        samples = (reads.samples - reads.hit_samples).astype(float)
        in_flight = np.minimum(
            workload.loader.threads, np.maximum(samples / dataset.samples_per_request, 1.0)
        )
        if source == "pfs":
            _add_pfs(stages, samples, missed, workload, resources, jitter)
            open_cap = _open_cap(samples, in_flight, workload, resources, rng)
        else:
            _add_ssd(stages, samples, missed, in_flight, workload, resources, jitter)
    if any_hit:
        stages.add(hit, _one_link(resources.memory[hosts]), nbytes=hit)
    last_read = len(stages) - 1
    stages.add(
        reads.nbytes / dataset.sample_size.mean * dataset.decode_seconds * decoding,
        _one_link(resources.cores[hosts]),
        cap=float(min(workload.loader.threads, workload.local_batch_size)),
    )
    copied = reads.samples.astype(float) * workload.model.input_size
    slots = [resources.slot_of(rank) for rank in range(resources.world_size)]
    stages.add(copied, _one_link(resources.pcie_in[hosts, slots]), nbytes=copied)
    heads, edges = _order(len(stages), workload.loader.threads)
    return ReadChains(
        iterations=len(reads.samples),
        work=_by_rank(stages.work),
        delay=_by_rank(stages.delay),
        nbytes=_by_rank(stages.nbytes),
        open_cap=open_cap,
        heads=heads,
        last_read=last_read,
        read_pfs=float(missed.sum()) if source == "pfs" else 0.0,
        read_ssd=float(missed.sum()) if source == "ssd" else 0.0,
        read_memory=float(hit.sum()),
        templates=_templates(stages, edges, last_read, resources.world_size),
    )


def _add_pfs(
    stages: _Stages,
    samples: Floats,
    nbytes: Floats,
    workload: Workload,
    resources: Resources,
    jitter: Floats,
) -> None:
    """Opens, then bytes, from the PFS. All arrays are (iterations, M)."""
    dataset, pfs = workload.dataset, resources.cluster.parallel_file_system
    per_file, per_request = dataset.samples_per_file, dataset.samples_per_request
    routes, link_latency = resources.pfs_read()
    opens = [[resources.pfs_open]] * resources.world_size
    stages.add(samples / per_file * jitter, opens, cap=pfs.open_cap(per_file, per_request))
    stages.add(
        nbytes,
        [[link for link in route if link >= 0] for route in routes.tolist()],
        nbytes=nbytes,
        delay=np.where(samples > 0, link_latency, 0.0),
    )


def _open_cap(
    samples: Floats,
    in_flight: Floats,
    workload: Workload,
    resources: Resources,
    rng: np.random.Generator,
) -> Floats | None:
    """`ReadChains.open_cap`; ``in_flight`` requests of a batch at once, (iterations, M).

    Where latencies differ, a batch opens its files in the time of its slowest thread, which also
    decodes between two of them if it is one of several; one alone decodes in the end.
    """
    dataset, pfs = workload.dataset, resources.cluster.parallel_file_system
    per_file, per_request = dataset.samples_per_file, dataset.samples_per_request
    threads = workload.loader.threads
    if pfs.latency_spread > 0 and pfs.latency > 0:
        requests = np.ceil(samples / per_request).astype(np.int64)
        decode = per_request * dataset.decode_seconds if threads > 1 else 0.0
        seconds = slowest_thread(requests, threads, pfs.latency, pfs.latency_spread, decode, rng)
        drawn = np.full_like(samples, np.inf)
        np.divide(samples / per_file, seconds, out=drawn, where=seconds > 0)
        return np.ascontiguousarray(drawn.T)
    if threads == 1:
        return None
    different, number = np.unique(in_flight, return_inverse=True)
    caps = np.array([pfs.open_cap(per_file, per_request, n) for n in different])
    return np.ascontiguousarray(caps[number].reshape(samples.shape).T)


def _add_ssd(
    stages: _Stages,
    samples: Floats,
    nbytes: Floats,
    in_flight: Floats,
    workload: Workload,
    resources: Resources,
    jitter: Floats,
) -> None:
    """Reads from the host's SSD, arguments as in `_add_pfs`; the latencies of the ``in_flight``
    requests that a batch has at once pass together."""
    ssd = resources.cluster.ssd
    requests = samples / workload.dataset.samples_per_request
    seconds = ssd.read_seconds(
        nbytes, requests, resources.ranks_per_host * workload.loader.reads_in_flight
    )
    stages.add(
        seconds * jitter,
        _one_link(resources.ssd[resources.host_of]),
        nbytes=nbytes,
        delay=requests / in_flight * ssd.latency,
    )


def _one_link(links: NDArray[np.int32]) -> list[list[int]]:
    """Routes of one link each."""
    return [[link] for link in links.tolist()]


def _by_rank(columns: list[Floats]) -> Floats:
    """(iterations, M) of each stage as (M, iterations, stages), where what one post needs lies
    together."""
    return np.ascontiguousarray(np.stack(columns).transpose(2, 1, 0))


def _order(stages: int, threads: int) -> tuple[tuple[int, ...], Edges]:
    """The stages that begin a chain, and which stage follows which.

    A worker of one thread goes through them in turn. Several threads decode some samples while they
    read others, so that the two go on beside each other, and the batch is copied when both are
    done.
    """
    decode, copy = stages - 2, stages - 1
    if threads == 1:
        return (0,), chain(stages)
    edge_from, edge_to = chain(decode)
    return (0, decode), (
        np.append(edge_from, [decode - 1, decode]).astype(np.int32),
        np.append(edge_to, [copy, copy]).astype(np.int32),
    )


def _templates(
    stages: _Stages, edges: Edges, last_read: int, world_size: int
) -> list[TransferBatch]:
    """For every rank the batch that is filled again and again with new numbers."""
    out = []
    for rank in range(world_size):
        records = tasks(len(stages), cap=np.array(stages.cap))
        records["mark"][last_read] = 1
        routes = pad_routes([route[rank] for route in stages.route])
        out.append(TransferBatch(records, routes, *edges))
    return out

"""Lower bounds of reading: the least time of each resource through which the samples come (see
`simshuffle.plan.bounds`)."""

from __future__ import annotations

import math

import numpy as np

from simshuffle.plan.holding import NodeReads
from simshuffle.scenario.scenario import Scenario

Seconds = dict[str, float]
OPENS, PFS, CLIENT, HCAS, SSD = "file opens", "PFS bandwidth", "PFS client", "HCAs", "SSD"
MEMORY, DECODE, PCIE, LOADERS = "memory", "decode", "PCIe", "loader workers"
REQUESTS, STORE, FRONT_END = "store requests", "store bandwidth", "store hosts"


def reading_seconds(scenario: Scenario, samples: float, cached: float) -> dict[str, float]:
    """Least time (s) of each resource to bring ``samples`` samples to every rank, by its name.

    ``cached`` is the share that is read from memory; the others come from the PFS, the SSD or the
    object store. For a host with r ranks (the fullest), s bytes a sample and n = (1 - cached)
    ``samples``:

        file opens      M n / samples_per_file / (open_rate (1 - background_load))
        PFS bandwidth   M n s / (read_bandwidth (1 - background_load))
        PFS client      r n s / client_bandwidth(H)
        HCAs            r n s / (hcas link_bandwidth)
        SSD             r max(n s / read_bandwidth, n / samples_per_request / iops)
        store requests  M n / samples_per_request tries / (prefixes request_rate)
        store bandwidth M n s / bandwidth
        store hosts     r n s / host_bandwidth
        memory          r cached ``samples`` s / memory.bandwidth
        decode          r ``samples`` decode / cores
        PCIe            r ``samples`` input_size / (pcie_slots pcie_bandwidth)
        loader workers  the batches one after the other (`batch_seconds`), shared by
                        min(workers, prefetch) workers

    Those of the object store are there only where it is read. These are the capacities of
    `simshuffle.plan.resources`; the laws are in docs/model-bounds.md.
    """
    workload, cluster, dataset = scenario.workload, scenario.cluster, scenario.workload.dataset
    ranks = cluster.ranks_per_host(scenario.world_size)
    out = dict.fromkeys((OPENS, PFS, CLIENT, HCAS, SSD), 0.0)
    missed = samples * (1.0 - cached)
    nbytes = missed * dataset.stored.mean
    if workload.source == "pfs":
        pfs, hcas = cluster.parallel_file_system, cluster.host.hcas
        out[OPENS] = scenario.world_size * missed / dataset.samples_per_file / pfs.free_open_rate
        out[PFS] = scenario.world_size * nbytes / pfs.free_bandwidth
        out[CLIENT] = ranks * nbytes / _client_bandwidth(scenario)
        out[HCAS] = ranks * nbytes / (hcas * cable_bandwidth(scenario))
    elif workload.source == "ssd":
        out[SSD] = ranks * _ssd_seconds(scenario, missed)
    elif workload.source == "object_store":
        store = cluster.store
        shared, own = store.bandwidths
        requests = missed / dataset.read_at_once
        out[REQUESTS] = scenario.world_size * requests / store.answer_rate
        out[STORE] = scenario.world_size * nbytes / shared
        out[FRONT_END] = ranks * nbytes / own
    out[MEMORY] = ranks * samples * cached * dataset.stored.mean / cluster.memory.bandwidth
    out[DECODE] = ranks * samples * dataset.decode_seconds / cluster.host.cores
    slots = min(cluster.host.pcie_slots, ranks)
    out[PCIE] = ranks * samples * workload.model.input_size / (slots * cluster.host.pcie_bandwidth)
    at_once = min(workload.loader.workers, workload.loader.prefetch)
    batch = min(samples, workload.local_batch_size)
    out[LOADERS] = samples / batch * batch_seconds(scenario, batch, cached) / at_once
    return out


def fetching_seconds(scenario: Scenario, reads: NodeReads | None, batches: int) -> Seconds:
    """The same under a loader's order, for the first ``batches`` batches of every rank.

    Pieces come from the PFS or the object store, each by an open or a request, other samples from
    the cache; of resources that a
    host or a rank has, the one with most work counts. Each worker opens, reads and decodes by
    itself. Where ``reads`` is None, neither counts.
    """
    workload, cluster, dataset = scenario.workload, scenario.cluster, scenario.workload.dataset
    pfs, loader = cluster.parallel_file_system, workload.loader
    samples = min(batches * workload.local_batch_size, dataset.num_samples // scenario.world_size)
    out = reading_seconds(scenario, samples, 1.0) | {MEMORY: 0.0}
    at_once = min(loader.workers, loader.prefetch)
    decode = samples * dataset.decode_seconds / min(loader.threads, cluster.host.cores)
    copy = samples * workload.model.input_size / cluster.host.pcie_bandwidth
    read = 0.0
    if reads is not None:
        fetches = reads.fetches
        requests, nbytes, hits, hit_nbytes = (
            part[:batches].sum(axis=0)
            for part in (fetches.requests, fetches.nbytes, reads.hit_samples, reads.hit_nbytes)
        )
        host_of = cluster.host_of(scenario.world_size)
        fetched = float(np.bincount(host_of, nbytes).max())
        if workload.source == "object_store":
            store = cluster.store
            shared, own = store.bandwidths
            out[REQUESTS] = float(requests.sum()) / store.answer_rate
            out[STORE], out[FRONT_END] = float(nbytes.sum()) / shared, fetched / own
            waiting, at_most = store.waiting_seconds, loader.threads * store.connection_bandwidth
        else:
            out[OPENS] = float(requests.sum()) / pfs.free_open_rate
            out[PFS] = float(nbytes.sum()) / pfs.free_bandwidth
            out[CLIENT] = fetched / _client_bandwidth(scenario)
            out[HCAS] = fetched / (cluster.host.hcas * cable_bandwidth(scenario))
            waiting, at_most = pfs.latency, cable_bandwidth(scenario)
        cached = np.bincount(host_of, hit_nbytes).astype(np.float64)
        if fetches.cached_in == "memory":
            out[MEMORY] = float(cached.max()) / cluster.memory.bandwidth
        else:
            depth = cluster.ranks_per_host(scenario.world_size) * loader.reads_in_flight
            asked = np.bincount(host_of, hits).astype(np.float64)
            out[SSD] = float(np.max(cluster.ssd.read_seconds(cached, asked, depth)))
        read = float(np.max(requests * waiting / loader.threads + nbytes / at_most))
    work = read + decode if loader.threads == 1 else max(read, decode)
    return out | {LOADERS: (work + copy) / at_once}


def batch_seconds(scenario: Scenario, samples: float, cached: float) -> float:
    """Least time (s) in which a worker loads a batch of ``samples`` samples if it is alone.

    With one thread it opens and reads, then decodes; with t of them t requests are in flight, t
    cores decode, and reading and decoding go on beside each other. The copy to the GPU follows.
    """
    workload, cluster, dataset = scenario.workload, scenario.cluster, scenario.workload.dataset
    missed = samples * (1.0 - cached)
    nbytes = missed * dataset.stored.mean
    requests = samples / dataset.read_at_once
    in_flight = min(workload.loader.threads, max(requests, 1.0))
    read = samples * cached * dataset.stored.mean / cluster.memory.bandwidth
    if workload.source == "pfs":
        pfs = cluster.parallel_file_system
        cap = pfs.open_cap(dataset.samples_per_file, dataset.read_at_once, in_flight)
        read += missed / dataset.samples_per_file / min(cap, pfs.free_open_rate)
        read += nbytes / min(
            pfs.free_bandwidth, _client_bandwidth(scenario), cable_bandwidth(scenario)
        )
    elif workload.source == "ssd":
        waiting = (1.0 - cached) * requests / in_flight * cluster.ssd.latency
        read += _ssd_seconds(scenario, missed) + waiting
    elif workload.source == "object_store":
        store = cluster.store
        asked = missed / dataset.read_at_once
        read += max(asked / in_flight * store.waiting_seconds, asked / store.answer_rate)
        read += nbytes / min(in_flight * store.connection_bandwidth, *store.bandwidths)
    threads = min(workload.loader.threads, workload.local_batch_size, cluster.host.cores)
    decode = samples * dataset.decode_seconds / threads
    copy = samples * workload.model.input_size / cluster.host.pcie_bandwidth
    return (read + decode if workload.loader.threads == 1 else max(read, decode)) + copy


def _client_bandwidth(scenario: Scenario) -> float:
    """Bytes/s of the PFS that one host gets; inf without a limit."""
    curve = scenario.cluster.parallel_file_system.client_bandwidth
    return math.inf if curve is None else curve(scenario.hosts)


def _ssd_seconds(scenario: Scenario, samples: float) -> float:
    """Device time (s) to read so many samples."""
    cluster, workload = scenario.cluster, scenario.workload
    depth = cluster.ranks_per_host(scenario.world_size) * workload.loader.reads_in_flight
    return float(
        cluster.ssd.read_seconds(
            samples * workload.dataset.stored.mean,
            samples / workload.dataset.read_at_once,
            depth,
        )
    )


def cable_bandwidth(scenario: Scenario) -> float:
    """Bytes/s of the cable of an HCA; inf for a topology that does not say it in one number."""
    return float(getattr(scenario.cluster.topology, "link_bandwidth", math.inf))

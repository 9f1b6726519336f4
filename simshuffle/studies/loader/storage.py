"""The storage that loaders read from: the least time of requests and bytes, by its limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.job.plan.reading_bounds import cable_bandwidth
from simshuffle.job.scenario.options import record_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.storage import ObjectStore
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.workload.orders.order import Readers

S3 = "s3"
"""A store of which nothing else is said."""


@dataclass(frozen=True)
class StorageCosts:
    """What a request and a byte take, in s, wherever they may have to wait; 0 where they do not."""

    name: str
    threads: int  # requests that a worker has in flight
    # of a connection, which has one request at a time
    request_s: float
    byte_s: float
    # of all hosts together
    shared_request_s: float
    shared_byte_s: float
    # of a host
    host_request_s: float
    host_byte_s: float

    def seconds(
        self, requests: Floats, nbytes: Floats, readers: Readers, workers: Ints64 | None = None
    ) -> float:
        """Least time (s) until every rank has what it asks for, (M,) requests and bytes of them,
        with so many of its ``workers`` at work, (M,); None for all.

        The slowest of the ranks, whose c = min(workers x threads, requests) connections are never
        idle, of the hosts, and of what all share: max over ranks of (requests x request_s + bytes x
        byte_s) / c, and of requests x request_s and bytes x byte_s of the others. It is the law of
        `simshuffle.job.plan.reading_bounds` for the PFS and the object store, and of
        `ObjectStore.least_seconds`, without decoding.
        """
        busy = np.full(readers.world_size, readers.workers) if workers is None else workers
        connections = np.minimum(busy * self.threads, np.maximum(requests, 1))
        alone = (requests * self.request_s + nbytes * self.byte_s) / connections
        asked, sent = (of.reshape(readers.nodes, -1).sum(axis=1) for of in (requests, nbytes))
        limits = (
            alone.max(),
            requests.sum() * self.shared_request_s,
            nbytes.sum() * self.shared_byte_s,
            asked.max() * self.host_request_s,
            sent.max() * self.host_byte_s,
        )
        return float(max(limits))

    def evenly(self, requests: float, nbytes: float, readers: Readers) -> float:
        """The same where all ranks ask for equal parts of all requests and bytes."""
        each = np.full(readers.world_size, 1 / readers.world_size)
        return self.seconds(requests * each, nbytes * each, readers)


def parse_store(text: str) -> ObjectStore:
    """Return the store that ``text`` names: 's3', or with values 's3:latency=50 ms,prefixes=10'.

    Raises:
        InputError: the name is not known, or a value is not valid.
    """
    return record_of("--store", text, {S3: ObjectStore})


def costs_of_store(store: ObjectStore, threads: int = 1) -> StorageCosts:
    """Return the costs of an object store, to which every worker has ``threads`` connections."""
    shared, host = store.bandwidths
    each = 1 / store.connection_bandwidth
    rate = 1 / store.answer_rate
    waits = store.waiting_seconds
    return StorageCosts("object store", threads, waits, each, rate, 1 / shared, 0.0, 1 / host)


def costs_of_scenario(scenario: Scenario, hosts: int) -> StorageCosts:
    """Return the costs of reading a scenario's samples by ``hosts`` hosts, without a cache tier.

    Samples are read from the parallel file system, whose clients share their cables, from the
    object store, or from the SSD of each host. Samples that are staged in memory are read from
    where they are staged from.
    """
    workload, cluster = scenario.workload, scenario.cluster
    threads = workload.loader.threads
    source = workload.source if workload.source != "memory" else workload.staging.source
    if source == "object_store":
        return costs_of_store(cluster.store, threads)
    if source == "ssd":
        ssd = cluster.ssd
        in_flight = cluster.host.gpus * workload.loader.reads_in_flight
        each = 0.0 if ssd.iops is None else 1 / ssd.iops(in_flight)
        return StorageCosts(
            "SSD", threads, ssd.latency, 0.0, 0.0, 0.0, each, 1 / ssd.read_bandwidth
        )
    pfs = cluster.parallel_file_system
    client = pfs.client_bandwidth
    cable = cable_bandwidth(scenario)
    of_host = max(1 / (cluster.host.hcas * cable), 0.0 if client is None else 1 / client(hosts))
    shared = 1 / pfs.free_open_rate, 1 / pfs.free_bandwidth
    return StorageCosts("file system", threads, pfs.latency, threads / cable, *shared, 0.0, of_host)

"""The storage that loaders read from: the least time of requests and bytes, by its
limits.
"""

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
"""The object store by default: all values at their default."""


@dataclass(frozen=True)
class StorageCosts:
    """Seconds that a request and a byte take wherever they may wait; 0 where they do
    not.
    """

    name: str  # of the kind of storage, for people
    threads: int  # requests that a worker has in flight
    request_s: float  # s a request, of a connection, which has one request at a time
    byte_s: float  # s a byte, of a connection
    shared_request_s: float  # s a request, of all hosts together
    shared_byte_s: float  # s a byte, of all hosts together
    host_request_s: float  # s a request, of a host
    host_byte_s: float  # s a byte, of a host
    worker_byte_s: float = 0.0  # s a byte, of a worker, whose connections share it

    def least_seconds(
        self,
        requests: Floats,
        nbytes: Floats,
        readers: Readers,
        workers: Ints64 | None = None,
    ) -> float:
        """Return the least s until every rank has read what it needs.

        The result is the largest of five times. Of the slowest rank: its c =
        min(workers x threads, requests) connections are never idle, nor are its w =
        min(workers, requests) workers, so (requests x request_s + bytes x byte_s) / c +
        bytes x worker_byte_s / w. Of the slowest host, and of the storage that all
        share: requests x request_s, and bytes x byte_s. This is the law of
        `simshuffle.job.plan.reading_bounds` for the PFS and the object store, and of
        `ObjectStore.least_seconds`, without decoding.

        Args:
            requests: (M,) requests of each rank.
            nbytes: (M,) bytes of each rank.
            readers: hosts, ranks and workers.
            workers: (M,) workers at work on each rank; None for all.
        """
        busy_workers = (
            np.full(readers.world_size, readers.workers) if workers is None else workers
        )
        max_connections = np.maximum(requests, 1)
        connections = np.minimum(busy_workers * self.threads, max_connections)
        seconds_of_rank = (
            requests * self.request_s + nbytes * self.byte_s
        ) / connections
        seconds_of_rank += (
            nbytes * self.worker_byte_s / np.minimum(busy_workers, max_connections)
        )
        # (nodes,) sums over the ranks of each host, which follow one another
        requests_of_host = requests.reshape(readers.nodes, -1).sum(axis=1)
        nbytes_of_host = nbytes.reshape(readers.nodes, -1).sum(axis=1)
        limits = (
            seconds_of_rank.max(),
            requests.sum() * self.shared_request_s,
            nbytes.sum() * self.shared_byte_s,
            requests_of_host.max() * self.host_request_s,
            nbytes_of_host.max() * self.host_byte_s,
        )
        return float(max(limits))

    def least_seconds_evenly(
        self, requests: float, nbytes: float, readers: Readers
    ) -> float:
        """Return the least s in which all ranks read equal parts of requests and bytes.

        All workers of each rank are at work.
        """
        share_of_rank = np.full(readers.world_size, 1 / readers.world_size)
        return self.least_seconds(
            requests * share_of_rank, nbytes * share_of_rank, readers
        )


def parse_store(text: str) -> ObjectStore:
    """Return the store that ``text`` names: 's3', or with values 's3:latency=50
    ms,prefixes=10'.

    Raises:
        InputError: the name is not known, or a value is not valid.
    """
    return record_of("--store", text, {S3: ObjectStore})


def costs_of_store(store: ObjectStore, threads: int = 1) -> StorageCosts:
    """Return the costs of an object store, to which every worker has ``threads``
    connections.
    """
    shared_bandwidth, host_bandwidth = store.bandwidths
    return StorageCosts(
        name="object store",
        threads=threads,
        request_s=store.waiting_seconds,
        byte_s=1 / store.connection_bandwidth,
        shared_request_s=1 / store.answer_rate,
        shared_byte_s=1 / shared_bandwidth,
        host_request_s=0.0,
        host_byte_s=1 / host_bandwidth,
    )


def costs_of_scenario(scenario: Scenario, hosts: int) -> StorageCosts:
    """Return the costs of reading a scenario's samples by ``hosts`` hosts, without a
    cache tier.

    Samples are read from the parallel file system, whose clients share their cables,
    from the object store, or from the SSD of each host. Samples that are staged in
    memory are read from where they are staged from. Threads are those of the scenario's
    loader; ``hosts`` decide the bandwidth of a client of the file system.
    """
    workload = scenario.workload
    cluster = scenario.cluster
    threads = workload.loader.threads
    source = workload.source if workload.source != "memory" else workload.staging.source
    if source == "object_store":
        return costs_of_store(cluster.store, threads)
    if source == "ssd":
        ssd = cluster.ssd
        in_flight = cluster.host.gpus * workload.loader.reads_in_flight
        return StorageCosts(
            name="SSD",
            threads=threads,
            request_s=ssd.latency,
            byte_s=0.0,
            shared_request_s=0.0,
            shared_byte_s=0.0,
            host_request_s=0.0 if ssd.iops is None else 1 / ssd.iops(in_flight),
            host_byte_s=1 / ssd.read_bandwidth,
        )
    pfs = cluster.parallel_file_system
    client_bandwidth = pfs.client_bandwidth
    cable_bytes_per_s = cable_bandwidth(scenario)
    host_byte_s = max(
        1 / (cluster.host.hcas * cable_bytes_per_s),
        0.0 if client_bandwidth is None else 1 / client_bandwidth(hosts),
    )
    return StorageCosts(
        name="file system",
        threads=threads,
        request_s=pfs.latency,
        byte_s=0.0,
        shared_request_s=1 / pfs.free_open_rate,
        shared_byte_s=1 / pfs.free_bandwidth,
        host_request_s=0.0,
        host_byte_s=host_byte_s,
        worker_byte_s=1 / cable_bytes_per_s,
    )

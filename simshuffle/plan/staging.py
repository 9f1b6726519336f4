"""What is copied to the hosts before the first epoch: the least time that it takes."""

from __future__ import annotations

import math

from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.workload import Staging, Workload


def write_bandwidth(cluster: Cluster, workload: Workload) -> float:
    """Bytes/s that a host stores of what is staged."""
    return cluster.memory.bandwidth if workload.source == "memory" else cluster.ssd.write_bandwidth


def file_bandwidths(cluster: Cluster, staging: Staging, file: float) -> tuple[float, float]:
    """Bytes/s at which files of ``file`` bytes can be opened, or asked for, by all hosts together,
    and by one that copies ``staging.copies`` of them at once; inf where nothing limits it.

    An archive is opened once. From an object store it comes by as many connections, in ranges of
    bytes so large that their latencies are nothing.
    """
    files = staging.format == "files"
    if staging.source == "object_store":
        store = cluster.store
        if not files:
            return math.inf, staging.copies * store.connection_bandwidth
        return store.answer_rate * file, staging.copies * file / store.request_seconds(file)
    pfs = cluster.parallel_file_system
    if not files:
        return math.inf, math.inf
    own = staging.copies * file / pfs.latency if pfs.latency > 0 else math.inf
    return pfs.free_open_rate * file, own


def staging_bound(cluster: Cluster, workload: Workload, world_size: int) -> float:
    """Least time (s) to copy the shards, or the whole set, from the PFS or the object store to the
    hosts before the first epoch; 0 if nothing is staged.

    The slowest of the resources one by one: the bytes through the servers; what the fullest host
    reads as a client, and stores; as files, also their opening by the servers, and their latencies
    on that host; of an object store, its connections. Network and HCAs are left out. The shards are
    read once, the whole set by every host, or with broadcast once by all together.
    """
    exchange, dataset, staging = workload.exchange, workload.dataset, workload.staging
    ranks = cluster.ranks_per_host(world_size)
    if exchange.stored_share(world_size, ranks) == 0.0:
        return 0.0
    hosts = cluster.hosts_for(world_size)
    replicated = exchange.redraws
    copies = hosts if replicated and not staging.broadcast else 1
    stored = dataset.nbytes * (1.0 if replicated else ranks / world_size)
    # by a host from what all share
    received = dataset.nbytes / hosts if replicated and staging.broadcast else stored
    file = dataset.stored.mean * dataset.samples_per_file
    of_files, of_bytes = (
        file_bandwidths(cluster, staging, file),
        _byte_bandwidths(cluster, staging, hosts),
    )
    return max(
        copies * dataset.nbytes / min(of_files[0], of_bytes[0]),
        received / min(of_files[1], of_bytes[1]),
        stored / write_bandwidth(cluster, workload),
    )


def _byte_bandwidths(cluster: Cluster, staging: Staging, hosts: int) -> tuple[float, float]:
    """Bytes/s of what is staged from, for all of ``hosts`` hosts together, and for one of them; inf
    without a limit."""
    if staging.source == "object_store":
        return cluster.store.bandwidths
    pfs = cluster.parallel_file_system
    curve = pfs.client_bandwidth
    return pfs.free_bandwidth, math.inf if curve is None else curve(hosts)

"""What is copied to the hosts before the first epoch: the least time that it takes."""

from __future__ import annotations

from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.workload import Workload


def write_bandwidth(cluster: Cluster, workload: Workload) -> float:
    """Bytes/s that a host stores of what is staged."""
    return cluster.memory.bandwidth if workload.source == "memory" else cluster.ssd.write_bandwidth


def staging_bound(cluster: Cluster, workload: Workload, world_size: int) -> float:
    """Least time (s) to copy the shards, or the whole set, from the PFS to the hosts before the
    first epoch; 0 if nothing is staged.

    The slowest of the resources one by one: the bytes through the file system's servers; what the
    fullest host reads as a client, and stores; as files, also their opening by the servers, and
    their latencies on that host. Network and HCAs are left out. The shards are read once, the whole
    set by every host, or with broadcast once by all together.
    """
    exchange, dataset, staging, pfs = (
        workload.exchange,
        workload.dataset,
        workload.staging,
        cluster.parallel_file_system,
    )
    ranks = cluster.ranks_per_host(world_size)
    if exchange.stored_share(world_size, ranks) == 0.0:
        return 0.0
    hosts = cluster.hosts_for(world_size)
    replicated = exchange.redraws
    copies = hosts if replicated and not staging.broadcast else 1
    stored = dataset.nbytes * (1.0 if replicated else ranks / world_size)
    # by a host from the file system
    received = dataset.nbytes / hosts if replicated and staging.broadcast else stored
    bounds = [
        copies * dataset.nbytes / pfs.free_bandwidth,
        stored / write_bandwidth(cluster, workload),
    ]
    if pfs.client_bandwidth is not None:
        bounds.append(received / pfs.client_bandwidth(hosts))
    if staging.format == "files":
        file = dataset.stored.mean * dataset.samples_per_file
        bounds += [
            copies * dataset.nbytes / file / pfs.free_open_rate,
            received / file * pfs.latency / staging.copies,
        ]
    return max(bounds)

"""What links carried from moment to moment, as counters of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from simshuffle.exports.trace_file import TraceFile, nanoseconds
from simshuffle.plan.resources import Resources
from simshuffle.sim.recorder import EpochRecord

Floats = NDArray[np.float64]


def write_counters(
    file: TraceFile,
    record: EpochRecord,
    offset: int,
    cluster: int,
    processes: Mapping[int, int],
    *,
    last: bool,
) -> None:
    """Write the counters of an epoch: for every tier of links its mean and its most loaded link,
    what the file system gives, and the SSD, the cores and the adapters of the hosts of some ranks.
    Each value is a mean over the time to the next one.

    Args:
        file: where they go.
        record: of the epoch.
        offset: ns at which it begins.
        cluster: the process of tiers and file system.
        processes: that of each rank whose host is shown.
        last: whether no other epoch begins where this one ends.
    """
    used, resources = record.used(), record.resources
    when = offset + nanoseconds(record.at if last else record.at[:-1])
    table = resources.links

    def write(pid: int, name: str, series: Mapping[str, Floats]) -> None:
        file.counter(
            pid, name, when, {key: np.append(of, 0.0)[: len(when)] for key, of in series.items()}
        )

    carried = record.work[-1] > 0
    tiers = np.array(table.tiers, object)
    for tier in dict.fromkeys(table.tiers):
        links = np.flatnonzero((tiers == tier) & carried)
        if len(links) and not tier.startswith(("pfs.", "object_store.")):
            share = 100.0 * used[:, links]
            of = {"mean %": share.mean(axis=1), "max %": share.max(axis=1)}
            write(cluster, f"{tier} use", of)
    shared = [
        (resources.pfs_bandwidth, "PFS bandwidth", "GB/s", 1e9),
        (resources.pfs_open, "PFS opens", "1/s", 1.0),
    ]
    if resources.cluster.object_store is not None:
        shared += [
            (resources.store_bandwidth, "object store bandwidth", "GB/s", 1e9),
            (resources.store_requests, "object store requests", "1/s", 1.0),
        ]
    for link, name, unit, size in shared:
        if carried[link]:
            write(cluster, name, {unit: used[:, link] * table.capacity[link] / size})
    ends = _adapters(resources, {int(resources.host_of[rank]) for rank in processes})
    for rank, pid in processes.items():
        host = int(resources.host_of[rank])
        for name, device in (("SSD", resources.ssd), ("cores", resources.cores)):
            if carried[device[host]]:
                write(pid, f"{name} use", {"%": 100.0 * used[:, device[host]]})
        for name, links in zip(("out", "in"), ends[host], strict=True):
            if carried[links].any():
                rate = used[:, links] @ table.capacity[links]
                write(pid, f"HCAs {name}", {"GB/s": rate / 1e9})


def _adapters(
    resources: Resources, hosts: Iterable[int]
) -> dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The cables out of each of some hosts, and those into it."""
    table = resources.links
    wanted = {resources.hosts[host]: host for host in hosts}
    found: dict[int, tuple[list[int], list[int]]] = {host: ([], []) for host in wanted.values()}
    for link in np.flatnonzero(table.cable).tolist():
        # 'a>b', and '#0' behind it where there are several
        begin, _, end = table.names[link].partition("#")[0].partition(">")
        for side, name in enumerate((begin, end)):
            if name in wanted:
                found[wanted[name]][side].append(link)
    return {
        host: (np.array(out, np.intp), np.array(into, np.intp))
        for host, (out, into) in found.items()
    }

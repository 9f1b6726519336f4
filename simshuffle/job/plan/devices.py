"""The devices of hosts, and the servers that all share, as links behind the cables of a
network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.arrays import Flags, Floats, Ints32

UNBOUND = 1e15
"""Bytes/s of what does not bind: more than all hosts together take."""


@dataclass(frozen=True)
class LinkTable:
    """Names and capacities of all links of a run."""

    names: list[str]  # (links,) unique names
    tiers: list[str]  # (links,) kind of link: 'leaf>fbb', 'ssd', ...
    units: list[str]  # (links,) 'B', or 's' of device or core time, or 'ops'
    capacity: Floats  # (links,) units/s
    # (links,) s, of cables and of links out to the other hosts of a scale-up domain; 0 for all
    # others
    latency: Floats
    # (links,) whether it is a cable: part of the network, and not a device
    cable: Flags


class _LinkColumns:
    """The columns of a table of links, to which the links of devices are appended.

    The lists of ``cables`` are extended in place.

    Args:
        cables: the links of the network, which come first.
        hosts: the names of the hosts.
    """

    def __init__(self, cables: LinkTable, hosts: list[str]) -> None:
        self._cables = cables
        self._hosts = hosts
        self._names = cables.names
        self._tiers = cables.tiers
        self._units = cables.units
        self._capacity: list[float] = cables.capacity.tolist()
        self._num_cables = len(cables.names)

    def add_to_hosts(
        self, per_host: int, tier: str, unit: str, capacity: float
    ) -> Ints32:
        """Append ``per_host`` links for each host; return their numbers, (hosts,
        per_host). They are named host.tier, with a number if a host has several.
        """
        first = len(self._names)
        suffixes = [""] if per_host == 1 else range(per_host)
        for host in self._hosts:
            self._names.extend(f"{host}.{tier}{suffix}" for suffix in suffixes)
        total = per_host * len(self._hosts)
        self._tiers.extend([tier] * total)
        self._units.extend([unit] * total)
        self._capacity.extend([capacity] * total)
        numbers = np.arange(first, first + total, dtype=np.int32)
        return numbers.reshape(len(self._hosts), per_host)

    def add_shared(self, tier: str, unit: str, capacity: float) -> int:
        """Append a link that all hosts share; return its number."""
        self._names.append(tier)
        self._tiers.append(tier)
        self._units.append(unit)
        self._capacity.append(capacity)
        return len(self._names) - 1

    def table(self) -> LinkTable:
        """Return the table of all links; devices have no latency."""
        num_devices = len(self._names) - self._num_cables
        return LinkTable(
            names=self._names,
            tiers=self._tiers,
            units=self._units,
            capacity=np.array(self._capacity),
            latency=np.append(self._cables.latency, np.zeros(num_devices)),
            cable=np.arange(len(self._names)) < self._num_cables,
        )


class Devices:
    """Numbers of the links of devices: (hosts,) where a host has one device, else
    (hosts, n); one number for a server that all hosts share.

    ``pfs_client`` and ``pfs_write`` are None where nothing of the kind limits.
    Attributes of scale-up domains (``scale_up_``), the object store (``store_``) and
    the cache tier (``tier_``) exist only if the cluster has one.
    """

    cluster: Cluster
    hosts: list[str]
    num_hosts: int

    def _append_devices(self, cables: LinkTable, writes: bool) -> LinkTable:
        """Return the table of all links: ``cables``, then the links of devices.

        Sets the attributes that hold their numbers, and extends the lists of
        ``cables``. Devices that scenarios seldom have come last, so that other links
        keep their numbers. With ``writes`` the PFS has a link of its own for them, if
        its servers write at another speed than they read. What has no limit gets
        `UNBOUND`.
        """
        cluster = self.cluster
        host = cluster.host
        columns = _LinkColumns(cables, self.hosts)
        add = columns.add_to_hosts
        add_shared = columns.add_shared
        self.pcie_out = add(host.pcie_slots, "pcie_out", "B", host.pcie_bandwidth)
        self.pcie_in = add(host.pcie_slots, "pcie_in", "B", host.pcie_bandwidth)
        self.nvlink = add(host.gpus, "nvlink", "B", host.nvlink_bandwidth)
        domains = cluster.topology.domains
        if domains is not None:
            self.scale_up_out = add(host.gpus, "scale_up_out", "B", domains.bandwidth)
            self.scale_up_in = add(host.gpus, "scale_up_in", "B", domains.bandwidth)
        self.memory = add(1, "memory", "B", cluster.memory.bandwidth)[:, 0]
        self.ssd = add(1, "ssd", "s", 1.0)[:, 0]
        self.cores = add(1, "cores", "s", float(host.cores))[:, 0]
        pfs = cluster.parallel_file_system
        self.pfs_bandwidth = add_shared("pfs.bandwidth", "B", pfs.free_bandwidth)
        self.pfs_open = add_shared("pfs.open", "ops", pfs.free_open_rate)
        self.pfs_client: Ints32 | None = None
        if pfs.client_bandwidth is not None:
            self.pfs_client = add(
                1, "pfs.client", "B", pfs.client_bandwidth(self.num_hosts)
            )[:, 0]
        if (store := cluster.object_store) is not None:
            shared, own = (min(bandwidth, UNBOUND) for bandwidth in store.bandwidths)
            rate = store.prefixes * store.request_rate
            self.store_bandwidth = add_shared("object_store.bandwidth", "B", shared)
            self.store_requests = add_shared("object_store.requests", "ops", rate)
            self.store_host = add(1, "object_store.host", "B", own)[:, 0]
        # of what is written, if the servers write at another speed than they read
        self.pfs_write: int | None = None
        if writes and pfs.free_write_bandwidth != pfs.free_bandwidth:
            self.pfs_write = add_shared("pfs.write", "B", pfs.free_write_bandwidth)
        self._number_tier(columns)
        table = columns.table()
        if domains is not None:
            table.latency[self.scale_up_out] = domains.latency
        return table

    def _number_tier(self, columns: _LinkColumns) -> None:
        """Append the links of the cache tier, if the cluster has one."""
        tier = self.cluster.cache_tier
        if tier is None:
            return
        curve = tier.host_bandwidth
        host_bandwidth = UNBOUND if curve is None else curve(self.num_hosts)
        add_shared = columns.add_shared
        self.tier_bandwidth = add_shared("cache_tier.bandwidth", "B", tier.bandwidth)
        self.tier_open = add_shared("cache_tier.open", "ops", tier.open_rate or UNBOUND)
        self.tier_host = columns.add_to_hosts(
            1, "cache_tier.host", "B", host_bandwidth
        )[:, 0]

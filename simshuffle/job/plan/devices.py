"""The devices of hosts, and the servers that all share, as links behind the cables of a network."""

from __future__ import annotations

from collections.abc import Callable
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


class Devices:
    """Numbers of links, by what they are: (hosts,) of what a host has one of, (hosts, n) of others;
    ``pfs_client`` and ``pfs_write`` are None where nothing of the kind limits."""

    cluster: Cluster
    hosts: list[str]
    num_hosts: int

    def _append_devices(self, cables: LinkTable, writes: bool) -> LinkTable:
        """The table of all links, of which ``cables`` has the cables. What scenarios seldom have
        comes last, so that others keep their numbers."""
        cluster, host, count = self.cluster, self.cluster.host, len(cables.names)
        names, tiers, units, capacity = (
            cables.names,
            cables.tiers,
            cables.units,
            cables.capacity.tolist(),
        )

        def add(per_host: int, tier: str, unit: str, value: float) -> Ints32:
            first = len(names)
            suffixes = [""] if per_host == 1 else range(per_host)
            for name in self.hosts:
                names.extend(f"{name}.{tier}{k}" for k in suffixes)
            total = per_host * self.num_hosts
            tiers.extend([tier] * total)
            units.extend([unit] * total)
            capacity.extend([value] * total)
            return np.arange(first, first + total, dtype=np.int32).reshape(self.num_hosts, per_host)

        def add_shared(tier: str, unit: str, value: float) -> int:
            names.append(tier)
            tiers.append(tier)
            units.append(unit)
            capacity.append(value)
            return len(names) - 1

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
            self.pfs_client = add(1, "pfs.client", "B", pfs.client_bandwidth(self.num_hosts))[:, 0]
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
        self._number_tier(add, add_shared)
        latency = np.append(cables.latency, np.zeros(len(names) - count))
        if domains is not None:
            latency[self.scale_up_out] = domains.latency
        cable = np.arange(len(names)) < count
        return LinkTable(names, tiers, units, np.array(capacity), latency, cable)

    def _number_tier(
        self,
        add: Callable[[int, str, str, float], Ints32],
        add_shared: Callable[[str, str, float], int],
    ) -> None:
        tier = self.cluster.cache_tier
        if tier is None:
            return
        curve = tier.host_bandwidth
        host_bandwidth = UNBOUND if curve is None else curve(self.num_hosts)
        self.tier_bandwidth = add_shared("cache_tier.bandwidth", "B", tier.bandwidth)
        self.tier_open = add_shared("cache_tier.open", "ops", tier.open_rate or UNBOUND)
        self.tier_host = add(1, "cache_tier.host", "B", host_bandwidth)[:, 0]

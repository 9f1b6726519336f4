"""Links of the fluid network for the resources of a cluster: cables, PCIe slots,
NVLink, memory, SSDs, cores, the PFS, the object store, the cache tier.

A link's unit is what flows through it: bytes for cables, slots, memory, the PFS, the
object store and the cache tier; seconds of device time for an SSD (so that reads and
writes share it at their own speeds); core-seconds for cores; operations for the opening
of files and for requests to the object store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simshuffle.fabric.network import Links, Network
from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.fabric.network.models import shared_network
from simshuffle.fabric.routing.router import reachable_links
from simshuffle.job.plan.devices import Devices, LinkTable
from simshuffle.job.plan.wiring import (
    Domains,
    choose_hosts,
    names_of,
    number_by_occurrence,
    wiring,
)
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32
from simshuffle.workload.exchange import RankPlaces

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork

OF_HOSTS = (
    *("_endpoint", "pcie_out", "pcie_in", "nvlink", "scale_up_out", "scale_up_in"),
    *("memory", "ssd", "cores", "pfs_client", "store_host", "tier_host"),
)
"""Attributes of `Resources` with a row for each host: its ports, and links."""
DETOUR = 6
"""Links by which a way round failed cables may be longer than the longest way else."""


class Resources(Devices):
    """The links of a cluster that ``world_size`` ranks use, and the routes between
    them.

    A router that remembers counts each route over cables that a method returns as sent.

    Args:
        world_size: M; ranks fill the hosts one after the other, in the order of its
            placement.
        rng: draws the hosts of a scattered placement, and what the routing draws.
        beside: names of more hosts that send over its cables, which are links, too.
        every_cable: whether all cables are links, as where messages may go round some
            of them.
        writes: whether anything is written to the file system.

    Attributes:
        links: names, units and capacities of all links: cables, then devices.
        width: the most links of a route: the columns of all tables of routes.
        hosts: names of the hosts, in the order in which ranks fill them.
        host_of: (M,) index in ``hosts`` of each rank's host.
        domain_of: (M,) index of its scale-up domain, in the order in which ranks come
            to them; of its host if there are none.
        num_domains: the number of these domains.
        gpu_of, rail_of, slot_of: (M,) each rank's GPU, and the HCA and the PCIe slot
            beside it, from 0 in each host.
        cables: the first of its links: which of `Router.links` they are, ascending.
            Those that no message can cross are left out, where routes are known that
            well.
        rack_of_switch: the number of the rack of each switch below the topmost ones, by
            its name.
        first_rank, all_ranks: the index of its first rank among those of all jobs that
            share the network, and how many these are.

    Raises:
        TopologyError: the network, the hosts or the routing cannot be used.
    """

    def __init__(
        self,
        cluster: Cluster,
        world_size: int,
        rng: np.random.Generator,
        beside: Sequence[str] = (),
        *,
        every_cable: bool = False,
        writes: bool = False,
    ) -> None:
        wires = wiring(cluster)
        self.cluster = cluster
        self.world_size = world_size
        self.first_rank = 0
        self.all_ranks = world_size
        host = cluster.host
        self.num_hosts = cluster.hosts_for(world_size)
        # of every host but the last
        self.ranks_per_host = cluster.ranks_per_host(world_size)
        self.hosts = choose_hosts(cluster, wires.fabric, self.num_hosts, rng)
        self.forwarding = wires.router(cluster.routing, rng)
        endpoints = self.forwarding.endpoints
        ports = [endpoints(name)[: host.hcas] for name in self.hosts]
        self._endpoint = np.array(ports, np.int32)
        self._place_ranks(names_of(wires.fabric, "host"))
        self._beside = [
            port for name in beside for port in endpoints(name)[: host.hcas]
        ]
        servers = [
            p for name in names_of(wires.fabric, "storage") for p in endpoints(name)
        ]
        self._pfs_endpoint = np.array(servers, np.int32)
        self.rack_of_switch = wires.rack_of
        self.links = self._number_links(every_cable, writes)
        # the most devices before the cables of a read or a write
        devices = 2 + (self.pfs_write is not None or cluster.cache_tier is not None)
        self.width = self.forwarding.diameter + devices + every_cable * DETOUR

    @cached_property
    def places(self) -> RankPlaces:
        """The host, leaf switch and rack of each rank."""
        leaf = self.forwarding.leaf_names(self._port_of)
        rack = number_by_occurrence([self.rack_of_switch[switch] for switch in leaf])
        return RankPlaces(self.host_of, number_by_occurrence(leaf), rack)

    def network(self, model: Network, accounts: int = 0) -> FluidNetwork:
        """Make a network of all links, with nothing on it yet; cables are shared as
        ``model`` says. ``accounts`` is its number of accounts of time.
        """
        table = self.links
        links = Links(table.capacity, table.latency, table.names)
        return shared_network(
            model, links, table.cable, width=self.width, accounts=accounts
        )

    def seconds_alone(self, batch: TransferBatch, model: Network) -> float:
        """Return when the last of ``batch`` (not empty) ends (s), alone on the machine.

        Cables are shared as in ``model``. Sets the column 'group' of the tasks.
        """
        network = self.network(model)
        group = batch.tasks["group"] = network.open_group(len(batch))
        network.post(0.0, batch)
        network.advance(math.inf)
        return network.close_group(group)[1]

    def _number_links(self, every_cable: bool, writes: bool) -> LinkTable:
        """Number the links of the run, cables first; return their table.

        Sets ``cables``, ``_index_of_link``, and the links of the devices (`Devices`).
        """
        all_links = self.forwarding.links
        ports = np.unique(np.append(self.every_port, self._beside)).astype(np.int32)
        crossed = self.forwarding.possible_links(ports)
        self.cables = cables = (
            np.arange(len(all_links), dtype=np.int32) if every_cable else crossed
        )
        # the last one is that of the -1 that pads routes
        self._index_of_link = np.full(len(all_links) + 1, -1, np.int32)
        self._index_of_link[cables] = np.arange(len(cables))
        names = all_links.names_of(cables)
        tiers = all_links.tiers_of(cables)
        units = ["B"] * len(names)
        capacity = all_links.capacity[cables]
        latency = all_links.latency[cables]
        return self._append_devices(
            LinkTable(names, tiers, units, capacity, latency, latency >= 0), writes
        )

    def part_of_job(self, first: int, world_size: int, first_rank: int) -> Resources:
        """Return a copy for a job of ``world_size`` ranks that fills the hosts from
        index ``first`` on; ``first_rank`` as the attribute. Links keep their indices.
        """
        part = copy(self)
        for name in ("places", "rails"):
            part.__dict__.pop(name, None)  # which are those of all
        host_slice = slice(first, first + self.cluster.hosts_for(world_size))
        part.world_size = world_size
        part.first_rank = first_rank
        part.ranks_per_host = self.cluster.ranks_per_host(world_size)
        part.hosts = self.hosts[host_slice]
        part.num_hosts = len(part.hosts)
        for name in OF_HOSTS:
            if (links := getattr(self, name, None)) is not None:
                setattr(part, name, links[host_slice])
        all_hosts = names_of(wiring(self.cluster).fabric, "host")
        part._place_ranks(all_hosts)
        return part

    def _place_ranks(self, all_hosts: Sequence[str]) -> None:
        """Set the host, domain, GPU, HCA, its port and PCIe slot of each rank, from
        ``hosts``; ``all_hosts`` names the hosts of the whole topology.
        """
        cluster = self.cluster
        host = self.cluster.host
        ranks = self.world_size
        self.host_of: Ints32 = cluster.host_of(ranks)
        self._domains = Domains(self.hosts, all_hosts, cluster.hosts_per_domain)
        self.domain_of: Ints32 = self._domains.of_host[self.host_of]
        self.num_domains = self._domains.count
        self.gpu_of: Ints32 = np.arange(ranks, dtype=np.int32) % host.gpus
        self.rail_of: Ints32 = self.gpu_of * host.hcas // host.gpus
        self._port_of: Ints32 = self._endpoint[self.host_of, self.rail_of]
        self.slot_of: Ints32 = self.gpu_of * host.pcie_slots // host.gpus

    def foreign_links(self, machine: Resources) -> Flags:
        """Return (links,) whether a link is a device of a host of ``machine`` that is
        not among the hosts of this part; False for cables and servers.
        """
        is_foreign = np.zeros(len(self.links.names), bool)
        for resources, foreign in ((machine, True), (self, False)):
            for name in OF_HOSTS[1:]:
                if (links := getattr(resources, name, None)) is not None:
                    is_foreign[links] = foreign
        return is_foreign

    def message(self, src: Ints, dst: Ints) -> tuple[Ints32, Floats]:
        """Return routes of messages between the memories of ranks, and their latency.

        In one host a message crosses its memory only, without latency. Between hosts of
        one scale-up domain it crosses only what joins their GPUs. Else it crosses only
        the cables between the HCAs of the ranks, and no PCIe slot.

        Args:
            src: (n,) ranks.
            dst: (n,) ranks.

        Returns:
            (n, width) links padded with -1, and (n,) s, the sum over the links.
        """
        out = np.full((len(src), self.width), -1, np.int32)
        latency = np.zeros(len(src))
        inside = self.host_of[src] == self.host_of[dst]
        out[inside, 0] = self.memory[self.host_of[src[inside]]]
        near, far = self._split_pairs(src, dst)
        out[near, :2] = self._scale_up(src[near], dst[near])
        latency[near] = self.links.latency[out[near, 0]]
        ports = self._port_of.take(src[far]), self._port_of.take(dst[far])
        routes, latency[far] = self._routes(*ports)
        out[far, : routes.shape[1]] = routes
        return out, latency

    def _routes(self, src: Ints32, dst: Ints32) -> tuple[Ints32, Floats]:
        """Return routes between ports, (n, diameter) links padded with -1, and their
        latency, (n,) s. A link that this run does not have is -1; its latency counts.
        """
        routes = self.forwarding.routes(src, dst)
        return self._index_of_link.take(routes), self.forwarding.latencies(routes)

    def to_run_links(self, cables: Ints) -> Ints32:
        """Return (n,) the indices among the links of this run of links of the network,
        padded with -1; -1 where the run does not use them.
        """
        return self._index_of_link[cables]

    @property
    def every_port(self) -> Ints32:
        """The ports of the hosts with ranks, and of the file system, ascending."""
        return np.unique(np.append(self._endpoint, self._pfs_endpoint)).astype(np.int32)

    @cached_property
    def rails(self) -> Ints32:
        """(M,) the HCA of each rank; HCAs of a scale-up domain count on from host to
        host.
        """
        return self._domains.place[self.host_of] * self.cluster.host.hcas + self.rail_of

    @property
    def ports(self) -> Ints32:
        """The ports of all ranks, each once, ascending; not HCAs that no rank uses."""
        return np.unique(self._port_of)

    def port_routes(self, src: Ints32, dst: Ints32) -> tuple[Ints32, Floats]:
        """Return routes between ports (n,) of any hosts, (n, width) links, and their
        latency, (n,) s. The -1 of padding stands also for links that the run lacks.
        """
        routes, latency = self._routes(src, dst)
        out = np.full((len(src), self.width), -1, np.int32)
        out[:, : routes.shape[1]] = routes
        return out, latency

    def ports_of(self, hosts: Sequence[str]) -> Ints32:
        """(hosts, HCAs) ports of hosts by name, as many as a host has HCAs."""
        hcas = self.cluster.host.hcas
        return np.array(
            [self.forwarding.endpoints(name)[:hcas] for name in hosts], np.int32
        )

    def write_routes(self, hosts: Sequence[str]) -> tuple[Ints32, Floats, Floats]:
        """Return routes of writes to the PFS, one from each HCA of hosts by name, host
        by host; they take the ports of the servers in turn.

        Returns:
            (n, width) links, padded with -1; (n,) s of latency; and (n,) bytes/s that
            the client of a host leaves each: inf if it is a link of the route, or none.
        """
        ports = self.ports_of(hosts).ravel()
        servers = self._pfs_endpoint[np.arange(len(ports)) % len(self._pfs_endpoint)]
        out, latency = self._join_routes(
            self._write_links, *self._routes(ports, servers)
        )
        client_share = np.full(len(ports), np.inf)
        client = self.cluster.parallel_file_system.client_bandwidth
        if client is not None and self.pfs_client is not None:
            hcas = self.cluster.host.hcas
            host_index = {name: k for k, name in enumerate(self.hosts)}
            ends = (out >= 0).sum(axis=1)
            for k, name in enumerate(np.repeat(list(hosts), hcas).tolist()):
                if name in host_index:
                    out[k, ends[k]] = self.pfs_client[host_index[name]]
                else:
                    client_share[k] = client(self.num_hosts) / hcas
        return out, latency, client_share

    @property
    def host_ports(self) -> Ints32:
        """The ports of all HCAs of the hosts with ranks, ascending."""
        return np.unique(self._endpoint)

    def reachable(self) -> Flags:
        """(cables,) True for those that messages between ranks may take, whatever the
        routing chooses.
        """
        return reachable_links(self.forwarding, self.ports)[self.cables]

    def with_fresh_routes(self) -> Resources:
        """Return a copy with routes as if none had been asked for yet."""
        resources = copy(self)
        resources.forwarding = self.forwarding.without_history()
        return resources

    def gradient(self, src: Ints32, dst: Ints32, rail: Ints32) -> Ints32:
        """Return (n, width) routes of gradient flows between GPUs, padded with -1.

        NVLink inside a host; NVLink and what joins the GPUs inside a scale-up domain;
        else PCIe slot, HCA ``rail``, network, HCA, PCIe slot. Ring k leaves and enters
        a host through the PCIe slot next to HCA k, whichever GPU is its last (as NCCL
        orders its rings). The HCAs of a domain count on from host to host; beyond its
        last host they begin again at its first.
        """
        host = self.cluster.host
        out = np.full((len(src), self.width), -1, np.int32)
        inside = self.host_of[src] == self.host_of[dst]
        out[inside, 0] = self.nvlink[
            self.host_of[src[inside]], self.gpu_of[src[inside]]
        ]
        near, far = self._split_pairs(src, dst)
        out[near, 0] = self.nvlink[self.host_of[src[near]], self.gpu_of[src[near]]]
        out[near, 1:3] = self._scale_up(src[near], dst[near])
        host_number, hca = np.divmod(rail[far], host.hcas)
        a, b = (
            self._domains.member(self.domain_of[end_ranks[far]], host_number)
            for end_ranks in (src, dst)
        )
        slot = hca * host.pcie_slots // host.hcas
        routes, _ = self._routes(self._endpoint[a, hca], self._endpoint[b, hca])
        out[far, 0] = self.pcie_out[a, slot]
        out[far, 1 : 1 + routes.shape[1]] = routes
        ends = 1 + (routes >= 0).sum(axis=1)
        out[far, ends] = self.pcie_in[b, slot]
        return out

    def _split_pairs(self, src: Ints, dst: Ints) -> tuple[Any, Any]:
        """Return the indices of the pairs of ranks on two hosts of one scale-up domain,
        and of those in two domains; pairs in one host are in neither.
        """
        within = self.domain_of[src] == self.domain_of[dst]
        near = within & (self.host_of[src] != self.host_of[dst])
        return np.flatnonzero(near), np.flatnonzero(~within)

    def _scale_up(self, src: Ints, dst: Ints) -> Ints32:
        """Return (n, 2) links: out of the GPU of ``src``, and into that of ``dst``, on
        hosts of one scale-up domain.
        """
        out = np.empty((len(src), 2), np.int32)
        if len(src):  # else there may be no such links
            out[:, 0] = self.scale_up_out[self.host_of[src], self.gpu_of[src]]
            out[:, 1] = self.scale_up_in[self.host_of[dst], self.gpu_of[dst]]
        return out

    def pfs_read(self, stored: bool = False) -> tuple[Ints32, Floats]:
        """Routes of reads from the PFS to every rank, (M, width) int32, and the latency
        of the links on them, (M,) s. They cross the cache tier, too, with ``stored``:
        for reads that the tier keeps. The opening of files is not among the links.
        """
        devices: list[Any] = [self.pfs_bandwidth, *self._client_links]
        return self._from_servers(
            [*devices, self.tier_bandwidth] if stored else devices
        )

    def tier_read(self, cables: bool) -> tuple[Ints32, Floats]:
        """Return the routes and latencies of reads from the cache tier to every rank,
        as `pfs_read` does. The tier stands beside the servers of the PFS; without
        ``cables`` hosts reach it as an object store: (M, 2) links, and latencies of 0.
        """
        devices = [self.tier_bandwidth, self.tier_host[self.host_of]]
        return self._from_servers(devices, cables)

    def store_read(self, stored: bool = False) -> Ints32:
        """Routes of reads from the object store to every rank, (M, devices) int32: they
        cross no cable, since the hosts reach it by a network of their own. With
        ``stored`` they cross the cache tier, too.
        """
        devices: list[Any] = [self.store_bandwidth, self.store_host[self.host_of]]
        devices += [self.tier_bandwidth] if stored else []
        return self._from_servers(devices, cables=False)[0]

    def pfs_write_routes(self) -> tuple[Ints32, Floats]:
        """Return the routes and latencies of every rank's writes to the PFS: `pfs_read`
        reversed. Writes share the servers' bandwidth with reads, unless the servers
        write faster than they read.
        """
        servers, ports = self._pfs_ports()
        return self._join_routes(
            [*self._write_links, *self._client_links], *self._routes(ports, servers)
        )

    @property
    def _write_links(self) -> list[int]:
        """The links of the servers that all writes share."""
        if self.pfs_write is None:
            return [self.pfs_bandwidth]
        capacity = self.links.capacity
        faster = capacity[self.pfs_write] > capacity[self.pfs_bandwidth]
        return [self.pfs_write] if faster else [self.pfs_write, self.pfs_bandwidth]

    @property
    def _client_links(self) -> list[Ints32]:
        """[(M,) the link by which each rank's host reaches the PFS]; or [] without."""
        return [] if self.pfs_client is None else [self.pfs_client[self.host_of]]

    def _pfs_ports(self) -> tuple[Ints32, Ints32]:
        """Return (M,) each rank's port of the servers, and (M,) that of its HCA."""
        ranks = np.arange(self.world_size)
        servers = self._pfs_endpoint[ranks % len(self._pfs_endpoint)]
        return servers, self._port_of

    def _from_servers(
        self, devices: list[Any], cables: bool = True
    ) -> tuple[Ints32, Floats]:
        """Return routes to every rank, (M, width), and their latency, (M,) s: over
        ``devices``, each a link or (M,) links, then over cables from the servers of the
        PFS; without ``cables`` (M, devices), and latencies of 0.
        """
        if cables:
            return self._join_routes(devices, *self._routes(*self._pfs_ports()))
        out, latency = self._join_routes(
            devices, np.empty((self.world_size, 0), np.int32)
        )
        return out[:, : len(devices)], latency

    def _join_routes(
        self, devices: list[Any], cables: Ints32, latency: Floats | None = None
    ) -> tuple[Ints32, Floats]:
        """Return routes over ``devices``, then over ``cables``, (n, hops), padded with
        -1 to (n, width); and ``latency``, (n,) s, or zeros if it is None.
        """
        out = np.full((len(cables), self.width), -1, np.int32)
        first = len(devices)
        for place, link in enumerate(devices):
            out[:, place] = link
        out[:, first : first + cables.shape[1]] = cables
        latency = np.zeros(len(cables)) if latency is None else latency
        return out, latency

    @property
    def servers(self) -> list[int]:
        """The links of the servers of file system, object store and cache tier, which
        all ranks share: bytes read, and opens or requests; not ``pfs_write``.
        """
        links = [self.pfs_bandwidth, self.pfs_open]
        if self.cluster.object_store is not None:
            links += [self.store_bandwidth, self.store_requests]
        if self.cluster.cache_tier is not None:
            links += [self.tier_bandwidth, self.tier_open]
        return links

"""The network of a cluster as it is built once: cables, routes, racks, the file system attached."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from simshuffle.errors import TopologyError
from simshuffle.plan.placement import placed
from simshuffle.routing import Fabric, Router, RoutingRule, routing_by_levels, routing_by_topology
from simshuffle.scenario.checks import cluster_problems
from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.storage import ParallelFileSystem
from simshuffle.topology.cabling import Cabling
from simshuffle.topology.graph import checked

PFS = "pfs"


@dataclass(frozen=True)
class Wiring:
    """The network of a cluster, its file system attached."""

    cabling: Cabling  # its nodes and cables
    fabric: Fabric  # its ports and links
    routing: RoutingRule  # the routing of its topology
    # for every switch to which hosts are attached the number of what is joined below the topmost
    # switches; all the same with one level
    rack_of: dict[str, int]
    _routers: dict[str, Router] = field(default_factory=dict, repr=False)

    def router(self, rule: RoutingRule | None, rng: np.random.Generator) -> Router:
        """The routes by a rule, or by that of the topology; ``rng`` is for what is drawn.

        Raises:
            TopologyError: the routing is not known for this network.
        """
        rule = rule or self.routing
        seed = int(rng.integers(2**63)) if rule.drawn else 0
        if rule.remembers:
            return rule.router(self.fabric, seed)
        key = f"{seed} {rule.model_dump_json()}"
        if key not in self._routers:
            self._routers.clear()
            self._routers[key] = rule.router(self.fabric, seed)
        return self._routers[key]


@dataclass(frozen=True)
class _Request:
    """A network and the file system attached to it; equal for equal networks."""

    key: str  # of the topology
    faults: tuple[tuple[str, float], ...]
    link: tuple[float, float, int]
    cluster: Cluster = field(compare=False)


def wiring(cluster: Cluster) -> Wiring:
    """The network of a cluster. It is made once in a process for runs on the same cluster.

    Raises:
        TopologyError: the graph has loose parts, no host, or a link without a positive bandwidth.
    """
    if problems := cluster_problems(cluster, world_size=1):
        raise TopologyError(problems, f"topology of {cluster.name}")
    pfs: ParallelFileSystem = cluster.parallel_file_system
    link = (pfs.link_bandwidth, pfs.link_latency, pfs.links_per_switch)
    faults = tuple((cluster.faults or {}).items())
    return _wiring(_Request(cluster.topology.key, faults, link, cluster))


@lru_cache(maxsize=2)
def _wiring(request: _Request) -> Wiring:
    cluster = request.cluster
    problems, cabling = checked(cluster.sketch(), "cluster.topology")
    if problems or cabling is None:
        raise TopologyError(problems, f"topology of {cluster.name}")
    if "storage" not in cabling.kinds:
        bandwidth, latency, links = request.link
        cabling = cabling.with_storage(PFS, bandwidth=bandwidth, latency=latency, links=links)
    fabric = Fabric(cabling)
    known = None if cluster.is_cut else routing_by_topology(cluster.topology)
    return Wiring(cabling, fabric, known or routing_by_levels(fabric), racks(cabling))


def routing(cluster: Cluster) -> RoutingRule:
    """The routing that runs on a cluster use: the one that it names, or that of its topology;
    raises as `wiring`."""
    if cluster.routing is None and cluster.is_cut:
        return wiring(cluster).routing
    known = cluster.routing or routing_by_topology(cluster.topology)
    return known or wiring(cluster).routing


def check_machine(cluster: Cluster) -> None:
    """See that a routing and hosts that a cluster names are known for its network, which is built
    only if there are any.

    Raises:
        TopologyError: as `wiring`, `Wiring.router` and `placed`.
    """
    if cluster.routing is not None:
        wiring(cluster).router(cluster.routing, np.random.default_rng(0))
    if cluster.named_hosts is not None:
        placed(cluster, wiring(cluster).fabric, 1, np.random.default_rng(0))


def racks(cabling: Cabling) -> dict[str, int]:
    """See `Wiring`."""
    depth = cabling.depth
    storage = np.array([tier == "storage" for tier in cabling.tiers])
    top = depth[~storage].max()
    lower = (depth >= 0) & ~storage & ((depth < top) | (top == 0))
    lower[cabling.of_kind("host")] = True
    part = cabling.parts(lower)
    leaves = np.flatnonzero((depth == 0) & lower)
    return dict(zip([cabling.names[i] for i in leaves], part[leaves].tolist(), strict=True))

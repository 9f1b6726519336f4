"""The network of a cluster as it is built once, the hosts that ranks fill, and their
domains.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from simshuffle.errors import Problem, TopologyError, list_first
from simshuffle.fabric.routing import (
    Fabric,
    Router,
    RoutingRule,
    routing_by_levels,
    routing_by_topology,
)
from simshuffle.job.scenario.checks import cluster_problems
from simshuffle.job.scenario.cluster import PLACEMENTS, Cluster
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.record import CacheArgument


def number_by_occurrence(names: Sequence[Any]) -> Ints32:
    """(n,) number of each name, equal for equal names: from 0 in the order in which
    they first occur.
    """
    number: dict[Any, int] = {}
    return np.array([number.setdefault(name, len(number)) for name in names], np.int32)


class Domains:
    """The scale-up domains that hosts form, numbered as the hosts come to them.

    Args:
        hosts: names, in the order in which ranks fill them.
        all_hosts: names of all hosts of the topology, in its order.
        hosts_per_domain: consecutive hosts of the topology that form a domain.

    Attributes:
        of_host: (hosts,) the index of each host's domain.
        place: (hosts,) the place of each, from 0, among those of ``hosts`` in its
            domain.
        count: of domains that have any of ``hosts``.
    """

    def __init__(
        self, hosts: Sequence[str], all_hosts: Sequence[str], hosts_per_domain: int
    ) -> None:
        place = {name: number for number, name in enumerate(all_hosts)}
        self.of_host = number_by_occurrence(
            [place[name] // hosts_per_domain for name in hosts]
        )
        self._size = np.bincount(self.of_host)
        self._first = np.cumsum(self._size) - self._size
        self._together = np.argsort(self.of_host, kind="stable")
        self.place = np.empty_like(self.of_host)
        self.place[self._together] = np.arange(len(self.place)) - np.repeat(
            self._first, self._size
        )
        self.count = len(self._size)

    def member(self, domain: Ints32, place: Ints32) -> Ints64:
        """(n,) indices of the hosts at ``place`` (n,) of ``domain`` (n,); beyond its
        last host again from its first one on.
        """
        return self._together[self._first[domain] + place % self._size[domain]]


def names_of(fabric: Fabric, kind: str) -> list[str]:
    """The names of the nodes of a kind, such as 'host' or 'storage', in the order of
    the network.
    """
    return [
        fabric.cabling.names[node]
        for node in fabric.cabling.nodes_of_kind(kind).tolist()
    ]


def choose_hosts(
    cluster: Cluster,
    fabric: Fabric,
    count: int,
    rng: np.random.Generator,
    used_hosts: Collection[str] = (),
) -> list[str]:
    """Return the names of ``count`` hosts in the order in which ranks fill them, as the
    cluster's ``placement`` says, but none of ``used_hosts``; ``rng`` draws the hosts of
    a scattered placement, which are filled in the order of the network. Where there
    are fewer, all are returned.

    Raises:
        TopologyError: the placement names a host that the network does not have.
    """
    names = names_of(fabric, "host")
    named_hosts = cluster.named_hosts
    if named_hosts is not None:
        known_hosts = set(names)
        if unknown := [name for name in named_hosts if name not in known_hosts]:
            ends = dict.fromkeys((names[0], names[-1]))
            rule = f"must be {', '.join(PLACEMENTS)}, or name hosts of the topology"
            remedy = f"Its {len(names)} hosts are called {' to '.join(ends)}."
            problem = Problem("cluster.placement", rule, list_first(unknown), remedy)
            raise TopologyError(problem, "placement")
        return [name for name in named_hosts if name not in used_hosts][:count]
    names = [name for name in names if name not in used_hosts] if used_hosts else names
    if cluster.placement == "scattered":
        return [names[i] for i in np.sort(rng.permutation(len(names))[:count])]
    names = names[:count]
    return (
        _order_by_turn(names, fabric) if cluster.placement == "round_robin" else names
    )


def _order_by_turn(names: list[str], fabric: Fabric) -> list[str]:
    """The hosts in another order: the first one on each leaf switch, then the second
    one, and so on, of hosts with several HCAs that of the first.
    """
    hosts_on_leaf: dict[int, int] = {}
    turn = []
    for name in names:
        leaf = int(fabric.switch_of_port[fabric.endpoints(name)[0]])
        turn.append(hosts_on_leaf.get(leaf, 0))
        hosts_on_leaf[leaf] = turn[-1] + 1
    return [names[i] for i in np.argsort(turn, kind="stable")]


PFS = "pfs"
"""Name of the file system that is added to a topology without storage."""


@dataclass(frozen=True)
class Wiring:
    """The network of a cluster, its file system attached."""

    fabric: Fabric  # its cables, ports and links
    routing: RoutingRule  # the routing of its topology
    # by the name of each switch below the topmost ones, the number of its rack: what is joined
    # below the topmost switches. All the same with one level; not always consecutive
    rack_of: dict[str, int]
    _routers: dict[str, Router] = field(default_factory=dict, repr=False)

    def router(self, rule: RoutingRule | None, rng: np.random.Generator) -> Router:
        """The router of a rule, or of the topology's routing if it is None.

        A rule that draws takes one number from ``rng``; others take none. The last
        router is kept for the next call, unless it remembers what it gave.

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


def wiring(cluster: Cluster) -> Wiring:
    """The network of a cluster, with a file system if the topology has no storage.

    The last two are kept in a process, for runs on the same network.

    Raises:
        TopologyError: the topology cannot be used, or does not fit the cluster's hosts.
    """
    if problems := cluster_problems(cluster, world_size=1):
        raise TopologyError(problems, f"topology of {cluster.name}")
    pfs = cluster.parallel_file_system
    link = (pfs.link_bandwidth, pfs.link_latency, pfs.links_per_switch)
    return _build_wiring(cluster.keyed_network, link)


@lru_cache(maxsize=2)
def _build_wiring(
    network: CacheArgument[Cluster], link: tuple[float, float, int]
) -> Wiring:
    """Build what `wiring` returns, kept for the last two networks.

    ``link`` is bandwidth, latency and number of the file system's cables, which are
    added if the topology has no storage.
    """
    cluster = network.argument
    cabling = cluster.cabling()
    if "storage" not in cabling.kinds:
        bandwidth, latency, links = link
        cabling = cabling.with_storage(
            PFS, bandwidth=bandwidth, latency=latency, links=links
        )
    fabric = Fabric(cabling)
    rule = None if cluster.is_cut else routing_by_topology(cluster.topology)
    return Wiring(fabric, rule or routing_by_levels(fabric), _racks(fabric))


def routing_of(cluster: Cluster) -> RoutingRule:
    """The routing of runs on a cluster: its own, or that of its topology.

    The network is built only where the topology alone does not decide its routing;
    raises as `wiring` then.
    """
    if cluster.routing is None and cluster.is_cut:
        return wiring(cluster).routing
    rule = cluster.routing or routing_by_topology(cluster.topology)
    return rule or wiring(cluster).routing


def check_machine(cluster: Cluster) -> None:
    """Check that the routing, the hosts of a placement and the names of hosts that a
    cluster gives fit its network. If it gives none of them, nothing is checked.

    Raises:
        TopologyError: they do not, or the network cannot be used.
    """
    if cluster.routing is not None:
        wiring(cluster).router(cluster.routing, np.random.default_rng(0))
    if cluster.named_hosts is not None or cluster.host_names is not None:
        choose_hosts(cluster, wiring(cluster).fabric, 1, np.random.default_rng(0))


def _racks(fabric: Fabric) -> dict[str, int]:
    """Return the number of the rack of each switch below the topmost ones, or of each
    switch where there is one level, by the switch's name.
    """
    cabling = fabric.cabling
    depth = fabric.cabling.depth
    storage = np.array([tier == "storage" for tier in cabling.tiers])
    top = depth[~storage].max()
    lower = (depth >= 0) & ~storage & ((depth < top) | (top == 0))
    lower[cabling.nodes_of_kind("host")] = True
    part = cabling.components(lower)
    switches = np.flatnonzero((depth >= 0) & lower)
    return dict(
        zip([cabling.names[i] for i in switches], part[switches].tolist(), strict=True)
    )

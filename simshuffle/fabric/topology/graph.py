"""The graph that topologies add their nodes and links to, and the checks on it.

The graph is an undirected networkx multigraph with units, or a `Sketch` of one.

Node attributes: ``kind`` ('host', 'switch', 'storage', or 'other' for what is attached
and takes no part), ``tier`` (name of its level, such as 'leaf'; an 'other' node of the
tier 'host' stands where hosts stand, and levels are counted from it too), ``latency``
(s, crossing it); of a switch maybe ``coordinates``. Graph attribute: ``height``, the
number of switch levels less one, if the network is a tree in which all routes go up and
then down. Edge attributes: ``bandwidth`` (bytes/s in each direction), ``latency`` (s,
the cable); maybe ``ports``, their numbers at both ends. Parallel links are parallel
edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from simshuffle.errors import Problem
from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.spec.late import networkx as nx

Graph = Any


class Sketch:
    """A network that is only added to and then read, with the methods of
    `networkx.MultiGraph` that this needs. A multigraph takes longer and more memory,
    and has to be imported.

    Args:
        attributes: of the graph; ``height`` as in the head of this module.
    """

    def __init__(self, **attributes: Any) -> None:
        self.graph = attributes
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[tuple[str, str, dict[str, Any]]] = []
        self._last_attributes: dict[str, Any] = {}

    def add_node(self, name: str, **data: Any) -> None:
        """Add a node with its attributes, or replace the node that has its name."""
        self._nodes[name] = data

    def add_edge(self, a: str, b: str, **data: Any) -> None:
        """Add a link between two nodes that were added, which is not checked. Links in
        a row with equal attributes share one record of them.
        """
        if data != self._last_attributes:
            self._last_attributes = data
        self._edges.append((a, b, self._last_attributes))

    def nodes(self, *, data: bool) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the name and the attributes of every node, in the order of adding;
        ``data`` is not read.
        """
        return self._nodes.items()

    def edges(self, *, data: bool) -> Iterable[tuple[str, str, dict[str, Any]]]:
        """Return the two node names and the attributes of every link, in the order of
        adding; ``data`` is not read.
        """
        return self._edges

    def rename_hosts(self, names: Sequence[str]) -> None:
        """Rename the hosts, in their order.

        Args:
            names: as many as there are hosts, none of them the name of another node.

        Raises:
            ValueError: there are more or fewer names than hosts.
        """
        hosts = [name for name, data in self._nodes.items() if data["kind"] == "host"]
        new_names = dict(zip(hosts, names, strict=True))
        self._nodes = {
            new_names.get(name, name): data for name, data in self._nodes.items()
        }
        self._edges = [
            (new_names.get(a, a), new_names.get(b, b), data)
            for a, b, data in self._edges
        ]

    def __contains__(self, name: str) -> bool:
        return name in self._nodes


def new_graph(**attributes: Any) -> Graph:
    """Return a networkx multigraph without nodes.

    Args:
        attributes: of the graph; ``height`` as in the head of this module.
    """
    return nx.MultiGraph(**attributes)


def add_host(graph: Graph, name: str) -> None:
    """Add a host without links, of tier 'host'; crossing it takes no time."""
    graph.add_node(name, kind="host", tier="host", latency=0.0)


def add_switch(
    graph: Graph,
    name: str,
    tier: str,
    latency: float,
    coordinates: tuple[int, ...] = (),
) -> None:
    """Add a switch without links.

    Args:
        graph: the network.
        name: of the switch.
        tier: name of its level.
        latency: of crossing it, s.
        coordinates: position of the switch, for routings that need one: in a torus its
            coordinate in every dimension, in a dragonfly first its group. Empty for
            none.
    """
    optional = {"coordinates": coordinates} if coordinates else {}
    graph.add_node(name, kind="switch", tier=tier, latency=latency, **optional)


def connect(
    graph: Graph, a: str, b: str, *, bandwidth: float, latency: float, links: int = 1
) -> None:
    """Add ``links`` parallel links of ``bandwidth`` (bytes/s in each direction) and
    cable ``latency`` (s).
    """
    for _ in range(links):
        graph.add_edge(a, b, bandwidth=bandwidth, latency=latency)


def graph_problems(graph: Graph, path: str) -> list[Problem]:
    """Return all problems that keep ``graph`` from being a network: no host, a host
    without a switch, loose parts, unknown kinds, bandwidths that are not positive,
    latencies below 0, values that are no finite floats, and links to the node itself.

    An empty list means that there is none. Problems of the whole network are found
    only if no node or link is wrong by itself.

    Args:
        graph: the network.
        path: prefix of the paths of the problems, such as the key of the topology.
    """
    return check_graph(graph, path)[0]


def check_graph(graph: Graph, path: str) -> tuple[list[Problem], Cabling | None]:
    """Return the problems of ``graph``, see `graph_problems`, and its cabling; None if
    there is no host, or a node or link is wrong by itself.
    """
    if all(data.get("kind") != "host" for _, data in graph.nodes(data=True)):
        rule = "a topology needs at least one node with kind 'host'"
        return [Problem(path, rule, "none", "Mark the hosts with kind: host.")], None
    problems = [
        *(
            problem
            for node, data in graph.nodes(data=True)
            for problem in _node_problems(node, data, path)
        ),
        *(
            problem
            for a, b, data in _distinct_links(graph)
            for problem in _link_problems(a, b, data, path)
        ),
    ]
    if problems:
        return problems, None
    cabling = Cabling.from_graph(graph)
    return _component_problems(cabling, path) + _host_problems(cabling, path), cabling


def _distinct_links(graph: Graph) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Iterate over the links of a network that may be wrong: links that share the valid
    record of the link before them are left out. So links of a `Sketch` that repeat are
    checked once.
    """
    previous = None
    is_valid = False
    for a, b, data in graph.edges(data=True):
        if data is not previous:
            previous = data
            is_valid = not _link_problems("a", "b", data, "")
        if a == b or not is_valid:
            yield a, b, data


def _node_problems(node: str, data: dict[str, Any], path: str) -> list[Problem]:
    """Return the problems of the kind and the latency of one node."""
    problems = []
    kind = data.get("kind")
    latency = data.get("latency", 0.0)
    if not isinstance(kind, str) or kind not in {"host", "switch", "storage", "other"}:
        key = f"{path}.nodes.{node}.kind"
        rule = "must be 'host', 'switch', 'storage' or 'other'"
        problems.append(Problem(key, rule, repr(kind), "Set the node's kind."))
    if not (isinstance(latency, float) and 0 <= latency < math.inf):
        key = f"{path}.nodes.{node}.latency"
        rule = "the latency of a switch must be at least 0"
        problems.append(
            Problem(key, rule, repr(latency), "Write for example latency: '90 ns'.")
        )
    return problems


def _link_problems(a: str, b: str, data: dict[str, Any], path: str) -> list[Problem]:
    """Return the problems of the ends, the bandwidth and the latency of one link."""
    where = f"{path}.links.{a}-{b}"
    problems = []
    if a == b:
        rule = "a link must join two nodes"
        problems.append(Problem(where, rule, "a link to itself", "Remove it."))
    for attribute, comparison in (
        ("bandwidth", "greater than"),
        ("latency", "of at least"),
    ):
        value = data.get(attribute)
        is_zero_latency = value == 0 and attribute == "latency"
        if not (isinstance(value, float) and (is_zero_latency or 0 < value < math.inf)):
            rule = f"every link needs a {attribute} {comparison} 0, with a unit"
            remedy = "Write for example bandwidth: '12.5 GB/s'."
            problems.append(Problem(f"{where}.{attribute}", rule, repr(value), remedy))
    return problems


def _component_problems(cabling: Cabling, path: str) -> list[Problem]:
    """Return the problem of a network in several components, or of groups of switches
    that only hosts, other nodes or switches of tier 'storage' join; an empty list if
    there is none.
    """
    component = cabling.components(np.ones(len(cabling.names), bool))
    if component.any():
        members: dict[int, list[str]] = {}
        for label, name in zip(component.tolist(), cabling.names, strict=True):
            members.setdefault(label, []).append(name)
        components = sorted(
            map(sorted, members.values()),
            key=lambda component: (-len(component), component),
        )
        cut_off_nodes = ", ".join(
            node for component in components[1:] for node in component[:3]
        )
        description = f"{len(components)} separate parts; cut off: {cut_off_nodes}"
        rule = "every host must reach every other"
        return [Problem(path, rule, description, "Add the missing links.")]
    # no route leads through the switch of a storage system (`SwitchGraph.is_transit`)
    switches = cabling.nodes_of_kind("switch")
    switches = switches[np.array(cabling.tiers)[switches] != "storage"]
    is_transit = np.isin(np.arange(len(cabling.names)), switches)
    num_planes = len(np.unique(cabling.components(is_transit)[switches]))
    if num_planes <= 1:
        return []
    rule = (
        "every switch must reach every other without passing through a host or a"
        " switch of tier 'storage'"
    )
    description = f"{num_planes} separate groups of switches"
    return [Problem(path, rule, description, "Link the groups, or leave one out.")]


def _host_problems(cabling: Cabling, path: str) -> list[Problem]:
    """Return a problem for each host without a link to a switch, in order."""
    rule = "every host must have a link to a switch"
    kinds = np.array(cabling.kinds)
    attached = cabling.ends[(kinds[cabling.ends] == "switch").any(axis=1)]
    return [
        Problem(
            f"{path}.nodes.{cabling.names[host]}",
            rule,
            "none",
            "Connect it to a switch.",
        )
        for host in np.setdiff1d(cabling.nodes_of_kind("host"), attached).tolist()
    ]

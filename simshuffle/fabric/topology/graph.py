"""What every topology adds its nodes and links to: an undirected networkx multigraph with units, or
a `Sketch` of one; and the checks on it.

Node attributes: ``kind`` ('host', 'switch', 'storage', or 'other' for what is attached and takes no
part), ``tier`` (name of its level, such as 'leaf'; an 'other' node of the tier 'host' stands where
hosts stand, and levels are counted from it too), ``latency`` (s, crossing it); of a switch maybe
``coordinates``. Graph attribute: ``height``, the number of switch levels less
one, if the network is a tree in which all routes go up and then down. Edge attributes:
``bandwidth`` (bytes/s in each direction), ``latency`` (s, the cable); maybe ``ports``, their
numbers at both ends. Parallel links are parallel edges.
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
    """A network that is only added to and then read, as `networkx.MultiGraph` is; that takes longer
    and more memory, and has to be imported.

    Args:
        attributes: of the graph; ``height`` as above.
    """

    def __init__(self, **attributes: Any) -> None:
        self.graph = attributes
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[tuple[str, str, dict[str, Any]]] = []
        self._last: dict[str, Any] = {}

    def add_node(self, name: str, **data: Any) -> None:
        """Add a node."""
        self._nodes[name] = data

    def add_edge(self, a: str, b: str, **data: Any) -> None:
        """Add a link between two nodes that are there. Links that are alike and follow one another
        share one record of their values."""
        if data != self._last:
            self._last = data
        self._edges.append((a, b, self._last))

    def nodes(self, *, data: bool) -> Iterable[tuple[str, dict[str, Any]]]:
        """All nodes, each with its attributes."""
        return self._nodes.items()

    def edges(self, *, data: bool) -> Iterable[tuple[str, str, dict[str, Any]]]:
        """All links, each with its attributes."""
        return self._edges

    def call_hosts(self, names: Sequence[str]) -> None:
        """Give the hosts other names, in their order: as many as there are hosts, none of them
        that of another node."""
        hosts = [name for name, data in self._nodes.items() if data["kind"] == "host"]
        new = dict(zip(hosts, names, strict=True))
        self._nodes = {new.get(name, name): data for name, data in self._nodes.items()}
        self._edges = [(new.get(a, a), new.get(b, b), data) for a, b, data in self._edges]

    def __contains__(self, name: str) -> bool:
        return name in self._nodes


def new_graph(**attributes: Any) -> Graph:
    """A network without nodes; ``height`` as above."""
    return nx.MultiGraph(**attributes)


def add_host(graph: Graph, name: str) -> None:
    """Add a host."""
    graph.add_node(name, kind="host", tier="host", latency=0.0)


def add_switch(
    graph: Graph, name: str, tier: str, latency: float, coordinates: tuple[int, ...] = ()
) -> None:
    """Add a switch of a named tier; ``latency`` in s. ``coordinates`` say where it stands, for
    routings that ask for that: in a torus its place in every dimension, in a dragonfly first its
    group."""
    where = {"coordinates": coordinates} if coordinates else {}
    graph.add_node(name, kind="switch", tier=tier, latency=latency, **where)


def connect(
    graph: Graph, a: str, b: str, *, bandwidth: float, latency: float, links: int = 1
) -> None:
    """Add ``links`` parallel links of ``bandwidth`` (bytes/s in each direction) and cable
    ``latency`` (s)."""
    for _ in range(links):
        graph.add_edge(a, b, bandwidth=bandwidth, latency=latency)


def graph_problems(graph: Graph, path: str) -> list[Problem]:
    """Everything that keeps ``graph`` from being a network: no host, loose parts, numbers that are
    not positive."""
    return checked(graph, path)[0]


def checked(graph: Graph, path: str) -> tuple[list[Problem], Cabling | None]:
    """`graph_problems`, and the cabling, if that can be made."""
    if all(data.get("kind") != "host" for _, data in graph.nodes(data=True)):
        rule = "a topology needs at least one node with kind 'host'"
        return [Problem(path, rule, "none", "Mark the hosts with kind: host.")], None
    problems = [
        *(p for node, data in graph.nodes(data=True) for p in _node_problems(node, data, path)),
        *(p for a, b, data in _unlike(graph) for p in _link_problems(a, b, data, path)),
    ]
    if problems:
        return problems, None
    cabling = Cabling.of(graph)
    return _part_problems(cabling, path) + _host_problems(cabling, path), cabling


def _unlike(graph: Graph) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The links of a network, without those whose record is that of the one before."""
    last, fine = None, False
    for a, b, data in graph.edges(data=True):
        if data is not last:
            last, fine = data, not _link_problems("a", "b", data, "")
        if a == b or not fine:
            yield a, b, data


def _node_problems(node: str, data: dict[str, Any], path: str) -> list[Problem]:
    problems = []
    kind, latency = data.get("kind"), data.get("latency", 0.0)
    if not isinstance(kind, str) or kind not in {"host", "switch", "storage", "other"}:
        where = f"{path}.nodes.{node}.kind"
        rule = "must be 'host', 'switch', 'storage' or 'other'"
        problems.append(Problem(where, rule, repr(kind), "Set the node's kind."))
    if not (isinstance(latency, float) and 0 <= latency < math.inf):
        where = f"{path}.nodes.{node}.latency"
        rule = "the latency of a switch must be at least 0"
        problems.append(Problem(where, rule, repr(latency), "Write for example latency: '90 ns'."))
    return problems


def _link_problems(a: str, b: str, data: dict[str, Any], path: str) -> list[Problem]:
    where = f"{path}.links.{a}-{b}"
    problems = []
    if a == b:
        rule = "a link must join two nodes"
        problems.append(Problem(where, rule, "a link to itself", "Remove it."))
    for key, least in (("bandwidth", "greater than"), ("latency", "of at least")):
        value = data.get(key)
        zero = value == 0 and key == "latency"
        if not (isinstance(value, float) and (zero or 0 < value < math.inf)):
            rule = f"every link needs a {key} {least} 0, with a unit"
            remedy = "Write for example bandwidth: '12.5 GB/s'."
            problems.append(Problem(f"{where}.{key}", rule, repr(value), remedy))
    return problems


def _part_problems(cabling: Cabling, path: str) -> list[Problem]:
    """Loose parts; or, in one part, groups of switches that only a host joins."""
    part = cabling.parts(np.ones(len(cabling.names), bool))
    if part.any():
        members: dict[int, list[str]] = {}
        for number, name in zip(part.tolist(), cabling.names, strict=True):
            members.setdefault(number, []).append(name)
        parts = sorted(map(sorted, members.values()), key=lambda part: (-len(part), part))
        loose = ", ".join(node for part in parts[1:] for node in part[:3])
        found = f"{len(parts)} separate parts; cut off: {loose}"
        rule = "every host must reach every other"
        return [Problem(path, rule, found, "Add the missing links.")]
    switches = cabling.of_kind("switch")
    among = np.isin(np.arange(len(cabling.names)), switches)
    planes = len(np.unique(cabling.parts(among)[switches]))
    if planes <= 1:
        return []
    rule = "every switch must reach every other without passing through a host"
    found = f"{planes} separate groups of switches"
    return [Problem(path, rule, found, "Link the groups, or leave one out.")]


def _host_problems(cabling: Cabling, path: str) -> list[Problem]:
    """Hosts without a switch."""
    rule = "every host must have a link to a switch"
    kinds = np.array(cabling.kinds)
    attached = cabling.ends[(kinds[cabling.ends] == "switch").any(axis=1)]
    return [
        Problem(f"{path}.nodes.{cabling.names[host]}", rule, "none", "Connect it to a switch.")
        for host in np.setdiff1d(cabling.of_kind("host"), attached).tolist()
    ]

"""What every topology builds: an undirected networkx multigraph with units, and the checks on it.

Node attributes: ``kind`` ('host', 'switch' or 'storage'), ``tier`` (name of its level, such as
'leaf'), ``latency`` (s, crossing it). Graph attribute: ``height``, the number of switch levels less
one, if the network is a tree in which all routes go up and then down. Edge attributes:
``bandwidth`` (bytes/s in each direction), ``latency`` (s, the cable). Parallel links are parallel
edges.
"""

from __future__ import annotations

import math
from typing import Any

from simshuffle.errors import Problem
from simshuffle.spec.late import networkx as nx

Graph = Any


def new_graph(**attributes: Any) -> Graph:
    """A network without nodes; ``height`` as above."""
    return nx.MultiGraph(**attributes)


def add_host(graph: Graph, name: str) -> None:
    """Add a host."""
    graph.add_node(name, kind="host", tier="host", latency=0.0)


def add_switch(graph: Graph, name: str, tier: str, latency: float) -> None:
    """Add a switch of a named tier; ``latency`` in s."""
    graph.add_node(name, kind="switch", tier=tier, latency=latency)


def connect(
    graph: Graph, a: str, b: str, *, bandwidth: float, latency: float, links: int = 1
) -> None:
    """Add ``links`` parallel links of ``bandwidth`` (bytes/s in each direction) and cable
    ``latency`` (s)."""
    for _ in range(links):
        graph.add_edge(a, b, bandwidth=bandwidth, latency=latency)


def attach_storage(
    graph: Graph, name: str, *, bandwidth: float, latency: float, links: int
) -> None:
    """Attach a storage system to the switches farthest from the hosts, through a switch of its own.

    Each of those switches gets ``links`` links of ``bandwidth`` (bytes/s); the own switch is not a
    bottleneck.
    """
    depth = switch_depths(graph)
    top = max(depth.values())
    tops = [node for node, level in depth.items() if level == top]
    edge = f"{name}.switch"
    add_switch(graph, edge, "storage", 0.0)
    graph.add_node(name, kind="storage", tier="storage", latency=0.0)
    for node in tops:
        connect(graph, edge, node, bandwidth=bandwidth, latency=latency, links=links)
    connect(graph, name, edge, bandwidth=bandwidth * links * len(tops), latency=0.0)


def switch_depths(graph: Graph) -> dict[str, int]:
    """Distance of every switch from the nearest host, leaf switches being 0; in the order of the
    graph."""
    hosts = [node for node, kind in graph.nodes(data="kind") if kind == "host"]
    reach = nx.multi_source_dijkstra_path_length(graph, set(hosts), weight=None) if hosts else {}
    return {
        node: int(reach[node]) - 1
        for node, kind in graph.nodes(data="kind")
        if kind == "switch" and node in reach
    }


def graph_problems(graph: Graph, path: str) -> list[Problem]:
    """Everything that keeps ``graph`` from being a network: no host, loose parts, numbers that are
    not positive."""
    problems = []
    hosts = [node for node, kind in graph.nodes(data="kind") if kind == "host"]
    if not hosts:
        return [
            Problem(
                path,
                "a topology needs at least one node with kind 'host'",
                "none",
                "Mark the hosts with kind: host.",
            )
        ]
    for node, data in graph.nodes(data=True):
        if data.get("kind") not in {"host", "switch", "storage"}:
            problems.append(
                Problem(
                    f"{path}.nodes.{node}.kind",
                    "must be 'host', 'switch' or 'storage'",
                    repr(data.get("kind")),
                    "Set the node's kind.",
                )
            )
        latency = data.get("latency", 0.0)
        if not (isinstance(latency, float) and 0 <= latency < math.inf):
            rule = "the latency of a switch must be at least 0"
            problems.append(
                Problem(
                    f"{path}.nodes.{node}.latency",
                    rule,
                    repr(latency),
                    "Write for example latency: '90 ns'.",
                )
            )
    for a, b, data in graph.edges(data=True):
        if a == b:
            problems.append(
                Problem(
                    f"{path}.links.{a}-{b}",
                    "a link must join two nodes",
                    "a link to itself",
                    "Remove it.",
                )
            )
        for key, allow_zero in (("bandwidth", False), ("latency", True)):
            value = data.get(key)
            good = (
                isinstance(value, float)
                and math.isfinite(value)
                and (value > 0 or (allow_zero and value == 0))
            )
            if not good:
                rule = (
                    f"every link needs a {key} {'of at least' if allow_zero else 'greater than'} 0,"
                    " with a unit"
                )
                problems.append(
                    Problem(
                        f"{path}.links.{a}-{b}.{key}",
                        rule,
                        repr(value),
                        "Write for example bandwidth: '12.5 GB/s'.",
                    )
                )
    if problems:
        return problems
    parts = sorted(
        (sorted(map(str, part)) for part in nx.connected_components(graph)),
        key=lambda part: (-len(part), part),
    )
    if len(parts) > 1:
        loose = ", ".join(node for part in parts[1:] for node in part[:3])
        problems.append(
            Problem(
                path,
                "every host must reach every other",
                f"{len(parts)} separate parts; cut off: {loose}",
                "Add the missing links.",
            )
        )
    switches = graph.subgraph([node for node, kind in graph.nodes(data="kind") if kind == "switch"])
    planes = nx.number_connected_components(switches) if len(switches) else 1
    if len(parts) == 1 and planes > 1:
        rule = "every switch must reach every other without passing through a host"
        problems.append(
            Problem(
                path,
                rule,
                f"{planes} separate groups of switches",
                "Link the groups, or leave one out.",
            )
        )
    for host in hosts:
        if not any(graph.nodes[other]["kind"] == "switch" for other in graph.neighbors(host)):
            problems.append(
                Problem(
                    f"{path}.nodes.{host}",
                    "every host must have a link to a switch",
                    "none",
                    "Connect it to a switch.",
                )
            )
    return problems

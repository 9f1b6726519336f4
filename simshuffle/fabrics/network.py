"""A network of simshuffle's own as a fabric: to be written for other tools, or compared."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from simshuffle.fabrics.imported import Cable, ImportedFabric, Node, opensm_order
from simshuffle.spec.late import networkx as nx
from simshuffle.topology.cabling import Cabling

_SWITCH, _OTHER = 1, 2


def of_network(graph: Any, source: str) -> ImportedFabric:
    """The fabric of a sketch, a graph or a cabling; ``source`` is what errors call it.

    Nodes have GUIDs that keep their order where OpenSM sorts them. Where some port has no number,
    all get new ones, in the order of the cables.
    """
    cabling = Cabling.of(graph)
    nodes = [
        Node(name, kind, made_guid(number, kind), tier, crossing)
        for number, (name, kind, tier, crossing) in enumerate(
            zip(cabling.names, cabling.kinds, cabling.tiers, cabling.crossing.tolist(), strict=True)
        )
    ]
    ports = cabling.ports
    known = ports is not None and bool((ports > 0).all())
    numbers = ports.tolist() if ports is not None and known else _new_ports(cabling)
    cables = [
        Cable((cabling.names[a], cabling.names[b]), (p, q), bandwidth, latency=latency)
        for (a, b), (p, q), bandwidth, latency in zip(
            cabling.ends.tolist(),
            numbers,
            cabling.bandwidth.tolist(),
            cabling.latency.tolist(),
            strict=True,
        )
    ]
    ends = Counter(end for cable in cables for end in cable.ends)
    adapters = sum(ends[node.name] for node in nodes if node.kind != "switch")
    return ImportedFabric(source, nodes, cables, adapters)


def made_guid(number: int, kind: str) -> str:
    """A GUID for the node with that number from 0: those of switches ascend as `opensm_order`
    does, and the lowest byte is left for numbers of ports."""
    tag = _SWITCH if kind == "switch" else _OTHER
    return f"{opensm_order(f'{tag << 48 | number + 1:x}'):x}"


def _new_ports(cabling: Cabling) -> list[tuple[int, int]]:
    """Numbers from 1 at every node: first of the cables to what is no switch, then of the others,
    each in their order."""
    switch = np.zeros(len(cabling.names), bool)
    switch[cabling.of_kind("switch")] = True
    between = np.asarray(switch[cabling.ends].all(axis=1))
    given: Counter[int] = Counter()
    numbers = [(0, 0)] * len(between)
    for cable in np.argsort(between, kind="stable").tolist():
        a, b = cabling.ends[cable].tolist()
        given[a] += 1
        given[b] += 1
        numbers[cable] = (given[a], given[b])
    return numbers


def with_ports(fabric: ImportedFabric) -> ImportedFabric:
    """The same with a GUID for every node and a number for every port; the same object where all
    have one."""
    if all(cable.ports for cable in fabric.cables) and all(node.guid for node in fabric.nodes):
        return fabric
    made = of_network(fabric.sketch(), fabric.source)
    return replace(made, left_out=fabric.left_out, warnings=fabric.warnings)


def graphml(fabric: ImportedFabric) -> str:
    """As GraphML, which ``kind: custom`` reads."""
    graph = nx.node_link_graph(json.loads(fabric.to_json()), edges="links")
    return "\n".join(nx.generate_graphml(graph)) + "\n"

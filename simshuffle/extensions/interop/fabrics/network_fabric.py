"""Make fabrics of simshuffle's own networks, with GUIDs and port numbers, and write
GraphML.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    ImportedFabric,
    opensm_order,
)
from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.spec.late import networkx as nx


def fabric_of_network(graph: Any, source: str) -> ImportedFabric:
    """Return the fabric of a network of simshuffle.

    Every node gets a new GUID, from `make_guid`. Port numbers stay if every port has
    one above 0; else all ports get new numbers from 1 at each node. ``adapters`` counts
    the cable ends at hosts and other devices. Rates have no names.

    Args:
        graph: a sketch, a graph or a cabling.
        source: name of the network in errors; it becomes the fabric's.
    """
    cabling = Cabling.from_graph(graph)
    nodes = [
        FabricNode(
            name=cabling.names[index],
            kind=cabling.kinds[index],
            guid=make_guid(index, cabling.kinds[index]),
            tier=cabling.tiers[index],
            latency=latency,
        )
        for index, latency in enumerate(cabling.crossing_latency.tolist())
    ]

    # (cables, 2) number of the port at each end
    if cabling.ports is not None and bool((cabling.ports > 0).all()):
        port_numbers = cabling.ports.tolist()
    else:
        port_numbers = _assign_port_numbers(cabling)
    cables = [
        Cable(
            ends=(cabling.names[first], cabling.names[second]),
            ports=(first_port, second_port),
            bandwidth=bandwidth,
            latency=latency,
        )
        for (first, second), (first_port, second_port), bandwidth, latency in zip(
            cabling.ends.tolist(),
            port_numbers,
            cabling.bandwidth.tolist(),
            cabling.latency.tolist(),
            strict=True,
        )
    ]
    cables_of_node = Counter(end for cable in cables for end in cable.ends)
    adapters = sum(cables_of_node[node.name] for node in nodes if node.kind != "switch")
    return ImportedFabric(source, nodes, cables, adapters)


def make_guid(index: int, kind: str) -> str:
    """Return a GUID, in hexadecimal, for the node with this index.

    GUIDs of switches ascend with the index when sorted by `opensm_order`, which
    reverses their bytes, and not as numbers. The lowest byte is 0, free for port
    numbers.

    Args:
        index: index of the node, from 0.
        kind: kind of the node, such as 'switch'.
    """
    tag = 1 if kind == "switch" else 2
    return f"{opensm_order(f'{tag << 48 | index + 1:x}'):x}"


def _assign_port_numbers(cabling: Cabling) -> list[tuple[int, int]]:
    """Return new port numbers for both ends of every cable, from 1 at each node.

    Cables to hosts and other devices are numbered first, cables between switches after
    them, each in their order.
    """
    is_switch = np.zeros(len(cabling.names), bool)
    is_switch[cabling.nodes_of_kind("switch")] = True
    joins_switches = np.asarray(is_switch[cabling.ends].all(axis=1))
    last_port: Counter[int] = Counter()
    port_numbers = [(0, 0)] * len(joins_switches)
    for cable in np.argsort(joins_switches, kind="stable").tolist():
        first, second = cabling.ends[cable].tolist()
        last_port[first] += 1
        last_port[second] += 1
        port_numbers[cable] = (last_port[first], last_port[second])
    return port_numbers


def number_nodes_and_ports(fabric: ImportedFabric) -> ImportedFabric:
    """Return the fabric with a GUID for every node and a number for every port.

    If none is missing, the same object is returned. If any GUID or port number is
    missing, all GUIDs are replaced, and all port numbers unless every port has one.
    Names of rates and adapters of cables, ``ports`` and ``lids`` are then lost, and
    ``adapters`` is counted anew; ``left_out`` and ``warnings`` stay.
    """
    if all(cable.ports for cable in fabric.cables) and all(
        node.guid for node in fabric.nodes
    ):
        return fabric
    renumbered = fabric_of_network(fabric.sketch(), fabric.source)
    return replace(renumbered, left_out=fabric.left_out, warnings=fabric.warnings)


def format_graphml(fabric: ImportedFabric) -> str:
    """Return the fabric as GraphML, which ``kind: custom`` reads.

    The attributes are those of `ImportedFabric.to_json`.
    """
    graph = nx.node_link_graph(json.loads(fabric.to_json()), edges="links")
    return "\n".join(nx.generate_graphml(graph)) + "\n"

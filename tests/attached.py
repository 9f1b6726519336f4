"""A storage system at a network of networkx: what `Cabling.with_storage` is compared with."""

import numpy as np

from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.fabric.topology.graph import Graph, add_switch, connect


def attach_storage(
    graph: Graph, name: str, *, bandwidth: float, latency: float, links: int
) -> None:
    """Attach a storage system to the switches farthest from the hosts, through a switch of its own.

    Each of those switches gets ``links`` links of ``bandwidth`` (bytes/s); the own switch is not a
    bottleneck.
    """
    cabling = Cabling.from_graph(graph)
    tops = np.flatnonzero(cabling.depth == cabling.depth.max()).tolist()
    edge = f"{name}.switch"
    add_switch(graph, edge, "storage", 0.0)
    graph.add_node(name, kind="storage", tier="storage", latency=0.0)
    for node in tops:
        connect(graph, edge, cabling.names[node], bandwidth=bandwidth, latency=latency, links=links)
    connect(graph, name, edge, bandwidth=bandwidth * links * len(tops), latency=0.0)

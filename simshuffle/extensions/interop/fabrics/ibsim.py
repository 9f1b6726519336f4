"""Net files of ibsim, which simulates a fabric for OpenSM; `ibnetdiscover` reads them
again.
"""

from __future__ import annotations

from simshuffle.errors import Problem, TopologyError
from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    ImportedFabric,
)
from simshuffle.extensions.interop.fabrics.infiniband import rate_of_bandwidth
from simshuffle.extensions.interop.fabrics.network_fabric import number_nodes_and_ports
from simshuffle.spec.units import Dimension, readable

MAX_PORTS = 254
"""Highest number of a port of a node of InfiniBand."""


def format_net_file(fabric: ImportedFabric) -> str:
    """Return the text of a net file of ibsim.

    Switches come first. Every other node, such as a host, is one adapter. A node has as
    many ports as its highest port number. A fabric without GUIDs or port numbers gets new
    ones. A bandwidth that no rate of InfiniBand has, latencies and tiers are left out.
    `describe_missing_rates` says how many bandwidths are.

    Raises:
        TopologyError: a node has a port above `MAX_PORTS`.
    """
    fabric = number_nodes_and_ports(fabric)
    # of each node by port: the peer, the peer's port, and the cable
    peer_of_port: dict[str, dict[int, tuple[str, int, Cable]]] = {
        node.name: {} for node in fabric.nodes
    }
    for cable in fabric.cables:
        first, second = cable.ends
        first_port, second_port = cable.ports or (0, 0)
        peer_of_port[first][first_port] = (second, second_port, cable)
        peer_of_port[second][second_port] = (first, first_port, cable)
    nodes = {node.name: node for node in fabric.nodes}
    problems = [
        Problem(
            f"nodes.{name}",
            f"a node of InfiniBand has at most {MAX_PORTS} ports",
            str(max(ports)),
            "Export a smaller part, or replace a director by the switches inside it.",
        )
        for name, ports in peer_of_port.items()
        if max(ports, default=0) > MAX_PORTS
    ]
    if problems:
        raise TopologyError(problems, fabric.source)
    switches_first = sorted(fabric.nodes, key=lambda node: node.kind != "switch")
    blocks = [
        _format_node(node, peer_of_port[node.name], nodes) for node in switches_first
    ]
    return f"# {fabric.source}, written by simshuffle\n\n" + "\n".join(blocks)


def _format_node(
    node: FabricNode,
    peer_of_port: dict[int, tuple[str, int, Cable]],
    nodes: dict[str, FabricNode],
) -> str:
    """Return the lines of a node: its GUID, its kind and ports, and the peer of each
    port. The GUID of an adapter's port is the adapter's plus the number of the port.

    Args:
        node: the node.
        peer_of_port: name of the peer, the peer's port and the cable, by the port.
        nodes: all nodes by their names.
    """
    is_switch = node.kind == "switch"
    kind, key = ("Switch", "switchguid") if is_switch else ("Ca", "caguid")
    guid = int(node.guid, 16)
    lines = [
        f"{key}=0x{guid:x}({guid:x})" if is_switch else f"{key}=0x{guid:x}",
        f'{kind}\t{max(peer_of_port, default=1)} "{_identity(node)}"\t\t# "{node.name}"',
    ]
    for port, (peer_name, peer_port, cable) in sorted(peer_of_port.items()):
        peer = nodes[peer_name]
        port_guid = "" if is_switch else f"({guid + port:x})"
        peer_guid = (
            "" if peer.kind == "switch" else f"({int(peer.guid, 16) + peer_port:x})"
        )
        rate = _rate_of_cable(cable)
        comment = f' # "{peer_name}" lid 0 {rate}'.rstrip()
        lines.append(
            f'[{port}]{port_guid}\t"{_identity(peer)}"[{peer_port}]{peer_guid}\t{comment}'
        )
    return "\n".join(lines) + "\n"


def _identity(node: FabricNode) -> str:
    """Return the identity by which a net file names a node, such as
    'S-0000000000000001'.
    """
    return f"{'S' if node.kind == 'switch' else 'H'}-{int(node.guid, 16):016x}"


def describe_missing_rates(fabric: ImportedFabric) -> list[str]:
    """Return a text about the cables whose bandwidth `format_net_file` leaves out;
    empty if there are none.
    """
    bandwidths = [
        cable.bandwidth for cable in fabric.cables if not _rate_of_cable(cable)
    ]
    if not bandwidths:
        return []
    texts = [readable(value, Dimension.BANDWIDTH) for value in sorted(set(bandwidths))]
    return [
        "cables whose rate is not in the file, as no rate of InfiniBand has it:"
        f" {len(bandwidths)} ({', '.join(texts)}); machine import needs --link-bandwidth"
    ]


def _rate_of_cable(cable: Cable) -> str:
    """Return the rate of a cable, such as '4xNDR': its own if it has one, or else that
    of its bandwidth; '' if InfiniBand has none for it.
    """
    return cable.rate or rate_of_bandwidth(cable.bandwidth)

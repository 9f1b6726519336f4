"""Net files of ibsim, which simulates a fabric for OpenSM; `ibnetdiscover` reads them again."""

from __future__ import annotations

from simshuffle.errors import Problem, TopologyError
from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    ImportedFabric,
    with_ports,
)
from simshuffle.extensions.interop.fabrics.infiniband import rate_of

MOST_PORTS = 254
"""Of a node of InfiniBand."""


def written(fabric: ImportedFabric) -> str:
    """The text of the net file. A host is one adapter with as many ports as the host has cables.

    Raises:
        TopologyError: a node has more than 254 ports.
    """
    fabric = with_ports(fabric)
    ends: dict[str, dict[int, tuple[str, int, Cable]]] = {node.name: {} for node in fabric.nodes}
    for cable in fabric.cables:
        (a, b), (p, q) = cable.ends, cable.ports or (0, 0)
        ends[a][p], ends[b][q] = (b, q, cable), (a, p, cable)
    nodes = {node.name: node for node in fabric.nodes}
    problems = [
        Problem(
            f"nodes.{name}",
            f"a node of InfiniBand has at most {MOST_PORTS} ports",
            str(max(ports)),
            "Export a smaller part, or a director as the switches that it is made of.",
        )
        for name, ports in ends.items()
        if max(ports, default=0) > MOST_PORTS
    ]
    if problems:
        raise TopologyError(problems, fabric.source)
    ordered = sorted(fabric.nodes, key=lambda node: node.kind != "switch")
    blocks = [_block(node, ends[node.name], nodes) for node in ordered]
    return f"# {fabric.source}, written by simshuffle\n\n" + "\n".join(blocks)


def _block(
    node: FabricNode, ports: dict[int, tuple[str, int, Cable]], nodes: dict[str, FabricNode]
) -> str:
    switch = node.kind == "switch"
    kind, key = ("Switch", "switchguid") if switch else ("Ca", "caguid")
    guid = int(node.guid, 16)
    lines = [
        f"{key}=0x{guid:x}({guid:x})" if switch else f"{key}=0x{guid:x}",
        f'{kind}\t{max(ports, default=1)} "{_identity(node)}"\t\t# "{node.name}"',
    ]
    for port, (peer, other, cable) in sorted(ports.items()):
        end = nodes[peer]
        own = "" if switch else f"({guid + port:x})"
        there = "" if end.kind == "switch" else f"({int(end.guid, 16) + other:x})"
        rate = cable.rate or rate_of(cable.bandwidth)
        told = f' # "{peer}" lid 0 {rate}'.rstrip()
        lines.append(f'[{port}]{own}\t"{_identity(end)}"[{other}]{there}\t{told}')
    return "\n".join(lines) + "\n"


def _identity(node: FabricNode) -> str:
    return f"{'S' if node.kind == 'switch' else 'H'}-{int(node.guid, 16):016x}"

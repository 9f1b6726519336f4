"""The fat tree of a machine as htsim reads it (github.com/Broadcom/csg-htsim).

The grammar is that of ``FatTreeTopology::load`` in sim/datacenter/fat_tree_topology.cpp, commit
f661b2f: trees of two or three tiers with one link to each host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from simshuffle.fabric.topology import FatTree, Topology
from simshuffle.spec.units import Dimension, readable

MOST_PORTS = (96, 64, 64)
"""Of a switch of each tier; htsim ends where there are more."""


def written(topology: Topology) -> tuple[str, str]:
    """The file of a network; or '' and why htsim cannot have it."""
    if not isinstance(topology, FatTree):
        return "", f"it is of kind {topology.kind}, and no fat tree"
    why = next(_obstacles(topology), "")
    return "" if why else _tree(topology), why


def _obstacles(tree: FatTree) -> Iterator[str]:
    if tree.num_levels not in {2, 3}:
        yield f"its tree has {tree.num_levels} levels, and not 2 or 3"
    if tree.rails > 1:
        yield f"its hosts have {tree.rails} links, and not one"
    if tree.directors:
        yield "its topmost switches are directors"
    if tree.num_levels > 1 and tree.hosts_per_leaf % tree.uplinks:
        yield f"its taper is {tree.hosts_per_leaf}:{tree.uplinks}, and not whole"
    if tree.link_bandwidth * 8 % 1e9:
        rate = readable(tree.link_bandwidth, Dimension.BANDWIDTH)
        yield f"its links have {rate}, which is not whole in Gbit/s"
    room = math.prod(links.children for links in tree.links())
    if room != tree.num_hosts:
        yield f"it has {tree.num_hosts} hosts, and room for {room}"
    for (down, up), most in zip(_radices(tree), MOST_PORTS, strict=False):
        if down + up > most:
            yield f"it has switches of {down + up} ports, and not of at most {most}"


def _radices(tree: FatTree) -> list[tuple[int, int]]:
    """Of a switch of each tier the ports down and up."""
    links = tree.links()
    up = [above.parents * above.parallel for above in links[1:]]
    down = [links[0].children, *(below.children * below.parallel for below in links[1:])]
    return list(zip(down, [*up, 0], strict=True))


def _tree(tree: FatTree) -> str:
    """The file. Latencies are whole ns there, those of cables at least one."""
    links = tree.links()
    pod = tree.num_hosts // (links[2].children if len(links) == 3 else 1)
    lines = [f"Nodes {tree.num_hosts}", f"Tiers {len(links)}", f"Podsize {pod}"]
    for tier, (down, up) in enumerate(_radices(tree)):
        lines += [
            "",
            f"Tier {tier}",
            f"Downlink_speed_Gbps {round(tree.link_bandwidth * 8 / 1e9)}",
            f"Radix_Down {down}",
            *([f"Radix_Up {up}", f"Oversubscribed {down // up}"] if up else []),
            f"Downlink_Latency_ns {max(round(tree.cable_latency * 1e9), 1)}",
            f"Switch_Latency_ns {round(tree.switch_latency * 1e9)}",
            *([f"Bundle {links[tier].parallel}"] if tier else []),
        ]
    return "\n".join(lines) + "\n"

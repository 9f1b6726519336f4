"""The fat tree of a machine as htsim reads it (github.com/Broadcom/csg-htsim).

The grammar is that of ``FatTreeTopology::load`` in
sim/datacenter/fat_tree_topology.cpp, commit f661b2f: trees of two or three tiers with
one link to each host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from simshuffle.fabric.topology import FatTree, Topology
from simshuffle.spec.units import Dimension, readable

MAX_PORTS = (96, 64, 64)
"""Ports of a switch of each tier, at most; htsim ends where there are more."""


def format_fat_tree(topology: Topology) -> tuple[str, str]:
    """Return the text of a fat tree's topology file and ''; or '' and the first reason
    why htsim cannot have the network.
    """
    if not isinstance(topology, FatTree):
        return "", f"it is of kind {topology.kind}, and no fat tree"
    obstacle = next(_obstacles(topology), "")
    return "" if obstacle else _format_tree(topology), obstacle


def _obstacles(tree: FatTree) -> Iterator[str]:
    """Yield the reasons why htsim cannot have a fat tree, as texts that follow 'as'."""
    if tree.num_levels not in {2, 3}:
        yield f"its tree has {tree.num_levels} levels, and not 2 or 3"
    if tree.rails > 1:
        yield f"its hosts have {tree.rails} links, and not one"
    if tree.directors:
        yield "its topmost switches are directors"
    if tree.num_levels > 1 and tree.hosts_per_leaf % tree.uplinks:
        yield f"its taper is {tree.hosts_per_leaf}:{tree.uplinks}, and not a whole number"
    if tree.link_bandwidth * 8 % 1e9:
        rate = readable(tree.link_bandwidth, Dimension.BANDWIDTH)
        yield f"its links have {rate}, and not a whole number of Gbit/s"
    max_hosts = math.prod(links.children for links in tree.links())
    if max_hosts != tree.num_hosts:
        yield f"it has {tree.num_hosts} hosts, but room for {max_hosts}"
    for (down, up), max_ports in zip(_ports_of_tiers(tree), MAX_PORTS, strict=False):
        if down + up > max_ports:
            yield f"it has switches of {down + up} ports, and not of at most {max_ports}"


def _ports_of_tiers(tree: FatTree) -> list[tuple[int, int]]:
    """Return for a switch of each tier, from the hosts up, how many ports lead down and
    how many up.

    A switch of the topmost tier has 0 up.
    """
    links = tree.links()
    up = [above.parents * above.parallel for above in links[1:]]
    down = [
        links[0].children,
        *(below.children * below.parallel for below in links[1:]),
    ]
    return list(zip(down, [*up, 0], strict=True))


def _format_tree(tree: FatTree) -> str:
    """Return the text of the topology file of a tree that has no `_obstacles`.

    Speeds are whole Gbit/s there. Latencies are whole ns, those of cables at least one.
    """
    links = tree.links()
    hosts_per_pod = tree.num_hosts // (links[2].children if len(links) == 3 else 1)
    lines = [
        f"Nodes {tree.num_hosts}",
        f"Tiers {len(links)}",
        f"Podsize {hosts_per_pod}",
    ]
    for tier, (down, up) in enumerate(_ports_of_tiers(tree)):
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

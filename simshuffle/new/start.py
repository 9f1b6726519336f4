"""From what a new machine begins: a shape with a few numbers, a network's file, or a machine; and
what the latter two decide by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simshuffle.errors import Problem
from simshuffle.spec.library import is_file, nearest, shipped_names
from simshuffle.spec.units import Dimension, readable

if TYPE_CHECKING:
    from simshuffle.topology.base import Interconnect

SHAPES = ("fat_tree", "dragonfly", "rail_optimised", "torus")
NETWORK, MACHINE = "network", "machine"
NETWORKS, MACHINES = (".json", ".graphml", ".xml"), (".yaml", ".yml")
"""What names of files of a network end with, and those of a machine."""


def start_of(topology: str) -> str:
    """Which of `SHAPES` an answer names, or whether `NETWORK` or `MACHINE`."""
    if topology in SHAPES:
        return topology
    return NETWORK if Path(topology).suffix in NETWORKS else MACHINE


def start_problem(option: str, topology: str) -> Problem | None:
    """What is wrong with an answer to ``option``; None if nothing is."""
    there, machines = is_file(Path(topology)), shipped_names("topologies")
    suffix = Path(topology).suffix
    if topology in (*SHAPES, *machines) or (there and suffix in NETWORKS + MACHINES):
        return None
    rule = f"must be {', '.join(SHAPES)}, the name of a machine, or a file"
    if there:
        rule = f"must be a file of a machine ({MACHINES[0]}) or of a network ({NETWORKS[0]})"
        remedy = f"Import it: simshuffle machine import {topology} --out fabric.yaml."
    elif suffix in NETWORKS + MACHINES:
        rule, remedy = "no such file", "Name it from the working directory."
    else:
        remedy = nearest(topology, [*SHAPES, *machines])
    return Problem(option, rule, repr(topology), remedy)


def decided(topology: str) -> dict[str, str]:
    """Answers, by the names of their questions, that a network's file or a machine decides; none of
    a shape.

    Raises:
        InputError: it is not valid.
    """
    start = start_of(topology)
    if start == NETWORK:
        from simshuffle.topology import Custom  # noqa: PLC0415 - not where help is shown

        return _of_network(Custom(kind="custom", path=topology))
    if start != MACHINE:
        return {}
    from simshuffle.scenario.scenario import machine_of  # noqa: PLC0415 - see above

    cluster = machine_of(topology)
    return {
        **_of_network(cluster.topology),
        "gpus": str(cluster.host.gpus),
        "accelerator": cluster.host.accelerator,
        "hcas": str(cluster.host.hcas),
        "nvlink": readable(cluster.host.nvlink_bandwidth, Dimension.BANDWIDTH),
        "memory": readable(cluster.memory.capacity, Dimension.NBYTES),
        "ssd": readable(cluster.ssd.capacity, Dimension.NBYTES),
    }


def _of_network(topology: Interconnect) -> dict[str, str]:
    """Hosts, links of a host, and the slowest of those."""
    each = getattr(topology, "link_bandwidth", None)
    if each is None:
        graph = topology.graph()
        hosts = [node for node, kind in graph.nodes(data="kind") if kind == "host"]
        each = min(bandwidth for *_, bandwidth in graph.edges(hosts, data="bandwidth"))
    return {
        "hosts": str(topology.num_hosts),
        "hcas": str(topology.links_per_host),
        "hca_bandwidth": readable(each, Dimension.BANDWIDTH),
    }

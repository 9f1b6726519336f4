"""The testbed as simshuffle sees it: a tapered leaf-spine tree, its directed links and its static
routes. Nothing is built here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.routing import ForwardingTable
from simshuffle.spec.units import Dimension, format_quantity
from simshuffle.topology import FatTree

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """What a testbed is made of."""

    leaves: int = 2  # leaf switches
    hosts_per_leaf: int = 4  # hosts below each, at least 2
    spines: int = 2  # switches above, each with one link to every leaf; at most ``hosts_per_leaf``
    rate: float = 5e6  # bytes/s that every link is shaped to, headers included, in each direction

    @property
    def hosts(self) -> int:
        """Hosts in all."""
        return self.leaves * self.hosts_per_leaf


MOST_HOSTS = 16
RATES = (1e6 / 8, 200e6 / 8)
"""The lowest and highest rate, bytes/s: beyond it packets of two cores' work would be measured, not
the network."""


def require(*rules: tuple[bool, str, str, object], remedy: str = "Choose another value.") -> None:
    """See that rules hold, each of which is given as (whether it does, option, rule, value).

    Raises:
        InputError: with every one that does not.
    """
    problems = [
        Problem(option, rule, f"{value}", remedy)
        for holds, option, rule, value in rules
        if not holds
    ]
    if problems:
        raise InputError(problems, "command line")


def checked(shape: Shape) -> Shape:
    """``shape``, if a testbed can be made of it.

    Raises:
        InputError: it cannot.
    """
    leaves, per_leaf, spines, hosts = shape.leaves, shape.hosts_per_leaf, shape.spines, shape.hosts
    rate = f"{shape.rate * 8 / 1e6:g} Mbit/s"
    require(
        (leaves >= 2, "--leaves", "must be at least 2", leaves),
        (per_leaf >= 2, "--hosts-per-leaf", "must be at least 2", per_leaf),
        (1 <= spines <= per_leaf, "--spines", "must be from 1 to the hosts of a leaf", spines),
        (hosts <= MOST_HOSTS, "--leaves", f"at most {MOST_HOSTS} hosts in all", hosts),
        (RATES[0] <= shape.rate <= RATES[1], "--rate", "must be from 1 to 200 Mbit/s", rate),
    )
    return shape


class LeafSpine:
    """Links and routes of a `Shape`: those that the namespaces get and those that are simulated.

    Args:
        shape: the numbers.

    Attributes:
        shape: as given.
        links: (links,) names 'from>to'; link 2c leads one way over cable c, link 2c + 1 the other
            way.
        ends: (links,) the two nodes of each, as (from, to).
        nodes: all nodes, hosts first.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        tree = {
            "kind": "fat_tree",
            "levels": 2,
            "arity": shape.hosts_per_leaf,
            "taper": shape.hosts_per_leaf / shape.spines,
            "hosts": shape.hosts,
            "link_bandwidth": format_quantity(shape.rate, Dimension.BANDWIDTH),
            "cable_latency": "0 s",
            "switch_latency": "0 s",
        }
        graph = FatTree.model_validate(tree).graph()
        self._table = ForwardingTable(graph)
        self.links = self._table.links.names
        self.ends = [(a, b) for name in self.links for a, b in [name.split(">")]]
        self.host_names = [name for name, kind in graph.nodes(data="kind") if kind == "host"]
        self.nodes = sorted(graph, key=lambda name: name not in self.host_names)
        ports = [self._table.endpoints(name)[0] for name in self.host_names]
        self._ports = np.array(ports, np.int32)

    def leaf(self, host: int) -> int:
        """Number of the leaf switch of a host."""
        return host // self.shape.hosts_per_leaf

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Links from each host of ``src`` to that of ``dst``: (n, longest) int32, padded with
        -1."""
        return self._table.routes(self._ports[src], self._ports[dst])

    @cached_property
    def _pairs(self) -> list[tuple[int, int, list[int]]]:
        """Every ordered pair of different hosts, and the links between them."""
        hosts = np.arange(self.shape.hosts, dtype=np.int32)
        src, dst = (index.ravel() for index in np.meshgrid(hosts, hosts, indexing="ij"))
        apart = src != dst
        routes = self.routes(src[apart], dst[apart])
        pairs = zip(src[apart].tolist(), dst[apart].tolist(), routes.tolist(), strict=True)
        return [(a, b, [link for link in route if link >= 0]) for a, b, route in pairs]

    @cached_property
    def next_links(self) -> dict[str, dict[int, int]]:
        """For each node the link that leads on to each host (by number): its routing table, which
        looks at the destination alone."""
        out: dict[str, dict[int, int]] = {node: {} for node in self.nodes}
        for _, dst, route in self._pairs:
            for link in route:
                node = self.ends[link][0]
                if out[node].setdefault(dst, link) != link:
                    raise AssertionError(f"{node} has two ways to host {dst}")
        return out

    @cached_property
    def crossing(self) -> list[list[tuple[int, int]]]:
        """(links,) the (source, destination) hosts whose route crosses each link."""
        out: list[list[tuple[int, int]]] = [[] for _ in self.links]
        for src, dst, route in self._pairs:
            for link in route:
                out[link].append((src, dst))
        return out

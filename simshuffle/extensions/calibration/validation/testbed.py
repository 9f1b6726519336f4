"""What simshuffle says about a testbed of network namespaces, a tapered leaf-spine tree: when each
flow ends in the fluid network. `plugins/testbed` builds and measures it; a kept row is predicted
without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.extensions.calibration.validation.testbed_patterns import (
    PATTERNS,
    NamespacePattern,
    NamespaceShape,
)
from simshuffle.fabric.network import Flows, Fluid, Links
from simshuffle.fabric.routing import ForwardingTable
from simshuffle.fabric.topology import FatTree
from simshuffle.spec.arrays import Floats, Ints32
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.record import Bandwidth, NBytes, Seconds
from simshuffle.spec.units import Dimension, format_quantity
from simshuffle.spec.validation import validate_record

HEADERS = 1448 / 1514
"""Payload of a full packet over its bytes on Ethernet: IPv4 20, TCP 20, its time stamps 12,
Ethernet 14."""
MOST_HOSTS = 16
RATES = (1e6 / 8, 200e6 / 8)
"""The lowest and highest rate, bytes/s: beyond it packets of two cores' work would be measured, not
the network."""


@dataclass(frozen=True)
class Overhead:
    """What TCP costs."""

    efficiency: float = HEADERS  # payload bytes for each byte of the shaped rate
    startup: float = 0.0  # s that a flow needs beyond its bytes at that rate; at least 0


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


def checked(shape: NamespaceShape) -> NamespaceShape:
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
    """Links and routes of a `NamespaceShape`.

    Attributes:
        shape: as given.
        links: (links,) names 'from>to'; link 2c leads one way over cable c, link 2c + 1 the other
            way.
        ends: (links,) the two nodes of each, as (from, to).
        host_names: (hosts,) their nodes.
    """

    def __init__(self, shape: NamespaceShape) -> None:
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
        ports = [self._table.endpoints(name)[0] for name in self.host_names]
        self._ports = np.array(ports, np.int32)

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """Links from each host of ``src`` to that of ``dst``: (n, longest) int32, padded with
        -1."""
        return self._table.routes(self._ports[src], self._ports[dst])


def finish_times(testbed: LeafSpine, pattern: NamespacePattern, overhead: Overhead) -> Floats:
    """(flows,) s: when each flow of ``pattern`` ends in the fluid network."""
    capacity = np.full(len(testbed.links), testbed.shape.rate * overhead.efficiency)
    # every route leaves exactly one host, so the start-up is counted once
    latency = np.array(
        [overhead.startup * (near in testbed.host_names) for near, _ in testbed.ends]
    )
    links = Links(capacity, latency, testbed.links)
    routes = testbed.routes(
        np.array(pattern.src, np.int32), np.array(pattern.dst, np.int32)
    ).tolist()
    after = [list(before) for before in pattern.after]
    sizes = [float(nbytes) for nbytes in pattern.nbytes]
    if pattern.barrier:
        first = len(pattern)
        for step in range(max(pattern.step)):
            routes.append([-1] * len(routes[0]))
            sizes.append(0.0)
            after.append([flow for flow in range(first) if pattern.step[flow] == step])
            if step:
                # a step in which nobody sends still waits for the one before
                after[-1].append(len(routes) - 2)
        for flow in range(first):
            if pattern.step[flow]:
                after[flow] = [first + pattern.step[flow] - 1]
    else:
        # flows of one pair of hosts share a connection, so one goes after the other
        last: dict[tuple[int, int], int] = {}
        for flow, pair in enumerate(zip(pattern.src, pattern.dst, strict=True)):
            if pair in last:
                after[flow].append(last[pair])
            last[pair] = flow
    flows = Flows.from_lists(np.array(routes, np.int32), sizes, predecessors=after)
    return Fluid().finish_times(links, flows).finish[: len(pattern)]


def makespan(testbed: LeafSpine, pattern: NamespacePattern, overhead: Overhead) -> float:
    """When the last flow of ``pattern`` ends (s)."""
    return float(finish_times(testbed, pattern, overhead).max())


def predicted(values: Mapping[str, str]) -> float:
    """The predicted makespan (s) of a measured row, from texts as ``simshuffle machine testbed
    --keep-as`` writes them.

    Raises:
        InputError: a key is missing or its text is no such value.
    """
    read, problems = validate_record(dict(values), _Values)
    if read is None or problems:
        raise InputError([each.below("values") for each in problems], "testbed")
    if read.pattern not in PATTERNS:
        remedy = suggest_nearest(read.pattern, [*PATTERNS])
        refuse("values.pattern", "no such pattern", repr(read.pattern), remedy, "testbed")
    shape = checked(NamespaceShape(read.leaves, read.hosts_per_leaf, read.spines, read.rate))
    pattern = PATTERNS[read.pattern](shape, int(read.nbytes), read.seed)
    return makespan(LeafSpine(shape), pattern, Overhead(read.efficiency, read.startup))


class _Values(BaseModel):
    """What `predicted` must know."""

    leaves: int
    hosts_per_leaf: int
    spines: int
    rate: Bandwidth
    pattern: str
    nbytes: NBytes
    seed: int
    efficiency: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    startup: Seconds

"""Predict a testbed of network namespaces, a tapered leaf-spine tree, in the fluid
network.

`plugins/testbed` builds and measures it; a row that it wrote is predicted without the
plugin.
"""

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

PAYLOAD_SHARE = 1448 / 1514
"""Payload of a full packet over its bytes on Ethernet: IPv4 20, TCP 20, its time stamps
12, Ethernet 14.
"""
MAX_HOSTS = 16
RATE_LIMITS = (1e6 / 8, 200e6 / 8)
"""The lowest and highest rate, bytes/s: beyond it packets of two cores' work would be
measured, not the network.
"""


@dataclass(frozen=True)
class TcpOverhead:
    """The cost of TCP: bytes of headers, and the start of a flow."""

    efficiency: float = PAYLOAD_SHARE  # payload bytes for each byte of the shaped rate
    startup: float = (
        0.0  # s that a flow needs beyond its bytes at that rate; at least 0
    )


def require(
    *rules: tuple[bool, str, str, object], remedy: str = "Choose another value."
) -> None:
    """Check rules of options, each of which is given as (whether it holds, option,
    rule, value).

    Raises:
        InputError: with every rule that does not hold.
    """
    problems = [
        Problem(option, rule, f"{value}", remedy)
        for holds, option, rule, value in rules
        if not holds
    ]
    if problems:
        raise InputError(problems, "command line")


def check_shape(shape: NamespaceShape) -> NamespaceShape:
    """Return ``shape`` unchanged, if a testbed can have it.

    Raises:
        InputError: it cannot.
    """
    leaves = shape.leaves
    per_leaf = shape.hosts_per_leaf
    spines = shape.spines
    hosts = shape.hosts
    rate = f"{shape.rate * 8 / 1e6:g} Mbit/s"
    require(
        (leaves >= 2, "--leaves", "must be at least 2", leaves),
        (per_leaf >= 2, "--hosts-per-leaf", "must be at least 2", per_leaf),
        (
            1 <= spines <= per_leaf,
            "--spines",
            "must be from 1 to the number of hosts of a leaf",
            spines,
        ),
        (
            hosts <= MAX_HOSTS,
            "--leaves",
            f"there must be at most {MAX_HOSTS} hosts in all",
            hosts,
        ),
        (
            RATE_LIMITS[0] <= shape.rate <= RATE_LIMITS[1],
            "--rate",
            "must be from 1 to 200 Mbit/s",
            rate,
        ),
    )
    return shape


class LeafSpine:
    """The links and routes of a `NamespaceShape`.

    Attributes:
        shape: leaves, spines and hosts.
        links: (links,) names 'from>to'; link 2c leads one way over cable c, link 2c + 1
            the other way.
        nodes_of_link: (links,) the two nodes of each, as (from, to).
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
        self.nodes_of_link = [
            (source, destination)
            for name in self.links
            for source, destination in [name.split(">")]
        ]
        self.host_names = [
            name for name, kind in graph.nodes(data="kind") if kind == "host"
        ]
        ports = [self._table.endpoints(name)[0] for name in self.host_names]
        self._ports = np.array(ports, np.int32)

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """Return (n, longest) indices in `links` from hosts ``src`` to hosts ``dst``,
        (n,) indices in `host_names`; rows are padded with -1.
        """
        return self._table.routes(self._ports[src], self._ports[dst])


def finish_times(
    testbed: LeafSpine, pattern: NamespacePattern, overhead: TcpOverhead
) -> Floats:
    """Return (flows,) s at which each flow of ``pattern`` ends in the fluid network,
    counted from the start of the first flow.

    With a barrier, a flow waits for the step before only; else for its predecessors and
    for earlier flows between its hosts.
    """
    capacity = np.full(len(testbed.links), testbed.shape.rate * overhead.efficiency)
    # every route leaves exactly one host, so the start-up is counted once
    latency = np.array(
        [
            overhead.startup * (source in testbed.host_names)
            for source, _ in testbed.nodes_of_link
        ]
    )
    links = Links(capacity, latency, testbed.links)
    routes = testbed.routes(
        np.array(pattern.src, np.int32), np.array(pattern.dst, np.int32)
    ).tolist()
    predecessors = [list(flows) for flows in pattern.predecessors]
    sizes = [float(nbytes) for nbytes in pattern.nbytes]
    if pattern.barrier:
        # flow num_flows + s, without bytes, ends when all flows of step s have ended
        num_flows = len(pattern)
        for step in range(max(pattern.step)):
            routes.append([-1] * len(routes[0]))
            sizes.append(0.0)
            predecessors.append(
                [flow for flow in range(num_flows) if pattern.step[flow] == step]
            )
            if step:
                # a step in which nobody sends still waits for the one before
                predecessors[-1].append(len(routes) - 2)
        for flow in range(num_flows):
            if pattern.step[flow]:
                predecessors[flow] = [num_flows + pattern.step[flow] - 1]
    else:
        # flows of one pair of hosts share a connection, so one goes after the other
        last_flow_of_pair: dict[tuple[int, int], int] = {}
        for flow, pair in enumerate(zip(pattern.src, pattern.dst, strict=True)):
            if pair in last_flow_of_pair:
                predecessors[flow].append(last_flow_of_pair[pair])
            last_flow_of_pair[pair] = flow
    flows = Flows.from_lists(
        np.array(routes, np.int32), sizes, predecessors=predecessors
    )
    return Fluid().finish_times(links, flows).finish[: len(pattern)]


def makespan(
    testbed: LeafSpine, pattern: NamespacePattern, overhead: TcpOverhead
) -> float:
    """Return the time (s) at which the last flow of ``pattern`` ends."""
    return float(finish_times(testbed, pattern, overhead).max())


def predict_makespan(values: Mapping[str, str]) -> float:
    """Predict the makespan (s) of a measured row.

    Args:
        values: texts as ``simshuffle machine testbed --keep-as`` writes them.

    Raises:
        InputError: a key is missing or its text is no such value, there is no such
            pattern, or a testbed cannot have the shape (`check_shape`).
    """
    parsed, problems = validate_record(dict(values), TestbedValues)
    if parsed is None or problems:
        raise InputError([problem.below("values") for problem in problems], "testbed")
    if parsed.pattern not in PATTERNS:
        remedy = suggest_nearest(parsed.pattern, [*PATTERNS])
        refuse(
            "values.pattern", "no such pattern", repr(parsed.pattern), remedy, "testbed"
        )
    shape = check_shape(
        NamespaceShape(parsed.leaves, parsed.hosts_per_leaf, parsed.spines, parsed.rate)
    )
    pattern = PATTERNS[parsed.pattern](shape, int(parsed.nbytes), parsed.seed)
    return makespan(
        LeafSpine(shape), pattern, TcpOverhead(parsed.efficiency, parsed.startup)
    )


class TestbedValues(BaseModel):
    """The values of a measured row that `predict_makespan` needs."""

    leaves: int
    hosts_per_leaf: int
    spines: int
    rate: Bandwidth
    pattern: str
    nbytes: NBytes
    seed: int
    efficiency: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    startup: Seconds

"""A network as arrays: what routes, levels and racks are found in; its cables as directed links."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32, Ints64

FAR = np.iinfo(np.int16).max
"""Steps to what cannot be reached."""


@dataclass(frozen=True)
class Cabling:
    """The nodes of a network, numbered in their order, and its cables, in that of networkx: those
    of the first node, ordered by the neighbour to which it was linked first, then those of the
    second to later nodes, and so on."""

    names: list[str]  # of the nodes
    kinds: list[str]  # of each 'host', 'switch' or 'storage'
    tiers: list[str]  # of each
    crossing: Floats  # (nodes,) s, of each
    ends: Ints32  # (cables, 2) the nodes at both ends, the earlier one first
    laid: Ints32  # (cables,) when each was added, from 0
    parallel: Ints32  # (cables,) which one it is of those between its two nodes, from 0
    several: Flags  # (cables,) whether there are others between them
    bandwidth: Floats  # (cables,) bytes/s in each direction
    latency: Floats  # (cables,) s
    # the number of switch levels less one; None if the network is not said to be a tree
    height: int | None
    # (nodes, dimensions) of the switches, -1 for what has none; None if none has
    coordinates: Ints32 | None = None
    # (cables, 2) the number of the port at each end, -1 where it is not known; None if none is
    ports: Ints32 | None = None

    @staticmethod
    def of(graph: Any) -> Cabling:
        """That of a graph whose values are those of a network; see
        `simshuffle.fabric.topology.graph`."""
        if isinstance(graph, Cabling):
            return graph
        nodes = dict(graph.nodes(data=True))
        edges = list(graph.edges(data=True))
        number = {name: i for i, name in enumerate(nodes)}
        both = ([number[edge[side]] for edge in edges] for side in (0, 1))
        ends = np.sort(np.stack([np.array(each, np.int32) for each in both], axis=1), axis=1)
        # one number for each pair of nodes, whichever is named first
        pair = ends[:, 0].astype(np.int64) * len(nodes) + ends[:, 1]
        _, first, which, several = np.unique(
            pair, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.lexsort((first[which], ends[:, 0]))
        starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
        parallel = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        bandwidth, latency = (
            np.array([data[key] for _, _, data in edges], float)[order]
            for key in ("bandwidth", "latency")
        )
        of_nodes = list(nodes.values())
        return Cabling(
            list(nodes),
            [data["kind"] for data in of_nodes],
            [data["tier"] for data in of_nodes],
            np.fromiter((data.get("latency", 0.0) for data in of_nodes), float, len(of_nodes)),
            ends[order],
            order.astype(np.int32),
            parallel.astype(np.int32),
            (several > 1)[which][order],
            bandwidth,
            latency,
            graph.graph.get("height"),
            _coordinates(of_nodes),
            _ports(edges, number, order),
        )

    def with_storage(self, name: str, *, bandwidth: float, latency: float, links: int) -> Cabling:
        """The same with a storage system at the switches farthest from the hosts, through a switch
        of its own, which is not a bottleneck.

        Each of those switches gets ``links`` links of ``bandwidth`` (bytes/s) and cable ``latency``
        (s).
        """
        tops = np.flatnonzero(self.depth == self.depth.max()).astype(np.int32)
        nodes, count = len(self.names), links * len(tops)
        ends = np.full((count + 1, 2), nodes, np.int32)
        ends[:count, 0], ends[count, 1] = np.repeat(tops, links), nodes + 1
        ends = np.concatenate([self.ends, ends])
        order = np.argsort(ends[:, 0], kind="stable")

        def more(old: Any, new: Any, last: Any) -> Any:
            return np.concatenate([old, np.append(new, last).astype(old.dtype)])[order]

        def unknown(old: Ints32 | None, rows: int) -> Ints32 | None:
            return old if old is None else np.pad(old, ((0, rows), (0, 0)), constant_values=-1)

        ports = unknown(self.ports, count + 1)
        cables = len(self.laid)
        return Cabling(
            [*self.names, f"{name}.switch", name],
            [*self.kinds, "switch", "storage"],
            [*self.tiers, "storage", "storage"],
            np.append(self.crossing, [0.0, 0.0]),
            ends[order],
            more(self.laid, cables + np.arange(count), cables + count),
            more(self.parallel, np.tile(np.arange(links), len(tops)), 0),
            more(self.several, np.full(count, links > 1), False),
            more(self.bandwidth, np.full(count, bandwidth), bandwidth * links * len(tops)),
            more(self.latency, np.full(count, latency), 0.0),
            self.height,
            unknown(self.coordinates, 2),
            None if ports is None else ports[order],
        )

    def of_kind(self, kind: str) -> Ints32:
        """The numbers of the nodes of a kind."""
        return np.flatnonzero(np.array(self.kinds) == kind).astype(np.int32)

    @cached_property
    def depth(self) -> Ints32:
        """(nodes,) of a switch its distance from the nearest host, leaf switches being 0; -1 of
        what is no switch, or is not reached. What takes no part but is of the tier 'host' stands
        where hosts stand, and counts as one."""
        beside = [node for node in self.of_kind("other").tolist() if self.tiers[node] == "host"]
        start = np.append(self.of_kind("host"), np.array(beside, np.int32))
        steps = self._steps_from(start)
        switch = np.zeros(len(self.names), bool)
        switch[self.of_kind("switch")] = True
        return np.where(switch & (steps > 0), steps - 1, -1).astype(np.int32)

    def _steps_from(self, start: Ints32) -> Ints32:
        """(nodes,) steps from the nearest of the nodes ``start``; -1 of what is not reached."""
        first, neighbours = self.neighbours
        steps = np.full(len(self.names), -1, np.int32)
        reached, here = 0, start
        while len(here):
            steps[here] = reached
            found = neighbours[runs(first[here], first[here + 1])]
            here = np.unique(found[steps[found] < 0])
            reached += 1
        return steps

    @cached_property
    def usual(self) -> Floats:
        """(cables,) bytes/s that most of the cables between the same two tiers carry."""
        number = {tier: i for i, tier in enumerate(dict.fromkeys(self.tiers))}
        tier = np.array([number[of] for of in self.tiers])
        lower, upper = np.sort(tier[self.ends], axis=1).T
        return usual(lower * len(number) + upper, self.bandwidth)

    @cached_property
    def neighbours(self) -> tuple[Ints32, Ints32]:
        """Where those of each node begin in the second array, (nodes + 1,), and the nodes at the
        other end of its cables, one for each cable."""
        here, there = self.ends.T.ravel(), self.ends[:, ::-1].T.ravel()
        first = np.zeros(len(self.names) + 1, np.int32)
        np.cumsum(np.bincount(here, minlength=len(self.names)), out=first[1:])
        return first, there[np.argsort(here, kind="stable")]

    def parts(self, among: Flags) -> Ints32:
        """(nodes,) a number that is the same for those of the nodes ``among``, (nodes,), which
        cables between them join; each other node has a number of its own."""
        return parts(len(self.names), self.ends[among[self.ends].all(axis=1)])


def usual(group: Ints, bandwidth: Floats) -> Floats:
    """(n,) for each cable what most of its ``group``, (n,), carry of ``bandwidth``, (n,) bytes/s:
    the most of what is as common."""
    _, group = np.unique(group, return_inverse=True)
    rates, rate = np.unique(bandwidth, return_inverse=True)
    of, count = np.unique(group * len(rates) + rate, return_counts=True)
    order = np.lexsort((of, count))  # the last of each group is what most carry
    most = np.zeros(group.max(initial=-1) + 1, int)
    most[of[order] // len(rates)] = of[order] % len(rates)
    return np.asarray(rates[most[group]])


def _coordinates(nodes: list[dict[str, Any]]) -> Ints32 | None:
    """See `Cabling`."""
    found = [data.get("coordinates", ()) for data in nodes]
    width = max(map(len, found), default=0)
    if not width:
        return None
    out = np.full((len(found), width), -1, np.int32)
    for size in {len(place) for place in found} - {0}:
        rows = [row for row, place in enumerate(found) if len(place) == size]
        out[rows, :size] = [found[row] for row in rows]
    return out


def _ports(edges: list[Any], number: dict[str, int], order: Ints64) -> Ints32 | None:
    """See `Cabling`."""
    if all("ports" not in data for _, _, data in edges):
        return None
    found = (data.get("ports", (-1, -1)) for *_, data in edges)
    each = [
        p if number[a] < number[b] else p[::-1] for p, (a, b, _) in zip(found, edges, strict=True)
    ]
    return np.array(each, np.int32)[order]


def parts(count: int, ends: Ints32) -> Ints32:
    """(count,) for each of so many nodes the least number of those to which the links ``ends``, (n,
    2), join it, itself included."""
    least = np.arange(count, dtype=np.int32)
    while True:
        joined = least[ends]
        lower, upper = joined.min(axis=1), joined.max(axis=1)
        if (lower == upper).all():
            return least
        np.minimum.at(least, upper, lower)
        while (shorter := least[least]).tobytes() != least.tobytes():
            least = shorter


def runs(first: Ints, end: Ints) -> Ints64:
    """The numbers from each of ``first`` to below each of ``end``, one run after the other."""
    counts = (end - first).astype(np.int64)
    total = np.cumsum(counts)
    return np.asarray(np.arange(counts.sum()) + np.repeat(first - (total - counts), counts))


class SwitchGraph:
    """The switches of a network that some host reaches, numbered in their order, and which of them
    are linked.

    Attributes:
        nodes: (switches,) of each its number among all nodes.
        depth: (switches,) see `Cabling.depth`.
        transit: (switches,) whether routes may lead through it: it is not the own switch of a
            storage system.
        here, there: (ways,) every ordered pair of linked switches, by the first of them and then by
            when it was linked to the second.
        first: (switches + 1,) where those of each begin.
    """

    def __init__(self, cabling: Cabling) -> None:
        self.nodes = np.flatnonzero(cabling.depth >= 0).astype(np.int32)
        self.depth = cabling.depth[self.nodes]
        self.transit = np.array([cabling.tiers[node] != "storage" for node in self.nodes], bool)
        number = np.full(len(cabling.names), -1, np.int32)
        number[self.nodes] = np.arange(len(self.nodes))
        ends = number[cabling.ends]
        between = (cabling.parallel == 0) & (ends >= 0).all(axis=1)
        both = np.concatenate([ends[between], ends[between, ::-1]])
        order = np.lexsort((np.tile(cabling.laid[between], 2), both[:, 0]))
        self.here, self.there = both[order].T
        self.first = np.searchsorted(self.here, np.arange(len(self.nodes) + 1)).astype(np.int32)

    def steps(self, goals: Ints32) -> NDArray[np.int16]:
        """(switches, goals) steps from every switch to each of the switches ``goals``; no way leads
        through the switch of a storage system."""
        count = len(self.nodes)
        steps = np.full((count, len(goals)), FAR, np.int16)
        steps[goals, np.arange(len(goals))] = 0
        reached = np.packbits(steps == 0, axis=1)
        begun = reached.copy()
        linked = np.flatnonzero(np.diff(self.first))
        for number in range(1, count + 1):
            through = np.where(self.transit[:, None], reached, begun)
            further = reached.copy()
            if len(linked):
                several = np.bitwise_or.reduceat(through[self.there], self.first[linked])
                further[linked] |= several
            if np.array_equal(further, reached):
                break
            new = np.unpackbits(further & ~reached, axis=1, count=len(goals)).view(bool)
            steps[new] = number
            reached = further
        return steps

    def stand_in_levels(self) -> bool:
        """Whether each link between switches that are in transit leads up or down a level, or there
        is only one way between any two of them."""
        ways = np.stack([self.here, self.there], axis=1)
        ways = ways[(self.here < self.there) & self.transit[ways].all(axis=1)]
        if (np.abs(np.diff(self.depth[ways], axis=1)) == 1).all():
            return True
        joined = parts(len(self.nodes), ways)
        trees = (joined == np.arange(len(joined))).sum()
        return bool(len(ways) == len(self.nodes) - trees)


@dataclass(frozen=True)
class DirectedLinks:
    """The cables of a network, each in both directions: link 2k and link 2k + 1."""

    cabling: Cabling = field(repr=False)
    capacity: Floats  # (links,) bytes/s
    latency: Floats  # (links,) s, of the cable and of the switch that it enters
    leaves: Ints32  # (links,) the number of the node that each leaves
    enters: Ints32  # (links,) the number of the node that each enters

    def __len__(self) -> int:
        return len(self.capacity)

    @cached_property
    def names(self) -> list[str]:
        """Of all links."""
        return self.named(np.arange(len(self)))

    @cached_property
    def tiers(self) -> list[str]:
        """Of all links."""
        return self.tiers_of(np.arange(len(self)))

    def named(self, links: Ints) -> list[str]:
        """The names of some links: 'from>to', with '#k' for the k-th of several parallel ones."""
        cabling, nodes = self.cabling, self.cabling.names
        mark = np.where(cabling.several, cabling.parallel, -1)[links // 2].tolist()
        ends = (self.leaves[links].tolist(), self.enters[links].tolist())
        return [
            f"{nodes[a]}>{nodes[b]}" if k < 0 else f"{nodes[a]}>{nodes[b]}#{k}"
            for a, b, k in zip(*ends, mark, strict=True)
        ]

    def tiers_of(self, links: Ints) -> list[str]:
        """The tiers that some links join: 'leaf>fbb' and so on."""
        tier_of = self.cabling.tiers
        known = {name: i for i, name in enumerate(dict.fromkeys(tier_of))}
        number = np.array([known[name] for name in tier_of])
        both = [f"{a}>{b}" for a in known for b in known]
        pairs = number[self.leaves[links]] * len(known) + number[self.enters[links]]
        return [both[i] for i in pairs.tolist()]


def directed_links(cabling: Cabling) -> DirectedLinks:
    """All directed links of a network, in the order of its cables."""
    leaves, enters = cabling.ends.ravel(), cabling.ends[:, ::-1].ravel()
    latency = np.repeat(cabling.latency, 2) + cabling.crossing[enters]
    return DirectedLinks(cabling, np.repeat(cabling.bandwidth, 2), latency, leaves, enters)

"""Static destination routing: linear forwarding tables filled by D-mod-K.

On the way up, a switch at height l sends traffic for endpoint j through its up-link number ``(j //
(w_1 ... w_l)) mod K``, where ``w`` are the numbers of parents at the levels below and K counts its
up-links, numbered round robin over the parents (Zahavi, JPDC 2012: D-Mod-K). On the way down the
parallel links are chosen by the same digits, so that every endpoint has one chain of links of its
own and links of a level carry equal shares of uniform traffic. Endpoints are the HCAs, numbered
leaf switch by leaf switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.spec.late import networkx as nx
from simshuffle.topology.graph import Graph, switch_depths

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class DirectedLinks:
    """The cables of a network, each in both directions: link 2k and link 2k + 1.

    Attributes:
        names: 'from>to', with '#k' for the k-th of several parallel ones.
        tiers: 'leaf>fbb' and so on.
        capacity: (links,) bytes/s.
        latency: (links,) s, of the cable and of the switch that it enters.
        target: for each link the name of the node it enters.
    """

    names: list[str]
    tiers: list[str]
    capacity: NDArray[np.float64]
    latency: NDArray[np.float64]
    target: list[str]


def directed_links(graph: Graph) -> tuple[DirectedLinks, dict[tuple[str, str], list[int]]]:
    """All directed links of ``graph`` in its order, and their indices by (from, to)."""
    names: list[str] = []
    tiers: list[str] = []
    target: list[str] = []
    capacity: list[float] = []
    latency: list[float] = []
    between: dict[tuple[str, str], list[int]] = {}
    for a, b, data in graph.edges(data=True):
        for src, dst in ((a, b), (b, a)):
            parallel = between.setdefault((src, dst), [])
            several = graph.number_of_edges(a, b) > 1
            parallel.append(len(names))
            names.append(f"{src}>{dst}" + (f"#{len(parallel) - 1}" if several else ""))
            tiers.append(f"{graph.nodes[src]['tier']}>{graph.nodes[dst]['tier']}")
            target.append(dst)
            capacity.append(data["bandwidth"])
            latency.append(data["latency"] + graph.nodes[dst]["latency"])
    return DirectedLinks(names, tiers, np.array(capacity), np.array(latency), target), between


Towards = Callable[[str, str], str]
"""The neighbour through which a switch, the first argument, sends to what is attached to another
one, the second; on a shortest path between the two."""


def stands_in_levels(graph: Graph) -> bool:
    """Whether D-mod-K knows the routes between the switches of ``graph``: each link between them
    leads up or down a level (`switch_depths`), or there is only one way between any two."""
    depth = switch_depths(graph)
    switches = nx.Graph(graph.subgraph([s for s in depth if graph.nodes[s]["tier"] != "storage"]))
    return all(abs(depth[a] - depth[b]) == 1 for a, b in switches.edges) or nx.is_forest(switches)


class ForwardingTable:
    """Routes between the endpoints (HCAs and storage ports) of a network.

    Args:
        graph: the network, without `graph_problems`.
        towards: the routes between switches; None for D-mod-K.
    """

    def __init__(self, graph: Graph, towards: Towards | None = None) -> None:
        self._graph = graph
        self._towards = towards
        self.links, self._between = directed_links(graph)
        self._depth = switch_depths(graph)
        self._switches = list(self._depth)
        self._switch_number = {name: i for i, name in enumerate(self._switches)}
        self._entered = np.array(
            [self._switch_number.get(name, -1) for name in self.links.target], np.int32
        )
        self._switch_graph = nx.Graph(graph.subgraph(self._switches))
        self._neighbours = [
            [n for n in graph.neighbors(s) if n in self._depth] for s in self._switches
        ]
        self._number_endpoints()
        # endpoint -> its row of the table, -1 if not yet filled
        self._columns = np.full(len(self._at), -1, np.int32)
        # row of an endpoint: next link, by switch
        self._table = np.empty((0, len(self._switches)), np.int32)
        self._cable_cache: dict[tuple[str, ...], Ints] = {}

    def _number_endpoints(self) -> None:
        leaf_order = {name: i for i, name in enumerate(self._switches)}
        ports: list[tuple[int, int, str, str, int]] = []
        for order, (node, kind) in enumerate(self._graph.nodes(data="kind")):
            if kind == "switch":
                continue
            port = 0
            for switch in self._graph.neighbors(node):
                for cable in range(self._graph.number_of_edges(node, switch)):
                    if switch in leaf_order:
                        ports.append((leaf_order[switch], order, node, switch, cable))
                        port += 1
        ports.sort(key=lambda p: (self._graph.nodes[p[2]]["kind"] == "storage", p[0], p[1], p[4]))
        self._endpoints: dict[str, list[int]] = {}
        inject, eject, at = [], [], []
        for number, (_, _, node, switch, cable) in enumerate(ports):
            self._endpoints.setdefault(node, []).append(number)
            inject.append(self._between[node, switch][cable])
            eject.append(self._between[switch, node][cable])
            at.append(self._switch_number[switch])
        self._inject, self._eject, self._at = (np.array(x, np.int32) for x in (inject, eject, at))

    def endpoints(self, node: str) -> list[int]:
        """Numbers of the ports of a host or storage system, in the order of its links to leaf
        switches."""
        return self._endpoints[node]

    def leaves(self, endpoints: Ints) -> list[str]:
        """The switch that each of ``endpoints`` (n,) is attached to."""
        return [self._switches[number] for number in self._at[endpoints].tolist()]

    @cached_property
    def diameter(self) -> int:
        """Links of the longest route that there can be, the injecting and ejecting ones
        included."""
        # of the topmost switches, if the topology says that it is a tree
        height = self._graph.graph.get("height")
        if height is not None:
            # between hosts; from a storage system above the topmost switches
            return max(2 * int(height) + 2, int(height) + 3)
        transit = self._switch_graph.subgraph([s for s in self._switches if self._is_transit(s)])
        return 3 + max(
            int(max(reach.values())) for _, reach in nx.all_pairs_shortest_path_length(transit)
        )

    @cached_property
    def _strides(self) -> dict[int, int]:
        """Product of the numbers of parents below each height."""
        parents: dict[int, int] = {}
        for switch in self._switches:
            height = self._depth[switch]
            above = sum(
                1
                for n in self._graph.neighbors(switch)
                if self._depth.get(n, -1) == height + 1 and self._is_transit(n)
            )
            parents[height] = max(parents.get(height, 1), above)
        strides = {0: 1}
        for height in range(max(self._depth.values()) + 1):
            strides[height + 1] = strides[height] * parents.get(height, 1)
        return strides

    def _is_transit(self, switch: str) -> bool:
        return str(self._graph.nodes[switch]["tier"]) != "storage"

    def _fill(self, leaf: int) -> None:
        """Enter, in the table of every switch, the endpoints attached to switch number ``leaf``."""
        name = self._switches[leaf]
        endpoints = np.flatnonzero(self._at == leaf).astype(np.int32)
        self._columns[endpoints] = len(self._table) + np.arange(len(endpoints))
        block = np.full((len(endpoints), len(self._switches)), -1, np.int32)
        distance = self._distances(name)
        for number, switch in enumerate(self._switches):
            if switch != name and switch in distance:
                ways = [n for n in self._neighbours[number] if n == name or self._is_transit(n)]
                nearer = [n for n in ways if distance[n] == distance[switch] - 1]
                if self._towards is not None and len(nearer) > 1:
                    nearer = [nearer[nearer.index(self._towards(switch, name))]]
                block[:, number] = self._choose(switch, nearer, endpoints)
        self._table = np.concatenate([self._table, block])

    def _distances(self, goal: str) -> dict[str, int]:
        """Steps from every switch to ``goal``; no way leads through the switch of a storage
        system."""
        through = self._switch_graph.subgraph(
            [s for s in self._switches if s == goal or self._is_transit(s)]
        )
        distance: dict[str, int] = dict(nx.single_source_shortest_path_length(through, goal))
        for switch in self._switches:
            if switch not in distance:
                distance[switch] = 1 + min(
                    distance[n] for n in self._switch_graph.neighbors(switch)
                )
        return distance

    def _choose(self, switch: str, nearer: list[str], endpoints: Ints) -> Ints:
        """The link of ``switch`` for each endpoint, among those to its ``nearer`` neighbours."""
        height = self._depth[switch]
        if all(self._depth[n] < height for n in nearer):  # down: the digits that lead up there
            stride = self._strides[height - 1]
            width = self._strides[height] // stride
            cables = self._cables(switch, nearer)
            side = self._descent(height, len(nearer), endpoints)
            return np.asarray(cables[side, (endpoints // stride // width) % cables.shape[1]])
        # up: round robin over the parents, then over parallel links
        cables = self._cables(switch, nearer).T.ravel()
        return np.asarray(cables[(endpoints // self._strides[height]) % len(cables)])

    def _descent(self, height: int, count: int, endpoints: Ints) -> Ints:
        """Which of ``count`` lower neighbours leads down to each endpoint: the parents that D-mod-K
        takes for it on its own way up."""
        side, place = np.zeros_like(endpoints), 1
        for below in range(height - 1, 0, -1):
            parents = self._strides[below] // self._strides[below - 1]
            side += (endpoints // self._strides[below - 1]) % parents * place
            place *= parents
            if place >= count:
                return side % count
        return (side + place * (endpoints // place)) % count

    def _cables(self, switch: str, nearer: list[str]) -> Ints:
        """Links from ``switch`` to each of ``nearer``, (neighbours, parallel links); cut to the
        fewest parallel ones."""
        key = (switch, *nearer)
        if key not in self._cable_cache:
            parallel = [self._between[switch, n] for n in nearer]
            fewest = min(len(links) for links in parallel)
            self._cable_cache[key] = np.array([links[:fewest] for links in parallel], np.int32)
        return self._cable_cache[key]

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Links from endpoint ``src[i]`` to ``dst[i]``: (n, `diameter`) int32, padded with -1."""
        out = np.full((len(src), self.diameter), -1, np.int32)
        if not len(src):
            return out
        for leaf in np.unique(self._at[dst[self._columns[dst] < 0]]).tolist():
            self._fill(leaf)
        column = self._columns[dst]
        out[:, 0] = self._inject[src]
        here = self._at[src]
        goal = self._at[dst]
        rows = np.arange(len(src))
        hop = 1
        while len(rows):
            there = here[rows] == goal[rows]
            out[rows[there], hop] = self._eject[dst[rows[there]]]
            rows = rows[~there]
            following = self._table[column[rows], here[rows]]
            out[rows, hop] = following
            here[rows] = self._entered[following]
            hop += 1
        return out

    def latencies(self, routes: Ints) -> NDArray[np.float64]:
        """(n,) sum of the link latencies of each route (s)."""
        padded = np.append(self.links.latency, 0.0)
        return np.asarray(padded[routes].sum(axis=1))

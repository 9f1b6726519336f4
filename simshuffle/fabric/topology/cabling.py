"""A network as arrays (`Cabling`), and its switches as a graph of arcs (`SwitchGraph`).
Routes, levels and racks are found in these arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32, Ints64

FAR = np.iinfo(np.int16).max
"""Number of steps that stands for "cannot be reached"."""


@dataclass(frozen=True)
class Cabling:
    """A network as arrays: its nodes, numbered in the order in which they were added,
    and its cables.

    Cables stand in the order of networkx: first those of the first node, ordered by the
    neighbour to which the node was linked first; then those of the second node to later
    nodes, and so on.
    """

    names: list[str]  # (nodes,) name of each node
    kinds: list[str]  # (nodes,) 'host', 'switch', 'storage' or 'other'
    tiers: list[str]  # (nodes,) name of the level of each node
    crossing_latency: Floats  # (nodes,) s, of crossing each node
    ends: Ints32  # (cables, 2) the nodes at both ends, the earlier one first
    # (cables,) index of each cable among the edges of the graph: of a `Sketch`, in the order in
    # which they were added
    insertion_order: Ints32
    parallel: Ints32  # (cables,) index of the cable among those between its two nodes
    has_parallel: Flags  # (cables,) True if other cables join the same two nodes
    bandwidth: Floats  # (cables,) bytes/s in each direction
    latency: Floats  # (cables,) s
    # the number of switch levels less one; None if the network is not said to be a tree
    height: int | None
    # (nodes, dimensions) coordinates of the switches, -1 for nodes without; None if no node has any
    coordinates: Ints32 | None = None
    # (cables, 2) index of the port at each end, -1 where it is not known; None if none is known
    ports: Ints32 | None = None

    @staticmethod
    def from_graph(graph: Any) -> Cabling:
        """Turn a graph that is a valid network (`simshuffle.fabric.topology.graph`)
        into a cabling; a cabling is returned as is.

        The graph is not checked. A node without a latency takes 0 s to cross.
        """
        if isinstance(graph, Cabling):
            return graph
        nodes = dict(graph.nodes(data=True))
        edges = list(graph.edges(data=True))
        index_of_node = {name: i for i, name in enumerate(nodes)}
        # (edges, 2) the two nodes of each edge, the lower one first
        nodes_of_edges = [
            [index_of_node[src], index_of_node[dst]] for src, dst, _ in edges
        ]
        ends_of_edges = np.sort(
            np.array(nodes_of_edges, np.int32).reshape(-1, 2), axis=1
        )

        # one number for each pair of nodes, whichever is named first: lower * nodes + upper
        pair_of_edge = (
            ends_of_edges[:, 0].astype(np.int64) * len(nodes) + ends_of_edges[:, 1]
        )
        _, first_edge, pair_index, num_edges = np.unique(
            pair_of_edge, return_index=True, return_inverse=True, return_counts=True
        )
        # cables by their lower node, then by the first edge between their two nodes
        cable_order = np.lexsort((first_edge[pair_index], ends_of_edges[:, 0]))
        first_of_pair = np.flatnonzero(np.diff(pair_of_edge[cable_order], prepend=-1))
        parallel = np.arange(len(cable_order)) - np.repeat(
            first_of_pair, np.diff(first_of_pair, append=len(cable_order))
        )
        bandwidth, latency = (
            np.array([data[key] for _, _, data in edges], float)[cable_order]
            for key in ("bandwidth", "latency")
        )
        node_attributes = list(nodes.values())
        crossing = [data.get("latency", 0.0) for data in node_attributes]
        return Cabling(
            names=list(nodes),
            kinds=[data["kind"] for data in node_attributes],
            tiers=[data["tier"] for data in node_attributes],
            crossing_latency=np.array(crossing, float),
            ends=ends_of_edges[cable_order],
            insertion_order=cable_order.astype(np.int32),
            parallel=parallel.astype(np.int32),
            has_parallel=(num_edges > 1)[pair_index][cable_order],
            bandwidth=bandwidth,
            latency=latency,
            height=graph.graph.get("height"),
            coordinates=_coordinates_of_nodes(node_attributes),
            ports=_ports_of_cables(edges, index_of_node, cable_order),
        )

    def with_storage(
        self, name: str, *, bandwidth: float, latency: float, links: int
    ) -> Cabling:
        """Return this network with a storage system added at the switches farthest from
        the hosts.

        The storage system hangs on a switch of its own, ``NAME.switch``, by one cable
        with the bandwidth of all links together and no latency. Each of the farthest
        switches gets ``links`` links to that switch. Both new nodes have the tier
        'storage', and no coordinates or ports.

        Args:
            name: name of the storage system.
            bandwidth: of each link, bytes/s in each direction.
            latency: of the cable of each link, s.
            links: parallel links from each of the farthest switches.
        """
        top_switches = np.flatnonzero(self.depth == self.depth.max()).astype(np.int32)
        storage_switch = len(self.names)
        storage = storage_switch + 1
        num_links = links * len(top_switches)
        total_bandwidth = bandwidth * links * len(top_switches)

        # new rows of the cables: from the top switches to the storage switch, the last one from
        # there to the storage system
        new_ends = np.full((num_links + 1, 2), storage_switch, np.int32)
        new_ends[:num_links, 0] = np.repeat(top_switches, links)
        new_ends[num_links, 1] = storage
        ends = np.concatenate([self.ends, new_ends])
        order = np.argsort(ends[:, 0], kind="stable")

        def append(values: Any, of_links: Any, of_storage: Any) -> Any:
            """(cables,) ``values`` and the ones of the new cables, in the order of all
            cables.
            """
            new_values = np.append(of_links, of_storage).astype(values.dtype)
            return np.concatenate([values, new_values])[order]

        def append_unknown(table: Ints32 | None, rows: int) -> Ints32 | None:
            """``table`` with so many further rows of -1; None stays None."""
            return (
                None
                if table is None
                else np.pad(table, ((0, rows), (0, 0)), constant_values=-1)
            )

        ports = append_unknown(self.ports, num_links + 1)
        num_cables = len(self.insertion_order)
        new_cables = num_cables + np.arange(num_links)
        return Cabling(
            names=[*self.names, f"{name}.switch", name],
            kinds=[*self.kinds, "switch", "storage"],
            tiers=[*self.tiers, "storage", "storage"],
            crossing_latency=np.append(self.crossing_latency, [0.0, 0.0]),
            ends=ends[order],
            insertion_order=append(
                self.insertion_order, new_cables, num_cables + num_links
            ),
            parallel=append(
                self.parallel, np.tile(np.arange(links), len(top_switches)), 0
            ),
            has_parallel=append(
                self.has_parallel, np.full(num_links, links > 1), False
            ),
            bandwidth=append(
                self.bandwidth, np.full(num_links, bandwidth), total_bandwidth
            ),
            latency=append(self.latency, np.full(num_links, latency), 0.0),
            height=self.height,
            coordinates=append_unknown(self.coordinates, 2),
            ports=None if ports is None else ports[order],
        )

    def nodes_of_kind(self, kind: str) -> Ints32:
        """Indices of the nodes of a kind, ascending."""
        return np.flatnonzero(np.array(self.kinds) == kind).astype(np.int32)

    @cached_property
    def depth(self) -> Ints32:
        """(nodes,) distance of each switch from the nearest host, 0 for leaf switches;
        -1 for nodes that are no switch and for switches that no host reaches.

        A node of kind 'other' and tier 'host' takes no part in traffic but counts as a
        host here.
        """
        host_like_nodes = [
            node
            for node in self.nodes_of_kind("other").tolist()
            if self.tiers[node] == "host"
        ]
        start_nodes = np.append(
            self.nodes_of_kind("host"), np.array(host_like_nodes, np.int32)
        )
        steps = self._steps_from(start_nodes)
        is_switch = np.zeros(len(self.names), bool)
        is_switch[self.nodes_of_kind("switch")] = True
        return np.where(is_switch & (steps > 0), steps - 1, -1).astype(np.int32)

    def _steps_from(self, start_nodes: Ints32) -> Ints32:
        """(nodes,) steps from the nearest of ``start_nodes`` to each node; -1 for nodes
        that are not reached.
        """
        first_neighbour, neighbours = self.neighbours
        steps = np.full(len(self.names), -1, np.int32)
        distance = 0
        frontier = start_nodes
        while len(frontier):
            steps[frontier] = distance
            rows = concatenate_ranges(
                first_neighbour[frontier], first_neighbour[frontier + 1]
            )
            adjacent_nodes = neighbours[rows]
            frontier = np.unique(adjacent_nodes[steps[adjacent_nodes] < 0])
            distance += 1
        return steps

    @cached_property
    def usual_bandwidth(self) -> Floats:
        """(cables,) bandwidth, in bytes/s, that is most common among the cables that
        join the two tiers of each cable; of equally common ones the highest.
        """
        index_of_tier = {
            tier: index for index, tier in enumerate(dict.fromkeys(self.tiers))
        }
        tier_index = np.array([index_of_tier[tier] for tier in self.tiers])
        # one group for each pair of tiers: lower * tiers + upper
        lower, upper = np.sort(tier_index[self.ends], axis=1).T
        return most_common_bandwidth(lower * len(index_of_tier) + upper, self.bandwidth)

    @cached_property
    def neighbours(self) -> tuple[Ints32, Ints32]:
        """The neighbours of every node as a pair of arrays: ``(first_neighbour,
        neighbours)``.

        ``neighbours[first_neighbour[i]:first_neighbour[i + 1]]`` are the nodes at the
        other ends of the cables of node i, one entry for each cable.
        ``first_neighbour`` has shape (nodes + 1,).
        """
        # every cable twice: seen from its first end, and from its second
        src = self.ends.T.ravel()
        dst = self.ends[:, ::-1].T.ravel()
        first_neighbour = np.zeros(len(self.names) + 1, np.int32)
        np.cumsum(np.bincount(src, minlength=len(self.names)), out=first_neighbour[1:])
        return first_neighbour, dst[np.argsort(src, kind="stable")]

    def components(self, is_included: Flags) -> Ints32:
        """(nodes,) label of the connected component of each node, counting only cables
        between nodes with ``is_included``.

        The label is the lowest node of the component. A node that is not included is a
        component of its own.

        Args:
            is_included: (nodes,) True for the nodes that may join others.
        """
        return connected_components(
            len(self.names), self.ends[is_included[self.ends].all(axis=1)]
        )


def most_common_bandwidth(group_of_cable: Ints, bandwidth: Floats) -> Floats:
    """(n,) for each cable the bandwidth, in bytes/s, that is most common in its group;
    of equally common ones the highest.

    Args:
        group_of_cable: (n,) any integer that names the group of each cable.
        bandwidth: (n,) bytes/s of each cable.
    """
    _, group_of_cable = np.unique(group_of_cable, return_inverse=True)
    distinct_rates, rate_index = np.unique(bandwidth, return_inverse=True)

    # one number for each pair of a group and a rate: group * rates + rate
    pairs, count = np.unique(
        group_of_cable * len(distinct_rates) + rate_index, return_counts=True
    )
    # ascending by count: the last pair of each group, which is written last, has the highest
    sorted_pairs = pairs[np.lexsort((pairs, count))]
    most_common_rate = np.zeros(group_of_cable.max(initial=-1) + 1, int)
    group, rate = np.divmod(sorted_pairs, len(distinct_rates))
    most_common_rate[group] = rate
    return np.asarray(distinct_rates[most_common_rate[group_of_cable]])


def _coordinates_of_nodes(nodes: list[dict[str, Any]]) -> Ints32 | None:
    """(nodes, dimensions) `Cabling.coordinates` from the attributes of all nodes; None
    if no node has coordinates.
    """
    coordinates = [data.get("coordinates", ()) for data in nodes]
    num_dimensions = max(map(len, coordinates), default=0)
    if not num_dimensions:
        return None
    out = np.full((len(coordinates), num_dimensions), -1, np.int32)
    for size in {len(node_coordinates) for node_coordinates in coordinates} - {0}:
        rows = [
            row
            for row, node_coordinates in enumerate(coordinates)
            if len(node_coordinates) == size
        ]
        out[rows, :size] = [coordinates[row] for row in rows]
    return out


def _ports_of_cables(
    edges: list[Any], index_of_node: dict[str, int], cable_order: Ints64
) -> Ints32 | None:
    """(cables, 2) `Cabling.ports` from the edges of a graph, the port at the earlier
    node first; None if no edge has ports.

    Args:
        edges: (node, node, attributes) of each edge, in the order of the graph.
        index_of_node: index of each node by its name.
        cable_order: (cables,) the edge that each cable is.
    """
    if all("ports" not in data for _, _, data in edges):
        return None
    ports_of_edges = (data.get("ports", (-1, -1)) for *_, data in edges)
    sorted_ports = [
        ports if index_of_node[a] < index_of_node[b] else ports[::-1]
        for ports, (a, b, _) in zip(ports_of_edges, edges, strict=True)
    ]
    return np.array(sorted_ports, np.int32)[cable_order]


def connected_components(num_nodes: int, ends: Ints32) -> Ints32:
    """(num_nodes,) label of the connected component of each node: the lowest node of
    the component.

    Args:
        num_nodes: nodes of the graph.
        ends: (links, 2) the two nodes that each link joins.
    """
    label = np.arange(num_nodes, dtype=np.int32)
    while True:
        end_labels = label[ends]
        lower = end_labels.min(axis=1)
        upper = end_labels.max(axis=1)
        if (lower == upper).all():
            return label
        np.minimum.at(label, upper, lower)
        while (compressed := label[label]).tobytes() != label.tobytes():
            label = compressed


def concatenate_ranges(first: Ints, end: Ints) -> Ints64:
    """Concatenate the integer ranges from each of ``first`` (n,) to below each of
    ``end`` (n,), in order.
    """
    # entry j of range i is first[i] + j; it stands at begin[i] + j of the result
    counts = (end - first).astype(np.int64)
    begin = np.cumsum(counts) - counts
    return np.asarray(np.arange(counts.sum()) + np.repeat(first - begin, counts))


class SwitchGraph:
    """The switches of a network that hosts reach, and the arcs between them.

    An arc is an ordered pair of linked switches, however many parallel links join them.
    Switches are numbered in the order of their nodes.

    Attributes:
        nodes: (switches,) the node of `Cabling` that each switch is.
        depth: (switches,) distance from the nearest host, see `Cabling.depth`.
        is_transit: (switches,) True where routes may lead through; False for the switch
            of a storage system.
        arc_src, arc_dst: (arcs,) the two switches of each arc; arcs are ordered by
            ``arc_src``, then by `Cabling.insertion_order` of their first cable.
        first_arc: (switches + 1,) where the arcs of each switch begin.
    """

    def __init__(self, cabling: Cabling) -> None:
        self.nodes = np.flatnonzero(cabling.depth >= 0).astype(np.int32)
        self.depth = cabling.depth[self.nodes]
        self.is_transit = np.array(
            [cabling.tiers[node] != "storage" for node in self.nodes], bool
        )
        switch_of_node = np.full(len(cabling.names), -1, np.int32)
        switch_of_node[self.nodes] = np.arange(len(self.nodes))
        ends = switch_of_node[cabling.ends]
        # (arcs, 2) both directions of the first of the parallel cables between two switches
        is_counted = (cabling.parallel == 0) & (ends >= 0).all(axis=1)
        arcs = np.concatenate([ends[is_counted], ends[is_counted, ::-1]])
        arc_order = np.lexsort(
            (np.tile(cabling.insertion_order[is_counted], 2), arcs[:, 0])
        )
        self.arc_src, self.arc_dst = arcs[arc_order].T
        self.first_arc = np.searchsorted(
            self.arc_src, np.arange(len(self.nodes) + 1)
        ).astype(np.int32)

    def steps(self, goals: Ints32) -> NDArray[np.int16]:
        """(switches, goals) int16 steps from every switch to each goal switch; `FAR`
        where no route leads.

        No route leads through the switch of a storage system.

        Args:
            goals: (goals,) the switches that are searched from.
        """
        num_switches = len(self.nodes)
        steps = np.full((num_switches, len(goals)), FAR, np.int16)
        steps[goals, np.arange(len(goals))] = 0
        # (switches, goals / 8) bits: row a, bit g says whether goal g is reached from switch a
        reached_bits = np.packbits(steps == 0, axis=1)
        start_bits = reached_bits
        linked_switches = np.flatnonzero(np.diff(self.first_arc))
        for distance in range(1, num_switches):
            passable_bits = np.where(self.is_transit[:, None], reached_bits, start_bits)
            next_bits = reached_bits.copy()
            if len(linked_switches):
                neighbour_bits = np.bitwise_or.reduceat(
                    passable_bits[self.arc_dst], self.first_arc[linked_switches]
                )
                next_bits[linked_switches] |= neighbour_bits
            if np.array_equal(next_bits, reached_bits):
                break
            is_new = np.unpackbits(
                next_bits & ~reached_bits, axis=1, count=len(goals)
            ).view(bool)
            steps[is_new] = distance
            reached_bits = next_bits
        return steps

    def stand_in_levels(self) -> bool:
        """Return True if the switches stand in levels, as D-mod-K needs.

        True if each link between transit switches leads up or down one level, or if
        only one path joins any two of them (a forest).
        """
        arcs = np.stack([self.arc_src, self.arc_dst], axis=1)
        arcs = arcs[(self.arc_src < self.arc_dst) & self.is_transit[arcs].all(axis=1)]
        if (np.abs(np.diff(self.depth[arcs], axis=1)) == 1).all():
            return True
        component = connected_components(len(self.nodes), arcs)
        num_components = (component == np.arange(len(component))).sum()
        return bool(len(arcs) == len(self.nodes) - num_components)

"""A network in the form that routings need: its ports, its directed links, and the
links that lead nearer to each goal switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.routing.steps import GROUP_HOP, direct_steps
from simshuffle.fabric.topology.cabling import (
    FAR,
    Cabling,
    SwitchGraph,
    concatenate_ranges,
)
from simshuffle.fabric.topology.directed_links import directed_links
from simshuffle.spec.arrays import Flags, Ints, Ints32, Ints64


@dataclass(frozen=True)
class Choices:
    """The links among which switches choose the next one of a route, towards each goal
    switch.

    A choice is a set of links of one switch. All goals with the same neighbours to
    choose from share it.
    """

    # (switches, goals) the choice that a switch has towards a goal; -1 at the goal itself, and
    # where no route leads
    index: Ints32
    num_neighbours: Ints32  # (choices,) neighbours to choose from
    num_parallel: (
        Ints32  # (choices,) parallel links to each neighbour, or to the one with fewest
    )
    leads_down: Flags  # (choices,) True if all neighbours are lower than the switch
    first_link: (
        Ints64  # (choices + 1,) where the links of each choice begin in ``links``
    )
    links: Ints32  # links of all choices, by neighbour, then by parallel link
    # (choices + 1,) where the neighbours of each choice begin in ``first_link_of_neighbour``
    first_neighbour: Ints64
    # (neighbours of all choices,) where the links to each neighbour begin in ``links``
    first_link_of_neighbour: Ints64


class GoalArcs(NamedTuple):
    """The arcs that lead nearer to goals: an arc does if ``remaining_steps`` falls by
    ``arc_cost``.

    Where few messages go between few of many switches, this takes less memory and time
    than `Choices`.
    """

    # (goals, switches) steps from each switch to each goal, `GROUP_HOP` more for a hop between
    # groups; `FAR` where no route leads
    remaining_steps: NDArray[np.int16]
    first_arc: Ints32  # (switches + 1,) where the arcs of each switch begin
    arc_dst: Ints32  # (arcs,) the switch at the end of each arc
    arc_cost: Ints32  # (arcs,) steps that each arc counts
    # (switches,) False for the switch of a storage system, which no route leads through
    is_transit: Flags
    first_link: Ints64  # (arcs,) where the links of each arc begin in ``links``
    end_link: Ints64  # (arcs,) where they end
    links: Ints32  # the links between switches, arc by arc


class Fabric:
    """A network with ports and arcs: what routers read to find routes.

    Ports are the HCAs of hosts and of storage systems; a node of kind 'other' that is
    linked to a switch has ports, too. Arcs are ordered pairs of linked switches,
    ordered as in `SwitchGraph`.

    Args:
        graph: the network, or its `Cabling`, without `graph_problems`; not checked.

    Attributes:
        cabling: the network.
        links: its cables as directed links.
        switches: the switches that some host reaches.
        switch_of_node: (nodes,) the switch that each node is, -1 for other nodes.
        entered_switch: (links,) the switch that each link enters; -1 if the link enters
            another node.
        switch_links: the links between switches, arc by arc.
        inject_link, eject_link: (ports,) the links of each port to its switch and back.
        switch_of_port: (ports,) the switch of each port. Ports are numbered switch by
            switch, then by node and parallel link; ports of storage systems come last.
        is_storage_port: (ports,) True for the ports of storage systems.
        goals: the switches that have ports, ascending.
        goal_of_port: (ports,) index in ``goals`` of the switch of each port.
        links_per_arc: (arcs,) parallel links of each arc.
    """

    def __init__(self, graph: Any) -> None:
        cabling = Cabling.from_graph(graph)
        self.cabling = cabling
        self.links = directed_links(cabling)
        self.switches = SwitchGraph(cabling)
        self.switch_of_node = np.full(len(cabling.names), -1, np.int32)
        self.switch_of_node[self.switches.nodes] = np.arange(len(self.switches.nodes))
        self.entered_switch: Ints32 = self.switch_of_node[self.links.dst_node]
        self._index_ports()
        self._index_arcs()
        goals, goal_of_port = np.unique(self.switch_of_port, return_inverse=True)
        self.goals: Ints32 = goals
        self.goal_of_port: Ints32 = goal_of_port.astype(np.int32)

    def _index_ports(self) -> None:
        """Number the ports switch by switch, storage systems last, and set their
        attributes.
        """
        cabling = self.cabling
        src_node = self.links.src_node
        is_switch = np.isin(
            np.arange(len(cabling.names)), cabling.nodes_of_kind("switch")
        )
        inject_link = np.flatnonzero(~is_switch[src_node] & (self.entered_switch >= 0))
        node = src_node[inject_link]
        switch = self.entered_switch[inject_link]
        is_storage = np.isin(node, cabling.nodes_of_kind("storage"))
        order = np.lexsort(
            (cabling.parallel[inject_link // 2], node, switch, is_storage)
        )
        self.is_storage_port: Flags = is_storage[order]
        self.inject_link: Ints32 = inject_link[order].astype(np.int32)
        # links 2k and 2k + 1 are the two directions of cable k: their indices differ in one bit
        self.eject_link: Ints32 = self.inject_link ^ 1
        self.switch_of_port: Ints32 = switch[order]
        self._endpoints: dict[str, list[int]] = {}
        for port, owner in enumerate(node[order].tolist()):
            self._endpoints.setdefault(cabling.names[owner], []).append(port)

    def _index_arcs(self) -> None:
        """Set ``switch_links`` and where the links of every arc begin in it, in the
        order of `SwitchGraph.arc_src`.
        """
        switches = self.switches
        count = len(switches.nodes)
        src = self.switch_of_node[self.links.src_node]
        dst = self.entered_switch
        links = np.flatnonzero((src >= 0) & (dst >= 0))

        # one number for each ordered pair of switches, src * switches + dst; sorted by that
        # number, the links of an arc lie side by side
        arc_of_link = src[links].astype(np.int64) * count + dst[links]
        order = np.argsort(arc_of_link, kind="stable")
        arc_keys = switches.arc_src.astype(np.int64) * count + switches.arc_dst
        first_link = np.searchsorted(arc_of_link[order], arc_keys, "left")
        end_link = np.searchsorted(arc_of_link[order], arc_keys, "right")

        # the arcs of a switch come in the order of their cables, not of their numbers
        sorted_links = links[order].astype(np.int32)
        self.switch_links = sorted_links[concatenate_ranges(first_link, end_link)]
        self.links_per_arc = end_link - first_link
        self._first_link_of_arc = np.cumsum(self.links_per_arc) - self.links_per_arc

    def endpoints(self, node: str) -> list[int]:
        """List the ports of a host or storage system, ordered by their switch, then by
        parallel link.

        Raises:
            KeyError: no node of this name has a link to a switch that hosts reach.
        """
        return self._endpoints[node]

    def switch_names(self, switches: Ints32) -> list[str]:
        """List the names of ``switches`` (n,)."""
        return [
            self.cabling.names[node] for node in self.switches.nodes[switches].tolist()
        ]

    @cached_property
    def groups(self) -> Ints32 | None:
        """(switches,) the group of each switch: the first of its coordinates, -1 for a
        switch without coordinates; None if no node has coordinates.
        """
        coordinates = self.cabling.coordinates
        return None if coordinates is None else coordinates[self.switches.nodes, 0]

    @cached_property
    def longest_route(self) -> int:
        """Number of links that no shortest route exceeds, the injecting and ejecting
        links included. It is an upper bound: no route need be so long.
        """
        # of the topmost switches, if the topology says that it is a tree
        height = self.cabling.height
        if height is not None:
            # between hosts; from a storage system above the topmost switches
            return max(2 * height + 2, height + 3)
        transit = np.flatnonzero(self.switches.is_transit).astype(np.int32)
        steps = self.switches.steps(transit)[transit]
        return 3 + int(steps[steps < FAR].max())

    @cached_property
    def shortest_choices(self) -> Choices:
        """The choices among all links that begin a shortest route."""
        steps = self.switches.steps(self.goals)
        return self.choices_by_steps(
            steps, np.ones(len(self.switches.arc_src), steps.dtype)
        )

    @cached_property
    def direct_choices(self) -> Choices:
        """The choices among the links that begin a route with at most one hop between
        groups: the routes with the fewest such hops, of those the shortest. Only where
        `has_linked_groups`.
        """
        return self.choices_by_steps(self._direct_steps, self._arc_cost)

    @cached_property
    def longest_direct_route(self) -> int:
        """Number of links of the longest route of `direct_choices`, the injecting and
        ejecting links included. Only where `has_linked_groups`.
        """
        return 2 + int((self._direct_steps % GROUP_HOP).max())

    @cached_property
    def has_linked_groups(self) -> bool:
        """True if the switches stand in groups, each group is linked to all others, and
        routes with at most one hop between groups reach every goal.

        False if no switch has coordinates. A single group needs no links to others.
        """
        if self.groups is None:
            return False
        is_global = self._arc_cost > 1
        src_group = self.groups[self.switches.arc_src[is_global]].astype(np.int64)
        dst_group = self.groups[self.switches.arc_dst[is_global]]
        num_pairs = len(np.unique(src_group << 32 | dst_group))
        num_groups = len(np.unique(self.groups[self.groups >= 0]))
        if num_pairs < num_groups * (num_groups - 1):
            return False  # as is seen without a table of all pairs of switches
        return not (self._direct_steps == FAR).any()

    @cached_property
    def _arc_cost(self) -> Ints32:
        """(arcs,) steps that each arc counts: 1, and `GROUP_HOP` more between two
        groups. An arc at a switch without a group counts 1.
        """
        groups = self.groups
        assert groups is not None  # noqa: S101 - checked where the router is made
        src_group = groups[self.switches.arc_src]
        dst_group = groups[self.switches.arc_dst]
        is_global = (src_group != dst_group) & (src_group >= 0) & (dst_group >= 0)
        return np.where(is_global, GROUP_HOP + 1, 1).astype(np.int32)

    @cached_property
    def goal_arcs(self) -> GoalArcs:
        """The arcs that lead nearer to goals: on the routes of `direct_choices` where
        `has_linked_groups`, else on shortest routes.
        """
        switches = self.switches
        if self.has_linked_groups:
            steps = self._direct_steps
            arc_cost = self._arc_cost
        else:
            steps = switches.steps(self.goals)
            arc_cost = np.ones(len(switches.arc_src), np.int32)
        first_link = self._first_link_of_arc.astype(np.int64)
        return GoalArcs(
            remaining_steps=np.ascontiguousarray(steps.T),
            first_arc=switches.first_arc,
            arc_dst=switches.arc_dst,
            arc_cost=arc_cost,
            is_transit=switches.is_transit,
            first_link=first_link,
            end_link=first_link + self.links_per_arc,
            links=self.switch_links,
        )

    @cached_property
    def _direct_steps(self) -> NDArray[np.int16]:
        """(switches, goals) steps to each goal, `GROUP_HOP` more for a hop between
        groups; `FAR` if one such hop is not enough.
        """
        return direct_steps(self.switches, self.goals, self._arc_cost)

    @cached_property
    def port_order(self) -> Ints32 | None:
        """(links,) number of the port by which each link leaves its node; -1 where it
        is not known. None if no port is known.

        Routings prefer the link with the lowest number among equals.
        """
        ports = self.cabling.ports
        return None if ports is None else ports.ravel()

    def choices_by_steps(self, steps: Ints, cost: Ints) -> Choices:
        """Build the choices among the links by which a goal gets nearer.

        Args:
            steps: (switches, goals) steps from each switch to each goal.
            cost: (arcs,) steps that each arc counts, in the order of
                `SwitchGraph.arc_src`. An arc is chosen if it takes just its cost off
                the steps to a goal.
        """

        def nearer(switch: int, arcs: slice) -> Flags:
            """(arcs, goals) True where an arc leads nearer by just its cost."""
            dst = self.switches.arc_dst[arcs]
            return np.asarray(steps[dst] == steps[switch] - cost[arcs][:, None])

        return self.build_choices(nearer)

    def is_passable(self, arcs: slice) -> Flags:
        """(arcs, goals) True where one of the ``arcs`` (a slice) may lead to a goal: an
        arc to the switch of a storage system leads to that goal only.
        """
        dst = self.switches.arc_dst[arcs]
        return np.asarray(
            self.switches.is_transit[dst][:, None] | (dst[:, None] == self.goals)
        )

    def build_choices(self, nearer: Any) -> Choices:
        """Build the choices from a rule that says which arcs lead nearer.

        Args:
            nearer: called with a switch and the slice of its arcs; returns (arcs,
                goals) True where an arc leads nearer to a goal. Arcs that are not
                `is_passable` are left out.
        """
        switches = self.switches
        choice_index = np.full((len(switches.nodes), len(self.goals)), -1, np.int32)
        num_choices = 0
        # for each switch: the arcs of its choices, one choice after the other; arcs of each choice
        arcs_of_switches = [np.zeros(0, np.int64)]
        counts_of_switches = [np.zeros(0, np.int64)]
        # for each switch: (arcs, goals) which arcs may be taken; goals with equal columns share a
        # choice, and a column without any arc is none
        for switch in range(len(switches.nodes)):
            arcs = slice(switches.first_arc[switch], switches.first_arc[switch + 1])
            if arcs.start == arcs.stop:
                continue
            is_allowed = nearer(switch, arcs)
            if not switches.is_transit[switches.arc_dst[arcs]].all():
                is_allowed &= self.is_passable(arcs)
            example_goals, kind_of_goal = _group_equal_columns(is_allowed)
            has_arcs = is_allowed[:, example_goals].any(axis=0)
            new_choice = num_choices + np.cumsum(has_arcs) - 1
            choice_index[switch] = np.where(has_arcs, new_choice, -1)[kind_of_goal]
            if not has_arcs.any():
                continue
            choice, arc = np.nonzero(is_allowed[:, example_goals[has_arcs]].T)
            arcs_of_switches.append(switches.first_arc[switch] + arc)
            counts_of_switches.append(np.bincount(choice))
            num_choices += len(counts_of_switches[-1])
        return self._assemble_choices(
            choice_index,
            np.concatenate(arcs_of_switches),
            np.concatenate(counts_of_switches),
        )

    def _assemble_choices(
        self, choice_index: Ints32, arcs: Ints64, num_neighbours: Ints64
    ) -> Choices:
        """Assemble the record of all choices.

        Args:
            choice_index: (switches, goals) `Choices.index`, taken over as is.
            arcs: the indices of the arcs of all choices, one choice after the other.
            num_neighbours: (choices,) arcs of each choice; at least one each.
        """
        switches = self.switches
        # one row for each neighbour of each choice, in order
        first_neighbour = np.append(0, np.cumsum(num_neighbours))
        leads_down = (
            switches.depth[switches.arc_dst[arcs]]
            < switches.depth[switches.arc_src[arcs]]
        )

        # link j of a neighbour stands at first_link + j
        num_parallel = self.links_per_arc[arcs]
        first_link = np.cumsum(num_parallel) - num_parallel
        first_of_arc = self._first_link_of_arc[arcs]
        link_index = concatenate_ranges(first_of_arc, first_of_arc + num_parallel)
        return Choices(
            index=choice_index,
            num_neighbours=num_neighbours.astype(np.int32),
            num_parallel=np.minimum.reduceat(num_parallel, first_neighbour[:-1]).astype(
                np.int32
            ),
            leads_down=np.logical_and.reduceat(leads_down, first_neighbour[:-1]),
            first_link=np.append(first_link, num_parallel.sum())[first_neighbour],
            links=self.switch_links[link_index],
            first_neighbour=first_neighbour,
            first_link_of_neighbour=first_link,
        )

    def select_link(self, arcs: Ints, index: Ints32) -> Ints32:
        """(n,) the link with an index, modulo the number of links, among the links of
        several arcs.

        Args:
            arcs: (n, most) arcs of each message, at least one; rows with fewer arcs are
                filled up with numbers larger than all arcs.
            index: (n,) any index from 0.
        """
        # (n, most) a row for each message, a column for each arc; the links of a row are counted
        # through: column c has those from link_ends[c] - num_parallel[c] to before link_ends[c]
        is_arc = arcs < len(self.links_per_arc)
        num_parallel = np.where(
            is_arc, self.links_per_arc[np.where(is_arc, arcs, 0)], 0
        )
        link_ends = num_parallel.cumsum(axis=1)
        index = index % link_ends[:, -1]
        messages = np.arange(len(arcs))
        column = (index[:, None] >= link_ends).sum(axis=1)
        offset = index - (link_ends - num_parallel)[messages, column]
        link_index = self._first_link_of_arc[arcs[messages, column]] + offset
        return np.asarray(self.switch_links[link_index])


def _group_equal_columns(columns: Flags) -> tuple[Ints64, Ints64]:
    """Group equal columns of a table (rows, n).

    Returns:
        (kinds,) the index of an example column of each kind, and (n,) the kind of each
        column.
    """
    # equal columns are equal words of 64 bits: a bit for each row, packed and padded
    num_rows, num_columns = columns.shape
    bits = np.zeros((num_columns, -(-num_rows // 64) * 64), bool)
    bits[:, :num_rows] = columns.T
    words = np.packbits(bits).view(np.uint64).reshape(num_columns, -1).T
    order = np.lexsort(words)
    in_order = words[:, order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (in_order[:, 1:] != in_order[:, :-1]).any(axis=0)
    kind = np.empty(len(order), np.int64)
    kind[order] = np.cumsum(is_first) - 1
    return order[is_first], kind

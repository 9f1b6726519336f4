"""A network as routings see it: its ports, its directed links, and which of them lead nearer to a
goal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.routing.steps import GROUP_HOP, direct_steps
from simshuffle.fabric.topology.cabling import FAR, Cabling, SwitchGraph
from simshuffle.fabric.topology.directed_links import directed_links
from simshuffle.spec.arrays import Flags, Ints, Ints32, Ints64


@dataclass(frozen=True)
class Choices:
    """The links among which switches choose the next one towards what is attached to others.

    A choice is that of one switch for all goals with the same neighbours to choose from."""

    # (switches, goals) which choice there is; -1 at the goal itself, and where there is no way
    of: Ints32
    nearer: Ints32  # (choices,) neighbours to choose from
    cables: Ints32  # (choices,) parallel links to each of them, or to the one with the fewest
    down: Flags  # (choices,) whether they all are lower than the switch
    first: Ints64  # (choices + 1,) where the links of each begin in ``links``
    links: Ints32  # of all choices, of each by neighbour and then by parallel link
    begin: Ints64  # (choices + 1,) where the neighbours of each begin in ``starts``
    # of all neighbours of all choices, where their links begin in ``links``
    starts: Ints64


class Toward(NamedTuple):
    """Which of the ways from a switch lead nearer to a goal: those at whose end as many steps less
    are left to go as they cost. Where few messages go between few of many switches, that takes less
    than `Choices`."""

    left: NDArray[np.int16]  # (goals, switches) steps to each goal
    first: Ints32  # (switches + 1,) where the ways of each begin
    there: Ints32  # (ways,) the switch at the end of each
    cost: Ints32  # (ways,) steps that each takes
    transit: Flags  # (switches,) see `SwitchGraph.transit`
    begin: Ints64  # (ways,) where the links of each begin in ``links``
    end: Ints64  # (ways,) and end
    links: Ints32  # of all ways, see `Fabric.between`


class Fabric:
    """The ports (HCAs, and those of storage systems) and links of a network.

    Args:
        graph: the network, or its `Cabling`, without `graph_problems`.

    Attributes:
        cabling: the network.
        links: its cables as directed links.
        switches: those that some host reaches.
        number: (nodes,) which of these each node is; -1 of the others.
        entered: (links,) the switch that each enters, or -1.
        between: the links between switches.
        inject, eject: (ports,) the links of each port to its switch and back.
        at: (ports,) that switch. Ports are numbered switch by switch, those of storage last.
        stores: (ports,) whether it is one of a storage system.
        goals: the switches that have ports, ascending.
        goal_of: (ports,) the place in ``goals`` of the switch of each port.
        parallel: (ways,) links of each pair of linked switches, in the order of `SwitchGraph.here`.
    """

    def __init__(self, graph: Any) -> None:
        cabling = Cabling.from_graph(graph)
        self.cabling = cabling
        self.links = directed_links(cabling)
        self.switches = SwitchGraph(cabling)
        self.number = np.full(len(cabling.names), -1, np.int32)
        self.number[self.switches.nodes] = np.arange(len(self.switches.nodes))
        self.entered: Ints32 = self.number[self.links.dst_node]
        self._number_ports()
        self._number_ways()
        goals, places = np.unique(self.at, return_inverse=True)
        self.goals: Ints32 = goals
        self.goal_of: Ints32 = places.astype(np.int32)

    def _number_ports(self) -> None:
        cabling = self.cabling
        leaves = cabling.ends.ravel()
        switch = np.isin(np.arange(len(cabling.names)), cabling.nodes_of_kind("switch"))
        inject = np.flatnonzero(~switch[leaves] & (self.entered >= 0))
        node, at = leaves[inject], self.entered[inject]
        storage = np.isin(node, cabling.nodes_of_kind("storage"))
        order = np.lexsort((cabling.parallel[inject // 2], node, at, storage))
        self.stores: Flags = storage[order]
        self.inject: Ints32 = inject[order].astype(np.int32)
        # links 2k and 2k + 1 are the two directions of cable k: the other one differs in a bit
        self.eject: Ints32 = self.inject ^ 1
        self.at: Ints32 = at[order]
        self._endpoints: dict[str, list[int]] = {}
        for number, owner in enumerate(node[order].tolist()):
            self._endpoints.setdefault(cabling.names[owner], []).append(number)

    def _number_ways(self) -> None:
        """The links of every pair of linked switches, in the order of `SwitchGraph.here`."""
        of, count = self.switches, len(self.switches.nodes)
        leaves, enters = self.number[self.cabling.ends.ravel()], self.entered
        links = np.flatnonzero((leaves >= 0) & (enters >= 0))
        pair = leaves[links].astype(np.int64) * count + enters[links]
        order = np.argsort(pair, kind="stable")
        self.between = links[order].astype(np.int32)
        # one number for each ordered pair of switches; the links of a pair lie side by side
        ways = of.arc_src.astype(np.int64) * count + of.arc_dst
        begin, end = (np.searchsorted(pair[order], ways, side) for side in ("left", "right"))
        self._way, self.parallel = begin, end - begin

    def endpoints(self, node: str) -> list[int]:
        """Numbers of the ports of a host or storage system, in the order of its links to leaf
        switches."""
        return self._endpoints[node]

    def switch_names(self, switches: Ints32) -> list[str]:
        """The names of switches, (n,)."""
        return [self.cabling.names[node] for node in self.switches.nodes[switches].tolist()]

    @cached_property
    def groups(self) -> Ints32 | None:
        """(switches,) the group that each stands in, the first of its coordinates; None if the
        switches have none."""
        found = self.cabling.coordinates
        return None if found is None else found[self.switches.nodes, 0]

    @cached_property
    def longest_way(self) -> int:
        """Links of the longest shortest route that there can be, the injecting and ejecting ones
        included."""
        # of the topmost switches, if the topology says that it is a tree
        height = self.cabling.height
        if height is not None:
            # between hosts; from a storage system above the topmost switches
            return max(2 * height + 2, height + 3)
        transit = np.flatnonzero(self.switches.is_transit).astype(np.int32)
        steps = self.switches.steps(transit)[transit]
        return 3 + int(steps[steps < FAR].max())

    @cached_property
    def shortest(self) -> Choices:
        """The links that begin a shortest way."""
        return self.choices(
            self.switches.steps(self.goals), np.ones(len(self.switches.arc_src), int)
        )

    @cached_property
    def direct(self) -> Choices:
        """The links that begin a way with the fewest hops between groups, of those the shortest;
        with at most one hop between groups. Only if it is `grouped`."""
        return self.choices(self._direct_steps, self._ways_cost)

    @cached_property
    def direct_way(self) -> int:
        """As `longest_way`, of the ways of `direct`."""
        steps = self._direct_steps
        return 2 + int((steps % GROUP_HOP)[steps < 2 * GROUP_HOP].max(initial=0))

    @cached_property
    def grouped(self) -> bool:
        """Whether the switches stand in groups of which each is linked to all others."""
        if self.groups is None:
            return False
        across = self._ways_cost > 1
        pairs = self.groups[
            np.stack([self.switches.arc_src[across], self.switches.arc_dst[across]])
        ]
        count = len(np.unique(self.groups[self.groups >= 0]))
        if len(np.unique(pairs[0].astype(np.int64) << 32 | pairs[1])) < count * (count - 1):
            return False  # as is seen without a table of all pairs of switches
        return not (self._direct_steps == FAR).any()

    @cached_property
    def _ways_cost(self) -> Ints32:
        """(ways,) 1, and `GROUP_HOP` more for a way between groups."""
        groups, of = self.groups, self.switches
        assert groups is not None  # noqa: S101 - checked where the router is made
        here, there = groups[of.arc_src], groups[of.arc_dst]
        apart = (here != there) & (here >= 0) & (there >= 0)
        return np.where(apart, GROUP_HOP + 1, 1).astype(np.int32)

    @cached_property
    def toward(self) -> Toward:
        """What leads nearer to goals on ways as of `direct` if the switches are `grouped`, or on
        shortest ways."""
        ways = self.switches
        if self.grouped:
            steps, cost = self._direct_steps, self._ways_cost
        else:
            steps, cost = ways.steps(self.goals), np.ones(len(ways.arc_src), np.int32)
        begin = self._way.astype(np.int64)
        end = begin + self.parallel
        left = np.ascontiguousarray(steps.T)
        return Toward(
            left, ways.first_arc, ways.arc_dst, cost, ways.is_transit, begin, end, self.between
        )

    @cached_property
    def _direct_steps(self) -> NDArray[np.int16]:
        """(switches, goals) steps, and `GROUP_HOP` for the hop between groups; FAR if one is not
        enough."""
        return direct_steps(self.switches, self.goals, self._ways_cost)

    @cached_property
    def port_order(self) -> Ints32 | None:
        """(links,) the port of the switch that each leaves, by which links of a choice are ordered;
        None if ports are not known."""
        ports = self.cabling.ports
        return None if ports is None else ports.ravel()

    def choices(self, steps: Ints, cost: Ints) -> Choices:
        """The links by which a goal gets nearer.

        Args:
            steps: (switches, goals) how far each goal is.
            cost: (ways,) how much of that a way from switch to switch takes, in the order of
                `SwitchGraph.here`.
        """

        def nearer(switch: int, here: slice) -> Flags:
            there = self.switches.arc_dst[here]
            return np.asarray(steps[there] == steps[switch] - cost[here][:, None])

        return self.choices_of(nearer)

    def passable(self, here: slice) -> Flags:
        """(ways, goals) whether the ways ``here`` may lead to each goal: none does through the
        switch of a storage system."""
        there = self.switches.arc_dst[here]
        return np.asarray(self.switches.is_transit[there][:, None] | (there[:, None] == self.goals))

    def choices_of(self, nearer: Any) -> Choices:
        """The choices of which ``nearer(switch, here)`` says, for the ways ``here`` (a slice) from
        a switch, (ways, goals) whether each is one of them, if it is `passable`."""
        of = self.switches
        chosen = np.full((len(of.nodes), len(self.goals)), -1, np.int32)
        ways: list[Ints64] = []
        for switch in range(len(of.nodes)):
            here = slice(of.first_arc[switch], of.first_arc[switch + 1])
            if here.start == here.stop:
                continue
            allowed = nearer(switch, here) & self.passable(here)
            examples, which = _kinds(allowed)
            some = allowed[:, examples].any(axis=0)
            chosen[switch] = np.where(some, len(ways) + np.cumsum(some) - 1, -1)[which]
            number, way = np.nonzero(allowed[:, examples[some]].T)
            ends = np.searchsorted(number, np.arange(1, np.count_nonzero(some)))
            ways += np.split(of.first_arc[switch] + way, ends) if some.any() else []
        return self._joined(chosen, ways)

    def _joined(self, chosen: Ints32, ways: list[Ints64]) -> Choices:
        """The choices of which each has the numbers of its pairs of switches."""
        of = self.switches
        flat = np.concatenate([np.zeros(0, np.int64), *ways])
        nearer = np.array([len(each) for each in ways], np.int64)
        begin = np.append(0, np.cumsum(nearer))
        parallel = self.parallel[flat]
        starts = np.cumsum(parallel) - parallel
        lower = of.depth[of.arc_dst[flat]] < of.depth[of.arc_src[flat]]
        column = np.arange(parallel.sum()) - np.repeat(starts, parallel)
        return Choices(
            chosen,
            nearer.astype(np.int32),
            np.minimum.reduceat(parallel, begin[:-1]).astype(np.int32),
            np.logical_and.reduceat(lower, begin[:-1]),
            np.append(starts, parallel.sum())[begin],
            self.between[np.repeat(self._way[flat], parallel) + column],
            begin,
            starts,
        )

    def link_of(self, ways: Ints, number: Ints32) -> Ints32:
        """(n,) the link with that number, modulo how many there are, among those of ``ways``, (n,
        most), numbers of pairs of linked switches, larger than all where there are fewer."""
        known = ways < len(self.parallel)
        parallel = np.where(known, self.parallel[np.where(known, ways, 0)], 0)
        ends = parallel.cumsum(axis=1)
        number = number % ends[:, -1]
        rows = np.arange(len(ways))
        slot = (number[:, None] >= ends).sum(axis=1)
        place = self._way[ways[rows, slot]] + number - (ends - parallel)[rows, slot]
        return np.asarray(self.between[place])


def _kinds(columns: Flags) -> tuple[Ints64, Ints64]:
    """An example of each kind of equal columns of (rows, n), and (n,) of which kind each is."""
    padded = np.pad(np.packbits(columns, axis=0), ((0, -len(columns) // 8 % 8), (0, 0)))
    words = np.ascontiguousarray(padded.T).view(np.uint64).T
    order = np.lexsort(words)
    begins = np.append(True, (np.diff(words[:, order]) != 0).any(axis=0))
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(begins) - 1
    return order[begins], which

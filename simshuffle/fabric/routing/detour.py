"""Detours: shortest routes around cables that have failed."""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np

from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.router import hash_words
from simshuffle.fabric.topology.cabling import FAR, SwitchGraph
from simshuffle.spec.arrays import Ints, Ints32


class Detours:
    """The shortest routes over the links that still work, where some links of a network
    have failed.

    Every switch sends to each destination by one of the links that begin a shortest
    route, chosen by a hash, as the tables of a subnet manager that spread destinations.
    A port whose cable has failed is replaced by the next port of its host, if there is
    one. All messages between two ports take one route, whatever the seed.

    Args:
        fabric: the network.
        failed: (n,) its links that have failed, both directions of a cable.
    """

    def __init__(self, fabric: Fabric, failed: Ints) -> None:
        self._fabric = fabric
        self._failed = np.zeros(len(fabric.links), bool)
        self._failed[failed] = True
        self._steps_by_goal: dict[int, list[int]] = {}
        self._route_cache: dict[tuple[int, int], list[int] | None] = {}

    @cached_property
    def _working_switches(self) -> SwitchGraph:
        """The switches, with only the arcs that still have a working link."""
        switches = self._fabric.switches
        working_arcs = np.flatnonzero(np.diff(self._first_link_of_all_arcs))
        working = copy(switches)
        working.arc_src = switches.arc_src[working_arcs]
        working.arc_dst = switches.arc_dst[working_arcs]
        switch_range = np.arange(len(switches.nodes) + 1)
        working.first_arc = np.searchsorted(working.arc_src, switch_range).astype(
            np.int32
        )
        return working

    @cached_property
    def _first_link_of_all_arcs(self) -> Ints:
        """(arcs + 1,) where the working links of each arc of the network begin in
        `_working_links`.
        """
        # of the links before each link, how many still work
        working_before = np.append(
            0, np.cumsum(~self._failed[self._fabric.switch_links])
        )
        return np.asarray(
            working_before[np.append(0, np.cumsum(self._fabric.links_per_arc))]
        )

    @cached_property
    def _working_links(self) -> Ints32:
        """The working links between switches, arc by arc."""
        return self._fabric.switch_links[~self._failed[self._fabric.switch_links]]

    @cached_property
    def _first_link_of_arc(self) -> Ints:
        """(working arcs + 1,) where the links of each arc of `_working_switches` begin
        in `_working_links`.
        """
        return np.unique(self._first_link_of_all_arcs)

    def route(self, src: int, dst: int) -> list[int] | None:
        """List the links from one port to another, the injecting and ejecting links
        included; None if no route is left. The list is kept: do not change it.
        """
        key = src, dst
        if key not in self._route_cache:
            self._route_cache[key] = self._find_route(src, dst)
        return self._route_cache[key]

    def _find_route(self, src: int, dst: int) -> list[int] | None:
        """Search the route of `route`, following a hash of switch and destination port
        at each switch; None if none is left.
        """
        src_port = self._usable_port(src)
        dst_port = self._usable_port(dst)
        if src_port is None or dst_port is None:
            return None
        fabric = self._fabric
        switch = int(fabric.switch_of_port[src_port])
        goal = int(fabric.switch_of_port[dst_port])
        steps = self._steps_to(goal)
        if steps[switch] == FAR:
            return None

        links = [int(fabric.inject_link[src_port])]
        while switch != goal:
            next_links = self._next_links(switch, steps, goal)
            index = hash_words(switch, dst_port)[0] % np.uint64(len(next_links))
            links.append(next_links[int(index)])
            switch = int(fabric.entered_switch[links[-1]])
        return [*links, int(fabric.eject_link[dst_port])]

    def _next_links(self, switch: int, steps: list[int], goal: int) -> list[int]:
        """List the links from a switch that begin a shortest route to a goal switch.

        Args:
            switch: where a message is.
            steps: (switches) steps from each switch to the goal.
            goal: the switch to reach.
        """
        switches = self._working_switches
        first_link = self._first_link_of_arc
        links: list[int] = []
        for arc in range(switches.first_arc[switch], switches.first_arc[switch + 1]):
            dst = switches.arc_dst[arc]
            if steps[dst] == steps[switch] - 1 and (
                dst == goal or switches.is_transit[dst]
            ):
                links += self._working_links[
                    first_link[arc] : first_link[arc + 1]
                ].tolist()
        return links

    def _steps_to(self, goal: int) -> list[int]:
        """List the steps from each switch to ``goal`` over working links; `FAR` where
        no route leads.
        """
        if goal not in self._steps_by_goal:
            steps = self._working_switches.steps(np.array([goal]))
            self._steps_by_goal[goal] = steps[:, 0].tolist()
        return self._steps_by_goal[goal]

    def _usable_port(self, port: int) -> int | None:
        """Return the port itself or the next port of its node that has a working cable,
        the first coming after the last; None if no port has.
        """
        fabric = self._fabric
        node_of_port = fabric.links.src_node[fabric.inject_link]
        is_on_node = node_of_port == node_of_port[port]
        ports: Ints32 = np.flatnonzero(is_on_node).astype(np.int32)
        working_ports = ports[~self._failed[fabric.inject_link[ports]]]
        if not len(working_ports):
            return None
        return int(
            working_ports[np.searchsorted(working_ports, port) % len(working_ports)]
        )

    def find_unreachable(self, ports: Ints32) -> int | None:
        """Return the first port among ``ports`` (n, at least 1) that ``ports[0]``
        cannot reach any more; None if all are joined.

        The next working port of its host stands for a port whose cable has failed. A
        port whose host has no working cable is not reached, not even ``ports[0]``.
        """
        switch_of_port = self._fabric.switch_of_port
        src_port = self._usable_port(int(ports[0]))
        steps = (
            None if src_port is None else self._steps_to(int(switch_of_port[src_port]))
        )
        for port in ports.tolist():
            dst_port = self._usable_port(port)
            if (
                steps is None
                or dst_port is None
                or steps[switch_of_port[dst_port]] == FAR
            ):
                return int(port)
        return None

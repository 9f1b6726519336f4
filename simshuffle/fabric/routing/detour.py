"""Ways round cables that have failed."""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np

from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.router import mixed
from simshuffle.fabric.topology.cabling import FAR, SwitchGraph
from simshuffle.spec.arrays import Ints, Ints32


class Detours:
    """The shortest ways that are left, where some links of a network have failed.

    Every switch sends to each destination by one of the links that begin a shortest way, chosen by
    a number that looks random, as the tables of a subnet manager that spread destinations. A port
    whose cable has failed is replaced by the next of its host, if there is one.

    Args:
        fabric: the network.
        failed: its links that have failed, both directions of a cable.
    """

    def __init__(self, fabric: Fabric, failed: Ints) -> None:
        self._fabric = fabric
        self._failed = np.zeros(len(fabric.links), bool)
        self._failed[failed] = True
        self._steps: dict[int, list[int]] = {}
        self._known: dict[tuple[int, int], list[int] | None] = {}

    @cached_property
    def _left(self) -> SwitchGraph:
        """The pairs of switches with a link that is left."""
        ways, graph = self._fabric.switches, copy(self._fabric.switches)
        kept = np.flatnonzero(np.diff(self._first_link))
        graph.arc_src, graph.arc_dst = ways.arc_src[kept], ways.arc_dst[kept]
        switches = np.arange(len(ways.nodes) + 1)
        graph.first_arc = np.searchsorted(graph.arc_src, switches).astype(np.int32)
        return graph

    @cached_property
    def _first_link(self) -> Ints:
        """(ways + 1,) where the links that are left of each pair of switches begin in `_links`."""
        usable = np.append(0, np.cumsum(~self._failed[self._fabric.between]))
        return np.asarray(usable[np.append(0, np.cumsum(self._fabric.parallel))])

    @cached_property
    def _links(self) -> Ints32:
        """The links between switches that are left, pair by pair."""
        return self._fabric.between[~self._failed[self._fabric.between]]

    @cached_property
    def _starts(self) -> Ints:
        """As `_first_link`, of the pairs of `_left` alone."""
        return np.unique(self._first_link)

    def route(self, src: int, dst: int) -> list[int] | None:
        """The links from one port to another; None if there is no way."""
        key = src, dst
        if key not in self._known:
            self._known[key] = self._found(src, dst)
        return self._known[key]

    def _found(self, src: int, dst: int) -> list[int] | None:
        begin, end = self._usable(src), self._usable(dst)
        if begin is None or end is None:
            return None
        fabric = self._fabric
        here, goal = int(fabric.at[begin]), int(fabric.at[end])
        steps, out = self._steps_to(goal), [int(fabric.inject[begin])]
        if steps[here] == FAR:
            return None
        while here != goal:
            links = self._nearer(here, steps, goal)
            out.append(links[int(mixed(here, end)[0] % np.uint64(len(links)))])
            here = int(fabric.entered[out[-1]])
        return [*out, int(fabric.eject[end])]

    def _nearer(self, here: int, steps: list[int], goal: int) -> list[int]:
        """The links from a switch that begin a shortest way to a goal."""
        left, starts, out = self._left, self._starts, []
        for way in range(left.first_arc[here], left.first_arc[here + 1]):
            there = left.arc_dst[way]
            if steps[there] == steps[here] - 1 and (there == goal or left.is_transit[there]):
                out += self._links[starts[way] : starts[way + 1]].tolist()
        return out

    def _steps_to(self, goal: int) -> list[int]:
        if goal not in self._steps:
            self._steps[goal] = self._left.steps(np.array([goal]))[:, 0].tolist()
        return self._steps[goal]

    def _usable(self, port: int) -> int | None:
        """The port, or the next of its node with a cable; None if it has none."""
        fabric = self._fabric
        node = fabric.links.src_node[fabric.inject[port]]
        ports: Ints32 = np.flatnonzero(fabric.links.src_node[fabric.inject] == node).astype(
            np.int32
        )
        left = ports[~self._failed[fabric.inject[ports]]]
        if not len(left):
            return None
        return int(left[np.searchsorted(left, port) % len(left)])

    def parted(self, ports: Ints32) -> int | None:
        """One of ``ports`` to which no way is left from the first of them; None if all are
        joined."""
        begin, steps = self._usable(int(ports[0])), None
        if begin is not None:
            steps = self._steps_to(int(self._fabric.at[begin]))
        for port in ports.tolist():
            end = self._usable(port)
            if steps is None or end is None or steps[self._fabric.at[end]] == FAR:
                return int(port)
        return None

"""Ways round cables that have failed."""

from __future__ import annotations

from copy import copy

import numpy as np

from simshuffle.routing.fabric import Fabric
from simshuffle.routing.router import mixed
from simshuffle.spec.arrays import Flags, Ints, Ints32
from simshuffle.topology.cabling import FAR, SwitchGraph


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
        self.failed = np.unique(failed)
        ways, ends = fabric.switches, np.cumsum(fabric.parallel)
        usable = ~np.isin(fabric.between, self.failed)
        links = [each.tolist() for each in np.split(fabric.between[usable], _before(usable, ends))]
        kept = np.flatnonzero([len(each) > 0 for each in links[: len(ends)]])
        self._left: SwitchGraph = copy(ways)
        self._left.here, self._left.there = ways.here[kept], ways.there[kept]
        switches = np.arange(len(ways.nodes) + 1)
        self._left.first = np.searchsorted(self._left.here, switches).astype(np.int32)
        self._links = [links[way] for way in kept.tolist()]
        self._first, self._there = self._left.first.tolist(), self._left.there.tolist()
        self._steps: dict[int, list[int]] = {}
        self._known: dict[tuple[int, int], list[int] | None] = {}

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
            ways = range(self._first[here], self._first[here + 1])
            nearer = [way for way in ways if self._leads(way, steps, steps[here] - 1, goal)]
            links = [(link, way) for way in nearer for link in self._links[way]]
            link, way = links[int(mixed(here, end)[0] % np.uint64(len(links)))]
            out.append(link)
            here = self._there[way]
        return [*out, int(fabric.eject[end])]

    def _leads(self, way: int, steps: list[int], left: int, goal: int) -> bool:
        there = self._there[way]
        return steps[there] == left and (there == goal or bool(self._left.transit[there]))

    def _steps_to(self, goal: int) -> list[int]:
        if goal not in self._steps:
            self._steps[goal] = self._left.steps(np.array([goal]))[:, 0].tolist()
        return self._steps[goal]

    def _usable(self, port: int) -> int | None:
        """The port, or the next of its node with a cable; None if it has none."""
        fabric = self._fabric
        node = fabric.links.leaves[fabric.inject[port]]
        ports: Ints32 = np.flatnonzero(fabric.links.leaves[fabric.inject] == node).astype(np.int32)
        left = ports[~np.isin(fabric.inject[ports], self.failed)]
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


def _before(usable: Flags, ends: Ints) -> Ints:
    """How many links are usable up to the end of each pair of switches but the last."""
    return np.append(0, np.cumsum(usable))[ends[:-1]]

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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.topology.cabling import FAR, Cabling, SwitchGraph

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class DirectedLinks:
    """The cables of a network, each in both directions: link 2k and link 2k + 1.

    Attributes:
        names: 'from>to', with '#k' for the k-th of several parallel ones.
        tiers: 'leaf>fbb' and so on.
        capacity: (links,) bytes/s.
        latency: (links,) s, of the cable and of the switch that it enters.
        enters: (links,) the number of the node that each enters.
        nodes: the names of all nodes.
    """

    names: list[str]
    tiers: list[str]
    capacity: NDArray[np.float64]
    latency: NDArray[np.float64]
    enters: Ints
    nodes: list[str] = field(repr=False)

    @property
    def target(self) -> list[str]:
        """For each link the name of the node it enters."""
        return [self.nodes[node] for node in self.enters.tolist()]


def directed_links(cabling: Cabling) -> DirectedLinks:
    """All directed links of a network, in the order of its cables."""
    leaves, enters = cabling.ends.ravel(), cabling.ends[:, ::-1].ravel()
    mark = np.where(cabling.several, cabling.parallel, -1)
    nodes, tier_of = cabling.names, cabling.tiers
    ends = list(zip(leaves.tolist(), enters.tolist(), strict=True))
    names = [
        f"{nodes[a]}>{nodes[b]}" if k < 0 else f"{nodes[a]}>{nodes[b]}#{k}"
        for (a, b), k in zip(ends, np.repeat(mark, 2).tolist(), strict=True)
    ]
    known = {name: i for i, name in enumerate(dict.fromkeys(tier_of))}
    number = np.array([known[name] for name in tier_of])
    both = [f"{a}>{b}" for a in known for b in known]
    tiers = [both[i] for i in (number[leaves] * len(known) + number[enters]).tolist()]
    latency = np.repeat(cabling.latency, 2) + cabling.crossing[enters]
    return DirectedLinks(names, tiers, np.repeat(cabling.bandwidth, 2), latency, enters, nodes)


Towards = Callable[[str, str], str]
"""The neighbour through which a switch, the first argument, sends to what is attached to another
one, the second; on a shortest path between the two."""


def stands_in_levels(graph: Any) -> bool:
    """Whether D-mod-K knows the routes between the switches of ``graph``: each link between them
    leads up or down a level (`Cabling.depth`), or there is only one way between any two."""
    return SwitchGraph(Cabling.of(graph)).stand_in_levels()


@dataclass(frozen=True)
class Choices:
    """The links among which switches choose the next one towards what is attached to others.

    A choice is that of one switch for all goals with the same neighbours on shortest paths.

    Attributes:
        of: (switches, goals) which choice there is; -1 at the goal itself.
        nearer: (choices,) neighbours to choose from.
        cables: (choices,) parallel links to each of them, or to the one with the fewest.
        down: (choices,) whether they all are lower than the switch.
        first: (choices,) where its links begin in ``links``.
        links: of all choices, of each by neighbour and then by parallel link.
    """

    of: Ints
    nearer: Ints
    cables: Ints
    down: NDArray[np.bool_]
    first: NDArray[np.int64]
    links: Ints


def _kinds(columns: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """An example of each kind of equal columns of (rows, n), and (n,) of which kind each is."""
    padded = np.pad(np.packbits(columns, axis=0), ((0, -len(columns) // 8 % 8), (0, 0)))
    words = np.ascontiguousarray(padded.T).view(np.uint64).T
    order = np.lexsort(words)
    begins = np.append(True, (np.diff(words[:, order]) != 0).any(axis=0))
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(begins) - 1
    return order[begins], which


class ForwardingTable:
    """Routes between the endpoints (HCAs and storage ports) of a network.

    Args:
        graph: the network, or its `Cabling`, without `graph_problems`.
        towards: the routes between switches; None for D-mod-K.
    """

    def __init__(self, graph: Any, towards: Towards | None = None) -> None:
        cabling = Cabling.of(graph)
        self._nodes = cabling.names
        self._height = cabling.height
        self._towards = towards
        self.links = directed_links(cabling)
        self._switches = SwitchGraph(cabling)
        self._number = np.full(len(self._nodes), -1, np.int32)
        self._number[self._switches.nodes] = np.arange(len(self._switches.nodes))
        self._entered = self._number[self.links.enters]
        self._number_endpoints(cabling)
        self._number_ways(cabling)

    def _number_endpoints(self, cabling: Cabling) -> None:
        leaves = cabling.ends.ravel()
        switch = np.isin(np.arange(len(self._nodes)), cabling.of_kind("switch"))
        inject = np.flatnonzero(~switch[leaves] & (self._entered >= 0))
        node, at = leaves[inject], self._entered[inject]
        storage = np.isin(node, cabling.of_kind("storage"))
        order = np.lexsort((cabling.parallel[inject // 2], node, at, storage))
        self._inject = inject[order].astype(np.int32)
        self._eject = self._inject ^ 1
        self._at = at[order]
        self._endpoints: dict[str, list[int]] = {}
        for number, owner in enumerate(node[order].tolist()):
            self._endpoints.setdefault(self._nodes[owner], []).append(number)

    def _number_ways(self, cabling: Cabling) -> None:
        """The links of every pair of linked switches, in the order of `SwitchGraph.here`."""
        of, count = self._switches, len(self._switches.nodes)
        leaves, enters = self._number[cabling.ends.ravel()], self._entered
        links = np.flatnonzero((leaves >= 0) & (enters >= 0))
        pair = leaves[links].astype(np.int64) * count + enters[links]
        order = np.argsort(pair, kind="stable")
        self._between = links[order].astype(np.int32)
        ways = of.here.astype(np.int64) * count + of.there
        begin, end = (np.searchsorted(pair[order], ways, side) for side in ("left", "right"))
        self._way, self._parallel = begin, end - begin

    def endpoints(self, node: str) -> list[int]:
        """Numbers of the ports of a host or storage system, in the order of its links to leaf
        switches."""
        return self._endpoints[node]

    def leaves(self, endpoints: Ints) -> list[str]:
        """The switch that each of ``endpoints`` (n,) is attached to."""
        return [self._nodes[node] for node in self._switches.nodes[self._at[endpoints]].tolist()]

    @cached_property
    def diameter(self) -> int:
        """Links of the longest route that there can be, the injecting and ejecting ones
        included."""
        # of the topmost switches, if the topology says that it is a tree
        if self._height is not None:
            # between hosts; from a storage system above the topmost switches
            return max(2 * self._height + 2, self._height + 3)
        transit = np.flatnonzero(self._switches.transit).astype(np.int32)
        steps = self._switches.steps(transit)[transit]
        return 3 + int(steps[steps < FAR].max())

    @cached_property
    def _strides(self) -> list[int]:
        """Product of the numbers of parents below each height."""
        of = self._switches
        up = (of.depth[of.there] == of.depth[of.here] + 1) & of.transit[of.there]
        parents = np.bincount(of.here[up], minlength=len(of.nodes))
        strides = [1]
        for height in range(int(of.depth.max()) + 1):
            strides.append(strides[-1] * max(1, int(parents[of.depth == height].max(initial=1))))
        return strides

    @cached_property
    def _goals(self) -> Ints:
        """The switches to which something is attached."""
        return np.unique(self._at)

    @cached_property
    def _choices(self) -> Choices:
        of, goals = self._switches, self._goals
        steps = of.steps(goals)
        chosen = np.full((len(of.nodes), len(goals)), -1, np.int32)
        ways: list[NDArray[np.int64]] = []
        for switch in range(len(of.nodes)):
            here = slice(of.first[switch], of.first[switch + 1])
            there = of.there[here]
            if not len(there):
                continue
            # no way leads through the switch of a storage system
            passable = of.transit[there][:, None] | (there[:, None] == goals)
            nearer = passable & (steps[there] == steps[switch] - 1)
            if self._towards is not None:
                self._keep_own(switch, there, nearer)
            examples, which = _kinds(nearer)
            some = nearer[:, examples].any(axis=0)
            chosen[switch] = np.where(some, len(ways) + np.cumsum(some) - 1, -1)[which]
            first = of.first[switch]
            ways += [first + np.flatnonzero(nearer[:, goal]) for goal in examples[some].tolist()]
        return self._joined(chosen, ways)

    def _keep_own(self, switch: int, there: Ints, nearer: NDArray[np.bool_]) -> None:
        """Where several neighbours are nearer, only that of the topology's own routing stays."""
        assert self._towards is not None  # noqa: S101 - as is known where it is called
        name = [self._nodes[node] for node in self._switches.nodes.tolist()]
        for goal in np.flatnonzero(nearer.sum(axis=0) > 1).tolist():
            rows = np.flatnonzero(nearer[:, goal])
            known = [name[there[row]] for row in rows]
            row = rows[known.index(self._towards(name[switch], name[self._goals[goal]]))]
            nearer[:, goal] = False
            nearer[row, goal] = True

    def _joined(self, chosen: Ints, ways: list[NDArray[np.int64]]) -> Choices:
        """The choices of which each has the numbers of its pairs of switches."""
        of = self._switches
        if not ways:
            none = np.zeros(0, np.int32)
            return Choices(chosen, none, none, none.astype(bool), none.astype(np.int64), none)
        flat, nearer = np.concatenate(ways), np.array([len(each) for each in ways])
        starts = np.cumsum(nearer) - nearer
        cables = np.minimum.reduceat(self._parallel[flat], starts)
        lower = of.depth[of.there[flat]] < of.depth[of.here[flat]]
        each = np.repeat(cables, nearer)
        begin = np.cumsum(each) - each
        column = np.arange(each.sum()) - np.repeat(begin, each)
        return Choices(
            chosen,
            nearer.astype(np.int32),
            cables.astype(np.int32),
            np.logical_and.reduceat(lower, starts),
            begin[starts],
            self._between[np.repeat(self._way[flat], each) + column],
        )

    def _next(self, here: Ints, goal: Ints, endpoints: Ints) -> Ints:
        """The link by which each of the switches ``here``, none of which is at its goal, sends
        towards an endpoint; ``goal`` is the place of its switch in `_goals`."""
        of = self._choices
        choice = of.of[here, goal]
        height = self._switches.depth[here]
        side, cable = np.empty_like(endpoints), np.empty_like(endpoints)
        for level in np.unique(height).tolist():
            for down in (False, True):
                rows = np.flatnonzero((height == level) & (of.down[choice] == down))
                if not len(rows):
                    continue
                which, to = choice[rows], endpoints[rows]
                nearer, cables = of.nearer[which], of.cables[which]
                if down:  # the digits that lead up there
                    stride = self._strides[level - 1]
                    width = self._strides[level] // stride
                    side[rows] = self._descent(level, nearer, to)
                    cable[rows] = (to // stride // width) % cables
                else:  # round robin over the parents, then over parallel links
                    number = (to // self._strides[level]) % (nearer * cables)
                    cable[rows], side[rows] = np.divmod(number, nearer)
        return of.links[of.first[choice] + side * of.cables[choice] + cable]

    def _descent(self, height: int, count: Ints, endpoints: Ints) -> Ints:
        """Which of ``count`` lower neighbours leads down to each endpoint: the parents that D-mod-K
        takes for it on its own way up."""
        side, place = np.zeros_like(endpoints), 1
        for below in range(height - 1, 0, -1):
            parents = self._strides[below] // self._strides[below - 1]
            digit = (endpoints // self._strides[below - 1]) % parents
            side += np.where(place < count, digit * place, 0).astype(np.int32)
            place *= parents
        side += np.where(place < count, place * (endpoints // place), 0).astype(np.int32)
        return side % count

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Links from endpoint ``src[i]`` to ``dst[i]``: (n, `diameter`) int32, padded with -1."""
        out = np.full((len(src), self.diameter), -1, np.int32)
        if not len(src):
            return out
        out[:, 0] = self._inject[src]
        here = self._at[src]
        at = self._at[dst]
        goal = np.searchsorted(self._goals, at).astype(np.int32)
        rows = np.arange(len(src))
        hop = 1
        while len(rows):
            there = here[rows] == at[rows]
            out[rows[there], hop] = self._eject[dst[rows[there]]]
            rows = rows[~there]
            following = self._next(here[rows], goal[rows], dst[rows])
            out[rows, hop] = following
            here[rows] = self._entered[following]
            hop += 1
        return out

    def latencies(self, routes: Ints) -> NDArray[np.float64]:
        """(n,) sum of the link latencies of each route (s)."""
        padded = np.append(self.links.latency, 0.0)
        return np.asarray(padded[routes].sum(axis=1))

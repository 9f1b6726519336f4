"""Forwarding tables of shortest ways: as OpenSM's default engine fills them, each link given about
as many destinations as the others; or drawn at random."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.routing.router import HopByHop, MessagePositions, Router, RoutingRule, mixed
from simshuffle.spec.arrays import Ints32, Ints64


class MinHop(RoutingRule):
    """Min-hop as OpenSM balances it (``osm_ucast_mgr.c`` and ``osm_switch.c`` of
    github.com/linux-rdma/opensm).

    Destinations are taken switch by switch, those with the most ports first, and at a switch by its
    port numbers, if those are known. For each, every switch
    takes of the links that begin a shortest way the one with the fewest destinations so far; among
    equals that of the lowest port. It is for any network. Where there are circles, routes may wait
    for one another in a circle.
    """

    kind: Literal["min_hop"] = "min_hop"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        return BalancedRouter(fabric)


class BalancedRouter(HopByHop):
    """Forwarding tables over given choices, filled so that links get equal numbers of
    destinations."""

    by_destination = True

    @cached_property
    def table(self) -> Ints32:
        """(switches, ports) the link by which each switch sends to each port; -1 where there is no
        way, or none is needed."""
        fabric, of = self.fabric, self.choices
        table = np.full((len(fabric.switches.nodes), len(fabric.at)), -1, np.int32)
        given = np.zeros(len(fabric.links) + 1, np.int64)
        given[-1] = np.iinfo(np.int64).max  # what fills up the rows of fewer links
        sizes = np.diff(of.first)
        order = fabric.port_order
        ports_at = np.bincount(fabric.at, minlength=len(table))[fabric.goals]
        for goal in np.argsort(-ports_at, kind="stable").tolist():  # those with the most first
            switches = np.flatnonzero(of.of[:, goal] >= 0)
            among = _rows(of, of.of[switches, goal], sizes, order)
            rows = np.arange(len(switches))
            for port in self._ports_in_order(goal):
                chosen = among[rows, given[among].argmin(axis=1)]
                given[chosen] += 1
                table[switches, port] = chosen
        return table

    def _ports_in_order(self, goal: int) -> Ints32:
        """The ports at a goal, by the port of the switch that leads there if that is known."""
        fabric = self.fabric
        ports = np.flatnonzero(fabric.at == fabric.goals[goal]).astype(np.int32)
        order = fabric.port_order
        if order is None:
            return ports
        return np.asarray(ports[np.argsort(order[fabric.eject[ports]], kind="stable")])

    def choose(self, step: MessagePositions) -> Ints32:
        """See `HopByHop.choose`."""
        return self.table[step.here, step.dst]


def _rows(of: Choices, choice: Ints32, sizes: Ints64, order: Ints32 | None) -> Ints64:
    """(n, most) the links of each choice, by port number if that is known, padded with -1."""
    count = sizes[choice]
    most = int(count.max(initial=1))
    column = np.arange(most)
    place = np.minimum(of.first[choice][:, None] + column, len(of.links) - 1)
    out = np.where(column < count[:, None], of.links[place], -1).astype(np.int64)
    if order is not None:
        rank = np.where(out < 0, np.iinfo(np.int64).max, order[out])
        out = np.take_along_axis(out, np.argsort(rank, axis=1, kind="stable"), axis=1)
    return out


class RandomStatic(RoutingRule):
    """Every switch draws for every destination one of the links that begin a shortest way, once and
    for all."""

    drawn: ClassVar[bool] = True

    kind: Literal["random_static"] = "random_static"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        return _RandomStaticRouter(fabric, seed)


class _RandomStaticRouter(HopByHop):
    by_destination = True

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric)
        self._seed = seed

    def choose(self, step: MessagePositions) -> Ints32:
        return self.of_count(step, mixed(self._seed, step.here, step.dst))

"""Adaptive routing: the least loaded links at the time when a message is sent."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import TopologyError
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.minimal import DetourDrawer, check_groups
from simshuffle.fabric.routing.router import Router, RoutingRule
from simshuffle.spec.arrays import Ints32


class Adaptive(RoutingRule):
    """Adaptive routing, as least loaded at injection: every message takes, of the
    shortest ways, the one whose links were given the fewest messages so far, in all.
    Among groups that are linked to one another, as in a dragonfly, ways with one hop
    between groups count as shortest.

    A sum of loads keeps all levels even: on a full tree of two levels no link carries
    more than two messages of a permutation. Where each switch looks at its own links
    alone, the switches of a group choose the same links to the next group.

    With ``detours`` a message may also go by way of a switch drawn at random, as
    `Valiant`: where the fullest link of the straight way, times its links, is more than
    that of the detour (UGAL with knowledge of all links; Kim et al., ISCA 2008, Sec.
    4).

    Real switches choose packet by packet from what they know of their own ports. So
    this is what good adaptive routing comes to, and not what a certain switch does.

    Attributes:
        detours: whether a message may also go by way of a switch drawn at random, in
            networks of groups.
    """

    drawn: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    kind: Literal["adaptive"] = "adaptive"
    detours: bool = False

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router that keeps the load of every link; ``seed`` draws detours.

        Raises:
            TopologyError: with detours, the switches do not stand in groups of which
                each is linked to all others.
        """
        if self.detours:
            check_groups(fabric, f"{self.kind} with detours")
        return _AdaptiveRouter(fabric, seed, detours=self.detours)


class _AdaptiveRouter(Router):
    """Routes over the least loaded links; each route that is given loads its links by
    one message, whatever its size and for good.
    """

    constant = False

    def __init__(self, fabric: Fabric, seed: int, *, detours: bool) -> None:
        super().__init__(fabric)
        self._seed = seed
        self._detours = DetourDrawer(fabric, seed) if detours else None
        self._load = np.zeros(len(fabric.links), np.int64)

    def without_history(self) -> Router:
        """Return a new router of which no link is loaded and whose detours are drawn
        from the first message on.
        """
        return _AdaptiveRouter(
            self.fabric, self._seed, detours=self._detours is not None
        )

    @property
    def diameter(self) -> int:
        """Number of links of the longest route, with a detour if those are allowed."""
        fabric = self.fabric
        grouped = fabric.has_linked_groups
        longest_route = fabric.longest_direct_route if grouped else fabric.longest_route
        return 2 * (longest_route - 2) + 2 if self._detours else longest_route

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """(n, `diameter`) int32 links of each route, padded with -1, found one after
        the other by the load of all routes so far, in this call too.

        Raises the loads, and with detours draws one for each message: another call
        gives other routes.
        """
        # here, as numba is loaded only where something is computed
        from simshuffle.fabric.routing import least_loaded  # noqa: PLC0415 - numba

        routes = np.full((len(src), self.diameter), -1, np.int32)
        if not len(src):
            return routes
        fabric = self.fabric
        no_detour = np.full(len(src), -1, np.int32)
        messages = least_loaded.PortMessages(
            src=np.ascontiguousarray(src, np.int32),
            dst=np.ascontiguousarray(dst, np.int32),
            detour=no_detour if self._detours is None else self._detours.draw(src, dst),
        )
        network = least_loaded.LoadedLinks(
            inject_link=fabric.inject_link,
            eject_link=fabric.eject_link,
            switch_of_port=fabric.switch_of_port,
            goals=fabric.goals,
            goal_of_port=fabric.goal_of_port,
            arcs=fabric.goal_arcs,
            entered_switch=fabric.entered_switch,
            load=self._load,
            walk=np.empty((4, least_loaded.LOOK_AHEAD + 1), np.int64),
        )
        scratch = np.empty(routes.shape[1], np.int32)
        lost = least_loaded.route_by_load(messages, network, scratch, routes)
        if lost >= 0:
            nodes = fabric.links.src_node[fabric.inject_link[[src[lost], dst[lost]]]]
            sender, receiver = (fabric.cabling.names[node] for node in nodes)
            raise TopologyError(f"no route leads from {sender} to {receiver}")
        return routes

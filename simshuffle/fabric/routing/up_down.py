"""Up*/down* routing, for any network: routes never wait for one another in a circle."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.routing.min_hop import BalancedRouter
from simshuffle.fabric.routing.router import Router, RoutingRule, unsuited
from simshuffle.fabric.routing.steps import relax
from simshuffle.fabric.topology.cabling import FAR
from simshuffle.spec.arrays import Flags, Ints32


class UpDown(RoutingRule):
    """Up*/down* (Schroeder et al., Autonet, IEEE JSAC 9, 1991): every link leads up
    towards a root or down from it, and no route goes up after it went down. So none
    waits for another in a circle, whatever the network; for that, ways are longer than
    they need be and links near the root busier than others.

    Levels are counted from the ``roots``, names of switches. The default are the
    switches farthest from the hosts, if that reaches every destination; else the one
    switch from which the farthest other one is nearest, of several that with the most
    links. A switch that can go down to a destination all the way does so. Links get
    equal numbers of destinations, as in `MinHop`.

    Attributes:
        roots: names of switches from which levels are counted; found if left out.
    """

    kind: Literal["up_down"] = "up_down"
    roots: list[str] | None = None

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router whose routes go up and then down; see `RoutingRule.router`."""
        return _UpDownRouter(fabric, self.roots)


Steps = NDArray[np.int16]


class _UpDownRouter(BalancedRouter):
    """Routes up and then down, balanced over the links that are allowed.

    Raises:
        TopologyError: see `_choose_roots`.
    """

    def __init__(self, fabric: Fabric, roots: list[str] | None) -> None:
        super().__init__(fabric)
        self._upward, self._down_steps, self._route_steps = self._choose_roots(roots)

    def _choose_roots(self, roots: list[str] | None) -> tuple[Flags, Steps, Steps]:
        """Choose the roots, and find the arcs that lead up.

        Returns:
            (arcs,) True where an arc leads up; (switches, goals) steps to each goal
            that lead down only; and (switches, goals) steps of the route that is taken.

        Raises:
            TopologyError: some destination cannot be reached by going up and then down.
        """
        switches = self.fabric.switches
        max_depth = switches.depth[switches.is_transit].max()
        is_topmost = switches.is_transit & (switches.depth == max_depth)
        topmost = np.flatnonzero(is_topmost).astype(np.int32)
        root_sets = (
            [self._switches_by_name(roots)]
            if roots
            else [topmost, self._central_switch()]
        )
        for root_switches in root_sets:
            upward = self._find_upward_arcs(root_switches)
            down_steps, route_steps = self._count_steps(upward)
            if (route_steps[self.fabric.goals] < FAR).all():
                return upward, down_steps, route_steps
        raise unsuited(
            "with up_down every destination must be reached by going up and then down",
            f"roots {', '.join(roots or [])} between which ways go down and up again",
            "Name one root, or leave roots out.",
        )

    def _switches_by_name(self, roots: list[str]) -> Ints32:
        """(n,) the switches with the names ``roots``.

        Raises:
            TopologyError: no switch has one of the names.
        """
        names = self.fabric.cabling.names
        switch_by_name = dict(
            zip(names, self.fabric.switch_of_node.tolist(), strict=True)
        )
        unknown = [name for name in roots if switch_by_name.get(name, -1) < 0]
        if unknown:
            rule = "up_down needs the names of switches as roots"
            raise unsuited(rule, ", ".join(map(repr, unknown[:3])), "Correct them.")
        return np.array([switch_by_name[name] for name in roots], np.int32)

    def _central_switch(self) -> Ints32:
        """(1,) the transit switch from which the farthest other one is nearest; of
        equal ones the one with the most links to transit switches.

        Switches that cannot be reached are left out of the comparison.
        """
        switches = self.fabric.switches
        transit_switches = np.flatnonzero(switches.is_transit).astype(np.int32)
        steps = switches.steps(transit_switches)[transit_switches]
        eccentricity = np.where(steps < FAR, steps, 0).max(axis=1)
        leads_to_transit = switches.is_transit[switches.arc_dst]
        degree = np.bincount(
            switches.arc_src[leads_to_transit], minlength=len(switches.nodes)
        )[transit_switches]
        return np.asarray(transit_switches[np.lexsort((-degree, eccentricity))[:1]])

    def _find_upward_arcs(self, roots: Ints32) -> Flags:
        """(arcs,) True where an arc leads up: to a level nearer to a root, or within a
        level to the switch with the lower index.
        """
        switches = self.fabric.switches
        level = switches.steps(roots).min(axis=1).astype(np.int64)
        src_level = level[switches.arc_src]
        dst_level = level[switches.arc_dst]
        is_lower_index = switches.arc_dst < switches.arc_src
        return np.asarray(
            (dst_level < src_level) | ((dst_level == src_level) & is_lower_index)
        )

    def _count_steps(self, upward: Flags) -> tuple[Steps, Steps]:
        """Return (switches, goals) steps to each goal that lead down only, and
        (switches, goals) steps of the route that is taken; `FAR` where there is none.
        """
        switches = self.fabric.switches
        goals = self.fabric.goals
        down_steps = np.full((len(switches.nodes), len(goals)), FAR, np.int16)
        down_steps[goals, np.arange(len(goals))] = 0
        relax(down_steps, switches, goals, np.flatnonzero(~upward), 1)
        route_steps = down_steps.copy()
        # only where there is no way down does a route go up
        relax(
            route_steps,
            switches,
            goals,
            np.flatnonzero(upward),
            1,
            open_to=down_steps == FAR,
        )
        return down_steps, route_steps

    @property
    def diameter(self) -> int:
        """Number of links of the longest route; see `Router.diameter`."""
        return 2 + int(self._route_steps[self._route_steps < FAR].max())

    @cached_property
    def choices(self) -> Choices:
        """The links by which a switch may send, see `HopByHop.choices`: those that
        begin a shortest route down, or, where none leads down, up.
        """
        down_steps = self._down_steps
        route_steps = self._route_steps

        def nearer(switch: int, arcs: slice) -> Flags:
            """(arcs, goals) True where an arc begins a route down, else one up."""
            dst = self.fabric.switches.arc_dst[arcs]
            is_upward = self._upward[arcs][:, None]
            # where no route leads down, no steps are one less than `FAR`
            goes_down = ~is_upward & (down_steps[dst] == down_steps[switch] - 1)
            goes_up = (
                (down_steps[switch] >= FAR)
                & is_upward
                & (route_steps[dst] == route_steps[switch] - 1)
            )
            return np.asarray(goes_down | goes_up)

        return self.fabric.build_choices(nearer)

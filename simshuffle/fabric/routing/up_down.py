"""Up*/down* routing: any network, without circles."""

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
    """Up*/down* (Schroeder et al., Autonet, IEEE JSAC 9, 1991): every link leads up towards a root
    or down from it, and no route goes up after it went down. So none waits for another in a circle,
    whatever the network; for that, ways are longer than they need be and links near the root busier
    than others.

    Levels are counted from the ``roots``, names of switches. The default are the switches farthest
    from the hosts, if that reaches every destination; else the one switch from which the farthest
    other one is nearest, of several that with the most links. A switch that can go down to a
    destination all the way does so. Links get equal numbers of destinations, as in `MinHop`.

    Attributes:
        roots: names of switches from which levels are counted; found if left out.
    """

    kind: Literal["up_down"] = "up_down"
    roots: list[str] | None = None

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        return _UpDownRouter(fabric, self.roots)


Steps = NDArray[np.int16]


class _UpDownRouter(BalancedRouter):
    def __init__(self, fabric: Fabric, roots: list[str] | None) -> None:
        super().__init__(fabric)
        self._upward, self._down, self._taken = self._levelled(roots)

    def _levelled(self, roots: list[str] | None) -> tuple[Flags, Steps, Steps]:
        """(ways,) whether each leads up; (switches, goals) steps to each goal that lead down only,
        and steps of the way that is taken."""
        of = self.fabric.switches
        farthest = of.is_transit & (of.depth == of.depth[of.is_transit].max())
        topmost = np.flatnonzero(farthest).astype(np.int32)
        tries = [self._named(roots)] if roots else [topmost, self._middle()]
        for tried in tries:
            upward = self._leads_up(tried)
            down, taken = self._steps(upward)
            if (taken[self.fabric.goals] < FAR).all():
                return upward, down, taken
        raise unsuited(
            "with up_down every destination must be reached by going up and then down",
            f"roots {', '.join(roots or [])} between which ways go down and up again",
            "Name one root, or leave roots out.",
        )

    def _named(self, roots: list[str]) -> Ints32:
        names = dict(zip(self.fabric.cabling.names, self.fabric.number.tolist(), strict=True))
        unknown = [name for name in roots if names.get(name, -1) < 0]
        if unknown:
            rule = "up_down needs the names of switches as roots"
            raise unsuited(rule, ", ".join(map(repr, unknown[:3])), "Correct them.")
        return np.array([names[name] for name in roots], np.int32)

    def _middle(self) -> Ints32:
        """The switch from which the farthest other one is nearest, of several that with the most
        links."""
        of = self.fabric.switches
        every = np.flatnonzero(of.is_transit).astype(np.int32)
        steps = of.steps(every)[every]
        farthest = np.where(steps < FAR, steps, 0).max(axis=1)
        degree = np.bincount(of.arc_src[of.is_transit[of.arc_dst]], minlength=len(of.nodes))[every]
        return np.asarray(every[np.lexsort((-degree, farthest))[:1]])

    def _leads_up(self, roots: Ints32) -> Flags:
        """(ways,) whether each leads up: to a level nearer to a root, or within a level to the
        switch of a lower number."""
        of = self.fabric.switches
        level = of.steps(roots).min(axis=1).astype(np.int64)
        here, there = level[of.arc_src], level[of.arc_dst]
        return np.asarray((there < here) | ((there == here) & (of.arc_dst < of.arc_src)))

    def _steps(self, upward: Flags) -> tuple[Steps, Steps]:
        of, goals = self.fabric.switches, self.fabric.goals
        down = np.full((len(of.nodes), len(goals)), FAR, np.int16)
        down[goals, np.arange(len(goals))] = 0
        relax(down, of, goals, np.flatnonzero(~upward), 1)
        taken = down.copy()
        # only where there is no way down does a route go up
        relax(taken, of, goals, np.flatnonzero(upward), 1, open_to=down == FAR)
        return down, taken

    @property
    def diameter(self) -> int:
        return 2 + int(self._taken[self._taken < FAR].max(initial=0))

    @cached_property
    def choices(self) -> Choices:
        """See `HopByHop.choices`: of the shortest ways down, or where there is none up."""
        down, taken = self._down, self._taken

        def nearer(switch: int, here: slice) -> Flags:
            there = self.fabric.switches.arc_dst[here]
            upward = self._upward[here][:, None]
            goes_down = (down[switch] < FAR) & ~upward & (down[there] == down[switch] - 1)
            goes_up = (down[switch] >= FAR) & upward & (taken[there] == taken[switch] - 1)
            return np.asarray(goes_down | goes_up)

        return self.fabric.choices_of(nearer)

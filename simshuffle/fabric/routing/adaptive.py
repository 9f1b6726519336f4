"""Adaptive routing: the least loaded links at the time when a message is sent."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.minimal import DrawnSwitches, check_groups
from simshuffle.fabric.routing.router import Router, RoutingRule
from simshuffle.spec.arrays import Ints32


class Adaptive(RoutingRule):
    """Adaptive routing, as least loaded at injection: of the links that begin a shortest way every
    message takes at every switch the one that was given the fewest messages so far. Among groups
    that are linked to one another, as in a dragonfly, ways with one hop between groups count as
    shortest.

    With ``detours`` a message may also go by way of a switch drawn at random, as `Valiant`: where
    the fullest link of the straight way, times its links, is more than that of the detour (UGAL
    with knowledge of all links; Kim et al., ISCA 2008, Sec. 4).

    Real switches choose packet by packet from what they know of their own ports. So this is what
    good adaptive routing comes to, and not what a certain switch does.

    Attributes:
        detours: whether a message may also go by way of a switch drawn at random, in networks of
            groups.
    """

    drawn: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    kind: Literal["adaptive"] = "adaptive"
    detours: bool = False

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        if self.detours:
            check_groups(fabric, f"{self.kind} with detours")
        return _AdaptiveRouter(fabric, seed, detours=self.detours)


class _AdaptiveRouter(Router):
    constant = False

    def __init__(self, fabric: Fabric, seed: int, *, detours: bool) -> None:
        super().__init__(fabric)
        self._seed = seed
        self._detours = DrawnSwitches(fabric, seed) if detours else None
        self._load = np.zeros(len(fabric.links), np.int64)

    def afresh(self) -> Router:
        return _AdaptiveRouter(self.fabric, self._seed, detours=self._detours is not None)

    @property
    def diameter(self) -> int:
        way = self.fabric.direct_way if self.fabric.grouped else self.fabric.longest_way
        return 2 * (way - 2) + 2 if self._detours else way

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        # here, as numba is loaded only where something is computed
        from simshuffle.fabric.routing.least_loaded import least_loaded  # noqa: PLC0415 - numba

        out = np.full((len(src), self.diameter), -1, np.int32)
        if not len(src):
            return out
        fabric = self.fabric
        none = np.full(len(src), -1, np.int32)
        least_loaded(
            np.ascontiguousarray(src, np.int32),
            np.ascontiguousarray(dst, np.int32),
            none if self._detours is None else self._detours.drawn(src, dst),
            fabric.inject,
            fabric.eject,
            fabric.at,
            fabric.goals,
            fabric.goal_of,
            fabric.toward,
            fabric.entered,
            self._load,
            np.empty(out.shape[1], np.int32),
            out,
        )
        return out

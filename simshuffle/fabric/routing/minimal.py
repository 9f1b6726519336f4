"""Minimal routing of dragonflies, from group to group at once, and Valiant routing, by way of a
switch drawn at random."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simshuffle.fabric.routing.dimension_order import check_coordinates
from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    mixed,
    unsuited,
)
from simshuffle.spec.arrays import Ints32


class Minimal(RoutingRule):
    """Minimal routing, for switches that stand in groups (dragonfly, Dragonfly+): to a switch that
    has a link to the group of the destination, over it, and on to the destination (Kim et al.,
    Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA 2008). Of several such ways, source
    and destination choose one by a hash. Where all routes are in use, some wait for one another in
    a circle, which real machines break by virtual channels."""

    kind: Literal["minimal"] = "minimal"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        check_groups(fabric, self.kind)
        return MinimalRouter(fabric, 0)


def check_groups(fabric: Fabric, kind: str) -> None:
    """Raises a TopologyError where the switches do not stand in groups of which each is linked to
    all others, which ``kind`` needs."""
    check_coordinates(fabric, kind)
    if not fabric.grouped:
        raise unsuited(
            f"{kind} is for groups of switches of which each is linked to all others",
            "groups without a link between them",
            "Use another routing, such as dimension_order or min_hop.",
        )


class MinimalRouter(HopByHop):
    """Routes with one hop between groups."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric)
        self.seed = seed

    @cached_property
    def choices(self) -> Choices:
        """See `HopByHop.choices`."""
        return self.fabric.direct

    @property
    def diameter(self) -> int:
        """See `Router.diameter`."""
        return self.fabric.direct_way

    def choose(self, step: MessagePositions) -> Ints32:
        """See `HopByHop.choose`."""
        return self.of_count(step, mixed(self.seed, step.here, step.src, step.dst))


class Valiant(RoutingRule):
    """Valiant routing (Valiant & Brebner, STOC 1981; for dragonflies Kim et al., ISCA 2008): every
    message goes to a switch drawn at random among those with hosts, and from there to its
    destination; each part of the way as `Minimal`. Between switches of one group it goes straight.
    It makes any traffic look uniform, and puts twice as much of it on the links."""

    drawn: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    kind: Literal["valiant"] = "valiant"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        check_groups(fabric, self.kind)
        return _ValiantRouter(fabric, seed)


class _ValiantRouter(MinimalRouter):
    constant = False

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric, seed)
        self._detours = DrawnSwitches(fabric, seed)

    def afresh(self) -> Router:
        return _ValiantRouter(self.fabric, self.seed)

    @property
    def diameter(self) -> int:
        return 2 * (self.fabric.direct_way - 2) + 2

    def stops(self, src: Ints32, dst: Ints32) -> list[Ints32]:
        detour = self._detours.drawn(src, dst)
        return [np.where(detour < 0, self.fabric.goal_of[src], detour)]


class DrawnSwitches:
    """Switches drawn for one message after the other, to go by.

    Args:
        fabric: a network whose switches stand in groups.
        seed: another one draws others.
    """

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self._fabric, self._seed = fabric, seed
        self._sent = 0

    def drawn(self, src: Ints32, dst: Ints32) -> Ints32:
        """(n,) the place in `Fabric.goals` of a switch for each message between two ports, (n,)
        each; -1 within a group, and to and from storage."""
        fabric, groups = self._fabric, self._fabric.groups
        assert groups is not None  # noqa: S101 - checked where a router is made
        number = np.arange(self._sent, self._sent + len(src))
        self._sent += len(src)
        among = np.flatnonzero(groups[fabric.goals] >= 0)
        drawn = among[(mixed(self._seed, number) % np.uint64(len(among))).astype(np.int64)]
        here, there = groups[fabric.at[src]], groups[fabric.at[dst]]
        return np.where((here == there) | (here < 0) | (there < 0), -1, drawn).astype(np.int32)

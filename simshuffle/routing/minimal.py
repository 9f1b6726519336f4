"""Minimal routing of dragonflies: from group to group at once."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from simshuffle.routing.base import RoutingRule, unsuited
from simshuffle.routing.dimension_order import check_coordinates
from simshuffle.routing.fabric import Choices, Fabric, Ints
from simshuffle.routing.router import HopByHop, Router, Step, mixed


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

    def choose(self, step: Step) -> Ints:
        """See `HopByHop.choose`."""
        return self.of_count(step, mixed(self.seed, step.here, step.src, step.dst))

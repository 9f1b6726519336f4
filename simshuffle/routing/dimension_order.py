"""Dimension order: one coordinate after the other."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from simshuffle.routing.base import RoutingRule, unsuited
from simshuffle.routing.fabric import Bools, Choices, Fabric, Ints
from simshuffle.routing.grid import Grid
from simshuffle.routing.router import HopByHop, Router, Step


class DimensionOrder(RoutingRule):
    """Dimension order, for switches with coordinates (torus, HyperX): first the way in the first
    dimension, then in the second, and so on, each the shorter way around. Half-way round a ring,
    even and odd destinations go different ways; so do they over parallel links. On the rings of a
    torus routes wait for one another in a circle, which real machines break by virtual channels.
    """

    kind: Literal["dimension_order"] = "dimension_order"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        check_coordinates(fabric, self.kind)
        return DimensionOrderRouter(fabric)


def check_coordinates(fabric: Fabric, kind: str) -> None:
    """Raises a TopologyError where the switches have no coordinates, which ``kind`` needs."""
    if fabric.groups is None:
        raise unsuited(
            f"{kind} is for switches with coordinates",
            "none",
            "Use another routing, such as min_hop, or another topology.",
        )


class DimensionOrderRouter(HopByHop):
    """Routes by dimension order."""

    by_destination = True

    @cached_property
    def choices(self) -> Choices:
        """See `HopByHop.choices`: of the shortest ways, those of the first dimension in which
        something is left to go."""
        fabric = self.fabric
        of, goals = fabric.switches, fabric.goals
        coordinates = fabric.cabling.coordinates
        assert coordinates is not None  # noqa: S101 - checked where the router is made
        place = coordinates[of.nodes]
        # the storage switch has none: it comes after all dimensions
        known = (place[of.here] >= 0).all(axis=1) & (place[of.there] >= 0).all(axis=1)
        differs = place[of.here] != place[of.there]
        dimension = np.where(known, differs.argmax(axis=1), place.shape[1])
        steps = of.steps(goals)

        def nearer(switch: int, here: slice) -> Bools:
            there = of.there[here]
            passable = of.transit[there][:, None] | (there[:, None] == goals)
            allowed = passable & (steps[there] == steps[switch] - 1)
            rank = np.where(allowed, dimension[here][:, None], np.iinfo(np.int64).max)
            return np.asarray(allowed & (rank == rank.min(axis=0)))

        return fabric.choices_of(nearer)

    @cached_property
    def _grid(self) -> Grid | None:
        return Grid.of(self.fabric)

    @property
    def diameter(self) -> int:
        """See `Router.diameter`."""
        return super().diameter if self._grid is None else 3 + self._grid.farthest

    def choice_of(self, here: Ints, goal: Ints) -> Ints:
        """See `HopByHop.choice_of`; on a grid there are none, and no table of all pairs."""
        return super().choice_of(here, goal) if self._grid is None else np.zeros_like(here)

    def choose(self, step: Step) -> Ints:
        """See `HopByHop.choose`."""
        if self._grid is None:
            return self.of_count(step, step.dst)
        ways = self._grid.ways(step.here, self.fabric.goals[step.goal])
        return self.fabric.link_of(ways, step.dst)

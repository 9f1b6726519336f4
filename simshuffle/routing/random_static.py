"""Forwarding tables drawn at random."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.routing.base import RoutingRule
from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.routing.router import HopByHop, Router, Step, mixed


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

    def choose(self, step: Step) -> Ints:
        return self.of_count(step, mixed(self._seed, step.here, step.dst))

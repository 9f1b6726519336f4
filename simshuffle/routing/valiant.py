"""Valiant routing: by way of a switch drawn at random."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.routing.base import RoutingRule
from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.routing.minimal import MinimalRouter, check_groups
from simshuffle.routing.router import Router, mixed


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
        return ValiantRouter(fabric, seed)


class ValiantRouter(MinimalRouter):
    """Routes by way of another switch."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric, seed)
        self._sent = 0

    @property
    def constant(self) -> bool:
        """See `Router.constant`."""
        return False

    def afresh(self) -> Router:
        """See `Router.afresh`."""
        return ValiantRouter(self.fabric, self.seed)

    @property
    def diameter(self) -> int:
        """See `Router.diameter`."""
        return 2 * (self.fabric.direct_way - 2) + 2

    def stops(self, src: Ints, dst: Ints) -> list[Ints]:
        """See `HopByHop.stops`: one switch."""
        fabric, groups = self.fabric, self.fabric.groups
        assert groups is not None  # noqa: S101 - checked where the router is made
        number = np.arange(self._sent, self._sent + len(src))
        self._sent += len(src)
        among = np.flatnonzero(groups[fabric.goals] >= 0)
        drawn = among[(mixed(self.seed, number) % np.uint64(len(among))).astype(np.int64)]
        here, there = fabric.at[src], fabric.at[dst]
        straight = (groups[here] == groups[there]) | (groups[here] < 0) | (groups[there] < 0)
        own = np.searchsorted(fabric.goals, here)
        return [np.where(straight, own, drawn).astype(np.int32)]

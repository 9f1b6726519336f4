"""Valiant routing: by way of a switch drawn at random."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

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
        number = np.arange(self._sent, self._sent + len(src))
        self._sent += len(src)
        detour = detours(self.fabric, self.seed, number, src, dst)
        return [np.where(detour < 0, self.fabric.goal_of[src], detour)]


def detours(fabric: Fabric, seed: int, number: NDArray[np.int64], src: Ints, dst: Ints) -> Ints:
    """(n,) the place in `Fabric.goals` of a switch drawn for each message by its ``number``; -1
    within a group, and to and from storage.

    Args:
        fabric: a network whose switches stand in groups.
        seed: another one draws others.
        number: (n,) of the messages.
        src, dst: (n,) their ports.
    """
    groups = fabric.groups
    assert groups is not None  # noqa: S101 - checked where a router is made
    among = np.flatnonzero(groups[fabric.goals] >= 0)
    drawn = among[(mixed(seed, number) % np.uint64(len(among))).astype(np.int64)]
    here, there = groups[fabric.at[src]], groups[fabric.at[dst]]
    return np.where((here == there) | (here < 0) | (there < 0), -1, drawn).astype(np.int32)

"""Static destination routing of trees: linear forwarding tables filled by D-mod-K.

On the way up, a switch at height l sends traffic for endpoint j through its up-link number ``(j //
(w_1 ... w_l)) mod K``, where ``w`` are the numbers of parents at the levels below and K counts its
up-links, numbered round robin over the parents (Zahavi, JPDC 2012: D-Mod-K). On the way down the
parallel links are chosen by the same digits, so that every endpoint has one chain of links of its
own and links of a level carry equal shares of uniform traffic. Endpoints are the HCAs, numbered
leaf switch by leaf switch.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    unsuited,
)
from simshuffle.spec.arrays import Ints32


class DModK(RoutingRule):
    """D-mod-K: up-links by the digits of the destination; for trees."""

    kind: Literal["d_mod_k"] = "d_mod_k"

    def router(self, fabric: Fabric, seed: int) -> ForwardingTable:
        """See `RoutingRule.router`."""
        check_levels(fabric, self.kind)
        return ForwardingTable(fabric)


def check_levels(fabric: Fabric, kind: str) -> None:
    """Raises a TopologyError where the switches do not stand in levels, which ``kind`` needs."""
    if not fabric.switches.stand_in_levels():
        raise unsuited(
            f"{kind} is for switches that stand in levels, each link between them leading up or"
            " down",
            "a link between two switches of one level, and several ways around it",
            "Use another routing, such as min_hop or up_down.",
        )


class LevelRouter(HopByHop):
    """Up and down links by the digits of a port number."""

    @cached_property
    def _strides(self) -> list[int]:
        """Product of the numbers of parents below each height."""
        of = self.fabric.switches
        up = (of.depth[of.arc_dst] == of.depth[of.arc_src] + 1) & of.is_transit[of.arc_dst]
        parents = np.bincount(of.arc_src[up], minlength=len(of.nodes))
        strides = [1]
        for height in range(int(of.depth.max()) + 1):
            strides.append(strides[-1] * max(1, int(parents[of.depth == height].max(initial=1))))
        return strides

    def by_digits(self, step: MessagePositions, endpoints: Ints32) -> Ints32:
        """(n,) the next link of each message, by the digits of the ports ``endpoints``."""
        of, choice = self.choices, step.choice
        height = self.fabric.switches.depth[step.here]
        side, cable = np.empty_like(endpoints), np.empty_like(endpoints)
        for level in np.unique(height).tolist():
            for down in (False, True):
                rows = np.flatnonzero((height == level) & (of.down[choice] == down))
                if not len(rows):
                    continue
                which, to = choice[rows], endpoints[rows]
                nearer, cables = of.nearer[which], of.cables[which]
                if down:  # the digits that lead up there
                    stride = self._strides[level - 1]
                    width = self._strides[level] // stride
                    side[rows] = self._descent(level, nearer, to)
                    cable[rows] = (to // stride // width) % cables
                else:  # round robin over the parents, then over parallel links
                    number = (to // self._strides[level]) % (nearer * cables)
                    cable[rows], side[rows] = np.divmod(number, nearer)
        return np.asarray(of.links[of.starts[of.begin[choice] + side] + cable])

    def _descent(self, height: int, count: Ints32, endpoints: Ints32) -> Ints32:
        """Which of ``count`` lower neighbours leads down to each endpoint: the parents that D-mod-K
        takes for it on its own way up."""
        side, place = np.zeros_like(endpoints), 1
        for below in range(height - 1, 0, -1):
            parents = self._strides[below] // self._strides[below - 1]
            digit = (endpoints // self._strides[below - 1]) % parents
            side += np.where(place < count, digit * place, 0).astype(np.int32)
            place *= parents
        side += np.where(place < count, place * (endpoints // place), 0).astype(np.int32)
        return side % count


class ForwardingTable(LevelRouter):
    """Routes by D-mod-K.

    Args:
        graph: the network: a `Fabric`, or what one is made of.
    """

    by_destination = True

    def __init__(self, graph: Any) -> None:
        super().__init__(graph if isinstance(graph, Fabric) else Fabric(graph))

    def choose(self, step: MessagePositions) -> Ints32:
        """See `HopByHop.choose`."""
        return self.by_digits(step, step.dst)


class SModK(RoutingRule):
    """S-mod-K: up-links by the digits of the source, so that every source has one chain of links up
    (Rodriguez et al., Oblivious Routing Schemes in Extended Generalized Fat Tree Networks, CLUSTER
    2009); for trees. What a storage system sends goes by the digits of the destination. It needs
    switches that look at the source, as those of InfiniBand do not.
    """

    kind: Literal["s_mod_k"] = "s_mod_k"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        check_levels(fabric, self.kind)
        return _SModKRouter(fabric)


class _SModKRouter(LevelRouter):
    def choose(self, step: MessagePositions) -> Ints32:
        # a storage system stands for many servers, which are not all on one chain
        served = self.fabric.stores[step.src]
        return self.by_digits(step, np.where(served, step.dst, step.src))

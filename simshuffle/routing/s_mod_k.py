"""S-mod-K: as D-mod-K, by the digits of the source."""

from __future__ import annotations

from typing import Literal

import numpy as np

from simshuffle.routing.base import RoutingRule
from simshuffle.routing.d_mod_k import LevelRouter, check_levels
from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.routing.router import Router, Step


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
    def choose(self, step: Step) -> Ints:
        # a storage system stands for many servers, which are not all on one chain
        served = self.fabric.stores[step.src]
        return self.by_digits(step, np.where(served, step.dst, step.src))

"""Cables that carry less than most between the same two levels, and which of them a run uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from simshuffle.plan.resources import Resources
from simshuffle.plan.wiring import wiring
from simshuffle.routing.router import uniform_loads
from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

NAMED = 3
"""Cables in use that are named, at most."""


class SlowCables:
    """The slow cables of a cluster, and which of them are in use; none of a network that is made by
    rule and has no faults.

    Args:
        cluster: the machine.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cable_of: dict[str, int] = {}  # by link: both directions of each cable
        self._used: dict[int, str] = {}
        self._peak = self._mean = 0.0
        if not (cluster.faults or cluster.topology.uneven):
            return
        wires = wiring(cluster)
        slow = np.flatnonzero(wires.fabric.cabling.bandwidth < wires.fabric.cabling.usual).tolist()
        links = wires.fabric.links.names
        storage = np.array([tier == "storage" for tier in wires.fabric.cabling.tiers])
        self._cables = int((~storage[wires.fabric.cabling.ends].any(axis=1)).sum())
        self._cable_of = {links[2 * cable + way]: cable for cable in slow for way in (0, 1)}

    def use(self, links: Iterable[str]) -> None:
        """Note links that are in use."""
        for link in links:
            if (cable := self._cable_of.get(link)) is not None:
                self._used.setdefault(cable, link)

    def carried(self, links: pd.DataFrame) -> None:
        """Note what links carried, from the links table of an epoch."""
        if not self._cable_of:
            return
        of_slow = links[links["link"].isin(self._cable_of)]
        if len(of_slow):
            self.use(of_slow["link"])
            self._peak = max(self._peak, float(of_slow["peak_utilisation"].max()))
            self._mean = max(self._mean, float(of_slow["mean_utilisation"].max()))

    def facts(self) -> dict[str, Any]:
        """Plain values, which JSON can hold: ``cables`` of the network, ``slow`` and ``used`` ones,
        the first of those by ``names``, and the largest share of one of them that was in use at a
        moment (``peak``) and in the mean of an epoch; empty if no cable is slow."""
        if not self._cable_of:
            return {}
        about = {
            "cables": self._cables,
            "slow": len(self._cable_of) // 2,
            "used": len(self._used),
            "names": [self._used[cable] for cable in sorted(self._used)[:NAMED]],
            "peak": self._peak,
            "mean": self._mean,
        }
        return {"slow_cables": about}


def on_the_ways(scenario: Scenario) -> dict[str, Any]:
    """The facts of the slow cables on the ways between the hosts of a run, and from the file system
    if its epochs read from there."""
    seen = SlowCables(scenario.cluster)
    if not seen.facts():
        return {}
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    router = resources.forwarding
    links = np.array(router.links.names, object)
    used = np.zeros(len(links), bool)
    if resources.num_domains > 1:
        used |= uniform_loads(router, resources.host_ports) > 0
    if scenario.workload.source == "pfs":
        routes = resources.pfs_read()[0]
        used[routes[(routes >= 0) & (routes < len(links))]] = True
    seen.use(links[used])
    return seen.facts()

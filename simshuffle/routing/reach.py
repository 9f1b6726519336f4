"""Which links messages between some ports may take, whatever a routing chooses."""

from __future__ import annotations

import numpy as np

from simshuffle.routing.fabric import Bools, Ints
from simshuffle.routing.router import Router


def reach(router: Router, ports: Ints) -> Bools:
    """(links,) the links that messages between any two of ``ports`` (n,) may take.

    Those of all shortest ways; where there are groups of switches that are linked to one another,
    of all ways with one hop between groups; all links between switches where a routing goes by
    way of others.
    """
    fabric = router.fabric
    out = np.zeros(len(router.links.names), bool)
    out[fabric.inject[ports]] = out[fabric.eject[ports]] = True
    grouped = fabric.grouped
    if router.diameter > (fabric.direct_way if grouped else fabric.longest_way):
        out[fabric.between] = True
        return out
    of = fabric.direct if grouped else fabric.shortest
    goals = np.unique(fabric.goal_of[ports])
    at = fabric.goals[goals]
    seen = np.zeros((len(fabric.switches.nodes), len(goals)), bool)
    here, to = (index.ravel() for index in np.meshgrid(at, np.arange(len(goals)), indexing="ij"))
    while len(here):
        seen[here, to] = True
        choice = of.of[here, goals[to]]
        some = choice >= 0  # there is none at the goal itself
        first, count = of.first[choice[some]], np.diff(of.first)[choice[some]]
        place = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        links = of.links[place]
        out[links] = True
        pairs = fabric.entered[links].astype(np.int64) * len(goals) + np.repeat(to[some], count)
        here, to = np.divmod(np.unique(pairs), len(goals))
        new = ~seen[here, to]
        here, to = here[new], to[new]
    return out

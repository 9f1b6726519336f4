"""What goes over every link: how many messages of a pattern, and whether any may at all, whatever a
routing chooses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.routing.fabric import Bools, Ints
from simshuffle.routing.router import HopByHop, Router, Step
from simshuffle.topology.cabling import runs

Longs = NDArray[np.int64]
_TOGETHER = 1 << 20  # routes found at once: some 50 MB


def loads(router: Router, src: Ints, dst: Ints) -> Longs:
    """(links,) how many of the messages from port ``src[i]`` to ``dst[i]``, (n,), each link has."""
    out = np.zeros(len(router.links), np.int64)
    for begin in range(0, len(src), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        routes = router.routes(src[part], dst[part])
        out += np.bincount(routes[routes >= 0], minlength=len(out))
    return out


def uniform_loads(router: Router, ports: Ints) -> Longs:
    """(links,) how many of the messages from every one of ``ports`` (n,) to every other one each
    link has.

    Where switches look at the destination alone, the messages of all ports of a switch are followed
    together.
    """
    if not (isinstance(router, HopByHop) and router.by_destination):
        src, dst = np.repeat(ports, len(ports)), np.tile(ports, len(ports))
        return loads(router, src[src != dst], dst[src != dst])
    fabric = router.fabric
    out = np.zeros(len(router.links), np.int64)
    out[fabric.inject[ports]] = len(ports) - 1
    out[fabric.eject[ports]] = len(ports) - 1
    at = fabric.at[ports]
    switches, weight = np.unique(at, return_counts=True)
    width = max(1, _TOGETHER // len(switches))
    for begin in range(0, len(ports), width):
        to = ports[begin : begin + width]
        here = np.repeat(switches, len(to)).astype(np.int32)
        _follow(router, here, np.tile(to, len(switches)), np.repeat(weight, len(to)), out)
    return out


def _follow(router: HopByHop, here: Ints, dst: Ints, weight: Longs, out: Longs) -> None:
    """Add the messages, ``weight`` of each kind, on their way from the switches ``here``."""
    fabric = router.fabric
    goal = fabric.goal_of[dst]
    rows = np.flatnonzero(here != fabric.at[dst])
    hop = 1
    while len(rows):
        place, to = here[rows], goal[rows]
        # whichever port of the switch they are from
        step = Step(hop, place, to, router.choice_of(place, to), dst[rows], dst[rows], rows)
        following = router.choose(step)
        out += np.bincount(following, weight[rows], len(out)).astype(np.int64)
        here[rows] = fabric.entered[following]
        rows = rows[here[rows] != fabric.at[dst[rows]]]
        hop += 1


def reach(router: Router, ports: Ints) -> Bools:
    """(links,) the links that messages between any two of ``ports`` (n,) may take.

    Those of all shortest ways; where there are groups of switches that are linked to one another,
    of all ways with one hop between groups; all links between switches where a routing goes by
    way of others.
    """
    fabric = router.fabric
    out = np.zeros(len(router.links), bool)
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
        first, end = of.first[choice[some]], of.first[choice[some] + 1]
        links = of.links[runs(first, end)]
        out[links] = True
        pairs = fabric.entered[links].astype(np.int64) * len(goals) + np.repeat(
            to[some], end - first
        )
        here, to = np.divmod(np.unique(pairs), len(goals))
        new = ~seen[here, to]
        here, to = here[new], to[new]
    return out

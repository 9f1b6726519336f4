"""The kernel of adaptive routing."""

from __future__ import annotations

from simshuffle.fabric.routing.fabric import Toward
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.compiling import compiled, entry


@entry
def least_loaded(
    src: Ints32,
    dst: Ints32,
    detour: Ints32,
    inject: Ints32,
    eject: Ints32,
    at: Ints32,
    goals: Ints32,
    goal_of: Ints32,
    toward: Toward,
    entered: Ints32,
    load: Ints64,
    other: Ints32,
    out: Ints32,
) -> None:
    """Find the way of one message after the other, each over the links with the least ``load`` at
    every switch, or by way of a ``detour``; see `Adaptive`.

    Args:
        src, dst: (n,) ports.
        detour: (n,) place in ``goals`` of a switch to go by, or -1.
        inject, eject, at, goals, entered: see `Fabric`.
        goal_of: (ports,) the place in ``goals`` of each port's switch.
        toward: what leads nearer to a goal.
        load: (links,) messages on each; changed in place.
        other: (width,) scratch.
        out: (n, width) int32, -1; the links are written to it.
    """
    width = out.shape[1]
    for i in range(src.shape[0]):
        start, goal = at[src[i]], goal_of[dst[i]]
        way = out[i]
        way[0] = inject[src[i]]
        end = _go(way, 1, start, goal, goals, toward, entered, load)
        if detour[i] >= 0:
            other[0] = way[0]
            half = _go(other, 1, start, detour[i], goals, toward, entered, load)
            stop = goals[detour[i]]
            whole = _go(other, half, stop, goal, goals, toward, entered, load)
            if _fullest(way, end, load) * (end - 1) > _fullest(other, whole, load) * (whole - 1):
                for k in range(whole):
                    way[k] = other[k]
                end = whole
        way[end] = eject[dst[i]]
        for k in range(end + 1):
            load[way[k]] += 1
        for k in range(end + 1, width):
            way[k] = -1


@compiled
def _go(
    way: Ints32,
    length: int,
    start: int,
    goal: int,
    goals: Ints32,
    toward: Toward,
    entered: Ints32,
    load: Ints64,
) -> int:
    """Go from a switch to a goal over the least loaded links; returns the links of the way."""
    here = start
    while here != goals[goal]:
        best = -1
        steps = toward.left[goal, here]
        for out in range(toward.first[here], toward.first[here + 1]):
            there = toward.there[out]
            if toward.left[goal, there] != steps - toward.cost[out]:
                continue
            if not toward.transit[there] and there != goals[goal]:
                continue
            for k in range(toward.begin[out], toward.end[out]):
                if best < 0 or load[toward.links[k]] < load[best]:
                    best = toward.links[k]
        way[length] = best
        length += 1
        here = entered[best]
    return length


@compiled
def _fullest(way: Ints32, end: int, load: Ints64) -> int:
    """The highest load of the links between switches."""
    most = 0
    for k in range(1, end):
        most = max(most, load[way[k]])
    return most

"""The compiled kernel of adaptive routing."""

from __future__ import annotations

from simshuffle.fabric.routing.fabric import GoalArcs
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.compiling import compiled, entry


@entry
def route_by_load(
    src: Ints32,
    dst: Ints32,
    detour: Ints32,
    inject_link: Ints32,
    eject_link: Ints32,
    switch_of_port: Ints32,
    goals: Ints32,
    goal_of_port: Ints32,
    arcs: GoalArcs,
    entered_switch: Ints32,
    load: Ints64,
    detour_route: Ints32,
    out: Ints32,
) -> None:
    """Find the routes of messages one after the other, over the links with the lowest
    ``load`` at every switch, or by way of a ``detour``; see `Adaptive`.

    Args:
        src, dst: (n,) ports.
        detour: (n,) index in ``goals`` of a switch to go by, or -1.
        inject_link, eject_link, switch_of_port, goals, goal_of_port, entered_switch:
            see `Fabric`.
        arcs: the arcs that lead nearer to each goal.
        load: (links,) messages on each link; changed in place.
        detour_route: (width,) scratch.
        out: (n, width) int32, -1; the links of each route are written to it.
    """
    width = out.shape[1]
    for i in range(src.shape[0]):
        start = switch_of_port[src[i]]
        goal = goal_of_port[dst[i]]
        route = out[i]
        route[0] = inject_link[src[i]]
        length = _extend_route(route, 1, start, goal, goals, arcs, entered_switch, load)
        if detour[i] >= 0:
            detour_route[0] = route[0]
            detour_length = _extend_route(
                detour_route, 1, start, detour[i], goals, arcs, entered_switch, load
            )
            detour_switch = goals[detour[i]]
            full_length = _extend_route(
                detour_route,
                detour_length,
                detour_switch,
                goal,
                goals,
                arcs,
                entered_switch,
                load,
            )
            # UGAL: load of the fullest link * links between switches, straight and by the detour
            straight_cost = _highest_load(route, length, load) * (length - 1)
            detour_cost = _highest_load(detour_route, full_length, load) * (
                full_length - 1
            )
            if straight_cost > detour_cost:
                for k in range(full_length):
                    route[k] = detour_route[k]
                length = full_length
        route[length] = eject_link[dst[i]]
        for k in range(length + 1):
            load[route[k]] += 1
        for k in range(length + 1, width):
            route[k] = -1


@compiled
def _extend_route(
    route: Ints32,
    length: int,
    start: int,
    goal: int,
    goals: Ints32,
    arcs: GoalArcs,
    entered_switch: Ints32,
    load: Ints64,
) -> int:
    """Extend a route from switch ``start`` to a goal over the least loaded links;
    return its new length.

    Args:
        route: links so far; changed in place.
        length: how many of them count.
        start: the switch where the route has come to.
        goal: index in ``goals`` of the switch to reach.
        goals, arcs, entered_switch, load: see `route_by_load`.
    """
    switch = start
    while switch != goals[goal]:
        best_link = -1
        steps = arcs.remaining_steps[goal, switch]
        for arc in range(arcs.first_arc[switch], arcs.first_arc[switch + 1]):
            dst = arcs.arc_dst[arc]
            if arcs.remaining_steps[goal, dst] != steps - arcs.arc_cost[arc]:
                continue
            if not arcs.is_transit[dst] and dst != goals[goal]:
                continue
            for k in range(arcs.first_link[arc], arcs.end_link[arc]):
                if best_link < 0 or load[arcs.links[k]] < load[best_link]:
                    best_link = arcs.links[k]
        route[length] = best_link
        length += 1
        switch = entered_switch[best_link]
    return length


@compiled
def _highest_load(route: Ints32, length: int, load: Ints64) -> int:
    """Return the highest load among the links between switches of a route of ``length``
    links.
    """
    highest = 0
    for k in range(1, length):
        highest = max(highest, load[route[k]])
    return highest

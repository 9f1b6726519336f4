"""The compiled kernel of adaptive routing."""

from __future__ import annotations

from typing import NamedTuple

from simshuffle.fabric.routing.fabric import GoalArcs
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.compiling import compiled, entry


class PortMessages(NamedTuple):
    """n messages in the order in which they are sent."""

    src: Ints32  # (n,) ports
    dst: Ints32  # (n,) ports
    detour: Ints32  # (n,) index in ``goals`` of a switch to go by, or -1


class LoadedLinks(NamedTuple):
    """The links of a `Fabric` and their load. A field without a comment is the
    attribute of `Fabric` with the same name.
    """

    inject_link: Ints32
    eject_link: Ints32
    switch_of_port: Ints32
    goals: Ints32
    goal_of_port: Ints32
    arcs: GoalArcs  # the arcs that lead nearer to each goal
    entered_switch: Ints32
    load: Ints64  # (links,) messages on each link; raised by each route


@entry
def route_by_load(
    messages: PortMessages, network: LoadedLinks, detour_route: Ints32, out: Ints32
) -> int:
    """Find the routes of messages one after the other, over the links with the lowest
    load at every switch; of equally loaded links the first one.

    A message with a detour takes it only if (highest load x number of links between
    switches) is lower on the detour than straight.

    Args:
        messages: who sends to whom, and by way of which switch.
        network: the links; each link of a route gets 1 more load, in place.
        detour_route: (width,) scratch, overwritten.
        out: (n, width) int32; the links of each route are written to it, padded with
            -1.

    Returns:
        -1, or the index of the first message that finds no route; those after it have
        none either.
    """
    src = messages.src
    dst = messages.dst
    detour = messages.detour
    load = network.load
    width = out.shape[1]
    for i in range(src.shape[0]):
        start = network.switch_of_port[src[i]]
        goal = network.goal_of_port[dst[i]]
        route = out[i]
        route[0] = network.inject_link[src[i]]
        length = _extend_route(route, 1, start, goal, network)
        if length < 0:
            return i
        if detour[i] >= 0:
            detour_route[0] = route[0]
            length_there = _extend_route(detour_route, 1, start, detour[i], network)
            if length_there < 0:
                return i
            detour_switch = network.goals[detour[i]]
            full_length = _extend_route(
                detour_route, length_there, detour_switch, goal, network
            )
            if full_length < 0:
                return i
            # UGAL: load of the fullest link * links between switches, straight and by the detour
            straight_cost = _highest_load(route, length, load) * (length - 1)
            detour_cost = _highest_load(detour_route, full_length, load) * (
                full_length - 1
            )
            if straight_cost > detour_cost:
                for k in range(full_length):
                    route[k] = detour_route[k]
                length = full_length
        route[length] = network.eject_link[dst[i]]
        for k in range(length + 1):
            load[route[k]] += 1
        for k in range(length + 1, width):
            route[k] = -1
    return -1


@compiled
def _extend_route(
    route: Ints32, length: int, start: int, goal: int, network: LoadedLinks
) -> int:
    """Extend a route from switch ``start`` to a goal over the least loaded links;
    return its new length, or -1 if no route leads there.

    Args:
        route: links so far; the next ones are written to it.
        length: number of links so far.
        start: the switch where the route has come to.
        goal: index in ``network.goals`` of the switch to reach.
        network: the links and their load, which is only read.
    """
    goals = network.goals
    arcs = network.arcs
    load = network.load
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
        if best_link < 0:
            return -1
        route[length] = best_link
        length += 1
        switch = network.entered_switch[best_link]
    return length


@compiled
def _highest_load(route: Ints32, length: int, load: Ints64) -> int:
    """Return the highest load among the links between switches of a route, 0 if there
    are none. The first of the ``length`` links, the injecting one, does not count; the
    ejecting link must not be among them.
    """
    highest = 0
    for k in range(1, length):
        highest = max(highest, load[route[k]])
    return highest

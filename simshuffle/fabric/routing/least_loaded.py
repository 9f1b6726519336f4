"""The compiled kernel of adaptive routing."""

from __future__ import annotations

from typing import NamedTuple

from simshuffle.fabric.routing.fabric import GoalArcs
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.compiling import compiled, entry, int64

LOOK_AHEAD = 4
"""Links of a way that are compared as a whole: all between switches in a tree of three
levels, and in a dragonfly. In a torus the number of shortest ways grows too fast.
"""


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
    # (4, LOOK_AHEAD + 1) scratch, overwritten. At each depth of a walk: the switch, the next arc to
    # try, the load of the links so far, and the link that is tried
    walk: Ints64


@entry
def route_by_load(
    messages: PortMessages, network: LoadedLinks, detour_route: Ints32, out: Ints32
) -> int:
    """Find the routes of messages one after the other, each over the links that carry
    the fewest messages in all (`_extend_route`).

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
    """Extend a route from switch ``start`` to a goal by the shortest way whose links
    carry the fewest messages in all; return its new length, or -1 if no route leads
    there.

    Of a way with more than `LOOK_AHEAD` links, the next so many decide on the next one.

    Args:
        route: links so far; the next ones are written to it.
        length: number of links so far.
        start: the switch where the route has come to.
        goal: index in ``network.goals`` of the switch to reach.
        network: the links and their load, which is only read.
    """
    goal_switch = network.goals[goal]
    switch = start
    while switch != goal_switch:
        depth = _find_least_loaded(route, length, switch, goal, network)
        if depth < 0:
            return -1
        switch = network.entered_switch[route[length + depth - 1]]
        if switch != goal_switch:
            switch = network.entered_switch[route[length]]
            depth = 1
        length += depth
    return length


@compiled
def _find_least_loaded(
    route: Ints32, length: int, start: int, goal: int, network: LoadedLinks
) -> int:
    """Write the least loaded way from switch ``start`` to a goal, or its first
    `LOOK_AHEAD` links, to ``route``; return how many links it has, or -1 if there is
    none. Arguments are as in `_extend_route`; the goal is not ``start``.

    All shortest ways are walked, depth first; a way is given up when its load reaches
    that of the best. Of equally loaded ways the first one is taken.
    """
    arcs = network.arcs
    load = network.load
    goal_switch = network.goals[goal]
    switches = network.walk[0]
    next_arc = network.walk[1]
    load_so_far = network.walk[2]
    links = network.walk[3]
    best_depth = -1
    best_load = int64(0)
    depth = 0
    switches[0] = start
    load_so_far[0] = 0
    next_arc[0] = arcs.first_arc[start]
    while depth >= 0:
        switch = switches[depth]
        if switch == goal_switch or depth == LOOK_AHEAD:
            best_depth = depth
            best_load = load_so_far[depth]
            for k in range(depth):
                route[length + k] = links[k]
            depth -= 1
            continue
        arc = next_arc[depth]
        if arc == arcs.first_arc[switch + 1]:
            depth -= 1
            continue
        next_arc[depth] += 1
        dst = arcs.arc_dst[arc]
        steps = arcs.remaining_steps[goal, switch] - arcs.arc_cost[arc]
        if arcs.remaining_steps[goal, dst] != steps:
            continue
        if not arcs.is_transit[dst] and dst != goal_switch:
            continue
        link = arcs.links[arcs.first_link[arc]]
        for k in range(arcs.first_link[arc] + 1, arcs.end_link[arc]):
            if load[arcs.links[k]] < load[link]:
                link = arcs.links[k]
        total_load = load_so_far[depth] + load[link]
        if best_depth >= 0 and total_load >= best_load:
            continue
        links[depth] = link
        depth += 1
        switches[depth] = dst
        next_arc[depth] = arcs.first_arc[dst]
        load_so_far[depth] = total_load
    return best_depth


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

"""Transfers that are posted: room on their links, their routes, what they wait for."""

from __future__ import annotations

import numpy as np

from simshuffle.network.fluid_events import graph_at, make_ready, state_at, upcoming
from simshuffle.network.fluid_records import UNUSED, WAITING, Graph, Ints, Records, State
from simshuffle.spec.compiling import compiled, entry, int64

# What `post` returns instead of a time if it needs a larger arena, more links for rate limits, room
# for more transfers or for more of what they wait for, or for longer routes.
LACKS_ENTRIES, LACKS_LINKS, LACKS_NODES, LACKS_EDGES, LACKS_WIDTH = -1.0, -2.0, -3.0, -4.0, -5.0
# Entries of the arena for a place of a heap, with those that it had before it moved; see `promise`.
MOVES = 3


@compiled
def _limit_link(links: Records, clock: Records, limit: float) -> int:
    """The link that stands for the rate limit ``limit`` (units/s), which may be new; -1 if all
    such links are taken."""
    first = clock[0].null_link + 1
    for ident in range(first, first + clock[0].n_fixed):
        if links[ident].level == limit:
            return ident
    ident = first + clock[0].n_fixed
    if ident == links.shape[0]:
        return -1
    links[ident].level = limit
    links[ident].fixed = 1
    clock[0].n_fixed += 1
    return int(ident)


@compiled
def promise(s: State, ident: int) -> bool:
    """Promise places in the arena for all transfers that may have their bottleneck on a link;
    False if it is too small.

    The heap of a link moves to four times its places, or to all that are promised, until these are
    not enough. All its places together are fewer than 3 times the sum of those promised: the ones
    of the first kind are at most a third more than the last of them.
    """
    link = s.links[ident]
    if link.n_alive <= link.reserved:
        return True
    places = max(4, link.n_alive if link.reserved == 0 else link.n_alive + link.n_alive // 2)
    if s.clock[0].promised + MOVES * places > s.entries.shape[0]:
        return False
    link.reserved = places
    s.clock[0].promised += MOVES * places
    return True


@compiled
def _reserve(s: State, tasks: Records, routes: Ints, count: bool) -> float:
    """Make room on the links for a batch; ``count``: whether its transfers are still to be counted
    on their links. Returns 0, `LACKS_ENTRIES` or `LACKS_LINKS`."""
    for i in range(tasks.shape[0]):
        if tasks[i].cap < np.inf and _limit_link(s.links, s.clock, tasks[i].cap) < 0:
            return LACKS_LINKS
    for counting in range(0 if count else 1, 2):
        for i in range(tasks.shape[0]):
            k = 0
            while k < routes.shape[1] and routes[i, k] >= 0:
                if counting == 0:
                    s.links[routes[i, k]].n_alive += 1
                elif not promise(s, int64(routes[i, k])):
                    return LACKS_ENTRIES
                k += 1
            if tasks[i].cap < np.inf:
                limit = _limit_link(s.links, s.clock, tasks[i].cap)
                if counting == 0:
                    s.links[limit].n_alive += 1
                elif not promise(s, limit):
                    return LACKS_ENTRIES
    return 0.0


@compiled
def _add_edge(nodes: Records, edges: Records, clock: Records, before: int, after: int) -> None:
    edge = clock[0].free_edge
    clock[0].free_edge = edges[edge].next
    clock[0].n_edges += 1
    edges[edge].to = after
    edges[edge].next = nodes[before].first_edge
    nodes[before].first_edge = edge
    nodes[after].n_deps += 1


@compiled
def _add_node(nodes: Records, clocks: Records, task: Records) -> int:
    """A transfer, still without a route; returns its slot."""
    clock = clocks[0]
    slot = int64(clock.free_node)
    node = nodes[slot]
    clock.free_node = node.next
    clock.n_alive += 1
    node.work = task.work
    node.booked = 0.0
    node.place = -1
    node.nbytes = task.nbytes
    node.upcoming = task.delay
    node.t_ready = task.start
    node.pair = task.pair
    node.group = task.group
    node.group2 = task.group2
    node.account = task.account
    node.tag = task.tag
    node.mark = task.mark
    node.outside = task.outside
    node.seq = clock.seq
    clock.seq += 1
    node.state = WAITING
    node.n_deps = 0
    node.first_edge = -1
    node.pair_next = -1
    return int(slot)


@compiled
def _add_route(s: State, slot: int, routes: Ints, i: int, limit: float) -> None:
    """Note the links of route ``i``, and last that of the rate limit, if there is one."""
    n_hops = 0
    while n_hops < routes.shape[1] and routes[i, n_hops] >= 0:
        s.hops[slot * s.width + n_hops].link = routes[i, n_hops]
        n_hops += 1
    s.nodes[slot].alone = n_hops < 2
    if limit < np.inf:
        s.hops[slot * s.width + n_hops].link = _limit_link(s.links, s.clock, limit)
        n_hops += 1
    s.nodes[slot].n_hops = n_hops


@compiled
def _lacks(s: State, g: Graph, tasks: Records, routes: Ints, n_edges: int) -> float:
    """What a batch lacks that needs no count of links; 0 if nothing."""
    if routes.shape[1] > s.width:
        return LACKS_WIDTH
    if s.clock[0].n_alive + tasks.shape[0] > s.nodes.shape[0]:
        return LACKS_NODES
    if s.clock[0].n_edges + n_edges + tasks.shape[0] > g.edges.shape[0]:
        return LACKS_EDGES
    return 0.0


@entry
def post(
    state: int,
    graph: int,
    now: float,
    tasks: Records,
    routes: Ints,
    edge_from: Ints,
    edge_to: Ints,
    count: bool,
) -> float:
    """Post a batch of transfers; edges say which ends before which starts (indices within the
    batch), and ``slots`` is filled with where they are kept.

    Returns the time of the next event (s). If that is one of `LACKS_ENTRIES` to `LACKS_WIDTH`
    nothing has been posted: the caller makes more of them and calls again, with ``count`` (whether
    the transfers are still to be counted on their links) unless it was `LACKS_ENTRIES`.
    """
    s, g = state_at(state), graph_at(graph)
    lack = _lacks(s, g, tasks, routes, int64(edge_from.shape[0]))
    if lack == 0.0:
        lack = _reserve(s, tasks, routes, count)
    if lack < 0.0:
        return lack
    clock, slots = s.clock[0], g.slots
    clock.now = max(clock.now, now)
    for i in range(tasks.shape[0]):
        slots[i] = _add_node(s.nodes, s.clock, tasks[i])
        _add_route(s, int64(slots[i]), routes, i, tasks[i].cap)
    # the last first: then the transfers that wait for one are listed in the order of posting
    for i in range(edge_from.shape[0] - 1, -1, -1):
        _add_edge(s.nodes, g.edges, s.clock, int64(slots[edge_from[i]]), int64(slots[edge_to[i]]))
    for i in range(tasks.shape[0]):
        before = int64(tasks[i].after)
        if (
            before >= 0
            and s.nodes[before].seq == tasks[i].after_seq
            and s.nodes[before].state != UNUSED
        ):
            _add_edge(s.nodes, g.edges, s.clock, before, int64(slots[i]))
    for i in range(tasks.shape[0]):
        if s.nodes[slots[i]].n_deps == 0:
            make_ready(s.nodes, g.heap, s.clock, int64(slots[i]), clock.now)
    return upcoming(s, g)

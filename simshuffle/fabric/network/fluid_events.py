"""The next event: the ends of flows, and the delays that pass. Also where all arrays
are, and how transfers are posted: room on their links, their routes, the transfers
that they wait for.

The next end is found by minima over the ends of all links, kept up to date. The
transfers whose delay has not passed are in order of time and of posting: those with
one delay that become ready one after the other come in order, as after a barrier,
so they are kept in runs, each in order, and a heap has the first of each run.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_ahead import fetch_transfer
from simshuffle.fabric.network.fluid_records import (
    DELAYED,
    FAN,
    PER_GROUP,
    UNUSED,
    WAITING,
    ZERO,
    FluidState,
    Records,
    TransferGraph,
    empty_fluid_state,
    empty_transfer_graph,
)
from simshuffle.spec.arrays import Floats, Ints32
from simshuffle.spec.compiling import at_address, compiled, entry, int64, reducing


@reducing
def minimum(values: Floats, first: int, last: int) -> float:
    """Minimum of ``values`` from index ``first`` to before ``last``, inf if there are
    none.
    """
    # four at a time, which need not wait for one another; an unsigned index cannot mean one
    # counted from the end
    low_0 = low_1 = low_2 = low_3 = np.inf
    i = np.uint64(first)
    while i + np.uint64(4) <= np.uint64(last):
        low_0 = min(low_0, values[i])
        low_1 = min(low_1, values[i + np.uint64(1)])
        low_2 = min(low_2, values[i + np.uint64(2)])
        low_3 = min(low_3, values[i + np.uint64(3)])
        i += np.uint64(4)
    while i < np.uint64(last):
        low_0 = min(low_0, values[i])
        i += np.uint64(1)
    return min(low_0, low_1, low_2, low_3)


@compiled
def set_end(s: FluidState, link: int, end: float) -> None:
    """Set the next end (s) of a link, and keep the minima above it up to date."""
    ends = s.ends
    old_end = ends[link]
    if end == old_end:
        return
    # `ends` has FAN * FAN links for each group; then, from `blocks` on, the minimum of each FAN
    # links; and from `supers` on that of each FAN of those
    groups = ends.shape[0] // PER_GROUP
    block = link // FAN
    blocks = groups * FAN * FAN
    supers = blocks + groups * FAN
    ends[link] = end
    if end < ends[blocks + block]:
        ends[blocks + block] = end
        ends[supers + block // FAN] = min(ends[supers + block // FAN], end)
    elif old_end == ends[blocks + block]:
        ends[blocks + block] = minimum(ends, block * FAN, (block + 1) * FAN)
        group = block // FAN
        ends[supers + group] = minimum(
            ends, blocks + group * FAN, blocks + (group + 1) * FAN
        )


@compiled
def next_end_time(ends: Floats) -> float:
    """Time of the next end of a flow (s), inf if there is none."""
    groups = ends.shape[0] // PER_GROUP
    return minimum(ends, groups * (PER_GROUP - 1), groups * PER_GROUP)


@compiled
def link_of_next_end(ends: Floats) -> int:
    """The link of the next end, of several the one with the lowest index; without
    meaning if `next_end_time` is inf.
    """
    groups = ends.shape[0] // PER_GROUP
    end = next_end_time(ends)
    # from the minima of the last level to the place in each level below that has the same value
    cell = groups * (PER_GROUP - 1)
    while ends[cell] != end:
        cell += 1
    cell = groups * FAN * FAN + (cell - groups * (PER_GROUP - 1)) * FAN
    while ends[cell] != end:
        cell += 1
    cell = (cell - groups * FAN * FAN) * FAN
    while ends[cell] != end:
        cell += 1
    return int(cell)


@compiled
def refresh_minima(ends: Floats, n_links: int) -> None:
    """Compute the minima over the ends of the first ``n_links`` links anew."""
    groups = ends.shape[0] // PER_GROUP
    first_block = groups * FAN * FAN
    used_blocks = -(-n_links // FAN)
    for block in range(used_blocks):
        ends[first_block + block] = minimum(ends, block * FAN, (block + 1) * FAN)
    for group in range(-(-used_blocks // FAN)):
        ends[first_block + groups * FAN + group] = minimum(
            ends, first_block + group * FAN, first_block + (group + 1) * FAN
        )


# Runs that a transfer is offered to.
MAX_RUNS = 4


@compiled
def _comes_before(a: Records, b: Records) -> bool:
    """Return True if event ``a`` comes before ``b``, `NODE` or `EVENT`: by time, then by
    posting.
    """
    return bool(a.upcoming < b.upcoming or (a.upcoming == b.upcoming and a.seq < b.seq))


@compiled
def _write_event(
    s: FluidState, heap: Records, place: int, flow: int, tail: int
) -> None:
    """Write the event of ``flow``, whose run ends with ``tail``, to a place of the heap."""
    event = heap[place]
    event.upcoming = s.nodes[flow].upcoming
    event.seq = s.nodes[flow].seq
    event.flow = flow
    event.tail = tail


@compiled
def push_event(s: FluidState, g: TransferGraph, flow: int) -> None:
    """Add a transfer whose time is set in `NODE.upcoming`: to the run that fits best of
    the first few in the heap, else as a run of its own.
    """
    nodes = s.nodes
    heap = g.heap
    clock = s.clock
    n = int64(clock[0].n_heap)
    nodes[flow].next = -1
    best = int64(-1)
    best_tail = int64(-1)
    for k in range(min(n, MAX_RUNS)):
        tail = int64(heap[k].tail)
        if _comes_before(nodes[tail], nodes[flow]) and (
            best < 0 or _comes_before(nodes[best_tail], nodes[tail])
        ):
            best = k
            best_tail = tail
    if best >= 0:
        nodes[best_tail].next = flow
        heap[best].tail = flow
        return
    clock[0].n_heap = n + 1
    while n > 0:
        parent = (n - 1) >> 1
        if not _comes_before(nodes[flow], heap[parent]):
            break
        heap[n] = heap[parent]
        n = parent
    _write_event(s, heap, n, flow, flow)


@compiled
def pop_event(s: FluidState, g: TransferGraph) -> int:
    """Take out the transfer of the first event, and return it; there must be one."""
    heap = g.heap
    clock = s.clock
    first = int64(heap[0].flow)
    flow = int64(s.nodes[first].next)
    n = int64(clock[0].n_heap)
    # the last place, behind all, holds what is to be placed: below place k are 2k + 1, 2k + 2
    if flow >= 0:  # the next of its run comes in its place
        _write_event(s, heap, n, flow, int64(heap[0].tail))
    else:
        n -= 1
        clock[0].n_heap = n
    place = ZERO
    while True:
        child = 2 * place + 1
        if child >= n:
            break
        if child + 1 < n and _comes_before(heap[child + 1], heap[child]):
            child += 1
        if not _comes_before(heap[child], heap[n]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = heap[n]
    fetch_transfer(s, int64(heap[0].flow))
    return int(first)


@compiled
def make_ready(s: FluidState, g: TransferGraph, flow: int) -> None:
    """Start the delay of a transfer that waits for no other any more, now or at its
    start if that is later; it enters the heap of events.

    `NODE.upcoming` is its delay (s) before, and the time (s) when it ends afterwards.
    """
    node = s.nodes[flow]
    node.state = DELAYED
    node.t_ready = max(s.clock[0].now, node.t_ready)
    node.upcoming += node.t_ready
    push_event(s, g, flow)


@compiled
def next_event_time(s: FluidState, g: TransferGraph) -> float:
    """Time of the next event (s), inf if there is none."""
    end_time = next_end_time(s.ends)
    return min(end_time, g.heap[0].upcoming) if s.clock[0].n_heap > 0 else end_time


state_at = at_address(empty_fluid_state)
graph_at = at_address(empty_transfer_graph)


# What `post` returns instead of a time if it needs a larger arena, more links for rate limits, room
# for more transfers or for more of what they wait for, or for longer routes.
LACKS_ENTRIES = -1.0
LACKS_LINKS = -2.0
LACKS_NODES = -3.0
LACKS_EDGES = -4.0
LACKS_WIDTH = -5.0
# Entries of the arena for a place of a heap, with those that it had before it moved; see
# `reserve_entries`.
MOVES = 3


@compiled
def _link_of_limit(s: FluidState, limit: float) -> int:
    """Return the link of the rate limit ``limit`` (units/s), an unused one if it is
    new; -1 if all such links are taken. A limit keeps its link for good.
    """
    clock = s.clock[0]
    first_limit = clock.null_link + 1
    for ident in range(first_limit, first_limit + clock.n_fixed):
        if s.links[ident].level == limit:
            return ident
    ident = first_limit + clock.n_fixed
    if ident == s.links.shape[0]:
        return -1
    s.links[ident].level = limit
    s.links[ident].fixed = 1
    clock.n_fixed += 1
    return int(ident)


@compiled
def reserve_entries(s: FluidState, ident: int) -> bool:
    """Reserve entries of the arena for all transfers that may have their bottleneck on
    a link; return False if the arena is too small.

    The heap of a link moves to four times its places, or to all that are reserved,
    until these are not enough. All its places together are fewer than 3 times the sum
    of those reserved: the ones of the first kind are at most a third more than the last
    of them.
    """
    link = s.links[ident]
    if link.n_alive <= link.reserved:
        return True
    places = max(
        4, link.n_alive if link.reserved == 0 else link.n_alive + link.n_alive // 2
    )
    if s.clock[0].promised + MOVES * places > s.entries.shape[0]:
        return False
    link.reserved = places
    s.clock[0].promised += MOVES * places
    return True


@compiled
def reserve_route(s: FluidState, routes: Ints32, i: int, counting: bool) -> bool:
    """Count one more transfer on the links of row ``i`` of ``routes`` if ``counting``,
    else reserve room in their heaps for all that are counted; return False if there is
    no room.
    """
    hop = 0
    while hop < routes.shape[1] and routes[i, hop] >= 0:
        if counting:
            s.links[routes[i, hop]].n_alive += 1
        elif not reserve_entries(s, int64(routes[i, hop])):
            return False
        hop += 1
    return True


@compiled
def _reserve(
    s: FluidState, tasks: Records, routes: Ints32, is_uncounted: bool
) -> float:
    """Count a batch on its links if it is uncounted, and reserve room in their heaps.

    Args:
        s: the arrays of links.
        tasks: (n,) `TASK`.
        routes: (n, hops) links, padded with -1.
        is_uncounted: whether the transfers are still to be counted on their links.

    Returns:
        0, `LACKS_ENTRIES` or `LACKS_LINKS`.
    """
    for i in range(tasks.shape[0]):
        if tasks[i].cap < np.inf and _link_of_limit(s, tasks[i].cap) < 0:
            return LACKS_LINKS
    for counting in range(0 if is_uncounted else 1, 2):
        for i in range(tasks.shape[0]):
            if not reserve_route(s, routes, i, counting == 0):
                return LACKS_ENTRIES
            if tasks[i].cap < np.inf:
                limit = _link_of_limit(s, tasks[i].cap)
                if counting == 0:
                    s.links[limit].n_alive += 1
                elif not reserve_entries(s, limit):
                    return LACKS_ENTRIES
    return 0.0


@compiled
def _add_edge(
    s: FluidState, g: TransferGraph, predecessor: int, successor: int
) -> None:
    """Add the edge by which transfer ``successor`` waits for ``predecessor``; a slot
    for edges must be free.
    """
    edge = s.clock[0].free_edge
    s.clock[0].free_edge = g.edges[edge].next
    s.clock[0].n_edges += 1
    g.edges[edge].to = successor
    g.edges[edge].next = s.nodes[predecessor].first_edge
    s.nodes[predecessor].first_edge = edge
    s.nodes[successor].n_deps += 1


@compiled
def _add_node(s: FluidState, task: Records) -> int:
    """Add a transfer, still without a route; return its slot. One must be free."""
    clock = s.clock[0]
    slot = int64(clock.free_node)
    node = s.nodes[slot]
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
    node.outside = task.outside > 0
    node.bottleneck = task.outside
    node.seq = clock.seq
    clock.seq += 1
    node.state = WAITING
    node.n_deps = 0
    node.first_edge = -1
    node.pair_next = -1
    return int(slot)


@compiled
def _add_route(s: FluidState, slot: int, routes: Ints32, i: int, limit: float) -> None:
    """Write the links of row ``i`` of ``routes`` as the route of a transfer, and last
    the link of its rate limit, if it has one.
    """
    n_hops = 0
    while n_hops < routes.shape[1] and routes[i, n_hops] >= 0:
        s.hops[slot * s.width + n_hops].link = routes[i, n_hops]
        n_hops += 1
    s.nodes[slot].alone = n_hops < 2
    if limit < np.inf:
        s.hops[slot * s.width + n_hops].link = _link_of_limit(s, limit)
        n_hops += 1
    s.nodes[slot].n_hops = n_hops


@compiled
def find_shortage(
    s: FluidState,
    g: TransferGraph,
    tasks: Records,
    routes: Ints32,
    n_edges: int,
    is_uncounted: bool,
) -> float:
    """Return what a batch lacks: one of `LACKS_ENTRIES` to `LACKS_WIDTH`; 0 if nothing.

    A rate limit takes one link of the width. Each transfer counts as one edge beside
    ``n_edges``, for its ``TASK.after``. ``is_uncounted`` is as of `_reserve`.
    """
    if routes.shape[1] > s.width:
        return LACKS_WIDTH
    if routes.shape[1] == s.width:
        for i in range(tasks.shape[0]):
            if tasks[i].cap < np.inf and routes[i, s.width - 1] >= 0:
                return LACKS_WIDTH
    if s.clock[0].n_alive + tasks.shape[0] > s.nodes.shape[0]:
        return LACKS_NODES
    if s.clock[0].n_edges + n_edges + tasks.shape[0] > g.edges.shape[0]:
        return LACKS_EDGES
    return _reserve(s, tasks, routes, is_uncounted)


@compiled
def add_batch(
    s: FluidState,
    g: TransferGraph,
    tasks: Records,
    routes: Ints32,
    edge_from: Ints32,
    edge_to: Ints32,
) -> None:
    """Add a batch that lacks nothing; arguments as of `post`."""
    slots = g.slots
    for i in range(tasks.shape[0]):
        slots[i] = _add_node(s, tasks[i])
        _add_route(s, int64(slots[i]), routes, i, tasks[i].cap)
    # the last first: then the transfers that wait for one are listed in the order of posting
    for i in range(edge_from.shape[0] - 1, -1, -1):
        _add_edge(s, g, int64(slots[edge_from[i]]), int64(slots[edge_to[i]]))
    for i in range(tasks.shape[0]):
        if tasks[i].after >= 0:
            last = g.queues[tasks[i].after]
            predecessor = int64(last.slot)
            if (
                predecessor >= 0
                and s.nodes[predecessor].seq == last.seq
                and s.nodes[predecessor].state != UNUSED
            ):
                _add_edge(s, g, predecessor, int64(slots[i]))
        if tasks[i].last_of >= 0:
            queue = g.queues[tasks[i].last_of]
            queue.slot = slots[i]
            queue.seq = s.nodes[slots[i]].seq
    for i in range(tasks.shape[0]):
        if s.nodes[slots[i]].n_deps == 0:
            make_ready(s, g, int64(slots[i]))


@entry
def post(
    state: int,
    graph: int,
    now: float,
    tasks: Records,
    routes: Ints32,
    edge_from: Ints32,
    edge_to: Ints32,
    is_uncounted: bool,
) -> float:
    """Post a batch of transfers at ``now``, to which the clock moves if it is behind;
    their slots are written to ``slots``.

    A transfer does not wait for one of ``TASK.after`` that has ended already.

    Args:
        state, graph: addresses of `FluidState` and `TransferGraph`.
        now: s.
        tasks: (n,) `TASK`.
        routes: (n, hops) links, padded with -1.
        edge_from, edge_to: (m,) which transfer ends before which starts, by index in
            the batch.
        is_uncounted: whether the transfers are still to be counted on their links.

    Returns:
        The time of the next event (s). If that is one of `LACKS_ENTRIES` to
        `LACKS_WIDTH` nothing has been posted: the caller makes more of them and calls
        again, with ``is_uncounted`` unless it was `LACKS_ENTRIES`.
    """
    s = state_at(state)
    g = graph_at(graph)
    n_edges = int64(edge_from.shape[0])
    shortage = find_shortage(s, g, tasks, routes, n_edges, is_uncounted)
    if shortage < 0.0:
        return shortage
    s.clock[0].now = max(s.clock[0].now, now)
    add_batch(s, g, tasks, routes, edge_from, edge_to)
    return next_event_time(s, g)

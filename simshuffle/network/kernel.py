"""Compiled kernel of the fluid network: a graph of dependent transfers over shared links.

The kernel knows nothing of hosts, ranks or SimPy. It sees *links* (anything with a capacity: a
cable direction, a PCIe slot, an SSD, the cores of a host) and *transfers*. A transfer becomes ready
when all transfers it waits for have ended, spends ``delay`` seconds without using anything
(latency, or fixed work of a processor), then drains ``work`` units through every link of its route
at its max-min fair rate (fair.py), and ends. Transfers of the same ``pair`` go one after the other,
in the order in which they were posted.

All state lives in a few record arrays, because passing one record array to compiled code costs as
much as passing one plain array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.network.compiling import compiled, entry, int64
from simshuffle.network.fair import (
    FIRST,
    all_minima,
    book,
    end_due,
    end_early,
    next_end,
    next_link,
    share,
)

Records = Any  # a record array; its fields are those of the dtypes below
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

UNUSED, WAITING, DELAYED, QUEUED, ACTIVE, ENDING = 0, 1, 2, 3, 4, 5

# Events closer than this (relative to the clock) are one instant, so that symmetric flows end
# together in spite of rounding.
INSTANT = 1e-14

NODE = np.dtype(
    [
        ("work", "f8"),  # units to drain
        ("left", "f8"),  # units left to drain, while the network is filled anew
        ("booked", "f8"),  # units that the statistics of its links hold already
        ("nbytes", "f8"),  # bytes, for the link statistics only
        ("delay", "f8"),  # s between ready and active
        ("t_ready", "f8"),  # s
        ("t_event", "f8"),  # s, when the delay ends
        ("pair", "i8"),  # key of the fair-share entity, or -1
        ("seq", "i8"),  # order of posting
        ("place", "i8"),  # its entry in the heap of its bottleneck; -1 before it drains
        ("row", "i8"),  # its place in the list of flows beside that heap; -1 if it is not there
        ("bottleneck", "i4"),
        ("state", "i4"),
        ("n_deps", "i4"),
        ("n_hops", "i4"),
        ("alone", "i4"),  # 1: it shares at most one link, rate limits aside
        ("group", "i4"),
        ("group2", "i4"),
        ("account", "i4"),
        ("tag", "i4"),
        ("mark", "i4"),
        ("first_edge", "i4"),
        ("pair_next", "i4"),  # next transfer of the same pair in the queue
        ("pair_tail", "i4"),  # last one of that queue (valid at its head)
        ("bucket_next", "i4"),
        ("bucket_prev", "i4"),
        ("next_free", "i4"),  # next unused one; or next in the outbox
        # 1: instead of draining, it goes to the outbox and is ended by `complete`
        ("outside", "i4"),
    ],
    align=True,
)
EDGE = np.dtype([("to", "i4"), ("next", "i4")], align=True)
GROUP = np.dtype(
    [
        ("t_mark", "f8"),  # s, when its marked transfer ended
        ("t_done", "f8"),  # s, when its last transfer ended
        ("remaining", "i4"),
        ("watched", "i4"),  # 1: somebody waits, so its completion is reported
    ],
    align=True,
)
CLOCK = np.dtype(
    [
        ("now", "f8"),
        ("spared", "f8"),  # largest share of its work that a transfer was spared by the tolerance
        ("seq", "i8"),
        ("n_events", "i8"),
        ("n_visits", "i8"),  # links visited, and flows filled: the work the solver really did
        ("heap_top", "i8"),  # entries in use of the heaps of all links
        ("n_heap", "i4"),
        ("n_done", "i4"),
        ("free_node", "i4"),
        ("free_edge", "i4"),
        ("n_alive", "i4"),
        ("n_active", "i4"),  # transfers that drain
        ("n_dirty", "i4"),  # links that have changed since rates were fair
        ("n_saturated", "i4"),
        ("n_order", "i4"),
        ("in_order", "i4"),
        ("sweeping", "i4"),
        ("n_repairs", "i4"),
        ("n_fixed", "i4"),  # distinct rate limits; their links come after `nowhere`
        ("nowhere", "i4"),  # a link that stands for none
        ("stamp", "i4"),
        ("outbox", "i4"),  # first transfer that is to be carried elsewhere from now on, -1 for none
    ],
    align=True,
)

# --------------------------------------------------------------------------------------- event heap


@compiled
def _before(nodes: Records, a: int, b: int) -> bool:
    x = nodes[a].t_event
    y = nodes[b].t_event
    return bool(x < y or (x == y and nodes[a].seq < nodes[b].seq))


@compiled
def _sift_up(nodes: Records, heap: Ints, pos: int) -> None:
    node = heap[pos]
    while pos > 0:
        parent = (pos - 1) >> 1
        if not _before(nodes, node, heap[parent]):
            break
        heap[pos] = heap[parent]
        pos = parent
    heap[pos] = node


@compiled
def _sift_down(nodes: Records, heap: Ints, n: int, pos: int) -> None:
    node = heap[pos]
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        if child + 1 < n and _before(nodes, heap[child + 1], heap[child]):
            child += 1
        if not _before(nodes, heap[child], node):
            break
        heap[pos] = heap[child]
        pos = child
    heap[pos] = node


@compiled
def _heap_push(nodes: Records, heap: Ints, clock: Records, node: int) -> None:
    n = clock[0].n_heap
    heap[n] = node
    clock[0].n_heap = n + 1
    _sift_up(nodes, heap, n)


@compiled
def _heap_pop(nodes: Records, heap: Ints, clock: Records) -> int:
    node = heap[0]
    n = clock[0].n_heap - 1
    clock[0].n_heap = n
    if n > 0:
        heap[0] = heap[n]
        _sift_down(nodes, heap, n, 0)
    return int(node)


# ------------------------------------------------------------------------------- life of a transfer


@compiled
def _pair_turn(nodes: Records, buckets: Ints, flow: int) -> bool:
    """True if ``flow`` may start now; otherwise it is put behind the transfers of its pair."""
    node = nodes[flow]
    b = node.pair % buckets.shape[0]
    head = buckets[b]
    while head >= 0:
        if nodes[head].pair == node.pair:
            nodes[nodes[head].pair_tail].pair_next = flow
            nodes[head].pair_tail = flow
            node.state = QUEUED
            return False
        head = nodes[head].bucket_next
    node.pair_tail = flow
    _bucket_insert(nodes, buckets, flow)
    return True


@compiled
def _bucket_insert(nodes: Records, buckets: Ints, flow: int) -> None:
    b = nodes[flow].pair % buckets.shape[0]
    nodes[flow].bucket_prev = -1
    nodes[flow].bucket_next = buckets[b]
    if buckets[b] >= 0:
        nodes[buckets[b]].bucket_prev = flow
    buckets[b] = flow


@compiled
def _bucket_remove(nodes: Records, buckets: Ints, flow: int) -> None:
    node = nodes[flow]
    if node.bucket_prev >= 0:
        nodes[node.bucket_prev].bucket_next = node.bucket_next
    else:
        buckets[node.pair % buckets.shape[0]] = node.bucket_next
    if node.bucket_next >= 0:
        nodes[node.bucket_next].bucket_prev = node.bucket_prev


@compiled
def _begin(nodes: Records, clock: Records, starting: Ints, n_starting: int, flow: int) -> int:
    """Note that ``flow`` drains from now on; returns how many do. One that has nothing to drain is
    ENDING at once."""
    node = nodes[flow]
    if node.outside:
        node.state = ACTIVE
        node.next_free = clock[0].outbox
        clock[0].outbox = flow
        return n_starting
    if node.work <= 0.0 or node.n_hops == 0:
        node.state = ENDING
        return n_starting
    node.state = ACTIVE
    starting[n_starting] = flow
    return n_starting + 1


@compiled
def _count_down(
    groups: Records, done: Ints, clock: Records, group: int, now: float, mark: int
) -> None:
    if group >= 0:
        if mark:
            groups[group].t_mark = now
        groups[group].remaining -= 1
        if groups[group].remaining == 0:
            groups[group].t_done = now
            if groups[group].watched:
                done[clock[0].n_done] = group
                clock[0].n_done += 1


@compiled
def _end(
    nodes: Records,
    heap: Ints,
    edges: Records,
    groups: Records,
    clock: Records,
    done: Ints,
    accounts: Floats,
    finish: Floats,
    flow: int,
) -> None:
    """Book the end of a transfer and make its successors ready."""
    node = nodes[flow]
    now = clock[0].now
    if node.account >= 0:
        accounts[node.account] += now - node.t_ready
    if node.tag >= 0:
        finish[node.tag] = now
    _count_down(groups, done, clock, node.group, now, node.mark)
    _count_down(groups, done, clock, node.group2, now, node.mark)
    edge = node.first_edge
    while edge >= 0:
        after = edges[edge].next
        successor = int64(edges[edge].to)
        edges[edge].next = clock[0].free_edge
        clock[0].free_edge = edge
        nodes[successor].n_deps -= 1
        if nodes[successor].n_deps == 0:
            _make_ready(nodes, heap, clock, successor, now)
        edge = after
    node.state = UNUSED
    node.next_free = clock[0].free_node
    clock[0].free_node = flow
    clock[0].n_alive -= 1


@compiled
def _make_ready(nodes: Records, heap: Ints, clock: Records, flow: int, now: float) -> None:
    node = nodes[flow]
    node.state = DELAYED
    node.t_ready = max(now, node.t_ready)
    node.t_event = node.t_ready + node.delay
    _heap_push(nodes, heap, clock, flow)


@compiled
def _add_edge(nodes: Records, edges: Records, clock: Records, before: int, after: int) -> None:
    edge = clock[0].free_edge
    clock[0].free_edge = edges[edge].next
    edges[edge].to = after
    edges[edge].next = nodes[before].first_edge
    nodes[before].first_edge = edge
    nodes[after].n_deps += 1


@compiled
def _cap_link(links: Records, clock: Records, cap: float) -> int:
    """The link that stands for the rate limit ``cap`` (units/s), which may be new; -1 if there is
    no room for a new one."""
    first = clock[0].nowhere + 1
    for ident in range(first, first + clock[0].n_fixed):
        if links[ident].level == cap:
            return ident
    ident = first + clock[0].n_fixed
    if ident == links.shape[0]:
        return -1
    links[ident].level = cap
    links[ident].fixed = 1
    clock[0].n_fixed += 1
    return int(ident)


@compiled
def _enlarge(s: Any, ident: int) -> bool:
    """Make room in the heap of a link for all transfers that may have their bottleneck there; False
    if the arena is full."""
    link = s.links[ident]
    if link.n_alive <= link.room:
        return True
    room = max(4, link.n_alive if link.room == 0 else link.n_alive + link.n_alive // 2)
    base = s.clock[0].heap_top
    if base + room > s.entries.shape[0]:
        return False
    for k in range(link.n):
        s.entries[base + k].key = s.entries[link.offset + k].key
        s.entries[base + k].flow = s.entries[link.offset + k].flow
        s.nodes[s.entries[base + k].flow].place = base + k
    for k in range(link.n_rows):
        s.entries[base + k].member = s.entries[link.offset + k].member
        s.nodes[s.entries[base + k].member].row = base + k
        for j in range(s.width - 1):
            s.others[(base + k) * (s.width - 1) + j] = s.others[
                (link.offset + k) * (s.width - 1) + j
            ]
    link.offset = base
    link.room = room
    s.clock[0].heap_top = base + room
    return True


@entry
def reserve(s: Any, tasks: Records, routes: Ints, count: bool) -> int:
    """Make room on the links for a batch about to be posted.

    ``count``: whether its transfers are still to be counted on their links. Returns 0 if there is
    room, 1 if the heaps need a larger arena, 2 if there are more distinct rate limits than links
    for them; the caller enlarges it and calls again, with ``count`` only after a 2.
    """
    for i in range(tasks.shape[0]):
        if tasks[i].cap < np.inf and _cap_link(s.links, s.clock, tasks[i].cap) < 0:
            return 2
    for counting in range(0 if count else 1, 2):
        for i in range(tasks.shape[0]):
            k = 0
            while k < routes.shape[1] and routes[i, k] >= 0:
                if counting == 0:
                    s.links[routes[i, k]].n_alive += 1
                elif not _enlarge(s, int64(routes[i, k])):
                    return 1
                k += 1
            if tasks[i].cap < np.inf:
                capped = _cap_link(s.links, s.clock, tasks[i].cap)
                if counting == 0:
                    s.links[capped].n_alive += 1
                elif not _enlarge(s, capped):
                    return 1
    return 0


@entry
def post(
    s: Any,
    heap: Ints,
    edges: Records,
    now: float,
    tasks: Records,
    routes: Ints,
    edge_from: Ints,
    edge_to: Ints,
    slots: Ints,
) -> float:
    """Post a batch of transfers; edges say which ends before which starts (indices within the
    batch).

    The caller has made sure that nodes, hops, heap, edges and the heaps of links have room. Returns
    the time of the next event (s).
    """
    nodes, hops, clock = s.nodes, s.hops, s.clock
    width = s.width
    clock[0].now = max(clock[0].now, now)
    for i in range(tasks.shape[0]):
        slot = clock[0].free_node
        node = nodes[slot]
        clock[0].free_node = node.next_free
        clock[0].n_alive += 1
        slots[i] = slot
        task = tasks[i]
        node.work = task.work
        node.booked = 0.0
        node.place = -1
        node.nbytes = task.nbytes
        node.delay = task.delay
        node.t_ready = task.start
        node.pair = task.pair
        node.group = task.group
        node.group2 = task.group2
        node.account = task.account
        node.tag = task.tag
        node.mark = task.mark
        node.outside = task.outside
        node.seq = clock[0].seq
        clock[0].seq += 1
        node.state = WAITING
        node.n_deps = 0
        node.first_edge = -1
        node.pair_next = -1
        n_hops = 0
        while n_hops < routes.shape[1] and routes[i, n_hops] >= 0:
            hops[slot * width + n_hops].link = routes[i, n_hops]
            n_hops += 1
        node.alone = n_hops < 2
        if task.cap < np.inf:
            hops[slot * width + n_hops].link = _cap_link(s.links, clock, task.cap)
            n_hops += 1
        node.n_hops = n_hops
    for i in range(edge_from.shape[0]):
        _add_edge(nodes, edges, clock, slots[edge_from[i]], slots[edge_to[i]])
    for i in range(tasks.shape[0]):
        before = tasks[i].after
        if (
            before >= 0
            and nodes[before].seq == tasks[i].after_seq
            and nodes[before].state != UNUSED
        ):
            _add_edge(nodes, edges, clock, before, slots[i])
    for i in range(tasks.shape[0]):
        if nodes[slots[i]].n_deps == 0:
            _make_ready(nodes, heap, clock, int64(slots[i]), clock[0].now)
    return _upcoming(s, heap)


@compiled
def _upcoming(s: Any, heap: Ints) -> float:
    """Time of the next event (s), inf if there is none."""
    ends = next_end(s)
    return min(ends, s.nodes[heap[0]].t_event) if s.clock[0].n_heap > 0 else ends


@compiled
def _retire(
    s: Any, buckets: Ints, starting: Ints, n_starting: int, queue: Ints, tail: int, flow: int
) -> tuple[int, int]:
    """Take a transfer that ended without draining off the count of its links; let the next of its
    pair begin."""
    node = s.nodes[flow]
    if node.place < 0:
        for k in range(flow * s.width, flow * s.width + node.n_hops):
            s.links[s.hops[k].link].n_alive -= 1
    if node.pair >= 0:
        _bucket_remove(s.nodes, buckets, flow)
        follower = int64(node.pair_next)
        if follower >= 0:
            s.nodes[follower].pair_tail = node.pair_tail
            _bucket_insert(s.nodes, buckets, follower)
            n_starting = _begin(s.nodes, s.clock, starting, n_starting, follower)
            if s.nodes[follower].state == ENDING:
                queue[tail] = follower
                tail += 1
    return n_starting, tail


@entry
def advance(
    s: Any,
    heap: Ints,
    edges: Records,
    groups: Records,
    buckets: Ints,
    done: Ints,
    room: Ints,
    accounts: Floats,
    finish: Floats,
    horizon: float,
    tolerance: float,
    budget: int,
) -> float:
    """Run all events up to ``horizon`` (s), but stop after the first instant that completes a group
    for which somebody waits.

    Stops after about ``budget`` events and visits of links, too, and after an instant that put a
    transfer into the outbox. Returns the time of the next event (s, inf if none); ``clock.now`` is
    the time reached, ``done[:clock.n_done]`` those groups.
    """
    nodes, clock = s.nodes, s.clock
    starting, queue = room[: nodes.shape[0]], room[nodes.shape[0] :]
    clock[0].n_done = 0
    most = clock[0].n_events + clock[0].n_visits + budget
    while (
        clock[0].n_done == 0
        and clock[0].outbox < 0
        and clock[0].n_events + clock[0].n_visits < most
    ):
        first = _upcoming(s, heap)
        if first > horizon or first == np.inf:
            return first
        clock[0].now = max(clock[0].now, first)
        limit = clock[0].now * (1.0 + INSTANT)
        n_starting = FIRST
        while _upcoming(s, heap) <= limit:
            head, tail = FIRST, FIRST
            while next_end(s) <= limit:
                tail = end_due(s, next_link(s), limit, queue, tail)
            if tolerance > 0.0:
                tail = end_early(s, tolerance, queue, tail)
            for i in range(tail):
                nodes[queue[i]].state = ENDING
            while clock[0].n_heap > 0 and nodes[heap[0]].t_event <= limit:
                queue[tail] = _heap_pop(nodes, heap, clock)
                tail += 1
            clock[0].n_events += tail
            while head < tail:
                flow = int64(queue[head])
                head += 1
                if nodes[flow].state == DELAYED:
                    if nodes[flow].pair < 0 or _pair_turn(nodes, buckets, flow):
                        n_starting = _begin(nodes, clock, starting, n_starting, flow)
                        if nodes[flow].state == ENDING:
                            queue[tail] = flow
                            tail += 1
                    continue
                n_starting, tail = _retire(s, buckets, starting, n_starting, queue, tail, flow)
                _end(nodes, heap, edges, groups, clock, done, accounts, finish, flow)
        share(s, starting, n_starting)
    return _upcoming(s, heap)


@entry
def complete(s: Any, heap: Ints, slot: int, now: float) -> float:
    """Have a transfer from the outbox end at ``now`` (s), up to which all events have been run;
    returns the time of the next event (s)."""
    s.nodes[slot].state = ENDING
    s.nodes[slot].t_event = now
    _heap_push(s.nodes, heap, s.clock, slot)
    return _upcoming(s, heap)


@entry
def settle(s: Any) -> None:
    """Bring the statistics of every link up to now."""
    book(s)


@entry
def refresh(s: Any) -> None:
    """Make anew what is derived from the ends of the links."""
    all_minima(s)


@entry
def count_free_edges(edges: Records, clock: Records) -> int:
    """How many edges are on the free list."""
    count = 0
    edge = clock[0].free_edge
    while edge >= 0:
        count += 1
        edge = edges[edge].next
    return count

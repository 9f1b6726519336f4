"""Compiled kernel of the fluid network: a max-min fair flow simulator over a graph of dependent transfers.

The kernel knows nothing of hosts, ranks or SimPy. It sees *links* (anything with a capacity: a cable direction, a PCIe slot, an SSD,
the cores of a host) and *transfers*. A transfer becomes ready when all transfers it waits for have ended, spends ``delay`` seconds
without using anything (latency, or fixed work of a processor), then drains ``work`` units through every link of its route at its
max-min fair rate, and ends. Transfers of the same ``pair`` go one after the other, in the order in which they were posted.

Rates are kept max-min fair by local repair. A rate vector is max-min fair exactly if it is feasible and every flow has a bottleneck: a
saturated link on which no other flow is faster (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2). After an arrival or a
departure only the flows whose bottleneck may have moved are filled again, against the unchanged rates of all others; then the bottleneck
condition is checked on every link that was touched, the flows that violate it join the set, and it is filled again. When nobody joins,
the allocation is the unique max-min fair one, although most of the network was never looked at.

All state lives in a few record arrays, because passing one record array to compiled code costs as much as passing one plain array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Records = Any  # a record array; its fields are those of the dtypes below
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


_njit: Any = njit  # its type does not know all its options


def entry(function: F) -> F:
    """Compile ``function`` with numba, keeping its type; the machine code is cached on disk, together with all that it calls."""
    return cast(F, _njit(cache=True, error_model="numpy")(function))


def compiled(function: F) -> F:
    """Compile ``function`` for other compiled functions only: without the wrappers for Python, which take longer to build than it."""
    return cast(F, _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")(function))


UNUSED, WAITING, DELAYED, QUEUED, ACTIVE, ENDING, CROWDED = 0, 1, 2, 3, 4, 5, 6
NO_BOTTLENECK, OWN_CAP = -1, -2

# From so many flows on a link on, further ones that use this link alone are drained as a crowd.
CROWD_FROM = 8
# Two rates closer than this (relative) count as equal when bottlenecks are checked. It bounds the relative error of a rate.
RATE_TOLERANCE = 1e-11
# Events closer than this (relative to the clock) are one instant, so that symmetric flows end together in spite of rounding.
INSTANT = 1e-14

NODE = np.dtype(
    [
        ("work", "f8"),  # units left to drain at t_last
        ("rate", "f8"),  # units/s now
        ("new_rate", "f8"),  # units/s in the allocation being computed
        ("cap", "f8"),  # units/s at most; inf when only the links limit
        ("nbytes", "f8"),  # bytes, for the link statistics only
        ("delay", "f8"),  # s between ready and active
        ("t_ready", "f8"),  # s
        ("t_last", "f8"),  # s, when work was last brought up to date
        ("t_event", "f8"),  # s, when the delay or the transfer ends
        ("pair", "i8"),  # key of the fair-share entity, or -1
        ("seq", "i8"),  # order of posting
        ("served", "f8"),  # crowd: units that every member present from its start on has drained
        ("finish_at", "f8"),  # member of a crowd: ends when the crowd has served so much
        ("count", "i4"),  # flows that this node stands for: 1, or the members of a crowd
        ("members", "i4"),  # crowd: root of the heap of its members by finish_at; -1 for a plain flow
        ("child", "i4"),
        ("sibling", "i4"),
        ("dirty", "i4"),  # crowd: its next end moved although its rate may not have
        ("state", "i4"),
        ("n_deps", "i4"),
        ("n_hops", "i4"),
        ("heap_pos", "i4"),
        ("bottleneck", "i4"),
        ("stamp", "i4"),  # equal to clock.stamp while in the set being filled
        ("frozen", "i4"),
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
        ("next_free", "i4"),
    ],
    align=True,
)

LINK = np.dtype(
    [
        ("capacity", "f8"),  # units/s
        ("load", "f8"),  # units/s now
        ("t_load", "f8"),  # s, up to when the integrals below are complete
        ("work", "f8"),  # units drained
        ("busy", "f8"),  # s with any load
        ("peak", "f8"),  # highest load / capacity
        ("nbytes", "f8"),  # bytes of the transfers that ended
        ("resid", "f8"),  # units/s not yet given away in the allocation being computed
        ("level", "f8"),  # fair level at which it saturated, inf if it did not
        ("top", "f8"),  # fastest flow of the set on it
        ("head", "i4"),  # first hop in its list of active flows, -1 if none
        ("n_open", "i4"),  # flows of the set on it that are not frozen
        ("stamp", "i4"),
        ("n_active", "i4"),
        ("crowd", "i4"),  # node that stands for the flows that use this link alone, -1 if none
    ],
    align=True,
)

HOP = np.dtype([("link", "i4"), ("next", "i4"), ("prev", "i4")], align=True)
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
        ("seq", "i8"),
        ("n_events", "i8"),
        ("n_fills", "i8"),
        ("n_filled", "i8"),  # flows summed over fills: the work the solver really did
        ("n_heap", "i4"),
        ("n_set", "i4"),
        ("n_done", "i4"),
        ("stamp", "i4"),
        ("free_node", "i4"),
        ("free_edge", "i4"),
        ("n_alive", "i4"),
    ],
    align=True,
)

# ---------------------------------------------------------------------------------------------------------------- event heap


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
        nodes[heap[pos]].heap_pos = pos
        pos = parent
    heap[pos] = node
    nodes[node].heap_pos = pos


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
        nodes[heap[pos]].heap_pos = pos
        pos = child
    heap[pos] = node
    nodes[node].heap_pos = pos


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
    nodes[node].heap_pos = -1
    if n > 0:
        heap[0] = heap[n]
        _sift_down(nodes, heap, n, 0)
    return int(node)


@compiled
def _schedule_end(nodes: Records, flow: int) -> None:
    node = nodes[flow]
    node.t_event = node.t_last + max(node.work, 0.0) / node.rate


@compiled
def _reschedule(nodes: Records, heap: Ints, clock: Records, changed: Ints, n_changed: int) -> None:
    """Give the flows whose rate changed their new place in the heap: one by one, or by rebuilding it when most of it changed."""
    if n_changed > 8 and n_changed * 4 > clock[0].n_heap:
        for k in range(n_changed):
            flow = changed[k]
            _schedule_end(nodes, flow)
            if nodes[flow].heap_pos < 0:
                heap[clock[0].n_heap] = flow
                nodes[flow].heap_pos = clock[0].n_heap
                clock[0].n_heap += 1
        n = clock[0].n_heap
        for pos in range((n >> 1) - 1, -1, -1):
            _sift_down(nodes, heap, n, pos)
        return
    for k in range(n_changed):  # a key may only change when the rest of the heap is in order
        flow = changed[k]
        _schedule_end(nodes, flow)
        if nodes[flow].heap_pos < 0:
            _heap_push(nodes, heap, clock, flow)
        else:
            _sift_up(nodes, heap, nodes[flow].heap_pos)
            _sift_down(nodes, heap, clock[0].n_heap, nodes[flow].heap_pos)


# ---------------------------------------------------------------------------------------------------------------- max-min filling


@compiled
def _fill_sift_down(keys: Floats, ids: Ints, n: int, pos: int) -> None:
    key = keys[pos]
    ident = ids[pos]
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        if child + 1 < n and (keys[child + 1] < keys[child] or (keys[child + 1] == keys[child] and ids[child + 1] < ids[child])):
            child += 1
        if keys[child] > key or (keys[child] == key and ids[child] >= ident):
            break
        keys[pos] = keys[child]
        ids[pos] = ids[child]
        pos = child
    keys[pos] = key
    ids[pos] = ident


@compiled
def _freeze(nodes: Records, links: Records, hops: Records, width: int, flow: int, rate: float, bottleneck: int) -> None:
    node = nodes[flow]
    node.new_rate = rate
    node.frozen = 1
    node.bottleneck = bottleneck
    for k in range(node.n_hops):
        link = links[hops[flow * width + k].link]
        link.resid -= rate * node.count
        link.n_open -= node.count
        link.top = max(link.top, rate)


@compiled
def _collect_links(nodes: Records, links: Records, hops: Records, width: int, stamp: int, flows: Ints, n_flows: int, touched: Ints) -> int:
    """List the links of the set and what the flows outside the set leave of them."""
    n_links = 0
    for i in range(n_flows):
        flow = flows[i]
        nodes[flow].frozen = 0
        for k in range(nodes[flow].n_hops):
            ident = hops[flow * width + k].link
            link = links[ident]
            if link.stamp != stamp:
                link.stamp = stamp
                link.n_open = 0
                link.level = np.inf
                link.top = 0.0
                touched[n_links] = ident
                n_links += 1
            link.n_open += nodes[flow].count
    for i in range(n_links):
        link = links[touched[i]]
        resid = link.capacity
        if link.n_active > link.n_open:
            hop = link.head
            while hop >= 0:
                node = nodes[hop // width]
                if node.stamp != stamp:
                    resid -= node.rate * node.count
                hop = hops[hop].next
        link.resid = max(resid, 0.0)
    return n_links


@compiled
def _fill(
    nodes: Records, links: Records, hops: Records, width: int, stamp: int, flows: Ints, n_flows: int, touched: Ints,
    n_links: int, keys: Floats, ids: Ints,
) -> None:  # fmt: skip
    """Progressive filling of the set: raise all rates together, freeze the flows of each link that saturates, and of each own cap."""
    n = 0
    for i in range(n_links):
        link = links[touched[i]]
        keys[n] = link.resid / link.n_open
        ids[n] = touched[i]
        n += 1
    for i in range(n_flows):
        if nodes[flows[i]].cap < np.inf:
            keys[n] = nodes[flows[i]].cap
            ids[n] = -1 - flows[i]
            n += 1
    for pos in range((n >> 1) - 1, -1, -1):
        _fill_sift_down(keys, ids, n, pos)
    n_left = n_flows
    while n_left > 0:
        key = keys[0]
        ident = ids[0]
        if ident < 0:
            n -= 1
            keys[0] = keys[n]
            ids[0] = ids[n]
            _fill_sift_down(keys, ids, n, 0)
            flow = -1 - ident
            if nodes[flow].frozen == 0:
                _freeze(nodes, links, hops, width, flow, nodes[flow].cap, OWN_CAP)
                n_left -= 1
            continue
        link = links[ident]
        if link.n_open > 0:
            level = max(link.resid, 0.0) / link.n_open
            if level > key:  # others froze below it meanwhile: its turn comes later
                keys[0] = level
                _fill_sift_down(keys, ids, n, 0)
                if keys[0] < level or ids[0] != ident:
                    continue
            link.level = level
            hop = link.head
            while hop >= 0:
                flow = hop // width
                hop = hops[hop].next
                if nodes[flow].stamp == stamp and nodes[flow].frozen == 0:
                    _freeze(nodes, links, hops, width, flow, level, ident)
                    n_left -= 1
            link.resid = 0.0
        n -= 1
        keys[0] = keys[n]
        ids[0] = ids[n]
        _fill_sift_down(keys, ids, n, 0)


@compiled
def _join_violators(
    nodes: Records, links: Records, hops: Records, width: int, stamp: int, touched: Ints, n_links: int, flows: Ints, n_flows: int
) -> int:
    """Add every outside flow on a touched link that lost its bottleneck, or takes one away; return the new size of the set."""
    n = n_flows
    for i in range(n_links):
        ident = touched[i]
        link = links[ident]
        ceiling = link.level * (1.0 + RATE_TOLERANCE)
        spare = link.resid > RATE_TOLERANCE * link.capacity
        floor = link.top * (1.0 - RATE_TOLERANCE)
        hop = link.head
        while hop >= 0:
            flow = hop // width
            hop = hops[hop].next
            node = nodes[flow]
            if node.stamp == stamp:
                continue
            if node.rate > ceiling or (node.bottleneck == ident and (spare or node.rate < floor)):
                node.stamp = stamp
                flows[n] = flow
                n += 1
    return n


@compiled
def _settle(link: Records, now: float) -> None:
    """Bring the integrals of a link up to ``now``; its load is about to change."""
    elapsed = now - link.t_load
    if elapsed > 0.0:
        if link.load > 0.0:
            link.work += link.load * elapsed
            link.busy += elapsed
        link.t_load = now


@compiled
def _refill(
    nodes: Records, links: Records, hops: Records, heap: Ints, clock: Records, flows: Ints, touched: Ints, keys: Floats, ids: Ints
) -> None:
    """Make the rates max-min fair again, starting from the flows in ``flows`` (already stamped), and reschedule their ends."""
    width = hops.shape[0] // nodes.shape[0]
    stamp = clock[0].stamp
    now = clock[0].now
    n_flows = clock[0].n_set
    n_live = 0  # a flow may have joined the set and ended at the same instant
    for i in range(n_flows):
        if nodes[flows[i]].state == ACTIVE:
            flows[n_live] = flows[i]
            n_live += 1
    n_flows = n_live
    n_links = 0
    while n_flows > 0:
        # every round needs fresh link marks; flow marks stay, since the set only grows
        clock[0].stamp += 1
        for i in range(n_flows):
            nodes[flows[i]].stamp = clock[0].stamp
        stamp = clock[0].stamp
        n_links = _collect_links(nodes, links, hops, width, stamp, flows, n_flows, touched)
        _fill(nodes, links, hops, width, stamp, flows, n_flows, touched, n_links, keys, ids)
        clock[0].n_fills += 1
        clock[0].n_filled += n_flows
        n = _join_violators(nodes, links, hops, width, stamp, touched, n_links, flows, n_flows)
        if n == n_flows:
            break
        n_flows = n
    for i in range(n_links):
        link = links[touched[i]]
        _settle(link, now)
        link.load = link.capacity - link.resid
        link.peak = max(link.peak, link.load / link.capacity)
    n_changed = 0
    for i in range(n_flows):
        node = nodes[flows[i]]
        if node.new_rate != node.rate or node.dirty:
            drained = node.rate * (now - node.t_last)
            if node.members >= 0:
                node.served += drained
                node.work = nodes[node.members].finish_at - node.served
                node.dirty = 0
            else:
                node.work -= drained
            node.t_last = now
            node.rate = node.new_rate
            flows[n_changed] = flows[i]
            n_changed += 1
    _reschedule(nodes, heap, clock, flows, n_changed)
    clock[0].stamp += 1
    clock[0].n_set = 0


# ---------------------------------------------------------------------------------------------------------------- life of a transfer


@compiled
def _join(nodes: Records, clock: Records, flows: Ints, flow: int) -> None:
    if nodes[flow].stamp != clock[0].stamp:
        nodes[flow].stamp = clock[0].stamp
        flows[clock[0].n_set] = flow
        clock[0].n_set += 1


@compiled
def _join_bottlenecked(nodes: Records, links: Records, hops: Records, clock: Records, flows: Ints, width: int, flow: int) -> None:
    """Add to the set the flows that have their bottleneck on a link of ``flow``."""
    for k in range(nodes[flow].n_hops):
        ident = hops[flow * width + k].link
        hop = links[ident].head
        while hop >= 0:
            other = hop // width
            if nodes[other].bottleneck == ident:
                _join(nodes, clock, flows, other)
            hop = hops[hop].next


@compiled
def _attach(nodes: Records, links: Records, hops: Records, clock: Records, flows: Ints, width: int, flow: int) -> None:
    _join_bottlenecked(nodes, links, hops, clock, flows, width, flow)
    for k in range(nodes[flow].n_hops):
        at = flow * width + k
        link = links[hops[at].link]
        hops[at].prev = -1
        hops[at].next = link.head
        if link.head >= 0:
            hops[link.head].prev = at
        link.head = at
        link.n_active += nodes[flow].count
    _join(nodes, clock, flows, flow)


@compiled
def _detach(nodes: Records, links: Records, hops: Records, clock: Records, flows: Ints, width: int, flow: int) -> None:
    node = nodes[flow]
    for k in range(node.n_hops):
        at = flow * width + k
        link = links[hops[at].link]
        _settle(link, clock[0].now)
        if hops[at].prev >= 0:
            hops[hops[at].prev].next = hops[at].next
        else:
            link.head = hops[at].next
        if hops[at].next >= 0:
            hops[hops[at].next].prev = hops[at].prev
        link.n_active -= node.count
        link.nbytes += node.nbytes
        link.load = link.load - node.rate * node.count if link.n_active > 0 else 0.0
    _join_bottlenecked(nodes, links, hops, clock, flows, width, flow)


@compiled
def _meld(nodes: Records, a: int, b: int) -> int:
    """Join two pairing heaps of members (Fredman et al., Algorithmica 1986); returns the root."""
    if a < 0:
        return b
    if b < 0:
        return a
    x = nodes[a].finish_at
    y = nodes[b].finish_at
    if y < x or (y == x and nodes[b].seq < nodes[a].seq):
        a, b = b, a
    nodes[b].sibling = nodes[a].child
    nodes[a].child = b
    return a


@compiled
def _without_root(nodes: Records, root: int) -> int:
    """The heap without its root; returns the new root."""
    pairs = -1
    child = nodes[root].child
    while child >= 0:
        other = nodes[child].sibling
        following = nodes[other].sibling if other >= 0 else -1
        nodes[child].sibling = -1
        if other >= 0:
            nodes[other].sibling = -1
        pair = _meld(nodes, child, other)
        nodes[pair].sibling = pairs
        pairs = pair
        child = following
    new_root = -1
    while pairs >= 0:
        following = nodes[pairs].sibling
        nodes[pairs].sibling = -1
        new_root = _meld(nodes, new_root, pairs)
        pairs = following
    return new_root


@compiled
def _join_crowd(nodes: Records, links: Records, hops: Records, clock: Records, flows: Ints, width: int, flow: int) -> bool:
    """Let a flow that uses one link alone drain in the crowd of that link, if there is one or should be one.

    The members of a crowd have the same rate whatever it is, so they end in the order of what they have left, and the solver needs to
    know only how many they are. This is processor sharing in virtual time: 2000 readers of one file system cost no more than two.
    """
    node = nodes[flow]
    ident = hops[flow * width].link
    link = links[ident]
    crowd = link.crowd
    if crowd < 0:
        if link.n_active < CROWD_FROM:
            return False
        crowd = clock[0].free_node
        new = nodes[crowd]
        clock[0].free_node = new.next_free
        new.state = ACTIVE
        new.cap = node.cap
        new.rate = 0.0
        new.nbytes = 0.0
        new.served = 0.0
        new.t_last = clock[0].now
        new.t_event = np.inf
        new.count = 0
        new.members = -1
        new.n_hops = 1
        new.heap_pos = -1
        new.bottleneck = NO_BOTTLENECK
        new.seq = clock[0].seq
        clock[0].seq += 1
        hops[crowd * width].link = ident
        link.crowd = crowd
        _attach(nodes, links, hops, clock, flows, width, crowd)
    elif nodes[crowd].cap != node.cap:
        return False
    else:
        _join_bottlenecked(nodes, links, hops, clock, flows, width, crowd)
        _join(nodes, clock, flows, crowd)
    host = nodes[crowd]
    host.served += host.rate * (clock[0].now - host.t_last)
    host.t_last = clock[0].now
    host.dirty = 1
    host.count += 1
    link.n_active += 1
    node.state = CROWDED
    node.finish_at = host.served + node.work
    node.child = -1
    node.sibling = -1
    host.members = _meld(nodes, host.members, flow)
    return True


@compiled
def _leave_crowd(
    nodes: Records, links: Records, hops: Records, clock: Records, flows: Ints, width: int, crowd: int, queue: Ints, tail: int
) -> int:
    """End the members of a crowd that have drained by now; the last one takes the crowd with it. Returns the new end of the queue."""
    host = nodes[crowd]
    link = links[hops[crowd * width].link]
    _settle(link, clock[0].now)
    host.served = nodes[host.members].finish_at
    host.t_last = clock[0].now
    limit = host.served * (1.0 + INSTANT)
    while host.members >= 0 and nodes[host.members].finish_at <= limit:
        flow = host.members
        host.members = _without_root(nodes, flow)
        nodes[flow].state = ENDING
        queue[tail] = flow
        tail += 1
        host.count -= 1
        link.n_active -= 1
        link.nbytes += nodes[flow].nbytes
        link.load -= host.rate
    if host.count > 0:
        host.dirty = 1
        _join_bottlenecked(nodes, links, hops, clock, flows, width, crowd)
        _join(nodes, clock, flows, crowd)
        return tail
    link.crowd = -1
    _detach(nodes, links, hops, clock, flows, width, crowd)
    host.state = UNUSED
    host.next_free = clock[0].free_node
    clock[0].free_node = crowd
    return tail


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
def _begin(
    nodes: Records, links: Records, hops: Records, clock: Records, flows: Ints, width: int, flow: int, queue: Ints, tail: int
) -> int:
    """Start draining ``flow``; one that has nothing to drain ends at once. Return the new end of the work queue."""
    node = nodes[flow]
    if node.work <= 0.0 or (node.n_hops == 0 and node.cap == np.inf):
        node.state = ENDING
        queue[tail] = flow
        return tail + 1
    if node.n_hops == 1 and _join_crowd(nodes, links, hops, clock, flows, width, flow):
        return tail
    node.state = ACTIVE
    node.rate = 0.0
    node.t_last = clock[0].now
    node.t_event = np.inf
    _attach(nodes, links, hops, clock, flows, width, flow)
    return tail


@compiled
def _count_down(groups: Records, done: Ints, clock: Records, group: int, now: float, mark: int) -> None:
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
    nodes: Records, heap: Ints, edges: Records, groups: Records, clock: Records, done: Ints, accounts: Floats, finish: Floats, flow: int
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
        successor = edges[edge].to
        edges[edge].next = clock[0].free_edge
        clock[0].free_edge = edge
        nodes[successor].n_deps -= 1
        if nodes[successor].n_deps == 0:
            _make_ready(nodes, heap, clock, successor, now)
        edge = after
    node.state = UNUSED  # its stamp stays: the slot may be listed in the set, and may be used again at this very instant
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


@entry
def post(
    nodes: Records, hops: Records, heap: Ints, edges: Records, clock: Records, now: float, tasks: Records, routes: Ints,
    edge_from: Ints, edge_to: Ints, slots: Ints,
) -> float:  # fmt: skip
    """Post a batch of transfers; edges say which ends before which starts (indices within the batch).

    The caller has made sure that nodes, hops, heap and edges have room. Returns the time of the next event (s).
    """
    width = hops.shape[0] // nodes.shape[0]
    clock[0].now = max(clock[0].now, now)
    for i in range(tasks.shape[0]):
        slot = clock[0].free_node
        node = nodes[slot]
        clock[0].free_node = node.next_free
        clock[0].n_alive += 1
        slots[i] = slot
        task = tasks[i]
        node.work = task.work
        node.cap = task.cap
        node.nbytes = task.nbytes
        node.delay = task.delay
        node.t_ready = task.start
        node.pair = task.pair
        node.group = task.group
        node.group2 = task.group2
        node.account = task.account
        node.tag = task.tag
        node.mark = task.mark
        node.seq = clock[0].seq
        clock[0].seq += 1
        node.state = WAITING
        node.n_deps = 0
        node.rate = 0.0
        node.count = 1
        node.members = -1
        node.dirty = 0
        node.bottleneck = NO_BOTTLENECK
        node.heap_pos = -1
        node.stamp = 0
        node.first_edge = -1
        node.pair_next = -1
        n_hops = 0
        while n_hops < routes.shape[1] and routes[i, n_hops] >= 0:
            hops[slot * width + n_hops].link = routes[i, n_hops]
            n_hops += 1
        node.n_hops = n_hops
    for i in range(edge_from.shape[0]):
        _add_edge(nodes, edges, clock, slots[edge_from[i]], slots[edge_to[i]])
    for i in range(tasks.shape[0]):
        before = tasks[i].after
        if before >= 0 and nodes[before].seq == tasks[i].after_seq and nodes[before].state != UNUSED:
            _add_edge(nodes, edges, clock, before, slots[i])
    for i in range(tasks.shape[0]):
        if nodes[slots[i]].n_deps == 0:
            _make_ready(nodes, heap, clock, slots[i], clock[0].now)
    return float(nodes[heap[0]].t_event) if clock[0].n_heap > 0 else np.inf


@entry
def advance(
    nodes: Records, links: Records, hops: Records, heap: Ints, edges: Records, groups: Records, clock: Records, buckets: Ints,
    done: Ints, flows: Ints, touched: Ints, keys: Floats, ids: Ints, queue: Ints, accounts: Floats, finish: Floats, horizon: float,
) -> float:  # fmt: skip
    """Run all events up to ``horizon`` (s), but stop after the first instant that completes a group for which somebody waits.

    Returns the time of the next event (s, inf if none); ``clock.now`` is the time reached, ``done[:clock.n_done]`` those groups.
    """
    width = hops.shape[0] // nodes.shape[0]
    clock[0].n_done = 0
    while clock[0].n_heap > 0 and clock[0].n_done == 0:
        first = nodes[heap[0]].t_event
        if first > horizon:
            return float(first)
        clock[0].now = max(clock[0].now, first)
        limit = clock[0].now * (1.0 + INSTANT)
        while clock[0].n_heap > 0 and nodes[heap[0]].t_event <= limit:
            head, tail = 0, 0
            while clock[0].n_heap > 0 and nodes[heap[0]].t_event <= limit:
                flow = _heap_pop(nodes, heap, clock)
                clock[0].n_events += 1
                if nodes[flow].members >= 0:
                    tail = _leave_crowd(nodes, links, hops, clock, flows, width, flow, queue, tail)
                    continue
                if nodes[flow].state == ACTIVE:
                    nodes[flow].state = ENDING
                queue[tail] = flow
                tail += 1
            while head < tail:
                flow = queue[head]
                head += 1
                node = nodes[flow]
                if node.state == DELAYED:
                    if node.pair < 0 or _pair_turn(nodes, buckets, flow):
                        tail = _begin(nodes, links, hops, clock, flows, width, flow, queue, tail)
                    continue
                if node.rate > 0.0:
                    _detach(nodes, links, hops, clock, flows, width, flow)
                    node.rate = 0.0
                if node.pair >= 0:
                    _bucket_remove(nodes, buckets, flow)
                    follower = node.pair_next
                    if follower >= 0:
                        nodes[follower].pair_tail = node.pair_tail
                        _bucket_insert(nodes, buckets, follower)
                        tail = _begin(nodes, links, hops, clock, flows, width, follower, queue, tail)
                _end(nodes, heap, edges, groups, clock, done, accounts, finish, flow)
        if clock[0].n_set > 0:
            _refill(nodes, links, hops, heap, clock, flows, touched, keys, ids)
    return float(nodes[heap[0]].t_event) if clock[0].n_heap > 0 else np.inf


@entry
def count_free_edges(edges: Records, clock: Records) -> int:
    """How many edges are on the free list."""
    count = 0
    edge = clock[0].free_edge
    while edge >= 0:
        count += 1
        edge = edges[edge].next
    return count

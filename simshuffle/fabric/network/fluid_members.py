"""The flows of a link: which of them have their bottleneck there, in a heap by their ends, and
which links those share besides."""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_records import CAPACITY, OTHER, FluidState
from simshuffle.spec.compiling import compiled, int64


@compiled
def fair_level(s: FluidState, ident: int, n: int) -> float:
    """The level (units/s) of a link with ``n`` flows of its own, by what the others take of it."""
    return float((s.load[CAPACITY, ident] - s.load[OTHER, ident]) / n)


@compiled
def write_entry(s: FluidState, base: int, k: int, key: float, flow: int) -> None:
    """Write the entry at place ``k`` of the heap that begins at ``base``."""
    s.entries[base + k].key = key
    s.entries[base + k].flow = flow
    s.nodes[flow].place = k


@compiled
def sift_up(s: FluidState, base: int, k: int, key: float) -> int:
    """Where an entry with ``key`` belongs at or above ``k``; those on the way have moved down.

    Heaps are binary, and all lie in one arena: below place k of the heap that begins at ``base``
    are the places 2k + 1 and 2k + 2, in the arena ``base`` further on.
    """
    while k > 0:
        parent = (k - 1) >> 1
        above = s.entries[base + parent]
        if above.key <= key:
            break
        write_entry(s, base, k, above.key, int64(above.flow))
        k = parent
    return k


@compiled
def sift_down(s: FluidState, base: int, n: int, k: int, key: float) -> int:
    """Where an entry with ``key`` belongs at or below ``k``; those on the way have moved up."""
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if child + 1 < n and s.entries[base + child + 1].key < s.entries[base + child].key:
            child += 1
        below = s.entries[base + child]
        if below.key >= key:
            break
        write_entry(s, base, k, below.key, int64(below.flow))
        k = child
    return k


@compiled
def add_row(s: FluidState, ident: int, flow: int) -> None:
    """Note what matters of ``flow`` when the level of its bottleneck changes: which links it shares
    besides, and its rate limit.

    Thousands of flows that share one link alone, like requests to one server, so cost no more than
    two at a change of its level.
    """
    link = s.links[ident]
    null_link = s.clock[0].null_link
    # the hops of a flow are `width` entries from ``flow * width`` on, a rate limit being the last;
    # the other links of a row are ``width - 1`` entries from ``row * (width - 1)`` on
    first, last = flow * s.width, flow * s.width + s.nodes[flow].n_hops
    if s.hops[last - 1].link > null_link:
        link.floor = min(link.floor, s.links[s.hops[last - 1].link].level)
    s.nodes[flow].row = -1
    if s.nodes[flow].alone or link.fixed:
        return
    s.nodes[flow].row = link.n_rows
    row = link.offset + link.n_rows
    link.n_rows += 1
    s.members[row] = flow
    j = row * (s.width - 1)
    for k in range(first, last):
        if s.hops[k].link != ident and s.hops[k].link < null_link:
            s.others[j] = s.hops[k].link
            j += 1
    while j < (row + 1) * (s.width - 1):
        s.others[j] = null_link
        j += 1


@compiled
def remove_row(s: FluidState, ident: int, row: int) -> None:
    """Undo `add_row`: the last of the list takes the place."""
    link = s.links[ident]
    link.n_rows -= 1
    if row != link.n_rows:
        last = link.offset + link.n_rows
        s.nodes[s.members[last]].row = row
        row += link.offset
        s.members[row] = s.members[last]
        n = s.width - 1
        for j in range(n):
            s.others[row * n + j] = s.others[last * n + j]


@compiled
def add_member(s: FluidState, ident: int, flow: int, left: float) -> None:
    """Give ``flow``, with ``left`` units to drain, its bottleneck on a link."""
    link = s.links[ident]
    now = s.clock[0].now
    if link.n == 0:
        link.served = 0.0
        link.floor = np.inf
        s.clock[0].n_saturated += 1
    else:
        link.served += link.level * (now - link.t_last)
    link.t_last = now
    k = int64(link.n)
    link.n = k + 1
    key = link.served + left
    place = sift_up(s, int64(link.offset), k, key)
    write_entry(s, int64(link.offset), place, key, flow)
    add_row(s, ident, flow)
    s.nodes[flow].bottleneck = ident


@compiled
def remove_member(s: FluidState, flow: int) -> float:
    """Take ``flow`` from its bottleneck; returns what it has left to drain."""
    node = s.nodes[flow]
    ident = int64(node.bottleneck)
    link = s.links[ident]
    now = s.clock[0].now
    link.served += link.level * (now - link.t_last)
    link.t_last = now
    at = int64(node.place)
    base = int64(link.offset)
    left = s.entries[base + at].key - link.served
    n = link.n - 1
    link.n = n
    if n == 0:
        s.clock[0].n_saturated -= 1
    if node.row >= 0:
        remove_row(s, ident, int64(node.row))
    if at != n:
        key = s.entries[base + n].key
        mover = int64(s.entries[base + n].flow)
        k = sift_up(s, base, at, key)
        if k == at:
            k = sift_down(s, base, n, k, key)
        write_entry(s, base, k, key, mover)
    return float(max(left, 0.0))


@compiled
def change_bottleneck(s: FluidState, flow: int, to: int) -> None:
    """Give ``flow`` another bottleneck; its rate becomes the present level of that one."""
    width = s.width
    origin = int64(s.nodes[flow].bottleneck)
    old, new = s.links[origin].level, s.links[to].level
    left = remove_member(s, flow)
    for at in range(flow * width, flow * width + s.nodes[flow].n_hops):
        ident = int64(s.hops[at].link)
        if ident == origin:
            s.load[OTHER, ident] += new
        elif ident == to:
            s.load[OTHER, ident] -= old
        else:
            s.load[OTHER, ident] += new - old
    add_member(s, to, flow, left)


@compiled
def mark_dirty(s: FluidState, ident: int) -> None:
    """List a link as one that has changed since rates were fair."""
    if s.links[ident].queued == 0:
        s.links[ident].queued = 1
        s.dirty[s.clock[0].n_dirty] = ident
        s.clock[0].n_dirty += 1


@compiled
def _enlarge_heap(s: FluidState, ident: int) -> None:
    """Move the heap of a link to where it has more places. There is room: see `events.promise`.

    Few of the flows that are posted drain at one time, so heaps start small and lie together.
    """
    link = s.links[ident]
    base = s.clock[0].heap_top
    link.places = min(4 * max(link.places, 1), link.reserved)
    s.clock[0].heap_top += link.places
    for k in range(link.n):
        s.entries[base + k].key = s.entries[link.offset + k].key
        s.entries[base + k].flow = s.entries[link.offset + k].flow
    width = s.width - 1
    for k in range(link.n_rows):
        s.members[base + k] = s.members[link.offset + k]
        for j in range(width):
            s.others[(base + k) * width + j] = s.others[(link.offset + k) * width + j]
    link.offset = base


@compiled
def join_links(s: FluidState, flow: int) -> None:
    """Enter ``flow`` into the lists of its links."""
    width = s.width
    now = s.clock[0].now
    alone = s.nodes[flow].alone
    for at in range(flow * width, flow * width + s.nodes[flow].n_hops):
        link = s.links[s.hops[at].link]
        head = link.alone if alone else link.head
        s.hops[at].prev = -1
        s.hops[at].next = head
        if head >= 0:
            s.hops[head].prev = at
        if alone:
            link.alone = at
            link.n_alone += 1
        else:
            link.head = at
        if link.n_active == 0:
            link.t_busy = now
        link.n_active += 1
        if link.n_active > link.places:
            _enlarge_heap(s, int64(s.hops[at].link))
    s.clock[0].n_active += 1


@compiled
def start_flow(s: FluidState, flow: int) -> None:
    """Let ``flow`` drain, with a first guess of its bottleneck: the lowest level on its route, else
    the link with the least to spare."""
    width = s.width
    join_links(s, flow)
    best, best_level, best_rank = int64(-1), np.inf, s.clock[0].n_order
    spare, least = int64(-1), np.inf
    first, last = flow * width, flow * width + s.nodes[flow].n_hops
    for at in range(first, last):
        ident = int64(s.hops[at].link)
        link = s.links[ident]
        if link.n == 0 and not link.fixed:
            if s.load[CAPACITY, ident] - s.load[OTHER, ident] < least:
                spare, least = ident, s.load[CAPACITY, ident] - s.load[OTHER, ident]
        elif s.clock[0].in_order and link.rank >= 0:  # equal levels are told apart by their order
            if link.rank < best_rank:
                best, best_level, best_rank = ident, -np.inf, link.rank
        elif link.level < best_level:
            best, best_level = ident, link.level
    if best < 0:
        best = spare
        s.links[best].level = max(least, 0.0)
    level = s.links[best].level
    for at in range(first, last):
        ident = int64(s.hops[at].link)
        if ident != best:
            s.load[OTHER, ident] += level
        mark_dirty(s, ident)
    add_member(s, best, flow, s.nodes[flow].work)


@compiled
def stop_flow(s: FluidState, flow: int) -> None:
    """Take ``flow``, which has ended, from its links."""
    width = s.width
    node = s.nodes[flow]
    bottleneck = int64(node.bottleneck)
    level = s.links[bottleneck].level
    now = s.clock[0].now
    remove_member(s, flow)
    for at in range(flow * width, flow * width + node.n_hops):
        ident = int64(s.hops[at].link)
        link = s.links[ident]
        if s.hops[at].prev >= 0:
            s.hops[s.hops[at].prev].next = s.hops[at].next
        elif node.alone:
            link.alone = s.hops[at].next
        else:
            link.head = s.hops[at].next
        if s.hops[at].next >= 0:
            s.hops[s.hops[at].next].prev = s.hops[at].prev
        link.n_active -= 1
        link.n_alone -= node.alone
        link.n_alive -= 1
        link.nbytes += node.nbytes
        link.work += node.work - node.booked
        if ident != bottleneck:
            s.load[OTHER, ident] -= level
        if link.n_active == 0:
            s.load[OTHER, ident] = 0.0
            link.busy += now - link.t_busy
        mark_dirty(s, ident)
    s.clock[0].n_active -= 1

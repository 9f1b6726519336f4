"""The members of a link: the flows that have their bottleneck there, in a heap by
their ends, and the other links that those flows share.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_ahead import fetch_route
from simshuffle.fabric.network.fluid_records import CAPACITY, OTHER, FluidState
from simshuffle.spec.compiling import compiled, int64


@compiled
def fair_level(s: FluidState, ident: int, n: int) -> float:
    """The level (units/s) of a link with ``n`` (at least 1) flows of its own: (capacity
    - other load) / n. Negative if other flows take more than the capacity.
    """
    return float((s.load[ident, CAPACITY] - s.load[ident, OTHER]) / n)


@compiled
def next_end_on_link(s: FluidState, ident: int) -> float:
    """Time (s) when the next flow of a link ends, at least ``LINK.t_last``; inf if it
    has no flow of its own or its level is not positive. The service of the link must be
    up to date.
    """
    link = s.links[ident]
    if link.n == 0 or link.level <= 0.0:
        return np.inf
    return float(
        link.t_last + max(s.entries[link.offset].key - link.served, 0.0) / link.level
    )


@compiled
def write_entry(s: FluidState, base: int, k: int, key: float, flow: int) -> None:
    """Write the entry at place ``k`` of the heap that begins at ``base``, and the place
    into `NODE.place` of the flow.
    """
    s.entries[base + k].key = key
    s.entries[base + k].flow = flow
    s.nodes[flow].place = k


@compiled
def sift_up(s: FluidState, base: int, k: int, key: float) -> int:
    """Find the place of an entry with ``key`` at or above place ``k``; the entries on
    the way move down. The caller writes the entry.

    Heaps are binary, and all lie in one arena: below place k of the heap that begins at
    ``base`` are the places 2k + 1 and 2k + 2, in the arena ``base`` further on.
    """
    while k > 0:
        parent = (k - 1) >> 1
        parent_entry = s.entries[base + parent]
        if parent_entry.key <= key:
            break
        write_entry(s, base, k, parent_entry.key, int64(parent_entry.flow))
        k = parent
    return k


@compiled
def sift_down(s: FluidState, base: int, n: int, k: int, key: float) -> int:
    """Find the place of an entry with ``key`` at or below place ``k``; the entries on
    the way move up. The caller writes the entry.
    """
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if (
            child + 1 < n
            and s.entries[base + child + 1].key < s.entries[base + child].key
        ):
            child += 1
        child_entry = s.entries[base + child]
        if child_entry.key >= key:
            break
        write_entry(s, base, k, child_entry.key, int64(child_entry.flow))
        k = child
    return k


@compiled
def add_row(s: FluidState, ident: int, flow: int) -> None:
    """Add the row of a flow beside the heap of its bottleneck: the other links that it
    shares; and lower the link's ``floor`` to its rate limit.

    A flow that is ``alone``, or whose bottleneck is a rate limit, gets no row.

    Thousands of flows that share one link alone, like requests to one server, so cost
    no more than two at a change of its level.
    """
    link = s.links[ident]
    null_link = s.clock[0].null_link
    # the hops of a flow are `width` entries from ``flow * width`` on, a rate limit being the last;
    # the other links of a row are ``width - 1`` entries from ``row * (width - 1)`` on
    first = flow * s.width
    last = flow * s.width + s.nodes[flow].n_hops
    s.nodes[flow].row = -1
    if link.fixed:
        return
    if s.hops[last - 1].link > null_link:
        link.floor = min(link.floor, s.links[s.hops[last - 1].link].level)
    if s.nodes[flow].alone:
        return
    s.nodes[flow].row = link.n_rows
    row = link.offset + link.n_rows
    link.n_rows += 1
    s.members[row] = flow
    j = row * (s.width - 1)
    for k in range(first, last):
        if s.hops[k].link != ident and s.hops[k].link < null_link:
            s.other_links[j] = s.hops[k].link
            j += 1
    while j < (row + 1) * (s.width - 1):
        s.other_links[j] = null_link
        j += 1


@compiled
def remove_row(s: FluidState, ident: int, row: int) -> None:
    """Remove the row that `add_row` added: the last row of the link takes its place."""
    link = s.links[ident]
    link.n_rows -= 1
    if row != link.n_rows:
        last = link.offset + link.n_rows
        s.nodes[s.members[last]].row = row
        row += link.offset
        s.members[row] = s.members[last]
        n = s.width - 1
        for j in range(n):
            s.other_links[row * n + j] = s.other_links[last * n + j]


@compiled
def add_member(s: FluidState, ident: int, flow: int, remaining: float) -> None:
    """Make a link the bottleneck of ``flow``, which has ``remaining`` units to drain.

    Enters the flow into the link's heap and rows. Room (`join_links`), loads, the level
    and its next end, and `mark_dirty` are the caller's.
    """
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
    key = link.served + remaining
    place = sift_up(s, int64(link.offset), k, key)
    write_entry(s, int64(link.offset), place, key, flow)
    add_row(s, ident, flow)
    s.nodes[flow].bottleneck = ident


@compiled
def remove_member(s: FluidState, flow: int) -> float:
    """Take ``flow`` from its bottleneck; return its remaining units, at least 0.

    Loads, the level of the link and its next end, and `mark_dirty` are the caller's.
    """
    node = s.nodes[flow]
    ident = int64(node.bottleneck)
    link = s.links[ident]
    now = s.clock[0].now
    link.served += link.level * (now - link.t_last)
    link.t_last = now
    old_place = int64(node.place)
    base = int64(link.offset)
    remaining = s.entries[base + old_place].key - link.served
    n = link.n - 1
    link.n = n
    if n == 0:
        s.clock[0].n_saturated -= 1
    if node.row >= 0:
        remove_row(s, ident, int64(node.row))
    if old_place != n:
        key = s.entries[base + n].key
        last_flow = int64(s.entries[base + n].flow)
        k = sift_up(s, base, old_place, key)
        if k == old_place:
            k = sift_down(s, base, n, k, key)
        write_entry(s, base, k, key, last_flow)
    return float(max(remaining, 0.0))


@compiled
def change_bottleneck(s: FluidState, flow: int, target: int) -> None:
    """Make link ``target`` the bottleneck of ``flow``; its rate becomes the present
    level of that link.

    Adjusts the other load of every link on the route; marks none dirty.
    """
    width = s.width
    source = int64(s.nodes[flow].bottleneck)
    old_level = s.links[source].level
    new_level = s.links[target].level
    remaining = remove_member(s, flow)
    for hop in range(flow * width, flow * width + s.nodes[flow].n_hops):
        ident = int64(s.hops[hop].link)
        if ident == source:
            s.load[ident, OTHER] += new_level
        elif ident == target:
            s.load[ident, OTHER] -= old_level
        else:
            s.load[ident, OTHER] += new_level - old_level
    add_member(s, target, flow, remaining)


@compiled
def mark_dirty(s: FluidState, ident: int) -> None:
    """List a link, once, as one that has changed since rates were fair."""
    if s.links[ident].queued == 0:
        s.links[ident].queued = 1
        s.dirty[s.clock[0].n_dirty] = ident
        s.clock[0].n_dirty += 1


@compiled
def _enlarge_heap(s: FluidState, ident: int) -> None:
    """Move the heap of a link to the end of the arena, where it has up to four times
    the places; its old places are lost. There is room: see `events.reserve_entries`.

    Few of the flows that are posted drain at one time, so heaps start small and lie
    together.
    """
    link = s.links[ident]
    base = s.clock[0].heap_top
    link.places = min(4 * max(link.places, 1), link.reserved)
    s.clock[0].heap_top += link.places
    for k in range(link.n):
        s.entries[base + k].key = s.entries[link.offset + k].key
        s.entries[base + k].flow = s.entries[link.offset + k].flow
    row_width = s.width - 1
    for k in range(link.n_rows):
        s.members[base + k] = s.members[link.offset + k]
        for j in range(row_width):
            s.other_links[(base + k) * row_width + j] = s.other_links[
                (link.offset + k) * row_width + j
            ]
    link.offset = base


@compiled
def join_links(s: FluidState, flow: int) -> None:
    """Enter ``flow`` into the lists of its links, count it there as active, and make
    room for it in their heaps.
    """
    width = s.width
    now = s.clock[0].now
    is_alone = s.nodes[flow].alone
    fetch_route(s, flow)
    for hop in range(flow * width, flow * width + s.nodes[flow].n_hops):
        link = s.links[s.hops[hop].link]
        head = link.alone if is_alone else link.head
        s.hops[hop].prev = -1
        s.hops[hop].next = head
        if head >= 0:
            s.hops[head].prev = hop
        if is_alone:
            link.alone = hop
            link.n_alone += 1
        else:
            link.head = hop
        if link.n_active == 0:
            link.t_busy = now
        link.n_active += 1
        if link.n_active > link.places:
            _enlarge_heap(s, int64(s.hops[hop].link))
    s.clock[0].n_active += 1


@compiled
def start_flow(s: FluidState, flow: int) -> None:
    """Start to drain ``flow``, with a first guess of its bottleneck: the lowest level
    on its route, else the link with the least to spare.

    Adds its rate to the other load of its other links, and marks all its links dirty.
    The caller makes the rates fair. `NODE.work` is what it has to drain.
    """
    width = s.width
    join_links(s, flow)
    best = int64(-1)
    best_level = np.inf
    best_rank = s.clock[0].n_order
    spare_link = int64(-1)
    least_spare = np.inf
    first = flow * width
    last = flow * width + s.nodes[flow].n_hops
    for hop in range(first, last):
        ident = int64(s.hops[hop].link)
        link = s.links[ident]
        if link.n == 0 and not link.fixed:
            if s.load[ident, CAPACITY] - s.load[ident, OTHER] < least_spare:
                spare_link = ident
                least_spare = s.load[ident, CAPACITY] - s.load[ident, OTHER]
        elif (
            s.clock[0].in_order and link.rank >= 0
        ):  # equal levels are told apart by their order
            if link.rank < best_rank:
                best = ident
                best_level = -np.inf
                best_rank = link.rank
        elif link.level < best_level:
            best = ident
            best_level = link.level
    if best < 0:
        best = spare_link
        s.links[best].level = max(least_spare, 0.0)
    level = s.links[best].level
    for hop in range(first, last):
        ident = int64(s.hops[hop].link)
        if ident != best:
            s.load[ident, OTHER] += level
        mark_dirty(s, ident)
    add_member(s, best, flow, s.nodes[flow].work)


@compiled
def stop_flow(s: FluidState, flow: int) -> None:
    """Take ``flow``, which has ended, from its links; book its bytes and all its work
    there, and mark them dirty. `NODE.state` is the caller's.
    """
    width = s.width
    node = s.nodes[flow]
    bottleneck = int64(node.bottleneck)
    level = s.links[bottleneck].level
    now = s.clock[0].now
    fetch_route(s, flow)
    remove_member(s, flow)
    for hop in range(flow * width, flow * width + node.n_hops):
        ident = int64(s.hops[hop].link)
        link = s.links[ident]
        if s.hops[hop].prev >= 0:
            s.hops[s.hops[hop].prev].next = s.hops[hop].next
        elif node.alone:
            link.alone = s.hops[hop].next
        else:
            link.head = s.hops[hop].next
        if s.hops[hop].next >= 0:
            s.hops[s.hops[hop].next].prev = s.hops[hop].prev
        link.n_active -= 1
        link.n_alone -= node.alone
        link.n_alive -= 1
        link.nbytes += node.nbytes
        link.work += node.work - node.booked
        if ident != bottleneck:
            s.load[ident, OTHER] -= level
        if link.n_active == 0:
            s.load[ident, OTHER] = 0.0
            link.busy += now - link.t_busy
        # less load changes nothing on a link that is no bottleneck; but without rate limits every
        # visit counts (`repair`)
        if link.n > 0 or ident == bottleneck or s.clock[0].n_fixed == 0:
            mark_dirty(s, ident)
    s.clock[0].n_active -= 1

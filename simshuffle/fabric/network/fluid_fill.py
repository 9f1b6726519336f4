"""Progressive filling: all rates made anew, where much of the network starts at one
instant.

All rates rise together, and the flows of each link that saturates are frozen at its
level.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_ahead import (
    IN_HEAP,
    LARGE,
    LISTED,
    TURNS,
    fetch_members,
    fetch_visits,
)
from simshuffle.fabric.network.fluid_events import refresh_minima
from simshuffle.fabric.network.fluid_members import (
    add_row,
    fair_level,
    join_links,
    next_end_on_link,
    sift_down,
    write_entry,
)
from simshuffle.fabric.network.fluid_records import (
    CAPACITY,
    OTHER,
    PEAK,
    ZERO,
    FluidState,
)
from simshuffle.fabric.network.fluid_repair import (
    is_before,
    order_visits,
    pop_visit,
    push_visit,
    sift_visits,
)
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.compiling import compiled, int64


@compiled
def _freeze_flow(s: FluidState, flow: int, bottleneck: int, level: float) -> None:
    """Give a flow its bottleneck: append it to that link's heap, and add ``level``
    (units/s) to the other load of the other links of its route.

    Its `NODE.upcoming` holds its units left. `_close_link` puts the heap in order.
    """
    width = s.width
    node = s.nodes[flow]
    node.bottleneck = bottleneck
    for k in range(flow * width, flow * width + node.n_hops):
        ident = int64(s.hops[k].link)
        link = s.links[ident]
        link.n_open -= 1
        if ident == bottleneck:
            s.entries[link.offset + link.n].flow = flow
            s.entries[link.offset + link.n].key = node.upcoming
            link.n += 1
        else:
            s.load[ident, OTHER] += level


@compiled
def _open_link(s: FluidState, ident: int) -> float:
    """Empty a link, noting in ``upcoming`` the units that its flows have left; return
    the level at which it would saturate if all its flows rose alike (units/s), or its
    own if it is a rate limit.

    All links are opened in the order of their indices, since in any other order nearly
    each would have to be waited for.
    """
    link = s.links[ident]
    link.served += link.level * (s.clock[0].now - link.t_last)
    for entry in range(link.offset, link.offset + link.n):
        node = s.nodes[s.entries[entry].flow]
        node.upcoming = max(s.entries[entry].key - link.served, 0.0)
        node.bottleneck = -1
    link.n_open = link.n_active
    link.n = link.n_rows = 0
    link.floor = np.inf
    s.load[ident, OTHER] = 0.0
    s.ends[ident] = np.inf
    return float(link.level if link.fixed else s.load[ident, CAPACITY] / link.n_open)


@compiled
def _close_link(s: FluidState, ident: int, level: float) -> None:
    """Set the level of a link that has saturated (units/s), order its flows by their
    ends, and set its next end and its peak. `refresh_minima` must follow.
    """
    link = s.links[ident]
    link.level = level
    link.served = 0.0
    link.t_last = s.clock[0].now
    base = int64(link.offset)
    for k in range(link.n):
        flow = int64(s.entries[base + k].flow)
        s.nodes[flow].place = k
        add_row(s, ident, flow)
    for k in range((link.n >> 1) - 1, -1, -1):
        key = s.entries[base + k].key
        flow = int64(s.entries[base + k].flow)
        place = sift_down(s, base, int64(link.n), k, key)
        write_entry(s, base, place, key, flow)
    s.ends[ident] = next_end_on_link(s, ident)
    s.load[ident, PEAK] = s.load[ident, CAPACITY]
    s.clock[0].n_saturated += 1


@compiled
def _freeze_flows(s: FluidState, ident: int, level: float) -> int:
    """Freeze the flows of a link that still rise at ``level`` (units/s); return how
    many.
    """
    n = 0
    for head in (s.links[ident].head, s.links[ident].alone):
        hop = int64(head)
        while hop >= 0:
            if s.nodes[hop // s.width].bottleneck < 0:
                _freeze_flow(s, hop // s.width, ident, level)
                n += 1
            hop = int64(s.hops[hop].next)
    return n


@compiled
def _open_links(s: FluidState) -> tuple[int, int]:
    """Open all links that flows cross and queue them by the level at which they would
    saturate.

    Those with the highest level, which often are most of all, are no part of the heap:
    they are listed after it in the order of their indices.

    Returns:
        How many links are in the heap ``visits``, and how many there are with those
        after it.
    """
    n = ZERO
    highest = 0.0
    for ident in range(s.links.shape[0]):
        if ident % LISTED == 0 and s.links.shape[0] >= LARGE:
            fetch_members(s, ident)
        if s.links[ident].n_active > 0:
            s.visits[n].key = _open_link(s, ident)
            s.visits[n].link = ident
            highest = max(highest, s.visits[n].key)
            n += 1
    n_heap = n
    for i in range(n - 1, -1, -1):
        if s.visits[i].key == highest:
            n_heap -= 1
            link = s.visits[i].link
            s.visits[i].key = s.visits[n_heap].key
            s.visits[i].link = s.visits[n_heap].link
            s.visits[n_heap].key = highest
            s.visits[n_heap].link = link
    order_visits(s, n_heap)
    return int(n_heap), int(n)


@compiled
def _finish_fill(s: FluidState, n_heap: int, next_listed: int, n: int) -> None:
    """Note the loads of the links whose turn never came, and that all rates are new."""
    clock = s.clock[0]
    for i in range(n):
        if i < n_heap or i >= next_listed:
            ident = int64(s.visits[i].link)
            s.load[ident, PEAK] = max(s.load[ident, PEAK], s.load[ident, OTHER])
    clock.in_order = 0
    clock.sweeping = 0
    clock.n_repairs = 0
    clock.fetched = 0.0
    clock.n_visits += clock.n_active
    refresh_minima(s.ends, s.links.shape[0])


@compiled
def fill(s: FluidState, flows: Ints32, n_new: int) -> None:
    """Raise all rates of the network together, and freeze the flows of each link that
    saturates.

    Empties the list of dirty links, and overwrites the fields `NODE.upcoming` of flows
    under way.

    Args:
        s: the arrays of links and rates.
        flows: (any,) slots; the first ``n_new`` of them start now.
        n_new: how many of ``flows`` start, joining their links here; 0 fills only what
            is under way.
    """
    clock = s.clock[0]
    for i in range(n_new):
        node = s.nodes[flows[i]]
        node.upcoming = node.work
        node.bottleneck = -1
        join_links(s, int64(flows[i]))
    for i in range(clock.n_dirty):
        s.links[s.dirty[i]].queued = 0
        s.ends[s.dirty[i]] = np.inf
    clock.n_dirty = 0
    clock.n_saturated = 0
    n_heap, n = _open_links(s)
    next_listed = n_heap  # the first of those after the heap whose turn has not come
    n_left = clock.n_active
    large = s.links.shape[0] >= LARGE
    fetched = next_listed  # of the listed ones, those before it are fetched
    turn = ZERO  # turns of the heap until more of it is fetched
    while n_left > 0:
        is_listed = next_listed < n and (n_heap == 0 or is_before(s, next_listed, 0))
        if large and (next_listed >= fetched if is_listed else turn == 0):
            last = min(next_listed + LISTED, n) if is_listed else min(IN_HEAP, n_heap)
            fetch_visits(s, next_listed if is_listed else ZERO, last)
            fetched, turn = (last, turn) if is_listed else (fetched, TURNS)
        turn -= not is_listed
        key = s.visits[next_listed if is_listed else 0].key
        ident = int64(s.visits[next_listed if is_listed else 0].link)
        link = s.links[ident]
        level = link.level
        if link.n_open > 0 and not link.fixed:
            level = fair_level(s, ident, link.n_open)
            if level > key:  # others froze below it meanwhile: its turn comes later
                if is_listed:
                    next_listed += 1
                    push_visit(s, n_heap, level, ident)
                    n_heap += 1
                else:
                    s.visits[0].key = level
                    sift_visits(s, n_heap, ZERO)
                continue
        if link.n_open > 0:
            n_left -= _freeze_flows(s, ident, level)
            _close_link(s, ident, level)
        elif not link.fixed:
            s.load[ident, PEAK] = max(s.load[ident, PEAK], s.load[ident, OTHER])
        if is_listed:
            next_listed += 1
        else:
            n_heap -= 1
            pop_visit(s, n_heap)
    _finish_fill(s, n_heap, next_listed, n)

"""Rates made anew where much of the network starts at one instant: progressive filling."""

from __future__ import annotations

import numpy as np

from simshuffle.network.fluid_ahead import IN_HEAP, LARGE, LISTED, TURNS, fetch_members, fetch_turns
from simshuffle.network.fluid_events import refresh_minima, upcoming_end
from simshuffle.network.fluid_members import add_row, fair_level, join_links, sift_down, write_entry
from simshuffle.network.fluid_records import CAPACITY, FIRST, OTHER, PEAK, Ints, State
from simshuffle.network.fluid_visits import (
    is_before,
    order_visits,
    pop_visit,
    push_visit,
    sift_visits,
)
from simshuffle.spec.compiling import compiled, int64


@compiled
def _freeze_flow(s: State, flow: int, bottleneck: int, level: float) -> None:
    """Give a flow its rate and its bottleneck, whose heap is put in order by `_close_link`."""
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
            s.load[OTHER, ident] += level


@compiled
def _open_link(s: State, ident: int) -> float:
    """Empty a link, noting what its flows have left; returns the level at which it would saturate.

    All links are opened in the order of their numbers, since in any other order nearly each would
    have to be waited for.
    """
    link = s.links[ident]
    link.served += link.level * (s.clock[0].now - link.t_last)
    for at in range(link.offset, link.offset + link.n):
        node = s.nodes[s.entries[at].flow]
        node.upcoming = max(s.entries[at].key - link.served, 0.0)
        node.bottleneck = -1
    link.n_open = link.n_active
    link.n = link.n_rows = 0
    link.floor = np.inf
    s.load[OTHER, ident] = 0.0
    s.ends[ident] = np.inf
    return float(link.level if link.fixed else s.load[CAPACITY, ident] / link.n_open)


@compiled
def _close_link(s: State, ident: int, level: float) -> None:
    """Put the flows of a link that has saturated at ``level`` in the order of their ends."""
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
        key, flow = s.entries[base + k].key, int64(s.entries[base + k].flow)
        place = sift_down(s.entries, s.nodes, base, int64(link.n), k, key)
        write_entry(s.entries, s.nodes, base, place, key, flow)
    s.ends[ident] = upcoming_end(s, ident)
    s.load[PEAK, ident] = s.load[CAPACITY, ident]
    s.clock[0].n_saturated += 1


@compiled
def _freeze_flows(s: State, ident: int, level: float) -> int:
    """Freeze the flows of a link that still rise at ``level`` (units/s); returns how many."""
    n = 0
    for head in (s.links[ident].head, s.links[ident].alone):
        at = int64(head)
        while at >= 0:
            if s.nodes[at // s.width].bottleneck < 0:
                _freeze_flow(s, at // s.width, ident, level)
                n += 1
            at = int64(s.hops[at].next)
    return n


@compiled
def _open_links(s: State) -> tuple[int, int]:
    """Open all links that flows cross and queue them by the level at which they would saturate;
    returns how many are in the heap `visits`, and how many there are with those after it.

    Those with the highest level, which often are most of all, are no part of the heap: they are
    listed after it in the order of their numbers.
    """
    n, highest = FIRST, 0.0
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
    order_visits(s.visits, n_heap)
    return int(n_heap), int(n)


@compiled
def _finish(s: State, n_heap: int, at: int, n: int) -> None:
    """Note the loads of the links whose turn never came, and that all rates are new."""
    clock = s.clock[0]
    for i in range(n):
        if i < n_heap or i >= at:
            ident = int64(s.visits[i].link)
            s.load[PEAK, ident] = max(s.load[PEAK, ident], s.load[OTHER, ident])
    clock.in_order = 0
    clock.sweeping = 0
    clock.n_repairs = 0
    clock.fetched = 0.0
    clock.n_visits += clock.n_active
    refresh_minima(s.ends, s.links.shape[0])


@compiled
def fill(s: State, flows: Ints, n_new: int) -> None:
    """Raise all rates of the network together, and freeze the flows of each link that saturates.

    The first ``n_new`` of ``flows`` start now.
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
    at = n_heap  # the first of those after the heap whose turn has not come
    n_left = clock.n_active
    large = s.links.shape[0] >= LARGE
    fetched, turn = at, FIRST  # listed before it; turns of the heap until more is fetched
    while n_left > 0:
        listed = at < n and (n_heap == 0 or is_before(s.visits, at, 0))
        if large and (at >= fetched if listed else turn == 0):
            last = min(at + LISTED, n) if listed else min(IN_HEAP, n_heap)
            fetch_turns(s, at if listed else FIRST, last)
            fetched, turn = (last, turn) if listed else (fetched, TURNS)
        turn -= not listed
        key = s.visits[at if listed else 0].key
        ident = int64(s.visits[at if listed else 0].link)
        link = s.links[ident]
        level = link.level
        if link.n_open > 0 and not link.fixed:
            level = fair_level(s.load, ident, link.n_open)
            if level > key:  # others froze below it meanwhile: its turn comes later
                if listed:
                    at += 1
                    push_visit(s.visits, n_heap, level, ident)
                    n_heap += 1
                else:
                    s.visits[0].key = level
                    sift_visits(s.visits, n_heap, FIRST)
                continue
        if link.n_open > 0:
            n_left -= _freeze_flows(s, ident, level)
            _close_link(s, ident, level)
        elif not link.fixed:
            s.load[PEAK, ident] = max(s.load[PEAK, ident], s.load[OTHER, ident])
        if listed:
            at += 1
        else:
            n_heap -= 1
            pop_visit(s.visits, n_heap)
    _finish(s, n_heap, at, n)

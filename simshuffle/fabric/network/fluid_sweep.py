"""Rates made fair again where most links change: all saturated links are visited in the order of
their levels before; or made anew where much of the network starts at one instant, by progressive
filling.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.network.fluid_ahead import (
    IN_HEAP,
    LARGE,
    LISTED,
    TURNS,
    fetch_members,
    fetch_turns,
)
from simshuffle.fabric.network.fluid_events import refresh_minima, upcoming_end
from simshuffle.fabric.network.fluid_members import (
    add_row,
    change_bottleneck,
    fair_level,
    join_links,
    sift_down,
    write_entry,
)
from simshuffle.fabric.network.fluid_records import (
    CAPACITY,
    FIRST,
    LEVEL_TOLERANCE,
    OTHER,
    PEAK,
    SMALLEST_STEP,
    FluidState,
)
from simshuffle.fabric.network.fluid_repair import (
    is_before,
    order_visits,
    pop_visit,
    push_visit,
    sift_visits,
    sweep_cost,
)
from simshuffle.spec.arrays import Floats, Ints32
from simshuffle.spec.compiling import compiled, int64, reducing

# So many sweeps in a row must have changed little before a repair is tried again, since a repair
# that gives up costs most.
PATIENCE = 32
# Sums that went up and down thousands of times are off by more than the tolerance of levels. So of
# two links with equal levels each may come out below the other in turn. Links are placed anew so
# many times for each in order, and some more, before that is taken to be so.
RESTLESS, SOME = 64, 1024
# Rows of `others` that are looked through one by one when one of them has the link that is sought:
# often one of hundreds does.
ROWS = 32


@compiled
def _first_rank(s: FluidState, row: int) -> int:
    """Lowest place in order among the links of a row of `others`."""
    out = s.clock[0].n_order
    for j in range(row * (s.width - 1), (row + 1) * (s.width - 1)):
        other = s.links[s.others[j]]
        if other.n > 0 and other.rank >= 0:
            out = min(out, other.rank)
    return int(out)


@compiled
def _sort_links(s: FluidState) -> None:
    """List the saturated links by level, and give every flow the first of its route as its
    bottleneck."""
    clock = s.clock[0]
    n = FIRST
    for ident in range(s.links.shape[0]):
        s.links[ident].rank = -1
        if s.links[ident].n > 0:
            s.visits[n].key = s.links[ident].level
            s.visits[n].link = ident
            n += 1
    order_visits(s, n)
    for i in range(n):
        s.order[i] = s.visits[0].link
        s.links[s.order[i]].rank = i
        pop_visit(s, n - 1 - i)
    clock.n_order = n
    clock.in_order = 1
    for i in range(n):
        link = s.links[s.order[i]]
        n_moving = 0
        for row in range(link.offset, link.offset + link.n_rows):
            if _first_rank(s, row) < i:
                s.flows[n_moving] = s.members[row]
                n_moving += 1
        for k in range(n_moving):
            flow = int64(s.flows[k])
            first = _first_rank(s, link.offset + s.nodes[flow].row)
            change_bottleneck(s, flow, int64(s.order[first]))


@compiled
def _set_level(s: FluidState, ident: int, level: float) -> bool:
    """Set the level of a link and pass the difference on; returns whether there was any."""
    link = s.links[ident]
    now = s.clock[0].now
    step = level - link.level
    changed = abs(step) > SMALLEST_STEP * abs(level)
    if changed:
        link.served += link.level * (now - link.t_last)
        link.t_last = now
        link.level = level
        # the other links of all rows lie one after the other; unsigned, as in `smallest`
        for k in range(
            np.uint64(link.offset * (s.width - 1)),
            np.uint64((link.offset + link.n_rows) * (s.width - 1)),
        ):
            s.load[OTHER, s.others[k]] += step
    s.ends[ident] = upcoming_end(s, ident)
    return bool(changed)


@reducing
def _count_equal(values: NDArray[np.uint32], first: int, last: int, wanted: int) -> int:
    out = 0
    for i in range(np.uint64(first), np.uint64(last)):
        out += values[i] == wanted
    return out


@compiled
def _steal_shared(s: FluidState, ident: int, passed: int) -> None:
    """Give a link the flows on it that have their bottleneck on another."""
    link = s.links[passed]
    width = s.width - 1
    n = 0
    for first in range(link.offset, link.offset + link.n_rows, ROWS):
        last = min(first + ROWS, link.offset + link.n_rows)
        if _count_equal(s.others, first * width, last * width, ident) == 0:
            continue
        for row in range(first, last):
            for j in range(row * width, (row + 1) * width):
                if s.others[j] == ident:
                    s.flows[n] = s.members[row]
                    n += 1
    for i in range(n):
        change_bottleneck(s, int64(s.flows[i]), ident)


@compiled
def _place_link(s: FluidState, ident: int, end: int) -> int:
    """Move a link forward to where its level belongs among the first ``end`` in order;
    ``order[end]`` is free for it.

    It takes the flows on it from each link that it passes. Returns the place after it.
    """
    link = s.links[ident]
    link.rank = -1
    if link.n == 0:
        link.level = 0.0
    level = fair_level(s, ident, link.n) if link.n > 0 else -1.0
    width = s.width - 1
    at = end
    while at > 0 and s.links[s.order[at - 1]].level > level * (1.0 + LEVEL_TOLERANCE):
        at -= 1
        passed = int64(s.order[at])
        first = s.links[passed].offset * width
        if _count_equal(s.others, first, first + s.links[passed].n_rows * width, ident):
            _steal_shared(s, ident, passed)
            level = fair_level(s, ident, link.n)
        s.order[at + 1] = passed
        s.links[passed].rank = at + 1
    s.order[at] = ident
    link.rank = at
    _set_level(s, ident, level)
    return at + 1


@compiled
def _steal_unranked(s: FluidState, ident: int) -> None:
    """Give a link the flows on it that have their bottleneck on one which has no place in order
    yet, and will come after it."""
    n = 0
    at = int64(s.links[ident].head)
    while at >= 0:
        bottleneck = int64(s.nodes[at // s.width].bottleneck)
        if bottleneck != ident and s.links[bottleneck].rank < 0:
            s.flows[n] = at // s.width
            n += 1
        at = int64(s.hops[at].next)
    for i in range(n):
        change_bottleneck(s, int64(s.flows[i]), ident)


@compiled
def _add_link(s: FluidState, ident: int) -> int:
    """Give a link a place in the order; returns the place after it."""
    s.clock[0].n_order += 1
    return _place_link(s, ident, int64(s.clock[0].n_order - 1))


@compiled
def drop_rank(s: FluidState, place: int) -> None:
    """Take a link out of the order."""
    s.links[s.order[place]].rank = -1
    s.clock[0].n_order -= 1
    for k in range(place, s.clock[0].n_order):
        s.order[k] = s.order[k + 1]
        s.links[s.order[k]].rank = k


@compiled
def _visit_upwards(s: FluidState, i: int) -> int:
    """Visit the links in order from place ``i`` on; returns how many levels changed, or -1 if there
    is no end of it."""
    clock = s.clock[0]
    changed = 0
    left = RESTLESS * clock.n_order + SOME
    while i < clock.n_order:
        ident = int64(s.order[i])
        link = s.links[ident]
        if link.n == 0:
            drop_rank(s, i)
            s.ends[ident] = np.inf
            continue
        level = fair_level(s, ident, link.n)
        if i > 0 and level < s.links[s.order[i - 1]].level * (1.0 - LEVEL_TOLERANCE):
            if left == 0:
                return -1
            left -= 1
            i = _place_link(s, ident, i)
            changed += 1
            continue
        if _set_level(s, ident, level):
            changed += 1
        i += 1
    return changed


@reducing
def _count_overloads(load: Floats) -> int:
    out = 0
    for i in range(load.shape[1]):
        out += load[OTHER, i] > load[CAPACITY, i] * (1.0 + LEVEL_TOLERANCE)
    return out


@compiled
def _find_overload(s: FluidState) -> int:
    """A link that carries more than it can, -1 if none does."""
    if _count_overloads(s.load) == 0:
        return -1
    ident = 0
    while s.load[OTHER, ident] <= s.load[CAPACITY, ident] * (1.0 + LEVEL_TOLERANCE):
        ident += 1
    return ident


@reducing
def _raise_peaks(load: Floats) -> None:
    for i in range(load.shape[1]):
        load[PEAK, i] = max(load[PEAK, i], load[OTHER, i])


@compiled
def sweep(s: FluidState) -> bool:
    """Visit the saturated links in order, from the lowest that changed upwards, until every one
    fits and none is overloaded. False if there is no end of it: then all is to be filled anew."""
    clock = s.clock[0]
    first = clock.n_order
    if clock.in_order == 0:
        _sort_links(s)
        first = 0
    for i in range(clock.n_dirty):
        link = s.links[s.dirty[i]]
        link.queued = 0
        if link.rank >= 0:
            first = min(first, link.rank)
    for i in range(clock.n_dirty):
        ident = int64(s.dirty[i])
        if s.links[ident].n > 0 and s.links[ident].rank < 0:
            _steal_unranked(s, ident)
            first = min(first, _add_link(s, ident))
        elif s.links[ident].n == 0:
            s.ends[ident] = np.inf
    clock.n_dirty = 0
    changed = _visit_upwards(s, first)
    ident = _find_overload(s)
    while ident >= 0 and changed >= 0 and s.links[ident].rank < 0:
        more = _visit_upwards(s, _add_link(s, ident))
        changed = changed + more if more >= 0 else -1
        ident = _find_overload(s)
    if changed < 0 or ident >= 0:
        return False
    _raise_peaks(s.load)
    for i in range(clock.n_order):
        s.load[PEAK, s.order[i]] = s.load[CAPACITY, s.order[i]]
    refresh_minima(s.ends, s.links.shape[0])
    clock.n_visits += clock.n_order - first
    clock.sweeping = PATIENCE if 2 * changed > sweep_cost(s) else clock.sweeping - 1
    return True


@compiled
def _freeze_flow(s: FluidState, flow: int, bottleneck: int, level: float) -> None:
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
def _open_link(s: FluidState, ident: int) -> float:
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
def _close_link(s: FluidState, ident: int, level: float) -> None:
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
        place = sift_down(s, base, int64(link.n), k, key)
        write_entry(s, base, place, key, flow)
    s.ends[ident] = upcoming_end(s, ident)
    s.load[PEAK, ident] = s.load[CAPACITY, ident]
    s.clock[0].n_saturated += 1


@compiled
def _freeze_flows(s: FluidState, ident: int, level: float) -> int:
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
def _open_links(s: FluidState) -> tuple[int, int]:
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
    order_visits(s, n_heap)
    return int(n_heap), int(n)


@compiled
def _finish(s: FluidState, n_heap: int, at: int, n: int) -> None:
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
def fill(s: FluidState, flows: Ints32, n_new: int) -> None:
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
        listed = at < n and (n_heap == 0 or is_before(s, at, 0))
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
            level = fair_level(s, ident, link.n_open)
            if level > key:  # others froze below it meanwhile: its turn comes later
                if listed:
                    at += 1
                    push_visit(s, n_heap, level, ident)
                    n_heap += 1
                else:
                    s.visits[0].key = level
                    sift_visits(s, n_heap, FIRST)
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
            pop_visit(s, n_heap)
    _finish(s, n_heap, at, n)

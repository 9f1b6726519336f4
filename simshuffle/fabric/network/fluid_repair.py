"""Repair of the rates where few links change: the links that do are visited, lowest
level first.

The links to visit are in a heap; of equal levels the lowest index comes first. Each
entry has four below it, which lie together: half as many steps as with two, and
each has to wait for memory but once.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_events import set_end
from simshuffle.fabric.network.fluid_members import (
    change_bottleneck,
    fair_level,
    mark_dirty,
    next_end_on_link,
)
from simshuffle.fabric.network.fluid_records import (
    CAPACITY,
    LEVEL_TOLERANCE,
    OTHER,
    PEAK,
    SMALLEST_STEP,
    ZERO,
    FluidState,
)
from simshuffle.spec.compiling import compiled, int64

NUM_CHILDREN = 4  # entries below one: below place k are 4k + 1 to 4k + 4


@compiled
def is_before(s: FluidState, a: int, b: int) -> bool:
    """Return True if the visit at place ``a`` of the heap comes before the one at
    ``b``.
    """
    return _is_lower(s, a, s.visits[b].key, s.visits[b].link)


@compiled
def _is_lower(s: FluidState, place: int, key: float, link: int) -> bool:
    """Return True if the visit at ``place`` comes before ``link`` with this ``key``."""
    visit = s.visits[place]
    return bool(visit.key < key or (visit.key == key and visit.link < link))


@compiled
def push_visit(s: FluidState, n: int, key: float, link: int) -> None:
    """Add a link to a heap of ``n`` visits."""
    visits = s.visits
    place = n
    while place > 0:
        parent = (place - 1) // NUM_CHILDREN
        if _is_lower(s, parent, key, link):
            break
        visits[place].key = visits[parent].key
        visits[place].link = visits[parent].link
        place = parent
    visits[place].key = key
    visits[place].link = link


@compiled
def pop_visit(s: FluidState, n: int) -> None:
    """Take out the first visit, so that ``n`` remain."""
    s.visits[0].key = s.visits[n].key
    s.visits[0].link = s.visits[n].link
    sift_visits(s, n, ZERO)


@compiled
def order_visits(s: FluidState, n: int) -> None:
    """Make a heap of ``n`` visits in any order."""
    for place in range((n - 2) // NUM_CHILDREN, -1, -1):
        sift_visits(s, n, place)


@compiled
def sift_visits(s: FluidState, n: int, place: int) -> None:
    """Restore the order of a heap of ``n`` visits, of which the one at ``place`` may be
    too large.
    """
    visits = s.visits
    key = visits[place].key
    link = visits[place].link
    while True:
        first = NUM_CHILDREN * place + 1
        if first >= n:
            break
        child = first
        for sibling in range(first + 1, min(first + NUM_CHILDREN, n)):
            if is_before(s, sibling, child):
                child = sibling
        if not _is_lower(s, child, key, link):
            break
        visits[place].key = visits[child].key
        visits[place].link = visits[child].link
        place = child
    visits[place].key = key
    visits[place].link = link


# A repair that visits more links than a sweep costs becomes one: a visit costs about as much as
# sweeping over so many saturated links, and over so many links whose load alone has to be looked
# at.
MIN_SWEEP_COST = 24
PER_SATURATED = 8
PER_LINK = 128
# With rate limits a repair gives up only if there is no end of it, after so many visits a link.
VISITS_PER_LINK = 256


@compiled
def _list_faster_flows(
    s: FluidState, ident: int, level: float, hop: int, n: int
) -> int:
    """List the flows of a linked list of hops, from ``hop`` on, whose bottleneck is
    another link than ``ident`` and has a level above ``level`` (units/s).

    They are written to ``flows`` after the first ``n``; return how many it has then.
    """
    while hop >= 0:
        flow = hop // s.width  # whose hop it is
        bottleneck = int64(s.nodes[flow].bottleneck)
        if bottleneck != ident and s.links[bottleneck].level > level * (
            1.0 + LEVEL_TOLERANCE
        ):
            s.flows[n] = flow
            n += 1
        hop = int64(s.hops[hop].next)
    return n


@compiled
def _move_flow(s: FluidState, flow: int, target: int) -> None:
    """Make link ``target`` the bottleneck of a flow, and list all links of its route as
    dirty.
    """
    for hop in range(flow * s.width, flow * s.width + s.nodes[flow].n_hops):
        mark_dirty(s, int64(s.hops[hop].link))
    change_bottleneck(s, flow, target)


@compiled
def _steal_flows(s: FluidState, ident: int) -> float:
    """Move flows to this link that are faster elsewhere than its level allows, the
    fastest first; return its level (units/s), -1 if it is no bottleneck.

    If it is the bottleneck of no flow before, its field ``level`` is set to 0.
    """
    link = s.links[ident]
    level = fair_level(s, ident, link.n) if link.n > 0 else -1.0
    if link.n == 0:
        link.level = 0.0
    n = ZERO
    if link.n_rows < link.n_active - link.n_alone:
        n = _list_faster_flows(s, ident, level, int64(link.head), n)
    if link.n - link.n_rows < link.n_alone:
        n = _list_faster_flows(s, ident, level, int64(link.alone), n)
    previous_highest = np.inf
    while n > 0:
        best = ZERO
        highest = -1.0
        for i in range(n):
            flow_level = s.links[s.nodes[s.flows[i]].bottleneck].level
            if flow_level > highest:
                best = i
                highest = flow_level
                if (
                    flow_level == previous_highest
                ):  # many tie, and none is faster than the last
                    break
        previous_highest = highest
        if previous_highest <= level * (1.0 + LEVEL_TOLERANCE):
            break
        flow = int64(s.flows[best])
        n -= 1
        s.flows[best] = s.flows[n]
        _move_flow(s, flow, ident)
        level = fair_level(s, ident, link.n)
    return float(level)


@compiled
def _give_flow(s: FluidState, ident: int, flow: int, target: int) -> float:
    """Move a flow of this link to link ``target``; return the level of this link
    without it (units/s), inf if no flow is left.
    """
    _move_flow(s, flow, target)
    n = s.links[ident].n
    return fair_level(s, ident, n) if n > 0 else np.inf


@compiled
def _give_flows(s: FluidState, ident: int, level: float) -> float:
    """Move the flows of this link that meet a lower level elsewhere on their route;
    return its level without them (units/s), inf if no flow is left.

    Only flows that share other links have rows; links still to be visited do not count.
    """
    link = s.links[ident]
    width = s.width
    row = int64(link.offset)  # rows are numbered through the arena, as entries are
    rows_unmoved = 0  # rows in a row that stay
    while rows_unmoved < link.n_rows:
        if row >= link.offset + link.n_rows:
            row = int64(link.offset)
        best = int64(-1)
        lowest = level * (1.0 - LEVEL_TOLERANCE)
        # row r of `other_links` has its width - 1 columns from r * (width - 1) on
        for j in range(row * (width - 1), (row + 1) * (width - 1)):
            other_link = s.links[s.other_links[j]]
            if (
                other_link.n > 0
                and other_link.queued == 0
                and other_link.level < lowest
            ):
                best = int64(s.other_links[j])
                lowest = other_link.level
        rows_unmoved += 1
        if best < 0:
            row += 1
        else:  # the last row has taken its place, and a higher level may send more away
            level = _give_flow(s, ident, int64(s.members[row]), best)
            rows_unmoved = 0
    return level


@compiled
def _give_limited_flows(s: FluidState, ident: int, level: float) -> float:
    """Move the flows of this link that have a rate limit below its level to the link of
    that limit; return its level without them (units/s), inf if no flow is left.

    If its level is above its ``floor``, that becomes the lowest rate limit of the flows
    that stay (units/s), inf if none has one.
    """
    link = s.links[ident]
    while level * (1.0 - LEVEL_TOLERANCE) > link.floor:
        n = 0
        floor = np.inf
        for entry in range(link.offset, link.offset + link.n):
            flow = int64(s.entries[entry].flow)
            limit_link = s.hops[flow * s.width + s.nodes[flow].n_hops - 1].link
            if s.links[limit_link].fixed:
                if s.links[limit_link].level < level * (1.0 - LEVEL_TOLERANCE):
                    s.flows[n] = flow
                    n += 1
                else:
                    floor = min(floor, s.links[limit_link].level)
        link.floor = floor
        for i in range(n):
            flow = int64(s.flows[i])
            level = _give_flow(
                s,
                ident,
                flow,
                int64(s.hops[flow * s.width + s.nodes[flow].n_hops - 1].link),
            )
    return level


@compiled
def _is_quiet(s: FluidState, ident: int) -> bool:
    """Return True if a link has no level to find: it is a rate limit, or the bottleneck
    of no flow and has room for all that it carries.
    """
    link = s.links[ident]
    return bool(
        link.fixed
        or (
            link.n == 0
            and s.load[ident, OTHER]
            <= s.load[ident, CAPACITY] * (1.0 + LEVEL_TOLERANCE)
        )
    )


@compiled
def _queue_dirty(s: FluidState, n: int, n_seen: int) -> tuple[int, int]:
    """Put the links listed in ``dirty`` into the heap of ``n`` links to visit.

    With rate limits, quiet links, which are most, are not queued: their next end is set
    at once, and they are listed as seen if their load is the highest so far. Without rate
    limits a repair may give up, and every visit counts.

    Returns:
        The new size of the heap, and how many links are listed in ``order`` as seen.
    """
    limited = s.clock[0].n_fixed > 0
    for i in range(s.clock[0].n_dirty):
        ident = int64(s.dirty[i])
        link = s.links[ident]
        if limited and _is_quiet(s, ident):
            set_end(s, ident, next_end_on_link(s, ident))
            link.queued = 0
            if s.load[ident, OTHER] > s.load[ident, PEAK]:
                s.order[n_seen % s.order.shape[0]] = ident
                n_seen += 1
            continue
        key = 0.0
        if link.fixed:
            key = link.level
        elif link.n > 0:
            key = fair_level(s, ident, link.n)
        push_visit(s, n, key, ident)
        n += 1
    s.clock[0].n_dirty = 0
    return int(n), int(n_seen)


@compiled
def _visit_link(s: FluidState, ident: int) -> None:
    """Bring one link up to date: its flows, its level, its next end; and list the links
    that this changes as dirty.
    """
    link = s.links[ident]
    now = s.clock[0].now
    if not _is_quiet(s, ident):
        level = _steal_flows(s, ident)
        # No flow of a link that does not rise meets a lower level: the links that have fallen have
        # stolen theirs.
        if level > link.level:
            level = _give_flows(s, ident, level)
        if s.clock[0].n_fixed > 0:
            while level * (1.0 - LEVEL_TOLERANCE) > link.floor and link.n > 0:
                level = _give_flows(s, ident, _give_limited_flows(s, ident, level))
        step = level - link.level
        if link.n > 0 and abs(step) > SMALLEST_STEP * abs(level):
            link.served += link.level * (now - link.t_last)
            link.t_last = now
            link.level = level
            for row in range(link.offset, link.offset + link.n_rows):
                for j in range(row * (s.width - 1), (row + 1) * (s.width - 1)):
                    neighbour = int64(s.other_links[j])
                    if neighbour == s.clock[0].null_link:
                        break
                    s.load[neighbour, OTHER] += step
                    mark_dirty(s, neighbour)
    set_end(s, ident, next_end_on_link(s, ident))


@compiled
def sweep_cost(s: FluidState) -> int:
    """Number of visits that cost as much as a sweep."""
    return int(
        max(
            MIN_SWEEP_COST,
            s.clock[0].n_saturated // PER_SATURATED + s.links.shape[0] // PER_LINK,
        )
    )


@compiled
def repair(s: FluidState) -> bool:
    """Visit the links that have changed, lowest level first; return False if there are
    too many.

    In that case the links that remain are listed as dirty. If all were visited, the
    peak loads of the links seen are brought up to date. Too many are more than
    `sweep_cost` says, or, with rate limits, than `VISITS_PER_LINK` a link.
    """
    clock = s.clock[0]
    # rate limits have no place in the order of a sweep
    max_visits = (
        sweep_cost(s) if clock.n_fixed == 0 else VISITS_PER_LINK * s.links.shape[0]
    )
    num_visited = 0
    n, n_seen = _queue_dirty(s, ZERO, ZERO)
    while n > 0:
        ident = int64(s.visits[0].link)
        key = s.visits[0].key
        link = s.links[ident]
        if link.n > 0 and not link.fixed:
            level = fair_level(s, ident, link.n)
            # it has risen since it was queued: others may come first
            if level > key * (1.0 + LEVEL_TOLERANCE) and n > 1:
                s.visits[0].key = level
                sift_visits(s, n, ZERO)
                if s.visits[0].link != ident:
                    continue
        if num_visited >= max_visits:
            for i in range(n):
                s.dirty[i] = s.visits[i].link
            clock.n_dirty = n
            return False
        n -= 1
        pop_visit(s, n)
        num_visited += 1
        _visit_link(s, ident)
        link.queued = 0
        s.order[n_seen % s.order.shape[0]] = ident
        n, n_seen = _queue_dirty(s, n, n_seen + 1)
    for i in range(min(n_seen, s.order.shape[0])):
        ident = int64(s.order[i])
        s.load[ident, PEAK] = max(
            s.load[ident, PEAK],
            s.load[ident, CAPACITY] if s.links[ident].n > 0 else s.load[ident, OTHER],
        )
    clock.n_visits += num_visited
    return True

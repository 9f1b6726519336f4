"""Sweeps: rates made fair again where most links change, by a visit of all saturated
links in the order of their levels before the change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.network.fluid_events import refresh_minima
from simshuffle.fabric.network.fluid_members import (
    change_bottleneck,
    fair_level,
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
from simshuffle.fabric.network.fluid_repair import (
    order_visits,
    pop_visit,
    sweep_cost,
)
from simshuffle.spec.arrays import Floats
from simshuffle.spec.compiling import compiled, int64, reducing

# So many sweeps in a row must have changed little before a repair is tried again, since a repair
# that gives up costs most.
PATIENCE = 32
# Sums that went up and down thousands of times are off by more than the tolerance of levels. So of
# two links with equal levels each may come out below the other in turn. Links are placed anew
# `CLOCK.moves_per_link` times for each link in order and for so many more before that is taken to
# be so.
EXTRA_LINKS = 16
# Rows of `other_links` that are looked through one by one when one of them has the link that is
# sought: often one of hundreds does.
ROWS_PER_SCAN = 32


@compiled
def _first_rank(s: FluidState, row: int) -> int:
    """Return the lowest place in order among the links of a row of ``other_links``;
    ``n_order`` if none has a place.
    """
    lowest_rank = s.clock[0].n_order
    for j in range(row * (s.width - 1), (row + 1) * (s.width - 1)):
        other_link = s.links[s.other_links[j]]
        if other_link.n > 0 and other_link.rank >= 0:
            lowest_rank = min(lowest_rank, other_link.rank)
    return int(lowest_rank)


@compiled
def _sort_links(s: FluidState) -> None:
    """List the saturated links by level in ``order``, and make the first listed link on
    its route the bottleneck of every flow. Overwrites ``visits`` and ``flows``.
    """
    clock = s.clock[0]
    n = ZERO
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
    """Set the level of a link and pass the difference on to the other load of the other
    links of its flows; return True if there was any.

    A relative difference below `SMALLEST_STEP` is not passed on, and the level stays.
    The next end on the link is found anew, and `refresh_minima` must follow.
    """
    link = s.links[ident]
    now = s.clock[0].now
    step = level - link.level
    changed = abs(step) > SMALLEST_STEP * abs(level)
    if changed:
        link.served += link.level * (now - link.t_last)
        link.t_last = now
        link.level = level
        # the other links of all rows lie one after the other; unsigned, as in `minimum`
        for k in range(
            np.uint64(link.offset * (s.width - 1)),
            np.uint64((link.offset + link.n_rows) * (s.width - 1)),
        ):
            s.load[s.other_links[k], OTHER] += step
    s.ends[ident] = next_end_on_link(s, ident)
    return bool(changed)


@reducing
def _count_equal(values: NDArray[np.uint32], first: int, last: int, target: int) -> int:
    """Count the entries of ``values`` from ``first`` to before ``last`` that equal
    ``target``.
    """
    count = 0
    for i in range(np.uint64(first), np.uint64(last)):
        count += values[i] == target
    return count


@compiled
def _steal_shared_flows(s: FluidState, ident: int, passed: int) -> None:
    """Make link ``ident`` the bottleneck of the flows on it that have their bottleneck
    on ``passed``.
    """
    link = s.links[passed]
    width = s.width - 1
    n = 0
    for first in range(link.offset, link.offset + link.n_rows, ROWS_PER_SCAN):
        last = min(first + ROWS_PER_SCAN, link.offset + link.n_rows)
        if _count_equal(s.other_links, first * width, last * width, ident) == 0:
            continue
        for row in range(first, last):
            for j in range(row * width, (row + 1) * width):
                if s.other_links[j] == ident:
                    s.flows[n] = s.members[row]
                    n += 1
    for i in range(n):
        change_bottleneck(s, int64(s.flows[i]), ident)


@compiled
def _place_link(s: FluidState, ident: int, end: int) -> int:
    """Set a link's fair level, and move it forward to its place among the first ``end``
    in order; ``order[end]`` is free for it.

    It takes the flows on it from each link that it passes, and its level follows.
    A link without flows of its own passes every link until it has taken some. Returns
    the place after it.
    """
    link = s.links[ident]
    link.rank = -1
    if link.n == 0:
        link.level = 0.0
    level = fair_level(s, ident, link.n) if link.n > 0 else -1.0
    width = s.width - 1
    place = end
    while place > 0 and s.links[s.order[place - 1]].level > level * (
        1.0 + LEVEL_TOLERANCE
    ):
        place -= 1
        passed = int64(s.order[place])
        first = s.links[passed].offset * width
        if _count_equal(
            s.other_links, first, first + s.links[passed].n_rows * width, ident
        ):
            _steal_shared_flows(s, ident, passed)
            level = fair_level(s, ident, link.n)
        s.order[place + 1] = passed
        s.links[passed].rank = place + 1
    s.order[place] = ident
    link.rank = place
    _set_level(s, ident, level)
    return place + 1


@compiled
def _steal_unranked_flows(s: FluidState, ident: int) -> None:
    """Make a link the bottleneck of the flows on it whose bottleneck has no place in
    order yet, and will come after it.
    """
    n = 0
    hop = int64(s.links[ident].head)
    while hop >= 0:
        bottleneck = int64(s.nodes[hop // s.width].bottleneck)
        if bottleneck != ident and s.links[bottleneck].rank < 0:
            s.flows[n] = hop // s.width
            n += 1
        hop = int64(s.hops[hop].next)
    for i in range(n):
        change_bottleneck(s, int64(s.flows[i]), ident)


@compiled
def _add_to_order(s: FluidState, ident: int) -> int:
    """Add a link to the order at its place, see `_place_link`; return the place after
    it.
    """
    s.clock[0].n_order += 1
    return _place_link(s, ident, int64(s.clock[0].n_order - 1))


@compiled
def remove_from_order(s: FluidState, place: int) -> None:
    """Remove the link at ``place`` from the order; later links move up."""
    s.links[s.order[place]].rank = -1
    s.clock[0].n_order -= 1
    for k in range(place, s.clock[0].n_order):
        s.order[k] = s.order[k + 1]
        s.links[s.order[k]].rank = k


@compiled
def _visit_upwards(s: FluidState, place: int) -> int:
    """Give the links in order, from ``place`` on, their fair level; return how many
    levels changed or links moved, or -1 if the visits do not end.

    A link whose level falls below the one before it moves forward, and the visits go on
    after its new place. Links without flows are removed from the order.
    """
    clock = s.clock[0]
    num_changed = 0
    moves_left = clock.moves_per_link * (clock.n_order + EXTRA_LINKS)
    while place < clock.n_order:
        ident = int64(s.order[place])
        link = s.links[ident]
        if link.n == 0:
            remove_from_order(s, place)
            s.ends[ident] = np.inf
            continue
        level = fair_level(s, ident, link.n)
        if place > 0 and level < s.links[s.order[place - 1]].level * (
            1.0 - LEVEL_TOLERANCE
        ):
            if moves_left == 0:
                return -1
            moves_left -= 1
            place = _place_link(s, ident, place)
            num_changed += 1
            continue
        if _set_level(s, ident, level):
            num_changed += 1
        place += 1
    return num_changed


@reducing
def _count_overloads(load: Floats) -> int:
    """Count the links on which flows with bottlenecks elsewhere exceed the capacity by
    more than `LEVEL_TOLERANCE` (relative).

    Args:
        load: (links, 4) units/s, the columns `OTHER`, `CAPACITY` and `PEAK`.
    """
    count = 0
    for i in range(load.shape[0]):
        count += load[i, OTHER] > load[i, CAPACITY] * (1.0 + LEVEL_TOLERANCE)
    return count


@compiled
def _find_overload(s: FluidState) -> int:
    """Return the first link, by index, on which flows with bottlenecks elsewhere exceed
    the capacity by more than `LEVEL_TOLERANCE` (relative); -1 if there is none.
    """
    if _count_overloads(s.load) == 0:
        return -1
    ident = 0
    while s.load[ident, OTHER] <= s.load[ident, CAPACITY] * (1.0 + LEVEL_TOLERANCE):
        ident += 1
    return ident


@reducing
def _raise_peaks(load: Floats) -> None:
    """Raise the highest load of every link to the load that others put on it."""
    for i in range(load.shape[0]):
        load[i, PEAK] = max(load[i, PEAK], load[i, OTHER])


@compiled
def sweep(s: FluidState) -> bool:
    """Visit the saturated links in order, from the lowest that changed upwards, until
    every one fits and none is overloaded.

    Empties the list of dirty links. Returns False if the visits do not end, or a link
    stays overloaded: then the caller must fill all anew. Else ``CLOCK.sweeping`` counts
    down, or is `PATIENCE` again if many levels changed.
    """
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
            _steal_unranked_flows(s, ident)
            first = min(first, _add_to_order(s, ident))
        elif s.links[ident].n == 0:
            s.ends[ident] = np.inf
    clock.n_dirty = 0
    changed = _visit_upwards(s, first)
    ident = _find_overload(s)
    while ident >= 0 and changed >= 0 and s.links[ident].rank < 0:
        further_changes = _visit_upwards(s, _add_to_order(s, ident))
        changed = changed + further_changes if further_changes >= 0 else -1
        ident = _find_overload(s)
    if changed < 0 or ident >= 0:
        return False
    _raise_peaks(s.load)
    for i in range(clock.n_order):
        s.load[s.order[i], PEAK] = s.load[s.order[i], CAPACITY]
    refresh_minima(s.ends, s.links.shape[0])
    clock.n_visits += clock.n_order - first
    clock.sweeping = PATIENCE if 2 * changed > sweep_cost(s) else clock.sweeping - 1
    return True

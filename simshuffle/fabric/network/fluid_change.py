"""Links whose capacity changes while flows drain, and transfers that take another route
from then on; see `simshuffle.fabric.network.fluid.FluidNetwork.set_capacity` and
``reroute``.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_events import (
    LACKS_ENTRIES,
    graph_at,
    next_event_time,
    reserve_route,
    state_at,
)
from simshuffle.fabric.network.fluid_fill import fill
from simshuffle.fabric.network.fluid_members import mark_dirty, stop_flow
from simshuffle.fabric.network.fluid_records import (
    ACTIVE,
    CAPACITY,
    PEAK,
    UNUSED,
    ZERO,
    FluidState,
)
from simshuffle.fabric.network.fluid_transfers import make_rates_fair
from simshuffle.spec.arrays import Floats, Ints, Ints32
from simshuffle.spec.compiling import compiled, entry, int64

# Where less than this share of a capacity is left, rounding in the sum of what others took of it
# may be as much: then all rates are made from nothing.
SMALL_SHARE = 1e-3


@entry
def set_capacity(
    state: int, graph: int, now: float, links: Ints32, new_capacity: Floats
) -> float:
    """Give ``links`` other capacities (units/s) at ``now`` (s), up to which all events
    have been run, and make the rates fair again; return the time of the next event (s).

    The highest load so far stays the same share of the capacity. All rates are made
    anew where a link in use keeps less than `SMALL_SHARE` of its capacity.

    Args:
        state, graph: addresses of `FluidState` and `TransferGraph`.
        now: s.
        links: (n,) indices.
        new_capacity: (n,) units/s, greater than 0.
    """
    s = state_at(state)
    g = graph_at(graph)
    s.clock[0].now = max(s.clock[0].now, now)
    needs_filling = False
    for i in range(links.shape[0]):
        ident = int64(links[i])
        old_capacity = s.load[ident, CAPACITY]
        if new_capacity[i] == old_capacity:
            continue
        s.load[ident, PEAK] = s.load[ident, PEAK] / old_capacity * new_capacity[i]
        s.load[ident, CAPACITY] = new_capacity[i]
        if s.links[ident].n_active > 0:
            mark_dirty(s, ident)
            needs_filling = (
                needs_filling or new_capacity[i] < SMALL_SHARE * old_capacity
            )
    if needs_filling:
        fill(s, g.starting, ZERO)
    else:
        make_rates_fair(s, g.starting, ZERO)
    return next_event_time(s, g)


def find_transfers_on(
    s: FluidState, links: Ints, num_links: int
) -> tuple[Ints32, Ints32]:
    """Find the transfers posted and not ended whose routes have any of ``links``.

    Args:
        s: the arrays of links and transfers.
        links: indices.
        num_links: number of links without those for rate limits; they come first.

    Returns:
        (n,) int32 slots, ascending; and (n, `FluidState.width`) their routes, with -1
        for rate limits and as padding.
    """
    # rows: slots; columns: hops, of which the first n_hops of each row count
    hops = s.hops["link"].reshape(-1, s.width)
    on_route = np.arange(s.width) < s.nodes["n_hops"][:, None]
    is_listed = np.zeros(len(s.links), bool)
    is_listed[links] = True
    is_crossing = (is_listed[hops] & on_route).any(axis=1) & (
        s.nodes["state"] != UNUSED
    )
    slots = np.flatnonzero(is_crossing).astype(np.int32)
    return slots, np.where(on_route & (hops < num_links), hops, -1)[slots]


@compiled
def _stop_transfer(s: FluidState, flow: int) -> float:
    """Take a flow that has not ended from its links, with the units that it has drained
    booked on them, but not its bytes; return its remaining units, at least 0.

    Its links are marked dirty. `NODE.work` stays, `NODE.booked` is what it has drained.
    """
    node = s.nodes[flow]
    link = s.links[node.bottleneck]
    served = link.served + link.level * (s.clock[0].now - link.t_last)
    remaining = max(s.entries[link.offset + node.place].key - served, 0.0)
    work = node.work
    nbytes = node.nbytes
    node.work = work - remaining
    node.nbytes = 0.0  # the links of its new route count them
    stop_flow(s, flow)
    node.booked = node.work
    node.work = work
    node.nbytes = nbytes
    return float(remaining)


@compiled
def _replace_route(s: FluidState, slot: int, routes: Ints32, row: int) -> None:
    """Write the links of row ``row`` of ``routes`` as the route of a transfer; a rate
    limit stays the last, and is counted there once more.

    The transfer must be in no list of a link. The old route must have a link, and the
    new one must fit the width.
    """
    node = s.nodes[slot]
    last = s.hops[slot * s.width + node.n_hops - 1].link
    n_hops = 0
    while n_hops < routes.shape[1] and routes[row, n_hops] >= 0:
        s.hops[slot * s.width + n_hops].link = routes[row, n_hops]
        n_hops += 1
    node.alone = n_hops < 2
    if last > s.clock[0].null_link:
        s.hops[slot * s.width + n_hops].link = last
        s.links[last].n_alive += 1
        n_hops += 1
    node.n_hops = n_hops


@entry
def reroute(
    state: int,
    graph: int,
    now: float,
    slots: Ints32,
    routes: Ints32,
    total_work: Floats,
    is_uncounted: bool,
) -> float:
    """Continue transfers over other routes from ``now`` (s) on, up to which all events
    have been run; return the time of the next event (s).

    What transfers have drained stays with the links of their old routes, their bytes
    are counted on the new ones. Transfers that do not drain yet only get the new route.
    If it returns `LACKS_ENTRIES` nothing has changed but that the transfers are counted
    on their new links: the caller makes the arena larger, and calls again without
    ``is_uncounted``.

    Args:
        state, graph: addresses of `FluidState` and `TransferGraph`.
        now: s.
        slots: (n,) transfers.
        routes: (n, any) links, padded with -1.
        total_work: (n,) set to the units that each has to drain in all, which the
            caller writes back into `NODE.work`.
        is_uncounted: whether the transfers are still to be counted on their new links.
    """
    s = state_at(state)
    g = graph_at(graph)
    for counting in range(0 if is_uncounted else 1, 2):
        for row in range(slots.shape[0]):
            if not reserve_route(s, routes, row, counting == 0):
                return LACKS_ENTRIES
    s.clock[0].now = max(s.clock[0].now, now)
    n_starting = ZERO
    for row in range(slots.shape[0]):
        slot = int64(slots[row])
        node = s.nodes[slot]
        total_work[row] = node.work
        if node.state == ACTIVE and not node.outside:
            node.work = _stop_transfer(s, slot)
            g.starting[n_starting] = slot
            n_starting += 1
        else:
            for k in range(slot * s.width, slot * s.width + node.n_hops):
                s.links[s.hops[k].link].n_alive -= 1
        _replace_route(s, slot, routes, row)
    make_rates_fair(s, g.starting, n_starting)
    return next_event_time(s, g)

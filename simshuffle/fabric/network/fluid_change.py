"""Links whose capacity changes while flows drain, and transfers that take another route from then
on; see `simshuffle.fabric.network.fluid.FluidNetwork.set_capacity` and ``reroute``."""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_events import (
    LACKS_ENTRIES,
    graph_at,
    reserve_route,
    state_at,
    upcoming,
)
from simshuffle.fabric.network.fluid_members import mark_dirty, stop_flow
from simshuffle.fabric.network.fluid_records import (
    ACTIVE,
    CAPACITY,
    FIRST,
    PEAK,
    UNUSED,
    FluidState,
)
from simshuffle.fabric.network.fluid_sweep import fill
from simshuffle.fabric.network.fluid_transfers import share
from simshuffle.spec.arrays import Floats, Ints, Ints32
from simshuffle.spec.compiling import compiled, entry, int64

# Where less than this share of a capacity is left, rounding in the sum of what others took of it
# may be as much: then all rates are made from nothing.
SLIGHT = 1e-3


@entry
def set_capacity(state: int, graph: int, now: float, links: Ints32, values: Floats) -> float:
    """Give ``links`` other capacities (units/s) at ``now`` (s), up to which all events have been
    run, and make the rates fair again; returns the time of the next event (s).

    The highest load so far stays the same share of the capacity.
    """
    s, g = state_at(state), graph_at(graph)
    s.clock[0].now = max(s.clock[0].now, now)
    anew = False
    for i in range(links.shape[0]):
        ident = int64(links[i])
        before = s.load[CAPACITY, ident]
        if values[i] == before:
            continue
        s.load[PEAK, ident] = s.load[PEAK, ident] / before * values[i]
        s.load[CAPACITY, ident] = values[i]
        if s.links[ident].n_active > 0:
            mark_dirty(s, ident)
            anew = anew or values[i] < SLIGHT * before
    if anew:
        fill(s, g.starting, FIRST)
    else:
        share(s, g.starting, FIRST)
    return upcoming(s, g)


def crossing(s: FluidState, links: Ints, count: int) -> tuple[Ints32, Ints32]:
    """See `FluidNetwork.crossing`; ``count`` are the links of the caller, the first ones."""
    hops = s.hops["link"].reshape(-1, s.width)
    on_route = np.arange(s.width) < s.nodes["n_hops"][:, None]
    wanted = np.zeros(len(s.links), bool)
    wanted[links] = True
    found = (wanted[hops] & on_route).any(axis=1) & (s.nodes["state"] != UNUSED)
    slots = np.flatnonzero(found).astype(np.int32)
    return slots, np.where(on_route & (hops < count), hops, -1)[slots]


@compiled
def _stop(s: FluidState, flow: int) -> float:
    """Take a flow that has not ended from its links, with what it has drained booked on them;
    returns what is left of it (units)."""
    node = s.nodes[flow]
    link = s.links[node.bottleneck]
    served = link.served + link.level * (s.clock[0].now - link.t_last)
    left = max(s.entries[link.offset + node.place].key - served, 0.0)
    work, nbytes = node.work, node.nbytes
    node.work = work - left
    node.nbytes = 0.0  # the links of its new route count them
    stop_flow(s, flow)
    node.booked = node.work
    node.work, node.nbytes = work, nbytes
    return float(left)


@compiled
def _replace_route(s: FluidState, slot: int, routes: Ints32, i: int) -> None:
    """Write the links of route ``i``; a rate limit stays the last."""
    node = s.nodes[slot]
    last = s.hops[slot * s.width + node.n_hops - 1].link
    n_hops = 0
    while n_hops < routes.shape[1] and routes[i, n_hops] >= 0:
        s.hops[slot * s.width + n_hops].link = routes[i, n_hops]
        n_hops += 1
    if last > s.clock[0].null_link:
        s.hops[slot * s.width + n_hops].link = last
        s.links[last].n_alive += 1
        n_hops += 1
    node.n_hops = n_hops


@entry
def reroute(
    state: int, graph: int, now: float, slots: Ints32, routes: Ints32, work: Floats, count: bool
) -> float:
    """Let transfers go on over other routes from ``now`` (s) on, up to which all events have been
    run; returns the time of the next event (s).

    What they have drained stays with the links of their old routes, their bytes are counted on the
    new ones. If it returns `LACKS_ENTRIES` nothing has changed but that the transfers are counted
    on their new links: the caller makes the arena larger, and calls again without ``count``.
    ``work``, (n,), is set to what each has to drain in all, which the caller writes back into
    `NODE.work`.
    """
    s, g = state_at(state), graph_at(graph)
    for counting in range(0 if count else 1, 2):
        for i in range(slots.shape[0]):
            if not reserve_route(s, routes, i, counting == 0):
                return LACKS_ENTRIES
    s.clock[0].now = max(s.clock[0].now, now)
    n_starting = FIRST
    for i in range(slots.shape[0]):
        slot = int64(slots[i])
        node = s.nodes[slot]
        work[i] = node.work
        if node.state == ACTIVE and not node.outside:
            node.work = _stop(s, slot)
            g.starting[n_starting] = slot
            n_starting += 1
        else:
            for k in range(slot * s.width, slot * s.width + node.n_hops):
                s.links[s.hops[k].link].n_alive -= 1
        _replace_route(s, slot, routes, i)
    share(s, g.starting, n_starting)
    return upcoming(s, g)

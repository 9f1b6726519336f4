"""The rates of all flows: which way to make them fair again, flows that end, statistics."""

from __future__ import annotations

from simshuffle.network.fluid_events import set_end, state_at, upcoming_end
from simshuffle.network.fluid_fill import fill
from simshuffle.network.fluid_members import start_flow, stop_flow
from simshuffle.network.fluid_records import CAPACITY, FIRST, PEAK, Ints, State
from simshuffle.network.fluid_repair import repair
from simshuffle.network.fluid_sweep import PATIENCE, drop_rank, sweep
from simshuffle.spec.compiling import compiled, entry, int64

# The sums in the other loads are made anew after so many repairs, lest rounding adds up.
REFRESH = 1 << 14


@compiled
def share(s: State, starting: Ints, n_starting: int) -> None:
    """Make the rates max-min fair again: the first ``n_starting`` flows of ``starting`` have come,
    and those that `stop_flow` took have gone."""
    clock = s.clock[0]
    if n_starting == 0 and clock.n_dirty == 0:
        return
    clock.n_repairs += 1
    if (n_starting > 32 and n_starting * 8 > clock.n_active) or clock.n_repairs > REFRESH:
        fill(s, starting, n_starting)
        return
    # a link that has lost its flows may get new ones, which belong elsewhere in the order
    if clock.in_order and n_starting > 0:
        for i in range(clock.n_dirty):
            link = s.links[s.dirty[i]]
            if link.n == 0 and link.rank >= 0:
                drop_rank(s.links, s.order, s.clock, int64(link.rank))
    for i in range(n_starting):
        start_flow(s, int64(starting[i]))
    if clock.sweeping == 0 or clock.n_fixed > 0:
        clock.in_order = 0
        if repair(s):
            return
        clock.sweeping = PATIENCE
    if clock.n_fixed > 0 or not sweep(s):
        fill(s, starting, FIRST)


@compiled
def end_due(s: State, ident: int, limit: float, queue: Ints, tail: int) -> int:
    """Stop the flows of a link that end by ``limit`` (s) and list them in ``queue`` from place
    ``tail`` on; returns the new end of it."""
    link = s.links[ident]
    now = s.clock[0].now
    link.served += link.level * (now - link.t_last)
    link.t_last = now
    while link.n > 0 and now + (s.entries[link.offset].key - link.served) / link.level <= limit:
        flow = int64(s.entries[link.offset].flow)
        stop_flow(s, flow)
        queue[tail] = flow
        tail += 1
    set_end(s.ends, ident, upcoming_end(s, ident))
    return tail


@compiled
def end_early(s: State, tolerance: float, queue: Ints, tail: int) -> int:
    """Stop the flows that have at most a share ``tolerance`` of their units left; returns the new
    end of ``queue``."""
    clock = s.clock[0]
    for ident in range(s.links.shape[0]):
        link = s.links[ident]
        if link.n == 0:
            continue
        link.served += link.level * (clock.now - link.t_last)
        link.t_last = clock.now
        stopped = False
        while link.n > 0:
            flow = int64(s.entries[link.offset].flow)
            left = (s.entries[link.offset].key - link.served) / s.nodes[flow].work
            if left > tolerance:
                break
            clock.skipped = max(clock.skipped, left)
            stop_flow(s, flow)
            queue[tail] = flow
            tail += 1
            stopped = True
        if stopped:
            set_end(s.ends, ident, upcoming_end(s, ident))
    return tail


@entry
def settle(state: int, now: float) -> None:
    """Add to the statistics of every link what the flows under way have drained by ``now`` (s), and
    the time it has been busy. No event lies between the clock and ``now``."""
    s = state_at(state)
    width = s.width
    for ident in range(s.links.shape[0]):
        link = s.links[ident]
        link.peak = s.load[PEAK, ident] / s.load[CAPACITY, ident]
        if link.n_active > 0:
            link.busy += now - link.t_busy
            link.t_busy = now
        served = link.served + link.level * (now - link.t_last)
        for at in range(link.offset, link.offset + link.n):
            node = s.nodes[s.entries[at].flow]
            drained = node.work - max(s.entries[at].key - served, 0.0)
            for k in range(s.entries[at].flow * width, s.entries[at].flow * width + node.n_hops):
                s.links[s.hops[k].link].work += drained - node.booked
            node.booked = drained

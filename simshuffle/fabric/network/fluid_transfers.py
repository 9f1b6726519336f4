"""The life of a transfer, and the loop of events: a graph of dependent transfers over
shared links; and the choice of how to make the rates of flows fair again.

The loop knows nothing of hosts, ranks or SimPy. It sees *links* (anything with a
capacity: a cable direction, a PCIe slot, an SSD, the cores of a host) and
*transfers*. A transfer becomes ready when all transfers it waits for have ended,
spends ``delay`` seconds without using anything (latency, or fixed work of a
processor), then drains ``work`` units through every link of its route at its
max-min fair rate (`make_rates_fair`), and ends. Transfers of the same ``pair`` go
one after the other, in the order in which they were posted.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.fluid_ahead import LARGE, fetch_dependants, fetch_ends
from simshuffle.fabric.network.fluid_events import (
    LACKS_ENTRIES,
    add_batch,
    find_shortage,
    graph_at,
    link_of_next_end,
    make_ready,
    next_end_time,
    next_event_time,
    pop_event,
    push_event,
    set_end,
    state_at,
)
from simshuffle.fabric.network.fluid_fill import fill
from simshuffle.fabric.network.fluid_members import (
    next_end_on_link,
    start_flow,
    stop_flow,
)
from simshuffle.fabric.network.fluid_records import (
    ACTIVE,
    CAPACITY,
    DELAYED,
    ENDING,
    INSTANT,
    PEAK,
    QUEUED,
    UNUSED,
    ZERO,
    FluidState,
    TransferGraph,
    empty_sequel,
)
from simshuffle.fabric.network.fluid_repair import repair
from simshuffle.fabric.network.fluid_sweep import PATIENCE, remove_from_order, sweep
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.compiling import at_address, compiled, entry, int64

# The sums in the other loads are made anew after so many repairs, lest rounding adds up.
REFRESH = 1 << 14

sequel_at = at_address(empty_sequel)


@compiled
def make_rates_fair(s: FluidState, starting: Ints32, n_starting: int) -> None:
    """Make the rates max-min fair again: the first ``n_starting`` flows of ``starting``
    have come, and those that `stop_flow` took have gone.

    All is filled anew if more than 32 flows start that are more than an eighth of all,
    or after `REFRESH` repairs; else links are repaired, or swept if many change. If a
    repair with rate limits gives up, or a sweep, all is filled anew, too. Nothing is
    done if no link is dirty and no flow starts.
    """
    clock = s.clock[0]
    if n_starting == 0 and clock.n_dirty == 0:
        return
    clock.n_repairs += 1
    if (
        n_starting > 32 and n_starting * 8 > clock.n_active
    ) or clock.n_repairs > REFRESH:
        fill(s, starting, n_starting)
        return
    # a link that has lost its flows may get new ones, which belong elsewhere in the order
    if clock.in_order and n_starting > 0:
        for i in range(clock.n_dirty):
            link = s.links[s.dirty[i]]
            if link.n == 0 and link.rank >= 0:
                remove_from_order(s, int64(link.rank))
    for i in range(n_starting):
        start_flow(s, int64(starting[i]))
    if clock.sweeping == 0 or clock.n_fixed > 0:
        clock.in_order = 0
        if repair(s):
            return
        clock.sweeping = PATIENCE
    if clock.n_fixed > 0 or not sweep(s):
        fill(s, starting, ZERO)


@compiled
def end_due_flows(
    s: FluidState, g: TransferGraph, ident: int, limit: float, tail: int
) -> int:
    """Stop the flows of a link that end by ``limit`` (s) and list them in ``queue``
    from place ``tail`` on; return the new end of the queue. Their state stays ACTIVE.
    """
    link = s.links[ident]
    now = s.clock[0].now
    link.served += link.level * (now - link.t_last)
    link.t_last = now
    while (
        link.n > 0
        and now + (s.entries[link.offset].key - link.served) / link.level <= limit
    ):
        flow = int64(s.entries[link.offset].flow)
        fetch_dependants(s, g, flow)
        stop_flow(s, flow)
        g.queue[tail] = flow
        tail += 1
    set_end(s, ident, next_end_on_link(s, ident))
    return tail


@compiled
def end_nearly_done_flows(
    s: FluidState, tolerance: float, queue: Ints32, tail: int
) -> int:
    """Stop the flows that have at most a share ``tolerance`` of their units left, and
    list them in ``queue`` from place ``tail`` on; return the new end of the queue.

    ``CLOCK.skipped`` is raised to the largest share that was left. The flows of a link
    are looked at in the order of their ends, up to the first that has more left.
    """
    clock = s.clock[0]
    for ident in range(s.links.shape[0]):
        if s.ends[ident] == np.inf:  # no flow of its own
            continue
        link = s.links[ident]
        link.served += link.level * (clock.now - link.t_last)
        link.t_last = clock.now
        stopped = False
        while link.n > 0:
            flow = int64(s.entries[link.offset].flow)
            remaining_share = (s.entries[link.offset].key - link.served) / s.nodes[
                flow
            ].work
            if remaining_share > tolerance:
                break
            clock.skipped = max(clock.skipped, remaining_share)
            stop_flow(s, flow)
            queue[tail] = flow
            tail += 1
            stopped = True
        if stopped:
            set_end(s, ident, next_end_on_link(s, ident))
    return tail


@entry
def settle(state: int, now: float) -> None:
    """Add to the statistics of every link what the flows under way have drained by
    ``now`` (s), and the time it has been busy; set its peak. No event lies between the
    clock and ``now``. The clock and the rates stay.
    """
    s = state_at(state)
    width = s.width
    for ident in range(s.links.shape[0]):
        link = s.links[ident]
        link.peak = s.load[ident, PEAK] / s.load[ident, CAPACITY]
        if link.n_active > 0:
            link.busy += now - link.t_busy
            link.t_busy = now
        served = link.served + link.level * (now - link.t_last)
        for place in range(link.offset, link.offset + link.n):
            node = s.nodes[s.entries[place].flow]
            drained = node.work - max(s.entries[place].key - served, 0.0)
            for k in range(
                s.entries[place].flow * width,
                s.entries[place].flow * width + node.n_hops,
            ):
                s.links[s.hops[k].link].work += drained - node.booked
            node.booked = drained


@compiled
def _insert_into_bucket(s: FluidState, g: TransferGraph, flow: int) -> None:
    """Enter the first transfer of a pair into the hash table of pairs."""
    nodes = s.nodes
    buckets = g.buckets
    bucket = nodes[flow].pair % buckets.shape[0]
    nodes[flow].bucket_prev = -1
    nodes[flow].bucket_next = buckets[bucket]
    if buckets[bucket] >= 0:
        nodes[buckets[bucket]].bucket_prev = flow
    buckets[bucket] = flow


@compiled
def _remove_from_bucket(s: FluidState, g: TransferGraph, flow: int) -> None:
    """Remove the first transfer of a pair from the hash table of pairs."""
    nodes = s.nodes
    buckets = g.buckets
    node = nodes[flow]
    if node.bucket_prev >= 0:
        nodes[node.bucket_prev].bucket_next = node.bucket_next
    else:
        buckets[node.pair % buckets.shape[0]] = node.bucket_next
    if node.bucket_next >= 0:
        nodes[node.bucket_next].bucket_prev = node.bucket_prev


@compiled
def _take_turn_of_pair(s: FluidState, g: TransferGraph, flow: int) -> bool:
    """Return True if ``flow`` may start now, as the first of its pair, and enter it
    into the table; otherwise put it behind the transfers of its pair, QUEUED.
    """
    nodes = s.nodes
    buckets = g.buckets
    node = nodes[flow]
    head = buckets[node.pair % buckets.shape[0]]
    while head >= 0:
        if nodes[head].pair == node.pair:
            nodes[nodes[head].pair_tail].pair_next = flow
            nodes[head].pair_tail = flow
            node.state = QUEUED
            return False
        head = nodes[head].bucket_next
    node.pair_tail = flow
    _insert_into_bucket(s, g, flow)
    return True


@compiled
def _begin_transfer(
    s: FluidState, g: TransferGraph, n_starting: int, tail: int, flow: int
) -> tuple[int, int]:
    """List ``flow`` among those that start to drain; or put it into the outbox if it is
    ``outside``; or, if it has nothing to drain, into ``queue`` as ENDING.

    Returns:
        ``n_starting`` and ``tail``, the ends of ``starting`` and ``queue``, moved on.
    """
    node = s.nodes[flow]
    if node.outside:
        node.state = ACTIVE
        node.next = s.clock[0].outbox
        s.clock[0].outbox = flow
    elif node.work <= 0.0 or node.n_hops == 0:
        node.state = ENDING
        g.queue[tail] = flow
        tail += 1
    else:
        node.state = ACTIVE
        g.starting[n_starting] = flow
        n_starting += 1
    return n_starting, tail


@compiled
def _retire_transfer(
    s: FluidState, g: TransferGraph, n_starting: int, tail: int, flow: int
) -> tuple[int, int]:
    """Begin the next transfer of the pair of ``flow``, which ended; and if ``flow``
    never drained, take it off the count of its links.

    Returns:
        ``n_starting`` and ``tail``, moved on as by `_begin_transfer`.
    """
    node = s.nodes[flow]
    if node.place < 0:
        for k in range(flow * s.width, flow * s.width + node.n_hops):
            s.links[s.hops[k].link].n_alive -= 1
    if node.pair >= 0:
        _remove_from_bucket(s, g, flow)
        follower = int64(node.pair_next)
        if follower >= 0:
            s.nodes[follower].pair_tail = node.pair_tail
            _insert_into_bucket(s, g, follower)
            n_starting, tail = _begin_transfer(s, g, n_starting, tail, follower)
    return n_starting, tail


@compiled
def _count_down(s: FluidState, g: TransferGraph, group: int, mark: int) -> None:
    """Count a transfer that ended down in ``group`` (none if -1), and note the time if
    ``mark``; if the group is complete, list it where it is watched or has a sequel, and
    count it down in its parent.
    """
    clock = s.clock[0]
    while group >= 0:
        record = g.groups[group]
        if mark:
            record.t_mark = clock.now
            mark = ZERO
        record.remaining -= 1
        if record.remaining != 0:
            return
        record.t_done = clock.now
        record.seq = clock.n_groups
        clock.n_groups += 1
        if record.watched:
            g.completed_groups[clock.n_done] = group
            clock.n_done += 1
        if record.sequel >= 0:
            g.due[clock.n_due] = group
            clock.n_due += 1
        group = int64(record.parent)


@compiled
def _end_transfer(s: FluidState, g: TransferGraph, flow: int) -> None:
    """Note the end of a transfer in its account (s since it was ready), tag and groups,
    make successors ready that wait for no other, and free its slot and edges.
    """
    node = s.nodes[flow]
    clock = s.clock[0]
    now = clock.now
    if node.account >= 0:
        g.accounts[node.account] += now - node.t_ready
    if node.tag >= 0:
        g.finish[node.tag] = now
    _count_down(s, g, int64(node.group), int64(node.mark))
    _count_down(s, g, int64(node.group2), int64(node.mark))
    edge = node.first_edge
    while edge >= 0:
        next_edge = g.edges[edge].next
        successor = int64(g.edges[edge].to)
        g.edges[edge].next = clock.free_edge
        clock.free_edge = edge
        clock.n_edges -= 1
        s.nodes[successor].n_deps -= 1
        if s.nodes[successor].n_deps == 0:
            make_ready(s, g, successor)
        edge = next_edge
    node.state = UNUSED
    node.next = clock.free_node
    clock.free_node = flow
    clock.n_alive -= 1


@compiled
def _list_due(s: FluidState, g: TransferGraph, limit: float, tolerance: float) -> int:
    """List in `queue` the flows that end by ``limit`` (s), and the transfers whose
    delay has passed by then; return how many there are.

    Flows with at most a share ``tolerance`` of their units left are listed, too; 0 for
    none. State: ENDING for flows and for scheduled ends, else DELAYED.
    """
    tail = ZERO
    while next_end_time(s.ends) <= limit:
        tail = end_due_flows(s, g, link_of_next_end(s.ends), limit, tail)
    if tolerance > 0.0:
        tail = end_nearly_done_flows(s, tolerance, g.queue, tail)
    for i in range(tail):
        s.nodes[g.queue[i]].state = ENDING
    while s.clock[0].n_heap > 0 and g.heap[0].upcoming <= limit:
        g.queue[tail] = pop_event(s, g)
        tail += 1
    return int(tail)


@compiled
def _handle_queue(s: FluidState, g: TransferGraph, n_starting: int, tail: int) -> int:
    """Handle the first ``tail`` transfers of `queue`, and those that this adds to it;
    return how many begin to drain at this instant, ``n_starting`` included: they are
    listed in ``starting``.
    """
    head = ZERO
    while head < tail:
        flow = int64(g.queue[head])
        head += 1
        if s.nodes[flow].state != DELAYED:
            n_starting, tail = _retire_transfer(s, g, n_starting, tail, flow)
            _end_transfer(s, g, flow)
        elif s.nodes[flow].pair < 0 or _take_turn_of_pair(s, g, flow):
            n_starting, tail = _begin_transfer(s, g, n_starting, tail, flow)
    return n_starting


@compiled
def _post_sequels(s: FluidState, g: TransferGraph) -> float:
    """Post the sequels of the groups in ``due``, in their order.

    Returns 0, or what a sequel lacks, as `post`: the caller makes more and calls again.
    """
    clock = s.clock[0]
    while clock.next_due < clock.n_due:
        group = g.groups[g.due[clock.next_due]]
        sequel = sequel_at(g.sequels[group.sequel])
        first = group.item * sequel.rows
        last = first + sequel.rows
        tasks = sequel.tasks[first:last]
        routes = sequel.routes[first:last]
        n_edges = int64(sequel.edge_from.shape[0])
        is_uncounted = clock.counted == 0
        shortage = find_shortage(s, g, tasks, routes, n_edges, is_uncounted)
        if shortage < 0.0:
            clock.counted = 1 if shortage == LACKS_ENTRIES else 0
            return shortage
        clock.counted = 0
        add_batch(s, g, tasks, routes, sequel.edge_from, sequel.edge_to)
        clock.next_due += 1
    clock.n_due = 0
    clock.next_due = 0
    return 0.0


@entry
def advance(
    state: int, graph: int, horizon: float, tolerance: float, budget: int
) -> float:
    """Run all events up to ``horizon`` (s), but stop after the first instant that
    completes a watched group.

    Stops after about ``budget`` events and visits of links, too, and after an instant
    that put a transfer into the outbox; at once if the outbox has one. Returns the time
    of the next event (s, inf if none); ``clock.now`` is the time of the last event,
    ``completed_groups[:clock.n_done]`` those groups. Or it returns what a sequel lacks, as
    `post`, to be called again with more. For ``tolerance`` see `_list_due`.
    """
    s = state_at(state)
    g = graph_at(graph)
    clock = s.clock[0]
    if clock.n_due == 0:
        clock.n_done = 0
    shortage = _post_sequels(s, g)
    max_count = clock.n_events + clock.n_visits + budget
    while (
        shortage == 0.0
        and clock.n_done == 0
        and clock.outbox < 0
        and clock.n_events + clock.n_visits < max_count
    ):
        next_event = next_event_time(s, g)
        if next_event > horizon or next_event == np.inf:
            return next_event
        if s.links.shape[0] >= LARGE:
            fetch_ends(s, next_end_time(s.ends))
        clock.now = max(clock.now, next_event)
        limit = clock.now * (1.0 + INSTANT)
        n_starting = ZERO
        while next_event_time(s, g) <= limit:
            tail = _list_due(s, g, limit, tolerance)
            clock.n_events += tail
            n_starting = _handle_queue(s, g, n_starting, tail)
        make_rates_fair(s, g.starting, n_starting)
        shortage = _post_sequels(s, g)
    return shortage if shortage < 0.0 else next_event_time(s, g)


@entry
def count_down(state: int, graph: int, now: float, groups: Ints32) -> float:
    """Count each of ``groups`` down once at ``now`` (s), in their order, and post the
    sequels of those that are complete.

    Returns as `advance`, to which a shortage and the completed groups are told alike.
    """
    s = state_at(state)
    g = graph_at(graph)
    clock = s.clock[0]
    clock.now = max(clock.now, now)
    if clock.n_due == 0:
        clock.n_done = 0
        for i in range(groups.shape[0]):
            _count_down(s, g, int64(groups[i]), ZERO)
    shortage = _post_sequels(s, g)
    return shortage if shortage < 0.0 else next_event_time(s, g)


@entry
def complete(state: int, graph: int, slot: int, now: float) -> float:
    """Schedule the end of a transfer from the outbox at ``now`` (s), up to which all
    events have been run; return the time of the next event (s).
    """
    s = state_at(state)
    g = graph_at(graph)
    s.nodes[slot].state = ENDING
    s.nodes[slot].upcoming = now
    push_event(s, g, slot)
    return next_event_time(s, g)

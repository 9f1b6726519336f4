"""What comes next: the ends of flows, and the delays that pass; and where all arrays are.

The next end is found by minima over the ends of all links, kept up to date. The transfers whose
delay has not passed are in order of time and of posting: those with one delay that become ready one
after the other come in order, as after a barrier, so they are kept in runs, each in order, and a
heap has the first of each run.
"""

from __future__ import annotations

import numpy as np

from simshuffle.network.fluid_records import (
    DELAYED,
    FAN,
    PER_GROUP,
    Floats,
    Graph,
    Ints,
    Records,
    State,
    no_links,
    no_transfers,
)
from simshuffle.spec.compiling import at_address, compiled, int64, reducing


@reducing
def smallest(values: Floats, first: int, last: int) -> float:
    """The smallest of ``values`` from ``first`` to before ``last``, inf if there are none."""
    out = np.inf
    # an unsigned index cannot mean one counted from the end
    for i in range(np.uint64(first), np.uint64(last)):
        out = min(out, values[i])
    return out


@compiled
def set_end(ends: Floats, link: int, when: float) -> None:
    """Note the next end of a link, and keep the minima above it."""
    before = ends[link]
    if when == before:
        return
    # `ends` has FAN * FAN links for each group; then, from `blocks` on, the minimum of each FAN
    # links; and from `supers` on that of each FAN of those
    groups = ends.shape[0] // PER_GROUP
    block = link // FAN
    blocks = groups * FAN * FAN
    supers = blocks + groups * FAN
    ends[link] = when
    if when < ends[blocks + block]:
        ends[blocks + block] = when
        ends[supers + block // FAN] = min(ends[supers + block // FAN], when)
    elif before == ends[blocks + block]:
        ends[blocks + block] = smallest(ends, block * FAN, (block + 1) * FAN)
        group = block // FAN
        ends[supers + group] = smallest(ends, blocks + group * FAN, blocks + (group + 1) * FAN)


@compiled
def next_end(ends: Floats) -> float:
    """Time of the next end of a flow (s), inf if there is none."""
    groups = ends.shape[0] // PER_GROUP
    return smallest(ends, groups * (PER_GROUP - 1), groups * PER_GROUP)


@compiled
def next_link(ends: Floats) -> int:
    """The link of the next end; the lowest number of several."""
    groups = ends.shape[0] // PER_GROUP
    when = next_end(ends)
    # from the minima of the last level to the place in each level below that has the same value
    at = groups * (PER_GROUP - 1)
    while ends[at] != when:
        at += 1
    at = groups * FAN * FAN + (at - groups * (PER_GROUP - 1)) * FAN
    while ends[at] != when:
        at += 1
    at = (at - groups * FAN * FAN) * FAN
    while ends[at] != when:
        at += 1
    return int(at)


@compiled
def refresh_minima(ends: Floats, n_links: int) -> None:
    """Make the minima over the ends of the links anew."""
    groups = ends.shape[0] // PER_GROUP
    to = groups * FAN * FAN
    used = -(-n_links // FAN)
    for block in range(used):
        ends[to + block] = smallest(ends, block * FAN, (block + 1) * FAN)
    for group in range(-(-used // FAN)):
        ends[to + groups * FAN + group] = smallest(ends, to + group * FAN, to + (group + 1) * FAN)


@compiled
def upcoming_end(s: State, ident: int) -> float:
    """When the next flow of a link ends (s); its service must be up to date."""
    link = s.links[ident]
    if link.n == 0 or link.level <= 0.0:
        return np.inf
    return float(link.t_last + max(s.entries[link.offset].key - link.served, 0.0) / link.level)


# Runs that a transfer is offered to.
RUNS = 4


@compiled
def _before(nodes: Records, a: int, b: int) -> bool:
    x = nodes[a].upcoming
    y = nodes[b].upcoming
    return bool(x < y or (x == y and nodes[a].seq < nodes[b].seq))


@compiled
def push_event(nodes: Records, heap: Ints, clock: Records, flow: int) -> None:
    """Add a transfer whose time is set: to the run that fits best of the first few in the heap,
    else as a run of its own."""
    n = int64(clock[0].n_heap)
    nodes[flow].next = -1
    best, best_tail = int64(-1), int64(-1)
    for k in range(min(n, RUNS)):
        tail = int64(nodes[heap[k]].run_tail)
        if _before(nodes, tail, flow) and (best < 0 or _before(nodes, best_tail, tail)):
            best, best_tail = int64(heap[k]), tail
    if best >= 0:
        nodes[best_tail].next = flow
        nodes[best].run_tail = flow
        return
    nodes[flow].run_tail = flow
    clock[0].n_heap = n + 1
    while n > 0:
        parent = (n - 1) >> 1
        if not _before(nodes, flow, int64(heap[parent])):
            break
        heap[n] = heap[parent]
        n = parent
    heap[n] = flow


@compiled
def pop_event(nodes: Records, heap: Ints, clock: Records) -> int:
    """Take out the first transfer."""
    first = heap[0]
    flow = int64(nodes[first].next)
    if flow >= 0:  # the next of its run comes in its place
        nodes[flow].run_tail = nodes[first].run_tail
    else:
        clock[0].n_heap -= 1
        flow = int64(heap[clock[0].n_heap])
    n = clock[0].n_heap
    pos = 0  # a binary heap: below place k are 2k + 1 and 2k + 2
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        if child + 1 < n and _before(nodes, int64(heap[child + 1]), int64(heap[child])):
            child += 1
        if not _before(nodes, int64(heap[child]), flow):
            break
        heap[pos] = heap[child]
        pos = child
    heap[pos] = flow
    return int(first)


@compiled
def make_ready(nodes: Records, heap: Ints, clock: Records, flow: int, now: float) -> None:
    """Let the delay of a transfer begin, which waits for nothing any more."""
    node = nodes[flow]
    node.state = DELAYED
    node.t_ready = max(now, node.t_ready)
    node.upcoming += node.t_ready
    push_event(nodes, heap, clock, flow)


@compiled
def upcoming(s: State, g: Graph) -> float:
    """Time of the next event (s), inf if there is none."""
    ends = next_end(s.ends)
    return min(ends, s.nodes[g.heap[0]].upcoming) if s.clock[0].n_heap > 0 else ends


state_at = at_address(no_links)
graph_at = at_address(no_transfers)

"""The transfers whose delay has not passed, by time and order of posting.

Those with one delay that become ready one after the other come in order, as after a barrier. So
transfers are kept in runs, each in order, and a heap has the first of each run.
"""

from __future__ import annotations

from simshuffle.network.compiling import compiled, int64
from simshuffle.network.fluid.ends import next_end
from simshuffle.network.fluid.records import DELAYED, Graph, Ints, Records, State

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
    pos = 0
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

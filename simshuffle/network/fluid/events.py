"""The heap of transfers whose delay has not passed, by time and order of posting."""

from __future__ import annotations

from simshuffle.network.compiling import compiled, int64
from simshuffle.network.fluid.ends import next_end
from simshuffle.network.fluid.records import DELAYED, Graph, Ints, Records, State


@compiled
def _before(nodes: Records, a: int, b: int) -> bool:
    x = nodes[a].t_event
    y = nodes[b].t_event
    return bool(x < y or (x == y and nodes[a].seq < nodes[b].seq))


@compiled
def push_event(nodes: Records, heap: Ints, clock: Records, flow: int) -> None:
    """Add a transfer, whose ``t_event`` is set."""
    pos = int(clock[0].n_heap)
    clock[0].n_heap = pos + 1
    while pos > 0:
        parent = (pos - 1) >> 1
        if not _before(nodes, flow, int64(heap[parent])):
            break
        heap[pos] = heap[parent]
        pos = parent
    heap[pos] = flow


@compiled
def pop_event(nodes: Records, heap: Ints, clock: Records) -> int:
    """Take out the first transfer."""
    first = heap[0]
    n = clock[0].n_heap - 1
    clock[0].n_heap = n
    flow = int64(heap[n])
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
    node.t_event = node.t_ready + node.delay
    push_event(nodes, heap, clock, flow)


@compiled
def upcoming(s: State, g: Graph) -> float:
    """Time of the next event (s), inf if there is none."""
    ends = next_end(s.ends)
    return min(ends, s.nodes[g.heap[0]].t_event) if s.clock[0].n_heap > 0 else ends

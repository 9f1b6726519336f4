"""Prefetching: the data of the next links and flows, fetched into the caches in time.

An event touches a few dozen items, each of which names others: a link its flows, a flow
its links. Where a network is larger than the caches, it waits for one after the other.
But the links whose turn comes next are known well enough. So the items of some dozens
of links are asked for together, with an instruction of the processor that numba does
not know by itself (`fetch`). Nothing here changes a rate: a wrong guess costs time
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types

from simshuffle.fabric.network.fluid_records import (
    CACHE_LINE,
    FAN,
    PER_GROUP,
    ZERO,
    FluidState,
    TransferGraph,
)
from simshuffle.spec.compiling import compiled, int64, intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(_: Any, array: Any, index: Any, offset: Any) -> Any:
    """Make the instruction that asks for the cache line at byte ``offset`` of item
    ``index`` of ``array``: its type for numba, and the function that writes its code.

    The index is not checked; a prefetch of a wrong address does nothing.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Write the LLVM code of one prefetch."""
        array_type, index_type, offset_type = signature.args
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        word = context.cast(builder, arguments[1], index_type, types.int64)
        skipped = context.cast(builder, arguments[2], offset_type, types.int64)
        byte = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        item = builder.gep(builder.bitcast(builder.gep(data, [word]), byte), [skipped])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # to be written, to be kept in all caches, data
        builder.call(prefetch, [item, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index, offset), code


fetch = cast(Callable[[Any, int, int], None], _fetch)


# With fewer links all fits into the caches.
LARGE = 1 << 13
# Links to look ahead in a list; in a heap, those that lie on its first four levels, for as many
# turns as most of them then come in; on each link so many flows.
LISTED = 64
IN_HEAP, TURNS = 85, 32
FLOWS = 2
# Links with an end to look ahead, about, and fewer than so many.
MIN_ENDS, MAX_ENDS = 32, 128


@compiled
def _fetch_link(s: FluidState, ident: int) -> None:
    """Fetch the record, the next end and the loads of a link."""
    fetch(s.links, ident, 0)
    fetch(s.links, ident, CACHE_LINE)
    fetch(s.ends, ident, 0)
    fetch(s.load, ident * s.load.shape[1], 0)


@compiled
def _fetch_links(s: FluidState, n: int) -> None:
    """Fetch the first ``n`` links listed in ``flows``, `FLOWS` flows of each that is a
    bottleneck or may become one, and all links of these flows.

    ``flows`` is overwritten. Only flows that share other links are fetched. Each step
    is done for all links, before the next step needs its data.
    """
    width = s.width
    for i in range(n):
        _fetch_link(s, int64(s.flows[i]))
    for i in range(n):
        link = s.links[s.flows[i]]
        s.flows[i] = -1
        if link.n + link.n_open > 0:
            s.flows[i] = link.head
            fetch(s.entries, int64(link.offset), 0)
            fetch(s.other_links, int64(link.offset * (width - 1)), 0)
    for step in range(2 * FLOWS):
        for i in range(n):
            hop = int64(s.flows[i])
            if hop >= 0:
                flow = hop // width  # whose hop it is
                if step % 2 == 0:
                    fetch(s.nodes, flow, 0)
                    fetch(s.nodes, flow, CACHE_LINE)
                    fetch(s.hops, flow * width, 0)
                    fetch(s.hops, (flow + 1) * width - 1, 0)
                else:
                    s.flows[i] = s.hops[hop].next
                    for k in range(flow * width, flow * width + s.nodes[flow].n_hops):
                        _fetch_link(s, int64(s.hops[k].link))


@compiled
def fetch_route(s: FluidState, flow: int) -> None:
    """Fetch the links of the route of a flow that starts or ends."""
    for hop in range(flow * s.width, flow * s.width + s.nodes[flow].n_hops):
        _fetch_link(s, int64(s.hops[hop].link))


@compiled
def fetch_transfer(s: FluidState, flow: int) -> None:
    """Fetch the route of a transfer whose delay passes next, and the transfer after it
    in its run.
    """
    next_flow = int64(s.nodes[flow].next)
    fetch(s.nodes, next_flow, 0)
    fetch(s.nodes, next_flow, CACHE_LINE)
    fetch(s.hops, flow * s.width, 0)
    fetch(s.hops, (flow + 1) * s.width - 1, 0)


@compiled
def fetch_dependants(s: FluidState, g: TransferGraph, flow: int) -> None:
    """Fetch the group that counts the end of a flow, and the first transfer that waits
    for it.
    """
    node = s.nodes[flow]
    fetch(g.groups, int64(node.group), 0)
    fetch(g.edges, int64(node.first_edge), 0)
    if node.first_edge >= 0:
        fetch(s.nodes, int64(g.edges[node.first_edge].to), CACHE_LINE)


@compiled
def fetch_visits(s: FluidState, first: int, last: int) -> None:
    """Fetch the data needed to freeze the flows of the links listed in ``visits`` from
    ``first`` to before ``last``; ``flows`` is overwritten.
    """
    for i in range(first, last):
        s.flows[i - first] = s.visits[i].link
    _fetch_links(s, last - first)


@compiled
def fetch_members(s: FluidState, first: int) -> None:
    """Fetch the flow that ends first on each of `LISTED` links from ``first`` on; links
    that are no bottleneck are left out.
    """
    last = min(first + LISTED, s.links.shape[0])
    for ident in range(first, last):
        if s.links[ident].n > 0:
            fetch(s.entries, int64(s.links[ident].offset), 0)
    for ident in range(first, last):
        if s.links[ident].n > 0:
            fetch(s.nodes, int64(s.entries[s.links[ident].offset].flow), 0)


@compiled
def _list_ends(s: FluidState, end_time: float) -> int:
    """List in ``flows`` the links on which a flow ends until ``end_time`` (s); return
    how many are listed. Links by index after the first `MAX_ENDS` are left out.
    """
    ends = s.ends
    groups = ends.shape[0] // PER_GROUP
    blocks = groups * FAN * FAN  # see `set_end` for where the minima lie
    n = ZERO
    for group in range(groups):
        if ends[blocks + groups * FAN + group] <= end_time:
            for block in range(group * FAN, (group + 1) * FAN):
                if ends[blocks + block] <= end_time:
                    for ident in range(block * FAN, (block + 1) * FAN):
                        if ends[ident] <= end_time and n < MAX_ENDS:
                            s.flows[n] = ident
                            n += 1
    return int(n)


@compiled
def fetch_ends(s: FluidState, first: float) -> None:
    """Fetch the data that the next ends need, from ``first`` (s) on, unless that was
    done; and adapt ``CLOCK.ahead`` so that 32 to 128 links are fetched at a time.

    Does nothing if ``first`` is inf; else ``flows`` is overwritten, and
    ``CLOCK.fetched`` is the time (s) up to which ends have been asked for.
    """
    clock = s.clock[0]
    if first <= clock.fetched or first == np.inf:
        return
    n = _list_ends(s, first + clock.ahead)
    while n == MAX_ENDS and clock.ahead > 0.0:
        clock.ahead /= 2.0
        n = _list_ends(s, first + clock.ahead)
    clock.fetched = first + clock.ahead
    _fetch_links(s, n)
    if n < MIN_ENDS:
        # no farther than the time so far: with few flows under way it would grow beyond all bounds
        clock.ahead = min(max(2.0 * clock.ahead, 1e-9 * first), first)

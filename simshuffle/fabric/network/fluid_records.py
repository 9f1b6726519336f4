"""The record arrays of the fluid network, grouped by the files that own them (members:
fluid_members.py), and its constants.

All state lives in a few record arrays: what is needed together lies together.
Indices are 32 bits wide where there are at most 2**31 of a thing. -1 stands for
none. In kernels, ``s`` is the `FluidState`, ``g`` the `TransferGraph`, ``ident``
the index of a link, ``flow`` or ``slot`` that of a transfer in ``nodes``, and
``hop`` an index in ``hops``: hop k of a flow is entry flow * width + k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.network.batch import tasks
from simshuffle.spec.arrays import Floats, Ints32, Ints64

Records = Any  # a record array; its fields are those of the dtypes below

# Typed zero: numba compiles a function once more for each literal that it is called with.
ZERO: Any = np.int64(0)

# ------------------------------------------------------------------------------- life of a transfer

PAIR_BUCKETS = 1 << 14  # size of the hash table of pairs

# States of a transfer: no transfer; waits for others; its delay passes; waits for its turn in its
# pair; drains, or is in the outbox or carried elsewhere; ends at this instant, or as scheduled
UNUSED, WAITING, DELAYED, QUEUED, ACTIVE, ENDING = 0, 1, 2, 3, 4, 5

# Events closer than this (relative to the clock) are one instant, so that symmetric flows end
# together in spite of rounding.
INSTANT = 1e-14

# Bytes. Transfers and links are kept in two cache lines each: what is needed most is in the first.
# Where a network is larger than the caches, time goes by cache lines.
CACHE_LINE = 64

NODE = np.dtype(
    [
        # what was posted (events), what has become of it (transfers), and what there is to
        # say while it drains (members, sweep)
        ("work", "f8"),  # units to drain
        ("nbytes", "f8"),  # bytes, for the link statistics only
        ("booked", "f8"),  # units that the statistics of its links hold already
        # s: how long its delay is; when it ends, once it has begun; units left to drain, while
        # the network is filled anew
        ("upcoming", "f8"),
        ("place", "i4"),  # its entry in the heap of its bottleneck; -1 before it drains
        ("row", "i4"),  # its row beside that heap; -1 if it has none
        ("bottleneck", "i4"),  # link; -1 while the network is filled, until it has one
        ("first_edge", "i4"),  # list of the edges to those that wait for it; -1 if none
        ("account", "i4"),  # as in `TASK`, -1 for none; so are tag, group, group2
        ("tag", "i4"),
        ("n_hops", "i2"),  # links of its route, the one of its rate limit included
        ("alone", "i1"),  # 1: it shares at most one link, rate limits aside
        ("mark", "i1"),  # 1: its end is `GROUP.t_mark`
        # 1: instead of draining, it goes to the outbox and is ended by `complete`
        ("outside", "i1"),
        ("state", "i1"),  # one of `UNUSED` to `ENDING`
        # ---- the second cache line
        ("t_ready", "f8"),  # s, its start at first, then when it got ready
        ("pair", "i8"),  # key of the fair-share entity, or -1
        ("seq", "i8"),  # order of posting
        ("group", "i4"),
        ("group2", "i4"),
        ("n_deps", "i4"),  # transfers that it still waits for
        ("pair_next", "i4"),  # next transfer of the same pair in the queue
        ("pair_tail", "i4"),  # last one of that queue (valid at its head)
        ("bucket_next", "i4"),  # list of the heads of pairs in one hash bucket
        ("bucket_prev", "i4"),
        # next unused one; or next in the outbox; or next in a run of delays
        ("next", "i4"),
        ("unused", "i8"),  # fills the cache line
    ],
    align=True,
)
# a transfer whose delay passes, the first of a run, with its `NODE.upcoming` and `NODE.seq`; and
# the last of that run
EVENT = np.dtype(
    [("upcoming", "f8"), ("seq", "i8"), ("flow", "i4"), ("tail", "i4")], align=True
)
# the transfer that waits; and the next edge from the one transfer, or the next unused one
EDGE = np.dtype([("to", "i4"), ("next", "i4")], align=True)
GROUP = np.dtype(
    [
        ("t_mark", "f8"),  # s, when its marked transfer ended
        ("t_done", "f8"),  # s, when its last transfer ended
        ("seq", "i8"),  # order of completion
        ("remaining", "i4"),  # transfers that have not ended; 0: it is complete
        ("watched", "i4"),  # 1: somebody waits, so its completion is reported
        ("parent", "i4"),  # group that counts its completion; -1 for none
        # what is posted when it is complete: the index in `sequels`, -1 for nothing, and
        # the item of the sequel
        ("sequel", "i4"),
        ("item", "i4"),
    ],
    align=True,
)
NEW_GROUP = np.zeros((), GROUP)  # complete last of all, and long ago
NEW_GROUP["seq"] = np.iinfo(np.int64).max
NEW_GROUP["parent"] = NEW_GROUP["sequel"] = -1
# the transfer that the next one of a queue waits for: its slot and `NODE.seq`
QUEUE = np.dtype([("seq", "i8"), ("slot", "i4")], align=True)
MOVES_PER_LINK = 64  # `CLOCK.moves_per_link`
CLOCK = np.dtype(
    [
        ("now", "f8"),  # s
        # transfers (events, transfers)
        ("seq", "i8"),  # of the next transfer to be posted
        ("n_events", "i8"),  # ends, and delays that passed
        ("n_heap", "i4"),  # runs of delays in `heap`
        ("n_done", "i4"),  # groups listed in `completed_groups`
        ("free_node", "i4"),  # first unused slot
        ("free_edge", "i4"),  # first unused edge
        ("n_edges", "i4"),  # in use
        ("n_alive", "i4"),  # transfers posted and not ended
        ("outbox", "i4"),  # first transfer that is to be carried elsewhere from now on
        ("n_groups", "i8"),  # groups completed so far
        ("n_due", "i4"),  # groups in `due`
        ("next_due", "i4"),  # those of them whose sequels are posted
        (
            "counted",
            "i4",
        ),  # 1: the transfers to be posted next are counted on their links
        # the arena of the heaps of all links (members)
        ("heap_top", "i8"),  # entries in use
        ("promised", "i8"),  # entries that may come to be in use
        ("n_active", "i4"),  # transfers that drain
        ("n_saturated", "i4"),  # links that are the bottleneck of some flow
        ("n_fixed", "i4"),  # distinct rate limits; their links come after `null_link`
        ("null_link", "i4"),  # a link that stands for none
        # rates (repair, sweep, fill, transfers)
        (
            "skipped",
            "f8",
        ),  # largest share of its work that a transfer skipped by the tolerance
        (
            "n_visits",
            "i8",
        ),  # links visited, and flows filled: the work the solver really did
        ("n_dirty", "i4"),  # links that have changed since rates were fair
        ("n_order", "i4"),  # links in order
        ("in_order", "i4"),  # 1: the saturated links are listed in `order`
        ("sweeping", "i4"),  # sweeps to go before a repair is tried again
        ("moves_per_link", "i8"),  # a sweep that moves more links gives up
        ("n_repairs", "i4"),  # since all was filled anew
        # what is fetched into the caches in time (ahead)
        ("fetched", "f8"),  # s, what ends until then has been asked for
        ("ahead", "f8"),  # s, how far to look ahead
    ],
    align=True,
)

# --------------------------------------------------------------------------------- links and levels

# Columns of `load`: what flows with a bottleneck elsewhere take of a link; its capacity; the
# highest load so far. A fourth one is not used: with it no row lies in two cache lines.
OTHER, CAPACITY, PEAK = 0, 1, 2

# Two levels closer than this (relative) count as equal. It bounds the relative error of a rate.
LEVEL_TOLERANCE = 1e-12
# A difference below this (relative) is not passed on.
SMALLEST_STEP = 1e-12
# Minima over the ends of links are kept for each 64, and for each 64 of those: so many places for
# each such group.
FAN = 64
PER_GROUP = FAN * FAN + FAN + 1

LINK = np.dtype(
    [
        # its flows (members)
        ("level", "f8"),  # units/s of each flow that has its bottleneck here
        ("served", "f8"),  # units drained by a flow of its own since `served` was 0
        ("t_last", "f8"),  # s, up to when `served` is complete
        ("offset", "i8"),  # first entry of its heap
        ("n", "i4"),  # flows that have their bottleneck here
        ("n_rows", "i4"),  # those of them that share other links
        ("n_active", "i4"),  # flows that cross it
        ("n_alone", "i4"),  # those of them that share no other link
        # first hop in the list of its active flows that share other links
        ("head", "i4"),
        ("places", "i4"),  # places that its heap has
        ("rank", "i4"),  # place in `order`, -1 if not there (sweep)
        (
            "queued",
            "i1",
        ),  # 1: listed in `dirty` or in the heap of links to visit (repair)
        ("fixed", "i1"),  # 1: stands for a rate limit of flows; its level never changes
        # ---- the second cache line
        # units/s, at most the lowest rate limit of its own flows; inf if none has one
        ("floor", "f8"),
        (
            "alone",
            "i4",
        ),  # the list of the active flows that share no other link, like `head`
        ("n_alive", "i4"),  # transfers posted and not ended whose route has it
        ("reserved", "i4"),  # places that its heap may come to need
        # flows whose rates still rise, while the network is filled (fill)
        ("n_open", "i4"),
        # statistics (members, transfers)
        # units drained by the transfers that ended, and what was booked for those under way
        ("work", "f8"),
        ("nbytes", "f8"),  # bytes of the transfers that ended
        ("busy", "f8"),  # s with any flow, up to `t_busy`
        ("t_busy", "f8"),
        ("peak", "f8"),  # highest load / capacity, as `settle` found it
    ],
    align=True,
)
ENTRY = np.dtype(
    [
        ("key", "f8"),  # what `served` of the link will be when the flow ends
        ("flow", "i4"),
    ],
    align=True,
)
# a link, and the level (units/s) at which to visit it
VISIT = np.dtype([("key", "f8"), ("link", "i4")], align=True)
# a link of a route; and the hops beside it in the list of that link, `LINK.head` or `LINK.alone`
HOP = np.dtype([("link", "i4"), ("next", "i4"), ("prev", "i4")], align=True)


class FluidState(NamedTuple):
    """The arrays of links, rates and transfers."""

    width: int  # hops kept for each transfer
    clock: Records  # (1,) `CLOCK`
    nodes: Records  # (any,) `NODE`, a transfer each; called a flow while it drains
    # (nodes * width,) `HOP`, the route of each, and its places in the lists of its links
    hops: Records
    # (links,) `LINK`: those of the caller, `CLOCK.null_link`, and those for rate limits
    links: Records
    load: Floats  # (links, 4) units/s, the columns `OTHER`, `CAPACITY` and `PEAK`
    # (padded links,) s, the next end on each, then the smallest of each 64 of them, then of each 64
    # of those
    ends: Floats
    # (arena,) `ENTRY`, the heaps of the links, each of `LINK.places` places from `LINK.offset` on
    entries: Records
    members: Ints32  # (arena,) beside each heap, the flows of the link that share other links
    # (arena * (width - 1),) those other links of each such flow, padded with `CLOCK.null_link`
    other_links: NDArray[np.uint32]
    visits: Records  # (any,) `VISIT`, scratch: a heap of links by the level at which to visit them
    dirty: Ints32  # (any,) links that have changed since rates were fair
    order: Ints32  # (any,) saturated links by level, while `CLOCK.in_order`
    flows: Ints32  # (any,) scratch: flows about to change their bottleneck


class TransferGraph(NamedTuple):
    """The arrays of the dependencies among transfers, and of the groups that count
    their ends.
    """

    heap: (
        Records  # (nodes + 1,) `EVENT`, the transfers whose delays pass first, by time
    )
    edges: Records  # (any,) `EDGE`, which transfers wait for which
    groups: Records  # (any,) `GROUP`
    buckets: Ints32  # (any,) hash table of the pairs with a transfer under way
    completed_groups: Ints32  # (groups,) watched groups completed in the last instant
    starting: Ints32  # (nodes,) scratch: transfers that begin to drain at this instant
    queue: Ints32  # (2 * nodes,) scratch: transfers to be handled at this instant
    slots: Ints32  # (nodes,) where the transfers of the batch posted last are kept
    due: Ints32  # (groups,) complete groups whose sequels are to be posted at this instant
    sequels: Ints64  # (any,) addresses of the words of `Sequel`
    queues: Records  # (any,) `QUEUE`
    accounts: Floats  # (any,) s, see `TASK.account`
    finish: Floats  # (any,) s, see `TASK.tag`


class Sequel(NamedTuple):
    """Parked transfers: items of ``rows`` transfers each, one for each group."""

    rows: int  # of an item
    tasks: Records  # (items * rows,) `TASK`
    routes: Ints32  # (items * rows, hops) links, padded with -1
    # edge_from, edge_to: (m,) which transfer of an item ends before which starts, by row, in
    # every item
    edge_from: Ints32
    edge_to: Ints32


def empty_sequel() -> Sequel:
    """Return a sequel without any transfer."""
    no_indices = np.empty(0, np.int32)
    return Sequel(0, tasks(0), no_indices.reshape(0, 1), no_indices, no_indices)


def empty_fluid_state(width: int = 1) -> FluidState:
    """Return the arrays without any link or transfer; routes have up to ``width``
    links, a rate limit counting as one. The clock is all 0: the caller sets the heads
    of its lists to -1, and how many links a sweep may move.
    """
    count = 0  # of links, transfers and entries
    no_indices = np.empty(count, np.int32)
    return FluidState(
        width=width,
        clock=np.zeros(1, CLOCK),
        nodes=np.zeros(count, NODE),
        hops=np.zeros(count, HOP),
        links=np.zeros(count, LINK),
        load=np.empty((count, 4)),
        ends=np.empty(count),
        entries=np.zeros(count, ENTRY),
        members=no_indices,
        other_links=np.empty(count, np.uint32),
        visits=np.zeros(count, VISIT),
        dirty=no_indices,
        order=no_indices,
        flows=no_indices,
    )


def empty_transfer_graph(accounts: int = 1, tags: int = 1) -> TransferGraph:
    """Return the arrays without any transfer, with ``accounts`` time accounts, 0 s
    each, and ``tags`` end times, nan each.
    """
    count = 0  # of transfers, waits and groups
    no_indices = np.empty(count, np.int32)
    return TransferGraph(
        heap=np.zeros(count, EVENT),
        edges=np.zeros(count, EDGE),
        groups=np.zeros(count, GROUP),
        buckets=np.full(PAIR_BUCKETS, -1, np.int32),
        completed_groups=no_indices,
        starting=no_indices,
        queue=no_indices,
        slots=no_indices,
        due=no_indices,
        sequels=np.zeros(count, np.int64),
        queues=np.zeros(count, QUEUE),
        accounts=np.zeros(accounts),
        finish=np.full(tags, np.nan),
    )

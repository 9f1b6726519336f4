"""What both doors of the packet network share: the arrays of the compiled kernel, and its order of
posting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.network import packet_kernel as kernel
from simshuffle.network import packet_records as records
from simshuffle.network.flows import Floats, Flows, Ints, Links, successors
from simshuffle.spec.compiling import words

Longs = NDArray[np.int64]

EVENTS_PER_SLICE = 3_000_000  # about half a second of compiled code, between two looks at Ctrl-C
FIRST_SLOTS = 1 << 12
MOST_BUCKETS = 22  # of a hash table, as a power of two


@dataclass(frozen=True)
class PacketStatistics:
    """What happened on each link since the beginning."""

    nbytes: Floats  # (links,) bytes sent
    packets: Longs  # (links,) int64 packets sent
    # (links,) s that it was held by packets; longer than bytes / capacity where packets come in
    # from a slower link
    busy: Floats
    blocked: Floats  # (links,) s that it was idle although a packet was there, for lack of credits
    # (links,) int64, the most bytes reserved in its input buffer, as its sender sees it: on their
    # way there, in it, or gone while the credit is on its way back
    peak_buffer: Longs


def check_routes(links: Links, routes: Ints) -> None:
    """Raises a ValueError if a route has a link that does not exist."""
    if routes.size and (routes.max() >= len(links) or routes.min() < -1):
        raise ValueError(
            f"routes must be made of links 0 to {len(links) - 1}, padded with -1; got"
            f" {routes.min()} to {routes.max()}"
        )


def padded(routes: Ints) -> Ints:
    """The routes with one column at least."""
    return routes if routes.shape[1] else np.full((len(routes), 1), -1, np.int32)


def route_ends(routes: Ints) -> tuple[Ints, Ints]:
    """(n,) first and (n,) last link of each route, -1 for a route without links."""
    first = routes[:, 0].copy()
    last = first.copy()
    for hop in routes.T[1:]:
        np.copyto(last, hop, where=hop >= 0)
    return first, last


def in_order(first: Ints, keys: NDArray[np.integer], major: Floats | Longs | Ints) -> Longs:
    """Order by ``major``, then by first link, then by key of the queue pair, then by index."""
    order = np.argsort(keys, kind="stable")
    order = order[np.argsort(first[order], kind="stable")]
    if len(major) and major.min() < major.max():
        order = order[np.argsort(major[order], kind="stable")]
    return order


def _following(first: Ints, keys: NDArray[np.integer], flows: Flows) -> tuple[Longs, Ints]:
    """For each flow those that wait for it, as `successors`, in the order of `in_order`."""
    order = in_order(first[flows.after_to], keys[flows.after_to], flows.after_from)
    return successors(
        Flows(
            flows.routes, flows.nbytes, flows.start, flows.after_from[order], flows.after_to[order]
        )
    )


class Core:
    """The state of the compiled kernel, and room for more of it.

    Args:
        links: the network.
        mtu, port_buffer: bytes.
        tick: s.
        pairs: queue pairs to expect.
    """

    def __init__(
        self, links: Links, mtu: float, port_buffer: float, tick: float, *, pairs: int
    ) -> None:
        count = len(links)
        self.tick = tick
        self.next_tick = records.NEVER
        self.links = np.zeros(count, records.LINK)
        self.links["latency"] = np.ceil(links.latency / tick)
        self.links["ticks_per_byte"] = 1.0 / (links.capacity * tick)
        self.links["room"] = int(port_buffer)
        self.links["starved_at"] = -1
        for name in ("head", "ask_head", "pair_head", "credit_head", "end_head"):
            self.links[name] = -1
        self.clock = np.zeros(1, records.CLOCK)
        self.clock["tick"], self.clock["mtu"], self.clock["buffer"] = tick, mtu, int(port_buffer)
        self.clock["free_slot"] = self.clock["free_pair"] = -1
        self.state = records.no_messages()._replace(
            links=self.links,
            slots=np.empty(FIRST_SLOTS, records.SLOT),
            buckets=np.full(1 << min(max(pairs.bit_length(), 4), MOST_BUCKETS), -1, np.int32),
            clock=self.clock,
        )

    @property
    def state(self) -> records.State:
        """The arrays, of which some are replaced when there are more messages."""
        return self._state

    @state.setter
    def state(self, state: records.State) -> None:
        self._state = state
        self._words = words(state)

    def load(self, flows: Flows, pair: NDArray[np.integer] | None) -> None:
        """All messages of a run, in the arrays of the caller."""
        routes = padded(flows.routes)
        first, last = route_ends(routes)
        keys = last if pair is None else np.asarray(pair, np.int64)
        messages = np.zeros(len(flows), records.MESSAGE)
        messages["left"], messages["pair"] = flows.nbytes, keys
        offsets, following = self.state.offsets, self.state.following
        if len(flows.after_to):
            messages["waiting"] = np.bincount(flows.after_to, minlength=len(flows))
            offsets, following = _following(first, keys, flows)
            free = np.flatnonzero(messages["waiting"] == 0)
            posts = free[in_order(first[free], keys[free], flows.start[free])]
        else:
            posts = in_order(first, keys, flows.start)
        self.state = self.state._replace(
            messages=messages,
            nbytes=flows.nbytes,
            routes=routes,
            start=flows.start,
            posts=posts.astype(np.int32),
            offsets=offsets,
            following=following,
            finish=np.empty(len(flows)),
        )
        self.grow(len(flows))

    def grow(self, count: int) -> None:
        """Make room for the queue pairs and events of ``count`` messages."""
        pairs, queue = self.state.pairs, self.state.queue
        self.state = self.state._replace(
            pairs=longer(pairs, count), queue=longer(queue, 3 * len(self.links) + count)
        )

    def advance(self, horizon: int) -> int:
        """One slice of the run up to tick ``horizon``; returns why it ended."""
        while True:
            self.next_tick = int(kernel.advance(self._words.ctypes.data, horizon, EVENTS_PER_SLICE))
            status = int(self.clock["status"][0])
            if status != records.FULL:
                return status
            self.state = self.state._replace(
                slots=longer(self.state.slots, 2 * len(self.state.slots))
            )

    def statistics(self) -> PacketStatistics:
        """Of every link, since the beginning."""
        links = self.links
        return PacketStatistics(
            links["nbytes"].copy(),
            links["packets"].copy(),
            links["busy"] * self.tick,
            links["starved"] * self.tick,
            links["peak"].copy(),
        )


def longer(array: NDArray[Any], count: int) -> NDArray[Any]:
    """``array`` with ``count`` entries, new ones as they come."""
    if len(array) >= count:
        return array
    out = np.empty(count, array.dtype)
    out[: len(array)] = array
    return out

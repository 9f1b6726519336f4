"""The packet network: lossless InfiniBand with static routes, packet by packet. Congestion trees
and head-of-line blocking included. `PacketNetwork` runs beside a clock of the caller's, `run`
answers for explicit flows; both keep the arrays of the compiled kernel in a `Core`.

The laws are in the docstring of `Packet`. ``packet_kernel.py`` says how they are computed, and is
where to begin; ``deadlock.py`` refuses routes on which buffers could lock up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf, log2, nextafter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.errors import SimulationError
from simshuffle.fabric.network import packet_kernel as kernel
from simshuffle.fabric.network import packet_records as records
from simshuffle.fabric.network.batch import as_floats
from simshuffle.fabric.network.deadlock import ChannelDependencies
from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links, successors
from simshuffle.fabric.network.packet_records import LONGEST, TICK
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
from simshuffle.spec.compiling import words

EVENTS_PER_SLICE = 3_000_000  # about half a second of compiled code, between two looks at Ctrl-C
FIRST_SLOTS = 1 << 12
MOST_BUCKETS = 22  # of a hash table, as a power of two


@dataclass(frozen=True)
class PacketStatistics:
    """What happened on each link since the beginning."""

    nbytes: Floats  # (links,) bytes sent
    packets: Ints64  # (links,) int64 packets sent
    # (links,) s that it was held by packets; longer than bytes / capacity where packets come in
    # from a slower link
    busy: Floats
    blocked: Floats  # (links,) s that it was idle although a packet was there, for lack of credits
    # (links,) int64, the most bytes reserved in its input buffer, as its sender sees it: on their
    # way there, in it, or gone while the credit is on its way back
    peak_buffer: Ints64


def check_routes(links: Links, routes: Ints32) -> None:
    """Raises a ValueError if a route has a link that does not exist."""
    if routes.size and (routes.max() >= len(links) or routes.min() < -1):
        raise ValueError(
            f"routes must be made of links 0 to {len(links) - 1}, padded with -1; got"
            f" {routes.min()} to {routes.max()}"
        )


def padded(routes: Ints32) -> Ints32:
    """The routes with one column at least."""
    return routes if routes.shape[1] else np.full((len(routes), 1), -1, np.int32)


def route_ends(routes: Ints32) -> tuple[Ints32, Ints32]:
    """(n,) first and (n,) last link of each route, -1 for a route without links."""
    first = routes[:, 0].copy()
    last = first.copy()
    for hop in routes.T[1:]:
        np.copyto(last, hop, where=hop >= 0)
    return first, last


def in_order(first: Ints32, keys: Ints, major: Floats | Ints64 | Ints32) -> Ints64:
    """Order by ``major``, then by first link, then by key of the queue pair, then by index."""
    order = np.argsort(keys, kind="stable")
    order = order[np.argsort(first[order], kind="stable")]
    if len(major) and major.min() < major.max():
        order = order[np.argsort(major[order], kind="stable")]
    return order


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
        self.state = records.no_messages()
        self.put(
            links=self.links,
            slots=np.empty(FIRST_SLOTS, records.SLOT),
            buckets=np.full(1 << min(max(pairs.bit_length(), 4), MOST_BUCKETS), -1, np.int32),
            clock=self.clock,
        )

    def put(self, **arrays: Any) -> None:
        """Replace some of the arrays, when there are more messages."""
        self.state = self.state._replace(**arrays)
        self._words = words(self.state)

    def load(self, flows: Flows, pair: Ints | None) -> None:
        """All messages of a run, in the arrays of the caller."""
        routes = padded(flows.routes)
        first, last = route_ends(routes)
        keys = last if pair is None else np.asarray(pair, np.int64)
        messages = np.zeros(len(flows), records.MESSAGE)
        messages["left"], messages["pair"] = flows.nbytes, keys
        offsets, following = self.state.offsets, self.state.following
        if len(flows.after_to):
            messages["waiting"] = np.bincount(flows.after_to, minlength=len(flows))
            # for each flow those that wait for it, in order
            order = in_order(first[flows.after_to], keys[flows.after_to], flows.after_from)
            before, after = flows.after_from[order], flows.after_to[order]
            offsets, following = successors(replace(flows, after_from=before, after_to=after))
            free = np.flatnonzero(messages["waiting"] == 0)
            posts = free[in_order(first[free], keys[free], flows.start[free])]
        else:
            posts = in_order(first, keys, flows.start)
        self.put(
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
        queue = longer(self.state.queue, 3 * len(self.links) + count)
        self.put(pairs=longer(self.state.pairs, count), queue=queue)

    def advance(self, horizon: int) -> int:
        """One slice of the run up to tick ``horizon``; returns why it ended."""
        while True:
            self.next_tick = int(kernel.advance(self._words.ctypes.data, horizon, EVENTS_PER_SLICE))
            status = int(self.clock["status"][0])
            if status != records.FULL:
                return status
            self.put(slots=longer(self.state.slots, 2 * len(self.state.slots)))

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


# queue pairs with data at a time for which the hash table of a `PacketNetwork` is made; more only
# make it slower
PAIRS = 1 << 16


class PacketNetwork:
    """The packet network beside a clock of the caller's: post messages at any time, ask which have
    ended.

    Args:
        links: the network.
        mtu: bytes of a packet.
        port_buffer: bytes of an input buffer.

    Raises:
        ValueError: a link on which a packet takes longer than the clock can count (36 hours).
    """

    def __init__(self, links: Links, *, mtu: float, port_buffer: float) -> None:
        slowest = float((mtu / links.capacity + links.latency).max(initial=0.0))
        if slowest >= TICK * LONGEST:
            raise ValueError(
                f"a packet must take less than {TICK * LONGEST} s on every link; got {slowest} s"
            )
        self._core = Core(links, mtu, port_buffer, TICK, pairs=PAIRS)
        self._links = links
        self._dependencies = ChannelDependencies(links)
        self._first = np.empty(0, np.int32)
        self._free = np.empty(0, np.int32)  # a stack
        self._n_free = 0
        self._injected: list[Ints32] = []  # and not yet in order
        self._grow(256, 1)

    @property
    def now(self) -> float:
        """Simulated time reached (s)."""
        return float(self._core.clock["now"][0]) * TICK

    @property
    def alive(self) -> int:
        """Messages whose end has not been reported."""
        return len(self._free) - self._n_free

    def inject(
        self, now: float, routes: Ints32, nbytes: ArrayLike, pair: Ints | None = None
    ) -> Ints32:
        """Post messages; all events before ``now`` must have been run by `advance`.

        Args:
            now: s.
            routes: (n, hops) links, padded with -1 at the end.
            nbytes: (n,) bytes.
            pair: (n,) keys of the queue pairs among those with the same first link; None for the
                last link of each route.

        Returns:
            (n,) int32 handles, good until `advance` has reported the end of the message.

        Raises:
            TopologyError: the routes so far have links that wait for each other in a circle.
            ValueError: arguments that do not fit, or a time before the one reached or beyond the
                range of the clock (36 hours).
        """
        routes = np.ascontiguousarray(routes, np.int32)
        sizes = as_floats(nbytes)
        if routes.ndim != 2 or sizes.shape != (len(routes),):
            raise ValueError(f"routes {routes.shape} and nbytes {sizes.shape} do not fit together")
        if not np.all(np.isfinite(sizes) & (sizes >= 0)):
            raise ValueError("nbytes must be finite and at least 0")
        if not nextafter(self.now, 0.0) <= now < TICK * LONGEST:
            raise ValueError(
                f"messages can be posted from {self.now} s, the time reached, to {TICK * LONGEST}"
                f" s; got {now}"
            )
        check_routes(self._links, routes)
        routes = padded(routes)
        self._dependencies.refuse_circles(routes)
        width = routes.shape[1]
        if len(routes) > self._n_free or width > self._core.state.routes.shape[1]:
            self._grow(self.alive + len(routes), width)
        self._n_free -= len(routes)
        handles = self._free[self._n_free : self._n_free + len(routes)][::-1].copy()
        first, last = route_ends(routes)
        state = self._core.state
        state.routes[handles, :width] = routes
        state.routes[handles, width:] = -1
        state.nbytes[handles] = sizes
        state.start[handles] = now
        state.messages["left"][handles] = sizes
        state.messages["pair"][handles] = last if pair is None else pair
        self._first[handles] = first
        self._injected.append(handles)
        return handles

    def advance(self, horizon: float) -> tuple[float, list[tuple[int, float]]]:
        """Run events up to ``horizon`` (s), stopping after the first instant at which some message
        ends.

        Returns the time of the next event (s, inf if there is none), and the messages that ended:
        handle and time (s).
        """
        core = self._core
        core.clock["n_done"] = 0
        self._put_in_order()
        last = (
            records.NEVER - 1 if horizon >= TICK * LONGEST else int(nextafter(horizon, inf) / TICK)
        )
        while core.advance(last) == records.PAUSED:
            pass
        ended = core.state.done[: core.clock["n_done"][0]]
        self._free[self._n_free : self._n_free + len(ended)] = ended
        self._n_free += len(ended)
        upcoming = inf if core.next_tick == records.NEVER else core.next_tick * TICK
        return upcoming, list(zip(ended.tolist(), core.state.finish[ended].tolist(), strict=True))

    def statistics(self) -> PacketStatistics:
        """Of every link, since the beginning."""
        return self._core.statistics()

    def _put_in_order(self) -> None:
        """Merge the messages injected since the last call into those to be posted: by time, and as
        in `in_order`."""
        if not self._injected:
            return
        core, state = self._core, self._core.state
        posts = np.concatenate([state.posts[core.clock["n_posted"][0] :], *self._injected])
        self._injected.clear()
        keys = state.messages["pair"][posts]
        core.put(posts=posts[in_order(self._first[posts], keys, state.start[posts])])
        core.clock["n_posted"] = 0

    def _grow(self, least: int, width: int) -> None:
        state = self._core.state
        old = len(state.nbytes)
        count = max(2 * old, least) if least > old else old
        routes = np.full((count, max(width, state.routes.shape[1])), -1, np.int32)
        routes[:old, : state.routes.shape[1]] = state.routes
        names = "messages", "nbytes", "start", "finish"
        arrays = {name: longer(getattr(state, name), count) for name in names}
        self._core.put(routes=routes, done=np.empty(count, np.int32), **arrays)
        self._core.grow(count)
        self._first = longer(self._first, count)
        self._free = longer(self._free, count)
        self._free[self._n_free : self._n_free + count - old] = np.arange(count - 1, old - 1, -1)
        self._n_free += count - old


@dataclass(frozen=True)
class PacketRun:
    """A finished run."""

    outcome: FlowOutcome  # when the flows ended
    statistics: PacketStatistics  # of every link
    events: int  # how many events it took


def run(
    links: Links,
    flows: Flows,
    mtu: float,
    port_buffer: float,
    *,
    pair: Ints | None = None,
    progress: Callable[[float], None] | None = None,
) -> PacketRun:
    """Run ``flows`` to their end; raises what `Packet.finish_times` does.

    Args:
        links, flows: the network, and what it carries.
        mtu, port_buffer: bytes.
        pair: (flows,) keys of the queue pairs among those with the same first link; None for the
            last link of each route.
        progress: called with the share of the bytes that has been delivered, every few million
            events.
    """
    check_routes(links, flows.routes)
    ChannelDependencies(links).refuse_circles(flows.routes)
    core = Core(links, mtu, port_buffer, _tick_for(links, flows, mtu), pairs=len(flows))
    core.load(flows, pair)
    total = float(flows.nbytes.sum())
    while core.advance(records.NEVER - 1) == records.PAUSED:
        if progress is not None:
            progress(float(core.clock["delivered"][0]) / total if total > 0 else 1.0)
    stuck = len(flows) - int(core.clock["n_ended"][0])
    if stuck:
        raise SimulationError(f"{stuck} flows wait for each other in a circle and never start")
    if progress is not None:
        progress(1.0)
    finish = core.state.finish
    return PacketRun(
        FlowOutcome(finish, float(finish.max(initial=0.0))),
        core.statistics(),
        int(core.clock["n_events"][0]),
    )


def _tick_for(links: Links, flows: Flows, mtu: float) -> float:
    """`TICK`, or a power of two so much longer that the clock holds the run.

    Nothing takes longer than one packet at a time over one link at a time, with a round trip for
    each.
    """
    per_byte = np.append(1.0 / links.capacity, 0.0)
    delay = np.append(links.latency, 0.0)
    packets = flows.nbytes / mtu + 2
    bound = float(flows.posted.max(initial=0.0))
    for hop in flows.routes.T:
        bound += float(flows.nbytes @ per_byte[hop] + 2 * packets @ delay[hop])
    return TICK * 2.0 ** max(0, ceil(log2(max(bound, TICK) / (TICK * LONGEST))))

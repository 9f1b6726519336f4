"""The packet network: lossless InfiniBand with static routes, packet by packet.
Congestion trees and head-of-line blocking included. `PacketNetwork` runs beside a clock
of the caller's, `packet_run.run` answers for explicit flows; both keep the arrays of
the compiled kernel in a `PacketCore`.

The laws are in the docstring of `Packet`. ``packet_kernel.py`` says how they are
computed, and is where to begin; ``deadlock.py`` refuses routes on which buffers could
lock up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, nextafter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.fabric.network import packet_kernel as kernel
from simshuffle.fabric.network import packet_records as records
from simshuffle.fabric.network.batch import as_floats
from simshuffle.fabric.network.deadlock import ChannelDependencies
from simshuffle.fabric.network.flows import Flows, Links, successors
from simshuffle.fabric.network.packet_records import MAX_TICKS, TICK
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
from simshuffle.spec.compiling import words

EVENTS_PER_SLICE = (
    3_000_000  # about half a second of compiled code, between two looks at Ctrl-C
)
FIRST_SLOTS = 1 << 12
MAX_BUCKET_BITS = 22  # of a hash table, as a power of two


@dataclass(frozen=True)
class PacketStatistics:
    """The traffic of each link since the beginning of a run.

    A packet counts in full from its start on a link on.
    """

    nbytes: Floats  # (links,) bytes sent
    packets: Ints64  # (links,) int64 packets sent
    # (links,) s that it was held by packets; longer than bytes / capacity where packets come in
    # from a slower link
    busy: Floats
    # (links,) s that it was idle although a packet was there, for lack of credits; a wait that goes
    # on is not yet in it
    blocked: Floats
    # (links,) int64, the most bytes reserved in its input buffer, as its sender sees it: on their
    # way there, in it, or gone while the credit is on its way back
    peak_buffer: Ints64


def check_routes(links: Links, routes: Ints32) -> None:
    """Raise a ValueError if a route has a link that does not exist."""
    if routes.size and (routes.max() >= len(links) or routes.min() < -1):
        raise ValueError(
            f"routes must be made of links 0 to {len(links) - 1}, padded with -1; got"
            f" {routes.min()} to {routes.max()}"
        )


def ensure_one_hop(routes: Ints32) -> Ints32:
    """Return the routes with at least one column: as they are, or one column of -1."""
    return routes if routes.shape[1] else np.full((len(routes), 1), -1, np.int32)


def route_ends(routes: Ints32) -> tuple[Ints32, Ints32]:
    """(n,) first and (n,) last link of each route, -1 for a route without links; routes
    must have at least one column.
    """
    first = routes[:, 0].copy()
    last = first.copy()
    for hop in routes.T[1:]:
        np.copyto(last, hop, where=hop >= 0)
    return first, last


def order_messages(
    first: Ints32, keys: Ints, major: Floats | Ints64 | Ints32
) -> Ints64:
    """(n,) indices of messages ordered by ``major``, then by first link, then by key of
    the queue pair, then by index.

    Args:
        first: (n,) first link of each message.
        keys: (n,) key of its queue pair.
        major: (n,) time or index that comes first.
    """
    order = np.argsort(keys, kind="stable")
    order = order[np.argsort(first[order], kind="stable")]
    if len(major) and major.min() < major.max():
        order = order[np.argsort(major[order], kind="stable")]
    return order


class PacketCore:
    """The arrays of the compiled kernel; they are made longer when they are full.

    Args:
        links: the network.
        mtu, port_buffer: bytes; of ``port_buffer`` whole bytes count.
        tick: s. Latencies are rounded up to whole ticks.
        pairs: queue pairs to expect; more only make it slower.

    Attributes:
        links: (links,) records of dtype `packet_records.LINK`.
        clock: (1,) record of dtype `packet_records.CLOCK`.
        next_tick: tick of the next event after `advance`, NEVER if there is none.
        state: the `PacketState` of all arrays.
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
        self.clock["tick"], self.clock["mtu"], self.clock["buffer"] = (
            tick,
            mtu,
            int(port_buffer),
        )
        self.clock["free_slot"] = self.clock["free_pair"] = -1
        self.state = records.empty_packet_state()
        self.replace_arrays(
            links=self.links,
            slots=np.empty(FIRST_SLOTS, records.SLOT),
            buckets=np.full(
                1 << min(max(pairs.bit_length(), 4), MAX_BUCKET_BITS), -1, np.int32
            ),
            clock=self.clock,
        )

    def replace_arrays(self, **arrays: Any) -> None:
        """Replace arrays of `state`, by name, and tell compiled code where they are."""
        self.state = self.state._replace(**arrays)
        self._words = words(self.state)

    def load_run(self, flows: Flows, pair: Ints | None) -> None:
        """Load all messages of a run, in the arrays of the caller.

        Flows that wait for others are posted when these have ended, the rest at their
        ``start``. Routes are not checked.

        Args:
            flows: the messages.
            pair: (flows,) keys of the queue pairs among those with the same first link;
                None for the last link of each route.
        """
        routes = ensure_one_hop(flows.routes)
        first, last = route_ends(routes)
        keys = last if pair is None else np.asarray(pair, np.int64)
        messages = np.zeros(len(flows), records.MESSAGE)
        messages["left"], messages["pair"] = flows.nbytes, keys
        offsets = self.state.offsets
        following = self.state.following
        if len(flows.after_to):
            messages["waiting"] = np.bincount(flows.after_to, minlength=len(flows))
            # for each flow those that wait for it, in order
            order = order_messages(
                first[flows.after_to], keys[flows.after_to], flows.after_from
            )
            edge_from = flows.after_from[order]
            edge_to = flows.after_to[order]
            offsets, following = successors(
                replace(flows, after_from=edge_from, after_to=edge_to)
            )
            independent_messages = np.flatnonzero(messages["waiting"] == 0)
            posts = independent_messages[
                order_messages(
                    first[independent_messages],
                    keys[independent_messages],
                    flows.start[independent_messages],
                )
            ]
        else:
            posts = order_messages(first, keys, flows.start)
        self.replace_arrays(
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
        """Make room for the queue pairs and events of ``count`` messages; never less
        than there was.
        """
        queue = enlarge(self.state.queue, 3 * len(self.links) + count)
        self.replace_arrays(pairs=enlarge(self.state.pairs, count), queue=queue)

    def advance(self, horizon: int) -> int:
        """Run one slice of events up to tick ``horizon``; return the reason why it
        ended: DONE (no event up to the horizon), ENDED (messages did and are listed) or
        PAUSED (after `EVENTS_PER_SLICE` events).

        ``next_tick`` is then the tick of the next event, NEVER if there is none.
        """
        while True:
            self.next_tick = int(
                kernel.advance(self._words.ctypes.data, horizon, EVENTS_PER_SLICE)
            )
            status = int(self.clock["status"][0])
            if status != records.FULL:
                return status
            self.replace_arrays(
                slots=enlarge(self.state.slots, 2 * len(self.state.slots))
            )

    def statistics(self) -> PacketStatistics:
        """Return the statistics of every link since the beginning, as copies."""
        links = self.links
        return PacketStatistics(
            links["nbytes"].copy(),
            links["packets"].copy(),
            links["busy"] * self.tick,
            links["starved"] * self.tick,
            links["peak"].copy(),
        )


def enlarge(array: NDArray[Any], count: int) -> NDArray[Any]:
    """Return ``array`` itself if it has ``count`` entries or more, else a copy with
    ``count`` entries, the new ones uninitialised.
    """
    if len(array) >= count:
        return array
    enlarged = np.empty(count, array.dtype)
    enlarged[: len(array)] = array
    return enlarged


# queue pairs with data at a time for which the hash table of a `PacketNetwork` is made; more only
# make it slower
EXPECTED_PAIRS = 1 << 16


class PacketNetwork:
    """The packet network beside a clock of the caller's: post messages at any time, ask
    which have ended.

    Args:
        links: the network.
        mtu: bytes of a packet.
        port_buffer: bytes of an input buffer.

    Raises:
        ValueError: a link on which a packet takes longer than the clock can count (36
            hours).
    """

    def __init__(self, links: Links, *, mtu: float, port_buffer: float) -> None:
        slowest = float((mtu / links.capacity + links.latency).max(initial=0.0))
        if slowest >= TICK * MAX_TICKS:
            raise ValueError(
                f"a packet must take less than {TICK * MAX_TICKS} s on every link; got {slowest} s"
            )
        self._core = PacketCore(links, mtu, port_buffer, TICK, pairs=EXPECTED_PAIRS)
        self._links = links
        self._dependencies = ChannelDependencies(links)
        self._first_link = np.empty(0, np.int32)
        self._free_handles = np.empty(0, np.int32)  # a stack
        self._num_free = 0
        self._injected: list[Ints32] = []  # and not yet in order
        self._grow(256, 1)

    @property
    def now(self) -> float:
        """Simulated time reached (s)."""
        return float(self._core.clock["now"][0]) * TICK

    @property
    def alive(self) -> int:
        """Messages whose end has not been reported."""
        return len(self._free_handles) - self._num_free

    def inject(
        self, now: float, routes: Ints32, nbytes: ArrayLike, pair: Ints | None = None
    ) -> Ints32:
        """Post messages; all events before ``now`` must have been run by `advance`.

        Args:
            now: s.
            routes: (n, hops) links, padded with -1 at the end.
            nbytes: (n,) bytes.
            pair: (n,) keys of the queue pairs among those with the same first link;
                None for the last link of each route.

        Returns:
            (n,) int32 handles, good until `advance` has reported the end of the
            message.

        Raises:
            TopologyError: the routes so far, those of messages that ended included,
                have links that wait for each other in a circle.
            ValueError: arguments that do not fit, a link that does not exist, or a time
                before the one reached or beyond the range of the clock (36 hours).
        """
        routes = np.ascontiguousarray(routes, np.int32)
        sizes = as_floats(nbytes)
        if routes.ndim != 2 or sizes.shape != (len(routes),):
            raise ValueError(
                f"routes {routes.shape} and nbytes {sizes.shape} do not fit together"
            )
        if not np.all(np.isfinite(sizes) & (sizes >= 0)):
            raise ValueError("nbytes must be finite and at least 0")
        if not nextafter(self.now, 0.0) <= now < TICK * MAX_TICKS:
            raise ValueError(
                f"messages can be posted from {self.now} s, the time reached, to {TICK * MAX_TICKS}"
                f" s; got {now}"
            )
        check_routes(self._links, routes)
        routes = ensure_one_hop(routes)
        self._dependencies.refuse_circles(routes)
        width = routes.shape[1]
        if len(routes) > self._num_free or width > self._core.state.routes.shape[1]:
            self._grow(self.alive + len(routes), width)
        self._num_free -= len(routes)
        # from the top of the stack down
        handles = self._free_handles[self._num_free : self._num_free + len(routes)][
            ::-1
        ].copy()
        first_link, last_link = route_ends(routes)
        state = self._core.state
        state.routes[handles, :width] = routes
        state.routes[handles, width:] = -1
        state.nbytes[handles] = sizes
        state.start[handles] = now
        state.messages["left"][handles] = sizes
        state.messages["pair"][handles] = last_link if pair is None else pair
        self._first_link[handles] = first_link
        self._injected.append(handles)
        return handles

    def advance(self, horizon: float) -> tuple[float, list[tuple[int, float]]]:
        """Run events up to ``horizon`` (s), stopping after the first instant at which
        some message ends.

        Returns:
            The time of the next event (s, inf if there is none), and the messages that
            ended, in the order in which they did: handle and time (s). Their handles
            may be given to other messages from now on.
        """
        core = self._core
        core.clock["n_done"] = 0
        self._merge_injections()
        last_tick = (
            records.NEVER - 1
            if horizon >= TICK * MAX_TICKS
            else int(nextafter(horizon, inf) / TICK)
        )
        while core.advance(last_tick) == records.PAUSED:
            pass
        ended = core.state.ended_messages[: core.clock["n_done"][0]]
        self._free_handles[self._num_free : self._num_free + len(ended)] = ended
        self._num_free += len(ended)
        next_event = inf if core.next_tick == records.NEVER else core.next_tick * TICK
        return next_event, list(
            zip(ended.tolist(), core.state.finish[ended].tolist(), strict=True)
        )

    def statistics(self) -> PacketStatistics:
        """Return the statistics of every link since the beginning."""
        return self._core.statistics()

    def _merge_injections(self) -> None:
        """Merge the messages injected since the last call into the list of posts to
        come: by time, then by first link, queue pair and order of injection.
        """
        if not self._injected:
            return
        core = self._core
        state = self._core.state
        posts = np.concatenate(
            [state.posts[core.clock["n_posted"][0] :], *self._injected]
        )
        self._injected.clear()
        keys = state.messages["pair"][posts]
        core.replace_arrays(
            posts=posts[
                order_messages(self._first_link[posts], keys, state.start[posts])
            ]
        )
        core.clock["n_posted"] = 0

    def _grow(self, min_messages: int, width: int) -> None:
        """Make room for at least ``min_messages`` messages with routes of ``width``
        links.
        """
        state = self._core.state
        old_count = len(state.nbytes)
        count = (
            max(2 * old_count, min_messages) if min_messages > old_count else old_count
        )
        routes = np.full((count, max(width, state.routes.shape[1])), -1, np.int32)
        routes[:old_count, : state.routes.shape[1]] = state.routes
        names = "messages", "nbytes", "start", "finish"
        arrays = {name: enlarge(getattr(state, name), count) for name in names}
        self._core.replace_arrays(
            routes=routes, ended_messages=np.empty(count, np.int32), **arrays
        )
        self._core.grow(count)
        self._first_link = enlarge(self._first_link, count)
        self._free_handles = enlarge(self._free_handles, count)
        self._free_handles[self._num_free : self._num_free + count - old_count] = (
            np.arange(count - 1, old_count - 1, -1)
        )
        self._num_free += count - old_count

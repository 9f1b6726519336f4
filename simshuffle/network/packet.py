"""The packet-level network: lossless InfiniBand with static routes, packet by packet. Congestion
trees and head-of-line blocking included.

`Packet` answers for explicit flows; `PacketNetwork` runs beside a clock of the caller's. The laws
are in the docstring of `Packet`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, isfinite, log2, nextafter
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator

from simshuffle.errors import SimulationError
from simshuffle.network import packet_kernel as kernel
from simshuffle.network.batch import as_floats
from simshuffle.network.deadlock import ChannelDependencies
from simshuffle.network.flows import Floats, Flows, Ints, Links, Outcome
from simshuffle.network.order import successors
from simshuffle.spec.record import PositiveNBytes, Spec

Longs = NDArray[np.int64]

TICK = 2.0**-44
"""Resolution of simulated time (s): 57 fs, 2e-7 of a packet of 4 KiB at 12.5 GB/s. Times are
rounded up to it."""
LONGEST = 2**61
"""Ticks that a clock can count."""
EVENTS_PER_SLICE = 3_000_000  # about half a second of compiled code, between two looks at Ctrl-C
FIRST_SLOTS = 1 << 12
# queue pairs with data at a time for which the hash table of a `PacketNetwork` is made; more only
# make it slower
PAIRS = 1 << 16
MOST_BUCKETS = 22  # of a hash table, as a power of two


@dataclass(frozen=True)
class PacketStatistics:
    """What happened on each link since the beginning.

    Attributes:
        nbytes: (links,) bytes sent.
        packets: (links,) int64 packets sent.
        busy: (links,) s that it was held by packets; longer than bytes / capacity where packets
            come in from a slower link.
        blocked: (links,) s that it was idle although a packet was there, for lack of credits.
        peak_buffer: (links,) int64, the most bytes reserved in its input buffer, as its sender sees
            it: on their way there, in it, or gone while the credit is on its way back.
    """

    nbytes: Floats
    packets: Longs
    busy: Floats
    blocked: Floats
    peak_buffer: Longs


@dataclass(frozen=True)
class PacketRun:
    """A finished run.

    Attributes:
        outcome: when the flows ended.
        statistics: of every link.
        events: how many events it took.
    """

    outcome: Outcome
    statistics: PacketStatistics
    events: int


def _check_sizes(mtu: float, port_buffer: float) -> None:
    if not (isfinite(mtu) and mtu > 0 and isfinite(port_buffer)):
        raise ValueError(
            f"mtu and port_buffer must be finite and greater than 0; got {mtu} and {port_buffer} B"
        )
    if int(port_buffer) < ceil(mtu):
        raise ValueError(
            f"port_buffer must hold at least one packet of mtu = {mtu:g} B; got {port_buffer:g} B."
            " Raise port_buffer."
        )


class Packet(Spec):
    """Lossless InfiniBand, packet by packet.

    A directed link is the output port of its tail and the input buffer of its head. Its laws:

    - A message is cut into packets of ``mtu`` bytes; the last one carries the rest. Headers are
      ignored: capacities are data rates.
    - A packet starts on a link when the link is idle and its tail has credits for the whole packet:
      bytes (rounded up to whole ones) that are free in the buffer of ``port_buffer`` bytes at the
      head. The credit is given back when the tail of the packet has left that buffer, and needs the
      link's latency to get back. So a link moves at most ``floor(port_buffer / mtu)`` packets in
      ``mtu / capacity + 2 * latency`` where the packets go on at once. The last link of a route
      ends in a host that takes all at once.
    - There is one virtual lane. An input buffer is a FIFO that is read by one output at a time:
      only the packet at its head can ask for its next link, and the one behind it can ask when the
      tail of the first has left (head-of-line blocking; input FIFOs alone limit random traffic to 2
      - sqrt(2) of capacity: Karol, Hluchyj & Morgan, IEEE Transactions on Communications COM-35,
      1987).
    - A link serves the inputs that ask for it in turn, one packet each; an input that begins to ask
      takes its place behind those that ask already (round-robin by an active list). The packet
      whose turn it is waits for its credits, and so do all behind it.
    - At a source, messages with one first link and one last link form a queue pair: they go one
      after the other in order of posting. The sender takes the queue pairs that have data in turn,
      a packet each, and counts as one input of the link.
    - Virtual cut-through (Kermani & Kleinrock, Computer Networks 3, 1979): a packet can go on when
      its header has arrived (start + latency). From a slow to a fast link the output is held until
      the tail has come in: ``max(start + nbytes / capacity, arrival of the tail)``.
    - A message without bytes ends after the latencies of its route, past all queues. A flow without
      links ends as soon as it is posted.

    A message alone ends exactly at ``start + sum of latencies + nbytes / smallest capacity``, if no
    buffer is shorter than the round trip. For its k-th packet let B(k) be the bytes up to it, M(j)
    the smallest capacity of the first j links, and let times on link j be counted without the
    latencies before it. It starts on link j when its header is there, at ``B(k-1) / M(j-1)``, and
    the packet before it is gone, at ``B(k-1) / M(j)``: the latter, since M(j) <= M(j-1). It ends at
    ``max(B(k-1) / M(j) + b(k) / C(j), B(k) / M(j-1))``, which is ``B(k) / M(j)`` for C(j) <=
    M(j-1), the first term, and for C(j) > M(j-1) = M(j), the second. So there is no term of
    pipeline filling.

    Simultaneous events are handled in the order posts, ends of messages, headers, links that fall
    free; within a kind by number of the link, posts by first link, queue pair, and last by index of
    the flow.

    Not modelled: adaptive routes, congestion control (rates that senders lower when told so),
    several virtual lanes, lost packets.

    ``mtu``: 4096 B is the largest that the InfiniBand architecture has. ``port_buffer``: 64 KiB for
    the one virtual lane of a port is an estimate.
    """

    kind: Literal["packet"] = "packet"
    mtu: PositiveNBytes = 4096.0
    port_buffer: PositiveNBytes = 65536.0

    @model_validator(mode="after")
    def _buffer_holds_a_packet(self) -> Packet:
        _check_sizes(self.mtu, self.port_buffer)
        return self

    @property
    def serial_pairs(self) -> bool:
        """Whether the messages of one (src, dst) pair go one after the other: always, as on one
        queue pair."""
        return True

    def finish_times(
        self, links: Links, flows: Flows, progress: Callable[[float], None] | None = None
    ) -> Outcome:
        """When ``flows`` end; `run` tells more.

        Returns:
            finish: (flows,) s; makespan: s; error_bound: None.

        Raises:
            TopologyError: links wait for each other in a circle, so that the network could
                deadlock.
            SimulationError: flows wait for each other in a circle.
            ValueError: a route has a link that does not exist.
        """
        return self.run(links, flows, progress=progress).outcome

    def run(
        self,
        links: Links,
        flows: Flows,
        *,
        pair: NDArray[np.integer] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> PacketRun:
        """Run ``flows`` to their end.

        Args:
            links: the network.
            flows: what it carries.
            pair: (flows,) keys of the queue pairs among those with the same first link; None for
                the last link of each route.
            progress: called with the share of the bytes that has been delivered, every few million
                events.

        Returns:
            The ends, and the statistics of the links.

        Raises:
            TopologyError, SimulationError, ValueError: as `finish_times`.
        """
        _check_routes(links, flows.routes)
        ChannelDependencies(links).refuse_circles(flows.routes)
        core = _Core(
            links, self.mtu, self.port_buffer, _tick_for(links, flows, self.mtu), pairs=len(flows)
        )
        core.load(flows, pair)
        total = float(flows.nbytes.sum())
        while core.advance(kernel.NEVER - 1) == kernel.PAUSED:
            if progress is not None:
                progress(float(core.clock["delivered"][0]) / total if total > 0 else 1.0)
        stuck = len(flows) - int(core.clock["n_ended"][0])
        if stuck:
            raise SimulationError(f"{stuck} flows wait for each other in a circle and never start")
        if progress is not None:
            progress(1.0)
        finish = core.state.finish
        return PacketRun(
            Outcome(finish, float(finish.max(initial=0.0))),
            core.statistics(),
            int(core.clock["n_events"][0]),
        )


def _check_routes(links: Links, routes: Ints) -> None:
    if routes.size and (routes.max() >= len(links) or routes.min() < -1):
        raise ValueError(
            f"routes must be made of links 0 to {len(links) - 1}, padded with -1; got"
            f" {routes.min()} to {routes.max()}"
        )


def _padded(routes: Ints) -> Ints:
    """The routes with one column at least."""
    return routes if routes.shape[1] else np.full((len(routes), 1), -1, np.int32)


def _ends(routes: Ints) -> tuple[Ints, Ints]:
    """(n,) first and (n,) last link of each route, -1 for a route without links."""
    first = routes[:, 0].copy()
    last = first.copy()
    for hop in routes.T[1:]:
        np.copyto(last, hop, where=hop >= 0)
    return first, last


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


def _in_order(first: Ints, keys: NDArray[np.integer], major: Floats | Longs | Ints) -> Longs:
    """Order by ``major``, then by first link, then by key of the queue pair, then by index."""
    order = np.argsort(keys, kind="stable")
    order = order[np.argsort(first[order], kind="stable")]
    if len(major) and major.min() < major.max():
        order = order[np.argsort(major[order], kind="stable")]
    return order


def _following(first: Ints, keys: NDArray[np.integer], flows: Flows) -> tuple[Longs, Ints]:
    """For each flow those that wait for it, as `successors`, in the order of `_in_order`."""
    order = _in_order(first[flows.after_to], keys[flows.after_to], flows.after_from)
    return successors(
        Flows(
            flows.routes, flows.nbytes, flows.start, flows.after_from[order], flows.after_to[order]
        )
    )


class _Core:
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
        self.next_tick = kernel.NEVER
        self.links = np.zeros(count, kernel.LINK)
        self.links["latency"] = np.ceil(links.latency / tick)
        self.links["ticks_per_byte"] = 1.0 / (links.capacity * tick)
        self.links["room"] = int(port_buffer)
        self.links["starved_at"] = -1
        for name in ("head", "ask_head", "pair_head", "credit_head", "end_head"):
            self.links[name] = -1
        self.clock = np.zeros(1, kernel.CLOCK)
        self.clock["tick"], self.clock["mtu"], self.clock["buffer"] = tick, mtu, int(port_buffer)
        self.clock["free_slot"] = self.clock["free_pair"] = -1
        ints = np.empty(0, np.int32)
        self.state = kernel.State(
            links=self.links,
            slots=np.empty(FIRST_SLOTS, kernel.SLOT),
            pairs=np.empty(0, kernel.PAIR),
            buckets=np.full(1 << min(max(pairs.bit_length(), 4), MOST_BUCKETS), -1, np.int32),
            queue=np.empty(0, kernel.EVENT),
            messages=np.empty(0, kernel.MESSAGE),
            nbytes=np.empty(0),
            routes=np.empty((0, 1), np.int32),
            start=np.empty(0),
            posts=ints,
            offsets=np.empty(0, np.int64),
            following=ints,
            finish=np.empty(0),
            done=ints,
            clock=self.clock,
        )

    def load(self, flows: Flows, pair: NDArray[np.integer] | None) -> None:
        """All messages of a run, in the arrays of the caller."""
        routes = _padded(flows.routes)
        first, last = _ends(routes)
        keys = last if pair is None else np.asarray(pair, np.int64)
        messages = np.zeros(len(flows), kernel.MESSAGE)
        messages["left"], messages["pair"] = flows.nbytes, keys
        offsets, following = self.state.offsets, self.state.following
        if len(flows.after_to):
            messages["waiting"] = np.bincount(flows.after_to, minlength=len(flows))
            offsets, following = _following(first, keys, flows)
            free = np.flatnonzero(messages["waiting"] == 0)
            posts = free[_in_order(first[free], keys[free], flows.start[free])]
        else:
            posts = _in_order(first, keys, flows.start)
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
            pairs=_longer(pairs, count), queue=_longer(queue, 3 * len(self.links) + count)
        )

    def advance(self, horizon: int) -> int:
        """One slice of the run up to tick ``horizon``; returns why it ended."""
        while True:
            self.next_tick = int(kernel.advance(self.state, horizon, EVENTS_PER_SLICE))
            status = int(self.clock["status"][0])
            if status != kernel.FULL:
                return status
            self.state = self.state._replace(
                slots=_longer(self.state.slots, 2 * len(self.state.slots))
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


class PacketNetwork:
    """The packet network beside a clock of the caller's: post messages at any time, ask which have
    ended.

    Args:
        links: the network.
        mtu: bytes of a packet.
        port_buffer: bytes of an input buffer.

    Raises:
        ValueError: sizes that are not positive and finite, a buffer that does not hold a packet, or
            a link on which a packet takes longer than the clock can count (36 hours).
    """

    def __init__(self, links: Links, *, mtu: float, port_buffer: float) -> None:
        _check_sizes(mtu, port_buffer)
        slowest = float((mtu / links.capacity + links.latency).max(initial=0.0))
        if slowest >= TICK * LONGEST:
            raise ValueError(
                f"a packet must take less than {TICK * LONGEST} s on every link; got {slowest} s"
            )
        self._core = _Core(links, mtu, port_buffer, TICK, pairs=PAIRS)
        self._links = links
        self._dependencies = ChannelDependencies(links)
        self._first = np.empty(0, np.int32)
        self._free = np.empty(0, np.int32)  # a stack
        self._n_free = 0
        self._injected: list[NDArray[np.int32]] = []  # and not yet in order
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
        self, now: float, routes: Ints, nbytes: ArrayLike, pair: NDArray[np.integer] | None = None
    ) -> NDArray[np.int32]:
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
        _check_routes(self._links, routes)
        routes = _padded(routes)
        self._dependencies.refuse_circles(routes)
        width = routes.shape[1]
        if len(routes) > self._n_free or width > self._core.state.routes.shape[1]:
            self._grow(self.alive + len(routes), width)
        self._n_free -= len(routes)
        handles = self._free[self._n_free : self._n_free + len(routes)][::-1].copy()
        first, last = _ends(routes)
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
            kernel.NEVER - 1 if horizon >= TICK * LONGEST else int(nextafter(horizon, inf) / TICK)
        )
        while core.advance(last) == kernel.PAUSED:
            pass
        ended = core.state.done[: core.clock["n_done"][0]]
        self._free[self._n_free : self._n_free + len(ended)] = ended
        self._n_free += len(ended)
        upcoming = inf if core.next_tick == kernel.NEVER else core.next_tick * TICK
        return upcoming, list(zip(ended.tolist(), core.state.finish[ended].tolist(), strict=True))

    def statistics(self) -> PacketStatistics:
        """Of every link, since the beginning."""
        return self._core.statistics()

    def _put_in_order(self) -> None:
        """Merge the messages injected since the last call into those to be posted: by time, and as
        in `_in_order`."""
        if not self._injected:
            return
        core, state = self._core, self._core.state
        posts = np.concatenate([state.posts[core.clock["n_posted"][0] :], *self._injected])
        self._injected.clear()
        posts = posts[
            _in_order(self._first[posts], state.messages["pair"][posts], state.start[posts])
        ]
        core.state = state._replace(posts=posts)
        core.clock["n_posted"] = 0

    def _grow(self, least: int, width: int) -> None:
        state = self._core.state
        old = len(state.nbytes)
        count = max(2 * old, least) if least > old else old
        routes = np.full((count, max(width, state.routes.shape[1])), -1, np.int32)
        routes[:old, : state.routes.shape[1]] = state.routes
        self._core.state = state._replace(
            messages=_longer(state.messages, count),
            nbytes=_longer(state.nbytes, count),
            routes=routes,
            start=_longer(state.start, count),
            finish=_longer(state.finish, count),
            done=np.empty(count, np.int32),
        )
        self._core.grow(count)
        self._first = _longer(self._first, count)
        self._free = _longer(self._free, count)
        self._free[self._n_free : self._n_free + count - old] = np.arange(count - 1, old - 1, -1)
        self._n_free += count - old


def _longer(array: NDArray[Any], count: int) -> NDArray[Any]:
    """``array`` with ``count`` entries, new ones as they come."""
    if len(array) >= count:
        return array
    out = np.empty(count, array.dtype)
    out[: len(array)] = array
    return out

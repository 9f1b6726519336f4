"""Networks of a run whose cables are not fluid: each link has one model, and all others are shared
as in `FluidNetwork`, on which both stand."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabric.network.batch import NO_PAIR, TransferBatch, tasks
from simshuffle.fabric.network.flows import Links
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.packet import PacketNetwork
from simshuffle.fabric.network.packet_records import LONGEST, TICK
from simshuffle.spec.arrays import Flags, Ints32

BOUNDLESS = 1e300
"""A capacity that never binds, and is finite so that shares of it can be told."""
OWN_PAIR = -(1 << 62)
"""Key of the queue pair of a transfer that shares none with others, plus its number in the order of
posting: below the keys of all pairs."""
PARTS = 16
"""Most parts in which a transfer with a rate limit is sent over cables, evenly spread over the time
that the limit makes it take."""


class AnalyticNetwork(FluidNetwork):
    """Cables that are never shared: a transfer drains as if alone on those of its route. All other
    links are shared.

    What cables do is counted all the same, so that a cable can be in use by more than 1: that much
    less than needed the bound is. Arguments as for `shared_network`.
    """

    def __init__(
        self, links: Links, cables: Flags, *, width: int, accounts: int, tags: int
    ) -> None:
        capacities = np.where(cables, BOUNDLESS, links.capacity)
        super().__init__(capacities, width=width, accounts=accounts, tags=tags)
        self._cables = np.flatnonzero(cables)
        # the last one for the padding of routes
        self._cable_capacity = np.append(np.where(cables, links.capacity, inf), inf)

    def post(self, now: float, batch: TransferBatch) -> float:
        """See `FluidNetwork.post`."""
        slowest = self._cable_capacity[batch.routes].min(axis=1, initial=inf)
        if (slowest < batch.tasks["cap"]).any():
            records = batch.tasks.copy()
            np.minimum(records["cap"], slowest, out=records["cap"])
            batch = replace(batch, tasks=records)
        return super().post(now, batch)

    def settle(self, now: float | None = None) -> None:
        """See `FluidNetwork.settle`."""
        super().settle(now)
        self.links["peak"][self._cables] *= BOUNDLESS / self._cable_capacity[self._cables]


class _Parcel(NamedTuple):
    """A transfer over cables that has not begun."""

    cables: Ints32  # of its route, as the packet network numbers them, padded with -1
    devices: Ints32  # the other links of its route, padded with -1
    alone: bool  # whether cables are all that it needs: no device and no rate limit
    nbytes: float  # bytes
    pair: int  # `TASK.pair`
    cap: float  # bytes/s, the smaller of its rate limit and the capacity of its slowest cable
    lag: float  # s of its delay that packets spend on their way
    parts: int  # in how many its packets are sent


class HybridNetwork(FluidNetwork):
    """Cables that carry packets, beside other links that are shared as fluid.

    The packets of a transfer cross the cables of its route, while as many bytes drain through the
    other links of the route, at its rate limit and at the capacity of its slowest cable at most, as
    with `AnalyticNetwork`; it ends when both have. A cable is never fluid and another link never
    carries packets, so each link has one model. Transfers that cross no cable are left to the fluid
    network. Those of one pair share a queue pair of the packet network if cables are all they need;
    otherwise one begins when the one before it has ended. Arguments as for `shared_network`.
    """

    def __init__(
        self,
        links: Links,
        cables: Flags,
        mtu: float,
        port_buffer: float,
        *,
        width: int,
        accounts: int,
        tags: int,
    ) -> None:
        super().__init__(links.capacity, width=width, accounts=accounts, tags=tags)
        self._hops = max(width, 1)
        self._cables = np.flatnonzero(cables)
        # in the packet network; the last one for the padding of routes
        self._number = np.full(len(links) + 1, -1, np.int32)
        self._number[self._cables] = np.arange(len(self._cables))
        capacity, latency = links.capacity[self._cables], links.latency[self._cables]
        self._cable_capacity, self._cable_latency = (
            np.append(capacity, inf),
            np.append(latency, 0.0),
        )
        named = Links(capacity, latency, [links.name(link) for link in self._cables.tolist()])
        self._packets = PacketNetwork(named, mtu=mtu, port_buffer=port_buffer)
        self._mtu = mtu
        self._next = inf  # event of the packet network (s)
        self._parcels: dict[int, _Parcel] = {}  # by slot of the transfer
        self._slot_of: dict[int, int] = {}  # by handle of the packet network
        self._draining: dict[int, int] = {}  # slot, by the group of what drains through other links
        self._missing: dict[int, int] = {}  # what has to end before the transfer does, by slot

    @property
    def now(self) -> float:
        """Simulated time reached (s), by the faster of the two."""
        return max(super().now, self._packets.now)

    def post(self, now: float, batch: TransferBatch) -> float:
        """See `FluidNetwork.post`."""
        cables = self._number[batch.routes]
        which = np.flatnonzero((cables >= 0).any(axis=1))
        if not len(which):
            return min(super().post(now, batch), self._next)
        records, routes = batch.tasks.copy(), batch.routes.copy()
        handed, cables = records[which], cables[which]
        devices = self._to_the_left(np.where(cables >= 0, -1, routes[which]))
        cables = self._to_the_left(cables)
        slowest, cap = self._cable_capacity[cables].min(axis=1), handed["cap"]
        lag = np.minimum(self._cable_latency[cables].sum(axis=1), handed["delay"])
        parts = np.where(
            cap < slowest, np.clip(np.ceil(handed["work"] / self._mtu), 1, PARTS), 1
        ).astype(int)
        alone = (devices[:, 0] < 0) & np.isinf(cap)
        columns = (alone, handed["work"], handed["pair"], np.minimum(cap, slowest), lag, parts)
        parcels = list(map(_Parcel, cables, devices, *(column.tolist() for column in columns)))
        handed["outside"], handed["cap"] = 1, inf
        handed["delay"] -= lag
        handed["pair"][alone] = NO_PAIR
        records[which], routes[which] = handed, -1
        upcoming = super().post(now, replace(batch, tasks=records, routes=routes))
        self._parcels.update(zip(self.posted[which].tolist(), parcels, strict=True))
        return min(upcoming, self._next)

    def advance(self, horizon: float) -> tuple[float, list[int]]:
        """See `FluidNetwork.advance`."""
        while True:
            upcoming, done = super().advance(min(horizon, self._next))
            complete = [group for group in done if group not in self._draining]
            for group in done:
                if group in self._draining:
                    self.close_group(group)
                    upcoming = min(upcoming, self._end_part(self._draining.pop(group), super().now))
            upcoming = min(upcoming, self._begin(self.take_outbox()))
            first = min(upcoming, self._next)
            if complete or first > horizon or first == inf:
                return first, complete
            if self._next < upcoming:
                self._next, ended = self._packets.advance(min(horizon, upcoming))
                for handle, when in ended:
                    self._end_part(self._slot_of.pop(handle), when)

    def settle(self, now: float | None = None) -> None:
        """See `FluidNetwork.settle`."""
        statistics, records, cables = self._packets.statistics(), self.links, self._cables
        sent = cables[statistics.nbytes > records["nbytes"][cables]]
        # a packet has the cable for itself
        self.raise_peaks(sent)
        super().settle(now)
        for name, values in (
            ("work", statistics.nbytes),
            ("nbytes", statistics.nbytes),
            ("busy", statistics.busy),
        ):
            records[name][cables] = values

    def _begin(self, slots: list[int]) -> float:
        """Let transfers begin, which the fluid network has handed over; returns the time of its
        next event (s)."""
        if not slots:
            return inf
        paced: dict[tuple[int, float], list[tuple[int, _Parcel]]] = {}
        begun = [(slot, self._parcels.pop(slot)) for slot in slots]
        for slot, parcel in begun:
            self._missing[slot] = parcel.parts + (0 if parcel.alone else 1)
            gap = parcel.nbytes / parcel.cap / parcel.parts if parcel.parts > 1 else 0.0
            paced.setdefault((parcel.parts, gap), []).append((slot, parcel))
        now = self.now
        for (parts, gap), some in paced.items():
            self._send(now, parts, gap, some)
        self._next = min(self._next, now)
        return self._drain(now, [(slot, parcel) for slot, parcel in begun if not parcel.alone])

    def _send(self, now: float, parts: int, gap: float, begun: list[tuple[int, _Parcel]]) -> None:
        """Hand transfers to the packet network from ``now`` (s) on, in ``parts`` that are ``gap``
        (s) apart."""
        if not now + parts * gap < TICK * LONGEST:
            raise SimulationError(
                f"the packet network counts up to {TICK * LONGEST / 3600:.1f} hours of simulated"
                " time; use kind: fluid"
            )
        routes = np.stack([parcel.cables for _, parcel in begun])
        nbytes = np.array([parcel.nbytes / parts for _, parcel in begun])
        # simultaneous posts go by key: not by slot, which depends on all that went before
        posted = self._state.nodes["seq"]
        keys = np.array(
            [
                parcel.pair
                if parcel.alone and parcel.pair != NO_PAIR
                else OWN_PAIR + int(posted[slot])
                for slot, parcel in begun
            ]
        )
        for part in range(parts):
            handles = self._packets.inject(now + part * gap, routes, nbytes, keys)
            self._slot_of.update(zip(handles.tolist(), (slot for slot, _ in begun), strict=True))

    def _drain(self, now: float, begun: list[tuple[int, _Parcel]]) -> float:
        """Let transfers drain through devices and rate limits from ``now`` (s) on; returns the time
        of the next event there (s)."""
        if not begun:
            return inf
        groups = [self.open_group(1) for _ in begun]
        for group, (slot, _) in zip(groups, begun, strict=True):
            self.watch(group)
            self._draining[group] = slot
        nbytes, cap, lag = (
            [getattr(parcel, name) for _, parcel in begun] for name in ("nbytes", "cap", "lag")
        )
        batch = tasks(len(begun), work=nbytes, nbytes=nbytes, cap=cap, delay=lag, group=groups)
        return super().post(
            now, TransferBatch(batch, np.stack([parcel.devices for _, parcel in begun]))
        )

    def _end_part(self, slot: int, now: float) -> float:
        """Note that a part of a transfer has ended at ``now`` (s); returns when the transfer ends
        if it was the last part, else inf."""
        self._missing[slot] -= 1
        if self._missing[slot]:
            return inf
        del self._missing[slot]
        return self.complete(slot, now)

    def _to_the_left(self, routes: Ints32) -> Ints32:
        """Routes (n, hops) with their links in order and all padding at the end, (n, any)."""
        out = np.full((len(routes), self._hops), -1, np.int32)
        out[:, : routes.shape[1]] = np.take_along_axis(
            routes, np.argsort(routes < 0, axis=1, kind="stable"), axis=1
        )
        return out

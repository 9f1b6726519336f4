"""Networks of a run whose cables are not fluid: analytic or packet cables beside other
links that are shared as in `FluidNetwork`, on which both classes stand.
"""

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
from simshuffle.fabric.network.packet_records import MAX_TICKS, TICK
from simshuffle.spec.arrays import Flags, Ints32

BOUNDLESS = 1e300
"""A capacity that never binds, and is finite so that shares of it can be told."""
OWN_PAIR = -(1 << 62)
"""Key of the queue pair of a transfer that shares none with others, plus its number in
the order of posting: below the keys of all pairs.
"""
MAX_PARTS = 16
"""Most parts in which a transfer with a rate limit is sent over cables, evenly spread
over the time that the limit makes it take.
"""


class AnalyticNetwork(FluidNetwork):
    """Cables that are never shared: a transfer drains as if alone on the cables of its
    route. Other links are shared.

    What cables do is counted all the same, so that the peak of a cable can be above 1:
    by so much the answer, a lower bound, is too low there.

    Args:
        links: all links; latencies are not read.
        cables: (links,) which of them are cables.
        width, accounts, tags: as of `FluidNetwork`.
    """

    def __init__(
        self, links: Links, cables: Flags, *, width: int, accounts: int, tags: int
    ) -> None:
        capacities = np.where(cables, BOUNDLESS, links.capacity)
        super().__init__(capacities, width=width, accounts=accounts, tags=tags)
        self._cables = np.flatnonzero(cables)
        # the last one for the padding of routes
        self._cable_capacity = np.append(np.where(cables, links.capacity, inf), inf)

    def prepare(self, batch: TransferBatch) -> TransferBatch:
        """Return transfers that are each limited to the capacity of its slowest cable,
        as its ``TASK.cap``; ``batch`` itself stays as it was.
        """
        slowest = self._cable_capacity[batch.routes].min(axis=1, initial=inf)
        if (slowest < batch.tasks["cap"]).any():
            records = batch.tasks.copy()
            np.minimum(records["cap"], slowest, out=records["cap"])
            batch = replace(batch, tasks=records)
        return batch

    def settle(self, now: float | None = None) -> None:
        """Bring the statistics of every link up to date, with peaks of cables as shares
        of their own capacity; see `FluidNetwork.settle`.
        """
        super().settle(now)
        self.links["peak"][self._cables] *= (
            BOUNDLESS / self._cable_capacity[self._cables]
        )


class _Parcel(NamedTuple):
    """A transfer over cables that has not begun."""

    cables: Ints32  # of its route, as the packet network numbers them, padded with -1
    devices: Ints32  # the other links of its route, padded with -1
    needs_only_cables: (
        bool  # whether cables are all that it needs: no device and no rate limit
    )
    nbytes: float  # bytes
    pair: int  # `TASK.pair`
    max_rate: float  # bytes/s, the smaller of its rate limit and the capacity of its slowest cable
    packet_latency: float  # s of its delay that packets spend on their way
    num_parts: int  # in how many parts its packets are sent


class HybridNetwork(FluidNetwork):
    """Cables that carry packets, beside other links that are shared as fluid.

    The packets of a transfer cross the cables of its route, while as many bytes drain
    through the other links of the route, at its rate limit and at the capacity of its
    slowest cable at most, as with `AnalyticNetwork`; it ends when both have. A cable is
    never fluid and another link never carries packets, so each link has one model.
    Transfers that cross no cable are left to the fluid network. Those of one pair share
    a queue pair of the packet network if cables are all they need; otherwise one begins
    when the one before it has ended. `alive` also counts what drains beside packets.

    Args:
        links: all links; of their latencies only those of cables are read.
        cables: (links,) which of them are cables.
        mtu, port_buffer: bytes of a packet, and of an input buffer.
        width, accounts, tags: as of `FluidNetwork`.

    Raises:
        ValueError: a cable is so slow that its packets do not fit the clock.
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
        self._index_of_cable = np.full(len(links) + 1, -1, np.int32)
        self._index_of_cable[self._cables] = np.arange(len(self._cables))
        capacity = links.capacity[self._cables]
        latency = links.latency[self._cables]
        self._cable_capacity = np.append(capacity, inf)
        self._cable_latency = np.append(latency, 0.0)
        cable_links = Links(
            capacity, latency, [links.name(link) for link in self._cables.tolist()]
        )
        self._packets = PacketNetwork(cable_links, mtu=mtu, port_buffer=port_buffer)
        self._mtu = mtu
        self._next_packet_event = inf  # event of the packet network (s)
        self._parcels: dict[int, _Parcel] = {}  # by `TASK.outside`
        self._n_parcels = 0  # prepared so far
        self._slot_of: dict[int, int] = {}  # by handle of the packet network
        self._draining: dict[
            int, int
        ] = {}  # slot, by the group of what drains through other links
        # what has to end before the transfer does, by slot
        self._num_missing_parts: dict[int, int] = {}

    @property
    def now(self) -> float:
        """Simulated time reached (s), by the network that is further on."""
        return max(super().now, self._packets.now)

    def post(self, now: float, batch: TransferBatch) -> float:
        """Post transfers; return the time of the next event of either network (s). See
        `FluidNetwork.post`.
        """
        return min(super().post(now, batch), self._next_packet_event)

    def count_down(self, groups: Ints32, now: float) -> tuple[float, list[int]]:
        """Count groups down; return the time of the next event of either network (s),
        and the completed groups. See `FluidNetwork.count_down`.
        """
        next_event, completed_groups = super().count_down(groups, now)
        return min(next_event, self._next_packet_event), completed_groups

    def prepare(self, batch: TransferBatch) -> TransferBatch:
        """Return transfers that are carried elsewhere where they cross cables, and
        prepare a parcel for each of these.

        The latency of cables is taken out of ``TASK.delay`` for packets to spend;
        ``batch`` itself stays as it was.
        """
        cables = self._index_of_cable[batch.routes]
        transfers_on_cables = np.flatnonzero((cables >= 0).any(axis=1))
        if not len(transfers_on_cables):
            return batch
        records = batch.tasks.copy()
        routes = batch.routes.copy()
        cable_records = records[transfers_on_cables]
        cables = cables[transfers_on_cables]
        devices = self._left_align(
            np.where(cables >= 0, -1, routes[transfers_on_cables])
        )
        cables = self._left_align(cables)
        slowest = self._cable_capacity[cables].min(axis=1)
        rate_limit = cable_records["cap"]
        packet_latency = np.minimum(
            self._cable_latency[cables].sum(axis=1), cable_records["delay"]
        )
        num_parts = np.where(
            rate_limit < slowest,
            np.clip(np.ceil(cable_records["work"] / self._mtu), 1, MAX_PARTS),
            1,
        ).astype(int)
        needs_only_cables = (devices[:, 0] < 0) & np.isinf(rate_limit)
        columns = (
            needs_only_cables,
            cable_records["work"],
            cable_records["pair"],
            np.minimum(rate_limit, slowest),
            packet_latency,
            num_parts,
        )
        parcels = list(
            map(_Parcel, cables, devices, *(column.tolist() for column in columns))
        )
        numbers = self._n_parcels + 1 + np.arange(len(parcels))
        self._n_parcels += len(parcels)
        cable_records["outside"], cable_records["cap"] = numbers, inf
        cable_records["delay"] -= packet_latency
        cable_records["pair"][needs_only_cables] = NO_PAIR
        records[transfers_on_cables] = cable_records
        routes[transfers_on_cables] = -1
        self._parcels.update(zip(numbers.tolist(), parcels, strict=True))
        return replace(batch, tasks=records, routes=routes)

    def advance(self, horizon: float) -> tuple[float, list[int]]:
        """Run events of both networks up to ``horizon`` (s), stopping after the first
        instant that completes a watched group; return the time of the next event (s,
        inf if there is none) and the groups. See `FluidNetwork.advance`.

        Raises:
            TopologyError: the routes so far have cables that wait for each other in a
                circle.
            SimulationError: a transfer would go on beyond the range of the clock of
                the packet network.
        """
        while True:
            next_event, completed_groups = super().advance(
                min(horizon, self._next_packet_event)
            )
            watched_groups = [
                group for group in completed_groups if group not in self._draining
            ]
            for group in completed_groups:
                if group in self._draining:
                    self.close_group(group)
                    next_event = min(
                        next_event,
                        self._end_part(self._draining.pop(group), super().now),
                    )
            next_event = min(next_event, self._begin_transfers(self.take_outbox()))
            earliest = min(next_event, self._next_packet_event)
            if watched_groups or earliest > horizon or earliest == inf:
                return earliest, watched_groups
            if self._next_packet_event < next_event:
                self._next_packet_event, ended = self._packets.advance(
                    min(horizon, next_event)
                )
                for handle, end in ended:
                    self._end_part(self._slot_of.pop(handle), end)

    def settle(self, now: float | None = None) -> None:
        """Bring the statistics of every link up to date, cables as the packet network
        counts for them; see `FluidNetwork.settle`.

        A packet counts in full, also as ``busy``, from its start on a cable on,
        whatever ``now`` is. A cable that has sent since the last call has peak 1.
        """
        statistics = self._packets.statistics()
        records = self.links
        cables = self._cables
        sending_cables = cables[statistics.nbytes > records["nbytes"][cables]]
        # a packet has the cable for itself
        self.raise_peaks(sending_cables)
        super().settle(now)
        for name, values in (
            ("work", statistics.nbytes),
            ("nbytes", statistics.nbytes),
            ("busy", statistics.busy),
        ):
            records[name][cables] = values

    def _begin_transfers(self, slots: list[int]) -> float:
        """Begin transfers that the fluid network has put into the outbox; return the
        time of its next event (s), inf if cables are all that they need.
        """
        if not slots:
            return inf
        parcels_by_pace: dict[tuple[int, float], list[tuple[int, _Parcel]]] = {}
        numbers = self._state.nodes["bottleneck"][slots].tolist()
        parcels = [
            (slot, self._parcels.pop(number))
            for slot, number in zip(slots, numbers, strict=True)
        ]
        for slot, parcel in parcels:
            self._num_missing_parts[slot] = parcel.num_parts + (
                0 if parcel.needs_only_cables else 1
            )
            gap = (
                parcel.nbytes / parcel.max_rate / parcel.num_parts
                if parcel.num_parts > 1
                else 0.0
            )
            parcels_by_pace.setdefault((parcel.num_parts, gap), []).append(
                (slot, parcel)
            )
        now = self.now
        for (num_parts, gap), equal_parcels in parcels_by_pace.items():
            self._send_packets(now, num_parts, gap, equal_parcels)
        self._next_packet_event = min(self._next_packet_event, now)
        return self._drain_parcels(
            now,
            [
                (slot, parcel)
                for slot, parcel in parcels
                if not parcel.needs_only_cables
            ],
        )

    def _send_packets(
        self, now: float, num_parts: int, gap: float, parcels: list[tuple[int, _Parcel]]
    ) -> None:
        """Hand transfers to the packet network from ``now`` (s) on, in ``num_parts``
        equal parts whose posts are ``gap`` (s) apart.

        Raises:
            SimulationError: the transfers would go on beyond the range of the clock.
        """
        if not now + num_parts * gap < TICK * MAX_TICKS:
            raise SimulationError(
                f"the packet network counts up to {TICK * MAX_TICKS / 3600:.1f} hours of simulated"
                " time; use kind: fluid"
            )
        routes = np.stack([parcel.cables for _, parcel in parcels])
        nbytes = np.array([parcel.nbytes / num_parts for _, parcel in parcels])
        # simultaneous posts go by key: not by slot, which depends on all that went before
        posting_order = self._state.nodes["seq"]
        keys = np.array(
            [
                parcel.pair
                if parcel.needs_only_cables and parcel.pair != NO_PAIR
                else OWN_PAIR + int(posting_order[slot])
                for slot, parcel in parcels
            ]
        )
        for part in range(num_parts):
            handles = self._packets.inject(now + part * gap, routes, nbytes, keys)
            self._slot_of.update(
                zip(handles.tolist(), (slot for slot, _ in parcels), strict=True)
            )

    def _drain_parcels(self, now: float, parcels: list[tuple[int, _Parcel]]) -> float:
        """Drain transfers through devices, at their rate limits, from ``now`` (s) on;
        return the time of the next event there (s), inf without transfers.

        A transfer begins to drain after the latency of its packets. Each opens and
        watches a group of its own, which `advance` closes.
        """
        if not parcels:
            return inf
        groups = [self.open_group(1) for _ in parcels]
        for group, (slot, _) in zip(groups, parcels, strict=True):
            self.watch(group)
            self._draining[group] = slot
        nbytes = [parcel.nbytes for _, parcel in parcels]
        max_rate = [parcel.max_rate for _, parcel in parcels]
        packet_latency = [parcel.packet_latency for _, parcel in parcels]
        batch = tasks(
            len(parcels),
            work=nbytes,
            nbytes=nbytes,
            cap=max_rate,
            delay=packet_latency,
            group=groups,
        )
        return super().post(
            now,
            TransferBatch(batch, np.stack([parcel.devices for _, parcel in parcels])),
        )

    def _end_part(self, slot: int, now: float) -> float:
        """Note that a part of a transfer has ended at ``now`` (s); with the last part
        the transfer ends.

        Returns:
            The time of the fluid network's next event (s) if it ends, else inf.
        """
        self._num_missing_parts[slot] -= 1
        if self._num_missing_parts[slot]:
            return inf
        del self._num_missing_parts[slot]
        return self.complete(slot, now)

    def _left_align(self, routes: Ints32) -> Ints32:
        """Align routes to the left: (n, width of the network) with their links in order
        and all padding at the end.
        """
        aligned = np.full((len(routes), self._hops), -1, np.int32)
        aligned[:, : routes.shape[1]] = np.take_along_axis(
            routes, np.argsort(routes < 0, axis=1, kind="stable"), axis=1
        )
        return aligned

"""The faults of a run on the clock: one process begins and ends them all, in the order
of time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.fabric.routing.detour import Detours
from simshuffle.job.plan.faults import RunFaults, TimedFault
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import NetworkClock, Steps
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32

FAILED = 1e-9
"""Share of its capacity that a failed link keeps, so that what waits goes on when it
returns: a cable of 12.5 GB/s carries 12.5 bytes a second. Rounding in sums of its load
is a millionth of that.
"""
BEGIN, REROUTE, END = range(3)

Row = dict[str, Any]
"""A fault that has begun, by key: ``what``, ``at_s``, ``until_s`` (None if it never
ends), ``rate`` (share left), the numbers of ``links`` and ``gpus`` hit, and
``rerouted``, the number of transfers under way that got new routes.
"""


class ActiveFaults:
    """The faults of a run on the clock. Making it starts their process.

    The process changes capacities and routes of the network, and ``clock.detour``.

    Attributes:
        slower: (M,) how many times as long the GPU of each rank takes for what it begins
            now; 1 without a fault. It is changed in place.
        rows: the faults that began so far, as ``meta.json`` has them: the list that was
            passed in, if any.
    """

    def __init__(
        self,
        scenario: Scenario,
        resources: Resources,
        clock: NetworkClock,
        rows: list[Row] | None,
    ) -> None:
        self.slower = np.ones(resources.world_size)
        self.rows = [] if rows is None else rows
        self._clock = clock
        self._resources = resources
        self._healthy = resources.links.capacity
        self._indices = count()
        # when, its number, and what; with those that are drawn when this one begins
        self._upcoming: list[
            tuple[float, int, int, TimedFault, Iterator[TimedFault] | None]
        ] = []
        faults = RunFaults(scenario, resources)
        for struck in faults.planned:
            self._push(struck.begin, BEGIN, struck)
        for drawn in faults.draw_faults():
            self._follow(drawn)
        # of links and ranks the shares that faults leave now
        self._links: defaultdict[int, list[float]] = defaultdict(list)
        self._ranks: defaultdict[int, list[float]] = defaultdict(list)
        self._around: list[TimedFault] = []  # failed cables round which new routes lead
        self._detours: Detours | None = None
        self._failed: Flags = np.zeros(
            len(self._healthy) + 1, bool
        )  # the last one pads routes
        self._row_of: dict[int, Row] = {}
        # of each job its `slower`, and the numbers of its ranks on the machine
        self._jobs: list[tuple[Floats, Ints]] = []
        clock.env.process(self._run())

    def slower_for_job(self, part: Resources) -> Floats:
        """Return ``slower`` for the ranks of a job that has ``part`` of the machine.

        Faults go on changing the array. Call it before the first fault: it begins with
        1 for every rank. The job's hosts follow one another on the machine.
        """
        slower = np.ones(part.world_size)
        first = self._resources.hosts.index(part.hosts[0])
        gpus = part.cluster.host.gpus
        ranks = (first + part.host_of) * gpus + part.gpu_of
        self._jobs.append((slower, ranks))
        return slower

    def _push(
        self,
        when: float,
        kind: int,
        struck: TimedFault,
        drawn: Iterator[TimedFault] | None = None,
    ) -> None:
        """Schedule the begin, reroute or end of a fault, after which the next of
        ``drawn`` is scheduled.
        """
        index = next(self._indices)
        heapq.heappush(self._upcoming, (when, index, kind, struck, drawn))

    def _follow(self, drawn: Iterator[TimedFault]) -> None:
        """Draw the next fault and schedule its begin; do nothing if there is none."""
        struck = next(drawn, None)
        if struck is not None:
            self._push(struck.begin, BEGIN, struck, drawn)

    def _run(self) -> Steps:
        """Run all faults in the order of time; what comes at one moment changes rates
        once.
        """
        env = self._clock.env
        while self._upcoming:
            when = self._upcoming[0][0]
            if when > env.now:
                yield env.timeout(when - env.now)
            links: set[int] = set()
            routes = False
            while self._upcoming and self._upcoming[0][0] <= max(when, env.now):
                _, _, kind, struck, drawn = heapq.heappop(self._upcoming)
                routes |= self._handle(kind, struck)
                if kind != REROUTE:
                    links.update(struck.hit.links.tolist())
                if drawn is not None:
                    self._follow(drawn)
            self._set_rates(sorted(links))
            if routes:
                self._reroute()
            self._clock.renew()

    def _handle(self, kind: int, struck: TimedFault) -> bool:
        """Begin or end a fault, or note new routes; return whether routes change.

        Updates the shares of links and ranks, of which the least counts.
        """
        routed_around = len(self._around)
        if kind == BEGIN:
            self._begin(struck)
        elif kind == REROUTE:
            self._around.append(struck)
        else:
            self._around = [fault for fault in self._around if fault is not struck]
        if kind != REROUTE:
            for shares, members in (
                (self._links, struck.hit.links),
                (self._ranks, struck.hit.ranks),
            ):
                for member in members.tolist():
                    change = (
                        shares[member].append
                        if kind == BEGIN
                        else shares[member].remove
                    )
                    change(struck.rate)
            for rank in struck.hit.ranks.tolist():
                self.slower[rank] = 1.0 / min(self._ranks[rank], default=1.0)
            for slower, ranks in self._jobs:
                slower[:] = self.slower[ranks]
        return len(self._around) != routed_around

    def _begin(self, struck: TimedFault) -> None:
        """Schedule the reroute and end of a fault and book its row, unless a row
        already has the ``what`` and ``at_s`` of this fault.
        """
        key = {"what": struck.what, "at_s": struck.begin}
        # a run that lost a host goes on with a new clock, before which this may have begun
        earlier_rows = self.rows if struck.begin < self._clock.env.now else []
        row = next((row for row in earlier_rows if key.items() <= row.items()), None)
        if row is None:
            row = {
                **key,
                "until_s": struck.end if struck.end < inf else None,
                "rate": struck.rate,
                "links": len(struck.hit.links),
                "gpus": len(struck.hit.ranks),
                "rerouted": 0,
            }
            self.rows.append(row)
        if struck.reroutes_at < inf:
            self._push(struck.reroutes_at, REROUTE, struck)
            self._row_of[id(struck)] = row
        if struck.end < inf:
            self._push(struck.end, END, struck)

    def _set_rates(self, links: list[int]) -> None:
        """Give ``links`` the least share that faults leave of their capacity.

        The share is at least `FAILED`, and 1 without a fault.
        """
        if links:
            shares = [
                max(min(self._links[link], default=1.0), FAILED) for link in links
            ]
            link_indices = np.array(links, np.int32)
            self._clock.set_capacity(link_indices, self._healthy[link_indices] * shares)

    # -------------------------------------------------------------------------------- other routes

    def _reroute(self) -> None:
        """Lead transfers, under way and from now on, round the failed cables.

        Called when new routes are known, or cables have returned. Counts those under
        way that are rerouted in the row of the fault that was rerouted last. Transfers
        on a detour stay there when its cables return.
        """
        self._failed[:] = False
        self._detours = None
        self._clock.detour = None
        if not self._around:
            return
        cables = np.concatenate([fault.hit.cables for fault in self._around])
        failed = self._resources.to_run_links(cables)
        self._failed[failed[failed >= 0]] = True
        self._detours = Detours(self._resources.forwarding.fabric, cables)
        self._clock.detour = self._detour_batch
        failed_links = np.flatnonzero(self._failed)
        slots, routes = self._clock.network.find_transfers_on(failed_links)
        new, has_detour = self._find_detours(routes)
        if has_detour.any():
            self._clock.reroute(slots[has_detour], new[has_detour])
            self._row_of[id(self._around[-1])]["rerouted"] += int(has_detour.sum())

    def _detour_batch(self, batch: TransferBatch) -> TransferBatch:
        """Return the transfers of ``batch``, with detours for those that would cross a
        failed cable.

        The delays change by the difference in latency. ``batch`` itself is not changed;
        it is returned if no transfer has a detour.
        """
        rows = np.flatnonzero(self._failed[batch.routes].any(axis=1))
        if not len(rows):
            return batch
        old_routes = batch.routes[rows]
        new_routes, has_detour = self._find_detours(old_routes)
        if not has_detour.any():
            return batch
        routes = np.full((len(batch.routes), self._resources.width), -1, np.int32)
        routes[:, : batch.routes.shape[1]] = batch.routes
        routes[rows] = new_routes
        tasks = batch.tasks.copy()
        latency = self._resources.links.latency
        for sign, changed_routes in ((1.0, new_routes), (-1.0, old_routes)):
            tasks["delay"][rows] += sign * np.where(
                changed_routes >= 0, latency[changed_routes], 0.0
            ).sum(axis=1)
        return replace(batch, tasks=tasks, routes=routes)

    def _find_detours(self, routes: Ints32) -> tuple[Ints32, Flags]:
        """Return (n, width) routes round the failed cables, and (n,) whether there is a
        detour.

        Without one, or if it has more links than ``width``, the route is the old one,
        over which the transfer waits. Routes are of links of the run, padded with -1;
        each of ``routes`` crosses a cable. The links before its first cable and after
        its last one stay.
        """
        assert self._detours is not None  # noqa: S101 - only asked for with some
        resources = self._resources
        width = resources.width
        fabric = resources.forwarding.fabric
        detours = np.full((len(routes), width), -1, np.int32)
        has_detour = np.zeros(len(routes), bool)
        detours[:, : routes.shape[1]] = routes[:, :width]
        port = np.full(len(fabric.links), -1, np.int32)
        port[fabric.inject_link] = port[fabric.eject_link] = np.arange(
            len(fabric.switch_of_port), dtype=np.int32
        )
        is_cable = (routes >= 0) & (routes < len(resources.cables))
        first = is_cable.argmax(axis=1)
        last = is_cable.shape[1] - is_cable[:, ::-1].argmax(axis=1) - 1
        for row, (begin, end) in enumerate(
            zip(first.tolist(), last.tolist(), strict=True)
        ):
            src, dst = port[resources.cables[routes[row, [begin, end]]]].tolist()
            detour = self._detours.route(src, dst)
            if detour is None:
                continue
            last_links = routes[row, end + 1 :]
            around = resources.to_run_links(np.array(detour))
            new_route = np.concatenate(
                [routes[row, :begin], around, last_links[last_links >= 0]]
            )
            if len(new_route) <= width:
                detours[row] = -1
                detours[row, : len(new_route)] = new_route
                has_detour[row] = True
        return detours, has_detour

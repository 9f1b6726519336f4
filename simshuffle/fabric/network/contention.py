"""How much flows get into each other's way: the two factors of ParaDL (Kahira et al., HPDC 2021),
which there are given by hand, from the flows and their routes.

*Self-contention.* ParaDL multiplies the time per byte of a collective by a penalty that it takes
from a dynamic contention graph (Martinasso & Mehaut, A Contention-Aware Performance Model for
HPC-Based Networks: A Case Study of the InfiniBand Network, Euro-Par 2011): the flows under way, and
an edge between two that share a link. The law here:

- A flow moves at the least of ``capacity / flows under way`` over the links of its route: every
  link gives each of its flows the same part. What a flow that is slower elsewhere leaves of its
  part is not given to others.
- Whenever a flow begins or ends the graph is taken anew.
- A flow is posted, spends its latencies without using its links, and waits for others, as in all
  network models.

The coefficient is the makespan by this law over that of the same flows without contention, each at
the capacity of its slowest link.

*Congestion.* The same flows among those of others, over the same flows alone.

*Beside max-min fair sharing.* With the same flows under way no flow is faster here than with
max-min fair rates, which never are below the equal part of the slowest link. If flows wait for
none, those that are under way there are under way here too, so by induction over the ends no flow
ends later there. Both are the same where the slowest link of a flow is that of all flows on it. If
flows wait for others, the order in which they meet may differ, and either may end first.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabric.network import analytic
from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links, successors
from simshuffle.spec.arrays import Floats, Ints32, Ints64

ROUNDING = 1e-12
"""Share of its bytes that a flow may have left when it ends, by rounding."""


@dataclass(frozen=True)
class Contention:
    """What flows do to each other."""

    finish: Floats  # (flows,) s, when each ends
    makespan: float  # s, when the last one does
    alone: float  # s, when it would without contention
    # the static coefficient: how many times slower than alone the slowest flow is while all flows
    # that wait for none are under way together
    first: float
    link: int  # the link on which it is so slow; -1 if there is none

    @property
    def coefficient(self) -> float:
        """Makespan over that without contention; 1 if nothing takes time."""
        return self.makespan / self.alone if self.alone > 0 else 1.0


def self_contention(links: Links, flows: Flows, tolerance: float = 0.0) -> Contention:
    """What ``flows`` do to each other; arguments and errors as for `finish_times`."""
    found = finish_times(links, flows, tolerance)
    first, link = first_stage(links, flows)
    return Contention(found.finish, found.makespan, analytic.unhindered(links, flows), first, link)


def first_stage(links: Links, flows: Flows) -> tuple[float, int]:
    """`Contention.first` and `Contention.link`."""
    begins = flows.nbytes > 0
    begins[flows.after_to] = False
    routes = flows.routes if begins.all() else flows.routes[begins]
    count = np.zeros(len(links) + 1)
    for hop in routes.T:  # column by column: the table of an all-to-all is large
        count += np.roll(np.bincount(hop + 1, minlength=len(count)), -1)
    part = np.append(links.capacity / np.maximum(count[:-1], 1.0), np.inf)
    whole = np.append(links.capacity, np.inf)
    slowest, capacity = np.full((2, len(routes)), np.inf)
    for hop in routes.T:
        np.minimum(slowest, part[hop], out=slowest)
        np.minimum(capacity, whole[hop], out=capacity)
    moving = np.flatnonzero(np.isfinite(capacity))
    if not len(moving):
        return 1.0, -1
    slower = capacity[moving] / slowest[moving]
    route = routes[moving[np.argmax(slower)]]
    return float(slower.max()), int(route[np.argmin(part[route])])


def finish_times(links: Links, flows: Flows, tolerance: float = 0.0) -> FlowOutcome:
    """When ``flows`` end, every link giving each of its flows the same part.

    Args:
        links, flows: as for all network models.
        tolerance: a flow may end together with another as soon as it has at most this share of its
            bytes left, so that fewer moments have to be solved for.

    Returns:
        As `Fluid.finish_times`.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    return _Clock(links, flows, max(tolerance, ROUNDING)).run()


class _Clock:
    """The flows under way, and those that are to begin."""

    def __init__(self, links: Links, flows: Flows, least: float) -> None:
        count = len(flows)
        self.flows, self.least = flows, least
        self.latency = flows.latencies(links)
        self.moves = (flows.nbytes > 0) & (flows.routes >= 0).any(axis=1)
        self.finish = np.full(count, np.nan)
        self.capacity = np.append(links.capacity, np.inf)
        self.on_link = np.zeros(len(links) + 1)
        # of those under way: which they are, their links (hops, flows), and the bytes left
        self.number = np.empty(0, np.int64)
        self.routes: Ints32 = np.empty((flows.routes.shape[1], 0), np.int32)
        self.left = np.empty(0)
        # those that are to begin: the ones that wait for none, soonest last, with the time before 0
        # that mirrors the one when each begins, which ascends; and the others
        self.waiting = np.bincount(flows.after_to, minlength=count)
        self.edges = successors(flows) if len(flows.after_to) else None
        none = np.flatnonzero(self.waiting == 0)
        minus = -(flows.posted + self.latency)[none]
        order = np.argsort(minus, kind="stable")
        self.first, self.minus = none[order], minus[order]
        self.later: list[tuple[float, int]] = []
        self.now = self.skipped = 0.0

    def run(self) -> FlowOutcome:
        """See `finish_times`."""
        while True:
            begin = self._next_begin()
            rate = self._rates()
            step = float((self.left / rate).min(initial=np.inf))
            if min(begin, step) == np.inf:
                break
            # an end may come so soon that the clock does not move: its bytes have to
            if self.now + step <= begin:
                self._move(rate, step, self.now + step)
            else:
                self._move(rate, begin - self.now, begin)
            self._begin(self.now)
        if unended := int(np.isnan(self.finish).sum()):
            raise SimulationError(
                f"{unended} flows wait for each other in a circle and never start"
            )
        skipped = self.skipped if self.skipped > ROUNDING else 0.0
        return FlowOutcome(self.finish, float(self.finish.max(initial=0.0)), skipped)

    def _next_begin(self) -> float:
        soonest = -self.minus[-1] if len(self.minus) else np.inf
        return float(min(soonest, self.later[0][0] if self.later else np.inf))

    def _rates(self) -> Floats:
        """Bytes/s of the flows under way."""
        part = self.capacity / np.maximum(self.on_link, 1.0)
        part[-1] = np.inf  # of what routes are padded with
        rate = np.full(len(self.left), np.inf)
        for hop in self.routes:
            np.minimum(rate, part.take(hop), out=rate)
        return rate

    def _move(self, rate: Floats, step: float, after: float) -> None:
        """Move bytes for ``step`` seconds until ``after``, and end the flows that are through."""
        self.now = after
        rate *= step
        self.left -= rate
        nbytes = self.flows.nbytes[self.number]
        through = self.left <= self.least * nbytes
        if not through.any():
            return
        self.skipped = max(self.skipped, float((self.left[through] / nbytes[through]).max()))
        np.subtract.at(self.on_link, self.routes[:, through].ravel(), 1.0)
        ended, kept = self.number[through], ~through
        self.number, self.left = self.number[kept], self.left[kept]
        self.routes = np.ascontiguousarray(self.routes[:, kept])
        self._end(ended, after)

    def _end(self, ended: Ints64, now: float) -> None:
        """Note the ends, and post what waited for them alone."""
        self.finish[ended] = now
        if self.edges is None:
            return
        offsets, following = self.edges
        for flow in ended.tolist():
            to = following[offsets[flow] : offsets[flow + 1]]
            np.subtract.at(self.waiting, to, 1)
            for other in to[self.waiting[to] == 0].tolist():
                heappush(self.later, (now + float(self.latency[other]), other))

    def _begin(self, now: float) -> None:
        """Put what begins until ``now`` under way; what has nothing to move ends."""
        count = len(self.first) - int(np.searchsorted(self.minus, -now))
        if count:
            new = self.first[-count:]
            self.first, self.minus = self.first[:-count], self.minus[:-count]
            self._start(new, now)
        while self.later and self.later[0][0] <= now:
            some = []
            while self.later and self.later[0][0] <= now:
                some.append(heappop(self.later)[1])
            self._start(np.array(some), now)

    def _start(self, flows: Ints64, now: float) -> None:
        moving = flows[self.moves[flows]]
        if len(moving) < len(flows):
            self._end(flows[~self.moves[flows]], now)
        routes = self.flows.routes[moving].T
        self.number = np.append(self.number, moving)
        self.routes = np.append(self.routes, routes, axis=1)
        self.left = np.append(self.left, self.flows.nbytes[moving])
        np.add.at(self.on_link, routes.ravel(), 1.0)

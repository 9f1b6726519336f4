"""Contention of flows: the two factors of ParaDL (Kahira et al., HPDC 2021), computed
from the flows and their routes; ParaDL takes them as given.

*Self-contention.* ParaDL multiplies the time per byte of a collective by a penalty that
it takes from a dynamic contention graph (Martinasso & Mehaut, A Contention-Aware
Performance Model for HPC-Based Networks: A Case Study of the InfiniBand Network,
Euro-Par 2011): the flows under way, and an edge between two that share a link. The law
here:

- A flow moves at the least of ``capacity / flows under way`` over the links of its route: every
  link gives each of its flows the same part. What a flow that is slower elsewhere leaves of its
  part is not given to others.
- Whenever a flow begins or ends the graph is taken anew.
- A flow is posted, spends its latencies without using its links, and waits for others, as in all
  network models.

The coefficient is the makespan by this law over that of the same flows without
contention, each at the capacity of its slowest link.

*Congestion.* The same flows among those of others, over the same flows alone.

*Beside max-min fair sharing.* With the same flows under way no flow is faster here than
with max-min fair rates, which never are below the equal part of the slowest link. If
flows wait for none, those that are under way there are under way here too, so by
induction over the ends no flow ends later there. Both are the same where the slowest
link of a flow is that of all flows on it. If flows wait for others, the order in which
they meet may differ, and either may end first.
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
    """Contention of flows: the time that they take, and would take without each other."""

    finish: Floats  # (flows,) s, when each ends
    makespan: float  # s, when the last one does
    isolated_makespan: float  # s, when it would without contention
    # the static coefficient: how many times slower than alone the slowest flow is while all flows
    # that wait for none are under way together
    first_stage: float
    slowest_link: int  # the link on which it is so slow; -1 if there is none

    @property
    def coefficient(self) -> float:
        """Makespan over the makespan without contention; 1 if nothing takes time."""
        return (
            self.makespan / self.isolated_makespan
            if self.isolated_makespan > 0
            else 1.0
        )


def self_contention(links: Links, flows: Flows, tolerance: float = 0.0) -> Contention:
    """Compute how much ``flows`` slow each other down.

    ``tolerance`` is that of `finish_times`: the share of its bytes that a flow may
    skip.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    outcome = finish_times(links, flows, tolerance)
    first, link = first_stage_contention(links, flows)
    return Contention(
        outcome.finish,
        outcome.makespan,
        analytic.isolated_makespan(links, flows),
        first,
        link,
    )


def first_stage_contention(links: Links, flows: Flows) -> tuple[float, int]:
    """Compute `Contention.first_stage` and `Contention.slowest_link`; 1 and -1 if no
    flow that waits for none has bytes to move over links.

    Flows that wait for none count as under way together, whenever they start; those
    without bytes do not count.
    """
    is_first = flows.nbytes > 0
    is_first[flows.after_to] = False
    routes = flows.routes if is_first.all() else flows.routes[is_first]
    # (links + 1,) flows of each link, the last entry for the padding: bincount has that at 0
    count = np.zeros(len(links) + 1)
    for hop in routes.T:  # column by column: the table of an all-to-all is large
        count += np.roll(np.bincount(hop + 1, minlength=len(count)), -1)
    equal_share = np.append(links.capacity / np.maximum(count[:-1], 1.0), np.inf)
    padded_capacity = np.append(links.capacity, np.inf)
    flow_share, flow_capacity = np.full((2, len(routes)), np.inf)
    for hop in routes.T:
        np.minimum(flow_share, equal_share[hop], out=flow_share)
        np.minimum(flow_capacity, padded_capacity[hop], out=flow_capacity)
    moving_flows = np.flatnonzero(np.isfinite(flow_capacity))
    if not len(moving_flows):
        return 1.0, -1
    slowdown = flow_capacity[moving_flows] / flow_share[moving_flows]
    route = routes[moving_flows[np.argmax(slowdown)]]
    return float(slowdown.max()), int(route[np.argmin(equal_share[route])])


def finish_times(links: Links, flows: Flows, tolerance: float = 0.0) -> FlowOutcome:
    """Compute when ``flows`` end if every link gives each of its flows an equal share.

    Args:
        links, flows: as for all network models.
        tolerance: a flow may end together with another as soon as it has at most this
            share of its bytes left, so that fewer moments have to be solved for. Below
            `ROUNDING` it counts as `ROUNDING`.

    Returns:
        finish: (flows,) s; makespan: s, 0 without flows; error_bound: the largest share
            of its bytes that a flow skipped, 0 if it is at most `ROUNDING`.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    return _EqualShareClock(links, flows, max(tolerance, ROUNDING)).run()


class _EqualShareClock:
    """A clock of flows under equal shares: the flows under way, and the ones that are
    still to begin.
    """

    def __init__(self, links: Links, flows: Flows, tolerance: float) -> None:
        """Schedule the flows that wait for no other; nothing is under way yet."""
        count = len(flows)
        self.flows = flows
        self.tolerance = tolerance
        self.latency = flows.latencies(links)
        self.has_bytes_to_move = (flows.nbytes > 0) & (flows.routes >= 0).any(axis=1)
        self.finish = np.full(count, np.nan)
        self.capacity = np.append(links.capacity, np.inf)
        self.on_link = np.zeros(len(links) + 1)
        # of those under way: which they are, their links (hops, flows), and the bytes left
        self.active_flows = np.empty(0, np.int64)
        self.routes: Ints32 = np.empty((flows.routes.shape[1], 0), np.int32)
        self.remaining_bytes = np.empty(0)
        # those that are to begin: the ones that wait for none, soonest last, with the time before 0
        # that mirrors the one when each begins, which ascends; and the others
        self.num_waiting = np.bincount(flows.after_to, minlength=count)
        self.edges = successors(flows) if len(flows.after_to) else None
        independent_flows = np.flatnonzero(self.num_waiting == 0)
        negative_start = -(flows.earliest_post + self.latency)[independent_flows]
        order = np.argsort(negative_start, kind="stable")
        self.scheduled_flows = independent_flows[order]
        self.negative_start = negative_start[order]
        self.delayed: list[tuple[float, int]] = []
        self.now = self.skipped = 0.0

    def run(self) -> FlowOutcome:
        """Run all flows to their ends; see `finish_times`."""
        while True:
            next_begin = self._next_begin()
            rate = self._rates()
            next_end_delay = float((self.remaining_bytes / rate).min(initial=np.inf))
            if min(next_begin, next_end_delay) == np.inf:
                break
            # an end may come so soon that the clock does not move: its bytes have to
            if self.now + next_end_delay <= next_begin:
                self._move(rate, next_end_delay, self.now + next_end_delay)
            else:
                self._move(rate, next_begin - self.now, next_begin)
            self._begin(self.now)
        if num_unended := int(np.isnan(self.finish).sum()):
            raise SimulationError(
                f"{num_unended} flows wait for each other in a circle and never start"
            )
        skipped = self.skipped if self.skipped > ROUNDING else 0.0
        return FlowOutcome(self.finish, float(self.finish.max(initial=0.0)), skipped)

    def _next_begin(self) -> float:
        """Seconds at which the next flow begins to move, inf if none does."""
        next_scheduled = (
            -self.negative_start[-1] if len(self.negative_start) else np.inf
        )
        return float(
            min(next_scheduled, self.delayed[0][0] if self.delayed else np.inf)
        )

    def _rates(self) -> Floats:
        """(active flows,) bytes/s of the flows under way: the least equal share of
        their links.
        """
        equal_share = self.capacity / np.maximum(self.on_link, 1.0)
        equal_share[-1] = np.inf  # of what routes are padded with
        rate = np.full(len(self.remaining_bytes), np.inf)
        for hop in self.routes:
            np.minimum(rate, equal_share.take(hop), out=rate)
        return rate

    def _move(self, rate: Floats, step: float, end_time: float) -> None:
        """Move bytes for ``step`` seconds until ``end_time`` (s), and end the flows
        that are through.

        Args:
            rate: (active flows,) bytes/s; used as scratch.
            step: s.
            end_time: s, the clock afterwards.
        """
        self.now = end_time
        rate *= step
        self.remaining_bytes -= rate
        nbytes = self.flows.nbytes[self.active_flows]
        is_through = self.remaining_bytes <= self.tolerance * nbytes
        if not is_through.any():
            return
        self.skipped = max(
            self.skipped,
            float((self.remaining_bytes[is_through] / nbytes[is_through]).max()),
        )
        np.subtract.at(self.on_link, self.routes[:, is_through].ravel(), 1.0)
        ended = self.active_flows[is_through]
        is_active = ~is_through
        self.active_flows = self.active_flows[is_active]
        self.remaining_bytes = self.remaining_bytes[is_active]
        self.routes = np.ascontiguousarray(self.routes[:, is_active])
        self._end(ended, end_time)

    def _end(self, ended: Ints64, now: float) -> None:
        """Note the ends of flows, and post those that now wait for no other: they begin
        to move after their latencies, whatever their ``start`` is.
        """
        self.finish[ended] = now
        if self.edges is None:
            return
        offsets, following = self.edges
        for flow in ended.tolist():
            successors = following[offsets[flow] : offsets[flow + 1]]
            np.subtract.at(self.num_waiting, successors, 1)
            for successor in successors[self.num_waiting[successors] == 0].tolist():
                heappush(
                    self.delayed, (now + float(self.latency[successor]), successor)
                )

    def _begin(self, now: float) -> None:
        """Start all flows that begin until ``now`` (s)."""
        num_due = len(self.scheduled_flows) - int(
            np.searchsorted(self.negative_start, -now)
        )
        if num_due:
            due_flows = self.scheduled_flows[-num_due:]
            self.scheduled_flows = self.scheduled_flows[:-num_due]
            self.negative_start = self.negative_start[:-num_due]
            self._start(due_flows, now)
        while self.delayed and self.delayed[0][0] <= now:
            due_delayed = []
            while self.delayed and self.delayed[0][0] <= now:
                due_delayed.append(heappop(self.delayed)[1])
            self._start(np.array(due_delayed), now)

    def _start(self, flows: Ints64, now: float) -> None:
        """Put flows under way; a flow without bytes or links ends at ``now``."""
        moving = flows[self.has_bytes_to_move[flows]]
        if len(moving) < len(flows):
            self._end(flows[~self.has_bytes_to_move[flows]], now)
        routes = self.flows.routes[moving].T
        self.active_flows = np.append(self.active_flows, moving)
        self.routes = np.append(self.routes, routes, axis=1)
        self.remaining_bytes = np.append(
            self.remaining_bytes, self.flows.nbytes[moving]
        )
        np.add.at(self.on_link, routes.ravel(), 1.0)

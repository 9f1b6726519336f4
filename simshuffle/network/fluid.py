"""The fluid network: flow-level, max-min fair, work-conserving, static routes, latency then bandwidth. Exact.

`FluidNetwork` runs without SimPy: post batches of transfers, ask for the next moment at which a group of them is complete. `finish_times`
is the whole of it for explicit flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.errors import SimulationError
from simshuffle.network import kernel
from simshuffle.network.flows import Flows, Links, Outcome
from simshuffle.spec import Fraction, Spec
from simshuffle.traffic import TransferBatch, as_floats, tasks

PAIR_BUCKETS = 1 << 14


class FluidNetwork:
    """A set of links and the transfers on them.

    Args:
        capacities: (links,) capacity of each directed link, in its own units per second; greater than 0.
        width: the longest route, in links.
        accounts: number of time accounts (see `TASK.account`).
        tags: number of end times to note (see `TASK.tag`).

    Raises:
        ValueError: a capacity is not a positive finite number.
    """

    def __init__(self, capacities: ArrayLike, *, width: int = 8, accounts: int = 0, tags: int = 0) -> None:
        values = as_floats(capacities)
        if not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError("every link needs a capacity that is finite and greater than 0")
        self.links = np.zeros(len(values), kernel.LINK)
        self.links["capacity"] = values
        self.links["head"] = self.links["crowd"] = -1
        self.clock = np.zeros(1, kernel.CLOCK)
        self.clock["stamp"] = 1
        self.clock["free_node"] = self.clock["free_edge"] = -1
        self._n_done, self._n_alive, self._seq = (self.clock[name] for name in ("n_done", "n_alive", "seq"))
        self._last_size = 0
        self.accounts = np.zeros(max(accounts, 1))
        self.finish = np.full(max(tags, 1), np.nan)
        self._width = max(width, 1)
        self._buckets = np.full(PAIR_BUCKETS, -1, np.int32)
        self._groups = np.zeros(0, kernel.GROUP)
        self._free_groups: list[int] = []
        self._nodes = np.zeros(0, kernel.NODE)
        self._hops = np.zeros(0, kernel.HOP)
        self._heap = self._flows = np.zeros(0, np.int32)
        self._edges = np.zeros(0, kernel.EDGE)
        self._edges_alive_bound = 0
        self._grow_nodes(256)
        self._grow_edges(256)
        self._grow_groups(64)

    @property
    def now(self) -> float:
        """Simulated time reached (s)."""
        return float(self.clock["now"][0])

    @property
    def alive(self) -> int:
        """Transfers posted and not yet ended."""
        return int(self.clock["n_alive"][0])

    def open_group(self, expected: int) -> int:
        """The number of a new group, which is complete when ``expected`` (at least 1) of its transfers have ended."""
        if not self._free_groups:
            self._grow_groups(2 * len(self._groups))
        group = self._free_groups.pop()
        self._remaining[group] = expected
        self._watched[group] = 0
        return group

    def watch(self, group: int) -> bool:
        """Have `advance` report the completion of a group; False if it is complete already."""
        if self._remaining[group] == 0:
            return False
        self._watched[group] = 1
        return True

    def close_group(self, group: int) -> tuple[float, float]:
        """Give the number of a complete group back: when its marked transfer ended, and its last one (s)."""
        self._free_groups.append(group)
        return float(self._t_mark[group]), float(self._t_done[group])

    @property
    def last(self) -> tuple[int, int]:
        """The last transfer of the batch posted last, for the columns 'after' and 'after_seq' of another."""
        return int(self._slots[self._last_size - 1]), int(self._seq[0]) - 1

    def post(self, now: float, batch: TransferBatch) -> float:
        """Post transfers at time ``now`` (s); returns the time of the next event (s).

        All events before ``now`` must have been run by `advance`.
        """
        self._make_room(batch)
        upcoming = kernel.post(
            self._nodes, self._hops, self._heap, self._edges, self.clock, now, batch.tasks, batch.routes, batch.edge_from,
            batch.edge_to, self._slots,
        )  # fmt: skip
        self._last_size = len(batch.tasks)
        return float(upcoming)

    def advance(self, horizon: float) -> tuple[float, list[int]]:
        """Run events up to ``horizon`` (s), stopping after the first instant that completes a watched group.

        Returns the time of the next event (s, inf if there is none) and those groups; `now` is the instant reached.
        """
        upcoming = kernel.advance(
            self._nodes, self.links, self._hops, self._heap, self._edges, self._groups, self.clock, self._buckets, self._done,
            self._flows, self._touched, self._keys, self._ids, self._queue, self.accounts, self.finish, horizon,
        )  # fmt: skip
        n_done = self._n_done[0]
        return float(upcoming), self._done[:n_done].tolist() if n_done else []

    def settle(self) -> None:
        """Bring the statistics of every link up to `now`."""
        links = self.links
        elapsed = np.where(links["load"] > 0, np.maximum(self.now - links["t_load"], 0.0), 0.0)
        links["work"] += links["load"] * elapsed
        links["busy"] += elapsed
        links["t_load"] = self.now

    # -------------------------------------------------------------------------------------------------- room for more transfers

    def _make_room(self, batch: TransferBatch) -> None:
        if batch.routes.shape[1] > self._width:
            raise ValueError(f"a route of {batch.routes.shape[1]} links does not fit the width of {self._width}")
        transfers = int(self._n_alive[0]) + len(batch.tasks)
        needed = transfers + min(transfers, len(self.links))  # a link has one crowd at most, and a crowd one member at least
        if needed > len(self._nodes):
            self._grow_nodes(max(len(self._nodes) * 3 // 2, needed))
        more_edges = len(batch.edge_from) + len(batch.tasks)
        if more_edges:
            self._edges_alive_bound += more_edges
            if self._edges_alive_bound > len(self._edges):
                self._edges_alive_bound = self._count_live_edges() + more_edges
                if self._edges_alive_bound > len(self._edges):
                    self._grow_edges(max(2 * len(self._edges), self._edges_alive_bound))

    def _count_live_edges(self) -> int:
        return len(self._edges) - int(kernel.count_free_edges(self._edges, self.clock))

    def _thread(self, following: NDArray[np.int32], old: int, head: str) -> None:
        """Put the entries from ``old`` on in front of a free list, lowest index first."""
        following[old:] = np.arange(old + 1, len(following) + 1)
        following[-1] = self.clock[head][0]
        self.clock[head] = old

    def _grow_nodes(self, count: int) -> None:
        old = len(self._nodes)
        width = self._width
        nodes = np.zeros(count, kernel.NODE)
        nodes[:old] = self._nodes
        hops = np.zeros(count * width, kernel.HOP)
        heap = np.zeros(count, np.int32)
        hops[: old * width] = self._hops
        heap[:old] = self._heap
        self._nodes, self._hops, self._heap = nodes, hops, heap
        self._thread(nodes["next_free"], old, "free_node")
        self._slots = np.empty(count, np.int32)
        self._flows = np.concatenate([self._flows, np.empty(count - old, np.int32)])
        self._queue = np.empty(2 * count, np.int32)
        self._touched = np.empty(len(self.links), np.int32)
        self._keys = np.empty(len(self.links) + count)
        self._ids = np.empty(len(self.links) + count, np.int32)

    def _grow_edges(self, count: int) -> None:
        old = len(self._edges)
        edges = np.zeros(count, kernel.EDGE)
        edges[:old] = self._edges
        self._edges = edges
        self._thread(edges["next"], old, "free_edge")

    def _grow_groups(self, count: int) -> None:
        old = len(self._groups)
        groups = np.zeros(count, kernel.GROUP)
        groups[:old] = self._groups
        self._groups = groups
        self._remaining, self._watched = groups["remaining"], groups["watched"]
        self._t_mark, self._t_done = groups["t_mark"], groups["t_done"]
        self._done = np.empty(count, np.int32)
        self._free_groups[:0] = range(count - 1, old - 1, -1)


class Fluid(Spec):
    """Max-min fair sharing, flow by flow.

    ``fair_share``: links are shared fairly between (src, dst) pairs, whose messages go one after the other, or between single messages
    (in `finish_times` every flow is on its own). ``tolerance``: 0 for the exact answer; else completions within this share of the time
    passed are taken together.
    """

    kind: Literal["fluid"] = "fluid"
    fair_share: Literal["pair", "message"] = "pair"
    tolerance: Fraction = 0.0

    @property
    def serial_pairs(self) -> bool:
        """Whether the messages of one (src, dst) pair go one after the other."""
        return self.fair_share == "pair"

    def finish_times(self, links: Links, flows: Flows) -> Outcome:
        """When ``flows`` end, each draining its bytes at its max-min fair rate.

        Returns:
            finish: (flows,) s; makespan: s; error_bound: the tolerance, 0 if exact.

        Raises:
            SimulationError: flows wait for each other in a circle.
        """
        count = len(flows)
        columns: dict[str, Any] = {"nbytes": flows.nbytes, "delay": flows.latencies(links), "start": flows.posted}
        batch = TransferBatch(
            tasks(count, work=flows.nbytes, tag=np.arange(count), **columns), flows.routes, flows.after_from, flows.after_to
        )
        network = FluidNetwork(links.capacity, width=flows.routes.shape[1], tags=count)
        network.post(0.0, batch)
        network.advance(np.inf)
        if network.alive:
            raise SimulationError(f"{network.alive} flows wait for each other in a circle and never start")
        finish = network.finish[:count]
        return Outcome(finish, float(finish.max(initial=0.0)), self.tolerance)


def finish_times(
    capacities: ArrayLike,
    latencies: ArrayLike,
    routes: Sequence[Sequence[int]],
    nbytes: ArrayLike,
    start: ArrayLike,
    after: Sequence[Sequence[int]] | None = None,
) -> NDArray[np.float64]:
    """When explicit flows over explicit links end, exactly: `Fluid.finish_times` for lists; see `Flows` for their meaning.

    Args:
        capacities: (links,) bytes/s.
        latencies: (links,) s.
        routes: for each flow the indices of its links.
        nbytes: (flows,) bytes.
        start: (flows,) s.
        after: for each flow the indices of the flows it waits for; None if no flow waits.

    Returns:
        (flows,) s.

    Raises:
        ValueError: a capacity is not positive and finite, or lengths do not fit.
        SimulationError: flows wait for each other in a circle.
    """
    links = Links(as_floats(capacities), as_floats(latencies))
    return Fluid().finish_times(links, Flows.of(routes, as_floats(nbytes), as_floats(start), after)).finish

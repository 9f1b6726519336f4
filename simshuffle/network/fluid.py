"""The fluid network: flow-level, max-min fair, work-conserving, static routes, latency then
bandwidth. Exact.

`FluidNetwork` runs without SimPy: post batches of transfers, ask for the next moment at which a
group of them is complete. `finish_times` is the whole of it for explicit flows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.errors import SimulationError
from simshuffle.network import fair, kernel, symmetry
from simshuffle.network.batch import TransferBatch, as_floats, tasks
from simshuffle.network.binding import binding
from simshuffle.network.flows import Flows, Links, Outcome
from simshuffle.spec.record import Fraction, Spec

PAIR_BUCKETS = 1 << 14
# Links kept for distinct rate limits of transfers; more are made when they are needed.
RATE_LIMITS = 15
# Events, and visits of links, between two looks at whether the user wants to stop: well under a
# second.
SLICE = 1 << 20


class FluidNetwork:
    """A set of links and the transfers on them.

    Args:
        capacities: (links,) capacity of each directed link, in its own units per second; greater
            than 0.
        width: the longest route, in links.
        accounts: number of time accounts (see `TASK.account`).
        tags: number of end times to note (see `TASK.tag`).
        capped: whether transfers may have a rate limit of their own (see `TASK.cap`).
        tolerance: a transfer ends as soon as it has at most this share of its work left; 0 for the
            exact answer.

    Raises:
        ValueError: a capacity is not a positive finite number.
    """

    def __init__(
        self,
        capacities: ArrayLike,
        *,
        width: int = 8,
        accounts: int = 0,
        tags: int = 0,
        capped: bool = True,
        tolerance: float = 0.0,
    ) -> None:
        values = as_floats(capacities)
        if not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError("every link needs a capacity that is finite and greater than 0")
        self._tolerance = tolerance
        # called now and then during a long `advance`
        self.after_slice: Callable[[], None] | None = None
        self._count = len(values)
        self._capped = capped
        self._width = max(width, 1) + (1 if capped else 0)
        self.clock = np.zeros(1, kernel.CLOCK)
        self.clock["nowhere"] = self._count
        self.clock["free_node"] = self.clock["free_edge"] = -1
        self.clock["outbox"] = -1
        self._n_done, self._n_alive, self._seq, self._outbox = (
            self.clock[name] for name in ("n_done", "n_alive", "seq", "outbox")
        )
        self._last_size = 0
        self.accounts = np.zeros(max(accounts, 1))
        self.finish = np.full(max(tags, 1), np.nan)
        self._buckets = np.full(PAIR_BUCKETS, -1, np.int32)
        self._groups = np.zeros(0, kernel.GROUP)
        self._free_groups: list[int] = []
        self._heap = np.zeros(0, np.int32)
        self._edges = np.zeros(0, kernel.EDGE)
        self._edges_alive_bound = 0
        self._state = self._links(values, self._count + 1 + (RATE_LIMITS if capped else 0))
        self._grow_nodes(256)
        self._grow_edges(256)
        self._grow_groups(64)

    def _links(self, values: NDArray[np.float64], count: int) -> fair.State:
        """The arrays of ``count`` links, the first of which have the capacities ``values``, and no
        transfer."""
        links = np.zeros(count, fair.LINK)
        links["head"] = links["alone"] = links["rank"] = -1
        # not zeros: vector stores into memory that was never written are slow on some processors
        load = np.full((3, count), 0.0)
        load[fair.CAPACITY] = np.inf
        load[fair.CAPACITY, : len(values)] = values
        return fair.State(
            width=self._width,
            nodes=np.zeros(0, kernel.NODE),
            links=links,
            hops=np.zeros(0, fair.HOP),
            clock=self.clock,
            load=load,
            ends=np.full(-(-count // fair.FAN**2) * fair.PER_GROUP, np.inf),
            entries=np.zeros(0, fair.ENTRY),
            others=np.zeros(0, np.uint32),
            room=np.zeros(count + 1, fair.ROOM),
        )

    @property
    def links(self) -> NDArray[Any]:
        """(links,) records of dtype `fair.LINK`: the statistics of the links, up to date after
        `settle`."""
        records: NDArray[Any] = self._state.links[: self._count]
        return records

    @property
    def now(self) -> float:
        """Simulated time reached (s)."""
        return float(self.clock["now"][0])

    @property
    def alive(self) -> int:
        """Transfers posted and not yet ended."""
        return int(self.clock["n_alive"][0])

    def open_group(self, expected: int) -> int:
        """The number of a new group, which is complete when ``expected`` (at least 1) of its
        transfers have ended."""
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
        """Give the number of a complete group back: when its marked transfer ended, and its last
        one (s)."""
        self._free_groups.append(group)
        return float(self._t_mark[group]), float(self._t_done[group])

    @property
    def last(self) -> tuple[int, int]:
        """The last transfer of the batch posted last, for the columns 'after' and 'after_seq' of
        another."""
        return int(self._slots[self._last_size - 1]), int(self._seq[0]) - 1

    def post(self, now: float, batch: TransferBatch) -> float:
        """Post transfers at time ``now`` (s); returns the time of the next event (s).

        All events before ``now`` must have been run by `advance`.
        """
        self._make_room(batch)
        upcoming = kernel.post(
            self._state,
            self._heap,
            self._edges,
            float(now),
            batch.tasks,
            batch.routes,
            batch.edge_from,
            batch.edge_to,
            self._slots,
        )
        self._last_size = len(batch.tasks)
        return float(upcoming)

    def advance(self, horizon: float) -> tuple[float, list[int]]:
        """Run events up to ``horizon`` (s), stopping after the first instant that completes a
        watched group.

        Returns the time of the next event (s, inf if there is none) and those groups; `now` is the
        instant reached.
        """
        while True:
            upcoming = kernel.advance(
                self._state,
                self._heap,
                self._edges,
                self._groups,
                self._buckets,
                self._done,
                self._room,
                self.accounts,
                self.finish,
                horizon,
                self._tolerance,
                SLICE,
            )
            if self._n_done[0] or upcoming > horizon or upcoming == np.inf or self._outbox[0] >= 0:
                break
            if self.after_slice is not None:
                self.after_slice()
        n_done = self._n_done[0]
        return float(upcoming), self._done[:n_done].tolist() if n_done else []

    def settle(self) -> None:
        """Bring the statistics of every link up to `now`."""
        kernel.settle(self._state)

    def restart_peaks(self) -> None:
        """Forget the highest loads so far; `settle` then gives those from now on."""
        load = self._state.load
        load[fair.TOP] = np.where(self._state.links["n"] > 0, load[fair.CAPACITY], load[fair.EXT])

    # ---------------------------------------------------------------------- room for more transfers

    def _make_room(self, batch: TransferBatch) -> None:
        if batch.routes.shape[1] > self._width:
            raise ValueError(
                f"a route of {batch.routes.shape[1]} links does not fit the width of {self._width}"
            )
        needed = int(self._n_alive[0]) + len(batch.tasks)
        if needed > len(self._state.nodes):
            self._grow_nodes(max(len(self._state.nodes) * 3 // 2, needed))
        lacking = kernel.reserve(self._state, batch.tasks, batch.routes, True)
        while lacking:
            if lacking == 2:
                self._grow_links()
            else:
                self._grow_arena(batch)
            lacking = kernel.reserve(self._state, batch.tasks, batch.routes, lacking == 2)
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
        state, old, width = self._state, len(self._state.nodes), self._width
        self._heap = _longer(self._heap, count)
        self._slots = np.empty(count, np.int32)
        self._room = np.empty(3 * count, np.int32)
        nodes, hops = _longer(state.nodes, count), _longer(state.hops, count * width)
        self._state = state._replace(
            nodes=nodes, hops=hops, room=_longer(state.room, max(count, len(state.room)))
        )
        self._thread(nodes["next_free"], old, "free_node")

    def _grow_arena(self, batch: TransferBatch) -> None:
        """Enlarge the room for the heaps of the links, at least by what ``batch`` may need."""
        state = self._state
        count = max(
            2 * len(state.entries), int(self.clock["heap_top"][0]) + batch.routes.size + len(batch)
        )
        entries, others = (
            _longer(state.entries, count),
            _longer(state.others, count * (self._width - 1)),
        )
        self._state = state._replace(entries=entries, others=others)

    def _grow_links(self) -> None:
        """Make room for more distinct rate limits."""
        old = self._state
        new = self._links(old.load[fair.CAPACITY, : self._count], 2 * len(old.links))
        count = len(old.links)
        new.links[:count] = old.links
        new.load[:, :count] = old.load
        new.ends[:count] = old.ends[:count]
        room = _longer(old.room, max(len(old.room), len(new.room)))
        self._state = old._replace(links=new.links, load=new.load, ends=new.ends, room=room)
        kernel.refresh(self._state)

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


def _longer(values: NDArray[Any], count: int) -> NDArray[Any]:
    """A copy with room for ``count`` rows, the new ones 0."""
    out = np.zeros((count, *values.shape[1:]), values.dtype)
    out[: len(values)] = values
    return out


class Fluid(Spec):
    """Max-min fair sharing, flow by flow.

    ``fair_share``: links are shared fairly between (src, dst) pairs, whose messages go one after
    the other, or between single messages (in `finish_times` every flow is on its own).
    ``tolerance``: 0 for the exact answer; else a flow may end together with another as soon as it
    has at most this share of its bytes left, so that fewer moments have to be solved for.
    """

    kind: Literal["fluid"] = "fluid"
    fair_share: Literal["pair", "message"] = "pair"
    tolerance: Fraction = 0.0

    @property
    def serial_pairs(self) -> bool:
        """Whether the messages of one (src, dst) pair go one after the other."""
        return self.fair_share == "pair"

    def finish_times(
        self, links: Links, flows: Flows, progress: Callable[[float], None] | None = None
    ) -> Outcome:
        """When ``flows`` end, each draining its bytes at its max-min fair rate; ``progress`` is
        told the share of them that have ended.

        Returns:
            finish: (flows,) s; makespan: s; error_bound: the largest share of its bytes that a flow
                was spared, 0 if exact. So the answer
            is the exact one for flows that are smaller by at most this share.

        Raises:
            SimulationError: flows wait for each other in a circle.
        """
        alike = symmetry.finish_times(links, flows)
        if alike is not None:
            return Outcome(alike, float(alike.max(initial=0.0)), 0.0)
        count = len(flows)
        columns: dict[str, Any] = {
            "nbytes": flows.nbytes,
            "delay": flows.latencies(links),
            "start": flows.posted,
        }
        shared, routes = binding(links, flows)
        batch = TransferBatch(
            tasks(count, work=flows.nbytes, tag=np.arange(count), **columns),
            routes,
            flows.after_from,
            flows.after_to,
        )
        network = FluidNetwork(
            shared.capacity,
            width=routes.shape[1],
            tags=count,
            capped=False,
            tolerance=self.tolerance,
        )
        if progress is not None:
            network.after_slice = lambda: progress(1.0 - network.alive / count)
        network.post(0.0, batch)
        network.advance(np.inf)
        if network.alive:
            raise SimulationError(
                f"{network.alive} flows wait for each other in a circle and never start"
            )
        finish = network.finish[:count]
        return Outcome(finish, float(finish.max(initial=0.0)), float(network.clock["spared"][0]))


def finish_times(
    capacities: ArrayLike,
    latencies: ArrayLike,
    routes: Sequence[Sequence[int]],
    nbytes: ArrayLike,
    start: ArrayLike,
    after: Sequence[Sequence[int]] | None = None,
) -> NDArray[np.float64]:
    """When explicit flows over explicit links end, exactly: `Fluid.finish_times` for lists; see
    `Flows` for their meaning.

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
    return (
        Fluid()
        .finish_times(links, Flows.of(routes, as_floats(nbytes), as_floats(start), after))
        .finish
    )

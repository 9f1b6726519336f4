"""The engine of the fluid network: max-min fair sharing of links, kept up to date from
event to event, in compiled code.

A rate vector is max-min fair exactly if it is feasible and every flow has a bottleneck:
a saturated link on which no other flow is faster (Bertsekas & Gallager, Data Networks,
2nd ed., section 6.5.2). So all flows that have their bottleneck on one link have one
rate, the *level* of that link, and the state of the network is one level for each
saturated link and one bottleneck for each flow. Let the *other load* of a link be what
the flows with a bottleneck elsewhere take of it. Then ``level = (capacity - other load)
/ flows of its own``.

Three things follow, and the code is made of them:

*Virtual time.* The flows of a link drain at one level, so they end in the order of
``served + bytes left``, where ``served`` integrates the level. A new level moves the
next end of the link, but no flow: a link holds its flows in a heap by that key, and
only the links have a place in time. (Processor sharing in virtual time, as in fair
queueing: Demers, Keshav & Shenker, SIGCOMM 1989.)

*Influence runs upwards.* A level depends on lower levels only (the bottleneck structure
of Ros-Giralt et al., SIGMETRICS 2020). After an arrival or a departure the links are
visited from the lowest changed one upwards; a link whose level changes passes the
difference on to the links that its flows cross. A flow changes its bottleneck when a
visit finds a lower level on its route.

*Two ways to visit.* While few links change, those that do are kept in a heap by level
(``fluid_repair.py``). When an event moves most levels, as in a dense all-to-all, the
links are visited in the order of their levels before the event, which is nearly right;
one that comes out below its predecessor is moved forward (``fluid_sweep.py``). An order
that does not decrease proves the bottleneck condition. When much of the network starts
at one instant, all is filled anew (progressive filling, ``fluid_fill.py``).

Where to read, each file standing on those before it:

- ``fluid_records.py``: the arrays, by owner, with the meaning and unit of each field;
  ``tests/fluid_check.py``: what holds between them after every event, in plain Python;
- ``fluid_ahead.py``: the next data, fetched into the caches; ``fluid_members.py``: the flows of a
  link; ``fluid_events.py``: the next event, an end or a delay that passes, and the posting of
  transfers;
- ``fluid_repair.py``, ``fluid_sweep.py``, ``fluid_fill.py``: three ways to make rates fair again;
- ``fluid_transfers.py``: the choice among them; the life of a transfer around its draining:
  dependencies, delays, pairs, groups; the loop of events;
- ``fluid_groups.py`` and here `FluidNetwork`: the network as Python sees it;
- ``fluid_solve.py``: explicit flows over explicit links, with ``fluid_symmetry.py`` and
  ``fluid_classes.py`` (one flow stands for all that are equivalent).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.fabric.network import fluid_change as change
from simshuffle.fabric.network import fluid_events as events
from simshuffle.fabric.network import fluid_records as records
from simshuffle.fabric.network import fluid_transfers as transfers
from simshuffle.fabric.network.batch import TransferBatch, as_floats
from simshuffle.fabric.network.fluid_groups import TransferGroups, enlarge, fast_view
from simshuffle.fabric.network.fluid_records import (
    CAPACITY,
    FAN,
    OTHER,
    PEAK,
    PER_GROUP,
)
from simshuffle.spec.arrays import Ints, Ints32
from simshuffle.spec.compiling import words

# Links kept for distinct rate limits of transfers; more are made when they are needed.
RATE_LIMITS = 15
# Events, and visits of links, between two looks at whether the user wants to stop: well under a
# second.
SLICE = 1 << 20


class FluidNetwork(TransferGroups):
    """Links and the transfers on them, without SimPy: batches are posted, and it says
    when the next group of transfers is complete.

    Args:
        capacities: (links,) capacity of each directed link, in its own units per
            second; greater than 0.
        width: the longest route, in links, rate limits aside.
        accounts, tags: as of `TransferGroups`.
        capped: whether transfers may have a rate limit of their own (see `TASK.cap`).
        tolerance: at an event, transfers with at most this share of their work left
            end, too; 0 for the exact answer.

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
        link_capacity = as_floats(capacities)
        if not np.all(np.isfinite(link_capacity) & (link_capacity > 0)):
            raise ValueError(
                "every link needs a capacity that is finite and greater than 0"
            )
        super().__init__(accounts, tags)
        self._tolerance = tolerance
        # called now and then during a long `advance`
        self.after_slice: Callable[[], None] | None = None
        self._num_links = len(link_capacity)
        self._state = records.empty_fluid_state(max(width, 1) + capped)
        clock = self.clock = self._state.clock
        clock["null_link"] = self._num_links
        clock["free_node"] = clock["free_edge"] = clock["outbox"] = -1
        clock["moves_per_link"] = records.MOVES_PER_LINK
        self._now, self._n_done, self._outbox = (
            fast_view(clock[name]) for name in ("now", "n_done", "outbox")
        )
        self._n_posted = 0
        self._grow_links(self._num_links + 1 + (RATE_LIMITS if capped else 0))
        self._state.load[: self._num_links, CAPACITY] = link_capacity
        self._grow_nodes(256)
        self._grow_edges(256)
        self._grow_groups(64)
        self._write_words()

    def _write_words(self) -> None:
        """Tell compiled code where the arrays are: again when any has been replaced."""
        self._words = words(self._state), words(self._graph)
        self._addresses = self._words[0].ctypes.data, self._words[1].ctypes.data

    @property
    def links(self) -> NDArray[Any]:
        """(links,) records of dtype `LINK`, of which ``work`` (units carried),
        ``nbytes`` (bytes of the transfers that ended), ``busy`` (s with any transfer)
        and ``peak`` (highest load / capacity since `restart_peaks`) are up to date
        after `settle`: a view, good until the next `post`.
        """
        statistics: NDArray[Any] = self._state.links[: self._num_links]
        return statistics

    @property
    def now(self) -> float:
        """Simulated time reached (s)."""
        now: float = self._now[0]
        return now

    @property
    def alive(self) -> int:
        """Transfers posted and not yet ended."""
        return int(self.clock["n_alive"][0])

    @property
    def posted_slots(self) -> Ints32:
        """(n,) slots of the transfers posted last: a view that `post` overwrites."""
        return self._graph.slots[: self._n_posted]

    def post(self, now: float, batch: TransferBatch) -> float:
        """Post transfers at time ``now`` (s); return the time of the next event (s).

        All events before ``now`` must have been run by `advance`. A route must not
        cross a link twice. Raises a ValueError if ``batch.routes`` has more columns
        than the width, plus one if ``capped``, or if a route with a rate limit has more
        links than the width.
        """
        batch = self.prepare(batch)
        columns = batch.tasks, batch.routes, batch.edge_from, batch.edge_to
        next_event = events.post(*self._addresses, float(now), *columns, True)
        while next_event < 0.0:
            self._make_room(next_event, batch)
            is_uncounted = next_event != events.LACKS_ENTRIES
            next_event = events.post(
                *self._addresses, float(now), *columns, is_uncounted
            )
        self._n_posted = len(batch.tasks)
        return next_event

    def advance(self, horizon: float) -> tuple[float, list[int]]:
        """Run events up to ``horizon`` (s), stopping after the first instant that
        completes a watched group, or puts a transfer into the outbox.

        Returns:
            The time of the next event (s, inf if there is none), and the watched groups
            completed; `now` is then the time of the last event, not the horizon.
        """
        end_time = float(horizon)
        next_event = transfers.advance(
            *self._addresses, end_time, self._tolerance, SLICE
        )
        while next_event < 0.0 or (
            not self._n_done[0]
            and next_event <= horizon
            and next_event < inf
            and self._outbox[0] < 0
        ):
            if next_event < 0.0:
                self._make_room_for_sequel(next_event)
            elif self.after_slice is not None:
                self.after_slice()
            next_event = transfers.advance(
                *self._addresses, end_time, self._tolerance, SLICE
            )
        return next_event, self._done[: self._n_done[0]].tolist()

    def count_down(self, groups: Ints32, now: float) -> tuple[float, list[int]]:
        """Count each of ``groups`` down once at ``now`` (s), in their order; return as
        `advance`. All events before ``now`` must have been run.
        """
        next_event = -inf
        while next_event < 0.0:
            next_event = transfers.count_down(*self._addresses, float(now), groups)
            if next_event < 0.0:
                self._make_room_for_sequel(next_event)
        return next_event, self._done[: self._n_done[0]].tolist()

    def _make_room_for_sequel(self, shortage: float) -> None:
        """Enlarge the arrays that are too short for the next sequel that is due."""
        group = self._graph.due[self.clock["next_due"][0]]
        self._make_room(shortage, self._sequels[self._graph.groups["sequel"][group]][0])

    def take_outbox(self) -> list[int]:
        """Take out the transfers whose turn it is to be carried elsewhere
        (`TASK.outside`): list their slots in the order of posting.
        """
        nodes = self._state.nodes
        slots = []
        slot = int(self._outbox[0])
        while slot >= 0:
            slots.append(slot)
            slot = int(nodes["next"][slot])
        self._outbox[0] = -1
        return sorted(slots, key=nodes["seq"].__getitem__)

    def complete(self, slot: int, now: float) -> float:
        """Schedule the end of a transfer from the outbox at ``now`` (s), up to which
        all events have been run; return the time of the next event (s).
        """
        return transfers.complete(*self._addresses, slot, float(now))

    def settle(self, now: float | None = None) -> None:
        """Bring the statistics of every link up to `now`; or to a moment (s) after it,
        up to which all events have been run. A packet counts in full from its start on
        a cable on.
        """
        transfers.settle(
            self._addresses[0], self._now[0] if now is None else float(now)
        )

    def restart_peaks(self) -> None:
        """Set peaks to the present loads; `settle` then gives the highest since now."""
        load = self._state.load
        is_full = self._state.links["n"] > 0
        load[:, PEAK] = np.where(is_full, load[:, CAPACITY], load[:, OTHER])

    def raise_peaks(self, links: Ints) -> None:
        """Note that ``links`` have been in use to their whole capacity."""
        load = self._state.load
        load[links, PEAK] = load[links, CAPACITY]

    def set_capacity(self, links: Ints, new_capacity: ArrayLike, now: float) -> float:
        """Give ``links`` other capacities at ``now`` (s); return the time of the next
        event (s). All events before ``now`` must have been run by `advance`.

        Args:
            links: (n,) indices.
            new_capacity: (n,) units/s, finite and greater than 0: not checked.
            now: s.
        """
        state, graph = self._addresses
        indices = np.asarray(links, np.int32)
        return change.set_capacity(
            state, graph, float(now), indices, as_floats(new_capacity)
        )

    def find_transfers_on(self, links: Ints) -> tuple[Ints32, Ints32]:
        """Find the transfers not yet ended whose routes have any of ``links``.

        Returns:
            (n,) their slots, ascending, and (n, width, plus one if ``capped``) their
            routes, padded with -1 and without rate limits.
        """
        return change.find_transfers_on(self._state, links, self._num_links)

    def reroute(self, slots: Ints32, routes: Ints32, now: float) -> float:
        """Continue the transfers in ``slots`` over other routes from ``now`` (s) on;
        return the time of the next event (s), as `set_capacity`.

        The units that they have carried stay with the links of their old routes.

        Args:
            slots: (n,) slots of transfers that have not ended.
            routes: (n, up to the width) links, padded with -1: not checked.
            now: s, up to which all events have been run.
        """
        total_work = np.empty(len(slots))
        next_event = events.LACKS_ENTRIES
        is_uncounted = True
        while next_event == events.LACKS_ENTRIES:
            state, graph = self._addresses
            next_event = change.reroute(
                state, graph, float(now), slots, routes, total_work, is_uncounted
            )
            if next_event == events.LACKS_ENTRIES:
                self._grow_arena(routes.size)
                self._write_words()
            is_uncounted = False
        self._state.nodes["work"][slots] = total_work
        return next_event

    # ------------------------------------------------------------------------------- longer arrays

    def _make_room(self, shortage: float, batch: TransferBatch) -> None:
        """Enlarge the arrays that `events.post` says are too short for ``batch``; raise
        a ValueError if its routes are too long.
        """
        state = self._state
        graph = self._graph
        clock = self.clock
        if shortage == events.LACKS_WIDTH:
            raise ValueError(
                f"a route of {batch.routes.shape[1]} links does not fit the width of {state.width}"
            )
        if shortage == events.LACKS_NODES:
            nodes = int(clock["n_alive"][0]) + len(batch)
            self._grow_nodes(max(len(state.nodes) * 3 // 2, nodes))
        elif shortage == events.LACKS_EDGES:
            edges = int(clock["n_edges"][0]) + len(batch.edge_from) + len(batch)
            self._grow_edges(max(2 * len(graph.edges), edges))
        elif shortage == events.LACKS_LINKS:
            self._grow_links(2 * len(state.links))
        else:
            self._grow_arena(batch.routes.size + len(batch))
        self._write_words()

    def _prepend_free(self, next_free: Ints32, first_new: int, free_list: str) -> None:
        """Put the entries from ``first_new`` on in front of a free list, lowest index
        first.

        Args:
            next_free: (any,) index of the next free entry; changed in place.
            first_new: first entry to add.
            free_list: the field of the clock with the head of the list.
        """
        next_free[first_new:] = np.arange(first_new + 1, len(next_free) + 1)
        next_free[-1] = self.clock[free_list][0]
        self.clock[free_list] = first_new

    def _grow_links(self, count: int) -> None:
        """Make the number of links ``count``; new links are for rate limits."""
        state = self._state
        old_count = len(state.links)
        links = enlarge(state.links, count)
        for name in ("head", "alone", "rank"):
            links[name][old_count:] = -1
        load = enlarge(state.load, count)
        load[old_count:, CAPACITY] = np.inf
        groups = -(-count // FAN**2)
        ends = np.full(groups * PER_GROUP, np.inf)
        ends[:old_count] = state.ends[:old_count]
        blocks = groups * FAN * FAN  # minima lie behind, see `set_end`
        ends[blocks:-groups] = ends[:blocks].reshape(-1, FAN).min(axis=1)
        ends[-groups:] = ends[blocks:-groups].reshape(-1, FAN).min(axis=1)
        self._state = state._replace(links=links, load=load, ends=ends)
        self._grow_scratch(count + 1)

    def _grow_scratch(self, count: int) -> None:
        """Make the scratch arrays at least ``count`` long."""
        state = self._state
        if count > len(state.visits):
            self._state = state._replace(
                visits=enlarge(state.visits, count),
                dirty=enlarge(state.dirty, count),
                order=enlarge(state.order, count),
                flows=enlarge(state.flows, count),
            )

    def _grow_nodes(self, count: int) -> None:
        """Make the number of slots for transfers ``count``."""
        state = self._state
        old_count = len(state.nodes)
        nodes = enlarge(state.nodes, count)
        self._state = state._replace(
            nodes=nodes, hops=enlarge(state.hops, count * state.width)
        )
        self._graph = self._graph._replace(
            heap=enlarge(self._graph.heap, count + 1),
            starting=np.empty(count, np.int32),
            queue=np.empty(2 * count, np.int32),
            slots=np.empty(count, np.int32),
        )
        self._grow_scratch(count)
        self._prepend_free(nodes["next"], old_count, "free_node")

    def _grow_arena(self, hops: int) -> None:
        """Enlarge the arena for the heaps of the links, at least by what ``hops``
        further hops may need.
        """
        state = self._state
        promised = int(self.clock["promised"][0])
        count = max(2 * len(state.entries), promised + events.MOVES * hops)
        # most of the arena is promised and never used: what was not written takes no memory
        used_entries = int(self.clock["heap_top"][0])
        others_per_row = state.width - 1
        self._state = state._replace(
            entries=enlarge(state.entries, count, used_entries),
            members=enlarge(state.members, count, used_entries),
            other_links=enlarge(
                state.other_links, count * others_per_row, used_entries * others_per_row
            ),
        )

    def _grow_edges(self, count: int) -> None:
        """Make the number of slots for edges ``count``."""
        old_count = len(self._graph.edges)
        edges = enlarge(self._graph.edges, count)
        self._graph = self._graph._replace(edges=edges)
        self._prepend_free(edges["next"], old_count, "free_edge")

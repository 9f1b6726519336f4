"""A network under SimPy: transfers whose ends are events, which runs ahead."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.spec.arrays import Floats, Ints32

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork

Steps = Generator[simpy.Event, Any, None]
"""Generator of a SimPy process."""


class Completion(simpy.Event):
    """The event that a group of transfers is complete. Its value is None."""

    def happen(self) -> None:
        """Run the callbacks at once, without SimPy's queue.

        The caller has set the environment's time, and SimPy has no earlier event.
        """
        self._ok = True
        self._value = None
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


class NetworkClock:
    """Couples a network (see `simshuffle.fabric.network.models.shared_network`) to a
    SimPy environment.

    The network advances on its own up to SimPy's next event (``Environment.peek``).
    When a group is complete for which somebody waits, and SimPy has nothing before,
    time is moved on to it without an event in SimPy's queue.

    Attributes:
        detour: maps each posted batch to one that avoids failed cables; None if batches
            are posted as they are. After a change call `renew`.
    """

    def __init__(self, env: simpy.Environment, network: FluidNetwork) -> None:
        self.env = env
        self.network = network
        self._run = network.advance
        self._upcoming = inf  # next event inside the network (s)
        # the SimPy event that lets the network advance, and for when; -inf while it advances
        self._armed: simpy.Event | None = None
        self._armed_for = inf
        self._waiting: dict[int, Completion] = {}
        # what makes parked transfers, by index, and the number of their items
        self._parked: dict[int, tuple[Callable[[], TransferBatch], int]] = {}
        # what leads transfers round failed cables, if there are any
        self.detour: Callable[[TransferBatch], TransferBatch] | None = None

    def completion(self, group: int) -> simpy.Event | None:
        """Return the event of a group's completion; None if the group is complete.

        Only one process may ask: a second call replaces the event, and the first event
        never happens. The group stays open until ``network.close_group``.
        """
        if not self.network.watch(group):
            return None
        event = self._waiting[group] = Completion(self.env)
        return event

    def wait_for(self, group: int) -> Steps:
        """Wait until a group is complete, and close it.

        A complete group needs no wait. Only one process may wait for a group.
        """
        event = self.completion(group)
        if event is not None:
            yield event
        self.network.close_group(group)

    def call_when_complete(
        self, group: int, callback: Callable[[simpy.Event], None]
    ) -> None:
        """Have a group closed, and ``callback`` called with the event, when it is
        complete.

        Raises:
            AssertionError: the group is complete already.
        """

        def finish(event: simpy.Event) -> None:
            """Close the group, and pass the event on."""
            self.network.close_group(group)
            callback(event)

        self._first_completion(group).callbacks.append(finish)

    def _first_completion(self, group: int) -> simpy.Event:
        """Return the event of the completion of a group that is not complete."""
        complete = self.completion(group)
        assert complete is not None, "a new group is not complete"  # noqa: S101 - its callers say so
        return complete

    def post(self, batch: TransferBatch) -> None:
        """Post transfers now, led round failed cables where `detour` is set."""
        self._expect(self.network.post(self._settled_now(), self._lead_round(batch)))

    def settle(self) -> None:
        """Bring the network and its statistics to this moment."""
        self.post(TransferBatch(tasks(0), np.empty((0, 1), np.int32)))
        self.network.settle()

    def count_down(self, groups: Ints32) -> None:
        """Count each of ``groups`` down once now, in their order."""
        now = self._settled_now()
        upcoming, completed_groups = self.network.count_down(groups, now)
        self._expect(upcoming)
        for group in completed_groups:
            self._waiting.pop(group).succeed()

    def gather(self, groups: Ints32) -> simpy.Event:
        """Return the event that all ``groups`` are complete, of which none is yet."""
        group = self.network.open_group(len(groups))
        self.network.set_parents(groups, group)
        self.call_when_complete(group, lambda _: None)
        return self._waiting[group]

    def watch(self, groups: Ints32, callback: Callable[[int], None]) -> None:
        """Have ``callback`` called with the index of each group when it is complete,
        which none is yet.
        """

        def call(index: int, _: simpy.Event) -> None:
            """Pass the index on."""
            callback(index)

        for index, group in enumerate(groups.tolist()):
            self._first_completion(group).callbacks.append(partial(call, index))

    def release(self, groups: Ints32, arrived: Ints32) -> None:
        """Count ``groups`` down once, sorted by the time at which ``arrived[i]`` of
        group i was complete.
        """
        self.count_down(groups[self.network.order(arrived)])

    def park(self, groups: Ints32, make: Callable[[], TransferBatch]) -> int:
        """Have the network post transfers when groups are complete; return the number
        of the parked transfers, for `unpark`.

        Args:
            groups: (n,) open groups, each of which posts the item of its index.
            make: returns n items, as of `FluidNetwork.park`; it is called again when
                faults change what transfers are like.
        """
        batch = self._lead_round(make())
        index = self.network.park(batch, len(groups))
        self._parked[index] = make, len(groups)
        self.network.set_sequels(groups, index)
        return index

    def unpark(self, index: int) -> None:
        """Forget parked transfers, which all their groups have posted."""
        del self._parked[index]
        self.network.unpark(index)

    def renew(self) -> None:
        """Make the parked transfers again, for groups that complete from now on."""
        for index, (make, item_count) in self._parked.items():
            self.network.park(self._lead_round(make()), item_count, index)

    def _lead_round(self, batch: TransferBatch) -> TransferBatch:
        """Return a batch led round failed cables, where `detour` is set."""
        return batch if self.detour is None else self.detour(batch)

    def post_group(self, batch: TransferBatch) -> int:
        """Post transfers in a group of their own; return the group."""
        batch.tasks["group"] = group = self.network.open_group(len(batch))
        self.post(batch)
        return group

    def post_and_wait(self, batch: TransferBatch | None) -> Steps:
        """Post transfers, None for none, and wait until the last one has ended."""
        if batch is not None:
            yield from self.wait_for(self.post_group(batch))

    def post_and_call(
        self,
        batch: TransferBatch | None,
        callback: Callable[[simpy.Event | None], None],
    ) -> None:
        """Post transfers, None for none.

        ``callback`` is called when the last one has ended, or now, with None, if there
        are none.
        """
        if batch is None:
            callback(None)
        else:
            self.call_when_complete(self.post_group(batch), callback)

    def set_capacity(self, links: Ints32, values: Floats) -> None:
        """Give ``links`` the capacities ``values``, (n,) units/s, from now on.

        Values must be finite and greater than 0; this is not checked.
        """
        self._expect(self.network.set_capacity(links, values, self._settled_now()))

    def reroute(self, slots: Ints32, routes: Ints32) -> None:
        """Give transfers under way other routes from now on.

        Args:
            slots: (n,) slots of transfers that have not ended.
            routes: (n, width or fewer) links of the new routes, padded with -1.
        """
        self._expect(self.network.reroute(slots, routes, self._settled_now()))

    def _settled_now(self) -> float:
        """Return the time (s) at which the network is about to be changed."""
        return float(self.env.now)

    def _expect(self, upcoming: float) -> None:
        """Note that the network's next event is due at ``upcoming`` (s)."""
        self._upcoming = upcoming
        if upcoming < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        """Have SimPy call when the network's next event is due."""
        self._armed_for = self._upcoming
        if self._upcoming < inf:
            self._armed = self._after(self._upcoming, self._wake)

    def _after(
        self, when: float, callback: Callable[[simpy.Event], None]
    ) -> simpy.Event:
        """Return a SimPy event at ``when`` (s), or now if that is past, with
        ``callback``.
        """
        timeout = self.env.timeout(max(when - self.env.now, 0.0))
        timeout.callbacks.append(callback)
        return timeout

    def _wake(self, event: simpy.Event) -> None:
        """Advance the network to SimPy's next event, and arm the clock again.

        Does nothing if the clock has been armed for an earlier event meanwhile.
        """
        if event is self._armed:  # not overtaken by an earlier one
            self._armed_for = -inf
            try:
                self._advance()
            finally:
                self._arm()

    def _advance(self) -> None:
        """Run the network and the callbacks of completed groups, up to SimPy's next
        event.

        Moves the environment's time on to each completion.
        """
        env = self.env
        network = self.network
        horizon = env.peek()
        while True:
            self._upcoming, completed_groups = self._run(horizon)
            if completed_groups:
                self._complete(
                    max(env.now, min(network.now, horizon)), completed_groups
                )
            horizon = env.peek()
            if horizon <= self._upcoming:
                return

    def _complete(self, when: float, groups: list[int]) -> None:
        """Complete ``groups`` at ``when`` (s), before which SimPy has no event.

        Sets the environment's time. One group alone is completed at once, others by
        events in SimPy's queue.
        """
        env = self.env
        env._now = when  # as `simpy.Environment.step` does
        if len(groups) == 1 and env.peek() > when:
            self._waiting.pop(groups[0]).happen()
            return
        for group in groups:
            self._waiting.pop(group).succeed()

"""A network under SimPy: transfers whose ends are events, which runs ahead; and
barriers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import simpy

from simshuffle.fabric.network.batch import TransferBatch
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
            are posted as they are.
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
        # what leads transfers round failed cables, if there are any
        self.detour: Callable[[TransferBatch], TransferBatch] | None = None

    def open(self, expected: int) -> int:
        """Open a group of ``expected`` (at least 1) transfers, and return its index."""
        return self.network.open_group(expected)

    def completion(self, group: int) -> simpy.Event | None:
        """Return the event of a group's completion; None if the group is complete.

        Only one process may ask: a second call replaces the event, and the first event
        never happens. The group stays open until `close`.
        """
        if not self.network.watch(group):
            return None
        event = self._waiting[group] = Completion(self.env)
        return event

    def close(self, group: int) -> tuple[float, float]:
        """Give a complete group back; return when its marked transfer ended, and its
        last (s of simulated time).

        The first number has no meaning if no transfer of the group is marked.
        """
        return self.network.close_group(group)

    def wait_for(self, group: int) -> Generator[simpy.Event, Any, tuple[float, float]]:
        """Wait until a group is complete, and close it; return as `close`.

        A complete group needs no wait. Only one process may wait for a group.
        """
        event = self.completion(group)
        if event is not None:
            yield event
        return self.close(group)

    def call_when_complete(
        self, group: int, callback: Callable[[simpy.Event], None]
    ) -> None:
        """Have a group closed, and ``callback`` called with the event, when it is
        complete.

        Raises:
            AssertionError: the group is complete already.
        """
        complete = self.completion(group)
        assert complete is not None, "a new group is not complete"  # noqa: S101 - see above

        def finish(event: simpy.Event) -> None:
            self.close(group)
            callback(event)

        complete.callbacks.append(finish)

    def post(self, batch: TransferBatch) -> None:
        """Post transfers now, led round failed cables where `detour` is set."""
        if self.detour is not None:
            batch = self.detour(batch)
        self._expect(self.network.post(self.env.now, batch))

    def post_group(self, batch: TransferBatch) -> int:
        """Post transfers in a group of their own; return the group."""
        batch.tasks["group"] = group = self.open(len(batch))
        self.post(batch)
        return group

    def set_capacity(self, links: Ints32, values: Floats) -> None:
        """Give ``links`` the capacities ``values``, (n,) units/s, from now on.

        Values must be finite and greater than 0; this is not checked.
        """
        self._expect(self.network.set_capacity(links, values, self.env.now))

    def reroute(self, slots: Ints32, routes: Ints32) -> None:
        """Give transfers under way other routes from now on.

        Args:
            slots: (n,) slots of transfers that have not ended.
            routes: (n, width or fewer) links of the new routes, padded with -1.
        """
        self._expect(self.network.reroute(slots, routes, self.env.now))

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


class Barrier:
    """A barrier at which all ``size`` ranks arrive, meeting after meeting.

    When the last rank arrives, ``action`` is called with the event that lets the ranks
    go on; the action must have it triggered. A bound method is held weakly: its object
    must outlive the barrier.

    Attributes:
        complete_at: s at which the last rank arrived at the latest complete meeting; 0
            before the first.
    """

    def __init__(
        self, env: simpy.Environment, size: int, action: Callable[[simpy.Event], None]
    ) -> None:
        self._env = env
        self._size = size
        # what owns a barrier hands in a method: with a reference back, neither would go before
        # Python next searches for cycles, and an epoch would stay while the next one runs
        self._action = (
            WeakMethod(action) if isinstance(action, MethodType) else lambda: action
        )
        self._event = env.event()
        self._missing = size
        self.complete_at = 0.0

    def arrive(self) -> simpy.Event:
        """Arrive; return the event that lets the rank go on.

        The last rank notes the time, readies the next meeting and calls the action.
        """
        event = self._event
        self._missing -= 1
        if self._missing == 0:
            self.complete_at = self._env.now
            self._missing = self._size
            self._event = self._env.event()
            action = self._action()
            assert action is not None, "what owns a barrier outlives it"  # noqa: S101 - see above
            action(event)
        return event


def let_go(event: simpy.Event) -> None:
    """Trigger ``event`` now, with the value None."""
    event.succeed()


def succeed_after(env: simpy.Environment, delay: float, event: simpy.Event) -> None:
    """Trigger ``event`` in ``delay`` s (at least 0) from now; return at once."""

    def succeed(_: simpy.Event) -> None:
        event.succeed()

    env.timeout(delay).callbacks.append(succeed)

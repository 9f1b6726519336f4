"""A network under SimPy: transfers whose ends are events. The network runs ahead in compiled code
whenever it may."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import simpy

from simshuffle.network.batch import TransferBatch
from simshuffle.network.shared import SharedNetwork


class NetworkClock:
    """Couples a network (see `simshuffle.network.shared.shared_network`) to a SimPy environment.

    SimPy is woken only when a group of transfers is complete for which somebody waits. Between two
    SimPy events the network advances on its own: nothing can be posted before the next of them,
    whose time SimPy tells (``Environment.peek``).
    """

    def __init__(self, env: simpy.Environment, network: SharedNetwork) -> None:
        self.env = env
        self.network = network
        self._upcoming = inf  # next event inside the network (s)
        self._armed: simpy.Event | None = None
        self._armed_for = inf
        self._waiting: dict[int, simpy.Event] = {}

    def open(self, expected: int) -> int:
        """A new group of ``expected`` (at least 1) transfers."""
        return self.network.open_group(expected)

    def completion(self, group: int) -> simpy.Event | None:
        """The event of a group's completion; None if it is complete already. Only one process may
        wait for a group."""
        if not self.network.watch(group):
            return None
        event = self._waiting[group] = self.env.event()
        return event

    def close(self, group: int) -> tuple[float, float]:
        """Give a complete group back: when its marked transfer ended, and its last one (s)."""
        return self.network.close_group(group)

    def post(self, batch: TransferBatch) -> None:
        """Post transfers now."""
        self._upcoming = self.network.post(self.env.now, batch)
        self._arm()

    def _arm(self) -> None:
        if self._upcoming < self._armed_for:
            self._armed_for = self._upcoming
            self._armed = self._after(self._upcoming, self._wake)

    def _after(self, when: float, callback: Callable[[simpy.Event], None]) -> simpy.Event:
        timeout = self.env.timeout(max(when - self.env.now, 0.0))
        timeout.callbacks.append(callback)
        return timeout

    def _wake(self, event: simpy.Event) -> None:
        if event is not self._armed:  # overtaken by an earlier one
            return
        self._armed_for = inf
        self._upcoming, done = self.network.advance(self.env.peek())
        if done and self.network.now > self.env.now:
            self._after(self.network.now, lambda _: self._complete(done))
        else:
            self._complete(done)

    def _complete(self, done: list[int]) -> None:
        for group in done:
            self._waiting.pop(group).succeed()
        self._arm()

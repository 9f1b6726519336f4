"""Barriers: points at which ranks wait for one another."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from weakref import WeakMethod

import simpy


class Barrier:
    """All ``size`` ranks arrive; ``action`` is then called once, and gets the event that lets them
    go on.

    Attributes:
        complete_at: when the last rank arrived at the barrier that was completed last (s).
    """

    def __init__(
        self, env: simpy.Environment, size: int, action: Callable[[simpy.Event], None]
    ) -> None:
        self._env = env
        self._size = size
        # what owns a barrier hands in a method: with a reference back, neither would go before
        # Python next searches for cycles, and an epoch would stay while the next one runs
        self._action = WeakMethod(action) if isinstance(action, MethodType) else lambda: action
        self._event = env.event()
        self._missing = size
        self.complete_at = 0.0

    def arrive(self) -> simpy.Event:
        """Arrive; the event lets the rank go on."""
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
    """Let ``event`` happen now."""
    event.succeed()


def succeed_after(env: simpy.Environment, delay: float, event: simpy.Event) -> None:
    """Let ``event`` happen ``delay`` s from now."""

    def succeed(_: simpy.Event) -> None:
        event.succeed()

    env.timeout(delay).callbacks.append(succeed)

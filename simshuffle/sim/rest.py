"""What a thinned pass over the samples leaves out, where nothing but time passes."""

from __future__ import annotations

import numpy as np
import simpy
from numpy.typing import NDArray

from simshuffle.sim.barrier import succeed_after


class RestOfPass:
    """The batches of an inference pass that are left out: they take as long as those of its second
    half did, but the last one, on average over the ranks of a group.

    Args:
        env: the clock.
        iterations: batches of each rank that are left out.
        batches: of each rank that are not, at least 4 where any are left out.
        groups: (M,) number of the group of each rank.
    """

    def __init__(
        self, env: simpy.Environment, iterations: int, batches: int, groups: NDArray[np.integer]
    ) -> None:
        self._env, self._iterations, self._groups = env, iterations, groups
        self._first, self._last = batches // 2 - 1, batches - 2
        self._spent = np.zeros(len(groups))
        self._waiting: list[tuple[int, float, simpy.Event]] = []

    def note(self, rank: int, batch: int) -> None:
        """A rank has done its batch of that number, from 0."""
        if batch == self._first:
            self._spent[rank] -= self._env.now
        if batch == self._last:
            self._spent[rank] += self._env.now

    def passes(self, rank: int) -> simpy.Event | None:
        """The event of the rest having passed, for a rank that has done its batches; None if there
        is no rest."""
        if self._iterations == 0:
            return None
        event = self._env.event()
        self._waiting.append((rank, self._env.now, event))
        if len(self._waiting) == len(self._groups):
            self._release()
        return event

    def _release(self) -> None:
        """All have done theirs: each goes on as much later than it came."""
        mean = np.bincount(self._groups, self._spent) / np.bincount(self._groups)
        rest = mean * self._iterations / (self._last - self._first)
        for rank, came, event in self._waiting:
            at = came + float(rest[self._groups[rank]])
            succeed_after(self._env, max(at - self._env.now, 0.0), event)

"""What a thinned pass over the samples leaves out, where nothing but time passes."""

from __future__ import annotations

import math

import numpy as np
import simpy

from simshuffle.plan.thinning import TRANSIENT
from simshuffle.sim.clock import succeed_after
from simshuffle.spec.arrays import Floats, Ints


class RestOfPass:
    """The batches of an inference pass that are left out: they take as long as those that are not,
    on average over the ranks of a group, without the transient at its beginning.

    Ranks do not wait for one another in a pass, so what each is ahead or behind is a random walk,
    whose standard deviation grows with the square root of the batches.

    Args:
        iterations: batches of each rank that are left out.
        batches: of each rank that are not, at least 4 where any are left out.
        groups: (M,) number of the group of each rank.
        at_once: batches that a rank loads at once, which may come together.

    Attributes:
        spread: how well it is known when the pass ends (s): the standard deviation over the ranks,
            in their groups, and half of what is left out would differ by between both parts.
    """

    def __init__(
        self, env: simpy.Environment, iterations: int, batches: int, groups: Ints, at_once: int
    ) -> None:
        self._env, self._iterations, self._groups = env, iterations, groups
        last = batches - 2
        part = (last - TRANSIENT * at_once) // (2 * at_once) * at_once
        self._part = part if part > 0 else max(last // 2, 1)
        self._bounds = [last - 2 * self._part, last - self._part, last]
        self._growth = math.sqrt((batches + iterations) / batches)
        self.spread = 0.0
        self._at = np.zeros((len(self._bounds), len(groups)))
        self._waiting: list[tuple[int, float, simpy.Event]] = []

    def note(self, rank: int, batch: int) -> None:
        """A rank has done its batch of that number, from 0."""
        if batch in self._bounds:
            self._at[self._bounds.index(batch), rank] = self._env.now

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
        """All have done theirs: each goes on when it would have done the others too."""
        rank, came = (np.array(column) for column in list(zip(*self._waiting, strict=True))[:2])
        group = self._groups[rank]
        behind = came - _mean(came, group)
        parts = np.diff(self._at, axis=0) * (self._iterations / self._part)
        rest = _mean(parts.mean(axis=0)[rank], group)
        done = came + rest + behind * (self._growth - 1.0)
        self.spread = math.hypot(
            self._growth * float(behind.std()), 0.5 * float(parts[1].mean() - parts[0].mean())
        )
        for at, (_, _, event) in zip(done.tolist(), self._waiting, strict=True):
            succeed_after(self._env, max(at - self._env.now, 0.0), event)


def _mean(values: Floats, group: Ints) -> Floats:
    """Of the group of each."""
    means = np.bincount(group, values) / np.maximum(np.bincount(group), 1)
    return np.asarray(means[group])

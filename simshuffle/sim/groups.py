"""Steps of training that the ranks of a model-parallel group, or all ranks, go through together."""

from __future__ import annotations

import simpy

from simshuffle.lowering.division import Division, Part
from simshuffle.sim.clock import Barrier, Steps, let_go
from simshuffle.sim.gradients import GradientSum, Posting
from simshuffle.sim.recorder import IN_GROUPS, OF_ALL, Times
from simshuffle.spec.arrays import Floats, Ints64


class DividedStep(GradientSum):
    """What both ways to go through a divided step have in common.

    What several ranks compute together lasts as long as with the slowest of them. The accounts of a
    rank say first what it computes, then what it waits for and sends, whatever their order was.

    ``samples`` are (iterations, M) of each rank's batch, ``jitter`` (iterations, M) factors of what
    is computed.
    """

    def __init__(
        self, posting: Posting, division: Division, samples: Ints64, jitter: Floats
    ) -> None:
        super().__init__(posting)
        self._division = division
        self._all = Barrier(self._env, samples.shape[1], self._all_there)
        self._samples, self._jitter = samples, jitter
        self._joint: Part
        self._iteration = -1  # that all did together last

    def _all_there(self, event: simpy.Event) -> None:
        """All ranks are there: post what they do together."""
        self._iteration += 1
        self._joint = self._division.joint(self._samples[self._iteration])
        self._posting.post(self._joint.ready(self._factor), lambda _: let_go(event))

    @property
    def _factor(self) -> float:
        """Of what all compute together."""
        return float(self._jitter[self._iteration].max())


class StepInGroups(DividedStep):
    """The ranks of a group wait until all of them have their batches, and go through their part of
    the step together; all sum their gradients when the last group is there."""

    parts = IN_GROUPS

    def __init__(
        self, posting: Posting, division: Division, samples: Ints64, jitter: Floats
    ) -> None:
        super().__init__(posting, division, samples, jitter)
        self._groups = [
            GroupPass(self._env, posting, division, group) for group in range(division.groups)
        ]
        self._of_rank = [self._groups[group] for group in division.group_of.tolist()]
        for group, members in zip(self._groups, division.members, strict=True):
            group.batches = self._samples[:, members], self._jitter[:, members].max(axis=1)

    def compute(self, rank: int, iteration: int, times: Times) -> Steps:
        """See `GradientSum`."""
        group = self._of_rank[rank]
        yield group.barrier.arrive()
        times.slowed = self._env.now
        times.gathered = min(max(group.begun_at, times.loaded), times.slowed)
        part, factor = group.part, group.factor
        times.forwarded = min(times.gathered + factor * part.forward, times.slowed)
        times.computed = min(times.forwarded + factor * part.backward, times.slowed)
        times.idle = min(times.computed + factor * part.bubble, times.slowed)

    def reduce(self, iteration: int, times: Times) -> Steps:
        """See `GradientSum`."""
        yield self._all.arrive()
        times.computed_by_all = self._all.complete_at
        times.updated = self._env.now
        times.reduced = max(times.updated - self._joint.update, times.computed_by_all)

    @property
    def _factor(self) -> float:
        return 1.0


class GroupPass:
    """A group's way through its part of the step, iteration by iteration.

    Attributes:
        barrier: at which its ranks meet, and from which they go on when they are through.
        batches: (iterations, ways) samples of its members; (iterations,) factors of what they
            compute.
        begun_at: when all were there (s).
        part, factor: what it computed then, and how many times as long that took.
    """

    def __init__(
        self, env: simpy.Environment, posting: Posting, division: Division, group: int
    ) -> None:
        self.barrier = Barrier(env, division.ways, self._there)
        self.batches: tuple[Ints64, Floats]
        self.begun_at, self.factor = 0.0, 1.0
        self.part: Part
        self._env, self._posting, self._division, self._group = env, posting, division, group
        self._iteration = 0

    def _there(self, event: simpy.Event) -> None:
        samples, jitter = self.batches
        self.factor = float(jitter[self._iteration])
        self.part = self._division.local(self._group, samples[self._iteration])
        self._iteration += 1
        self.begun_at = self._env.now
        self._posting.post(self.part.ready(self.factor), lambda _: let_go(event))


class StepOfAll(DividedStep):
    """All ranks wait until each has its batch, and go through the whole step together, as with
    weights that are gathered from all of them."""

    parts = OF_ALL

    def compute(self, rank: int, iteration: int, times: Times) -> Steps:
        """See `GradientSum`."""
        yield self._all.arrive()
        times.updated = self._env.now
        times.gathered = min(max(self._all.complete_at, times.loaded), times.updated)
        times.forwarded = times.gathered + self._factor * self._joint.forward
        times.computed = times.forwarded + self._factor * self._joint.backward
        times.reduced = times.updated - self._joint.update
        times.slowed = times.computed

    def reduce(self, iteration: int, times: Times) -> Steps:
        """See `GradientSum`; all is done."""
        yield from ()

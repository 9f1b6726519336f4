"""Summing the gradients of all ranks: when the backward pass of all is done, or while
it runs.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar

import numpy as np
import simpy

from simshuffle.fabric.allreduce import Ddp, Horovod
from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.sim.clock import Barrier, NetworkClock, Steps, succeed_after
from simshuffle.job.sim.recorder import ITERATION, PhaseEnds
from simshuffle.spec.arrays import Floats


class Posting:
    """Posts allreduces on the network, each as a group of transfers of its own."""

    def __init__(self, clock: NetworkClock, allreduces: Allreduces) -> None:
        self.env = clock.env
        self._clock = clock
        self._allreduces = allreduces

    def start(
        self, nbytes: float, callback: Callable[[simpy.Event | None], None]
    ) -> None:
        """Post an allreduce of ``nbytes`` bytes.

        ``callback`` is called when its last flow has ended, or now, with None, if there
        is only one rank.
        """
        self.post(self._allreduces.batch(nbytes), callback)

    def post(
        self,
        batch: TransferBatch | None,
        callback: Callable[[simpy.Event | None], None],
    ) -> None:
        """Post transfers in a group of their own; None for none.

        ``callback`` is called when the last one has ended, or now, with None, if there
        are none.
        """
        if batch is None:
            callback(None)
            return
        self._clock.call_when_complete(self._clock.post_group(batch), callback)


class GradientSum(ABC):
    """A schedule by which ranks compute a step and sum their gradients.

    ``parts`` are the phases of an iteration. ``hidden`` has, for every allreduce beside
    the backward pass, the iteration (from 0), its begin, and when it or the backward
    pass of the last rank ended (s).
    """

    parts: ClassVar[Mapping[str, str]] = ITERATION

    def __init__(self, posting: Posting) -> None:
        self._env = posting.env
        self._posting = posting
        self.hidden: list[tuple[int, float, float]] = []

    @abstractmethod
    def compute(self, rank: int, iteration: int, times: PhaseEnds) -> Steps:
        """Run the forward and backward pass of a rank."""

    @abstractmethod
    def reduce(self, iteration: int, times: PhaseEnds) -> Steps:
        """Wait until the gradients are summed and the weights are updated."""


@dataclass(frozen=True)
class GradientPasses:
    """The seconds that every rank computes by itself."""

    forward: list[list[float]]  # s of each batch, by rank
    backward: list[list[float]]  # s of each batch, by rank
    update: float  # s of an update of the weights
    # of every rank how many times as long it computes what it begins now; None if none ever does
    slower: list[float] | None = None

    def seconds_from_now(self, rank: int, iteration: int) -> tuple[float, float]:
        """Return the seconds of the forward and of the backward pass of a rank that
        begins them now.
        """
        forward = self.forward[rank][iteration]
        backward = self.backward[rank][iteration]
        if self.slower is None:
            return forward, backward
        return forward * self.slower[rank], backward * self.slower[rank]


class SumAfterBackward(GradientSum):
    """A single allreduce of all ``nbytes`` bytes of the gradient, after the backward
    pass.

    It begins once all ranks have computed their gradients and stored the samples that
    they received. All ranks go on when it has ended and the weights are updated.
    """

    def __init__(self, posting: Posting, passes: GradientPasses, nbytes: float) -> None:
        super().__init__(posting)
        self._passes = passes
        self._nbytes = nbytes
        self._barrier = Barrier(self._env, len(passes.forward), self._post)
        self._reduced_at = 0.0

    def compute(self, rank: int, iteration: int, times: PhaseEnds) -> Steps:
        """Run both passes of a rank, and note their ends in ``times`` (s)."""
        forward, backward = self._passes.seconds_from_now(rank, iteration)
        yield self._env.timeout(forward + backward)
        times.slowed = times.computed = self._env.now
        times.forwarded = min(times.loaded + forward, times.computed)

    def reduce(self, iteration: int, times: PhaseEnds) -> Steps:
        """Wait for the gradients of all ranks, their allreduce and the update of the
        weights; note the ends of each in ``times`` (s).
        """
        yield self._barrier.arrive()
        times.computed_by_all = self._barrier.complete_at
        times.reduced = self._reduced_at
        times.updated = self._env.now

    def _post(self, event: simpy.Event) -> None:
        """Post the allreduce; ``event``, after the update, lets all ranks go on."""

        def reduced(_: simpy.Event | None) -> None:
            self._reduced_at = self._env.now
            succeed_after(self._env, self._passes.update, event)

        self._posting.start(self._nbytes, reduced)


class WorkClock:
    """Time as accelerators feel it: it runs at ``1 - slowdown`` of its speed while
    busy. Events are asked for by the work that is done then (s).

    Work begins at the simulated time at which the clock is made, not at 0.
    """

    def __init__(self, env: simpy.Environment, slowdown: float) -> None:
        self._env = env
        self._slow_rate = 1.0 - slowdown
        self._rate = 1.0
        self._since = env.now
        self._work = env.now
        self._upcoming: list[tuple[float, int, simpy.Event]] = []
        self._indices = count()
        self._armed: simpy.Event | None = None

    @property
    def work(self) -> float:
        """Work done so far (s): the simulated time less what slowdowns have cost."""
        return self._work + self._rate * (self._env.now - self._since)

    def set_busy(self, busy: bool) -> None:
        """Set whether the clock runs slower from now on."""
        self._work = self.work
        self._since = self._env.now
        self._rate = self._slow_rate if busy else 1.0
        self._arm()

    def reach(self, work: float) -> simpy.Event:
        """Return the event at which the total ``work`` (s) is done."""
        event = self._env.event()
        heapq.heappush(self._upcoming, (work, next(self._indices), event))
        if self._upcoming[0][2] is event:
            self._arm()
        return event

    def _arm(self) -> None:
        """Have SimPy call `_wake` when the next work asked for is done at this speed."""
        if self._upcoming:
            seconds_left = (
                (self._upcoming[0][0] - self._work) / self._rate
                + self._since
                - self._env.now
            )
            self._armed = self._env.timeout(max(seconds_left, 0.0))
            self._armed.callbacks.append(self._wake)

    def _wake(self, event: simpy.Event) -> None:
        """Trigger the events whose work is done, and arm the clock again."""
        if (
            event is not self._armed
        ):  # the speed has changed, or something earlier was asked for
            return
        # what was armed for is reached, whatever rounding says
        reached = max(self._upcoming[0][0], self.work)
        while self._upcoming and self._upcoming[0][0] <= reached:
            heapq.heappop(self._upcoming)[2].succeed()
        self._arm()


@dataclass
class Round:
    """The gradients of one iteration."""

    summed: simpy.Event  # triggered when all of them are summed
    ranks_left: int  # ranks that have not updated their weights
    # of every rank that computes, the work at which its backward pass begins (s), and how long that
    # takes (s)
    begun: list[tuple[float, float]] = field(default_factory=list)
    computed_at: float = 0.0  # when the last rank so far had computed them (s)
    # begin and end of every allreduce (s)
    spans: list[tuple[float, float]] = field(default_factory=list)


class SumDuringBackward(GradientSum):
    """Allreduces of parts of the gradient, one after the other, each as soon as all
    ranks have computed it and the overlap's rule posts it. A rank goes on when all have
    ended.

    While one runs the backward pass of all ranks is slowed down; it runs only when all
    ranks are in it or have passed it, so one `WorkClock` serves all. ``layers`` are as
    of `Ddp.parts`.
    """

    def __init__(
        self,
        posting: Posting,
        passes: GradientPasses,
        layers: Floats,
        overlap: Ddp | Horovod,
    ) -> None:
        super().__init__(posting)
        self._passes, self._ranks = passes, len(passes.forward)
        self._overlap, self._parts = overlap, overlap.parts(layers)
        self._work = WorkClock(self._env, overlap.slowdown)
        self._rounds: dict[int, Round] = {}
        self._waiting: deque[tuple[float, Round, bool]] = deque()
        self._running = False

    def _round(self, iteration: int) -> Round:
        """Return the round of an iteration, made when its first rank asks."""
        if iteration not in self._rounds:
            self._rounds[iteration] = Round(self._env.event(), self._ranks)
        return self._rounds[iteration]

    def compute(self, rank: int, iteration: int, times: PhaseEnds) -> Steps:
        """Run the forward and backward pass of a rank, with the overlap's hooks in the
        backward pass; note their ends in ``times`` (s).

        ``times.slowed`` is when they end, and ``times.computed`` when they would have
        ended if no allreduce had slowed them down.
        """
        env = self._env
        clock = self._work
        gradients = self._round(iteration)
        forward, backward = self._passes.seconds_from_now(rank, iteration)
        backward += self._overlap.hooks
        begin = clock.work
        delay_before = env.now - begin
        gradients.begun.append((begin + forward, backward))
        if len(gradients.begun) == self._ranks:
            env.process(self._post_parts(gradients))
        yield clock.reach(begin + forward + backward)
        times.slowed = gradients.computed_at = env.now
        slowed = env.now - clock.work - delay_before
        times.computed = env.now - slowed if slowed > 1e-12 else env.now
        times.forwarded = min(times.loaded + forward, times.computed)

    def reduce(self, iteration: int, times: PhaseEnds) -> Steps:
        """Wait until all allreduces of the iteration have ended, and update the weights.

        The ends of both are noted in ``times`` (s). The last rank adds the iteration's
        allreduces to ``hidden``.
        """
        gradients = self._round(iteration)
        arrived = self._env.now
        if not gradients.summed.processed:
            yield gradients.summed
        times.computed_by_all = min(max(arrived, gradients.computed_at), self._env.now)
        times.reduced = self._env.now
        yield self._env.timeout(self._passes.update)
        times.updated = self._env.now
        gradients.ranks_left -= 1
        if gradients.ranks_left == 0:
            del self._rounds[iteration]
            computed_at = gradients.computed_at
            self.hidden += [
                (iteration, b, min(e, computed_at))
                for b, e in gradients.spans
                if b < computed_at
            ]

    # ------------------------------------------------------------------------------ what is posted

    def _post_parts(self, gradients: Round) -> Steps:
        """Post all parts of an iteration, in which the last rank has just begun."""
        begin, backward = np.array(gradients.begun).T
        nbytes, share = self._parts.T
        ready = (begin[:, None] + np.outer(backward, share)).max(axis=0).tolist()
        if isinstance(self._overlap, Horovod):
            yield from self._post_by_cycles(
                self._overlap, gradients, nbytes.tolist(), ready
            )
            return
        for part, (size, work_at_post) in enumerate(
            zip(nbytes.tolist(), ready, strict=True)
        ):
            if work_at_post > self._work.work:
                yield self._work.reach(work_at_post)
            self._queue(size, gradients, part == len(ready) - 1)

    def _post_by_cycles(
        self, rule: Horovod, gradients: Round, nbytes: list[float], ready: list[float]
    ) -> Steps:
        """Post, at every cycle of Horovod's coordinator, the parts that are ready.

        A cycle lasts at least a negotiation, and cycles count from time 0.
        """
        negotiation_seconds = rule.negotiation_seconds(self._ranks)
        period = max(rule.cycle, negotiation_seconds)
        first = 0
        while first < len(ready):
            if ready[first] > self._work.work:
                yield self._work.reach(ready[first])
            seconds_to_cycle = -self._env.now % period
            # a negotiation that fills its cycle ends with it, whatever rounding says
            yield self._env.timeout(
                seconds_to_cycle if seconds_to_cycle < period * (1.0 - 1e-9) else 0.0
            )
            reached = self._work.work + 1e-12
            end = first
            while end < len(ready) and ready[end] <= reached:
                end += 1
            if negotiation_seconds:
                yield self._env.timeout(negotiation_seconds)
            messages = rule.fuse(nbytes[first:end])
            for index, size in enumerate(messages):
                self._queue(
                    size, gradients, end == len(ready) and index == len(messages) - 1
                )
            first = end

    def _queue(self, nbytes: float, gradients: Round, last: bool) -> None:
        """Queue an allreduce; begin it, and slow computing down, if none runs.

        ``last`` is whether it is the last one of its iteration.
        """
        self._waiting.append((nbytes, gradients, last))
        if not self._running:
            self._work.set_busy(True)
            self._running = True
            self._next()

    def _next(self) -> None:
        """Begin the next allreduce; its end begins another, or ends the slowdown.

        The end of the last one of an iteration triggers `Round.summed`.
        """
        nbytes, gradients, last = self._waiting.popleft()
        begin = self._env.now

        def done(_: simpy.Event | None) -> None:
            gradients.spans.append((begin, self._env.now))
            if last:
                gradients.summed.succeed()
            if self._waiting:
                self._next()
            else:
                self._running = False
                self._work.set_busy(False)

        self._posting.start(nbytes, done)

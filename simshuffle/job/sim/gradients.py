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
from simshuffle.fabric.network.batch import delays
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.sim.clock import NetworkClock, Steps
from simshuffle.job.sim.iteration import Iteration
from simshuffle.job.sim.recorder import ITERATION
from simshuffle.spec.arrays import Floats, Ints32


class GradientSum(ABC):
    """A schedule by which ranks compute a step and sum their gradients.

    ``parts`` are the phases of an iteration. ``hidden`` has, for every allreduce beside
    the backward pass, the iteration (from 0), its begin, and when it or the backward
    pass of the last rank ended (s).
    """

    parts: ClassVar[Mapping[str, str]] = ITERATION

    def __init__(self, clock: NetworkClock) -> None:
        self._env = clock.env
        self._clock = clock
        self._ends = clock.network.ends
        self.hidden: list[tuple[int, float, float]] = []

    @abstractmethod
    def lay_out(self, iteration: Iteration) -> Callable[[], Floats] | None:
        """Prepare how ranks that have taken a batch get to be released.

        Returns what makes (M,) s that each rank computes by itself from then on; None
        if ``computed`` is counted down otherwise.
        """

    @abstractmethod
    def run(self, iteration: Iteration, lay_out_next: Callable[[], None]) -> Steps:
        """Bring all ranks through an iteration, and release them.

        Calls ``lay_out_next`` just before the first rank may end the iteration.
        """

    @abstractmethod
    def note(self, iteration: Iteration) -> None:
        """Note in the times of an iteration when the parts of `parts` ended that depend
        on the schedule; ``begin`` and ``loaded`` are known.
        """


@dataclass(frozen=True)
class GradientPasses:
    """The seconds that every rank computes by itself."""

    # forward, backward: (iterations, M) s of each batch
    forward: Floats
    backward: Floats
    update: float  # s of an update of the weights
    # (M,) how many times as long each rank computes what it begins now, changed in place by
    # faults
    slower: Floats


class SumAfterBackward(GradientSum):
    """A single allreduce of all ``nbytes`` bytes of the gradient, after the backward
    pass.

    It begins once all ranks have computed their gradients and stored the samples that
    they received. All ranks go on when it has ended and the weights are updated.
    """

    def __init__(
        self,
        clock: NetworkClock,
        allreduces: Allreduces,
        passes: GradientPasses,
        nbytes: float,
    ) -> None:
        super().__init__(clock)
        self._allreduces = allreduces
        self._passes = passes
        self._nbytes = nbytes
        self._meeting: simpy.Event

    def lay_out(self, iteration: Iteration) -> Callable[[], Floats]:
        """Have ranks meet, and return what makes the s of both passes."""
        self._meeting = iteration.clock.gather(iteration.arrived)
        passes = self._passes
        return lambda: iteration.seconds(passes.slower, passes.forward, passes.backward)

    def run(self, iteration: Iteration, lay_out_next: Callable[[], None]) -> Steps:
        """Sum the gradients of all ranks when all have arrived, and update."""
        yield self._meeting
        iteration.times.computed_by_all = self._env.now
        yield from self._clock.post_and_wait(self._allreduces.batch(self._nbytes))
        iteration.times.reduced = self._env.now
        yield self._env.timeout(self._passes.update)
        lay_out_next()
        iteration.clock.release(iteration.released, iteration.arrived)

    def note(self, iteration: Iteration) -> None:
        """Note the ends of both passes and of the update."""
        times = iteration.times
        times.slowed = times.computed = self._ends(iteration.computed)
        forward = self._passes.forward[iteration.number] * iteration.factor
        times.forwarded = np.minimum(times.loaded + forward, times.computed)
        times.updated = self._ends(iteration.released)


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
    summing: Ints32  # (M,) groups: a rank has arrived, and they are summed
    # (4, M) s of every rank: its forward pass; how far the work clock was behind when it
    # began; when it had computed; when it would have if no allreduce had slowed it down
    times: Floats
    # of every rank that computes, the work at which its backward pass begins (s), and how long that
    # takes (s)
    begun: list[tuple[float, float]] = field(default_factory=list)
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
        clock: NetworkClock,
        allreduces: Allreduces,
        passes: GradientPasses,
        layers: Floats,
        overlap: Ddp | Horovod,
    ) -> None:
        super().__init__(clock)
        self._allreduces = allreduces
        self._passes = passes
        self._ranks = passes.forward.shape[1]
        self._overlap = overlap
        self._parts = overlap.parts(layers)
        self._work = WorkClock(self._env, overlap.slowdown)
        self._rounds: dict[int, Round] = {}
        self._waiting: deque[tuple[float, Round, bool]] = deque()
        self._running = False

    def lay_out(self, iteration: Iteration) -> None:
        """Have each rank compute when it has its batch, and update when all gradients
        are summed.
        """
        clock = iteration.clock
        summing = iteration.open(2)
        clock.network.set_parents(iteration.arrived, summing)
        passes = self._passes
        iteration.park(summing, lambda: delays(passes.update, iteration.released))
        times = np.zeros((4, self._ranks))
        gradients = self._rounds[iteration.number] = Round(
            self._env.event(), summing, times
        )

        def begin(rank: int) -> None:
            """Begin the passes of a rank, with the overlap's hooks in the backward."""
            place = iteration.number, rank
            slower = float(passes.slower[rank])
            forward = float(passes.forward[place]) * slower
            backward = float(passes.backward[place]) * slower + self._overlap.hooks
            work = self._work.work
            times[:2, rank] = forward, self._env.now - work
            gradients.begun.append((work + forward, backward))
            if len(gradients.begun) == self._ranks:
                self._env.process(self._post_parts(gradients))
            reached = self._work.reach(work + forward + backward)
            reached.callbacks.append(lambda _: end(rank))

        def end(rank: int) -> None:
            """End the passes of a rank."""
            now = self._env.now
            slowed = now - self._work.work - times[1, rank]
            times[2:, rank] = now, now - slowed if slowed > 1e-12 else now
            clock.count_down(iteration.computed[rank : rank + 1])

        clock.watch(iteration.taken, begin)

    def run(self, iteration: Iteration, lay_out_next: Callable[[], None]) -> Steps:
        """Release the ranks that have arrived when all allreduces have ended."""
        gradients = self._rounds[iteration.number]
        yield gradients.summed
        lay_out_next()
        iteration.clock.release(gradients.summing, iteration.arrived)

    def note(self, iteration: Iteration) -> None:
        """Note the ends of the passes, of the sum and of the update; add the allreduces
        to ``hidden`` if all ranks have updated.
        """
        times = iteration.times
        gradients = self._rounds.pop(iteration.number)
        forward, _, times.slowed, times.computed = gradients.times
        times.forwarded = np.minimum(times.loaded + forward, times.computed)
        computed_at = float(gradients.times[2].max())
        times.reduced = self._ends(gradients.summing)
        arrived = np.maximum(self._ends(iteration.arrived), computed_at)
        times.computed_by_all = np.minimum(arrived, times.reduced)
        times.updated = self._ends(iteration.released)
        if times.updated.all():
            self.hidden += [
                (iteration.number, begin, min(end, computed_at))
                for begin, end in gradients.spans
                if begin < computed_at
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

        self._clock.post_and_call(self._allreduces.batch(nbytes), done)

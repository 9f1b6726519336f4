"""Records of a run: when the phases of every rank began and ended; and for a recorder
alone when messages were sent, and what links carried from moment to moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simshuffle.job.lowering.messages import RankMessages
from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.report.timeline import phase_rows
from simshuffle.spec.arrays import Flags, Floats, Ints64

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork


MEASURING = {"measured": "importance"}
LOADING = {"read": "io", "loaded": "decode"}
PASSES = {"forwarded": "forward", "computed": "backward"}
STORING = {"stored": "exchange", "stored_by_all": "wait_exchange"}
SUMMING = {"reduced": "allreduce", "updated": "update"}
SENDING = {"sent": "exchange", "free": "wait_exchange", "saved": "checkpoint"}
"""Parts that follow one another in every kind of iteration, and the phase of each."""

AFTER_PASSES = {**STORING, "computed_by_all": "wait_allreduce", **SUMMING, **SENDING}
ITERATION = {**LOADING, **PASSES, "slowed": "slowdown", **AFTER_PASSES}
"""The parts of an iteration and the phase of each, in the order of the authors'
training loop: synchronise with the last exchange after backward, begin the next after
update.
"""
GROUP_STEP = {
    **LOADING,
    "gathered": "wait_group",
    **PASSES,
    "idle": "bubble",
    "slowed": "group_communication",
    **AFTER_PASSES,
}
"""The parts of an iteration and the phase of each, where ranks of a model-parallel
group go through the passes together.
"""
JOINT_STEP = {
    **LOADING,
    "gathered": "wait_allreduce",
    **PASSES,
    **SUMMING,
    **STORING,
    **SENDING,
}
"""The parts of an iteration and the phase of each, where all ranks go through the whole
step together.
"""
FINAL = {**STORING, "removed": "exchange", "finished": "wait_allreduce"}
"""The parts of what follows the last iteration."""


Times = Floats | float
"""s of simulated time, of all ranks: (M,), or one number for all."""


@dataclass(slots=True)
class PhaseEnds:
    """The times (s of simulated time) at which the parts of an iteration of all ranks
    ended, or the parts before and after all iterations; 0 for parts that have not ended
    or do not occur.
    """

    begin: Times = 0.0  # of the first part
    measured: Times = 0.0  # importance is known
    read: Times = 0.0  # the last byte of the batch was read
    loaded: Times = 0.0  # the batch is on the GPU
    gathered: Times = 0.0  # so are the batches of all ranks that share the step
    forwarded: Times = 0.0  # the forward pass is done
    computed: Times = 0.0  # the backward pass, as if nothing slowed it down
    idle: Times = 0.0  # what the rank has to wait for though nothing is sent
    slowed: Times = 0.0  # the backward pass, and what the rank's group sends
    stored: Times = 0.0  # the rank has written the samples of the last exchange
    stored_by_all: Times = 0.0  # so have all ranks, where a barrier follows
    computed_by_all: Times = 0.0  # all ranks have their gradients
    reduced: Times = 0.0  # the sum of the gradients is known
    updated: Times = 0.0  # the weights are updated
    sent: Times = 0.0  # the host work of the next exchange is done
    free: Times = 0.0  # the barriers of the next exchange are passed
    saved: Times = 0.0  # what the loop waits for of a checkpoint
    removed: Times = 0.0  # the samples that were sent are removed
    finished: Times = 0.0  # all ranks are through


class PhaseLog:
    """The times of all ranks. ``parts`` maps attributes of `PhaseEnds`, in the order of
    time, to their phases; a phase lasts from the end of the part before it.
    """

    def __init__(self, parts: Mapping[str, str], world_size: int) -> None:
        self._parts = parts
        self._values = attrgetter("begin", *parts)
        self._shape = world_size, 1 + len(parts)
        self._bounds: list[Floats] = []  # of each iteration, (M, 1 + parts) s

    def add(self, times: PhaseEnds, interrupted_at: float | None = None) -> None:
        """Note the times of one more iteration.

        All parts of the log must have ended, in order: after a part left at 0 the next
        one would last from 0. In an iteration in which the job ended (s), parts that had
        not ended take no time, but for the last one: it lasts until then.
        """
        bounds = np.empty(self._shape)
        for part, values in enumerate(self._values(times)):
            bounds[:, part] = values
        if interrupted_at is not None:
            np.maximum.accumulate(bounds, axis=1, out=bounds)
            bounds[:, -1] = interrupted_at
        self._bounds.append(bounds)

    def __len__(self) -> int:
        """Iterations that were noted."""
        return len(self._bounds)

    def rows(
        self,
        epoch: int,
        nbytes: Mapping[str, Any],
        *,
        final: bool = False,
    ) -> dict[str, Any]:
        """Return the columns of the rows of an epoch; the log is of no use after it.

        They are those of `phase_rows`: a part that took no time has no row, nor its
        bytes.

        Args:
            epoch: from 1.
            nbytes: bytes that a part moved, by its name: (iterations, M), (M,), or one
                number for all; others moved none.
            final: whether the rows belong to no iteration; their number is then 0.
        """
        bounds = np.array(self._bounds).reshape(-1, *self._shape)
        self._bounds.clear()
        rows = phase_rows(epoch, list(self._parts.values()), bounds, np.zeros(1), final)
        # not as one array of all parts: most move nothing
        lasts = bounds[..., 1:] > bounds[..., :-1]
        part_of_row = np.broadcast_to(
            np.arange(len(self._parts), dtype=np.int8), lasts.shape
        )[lasts]
        for part, values in nbytes.items():
            index = list(self._parts).index(part)
            moved = np.broadcast_to(values, lasts.shape[:2])
            rows["nbytes"][part_of_row == index] = moved[lasts[..., index]]
        return rows


SAMPLES = 300
"""Fewest samples of the links in an epoch of unknown length; at most there are twice as
many.
"""
FEWEST_SAMPLES = 64
"""Samples that are wanted in place of `SAMPLES` where there are very many links."""
INSTANT = 1e-9
"""s before the end of an epoch in which it is not sampled once more."""
MOST_VALUES = 1 << 25
"""Largest number of values, links times samples, that are kept at once."""


@dataclass(frozen=True)
class MessageTimes:
    """Messages of an epoch between ranks: (n,) arrays, sorted by iteration, index and
    sender.
    """

    iteration: Ints64  # after which it was sent, from 1
    index: Ints64  # of the sender's messages of the iteration, from 0
    # sender, receiver: ranks
    sender: Ints64
    receiver: Ints64
    nbytes: Floats  # on the wire
    work: Floats  # s of the sender's main thread, which end when it is sent
    # sent, received: s since the epoch began; nan if that has never happened
    sent: Floats
    received: Floats

    def select(self, is_chosen: Flags) -> MessageTimes:
        """Return the messages of which ``is_chosen``, (n,), is true."""
        return MessageTimes(*(values[is_chosen] for values in vars(self).values()))


@dataclass(frozen=True)
class EpochRecord:
    """The messages and the counters of links that were recorded in an epoch."""

    messages: MessageTimes  # of its exchange
    sampled_at: Floats  # (k,) s since the epoch began, from 0 to its end
    # (k, links) units that every link has carried since the epoch began, float32
    work: NDArray[np.float32]
    resources: Resources  # whose links they are

    def utilisation(self) -> Floats:
        """Return (k - 1, links) share of the capacity without faults that each link
        carried between two samples, on average.
        """
        lasting = np.maximum(np.diff(self.sampled_at), np.finfo(float).tiny)
        share = np.diff(self.work.astype(np.float64), axis=0) / lasting[:, None]
        share /= self.resources.links.capacity
        return share


class LinkSamples:
    """The counters of all links at even intervals, over about ``length`` s, more than
    0. In a longer epoch every second sample is dropped when there are too many.

    ``next_at`` is when the next sample is due (s); inf while nothing is sampled.
    """

    def __init__(self, network: FluidNetwork, length: float) -> None:
        self._network = network
        self._samples = min(
            SAMPLES, max(FEWEST_SAMPLES, MOST_VALUES // (2 * len(network.links)))
        )
        self._step = length / self._samples
        self.next_at = inf  # s

    def begin(self, now: float) -> None:
        """Sample from ``now`` (s) on; what was sampled before is forgotten."""
        self._network.settle(now)
        self._begin = now
        self._base = self._network.links["work"].copy()
        self._sampled_at: list[float] = []
        self._work: list[NDArray[np.float32]] = []
        self.take(now)

    def take(self, now: float) -> None:
        """Take a sample at ``now`` (s), up to which all events have been run.

        When there are more than twice as many as wanted, drops every second one and
        doubles the step, for later epochs too. Settles the network's statistics.
        """
        self._network.settle(now)
        self._sampled_at.append(now - self._begin)
        self._work.append((self._network.links["work"] - self._base).astype(np.float32))
        if len(self._sampled_at) > 2 * self._samples:
            del self._sampled_at[1::2]
            del self._work[1::2]
            self._step *= 2.0
        self.next_at = self._begin + len(self._sampled_at) * self._step

    def take_until(self, now: float) -> None:
        """Take all samples that are due by ``now`` (s)."""
        while self.next_at <= now:
            self.take(self.next_at)

    def end(self, now: float) -> tuple[Floats, NDArray[np.float32]]:
        """Stop at ``now`` (s); return `EpochRecord.sampled_at` and `EpochRecord.work`.

        The last sample is at ``now``, or at most `INSTANT` before. The next call must
        be `begin`.
        """
        self.take_until(now)
        if now - self._begin > self._sampled_at[-1] + INSTANT:
            self.take(now)
        self.next_at = inf
        sampled_at = np.array(self._sampled_at)
        work = np.stack(self._work)
        del self._sampled_at, self._work
        return sampled_at, work


class SampledClock(NetworkClock):
    """A clock that stops for samples between events. The network runs through the
    events that it would have without samples, at those moments: SimPy has no event for
    a sample.
    """

    def __init__(
        self, env: simpy.Environment, network: FluidNetwork, samples: LinkSamples
    ) -> None:
        super().__init__(env, network)
        self._samples = samples
        self._run = self._advance_network

    def _advance_network(self, horizon: float) -> tuple[float, list[int]]:
        """Advance the network to ``horizon`` (s), or to the first completion of a
        group, and take the samples due before.

        Returns as `FluidNetwork.advance`: s of the next event, and completed groups.
        """
        while self._samples.next_at <= horizon:
            upcoming, groups = self.network.advance(self._samples.next_at)
            if groups or upcoming == inf:
                return upcoming, groups
            self._samples.take(self._samples.next_at)
        return self.network.advance(horizon)

    def _settled_now(self) -> float:
        """Take the samples due, then return the time as `NetworkClock`."""
        self._samples.take_until(self.env.now)
        return super()._settled_now()


class Recorder:
    """Notes one epoch of about ``length`` s after the other; each forgets the one
    before it.

    `clock` is called first, once, then `begin` and `end` for each epoch. ``record`` is
    the record of the epoch that ended last; it does not exist before.
    """

    def __init__(self, length: float) -> None:
        self._length = length
        self._resources: Resources
        self._network: FluidNetwork
        self._samples: LinkSamples
        # with the iteration (from 1) after which each was sent, and its index there
        self._messages: list[tuple[int, int, RankMessages]] = []
        self.record: EpochRecord

    def clock(
        self, env: simpy.Environment, network: FluidNetwork, resources: Resources
    ) -> NetworkClock:
        """Return the clock of the machine that is recorded, which takes its samples."""
        self._resources = resources
        self._network = network
        self._samples = LinkSamples(network, self._length)
        return SampledClock(env, network, self._samples)

    def begin(self, now: float) -> None:
        """Begin an epoch at ``now`` (s); forget the messages of the epoch before, and
        the ends of all tags of the network.
        """
        self._begin = now
        self._tags = 0
        self._network.finish[:] = np.nan  # ends of the tags of the epoch before
        self._messages.clear()
        self._samples.begin(now)

    def note(self, iteration: int, messages: list[RankMessages]) -> int:
        """Note messages that are prepared after ``iteration`` (from 0); return their
        first tag.

        The network notes the end of what has a tag. Each of ``messages``, one of every
        rank, has 2 M tags: M of the works, then M of the wires, by rank.
        """
        first = self._tags
        self._messages += [
            (iteration + 1, index, message) for index, message in enumerate(messages)
        ]
        self._tags += 2 * len(messages) * self._resources.world_size
        self._network.reserve_tags(self._tags)
        return first

    def end(self, now: float) -> None:
        """End the epoch at ``now`` (s), and keep what was recorded in ``record``."""
        samples = self._samples.end(now)
        self.record = EpochRecord(self._times(), *samples, self._resources)

    def _times(self) -> MessageTimes:
        """Return the messages noted in the epoch, without those that a rank sends to
        itself.
        """
        world_size = self._resources.world_size
        # a row is a message of all ranks, a column its sender
        target, nbytes, work = (
            np.array(
                [getattr(message, name) for *_, message in self._messages]
            ).reshape(-1, world_size)
            for name in ("target", "nbytes", "work")
        )
        # (messages, 2, M): ends of works, then of wires
        finish = (self._network.finish[: self._tags] - self._begin).reshape(
            -1, 2, world_size
        )
        row, sender = np.nonzero(target != np.arange(world_size))
        noted = np.array([numbers for *numbers, _ in self._messages], np.int64)
        iteration, index = noted.reshape(-1, 2)[row].T
        return MessageTimes(
            iteration,
            index,
            sender,
            receiver=target[row, sender].astype(np.int64),
            nbytes=nbytes[row, sender],
            work=work[row, sender],
            sent=finish[row, 0, sender],
            received=finish[row, 1, sender],
        )

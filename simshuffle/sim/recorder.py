"""What a run does not keep of itself: when messages were sent, what links carried from moment to
moment. Without a recorder nothing of it is noted."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray

from simshuffle.lowering.messages import Message
from simshuffle.network.batch import TransferBatch
from simshuffle.plan.resources import Resources
from simshuffle.sim.clock import NetworkClock
from simshuffle.spec.arrays import Flags, Floats, Ints64

if TYPE_CHECKING:
    from simshuffle.network.fluid import FluidNetwork

SAMPLES = 300
"""Of the links in an epoch, at least, where its length was not known; at most twice as many."""
FEWEST_SAMPLES = 64
INSTANT = 1e-9
"""s before the end of an epoch in which it is not sampled once more."""
MOST_VALUES = 1 << 25
"""Of all links in all samples, which are kept at once."""


@dataclass(frozen=True)
class MessageTimes:
    """Messages of an epoch between ranks: (n,) arrays, by iteration, number and sender."""

    iteration: Ints64  # after which it was sent, from 1
    number: Ints64  # of the sender's messages of the iteration, from 0
    # sender, receiver: ranks
    sender: Ints64
    receiver: Ints64
    nbytes: Floats  # on the wire
    work: Floats  # s of the sender's main thread, which end when it is sent
    # sent, received: s since the epoch began
    sent: Floats
    received: Floats

    def of(self, chosen: Flags) -> MessageTimes:
        """Those that are chosen."""
        return MessageTimes(*(values[chosen] for values in vars(self).values()))


@dataclass(frozen=True)
class EpochRecord:
    """What was recorded of an epoch."""

    messages: MessageTimes  # of its exchange
    at: Floats  # (k,) s since the epoch began, from 0 to its end
    work: NDArray[np.float32]  # (k, links) units that every link has carried until then, float32
    resources: Resources  # whose links they are

    def used(self) -> Floats:
        """(k - 1, links) share of its capacity that every link carried from moment to moment."""
        lasting = np.maximum(np.diff(self.at), np.finfo(float).tiny)
        share = np.diff(self.work.astype(np.float64), axis=0) / lasting[:, None]
        share /= self.resources.links.capacity
        return share


class LinkSamples:
    """The counters of all links at even intervals, over about ``length`` s. Where that is too
    little, every second sample is dropped when there are too many."""

    def __init__(self, network: FluidNetwork, length: float) -> None:
        self._network = network
        self._samples = min(SAMPLES, max(FEWEST_SAMPLES, MOST_VALUES // (2 * len(network.links))))
        self._step = length / self._samples
        self.next_at = inf  # s

    def begin(self, now: float) -> None:
        """Sample from ``now`` (s) on; what was sampled before is forgotten."""
        self._network.settle(now)
        self._begin, self._base = now, self._network.links["work"].copy()
        self._at: list[float] = []
        self._work: list[NDArray[np.float32]] = []
        self.take(now)

    def take(self, now: float) -> None:
        """Take a sample at ``now`` (s), up to which all events have been run."""
        self._network.settle(now)
        self._at.append(now - self._begin)
        self._work.append((self._network.links["work"] - self._base).astype(np.float32))
        if len(self._at) > 2 * self._samples:
            self._at, self._work = self._at[::2], self._work[::2]
            self._step *= 2.0
        self.next_at = self._begin + len(self._at) * self._step

    def until(self, now: float) -> None:
        """Take all samples that are due by ``now`` (s)."""
        while self.next_at <= now:
            self.take(self.next_at)

    def end(self, now: float) -> tuple[Floats, NDArray[np.float32]]:
        """Stop at ``now`` (s); returns `EpochRecord.at` and `EpochRecord.work`."""
        self.until(now)
        if now - self._begin > self._at[-1] + INSTANT:
            self.take(now)
        self.next_at = inf
        at, work = np.array(self._at), np.stack(self._work)
        del self._at, self._work
        return at, work


class SampledClock(NetworkClock):
    """A clock that stops for samples between events. The network runs through the same events at
    the same moments as without: samples are nothing to SimPy."""

    def __init__(self, env: simpy.Environment, network: FluidNetwork, samples: LinkSamples) -> None:
        super().__init__(env, network)
        self._samples = samples
        self._run = self._sampled

    def _sampled(self, horizon: float) -> tuple[float, list[int]]:
        """See `FluidNetwork.advance`."""
        while self._samples.next_at <= horizon:
            upcoming, done = self.network.advance(self._samples.next_at)
            if done or upcoming == inf:
                return upcoming, done
            self._samples.take(self._samples.next_at)
        return self.network.advance(horizon)

    def post(self, batch: TransferBatch) -> None:
        """See `NetworkClock.post`."""
        self._samples.until(self.env.now)
        super().post(batch)


class Recorder:
    """Notes one epoch of about ``length`` s after the other; each forgets the one before it."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._resources: Resources
        self._network: FluidNetwork
        self._samples: LinkSamples
        self._begin = 0.0
        self._messages: list[tuple[int, list[Message], int]] = []
        self._tags = 0
        self.record: EpochRecord

    def clock(
        self, env: simpy.Environment, network: FluidNetwork, resources: Resources
    ) -> NetworkClock:
        """The clock of the machine that is recorded."""
        self._resources, self._network = resources, network
        self._samples = LinkSamples(network, self._length)
        return SampledClock(env, network, self._samples)

    def begin(self, now: float) -> None:
        """An epoch begins at ``now`` (s)."""
        self._begin, self._tags = now, 0
        self._messages.clear()
        self._samples.begin(now)

    def note(self, iteration: int, messages: list[Message]) -> int:
        """These messages are prepared after ``iteration`` (from 0); returns the first of their
        tags, see `MessageLowering.graph`."""
        first = self._tags
        self._messages.append((iteration, messages, first))
        self._tags += 2 * len(messages) * self._resources.world_size
        self._network.reserve_tags(self._tags)
        return first

    def end(self, now: float) -> None:
        """The epoch has ended at ``now`` (s): what was recorded is in ``record``."""
        at, work = self._samples.end(now)
        self.record = EpochRecord(self._times(), at, work, self._resources)

    def _times(self) -> MessageTimes:
        ranks = np.arange(self._resources.world_size)
        finish = self._network.finish[: self._tags] - self._begin
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        parts: list[tuple[NDArray[np.generic], ...]] = [(whole,) * 4 + (real,) * 4]
        for iteration, messages, first in self._messages:
            for number, message in enumerate(messages):
                away = np.flatnonzero(message.target != ranks)
                begin = first + 2 * number * len(ranks)
                parts.append(
                    (
                        np.full(len(away), iteration + 1),
                        np.full(len(away), number),
                        away,
                        message.target[away].astype(np.int64),
                        message.nbytes[away],
                        message.work[away],
                        finish[begin + away],
                        finish[begin + len(ranks) + away],
                    )
                )
        return MessageTimes(*map(np.concatenate, zip(*parts, strict=True)))

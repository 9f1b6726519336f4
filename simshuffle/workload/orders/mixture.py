"""Sources that are mixed by weights, and what ends an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.order import Order, ShardedSet
from simshuffle.workload.orders.streams import joined


class Mixture(Order):
    """An order of sources that are mixed. The shards of a set belong to sources, one source after
    another.

    Attributes:
        sources: shards of each source, in turn; by default as equal as can be.
        weights: what is asked of each source; they count by their shares of their sum.
    """

    sources: list[Count] | None = None
    weights: list[float] = Field(default=[0.7, 0.3], min_length=1)

    @property
    def shares(self) -> Floats:
        """(K,) the weights, summing to 1."""
        shares: Floats = np.array(self.weights) / np.sum(self.weights)
        return shares

    def shards(self, data: ShardedSet) -> list[Ints64]:
        """The shards of each source. Raises an InputError where they are not those of the set, or
        a source has no sample, or a weight is not positive."""
        count, sources = len(data.samples), self.sources or []
        if min(self.weights) <= 0:
            rule, remedy = "must be positive: a source that is never drawn never ends", "Leave out"
            refuse("weights", rule, str(min(self.weights)), f"{remedy} the source.", "order")
        if sources and (len(sources) != len(self.weights) or sum(sources) != count):
            rule = f"must say {len(self.weights)} numbers, together the {count} shards of the set"
            refuse("sources", rule, str(sources), "Give a number for each weight.", "order")
        if sources:
            shards = np.split(np.arange(count), np.cumsum(sources)[:-1])
        else:
            shards = np.array_split(np.arange(count), len(self.weights))
        fewest = min(int(data.samples[own].sum()) for own in shards)
        if not fewest:
            rule = f"must have a sample in each of {len(self.weights)} sources"
            refuse("data.samples", rule, "a source without", "Take fewer sources.", "order")
        return shards

    def source_of(self, data: ShardedSet) -> Ints64:
        """(N,) the source of each sample."""
        counts = [int(data.samples[own].sum()) for own in self.shards(data)]
        return np.repeat(np.arange(len(counts)), counts)

    def asked(self, data: ShardedSet, seed: int) -> Floats:
        """(K,) the share of an epoch that each source should have. By default its weight's."""
        return self.shares


@dataclass(frozen=True)
class SourceCount:
    """What an epoch has of a source."""

    asked: float  # share of the epoch
    had: float  # share of the epoch
    again: int  # rows beyond the first of each sample
    cut_off: int  # samples of it that the epoch has not


def sources_of(order: Mixture, data: ShardedSet, sample: Ints64, seed: int) -> list[SourceCount]:
    """What an epoch with those samples, (n,), has of each source, against what was asked."""
    source = order.source_of(data)
    times = np.bincount(sample, minlength=data.size)
    found = []
    for number, share in enumerate(order.asked(data, seed).tolist()):
        own = times[source == number]
        rows, distinct = int(own.sum()), int((own > 0).sum())
        had = rows / max(1, len(sample))
        found.append(SourceCount(share, had, rows - distinct, len(own) - distinct))
    return found


# ------------------------------------------------------------------------ sources drawn one by one


@dataclass(frozen=True)
class Stop:
    """What ends a mixture that draws a source for each sample.

    Attributes:
        every: whether all sources must be exhausted, or the first that is ends it.
        again: whether an exhausted source begins again, or is passed over.
        late: whether a source is exhausted only when one sample more is asked of it, or as soon as
            its last one is handed out.
        most: samples after which it ends in any case.
    """

    every: bool
    again: bool
    late: bool = False
    most: int | None = None


@dataclass(frozen=True)
class Mixed:
    """What comes of drawing."""

    sample: Ints64  # (n,)
    at: Ints64  # (n,) the draw that each is from, from 0
    drawn: Ints64  # (m,) the source of each draw

    def times(self, count: int, sources: int) -> tuple[int, Ints64]:
        """When ``count`` samples were handed out: how many draws there were, and (K,) of each
        source."""
        used = int(self.at[count - 1]) + 1 if count else 0
        return used, np.bincount(self.drawn[:used], minlength=sources)


Passes = Callable[[int, int], Ints64]
"""Of a source and how often it was begun since: its samples, in their order."""


def drawn_from(draws: Iterator[Ints64], passes: Passes, exhausted: list[bool], stop: Stop) -> Mixed:
    """Samples of sources that are drawn one by one: ``draws`` gives more of them as long as they
    are needed. The pass 0 of a source is what is left of it. ``exhausted`` is whether each source
    was so already: then it does not end the mixture by itself."""
    count = len(exhausted)
    # what is left of a source may be nothing: a draw finds that out
    first = [max(1 - stop.late, len(passes(source, 0))) + stop.late for source in range(count)]
    need = np.where(exhausted, 0, first)
    blocks: list[Ints64] = [np.empty(0, np.int64)]
    have = np.zeros(count, np.int64)
    while not _ended(have, need, stop) and not (stop.most and have.sum() >= stop.most):
        blocks.append(next(draws))
        have += np.bincount(blocks[-1], minlength=count)
    drawn = np.concatenate(blocks)
    ends = np.full(count, len(drawn))
    of_source = [np.flatnonzero(drawn == source) for source in range(count)]
    for source in range(count):
        if need[source] <= len(of_source[source]):
            ends[source] = of_source[source][need[source] - 1] + 1 if need[source] else 0
    end = int(ends.max() if stop.every else ends.min()) if _ended(have, need, stop) else len(drawn)
    sample = np.full(end, -1)
    asked = end - 1 if stop.late and stop.most is None else end  # the last finds that it ends
    for source, every in enumerate(of_source):
        places = every[every < asked]
        sample[places] = _handed_out(len(places), source, passes, stop, exhausted[source])
    at = np.flatnonzero(sample >= 0)[: stop.most]
    return Mixed(sample[at], at, drawn[: at[-1] + 1 if stop.most else end])


def _ended(have: Ints64, need: Ints64, stop: Stop) -> bool:
    reached = have >= need
    return stop.most is None and bool(reached.all() if stop.every else reached.any())


def _handed_out(count: int, source: int, passes: Passes, stop: Stop, exhausted: bool) -> Ints64:
    """(count,) what each draw of a source hands out; -1 for nothing."""
    nothing = np.full(1, -1)
    if not stop.again:
        own = nothing[:0] if exhausted else passes(source, 0)[:count]
        return np.concatenate([own, np.full(count - len(own), -1)])
    parts, length, number = [nothing[:0]], 0, 0
    while length < count:
        own = passes(source, number)
        # an empty pass is passed over by the draw that comes to it, if that begins the next one
        parts.append(own if len(own) or stop.late else nothing)
        length, number = length + len(parts[-1]), number + 1
    return joined(parts)[:count]


def in_turn(sources: int, first: int = 0) -> Iterator[Ints64]:
    """One source after another."""
    yield (np.arange(first, sources))
    yield from cycle([np.arange(sources)])


def at_random(rng: np.random.Generator, shares: Floats, used: int = 0) -> Iterator[Ints64]:
    """Sources by their shares, a thousand at once, as `datasets` draws them; without the first
    ``used``."""
    while True:
        block: Any = rng.choice(len(shares), size=1000, p=shares)
        yield block[used:]
        used = max(0, used - 1000)

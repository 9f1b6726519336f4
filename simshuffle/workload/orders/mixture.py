"""Mix sources by weights, up to the end of an epoch."""

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
from simshuffle.workload.orders.streams import concatenate_or_empty


class Mixture(Order):
    """An order that mixes sources. The shards of a set belong to sources, one source
    after another.

    Attributes:
        sources: shards of each source, in turn; by default as equal as can be.
        weights: what is asked of each source; they count by their shares of their sum.
    """

    sources: list[Count] | None = None
    weights: list[float] = Field(default=[0.7, 0.3], min_length=1)

    @property
    def shares(self) -> Floats:
        """(K,) the weights, divided by their sum; their signs are not checked."""
        shares: Floats = np.array(self.weights) / np.sum(self.weights)
        return shares

    def shards_of_sources(self, data: ShardedSet) -> list[Ints64]:
        """Return the shards of each source, (n,) indices, one source after another.

        Raises:
            InputError: if the sources do not fit to the set, a source has no sample, or
                a weight is not positive.
        """
        num_shards = len(data.samples)
        sources = self.sources or []
        if min(self.weights) <= 0:
            rule = "must be positive: a source that is never drawn never ends"
            remedy = "Leave out"
            refuse(
                "weights",
                rule,
                str(min(self.weights)),
                f"{remedy} the source.",
                "order",
            )
        if sources and (
            len(sources) != len(self.weights) or sum(sources) != num_shards
        ):
            rule = (
                f"must say {len(self.weights)} numbers, together the"
                f" {num_shards} shards of the set"
            )
            refuse(
                "sources", rule, str(sources), "Give a number for each weight.", "order"
            )
        if sources:
            shards_of_sources = np.split(np.arange(num_shards), np.cumsum(sources)[:-1])
        else:
            shards_of_sources = np.array_split(np.arange(num_shards), len(self.weights))
        if not min(int(data.samples[shards].sum()) for shards in shards_of_sources):
            rule = f"must have a sample in each of {len(self.weights)} sources"
            refuse(
                "data.samples", rule, "a source without", "Take fewer sources.", "order"
            )
        return shards_of_sources

    def source_of(self, data: ShardedSet) -> Ints64:
        """Return the source of each sample, (N,).

        Raises:
            InputError: as of `shards_of_sources`.
        """
        sizes = [
            int(data.samples[shards].sum()) for shards in self.shards_of_sources(data)
        ]
        return np.repeat(np.arange(len(sizes)), sizes)

    def requested_shares(self, data: ShardedSet, seed: int) -> Floats:
        """Return the share of an epoch that each source should have, (K,). By default
        its weight's share of the weights.
        """
        return self.shares


@dataclass(frozen=True)
class SourceCount:
    """The samples that an epoch has of a source."""

    asked: float  # share of the epoch that was requested
    had: float  # share of the epoch that it has
    again: int  # rows beyond the first of each sample
    cut_off: int  # samples of the source that the epoch does not have


def count_sources(
    order: Mixture, data: ShardedSet, sample: Ints64, seed: int
) -> list[SourceCount]:
    """Count the samples that an epoch has of each source, against the requested shares.

    Args:
        order: that mixes the sources.
        data: the set in shards.
        sample: (n,) the samples of the epoch.
        seed: of the run.

    Returns:
        The counts of each source, in the order of sources.
    """
    source_of_sample = order.source_of(data)
    times = np.bincount(sample, minlength=data.size)
    counts = []
    for source, share in enumerate(order.requested_shares(data, seed).tolist()):
        source_times = times[source_of_sample == source]
        rows = int(source_times.sum())
        distinct = int((source_times > 0).sum())
        counts.append(
            SourceCount(
                asked=share,
                had=rows / max(1, len(sample)),
                again=rows - distinct,
                cut_off=len(source_times) - distinct,
            )
        )
    return counts


# ------------------------------------------------------------------------ sources drawn one by one


@dataclass(frozen=True)
class StopRule:
    """The rule that ends a mixture that draws a source for each sample.

    Attributes:
        needs_all_exhausted: whether the mixture ends when all sources are exhausted, or
            when the first source is.
        restarts_sources: whether an exhausted source begins again, or is passed over.
        ends_late: whether a source is exhausted only when one sample more is drawn from
            it, or as soon as its last sample is handed out.
        max_samples: samples after which the mixture ends, whatever is exhausted, below
            1 for none; None where exhausted sources end it. For sources that begin
            again.
    """

    needs_all_exhausted: bool
    restarts_sources: bool
    ends_late: bool = False
    max_samples: int | None = None


@dataclass(frozen=True)
class MixedSamples:
    """The samples of a mixture, and the draws that they come from."""

    sample: Ints64  # (n,) in the order of handing out
    draw_index: Ints64  # (n,) the draw that each sample is from, from 0
    # (m,) the source of each draw, those that hand out no sample included
    source_of_draw: Ints64

    def counts_after(self, num_samples: int, num_sources: int) -> tuple[int, Ints64]:
        """Count the draws until ``num_samples`` were handed out: all, and (K,) of each
        source.
        """
        num_draws = int(self.draw_index[num_samples - 1]) + 1 if num_samples else 0
        return num_draws, np.bincount(
            self.source_of_draw[:num_draws], minlength=num_sources
        )


Passes = Callable[[int, int], Ints64]
"""Returns the samples (n,), in order, of a source and the pass over it, from 0."""


def draw_samples(
    draws: Iterator[Ints64], passes: Passes, exhausted: list[bool], stop: StopRule
) -> MixedSamples:
    """Draw samples from sources, one by one, up to the end of the mixture.

    A draw of an exhausted source that does not begin again hands out no sample.

    Args:
        draws: yields arrays of more sources as long as they are needed; sources of the
            last array that come after the end are lost.
        passes: samples of each source and pass; pass 0 has what remains of the source.
        exhausted: (K,) whether each source was exhausted before; such a source does not
            end the mixture by itself.
        stop: the rule that ends the mixture.
    """
    if stop.max_samples is not None and stop.max_samples < 1:
        return MixedSamples(*(np.empty(0, np.int64) for _ in range(3)))
    num_sources = len(exhausted)
    # (K,) draws with which each source is exhausted. A draw finds out that nothing remains.
    sizes = [len(passes(source, 0)) for source in range(num_sources)]
    draws_to_exhaust = [
        max(1 - stop.ends_late, size) + stop.ends_late for size in sizes
    ]
    required = np.where(exhausted, 0, draws_to_exhaust)

    blocks: list[Ints64] = [np.empty(0, np.int64)]
    drawn = np.zeros(num_sources, np.int64)
    while not _reaches_end(drawn, required, stop) and not (
        stop.max_samples and drawn.sum() >= stop.max_samples
    ):
        blocks.append(next(draws))
        drawn += np.bincount(blocks[-1], minlength=num_sources)
    source_of_draw = np.concatenate(blocks)

    # the draws of each source, and the number of draws with which it is exhausted
    draws_of_source = [
        np.flatnonzero(source_of_draw == source) for source in range(num_sources)
    ]
    ends = np.full(num_sources, len(source_of_draw))
    for source, indices in enumerate(draws_of_source):
        if required[source] <= len(indices):
            ends[source] = indices[required[source] - 1] + 1 if required[source] else 0
    num_draws = len(source_of_draw)
    if _reaches_end(drawn, required, stop):
        num_draws = int(ends.max() if stop.needs_all_exhausted else ends.min())

    # the last draw finds that the mixture ends
    num_answered = (
        num_draws - 1 if stop.ends_late and stop.max_samples is None else num_draws
    )
    # the sample of each draw; -1 for draws that hand out none
    sample = np.full(num_draws, -1)
    for source, indices in enumerate(draws_of_source):
        answered = indices[indices < num_answered]
        sample[answered] = _samples_of_draws(
            len(answered), source, passes, stop, is_exhausted=exhausted[source]
        )
    draw_index = np.flatnonzero(sample >= 0)[: stop.max_samples]
    if stop.max_samples:
        num_draws = draw_index[-1] + 1
    return MixedSamples(sample[draw_index], draw_index, source_of_draw[:num_draws])


def _reaches_end(drawn: Ints64, required: Ints64, stop: StopRule) -> bool:
    """Return whether sources drawn so often, (K,), end a mixture; never one that has
    ``max_samples``.

    ``required`` (K,) are the draws with which each source is exhausted.
    """
    is_exhausted = drawn >= required
    ended = is_exhausted.all() if stop.needs_all_exhausted else is_exhausted.any()
    return stop.max_samples is None and bool(ended)


def _samples_of_draws(
    num_draws: int, source: int, passes: Passes, stop: StopRule, *, is_exhausted: bool
) -> Ints64:
    """Return the sample that each draw of a source hands out, (num_draws,); -1 for
    none, where an exhausted source is passed over.

    Args:
        num_draws: of this source.
        source: its index.
        passes: samples of each source and pass.
        stop: whether an exhausted source begins again.
        is_exhausted: whether the source was exhausted before the first draw; counts
            only if it does not begin again.
    """
    nothing = np.full(1, -1)
    if not stop.restarts_sources:
        samples = nothing[:0] if is_exhausted else passes(source, 0)[:num_draws]
        return np.concatenate([samples, np.full(num_draws - len(samples), -1)])
    parts = [nothing[:0]]
    num_samples = 0
    pass_index = 0
    while num_samples < num_draws:
        samples = passes(source, pass_index)
        # an empty pass is passed over by the draw that comes to it, if that begins the next one
        parts.append(samples if len(samples) or stop.ends_late else nothing)
        num_samples += len(parts[-1])
        pass_index += 1
    return concatenate_or_empty(parts)[:num_draws]


def sources_in_turn(num_sources: int, first: int = 0) -> Iterator[Ints64]:
    """Yield, without end, arrays of sources that come in turn, from ``first`` on."""
    yield (np.arange(first, num_sources))
    yield from cycle([np.arange(num_sources)])


def sources_at_random(
    rng: np.random.Generator, shares: Floats, num_used: int = 0
) -> Iterator[Ints64]:
    """Yield, without end, arrays of sources drawn by their shares (K,), without the
    first ``num_used`` of all.

    They are drawn from ``rng`` a thousand at once, as `datasets` does; the first arrays
    may be shorter or empty.
    """
    while True:
        block: Any = rng.choice(len(shares), size=1000, p=shares)
        yield block[num_used:]
        num_used = max(0, num_used - 1000)

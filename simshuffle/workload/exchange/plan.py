"""ExchangePlan: which sample goes from whom to whom, and when. One plan, two readers: the simulator
and the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints

PART = 1 << 17
"""Samples of which arrays are made at once: of all they would take much memory."""


@dataclass(frozen=True)
class ExchangePlan:
    """The exchange of one epoch, in steps. In every step each rank sends one sample and receives
    one."""

    sample: Ints  # (steps, M) the sample that each rank sends
    # (steps, M) the rank it goes to; a permutation in every step. A rank that is its own target
    # keeps its sample.
    target: Ints
    iteration: Ints  # (steps,) the iteration (from 0) after which the step is taken; not decreasing
    # (steps,) number of the message that carries the step's samples; the samples of a message share
    # target and iteration
    message: Ints
    # (steps,) permutations of all ranks that every rank draws before the step, to know its target;
    # None for none at all
    draws: Ints | None = None

    @property
    def world_size(self) -> int:
        """M."""
        return int(self.sample.shape[1])

    @property
    def moving(self) -> Flags:
        """(steps, M): True where the sample leaves its rank."""
        return np.asarray(self.target != np.arange(self.world_size))

    @property
    def samples_moved(self) -> int:
        """Samples that leave their rank, over all ranks."""
        return int(self.moving.sum())

    def apply(self, owner: Ints) -> Ints:
        """``owner`` (N,) after the exchange: itself where nothing moves, else a new array."""
        if not len(self.sample):
            return owner
        after = owner.copy()
        after[self.sample.ravel()] = self.target.ravel()
        return after

    def held_after(self, held: Ints | None) -> Ints | None:
        """Epochs that each sample has been with its rank after this one, (N,), given those before
        it: one more, and 0 for the samples that left theirs. None gives None."""
        if held is None:
            return None
        after: Ints = held + 1
        after[self.sample[self.moving]] = 0
        return after


@dataclass(frozen=True)
class RankPlaces:
    """Where the ranks are: (M,) numbers, equal for ranks of the same one, rising from 0 with the
    distance from rank 0."""

    host: Ints  # whose GPU the rank has
    leaf: Ints  # the leaf switch that its messages go through
    rack: Ints  # what is joined below the topmost switches

    @property
    def ranks_per_host(self) -> int:
        """Ranks of the fullest host."""
        return int(np.bincount(self.host).max())


def empty_plan(world_size: int) -> ExchangePlan:
    """A plan that moves nothing."""
    none = np.zeros((0, world_size), np.int64)
    return ExchangePlan(none, none, np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Shards:
    """Who trains on what in one epoch, in which order. Where that is a library's, a sample may be
    there several times, or not at all."""

    # (N,) int32, sample numbers: those of rank 0 in its order of the epoch, then those of rank 1,
    # ...; a library's order may have a few more
    order: Ints
    start: Ints  # (M + 1,) where each rank's part begins
    # the worker of the rank that loads each, as long as ``order``; None where samples are not
    # divided among workers beforehand
    worker: Ints | None = None

    @property
    def sizes(self) -> Ints:
        """(M,) samples of each rank."""
        return np.diff(self.start)

    def first(self, count: int) -> Ints:
        """The first ``count`` samples of every rank: (count, M)."""
        return np.asarray(self.order[self.start[:-1][None, :] + np.arange(count)[:, None]])

    def parts(self) -> Iterator[slice]:
        """Ranks, a few at a time, for what is computed from all samples: at least one rank, and at
        most `PART` samples if they have no more."""
        first, world_size = 0, len(self.start) - 1
        while first < world_size:
            end = int(np.searchsorted(self.start, self.start[first] + PART, "right")) - 1
            last = max(end, first + 1)
            yield slice(first, last)
            first = last

    def slots(self, ranks: slice) -> slice:
        """Where the samples of these ranks are in ``order``."""
        return slice(int(self.start[ranks.start]), int(self.start[ranks.stop]))

    def sums(self, values: Floats) -> Floats:
        """Sums of ``values``, (N,) by sample, over the samples of every rank, which has one at
        least: (M,)."""
        out = np.empty(len(self.start) - 1)
        for ranks in self.parts():
            slots = self.slots(ranks)
            begins = self.start[ranks] - slots.start
            out[ranks] = np.add.reduceat(values[self.order[slots]], begins)
        return out


def shuffled_shards(owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
    """Every rank's samples in a fresh random order; ``owner`` (N,) is the rank of each sample."""
    order = random_order(len(owner), rng)
    # by rank, then by place: sorted where it is, while `argsort` would need as much three times
    key = owner[order].astype(np.int64)
    key <<= 32
    key |= np.arange(len(order), dtype=np.int32)
    key.sort()
    key &= (1 << 32) - 1
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=world_size))])
    return Shards(order[key], start)


def initial_owner(num_samples: int, world_size: int, rng: np.random.Generator) -> Ints:
    """A random partition into shards whose sizes differ by one at most: the rank of each sample,
    (N,) int32."""
    owner, ranks = np.empty(num_samples, np.int32), np.arange(world_size, dtype=np.int32)
    first = -(np.arange(world_size + 1) * -num_samples // world_size)  # rounded up
    owner[random_order(num_samples, rng)] = np.repeat(ranks, np.diff(first))
    return owner


def random_order(count: int, rng: np.random.Generator) -> Ints:
    """The numbers below ``count`` in random order: (count,) int32, which saves memory where there
    are millions."""
    order = np.arange(count, dtype=np.int32)
    rng.shuffle(order)
    return order

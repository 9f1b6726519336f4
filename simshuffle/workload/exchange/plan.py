"""ExchangePlan: which sample goes from which rank to which, and when. The simulator and
the trainer read the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints

SAMPLES_AT_ONCE = 1 << 17
"""The most samples of which `Shards.sums` holds arrays at once: of all would take much
memory.
"""
MANY_SAMPLES = 1 << 22
"""Samples from which on compiled code shuffles them; for fewer, numpy is as fast."""


@dataclass(frozen=True)
class ExchangePlan:
    """The exchange of one epoch, in steps. In each step every rank sends one sample and
    receives one.
    """

    sample: Ints  # (steps, M) the sample that each rank sends
    # (steps, M) the rank it goes to; a permutation in every step. A rank that is its own target
    # keeps its sample.
    target: Ints
    iteration: Ints  # (steps,) the iteration (from 0) after which the step is taken; not decreasing
    # (steps,) index of the message that carries the step's samples; the samples of a message share
    # target and iteration
    message: Ints
    # (steps,) permutations of all ranks that every rank draws before the step, to know its target;
    # None for none at all
    draws: Ints | None = None

    @property
    def world_size(self) -> int:
        """M, the number of ranks."""
        return int(self.sample.shape[1])

    @cached_property
    def moving(self) -> Flags:
        """(steps, M) bool: True where the sample leaves its rank. Do not change it."""
        return np.asarray(self.target != np.arange(self.world_size))

    @property
    def samples_moved(self) -> int:
        """The number of samples that leave their rank, over all ranks and steps."""
        return int(self.moving.sum())

    def apply(self, owner: Ints) -> Ints:
        """Return the owners (N,) after the exchange: ``owner`` itself where nothing
        moves, else a new array.
        """
        if not len(self.sample):
            return owner
        new_owner = owner.copy()
        new_owner[self.sample.ravel()] = self.target.ravel()
        return new_owner

    def owners_at(self, owner: Ints, iterations: int, is_gone: Flags) -> Ints:
        """Return the owners, (N,), when the epoch is broken off and some ranks do not
        go on.

        What was sent by then is with its receiver. What a rank that is gone had
        received is still with its sender, who removes it at the end of the epoch only;
        it is lost if the sender is gone as well.

        Args:
            owner: (N,) rank of each sample as the epoch began.
            iterations: after which the exchange was begun; later steps were not taken.
            is_gone: (M,) ranks that do not go on.
        """
        # (steps, M) samples that went to a rank that goes on, or came from one that is gone
        is_sent = self.moving & (self.iteration < iterations)[:, None]
        is_sent &= ~is_gone[self.target] | is_gone
        new_owner = owner.copy()
        new_owner[self.sample[is_sent]] = self.target[is_sent]
        return new_owner

    def held_after(self, epochs_held: Ints | None) -> Ints | None:
        """Return the epochs that each sample has been with its rank after this
        exchange, (N,).

        A new array: one more than before, and 0 for samples that left their rank. None
        gives None.
        """
        if epochs_held is None:
            return None
        epochs_held_after: Ints = epochs_held + 1
        epochs_held_after[self.sample[self.moving]] = 0
        return epochs_held_after


@dataclass(frozen=True)
class RankPlaces:
    """The host, leaf switch and rack of each rank, as (M,) indices.

    Ranks of the same host (leaf, rack) have equal indices, which are numbered from 0 in
    the order in which the ranks come to them: rank 0 has 0.
    """

    host: Ints  # (M,) the host whose GPU the rank has
    leaf: Ints  # (M,) the leaf switch that its messages go through
    rack: Ints  # (M,) the part of the network that is joined below the topmost switches

    @property
    def ranks_per_host(self) -> int:
        """The number of ranks of the fullest host."""
        return int(np.bincount(self.host).max())


def empty_plan(world_size: int) -> ExchangePlan:
    """Return a plan of no steps for ``world_size`` ranks: nothing moves."""
    none = np.zeros((0, world_size), np.int64)
    return ExchangePlan(none, none, np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Shards:
    """The samples that each rank trains on in one epoch, in order.

    Where the order is a library's, a sample may be there several times, or not at all.
    """

    # (N,) int32, sample indices: those of rank 0 in its order of the epoch, then those of rank 1,
    # ...; a library's order may have a few more
    order: Ints
    start: Ints  # (M + 1,) position in ``order`` where each rank's samples begin
    # the worker of the rank that loads each sample, as long as ``order``; None where samples are
    # not divided among workers beforehand
    worker: Ints | None = None

    @property
    def sizes(self) -> Ints:
        """(M,) samples of each rank."""
        return np.diff(self.start)

    def first(self, count: int) -> Ints:
        """Return the first ``count`` samples of every rank: (count, M) sample indices.

        ``count`` is at most the smallest shard; beyond that come samples of the next
        rank.
        """
        return np.asarray(
            self.order[self.start[:-1][None, :] + np.arange(count)[:, None]]
        )

    def rank_slices(self) -> Iterator[slice]:
        """Yield slices of the ranks, for work that needs an array over the samples of a
        slice.

        A slice has at least one rank, and at most `SAMPLES_AT_ONCE` samples if it has
        more ranks.
        """
        first_rank = 0
        world_size = len(self.start) - 1
        while first_rank < world_size:
            max_position = self.start[first_rank] + SAMPLES_AT_ONCE
            fitting_end = int(np.searchsorted(self.start, max_position, "right")) - 1
            end_rank = max(fitting_end, first_rank + 1)
            yield slice(first_rank, end_rank)
            first_rank = end_rank

    def slots(self, ranks: slice) -> slice:
        """Return the slice of ``order`` with the samples of consecutive ``ranks``."""
        return slice(int(self.start[ranks.start]), int(self.start[ranks.stop]))

    def sums(self, values: Floats) -> Floats:
        """Sum ``values`` over the samples of every rank, each of which has at least
        one.

        Args:
            values: (N,) by sample.

        Returns:
            (M,) float64.
        """
        # a slice of ranks at a time, so that the gathered values stay small
        rank_sums = np.empty(len(self.start) - 1)
        for ranks in self.rank_slices():
            slots = self.slots(ranks)
            rank_starts = self.start[ranks] - slots.start
            rank_sums[ranks] = np.add.reduceat(
                values.take(self.order[slots]), rank_starts
            )
        return rank_sums


def shuffled_shards(owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
    """Return shards in which every rank has its own samples in random order; ``owner``
    (N,) is the rank of each sample.
    """
    order = random_order(len(owner), rng)
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=world_size))])
    if len(owner) >= MANY_SAMPLES:
        from simshuffle.workload.orders.kernels import sort_by_owner  # noqa: PLC0415 - numba

        sorted_order = np.empty_like(order)
        sort_by_owner(order, owner, start[:-1].copy(), sorted_order)
        return Shards(sorted_order, start)
    # Sort positions by rank, then by position. The key (rank << 32) | position is sorted in place;
    # `argsort` would need three times the memory.
    key = owner.take(order).astype(np.int64)
    key <<= 32
    key |= np.arange(len(order), dtype=np.int32)
    key.sort()
    key &= (1 << 32) - 1
    return Shards(order.take(key), start)


def initial_owner(num_samples: int, world_size: int, rng: np.random.Generator) -> Ints:
    """Draw a random partition into shards whose sizes differ by one at most; with fewer
    samples than ranks, some are empty.

    Returns:
        (N,) int32, the rank of each sample.
    """
    owner = np.empty(num_samples, np.int32)
    ranks = np.arange(world_size, dtype=np.int32)
    # (M + 1,) position in a random order at which each rank's samples begin: r N / M, rounded up
    start = -(np.arange(world_size + 1) * -num_samples // world_size)
    owner[random_order(num_samples, rng)] = np.repeat(ranks, np.diff(start))
    return owner


def random_order(count: int, rng: np.random.Generator) -> Ints:
    """Return the numbers below ``count`` in random order: (count,) int32, half the
    memory of int64.
    """
    order = np.arange(count, dtype=np.int32)
    if count < MANY_SAMPLES:
        rng.shuffle(order)
        return order
    from simshuffle.workload.orders.kernels import shuffle  # noqa: PLC0415 - numba

    shuffle(order, rng)
    return order

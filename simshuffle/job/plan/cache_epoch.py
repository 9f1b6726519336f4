"""An epoch as the page caches of the hosts see it: how many bytes each host has touched
when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange import ExchangePlan, Shards


@dataclass(frozen=True)
class BatchSizes:
    """Samples and bytes of each batch, (iterations, M) arrays; ``size`` samples in a
    full batch.
    """

    samples: Ints64
    nbytes: Floats
    size: int


def batch_edges(shards: Shards, batch_size: int, iterations: int) -> Ints:
    """Return (iterations + 1, M) slots at which batches begin and end.

    Batch i of rank r has those from ``edges[i, r]`` up to ``edges[i + 1, r]``; a batch
    beyond the rank's samples is empty.
    """
    begin = shards.start[:-1]
    end = shards.start[1:]
    return np.asarray(
        np.minimum(begin + np.arange(iterations + 1)[:, None] * batch_size, end)
    )


def batch_sums(
    shards: Shards, edges: Ints, values: Callable[[slice], Floats]
) -> Floats:
    """(iterations, M) sums of ``values`` of slots over the batches between
    `batch_edges`; 0 for an empty batch.

    They are differences of one sum over all slots, of which a part is kept at a time.

    Args:
        shards: slots of each rank.
        edges: from `batch_edges`.
        values: returns the values of a slice of slots; called for a few ranks at once.
    """
    sums = np.empty((len(edges) - 1, edges.shape[1]))
    total_before = 0.0
    for ranks in shards.rank_slices():
        slots = shards.slots(ranks)
        total = np.empty(slots.stop - slots.start + 1)
        total[0], total[1:] = total_before, values(slots)
        np.cumsum(total, out=total)
        sums[:, ranks] = np.diff(total[edges[:, ranks] - slots.start], axis=0)
        total_before = total[-1]
    return sums


class CacheEpoch:
    """An epoch on the clock of bytes: the bytes that each host has touched when it
    reads a sample.

    Slots are the indices of `Shards.order`. Cumulative bytes are (iterations + 1, H)
    arrays, at the beginning of each iteration and at the end.

    Args:
        shards: each sample in them once.
        exchange: samples that are sent; their senders remove them at the end.
        batches: samples and bytes of each batch that is trained on.
        nbytes: (N,) bytes of every sample.
        host_of: (M,) host of each rank, from 0 on, not decreasing.
    """

    def __init__(
        self,
        shards: Shards,
        exchange: ExchangePlan,
        batches: BatchSizes,
        nbytes: Floats,
        host_of: Ints,
    ) -> None:
        self.shards = shards
        self.exchange = exchange
        self.batches = batches
        self.host_of = host_of
        self._nbytes = nbytes
        self.first_rank = np.flatnonzero(np.diff(host_of, prepend=-1))
        self.iterations = len(batches.samples)
        self._size = batches.size
        self.longest = int(shards.sizes.max())

    @property
    def hosts(self) -> int:
        """H."""
        return len(self.first_rank)

    def parts(self) -> Iterator[Slots]:
        """Yield all slots in parts, each with the slots of a few ranks, in order."""
        for ranks in self.shards.rank_slices():
            yield Slots(self, ranks)

    def sizes(self, slots: slice | Ints) -> Floats:
        """Bytes of the samples of these slots."""
        return self._nbytes[self.shards.order[slots]]

    @cached_property
    def shard_nbytes(self) -> Floats:
        """(H,) bytes of the host's shards, also of samples in no batch."""
        return np.add.reduceat(self.shards.sums(self._nbytes), self.first_rank)

    @cached_property
    def read(self) -> Floats:
        """Cumulative bytes that loaders have read."""
        return self._cumulative(self.batches.nbytes)

    @cached_property
    def read_and_kept(self) -> Floats:
        """Cumulative bytes of what loaders have read and is not removed at the end.

        A sent sample that no batch has is subtracted in the last iteration.
        """
        # what no batch has: as if in the last
        return self.read - self._by_iteration(
            np.minimum(self.read_in, self.iterations - 1)
        )

    @cached_property
    def places(self) -> Ints:
        """(steps, M) place, from 0, in its rank's order of each sample of the exchange,
        sent or kept.
        """
        if not len(self.exchange.sample):
            return self.exchange.sample
        slot = np.empty_like(self.shards.order)
        slot[self.shards.order] = np.arange(len(slot), dtype=slot.dtype)
        return slot[self.exchange.sample] - self.shards.start[:-1]

    @cached_property
    def read_in(self) -> Ints:
        """Iteration that trains on each sample of the exchange, (steps, M), also
        where its rank keeps it.

        The number of iterations if in none.
        """
        return np.minimum(self.places // self._size, self.iterations)

    @cached_property
    def sent_before_use(self) -> Flags:
        """(steps, M) whether a sample is sent and not trained on until then, or at all."""
        return (self.read_in > self.exchange.iteration[:, None]) & self.exchange.moving

    @cached_property
    def ahead(self) -> Floats:
        """Bytes of samples that were sent and not yet trained on, at the beginning of
        each iteration, (iterations + 1, H). A sample in no batch counts to the end.
        """
        if not self.sent_before_use.any():
            return np.zeros((self.iterations + 1, self.hosts))
        sent = np.broadcast_to(self.exchange.iteration[:, None], self.read_in.shape)
        return self._by_iteration(sent, self.sent_before_use) - self._by_iteration(
            self.read_in, self.sent_before_use & (self.read_in < self.iterations)
        )

    @cached_property
    def removed(self) -> Floats:
        """Cumulative bytes of samples to be removed at the end, from their last touch
        on: the later of sending and reading.
        """
        sent = np.broadcast_to(self.exchange.iteration[:, None], self.read_in.shape)
        used = self.read_in < self.iterations
        return self._by_iteration(np.where(used, np.maximum(sent, self.read_in), sent))

    def _by_iteration(self, iteration: Ints, which: Flags | None = None) -> Floats:
        """Cumulative bytes, (iterations + 1, H), of the samples that are sent, or those
        that ``which`` (steps, M) marks. Each counts in its ``iteration`` (steps, M).
        """
        total = np.zeros((self.iterations, len(self.host_of)))
        step, rank = np.nonzero(self.exchange.moving if which is None else which)
        np.add.at(total, (iteration[step, rank], rank), self._moved[step, rank])
        return self._cumulative(total)

    @cached_property
    def sent_steps(self) -> Floats:
        """(steps + 1, H) bytes sent before every step of the exchange."""
        return self._cumulative(self._moved)

    @cached_property
    def sent(self) -> Floats:
        """Cumulative bytes sent, by host of the sender."""
        return self.sent_steps[self._steps]

    @cached_property
    def arrived_steps(self) -> Floats:
        """(steps + 1, H) bytes received and stored before every step of the exchange."""
        arriving = np.zeros_like(self._moved)
        np.put_along_axis(arriving, self.exchange.target, self._moved, axis=1)
        return self._cumulative(arriving)

    @cached_property
    def arrived(self) -> Floats:
        """Cumulative bytes received and stored, by host of the receiver."""
        return self.arrived_steps[self._steps]

    @cached_property
    def _moved(self) -> Floats:
        """(steps, M) bytes that each rank sends in each step; 0 where it keeps them."""
        return self._nbytes[self.exchange.sample] * self.exchange.moving

    @cached_property
    def _steps(self) -> Ints:
        """(iterations + 1,) first step of each iteration; steps in all at the end."""
        return np.searchsorted(self.exchange.iteration, np.arange(self.iterations + 1))

    def _cumulative(self, of_ranks: Floats) -> Floats:
        """(n, M) bytes as (n + 1, H) cumulative ones."""
        of_hosts = np.add.reduceat(of_ranks, self.first_rank, axis=1)
        return np.concatenate([np.zeros((1, self.hosts)), np.cumsum(of_hosts, axis=0)])

    def value_at_read(
        self,
        cumulative: Floats,
        stepwise: Floats | None = None,
        count: int | None = None,
        ranks: slice = slice(None),
    ) -> Floats:
        """Return (ranks, count) the value of the rank's host when each of the first
        samples of its shard is read, half of the sample included.

        The values of ``cumulative`` grow while a batch is read, those of ``stepwise``,
        which are added, after it. Samples in no batch have the values at the end.
        Places beyond a rank's shard have values without a meaning.

        Args:
            cumulative: (iterations + 1, H).
            stepwise: (iterations + 1, H); None for none.
            count: samples of a shard; None for as many as the longest has.
            ranks: a slice of the ranks that are computed; all by default.
        """
        place = np.arange(self.longest if count is None else count)
        # (count,) the batch of each place, and its samples at most
        batch = np.minimum(place // self._size, self.iterations)
        length = np.minimum(self._size, self.longest - batch * self._size)
        # what is left over is read at the end
        share = np.where(
            batch < self.iterations, (place - batch * self._size + 0.5) / length, 0.0
        )
        of_ranks = cumulative.T[self.host_of[ranks]]
        growth = np.diff(of_ranks, axis=1, append=of_ranks[:, -1:])
        if stepwise is not None:
            of_ranks = of_ranks + stepwise.T[self.host_of[ranks]]
        return of_ranks[:, batch] + share * growth[:, batch]

    @cached_property
    def left_over(self) -> tuple[Ints, Ints]:
        """(n,) slots that no batch has, rank by rank, and (n,) the host of each."""
        unread = np.asarray(self.shards.sizes - self.batches.samples.sum(axis=0))
        ends = zip(self.shards.start[1:], unread, strict=True)
        slots = [np.arange(end - count, end) for end, count in ends if count]
        return np.concatenate([np.zeros(0, np.int64), *slots]), np.repeat(
            self.host_of, unread
        )


class Slots:
    """The slots of a few ranks of an epoch: ``slots``, a slice of `Shards.order`, and
    (n,) the ``samples`` and ``hosts`` of each.
    """

    def __init__(self, epoch: CacheEpoch, ranks: slice) -> None:
        shards = epoch.shards
        self._epoch, self._ranks, self.slots = epoch, ranks, shards.slots(ranks)
        self.samples = shards.order[self.slots]
        sizes = shards.sizes[ranks]
        self.hosts: Ints = np.repeat(epoch.host_of[ranks], sizes)
        self._within = np.arange(epoch.longest) < sizes[:, None]

    def value_at_read(
        self, cumulative: Floats, stepwise: Floats | None = None
    ) -> Floats:
        """(n,) values of their hosts, (iterations + 1, H), when each slot is read; see
        `CacheEpoch.value_at_read`.
        """
        dense = self._epoch.value_at_read(cumulative, stepwise, ranks=self._ranks)
        return dense[self._within]

    @property
    def sizes(self) -> Floats:
        """(n,) bytes of each sample."""
        return self._epoch.sizes(self.slots)

    @cached_property
    def read_before(self) -> Floats:
        """(n,) bytes of its shards that the host has touched in this epoch before each
        is read: what it has read, and what it has sent before use.
        """
        epoch = self._epoch
        return self.value_at_read(
            epoch.read, epoch.ahead if epoch.sent_before_use.any() else None
        )

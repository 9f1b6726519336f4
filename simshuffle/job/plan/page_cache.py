"""The page caches of the hosts: which reads of an epoch find their sample in memory. Decided sample
by sample, without a clock.

A cache keeps what its host touched last: read from a file, or written as a received sample. What is
removed leaves it. A sample is still there when the bytes of the others that the host touched in
between, each counted once, leave room for it. Those bytes follow from the positions of the two
accesses; how many of the later ones repeat earlier ones is taken as its expected value, since every
epoch has a new random order. All ranks of a host are taken to advance through their batches
together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.job.plan.cache_epoch import BatchSizes, CacheEpoch, Slots, batch_edges, batch_sums
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange import ExchangePlan, Shards

ABSENT = np.float32(-1)


@dataclass(frozen=True)
class Hits:
    """What the page caches hold of an epoch's reads."""

    # samples, nbytes: (iterations, M) of each batch
    samples: Ints64
    nbytes: Floats
    # (steps, M) whether the sample that a rank sends in a step is in its host's cache when it is
    # sent
    sent: Flags
    # (N,) by slot whether its sample is there, or one for all
    found: Flags | bool


def no_hits(batches: BatchSizes, exchange: ExchangePlan) -> Hits:
    """Everything comes from storage."""
    nothing = np.zeros_like(batches.samples), np.zeros_like(batches.nbytes)
    return Hits(*nothing, np.zeros(exchange.sample.shape, bool), False)


def all_hits(batches: BatchSizes, exchange: ExchangePlan) -> Hits:
    """Everything is in memory."""
    return Hits(batches.samples, batches.nbytes, exchange.moving, True)


@dataclass
class _Past:
    """An epoch of global shuffle that caches may still remember."""

    host: Ints  # (N,) the host that read each sample; -1 where none did
    # (N,) bytes that this host read after it in that epoch; (0,) if the whole set fits, so that it
    # does not matter
    after: NDArray[np.float32]
    unread: Floats  # (H,) share of the set that each host has not read in the epochs since


class PageCaches:
    """The page caches of all hosts from epoch to epoch.

    Args:
        capacity: bytes of each.
        nbytes: (N,) bytes of every sample.
        host_of: (M,) host of every rank, not decreasing.
        redrawn: every host reads a new random part of the set each epoch (global shuffle), and
            several may hold the same sample; else a sample has one place, and is read there again
            and again.
    """

    def __init__(self, capacity: float, nbytes: Floats, host_of: Ints, redrawn: bool) -> None:
        self._capacity, self._nbytes, self._redrawn = capacity, nbytes, redrawn
        # a small type, since one is kept for each sample
        self._host_of: Ints = host_of.astype(np.int16) if host_of[-1] < 1 << 15 else host_of
        self._total = float(nbytes.sum())
        self._cold = True
        self._last: CacheEpoch | None = None  # until it is noted
        self._past: list[_Past] = []  # redrawn: the latest last

    @cached_property
    def _since(self) -> NDArray[np.float32]:
        """Not redrawn: (N,) bytes touched on its host since each sample was, up to the end of the
        latest epoch, or ABSENT; there from when something may have left a cache."""
        return np.full(len(self._nbytes), ABSENT, np.float32)

    def epoch(self, shards: Shards, exchange: ExchangePlan, batches: BatchSizes) -> Hits:
        """The hits of the next epoch; in the first there are none."""
        if self._capacity == 0:
            return no_hits(batches, exchange)
        self.note()
        cold, self._cold, last = self._cold, False, self._last
        epoch = CacheEpoch(shards, exchange, batches, self._nbytes, self._host_of)
        self._last = epoch
        if cold:
            return no_hits(batches, exchange)
        if last is None:
            found = _by_slot(epoch, self._found_redrawn)
        elif not len(last.left_over[0]) and self._fits(last).all() and self._fits(epoch).all():
            return all_hits(batches, exchange)  # everything was touched in the epoch before
        else:
            self._note(last)
            found = _by_slot(epoch, self._found)
        sent = self._sent(epoch, found)
        if epoch.sent_before_use.any():
            self._note_sent_before_use(epoch, found, sent)
        return Hits(*_of_batches(epoch, found), sent, found)

    def note(self) -> None:
        """Under global shuffle: note what the latest epoch left, so that its order is not needed
        any more."""
        if self._redrawn and self._last is not None:
            self._note_redrawn(self._last)
            self._last = None

    def forget(self) -> None:
        """Let go of what only later epochs would need, which there are none of."""
        self._last, self._past, self._since = None, [], self._since[:0].copy()

    # An access finds its sample if at most the capacity has been touched since the last one. That
    # is `since` (what followed up to the end of that epoch), then `before` (of this epoch), of
    # which the share since / universe was touched already, and what arrived in this epoch: before +
    # since (1 - before / universe) + arrived + its own size <= capacity.

    def _universe(self, epoch: CacheEpoch) -> Floats:
        """(H,) bytes of which a host reads a random part in each epoch."""
        return np.full(epoch.hosts, self._total) if self._redrawn else epoch.held

    def _fits(self, epoch: CacheEpoch) -> Flags:
        """(H,) whether nothing need ever leave the cache."""
        return np.asarray(self._universe(epoch) + epoch.arrived[-1] <= self._capacity)

    def _fresh(self, epoch: CacheEpoch, part: Slots) -> Floats:
        """(n,) by slot: 1 - before / universe."""
        return 1.0 - part.before / self._universe(epoch)[part.hosts]

    def _free(self, epoch: CacheEpoch, part: Slots) -> Floats:
        """(n,) by slot: capacity - before - arrived - size; without bound where everything fits."""
        touched = part.before
        if epoch.arrived[-1].any():
            touched = part.at(epoch.read, epoch.arrived + epoch.ahead)
        free = self._capacity - touched
        free[self._fits(epoch)[part.hosts]] = np.inf
        return free - part.sizes

    def _found(self, epoch: CacheEpoch, part: Slots) -> Flags:
        """(n,) of a part, where a sample has one place: whether it is still there."""
        since = self._since[part.samples]
        return (since >= 0) & (since * self._fresh(epoch, part) <= self._free(epoch, part))

    def _note(self, epoch: CacheEpoch) -> None:
        """Where a sample has one place: note what was touched since each one was."""
        exchange, nbytes = epoch.exchange, self._nbytes
        # from now to the end
        kept, arrived = epoch.kept[-1] - epoch.kept, epoch.arrived[-1] - epoch.arrived
        sent = epoch.removed[-1] - epoch.removed  # touched from now on, and removed at the end
        limit = np.where(self._fits(epoch), np.inf, self._capacity)
        slots, host = epoch.left_over
        sample = epoch.shards.order[slots]
        old = self._since[sample]
        aged = (
            epoch.read[-1][host]
            + epoch.arrived[-1][host]
            + old * (1.0 - epoch.read[-1][host] / epoch.held[host])
        )
        for part in epoch.parts():
            since = part.at(kept, arrived)
            if sent[0].any():
                peak = part.at(kept, arrived + sent) - limit[part.hosts]
                since[peak + part.sizes > 0] = ABSENT
            self._since[part.samples] = since
        self._since[sample] = np.where(old >= 0, aged, ABSENT)
        if len(exchange.sample):
            host_to = self._host_of[exchange.target]
            # bytes that a received sample's new host touches after it, to be kept or removed at the
            # end: what it stores in later steps of the iteration, and all of later iterations
            after = exchange.iteration[:, None] + 1, host_to
            later = epoch.arrived_steps[-1] - epoch.arrived_steps[1:]
            to_keep = np.take_along_axis(later, host_to, axis=1) + kept[after]
            to_remove = sent[after]
            pushed_out = to_keep + to_remove + nbytes[exchange.sample] > limit[host_to]
            moving = exchange.moving
            self._since[exchange.sample[moving]] = np.where(pushed_out, ABSENT, to_keep)[moving]

    def _note_redrawn(self, epoch: CacheEpoch) -> None:
        """Under global shuffle: keep which host read what, and how much after it."""
        for past in self._past:
            past.unread = past.unread * (1.0 - epoch.read[-1] / self._total)
        count = len(epoch.shards.order)
        host = np.empty(count, self._host_of.dtype)
        fits = self._total <= self._capacity
        after = np.empty(0 if fits else count, np.float32)
        for part in epoch.parts():
            host[part.samples] = part.hosts
            if not fits:
                after[part.samples] = epoch.read[-1][part.hosts] - part.before
        host[epoch.shards.order[epoch.left_over[0]]] = -1
        self._past.append(_Past(host, after, np.ones(epoch.hosts)))
        self._past = [
            past
            for past in self._past
            if ((1.0 - past.unread) * self._total <= self._capacity).any()
        ]

    def _found_redrawn(self, epoch: CacheEpoch, part: Slots) -> Flags:
        """(n,) of a part: whether the host has read the sample before, and it is still there."""
        found = np.zeros(len(part.samples), bool)
        if self._total <= self._capacity:
            for past in self._past:
                found |= past.host[part.samples] == part.hosts
            return found
        fresh, free = self._fresh(epoch, part), self._free(epoch, part)
        looked_for = np.ones(len(part.samples), bool)
        for past in reversed(self._past):
            at = np.flatnonzero((past.host[part.samples] == part.hosts) & looked_for)
            looked_for[at] = False
            after = past.after[part.samples[at]]
            untouched = (1.0 - after / self._total) * past.unread[part.hosts[at]]
            found[at] = self._total * (1.0 - untouched) * fresh[at] <= free[at]
        return found

    def _sent(self, epoch: CacheEpoch, found: Flags) -> Flags:
        """(steps, M): whether a sample that is sent is in the cache. Most were read for training a
        little before, in the same epoch."""
        exchange, places = epoch.exchange, epoch.places
        if not len(exchange.sample):
            return np.zeros(exchange.sample.shape, bool)
        now = epoch.read[exchange.iteration + 1] + epoch.arrived[exchange.iteration]
        rank, count = np.arange(places.shape[1]), int(places.max()) + 1
        between = (
            now[:, self._host_of]
            - epoch.at(epoch.read, epoch.arrived, count)[rank, places]
            + self._nbytes[exchange.sample]
        )
        others = (
            epoch.sent_steps[:-1][:, self._host_of]
            - epoch.at(np.zeros_like(epoch.read), epoch.sent, count)[rank, places]
        )
        # sent in any order: a part of the others was also read in between, and counts once
        if epoch.sent_before_use.any():
            others *= 1.0 - np.clip(between / epoch.held[self._host_of], 0.0, 1.0)
        there = (between + others <= self._capacity) | self._fits(epoch)[self._host_of]
        trained = epoch.read_in < epoch.iterations
        return np.where(trained, there, found[epoch.shards.start[:-1] + places]) & exchange.moving

    def _note_sent_before_use(self, epoch: CacheEpoch, found: Flags, sent: Flags) -> None:
        """Of what is sent before it is trained on: ``sent`` depends on the epochs before,
        ``found``, when it is read, on the sending."""
        step, rank = np.nonzero(epoch.sent_before_use)
        exchange, host, place = epoch.exchange, self._host_of[rank], epoch.places[step, rank]
        sample, then = exchange.sample[step, rank], exchange.iteration[step]
        touched = (epoch.read + epoch.ahead)[then + 1, host]
        since = (
            self._since[sample] * (1.0 - touched / self._universe(epoch)[host])
            + touched
            + epoch.arrived[then, host]
        )
        fits = self._fits(epoch)[host]
        there = (since + self._nbytes[sample] <= self._capacity) | fits
        sent[step, rank] = (self._since[sample] >= 0) & there
        read = epoch.read_in[step, rank] < epoch.iterations
        between = (
            epoch.at(epoch.read, epoch.arrived)[rank, place]
            - (epoch.read + epoch.arrived)[then + 1, host]
        )
        slot = epoch.shards.start[rank] + place
        found[slot[read]] = ((between + self._nbytes[sample] <= self._capacity) | fits)[read]


def _by_slot(epoch: CacheEpoch, found_in: Callable[[CacheEpoch, Slots], Flags]) -> Flags:
    """(N,) by slot, part by part."""
    found = np.empty(len(epoch.shards.order), bool)
    for part in epoch.parts():
        found[part.slots] = found_in(epoch, part)
    return found


def _of_batches(epoch: CacheEpoch, found: Flags) -> tuple[Ints64, Floats]:
    """Samples and bytes of every batch that were found, (iterations, M) each."""
    batches, shards = epoch.batches, epoch.shards
    edges = batch_edges(shards, batches.size, epoch.iterations)
    samples = batch_sums(shards, edges, lambda at: found[at].astype(float)).astype(np.int64)
    nbytes = batch_sums(shards, edges, lambda at: np.where(found[at], epoch.sizes(at), 0.0))
    nbytes[samples == 0] = 0.0  # without what rounding leaves
    return samples, np.where(samples == batches.samples, batches.nbytes, nbytes)

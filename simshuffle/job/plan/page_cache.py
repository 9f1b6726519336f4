"""The page caches of the hosts: which reads of an epoch find their sample in memory.
Decided sample by sample, without a clock.

A cache keeps what its host touched last: read from a file, or written as a received
sample. What is removed leaves it. A sample is still there when the bytes of the others
that the host touched in between, each counted once, leave room for it. Those bytes
follow from the positions of the two accesses; how many of the later ones repeat earlier
ones is taken as its expected value, since every epoch has a new random order. All ranks
of a host are taken to advance through their batches together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.job.plan.cache_epoch import (
    BatchSizes,
    CacheEpoch,
    Slots,
    batch_edges,
    batch_sums,
)
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64
from simshuffle.workload.exchange import ExchangePlan, Shards

ABSENT = np.float32(-1)
"""In place of the bytes touched since a sample was: it is surely in no cache."""


@dataclass(frozen=True)
class Hits:
    """The reads of an epoch that page caches answer."""

    # samples, nbytes: (iterations, M) of each batch
    samples: Ints64
    nbytes: Floats
    # (steps, M) whether the sample that a rank sends in a step is in its host's cache when it is
    # sent
    sent: Flags
    # (N,) by slot whether its sample is there, or one for all
    is_hit: Flags | bool


def no_hits(batches: BatchSizes, exchange: ExchangePlan) -> Hits:
    """Return the hits of an epoch that reads everything from storage."""
    nothing = np.zeros_like(batches.samples), np.zeros_like(batches.nbytes)
    return Hits(*nothing, np.zeros(exchange.sample.shape, bool), False)


def all_hits(batches: BatchSizes, exchange: ExchangePlan) -> Hits:
    """Return the hits of an epoch that reads everything from memory: all samples that
    leave their rank are sent from there, too.
    """
    return Hits(batches.samples, batches.nbytes, exchange.moving, True)


@dataclass
class _Past:
    """An epoch of global shuffle that caches may still remember."""

    host: Ints  # (N,) the host that read each sample; -1 where none did
    # (N,) bytes that this host read after it in that epoch; (0,) if the whole set fits, so that it
    # does not matter
    nbytes_after: NDArray[np.float32]
    unread: (
        Floats  # (H,) share of the set that each host has not read in the epochs since
    )


class PageCaches:
    """The page caches of all hosts from epoch to epoch.

    Args:
        capacity: bytes of each.
        nbytes: (N,) bytes of every sample.
        host_of: (M,) host of every rank, not decreasing.
        redrawn: every host reads a new random part of the set each epoch (global
            shuffle), and several may hold the same sample; else a sample has one place,
            and is read there again and again.
    """

    def __init__(
        self, capacity: float, nbytes: Floats, host_of: Ints, redrawn: bool
    ) -> None:
        self._capacity = capacity
        self._nbytes = nbytes
        self._redrawn = redrawn
        # a small type, since one is kept for each sample
        self._host_of: Ints = (
            host_of.astype(np.int16) if host_of[-1] < 1 << 15 else host_of
        )
        self._total = float(nbytes.sum())
        self._cold = True
        self._last: CacheEpoch | None = None  # until it is noted
        self._past: list[_Past] = []  # redrawn: the latest last

    @cached_property
    def _since(self) -> NDArray[np.float32]:
        """Not redrawn: (N,) bytes touched on its host since each sample was, up to the
        end of the latest epoch, or ABSENT; there from when something may have left a
        cache.
        """
        return np.full(len(self._nbytes), ABSENT, np.float32)

    def epoch(
        self, shards: Shards, exchange: ExchangePlan, batches: BatchSizes
    ) -> Hits:
        """Return the hits of the next epoch; in the first there are none, nor with a
        capacity of 0.

        The epoch is remembered for those after it, so call it once for each pass, in
        order. A pass that measures importance is an epoch of its own.
        """
        if self._capacity == 0:
            return no_hits(batches, exchange)
        self.note()
        cold = self._cold
        self._cold = False
        last = self._last
        epoch = CacheEpoch(shards, exchange, batches, self._nbytes, self._host_of)
        self._last = epoch
        if cold:
            return no_hits(batches, exchange)
        if last is None:
            is_hit = _find_by_slot(epoch, self._find_redrawn_hits)
        elif (
            not len(last.left_over[0])
            and self._fits(last).all()
            and self._fits(epoch).all()
        ):
            return all_hits(
                batches, exchange
            )  # everything was touched in the epoch before
        else:
            self._note(last)
            is_hit = _find_by_slot(epoch, self._find_hits)
        sent = self._find_sent_hits(epoch, is_hit)
        if epoch.sent_before_use.any():
            self._note_sent_before_use(epoch, is_hit, sent)
        return Hits(*_sum_hits(epoch, is_hit), sent, is_hit)

    def note(self) -> None:
        """Under global shuffle: note what the latest epoch left, so that its order is
        not needed any more. Else do nothing. `epoch` calls it, too.
        """
        if self._redrawn and self._last is not None:
            self._note_redrawn(self._last)
            self._last = None

    def forget(self) -> None:
        """Release what only later epochs would need: do not call `epoch` afterwards."""
        self._last, self._past, self._since = None, [], self._since[:0].copy()

    # An access finds its sample if at most the capacity has been touched since the last one. That
    # is `since` (what followed up to the end of that epoch), then `before` (of this epoch), of
    # which the share since / universe was touched already, and what arrived in this epoch: before +
    # since (1 - before / universe) + arrived + its own size <= capacity.

    def _universe(self, epoch: CacheEpoch) -> Floats:
        """(H,) bytes of which a host reads a random part in each epoch."""
        return (
            np.full(epoch.hosts, self._total) if self._redrawn else epoch.shard_nbytes
        )

    def _fits(self, epoch: CacheEpoch) -> Flags:
        """(H,) whether nothing need ever leave the cache."""
        return np.asarray(self._universe(epoch) + epoch.arrived[-1] <= self._capacity)

    def _fresh(self, epoch: CacheEpoch, part: Slots) -> Floats:
        """(n,) by slot: 1 - before / universe."""
        return 1.0 - part.read_before / self._universe(epoch)[part.hosts]

    def _free(self, epoch: CacheEpoch, part: Slots) -> Floats:
        """(n,) by slot: capacity - before - arrived - size; without bound where
        everything fits.
        """
        touched = part.read_before
        if epoch.arrived[-1].any():
            touched = part.value_at_read(epoch.read, epoch.arrived + epoch.ahead)
        free = self._capacity - touched
        free[self._fits(epoch)[part.hosts]] = np.inf
        return free - part.sizes

    def _find_hits(self, epoch: CacheEpoch, part: Slots) -> Flags:
        """(n,) of a part, where a sample has one place: whether it is still there."""
        since = self._since[part.samples]
        if self._fits(epoch).all():
            return since >= 0
        return (since >= 0) & (
            since * self._fresh(epoch, part) <= self._free(epoch, part)
        )

    def _note(self, epoch: CacheEpoch) -> None:
        """Note, where a sample has one place, the bytes touched since each sample was.

        ABSENT for those that have surely left their cache.
        """
        exchange = epoch.exchange
        nbytes = self._nbytes
        # from now to the end
        kept_from_now = epoch.read_and_kept[-1] - epoch.read_and_kept
        arrived = epoch.arrived[-1] - epoch.arrived
        sent = (
            epoch.removed[-1] - epoch.removed
        )  # touched from now on, and removed at the end
        fits = self._fits(epoch)
        limit = np.where(fits, np.inf, self._capacity)
        slots, host = epoch.left_over
        sample = epoch.shards.order[slots]
        since_before = self._since[sample]
        aged = (
            epoch.read[-1][host]
            + epoch.arrived[-1][host]
            + since_before * (1.0 - epoch.read[-1][host] / epoch.shard_nbytes[host])
        )
        for part in epoch.parts():
            since = part.value_at_read(kept_from_now, arrived)
            if sent[0].any() and not fits.all():
                peak = (
                    part.value_at_read(kept_from_now, arrived + sent)
                    - limit[part.hosts]
                )
                since[peak + part.sizes > 0] = ABSENT
            self._since[part.samples] = since
        self._since[sample] = np.where(since_before >= 0, aged, ABSENT)
        if len(exchange.sample):
            host_to = self._host_of[exchange.target]
            # bytes that a received sample's new host touches after it, to be kept or removed at the
            # end: what it stores in later steps of the iteration, and all of later iterations
            from_next_iteration = exchange.iteration[:, None] + 1, host_to
            later = epoch.arrived_steps[-1] - epoch.arrived_steps[1:]
            to_keep = (
                np.take_along_axis(later, host_to, axis=1)
                + kept_from_now[from_next_iteration]
            )
            to_remove = sent[from_next_iteration]
            pushed_out = to_keep + to_remove + nbytes[exchange.sample] > limit[host_to]
            moving = exchange.moving
            self._since[exchange.sample[moving]] = np.where(
                pushed_out, ABSENT, to_keep
            )[moving]

    def _note_redrawn(self, epoch: CacheEpoch) -> None:
        """Under global shuffle: keep which host read what, and how much after it.

        Epochs of which no cache can hold anything any more are dropped.
        """
        for past in self._past:
            past.unread = past.unread * (1.0 - epoch.read[-1] / self._total)
        count = len(epoch.shards.order)
        host = np.empty(count, self._host_of.dtype)
        fits = self._total <= self._capacity
        nbytes_after = np.empty(0 if fits else count, np.float32)
        for part in epoch.parts():
            host[part.samples] = part.hosts
            if not fits:
                nbytes_after[part.samples] = (
                    epoch.read[-1][part.hosts] - part.read_before
                )
        host[epoch.shards.order[epoch.left_over[0]]] = -1
        self._past.append(_Past(host, nbytes_after, np.ones(epoch.hosts)))
        self._past = [
            past
            for past in self._past
            if ((1.0 - past.unread) * self._total <= self._capacity).any()
        ]

    def _find_redrawn_hits(self, epoch: CacheEpoch, part: Slots) -> Flags:
        """(n,) of a part: whether the host has read the sample before, and it is still
        there.
        """
        is_hit = np.zeros(len(part.samples), bool)
        if self._total <= self._capacity:
            for past in self._past:
                is_hit |= past.host[part.samples] == part.hosts
            return is_hit
        fresh = self._fresh(epoch, part)
        free = self._free(epoch, part)
        looked_for = np.ones(len(part.samples), bool)
        for past in reversed(self._past):
            candidates = np.flatnonzero(
                (past.host[part.samples] == part.hosts) & looked_for
            )
            looked_for[candidates] = False
            nbytes_after = past.nbytes_after[part.samples[candidates]]
            untouched = (1.0 - nbytes_after / self._total) * past.unread[
                part.hosts[candidates]
            ]
            is_hit[candidates] = (
                self._total * (1.0 - untouched) * fresh[candidates] <= free[candidates]
            )
        return is_hit

    def _find_sent_hits(self, epoch: CacheEpoch, is_hit: Flags) -> Flags:
        """(steps, M): whether a sample that is sent is in the cache; False where it
        stays. Most were read for training a little before, in the same epoch.
        """
        exchange = epoch.exchange
        places = epoch.places
        if not len(exchange.sample):
            return np.zeros(exchange.sample.shape, bool)
        now = epoch.read[exchange.iteration + 1] + epoch.arrived[exchange.iteration]
        rank = np.arange(places.shape[1])
        count = int(places.max()) + 1
        nbytes_between = (
            now[:, self._host_of]
            - epoch.value_at_read(epoch.read, epoch.arrived, count)[rank, places]
            + self._nbytes[exchange.sample]
        )
        sent_between = (
            epoch.sent_steps[:-1][:, self._host_of]
            - epoch.value_at_read(np.zeros_like(epoch.read), epoch.sent, count)[
                rank, places
            ]
        )
        # sent in any order: a part of the others was also read in between, and counts once
        if epoch.sent_before_use.any():
            sent_between *= 1.0 - np.clip(
                nbytes_between / epoch.shard_nbytes[self._host_of], 0.0, 1.0
            )
        is_cached = (nbytes_between + sent_between <= self._capacity) | self._fits(
            epoch
        )[self._host_of]
        trained = epoch.read_in < epoch.iterations
        return (
            np.where(trained, is_cached, is_hit[epoch.shards.start[:-1] + places])
            & exchange.moving
        )

    def _note_sent_before_use(
        self, epoch: CacheEpoch, is_hit: Flags, sent: Flags
    ) -> None:
        """Correct ``is_hit`` (N,) and ``sent`` (steps, M), in place, of samples sent
        before they are trained on.

        ``sent`` depends on the epochs before, ``is_hit``, when the sample is read, on
        the sending.
        """
        step, rank = np.nonzero(epoch.sent_before_use)
        exchange = epoch.exchange
        host = self._host_of[rank]
        place = epoch.places[step, rank]
        sample = exchange.sample[step, rank]
        send_iteration = exchange.iteration[step]
        touched = (epoch.read + epoch.ahead)[send_iteration + 1, host]
        since = (
            self._since[sample] * (1.0 - touched / self._universe(epoch)[host])
            + touched
            + epoch.arrived[send_iteration, host]
        )
        fits = self._fits(epoch)[host]
        is_cached = (since + self._nbytes[sample] <= self._capacity) | fits
        sent[step, rank] = (self._since[sample] >= 0) & is_cached
        read = epoch.read_in[step, rank] < epoch.iterations
        nbytes_between = (
            epoch.value_at_read(epoch.read, epoch.arrived)[rank, place]
            - (epoch.read + epoch.arrived)[send_iteration + 1, host]
        )
        slot = epoch.shards.start[rank] + place
        is_hit[slot[read]] = (
            (nbytes_between + self._nbytes[sample] <= self._capacity) | fits
        )[read]


def _find_by_slot(
    epoch: CacheEpoch, find_hits: Callable[[CacheEpoch, Slots], Flags]
) -> Flags:
    """Return (N,) flags by slot, found part by part."""
    is_hit = np.empty(len(epoch.shards.order), bool)
    for part in epoch.parts():
        is_hit[part.slots] = find_hits(epoch, part)
    return is_hit


def _sum_hits(epoch: CacheEpoch, is_hit: Flags) -> tuple[Ints64, Floats]:
    """Samples and bytes of every batch that were found, (iterations, M) each.

    Samples in no batch are left out.
    """
    batches = epoch.batches
    shards = epoch.shards
    if is_hit.all():
        return batches.samples, batches.nbytes
    edges = batch_edges(shards, batches.size, epoch.iterations)
    samples = batch_sums(
        shards, edges, lambda slots: is_hit[slots].astype(float)
    ).astype(np.int64)
    nbytes = batch_sums(
        shards, edges, lambda slots: np.where(is_hit[slots], epoch.sizes(slots), 0.0)
    )
    nbytes[samples == 0] = 0.0  # without what rounding leaves
    return samples, np.where(samples == batches.samples, batches.nbytes, nbytes)

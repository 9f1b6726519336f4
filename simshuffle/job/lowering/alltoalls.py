"""An all-to-all that has the machine to itself: every rank sends ``n`` bytes to every other.

What a message costs the host is LogGP's (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995):
o + n/c up to a size from which on the HCA reads it where it lies; from a second size on it is asked
for first, which takes two more trips and one more overhead (`MessagePassing`). What the network
takes is the load of its busiest link. Algorithms are those of Open MPI (coll_base_alltoall.c):

- ``linear``: all M - 1 messages at once, each to another rank first; ``linear_sync`` limits how
  many are under way, which costs nothing here. Eager messages travel while the host posts others,
  so the slower of both counts; those that are asked for travel when all are posted, so both do.
- ``pairwise``: M - 1 steps, a message each; a rank begins a step when it has sent and received what
  the step before says. No barrier, so a late rank delays its partners only.
- ``bruck``: ceil(log2 M) such steps, the k-th to the rank 2^k further, with the blocks for all
  ranks whose distance has bit k; they are packed before and unpacked after (Bruck et al., IEEE
  Trans. Parallel Distrib. Syst. 8, 1997).
- ``default``: what Open MPI chooses from 12 ranks on: bruck below 200 B a pair, else linear
  (coll_tuned_decision_fixed.c).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.host_work import LARGE, SMALL
from simshuffle.spec.arrays import Floats, Ints, Ints32

Algorithm = Literal["default", "linear", "linear_sync", "pairwise", "bruck"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
BRUCK_BELOW, BRUCK_FROM = 200, 12
"""Bytes a pair, and ranks, where Open MPI chooses Bruck's algorithm."""
FRESH = 32 * 2**20
"""Bytes from which on a buffer has fresh pages every time it is allocated: the largest threshold
that glibc grows to (mallopt(3), M_MMAP_THRESHOLD)."""
MOST_SHIFTS = 1024
"""Of an all-to-all of more ranks, so many distances between sender and receiver, evenly spread,
stand for all."""


@dataclass(frozen=True)
class AlltoallTimes:
    """What an all-to-all takes (s): in all, and of that what is left if links carry everything in
    no time (``host``), or if messages cost the hosts and the trip nothing (``links``)."""

    seconds: float
    host: float
    links: float


@dataclass(frozen=True)
class _Shift:
    """Every rank sends to the one ``distance`` further."""

    distance: int
    latency: Floats  # (M,) s of each sender's message on its way
    per_byte: Floats  # (M,) s/B, if all of the shift travel at once and share links equally


class Alltoalls:
    """The all-to-alls of all ranks of a machine."""

    def __init__(self, resources: Resources) -> None:
        self._resources, self._passing = resources, resources.cluster.message_passing
        self._ranks: Ints = np.arange(resources.world_size)
        self._shifts: dict[int, _Shift] = {}

    @property
    def world_size(self) -> int:
        """M."""
        return len(self._ranks)

    def chosen(self, algorithm: Algorithm, nbytes: float) -> Algorithm:
        """The algorithm itself, in place of 'default', for ``nbytes`` a pair."""
        if algorithm != "default":
            return algorithm
        small = nbytes < BRUCK_BELOW and self.world_size >= BRUCK_FROM
        return "bruck" if small else "linear"

    def parts(self, algorithm: Algorithm, nbytes: float) -> AlltoallTimes:
        """What an all-to-all of ``nbytes`` bytes a pair takes; 0 for one rank."""
        if self.world_size < 2:
            return AlltoallTimes(0.0, 0.0, 0.0)
        chosen = self.chosen(algorithm, nbytes)
        if chosen not in ("pairwise", "bruck"):
            return self._linear(nbytes)
        law = self._pairwise if chosen == "pairwise" else self._bruck
        return AlltoallTimes(law(nbytes, 1.0, 1.0), law(nbytes, 1.0, 0.0), law(nbytes, 0.0, 1.0))

    def seconds(self, algorithm: Algorithm, nbytes: float) -> float:
        """The whole of `parts`."""
        return self.parts(algorithm, nbytes).seconds

    def _linear(self, nbytes: float) -> AlltoallTimes:
        """All at once."""
        per_byte, latency = self.at_once
        links, route = per_byte * nbytes, latency - self._passing.latency
        whole, host = (
            self._passing.all_at_once(self.world_size - 1, nbytes, carried + route, route)
            for carried in (links, 0.0)
        )
        return AlltoallTimes(whole, host, links)

    def _pairwise(self, nbytes: float, host: float, wire: float) -> float:
        """In steps of one message; ``host`` and ``wire`` 0 leave out that part, as below."""
        shifts, count = self._every(), self.world_size - 1
        ends = np.zeros(self.world_size)
        for shift in shifts:
            ends = self._step(ends, shift, nbytes, host, wire)
        return float(ends.max()) * count / len(shifts)

    def _bruck(self, nbytes: float, host: float, wire: float) -> float:
        """The buffer of all blocks is filled before and emptied after; each step packs and unpacks
        the blocks that it sends."""
        whole = self.world_size * nbytes
        filled = whole / (LARGE if whole >= FRESH else SMALL)
        ends = np.full(self.world_size, host * (filled + whole / SMALL))
        for k in range((self.world_size - 1).bit_length()):
            sent = np.count_nonzero(self._ranks >> k & 1) * nbytes
            ends = self._step(ends, self._shift(1 << k), sent, host, wire)
            ends += host * 2 * sent / SMALL
        return float(ends.max())

    def _step(
        self, begins: Floats, shift: _Shift, nbytes: float, host: float, wire: float
    ) -> Floats:
        """(M,) when each rank has sent and received its message of a step, from when each begins
        it. What is asked for first leaves when both are there, and the sender waits until it has
        arrived."""
        source = (self._ranks - shift.distance) % self.world_size
        trips = self._passing.trips(nbytes)
        asked = begins[source] if trips == 1 else np.maximum(begins[source], begins)
        travel = trips * shift.latency * host + shift.per_byte * nbytes * wire
        arrived = asked + travel[source]
        ends = np.maximum(begins, arrived)
        if trips > 1:
            ends = np.maximum(ends, arrived[(self._ranks + shift.distance) % self.world_size])
        return ends + self._passing.host_seconds(nbytes) * host

    def _every(self) -> list[_Shift]:
        count = self.world_size - 1
        some = np.unique(np.linspace(1, count, min(count, MOST_SHIFTS)).round().astype(int))
        return [self._shift(distance) for distance in some.tolist()]

    def _shift(self, distance: int) -> _Shift:
        if distance not in self._shifts:
            routes, latency = self._resources.message(
                self._ranks, (self._ranks + distance) % self.world_size
            )
            # each flow's share of its fullest link; the last place is for what pads routes, -1
            each = np.append(self._loads(routes) / self._resources.links.capacity, 0.0)
            per_byte = each[routes].max(axis=1)
            self._shifts[distance] = _Shift(distance, latency + self._passing.latency, per_byte)
        return self._shifts[distance]

    def _loads(self, routes: Ints32) -> Ints:
        """(links,) how many routes cross each."""
        return np.bincount(routes[routes >= 0], minlength=len(self._resources.links.names))

    @cached_property
    def at_once(self) -> tuple[float, float]:
        """s a byte of each pair on the busiest link, if all messages travel at once; and the
        largest latency (s)."""
        links = self._resources.links
        loads = np.zeros(len(links.names))
        latency, shifts = 0.0, self._every()
        for shift in shifts:
            target = (self._ranks + shift.distance) % self.world_size
            routes, _ = self._resources.message(self._ranks, target)
            loads += self._loads(routes)
            latency = max(latency, float(shift.latency.max()))
        share = (self.world_size - 1) / len(shifts)
        return float((loads / links.capacity).max() * share), latency

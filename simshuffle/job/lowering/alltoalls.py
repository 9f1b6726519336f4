"""Time an all-to-all that has the machine to itself: every rank sends ``n`` bytes to
every other.

A message costs its host what LogGP says (Alexandrov, Ionescu, Schauser and Scheiman,
SPAA 1995): o + n/c up to the size from which the HCA reads the buffer in place. From a
second size on, the receiver must ask for the message first, which takes two more trips
and one more overhead (`MessagePassing`). The network takes as long as its busiest link
is loaded. The algorithms are those of Open MPI (coll_base_alltoall.c):

- ``linear``: a rank posts all M - 1 messages at once, each to another rank first. ``linear_sync``
  limits the messages under way, which costs nothing here. Eager messages travel while the host
  posts others, so the slower of both counts; requested messages travel when all are posted, so
  both count.
- ``pairwise``: M - 1 steps of one message each; a rank begins a step when it has sent and received
  the message of the step before. There is no barrier, so a late rank delays its partners only.
- ``bruck``: ceil(log2 M) such steps. Step k goes to the rank 2^k further, with the blocks of all
  ranks whose distance has bit k. Blocks are packed before and unpacked after a step (Bruck et al.,
  IEEE Trans. Parallel Distrib. Syst. 8, 1997).
- ``default``: the choice of Open MPI from 12 ranks on: bruck below 200 B a pair, else linear
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
"""Bytes from which on a buffer has fresh pages every time it is allocated: the largest
threshold that glibc grows to (mallopt(3), M_MMAP_THRESHOLD).
"""
MAX_SHIFTS = 1024
"""Largest number of distances between sender and receiver that are computed; in an
all-to-all of more ranks, so many evenly spread ones stand for all.
"""


@dataclass(frozen=True)
class AlltoallTimes:
    """Seconds of an all-to-all in full, without the network, and without the hosts;
    each until the slowest rank has ended.

    ``host`` is the time if links carry everything in no time; ``links`` is the time if
    messages cost the hosts and the trip nothing. They do not add up to ``seconds``.
    """

    seconds: float
    host: float
    links: float


@dataclass(frozen=True)
class _Shift:
    """A shift of an all-to-all: every rank sends to the rank ``distance`` further."""

    distance: int
    latency: Floats  # (M,) s of each sender's message on its way
    per_byte: (
        Floats  # (M,) s/B, if all of the shift travel at once and share links equally
    )


class Alltoalls:
    """The all-to-alls among all M ranks of a machine that does nothing else.

    The costs of each distance between sender and receiver are found once and kept. A
    router that remembers counts the messages of each distance as sent; `at_once` asks
    it again.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._passing = resources.cluster.message_passing
        self._ranks: Ints = np.arange(resources.world_size)
        self._shifts: dict[int, _Shift] = {}

    @property
    def world_size(self) -> int:
        """Number of ranks, M."""
        return len(self._ranks)

    def resolve_algorithm(self, algorithm: Algorithm, nbytes: float) -> Algorithm:
        """Return what 'default' stands for at ``nbytes`` bytes a pair, else
        ``algorithm``.
        """
        if algorithm != "default":
            return algorithm
        small = nbytes < BRUCK_BELOW and self.world_size >= BRUCK_FROM
        return "bruck" if small else "linear"

    def parts(self, algorithm: Algorithm, nbytes: float) -> AlltoallTimes:
        """Time an all-to-all of ``nbytes`` bytes a pair; 0 s for one rank.

        'linear_sync' takes as long as 'linear'. Of more than `MAX_SHIFTS` distances, a
        sample stands for all with 'linear' and 'pairwise'.
        """
        if self.world_size < 2:
            return AlltoallTimes(0.0, 0.0, 0.0)
        resolved = self.resolve_algorithm(algorithm, nbytes)
        if resolved not in ("pairwise", "bruck"):
            return self._linear(nbytes)
        law = self._pairwise if resolved == "pairwise" else self._bruck
        return AlltoallTimes(
            law(nbytes, 1.0, 1.0), law(nbytes, 1.0, 0.0), law(nbytes, 0.0, 1.0)
        )

    def seconds(self, algorithm: Algorithm, nbytes: float) -> float:
        """Return the seconds until the slowest rank has ended an all-to-all of
        ``nbytes`` bytes a pair; 0 for one rank.
        """
        return self.parts(algorithm, nbytes).seconds

    def _linear(self, nbytes: float) -> AlltoallTimes:
        """Time the algorithm that posts all messages at once."""
        per_byte, latency = self.at_once
        links = per_byte * nbytes
        route = latency - self._passing.latency
        seconds, host_seconds = (
            self._passing.all_at_once(
                self.world_size - 1, nbytes, carried + route, route
            )
            for carried in (links, 0.0)
        )
        return AlltoallTimes(seconds, host_seconds, links)

    def _pairwise(self, nbytes: float, host: float, wire: float) -> float:
        """Return the seconds until the slowest rank has ended M - 1 steps of one message
        each. Steps over sampled distances are scaled up to all M - 1.

        ``host`` and ``wire`` are factors of the messages' costs on hosts and on links;
        0 leaves the part out.
        """
        shifts = self._sampled_shifts()
        count = self.world_size - 1
        ends = np.zeros(self.world_size)
        for shift in shifts:
            ends = self._step(ends, shift, nbytes, host, wire)
        return float(ends.max()) * count / len(shifts)

    def _bruck(self, nbytes: float, host: float, wire: float) -> float:
        """Return the seconds of Bruck's algorithm; ``host`` and ``wire`` are as in
        `_pairwise`.

        The buffer of all blocks is filled before and emptied after; each step packs and
        unpacks the blocks that it sends.
        """
        buffer_nbytes = self.world_size * nbytes
        fill_seconds = buffer_nbytes / (LARGE if buffer_nbytes >= FRESH else SMALL)
        ends = np.full(self.world_size, host * (fill_seconds + buffer_nbytes / SMALL))
        for k in range((self.world_size - 1).bit_length()):
            sent_nbytes = np.count_nonzero(self._ranks >> k & 1) * nbytes
            ends = self._step(ends, self._shift(1 << k), sent_nbytes, host, wire)
            ends += host * 2 * sent_nbytes / SMALL
        return float(ends.max())

    def _step(
        self, begins: Floats, shift: _Shift, nbytes: float, host: float, wire: float
    ) -> Floats:
        """Return when each rank has sent and received its message of a step, (M,) s.

        ``begins``, (M,) s, is when each rank begins the step; ``host`` and ``wire`` are
        as in `_pairwise`. A requested message leaves when sender and receiver are both
        there, and the sender waits until it has arrived.
        """
        source = (self._ranks - shift.distance) % self.world_size
        trips = self._passing.trips(nbytes)
        departure = begins[source] if trips == 1 else np.maximum(begins[source], begins)
        travel = trips * shift.latency * host + shift.per_byte * nbytes * wire
        arrived = departure + travel[source]
        ends = np.maximum(begins, arrived)
        if trips > 1:
            ends = np.maximum(
                ends, arrived[(self._ranks + shift.distance) % self.world_size]
            )
        return ends + self._passing.host_seconds(nbytes) * host

    def _sampled_shifts(self) -> list[_Shift]:
        """Return the shifts over all distances, or over `MAX_SHIFTS` distances, evenly
        spread.
        """
        count = self.world_size - 1
        distances = np.unique(
            np.linspace(1, count, min(count, MAX_SHIFTS)).round().astype(int)
        )
        return [self._shift(distance) for distance in distances.tolist()]

    def _shift(self, distance: int) -> _Shift:
        """Return the shift over ``distance`` ranks, computed once for each distance."""
        if distance not in self._shifts:
            routes, latency = self._resources.message(
                self._ranks, (self._ranks + distance) % self.world_size
            )
            # each flow's share of its fullest link; the last place is for what pads routes, -1
            share_of_link = np.append(
                self._loads(routes) / self._resources.links.capacity, 0.0
            )
            per_byte = share_of_link[routes].max(axis=1)
            self._shifts[distance] = _Shift(
                distance, latency + self._passing.latency, per_byte
            )
        return self._shifts[distance]

    def _loads(self, routes: Ints32) -> Ints:
        """Count the routes that cross each link, (links,)."""
        return np.bincount(
            routes[routes >= 0], minlength=len(self._resources.links.names)
        )

    @cached_property
    def at_once(self) -> tuple[float, float]:
        """Cost of all messages travelling at once: s per byte of each pair on the
        busiest link, and the largest latency (s), of the network and the message
        passing. Only for two ranks or more.
        """
        links = self._resources.links
        loads = np.zeros(len(links.names))
        latency = 0.0
        shifts = self._sampled_shifts()
        for shift in shifts:
            target = (self._ranks + shift.distance) % self.world_size
            routes, _ = self._resources.message(self._ranks, target)
            loads += self._loads(routes)
            latency = max(latency, float(shift.latency.max()))
        shifts_per_sample = (self.world_size - 1) / len(shifts)
        return float((loads / links.capacity).max() * shifts_per_sample), latency

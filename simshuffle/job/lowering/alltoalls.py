"""Time an all-to-all that has the machine to itself: every rank sends ``n`` bytes to
every other. Steps go through the network of a run, as transfers that wait for one
another.

A message costs its host what LogGP says (Alexandrov, Ionescu, Schauser and Scheiman,
SPAA 1995): o + n/c up to the size from which the HCA reads the buffer in place. From a
second size on, the receiver must ask for the message first, which takes two more trips
and one more overhead (`MessagePassing`). The algorithms are those of Open MPI
(coll_base_alltoall.c):

- ``linear``: a rank posts all M - 1 messages at once, each to another rank first. ``linear_sync``
  limits the messages under way, which costs nothing here. Eager messages travel while the host
  posts others, so the slower of both counts; requested messages travel when all are posted, so
  both count. The network takes as long as its busiest link is loaded, which is what it takes
  where all messages begin together.
- ``pairwise``: M - 1 steps of one message each; a rank begins a step when it has sent and received
  the message of the step before. There is no barrier, so a late rank delays its partners only.
- ``bruck``: ceil(log2 M) such steps. Step k goes to the rank 2^k further, with the blocks of all
  ranks whose distance has bit k. Blocks are packed before and unpacked after a step (Bruck et al.,
  IEEE Trans. Parallel Distrib. Syst. 8, 1997).
- ``default``: the choice of Open MPI from 12 ranks on: bruck below 200 B a pair, else linear
  (coll_tuned_decision_fixed.c).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from simshuffle.fabric.network import Fluid, Network
from simshuffle.fabric.network.batch import TransferBatch, tasks
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
OWN_CACHE, IN_CACHE = 2**20, 22e9
"""Bytes of a buffer that a core's own cache holds, and bytes/s of copies within that
cache: blocks of 4 KiB to 256 KiB took 21 to 28 GB/s on one core of an AMD EPYC.
"""
MAX_SHIFTS = 1024
"""Largest number of distances between sender and receiver whose loads are counted; in
an all-to-all of more ranks, so many evenly spread ones stand for all.
"""
MAX_MESSAGES = 2**17
"""Largest number of messages whose steps are simulated: in a longer all-to-all, the
steps of evenly spread distances stand for all.
"""


@dataclass(frozen=True)
class AlltoallTimes:
    """Seconds of an all-to-all in full, and two lower bounds: without the network, and
    without the hosts; each until the slowest rank has ended.

    ``host`` is the time if links carry everything in no time; ``links`` is the time
    that the busiest link needs for its bytes. They do not add up to ``seconds``.
    ``sampling`` is two standard errors (s) of ``seconds`` where some steps stand for
    all, else 0.
    """

    seconds: float
    sampling: float
    host: float
    links: float


@dataclass(frozen=True)
class _Shift:
    """A shift of an all-to-all: every rank sends to the rank ``distance`` further."""

    distance: int
    routes: Ints32  # (M, hops) links of each sender's message, padded with -1
    latency: Floats  # (M,) s of each sender's message on its way


@dataclass(frozen=True)
class _Step:
    """A step of an all-to-all: a shift with messages of ``nbytes`` bytes, after which
    each rank copies for ``copying`` s.
    """

    shift: _Shift
    nbytes: float
    copying: float = 0.0


class Alltoalls:
    """The all-to-alls among all M ranks of a machine that does nothing else.

    Routes are found once for each algorithm and kept. A router that remembers begins anew
    with each, so no answer depends on what was asked before.

    Args:
        resources: the ranks, and the links between them.
        network: the model that carries steps.
    """

    def __init__(self, resources: Resources, network: Network | None = None) -> None:
        self._resources = resources
        self._network: Network = network or Fluid()
        self._passing = resources.cluster.message_passing
        self._ranks: Ints = np.arange(resources.world_size)

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

        'linear_sync' takes as long as 'linear'. Of more steps than `MAX_MESSAGES`
        messages have, a sample stands for all with 'pairwise'.
        """
        if self.world_size < 2:
            return AlltoallTimes(0.0, 0.0, 0.0, 0.0)
        resolved = self.resolve_algorithm(algorithm, nbytes)
        if resolved == "pairwise":
            return self._time_pairwise(nbytes)
        return (
            self._time_bruck(nbytes)
            if resolved == "bruck"
            else self._time_linear(nbytes)
        )

    def seconds(self, algorithm: Algorithm, nbytes: float) -> float:
        """Return the seconds until the slowest rank has ended an all-to-all of
        ``nbytes`` bytes a pair; 0 for one rank.
        """
        return self.parts(algorithm, nbytes).seconds

    def _time_linear(self, nbytes: float) -> AlltoallTimes:
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
        return AlltoallTimes(seconds, 0.0, host_seconds, links)

    def list_messages(
        self, algorithm: Algorithm, nbytes: float
    ) -> list[tuple[int, float]]:
        """List the number of messages and their bytes of each step that an all-to-all
        of ``nbytes`` bytes a pair simulates; none of messages that are posted at once.
        """
        resolved = self.resolve_algorithm(algorithm, nbytes)
        if self.world_size < 2 or resolved not in ("pairwise", "bruck"):
            return []
        pairwise = resolved == "pairwise"
        steps = self._pairwise_steps(nbytes) if pairwise else self._bruck_steps(nbytes)
        return [(self.world_size, step.nbytes) for step in steps]

    def _pairwise_steps(self, nbytes: float) -> list[_Step]:
        """Return the steps of the pairwise algorithm, or a sample of its steps."""
        return [_Step(shift, nbytes) for shift in self._pairwise_shifts]

    def _bruck_steps(self, nbytes: float) -> list[_Step]:
        """Return the steps of Bruck's algorithm: each packs and unpacks the blocks that
        it sends.
        """
        steps = []
        for k, shift in enumerate(self._bruck_shifts):
            sent_nbytes = np.count_nonzero(self._ranks >> k & 1) * nbytes
            copying = 2 * sent_nbytes / self._copy_rate(nbytes)
            steps.append(_Step(shift, sent_nbytes, copying))
        return steps

    def _copy_rate(self, nbytes: float) -> float:
        """Return the bytes/s of copies of a buffer with ``nbytes`` bytes of each rank."""
        return IN_CACHE if self.world_size * nbytes <= OWN_CACHE else SMALL

    def _time_pairwise(self, nbytes: float) -> AlltoallTimes:
        """Time M - 1 steps of one message each. Steps over sampled distances are scaled
        up to all M - 1.
        """
        num_steps = self.world_size - 1
        steps = self._pairwise_steps(nbytes)
        ends = self._simulate(steps, 0.0)
        scale = num_steps / len(steps)

        sampling = 0.0
        if len(steps) < num_steps:
            step_seconds = np.diff(ends.mean(axis=1), prepend=0.0)
            sampling = 2 * num_steps * step_seconds.std() / math.sqrt(len(steps))
        host = self._host_seconds(steps, 0.0) * scale
        links = self.at_once[0] * nbytes
        return AlltoallTimes(float(ends.max()) * scale, float(sampling), host, links)

    def _time_bruck(self, nbytes: float) -> AlltoallTimes:
        """Time Bruck's algorithm, whose buffer of all blocks is filled before and emptied
        after.
        """
        buffer_nbytes = self.world_size * nbytes
        copy_rate = self._copy_rate(nbytes)
        fill_rate = LARGE if buffer_nbytes >= FRESH else copy_rate
        begin = buffer_nbytes / fill_rate + buffer_nbytes / copy_rate
        steps = self._bruck_steps(nbytes)
        seconds = float(self._simulate(steps, begin).max())

        carried = sum(self._loads(step.shift.routes) * step.nbytes for step in steps)
        links = float((carried / self._resources.links.capacity).max())
        return AlltoallTimes(seconds, 0.0, self._host_seconds(steps, begin), links)

    def _host_seconds(self, steps: Sequence[_Step], begin: float) -> float:
        """Return the seconds until the slowest rank has ended ``steps`` if links carry
        everything in no time; all ranks begin at ``begin`` (s).
        """
        ends = np.full(self.world_size, begin)
        for step in steps:
            receiver = (self._ranks + step.shift.distance) % self.world_size
            trips = self._passing.trips(step.nbytes)
            departs = ends if trips == 1 else np.maximum(ends, ends[receiver])
            arrival = departs + trips * step.shift.latency
            begins = ends.copy()
            ends[receiver] = np.maximum(begins[receiver], arrival)
            if trips > 1:
                ends = np.maximum(ends, arrival)
            ends += self._passing.host_seconds(step.nbytes) + step.copying
        return float(ends.max())

    def _simulate(self, steps: Sequence[_Step], begin: float) -> Floats:
        """Return when each rank has ended each of ``steps``, (steps, M) s, on the
        network; all ranks begin at ``begin`` (s).

        A rank ends a step when it has received the step's message, and the host has done
        its work for it. A requested message leaves when sender and receiver are both
        there, and the sender waits until it has arrived.
        """
        num_ranks = self.world_size
        # transfer 2 k M + r: the message of rank r in step k; M further: the work of its host
        message = np.arange(len(steps))[:, None] * 2 * num_ranks + self._ranks
        host_work = message + num_ranks
        records = tasks(message.size * 2)
        edges = []
        for k, step in enumerate(steps):
            trips = self._passing.trips(step.nbytes)
            receiver = (self._ranks + step.shift.distance) % num_ranks
            delay = trips * step.shift.latency + (begin if k == 0 else 0.0)
            records["delay"][message[k]] = delay
            records["work"][message[k]] = step.nbytes
            host_seconds = self._passing.host_seconds(step.nbytes)
            records["delay"][host_work[k]] = host_seconds + step.copying
            edges.append((message[k], host_work[k, receiver]))
            if trips > 1:
                edges.append((message[k], host_work[k]))
            if k > 0:
                edges.append((host_work[k - 1], message[k]))
                edges.append((host_work[k - 1], host_work[k]))
                if trips > 1:
                    edges.append((host_work[k - 1, receiver], message[k]))
        width = max(step.shift.routes.shape[1] for step in steps)
        routes = np.full((len(records), width), -1, np.int32)
        for k, step in enumerate(steps):
            routes[message[k], : step.shift.routes.shape[1]] = step.shift.routes

        network = self._resources.network(self._network)
        records["tag"] = np.arange(len(records))
        network.reserve_tags(len(records))
        edge_from, edge_to = (
            np.concatenate(ends).astype(np.int32) for ends in zip(*edges, strict=True)
        )
        network.post(0.0, TransferBatch(records, routes, edge_from, edge_to))
        network.advance(math.inf)
        ends: Floats = network.finish[host_work]
        return ends

    def _spread_distances(self, max_count: int) -> list[int]:
        """Return all distances between ranks, 1 to M - 1, or ``max_count`` of them, evenly
        spread.
        """
        count = self.world_size - 1
        spread = np.linspace(1, count, min(count, max_count)).round().astype(int)
        distances: list[int] = np.unique(spread).tolist()
        return distances

    @cached_property
    def _pairwise_shifts(self) -> list[_Shift]:
        """The shifts of the steps of pairs that are simulated."""
        max_count = max(MAX_MESSAGES // self.world_size, 2)
        return [*self._find_shifts(self._spread_distances(max_count))]

    @cached_property
    def _bruck_shifts(self) -> list[_Shift]:
        """The shifts of the steps of Bruck's algorithm, by powers of two."""
        count = (self.world_size - 1).bit_length()
        return [*self._find_shifts([1 << k for k in range(count)])]

    def _find_shifts(self, distances: Sequence[int]) -> Iterator[_Shift]:
        """Yield the shift over each of ``distances``. A router that remembers counts the
        messages of the shifts before as sent, and no others.
        """
        resources = self._resources.with_fresh_routes()
        for distance in distances:
            target = (self._ranks + distance) % self.world_size
            routes, latency = resources.message(self._ranks, target)
            num_columns = max(int((routes >= 0).any(axis=0).sum()), 1)
            yield _Shift(
                distance, routes[:, :num_columns], latency + self._passing.latency
            )

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
        distances = self._spread_distances(MAX_SHIFTS)
        for shift in self._find_shifts(distances):
            loads += self._loads(shift.routes)
            latency = max(latency, float(shift.latency.max()))
        shifts_per_sample = (self.world_size - 1) / len(distances)
        return float((loads / links.capacity).max() * shifts_per_sample), latency

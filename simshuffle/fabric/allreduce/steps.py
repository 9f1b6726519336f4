"""What an allreduce does, step by step, and the flows of one whose steps wait for one another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.fabric.allreduce.base import AllreduceFlows, Paced
from simshuffle.spec.arrays import Flags, Floats, Ints32, Ints64

StepOfSends = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, bool]
"""Ranks that send, ranks that receive, first part and end of the parts, whether they are added."""


@dataclass(frozen=True)
class Steps:
    """All sends of an allreduce. Those of a step go at once, and carry what was there before it."""

    parts: int  # equal parts of the buffer; as many as are needed to cut it where the sends do
    step: Ints32  # (sends,) from 0, not decreasing
    # src, dst: (sends,) ranks
    src: Ints32
    dst: Ints32
    # first, end: (sends,) the parts from ``first`` to before ``end`` travel
    first: Ints32
    end: Ints32
    # (sends,) whether the receiver adds them to its own, or else takes them in their place
    adds: Flags

    def __len__(self) -> int:
        return len(self.step)

    @classmethod
    def joined(cls, parts: int, stages: Iterable[tuple[ArrayLike, ...]]) -> Steps:
        """The sends of all ``stages`` by their step. Each is given by its columns in the order of
        the attributes; numbers stand for all sends of the stage."""
        rows = [np.stack(np.broadcast_arrays(*stage)).astype(np.int32) for stage in stages]
        columns = np.concatenate([np.zeros((6, 0), np.int32), *rows], axis=1)
        step, src, dst, first, end, adds = columns[:, np.argsort(columns[0], kind="stable")]
        return cls(parts, step, src, dst, first, end, adds.astype(bool))

    @property
    def count(self) -> int:
        """Number of steps."""
        return int(self.step[-1]) + 1 if len(self) else 0

    @property
    def share(self) -> Floats:
        """(sends,) share of the buffer that travels."""
        return np.asarray((self.end - self.first) / self.parts, np.float64)


def among_power_of_two(count: int) -> tuple[Ints32, Ints32, Ints32]:
    """The ranks that take part where 2^k do, those that fold into one of them, and into which: of
    2^k + r ranks the even ones of the first 2r fold into the next one (Thakur, Rabenseifner &
    Gropp, Int. J. High Perform. Comput. Appl. 19, 2005, as in MPICH)."""
    spare = count - (1 << count.bit_length() - 1)
    folding = np.arange(0, 2 * spare, 2, dtype=np.int32)
    taking_part = np.concatenate([folding + 1, np.arange(2 * spare, count)]).astype(np.int32)
    return taking_part, folding, folding + 1


def with_folding(count: int, parts: int, steps: list[StepOfSends]) -> Steps:
    """``steps`` of those that take part (`among_power_of_two`), folding before, unfolding after."""
    _, folding, into = among_power_of_two(count)
    if len(folding):
        fold, unfold = (folding, into, 0, parts, True), (into, folding, 0, parts, False)
        steps = [fold, *steps, unfold]
    return Steps.joined(parts, ((number, *sends) for number, sends in enumerate(steps)))


def place_in_host(host_of: Ints32) -> Ints32:
    """(M,) place of every rank among those of its host, from 0."""
    order = np.argsort(host_of, kind="stable")
    sorted_hosts = host_of[order]
    place = np.empty(len(host_of), np.int32)
    place[order] = np.arange(len(host_of)) - np.searchsorted(sorted_hosts, sorted_hosts)
    return place


def rail_of(host_of: Ints32, rails: int) -> Ints32:
    """(M,) rail of every rank: its place in its host times ``rails`` over the ranks of the host."""
    _, inverse, count = np.unique(host_of, return_inverse=True, return_counts=True)
    return (place_in_host(host_of) * rails // count[inverse]).astype(np.int32)


@dataclass(frozen=True)
class Sends:
    """Sends as the flows of `dependent_flows` carry them: a step, or a pipeline of many as one."""

    step: Ints32  # (sends,) step or pipeline, in their order
    # src, dst: (sends,) ranks
    src: Ints32
    dst: Ints32
    share: Floats  # (sends,) of the buffer
    rail: Ints32  # (sends,) HCA, of those between hosts
    hops: Ints32  # (sends,) latencies before it, 1 for a step
    # (sends,) the rank that sends, or the one at the head of its pipeline: whose transfers before
    # ``step`` have to end first
    origin: Ints32

    @classmethod
    def joined(cls, stages: Iterable[tuple[ArrayLike, ...]]) -> Sends:
        """The sends of all ``stages``, each given by its columns in the order of the attributes;
        numbers stand for all sends of the stage."""
        rows: list[list[NDArray[Any]]] = [list(np.broadcast_arrays(*stage)) for stage in stages]
        step, src, dst, share, rail, hops, origin = map(np.concatenate, zip(*rows, strict=True))
        whole = (step, src, dst, rail, hops, origin)
        step, src, dst, rail, hops, origin = (each.astype(np.int32) for each in whole)
        return cls(step, src, dst, share.astype(np.float64), rail, hops, origin)

    @classmethod
    def of(cls, steps: Steps, rail: Ints32) -> Sends:
        """Each step by itself, on the rail of the rank that sends; ``rail`` is (M,)."""
        hops = np.ones(len(steps), np.int32)
        return cls(steps.step, steps.src, steps.dst, steps.share, rail[steps.src], hops, steps.src)


def dependent_flows(
    sends: Sends, host_of: Ints32, nbytes: float, algorithm: Paced
) -> AllreduceFlows:
    """The flows of ``sends`` of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,).

    A step of two ranks begins when all that both of them send and receive in their last ones has
    ended, and a latency later the bytes flow. A rank sends at most at the bus bandwidth, over all
    sends of a step together. Those of a step inside a host end together, with its busiest rank, and
    stay apart, so that each crosses its GPU's NVLink. Those between the same two hosts on the same
    rail are one flow, which begins when the last of them could.
    """
    size, far = len(host_of), host_of[sends.src] != host_of[sends.dst]
    _, host = np.unique(host_of, return_inverse=True)
    ends = [np.where(far, host[end], end) for end in (sends.src, sends.dst)]
    rail = np.where(far, sends.rail, 0)
    key = _joined([sends.step, far, *ends, rail], [2, size, size, int(rail.max()) + 1])
    _, first, flow = np.unique(key, return_index=True, return_inverse=True)

    _, sender = np.unique(_joined([sends.step, far, sends.src], [2, size]), return_inverse=True)
    busiest = _sums(sender, sends.share)[sender]
    _, inside = np.unique(_joined([sends.step, host[sends.src]], [size]), return_inverse=True)
    of_host = np.zeros(len(busiest))
    np.maximum.at(of_host, inside[~far], busiest[~far])
    busiest[~far] = of_host[inside[~far]]
    buses = algorithm.intra_host_bus_bandwidth(nbytes), algorithm.inter_host_bus_bandwidth(nbytes)
    cap = sends.share / busiest * np.array(buses)[far.astype(int)]
    latencies = np.array([algorithm.intra_host_latency, algorithm.inter_host_latency])
    delay: Floats = sends.hops * latencies[far.astype(int)]
    edge_from, edge_to = _edges(sends, flow)
    return AllreduceFlows(
        src=sends.src[first],
        dst=sends.dst[first],
        nbytes=_sums(flow, sends.share) * nbytes,
        rail=rail[first].astype(np.int32),
        cap=_sums(flow, cap),
        latency=0.0,
        delay=delay[first],
        step=sends.step[first],
        edge_from=edge_from,
        edge_to=edge_to,
    )


def _sums(group: NDArray[np.intp], values: Floats) -> Floats:
    """The sum of the values of every group."""
    return np.bincount(group, values).astype(np.float64)


def _joined(columns: list[NDArray[Any]], ranges: list[int]) -> Ints64:
    """One number for each row of ``columns``; all but the first are below their ``ranges``."""
    key = columns[0].astype(np.int64)
    for column, below in zip(columns[1:], ranges, strict=True):
        key = key * below + column
    return key


def _edges(sends: Sends, flow: NDArray[np.intp]) -> tuple[Ints32, Ints32]:
    """From and to which flow somebody waits: ``flow``, (sends,), is what carries each send."""
    steps = int(sends.step.max()) + 1
    # a moment is a rank in a step; at each it waits for its flows at the moment before
    ranks = np.concatenate([sends.src, sends.dst]).astype(np.int64)
    moment = ranks * steps + np.tile(sends.step, 2)
    order = np.argsort(moment, kind="stable")
    moments, start, count = np.unique(moment[order], return_index=True, return_counts=True)
    # a step begins when both its ends are there
    steps_of_two = np.flatnonzero(sends.origin == sends.src)
    waits = np.concatenate([np.arange(len(flow)), steps_of_two])
    rank = np.concatenate([sends.origin, sends.dst[steps_of_two]])
    last = np.searchsorted(moments, rank.astype(np.int64) * steps + sends.step[waits]) - 1
    known = (last >= 0) & (moments[last] // steps == rank)
    last, waits = last[known], waits[known]
    # all of the flows of `last`, one after the other
    each = count[last]
    which = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    before = np.tile(flow, 2)[order][np.repeat(start[last], each) + which]
    after = np.repeat(flow[waits], each)
    flows = int(flow.max()) + 1
    edges = np.unique(before.astype(np.int64) * flows + after)
    return (edges // flows).astype(np.int32), (edges % flows).astype(np.int32)


class Dependent(Paced):
    """An algorithm whose steps wait for one another."""

    @abstractmethod
    def sends(self, host_of: Ints32) -> Sends:
        """What ranks on hosts ``host_of``, (M,), send, as `dependent_flows` carries it."""

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """See `dependent_flows`."""
        return dependent_flows(self.sends(host_of), host_of, nbytes, self)

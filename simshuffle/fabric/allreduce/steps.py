"""The sends of an allreduce, step by step (`Steps`) or as pipelines (`Sends`), and the
flows of an allreduce whose steps wait for one another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.fabric.allreduce.base import AllreduceFlows, Paced
from simshuffle.fabric.allreduce.layout import keep_layouts
from simshuffle.spec.arrays import Flags, Floats, Ints32, Ints64

StepOfSends = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, bool]
"""Ranks that send, ranks that receive, first part and end of the parts, whether they
are added.
"""


@dataclass(frozen=True)
class Steps:
    """The sends of an allreduce, step by step. The sends of a step go at once, and
    carry what was there before it.
    """

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
    def join(cls, parts: int, stages: Iterable[tuple[ArrayLike, ...]]) -> Steps:
        """Join the sends of all ``stages``, ordered by step.

        Args:
            parts: equal parts of the buffer.
            stages: for each the columns of its sends in the order of the attributes;
                numbers stand for all sends of the stage.
        """
        # a column for each send; rows: step, src, dst, first, end, adds
        rows = [
            np.stack(np.broadcast_arrays(*stage)).astype(np.int32) for stage in stages
        ]
        columns = np.concatenate([np.zeros((6, 0), np.int32), *rows], axis=1)
        step, src, dst, first, end, adds = columns[
            :, np.argsort(columns[0], kind="stable")
        ]
        return cls(parts, step, src, dst, first, end, adds.astype(bool))

    @property
    def count(self) -> int:
        """Number of steps; 0 without sends."""
        return int(self.step[-1]) + 1 if len(self) else 0

    @property
    def share(self) -> Floats:
        """(sends,) share of the buffer that each send carries."""
        return np.asarray((self.end - self.first) / self.parts, np.float64)


def fold_to_power_of_two(count: int) -> tuple[Ints32, Ints32, Ints32]:
    """Fold 2^k + r ranks to 2^k: the even ones of the first 2r ranks fold into the next
    one (Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005, as
    in MPICH).

    Returns:
        (2^k,) the ranks that take part; (r,) the ranks that fold; (r,) the rank into
        which each folds.
    """
    num_folding = count - (1 << count.bit_length() - 1)
    folding = np.arange(0, 2 * num_folding, 2, dtype=np.int32)
    taking_part = np.concatenate(
        [folding + 1, np.arange(2 * num_folding, count)]
    ).astype(np.int32)
    return taking_part, folding, folding + 1


def add_folding_steps(count: int, parts: int, steps: list[StepOfSends]) -> Steps:
    """Join ``steps`` of the ranks that take part (`fold_to_power_of_two`), with a step
    of folding before and one of unfolding after.

    Nothing is added if ``count``, the number of all ranks, is a power of two.
    ``parts`` are the equal parts of the buffer that ``steps`` count in.
    """
    _, folding, into = fold_to_power_of_two(count)
    if len(folding):
        fold = (folding, into, 0, parts, True)
        unfold = (into, folding, 0, parts, False)
        steps = [fold, *steps, unfold]
    return Steps.join(parts, ((step, *sends) for step, sends in enumerate(steps)))


def place_in_host(host_of: Ints32) -> Ints32:
    """(M,) index of each rank among the ranks of its host, from 0, in their order."""
    order = np.argsort(host_of, kind="stable")
    sorted_hosts = host_of[order]
    place = np.empty(len(host_of), np.int32)
    place[order] = np.arange(len(host_of)) - np.searchsorted(sorted_hosts, sorted_hosts)
    return place


def rail_of(host_of: Ints32, rails: int) -> Ints32:
    """(M,) rail of every rank, from 0 to ``rails`` - 1: its place in its host times
    ``rails`` over the ranks of the host, rounded down.
    """
    _, inverse, count = np.unique(host_of, return_inverse=True, return_counts=True)
    return (place_in_host(host_of) * rails // count[inverse]).astype(np.int32)


@dataclass(frozen=True)
class Sends:
    """The sends of an allreduce as `dependent_flows` carries them: a send is one
    message of a step, or all messages of a pipeline.
    """

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
    def join(cls, stages: Iterable[tuple[ArrayLike, ...]]) -> Sends:
        """Join the sends of all ``stages``, one or more, in order.

        Args:
            stages: for each the columns of its sends in the order of the attributes;
                numbers stand for all sends of the stage.
        """
        rows: list[list[NDArray[Any]]] = [
            list(np.broadcast_arrays(*stage)) for stage in stages
        ]
        step, src, dst, share, rail, hops, origin = map(
            np.concatenate, zip(*rows, strict=True)
        )
        integer_columns = (step, src, dst, rail, hops, origin)
        step, src, dst, rail, hops, origin = (
            column.astype(np.int32) for column in integer_columns
        )
        return cls(step, src, dst, share.astype(np.float64), rail, hops, origin)

    @classmethod
    def from_steps(cls, steps: Steps, rail: Ints32) -> Sends:
        """Return the sends of ``steps``, each step by itself, on the rail of the rank
        that sends; ``rail`` is (M,).
        """
        hops = np.ones(len(steps), np.int32)
        return cls(
            steps.step,
            steps.src,
            steps.dst,
            steps.share,
            rail[steps.src],
            hops,
            steps.src,
        )


@dataclass(frozen=True)
class SendLayout:
    """The flows that carry sends, whatever their bytes and pace; made by
    `lay_out_sends`.
    """

    sends: Sends
    between_hosts: NDArray[np.intp]  # (sends,) 1 between hosts, 0 inside one
    # (sends,) of the bus bandwidth, which a rank has for all its sends of a step together
    bandwidth_share: Floats
    flow: NDArray[np.intp]  # (sends,) the flow that carries each send
    first_send: NDArray[np.intp]  # (flows,) the first send that each flow carries
    rail: Ints32  # (flows,) HCA; 0 inside a host
    # (edges,) flow ``edge_to[k]`` waits for ``edge_from[k]``
    edge_from: Ints32
    edge_to: Ints32

    def flows(self, nbytes: float, algorithm: Paced) -> AllreduceFlows:
        """Return the flows of a buffer of ``nbytes`` bytes, with the latencies and bus
        bandwidths of ``algorithm``; see `dependent_flows`.
        """
        sends = self.sends
        bus_bandwidths = (
            algorithm.intra_host_bus_bandwidth(nbytes),
            algorithm.inter_host_bus_bandwidth(nbytes),
        )
        cap = self.bandwidth_share * np.array(bus_bandwidths)[self.between_hosts]
        latencies = np.array(
            [algorithm.intra_host_latency, algorithm.inter_host_latency]
        )
        delay: Floats = sends.hops * latencies[self.between_hosts]
        return AllreduceFlows(
            src=sends.src[self.first_send],
            dst=sends.dst[self.first_send],
            nbytes=_sum_by_group(self.flow, sends.share) * nbytes,
            rail=self.rail,
            cap=_sum_by_group(self.flow, cap),
            latency=0.0,
            delay=delay[self.first_send],
            step=sends.step[self.first_send],
            edge_from=self.edge_from,
            edge_to=self.edge_to,
        )


def lay_out_sends(sends: Sends, host_of: Ints32) -> SendLayout:
    """Lay out the flows of ``sends`` over ranks on hosts ``host_of``, (M,), as
    `dependent_flows` says.
    """
    num_ranks = len(host_of)
    is_between_hosts = host_of[sends.src] != host_of[sends.dst]
    _, host = np.unique(host_of, return_inverse=True)
    end_columns = [
        np.where(is_between_hosts, host[end], end) for end in (sends.src, sends.dst)
    ]
    rail = np.where(is_between_hosts, sends.rail, 0)
    flow_key = _join_columns(
        [sends.step, is_between_hosts, *end_columns, rail],
        [2, num_ranks, num_ranks, int(rail.max()) + 1],
    )
    _, first_send, flow = np.unique(flow_key, return_index=True, return_inverse=True)

    _, sender_in_step = np.unique(
        _join_columns([sends.step, is_between_hosts, sends.src], [2, num_ranks]),
        return_inverse=True,
    )
    busiest = _sum_by_group(sender_in_step, sends.share)[sender_in_step]
    _, step_in_host = np.unique(
        _join_columns([sends.step, host[sends.src]], [num_ranks]), return_inverse=True
    )
    busiest_in_host = np.zeros(len(busiest))
    np.maximum.at(
        busiest_in_host, step_in_host[~is_between_hosts], busiest[~is_between_hosts]
    )
    busiest[~is_between_hosts] = busiest_in_host[step_in_host[~is_between_hosts]]
    edge_from, edge_to = _find_edges(sends, flow)
    return SendLayout(
        sends=sends,
        between_hosts=is_between_hosts.astype(np.intp),
        bandwidth_share=sends.share / busiest,
        flow=flow,
        first_send=first_send,
        rail=rail[first_send].astype(np.int32),
        edge_from=edge_from,
        edge_to=edge_to,
    )


def dependent_flows(
    sends: Sends, host_of: Ints32, nbytes: float, algorithm: Paced
) -> AllreduceFlows:
    """The flows of ``sends`` of a buffer of ``nbytes`` bytes over ranks on hosts
    ``host_of``, (M,).

    A step of two ranks begins when all that both of them send and receive in their last
    ones has ended, and a latency later the bytes flow. A rank sends at most at the bus
    bandwidth, over all sends of a step together. Those of a step inside a host end
    together, with its busiest rank, and stay apart, so that each crosses its GPU's
    NVLink. Those between the same two hosts on the same rail are one flow, which begins
    when the last of them could.

    Latencies are in the delays of the flows; ``latency`` is 0. There must be sends.
    Slow hosts do not count here.
    """
    return lay_out_sends(sends, host_of).flows(nbytes, algorithm)


def _sum_by_group(group: NDArray[np.intp], values: Floats) -> Floats:
    """(groups,) sum of ``values`` (n,) of each group, where ``group`` (n,) is the group
    of each value.
    """
    return np.bincount(group, values).astype(np.float64)


def _join_columns(columns: list[NDArray[Any]], ranges: list[int]) -> Ints64:
    """(n,) one number for each row of ``columns``, (n,) each: equal for equal rows
    only. All columns but the first are below their ``ranges``.
    """
    joined = columns[0].astype(np.int64)
    for column, range_of_column in zip(columns[1:], ranges, strict=True):
        joined = joined * range_of_column + column
    return joined


def _find_edges(sends: Sends, flow: NDArray[np.intp]) -> tuple[Ints32, Ints32]:
    """Find which flow waits for which.

    Args:
        sends: all sends.
        flow: (sends,) the flow that carries each send.

    Returns:
        (edges,) the flow that must end, ascending, and (edges,) the flow that waits for
        it; each pair once.
    """
    num_steps = int(sends.step.max()) + 1
    # a moment is a rank in a step; at each it waits for its flows at the moment before
    ranks = np.concatenate([sends.src, sends.dst]).astype(np.int64)
    moment = ranks * num_steps + np.tile(sends.step, 2)
    moment_order = np.argsort(moment, kind="stable")
    moments, start, count = np.unique(
        moment[moment_order], return_index=True, return_counts=True
    )
    # a step begins when both its ends are there
    stepwise_sends = np.flatnonzero(sends.origin == sends.src)
    waiting_send = np.concatenate([np.arange(len(flow)), stepwise_sends])
    rank = np.concatenate([sends.origin, sends.dst[stepwise_sends]])
    last_moment = (
        np.searchsorted(
            moments, rank.astype(np.int64) * num_steps + sends.step[waiting_send]
        )
        - 1
    )
    has_last = (last_moment >= 0) & (moments[last_moment] // num_steps == rank)
    last_moment = last_moment[has_last]
    waiting_send = waiting_send[has_last]
    # all flows of `last_moment`, one after the other
    flows_to_await = count[last_moment]
    offset = np.arange(flows_to_await.sum()) - np.repeat(
        np.cumsum(flows_to_await) - flows_to_await, flows_to_await
    )
    edge_from = np.tile(flow, 2)[moment_order][
        np.repeat(start[last_moment], flows_to_await) + offset
    ]
    edge_to = np.repeat(flow[waiting_send], flows_to_await)
    flows = int(flow.max()) + 1
    edges = np.unique(edge_from.astype(np.int64) * flows + edge_to)
    return (edges // flows).astype(np.int32), (edges % flows).astype(np.int32)


class Dependent(Paced):
    """Base of the algorithms whose steps wait for one another."""

    @abstractmethod
    def sends(self, host_of: Ints32) -> Sends:
        """Return the sends of ranks on hosts ``host_of`` (M,), as `dependent_flows`
        carries them.
        """

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows of `sends`, which wait for one another by edges; see
        `dependent_flows`.
        """
        return self.lay_out(host_of).flows(nbytes, self)

    @keep_layouts
    def lay_out(self, host_of: Ints32) -> SendLayout:
        """Lay out `sends` over hosts ``host_of`` (M,)."""
        return lay_out_sends(self.sends(host_of), host_of)

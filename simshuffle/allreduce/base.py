"""What all allreduce algorithms have in common, and what they answer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.overlap import NoOverlap, Overlap
from simshuffle.spec.interpolation import BandwidthBySize
from simshuffle.spec.record import Seconds, Sourced


def _no_edges() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class AllreduceFlows:
    """The flows of one allreduce.

    Flows of one step run at once, as those of a pipeline do all together; where steps depend on one
    another, edges say what a flow waits for."""

    # src, dst: (flows,) ranks
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    nbytes: NDArray[np.float64]  # (flows,) bytes
    # (flows,) the HCA that a flow between hosts uses; means nothing inside a host
    rail: NDArray[np.int32]
    cap: NDArray[np.float64]  # (flows,) bytes/s at most
    latency: float  # s before the first flows begin
    # (flows,) s from the end of what a flow waits for to its begin; a number for all
    delay: NDArray[np.float64] | float = 0.0
    # (flows,) step of each flow, not decreasing; a number for all
    step: NDArray[np.int32] | int = 0
    # edge_from, edge_to: (edges,) flow ``edge_to[k]`` waits for ``edge_from[k]``, of an earlier
    # step
    edge_from: NDArray[np.int32] = field(default_factory=_no_edges)
    edge_to: NDArray[np.int32] = field(default_factory=_no_edges)

    def __len__(self) -> int:
        return len(self.src)

    @property
    def delays(self) -> NDArray[np.float64]:
        """(flows,) s before each begins; those that wait for none have the latency before them."""
        waits = np.zeros(len(self), bool)
        waits[self.edge_to] = True
        return np.asarray(self.delay + np.where(waits, 0.0, self.latency))

    @property
    def seconds_uncontended(self) -> float:
        """Time (s) if nothing but the caps limits: latency, then the longest chain of delays and
        bytes over bandwidth."""
        return self.seconds(self.cap)

    def seconds(self, bandwidth: NDArray[np.float64]) -> float:
        """Time (s) if each flow has its ``bandwidth``, (flows,) bytes/s, to itself."""
        alone = self.delay + self.nbytes / bandwidth
        if not len(self.edge_to):
            return self.latency + float(alone.max())
        step, ready = np.broadcast_to(self.step, len(self)), np.zeros(len(self))
        of_edge = step[self.edge_to]
        order = np.argsort(of_edge, kind="stable")
        starts = np.flatnonzero(np.diff(of_edge[order], prepend=-1))
        for edges in np.split(order, starts[1:]):
            origin = self.edge_from[edges]
            np.maximum.at(ready, self.edge_to[edges], (ready + alone)[origin])
        return self.latency + float((ready + alone).max())


HostOrder = Literal["sorted", "as_given", "shuffled"]


class AllreduceAlgorithm(Sourced):
    """An algorithm, and when it runs.

    Attributes:
        order: in which it goes through the hosts: 'sorted' by rack and leaf switch, 'as_given' in
            that of the ranks, or 'shuffled', drawn from the seed.
        overlap: which part of the gradients is summed while the backward pass still runs, by whose
            rule.
    """

    one_for_each_hca: ClassVar[str]
    """The field that says over how many HCAs of a host the bytes are spread."""

    order: HostOrder = "sorted"
    overlap: Overlap = NoOverlap(kind="none")

    def over(self, hcas: int) -> Self:
        """The same over so many HCAs of a host, if it does not say over how many."""
        key = self.one_for_each_hca
        return self if getattr(self, key) else self.model_copy(update={key: hcas})

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,); None
        for a single rank."""
        return None if len(host_of) == 1 else self.flows_of_several(host_of, nbytes)

    @abstractmethod
    def flows_of_several(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows:
        """Those of two ranks or more."""


class Paced(AllreduceAlgorithm):
    """An algorithm with one latency and one bandwidth inside hosts, and one each between them.

    Attributes:
        intra_host_latency: of one step inside a host.
        inter_host_latency: of one step between hosts.
        intra_host_bus_bandwidth: what a rank sends over all HCAs together at most, inside a host;
            may be a curve over the bytes of the allreduce.
        inter_host_bus_bandwidth: the same between hosts. Of 'ring' and 'tree' it counts for all
            steps as soon as there are two hosts.
    """

    intra_host_latency: Seconds
    inter_host_latency: Seconds
    intra_host_bus_bandwidth: BandwidthBySize
    inter_host_bus_bandwidth: BandwidthBySize

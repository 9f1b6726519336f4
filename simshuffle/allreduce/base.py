"""What all allreduce algorithms have in common."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from simshuffle.allreduce.overlap import NoOverlap, Overlap
from simshuffle.spec.interpolation import BandwidthBySize
from simshuffle.spec.record import Seconds, Sourced

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

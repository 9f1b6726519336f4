"""Allreduce as NCCL chooses it: ring or double binary trees."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.base import AllreduceAlgorithm
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.ring import Ring
from simshuffle.allreduce.tree import Tree
from simshuffle.spec.interpolation import BandwidthBySize
from simshuffle.spec.record import Count, Seconds

TREE_BANDWIDTH = 0.9
"""Bus bandwidth of trees over that of rings (NCCL v2.7.8, src/graph/tuning.cc; 0.92 in v2.11)."""


class Nccl(AllreduceAlgorithm):
    """The faster of ring and trees for the bytes and the hosts at hand, by NCCL's tuning model
    (v2.7.8, src/graph/tuning.cc):

    the latency of each plus the bytes over its bandwidth, without contention. The bus bandwidths
    are those of the ring; trees reach `TREE_BANDWIDTH` of them. One protocol is modelled, whose
    latencies are given. NCCL's corrections of this model are left out: twice the latency for large
    buffers on rings, slower trees below 128 MB, and trees of at most 80 GB/s (v2.7 only).
    """

    one_for_each_hca: ClassVar[str] = "channels"
    kind: Literal["nccl"]
    channels: Count
    ring_intra_host_latency: Seconds
    ring_inter_host_latency: Seconds
    tree_intra_host_latency: Seconds
    tree_inter_host_latency: Seconds
    intra_host_bus_bandwidth: BandwidthBySize
    inter_host_bus_bandwidth: BandwidthBySize

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,); None
        for a single rank."""
        ring, tree = self.ring.flows(host_of, nbytes), self.tree.flows(host_of, nbytes)
        if ring is None or tree is None:
            return None
        tree = replace(tree, cap=TREE_BANDWIDTH * tree.cap)
        return tree if tree.seconds_uncontended < ring.seconds_uncontended else ring

    @property
    def ring(self) -> Ring:
        """The ring that it may choose."""
        return Ring.model_construct(
            kind="ring",
            rings=self.channels,
            intra_host_latency=self.ring_intra_host_latency,
            inter_host_latency=self.ring_inter_host_latency,
            intra_host_bus_bandwidth=self.intra_host_bus_bandwidth,
            inter_host_bus_bandwidth=self.inter_host_bus_bandwidth,
        )

    @property
    def tree(self) -> Tree:
        """The trees that it may choose, at the ring's bus bandwidth."""
        return Tree.model_construct(
            kind="tree",
            channels=self.channels,
            intra_host_latency=self.tree_intra_host_latency,
            inter_host_latency=self.tree_inter_host_latency,
            intra_host_bus_bandwidth=self.intra_host_bus_bandwidth,
            inter_host_bus_bandwidth=self.inter_host_bus_bandwidth,
        )

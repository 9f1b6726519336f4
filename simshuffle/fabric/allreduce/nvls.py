"""Allreduce that NVLink switches sum inside a domain (NVLink SHARP), with trees between
domains, as NCCL's NVLS and NVLSTree.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np

from simshuffle.fabric.allreduce.base import AllreduceFlows, Paced
from simshuffle.fabric.allreduce.layout import SharedLayout, keep_layouts
from simshuffle.fabric.allreduce.nccl import tree_edges
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.record import OneEach


class Nvls(Paced):
    """NVLink switches sum the buffers of a domain and send the sum to all its GPUs;
    two binary trees carry the sums between domains.

    With G GPUs in a domain, a GPU sends its n bytes to the switches and receives its
    n/G of the sum; it then sends these n/G, which the switches copy to all GPUs. So it
    sends and receives n (1 + 1/G). Each of ``channels`` HCAs of a domain carries an
    equal share over a pair of trees (`simshuffle.fabric.allreduce.nccl.Tree`). All
    bytes move as in a pipeline, at once.

    The latency is that of NCCL's tuning model: ``intra_host_latency`` once, and
    ``inter_host_latency`` for each level of the trees up and once more down (NCCL
    v2.28, src/tuning/nvls.cc). A domain is a host, or a scale-up domain.

    Attributes:
        channels: HCAs of a domain that share the bytes between domains; at most, and by
            default, all.
    """

    one_for_each_hca: ClassVar[str] = "channels"
    latencies_of: ClassVar[str] = "nvls_"
    kind: Literal["nvls"]
    channels: OneEach

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows that load every link as the switches and the trees do.

        Inside a domain each rank sends half of its n (1 + 1/G) bytes to a rank about
        half a domain away, and half back the way round. Caps are such that all flows
        end together, in the time that the bus bandwidth gives: inside a domain, or
        between domains if there are several.
        """
        world_size = len(host_of)
        layout = self.lay_out(host_of)
        bus = (
            self.inter_host_bus_bandwidth
            if layout.hosts > 1
            else self.intra_host_bus_bandwidth
        )
        flow_nbytes = layout.share * nbytes
        seconds = 2 * (world_size - 1) / world_size * nbytes / bus(nbytes)
        levels = layout.hosts.bit_length() - 1
        has_pairs = layout.hosts < world_size
        inside_latency = self.intra_host_latency if has_pairs else 0.0
        return AllreduceFlows(
            src=layout.src,
            dst=layout.dst,
            nbytes=flow_nbytes,
            rail=layout.rail,
            cap=flow_nbytes / seconds,
            latency=inside_latency + 2 * levels * self.inter_host_latency,
        )

    @keep_layouts
    def lay_out(self, host_of: Ints32) -> SharedLayout:
        """Lay out the pairs inside domains and the edges of the trees, both ways; a
        domain is a host of the layout.
        """
        order = np.argsort(host_of, kind="stable").astype(np.int32)
        _, first, size = np.unique(
            host_of[order], return_index=True, return_counts=True
        )
        src, dst, share_inside = _pairs_inside(order, first, size)
        child, parent, rail = tree_edges(order[first], self.channels)
        return SharedLayout.both_ways(
            hosts=len(first),
            child=np.r_[src, child],
            parent=np.r_[dst, parent],
            rail=np.r_[np.zeros(len(src), np.int32), rail],
            share=np.r_[share_inside, np.full(len(child), 0.5 / self.channels)],
        )


def _pairs_inside(
    order: Ints32, first: np.ndarray, size: np.ndarray
) -> tuple[Ints32, Ints32, np.ndarray]:
    """Return, for each rank of a domain with several, itself, the rank that it exchanges
    bytes with, and the share of the buffer that goes each way.

    A domain of G ranks is one ring, whose steps of about G/2 leave every host.

    Args:
        order: (M,) ranks, domain by domain.
        first: (domains,) index in ``order`` of the first rank of each domain.
        size: (domains,) number of ranks of each domain.
    """
    stride_of_size = {
        count: next(
            step for step in range(count // 2, count + 1) if math.gcd(step, count) == 1
        )
        for count in np.unique(size[size > 1]).tolist()
    }
    domain = np.repeat(np.arange(len(size)), size)
    stride = np.array([stride_of_size.get(count, 0) for count in size.tolist()])
    position = np.arange(len(order)) - first[domain]
    partner = order[first[domain] + (position + stride[domain]) % size[domain]]
    has_partner = size[domain] > 1
    share = (1 + 1 / size[domain]) / 2
    return order[has_partner], partner[has_partner], share[has_partner]

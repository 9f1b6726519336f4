"""Ring allreduce."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.allreduce.base import AllreduceFlows, Paced
from simshuffle.allreduce.steps import Sends
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.record import OneEach


class Ring(Paced):
    """Reduce-scatter and all-gather around a ring (Patarasuk & Yuan, JPDC 2009): 2 (M-1) steps of
    n/M bytes.

    ``rings`` rings share the bytes, each on an HCA of its own. A step costs ``inter_host_latency``
    where the ring leaves the host and ``intra_host_latency`` elsewhere.

    Attributes:
        rings: that share the bytes, each on an HCA of its own; at most, and by default,
            ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "rings"
    kind: Literal["ring"]
    rings: OneEach

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Every rank sends 2 (M-1)/M n bytes. The latency is that of 2 (M-1) steps, of which 2
        (H-1) on H hosts cross the network and the rest stay inside hosts, as NCCL's tuning model
        counts them (v2.7); with one GPU a host it is 2 (M-1) alpha."""
        world_size = len(host_of)
        rings = self.rings
        src = np.tile(np.arange(world_size, dtype=np.int32), rings)
        dst = np.tile(np.roll(np.arange(world_size, dtype=np.int32), -1), rings)
        hosts = len(np.unique(host_of))
        each = 2 * (world_size - 1) / world_size * nbytes / rings
        bus = self.inter_host_bus_bandwidth if hosts > 1 else self.intra_host_bus_bandwidth
        inter = 2 * (hosts - 1)
        intra = 2 * (world_size - 1) - inter
        return AllreduceFlows(
            src=src,
            dst=dst,
            nbytes=np.full(len(src), each),
            rail=np.repeat(np.arange(rings, dtype=np.int32), world_size),
            cap=np.full(len(src), bus(nbytes) / rings),
            latency=inter * self.inter_host_latency + intra * self.intra_host_latency,
        )


def ring_sends(count: int) -> Sends:
    """A ring of ``count`` ranks as one pipeline, on rail 0; nothing for one rank."""
    rank = np.arange(count if count > 1 else 0, dtype=np.int32)
    zeros = np.zeros_like(rank)
    return Sends(
        step=zeros,
        src=rank,
        dst=np.roll(rank, -1),
        share=np.full(len(rank), 2 * (count - 1) / count),
        rail=zeros,
        hops=np.full(len(rank), 2 * (count - 1), np.int32),
        origin=rank,
    )

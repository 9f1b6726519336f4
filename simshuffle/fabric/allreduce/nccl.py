"""Allreduce around rings, over double binary trees, and as NCCL selects between both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from simshuffle.fabric.allreduce.base import (
    AllreduceAlgorithm,
    AllreduceFlows,
    Paced,
    SlowHosts,
)
from simshuffle.fabric.allreduce.layout import (
    FlowLayout,
    SharedLayout,
    keep_layouts,
)
from simshuffle.fabric.allreduce.steps import Sends
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.interpolation import BandwidthBySize
from simshuffle.spec.record import Fraction, OneEach, Seconds, Spec, whole_as_float


class Ring(Paced):
    """Reduce-scatter and all-gather around a ring (Patarasuk & Yuan, JPDC 2009): 2
    (M-1) steps of n/M bytes.

    ``rings`` rings share the bytes, each on an HCA of its own. A step costs
    ``inter_host_latency`` where the ring leaves the host and ``intra_host_latency``
    elsewhere.

    Attributes:
        rings: that share the bytes, each on an HCA of its own; at most, and by default,
            ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "rings"
    kind: Literal["ring"]
    rings: OneEach

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows of all rings: every rank sends 2 (M-1)/M n bytes.

        The latency is that of 2 (M-1) steps, of which 2 (H-1) on H hosts cross the
        network and the rest stay inside hosts, as NCCL's tuning model counts them
        (v2.7); with one GPU a host it is 2 (M-1) alpha. Rings go in the order of the
        ranks. With several hosts the bus bandwidth between hosts caps all flows, also
        those inside hosts.
        """
        world_size = len(host_of)
        layout = self.lay_out(host_of)
        flow_nbytes = 2 * (world_size - 1) / world_size * nbytes / self.rings
        bus = (
            self.inter_host_bus_bandwidth
            if layout.hosts > 1
            else self.intra_host_bus_bandwidth
        )
        inter_steps = 2 * (layout.hosts - 1)
        intra_steps = 2 * (world_size - 1) - inter_steps
        return AllreduceFlows(
            src=layout.src,
            dst=layout.dst,
            nbytes=np.full(len(layout.src), flow_nbytes),
            rail=layout.rail,
            cap=np.full(len(layout.src), bus(nbytes) / self.rings),
            latency=inter_steps * self.inter_host_latency
            + intra_steps * self.intra_host_latency,
        )

    @keep_layouts
    def lay_out(self, host_of: Ints32) -> FlowLayout:
        """Lay out all rings, ring by ring: rank i sends to rank i + 1, the last one to
        rank 0.
        """
        world_size = len(host_of)
        rank = np.arange(world_size, dtype=np.int32)
        return FlowLayout(
            hosts=len(np.unique(host_of)),
            src=np.tile(rank, self.rings),
            dst=np.tile(np.roll(rank, -1), self.rings),
            rail=np.repeat(np.arange(self.rings, dtype=np.int32), world_size),
        )


def ring_sends(count: int) -> Sends:
    """Return the sends around a ring of ``count`` ranks as one pipeline, on rail 0;
    none for one rank.

    Each rank sends 2 (count - 1) / count of the buffer, after 2 (count - 1) latencies.
    """
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


class Tree(Paced):
    """Reduce and broadcast over two binary trees at once (Sanders, Speck & Traeff,
    Parallel Computing 35, 2009), as NCCL since 2.4.

    The trees connect hosts. Each carries half of the bytes, up to its root and down
    again, and the hosts that have children in one are leaves of the other; so every
    host sends and receives at most twice the bytes. Inside a host the ranks form a
    chain, whose first stands in the trees (NCCL v2.7, src/graph/connect.cc).
    ``channels``, as NCCL calls them, share the bytes; each has its own two trees and
    its own HCA. All bytes move as in a pipeline, at once.

    A level of the trees costs ``inter_host_latency`` up and once more down, a hop of
    the chain ``intra_host_latency``.

    Attributes:
        channels: pairs of trees that share the bytes, each on an HCA; at most, and by
            default, ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "channels"
    latencies_of: ClassVar[str] = "tree_"
    kind: Literal["tree"]
    channels: OneEach

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows of all trees and chains: all ranks together send 2 (M-1) n
        bytes, as on a ring.

        The latency is 2 ((M/H - 1) intra + log2(H) inter) on H hosts, both whole by
        rounding down, as NCCL's tuning model counts it (v2.7, src/graph/tuning.cc); the
        trees are ceil(log2(H)) deep. Caps are such that all flows end together, in the
        time that the bus bandwidth gives (between hosts, if there are several).
        """
        world_size = len(host_of)
        layout = self.lay_out(host_of)
        hosts = layout.hosts
        bus = (
            self.inter_host_bus_bandwidth
            if hosts > 1
            else self.intra_host_bus_bandwidth
        )
        flow_nbytes = layout.share * nbytes
        chain_latency = (world_size // hosts - 1) * self.intra_host_latency
        levels = hosts.bit_length() - 1
        return AllreduceFlows(
            src=layout.src,
            dst=layout.dst,
            nbytes=flow_nbytes,
            rail=layout.rail,
            # all end together, when bus bandwidth says
            cap=flow_nbytes
            / (2 * (world_size - 1) / world_size * nbytes / bus(nbytes)),
            latency=2 * (chain_latency + levels * self.inter_host_latency),
        )

    def slow_host_share(self, slow: SlowHosts, hosts: int) -> float:
        """Share of the bus bandwidth, from 0 to 1, that trees over ``hosts`` hosts keep
        with slow hosts ``slow``.

        It is that of the slowest host; over two hosts twice that, at most 1.

        Over two hosts each sends half of every byte up and half down, and so half of
        what rings and more hosts send: a slow host costs them less (NCCL's bus
        bandwidth over two hosts may exceed the network's: github.com/NVIDIA/nccl-tests,
        issue 196).
        """
        share = slow.share(hosts)
        return min(1.0, 2 * share) if hosts == 2 else share

    @keep_layouts
    def lay_out(self, host_of: Ints32) -> SharedLayout:
        """Lay out every edge of all trees, up first, then down.

        An edge inside a host stands for that of all trees, as these take one NVLink one
        after the other: its share is 1 and its rail 0. These edges come first.
        """
        order = np.argsort(host_of, kind="stable").astype(np.int32)
        is_in_host = np.diff(host_of[order]) == 0
        heads = order[np.concatenate([[True], ~is_in_host])]
        child, parent, rail = tree_edges(heads, self.channels)
        num_in_hosts = np.count_nonzero(is_in_host)
        return SharedLayout.both_ways(
            hosts=len(heads),
            child=np.concatenate([order[1:][is_in_host], child]),
            parent=np.concatenate([order[:-1][is_in_host], parent]),
            rail=np.concatenate([np.zeros(num_in_hosts, np.int32), rail]),
            share=np.r_[
                np.ones(num_in_hosts), np.full(len(child), 0.5 / self.channels)
            ],
        )


def tree_edges(heads: Ints32, channels: int) -> tuple[Ints32, Ints32, Ints32]:
    """Return (edges,) child, parent and rail of every edge between hosts, channel by
    channel; each carries 0.5 / ``channels`` of the bytes up, and as many down.

    Args:
        heads: (H,) the rank that stands in the trees for each host.
        channels: pairs of trees, each on the rail of its number.
    """
    parent = double_tree(len(heads))
    tree, child_host = np.nonzero(parent >= 0)
    return (
        np.tile(heads[child_host], channels),
        np.tile(heads[parent[tree, child_host]], channels),
        np.repeat(np.arange(channels, dtype=np.int32), len(child_host)),
    )


def double_tree(count: int) -> Ints64:
    """The parents in two binary trees over ``count`` hosts, (2, count); -1 for the root
    of each.

    In the first, host 0 is the root, and a host whose number is an odd multiple of 2^k
    stands k levels above the leaves: its parent is the neighbouring odd multiple of
    2^(k+1), or the one below if there is none above. So odd hosts are leaves. The
    second is the first mirrored if ``count`` is even, or else shifted by one host, so
    that its leaves are the even ones: no host but, if ``count`` is odd, host 0 has
    children in both. These are the trees of NCCL (src/graph/trees.cc), after Sanders,
    Speck & Traeff (2009).
    """
    host = np.arange(1, count)
    step = host & -host
    above = np.where(host // step % 4 == 1, host + step, host - step)
    first = np.concatenate([[-1], np.where(above < count, above, host - step)])
    if count % 2 == 0:
        mirrored = first[::-1]
        return np.stack([first, np.where(mirrored < 0, -1, count - 1 - mirrored)])
    shifted = np.roll(first, 1)
    return np.stack([first, np.where(shifted < 0, -1, (shifted + 1) % count)])


TREE_BANDWIDTH = 0.9
"""Bus bandwidth of trees over that of rings (NCCL v2.7.8, src/graph/tuning.cc; 0.92 in
v2.11).
"""
PLATEAU = 1.9
"""Latency of a ring over several hosts, Simple protocol, from `PLATEAU_NBYTES` for each
rank on, over that of a smaller buffer (the same file in v2.7.5, 01afd20, "Plateau
effect of ring"; later versions have 1.4 from compute capability 8.0 on, and other bytes
to begin from).
"""
PLATEAU_NBYTES = 65536 / 16
"""Bytes of the buffer over ranks from which on it counts as large."""


class Latencies(Spec):
    """Latencies of rings and of trees.

    Attributes:
        ring_base_latency: of a ring, once for each allreduce.
        ring_intra_host_latency: of a step of a ring inside a host.
        ring_inter_host_latency: of a step of a ring between hosts.
        tree_base_latency: of the trees, once for each allreduce.
        tree_intra_host_latency: of a hop of the chain inside a host.
        tree_inter_host_latency: of a level of the trees.
    """

    ring_base_latency: Seconds = 0.0
    ring_intra_host_latency: Seconds
    ring_inter_host_latency: Seconds
    tree_base_latency: Seconds = 0.0
    tree_intra_host_latency: Seconds
    tree_inter_host_latency: Seconds


class Protocol(Latencies):
    """Another way to send than Simple: shorter latencies, and a share of the bandwidth
    that rings and trees have otherwise.

    Attributes:
        ring_bandwidth: share that rings have of their bandwidth with Simple, above 0.
        tree_bandwidth: share that trees have of theirs, above 0.
        intra_host_factor: by which its latencies inside hosts are multiplied if there
            are several hosts.
    """

    ring_bandwidth: Annotated[Fraction, Field(gt=0)]
    tree_bandwidth: Annotated[Fraction, Field(gt=0)]
    intra_host_factor: Annotated[
        float, BeforeValidator(whole_as_float), Field(gt=0)
    ] = 1.0


NCCL_2_7 = {
    "ll": {
        "ring_base_latency": "3.6 us",
        "ring_intra_host_latency": "0.47 us",
        "ring_inter_host_latency": "2.7 us",
        "tree_base_latency": "4.4 us",
        "tree_intra_host_latency": "0.52 us",
        "tree_inter_host_latency": "5 us",
        "ring_bandwidth": 1 / 4,
        "tree_bandwidth": 1 / 3.8,
        "intra_host_factor": 1.8,
    },
    "ll128": {
        "ring_base_latency": "10 us",
        "ring_intra_host_latency": "1.9 us",
        "ring_inter_host_latency": "4 us",
        "tree_base_latency": "4.4 us",
        "tree_intra_host_latency": "1.2 us",
        "tree_inter_host_latency": "8.5 us",
        "ring_bandwidth": 0.92,
        "tree_bandwidth": 0.915,
    },
}
"""LL and LL128 over NVLink and network (NCCL v2.7.5, 01afd20, src/graph/tuning.cc).
Left out: of LL128 its bound of 16.7 GB/s a channel, 7/9 of the bandwidth for trees
inside a host, and 0.7 for rings on hosts with one GPU.
"""
SETS = {"nccl_2.7": NCCL_2_7}
"""Protocols by the name of the set."""


def _expand_set_name(value: Any) -> Any:
    """Replace the name of a set by its protocols; other values are returned as is.

    Raises:
        PydanticCustomError: no set has that name.
    """
    if isinstance(value, str) and value not in SETS:
        text = f"must be one of {', '.join(SETS)}, or a mapping of protocols"
        raise PydanticCustomError("protocols", "{text}", {"text": text})
    return SETS[value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Choice:
    """A choice of NCCL: an algorithm over a protocol."""

    algorithm: Paced  # with the latencies of the protocol
    bandwidth: float = 1.0  # share of its bandwidths that the protocol has
    base_latency: float = 0.0  # s, once for each allreduce
    latency_factor: float = 1.0  # what its latency is multiplied by

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """Return the flows of its algorithm, with the bandwidth and the latency of its
        protocol; None for a single rank. Slow hosts are those of the algorithm.
        """
        flows = self.algorithm.flows(host_of, nbytes)
        if flows is None:
            return None
        latency = self.latency_factor * (self.base_latency + flows.latency)
        return replace(flows, cap=self.bandwidth * flows.cap, latency=latency)


class Nccl(AllreduceAlgorithm, Latencies):
    """The fastest of ring and trees, over each protocol, for the bytes and the hosts at
    hand, by NCCL's tuning model (v2.7.8, src/graph/tuning.cc):

    the latency of each plus the bytes over its bandwidth, without contention. Its own
    latencies are those of the Simple protocol; ``protocols`` are used beside it. The
    bus bandwidths are those of the ring with Simple; trees reach `TREE_BANDWIDTH` of
    them, and other protocols a share. Large buffers on rings over several hosts have
    ``plateau`` times the latency; 1 suits latencies and bandwidths that were measured
    with such buffers. NCCL's other corrections are left out: slower trees below 128 MB,
    and trees of at most 80 GB/s (v2.7 only).

    Attributes:
        channels: rings, or pairs of trees, that share the bytes, each on an HCA; at
            most, and by default, ``cluster.host.hcas``.
        intra_host_bus_bandwidth: what a rank sends over all HCAs together at most on
            rings inside a host; trees get 0.9 of it. May be a curve over the bytes of
            the allreduce.
        inter_host_bus_bandwidth: the same for several hosts.
        plateau: what large buffers on rings over several hosts multiply the latency by;
            1 for latencies that were measured with such buffers.
        protocols: others than Simple by name, which are taken where they are faster;
            'nccl_2.7' is LL and LL128 with NCCL's constants. If left out, Simple alone.
        algorithms: that may be taken, 'ring' and 'tree', as NCCL_ALGO names them; NCCL
            before 2.4 has rings alone. If left out, both.
    """

    one_for_each_hca: ClassVar[str] = "channels"
    kind: Literal["nccl"]
    channels: OneEach
    intra_host_bus_bandwidth: BandwidthBySize
    inter_host_bus_bandwidth: BandwidthBySize
    plateau: Annotated[float, BeforeValidator(whole_as_float), Field(ge=1)] = PLATEAU
    protocols: (
        Annotated[
            dict[str, Protocol], BeforeValidator(_expand_set_name), Field(min_length=1)
        ]
        | None
    ) = None
    algorithms: Annotated[list[Literal["ring", "tree"]], Field(min_length=1)] | None = (
        None
    )

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows of the choice that takes the least time without contention.

        Slow hosts count in each choice. Of equally fast choices the first is taken.
        """
        has_several_hosts = bool((host_of != host_of[0]).any())
        choices = self.choices(
            has_several_hosts, nbytes >= len(host_of) * PLATEAU_NBYTES
        )
        candidates = [
            flows
            for choice in choices
            if (flows := choice.flows(host_of, nbytes)) is not None
        ]
        return min(candidates, key=lambda flows: flows.seconds_uncontended)

    def choices(self, has_several_hosts: bool, is_large: bool) -> Iterator[Choice]:
        """Iterate over ring and trees as far as ``algorithms`` allows, the ring first,
        over Simple and then over each of ``protocols``.

        The plateau raises the latency of rings with Simple alone, and only if both
        arguments are true.

        Args:
            has_several_hosts: whether the ranks are on several hosts.
            is_large: whether the buffer has `PLATEAU_NBYTES` or more for each rank.
        """
        plateau = self.plateau if has_several_hosts and is_large else 1.0
        algorithms = self.algorithms or ("ring", "tree")
        latencies = {key: getattr(self, key) for key in Latencies.model_fields}
        simple = Protocol.model_construct(
            **latencies, ring_bandwidth=1.0, tree_bandwidth=1.0
        )
        bandwidths: dict[str, Any] = {
            "intra_host_bus_bandwidth": self.intra_host_bus_bandwidth,
            "inter_host_bus_bandwidth": self.inter_host_bus_bandwidth,
            "slow_hosts": self.slow_hosts,
            "overlap": self.overlap,  # given, so that no default is copied
        }
        for protocol in (simple, *(self.protocols or {}).values()):
            latency_scale = protocol.intra_host_factor if has_several_hosts else 1.0
            ring = Ring.model_construct(
                rings=self.channels,
                intra_host_latency=protocol.ring_intra_host_latency * latency_scale,
                inter_host_latency=protocol.ring_inter_host_latency,
                **bandwidths,
            )
            tree = Tree.model_construct(
                channels=self.channels,
                intra_host_latency=protocol.tree_intra_host_latency * latency_scale,
                inter_host_latency=protocol.tree_inter_host_latency,
                **bandwidths,
            )
            latency_factor = plateau if protocol is simple else 1.0
            if "ring" in algorithms:
                yield Choice(
                    ring,
                    protocol.ring_bandwidth,
                    protocol.ring_base_latency,
                    latency_factor,
                )
            if "tree" in algorithms:
                bandwidth = TREE_BANDWIDTH * protocol.tree_bandwidth
                yield Choice(tree, bandwidth, protocol.tree_base_latency)

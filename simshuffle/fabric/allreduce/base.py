"""The base of all allreduce algorithms, and the rules by which gradients are summed
beside the backward pass.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field

from simshuffle.spec.arrays import Floats, Ints32
from simshuffle.spec.interpolation import BandwidthBySize
from simshuffle.spec.library import parse_kind
from simshuffle.spec.record import (
    NonNegative,
    PositiveNBytes,
    PositiveSeconds,
    Seconds,
    Share,
    Sourced,
)

SLOWDOWN = (
    "default: middle of 0.1 to 0.4 on eight V100 of a DGX-1 with DDP, and about 0.4 on hosts of"
    " eight V100 with one EDR (18 ms of communication cost 9.3 ms), estimate"
)


class NoOverlap(Sourced):
    """The gradients are summed when the backward pass of all ranks is done (Chainer)."""

    slowdown: ClassVar[float] = 0.0
    hooks: ClassVar[float] = 0.0
    cycle: ClassVar[float] = 0.0
    kind: Literal["none"]


class Overlapping(Sourced):
    """Gradients are summed beside the backward pass.

    Attributes:
        slowdown: share of its speed that the backward pass loses while gradients
            travel.
        hooks: what else it adds to the backward pass of every iteration.
    """

    default_sources: ClassVar[dict[str, str]] = {"slowdown": SLOWDOWN}

    slowdown: Share = 0.25
    hooks: Seconds = 0.0


class Ddp(Overlapping):
    """PyTorch's DistributedDataParallel: layers in static, reversed order fill buckets;
    each is posted when its last layer is done on all ranks and the bucket before it is
    summed.

    Attributes:
        bucket: bytes of gradients that are summed together.
        first_bucket: the same of the first bucket.
        hooks: what copying gradients into buckets adds to the backward pass of every
            iteration.
    """

    default_sources: ClassVar[dict[str, str]] = {
        **Overlapping.default_sources,
        "bucket": "default: PyTorch, torch.nn.parallel.DistributedDataParallel, bucket_cap_mb=25",
        "first_bucket": "default: PyTorch, torch/csrc/distributed/c10d/reducer.hpp,"
        " kDefaultFirstBucketBytes",
        "hooks": "default: PyTorch, benchmarks/distributed/ddp/README.md, ResNet-50 on one V100,"
        " 0.100 s with DDP and 0.097 s without",
    }

    cycle: ClassVar[float] = 0.0
    kind: Literal["ddp"]
    bucket: PositiveNBytes = 25 * 2.0**20
    first_bucket: PositiveNBytes = 2.0**20
    hooks: Seconds = 3e-3

    def parts(self, layers: Floats) -> Floats:
        """Divide the gradients into buckets; a bucket takes layers until it holds its
        size or more, and the last one what is left.

        Args:
            layers: (layers, 2) bytes of each layer, and the share of the backward pass
                after which its gradients are ready, in the order in which they are
                ready.

        Returns:
            (buckets, 2) bytes of each bucket, and the share of the backward pass after
            which it is full.
        """
        buckets = []
        filled = 0.0
        bucket_size = self.first_bucket
        for nbytes, share in layers.tolist():
            filled += nbytes
            if filled >= bucket_size:
                buckets.append((filled, share))
                filled = 0.0
                bucket_size = self.bucket
        if filled:
            buckets.append((filled, share))
        return np.array(buckets)

    def messages(self, layers: Floats, backward: float, world_size: int) -> Floats:
        """The messages that are summed one after the other: here the buckets of
        `parts`.

        Args:
            layers: see `parts`.
            backward: s that the backward pass takes.
            world_size: number of ranks.

        Returns:
            (messages, 2) bytes, and the share of the backward pass after which the
            ranks post it.
        """
        return self.parts(layers)


class Horovod(Overlapping):
    """Horovod's coordinator: every ``cycle`` ranks agree on what is ready everywhere;
    then it is summed in messages of ``fusion`` bytes at most, one after the other.

    Attributes:
        fusion: most bytes of gradients that are summed together; a larger layer goes
            alone.
        cycle: how often ranks agree on what is ready everywhere.
        negotiation: what that costs.
        negotiation_per_rank: what it costs more for each rank.
    """

    default_sources: ClassVar[dict[str, str]] = {
        **Overlapping.default_sources,
        "fusion": "default: Horovod 0.16, docs/tensor-fusion.rst, HOROVOD_FUSION_THRESHOLD",
        "cycle": "default: Horovod 0.16, docs/tensor-fusion.rst, HOROVOD_CYCLE_TIME",
        "negotiation": "default: estimate, a round of small messages and the coordinator's work",
        "negotiation_per_rank": "default: estimate, a message of MPI for each rank, received and"
        " answered by the coordinator (MPI_Gatherv and MPI_Bcast)",
    }

    kind: Literal["horovod"]
    fusion: PositiveNBytes = 64 * 2.0**20
    cycle: PositiveSeconds = 5e-3
    negotiation: Seconds = 50e-6
    negotiation_per_rank: Seconds = 3e-6

    def parts(self, layers: Floats) -> Floats:
        """The layers themselves, which are fused when they are ready.

        ``layers`` and what is returned, the same array, are as of `Ddp.parts`: bytes,
        and share of the backward pass.
        """
        return layers

    def messages(self, layers: Floats, backward: float, world_size: int) -> Floats:
        """The messages of a backward pass that begins with a cycle of the coordinator.

        A message is posted when its cycle has ended and the ranks have agreed, or with
        the end of the backward pass (share 1) if that comes sooner. A cycle lasts at
        least as long as the negotiation. Arguments and the (messages, 2) that is
        returned are as of `Ddp.messages`; ``backward`` is above 0.
        """
        negotiation = self.negotiation_seconds(world_size)
        period = max(self.cycle, negotiation)
        cycle = np.ceil(layers[:, 1] * backward / period)
        return np.array(
            [
                (nbytes, min((cycle_index * period + negotiation) / backward, 1.0))
                for cycle_index in np.unique(cycle).tolist()
                for nbytes in self.fuse(layers[cycle == cycle_index, 0].tolist())
            ]
        )

    def negotiation_seconds(self, world_size: int) -> float:
        """Seconds of one negotiation, until all ranks know which layers are ready
        everywhere.
        """
        return self.negotiation + world_size * self.negotiation_per_rank

    def fuse(self, nbytes: list[float]) -> list[float]:
        """Fuse layers of ``nbytes`` that are ready together, in order, into messages of
        `fusion` bytes at most; return the bytes of each message.
        """
        messages: list[float] = []
        for layer_nbytes in nbytes:
            if messages and messages[-1] + layer_nbytes <= self.fusion:
                messages[-1] += layer_nbytes
            else:
                messages.append(layer_nbytes)
        return messages


def _parse_short_form(value: Any) -> Any:
    """Parse the short form of an overlap, a text; other values are returned as is."""
    return parse_kind(value) if isinstance(value, str) else value


Overlap = Annotated[
    Annotated[NoOverlap | Ddp | Horovod, Field(discriminator="kind")],
    BeforeValidator(_parse_short_form),
]


def _no_edges() -> Ints32:
    """Return an empty array, for flows that wait for no other."""
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class AllreduceFlows:
    """The flows of one allreduce.

    Flows of one step run at once, as those of a pipeline do all together; where steps
    depend on one another, edges say which flow waits for which.
    """

    # src, dst: (flows,) ranks
    src: Ints32
    dst: Ints32
    nbytes: Floats  # (flows,) bytes
    # (flows,) the HCA that a flow between hosts uses; means nothing inside a host
    rail: Ints32
    cap: Floats  # (flows,) bytes/s at most
    latency: float  # s before the first flows begin
    # (flows,) s from the end of what a flow waits for to its begin; a number for all
    delay: Floats | float = 0.0
    # (flows,) step of each flow, not decreasing; a number for all
    step: Ints32 | int = 0
    # edge_from, edge_to: (edges,) flow ``edge_to[k]`` waits for ``edge_from[k]``, of an earlier
    # step
    edge_from: Ints32 = field(default_factory=_no_edges)
    edge_to: Ints32 = field(default_factory=_no_edges)

    def __len__(self) -> int:
        return len(self.src)

    @property
    def delays(self) -> Floats:
        """(flows,) s before each flow begins, from the end of the last flow that it
        waits for; flows that wait for no other have the latency before them, too.
        """
        has_predecessor = np.zeros(len(self), bool)
        has_predecessor[self.edge_to] = True
        return self.delay + np.where(has_predecessor, 0.0, self.latency)

    def packets(self, domain_of: Ints32, mtu: float) -> float:
        """Number of packets of ``mtu`` bytes that leave scale-up domains, or hosts; a
        part of one counts as one, for each flow.

        Args:
            domain_of: (M,) domain or host of each rank.
            mtu: bytes of a packet.
        """
        leaves_domain = domain_of[self.src] != domain_of[self.dst]
        return float(np.ceil(self.nbytes[leaves_domain] / mtu).sum())

    @property
    def seconds_uncontended(self) -> float:
        """Seconds that the allreduce takes if only caps limit it: latency, then the
        longest chain of delays and transfers.
        """
        return self.seconds(self.cap)

    def seconds(self, bandwidth: Floats) -> float:
        """Seconds that the allreduce takes if each flow has its ``bandwidth``, (flows,)
        bytes/s, to itself.
        """
        flow_seconds = self.delay + self.nbytes / bandwidth
        if not len(self.edge_to):
            return self.latency + float(flow_seconds.max())
        step = np.broadcast_to(self.step, len(self))
        ready = np.zeros(len(self))
        step_of_edge = step[self.edge_to]
        order = np.argsort(step_of_edge, kind="stable")
        first_of_step = np.flatnonzero(np.diff(step_of_edge[order], prepend=-1))
        for edges in np.split(order, first_of_step[1:]):
            origin = self.edge_from[edges]
            np.maximum.at(ready, self.edge_to[edges], (ready + flow_seconds)[origin])
        return self.latency + float((ready + flow_seconds).max())


LATENCIES = ("intra_host_latency", "inter_host_latency")
"""Keys of the latency of a step inside a host, and between hosts."""


class SlowHosts(Sourced):
    """Hosts do not all reach the bus bandwidth between hosts; an allreduce goes at the
    pace of the slowest.

    What each reaches is a share of it, log-normal with mean 1; more than all of it none
    reaches.

    Attributes:
        spread: standard deviation of that share.
        quantile: of the shares that the slowest host may have, which is taken: 0.5 is
            the median; of ten such machines one is as slow as 0.1 says, or slower.
    """

    default_sources: ClassVar[dict[str, str]] = {"quantile": "default: the median"}

    spread: NonNegative
    quantile: Annotated[Share, Field(gt=0)] = 0.5

    def share(self, hosts: int) -> float:
        """Share of the bus bandwidth, from 0 to 1, that the slowest of ``hosts`` hosts
        reaches.

        The smallest of H independent numbers is above x with probability (1 - F(x))^H
        (David & Nagaraja, Order Statistics, 2003, section 2.1), so its quantile q is
        F's quantile 1 - (1 - q)^(1/H).
        """
        host_quantile = -math.expm1(math.log1p(-self.quantile) / hosts)
        variance = math.log1p(self.spread**2)
        normal = NormalDist().inv_cdf(host_quantile)
        return min(1.0, math.exp(math.sqrt(variance) * normal - variance / 2.0))


HostOrder = Literal["sorted", "as_given", "shuffled"]


class AllreduceAlgorithm(Sourced):
    """An algorithm, and when it runs.

    Attributes:
        order: in which it goes through the hosts: 'sorted' by rack and leaf switch,
            'as_given' in that of the ranks, or 'shuffled', drawn from the seed.
        overlap: which part of the gradients is summed while the backward pass still
            runs, by whose rule.
        slow_hosts: how unequal hosts are; if left out, all reach the bus bandwidth
            between hosts.
    """

    one_for_each_hca: ClassVar[str]
    """The field that says over how many HCAs of a host the bytes are spread."""
    latencies_of: ClassVar[str] = ""
    """Prefix of the names of its latencies where a record holds those of several
    algorithms.
    """

    order: HostOrder = "sorted"
    overlap: Overlap = NoOverlap(kind="none")
    slow_hosts: SlowHosts | None = None

    @classmethod
    def meaning_of_key(cls, key: str) -> str:
        """Name the meaning of a key, as `Spec.meaning_of_key`: one name for the number
        of HCAs, and the algorithm's prefix before latencies.
        """
        if key == cls.one_for_each_hca:
            return "one_for_each_hca"
        return f"{cls.latencies_of}{key}" if key in LATENCIES else key

    def over_hcas(self, hcas: int) -> Self:
        """Return the algorithm over ``hcas`` HCAs of a host; itself if it already says
        over how many.
        """
        key = self.one_for_each_hca
        return self if getattr(self, key) else self.model_copy(update={key: hcas})

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """Return the flows of an allreduce of ``nbytes`` bytes; None for a single rank.

        The number of HCAs must have been set: see `over_hcas`.

        Args:
            host_of: (M,) host of each rank.
            nbytes: bytes of the buffer.
        """
        return None if len(host_of) == 1 else self.flows_of_several(host_of, nbytes)

    @abstractmethod
    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows of an allreduce over two ranks or more; arguments as of
        `flows`.
        """


class Paced(AllreduceAlgorithm):
    """An algorithm with one latency and one bandwidth inside hosts, and one each
    between them.

    Attributes:
        intra_host_latency: of one step inside a host.
        inter_host_latency: of one step between hosts.
        intra_host_bus_bandwidth: what a rank sends over all HCAs together at most,
            inside a host; may be a curve over the bytes of the allreduce.
        inter_host_bus_bandwidth: the same between hosts. Of 'ring' and 'tree' it counts
            for all steps as soon as there are two hosts.
    """

    latencies_of: ClassVar[str] = "ring_"
    """A step is one message from rank to rank, as on a ring."""

    intra_host_latency: Seconds
    inter_host_latency: Seconds
    intra_host_bus_bandwidth: BandwidthBySize
    inter_host_bus_bandwidth: BandwidthBySize

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """Return the flows as `AllreduceAlgorithm.flows`; None for a single rank.

        With ``slow_hosts`` the caps of flows between hosts are multiplied by the share
        that the slowest host reaches.
        """
        flows = super().flows(host_of, nbytes)
        if flows is None or self.slow_hosts is None:
            return flows
        is_between_hosts = host_of[flows.src] != host_of[flows.dst]
        share = self.slow_host_share(self.slow_hosts, len(np.unique(host_of)))
        return replace(
            flows, cap=np.where(is_between_hosts, share * flows.cap, flows.cap)
        )

    def slow_host_share(self, slow: SlowHosts, hosts: int) -> float:
        """Share of the bus bandwidth between ``hosts`` hosts, from 0 to 1, that the
        allreduce keeps with slow hosts ``slow``.
        """
        return slow.share(hosts)

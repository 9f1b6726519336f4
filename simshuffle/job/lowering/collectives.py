"""Turn what the members of one group send each other into flows: a recipe for each
collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.fabric.allreduce import (
    Allreduce,
    AllreduceFlows,
    HostOrder,
    Nccl,
    Ring,
    Tree,
)
from simshuffle.fabric.allreduce.base import Paced
from simshuffle.fabric.allreduce.nccl import PLATEAU_NBYTES, Choice
from simshuffle.fabric.allreduce.steps import Sends, dependent_flows
from simshuffle.fabric.network import Network
from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.spec.arrays import Flags, Floats, Ints32
from simshuffle.spec.interpolation import Curve
from simshuffle.workload.parallelism.step import ALL, Node

IMPORTANCE_NBYTES = 8.0
"""Bytes of an importance on the wire: one double
(github.com/TruongThaoNguyen/kakurenbo, 15eb317, ImportancePairScheduler).
"""


def transfers_of(
    flows: AllreduceFlows, resources: Resources, count: int = 1
) -> TransferBatch:
    """Turn flows between ranks into transfers of ``count`` such flows in turn.

    Bytes and latencies are those of one flow times ``count``; rate limits stay.
    """
    work = flows.nbytes * count
    records = tasks(
        len(flows), work=work, nbytes=work, cap=flows.cap, delay=flows.delays * count
    )
    routes = resources.gradient(flows.src, flows.dst, flows.rail)
    return TransferBatch(records, routes, flows.edge_from, flows.edge_to)


class Allreduces:
    """The allreduces of a run, of any size, as transfers; ``rng`` draws the order of
    hosts if the allreduce shuffles them.

    Batches are kept by size, so callers of `batch` share them.
    """

    def __init__(
        self, allreduce: Allreduce, resources: Resources, rng: np.random.Generator
    ) -> None:
        self._allreduce = allreduce
        self._resources = resources
        self._ranks = ranks_in_order(allreduce.order, resources, rng)
        self._batches: dict[float, TransferBatch | None] = {}

    def flows(self, nbytes: float) -> AllreduceFlows | None:
        """Return the flows of an allreduce of ``nbytes`` bytes between ranks; None for
        one rank. A scale-up domain counts as one host.
        """
        domain_of = self._resources.domain_of[self._ranks]
        # numbered as it meets them, so that it goes through them in this order
        domain_index = np.cumsum(np.diff(domain_of, prepend=domain_of[0]) != 0).astype(
            np.int32
        )
        flows = self._allreduce.flows(domain_index, nbytes)
        if flows is None:
            return None
        return replace(flows, src=self._ranks[flows.src], dst=self._ranks[flows.dst])

    def batch(self, nbytes: float) -> TransferBatch | None:
        """Return the transfers of an allreduce of ``nbytes`` bytes; None for one rank.

        They are laid out once for each size; all callers get one object.
        """
        if nbytes not in self._batches:
            flows = self.flows(nbytes)
            self._batches[nbytes] = (
                None if flows is None else transfers_of(flows, self._resources)
            )
        return self._batches[nbytes]

    def seconds(self, nbytes: float, model: Network) -> float:
        """Return the seconds of an allreduce of ``nbytes`` bytes while nothing else
        uses the machine.

        They end with the last transfer. ``model`` says how cables are shared. One rank
        takes 0 s.
        """
        batch = self.batch(nbytes)
        return 0.0 if batch is None else self._resources.seconds_alone(batch, model)


def ranks_in_order(
    order: HostOrder, resources: Resources, rng: np.random.Generator
) -> Ints32:
    """Return the ranks, (M,), in the order in which an allreduce goes through their
    hosts.

    Hosts come as they are placed, 'shuffled' by ``rng``, or 'sorted' by rack and leaf
    switch; only 'shuffled' draws from ``rng``. The ranks of a host stay together, in
    their order, and so do the hosts of a scale-up domain, in the order of hosts.
    """
    host_of = resources.host_of
    hosts = np.arange(resources.num_hosts)
    first = np.searchsorted(host_of, hosts)  # the first rank of each host
    if order == "shuffled":
        hosts = rng.permutation(hosts)
    elif order == "sorted":
        hosts = np.lexsort((resources.places.leaf[first], resources.places.rack[first]))
    domain_of_host = resources.domain_of[first[hosts]]
    _, first_position, domain_index = np.unique(
        domain_of_host, return_index=True, return_inverse=True
    )
    position_of_host = np.argsort(
        hosts[np.argsort(first_position[domain_index], kind="stable")]
    )
    return np.argsort(position_of_host[host_of], kind="stable").astype(np.int32)


def gather_seconds(importances: float, resources: Resources) -> float | None:
    """Return the seconds of an all-gather of ``importances`` numbers of each rank.

    It begins when all ranks are there. None if ``importances``, the mean count of a
    rank, is 0, or if there is one rank.
    Recursive doubling takes ceil(log2 M) messages, and every rank receives (M - 1)
    times the bytes that one contributes (Thakur, Rabenseifner and Gropp, Int. J. High
    Perform. Comput. Appl. 19, 2005, section 4.1).
    """
    world_size = resources.world_size
    if importances == 0.0 or world_size == 1:
        return None
    received = (world_size - 1) * importances * IMPORTANCE_NBYTES
    latency = barrier_seconds(resources.cluster, world_size)
    return latency + received / _share_of_a_rank(resources)


def _share_of_a_rank(resources: Resources) -> float:
    """Return the bytes/s that a rank gets while all ranks of its host send.

    Ranks share their HCA if there are several scale-up domains, and the memory if there
    is one host. In one domain of several hosts, each rank has the link that joins its
    GPU to the others to itself.

    The bandwidth is that of the first link from rank 0 to the last rank outside its
    scale-up domain, or to the last rank if there is one domain.
    """
    other_domain_ranks = np.flatnonzero(resources.domain_of != resources.domain_of[0])
    receiver = (
        other_domain_ranks[-1] if len(other_domain_ranks) else resources.world_size - 1
    )
    route, _ = resources.message(np.array([0]), np.array([receiver]))
    if resources.num_domains > 1:
        shared_by = resources.ranks_per_host / resources.cluster.host.hcas
    else:
        shared_by = resources.ranks_per_host if resources.num_hosts == 1 else 1
    return float(resources.links.capacity[route[0, 0]]) / shared_by


MAX_ALLTOALL_MESSAGES = 2**14
"""Number of messages, or a few more, that stand for all messages of a larger alltoall."""


@dataclass(frozen=True)
class Half:
    """Half of an allreduce around rings: a reduce-scatter, or an allgather."""

    allreduce: Choice  # the rings, of both halves

    @property
    def algorithm(self) -> Paced:
        """The rings of the allreduce."""
        return self.allreduce.algorithm

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """Return the flows of half the allreduce; None for one member.

        They have half its bytes, and half its latency beyond the base latency.
        """
        flows = self.allreduce.flows(host_of, nbytes)
        if flows is None:
            return None
        base = self.allreduce.base_latency
        latency = base + (flows.latency - base) / 2
        return replace(flows, nbytes=flows.nbytes / 2, latency=latency)


@dataclass(frozen=True)
class Pairs:
    """Messages from member to member, all at once, as the collective of a node says:
    one step without edges.
    """

    node: Node  # says which member sends to which
    algorithm: Paced  # gives latencies of a step, and bus bandwidths
    base: float  # s of latency, once for all messages
    rail: Ints32  # (members,) the HCA of each

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """Return flows between members on ``host_of``, (members,) hosts; None if nobody
        sends, as with one member.

        Messages between the same two hosts on one HCA are one flow. An alltoall has
        ``base`` and the latency of its steps, one message after the other, on the member
        with the most. All else has ``base``, and a delay of one step for each flow.
        """
        src, dst, share = self._ends(len(host_of))
        if not len(src):
            return None
        first_step = np.zeros(len(src), np.int32)
        single_sum = np.ones(len(src), np.int32)
        sends = Sends(first_step, src, dst, share, self.rail[src], single_sum, src)
        flows = dependent_flows(sends, host_of, nbytes, self.algorithm)
        if self.node.collective != "alltoall":
            return replace(flows, latency=self.base)
        # pairwise: as many messages one after the other as there are others
        host_peers = np.bincount(np.unique(host_of, return_inverse=True)[1]) - 1
        latencies = host_peers * self.algorithm.intra_host_latency
        latencies = (
            latencies
            + (len(host_of) - 1 - host_peers) * self.algorithm.inter_host_latency
        )
        return replace(flows, latency=self.base + float(latencies.max()), delay=0.0)

    def _ends(self, count: int) -> tuple[Ints32, Ints32, Floats]:
        """Return source, destination and share of nbytes of every message, (messages,)
        each.

        The share is 1 but for an alltoall: 1 / members, or more if a sample of messages
        stands for all. With `ALL`, a 'send' goes from each member but the last to the
        next one, and 'send_back' the other way.
        """
        node = self.node
        members = np.arange(count, dtype=np.int32)
        if node.collective == "alltoall":
            return pair_up_by_shifts(members)
        if node.collective == "halo":
            # a grid of ``row`` columns: all who have a neighbour ``stride`` further
            lower = members[: -node.stride]
            lower = lower[
                lower // node.stride % (node.row or count) < (node.row or count) - 1
            ]
            upper = lower + np.int32(node.stride)
            src = np.r_[lower, upper]
            dst = np.r_[upper, lower]
        elif node.collective == "gather":
            src = members[1:]
            dst = np.zeros_like(members[1:])
        else:
            is_forward = node.collective == "send"
            src, dst = (
                (members[:-1], members[1:])
                if is_forward
                else (members[1:], members[:-1])
            )
            if node.member != ALL:
                is_chosen = src == node.member
                src = src[is_chosen]
                dst = dst[is_chosen]
        return src, dst, np.ones(len(src))


def pair_up_by_shifts(members: Ints32) -> tuple[Ints32, Ints32, Floats]:
    """Pair everyone with everyone else: with the next, then the one after it, and so
    on.

    Beyond `MAX_ALLTOALL_MESSAGES` messages, at least 4 of these shifts, evenly spread,
    stand for all; each message then has more bytes.

    Args:
        members: (n,) numbers 0 to n - 1.

    Returns:
        Source, destination and share of the bytes of a member of every message,
        (messages,) each. Without sampling the share is 1 / n. Empty for one member.
    """
    num_peers = len(members) - 1
    count = min(num_peers, max(MAX_ALLTOALL_MESSAGES // len(members), 4))
    shifts = np.unique(np.linspace(1, num_peers, count).round()).astype(np.int32)
    src = np.tile(members, len(shifts))
    dst = (src + np.repeat(shifts, len(members))) % np.int32(len(members))
    share = num_peers / max(len(shifts), 1) / len(members)
    return src, dst.astype(np.int32), np.full(len(src), share)


Recipe = Choice | Half | Pairs


def buses(recipe: Recipe, host_of: Ints32, flows: AllreduceFlows) -> Flags:
    """Return (flows,) True where the bus bandwidth between hosts bounds a flow, False
    where that inside hosts does.

    All flows of rings and trees are True if any member is on another host. Of all other
    recipes the flows that cross hosts are True.

    Args:
        recipe: how the flows were made.
        host_of: (members,) hosts.
        flows: flows between members.
    """
    crosses_hosts = host_of[flows.src] != host_of[flows.dst]
    if isinstance(recipe, Pairs) or not isinstance(recipe.algorithm, Ring | Tree):
        return np.asarray(crosses_hosts)
    return np.full(len(crosses_hosts), bool((host_of != host_of[0]).any()))


class Recipes:
    """The recipes of one allreduce, each made once: for nodes that send alike, callers
    get identical objects.
    """

    def __init__(self, allreduce: Allreduce) -> None:
        self._allreduce = allreduce
        self._recipes_by_key: dict[tuple[Any, ...], Sequence[Recipe]] = {}

    def among(
        self, node: Node, host_of: Ints32, rail: Ints32, nbytes: float
    ) -> Sequence[Recipe]:
        """Return the recipes of which the fastest is chosen for one message of a node.

        Args:
            node: what is sent.
            host_of: (members,) hosts.
            rail: (members,) HCAs.
            nbytes: bytes of one message, not of all ``count`` of the node. An allreduce
                of `PLATEAU_NBYTES` a member or more is large.
        """
        spans_hosts = bool((host_of != host_of[0]).any())
        key: tuple[Any, ...] = (node.collective, spans_hosts)
        is_large = nbytes >= len(host_of) * PLATEAU_NBYTES
        if node.collective == "allreduce":
            key = (*key, is_large)
        elif node.collective not in ("allgather", "reduce_scatter"):
            key = (*key, *as_sent(node), rail.tobytes())
        if key not in self._recipes_by_key:
            self._recipes_by_key[key] = self._recipes(node, spans_hosts, is_large, rail)
        return self._recipes_by_key[key]

    def _recipes(
        self, node: Node, spans_hosts: bool, is_large: bool, rail: Ints32
    ) -> Sequence[Recipe]:
        """Make the recipes of a node.

        All algorithms and protocols of NCCL for an allreduce, halves of rings for
        allgather and reduce-scatter; everything else has one recipe, messages in pairs.
        """
        if node.collective == "allreduce":
            if isinstance(self._allreduce, Nccl):
                return list(self._allreduce.choices(spans_hosts, is_large))
            return [Choice(self._allreduce)]
        rings = self._rings(spans_hosts)
        if node.collective in ("allgather", "reduce_scatter"):
            return [Half(ring) for ring in rings]
        return [Pairs(node, rings[0].algorithm, rings[0].base_latency, rail)]

    def _rings(self, spans_hosts: bool) -> list[Choice]:
        """Return the rings, the one of the Simple protocol first; of an allreduce other
        than NCCL's one ring alone. NCCL's ``algorithms`` do not count here.
        """
        if not isinstance(self._allreduce, Nccl):
            return [Choice(_rings(self._allreduce))]
        all_algorithms = self._allreduce.model_copy(update={"algorithms": None})
        choices = all_algorithms.choices(spans_hosts, is_large=False)
        return [choice for choice in choices if isinstance(choice.algorithm, Ring)]


def as_sent(node: Node) -> tuple[Any, ...]:
    """Return the fields of a node that decide its flows, apart from their bytes, as a
    key for caches.
    """
    return (node.collective, node.group, node.member, node.row, node.stride)


def _rings(allreduce: Paced) -> Ring:
    """Return rings with the latencies and bandwidths of another algorithm, one ring for
    each of its HCAs; rings are returned as they are.
    """
    if isinstance(allreduce, Ring):
        return allreduce
    names = Paced.model_fields.keys() - {"source", "order", "overlap"}
    values = {name: getattr(allreduce, name) for name in names}
    return Ring.model_construct(
        rings=getattr(allreduce, allreduce.one_for_each_hca), **values
    )


def override_performance(
    allreduce: Allreduce, bus_bandwidth: float | None, step_latency: float | None
) -> Allreduce:
    """Return a copy of an allreduce with other bus bandwidths (bytes/s) or step
    latencies (s), equal inside and between hosts.

    None keeps the allreduce's values. With a ``step_latency`` base latencies are 0,
    since it holds them, and NCCL's plateau is 1. With either value, NCCL has the Simple
    protocol alone.
    """
    fields = type(allreduce).model_fields
    changed: dict[str, Any] = {}
    for name in fields:
        if bus_bandwidth is not None and name.endswith("_bus_bandwidth"):
            changed[name] = Curve((0.0,), (bus_bandwidth,), constant=True)
        elif step_latency is not None and name.endswith("_base_latency"):
            changed[name] = 0.0
        elif step_latency is not None and name.endswith("_latency"):
            changed[name] = step_latency
    if changed and isinstance(allreduce, Nccl):
        changed["protocols"] = None
        changed["plateau"] = allreduce.plateau if step_latency is None else 1.0
    return allreduce.model_copy(update=changed)

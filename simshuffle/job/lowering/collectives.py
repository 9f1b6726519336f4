"""What the members of one group send each other, as flows: a recipe for each collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.fabric.allreduce import Allreduce, AllreduceFlows, HostOrder, Nccl, Ring, Tree
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
"""Bytes of an importance on the wire: one double (github.com/TruongThaoNguyen/kakurenbo, 15eb317,
ImportancePairScheduler)."""


def transfers_of(flows: AllreduceFlows, resources: Resources, count: int = 1) -> TransferBatch:
    """Flows between ranks as transfers, each as long as ``count`` of it one after the other."""
    work = flows.nbytes * count
    records = tasks(len(flows), work=work, nbytes=work, cap=flows.cap, delay=flows.delays * count)
    routes = resources.gradient(flows.src, flows.dst, flows.rail)
    return TransferBatch(records, routes, flows.edge_from, flows.edge_to)


class Allreduces:
    """The allreduces of a run, of any bytes, as transfers; ``rng`` draws the order of hosts."""

    def __init__(
        self, allreduce: Allreduce, resources: Resources, rng: np.random.Generator
    ) -> None:
        self._allreduce, self._resources = allreduce, resources
        self._ranks = ranks_in_order(allreduce.order, resources, rng)
        self._batches: dict[float, TransferBatch | None] = {}

    def flows(self, nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes, which takes a scale-up domain for one
        host; None for one rank."""
        domain_of = self._resources.domain_of[self._ranks]
        # numbered as it meets them, so that it goes through them in this order
        place = np.cumsum(np.diff(domain_of, prepend=domain_of[0]) != 0).astype(np.int32)
        flows = self._allreduce.flows(place, nbytes)
        if flows is None:
            return None
        return replace(flows, src=self._ranks[flows.src], dst=self._ranks[flows.dst])

    def batch(self, nbytes: float) -> TransferBatch | None:
        """Its transfers, which each size is laid out as once; None for one rank."""
        if nbytes not in self._batches:
            flows = self.flows(nbytes)
            self._batches[nbytes] = None if flows is None else transfers_of(flows, self._resources)
        return self._batches[nbytes]

    def seconds(self, nbytes: float, model: Network) -> float:
        """Time (s) of an allreduce of ``nbytes`` bytes while nothing else uses the machine, its
        cables shared as ``model`` says; 0 for one rank."""
        batch = self.batch(nbytes)
        return 0.0 if batch is None else self._resources.seconds_alone(batch, model)


def ranks_in_order(order: HostOrder, resources: Resources, rng: np.random.Generator) -> Ints32:
    """(M,) ranks in the order in which an allreduce goes through their hosts; those of a host stay
    together, in their order, and so do the hosts of a scale-up domain."""
    host_of = resources.host_of
    hosts = np.arange(resources.num_hosts)
    first = np.searchsorted(host_of, hosts)  # the first rank of each host
    if order == "shuffled":
        hosts = rng.permutation(hosts)
    elif order == "sorted":
        hosts = np.lexsort((resources.places.leaf[first], resources.places.rack[first]))
    of = resources.domain_of[first[hosts]]
    _, met, domain = np.unique(of, return_index=True, return_inverse=True)
    place = np.argsort(hosts[np.argsort(met[domain], kind="stable")])
    return np.argsort(place[host_of], kind="stable").astype(np.int32)


def gather_seconds(importances: float, resources: Resources) -> float | None:
    """Seconds of the all-gather of so many ``importances`` of each rank, once all ranks are there;
    None if there is nothing to gather.

    Recursive doubling takes ceil(log2 M) messages, and every rank receives (M - 1) times what one
    contributes (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005,
    section 4.1).
    """
    world_size = resources.world_size
    if importances == 0.0 or world_size == 1:
        return None
    received = (world_size - 1) * importances * IMPORTANCE_NBYTES
    latency = barrier_seconds(resources.cluster, world_size)
    return latency + received / _share_of_a_rank(resources)


def _share_of_a_rank(resources: Resources) -> float:
    """Bytes/s that a rank gets when all of its host send: of their HCA; in one scale-up domain of
    what joins its GPU to the others, in one host of the memory."""
    beyond = np.flatnonzero(resources.domain_of != resources.domain_of[0])
    last = beyond[-1] if len(beyond) else resources.world_size - 1
    route, _ = resources.message(np.array([0]), np.array([last]))
    if resources.num_domains > 1:
        shared_by = resources.ranks_per_host / resources.cluster.host.hcas
    else:
        shared_by = resources.ranks_per_host if resources.num_hosts == 1 else 1
    return float(resources.links.capacity[route[0, 0]]) / shared_by


SENDS = 2**14
"""Of an alltoall of more messages, so many of them, or a few more, stand for all."""


@dataclass(frozen=True)
class Half:
    """Half of an allreduce around rings: a reduce-scatter, or an allgather."""

    whole: Choice

    @property
    def algorithm(self) -> Paced:
        """The rings."""
        return self.whole.algorithm

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """Those of the allreduce with half the bytes and half the steps."""
        flows = self.whole.flows(host_of, nbytes)
        if flows is None:
            return None
        base = self.whole.base
        latency = base + (flows.latency - base) / 2
        return replace(flows, nbytes=flows.nbytes / 2, latency=latency)


@dataclass(frozen=True)
class Pairs:
    """Messages from member to member, all at once: see `dependent_flows`."""

    node: Node  # what is sent by whom
    algorithm: Paced  # whose latencies of a step and bus bandwidths they have
    base: float  # s, once
    rail: Ints32  # (members,) the HCA of each

    def flows(self, host_of: Ints32, nbytes: float) -> AllreduceFlows | None:
        """The flows where members are on hosts ``host_of``, (members,); None for one member."""
        src, dst, share = self._ends(len(host_of))
        if not len(src):
            return None
        zeros, ones = np.zeros(len(src), np.int32), np.ones(len(src), np.int32)
        sends = Sends(zeros, src, dst, share, self.rail[src], ones, src)
        flows = dependent_flows(sends, host_of, nbytes, self.algorithm)
        if self.node.collective != "alltoall":
            return replace(flows, latency=self.base)
        # pairwise: as many messages one after the other as there are others
        near = np.bincount(np.unique(host_of, return_inverse=True)[1]) - 1
        steps = near * self.algorithm.intra_host_latency
        steps = steps + (len(host_of) - 1 - near) * self.algorithm.inter_host_latency
        return replace(flows, latency=self.base + float(steps.max()), delay=0.0)

    def _ends(self, count: int) -> tuple[Ints32, Ints32, Floats]:
        """Who sends to whom, and its share of nbytes."""
        node, who = self.node, np.arange(count, dtype=np.int32)
        if node.collective == "alltoall":
            return _shifted(who)
        if node.collective == "halo":
            left = who[: -node.stride]
            left = left[left // node.stride % (node.row or count) < (node.row or count) - 1]
            right = left + np.int32(node.stride)
            src, dst = np.r_[left, right], np.r_[right, left]
        elif node.collective == "gather":
            src, dst = who[1:], np.zeros_like(who[1:])
        else:
            on = node.collective == "send"
            src, dst = (who[:-1], who[1:]) if on else (who[1:], who[:-1])
            if node.member != ALL:
                chosen = src == node.member
                src, dst = src[chosen], dst[chosen]
        return src, dst, np.ones(len(src))


def _shifted(who: Ints32) -> tuple[Ints32, Ints32, Floats]:
    """Everyone to everyone else: to the next, to the one after it, and so on. If those are more
    than `SENDS`, some of these shifts, evenly spread, stand for all."""
    others = len(who) - 1
    count = min(others, max(SENDS // len(who), 4))
    shifts = np.unique(np.linspace(1, others, count).round()).astype(np.int32)
    src = np.tile(who, len(shifts))
    dst = (src + np.repeat(shifts, len(who))) % np.int32(len(who))
    share = others / max(len(shifts), 1) / len(who)
    return src, dst.astype(np.int32), np.full(len(src), share)


Recipe = Choice | Half | Pairs


def buses(recipe: Recipe, host_of: Ints32, flows: AllreduceFlows) -> Flags:
    """(flows,) whether each is bounded by the bus bandwidth between hosts, and not inside them."""
    far = host_of[flows.src] != host_of[flows.dst]
    if isinstance(recipe, Pairs) or not isinstance(recipe.algorithm, Ring | Tree):
        return np.asarray(far)
    return np.full(len(far), bool((host_of != host_of[0]).any()))


class Recipes:
    """The recipes of one allreduce, each made once."""

    def __init__(self, allreduce: Allreduce) -> None:
        self._allreduce = allreduce
        self._made: dict[tuple[Any, ...], Sequence[Recipe]] = {}

    def among(self, node: Node, host_of: Ints32, rail: Ints32, nbytes: float) -> Sequence[Recipe]:
        """Those among which the fastest is chosen for ``nbytes`` bytes, of one of what is sent
        ``count`` times; ``host_of`` and ``rail`` are (members,)."""
        several = bool((host_of != host_of[0]).any())
        key: tuple[Any, ...] = (node.collective, several)
        large = nbytes >= len(host_of) * PLATEAU_NBYTES
        if node.collective == "allreduce":
            key = (*key, large)
        elif node.collective not in ("allgather", "reduce_scatter"):
            key = (*key, *as_sent(node), rail.tobytes())
        if key not in self._made:
            self._made[key] = self._recipes(node, several, large, rail)
        return self._made[key]

    def _recipes(self, node: Node, several: bool, large: bool, rail: Ints32) -> Sequence[Recipe]:
        if node.collective == "allreduce":
            if isinstance(self._allreduce, Nccl):
                return list(self._allreduce.choices(several, large))
            return [Choice(self._allreduce)]
        rings = self._rings(several)
        if node.collective in ("allgather", "reduce_scatter"):
            return [Half(ring) for ring in rings]
        return [Pairs(node, rings[0].algorithm, rings[0].base, rail)]

    def _rings(self, several: bool) -> list[Choice]:
        """Rings, that of the Simple protocol first."""
        if not isinstance(self._allreduce, Nccl):
            return [Choice(_rings(self._allreduce))]
        both = self._allreduce.model_copy(update={"algorithms": None})
        every = both.choices(several, large=False)
        return [choice for choice in every if isinstance(choice.algorithm, Ring)]


def as_sent(node: Node) -> tuple[Any, ...]:
    """What decides the flows of a node, but for their bytes."""
    return (node.collective, node.group, node.member, node.row, node.stride)


def _rings(allreduce: Paced) -> Ring:
    """Rings with the latencies and bandwidths of another algorithm, one for each of its HCAs."""
    if isinstance(allreduce, Ring):
        return allreduce
    names = Paced.model_fields.keys() - {"source", "order", "overlap"}
    values = {name: getattr(allreduce, name) for name in names}
    return Ring.model_construct(rings=getattr(allreduce, allreduce.one_for_each_hca), **values)


def with_measured(
    allreduce: Allreduce, bus_bandwidth: float | None, step_latency: float | None
) -> Allreduce:
    """An allreduce with other bus bandwidths (bytes/s) or latencies of a step (s); None for its
    own."""
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

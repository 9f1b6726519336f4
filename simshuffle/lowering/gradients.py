"""The allreduce of the gradients: its flows as transfers, and the gathering of small values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simshuffle.allreduce import Allreduce, AllreduceFlows, HostOrder
from simshuffle.network import Network
from simshuffle.network.batch import TransferBatch, tasks
from simshuffle.plan.resources import Resources
from simshuffle.scenario.host_work import barrier_seconds
from simshuffle.spec.arrays import Ints32

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
    _, met, domain = np.unique(
        resources.domain_of[first[hosts]], return_index=True, return_inverse=True
    )
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
    """Bytes a second that a rank gets when all of its host send: of the HCA that they share; of
    what joins its GPU to the others if there is one scale-up domain, and of the memory if there is
    one host."""
    beyond = np.flatnonzero(resources.domain_of != resources.domain_of[0])
    last = beyond[-1] if len(beyond) else resources.world_size - 1
    route, _ = resources.message(np.array([0]), np.array([last]))
    if resources.num_domains > 1:
        shared_by = resources.ranks_per_host / resources.cluster.host.hcas
    else:
        shared_by = resources.ranks_per_host if resources.num_hosts == 1 else 1
    return float(resources.links.capacity[route[0, 0]]) / shared_by

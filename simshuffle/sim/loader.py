"""The data loaders: every batch is a chain of transfers (open, read, decode, copy to the GPU), prefetched up to a bound."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import simpy

from simshuffle.plan import EpochPlan
from simshuffle.resources import Resources
from simshuffle.scenario import Scenario
from simshuffle.sim.clock import NetworkClock
from simshuffle.traffic import NONE, TransferBatch, chain, pad_routes, tasks


class Loaders:
    """The loaders of all ranks for one epoch.

    As in PyTorch, each worker loads a whole batch by itself, on one core: it opens and reads the files one by one, then decodes them;
    the workers take the batches in turn. A loaded batch is copied to the GPU over its PCIe slot. At most ``loader.prefetch`` batches
    are ahead of the training loop. Attributes ``read_pfs``, ``read_ssd``, ``read_memory``: bytes by source.
    """

    def __init__(self, scenario: Scenario, resources: Resources, clock: NetworkClock, plan: EpochPlan) -> None:
        self._scenario, self._resources, self._clock = scenario, resources, clock
        workload = scenario.workload
        self._cached = plan.cached
        self._source = workload.exchange.source
        self._samples = plan.batch_samples
        missed = plan.batch_nbytes * (1.0 - plan.cached)
        hit = plan.batch_nbytes * plan.cached
        self.read_memory = float(hit.sum())
        self.read_pfs = float(missed.sum()) if self._source == "pfs" else 0.0
        self.read_ssd = float(missed.sum()) if self._source == "ssd" else 0.0
        self._price(plan, missed, hit)
        self._templates = self._chains()
        self._loaded = [0] * scenario.world_size
        self._turns = [[(NONE, 0)] * scenario.workload.loader.workers for _ in range(scenario.world_size)]
        self._groups: list[deque[int]] = [deque() for _ in range(scenario.world_size)]

    def _price(self, plan: EpochPlan, missed: Any, hit: Any) -> None:
        """Work, delay and bytes of every link of the chains: (stages, iterations, M) each."""
        scenario, cluster, workload = self._scenario, self._scenario.cluster, self._scenario.workload
        shape = plan.batch_nbytes.shape
        jitter = lognormal_factor(scenario.rng("read_jitter", plan.epoch), workload.jitter.read, shape)
        files = plan.batch_samples * (1.0 - plan.cached)
        work: list[Any] = []
        delay: list[Any] = []
        nbytes: list[Any] = []
        if plan.cached < 1:
            if self._source == "pfs":
                self._pfs_routes, link_latency = self._resources.pfs_read()
                work += [files * jitter, missed]
                delay += [np.zeros(shape), np.broadcast_to(link_latency, shape)]
                nbytes += [np.zeros(shape), missed]
            else:
                work.append(missed / cluster.ssd.read_bandwidth * jitter)
                delay.append(files * cluster.ssd.latency)
                nbytes.append(missed)
        if plan.cached > 0:
            work.append(hit)
            delay.append(np.zeros(shape))
            nbytes.append(hit)
        self._read_stages = len(work)
        dataset = workload.dataset
        work.append(plan.batch_nbytes / dataset.sample_size.mean * dataset.decode)
        work.append(plan.batch_samples * workload.model.input_size)
        delay += [np.zeros(shape)] * 2
        nbytes += [np.zeros(shape), work[-1]]
        # rank first, so that what one post needs lies together
        self._work, self._delay, self._nbytes = (np.ascontiguousarray(np.stack(x).transpose(2, 1, 0)) for x in (work, delay, nbytes))

    def _chains(self) -> list[TransferBatch]:
        """For every rank the batch that is posted again and again with new numbers."""
        resources, cluster = self._resources, self._scenario.cluster
        pfs_routes = self._pfs_routes.tolist() if self._source == "pfs" and self._cached < 1 else None
        stages = self._work.shape[2]
        edge_from, edge_to = chain(stages)
        out = []
        for rank in range(self._scenario.world_size):
            host = int(resources.host_of[rank])
            routes: list[list[int]] = []
            cap = [np.inf] * stages
            if pfs_routes is not None:
                cap[0] = 1.0 / cluster.parallel_file_system.latency if cluster.parallel_file_system.latency > 0 else np.inf
                routes += [[resources.pfs_open], [link for link in pfs_routes[rank] if link >= 0]]
            elif self._cached < 1:
                routes.append([int(resources.ssd[host])])
            if self._cached > 0:
                routes.append([int(resources.memory[host])])
            cap[len(routes)] = 1.0
            routes += [[int(resources.cores[host])], [int(resources.pcie_in[host, resources.slot_of(rank)])]]
            batch = tasks(stages, cap=np.array(cap))
            batch["mark"][self._read_stages - 1] = 1
            out.append(TransferBatch(batch, pad_routes(routes), edge_from, edge_to))
        return out

    def begin(self, rank: int) -> None:
        """Load the first batches of a rank, as many as may be ahead."""
        for _ in range(min(self._scenario.workload.loader.prefetch, len(self._samples))):
            self._load(rank)

    def _load(self, rank: int) -> None:
        """Let the rank's next batch be loaded, once the worker whose turn it is has done with its last one."""
        iteration = self._loaded[rank]
        self._loaded[rank] = iteration + 1
        group = self._clock.open(2)
        self._groups[rank].append(group)
        batch = self._templates[rank]
        records = batch.tasks
        records["work"] = self._work[rank, iteration]
        records["delay"] = self._delay[rank, iteration]
        records["nbytes"] = self._nbytes[rank, iteration]
        records["group"][self._read_stages - 1] = group
        records["group"][-1] = group
        turns = self._turns[rank]
        worker = iteration % len(turns)
        records["after"][0], records["after_seq"][0] = turns[worker]
        self._clock.post(batch)
        turns[worker] = self._clock.network.last

    def awaited(self, rank: int) -> simpy.Event | None:
        """The event of the rank's next batch being ready; None if it is."""
        return self._clock.completion(self._groups[rank][0])

    def take(self, rank: int) -> float:
        """Take the next batch, which is ready, and let another be loaded; returns when its last byte was read (s)."""
        read_at, _ = self._clock.close(self._groups[rank].popleft())
        if self._loaded[rank] < len(self._samples):
            self._load(rank)
        return read_at


def lognormal_factor(rng: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Any:
    """Random factors of mean 1 and standard deviation ``spread``, log-normal."""
    if spread == 0:
        return np.ones(shape)
    variance = math.log1p(spread**2)
    return rng.lognormal(-variance / 2, math.sqrt(variance), shape)

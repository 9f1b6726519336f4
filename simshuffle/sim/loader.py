"""The data loaders: every batch is a chain of transfers (open, read, decode, copy to the GPU),
prefetched up to a bound."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import simpy

from simshuffle.network.batch import NONE, TransferBatch, chain, pad_routes, tasks
from simshuffle.plan.epochs import Reads
from simshuffle.plan.resources import Resources
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.clock import NetworkClock


class Loaders:
    """The loaders of all ranks for one pass over their samples.

    As in PyTorch, each worker loads a whole batch by itself: one thread opens and reads its files
    and then decodes them; several threads do both at the same time, each on a core (see `_order`);
    the workers take the batches in turn. A loaded batch is copied to the GPU over its PCIe slot. At
    most ``loader.prefetch`` batches are ahead of the loop that uses them. ``rng`` draws the jitter
    of the reads.

    Attributes ``read_pfs``, ``read_ssd``, ``read_memory``: bytes by source.
    """

    def __init__(
        self,
        scenario: Scenario,
        resources: Resources,
        clock: NetworkClock,
        reads: Reads,
        rng: np.random.Generator,
    ) -> None:
        self._scenario, self._resources, self._clock = scenario, resources, clock
        self._source = scenario.workload.source
        self._samples = reads.samples
        hit, missed = reads.hit_nbytes, reads.nbytes - reads.hit_nbytes
        self.read_memory = float(hit.sum())
        self.read_pfs = float(missed.sum()) if self._source == "pfs" else 0.0
        self.read_ssd = float(missed.sum()) if self._source == "ssd" else 0.0
        self._any_hit = bool(reads.hit_samples.any())
        self._any_missed = bool((reads.hit_samples < reads.samples).any()) or not self._any_hit
        # (M, iterations), opens a second of a batch's worker, where it is not the same for all
        # batches
        self._caps: Any = None
        self._price(reads, missed, hit, rng)
        self._templates = self._chains()
        self._loaded = [0] * scenario.world_size
        self._turns = [
            [(NONE, 0)] * scenario.workload.loader.workers for _ in range(scenario.world_size)
        ]
        self._turn = 0  # the worker whose turn the first batch is
        self._next: Loaders | None = None
        self._groups: list[deque[int]] = [deque() for _ in range(scenario.world_size)]

    def _price(self, reads: Reads, missed: Any, hit: Any, rng: np.random.Generator) -> None:
        """Work, delay and bytes of every link of the chains: (stages, iterations, M) each."""
        workload = self._scenario.workload
        shape = reads.nbytes.shape
        jitter = lognormal_factor(rng, workload.jitter.read, shape)
        stages: list[tuple[Any, Any, Any]] = []  # work, delay, bytes
        if self._any_missed:
            stages += self._storage_stages(
                (reads.samples - reads.hit_samples).astype(float), missed, jitter
            )
        if self._any_hit:
            stages.append((hit, np.zeros(shape), hit))
        self._read_stages = len(stages)
        dataset = workload.dataset
        stages.append(
            (
                reads.nbytes / dataset.sample_size.mean * dataset.decode,
                np.zeros(shape),
                np.zeros(shape),
            )
        )
        copied = reads.samples * workload.model.input_size
        stages.append((copied, np.zeros(shape), copied))
        # rank first, so that what one post needs lies together
        self._work, self._delay, self._nbytes = (
            np.ascontiguousarray(
                np.stack([np.broadcast_to(x, shape) for x in column]).transpose(2, 1, 0)
            )
            for column in zip(*stages, strict=True)
        )

    def _storage_stages(self, samples: Any, nbytes: Any, jitter: Any) -> list[tuple[Any, Any, Any]]:
        """Work, delay and bytes of what batches read from the PFS (opens, then bytes) or the SSD;
        all arrays are (iterations, M)."""
        workload, cluster = self._scenario.workload, self._scenario.cluster
        dataset, threads = workload.dataset, workload.loader.threads
        requests = samples / dataset.samples_per_request
        in_flight = np.minimum(threads, np.maximum(requests, 1.0))
        if self._source == "pfs":
            if threads > 1:
                pfs = cluster.parallel_file_system
                caps = [
                    pfs.open_cap(dataset.samples_per_file, dataset.samples_per_request, n)
                    for n in np.unique(in_flight)
                ]
                self._caps = np.ascontiguousarray(
                    np.array(caps)[np.unique(in_flight, return_inverse=True)[1]]
                    .reshape(samples.shape)
                    .T
                )
            self._pfs_routes, link_latency = self._resources.pfs_read()
            zero = np.zeros_like(samples)
            return [
                (samples / dataset.samples_per_file * jitter, zero, zero),
                (nbytes, np.where(samples > 0, link_latency, 0.0), nbytes),
            ]
        seconds = cluster.ssd.read_seconds(
            nbytes, requests, self._resources.ranks_per_host * workload.loader.reads_in_flight
        )
        return [(seconds * jitter, requests / in_flight * cluster.ssd.latency, nbytes)]

    def _chains(self) -> list[TransferBatch]:
        """For every rank the batch that is posted again and again with new numbers."""
        resources, dataset = self._resources, self._scenario.workload.dataset
        pfs_routes = (
            self._pfs_routes.tolist() if self._source == "pfs" and self._any_missed else None
        )
        open_cap = self._scenario.cluster.parallel_file_system.open_cap(
            dataset.samples_per_file, dataset.samples_per_request
        )
        stages = self._work.shape[2]
        edge_from, edge_to = self._order(stages)
        cores = float(
            min(self._scenario.workload.loader.threads, self._scenario.workload.local_batch_size)
        )
        out = []
        for rank in range(self._scenario.world_size):
            host = int(resources.host_of[rank])
            routes: list[list[int]] = []
            cap = [np.inf] * stages
            if pfs_routes is not None:
                cap[0] = open_cap
                routes += [[resources.pfs_open], [link for link in pfs_routes[rank] if link >= 0]]
            elif self._any_missed:
                routes.append([int(resources.ssd[host])])
            if self._any_hit:
                routes.append([int(resources.memory[host])])
            cap[len(routes)] = cores
            routes += [
                [int(resources.cores[host])],
                [int(resources.pcie_in[host, resources.slot_of(rank)])],
            ]
            batch = tasks(stages, cap=np.array(cap))
            batch["mark"][self._read_stages - 1] = 1
            out.append(TransferBatch(batch, pad_routes(routes), edge_from, edge_to))
        return out

    def _order(self, stages: int) -> tuple[Any, Any]:
        """Which stage of a chain follows which.

        A worker of one thread goes through them in turn. Several threads decode some samples while
        they read others, so that the two go on beside each other, and the batch is copied when both
        are done.
        """
        decode, copy = stages - 2, stages - 1
        if self._scenario.workload.loader.threads == 1:
            self._first = [0]
            return chain(stages)
        self._first = [0, decode]
        edge_from, edge_to = chain(decode)
        return np.append(edge_from, [decode - 1, decode]).astype(np.int32), np.append(
            edge_to, [copy, copy]
        ).astype(np.int32)

    def followed_by(self, loaders: Loaders) -> None:
        """Let the workers go on with the batches of the next epoch when they have loaded all of
        this one."""
        self._next = loaders
        loaders._turns = self._turns
        loaders._turn = (self._turn + len(self._samples)) % self._scenario.workload.loader.workers

    def begin(self, rank: int) -> None:
        """Load the first batches of a rank, as many as may be ahead and are not loaded yet."""
        for _ in range(self._scenario.workload.loader.prefetch - len(self._groups[rank])):
            self._load_one(rank)

    def _load_one(self, rank: int) -> None:
        """Let one more batch be loaded, of this epoch or else of the next, if there is one."""
        if self._loaded[rank] < len(self._samples):
            self._load(rank)
        elif self._next is not None:
            self._next._load_one(rank)

    def _load(self, rank: int) -> None:
        """Let the rank's next batch be loaded, once the worker whose turn it is has done with its
        last one."""
        iteration = self._loaded[rank]
        self._loaded[rank] = iteration + 1
        group = self._clock.open(2)
        self._groups[rank].append(group)
        batch = self._templates[rank]
        records = batch.tasks
        records["work"] = self._work[rank, iteration]
        records["delay"] = self._delay[rank, iteration]
        records["nbytes"] = self._nbytes[rank, iteration]
        if self._caps is not None:
            records["cap"][0] = self._caps[rank, iteration]
        records["group"][self._read_stages - 1] = group
        records["group"][-1] = group
        turns = self._turns[rank]
        worker = (self._turn + iteration) % len(turns)
        for stage in self._first:
            records["after"][stage], records["after_seq"][stage] = turns[worker]
        self._clock.post(batch)
        turns[worker] = self._clock.network.last

    def awaited(self, rank: int) -> simpy.Event | None:
        """The event of the rank's next batch being ready; None if it is."""
        return self._clock.completion(self._groups[rank][0])

    def take(self, rank: int) -> float:
        """Take the next batch, which is ready, and let another be loaded; returns when its last
        byte was read (s)."""
        read_at, _ = self._clock.close(self._groups[rank].popleft())
        self._load_one(rank)
        return read_at


def lognormal_factor(rng: np.random.Generator, spread: float, shape: tuple[int, ...]) -> Any:
    """Random factors of mean 1 and standard deviation ``spread``, log-normal."""
    if spread == 0:
        return np.ones(shape)
    variance = math.log1p(spread**2)
    return rng.lognormal(-variance / 2, math.sqrt(variance), shape)

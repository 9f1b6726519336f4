"""Lower bounds of reading: the least time of each resource through which the samples
come.
"""

from __future__ import annotations

import math

import numpy as np

from simshuffle.job.plan.cache_tier import tier_share
from simshuffle.job.plan.epochs import NodeReads, cached_share
from simshuffle.job.plan.holding import last_epoch
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats, Ints64

Seconds = dict[str, float]
"""Least seconds by the name of the resource that takes them."""
OPENS, PFS, CLIENT, HCAS, SSD = (
    "file opens",
    "PFS bandwidth",
    "PFS client",
    "HCAs",
    "SSD",
)
MEMORY, DECODE, PCIE, LOADERS = "memory", "decode", "PCIe", "loader workers"
REQUESTS, STORE, FRONT_END = "store requests", "store bandwidth", "store hosts"
TIER, TIER_OPENS, TIER_HOST = "cache tier", "cache tier opens", "cache tier hosts"
MOST_EPOCHS = 1000
"""Epochs back in which a sample that is still in memory was read."""


class ReadingBounds:
    """The least seconds that resources need to bring samples to the ranks of a
    scenario.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._workload = scenario.workload
        self._cluster = scenario.cluster
        self._dataset = self._workload.dataset
        self._mean_nbytes = self._dataset.stored.mean
        self._loader = self._workload.loader
        self._world_size = scenario.world_size
        # of the fullest host
        self._ranks = self._cluster.ranks_per_host(scenario.world_size)
        self._host_of = self._cluster.host_of(scenario.world_size)
        curve = self._cluster.parallel_file_system.client_bandwidth
        self._client = math.inf if curve is None else curve(scenario.hosts)
        self._cable = cable_bandwidth(scenario)
        self._tier_used = tier = scenario.used_tier
        tier_curve = None if tier is None else tier.host_bandwidth
        self._tier_host = math.inf if tier_curve is None else tier_curve(scenario.hosts)

    def seconds(self, samples: float, cached: float, tiered: float = 0.0) -> Seconds:
        """Least time (s) of each resource to bring ``samples`` samples to every rank,
        by its name.

        ``samples`` is above 0. ``cached`` is the share that is read from memory,
        ``tiered`` the share of the others that a cache tier has; the rest comes from
        the PFS, the SSD or the object store. The laws are in docs/model-bounds.md;
        capacities are those of `simshuffle.job.plan.resources`.

        Returns:
            Servers count what all ranks read, host resources what the fullest host
            does, and `LOADERS` one rank. Resources of the PFS, the SSD and every host
            are always there, 0 if unused; those of the object store and of a cache tier
            only if the scenario uses one.
        """
        cluster = self._cluster
        host = self._cluster.host
        dataset = self._dataset
        ranks = self._ranks
        source = self._workload.source
        out = dict.fromkeys((OPENS, PFS, CLIENT, HCAS, SSD), 0.0)
        missed = samples * (1.0 - cached) * (1.0 - tiered)
        nbytes = missed * self._mean_nbytes
        if source == "ssd":
            out[SSD] = ranks * self._ssd_seconds(missed)
        elif source == "object_store":
            requests = self._world_size * (missed / dataset.read_at_once)
            out |= self._server_seconds(
                requests, self._world_size * nbytes, ranks * nbytes
            )
        elif source == "pfs":
            opens = self._world_size * missed / dataset.samples_per_file
            out |= self._server_seconds(
                opens, self._world_size * nbytes, ranks * nbytes
            )
        for name, seconds in self._tier_seconds(
            samples * (1.0 - cached), tiered
        ).items():
            out[name] = out.get(name, 0.0) + seconds
        out[MEMORY] = (
            ranks * samples * cached * self._mean_nbytes / cluster.memory.bandwidth
        )
        out[DECODE] = ranks * samples * dataset.decode_seconds / host.cores
        slots = min(host.pcie_slots, ranks)
        input_size = self._workload.model.input_size
        out[PCIE] = ranks * samples * input_size / (slots * host.pcie_bandwidth)
        batch = min(samples, self._workload.local_batch_size)
        out[LOADERS] = (
            samples
            / batch
            * self.batch_seconds(batch, cached, tiered)
            / self._loader.at_once
        )
        return out

    def _tier_seconds(self, samples: float, tiered: float) -> Seconds:
        """Return the seconds of a cache tier that has the share ``tiered`` of
        ``samples`` samples of every rank, and where anything is evicted stores the
        others. Empty if the scenario uses no tier.
        """
        tier = self._tier_used
        dataset = self._dataset
        if tier is None:
            return {}
        hit_samples = samples * tiered
        moved_samples = hit_samples if tier.eviction == "none" else samples
        of_host = self._ranks * hit_samples * self._mean_nbytes
        opens = self._world_size * hit_samples / dataset.samples_per_file
        seconds_by_resource = {
            TIER: self._world_size * moved_samples * self._mean_nbytes / tier.bandwidth,
            TIER_OPENS: opens / tier.open_rate if tier.open_rate else 0.0,
            TIER_HOST: of_host / self._tier_host,
        }
        if self._workload.source == "pfs":
            seconds_by_resource[HCAS] = of_host / (
                self._cluster.host.hcas * self._cable
            )
        return seconds_by_resource

    def fetch_seconds(self, reads: NodeReads | None, batches: int) -> Seconds:
        """`seconds` under a loader's order, for the first ``batches`` batches of every
        rank.

        Pieces come from the PFS or the object store, each by an open or a request,
        other samples from the cache; of resources that a host or a rank has, the one
        with most work counts. Each worker opens, reads and decodes by itself. Where
        ``reads`` is None, neither counts: decoding and copying remain.
        """
        dataset = self._dataset
        loader = self._loader
        host = self._cluster.host
        shard = dataset.num_samples // self._world_size
        samples = min(batches * self._workload.local_batch_size, shard)
        out = self.seconds(samples, 1.0) | {MEMORY: 0.0}
        decode = samples * dataset.decode_seconds / min(loader.threads, host.cores)
        read = 0.0 if reads is None else self._set_fetch_seconds(reads, batches, out)
        work = worker_seconds(read, decode, self.copy_seconds(samples), loader.threads)
        return out | {LOADERS: float(work) / loader.at_once}

    def _set_fetch_seconds(self, reads: NodeReads, batches: int, out: Seconds) -> float:
        """Set the seconds of servers and caches in ``out``; return those in which the
        workers of the slowest rank fetch pieces.

        They are for the first ``batches`` batches of every rank, together.
        """
        cluster = self._cluster
        fetches = reads.fetches
        # (M,) sums over the first batches of each rank
        requests, nbytes, hits, hit_nbytes = (
            part[:batches].sum(axis=0)
            for part in (
                fetches.requests,
                fetches.nbytes,
                reads.hit_samples,
                reads.hit_nbytes,
            )
        )
        fetched = float(np.bincount(self._host_of, nbytes).max())
        out |= self._server_seconds(float(requests.sum()), float(nbytes.sum()), fetched)
        cached = np.bincount(self._host_of, hit_nbytes).astype(np.float64)
        if fetches.cached_in == "memory":
            out[MEMORY] = float(cached.max()) / cluster.memory.bandwidth
        else:
            hit_count = np.bincount(self._host_of, hits).astype(np.float64)
            out[SSD] = float(
                np.max(cluster.ssd.read_seconds(cached, hit_count, self._depth))
            )
        return float(np.max(self.piece_seconds(requests, nbytes)))

    def _server_seconds(
        self, requests: float, nbytes: float, of_host: float
    ) -> Seconds:
        """Return the seconds of the storage servers and of the route from them.

        The object store serves ``requests`` requests, the PFS opens as many files. Both
        send ``nbytes`` bytes, of which ``of_host`` go to the host that reads most.
        """
        if self._workload.source == "object_store":
            store = self._cluster.store
            shared, host_bandwidth = store.bandwidths
            rate = store.answer_rate
            return {
                REQUESTS: requests / rate,
                STORE: nbytes / shared,
                FRONT_END: of_host / host_bandwidth,
            }
        pfs = self._cluster.parallel_file_system
        return {
            OPENS: requests / pfs.free_open_rate,
            PFS: nbytes / pfs.free_bandwidth,
            CLIENT: of_host / self._client,
            HCAS: of_host / (self._cluster.host.hcas * self._cable),
        }

    def piece_seconds(self, requests: Ints64, nbytes: Ints64) -> Floats:
        """Return the seconds in which workers alone fetch pieces, each or together:
        their requests, then bytes. Shaped as ``requests``; servers do not bind.
        """
        threads = self._loader.threads
        if self._workload.source == "object_store":
            store = self._cluster.store
            waiting = store.waiting_seconds
            at_most = threads * store.connection_bandwidth
        else:
            waiting = self._cluster.parallel_file_system.latency
            at_most = self._cable
        return requests * waiting / threads + nbytes / at_most

    def batch_seconds(
        self, samples: float, cached: float, tiered: float = 0.0
    ) -> float:
        """Least time (s) in which a worker loads a batch of ``samples`` samples if it
        is alone: reads, decodes and copies them. Shares as of `seconds`.
        """
        parts = (
            self.read_seconds(samples, cached, tiered),
            self.decode_seconds(samples),
            self.copy_seconds(samples),
        )
        return float(worker_seconds(*parts, self._loader.threads))

    def decode_seconds(self, samples: float) -> float:
        """Return the seconds in which a worker alone decodes a batch of ``samples``
        samples.
        """
        max_threads = self._workload.local_batch_size, self._cluster.host.cores
        return (
            samples
            * self._dataset.decode_seconds
            / min(self._loader.threads, *max_threads)
        )

    def read_seconds(self, samples: float, cached: float, tiered: float = 0.0) -> float:
        """Return the seconds in which a worker alone opens and reads a batch of
        ``samples`` samples, with mean latencies; shares as of `seconds`.
        """
        cluster = self._cluster
        dataset = self._dataset
        source = self._workload.source
        missed = samples * (1.0 - cached) * (1.0 - tiered)
        nbytes = missed * self._mean_nbytes
        requests = samples / dataset.read_at_once
        in_flight = min(self._loader.threads, max(requests, 1.0))
        read = samples * cached * self._mean_nbytes / cluster.memory.bandwidth
        if (tier := self._tier_used) is not None:
            tier_samples = samples * (1.0 - cached) * tiered
            cap = tier.open_cap(
                dataset.samples_per_file, dataset.read_at_once, in_flight
            )
            read += (
                tier_samples
                / dataset.samples_per_file
                / min(cap, tier.open_rate or math.inf)
            )
            of_fabric = self._cable if source == "pfs" else math.inf
            read += (
                tier_samples
                * self._mean_nbytes
                / min(tier.bandwidth, self._tier_host, of_fabric)
            )
        if source == "pfs":
            pfs = cluster.parallel_file_system
            cap = pfs.open_cap(
                dataset.samples_per_file, dataset.read_at_once, in_flight
            )
            read += missed / dataset.samples_per_file / min(cap, pfs.free_open_rate)
            read += nbytes / min(pfs.free_bandwidth, self._client, self._cable)
        elif source == "ssd":
            waiting = (1.0 - cached) * requests / in_flight * cluster.ssd.latency
            read += self._ssd_seconds(missed) + waiting
        elif source == "object_store":
            store = cluster.store
            sent = missed / dataset.read_at_once
            read += max(
                sent / in_flight * store.waiting_seconds, sent / store.answer_rate
            )
            read += nbytes / min(
                in_flight * store.connection_bandwidth, *store.bandwidths
            )
        return read

    def copy_seconds(self, samples: float) -> float:
        """Return the seconds to copy ``samples`` samples to a GPU."""
        return (
            samples
            * self._workload.model.input_size
            / self._cluster.host.pcie_bandwidth
        )

    def hit_seconds(self, reads: NodeReads) -> Floats:
        """Return the (iterations, M) seconds in which workers alone read what is in the
        cache of their node.
        """
        if reads.fetches.cached_in == "memory":
            return reads.hit_nbytes / self._cluster.memory.bandwidth
        hit_samples = reads.hit_samples.astype(np.float64)
        ssd = self._cluster.ssd
        waiting = hit_samples * ssd.latency / self._loader.threads
        return ssd.read_seconds(reads.hit_nbytes, hit_samples, self._depth) + waiting

    @property
    def _depth(self) -> int:
        """Reads in flight on a host."""
        return self._ranks * self._loader.reads_in_flight

    def _ssd_seconds(self, samples: float) -> float:
        """Device time (s) to read so many samples."""
        nbytes = samples * self._mean_nbytes
        requests = samples / self._dataset.read_at_once
        return float(self._cluster.ssd.read_seconds(nbytes, requests, self._depth))


def reading_bounds(
    scenario: Scenario, samples: float, iterations: int
) -> tuple[float, Seconds]:
    """Least time (s) until every rank has its first batch: of a worker alone, or of a
    resource that all first batches share; and that of each resource to bring
    ``samples`` samples to every rank, with all shards before them if importance is
    measured first.

    Both are of the last epoch. Under a loader's order ``iterations`` batches of every
    rank count in place of ``samples``; else ``iterations`` does not.
    """
    reading = ReadingBounds(scenario)
    epoch = min(scenario.epochs, MOST_EPOCHS)
    if scenario.workload.exchange.fetches:
        reads = last_epoch(scenario)
        first = max(reading.fetch_seconds(reads, 1).values())
        return first, reading.fetch_seconds(reads, iterations)
    cached, tiered = reads_elsewhere(scenario, epoch)
    batch = scenario.workload.local_batch_size
    shared = reading.seconds(min(samples, batch), cached, tiered)
    worker_alone = reading.batch_seconds(min(samples, batch), cached, tiered)
    first = max(
        worker_alone, *(seconds for name, seconds in shared.items() if name != LOADERS)
    )
    if not scenario.workload.exchange.inference_pass:
        return first, reading.seconds(samples, cached, tiered)
    shard = scenario.workload.dataset.num_samples / scenario.world_size
    measuring = reading.seconds(shard, cached, tiered)
    training = reading.seconds(samples, *reads_elsewhere(scenario, max(epoch, 2)))
    return first, {name: training[name] + measuring[name] for name in training}


def reads_elsewhere(scenario: Scenario, epoch: int) -> tuple[float, float]:
    """Expected shares of an epoch's reads that are in memory, and of the others that a
    cache tier has (0 without one). ``epoch`` is from 1.
    """
    cached = cached_share(scenario, epoch)
    return cached, tier_share(scenario, epoch, cached)


def worker_decode_seconds(scenario: Scenario, seconds_on_all_cores: float) -> float:
    """Return the seconds in which the loader workers of a host decode what all its cores
    decode in ``seconds_on_all_cores``, each thread on a core as far as there are cores.
    """
    cores = scenario.cluster.host.cores
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    threads = ranks * scenario.workload.loader.reads_in_flight
    return seconds_on_all_cores * cores / min(cores, threads)


def worker_seconds(
    read: Floats | float, decode: Floats | float, copy: float, threads: int
) -> Floats:
    """Return the seconds of a worker for batches that need these seconds to read, to
    decode and to copy.

    With one thread it opens and reads, then decodes; with t of them t requests are in
    flight, t cores decode, and reading and decoding go on beside each other. The copy
    to the GPU follows.
    """
    work = np.add(read, decode) if threads == 1 else np.maximum(read, decode)
    return work + copy


def cable_bandwidth(scenario: Scenario) -> float:
    """Bytes/s of the cable of an HCA; inf for a topology that does not say it in one
    number.
    """
    return float(getattr(scenario.cluster.topology, "link_bandwidth", math.inf))

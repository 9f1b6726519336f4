"""Turn the loading of batches into transfers: a chain each of open, read, decode, copy
to the GPU.

The module also draws by how much some batches take longer than others to compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from simshuffle.fabric.network.batch import (
    NONE,
    TASK,
    TASK_BYTES,
    TransferBatch,
    chain_edges,
    tasks,
)
from simshuffle.job.lowering.latencies import slowest_thread
from simshuffle.job.lowering.read_requests import (
    ReadRequests,
    ReadSums,
    split_by_tier,
    storage_requests,
    sum_reads,
)
from simshuffle.job.plan.epochs import Reads
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.model import StepTimes
from simshuffle.job.scenario.workload import Workload
from simshuffle.spec.arrays import Floats, Ints32
from simshuffle.spec.rng import lognormal_factor

Edges = tuple[Ints32, Ints32]


FILLED = ("work", "cap", "nbytes", "delay")
"""Columns that differ from batch to batch: the first ones of
`simshuffle.fabric.network.batch.TASK`, so that a single copy fills them all.
"""


@dataclass
class _ChainStages:
    """The stages of all chains, in their order. Arrays are (iterations, M) unless
    another shape is given.
    """

    workload: Workload
    resources: Resources
    jitter: Floats  # factors of opens and requests, and of whole reads of an SSD
    rng: np.random.Generator  # draws the latencies of requests
    # by stage, `FILLED` of every batch, or one number for all
    columns: list[tuple[Floats | float, ...]] = field(default_factory=list)
    # by stage, the links of every rank: (M, hops), padded with -1 at the end
    route: list[Ints32] = field(default_factory=list)

    def add(
        self,
        work: Floats,
        route: Ints32,
        *,
        nbytes: Floats | float = 0.0,
        delay: Floats | float = 0.0,
        cap: Floats | float = np.inf,
    ) -> None:
        """Append a stage.

        Args:
            work: what each batch needs of every link of the route, in its units.
            route: (M, hops) links of every rank, or (M,) for a single link.
            nbytes: bytes of each batch, or one number for all; 0 for no bytes.
            delay: s before each batch's work begins.
            cap: most work a second.
        """
        self.columns.append((work, cap, nbytes, delay))
        self.route.append(route if route.ndim > 1 else route[:, None])

    def add_pfs(self, requested: ReadRequests, *, into_tier: bool = False) -> None:
        """Append opens, then bytes, from the PFS.

        With ``into_tier`` the bytes also cross the cache tier, into which they are
        written.
        """
        open_link = self.resources.pfs_open
        cap = self._open_cap(requested)
        self._add_files(requested, open_link, cap, self.resources.pfs_read(into_tier))

    def add_tier(self, requested: ReadRequests) -> None:
        """Append opens, then bytes, from the cache tier.

        Bytes cross the cables of the interconnect if the tier stands before the PFS,
        and none if it stands before another source.
        """
        tier = self.resources.cluster.cache_tier
        threads = self.workload.loader.threads
        assert tier is not None  # noqa: S101 - else nothing is found in it
        cap: Floats | float = np.inf
        if tier.latency:
            cap = tier.open_cap(requested.per_file, requested.per_request) * (
                requested.in_flight(threads)
            )
        route = self.resources.tier_read(cables=self.workload.source == "pfs")
        self._add_files(requested, self.resources.tier_open, cap, route)

    def _add_files(
        self,
        requested: ReadRequests,
        link: int,
        cap: Floats | float,
        route: tuple[Ints32, Floats],
    ) -> None:
        """Append opens on a ``link``, at most ``cap`` a second, then bytes over a
        route, given with its latencies (M,) s, which batches without samples skip.

        `jitter` is a factor of the opens, not of the bytes.
        """
        routes, link_latency = route
        opens = np.full(self.resources.world_size, link, np.int32)
        work = requested.samples / requested.per_file * self.jitter
        self.add(work, opens, cap=cap)
        delay = np.where(requested.samples > 0, link_latency, 0.0)
        self.add(requested.nbytes, routes, nbytes=requested.nbytes, delay=delay)

    def _open_cap(self, requested: ReadRequests) -> Floats | float:
        """Return the most files/s that the worker of a batch opens on the PFS:
        (iterations, M), or one number for all.

        Where latencies are equal, requests in flight pass together and decoding is left
        out. Where latencies differ, they are drawn, and a batch opens its files in the
        time of its slowest thread; only then does this time include decoding, as one of
        several threads decodes between two opens. A single thread decodes in the end.
        Infinity without latency, and for a batch without requests where latencies
        differ.
        """
        pfs = self.resources.cluster.parallel_file_system
        threads = self.workload.loader.threads
        samples = requested.samples
        per_file = requested.per_file
        per_request = requested.per_request
        if pfs.latency_spread > 0 and pfs.latency > 0:
            requests = np.ceil(samples / per_request).astype(np.int64)
            seconds = slowest_thread(
                requests,
                threads,
                latency=pfs.latency,
                spread=pfs.latency_spread,
                decode=self._decode_between(requested),
                rng=self.rng,
            )
            opens_per_second = np.full_like(samples, np.inf)
            np.divide(
                samples / per_file, seconds, out=opens_per_second, where=seconds > 0
            )
            return opens_per_second
        if threads == 1:
            return pfs.open_cap(per_file, per_request)
        request_counts, count_index = np.unique(
            requested.in_flight(threads), return_inverse=True
        )
        caps = np.array(
            [pfs.open_cap(per_file, per_request, n) for n in request_counts]
        )
        return caps[count_index].reshape(samples.shape)

    def _decode_between(self, requested: ReadRequests) -> float:
        """Return the s that one of several threads decodes after each request; 0 for a
        single thread, which decodes in the end.
        """
        if self.workload.loader.threads == 1:
            return 0.0
        return requested.per_request * self.workload.dataset.decode_seconds

    def add_object_store(
        self, requested: ReadRequests, *, into_tier: bool = False
    ) -> None:
        """Append requests, then their bytes, from the object store.

        A request is sent ``tries`` times in the mean, and each try counts against the
        store's rate. A batch's requests take at least the store's latencies and retries
        with ``threads`` requests at once. If waits differ, they are drawn, include
        decoding between requests, and are rounded to a part in a thousand. Bytes run at
        most at the store's ``connection_bandwidth`` for each request in flight. With
        ``into_tier`` the bytes also cross the cache tier, into which they are written.
        """
        resources = self.resources
        threads = self.workload.loader.threads
        store = resources.cluster.store
        in_flight = requested.in_flight(threads)
        seconds = requested.requests / in_flight * store.waiting_seconds
        if not store.has_equal_latencies:
            drawn_seconds = slowest_thread(
                np.ceil(requested.requests).astype(np.int64),
                threads,
                latency=store.latency,
                spread=store.latency_spread,
                decode=self._decode_between(requested),
                rng=self.rng,
                retries=(store.retry_share, store.retry_delay),
            )
            seconds = round_to_thousandths(drawn_seconds)
        tries = requested.requests * store.tries
        cap = np.full_like(tries, np.inf)
        np.divide(tries, seconds, out=cap, where=seconds > 0)
        servers = np.full(resources.world_size, resources.store_requests, np.int32)
        self.add(tries * self.jitter, servers, cap=cap)
        cap = in_flight * store.connection_bandwidth
        route = resources.store_read(into_tier)
        self.add(requested.nbytes, route, nbytes=requested.nbytes, cap=cap)

    def add_ssd(self, requested: ReadRequests) -> None:
        """Append reads from the host's SSD; latencies of requests in flight pass
        together.

        `jitter` is a factor of the time of a read, not of its latency.
        """
        resources = self.resources
        loader = self.workload.loader
        ssd = resources.cluster.ssd
        requests = requested.requests
        depth = resources.ranks_per_host * loader.reads_in_flight
        work = ssd.read_seconds(requested.nbytes, requests, depth) * self.jitter
        delay = requests / requested.in_flight(loader.threads) * ssd.latency
        route = resources.ssd[resources.host_of]
        self.add(work, route, nbytes=requested.nbytes, delay=delay)

    def __len__(self) -> int:
        return len(self.route)

    def fill_columns(self, iterations: int, world_size: int) -> Floats:
        """Return the columns as (M, iterations, stages, `FILLED`), so that the numbers
        of one batch lie together.
        """
        out = np.empty((world_size, iterations, len(self), len(FILLED)))
        for stage, columns in enumerate(self.columns):
            for column_index, column in enumerate(columns):
                out[:, :, stage, column_index] = np.transpose(column)
        return out

    def routes(self) -> Ints32:
        """(M, stages, hops) links, padded with -1 at the end."""
        hops = max(route.shape[1] for route in self.route)
        out = np.full((len(self.route[0]), len(self), hops), NONE, np.int32)
        for stage, route in enumerate(self.route):
            out[:, stage, : route.shape[1]] = route
        return out


class ReadChains:
    """The loading of all batches of one pass of all ranks; ``iterations`` for each.

    Args:
        filled: (M, iterations, stages, `FILLED`) of every transfer.
        routes: (M, stages, hops) links, padded with -1 at the end.
        edges: stages, and the stage that follows each.
        first_stages: stages that wait for the worker's previous batch.
        last_read: the stage that reads the last byte, whose end is marked.
        sums: bytes, requests and opens of the whole pass.
    """

    def __init__(
        self,
        filled: Floats,
        routes: Ints32,
        *,
        edges: Edges,
        first_stages: tuple[int, ...],
        last_read: int,
        sums: ReadSums,
    ) -> None:
        self.filled = filled
        self.first_stages = first_stages
        self.sums = sums
        world_size, self.iterations, self.stages, _ = filled.shape
        self._records = tasks(world_size * self.stages).reshape(world_size, -1)
        self._records["mark"][:, last_read] = 1
        self._last_read = last_read
        self._edges = edges
        self._routes = routes

    def work_on(self, link: int) -> Floats:
        """Return what the batches of all ranks need of a link, in its units,
        (iterations,).

        Raises:
            AttributeError: `end` was called.
        """
        crosses = (self._routes == link).any(axis=2)
        return np.asarray((self.filled[..., 0] * crosses[:, None, :]).sum(axis=(0, 2)))

    def batch(self, iteration: int, groups: Ints32, queues: Ints32) -> TransferBatch:
        """Return the transfers that load a batch of every rank: the `stages` of a rank
        one after the other, and the edges of each rank by stage.

        Args:
            iteration: batch of each rank, from 0.
            groups: (M,) group that counts the last read (marked) and the copy of a rank.
            queues: (M,) queue of the worker whose turn it is: `first_stages` wait for
                its previous batch.

        Raises:
            AttributeError: `end` was called.
        """
        records = self._records.view(TASK_BYTES).copy().view(TASK)
        columns = records.view(np.float64).reshape(*records.shape, -1)
        columns[..., : len(FILLED)] = self.filled[:, iteration]
        records["group"][:, [self._last_read, -1]] = groups[:, None]
        records["after"][:, self.first_stages] = queues[:, None]
        records["last_of"][:, -1] = queues
        hops = self._routes.shape[-1]
        return TransferBatch(
            records.ravel(), self._routes.reshape(-1, hops), *self._edges
        )

    def end(self) -> None:
        """Release the arrays of the transfers when all batches are loaded.

        `sums` and `iterations` stay; `batch` and `work_on` cannot be called any more.
        """
        del self.filled


def read_chains(
    reads: Reads,
    workload: Workload,
    resources: Resources,
    *,
    jitter: Floats,
    rng: np.random.Generator,
    decoding: Floats | float = 1.0,
) -> ReadChains:
    """Return the chains that load ``reads``: from the PFS, the object store or the SSD,
    then from the cache tier, then from the node's cache.

    A read that no batch of any rank needs is left out; if none needs any, an empty read
    from the source stays. Decoding, in proportion to bytes and on at most as many cores
    as threads or samples of a batch, and the copy to the GPU always follow.

    Args:
        reads: samples and bytes of every batch of one pass.
        workload: source, loader and dataset.
        resources: links of the machine.
        jitter: (iterations, M) factors of opens and requests, and of whole reads of an
            SSD.
        rng: draws the latencies of requests to the PFS or the object store; untouched
            where all are alike.
        decoding: (M,) factors of the work of decoding.
    """
    hit_nbytes = reads.hit_nbytes
    missed_reads = storage_requests(reads, workload.dataset)
    any_hit = bool(reads.hit_samples.any())
    has_tier_hits = reads.tier is not None and bool(reads.tier.hit_samples.any())
    any_missed = bool(missed_reads.samples.any()) or not (any_hit or has_tier_hits)
    hosts = resources.host_of
    source = workload.source
    dataset = workload.dataset
    hit_source = "memory" if reads.fetches is None else reads.fetches.cached_in
    stages = _ChainStages(workload, resources, jitter, rng)
    tier_parts = split_by_tier(missed_reads, reads) if any_missed else []
    for requested, into_tier in tier_parts:
        if source == "pfs":
            stages.add_pfs(requested, into_tier=into_tier)
        elif source == "object_store":
            stages.add_object_store(requested, into_tier=into_tier)
        else:
            stages.add_ssd(requested)
    if reads.tier is not None and has_tier_hits:
        tier_hits = reads.tier.hit_samples.astype(float), reads.tier.hit_nbytes
        stages.add_tier(
            replace(missed_reads, samples=tier_hits[0], nbytes=tier_hits[1])
        )
    if any_hit and hit_source == "memory":
        stages.add(hit_nbytes, resources.memory[hosts], nbytes=hit_nbytes)
    elif any_hit:
        stages.add_ssd(ReadRequests(reads.hit_samples.astype(float), hit_nbytes, 1, 1))
    last_read = len(stages) - 1
    stages.add(
        reads.nbytes / dataset.stored.mean * dataset.decode_seconds * decoding,
        resources.cores[hosts],
        cap=float(min(workload.loader.threads, workload.local_batch_size)),
    )
    copied_nbytes = reads.samples.astype(float) * workload.model.input_size
    stages.add(
        copied_nbytes, resources.pcie_in[hosts, resources.slot_of], nbytes=copied_nbytes
    )
    first_stages, edges = order_stages(len(stages), workload.loader.threads)
    return ReadChains(
        stages.fill_columns(*reads.nbytes.shape),
        stages.routes(),
        edges=edges,
        first_stages=first_stages,
        last_read=last_read,
        sums=sum_reads(missed_reads, source, reads, hit_source),
    )


def round_to_thousandths(seconds: Floats) -> Floats:
    """Round seconds to a part in a thousand, so that rates repeat: each distinct rate
    is a link of its own. 0 stays 0.
    """
    logarithms = np.log(seconds, out=np.zeros_like(seconds), where=seconds > 0)
    return np.where(seconds > 0, np.exp(np.rint(1e3 * logarithms) / 1e3), 0.0)


def order_stages(stages: int, threads: int) -> tuple[tuple[int, ...], Edges]:
    """Return the stages that wait for the worker's previous batch, and the edges
    between stages: each edge's stage, and the stage that follows.

    The last two stages are decoding and the copy. A worker of one thread goes through
    the stages in turn. Several threads decode some samples while they read others; the
    batch is copied when both are done.
    """
    decode = stages - 2
    copy = stages - 1
    if threads == 1:
        return (0,), chain_edges(stages)
    edge_from, edge_to = chain_edges(decode)
    return (0, decode), (
        np.append(edge_from, [decode - 1, decode]).astype(np.int32),
        np.append(edge_to, [copy, copy]).astype(np.int32),
    )


def compute_factor(
    rng: np.random.Generator, spread: float, reads: Reads, times: StepTimes
) -> Floats:
    """Return the factor by which the passes over each batch take longer than ``times``,
    (iterations, M).

    The factor is log-normal jitter times what the batch's samples are to compute,
    compared with as many samples of ``times``. The fixed part of a step does not grow
    with the samples. Without ``reads.work`` all samples are alike, and jitter alone
    remains, as for a batch without samples.

    Args:
        rng: draws the jitter; untouched if ``spread`` is 0.
        spread: standard deviation of the jitter over its mean, 1.
        reads: samples of every batch and their work.
        times: seconds of a step.
    """
    jitter = lognormal_factor(rng, spread, reads.samples.shape)
    if reads.work is None:
        return jitter
    sample_seconds = times.per_sample * reads.samples
    share = np.divide(
        sample_seconds,
        sample_seconds + times.fixed_seconds,
        out=np.zeros_like(jitter),
        where=sample_seconds > 0,
    )
    factor: Floats = jitter * (1.0 + (reads.work - 1.0) * share)
    return factor

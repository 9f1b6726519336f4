"""The samples that a host keeps, and the least time in which they are staged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pydantic import TypeAdapter

from simshuffle.job.plan.epochs import NodeCaches, NodeReads, first_owner, sample_nbytes
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Staging, Workload
from simshuffle.spec.library import parse_kind
from simshuffle.spec.record import CacheArgument
from simshuffle.spec.units import Dimension, readable
from simshuffle.workload.exchange import Exchange, LoaderShuffle, Strategy
from simshuffle.workload.exchange.loader_shuffle import MAX_CHECKED_SAMPLES as MOST


def write_bandwidth(cluster: Cluster, workload: Workload) -> float:
    """Bytes/s that a host stores of what is staged: in its memory if samples are read
    from there, else on its SSD.
    """
    return (
        cluster.memory.bandwidth
        if workload.source == "memory"
        else cluster.ssd.write_bandwidth
    )


def file_bandwidths(
    cluster: Cluster, staging: Staging, file: float
) -> tuple[float, float]:
    """Bytes/s at which files of ``file`` bytes can be opened, or asked for, by all
    hosts together, and by one that copies ``staging.copies`` of them at once; inf where
    nothing limits it. Ranges of an archive in an object store are so large that their
    latencies are nothing.
    """
    files = staging.format == "files"
    if staging.source == "object_store":
        store = cluster.store
        if not files:
            return math.inf, staging.copies * store.connection_bandwidth
        return store.answer_rate * file, staging.copies * file / store.request_seconds(
            file
        )
    pfs = cluster.parallel_file_system
    if not files:
        return math.inf, math.inf
    host_bandwidth = (
        staging.copies * file / pfs.latency if pfs.latency > 0 else math.inf
    )
    return pfs.free_open_rate * file, host_bandwidth


def staging_seconds(scenario: Scenario) -> float:
    """Least time (s) to copy the shards, or the whole set, from the PFS or the object
    store to the hosts before the first epoch; 0 if nothing is staged.

    The slowest of the resources one by one; network and HCAs are left out. The shards
    are read once, the whole set by every host, or with broadcast once by all together.
    """
    workload = scenario.workload
    hosts = scenario.hosts
    exchange = workload.exchange
    nbytes = workload.dataset.nbytes
    together = exchange.redraws and workload.staging.broadcast
    copies = hosts if exchange.redraws and not together else 1
    stored = _stored_by_a_host(scenario)
    # by a host from what all share
    received = nbytes / hosts if together else stored
    return (
        _copy_seconds(scenario, copies * nbytes, received, stored, hosts)
        if stored
        else 0.0
    )


def staging_seconds_of_files(scenario: Scenario) -> float:
    """Return `staging_seconds` with ``staging.format`` 'files'."""
    workload = scenario.workload
    staging = workload.staging.model_copy(update={"format": "files"})
    workload = workload.model_copy(update={"staging": staging})
    return staging_seconds(scenario.model_copy(update={"workload": workload}))


def reread_seconds(scenario: Scenario) -> float:
    """Least time (s) to copy what one host keeps again, as `staging_seconds` does for
    all, while no other host reads; 0 if nothing is staged.
    """
    stored = _stored_by_a_host(scenario)
    return _copy_seconds(scenario, stored, stored, stored, 1) if stored else 0.0


def _stored_by_a_host(scenario: Scenario) -> float:
    """Bytes that a host stages; 0 if none does."""
    workload = scenario.workload
    world_size = scenario.world_size
    exchange = workload.exchange
    ranks = scenario.cluster.ranks_per_host(world_size)
    if exchange.stored_share(world_size, ranks) == 0.0:
        return 0.0
    return workload.dataset.nbytes * (1.0 if exchange.redraws else ranks / world_size)


def _copy_seconds(
    scenario: Scenario, total_nbytes: float, received: float, stored: float, hosts: int
) -> float:
    """Return the least seconds in which ``hosts`` hosts copy what they stage.

    Args:
        scenario: with staging.
        total_nbytes: bytes that all read together.
        received: bytes that each reads from what all share.
        stored: bytes that each stores.
        hosts: that copy at once.
    """
    cluster = scenario.cluster
    workload = scenario.workload
    dataset = workload.dataset
    staging = workload.staging
    if staging.source == "object_store":
        bandwidths = cluster.store.bandwidths
    else:
        pfs = cluster.parallel_file_system
        curve = pfs.client_bandwidth
        bandwidths = pfs.free_bandwidth, math.inf if curve is None else curve(hosts)
    of_files = file_bandwidths(
        cluster, staging, dataset.stored.mean * dataset.samples_per_file
    )
    shared, host_bandwidth = (
        min(bandwidths_of_stage)
        for bandwidths_of_stage in zip(of_files, bandwidths, strict=True)
    )
    return max(
        total_nbytes / shared,
        received / host_bandwidth,
        stored / write_bandwidth(cluster, workload),
    )


OFFERED = (
    "global_shuffle:source=ssd",
    "local_shuffle",
    "partial_local_shuffle:exchange_fraction=0.1",
)
"""Short forms of the strategies of which hosts hold samples, and that any machine with
room can have.
"""
_STRATEGY: TypeAdapter[Strategy] = TypeAdapter(Exchange)


@dataclass(frozen=True)
class HeldStrategy:
    """A strategy, and whether the hosts have room for what it holds."""

    exchange: str  # its short form, one of `OFFERED`
    kind: str  # of the strategy, such as 'local_shuffle'
    nbytes: float  # that each host holds
    capacity: float  # bytes of its SSD, or of its memory if samples are staged there
    tier: Literal["ssd", "memory"]  # which of both

    @property
    def fits(self) -> bool:
        """True if the hosts have room."""
        return self.nbytes <= self.capacity

    def __str__(self) -> str:
        """Return the strategy, how much it holds, and the capacity, in words; if it
        does not fit, by how much.
        """
        nbytes, room, over = (
            readable(value, Dimension.NBYTES, 3)
            for value in (self.nbytes, self.capacity, self.nbytes - self.capacity)
        )
        where = "on the SSD" if self.tier == "ssd" else "in the memory"
        what = f"{nbytes} {where} of a host, which has {room}"
        return f"{self.exchange} ({what if self.fits else f'{what}: {over} too much'})"


def list_alternatives(scenario: Scenario, world_size: int) -> list[HeldStrategy]:
    """Return the strategies of `OFFERED` with a scenario's hosts and data, on
    ``world_size`` ranks, whether they fit or not.

    [] if the scenario's own strategy is of none of their kinds, or reads an object
    store.
    """
    workload = scenario.workload
    cluster = scenario.cluster
    strategies = {text: _STRATEGY.validate_python(parse_kind(text)) for text in OFFERED}
    is_comparable = workload.exchange.kind in {
        strategy.kind for strategy in strategies.values()
    }
    if not is_comparable or workload.exchange.tier == "object_store":
        return []
    tier = workload.staging.target
    ranks = cluster.ranks_per_host(world_size)
    dataset_nbytes = workload.dataset.nbytes
    room = cluster.capacity(tier)
    return [
        HeldStrategy(
            text,
            strategy.kind,
            strategy.stored_share(world_size, ranks) * dataset_nbytes,
            room,
            tier,
        )
        for text, strategy in strategies.items()
    ]


def held_in(scenario: Scenario) -> Literal["ssd", "memory"] | None:
    """Return the tier in which a host keeps samples; None if it keeps none.

    Page caches and cache tiers do not count. Under a loader's order it is where fetched
    pieces are: 'memory' also without a cache.
    """
    workload = scenario.workload
    if isinstance(workload.exchange, LoaderShuffle):
        return workload.exchange.cache_device
    if not scenario.storage_per_host:
        return None
    return "memory" if workload.source == "memory" else "ssd"


def max_held_nbytes(scenario: Scenario) -> float:
    """Return the most bytes that a host keeps, before a run is simulated.

    What is staged; or under a loader's order what the fullest node has in the last
    epoch (`last_epoch`), else the set, or as much as its cache holds.
    """
    strategy = scenario.workload.exchange
    dataset = scenario.workload.dataset
    if not isinstance(strategy, LoaderShuffle):
        return scenario.storage_per_host
    if (last := last_epoch(scenario)) is not None:
        return float(last.fetches.held_nbytes)
    room = strategy.cache_nbytes(
        scenario.cluster.capacity(strategy.cache_in), dataset.nbytes
    )
    return dataset.nbytes if room is None else float(room)


def last_epoch(scenario: Scenario) -> NodeReads | None:
    """Return what loaders fetch in a run's last epoch, counted sample by sample; or
    None.

    Of more than two epochs the second stands for the last, where they are alike. None
    without a loader's order, for more samples than `MAX_CHECKED_SAMPLES`, and where
    only a count of all epochs would say: of more than two of which the second fetches
    something into a cache. The count of the last scenario is kept.
    """
    strategy = scenario.workload.exchange
    if (
        not isinstance(strategy, LoaderShuffle)
        or scenario.workload.dataset.num_samples > MOST
    ):
        return None
    reads = _first_or_second(CacheArgument(scenario.model_dump_json(), scenario))
    is_steady = strategy.cache_limit == 0 or not reads.fetches.requests.any()
    return reads if scenario.epochs <= 2 or is_steady else None


@lru_cache(maxsize=1)
def _first_or_second(request: CacheArgument[Scenario]) -> NodeReads:
    """The reads of the first epoch if there is no other, else of the second: counted
    once where bounds, storage and summary of one scenario need it.
    """
    *_, last = count_fetches(request.argument, min(request.argument.epochs, 2))
    return last


def count_fetches(scenario: Scenario, epochs: int) -> Iterator[NodeReads]:
    """Yield what the loaders fetch in each of the first ``epochs`` epochs; nothing
    where they do not.
    """
    strategy = scenario.workload.exchange
    if not isinstance(strategy, LoaderShuffle):
        return
    nbytes = sample_nbytes(scenario)
    owner = first_owner(scenario, len(nbytes))
    nodes: NodeCaches | None = None
    for epoch in range(1, epochs + 1):
        context = scenario.shards_context(owner, epoch)
        nodes = nodes or NodeCaches(scenario, strategy, context, nbytes)
        shards = strategy.epoch_shards(context)
        iterations = scenario.workload.iterations(scenario.world_size, epoch)
        yield nodes.epoch(shards, iterations)

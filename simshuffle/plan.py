"""What every epoch will do, before any clock runs: which samples each rank reads and sends, and how many bytes that is. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange import ExchangePlan, Shards, initial_owner
from simshuffle.scenario import Scenario

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EpochPlan:
    """The traffic of one epoch.

    Attributes:
        epoch: from 1.
        shards: who trains on what.
        exchange: which samples move.
        batch_samples: (iterations, M) samples of each batch.
        batch_nbytes: (iterations, M) bytes of each batch in storage.
        cached: share of the bytes read that the hosts' page caches hold, from 0 to 1.
    """

    epoch: int
    shards: Shards
    exchange: ExchangePlan
    batch_samples: NDArray[np.int64]
    batch_nbytes: Floats
    cached: float

    @property
    def iterations(self) -> int:
        """Iterations of the epoch."""
        return len(self.batch_samples)


def sample_nbytes(scenario: Scenario) -> Floats:
    """Size of every sample in storage: (N,) bytes, drawn once for all epochs."""
    dataset = scenario.workload.dataset
    return dataset.sample_size.draw(scenario.rng("sample_size"), dataset.num_samples)


def plan_epochs(scenario: Scenario, nbytes: Floats) -> Iterator[EpochPlan]:
    """The plans of epochs 1, 2, ... in order; ``nbytes`` is (N,), from `sample_nbytes`."""
    workload, world_size = scenario.workload, scenario.world_size
    owner = initial_owner(len(nbytes), world_size, scenario.rng("partition"))
    iterations = workload.iterations(world_size)
    for epoch in range(1, scenario.epochs + 1):
        shards = workload.exchange.shards(owner, world_size, scenario.rng("shuffle", epoch))
        exchange = workload.exchange.plan(
            shards,
            batch_size=workload.local_batch_size,
            iterations=iterations,
            epoch=epoch,
            importance=None,
            rng=scenario.rng("exchange", epoch),
        )
        samples, sizes = _batches(shards, nbytes, workload.local_batch_size, iterations)
        yield EpochPlan(epoch, shards, exchange, samples, sizes, cached_share(scenario, epoch))
        owner = exchange.apply(owner)


def _batches(shards: Shards, nbytes: Floats, batch_size: int, iterations: int) -> tuple[NDArray[np.int64], Floats]:
    """Samples and bytes of every batch, (iterations, M) each."""
    total = np.zeros(len(nbytes) + 1)
    np.cumsum(nbytes[shards.order], out=total[1:])
    edges = shards.start[:-1][None, :] + np.arange(iterations + 1)[:, None] * batch_size
    edges = np.minimum(edges, shards.start[1:][None, :])
    return np.diff(edges, axis=0), np.diff(total[edges], axis=0)


def cached_share(scenario: Scenario, epoch: int) -> float:
    """Share of an epoch's reads that come from the page caches of the hosts; 0 in the first epoch, which is cold.

    A shard is read again and again (`Memory.repeat_hits`). Under global shuffle a host reads a new random 1/H of the set every epoch,
    and after e epochs has seen 1 - (1 - 1/H)^e of it, of which the cache keeps what fits.
    """
    if epoch == 1:
        return 0.0
    memory, dataset = scenario.cluster.memory, scenario.workload.dataset
    if scenario.workload.exchange.kind == "global_shuffle":
        seen = 1.0 - (1.0 - 1.0 / scenario.hosts) ** (epoch - 1)
        return memory.resident_share(seen * dataset.nbytes, dataset.nbytes)
    ranks = min(scenario.world_size, scenario.cluster.host.gpus)
    return memory.repeat_hits(ranks / scenario.world_size * dataset.nbytes)


def staging_seconds(scenario: Scenario) -> float:
    """Least time (s) to copy the shards, or the whole set, from the PFS to the SSDs before the first epoch; 0 if nothing is staged.

    The slower of the bytes through the file system and one host's share into its SSD. Data sets are staged as archives, so that the
    opening of their files does not count, and every host reads its own copy.
    """
    exchange, dataset, cluster = scenario.workload.exchange, scenario.workload.dataset, scenario.cluster
    ranks = min(scenario.world_size, cluster.host.gpus)
    if exchange.stored_share(scenario.world_size, ranks) == 0.0:
        return 0.0
    replicated = exchange.kind == "global_shuffle"
    copies = scenario.hosts if replicated else 1
    fullest = dataset.nbytes * (1.0 if replicated else ranks / scenario.world_size)
    return max(copies * dataset.nbytes / cluster.parallel_file_system.read_bandwidth, fullest / cluster.ssd.write_bandwidth)

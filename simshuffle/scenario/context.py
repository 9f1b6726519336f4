"""What a cluster and a workload tell a strategy that decides who trains on what."""

from __future__ import annotations

import numpy as np

from simshuffle.exchange import ShardsContext
from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.workload import Workload
from simshuffle.spec.arrays import Ints


def shards_context(
    cluster: Cluster,
    workload: Workload,
    owner: Ints,
    world_size: int,
    epoch: int,
    rng: np.random.Generator,
    seed: int,
) -> ShardsContext:
    """What decides who trains on what in an epoch, from 1; ``owner`` is (N,) the rank of each
    sample, ``rng`` of the epoch."""
    return ShardsContext(
        owner,
        world_size,
        epoch,
        rng,
        seed,
        workload.local_batch_size,
        ranks_per_host=cluster.ranks_per_host(world_size),
        workers=workload.loader.workers,
        sample_nbytes=workload.dataset.stored.mean,
    )

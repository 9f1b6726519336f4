"""The seconds of an allreduce by itself, in closed form, looked up where they are known
already.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from simshuffle.job.plan.reading_bounds import cable_bandwidth
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats
from simshuffle.spec.record import CacheArgument

NOT_OF_ALLREDUCES = {
    "parallel_file_system", "object_store", "cache_tier", "ssd", "memory", "message_passing",
}  # fmt: skip
"""Records of a cluster that do not decide how long an allreduce takes."""
DECIDING_FIELDS = [
    name for name in Cluster.model_fields if name not in NOT_OF_ALLREDUCES
]


def allreduce_alone(scenario: Scenario, nbytes: float) -> float:
    """Return the least seconds of an allreduce of ``nbytes`` bytes by itself; 0 for one
    rank.

    No flow shares a link: each has its cap, or what NVLink, the scale-up domain, PCIe
    or the host's cable carries if that is less. Answers are kept for scenarios with the
    same world size and the same records (objects) that decide them: intervals and
    sensitivities evaluate many scenarios that differ in other values.
    """
    cluster = scenario.cluster
    records = [getattr(cluster, name) for name in DECIDING_FIELDS]
    decided_by = (scenario.workload.allreduce, *records)
    key = (scenario.world_size, *map(id, decided_by))
    seconds = _known_seconds(CacheArgument(key, decided_by))
    if nbytes not in seconds:
        seconds[nbytes] = _seconds_alone(scenario, nbytes)
    return seconds[nbytes]


@lru_cache(maxsize=16)
def _known_seconds(decided_by: CacheArgument[tuple[Any, ...]]) -> dict[float, float]:
    """Return the seconds of the allreduces that are known, by bytes; the caller adds
    more. The argument holds the objects whose ids are its key, so no other has them.
    """
    return {}


def _seconds_alone(scenario: Scenario, nbytes: float) -> float:
    """Compute what `allreduce_alone` returns."""
    cluster = scenario.cluster
    domains = scenario.cluster.topology.domains
    host_of = cluster.host_of(scenario.world_size)
    domain_of = cluster.domain_of(scenario.world_size)
    flows = scenario.workload.allreduce_on(cluster).flows(domain_of, nbytes)
    if flows is None:
        return 0.0
    bandwidth: Floats | float = min(
        cable_bandwidth(scenario), cluster.host.pcie_bandwidth
    )
    if domains is not None:
        is_in_domain = domain_of[flows.src] == domain_of[flows.dst]
        bandwidth = np.where(is_in_domain, domains.bandwidth, bandwidth)
    is_in_host = host_of[flows.src] == host_of[flows.dst]
    bandwidth = np.where(is_in_host, cluster.host.nvlink_bandwidth, bandwidth)
    return flows.seconds(np.minimum(flows.cap, bandwidth))

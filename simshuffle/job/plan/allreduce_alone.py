"""The seconds of an allreduce by itself, in closed form, looked up where they are known
already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simshuffle.job.plan.reading_bounds import cable_bandwidth
from simshuffle.job.scenario.scenario import Scenario


@dataclass(frozen=True)
class _Allreduces:
    """Seconds of the allreduces that were looked at last, each alone on the machine,
    and the objects that decide these seconds.
    """

    decided_by: tuple[Any, ...]
    seconds: dict[float, float] = field(default_factory=dict)  # s by bytes

    def is_for(self, decided_by: tuple[Any, ...]) -> bool:
        """Return whether these allreduces were decided by the very objects in
        ``decided_by``: identical, not just equal.
        """
        return len(decided_by) == len(self.decided_by) and all(
            a is b for a, b in zip(decided_by, self.decided_by, strict=True)
        )


_last_allreduces = [_Allreduces(())]
"""The last allreduces, a single entry: intervals and sensitivities evaluate many
scenarios that differ in other values.
"""
NOT_OF_ALLREDUCES = (
    "parallel_file_system", "object_store", "cache_tier", "ssd", "memory", "message_passing",
)  # fmt: skip
"""Records of a cluster that do not decide how long an allreduce takes."""


def allreduce_alone(scenario: Scenario, nbytes: float) -> float:
    """Return the least seconds of an allreduce of ``nbytes`` bytes by itself; 0 for one
    rank.

    No flow shares a link: each has its cap, or what NVLink, the scale-up domain, PCIe
    or the host's cable carries if that is less. Answers are kept by size until a call
    has another world size, or another record (object) that decides them.
    """
    cluster = scenario.cluster
    records = [value for name, value in cluster if name not in NOT_OF_ALLREDUCES]
    decided_by = (scenario.world_size, scenario.workload.allreduce, *records)
    if not _last_allreduces[0].is_for(decided_by):
        _last_allreduces[0] = _Allreduces(decided_by)
    seconds = _last_allreduces[0].seconds
    if nbytes not in seconds:
        seconds[nbytes] = _seconds_alone(scenario, nbytes)
    return seconds[nbytes]


def _seconds_alone(scenario: Scenario, nbytes: float) -> float:
    """Compute what `allreduce_alone` returns."""
    cluster = scenario.cluster
    domains = scenario.cluster.topology.domains
    host_of = cluster.host_of(scenario.world_size)
    domain_of = cluster.domain_of(scenario.world_size)
    flows = scenario.workload.allreduce_on(cluster).flows(domain_of, nbytes)
    if flows is None:
        return 0.0
    bandwidth = np.full(
        len(flows), min(cable_bandwidth(scenario), cluster.host.pcie_bandwidth)
    )
    if domains is not None:
        bandwidth[domain_of[flows.src] == domain_of[flows.dst]] = domains.bandwidth
    bandwidth[host_of[flows.src] == host_of[flows.dst]] = cluster.host.nvlink_bandwidth
    return flows.seconds(np.minimum(flows.cap, bandwidth))

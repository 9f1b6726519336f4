"""The copying of the samples to the hosts before the first epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.lowering.staging import staging_traffic
from simshuffle.network import Fluid
from simshuffle.network.models import shared_network
from simshuffle.plan.resources import Resources
from simshuffle.scenario.workload import Workload
from simshuffle.spec.arrays import Floats


@dataclass(frozen=True)
class Staged:
    """What staging took: ``seconds``, and ``nbytes`` read from the PFS or the object store by
    ``read_requests``."""

    seconds: float
    nbytes: float
    read_requests: float


NOTHING = Staged(0.0, 0.0, 0.0)


def stage(
    workload: Workload, resources: Resources, shard_nbytes: Floats, tolerance: float = 0.0
) -> Staged:
    """Copy what the workload keeps on the hosts, in a fluid network of its own; arguments as in
    `simshuffle.lowering.staging.staging_traffic`, and the `tolerance` of `Fluid`."""
    traffic = staging_traffic(workload, resources, shard_nbytes)
    if traffic is None:
        return NOTHING
    count = len(traffic.batch)
    # the kernel that the run needs as well, and not `Fluid.finish_times`, whose own would have to
    # be compiled
    no_cables = np.zeros(len(traffic.links), bool)
    width = traffic.batch.routes.shape[1]
    network = shared_network(
        Fluid(tolerance=tolerance), traffic.links, no_cables, width=width, tags=count
    )
    network.post(0.0, traffic.batch)
    network.advance(np.inf)
    seconds = float(network.finish[:count].max())
    return Staged(seconds, traffic.nbytes, traffic.read_requests)

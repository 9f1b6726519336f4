"""The analytic network: alpha-beta latency and the bottleneck link. See `Analytic`."""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links, latest_ends
from simshuffle.spec.arrays import Floats


def finish_times(links: Links, flows: Flows) -> FlowOutcome:
    """Compute lower bounds of the ends of ``flows`` and of their makespan.

    The critical path alone bounds the ends; the busiest link also bounds the makespan,
    which may so be later than every end.

    Returns:
        As `Analytic.finish_times`: (flows,) s, and the makespan (s), 0 without flows.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    finish = latest_ends(flows, isolated_seconds(links, flows))
    return FlowOutcome(
        finish, max(float(finish.max(initial=0.0)), link_bound(links, flows, finish))
    )


def isolated_seconds(links: Links, flows: Flows) -> Floats:
    """(flows,) s that each flow takes without any other flow, from its post on: sum of
    latencies + nbytes / smallest capacity; 0 for a flow without links.
    """
    return np.asarray(flows.latencies(links) + _drain_seconds(links, flows))


def isolated_makespan(links: Links, flows: Flows) -> float:
    """Seconds until the last flow has ended if no flow slows another: the critical
    path, from time 0; 0 without flows.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    return float(latest_ends(flows, isolated_seconds(links, flows)).max(initial=0.0))


def _drain_seconds(links: Links, flows: Flows) -> Floats:
    """(flows,) s that the bytes of each flow take over its slowest link; 0 for a flow
    without links.
    """
    # the last entry is for the padding of routes, -1
    padded = np.append(links.capacity, np.inf)
    slowest = np.full(len(flows), np.inf)
    for hop in flows.routes.T:
        np.minimum(slowest, padded[hop], out=slowest)
    return np.asarray(flows.nbytes / slowest)


def link_bound(links: Links, flows: Flows, finish: Floats) -> float:
    """The latest moment (s) before which some link cannot have carried all its bytes; 0
    if no link is used.

    A link is not used before the first of its flows has been posted and has spent its
    latency.

    Args:
        links, flows: the network, and the flows on it.
        finish: (flows,) s, the ends that `finish_times` gives.
    """
    drain_start = finish - _drain_seconds(links, flows)
    earliest_use = np.full(len(links) + 1, np.inf)
    for hop in flows.routes.T:
        np.minimum.at(earliest_use, hop, drain_start)
    is_used = np.isfinite(earliest_use[:-1])
    link_end = (
        earliest_use[:-1][is_used]
        + flows.link_bytes(links)[is_used] / links.capacity[is_used]
    )
    return float(link_end.max(initial=0.0))

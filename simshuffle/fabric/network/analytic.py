"""The analytic network: alpha-beta latency and the bottleneck link. See `Analytic`."""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links, latest_ends
from simshuffle.spec.arrays import Floats


def finish_times(links: Links, flows: Flows) -> FlowOutcome:
    """What `Analytic.finish_times` returns and raises."""
    finish = latest_ends(flows, alone(links, flows))
    return FlowOutcome(
        finish, max(float(finish.max(initial=0.0)), link_bound(links, flows, finish))
    )


def alone(links: Links, flows: Flows) -> Floats:
    """(flows,) s that each flow takes without any other: sum of latencies + nbytes / smallest
    capacity."""
    return np.asarray(flows.latencies(links) + _drain(links, flows))


def unhindered(links: Links, flows: Flows) -> float:
    """s until the last flow has ended if none gets into another's way."""
    return float(latest_ends(flows, alone(links, flows)).max(initial=0.0))


def _drain(links: Links, flows: Flows) -> Floats:
    """(flows,) s that the bytes of each flow take over its slowest link."""
    padded = np.append(links.capacity, np.inf)
    slowest = np.full(len(flows), np.inf)
    for hop in flows.routes.T:
        np.minimum(slowest, padded[hop], out=slowest)
    return np.asarray(flows.nbytes / slowest)


def link_bound(links: Links, flows: Flows, finish: Floats) -> float:
    """The latest moment (s) before which some link cannot have carried all its bytes; ``finish`` as
    `finish_times` gives it.

    A link is not used before the first of its flows has been posted and has spent its latency.
    """
    begin = finish - _drain(links, flows)
    first = np.full(len(links) + 1, np.inf)
    for hop in flows.routes.T:
        np.minimum.at(first, hop, begin)
    used = np.isfinite(first[:-1])
    bound = first[:-1][used] + flows.link_bytes(links)[used] / links.capacity[used]
    return float(bound.max(initial=0.0))

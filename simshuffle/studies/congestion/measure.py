"""What is noted of one run of a network model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.network import Flows, Links, Outcome
from simshuffle.studies.congestion.patterns import Fabric, Traffic

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        times: the columns of the table `times` behind the seed.
        tiers: for each tier the columns of the table `tiers` behind the seed.
        link_nbytes: (links,) bytes on each link.
    """

    times: dict[str, float]
    tiers: list[dict[str, Any]]
    link_nbytes: Floats


def tiers(fabric: Fabric) -> dict[str, NDArray[np.int64]]:
    """The links of each tier, in the order of the links."""
    names = np.array(fabric.tiers)
    return {tier: np.flatnonzero(names == tier) for tier in dict.fromkeys(fabric.tiers)}


def measure(
    links: Links, of_tier: dict[str, NDArray[np.int64]], traffic: Traffic, outcome: Outcome
) -> Measured:
    """What is noted of ``outcome``, the answer of a network model to ``traffic``."""
    nbytes = traffic.flows.link_bytes(links)
    bound = bound_seconds(links, traffic.flows, nbytes)
    spent = completion_seconds(traffic, outcome)
    p50, p99 = np.percentile(spent, [50, 99])
    share = nbytes / links.capacity / outcome.makespan
    times = {
        "time_s": outcome.makespan,
        "bound_s": bound,
        "slowdown": outcome.makespan / bound,
        "flow_p50_s": float(p50),
        "flow_p99_s": float(p99),
        "flow_max_s": float(spent.max()),
        "messages": traffic.messages,
        "barriers": traffic.barriers,
        "nbytes": float(traffic.flows.nbytes.sum()),
    }
    rows = [
        {
            "tier": tier,
            "links": len(of),
            "mean_utilisation": float(share[of].mean()),
            "max_utilisation": float(share[of].max()),
        }
        for tier, of in of_tier.items()
    ]
    return Measured(times, rows, nbytes)


def bound_seconds(links: Links, flows: Flows, nbytes: Floats) -> float:
    """Least time (s) for these bytes on these routes, in whatever order: that of the link which
    needs longest for its ``nbytes`` (links,).

    To the bytes over the capacity comes the smallest latency of the routes over that link, during
    which it is idle.
    """
    busy = nbytes / links.capacity
    slowest = int(np.argmax(busy))
    crossing = np.zeros(len(flows), bool)
    for hop in flows.routes.T:  # column by column: the table of an all-to-all is large
        crossing |= hop == slowest
    return float(busy[slowest] + flows.latencies(links)[crossing].min(initial=np.inf))


def completion_seconds(traffic: Traffic, outcome: Outcome) -> Floats:
    """(messages,) s from the post of each message to its end."""
    flows = traffic.flows
    posted = flows.posted
    np.maximum.at(posted, flows.after_to, outcome.finish[flows.after_from])
    return np.asarray((outcome.finish - posted)[: traffic.messages])

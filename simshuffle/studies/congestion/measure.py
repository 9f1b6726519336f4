"""Measure one exchange: its times, its bounds, and the utilisation of its links."""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network import FlowOutcome, Flows, Links
from simshuffle.fabric.network.analytic import isolated_makespan
from simshuffle.fabric.network.contention import first_stage_contention
from simshuffle.spec.arrays import Floats
from simshuffle.studies.congestion.sampling import TimeEstimate
from simshuffle.studies.congestion.traffic import ExchangeTraffic, UsedFabric
from simshuffle.study import cell

NBYTES = "link_nbytes"
"""The file of a `TrafficCell`: bytes on each of the links of its fabric, as
little-endian floats of 64 bits.
"""


def measure_exchange(
    fabric: UsedFabric,
    traffic: ExchangeTraffic,
    message_seconds: Floats,
    *,
    wire_s: float,
    time_s: TimeEstimate,
) -> cell.Outcome:
    """Return the columns of `times` and `tiers` behind the seed, and the bytes on the
    links.

    The outcome's value ``times`` is a mapping by column. Its value ``tiers`` is a list
    of mappings, one for each tier in the order of the links. The bytes are its file
    `NBYTES`. Utilisation is all bytes over capacity and ``wire_s``; unused links count.

    Args:
        fabric: the network between the ranks.
        traffic: all messages of the exchange, those that were not simulated as well.
        message_seconds: (n,) s from the post of each simulated message to its end on
            the wire.
        wire_s: s until the last message has ended on the wire.
        time_s: s until the last message has ended with what messages cost.
    """
    links = fabric.links
    tiers = np.array(fabric.tiers)
    nbytes = traffic.flows.link_bytes(links)
    bound_s = bound_seconds(links, traffic.flows)
    uncontended_s = isolated_makespan(links, traffic.flows)
    p50, p99 = np.percentile(message_seconds, [50, 99])
    utilisation = nbytes / links.capacity / wire_s
    times = {
        "time_s": time_s.seconds,
        "low_s": time_s.low,
        "high_s": time_s.high,
        "wire_s": wire_s,
        "bound_s": bound_s,
        "slowdown": wire_s / bound_s,
        "alone_s": uncontended_s,
        "self_contention": wire_s / uncontended_s,
        "first_contention": first_stage_contention(links, traffic.flows)[0],
        "flow_p50_s": float(p50),
        "flow_p99_s": float(p99),
        "flow_max_s": float(message_seconds.max()),
        "messages": traffic.messages,
        "barriers": traffic.barriers,
        "nbytes": float(traffic.flows.nbytes.sum()),
    }
    rows = [
        {
            "tier": tier,
            "links": len(tier_share),
            "mean_utilisation": float(tier_share.mean()),
            "max_utilisation": float(tier_share.max()),
        }
        for tier in dict.fromkeys(fabric.tiers)  # in the order of the links
        for tier_share in [utilisation[tiers == tier]]
    ]
    files = {NBYTES: nbytes.astype("<f8").tobytes()}
    return cell.Outcome({"times": times, "tiers": rows}, files=files)


def bound_seconds(links: Links, flows: Flows) -> float:
    """Return the least time (s) for these bytes on these routes, in whatever order.

    They are the s that the slowest link needs for its bytes, and before them, while
    this link is idle, the smallest latency (s) of the routes over it. Waits of messages
    for each other do not count. inf if no route crosses a link.
    """
    busy_s = flows.link_bytes(links) / links.capacity
    slowest_link = int(np.argmax(busy_s))
    crosses_slowest = np.zeros(len(flows), bool)
    for hop in flows.routes.T:  # column by column: the table of an all-to-all is large
        crosses_slowest |= hop == slowest_link
    return float(
        busy_s[slowest_link]
        + flows.latencies(links)[crosses_slowest].min(initial=np.inf)
    )


def completion_seconds(traffic: ExchangeTraffic, outcome: FlowOutcome) -> Floats:
    """Return the s from the post of each message to its end, (messages,).

    A message is posted at its start, or when the last flow that it waits for has ended.
    Barriers are left out.
    """
    flows = traffic.flows
    posted = (
        flows.earliest_post.copy()
    )  # the flows are not changed: another model may be given them
    np.maximum.at(posted, flows.after_to, outcome.finish[flows.after_from])
    return np.asarray((outcome.finish - posted)[: traffic.messages])

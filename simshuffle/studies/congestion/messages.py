"""What the messages of an exchange cost beside the links, and when it ends with them.

A message of n bytes takes its sender and receiver together ``host_seconds(n)``, and crosses the
network ``trips(n)`` times, each with the latency of software and HCA and that of its route (law,
fit and source: `simshuffle.job.lowering.alltoalls`). In steps the network models do that
themselves: a message waits for a flow without bytes that lasts as long as it costs, and a barrier
lasts as long as its own messages. An all-to-all has the closed form of that law instead: posts
that are staggered rank by rank are as many events as messages, and the law with which machines
agree is this one."""

from __future__ import annotations

from typing import Any

import numpy as np

from simshuffle.fabric.network import Analytic, FlowOutcome, Flows, Fluid, Links, Packet
from simshuffle.job.scenario.cluster import Cluster, MessagePassing
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.studies.congestion.traffic import ExchangeTraffic, SentSamples, UsedFabric

Model = Analytic | Fluid | Packet


def seconds_with_messages(
    fabric: UsedFabric, traffic: ExchangeTraffic, cluster: Cluster, model: Model, wire_s: float
) -> float:
    """Return the s until the last message of ``traffic`` has ended if messages cost what
    ``cluster`` says; ``wire_s`` is what ``model`` answers where they cost nothing."""
    if traffic.at_once:
        return _at_once(fabric, traffic, cluster.message_passing, wire_s)
    outcome = ends_with_messages(fabric, traffic, cluster, model)
    return wire_s if outcome is None else outcome.makespan


def barrier_cost(fabric: UsedFabric, traffic: ExchangeTraffic, cluster: Cluster) -> float:
    """Return the s that each barrier of ``traffic`` takes for its own messages."""
    return barrier_seconds(cluster, fabric.world_size) if traffic.barriers else 0.0


def ends_with_messages(
    fabric: UsedFabric, traffic: ExchangeTraffic, cluster: Cluster, model: Model
) -> FlowOutcome | None:
    """Return when the messages of an exchange in steps end if they cost what ``cluster`` says, the
    first ones of the outcome; None if they and their barriers cost nothing."""
    cost = message_seconds(fabric.links, traffic, cluster.message_passing)
    barrier = barrier_cost(fabric, traffic, cluster)
    if not barrier and not cost.any():
        return None
    return model.finish_times(*waiting(fabric.links, traffic, cost, barrier))


def message_seconds(links: Links, traffic: ExchangeTraffic, passing: MessagePassing) -> Floats:
    """(messages,) s that each costs beside its first crossing of the cables."""
    host, trips = _costs(traffic.flows.nbytes[: traffic.messages], passing)
    route = traffic.flows.latencies(links)[: traffic.messages]
    return np.asarray(host + trips * passing.latency + (trips - 1) * route)


def waiting(
    links: Links, traffic: ExchangeTraffic, cost: Floats, barrier: float
) -> tuple[Links, Flows]:
    """Links and flows of an exchange in steps whose messages each wait (messages,) ``cost`` s
    before they travel, and whose barriers take ``barrier`` s. The flows are those of ``traffic``,
    and behind them one for each message, over a link of its own that has this latency."""
    flows, messages, count = traffic.flows, traffic.messages, len(traffic.flows)
    lasting, which = np.unique(np.append(cost, barrier), return_inverse=True)
    first = len(links)
    none = np.full(len(lasting), links.capacity.max())  # nothing crosses them
    more = Links(
        np.append(links.capacity, none),
        np.append(links.latency, lasting),
        [*links.names, *(f"message {number}" for number in range(len(lasting)))],
    )
    routes = np.full((count + messages, flows.routes.shape[1]), -1, np.int32)
    routes[:count] = flows.routes
    routes[messages:count, 0] = first + which[-1]
    routes[count:, 0] = first + which[:-1]
    number = np.arange(messages, dtype=np.int32)
    after = flows.after_to + np.where(flows.after_to < messages, np.int32(count), np.int32(0))
    return more, Flows(
        routes,
        np.append(flows.nbytes, np.zeros(messages)),
        np.append(flows.start, np.zeros(messages)),
        np.append(flows.after_from, number + np.int32(count)),
        np.append(after, number),
    )


def _at_once(
    fabric: UsedFabric, traffic: ExchangeTraffic, passing: MessagePassing, wire: float
) -> float:
    """An all-to-all, whose end the rank with the largest messages decides."""
    nbytes = float(traffic.flows.nbytes.max())
    route = float(traffic.flows.latencies(fabric.links).max())
    return passing.all_at_once(fabric.world_size - 1, nbytes, wire, route)


def _costs(nbytes: Floats, passing: MessagePassing) -> tuple[Floats, Ints]:
    """Host seconds and trips of messages of these sizes."""
    sizes, which = np.unique(nbytes, return_inverse=True)
    host = np.array([passing.host_seconds(size) for size in sizes.tolist()])
    trips = np.array([passing.trips(size) for size in sizes.tolist()])
    return host[which], trips[which]


def described(sent: SentSamples, at_once: bool) -> dict[str, Any]:
    """What a message of a sample costs, and one of an all-to-all if there is any (``at_once``), and
    the numbers of the cluster that this rests on: plain values for ``meta.json``."""
    passing, ranks = sent.scenario.cluster.message_passing, sent.scenario.world_size
    sizes = {"a sample": sent.mean}
    if at_once:
        sizes[f"all-to-all of {ranks} ranks"] = sent.mean * sent.count / (ranks - 1)
    values, source = passing.model_dump(mode="json"), passing.source
    return {
        "costs": [
            {
                "what": what,
                "nbytes": nbytes,
                "host_s": passing.host_seconds(nbytes),
                "trips": passing.trips(nbytes),
            }
            for what, nbytes in sizes.items()
        ],
        "values": [
            {
                "key": key,
                "value": values[key],
                "source": "" if isinstance(source, str) else source.get(key, "no source"),
            }
            for key in passing.default_sources
        ],
        "source": source if isinstance(source, str) else "",
    }

"""Costs of the messages of an exchange beside the links, and the end of the exchange
with them.

A message of n bytes takes its sender and receiver together ``host_seconds(n)``, and
crosses the network ``trips(n)`` times, each with the latency of software and HCA and
that of its route (law, fit and source: `simshuffle.job.lowering.alltoalls`). In steps
the network models do that themselves: a message waits for a flow without bytes that
lasts as long as it costs, and a barrier lasts as long as its own messages. An
all-to-all has the closed form of that law instead: posts that are staggered rank by
rank are as many events as messages, and the law with which machines agree is this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simshuffle.fabric.network import Analytic, FlowOutcome, Flows, Fluid, Links, Packet
from simshuffle.job.scenario.cluster import Cluster, MessagePassing
from simshuffle.job.scenario.host_work import barrier_seconds
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.studies.congestion.traffic import (
    ExchangeTraffic,
    SentSamples,
    UsedFabric,
)

Model = Analytic | Fluid | Packet


def seconds_with_messages(
    fabric: UsedFabric,
    traffic: ExchangeTraffic,
    cluster: Cluster,
    model: Model,
    wire_s: float,
) -> float:
    """Return the s until the last message has ended if messages cost what ``cluster``
    says.

    An all-to-all has a closed form; steps are simulated once more. Where neither
    messages nor barriers of steps cost anything, ``wire_s`` is returned.

    Args:
        fabric: the network between the ranks.
        traffic: all messages of the exchange.
        cluster: has the costs of messages.
        model: simulates steps; not asked for an all-to-all.
        wire_s: s by ``model`` where messages cost nothing.
    """
    if traffic.at_once:
        return _all_to_all_seconds(fabric, traffic, cluster.message_passing, wire_s)
    outcome = simulate_with_messages(fabric, traffic, cluster, model)
    return wire_s if outcome is None else outcome.makespan


def barrier_cost(
    fabric: UsedFabric, traffic: ExchangeTraffic, cluster: Cluster
) -> float:
    """Return the s that each barrier of ``traffic`` takes for its own messages; 0
    without barriers.
    """
    return barrier_seconds(cluster, fabric.world_size) if traffic.barriers else 0.0


def simulate_with_messages(
    fabric: UsedFabric, traffic: ExchangeTraffic, cluster: Cluster, model: Model
) -> FlowOutcome | None:
    """Return the ends of the messages of an exchange in steps, with their costs.

    The first flows of the outcome are the messages; barriers and waits follow. None if
    messages and their barriers cost nothing.
    """
    cost = message_seconds(fabric.links, traffic, cluster.message_passing)
    barrier = barrier_cost(fabric, traffic, cluster)
    if not barrier and not cost.any():
        return None
    return model.finish_times(*add_message_waits(fabric.links, traffic, cost, barrier))


def message_seconds(
    links: Links, traffic: ExchangeTraffic, passing: MessagePassing
) -> Floats:
    """Return the s that each message costs beside its first crossing of the cables,
    (messages,).

    They are its host seconds, a latency of the message layer for each trip, and the
    latency of its route for each trip but the first.
    """
    host, trips = _host_seconds_and_trips(
        traffic.flows.nbytes[: traffic.messages], passing
    )
    route = traffic.flows.latencies(links)[: traffic.messages]
    return np.asarray(host + trips * passing.latency + (trips - 1) * route)


def add_message_waits(
    links: Links, traffic: ExchangeTraffic, cost: Floats, barrier: float
) -> tuple[Links, Flows]:
    """Return links and flows of an exchange in steps whose messages each wait ``cost``
    s before they travel, and whose barriers take ``barrier`` s.

    The flows are those of ``traffic``, and behind them one for each message, over an
    added link that has the message's cost as its latency. Barriers cross such a link,
    too. Start times of messages are not kept: they count as 0.

    Args:
        links: of the network between the ranks.
        traffic: an exchange in steps.
        cost: (messages,) s that each message waits.
        barrier: s that each barrier takes.
    """
    flows = traffic.flows
    num_messages = traffic.messages
    num_flows = len(traffic.flows)
    wait_seconds, link_of_wait = np.unique(
        np.append(cost, barrier), return_inverse=True
    )
    first_wait_link = len(links)
    unlimited = np.full(len(wait_seconds), links.capacity.max())  # nothing crosses them
    extended_links = Links(
        np.append(links.capacity, unlimited),
        np.append(links.latency, wait_seconds),
        [
            *links.names,
            *(f"message {message_index}" for message_index in range(len(wait_seconds))),
        ],
    )
    # rows: messages, barriers, waits of the messages; columns: hops, padded with -1
    routes = np.full((num_flows + num_messages, flows.routes.shape[1]), -1, np.int32)
    routes[:num_flows] = flows.routes
    routes[num_messages:num_flows, 0] = first_wait_link + link_of_wait[-1]
    routes[num_flows:, 0] = first_wait_link + link_of_wait[:-1]
    message_index = np.arange(num_messages, dtype=np.int32)
    # what a message waited for, its wait flow waits for now
    moved_targets = flows.after_to + np.where(
        flows.after_to < num_messages, np.int32(num_flows), np.int32(0)
    )
    return extended_links, Flows(
        routes,
        np.append(flows.nbytes, np.zeros(num_messages)),
        np.append(flows.start, np.zeros(num_messages)),
        np.append(flows.after_from, message_index + np.int32(num_flows)),
        np.append(moved_targets, message_index),
    )


def _all_to_all_seconds(
    fabric: UsedFabric, traffic: ExchangeTraffic, passing: MessagePassing, wire: float
) -> float:
    """Return the s of an all-to-all with the costs of its messages.

    The largest message and the longest route decide the end, beside ``wire``, the s on
    the wire.
    """
    nbytes = float(traffic.flows.nbytes.max())
    route = float(traffic.flows.latencies(fabric.links).max())
    return passing.all_at_once(fabric.world_size - 1, nbytes, wire, route)


def _host_seconds_and_trips(
    nbytes: Floats, passing: MessagePassing
) -> tuple[Floats, Ints]:
    """Return the host seconds and the trips of messages of ``nbytes`` bytes.

    Both are (messages,). Host seconds are of sender and receiver together; a trip is
    one crossing of the network.
    """
    sizes, size_index = np.unique(nbytes, return_inverse=True)
    host = np.array([passing.host_seconds(size) for size in sizes.tolist()])
    trips = np.array([passing.trips(size) for size in sizes.tolist()])
    return host[size_index], trips[size_index]


def describe_costs(sent: SentSamples, at_once: bool) -> dict[str, Any]:
    """Return plain values for ``meta.json``: the costs of messages, and their sources.

    They have the keys of `simshuffle.studies.congestion.meta.Messages`. Messages are
    those of one sample of mean size and, with ``at_once``, of an all-to-all.
    """
    passing = sent.scenario.cluster.message_passing
    ranks = sent.scenario.world_size
    sizes = {"a sample": sent.mean_nbytes}
    if at_once:
        sizes[f"all-to-all of {ranks} ranks"] = (
            sent.mean_nbytes * sent.count / (ranks - 1)
        )
    values = passing.model_dump(mode="json")
    source = passing.source
    return {
        "costs": [
            {
                "what": carried,
                "nbytes": nbytes,
                "host_s": passing.host_seconds(nbytes),
                "trips": passing.trips(nbytes),
            }
            for carried, nbytes in sizes.items()
        ],
        "values": [
            {
                "key": key,
                "value": values[key],
                "source": ""
                if isinstance(source, str)
                else source.get(key, "no source"),
            }
            for key in passing.default_sources
        ],
        "source": source if isinstance(source, str) else "",
    }

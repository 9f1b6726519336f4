"""A run of explicit flows by the packet network, from the first event to the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabric.network import packet_records as records
from simshuffle.fabric.network.deadlock import ChannelDependencies
from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links
from simshuffle.fabric.network.packet import PacketCore, PacketStatistics, check_routes
from simshuffle.fabric.network.packet_records import MAX_TICKS, TICK
from simshuffle.spec.arrays import Ints


@dataclass(frozen=True)
class PacketRun:
    """A finished run of the packet network."""

    outcome: FlowOutcome  # when the flows ended
    statistics: PacketStatistics  # of every link
    events: int  # how many events it took, posts included


def run(
    links: Links,
    flows: Flows,
    mtu: float,
    port_buffer: float,
    *,
    pair: Ints | None = None,
    progress: Callable[[float], None] | None = None,
) -> PacketRun:
    """Run ``flows`` to their end.

    The clock has the resolution `TICK`, or a coarser one where that is too short for
    the run; times are rounded up to it.

    Args:
        links, flows: the network, and what it carries.
        mtu, port_buffer: bytes.
        pair: (flows,) keys of the queue pairs among those with the same first link;
            None for the last link of each route.
        progress: called with the share of the bytes of messages that have ended, every
            few million events, and with 1 at the end.

    Raises:
        TopologyError: links wait for each other in a circle, so that the network could
            deadlock.
        SimulationError: flows wait for each other in a circle.
        ValueError: a route has a link that does not exist.
    """
    check_routes(links, flows.routes)
    ChannelDependencies(links).refuse_circles(flows.routes)
    core = PacketCore(
        links, mtu, port_buffer, _choose_tick(links, flows, mtu), pairs=len(flows)
    )
    core.load_run(flows, pair)
    total_nbytes = float(flows.nbytes.sum())
    while core.advance(records.NEVER - 1) == records.PAUSED:
        if progress is not None:
            progress(
                float(core.clock["delivered"][0]) / total_nbytes
                if total_nbytes > 0
                else 1.0
            )
    num_stuck = len(flows) - int(core.clock["n_ended"][0])
    if num_stuck:
        raise SimulationError(
            f"{num_stuck} flows wait for each other in a circle and never start"
        )
    if progress is not None:
        progress(1.0)
    finish = core.state.finish
    return PacketRun(
        FlowOutcome(finish, float(finish.max(initial=0.0))),
        core.statistics(),
        int(core.clock["n_events"][0]),
    )


def _choose_tick(links: Links, flows: Flows, mtu: float) -> float:
    """Choose the tick (s): `TICK`, or a power of two so much longer that the clock
    holds the run.

    Nothing takes longer than one packet at a time over one link at a time, with a round
    trip for each.
    """
    seconds_per_byte = np.append(1.0 / links.capacity, 0.0)
    delay = np.append(links.latency, 0.0)
    packets = flows.nbytes / mtu + 2
    bound = float(flows.earliest_post.max(initial=0.0))
    for hop in flows.routes.T:
        bound += float(flows.nbytes @ seconds_per_byte[hop] + 2 * packets @ delay[hop])
    return TICK * 2.0 ** max(0, ceil(log2(max(bound, TICK) / (TICK * MAX_TICKS))))

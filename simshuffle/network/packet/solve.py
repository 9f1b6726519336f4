"""Explicit flows over explicit links, solved packet by packet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import SimulationError
from simshuffle.network.flows import Flows, Links, Outcome
from simshuffle.network.packet import records
from simshuffle.network.packet.core import Core, PacketStatistics, check_routes
from simshuffle.network.packet.deadlock import ChannelDependencies
from simshuffle.network.packet.limits import LONGEST, TICK


@dataclass(frozen=True)
class PacketRun:
    """A finished run.

    Attributes:
        outcome: when the flows ended.
        statistics: of every link.
        events: how many events it took.
    """

    outcome: Outcome
    statistics: PacketStatistics
    events: int


def run(
    links: Links,
    flows: Flows,
    mtu: float,
    port_buffer: float,
    pair: NDArray[np.integer] | None,
    progress: Callable[[float], None] | None,
) -> PacketRun:
    """What `Packet.run` returns and raises; ``mtu`` and ``port_buffer`` in bytes."""
    check_routes(links, flows.routes)
    ChannelDependencies(links).refuse_circles(flows.routes)
    core = Core(links, mtu, port_buffer, _tick_for(links, flows, mtu), pairs=len(flows))
    core.load(flows, pair)
    total = float(flows.nbytes.sum())
    while core.advance(records.NEVER - 1) == records.PAUSED:
        if progress is not None:
            progress(float(core.clock["delivered"][0]) / total if total > 0 else 1.0)
    stuck = len(flows) - int(core.clock["n_ended"][0])
    if stuck:
        raise SimulationError(f"{stuck} flows wait for each other in a circle and never start")
    if progress is not None:
        progress(1.0)
    finish = core.state.finish
    return PacketRun(
        Outcome(finish, float(finish.max(initial=0.0))),
        core.statistics(),
        int(core.clock["n_events"][0]),
    )


def _tick_for(links: Links, flows: Flows, mtu: float) -> float:
    """`TICK`, or a power of two so much longer that the clock holds the run.

    Nothing takes longer than one packet at a time over one link at a time, with a round trip for
    each.
    """
    per_byte = np.append(1.0 / links.capacity, 0.0)
    delay = np.append(links.latency, 0.0)
    packets = flows.nbytes / mtu + 2
    bound = float(flows.posted.max(initial=0.0))
    for hop in flows.routes.T:
        bound += float(flows.nbytes @ per_byte[hop] + 2 * packets @ delay[hop])
    return TICK * 2.0 ** max(0, ceil(log2(max(bound, TICK) / (TICK * LONGEST))))

"""Explicit flows over explicit links, solved by the fluid network.

Links that can never be a bottleneck are left out. If every flow on link x also crosses link y, and
y has no more capacity than x, then x never carries more than y may: leaving x out changes no rate.
Under D-mod-K the last link between switches before a host is often of this kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabric.network import fluid_symmetry as symmetry
from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.compiling import entry


def finish_times(
    links: Links, flows: Flows, tolerance: float, progress: Callable[[float], None] | None
) -> FlowOutcome:
    """What `Fluid.finish_times` returns and raises; by symmetry where it makes the problem small,
    else flow by flow."""
    equivalent = symmetry.finish_times(links, flows)
    if equivalent is not None:
        return FlowOutcome(equivalent, float(equivalent.max(initial=0.0)), 0.0)
    count = len(flows)
    columns: dict[str, Any] = {
        "nbytes": flows.nbytes,
        "delay": flows.latencies(links),
        "start": flows.posted,
    }
    shared, routes = binding(links, flows)
    batch = TransferBatch(
        tasks(count, work=flows.nbytes, tag=np.arange(count), **columns),
        routes,
        flows.after_from,
        flows.after_to,
    )
    network = FluidNetwork(
        shared.capacity, width=routes.shape[1], tags=count, capped=False, tolerance=tolerance
    )
    if progress is not None:
        network.after_slice = lambda: progress(1.0 - network.alive / count)
    network.post(0.0, batch)
    network.advance(np.inf)
    if network.alive:
        raise SimulationError(
            f"{network.alive} flows wait for each other in a circle and never start"
        )
    finish = network.finish[:count]
    return FlowOutcome(finish, float(finish.max(initial=0.0)), float(network.clock["skipped"][0]))


@entry
def _meet(routes: Any, met: Any) -> None:
    """Count the flows of each link, and find the other links that all of them cross.

    ``met``: (links, 1 + hops) int32, filled here: the number of flows, at first 0; then those links
    and -1, at first -1.
    """
    for i in range(routes.shape[0]):
        for k in range(routes.shape[1]):
            link = routes[i, k]
            if link < 0:
                break
            first = met[link, 0] == 0
            met[link, 0] += 1
            n = 1
            for j in range(routes.shape[1]):
                other = routes[i, j] if first else met[link, 1 + j]
                if other < 0:
                    break
                for m in range(routes.shape[1]):
                    if routes[i, m] == other:
                        if other != link:
                            met[link, n] = other
                            n += 1
                        break
            while n <= routes.shape[1] and met[link, n] >= 0:
                met[link, n] = -1
                n += 1


@entry
def _shorten(routes: Any, number: Any, out: Any) -> None:
    """Write into ``out`` the links of each route that have a number, as numbers."""
    for i in range(routes.shape[0]):
        n = 0
        for k in range(routes.shape[1]):
            if routes[i, k] >= 0 and number[routes[i, k]] >= 0:
                out[i, n] = number[routes[i, k]]
                n += 1


def binding(links: Links, flows: Flows) -> tuple[Links, Ints32]:
    """The links that can be a bottleneck, renumbered, and the routes over them.

    Returns:
        The links that are left, and (flows, hops) int32 routes over them, padded with -1: every
        rate is the same as over all links.
    """
    count, hops = len(links), flows.routes.shape[1]
    met = np.full((count, 1 + hops), -1, np.int32)
    met[:, 0] = 0
    _meet(flows.routes, met)
    used, others = met[:, 0], met[:, 1:]
    padded = np.append(links.capacity, np.inf)
    tighter = padded[others] < links.capacity[:, None]
    # of two that carry the same flows at the same capacity, the first stays
    as_tight = (padded[others] == links.capacity[:, None]) & (
        (used[others] > used[:, None]) | (others < np.arange(count)[:, None])
    )
    kept = (used > 0) & ~(tighter | as_tight).any(axis=1)
    number = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    routes = np.full(flows.routes.shape, -1, np.int32)
    _shorten(flows.routes, number, routes)
    longest = int(np.flatnonzero((routes >= 0).any(axis=0)).max(initial=0)) + 1
    return Links(links.capacity[kept], links.latency[kept]), np.ascontiguousarray(
        routes[:, :longest]
    )

"""Explicit flows over explicit links, solved by the fluid network.

Links that can never be a bottleneck are left out. If every flow on link x also crosses
link y, and y has no more capacity than x, then x never carries more than y may: leaving
x out changes no rate. Under D-mod-K the last link between switches before a host is
often of this kind.
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
    links: Links,
    flows: Flows,
    tolerance: float,
    progress: Callable[[float], None] | None,
) -> FlowOutcome:
    """Compute when ``flows`` end: by symmetry where that makes the problem small, else
    flow by flow.

    A route must not cross a link twice: that is not checked, and the answer would be
    wrong.

    Args:
        links, flows: the network, and what it carries.
        tolerance: share of its bytes that a flow may have left when it ends together
            with another; by symmetry the answer is exact all the same.
        progress: called now and then with the share of the flows that have ended; never
            if the answer comes by symmetry or takes few events. None for nothing.

    Returns:
        finish: (flows,) s; makespan: s, 0 without flows; error_bound: the largest share
            of its bytes that a flow skipped, 0 if exact.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    finish_by_symmetry = symmetry.finish_times(links, flows)
    if finish_by_symmetry is not None:
        return FlowOutcome(
            finish_by_symmetry, float(finish_by_symmetry.max(initial=0.0)), 0.0
        )
    num_flows = len(flows)
    columns: dict[str, Any] = {
        "nbytes": flows.nbytes,
        "delay": flows.latencies(links),
        "start": flows.earliest_post,
    }
    used_links, routes = binding_links(links, flows)
    batch = TransferBatch(
        tasks(num_flows, work=flows.nbytes, tag=np.arange(num_flows), **columns),
        routes,
        flows.after_from,
        flows.after_to,
    )
    network = FluidNetwork(
        used_links.capacity,
        width=routes.shape[1],
        tags=num_flows,
        capped=False,
        tolerance=tolerance,
    )
    if progress is not None:
        network.after_slice = lambda: progress(1.0 - network.alive / num_flows)
    network.post(0.0, batch)
    network.advance(np.inf)
    if network.alive:
        raise SimulationError(
            f"{network.alive} flows wait for each other in a circle and never start"
        )
    finish = network.finish[:num_flows]
    return FlowOutcome(
        finish, float(finish.max(initial=0.0)), float(network.clock["skipped"][0])
    )


@entry
def _find_companions(routes: Any, companions: Any) -> None:
    """Count the flows of each link, and find its companions: the other links that all
    of its flows cross.

    Args:
        routes: (flows, hops) links, padded with -1.
        companions: (links, 1 + hops) int32, filled here: the number of flows, at first
            0; then the companions and -1, at first -1.
    """
    for i in range(routes.shape[0]):
        for k in range(routes.shape[1]):
            link = routes[i, k]
            if link < 0:
                break
            is_first = companions[link, 0] == 0
            companions[link, 0] += 1
            n = 1
            for j in range(routes.shape[1]):
                candidate = routes[i, j] if is_first else companions[link, 1 + j]
                if candidate < 0:
                    break
                for m in range(routes.shape[1]):
                    if routes[i, m] == candidate:
                        if candidate != link:
                            companions[link, n] = candidate
                            n += 1
                        break
            while n <= routes.shape[1] and companions[link, n] >= 0:
                companions[link, n] = -1
                n += 1


@entry
def _renumber_routes(routes: Any, new_index: Any, out: Any) -> None:
    """Write into ``out`` (flows, hops) the links of each route that have a new index,
    as such indices, one after the other.

    Args:
        routes: (flows, hops) links, padded with -1.
        new_index: (links,) -1 for links to leave out.
        out: (flows, hops), at first -1; changed in place.
    """
    for i in range(routes.shape[0]):
        n = 0
        for k in range(routes.shape[1]):
            if routes[i, k] >= 0 and new_index[routes[i, k]] >= 0:
                out[i, n] = new_index[routes[i, k]]
                n += 1


def binding_links(links: Links, flows: Flows) -> tuple[Links, Ints32]:
    """Select the links that can be a bottleneck, renumber them, and shorten the routes
    to them. Links without flows are left out, too.

    Returns:
        The links that are left, in their old order and without names; and (flows, hops
        of the longest) int32 routes over them, padded with -1: every rate is what it is
        over all links. The latencies of the links left out are missing.
    """
    num_links = len(links)
    hops = flows.routes.shape[1]
    companions = np.full((num_links, 1 + hops), -1, np.int32)
    companions[:, 0] = 0
    _find_companions(flows.routes, companions)
    num_flows = companions[:, 0]
    companion_links = companions[:, 1:]
    padded_capacity = np.append(links.capacity, np.inf)
    is_tighter = padded_capacity[companion_links] < links.capacity[:, None]
    # of two that carry the same flows at the same capacity, the first stays
    is_equal_and_first = (
        padded_capacity[companion_links] == links.capacity[:, None]
    ) & (
        (num_flows[companion_links] > num_flows[:, None])
        | (companion_links < np.arange(num_links)[:, None])
    )
    is_binding = (num_flows > 0) & ~(is_tighter | is_equal_and_first).any(axis=1)
    new_index = np.where(is_binding, np.cumsum(is_binding) - 1, -1).astype(np.int32)
    routes = np.full(flows.routes.shape, -1, np.int32)
    _renumber_routes(flows.routes, new_index, routes)
    longest_route = int(np.flatnonzero((routes >= 0).any(axis=0)).max(initial=0)) + 1
    return Links(
        links.capacity[is_binding], links.latency[is_binding]
    ), np.ascontiguousarray(routes[:, :longest_route])

"""Explicit flows over explicit links, solved by the fluid network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.network.batch import TransferBatch, tasks
from simshuffle.network.flows import Flows, Links, Outcome
from simshuffle.network.fluid import symmetry
from simshuffle.network.fluid.binding import binding
from simshuffle.network.fluid.network import FluidNetwork


def finish_times(
    links: Links, flows: Flows, tolerance: float, progress: Callable[[float], None] | None
) -> Outcome:
    """What `Fluid.finish_times` returns and raises; by symmetry where it makes the problem small,
    else flow by flow."""
    equivalent = symmetry.finish_times(links, flows)
    if equivalent is not None:
        return Outcome(equivalent, float(equivalent.max(initial=0.0)), 0.0)
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
    return Outcome(finish, float(finish.max(initial=0.0)), float(network.clock["skipped"][0]))

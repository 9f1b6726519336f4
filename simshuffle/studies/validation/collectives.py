"""Predictions of one allreduce, as a benchmark of collectives measures it: nothing else on the
machine, buffers in GPU memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.lowering.gradients import Allreduces
from simshuffle.network import Fluid, Links
from simshuffle.network.shared import shared_network
from simshuffle.plan.resources import Resources
from simshuffle.scenario.scenario import Scenario
from simshuffle.studies.validation.rows import size
from simshuffle.studies.validation.runs import load

QUANTITIES = ("time", "bus bandwidth", "algorithm bandwidth")


def predict(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """The time (s) of one allreduce over all ranks of a scenario, or its bandwidth (bytes/s).

    Bandwidths are those that nccl-tests prints: n bytes over the time, and 2 (M-1)/M times that for
    the bus.

    Args:
        scenario: its name below ``scenarios/``; of its workload, only ``allreduce`` is used.
        values: ``nbytes``, the bytes of the buffer; all others are set in the scenario.
        quantity: one of `QUANTITIES`.

    Raises:
        InputError: there is no such quantity, or no size or one that is not valid, or a value of
            the scenario is not valid.
    """
    if quantity not in QUANTITIES:
        raise InputError(
            Problem(
                "quantity", f"must be one of {', '.join(QUANTITIES)}", repr(quantity), "Choose one."
            )
        )
    chosen = dict(values)
    nbytes = size(
        chosen.pop("nbytes", ""), "of an allreduce must say how many bytes", "nbytes=16 MiB"
    )
    resolved = load(scenario, chosen)
    seconds = allreduce_seconds(resolved, nbytes)
    if quantity == "time":
        return seconds
    share = (
        2 * (resolved.world_size - 1) / resolved.world_size if quantity == "bus bandwidth" else 1.0
    )
    return share * nbytes / seconds


def allreduce_seconds(scenario: Scenario, nbytes: float) -> float:
    """Time (s) of the allreduce of ``nbytes`` bytes over all ranks, on cables that its flows share
    max-min fairly."""
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    allreduces = Allreduces(scenario.workload.allreduce, resources, scenario.rng("host_order"))
    batch = allreduces.batch(nbytes)
    if batch is None:
        return 0.0
    table = resources.links
    links = Links(table.capacity, table.latency)
    network = shared_network(Fluid(), links, table.cable, width=resources.width)
    batch.tasks["group"] = group = network.open_group(len(batch))
    network.post(0.0, batch)
    network.watch(group)
    network.advance(np.inf)
    return network.now

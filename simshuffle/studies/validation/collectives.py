"""Predictions of one allreduce, as a benchmark of collectives measures it: nothing else on the
machine, buffers in GPU memory."""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.collective import bench_of
from simshuffle.errors import InputError, Problem
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
    seconds = bench_of(resolved).seconds(nbytes)
    if quantity == "time":
        return seconds
    share = (
        2 * (resolved.world_size - 1) / resolved.world_size if quantity == "bus bandwidth" else 1.0
    )
    return share * nbytes / seconds

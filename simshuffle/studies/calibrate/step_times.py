"""Compute times of a model, from iterations on one GPU in an epoch log."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.calibrate.fit import Floats, median_interval
from simshuffle.studies.calibrate.parameter import (
    Ends,
    Findings,
    Parameter,
    interval,
    residuals,
    sources,
)
from simshuffle.studies.calibrate.table import groups


@dataclass(frozen=True)
class Network:
    """What a log does not say about its model: the entry of the catalog that it trained, and how an
    iteration divides.

    Attributes:
        name: entry of the catalog of models.
        gradient_nbytes: bytes of gradients.
        accelerator: key of the step times.
        update_s: seconds of an iteration that are neither forward nor backward pass, from the
            catalog.
    """

    name: str
    gradient_nbytes: float
    accelerator: str
    update_s: float


def uncontended(values: Floats) -> float:
    """Mean of the fastest quarter, at least one."""
    ordered = np.sort(values)
    return float(ordered[: math.ceil(len(ordered) / 4)].mean())


def step_times(out: Findings, rows: pd.DataFrame, network: Network, bound: bool) -> None:
    """Forward and backward pass of a sample, 1:2 as in the catalog, from the median iteration on
    one GPU.

    Where all runs on several GPUs wait for samples (``bound``), the one on a single GPU may, too;
    the notes say so.
    """
    if bound:
        out.notes.append(
            f"{network.name}: all runs on several GPUs wait for samples; the one on one GPU may,"
            " too."
        )
    for (batch,), of in groups(rows, "batch"):
        values = of["seconds"].to_numpy(float)
        median, (low, high) = float(np.median(values)), median_interval(values)
        error = float(np.abs(median / values - 1).mean())
        over = {"local_batch_size": (float(batch), float(batch))}
        name, count, source = network.name, len(of), sources(of)
        out.parameters += [
            _report(
                f"{name}: iteration on one GPU, median",
                median,
                interval(low, high),
                over,
                error,
                count,
                source,
                name,
            ),
            _report(
                f"{name}: iteration on one GPU, uncontended",
                uncontended(values),
                (None, None),
                over,
                error,
                count,
                source,
                name,
            ),
        ]
        out.residuals.append(
            residuals(of, "iteration on one GPU", "s", values, np.full(count, median), True)
        )
        if median <= network.update_s:
            out.notes.append(
                f"{name}: an iteration takes less than the update of the catalog; no step times"
                " were fitted."
            )
            continue
        if rows["batch"].nunique() > 1:
            out.notes.append(
                f"{name}: several batch sizes on one GPU; the step times are of the largest,"
                f" {rows['batch'].max()}."
            )
            if batch != rows["batch"].max():
                continue
        _passes(out, network, (median, low, high), int(batch), over, error, count, source)


def _passes(
    out: Findings,
    network: Network,
    iteration: tuple[float, float, float],
    batch: int,
    over: dict[str, tuple[float, float]],
    error: float,
    count: int,
    source: str,
) -> None:
    key = f"workload.model.accelerators.{network.accelerator}"
    for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        value, low, high = ((s - network.update_s) * share / batch for s in iteration)
        ends = interval(low, high) if low > 0 else (None, None)
        note = f"of {readable(iteration[0], Dimension.SECONDS)} less the update, split 1:2"
        out.parameters.append(
            Parameter(
                f"{key}.{name}",
                value,
                *ends,
                Dimension.SECONDS,
                over,
                error,
                count,
                source,
                note,
                model=network.name,
            )
        )
    note = "from the catalog, not measured"
    update = Parameter(
        f"{key}.update",
        network.update_s,
        None,
        None,
        Dimension.SECONDS,
        over,
        math.nan,
        0,
        "catalog",
        note,
        network.name,
    )
    out.parameters.append(update)


def _report(
    name: str,
    value: float,
    ends: Ends,
    over: dict[str, tuple[float, float]],
    error: float,
    count: int,
    source: str,
    model: str,
) -> Parameter:
    return Parameter(
        name, value, *ends, Dimension.SECONDS, over, error, count, source, model=model, usable=False
    )

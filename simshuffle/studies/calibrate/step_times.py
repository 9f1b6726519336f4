"""Compute times of a model, from iterations on one GPU in an epoch log."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.calibrate.findings import (
    Basis,
    Findings,
    basis,
    for_people,
    mean_error,
    residuals,
)
from simshuffle.studies.calibrate.fit import Floats, interval, median_interval
from simshuffle.studies.calibrate.parameter import Parameter
from simshuffle.studies.calibrate.rows import groups


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
    name, largest = network.name, rows["batch"].max()
    for (batch,), of in groups(rows, "batch"):
        values = of["seconds"].to_numpy(float)
        median, ends = float(np.median(values)), median_interval(values)
        about = basis(of, mean_error(values, median), "local_batch_size")
        for what, value, low, high in (
            ("median", median, *interval(*ends)),
            ("uncontended", uncontended(values), None, None),
        ):
            key = f"{name}: iteration on one GPU, {what}"
            found = Parameter(key, value, low, high, Dimension.SECONDS, **about, model=name)
            out.parameters.append(for_people(found, ""))
        fitted = np.full(len(of), median)
        out.residuals.append(residuals(of, "iteration on one GPU", "s", values, fitted))
        if median <= network.update_s:
            out.notes.append(
                f"{name}: an iteration takes less than the update of the catalog; no step times"
                " were fitted."
            )
            continue
        if rows["batch"].nunique() > 1:
            out.notes.append(
                f"{name}: several batch sizes on one GPU; the step times are of the largest,"
                f" {largest}."
            )
        if batch == largest:
            out.parameters += _passes(network, (median, *ends), int(batch), about)


def _passes(
    network: Network, iteration: tuple[float, float, float], batch: int, about: Basis
) -> list[Parameter]:
    """Forward pass, backward pass and update; of the median iteration and the ends of its
    interval."""
    out = []
    key = f"workload.model.accelerators.{network.accelerator}"
    note = f"of {readable(iteration[0], Dimension.SECONDS)} less the update, split 1:2"
    for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        value, low, high = ((s - network.update_s) * share / batch for s in iteration)
        ends = interval(low, high) if low > 0 else (None, None)
        found = Parameter(f"{key}.{name}", value, *ends, Dimension.SECONDS, **about, note=note)
        out.append(found)
    catalog: Basis = {**about, "residual": math.nan, "rows": 0, "source": "catalog"}
    update = (f"{key}.update", network.update_s, None, None, Dimension.SECONDS)
    out.append(Parameter(*update, **catalog, note="from the catalog, not measured"))
    return [replace(found, model=network.name) for found in out]

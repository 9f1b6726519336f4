"""Laws of a training run, from its epoch log.

An iteration on p GPUs takes the compute of one GPU plus the allreduce: t(p) = t(1) + 2 (p-1)/p n /
B, with n bytes of gradients. The latency of the allreduce, and waiting for the slowest rank, are
inside the second term: a log cannot tell them apart.

Other jobs, and cold caches, only ever slow a run down. So the compute is the median over epochs on
one GPU, and what p GPUs add is the difference of the `uncontended` times: the mean of the fastest
quarter of the epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    Value,
    groups,
    mean_error,
    sources,
)
from simshuffle.extensions.calibration.calibrate.fit import (
    Estimate,
    Floats,
    median_interval,
    relative_fit,
    variation,
)
from simshuffle.extensions.calibration.calibrate.laws import INTER, INTRA, OVER, RingSide
from simshuffle.extensions.calibration.calibrate.storage import NO_INTERVAL, STORAGES
from simshuffle.spec.units import Dimension, readable

BOUND = 0.5
"""A run whose allreduce would need a bus bandwidth below this share of the log's highest waits for
its samples instead."""
STEADY_FROM = 2
"""The first epoch that counts as steady: caches are cold before."""
FLAT = 1.25
"""A rate of samples that grows by less than this factor while the GPUs double does not grow."""


@dataclass(frozen=True)
class Network:
    """What a log does not say about its model: the entry of the catalog that it trained, and how an
    iteration divides."""

    name: str  # entry of the catalog of models
    gradient_nbytes: float  # bytes of gradients
    accelerator: str  # key of the step times
    # seconds of an iteration that are neither forward nor backward pass, from the catalog
    update_s: float


def training(
    rows: pd.DataFrame,
    used: pd.Series,
    networks: Mapping[str, Network],
    gpus_per_host: int,
    epochs: str,
) -> Findings:
    """Compute times, bus bandwidths, jitter and rate of opens.

    Args:
        rows, used: measurements, and which of them to fit; the others are predicted.
        networks: by the model's name in the log.
        gpus_per_host: for rows that do not say on how many hosts they ran.
        epochs: 'steady' for the second epoch and later ones, 'all' for all.
    """
    out = Findings()
    if epochs == "steady":
        steady = rows["epoch"] >= STEADY_FROM
        rows, used = rows[steady], used[steady]
    runs = _runs(rows, used, networks, gpus_per_host)
    if runs.empty:
        out.notes.append("epoch log: no steady epoch (from the second on); use --epochs all.")
        return out
    out.notes.append(
        f"epoch log: {gpus_per_host} GPUs in a host where the log does not say (--gpus-per-host)."
    )
    for model, network in networks.items():
        of = rows[(rows["model"] == model) & (rows["ranks"] == 1) & used]
        several = runs[runs["model"].eq(model) & runs["ranks"].gt(1) & runs["used"]]
        if len(of):
            _step_times(out, of, network, bool(len(several) and several["bound"].all()))
    fitted = runs[runs["used"] & runs["bus_bandwidth"].notna()]
    for model in networks:
        if not (runs["model"].eq(model) & runs["ranks"].eq(1)).any():
            out.notes.append(f"{model}: no run on one GPU that is fitted, so no allreduce either.")
    for side, inside in ((INTRA, True), (INTER, False)):
        here, there = ((of["hosts"] == 1) == inside for of in (fitted, runs))
        _bandwidth(out, side, fitted[here], runs[there], rows)
    _opens(out, runs[runs["used"]], rows)
    _jitter(out, rows[used])
    return out


def uncontended(values: Floats) -> float:
    """Mean of the fastest quarter, at least one."""
    ordered = np.sort(values)
    return float(ordered[: math.ceil(len(ordered) / 4)].mean())


def _step_times(out: Findings, rows: pd.DataFrame, network: Network, bound: bool) -> None:
    """Forward and backward pass of a sample, 1:2 as in the catalog, from the median iteration on
    one GPU.

    Where all runs on several GPUs wait for samples (``bound``), the one on a single GPU may, too;
    the notes say so.
    """
    if bound:
        why = "all runs on several GPUs wait for samples; the one on one GPU may, too."
        out.notes.append(f"{network.name}: {why}")
    name, largest = network.name, rows["batch"].max()
    for (batch,), of in groups(rows, "batch"):
        values = of["seconds"].to_numpy(float)
        median, ends = float(np.median(values)), median_interval(values)
        about = of, mean_error(values, median), ["local_batch_size"]
        for what, estimate in (
            ("median", (median, *ends)),
            ("uncontended", (uncontended(values), *NO_INTERVAL)),
        ):
            title = f"{name}: iteration on one GPU, {what}"
            out.add(*about, "", estimate, Dimension.SECONDS, model=name, name=title)
        out.compare(of, "iteration on one GPU", "s", values, np.full(len(of), median))
        if median <= network.update_s:
            why = "an iteration takes less than the update of the catalog: no step times."
            out.notes.append(f"{name}: {why}")
            continue
        if rows["batch"].nunique() > 1:
            why = f"several batch sizes on one GPU; the step times are of the largest, {largest}."
            out.notes.append(f"{name}: {why}")
        if batch == largest:
            _passes(out, network, (median, *ends), int(batch), about)


def _passes(
    out: Findings,
    network: Network,
    iteration: Estimate,
    batch: int,
    about: tuple[pd.DataFrame, float, Sequence[str]],
) -> None:
    """Forward pass, backward pass and update; of the median iteration and the ends of its
    interval."""
    key = f"workload.model.accelerators.{network.accelerator}"
    seconds = Dimension.SECONDS
    note = f"of {readable(iteration[0], seconds)} less the update, split 1:2"
    for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        value, low, high = ((s - network.update_s) * share / batch for s in iteration)
        estimate = (value, low if low > 0 else math.nan, high)
        out.add(*about, f"{key}.{name}", estimate, seconds, note, model=network.name)
    rows, _, over = about
    update = rows, math.nan, over, f"{key}.update", (network.update_s, *NO_INTERVAL), seconds
    note, model = "from the catalog, not measured", network.name
    out.add(*update, note, model=model, count=0, source="catalog")


def _runs(
    rows: pd.DataFrame, used: pd.Series, networks: Mapping[str, Network], gpus_per_host: int
) -> pd.DataFrame:
    """A row for each model, batch and number of GPUs: its uncontended and median time, and the bus
    bandwidth that it would mean."""
    records: list[dict[str, Any]] = []
    alone: dict[tuple[str, int], float] = {}
    for (model, batch, ranks), of in groups(rows.assign(used=used), "model", "batch", "ranks"):
        best = uncontended(of["seconds"].to_numpy(float))
        if ranks == 1:
            alone[model, batch] = best
        first, nbytes = of.iloc[0], networks[model].gradient_nbytes
        told = bool(of["hosts"].notna().all())
        bus = 2 * (ranks - 1) / ranks * nbytes
        single = alone.get((model, batch), math.nan)
        records.append(
            {
                **{str(name): value for name, value in first.items()},
                "line": 0,
                "hosts": float(first["hosts"] if told else -(-ranks // gpus_per_host)),
                "nbytes": nbytes,
                "best": best,
                "alone": single,
                "bus": bus,
                "bus_bandwidth": bus / (best - single) if ranks > 1 and best > single else math.nan,
            }
        )
    runs = pd.DataFrame(records)
    if runs.empty:
        return runs
    best_of_side = runs[runs["used"]].groupby(runs["hosts"] == 1)["bus_bandwidth"].max()
    limit = (runs["hosts"] == 1).map(best_of_side.to_dict()).astype(float) * BOUND
    return runs.assign(bound=(runs["bus_bandwidth"] < limit) & (runs["ranks"] > 1))


def _bandwidth(
    out: Findings, side: RingSide, fitted: pd.DataFrame, runs: pd.DataFrame, rows: pd.DataFrame
) -> None:
    """The bus bandwidth of one side: a point for each size of gradients, the best fit over its
    scales."""
    for _, run in fitted[fitted["bound"]].iterrows():
        out.notes.append(
            f"{run['model']} on {run['ranks']} GPUs: waits for samples, and is left out of the"
            " allreduce, which would run at"
            f" {readable(float(run['bus_bandwidth']), Dimension.BANDWIDTH, 3)}, below {BOUND:.0%}"
            " of the log's highest."
        )
    points: list[tuple[float, float, float, float]] = []
    measured, predicted = [np.empty(0)], [np.empty(0)]
    taken = fitted[~fitted["bound"]]
    for (nbytes,), of in groups(taken, "nbytes"):
        extra = (of["best"] - of["alone"]).to_numpy(float)
        fit = relative_fit(of[["bus"]].to_numpy(float), extra)
        points.append((float(nbytes), *fit.inverse(0)))
        measured.append(extra)
        predicted.append(fit.fitted)
        same = runs[(runs["nbytes"] == nbytes) & (runs["ranks"] > 1) & runs["alone"].notna()]
        best, alone, bus = same[["best", "alone", "bus"]].to_numpy(float).T
        used = (same["used"] & ~same["bound"] & same["bus_bandwidth"].notna()).to_numpy(bool)
        law, model = f"iteration {side.name}", alone + bus * fit.value[0]
        out.compare(same, law, "s", best, model, used)
    if not points:
        return
    error = mean_error(np.concatenate(measured), np.concatenate(predicted))
    note = "latency and waiting for the slowest rank are inside"
    sizes, *estimate = zip(*points, strict=True)
    shaped: tuple[Value, Value, Value] = points[0][1:]
    if len(sizes) > 1:  # a curve over the size of the gradients
        value, low, high = (tuple(zip(sizes, ends, strict=True)) for ends in estimate)
        shaped = value, low, high
    files = sources(rows[rows["model"].isin(set(taken["model"]))])
    found = taken, error, OVER, side.bandwidth, shaped, Dimension.BANDWIDTH, note
    out.add(*found, source=files)


def _opens(out: Findings, runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    """The rate of opens: of runs that wait for samples, if twice the GPUs do not read faster; else
    only the highest rate that was seen."""
    bound = runs[runs["bound"] & (runs["hosts"] > 1)]
    if bound.empty:
        out.notes.append("epoch log: no run between hosts waits for samples: no rate of opens.")
        return
    rates = bound.assign(rate=bound["ranks"] * bound["batch"] / bound["best"])
    lower = False
    for _, of in groups(rates, "model"):
        last = of.iloc[int(of["ranks"].to_numpy().argmax())]
        before = of[of["ranks"] * 2 <= last["ranks"]]
        if len(before) and last["rate"] < FLAT * before["rate"].max():
            flat = of[of["rate"] * FLAT >= before["rate"].max()]
            break
    else:
        flat, lower = rates.nlargest(1, "rate"), True
    model, value = str(flat["model"].iloc[0]), float(flat["rate"].max())
    taken = rows[(rows["model"] == model) & rows["ranks"].isin(set(flat["ranks"]))]
    about = taken, mean_error(flat["rate"].to_numpy(float), value), ["clients"]
    note = f"{model}: one file a sample; runs that wait for samples, and more GPUs do not help"
    name = ""
    if lower:
        note = f"{model}: a lower bound of the rate of opens: it still rises with the GPUs"
        name = "rate of samples of runs that wait for them"
    key, frequency = f"{STORAGES['pfs']}.open_rate", Dimension.FREQUENCY
    out.add(*about, key, (value, *NO_INTERVAL), frequency, note, name=name)


def _jitter(out: Findings, rows: pd.DataFrame) -> None:
    """Jitter of an iteration, where the log has a line for each; else how much the epochs of one
    GPU vary, which is not the same."""
    alone = rows[rows["ranks"] == 1]
    for (model,), of in groups(alone, "model"):
        single = of[of["count"] == 1]
        taken = single if len(single) > 2 else of
        estimate = variation(taken["seconds"].to_numpy(float))
        if not math.isfinite(estimate[0]):
            out.notes.append(f"{model}: too few epochs on one GPU for the jitter.")
            continue
        name = note = ""
        if len(single) < 3 or alone["model"].nunique() > 1:
            name = f"{model}: variation between {'iterations' if len(single) > 2 else 'epochs'}"
            note = (
                "for comparison only: an epoch averages over its iterations; log each iteration for"
                " workload.jitter.compute"
            )
        about = taken, math.nan, ["local_batch_size"], "workload.jitter.compute"
        out.add(*about, estimate, None, note, name=name)

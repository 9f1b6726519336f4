"""Laws of a training run, from its epoch log.

An iteration on p GPUs takes the compute of one GPU plus the allreduce: t(p) = t(1) + 2
(p-1)/p n / B, with n bytes of gradients. The latency of the allreduce, and waiting for
the slowest rank, are inside the second term: a log cannot tell them apart.

Other jobs, and cold caches, only ever slow a run down. So the compute is the median
over epochs on one GPU, and what p GPUs add is the difference of the `uncontended_time`
times: the mean of the fastest quarter of the epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    FitBasis,
    Value,
    describe_sources,
    group_rows,
    mean_error,
)
from simshuffle.extensions.calibration.calibrate.fit import (
    Estimate,
    Floats,
    median_interval,
    relative_fit,
    variation,
)
from simshuffle.extensions.calibration.calibrate.laws import (
    INTER,
    INTRA,
    MEASURED_OVER,
    RingSide,
)
from simshuffle.extensions.calibration.calibrate.storage import (
    KEY_OF_STORAGE,
    NO_INTERVAL,
)
from simshuffle.spec.units import Dimension, readable

MIN_BANDWIDTH_SHARE = 0.5
"""A run whose allreduce would need a bus bandwidth below this share of the log's
highest waits for its samples instead.
"""
FIRST_STEADY_EPOCH = 2
"""The first epoch that counts as steady: caches are cold before."""
MAX_FLAT_GROWTH = 1.25
"""A rate of samples that grows by less than this factor while the GPUs double does not
grow.
"""


@dataclass(frozen=True)
class TrainedNetwork:
    """Facts about a model that its log lacks: its entry of the catalog, and how an
    iteration divides.
    """

    name: str  # entry of the catalog of models
    gradient_nbytes: float  # bytes of gradients
    accelerator: str  # key of the step times
    # seconds of an iteration that are neither forward nor backward pass, from the catalog
    update_s: float


def fit_epoch_log(
    rows: pd.DataFrame,
    used: pd.Series,
    networks: Mapping[str, TrainedNetwork],
    gpus_per_host: int,
    epochs: str,
) -> Findings:
    """Fit compute times, bus bandwidths, jitter and rate of opens to an epoch log.

    Without a row to read, such as with 'steady' and first epochs only, the findings are
    a note alone.

    Args:
        rows: measurements of iterations, of the models in ``networks`` only.
        used: (rows,) which of them to fit; the others are predicted.
        networks: by the model's name in the log.
        gpus_per_host: for rows that do not say on how many hosts they ran.
        epochs: 'steady' for the second epoch and later ones, 'all' for all.
    """
    findings = Findings()
    if epochs == "steady":
        is_steady = rows["epoch"] >= FIRST_STEADY_EPOCH
        rows = rows[is_steady]
        used = used[is_steady]
    runs = summarize_runs(rows, used, networks, gpus_per_host)
    if runs.empty:
        findings.notes.append(
            "epoch log: there is no steady epoch (the second or later); use --epochs all."
        )
        return findings
    findings.notes.append(
        f"epoch log: a host has {gpus_per_host} GPUs where the log names no hosts"
        " (--gpus-per-host)."
    )
    for model, network in networks.items():
        single_gpu_rows = rows[(rows["model"] == model) & (rows["ranks"] == 1) & used]
        multi_gpu_runs = runs[
            runs["model"].eq(model) & runs["ranks"].gt(1) & runs["used"]
        ]
        if len(single_gpu_rows):
            is_bound = bool(len(multi_gpu_runs) and multi_gpu_runs["bound"].all())
            add_step_times(findings, single_gpu_rows, network, is_bound)
    fitted_runs = runs[runs["used"] & runs["bus_bandwidth"].notna()]
    for model in networks:
        if not (runs["model"].eq(model) & runs["ranks"].eq(1)).any():
            findings.notes.append(
                f"{model}: no run on one GPU is fitted, so its allreduce is not fitted either."
            )
    for side, is_inside_host in ((INTRA, True), (INTER, False)):
        fitted_of_side = fitted_runs[(fitted_runs["hosts"] == 1) == is_inside_host]
        runs_of_side = runs[(runs["hosts"] == 1) == is_inside_host]
        add_bus_bandwidth(findings, side, fitted_of_side, runs_of_side, rows)
    add_open_rate(findings, runs[runs["used"]], rows)
    add_jitter(findings, rows[used])
    return findings


def uncontended_time(values: Floats) -> float:
    """Return the mean of the fastest quarter of the values (s), at least one."""
    ascending = np.sort(values)
    return float(ascending[: math.ceil(len(ascending) / 4)].mean())


def add_step_times(
    findings: Findings, rows: pd.DataFrame, network: TrainedNetwork, is_bound: bool
) -> None:
    """Add the forward and backward pass of a sample and the update, from the median
    iteration on one GPU, at the largest batch.

    The passes are divided 1:2, as in the catalog. A note replaces all three if the
    iteration is no longer than the update. For each batch, the median and uncontended
    iteration (s) are added for people, with residuals. If all runs on several GPUs wait
    for samples (``is_bound``), a note says that the run on one GPU may, too.
    """
    if is_bound:
        reason = "all runs on several GPUs wait for samples; the run on one GPU may wait, too."
        findings.notes.append(f"{network.name}: {reason}")
    name = network.name
    largest_batch = rows["batch"].max()
    for (batch,), batch_rows in group_rows(rows, "batch"):
        values = batch_rows["seconds"].to_numpy(float)
        median = float(np.median(values))
        interval = median_interval(values)
        basis = FitBasis(batch_rows, mean_error(values, median), ["local_batch_size"])
        for statistic, estimate in (
            ("median", (median, *interval)),
            ("uncontended", (uncontended_time(values), *NO_INTERVAL)),
        ):
            title = f"{name}: iteration on one GPU, {statistic}"
            findings.add_parameter(
                basis, "", estimate, Dimension.SECONDS, model=name, name=title
            )
        findings.add_residuals(
            batch_rows,
            "iteration on one GPU",
            "s",
            values,
            np.full(len(batch_rows), median),
        )
        if median <= network.update_s:
            reason = (
                "an iteration takes less than the catalog's update, so no step times are"
                " fitted."
            )
            findings.notes.append(f"{name}: {reason}")
            continue
        if batch < largest_batch:
            continue
        if rows["batch"].nunique() > 1:
            findings.notes.append(
                f"{name}: several batch sizes on one GPU; the step times are those of the"
                f" largest, {largest_batch}."
            )
        add_passes(findings, network, (median, *interval), int(batch), basis)


def add_passes(
    findings: Findings,
    network: TrainedNetwork,
    iteration: Estimate,
    batch: int,
    basis: FitBasis,
) -> None:
    """Add forward and backward pass (s per sample) and update (s per iteration), from
    the median iteration and its interval.

    The update is that of the catalog, from 0 rows. A pass has no interval if its lower
    end is not above 0.

    Args:
        findings: gets three parameters.
        network: the model that was trained.
        iteration: s of the median iteration, and the ends of its interval.
        batch: samples of the iteration.
        basis: the iterations on one GPU.
    """
    key = f"workload.model.accelerators.{network.accelerator}"
    dimension = Dimension.SECONDS
    note = (
        f"iteration of {readable(iteration[0], dimension)} minus the update, split 1:2"
    )
    for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        value, low, high = (
            (seconds_of_iteration - network.update_s) * share / batch
            for seconds_of_iteration in iteration
        )
        estimate = (value, low if low > 0 else math.nan, high)
        findings.add_parameter(
            basis, f"{key}.{name}", estimate, dimension, note, model=network.name
        )
    findings.add_parameter(
        replace(basis, error=math.nan),
        f"{key}.update",
        (network.update_s, *NO_INTERVAL),
        dimension,
        "from the catalog, not measured",
        model=network.name,
        count=0,
        source="catalog",
    )


def summarize_runs(
    rows: pd.DataFrame,
    used: pd.Series,
    networks: Mapping[str, TrainedNetwork],
    gpus_per_host: int,
) -> pd.DataFrame:
    """Return a row for each model, batch, number of GPUs and number of hosts: its time,
    and its bus bandwidth.

    Column ``best`` has the uncontended time of an iteration (s), ``alone`` that of one
    GPU with the same model and batch, and ``bus`` the bytes 2 (p-1)/p n that a rank
    sends. ``bus_bandwidth`` is that of an allreduce that takes the difference of the
    times; nan on one GPU, without ``alone``, or if the difference is not above 0.
    ``bound`` says that a run waits for samples: its bandwidth is below
    `MIN_BANDWIDTH_SHARE` of the best fitted run of its side of the ring.

    ``nbytes`` are the gradients. A row that names no ``hosts`` has its GPUs over
    ``gpus_per_host``, rounded up. Other columns are of a run's first row.
    """
    hosts = rows["hosts"].fillna(-(-rows["ranks"] // gpus_per_host))
    records: list[dict[str, Any]] = []
    single_gpu_seconds: dict[tuple[str, int], float] = {}
    for (model, batch, ranks, _), run_rows in group_rows(
        rows.assign(used=used, hosts=hosts), "model", "batch", "ranks", "hosts"
    ):
        fastest_seconds = uncontended_time(run_rows["seconds"].to_numpy(float))
        if ranks == 1:
            single_gpu_seconds[model, batch] = fastest_seconds
        first_row = run_rows.iloc[0]
        nbytes = networks[model].gradient_nbytes
        bus_nbytes = 2 * (ranks - 1) / ranks * nbytes
        single_seconds = single_gpu_seconds.get((model, batch), math.nan)
        has_bandwidth = ranks > 1 and fastest_seconds > single_seconds
        extra_seconds = fastest_seconds - single_seconds
        records.append(
            {
                **{str(name): value for name, value in first_row.items()},
                "line": 0,
                "nbytes": nbytes,
                "best": fastest_seconds,
                "alone": single_seconds,
                "bus": bus_nbytes,
                "bus_bandwidth": bus_nbytes / extra_seconds
                if has_bandwidth
                else math.nan,
            }
        )
    runs = pd.DataFrame(records)
    if runs.empty:
        return runs
    best_of_side = runs[runs["used"]].groupby(runs["hosts"] == 1)["bus_bandwidth"].max()
    best_of_run = (runs["hosts"] == 1).map(best_of_side.to_dict()).astype(float)
    min_bandwidth = MIN_BANDWIDTH_SHARE * best_of_run
    return runs.assign(
        bound=(runs["bus_bandwidth"] < min_bandwidth) & (runs["ranks"] > 1)
    )


def add_bus_bandwidth(
    findings: Findings,
    side: RingSide,
    fitted: pd.DataFrame,
    runs: pd.DataFrame,
    rows: pd.DataFrame,
) -> None:
    """Add the bus bandwidth (bytes/s) of one side of the ring: a single value, or a
    curve with a point for each size of gradients.

    A point is the best fit over the numbers of GPUs. Runs that wait for samples are
    left out, each with a note; without other runs nothing is added.

    Args:
        findings: gets the parameter, residuals and notes.
        side: `INTRA` or `INTER`.
        fitted: runs of that side that are fitted.
        runs: all runs of that side.
        rows: the measurements.
    """
    _note_bound_runs(findings, fitted[fitted["bound"]])
    points: list[tuple[float, float, float, float]] = []
    measured = [np.empty(0)]
    predicted = [np.empty(0)]
    unbound_runs = fitted[~fitted["bound"]]
    for (nbytes,), size_runs in group_rows(unbound_runs, "nbytes"):
        # t(p) - t(1) = 2 (p-1)/p n / B, with the bus bytes as the only factor
        extra_seconds = (size_runs["best"] - size_runs["alone"]).to_numpy(float)
        size_fit = relative_fit(size_runs[["bus"]].to_numpy(float), extra_seconds)
        points.append((float(nbytes), *size_fit.inverse(0)))
        measured.append(extra_seconds)
        predicted.append(size_fit.fitted)
        runs_of_size = runs[runs["nbytes"] == nbytes]
        _add_iteration_residuals(findings, side, runs_of_size, size_fit.value[0])

    if not points:
        return
    error = mean_error(np.concatenate(measured), np.concatenate(predicted))
    note = "includes latency and the wait for the slowest rank"
    sizes, *estimate = zip(*points, strict=True)
    curve_estimate: tuple[Value, Value, Value] = points[0][1:]
    if len(sizes) > 1:  # a curve over the size of the gradients
        value, low, high = (tuple(zip(sizes, ends, strict=True)) for ends in estimate)
        curve_estimate = value, low, high
    files = describe_sources(rows[rows["model"].isin(set(unbound_runs["model"]))])
    findings.add_parameter(
        FitBasis(unbound_runs, error, MEASURED_OVER),
        side.bandwidth,
        curve_estimate,
        Dimension.BANDWIDTH,
        note,
        source=files,
    )


def _note_bound_runs(findings: Findings, bound_runs: pd.DataFrame) -> None:
    """Add a note for each run that waits for its samples, and so is not fitted."""
    for _, run in bound_runs.iterrows():
        findings.notes.append(
            f"{run['model']} on {run['ranks']} GPUs: the run waits for samples, and the fit of the"
            " allreduce leaves it out. The allreduce would run at"
            f" {readable(float(run['bus_bandwidth']), Dimension.BANDWIDTH, 3)}, below"
            f" {MIN_BANDWIDTH_SHARE:.0%} of the log's highest bandwidth."
        )


def _add_iteration_residuals(
    findings: Findings,
    side: RingSide,
    runs_of_size: pd.DataFrame,
    seconds_per_byte: float,
) -> None:
    """Add the measured and the predicted iteration (s) of each run on several GPUs.

    Args:
        findings: gets the residuals.
        side: `INTRA` or `INTER`.
        runs_of_size: all runs of that side with one size of gradients.
        seconds_per_byte: of the bus, as fitted to that size.
    """
    compared_runs = runs_of_size[
        (runs_of_size["ranks"] > 1) & runs_of_size["alone"].notna()
    ]
    best_seconds, single_gpu_seconds, bus_nbytes = (
        compared_runs[["best", "alone", "bus"]].to_numpy(float).T
    )
    is_used = (
        compared_runs["used"]
        & ~compared_runs["bound"]
        & compared_runs["bus_bandwidth"].notna()
    ).to_numpy(bool)
    predicted_seconds = single_gpu_seconds + bus_nbytes * seconds_per_byte
    findings.add_residuals(
        compared_runs,
        f"iteration {side.name}",
        "s",
        best_seconds,
        predicted_seconds,
        used=is_used,
    )


def add_open_rate(findings: Findings, runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Add the rate of opens (samples/s of all GPUs together): the highest of runs that
    wait for samples between hosts, if twice the GPUs read less than `MAX_FLAT_GROWTH`
    times as fast.

    The first model, by name, whose rate is flat counts. If none is, the highest rate
    that was measured is added under a name for people. Without a run that waits there
    is a note alone. ``runs`` are fitted ones, as of `summarize_runs`.
    """
    bound_runs = runs[runs["bound"] & (runs["hosts"] > 1)]
    if bound_runs.empty:
        findings.notes.append(
            "epoch log: no run between hosts waits for samples, so no rate of opens is fitted."
        )
        return
    rates = bound_runs.assign(
        rate=bound_runs["ranks"] * bound_runs["batch"] / bound_runs["best"]
    )
    is_lower_bound = False
    for _, model_runs in group_rows(rates, "model"):
        largest_run = model_runs.iloc[int(model_runs["ranks"].to_numpy().argmax())]
        smaller_runs = model_runs[model_runs["ranks"] * 2 <= largest_run["ranks"]]
        if (
            len(smaller_runs)
            and largest_run["rate"] < MAX_FLAT_GROWTH * smaller_runs["rate"].max()
        ):
            flat_runs = model_runs[
                model_runs["rate"] * MAX_FLAT_GROWTH >= smaller_runs["rate"].max()
            ]
            break
    else:
        flat_runs = rates.nlargest(1, "rate")
        is_lower_bound = True
    model = str(flat_runs["model"].iloc[0])
    max_rate = float(flat_runs["rate"].max())
    flat_rows = rows[
        (rows["model"] == model) & rows["ranks"].isin(set(flat_runs["ranks"]))
    ]
    error = mean_error(flat_runs["rate"].to_numpy(float), max_rate)
    note = f"{model}: one file a sample; from runs that wait for samples even with more GPUs"
    name = ""
    if is_lower_bound:
        note = (
            f"{model}: a lower bound, since the rate of opens still rises with the GPUs"
        )
        name = "rate of samples of runs that wait for them"
    findings.add_parameter(
        FitBasis(flat_rows, error, ["clients"]),
        f"{KEY_OF_STORAGE['pfs']}.open_rate",
        (max_rate, *NO_INTERVAL),
        Dimension.FREQUENCY,
        note,
        name=name,
    )


def add_jitter(findings: Findings, rows: pd.DataFrame) -> None:
    """Add the jitter of an iteration on one GPU, where the log has a line for each
    iteration: standard deviation over mean.

    With fewer than three such lines, or several models, the variation of each model is
    added under a name for people: the variation between epochs is no jitter. A model
    with fewer than three rows on one GPU gets a note alone.
    """
    single_gpu_rows = rows[rows["ranks"] == 1]
    for (model,), model_rows in group_rows(single_gpu_rows, "model"):
        iteration_rows = model_rows[model_rows["count"] == 1]
        jitter_rows = iteration_rows if len(iteration_rows) > 2 else model_rows
        estimate = variation(jitter_rows["seconds"].to_numpy(float))
        if not math.isfinite(estimate[0]):
            findings.notes.append(
                f"{model}: too few epochs on one GPU to fit the jitter."
            )
            continue
        name = note = ""
        if len(iteration_rows) < 3 or single_gpu_rows["model"].nunique() > 1:
            varying = "iterations" if len(iteration_rows) > 2 else "epochs"
            name = f"{model}: variation between {varying}"
            note = (
                "for comparison only: an epoch averages over its iterations; log each iteration to"
                " fit workload.jitter.compute"
            )
        basis = FitBasis(jitter_rows, math.nan, ["local_batch_size"])
        key = "workload.jitter.compute"
        findings.add_parameter(basis, key, estimate, None, note, name=name)

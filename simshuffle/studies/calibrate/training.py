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
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.calibrate.collectives import INTER, INTRA
from simshuffle.studies.calibrate.fit import relative_fit, variation
from simshuffle.studies.calibrate.parameter import (
    Findings,
    Parameter,
    Points,
    mean_error,
    residuals,
    sources,
    span,
)
from simshuffle.studies.calibrate.step_times import Network, step_times, uncontended
from simshuffle.studies.calibrate.table import groups

BOUND = 0.5
"""A run whose allreduce would need a bus bandwidth below this share of the log's highest waits for
its samples instead."""
STEADY_FROM = 2
"""The first epoch that counts as steady: caches are cold before."""
FLAT = 1.25
"""A rate of samples that grows by less than this factor while the GPUs double does not grow."""


def training(
    rows: pd.DataFrame,
    used: pd.Series,
    networks: Mapping[str, Network],
    gpus_per_host: int,
    epochs: str,
) -> Findings:
    """Compute times, bus bandwidths, jitter and rate of opens.

    Args:
        rows: measurements with the operation iteration.
        used: which of them to fit; the others are predicted.
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
        out.notes.append(
            "epoch log: no steady epoch (from the second on); use --epochs all to take the first"
            " ones too."
        )
        return out
    out.notes.append(
        f"epoch log: {gpus_per_host} GPUs in a host where the log does not say (--gpus-per-host)."
    )
    for model, network in networks.items():
        of = rows[(rows["model"] == model) & (rows["ranks"] == 1) & used]
        several = runs[runs["model"].eq(model) & runs["ranks"].gt(1) & runs["used"]]
        if len(of):
            step_times(out, of, network, bool(len(several) and several["bound"].all()))
    fitted = runs[runs["used"] & runs["bus_bandwidth"].notna()]
    for model in networks:
        if not (runs["model"].eq(model) & runs["ranks"].eq(1)).any():
            out.notes.append(
                f"{model}: no run on one GPU (that is fitted), so what the allreduce adds is not"
                " known."
            )
    for side, inside in ((INTRA, True), (INTER, False)):
        _bandwidth(
            out,
            side,
            fitted[(fitted["hosts"] == 1) == inside],
            runs[(runs["hosts"] == 1) == inside],
            rows,
        )
    _opens(out, runs[runs["used"]], rows)
    _jitter(out, rows[used])
    return out


def _runs(
    rows: pd.DataFrame, used: pd.Series, networks: Mapping[str, Network], gpus_per_host: int
) -> pd.DataFrame:
    """A row for each model, batch and number of GPUs: its uncontended and median time, and the bus
    bandwidth that it would mean."""
    records: list[dict[str, Any]] = []
    alone: dict[tuple[str, int], float] = {}
    for (model, batch, ranks), of in groups(rows.assign(used=used), "model", "batch", "ranks"):
        values = of["seconds"].to_numpy(float)
        best = uncontended(values)
        if ranks == 1:
            alone[model, batch] = best
        hosts = (
            float(of["hosts"].iloc[0])
            if of["hosts"].notna().all()
            else float(-(-ranks // gpus_per_host))
        )
        bus = 2 * (ranks - 1) / ranks * networks[model].gradient_nbytes
        extra = best - alone.get((model, batch), math.nan)
        records.append(
            {
                **{str(name): value for name, value in of.iloc[0].items()},
                "line": 0,
                "hosts": hosts,
                "nbytes": networks[model].gradient_nbytes,
                "best": best,
                "median": float(np.median(values)),
                "alone": alone.get((model, batch), math.nan),
                "bus": bus,
                "bus_bandwidth": bus / extra if ranks > 1 and extra > 0 else math.nan,
            }
        )
    runs = pd.DataFrame(records)
    if runs.empty:
        return runs
    best_of_side = runs[runs["used"]].groupby(runs["hosts"] == 1)["bus_bandwidth"].max()
    limit = (runs["hosts"] == 1).map(best_of_side.to_dict()).astype(float) * BOUND
    return runs.assign(bound=(runs["bus_bandwidth"] < limit) & (runs["ranks"] > 1))


def _bandwidth(
    out: Findings, side: Any, fitted: pd.DataFrame, runs: pd.DataFrame, rows: pd.DataFrame
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
    points: list[tuple[float, float]] = []
    ends: list[tuple[float, float]] = []
    measured, predicted = [np.empty(0)], [np.empty(0)]
    taken = fitted[~fitted["bound"]]
    for (nbytes,), of in groups(taken, "nbytes"):
        extra = (of["best"] - of["alone"]).to_numpy(float)
        fit = relative_fit(of[["bus"]].to_numpy(float), extra)
        points.append((float(nbytes), float(1 / fit.value[0])))
        ends.append((float(1 / fit.high[0]), float(1 / fit.low[0])))
        measured.append(extra)
        predicted.append(fit.fitted)
        same = runs[(runs["nbytes"] == nbytes) & (runs["ranks"] > 1) & runs["alone"].notna()]
        model = same["alone"].to_numpy(float) + same["bus"].to_numpy(float) * fit.value[0]
        used = (same["used"] & ~same["bound"] & same["bus_bandwidth"].notna()).to_numpy(bool)
        out.residuals.append(
            residuals(
                same, f"iteration {side.name}", "s", same["best"].to_numpy(float), model, used
            )
        )
    if not points:
        return
    over = {
        "world_size": span(taken["ranks"]),
        "hosts": span(taken["hosts"]),
        "message_size": span(taken["nbytes"]),
    }
    error = mean_error(np.concatenate(measured), np.concatenate(predicted))
    value, low, high = _shaped(points, ends)
    note = "latency and waiting for the slowest rank are inside"
    source = sources(rows[rows["model"].isin(set(taken["model"]))])
    out.parameters.append(
        Parameter(
            side.bandwidth,
            value,
            low,
            high,
            Dimension.BANDWIDTH,
            over,
            error,
            len(taken),
            source,
            note,
        )
    )


def _shaped(
    points: list[tuple[float, float]], ends: list[tuple[float, float]]
) -> tuple[float | Points, float | Points | None, float | Points | None]:
    """One bandwidth for one size of gradients, else a curve over the size."""
    complete = all(math.isfinite(end) for pair in ends for end in pair)
    if len(points) == 1:
        return (points[0][1], *(ends[0] if complete else (None, None)))
    places = [place for place, _ in points]
    lows, highs = (tuple(zip(places, (pair[k] for pair in ends), strict=True)) for k in (0, 1))
    return (tuple(points), lows, highs) if complete else (tuple(points), None, None)


def _opens(out: Findings, runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    """The rate of opens: of runs that wait for samples, if twice the GPUs do not read faster; else
    only the highest rate that was seen."""
    bound = runs[runs["bound"] & (runs["hosts"] > 1)]
    if bound.empty:
        out.notes.append(
            "epoch log: no run between hosts clearly waits for its samples, so no rate of opens was"
            " fitted."
        )
        return
    rates = bound.assign(rate=bound["ranks"] * bound["batch"] / bound["best"])
    key, note = (
        "cluster.parallel_file_system.open_rate",
        "one file a sample; runs that wait for samples, and more GPUs do not help",
    )
    for _, of in groups(rates, "model"):
        last = of.iloc[int(of["ranks"].to_numpy().argmax())]
        before = of[of["ranks"] * 2 <= last["ranks"]]
        if len(before) and last["rate"] < FLAT * before["rate"].max():
            flat = of[of["rate"] * FLAT >= before["rate"].max()]
            break
    else:
        flat = rates.nlargest(1, "rate")
        key, note = (
            "rate of samples of runs that wait for them",
            "a lower bound of the rate of opens: it still rises with the GPUs",
        )
    model = str(flat["model"].iloc[0])
    of = rows[(rows["model"] == model) & rows["ranks"].isin(set(flat["ranks"]))]
    value, over = float(flat["rate"].max()), {"clients": span(flat["ranks"])}
    error = mean_error(flat["rate"].to_numpy(float), np.full(len(flat), value))
    usable = key.startswith("cluster")
    taken = next((p for p in out.parameters if p.key == key), None)
    if taken is None:
        out.parameters.append(
            Parameter(
                key,
                value,
                None,
                None,
                Dimension.FREQUENCY,
                over,
                error,
                len(of),
                sources(of),
                f"{model}: {note}",
                usable=usable,
            )
        )


def _jitter(out: Findings, rows: pd.DataFrame) -> None:
    """Jitter of an iteration, where the log has a line for each; else how much the epochs of one
    GPU vary, which is not the same."""
    for (model,), of in groups(rows[rows["ranks"] == 1], "model"):
        single = of[of["count"] == 1]
        taken = single if len(single) > 2 else of
        value, low, high = variation(taken["seconds"].to_numpy(float))
        if not math.isfinite(value):
            out.notes.append(f"{model}: too few epochs on one GPU for the jitter.")
            continue
        usable = len(single) > 2 and rows.loc[rows["ranks"] == 1, "model"].nunique() == 1
        key = (
            "workload.jitter.compute"
            if usable
            else f"{model}: variation between {'iterations' if len(single) > 2 else 'epochs'}"
        )
        note = (
            ""
            if usable
            else (
                "for comparison only: an epoch averages over its iterations; log each iteration for"
                " workload.jitter.compute"
            )
        )
        over = {"local_batch_size": span(taken["batch"])}
        out.parameters.append(
            Parameter(
                key,
                value,
                low,
                high,
                None,
                over,
                math.nan,
                len(taken),
                sources(taken),
                note,
                model="",
                usable=usable,
            )
        )

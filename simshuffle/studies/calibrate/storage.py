"""Laws of storage, from IOR and mdtest: what all servers together reach, and what one client does.

IOR: c clients get min(c b, B). mdtest: the rate of opens at the number of clients where it is
highest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.spec.units import Dimension
from simshuffle.studies.calibrate.fit import Floats, mean_interval, saturation
from simshuffle.studies.calibrate.parameter import (
    Findings,
    Parameter,
    interval,
    log_curve,
    mean_error,
    residuals,
    sources,
    span,
)
from simshuffle.studies.calibrate.table import groups

STORAGES = ("pfs", "ssd")
RISING = 1.1
"""A rate that is higher by this factor at the most clients than at fewer ones is still rising."""
_PFS, _SSD = "cluster.parallel_file_system", "cluster.ssd"


def transfers(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Read and write bandwidth from IOR.

    Args:
        rows: measurements with the operation read or write.
        used: which of them to fit.
        storage: 'pfs', the parallel file system, or 'ssd', the SSDs of the hosts, of which each has
            its share.
    """
    out = Findings()
    for operation in ("read", "write"):
        of, chosen = rows[rows["operation"] == operation], used[rows["operation"] == operation]
        if not chosen.any():
            continue
        per_host = storage == "ssd"
        scale = of["hosts"].fillna(1.0).to_numpy(float) if per_host else np.ones(len(of))
        clients, rate = of["ranks"].to_numpy(float) / scale, of["rate"].to_numpy(float) / scale
        take = chosen.to_numpy(bool)
        slope, ceiling, flat = saturation(clients[take], rate[take])
        fitted = np.fmin(slope * clients, ceiling)
        out.residuals.append(residuals(of, f"{operation} ({storage})", "B/s", rate, fitted, take))
        _ceiling(
            out,
            of[take],
            clients[take],
            rate[take],
            (slope, ceiling, flat),
            f"{_SSD if per_host else _PFS}.{operation}_bandwidth",
        )
        if not per_host and operation == "read":
            _by_hosts(out, of[take])
        if not per_host and np.isfinite(slope):
            error = mean_error(rate[take], fitted[take])
            over = {"clients": span(clients[take])}
            note = "for comparison only: what one client reads or writes alone"
            name = f"{operation} bandwidth of a client"
            out.parameters.append(
                Parameter(
                    name,
                    slope,
                    None,
                    None,
                    Dimension.BANDWIDTH,
                    over,
                    error,
                    int(take.sum()),
                    sources(of),
                    note,
                    usable=False,
                )
            )
    return out


def _ceiling(
    out: Findings,
    rows: pd.DataFrame,
    clients: Floats,
    rate: Floats,
    law: tuple[float, float, NDArray[np.bool_]],
    key: str,
) -> None:
    """The bandwidth of all clients together; where none was reached, the highest that was seen."""
    slope, ceiling, flat = law
    note = (
        ""
        if np.isfinite(slope)
        else "measured at one number of clients only; more of them may reach more"
    )
    if not flat.any():
        flat = clients == clients.max()
        ceiling = float(np.exp(np.log(rate[flat]).mean()))
        note = "the rate still rises at the most clients that were measured: a lower bound"
    logs = np.log(rate[flat])
    deviation = float(np.std(logs, ddof=1)) if len(logs) > 1 else float("nan")
    ends = interval(*np.exp(mean_interval(float(logs.mean()), deviation, len(logs))).tolist())
    over = {"clients": span(clients)}
    error = mean_error(rate[flat], np.full(int(flat.sum()), ceiling))
    # scenarios only read from the parallel file system
    usable = not key.startswith(f"{_PFS}.write")
    found = Parameter(
        key, ceiling, *ends, Dimension.BANDWIDTH, over, error, int(flat.sum()), sources(rows), note
    )
    out.parameters.append(
        found
        if usable
        else replace(found, key="write bandwidth of the parallel file system", usable=False)
    )


def _by_hosts(out: Findings, rows: pd.DataFrame) -> None:
    """What one host reads at most, over the number of hosts: of the numbers of tasks on them, the
    fastest counts."""
    rows = rows[rows["hosts"].notna()]
    best = [
        max((of for _, of in groups(at, "ranks")), key=lambda of: float(of["rate"].mean()))
        for _, at in groups(rows, "hosts")
    ]
    if not best:
        return
    taken = pd.concat(best)
    hosts = taken["hosts"].to_numpy(float)
    curve = log_curve(hosts, taken["rate"].to_numpy(float) / hosts)
    over = {"hosts": span(hosts)}
    key = f"{_PFS}.client_bandwidth"
    out.parameters.append(
        Parameter(
            key,
            curve.points,
            curve.low,
            curve.high,
            Dimension.BANDWIDTH,
            over,
            curve.error,
            len(taken),
            sources(taken),
        )
    )


def opens(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Rate of opens, and the time of one for a lone client, from mdtest: 'File read' (open, read,
    close), or else 'File stat'."""
    out = Findings()
    rows = rows[used]
    if rows.empty:
        return out
    operation = "file_read" if (rows["operation"] == "file_read").any() else "file_stat"
    other = rows[rows["operation"] != operation]
    rows = rows[rows["operation"] == operation]
    for (ranks,), of in groups(other, "ranks"):
        out.parameters.append(
            _rate(of, "rate of File stat", f"{ranks} clients; for comparison only", usable=False)
        )
    note = (
        ""
        if operation == "file_read"
        else "from 'File stat', which does not open the file; run mdtest with -E for 'File read'"
    )
    means = {int(ranks): _pooled(of)[0] for (ranks,), of in groups(rows, "ranks")}
    best = max(means, key=lambda ranks: means[ranks])
    below = [value for ranks, value in means.items() if ranks < max(means)]
    if below and means[max(means)] > RISING * max(below):
        note = "; ".join(
            filter(
                None,
                [
                    note,
                    "the rate still rises at the most clients that were measured: a lower bound",
                ],
            )
        )
    if storage == "pfs":
        found = _rate(rows[rows["ranks"] == best], f"{_PFS}.open_rate", note)
        out.parameters.append(replace(found, over={**found.over, "clients": span(rows["ranks"])}))
    _alone(out, rows, storage)
    measured = rows["rate"].to_numpy(float)
    fitted = np.array([means[int(ranks)] for ranks in rows["ranks"]])
    out.residuals.append(
        residuals(rows, f"{operation.replace('_', ' ')} ({storage})", "1/s", measured, fitted, True)
    )
    return out


def _pooled(rows: pd.DataFrame) -> tuple[float, float, int]:
    """Mean, standard deviation and number of all repetitions of some rows, each a mean of ``count``
    with its ``spread``."""
    counts, means = rows["count"].to_numpy(float), rows["rate"].to_numpy(float)
    total = counts.sum()
    mean = float(counts @ means / total)
    within = np.where(
        counts > 1, (counts - 1) * np.nan_to_num(rows["spread"].to_numpy(float)) ** 2, 0.0
    )
    squares = within.sum() + counts @ (means - mean) ** 2
    return mean, float(np.sqrt(squares / (total - 1))) if total > 1 else float("nan"), int(total)


def _rate(rows: pd.DataFrame, key: str, note: str, *, usable: bool = True) -> Parameter:
    mean, spread, count = _pooled(rows)
    error = mean_error(rows["rate"].to_numpy(float), np.full(len(rows), mean))
    low, high = mean_interval(mean, spread, count)
    ends = interval(max(low, 0.0), high) if np.isfinite(low) else (None, None)
    over = {"clients": span(rows["ranks"])} | _file_size(rows)
    return Parameter(
        key,
        mean,
        *ends,
        Dimension.FREQUENCY,
        over,
        error,
        count,
        sources(rows),
        note,
        usable=usable,
    )


def _file_size(rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    return {"file_size": span(rows["nbytes"])} if rows["nbytes"].notna().all() else {}


def _alone(out: Findings, rows: pd.DataFrame, storage: str) -> None:
    """The time of one open for a client that is alone; only where one client was measured."""
    alone = rows[rows["ranks"] == 1]
    if alone.empty:
        out.notes.append(
            f"{sources(rows)}: no run with a single task, so the latency of an open was not fitted."
        )
        return
    rate = _rate(alone, f"{_PFS if storage == 'pfs' else _SSD}.latency", "")
    value = rate.value
    low, high = (
        1 / end if isinstance(end, float) and end > 0 else None for end in (rate.high, rate.low)
    )
    if not isinstance(value, float):
        return
    low, high = (low, high) if low is not None and high is not None else (None, None)
    out.parameters.append(
        replace(rate, value=1 / value, low=low, high=high, dimension=Dimension.SECONDS)
    )

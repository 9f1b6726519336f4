"""Laws of storage, from IOR and mdtest: what all servers together reach, and what one client does.

IOR: c clients get min(c b, B). mdtest: the rate of opens at the number of clients where it is
highest.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.spec.units import Dimension
from simshuffle.studies.calibrate.fit import mean_interval, saturation
from simshuffle.studies.calibrate.parameter import (
    Findings,
    Parameter,
    for_people,
    groups,
    log_curve,
    mean_error,
    residuals,
    sentences,
    sources,
    span,
)

STORAGES = {"pfs": "cluster.parallel_file_system", "ssd": "cluster.ssd"}
"""What can have been measured, and its key in a scenario."""
RISING = 1.1
"""A rate that is higher by this factor at the most clients than at fewer ones is still rising."""
STILL_RISES = "the rate still rises at the most clients that were measured: a lower bound"


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
        chosen = rows["operation"] == operation
        measured, take = rows[chosen], used[chosen].to_numpy(bool)
        if not take.any():
            continue
        shared = storage == "pfs"
        scale = 1.0 if shared else measured["hosts"].fillna(1.0)
        of = measured.assign(ranks=measured["ranks"] / scale, rate=measured["rate"] / scale)
        clients, rate = of[["ranks", "rate"]].to_numpy(float).T
        law = slope, ceiling, _ = saturation(clients[take], rate[take])
        fitted = np.fmin(slope * clients, ceiling)
        name = f"{operation} ({storage})"
        out.residuals.append(residuals(measured, name, "B/s", rate, fitted, take))
        key = f"{STORAGES[storage]}.{operation}_bandwidth"
        found = _ceiling(of[take], law, key)
        if shared and operation == "write":  # scenarios only read from the parallel file system
            found = for_people(found, found.note, "write bandwidth of the parallel file system")
        out.parameters.append(found)
        if shared and operation == "read":
            _by_hosts(out, of[take])
        if shared and math.isfinite(slope):
            about = of[take], mean_error(rate[take], fitted[take]), ["clients"]
            name = f"{operation} bandwidth of a client"
            alone = Parameter.of(*about, name, (slope, math.nan, math.nan), Dimension.BANDWIDTH)
            note = "for comparison only: what one client reads or writes alone"
            out.parameters.append(for_people(alone, note))
    return out


def _ceiling(
    rows: pd.DataFrame, law: tuple[float, float, NDArray[np.bool_]], key: str
) -> Parameter:
    """The bandwidth of all clients together; where none was reached, the highest that was seen."""
    slope, ceiling, flat = law
    rate, note = rows["rate"].to_numpy(float), ""
    if not math.isfinite(slope):
        note = "measured at one number of clients only; more of them may reach more"
    if not flat.any():
        flat = (rows["ranks"] == rows["ranks"].max()).to_numpy(bool)
        ceiling, note = float(np.exp(np.log(rate[flat]).mean())), STILL_RISES
    logs = np.log(rate[flat])
    deviation = float(np.std(logs, ddof=1)) if len(logs) > 1 else math.nan
    low, high = np.exp(mean_interval(float(logs.mean()), deviation, len(logs))).tolist()
    about = rows, mean_error(rate[flat], ceiling), ["clients"]
    found = Parameter.of(*about, key, (ceiling, low, high), Dimension.BANDWIDTH, note)
    return replace(found, rows=int(flat.sum()))


def _by_hosts(out: Findings, rows: pd.DataFrame) -> None:
    """What one host reads at most, over the number of hosts: of the numbers of tasks on them, the
    fastest counts."""
    best = [
        max((of for _, of in groups(at, "ranks")), key=lambda of: float(of["rate"].mean()))
        for _, at in groups(rows[rows["hosts"].notna()], "hosts")
    ]
    if not best:
        return
    taken = pd.concat(best)
    hosts, rate = taken[["hosts", "rate"]].to_numpy(float).T
    curve = log_curve(hosts, rate / hosts)
    key = f"{STORAGES['pfs']}.client_bandwidth"
    found = Parameter.of(taken, curve.error, ["hosts"], key, curve[:3], Dimension.BANDWIDTH)
    out.parameters.append(found)


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
        note = f"{ranks} clients; for comparison only"
        out.parameters.append(for_people(_rate(of, "rate of File stat"), note))
    note = ""
    if operation == "file_stat":
        note = "from 'File stat', which does not open the file; run mdtest with -E for 'File read'"
    means = {int(ranks): _pooled(of)[0] for (ranks,), of in groups(rows, "ranks")}
    best = max(means, key=lambda ranks: means[ranks])
    below = [value for ranks, value in means.items() if ranks < max(means)]
    if below and means[max(means)] > RISING * max(below):
        note = sentences(note, STILL_RISES)
    if storage == "pfs":
        found = _rate(rows[rows["ranks"] == best], f"{STORAGES[storage]}.open_rate")
        over = found.over | {"clients": span(rows["ranks"])}
        out.parameters.append(replace(found, over=over, note=note))
    if (alone := rows[rows["ranks"] == 1]).empty:
        out.notes.append(
            f"{sources(rows)}: no run with a single task, so the latency of an open was not fitted."
        )
    else:
        out.parameters.append(_rate(alone, f"{STORAGES[storage]}.latency", inverse=True))
    measured = rows["rate"].to_numpy(float)
    fitted = np.array([means[int(ranks)] for ranks in rows["ranks"]])
    law = f"{operation.replace('_', ' ')} ({storage})"
    out.residuals.append(residuals(rows, law, "1/s", measured, fitted))
    return out


def _pooled(rows: pd.DataFrame) -> tuple[float, float, int]:
    """Mean, standard deviation and number of all repetitions of some rows, each a mean of ``count``
    with its ``spread``."""
    counts, means, spreads = rows[["count", "rate", "spread"]].to_numpy(float).T
    total = counts.sum()
    mean = float(counts @ means / total)
    within = np.where(counts > 1, (counts - 1) * np.nan_to_num(spreads) ** 2, 0.0)
    squares = within.sum() + counts @ (means - mean) ** 2
    return mean, float(np.sqrt(squares / (total - 1))) if total > 1 else math.nan, int(total)


def _rate(rows: pd.DataFrame, key: str, *, inverse: bool = False) -> Parameter:
    """The rate of opens of some clients; or if ``inverse`` the time of an open of one."""
    mean, spread, count = _pooled(rows)
    low, high = mean_interval(mean, spread, count)
    quantities = ["clients"] + ["file_size"] * bool(rows["nbytes"].notna().all())
    error = mean_error(rows["rate"].to_numpy(float), mean)
    if inverse:
        ends = (1 / high, 1 / low) if low > 0 else (math.nan, math.nan)
        estimate, dimension = (1 / mean, *ends), Dimension.SECONDS
    else:
        estimate, dimension = (mean, max(low, 0.0), high), Dimension.FREQUENCY
    found = Parameter.of(rows, error, quantities, key, estimate, dimension)
    return replace(found, rows=count)

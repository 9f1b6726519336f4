"""Laws of storage, from IOR and mdtest.

IOR: c clients get min(c b, B), B of all servers together. mdtest: the rate of opens at the number
of clients where it is highest. Each law takes measurements of one way to use files alone: `alike`.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.extensions.calibration.calibrate import alike
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    groups,
    log_curve,
    mean_error,
    sentences,
    sources,
    span,
)
from simshuffle.extensions.calibration.calibrate.fit import mean_interval, saturation
from simshuffle.extensions.calibration.calibrate.ior_run import UNSYNCED
from simshuffle.extensions.calibration.calibrate.laws import COMPARED
from simshuffle.extensions.calibration.calibrate.mdtest import OWN_HOST
from simshuffle.spec.units import Dimension

STORAGES = {"pfs": "cluster.parallel_file_system", "ssd": "cluster.ssd"}
"""What can have been measured, and its key in a scenario."""
RISING = 1.1
"""A rate that is higher by this factor at the most clients than at fewer ones is still rising."""
STILL_RISES = "the rate still rises at the most clients that were measured: a lower bound"
NO_INTERVAL = (math.nan, math.nan)
_UNSYNCED_NOTE = "written without -e: what hosts still held in memory counts as written"
_OWN_HOST_NOTE = (
    "opened on the hosts that created the files (mdtest without -N): their caches may have answered"
)


def transfers(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Read and write bandwidth from IOR, from the rows that are ``used``, of the ``storage`` 'pfs',
    the parallel file system, or 'ssd', the SSDs of the hosts, of which each has its share."""
    out = Findings()
    for operation in ("read", "write"):
        chosen = alike.choose_transfers(out, rows[rows["operation"] == operation], operation)
        measured = chosen if storage == "ssd" else alike.choose_hosts(out, chosen, operation)
        take = used[measured.index].to_numpy(bool)
        if not take.any():
            continue
        shared = storage == "pfs"
        scale = 1.0 if shared else measured["hosts"].fillna(1.0)
        of = measured.assign(ranks=measured["ranks"] / scale, rate=measured["rate"] / scale)
        clients, rate = of[["ranks", "rate"]].to_numpy(float).T
        law = slope, ceiling, _ = saturation(clients[take], rate[take])
        fitted = np.fmin(slope * clients, ceiling)
        out.compare(measured, f"{operation} ({storage})", "B/s", rate, fitted, take)
        key = f"{STORAGES[storage]}.{operation}_bandwidth"
        # scenarios only read from the parallel file system
        name = "write bandwidth of the parallel file system" * (shared and operation == "write")
        is_unsynced = of["algorithm"].str.contains(UNSYNCED).any()
        _ceiling(out, of[take], law, key, name, _UNSYNCED_NOTE if is_unsynced else "")
        if shared and operation == "read":
            _by_hosts(out, chosen[used[chosen.index]])
        if shared and math.isfinite(slope):
            error, estimate = mean_error(rate[take], fitted[take]), (slope, *NO_INTERVAL)
            note = f"{COMPARED}what one client reads or writes alone"
            name, bandwidth = f"{operation} bandwidth of a client", Dimension.BANDWIDTH
            out.add(of[take], error, ["clients"], "", estimate, bandwidth, note, name=name)
    return out


def _ceiling(
    out: Findings,
    rows: pd.DataFrame,
    law: tuple[float, float, NDArray[np.bool_]],
    key: str,
    name: str,
    note: str,
) -> None:
    """The bandwidth of all clients together; where none was reached, the highest that was seen."""
    slope, ceiling, flat = law
    rate = rows["rate"].to_numpy(float)
    if not math.isfinite(slope):
        once = "measured at one number of clients only; more of them may reach more"
        note = sentences(note, once)
    if not flat.any():
        flat = (rows["ranks"] == rows["ranks"].max()).to_numpy(bool)
        ceiling, note = float(np.exp(np.log(rate[flat]).mean())), sentences(note, STILL_RISES)
    logs = np.log(rate[flat])
    deviation = float(np.std(logs, ddof=1)) if len(logs) > 1 else math.nan
    low, high = np.exp(mean_interval(float(logs.mean()), deviation, len(logs))).tolist()
    about, count = (rows, mean_error(rate[flat], ceiling), ["clients"]), int(flat.sum())
    estimate, bandwidth = (ceiling, low, high), Dimension.BANDWIDTH
    out.add(*about, key, estimate, bandwidth, note, name=name, count=count)


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
    out.add(taken, curve.error, ["hosts"], key, curve[:3], Dimension.BANDWIDTH)


def opens(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Rate of opens, and the time of one for a lone client, from mdtest: 'File read' (open, read,
    close), or else 'File stat'."""
    out = Findings()
    rows = rows[used]
    if rows.empty:
        return out
    operation = "file_read" if (rows["operation"] == "file_read").any() else "file_stat"
    other = rows[rows["operation"] != operation]
    rows = alike.choose_files(out, rows[rows["operation"] == operation], operation)
    for (ranks,), of in groups(other, "ranks"):
        _rate(out, of, "", f"{ranks} clients; for comparison only", name="rate of File stat")
    note = ""
    if operation == "file_stat":
        note = "from 'File stat', which does not open the file; run mdtest with -E for 'File read'"
    if rows["algorithm"].str.contains(OWN_HOST).any():
        note = sentences(note, _OWN_HOST_NOTE)
    means = {int(ranks): _pooled(of)[0] for (ranks,), of in groups(rows, "ranks")}
    best = max(means, key=lambda ranks: means[ranks])
    below = [value for ranks, value in means.items() if ranks < max(means)]
    if below and means[max(means)] > RISING * max(below):
        note = sentences(note, STILL_RISES)
    if storage == "pfs":
        _rate(out, rows[rows["ranks"] == best], f"{STORAGES[storage]}.open_rate", note)
        out.parameters[-1].over["clients"] = span(rows["ranks"])
    if (alone := rows[rows["ranks"] == 1]).empty:
        out.notes.append(
            f"{sources(rows)}: no run with a single task, so the latency of an open was not fitted."
        )
    else:
        _rate(out, alone, f"{STORAGES[storage]}.latency")
    measured = rows["rate"].to_numpy(float)
    fitted = np.array([means[int(ranks)] for ranks in rows["ranks"]])
    law = f"{operation.replace('_', ' ')} ({storage})"
    out.compare(rows, law, "1/s", measured, fitted)
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


def _rate(out: Findings, rows: pd.DataFrame, key: str, note: str = "", *, name: str = "") -> None:
    """The rate of opens of some clients; or as a latency the time of an open of one."""
    mean, spread, count = _pooled(rows)
    low, high = mean_interval(mean, spread, count)
    over = ["clients"] + ["file_size"] * bool(rows["nbytes"].notna().all())
    estimate, dimension = (mean, max(low, 0.0), high), Dimension.FREQUENCY
    if key.endswith("latency"):
        ends = (1 / high, 1 / low) if low > 0 else NO_INTERVAL
        estimate, dimension = (1 / mean, *ends), Dimension.SECONDS
    error = mean_error(rows["rate"].to_numpy(float), mean)
    out.add(rows, error, over, key, estimate, dimension, note, name=name, count=count)

"""Laws of messages and of collectives, from nccl-tests or OSU tables, and of storage.

A message between two ranks: t = a + n / B (Hockney, Parallel Computing 20, 1994).

Allreduce on a ring of p ranks on H hosts (Patarasuk and Yuan, JPDC 2009; steps as NCCL's tuning
counts them): t = 2 (H-1) a_inter + [2 (p-1) - 2 (H-1)] a_intra + 2 (p-1)/p n / B. This is what
`simshuffle.allreduce.nccl` simulates.

IOR: c clients get min(c b, B), B of all servers together. mdtest: the rate of opens at the number
of clients where it is highest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import refuse
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.units import Dimension
from simshuffle.studies.calibrate.findings import (
    Findings,
    groups,
    log_curve,
    mean_error,
    sentences,
    sources,
    span,
)
from simshuffle.studies.calibrate.fit import Fit, mean_interval, relative_fit, saturation

LATENCY = "cluster.message_passing.latency"
BANDWIDTH = "cluster.message_passing.stream_bandwidth"
NO_LATENCY = "the data need no latency; its interval cannot be given"
NO_BANDWIDTH = (
    "the times do not grow with the size; no bandwidth was fitted. Measure larger messages."
)
LEAST_SHARE = 0.2
"""Share of the time that must be transfer for a size to become a point of the bandwidth curve."""
LEAST_POINTS = 3
"""Sizes that a curve has at least."""
MISFIT = 0.05
"""Mean relative error above which a single bandwidth does not fit."""
SHORT = 4.0
"""Times up to this multiple of the shortest are those of short messages."""
OVER = ("world_size", "hosts", "message_size")
STORAGES = {"pfs": "cluster.parallel_file_system", "ssd": "cluster.ssd"}
"""What can have been measured, and its key in a scenario."""
RISING = 1.1
"""A rate that is higher by this factor at the most clients than at fewer ones is still rising."""
STILL_RISES = "the rate still rises at the most clients that were measured: a lower bound"
COMPARED = "for comparison only: "
NO_INTERVAL = (math.nan, math.nan)


class Side(NamedTuple):
    """One of the two sides of a ring."""

    name: str
    latency: str  # key that it sets
    bandwidth: str  # likewise


INTRA, INTER = (
    Side(name, f"workload.allreduce.{key}_latency", f"workload.allreduce.{key}_bus_bandwidth")
    for name, key in (("inside a host", "intra_host"), ("between hosts", "inter_host"))
)


def allreduce(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Latencies and bus bandwidths of a ring, inside a host and between hosts, from the rows that
    are ``used``; the others are predicted.

    Raises:
        InputError: the rows are of two tools, or do not say on how many hosts they ran.
    """
    out = Findings()
    kept = rows["nbytes"] > 0
    rows, used = rows[kept], used[kept]
    if rows.empty:
        return out
    tools = list(dict.fromkeys(rows["tool"]))
    if len(tools) > 1:
        remedy = "Give the files of one of them; MPI and NCCL reduce at different speeds."
        refuse("", "allreduce was measured by two tools", ", ".join(tools), remedy, "calibrate")
    unknown = rows[rows["hosts"].isna()]
    if len(unknown):
        first, rule = unknown.iloc[0], "does not say on how many hosts it ran"
        refuse(f"line {first['line']}", rule, "", "Add --hosts H.", str(first["source"]))
    inside = rows["hosts"] == 1
    known = _side(out, INTRA, rows[inside], used[inside], None)
    _side(out, INTER, rows[~inside], used[~inside], known)
    return out


def _side(
    out: Findings, side: Side, rows: pd.DataFrame, used: pd.Series, intra_latency: float | None
) -> float | None:
    """Fit one side; returns its latency, None if it has no rows."""
    if not used.any():
        if len(rows):
            out.notes.append(
                f"allreduce {side.name}: all {len(rows)} rows are beyond --fit-up-to; nothing was"
                " fitted."
            )
        return None
    p, h, nbytes = (rows[name].to_numpy(float) for name in ("ranks", "hosts", "nbytes"))
    inter, bus = 2 * (h - 1), 2 * (p - 1) / p * nbytes
    intra = 2 * (p - 1) - inter
    note, offset, steps = "", np.zeros(len(rows)), intra + inter
    if side is INTER and (intra > 0).any():
        if intra_latency is None:
            note = (
                "the files cannot tell steps inside a host from those between hosts; both got the"
                " same latency"
            )
        else:
            offset, steps = intra * intra_latency, inter
    taken = rows.assign(steps=steps, bus=bus, offset=offset)[used]
    latency = _latency(out, taken, [INTRA.latency, INTER.latency] if note else [side.latency], note)
    bandwidth = _bandwidth(out, side, taken, latency)
    with np.errstate(divide="ignore"):
        transfer = bus / np.array([bandwidth(n) for n in nbytes]) if bandwidth else 0.0
    fitted, y = offset + steps * latency + transfer, rows["seconds"].to_numpy(float)
    out.compare(rows, f"ring {side.name}", "s", y, fitted, used)
    return latency


def _ring(rows: pd.DataFrame) -> tuple[Fit, float]:
    """The law of a ring with one latency (of ``steps``) and one bandwidth (of ``bus`` bytes) beside
    the ``offset`` that is known, and its mean error."""
    y = rows["seconds"].to_numpy(float)
    x = np.column_stack([rows["steps"], rows["bus"]])
    fit = relative_fit(x, y, rows["offset"].to_numpy(float))
    return fit, mean_error(y, fit.fitted)


def _latency(out: Findings, rows: pd.DataFrame, keys: list[str], note: str) -> float:
    """The latency of a step: from all rows, or where one bandwidth does not fit them, from the
    short ones."""
    fit, error = _ring(rows)
    short = rows[rows["seconds"] <= SHORT * rows["seconds"].min()]
    if error > MISFIT and short["nbytes"].nunique() > 1:
        rows, (fit, error) = short, _ring(short)
        why = "from the shortest messages, since no single bandwidth fits all sizes"
        note = sentences(note, why)
    if fit.value[0] == 0:
        note = sentences(note, NO_LATENCY)
    for key in keys:
        out.add(rows, error, OVER, key, fit.coefficient(0), Dimension.SECONDS, note)
    return float(fit.value[0])


def _bandwidth(out: Findings, side: Side, rows: pd.DataFrame, latency: float) -> Curve | None:
    """The bus bandwidth: one for all sizes where that fits, else a curve over the size of the
    message; None if there is none."""
    fit, error = _ring(rows)
    if fit.value[1] == 0:
        out.notes.append(f"allreduce {side.name}: {NO_BANDWIDTH}")
        return None
    single = rows, error, OVER, side.bandwidth, fit.inverse(1), Dimension.BANDWIDTH
    transfer = rows["seconds"] - rows["offset"] - rows["steps"] * latency
    most = rows.assign(rate=rows["bus"] / transfer)[transfer >= LEAST_SHARE * rows["seconds"]]
    if most["nbytes"].nunique() < LEAST_POINTS:
        out.add(*single)
    else:
        curve = log_curve(*most[["nbytes", "rate"]].to_numpy(float).T)
        by_size = most, curve.error, OVER, side.bandwidth, curve[:3], Dimension.BANDWIDTH
        name = f"bus bandwidth {side.name}"
        if error > MISFIT:
            out.add(*by_size)
            out.add(*single, "does not fit all sizes", name=f"{name}, one for all sizes")
            places, values = zip(*curve.points, strict=True)
            return Curve(places, values)
        out.add(*single)
        out.add(*by_size, "one bandwidth fits all sizes", name=f"{name} by size")
    return Curve((0.0,), (float(1 / fit.value[1]),), constant=True)


def point_to_point(latency: pd.DataFrame, stream: pd.DataFrame) -> Findings:
    """Latency of a message from ``latency`` (osu_latency); bandwidth from ``stream`` (osu_bw), or
    where that is empty from ``latency``.

    osu_latency times one message at a time, osu_bw a window of many; there n / bandwidth is the
    time of a message, and its constant part is the rate at which messages are sent, not a latency.
    """
    out = Findings()
    for given, streaming in ((latency, False), (stream, True)):
        # an empty message tells the latency of a shorter path in some libraries
        rows = given[given["nbytes"] > 0]
        if rows.empty:
            continue
        nbytes, rate, seconds = rows[["nbytes", "rate", "seconds"]].to_numpy(float).T
        y = nbytes / rate if streaming else seconds
        fit = relative_fit(np.column_stack([np.ones(len(rows)), nbytes]), y)
        about = rows, mean_error(y, fit.fitted), ("message_size",)
        if streaming:
            out.compare(rows, "stream of messages", "B/s", rate, nbytes / fit.fitted)
        else:
            out.compare(rows, "message", "s", y, fit.fitted)
            note = NO_LATENCY if fit.value[0] == 0 else ""
            out.add(*about, LATENCY, fit.coefficient(0), Dimension.SECONDS, note)
        if fit.value[1] == 0:
            out.notes.append(f"{sources(rows)}: {NO_BANDWIDTH}")
            continue
        why = "of one message at a time; osu_bw was given too, and is of a stream"
        out.parameters = [
            replace(p, usable=False, note=why) if p.key == BANDWIDTH else p for p in out.parameters
        ]
        out.add(*about, BANDWIDTH, fit.inverse(1), Dimension.BANDWIDTH)
    return out


# ------------------------------------------------------------------------------------------ storage


def transfers(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Read and write bandwidth from IOR, from the rows that are ``used``, of the ``storage`` 'pfs',
    the parallel file system, or 'ssd', the SSDs of the hosts, of which each has its share."""
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
        out.compare(measured, f"{operation} ({storage})", "B/s", rate, fitted, take)
        key = f"{STORAGES[storage]}.{operation}_bandwidth"
        # scenarios only read from the parallel file system
        name = "write bandwidth of the parallel file system" * (shared and operation == "write")
        _ceiling(out, of[take], law, key, name)
        if shared and operation == "read":
            _by_hosts(out, of[take])
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
) -> None:
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
    rows = rows[rows["operation"] == operation]
    for (ranks,), of in groups(other, "ranks"):
        _rate(out, of, "", f"{ranks} clients; for comparison only", name="rate of File stat")
    note = ""
    if operation == "file_stat":
        note = "from 'File stat', which does not open the file; run mdtest with -E for 'File read'"
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

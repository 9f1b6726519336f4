"""Laws of messages and of collectives, from nccl-tests or OSU tables.

A message between two ranks: t = a + n / B (Hockney, Parallel Computing 20, 1994).

Allreduce on a ring of p ranks on H hosts (Patarasuk and Yuan, JPDC 2009; steps as NCCL's tuning
counts them): t = 2 (H-1) a_inter + [2 (p-1) - 2 (H-1)] a_intra + 2 (p-1)/p n / B. This is what
`simshuffle.fabric.allreduce.nccl` simulates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    log_curve,
    mean_error,
    sentences,
    sources,
)
from simshuffle.extensions.calibration.calibrate.fit import LinearFit, relative_fit
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.units import Dimension

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
COMPARED = "for comparison only: "


class RingSide(NamedTuple):
    """One of the two sides of a ring."""

    name: str
    latency: str  # key that it sets
    bandwidth: str  # likewise


INTRA, INTER = (
    RingSide(name, f"workload.allreduce.{key}_latency", f"workload.allreduce.{key}_bus_bandwidth")
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
    out: Findings, side: RingSide, rows: pd.DataFrame, used: pd.Series, intra_latency: float | None
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


def _ring(rows: pd.DataFrame) -> tuple[LinearFit, float]:
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


def _bandwidth(out: Findings, side: RingSide, rows: pd.DataFrame, latency: float) -> Curve | None:
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

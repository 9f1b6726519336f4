"""Laws of collectives, from nccl-tests or OSU tables.

Allreduce on a ring of p ranks on H hosts (Patarasuk and Yuan, JPDC 2009; steps as NCCL's tuning
counts them): t = 2 (H-1) a_inter + [2 (p-1) - 2 (H-1)] a_intra + 2 (p-1)/p n / B. This is what
`simshuffle.allreduce.ring` simulates.

All-to-all: t = (p-1) (a + m / b), with m bytes for each pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.units import Dimension
from simshuffle.studies.calibrate.fit import Floats, relative_fit
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

LEAST_SHARE = 0.2
"""Share of the time that must be transfer for a size to become a point of the bandwidth curve."""
LEAST_POINTS = 3
"""Sizes that a curve has at least."""
MISFIT = 0.05
"""Mean relative error above which a single bandwidth does not fit."""
SHORT = 4.0
"""Times up to this multiple of the shortest are those of short messages."""


class _Side(NamedTuple):
    """One of the two sides of a ring: the keys it sets, and its name."""

    name: str
    latency: str
    bandwidth: str


INTRA = _Side(
    "inside a host",
    "workload.allreduce.intra_host_latency",
    "workload.allreduce.intra_host_bus_bandwidth",
)
INTER = _Side(
    "between hosts",
    "workload.allreduce.inter_host_latency",
    "workload.allreduce.inter_host_bus_bandwidth",
)


def allreduce(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Latencies and bus bandwidths of a ring, inside a host and between hosts.

    Args:
        rows: measurements with the operation all_reduce.
        used: which of them to fit; the others are predicted.

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
        raise InputError(
            Problem("", "allreduce was measured by two tools", ", ".join(tools), remedy),
            "calibrate",
        )
    unknown = rows[rows["hosts"].isna()]
    if len(unknown):
        problem = Problem(
            f"line {unknown['line'].iloc[0]}",
            "does not say on how many hosts it ran",
            remedy="Add --hosts H.",
        )
        raise InputError(problem, str(unknown["source"].iloc[0]))
    inside = rows["hosts"] == 1
    known = _side(out, INTRA, rows[inside], used[inside], None)
    _side(out, INTER, rows[~inside], used[~inside], known)
    return out


def _factors(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    """Steps inside hosts, steps between hosts, and bytes over the bus bandwidth, of each row."""
    p, h = rows["ranks"].to_numpy(float), rows["hosts"].to_numpy(float)
    inter = 2 * (h - 1)
    return 2 * (p - 1) - inter, inter, 2 * (p - 1) / p * rows["nbytes"].to_numpy(float)


def _side(
    out: Findings, side: _Side, rows: pd.DataFrame, used: pd.Series, intra_latency: float | None
) -> float | None:
    """Fit one side; returns its latency, None if it has no rows."""
    if not used.any():
        if len(rows):
            out.notes.append(
                f"allreduce {side.name}: all {len(rows)} rows are beyond --fit-up-to; nothing was"
                " fitted."
            )
        return None
    intra, inter, bus = _factors(rows)
    note, offset, steps = "", np.zeros(len(rows)), intra + inter
    if side is INTER and (intra > 0).any():
        if intra_latency is None:
            note = (
                "the files cannot tell steps inside a host from those between hosts; both got the"
                " same latency"
            )
        else:
            offset, steps = intra * intra_latency, inter
    y, chosen = rows["seconds"].to_numpy(float), used.to_numpy(bool)
    ring = _Ring(np.column_stack([steps, bus])[chosen], y[chosen], offset[chosen], rows[used])
    latency = _latency(out, ring, [INTRA.latency, INTER.latency] if note else [side.latency], note)
    bandwidth = _bandwidth(out, side, ring, latency)
    with np.errstate(divide="ignore"):
        transfer = bus / np.array([bandwidth(n) for n in rows["nbytes"]]) if bandwidth else 0.0
    out.residuals.append(
        residuals(rows, f"ring {side.name}", "s", y, offset + steps * latency + transfer, chosen)
    )
    return latency


class _Ring(NamedTuple):
    """Rows to fit: steps and bytes over the bus bandwidth (n, 2), measured times (n,), the part of
    them that is known (n,)."""

    x: Floats
    y: Floats
    offset: Floats
    rows: pd.DataFrame

    def part(self, chosen: NDArray[np.bool_]) -> _Ring:
        """Some of the rows."""
        return _Ring(self.x[chosen], self.y[chosen], self.offset[chosen], self.rows[chosen])

    def over(self) -> dict[str, tuple[float, float]]:
        """What was measured."""
        return {name: span(self.rows[column]) for name, column in _OVER.items()}


_OVER = {"world_size": "ranks", "hosts": "hosts", "message_size": "nbytes"}


def _latency(out: Findings, ring: _Ring, keys: list[str], note: str) -> float:
    """The latency of a step: from all rows, or where one bandwidth does not fit them, from the
    short ones."""
    fit = relative_fit(ring.x, ring.y, ring.offset)
    if mean_error(ring.y, fit.fitted) > MISFIT:
        short = ring.part(ring.y <= SHORT * ring.y.min())
        if short.rows["nbytes"].nunique() > 1:
            ring, fit = short, relative_fit(short.x, short.y, short.offset)
            note = "; ".join(
                filter(
                    None,
                    [note, "from the shortest messages, since no single bandwidth fits all sizes"],
                )
            )
    if fit.value[0] == 0:
        note = "; ".join(
            filter(None, [note, "the data need no latency; its interval cannot be given"])
        )
    error, ends = mean_error(ring.y, fit.fitted), interval(fit.low[0], fit.high[0])
    value, source = float(fit.value[0]), sources(ring.rows)
    out.parameters += [
        Parameter(
            key, value, *ends, Dimension.SECONDS, ring.over(), error, len(ring.y), source, note
        )
        for key in keys
    ]
    return value


def _bandwidth(out: Findings, side: _Side, ring: _Ring, latency: float) -> Curve | None:
    """The bus bandwidth: one for all sizes where that fits, else a curve over the size of the
    message; None if there is none."""
    fit = relative_fit(ring.x, ring.y, ring.offset)
    if fit.value[1] == 0:
        out.notes.append(
            f"allreduce {side.name}: the times do not grow with the size; no bandwidth was fitted."
            " Measure larger messages."
        )
        return None
    single, error = float(1 / fit.value[1]), mean_error(ring.y, fit.fitted)
    transfer = ring.y - ring.offset - ring.x[:, 0] * latency
    most = ring.part(transfer >= LEAST_SHARE * ring.y)
    if most.rows["nbytes"].nunique() < LEAST_POINTS:
        ends, source = interval(1 / fit.high[1], 1 / fit.low[1]), sources(ring.rows)
        out.parameters.append(
            Parameter(
                side.bandwidth,
                single,
                *ends,
                Dimension.BANDWIDTH,
                ring.over(),
                error,
                len(ring.y),
                source,
            )
        )
        return Curve((0.0,), (single,), constant=True)
    taken = transfer[transfer >= LEAST_SHARE * ring.y]
    curve = log_curve(most.rows["nbytes"].to_numpy(float), most.x[:, 1] / taken)
    by_size = (
        curve.points,
        curve.low,
        curve.high,
        Dimension.BANDWIDTH,
        most.over(),
        curve.error,
        len(taken),
        sources(most.rows),
    )
    ends, source = interval(1 / fit.high[1], 1 / fit.low[1]), sources(ring.rows)
    for_all = (single, *ends, Dimension.BANDWIDTH, ring.over(), error, len(ring.y), source)
    name = f"bus bandwidth {side.name}"
    if error <= MISFIT:
        out.parameters += [
            Parameter(side.bandwidth, *for_all),
            Parameter(f"{name} by size", *by_size, "one bandwidth fits all sizes", usable=False),
        ]
        return Curve((0.0,), (single,), constant=True)
    out.parameters += [
        Parameter(side.bandwidth, *by_size),
        Parameter(f"{name}, one for all sizes", *for_all, "does not fit all sizes", usable=False),
    ]
    places, values = zip(*curve.points, strict=True)
    return Curve(places, values)


def all_to_all(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Latency of a message and bandwidth of a rank. A scenario has no key for them; the exchange is
    simulated message by message."""
    out = Findings()
    kept = rows["nbytes"] > 0
    rows, used = rows[kept], used[kept]
    if not used.any():
        return out
    peers = rows["ranks"].to_numpy(float) - 1
    x, y = (
        np.column_stack([peers, peers * rows["nbytes"].to_numpy(float)]),
        rows["seconds"].to_numpy(float),
    )
    chosen = used.to_numpy(bool)
    fit = relative_fit(x[chosen], y[chosen])
    out.residuals.append(residuals(rows, "all to all", "s", y, x @ fit.value, chosen))
    over = {
        "world_size": span(rows.loc[used, "ranks"]),
        "message_size": span(rows.loc[used, "nbytes"]),
    }
    error, source, count = mean_error(y[chosen], fit.fitted), sources(rows), int(chosen.sum())
    note = "for comparison only: the exchange is simulated message by message"
    ends = interval(fit.low[0], fit.high[0])
    out.parameters.append(
        Parameter(
            "all to all: latency",
            float(fit.value[0]),
            *ends,
            Dimension.SECONDS,
            over,
            error,
            count,
            source,
            note,
            usable=False,
        )
    )
    if fit.value[1] > 0:
        ends = interval(1 / fit.high[1], 1 / fit.low[1])
        name, value = "all to all: bandwidth of a rank", float(1 / fit.value[1])
        out.parameters.append(
            Parameter(
                name,
                value,
                *ends,
                Dimension.BANDWIDTH,
                over,
                error,
                count,
                source,
                note,
                usable=False,
            )
        )
    return out

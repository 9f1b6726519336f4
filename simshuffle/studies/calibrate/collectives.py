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
from simshuffle.studies.calibrate.findings import (
    Findings,
    basis,
    for_people,
    log_curve,
    mean_error,
    residuals,
    sentences,
)
from simshuffle.studies.calibrate.fit import Fit, Floats, relative_fit
from simshuffle.studies.calibrate.messages import NO_BANDWIDTH, NO_LATENCY
from simshuffle.studies.calibrate.parameter import Parameter

LEAST_SHARE = 0.2
"""Share of the time that must be transfer for a size to become a point of the bandwidth curve."""
LEAST_POINTS = 3
"""Sizes that a curve has at least."""
MISFIT = 0.05
"""Mean relative error above which a single bandwidth does not fit."""
SHORT = 4.0
"""Times up to this multiple of the shortest are those of short messages."""
OVER = ("world_size", "hosts", "message_size")


class Side(NamedTuple):
    """One of the two sides of a ring: its name, and the keys that it sets."""

    name: str
    latency: str
    bandwidth: str


INTRA, INTER = (
    Side(name, f"workload.allreduce.{key}_latency", f"workload.allreduce.{key}_bus_bandwidth")
    for name, key in (("inside a host", "intra_host"), ("between hosts", "inter_host"))
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
        problem = Problem("", "allreduce was measured by two tools", ", ".join(tools), remedy)
        raise InputError(problem, "calibrate")
    unknown = rows[rows["hosts"].isna()]
    if len(unknown):
        first, rule = unknown.iloc[0], "does not say on how many hosts it ran"
        problem = Problem(f"line {first['line']}", rule, remedy="Add --hosts H.")
        raise InputError(problem, str(first["source"]))
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
    fitted = offset + steps * latency + transfer
    out.residuals.append(residuals(rows, f"ring {side.name}", "s", y, fitted, chosen))
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

    def fit(self) -> tuple[Fit, float]:
        """The law with one latency and one bandwidth, and its mean error."""
        fit = relative_fit(self.x, self.y, self.offset)
        return fit, mean_error(self.y, fit.fitted)


def _latency(out: Findings, ring: _Ring, keys: list[str], note: str) -> float:
    """The latency of a step: from all rows, or where one bandwidth does not fit them, from the
    short ones."""
    fit, error = ring.fit()
    short = ring.part(ring.y <= SHORT * ring.y.min())
    if error > MISFIT and short.rows["nbytes"].nunique() > 1:
        ring, (fit, error) = short, short.fit()
        why = "from the shortest messages, since no single bandwidth fits all sizes"
        note = sentences(note, why)
    if fit.value[0] == 0:
        note = sentences(note, NO_LATENCY)
    of = basis(ring.rows, error, *OVER)
    out.parameters += [
        Parameter(key, *fit.coefficient(0), Dimension.SECONDS, **of, note=note) for key in keys
    ]
    return float(fit.value[0])


def _bandwidth(out: Findings, side: Side, ring: _Ring, latency: float) -> Curve | None:
    """The bus bandwidth: one for all sizes where that fits, else a curve over the size of the
    message; None if there is none."""
    fit, error = ring.fit()
    if fit.value[1] == 0:
        out.notes.append(f"allreduce {side.name}: {NO_BANDWIDTH}")
        return None
    of = basis(ring.rows, error, *OVER)
    single = Parameter(side.bandwidth, *fit.inverse(1), Dimension.BANDWIDTH, **of)
    transfer = ring.y - ring.offset - ring.x[:, 0] * latency
    long = transfer >= LEAST_SHARE * ring.y
    most = ring.part(long)
    name = f"bus bandwidth {side.name}"
    if most.rows["nbytes"].nunique() < LEAST_POINTS:
        out.parameters.append(single)
    else:
        curve = log_curve(most.rows["nbytes"].to_numpy(float), most.x[:, 1] / transfer[long])
        of = basis(most.rows, curve.error, *OVER)
        by_size = Parameter(side.bandwidth, *curve[:3], Dimension.BANDWIDTH, **of)
        if error > MISFIT:
            other = f"{name}, one for all sizes"
            out.parameters += [by_size, for_people(single, "does not fit all sizes", other)]
            places, values = zip(*curve.points, strict=True)
            return Curve(places, values)
        why = "one bandwidth fits all sizes"
        out.parameters += [single, for_people(by_size, why, f"{name} by size")]
    return Curve((0.0,), (float(1 / fit.value[1]),), constant=True)


def all_to_all(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Latency of a message and bandwidth of a rank. A scenario has no key for them; the exchange is
    simulated message by message."""
    out = Findings()
    kept = rows["nbytes"] > 0
    rows, used = rows[kept], used[kept]
    if not used.any():
        return out
    peers, nbytes = rows["ranks"].to_numpy(float) - 1, rows["nbytes"].to_numpy(float)
    x, y = np.column_stack([peers, peers * nbytes]), rows["seconds"].to_numpy(float)
    chosen = used.to_numpy(bool)
    fit = relative_fit(x[chosen], y[chosen])
    out.residuals.append(residuals(rows, "all to all", "s", y, x @ fit.value, chosen))
    of = basis(rows[used], mean_error(y[chosen], fit.fitted), "world_size", "message_size")
    found = [Parameter("all to all: latency", *fit.coefficient(0), Dimension.SECONDS, **of)]
    if fit.value[1] > 0:
        name = "all to all: bandwidth of a rank"
        found.append(Parameter(name, *fit.inverse(1), Dimension.BANDWIDTH, **of))
    note = "for comparison only: the exchange is simulated message by message"
    out.parameters += [for_people(parameter, note) for parameter in found]
    return out

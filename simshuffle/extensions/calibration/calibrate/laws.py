"""Laws of messages and of collectives, from nccl-tests or OSU tables.

A message between two ranks: t = a + n / B (Hockney, Parallel Computing 20, 1994).

Allreduce on a ring of p ranks on H hosts (Patarasuk and Yuan, JPDC 2009; steps as
NCCL's tuning counts them): t = 2 (H-1) a_inter + [2 (p-1) - 2 (H-1)] a_intra + 2
(p-1)/p n / B. This is what `simshuffle.fabric.allreduce.nccl` simulates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    FitBasis,
    describe_sources,
    join_notes,
    log_curve,
    mean_error,
)
from simshuffle.extensions.calibration.calibrate.fit import LinearFit, relative_fit
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.units import Dimension

LATENCY = "cluster.message_passing.latency"
BANDWIDTH = "cluster.message_passing.stream_bandwidth"
NO_LATENCY = "the times fit best with a latency of 0 s, which has no interval"
NO_BANDWIDTH = (
    "the times do not grow with the size; no bandwidth was"
    " fitted. Measure larger messages."
)
MIN_TRANSFER_SHARE = 0.2
"""Share of the time that must be transfer for a size to become a point of the bandwidth
curve.
"""
MIN_CURVE_SIZES = 3
"""Sizes that a curve has at least."""
MISFIT = 0.05
"""Mean relative error above which a single bandwidth does not fit."""
MAX_SHORT_FACTOR = 4.0
"""Times up to this multiple of the shortest are those of short messages."""
MEASURED_OVER = ("world_size", "hosts", "message_size")
COMPARISON_NOTE = "for comparison only: "


class RingSide(NamedTuple):
    """The part of a ring inside a host or between hosts, and its keys in a scenario."""

    name: str
    latency: str  # key that it sets
    bandwidth: str  # key that it sets


INTRA, INTER = (
    RingSide(
        name,
        f"workload.allreduce.{key}_latency",
        f"workload.allreduce.{key}_bus_bandwidth",
    )
    for name, key in (("inside a host", "intra_host"), ("between hosts", "inter_host"))
)


def fit_allreduce(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Fit the latencies and bus bandwidths of a ring, inside a host and between hosts.

    Rows without bytes are left out; without any other, nothing is found. A side of
    which no row is used has no parameters, and a note if it has rows.

    Args:
        rows: measurements of allreduces.
        used: (rows,) which of them to fit, with the index of ``rows``; the others are
            predicted.

    Raises:
        InputError: the rows are of two tools, or do not say on how many hosts they ran.
    """
    findings = Findings()
    has_bytes = rows["nbytes"] > 0
    rows = rows[has_bytes]
    used = used[has_bytes]
    if rows.empty:
        return findings
    tools = list(dict.fromkeys(rows["tool"]))
    if len(tools) > 1:
        remedy = "Give the files of one tool; MPI and NCCL reduce at different speeds."
        refuse(
            "",
            "allreduce was measured by two tools",
            ", ".join(tools),
            remedy,
            "calibrate",
        )
    unknown = rows[rows["hosts"].isna()]
    if len(unknown):
        unknown_row = unknown.iloc[0]
        path = f"line {unknown_row['line']}"
        rule = "does not say on how many hosts it ran"
        refuse(path, rule, "", "Add --hosts H.", str(unknown_row["source"]))
    is_inside_host = rows["hosts"] == 1
    intra_latency = fit_ring_side(
        findings, INTRA, rows[is_inside_host], used[is_inside_host], None
    )
    fit_ring_side(
        findings, INTER, rows[~is_inside_host], used[~is_inside_host], intra_latency
    )
    return findings


def fit_ring_side(
    findings: Findings,
    side: RingSide,
    rows: pd.DataFrame,
    used: pd.Series,
    intra_latency: float | None,
) -> float | None:
    """Fit one side of a ring; return the latency of a step (s), None if no row is used.

    Args:
        findings: gets the parameters and the residuals.
        side: `INTRA` or `INTER`.
        rows: allreduces inside a host, or between hosts.
        used: (rows,) which of them to fit.
        intra_latency: s of a step inside a host; None if it is not known. Steps inside
            hosts of a ring between hosts then have one latency with those between
            hosts, and both keys get it, with a note.
    """
    if not used.any():
        if len(rows):
            findings.notes.append(
                f"allreduce {side.name}: all {len(rows)} rows are beyond --fit-up-to; nothing was"
                " fitted."
            )
        return None
    ranks, hosts, nbytes = (
        rows[name].to_numpy(float) for name in ("ranks", "hosts", "nbytes")
    )

    # (rows,) t = 2 (H-1) a_inter + [2 (p-1) - 2 (H-1)] a_intra + 2 (p-1)/p n / B
    inter_steps = 2 * (hosts - 1)
    intra_steps = 2 * (ranks - 1) - inter_steps
    bus_nbytes = 2 * (ranks - 1) / ranks * nbytes
    steps = intra_steps + inter_steps
    known_seconds = np.zeros(len(rows))
    note = ""
    if side is INTER and (intra_steps > 0).any():
        if intra_latency is None:
            note = (
                "the files do not tell steps inside a host from steps between hosts; both have the"
                " same latency"
            )
        else:
            known_seconds = intra_steps * intra_latency
            steps = inter_steps
    fitted_rows = rows.assign(steps=steps, bus=bus_nbytes, offset=known_seconds)[used]
    keys = [INTRA.latency, INTER.latency] if note else [side.latency]
    latency = add_step_latency(findings, fitted_rows, keys, note)
    bandwidth = add_bus_bandwidth(findings, side, fitted_rows, latency)
    with np.errstate(divide="ignore"):
        transfer = (
            bus_nbytes / np.array([bandwidth(size) for size in nbytes])
            if bandwidth
            else 0.0
        )
    measured = rows["seconds"].to_numpy(float)
    fitted = known_seconds + steps * latency + transfer
    findings.add_residuals(rows, f"ring {side.name}", "s", measured, fitted, used=used)
    return latency


def fit_ring_law(rows: pd.DataFrame) -> tuple[LinearFit, float]:
    """Fit a ring with one latency and one bandwidth; return the fit and its mean
    relative error.

    Args:
        rows: allreduces with the columns ``steps``, ``bus`` (bytes on the bus of a
            rank), and ``offset`` (s that are known).
    """
    seconds = rows["seconds"].to_numpy(float)
    factors = np.column_stack([rows["steps"], rows["bus"]])
    fit = relative_fit(factors, seconds, rows["offset"].to_numpy(float))
    return fit, mean_error(seconds, fit.fitted)


def add_step_latency(
    findings: Findings, rows: pd.DataFrame, keys: list[str], note: str
) -> float:
    """Add the latency of a step (s) under each of ``keys``, and return it.

    It is fitted to all rows, or to the short ones where no single bandwidth fits all:
    the mean error is above `MISFIT`. It is 0, with a note and without an interval, if
    the times need none. ``rows`` are as of `fit_ring_law`.
    """
    fit, error = fit_ring_law(rows)
    short_rows = rows[rows["seconds"] <= MAX_SHORT_FACTOR * rows["seconds"].min()]
    if error > MISFIT and short_rows["nbytes"].nunique() > 1:
        rows = short_rows
        fit, error = fit_ring_law(rows)
        reason = (
            "fitted to the shortest messages, since no single bandwidth fits all sizes"
        )
        note = join_notes(note, reason)
    if fit.value[0] == 0:
        note = join_notes(note, NO_LATENCY)
    basis = FitBasis(rows, error, MEASURED_OVER)
    for key in keys:
        findings.add_parameter(basis, key, fit.coefficient(0), Dimension.SECONDS, note)
    return float(fit.value[0])


def add_bus_bandwidth(
    findings: Findings, side: RingSide, rows: pd.DataFrame, latency: float
) -> Curve | None:
    """Add the bus bandwidth, and return it (bytes/s) over the size of the message
    (bytes).

    It is one number for all sizes where the mean error is at most `MISFIT`, or fewer
    than `MIN_CURVE_SIZES` sizes have `MIN_TRANSFER_SHARE`; else a curve over the sizes
    that have it. The other of the two is added for people, if there are enough such
    sizes. None, with a note, if times do not grow with the size.

    Args:
        findings: gets the parameters, or the note.
        side: `INTRA` or `INTER`.
        rows: allreduces as of `fit_ring_law`.
        latency: s of a step.
    """
    fit, error = fit_ring_law(rows)
    if fit.value[1] == 0:
        findings.notes.append(f"allreduce {side.name}: {NO_BANDWIDTH}")
        return None
    transfer = rows["seconds"] - rows["offset"] - rows["steps"] * latency
    is_transfer = transfer >= MIN_TRANSFER_SHARE * rows["seconds"]
    transfer_rows = rows.assign(rate=rows["bus"] / transfer)[is_transfer]

    def add_single(note: str = "", name: str = "") -> None:
        """Add the bandwidth that holds for all sizes."""
        basis = FitBasis(rows, error, MEASURED_OVER)
        estimate = fit.inverse(1)
        findings.add_parameter(
            basis, side.bandwidth, estimate, Dimension.BANDWIDTH, note, name=name
        )

    if transfer_rows["nbytes"].nunique() < MIN_CURVE_SIZES:
        add_single()
    else:
        curve = log_curve(*transfer_rows[["nbytes", "rate"]].to_numpy(float).T)
        basis = FitBasis(transfer_rows, curve.error, MEASURED_OVER)
        name = f"bus bandwidth {side.name}"
        if error > MISFIT:
            findings.add_parameter(
                basis, side.bandwidth, curve.estimate, Dimension.BANDWIDTH
            )
            add_single(
                "one bandwidth does not fit all sizes", f"{name}, one for all sizes"
            )
            sizes, values = zip(*curve.points, strict=True)
            return Curve(sizes, values)
        add_single()
        findings.add_parameter(
            basis,
            side.bandwidth,
            curve.estimate,
            Dimension.BANDWIDTH,
            "one bandwidth fits all sizes",
            name=f"{name} by size",
        )
    return Curve((0.0,), (float(1 / fit.value[1]),), constant=True)


def fit_point_to_point(latency: pd.DataFrame, stream: pd.DataFrame) -> Findings:
    """Fit the latency of a message and the bandwidth of a stream between two ranks, to
    the rows with bytes.

    osu_latency times one message at a time, osu_bw a window of many; there n /
    bandwidth is the time of a message, and its constant part is the rate at which
    messages are sent, not a latency.

    Without rows of osu_latency there is no latency. Where times do not grow with the
    size there is no bandwidth, but a note.

    Args:
        latency: measurements of osu_latency.
        stream: measurements of osu_bw. They give the bandwidth, and that of ``latency``
            is then for people alone; without them ``latency`` gives the bandwidth.
    """
    findings = Findings()
    for measurements, is_stream in ((latency, False), (stream, True)):
        # an empty message tells the latency of a shorter path in some libraries
        rows = measurements[measurements["nbytes"] > 0]
        if rows.empty:
            continue
        nbytes, rate, seconds = rows[["nbytes", "rate", "seconds"]].to_numpy(float).T
        message_seconds = nbytes / rate if is_stream else seconds
        # t = a + n / B: columns are the coefficients a and 1 / B
        fit = relative_fit(
            np.column_stack([np.ones(len(rows)), nbytes]), message_seconds
        )
        error = mean_error(message_seconds, fit.fitted)
        basis = FitBasis(rows, error, ("message_size",))

        if is_stream:
            findings.add_residuals(
                rows, "stream of messages", "B/s", rate, nbytes / fit.fitted
            )
        else:
            findings.add_residuals(rows, "message", "s", message_seconds, fit.fitted)
            note = NO_LATENCY if fit.value[0] == 0 else ""
            findings.add_parameter(
                basis, LATENCY, fit.coefficient(0), Dimension.SECONDS, note
            )
        if fit.value[1] == 0:
            findings.notes.append(f"{describe_sources(rows)}: {NO_BANDWIDTH}")
            continue
        reason = (
            "measured with one message at a time; a scenario takes the stream of osu_bw"
        )
        findings.parameters = [
            replace(parameter, usable=False, note=reason)
            if parameter.key == BANDWIDTH
            else parameter
            for parameter in findings.parameters
        ]
        findings.add_parameter(basis, BANDWIDTH, fit.inverse(1), Dimension.BANDWIDTH)
    return findings

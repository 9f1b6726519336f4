"""Laws of an all-to-all of M ranks with n bytes for each pair.

For comparison, of each algorithm: t = (M-1) (a + n / b).

What a message costs the host, from a linear all-to-all, in which every rank posts all
its messages at once: t = L + (M-1) (o + n / c). It is LogGP (Alexandrov, Ionescu,
Schauser & Scheiman, SPAA 1995) with the latency L known, the overhead o of a message at
its sender and its receiver, and the copies of its bytes at a bandwidth c. For short
messages alone: of longer ones the links and other protocols set the time.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    FitBasis,
    describe_sources,
    group_rows,
    mean_error,
)
from simshuffle.extensions.calibration.calibrate.fit import relative_fit
from simshuffle.extensions.calibration.calibrate.laws import COMPARISON_NOTE
from simshuffle.spec.units import Dimension

OVERHEAD = "cluster.message_passing.overhead"
COPY = "cluster.message_passing.copy_bandwidth"
MAX_SHORT_NBYTES = 1024.0
"""Bytes of a pair up to which a message is short."""
LINEAR_ALGORITHMS = ("linear", "linear_ompi", "default-linear")
"""What posts all messages at once, as PICO calls it: its own, that of Open MPI, that of
Fugaku.
"""
MEASURED_OVER = ("world_size", "message_size")


def fit_all_to_all(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Fit latency of a message and bandwidth of a rank to each algorithm of an
    all-to-all.

    A scenario has no key for them; the exchange is simulated message by message. Rows
    without bytes are left out, and so is an algorithm of which no row is used.

    Args:
        rows: measurements of all-to-alls.
        used: (rows,) which of them to fit, with the index of ``rows``; the others are
            predicted.
    """
    findings = Findings()
    for (algorithm,), algorithm_rows in group_rows(
        rows[rows["nbytes"] > 0], "algorithm"
    ):
        fit_algorithm(
            findings,
            algorithm_rows,
            used[algorithm_rows.index].to_numpy(bool),
            f"all to all {algorithm}".strip(),
        )
    return findings


def fit_algorithm(
    findings: Findings, rows: pd.DataFrame, used: np.ndarray, law: str
) -> None:
    """Add the latency and bandwidth of one algorithm to ``findings``, from the rows
    that are used; nothing if none is.

    Args:
        findings: gets both parameters, the latency alone if times do not grow with the
            size, and the residuals of all rows.
        rows: the all-to-alls of one algorithm, all with bytes.
        used: (rows,) whether to fit a row; the others are predicted.
        law: name of the law in the table of residuals.
    """
    if not used.any():
        return
    # t = (M-1) a + (M-1) n / b: columns of factors are the coefficients a and 1 / b
    factors = messages_and_nbytes(rows)
    seconds = rows["seconds"].to_numpy(float)
    fit = relative_fit(factors[used], seconds[used])
    findings.add_residuals(rows, law, "s", seconds, factors @ fit.value, used=used)

    basis = FitBasis(rows[used], mean_error(seconds[used], fit.fitted), MEASURED_OVER)
    note = f"{COMPARISON_NOTE}simshuffle simulates each message of an exchange"
    name = f"{law}: latency"
    findings.add_parameter(
        basis, "", fit.coefficient(0), Dimension.SECONDS, note, name=name
    )
    if fit.value[1] > 0:
        name = f"{law}: bandwidth of a rank"
        findings.add_parameter(
            basis, "", fit.inverse(1), Dimension.BANDWIDTH, note, name=name
        )


def messages_and_nbytes(rows: pd.DataFrame) -> np.ndarray:
    """Return (rows, 2) messages that a rank sends, and the bytes of all of these."""
    peers = rows["ranks"].to_numpy(float) - 1
    return np.column_stack([peers, peers * rows["nbytes"].to_numpy(float)])


def fit_message_cost(rows: pd.DataFrame, used: pd.Series, latency: float) -> Findings:
    """Fit the overhead and the copies of a message to the short messages of a linear
    all-to-all.

    Messages of one size tell no copies apart: then all is overhead, with a note. Of
    overhead and copies, one that the times do not need is no parameter. The findings
    are empty if no such row is used.

    Args:
        rows: measurements of all-to-alls; those of other algorithms, of no bytes or of
            more than `MAX_SHORT_NBYTES` are ignored.
        used: (rows,) which of them to fit, with the index of ``rows``; the others are
            predicted.
        latency: s of a message, known beforehand.

    Raises:
        InputError: the short rows are of two linear algorithms.
    """
    findings = Findings()
    is_short = rows["nbytes"].between(0, MAX_SHORT_NBYTES, inclusive="right")
    rows = rows[is_short & rows["algorithm"].isin(LINEAR_ALGORITHMS)]
    is_used = used[rows.index].to_numpy(bool)
    if not is_used.any():
        return findings
    if len(names := sorted(set(rows["algorithm"]))) > 1:
        rule = "all files must be of one linear all-to-all"
        remedy = "Give the files of one algorithm."
        refuse("", rule, ", ".join(names), remedy, "calibrate")

    # t - L = (M-1) o + (M-1) n / c: columns of factors are the coefficients o and 1 / c
    factors = messages_and_nbytes(rows)
    seconds = rows["seconds"].to_numpy(float)
    has_one_size = rows["nbytes"][is_used].nunique() == 1
    if has_one_size:  # nothing tells the two parts apart
        factors[:, 1] = 0.0
    latencies = np.full(len(seconds), latency)
    fit = relative_fit(factors[is_used], seconds[is_used], latencies[is_used])
    predicted = latencies + factors @ fit.value
    findings.add_residuals(rows, "message cost", "s", seconds, predicted, used=is_used)

    basis = FitBasis(
        rows[is_used], mean_error(seconds[is_used], fit.fitted), MEASURED_OVER
    )
    note = f"fitted with a latency of {latency * 1e6:.4g} us"
    if fit.value[0] > 0:
        findings.add_parameter(
            basis, OVERHEAD, fit.coefficient(0), Dimension.SECONDS, note
        )
    if fit.value[1] > 0:
        findings.add_parameter(basis, COPY, fit.inverse(1), Dimension.BANDWIDTH, note)
    else:
        reason = (
            "all messages have one size"
            if has_one_size
            else "the times do not grow with the size"
        )
        findings.notes.append(
            f"{describe_sources(rows)}: {reason}, so the bandwidth of copies was not fitted."
        )
    return findings

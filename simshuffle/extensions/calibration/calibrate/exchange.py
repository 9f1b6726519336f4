"""Laws of an all-to-all of M ranks with n bytes for each pair.

For comparison, of each algorithm: t = (M-1) (a + n / b).

What a message costs the host, from a linear all-to-all, in which every rank posts all its messages
at once: t = L + (M-1) (o + n / c). It is LogGP (Alexandrov, Ionescu, Schauser & Scheiman, SPAA
1995) with the latency L known, the overhead o of a message at its sender and its receiver, and the
copies of its bytes at a bandwidth c. For short messages alone: of longer ones the links and other
protocols set the time.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    groups,
    mean_error,
    sources,
)
from simshuffle.extensions.calibration.calibrate.fit import relative_fit
from simshuffle.extensions.calibration.calibrate.laws import COMPARED
from simshuffle.spec.units import Dimension

OVERHEAD = "cluster.message_passing.overhead"
COPY = "cluster.message_passing.copy_bandwidth"
MOST_BYTES = 1024.0
"""Bytes of a pair up to which a message is short."""
LINEAR = ("linear", "linear_ompi", "default-linear")
"""What posts all messages at once, as PICO calls it: its own, that of Open MPI, that of Fugaku."""
OVER = ("world_size", "message_size")


def all_to_all(rows: pd.DataFrame, used: pd.Series) -> Findings:
    """Latency of a message and bandwidth of a rank, of each algorithm. A scenario has no key for
    them; the exchange is simulated message by message."""
    out = Findings()
    for (algorithm,), of in groups(rows[rows["nbytes"] > 0], "algorithm"):
        _compared(out, of, used[of.index].to_numpy(bool), f"all to all {algorithm}".strip())
    return out


def _compared(out: Findings, rows: pd.DataFrame, chosen: np.ndarray, law: str) -> None:
    if not chosen.any():
        return
    x, y = _messages_and_bytes(rows), rows["seconds"].to_numpy(float)
    fit = relative_fit(x[chosen], y[chosen])
    out.compare(rows, law, "s", y, x @ fit.value, chosen)
    about = rows[chosen], mean_error(y[chosen], fit.fitted), OVER
    note = f"{COMPARED}the exchange is simulated message by message"
    latency, bandwidth = f"{law}: latency", f"{law}: bandwidth of a rank"
    out.add(*about, "", fit.coefficient(0), Dimension.SECONDS, note, name=latency)
    if fit.value[1] > 0:
        out.add(*about, "", fit.inverse(1), Dimension.BANDWIDTH, note, name=bandwidth)


def _messages_and_bytes(rows: pd.DataFrame) -> np.ndarray:
    """Return (rows, 2) messages that a rank sends, and their bytes."""
    peers = rows["ranks"].to_numpy(float) - 1
    return np.column_stack([peers, peers * rows["nbytes"].to_numpy(float)])


def message_cost(rows: pd.DataFrame, used: pd.Series, latency: float) -> Findings:
    """Overhead and copies of a message, from the short messages of a linear all-to-all that are
    ``used``; the others are predicted. ``latency`` (s) is that of a message, which is known.

    Raises:
        InputError: the rows are of two such algorithms.
    """
    out = Findings()
    short = rows["nbytes"].between(0, MOST_BYTES, inclusive="right")
    rows = rows[short & rows["algorithm"].isin(LINEAR)]
    chosen = used[rows.index].to_numpy(bool)
    if not chosen.any():
        return out
    if len(names := sorted(set(rows["algorithm"]))) > 1:
        rule, remedy = "must be of one linear all-to-all", "Give the files of one of them."
        refuse("", rule, ", ".join(names), remedy, "calibrate")
    x, y = _messages_and_bytes(rows), rows["seconds"].to_numpy(float)
    one_size = rows["nbytes"][chosen].nunique() == 1
    if one_size:  # nothing tells the two parts apart
        x[:, 1] = 0.0
    known = np.full(len(y), latency)
    fit = relative_fit(x[chosen], y[chosen], known[chosen])
    out.compare(rows, "message cost", "s", y, known + x @ fit.value, chosen)
    about = rows[chosen], mean_error(y[chosen], fit.fitted), OVER
    note = f"with a latency of {latency * 1e6:.4g} us"
    if fit.value[0] > 0:
        out.add(*about, OVERHEAD, fit.coefficient(0), Dimension.SECONDS, note)
    if fit.value[1] > 0:
        out.add(*about, COPY, fit.inverse(1), Dimension.BANDWIDTH, note)
    else:
        why = "all are of one size" if one_size else "the times do not grow with the size"
        out.notes.append(f"{sources(rows)}: {why}; no bandwidth of copies was fitted.")
    return out

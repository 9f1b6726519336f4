"""Law of a message between two ranks: t = a + n / B (Hockney, Parallel Computing 20, 1994), from
osu_latency and osu_bw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension
from simshuffle.studies.calibrate.fit import Fit, relative_fit
from simshuffle.studies.calibrate.parameter import (
    Findings,
    Parameter,
    interval,
    mean_error,
    residuals,
    sources,
    span,
    unusable,
)

LATENCY = "cluster.message_passing.latency"
BANDWIDTH = "cluster.message_passing.stream_bandwidth"


def point_to_point(latency: pd.DataFrame, stream: pd.DataFrame) -> Findings:
    """Latency of a message from ``latency`` (osu_latency); bandwidth from ``stream`` (osu_bw), or
    where that is empty from ``latency``.

    osu_latency times one message at a time, osu_bw a window of many; there n / bandwidth is the
    time of a message, and its constant part is the pace at which messages are sent, not a latency.
    """
    out = Findings()
    for given, law in ((latency, "message"), (stream, "stream of messages")):
        # an empty message tells the latency of a shorter path in some libraries
        rows = given[given["nbytes"] > 0]
        if rows.empty:
            continue
        nbytes = rows["nbytes"].to_numpy(float)
        streaming = law != "message"
        y = nbytes / rows["rate"].to_numpy(float) if streaming else rows["seconds"].to_numpy(float)
        fit = relative_fit(np.column_stack([np.ones(len(rows)), nbytes]), y)
        if streaming:
            rate = rows["rate"].to_numpy(float)
            out.residuals.append(residuals(rows, law, "B/s", rate, nbytes / fit.fitted, True))
        else:
            out.residuals.append(residuals(rows, law, "s", y, fit.fitted, True))
            out.parameters.append(_latency(rows, fit, mean_error(y, fit.fitted)))
        if fit.value[1] == 0:
            out.notes.append(
                f"{sources(rows)}: the times do not grow with the size; no bandwidth was fitted."
                " Measure larger messages."
            )
        else:
            _bandwidth(out, rows, fit, mean_error(y, fit.fitted))
    return out


def _latency(rows: pd.DataFrame, fit: Fit, error: float) -> Parameter:
    ends, over = interval(fit.low[0], fit.high[0]), {"message_size": span(rows["nbytes"])}
    note = "the data need no latency; its interval cannot be given" if fit.value[0] == 0 else ""
    return Parameter(
        LATENCY,
        float(fit.value[0]),
        *ends,
        Dimension.SECONDS,
        over,
        error,
        len(rows),
        sources(rows),
        note,
    )


def _bandwidth(out: Findings, rows: pd.DataFrame, fit: Fit, error: float) -> None:
    ends, over = interval(1 / fit.high[1], 1 / fit.low[1]), {"message_size": span(rows["nbytes"])}
    found = Parameter(
        BANDWIDTH,
        float(1 / fit.value[1]),
        *ends,
        Dimension.BANDWIDTH,
        over,
        error,
        len(rows),
        sources(rows),
    )
    out.parameters = [
        (
            unusable(p, "of one message at a time; osu_bw was given too, and is of a stream")
            if p.key == BANDWIDTH
            else p
        )
        for p in out.parameters
    ]
    out.parameters.append(found)

"""Law of a message between two ranks: t = a + n / B (Hockney, Parallel Computing 20, 1994), from
osu_latency and osu_bw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension
from simshuffle.studies.calibrate.findings import (
    Findings,
    basis,
    for_people,
    mean_error,
    residuals,
    sources,
)
from simshuffle.studies.calibrate.fit import relative_fit
from simshuffle.studies.calibrate.parameter import Parameter

LATENCY = "cluster.message_passing.latency"
BANDWIDTH = "cluster.message_passing.stream_bandwidth"
NO_LATENCY = "the data need no latency; its interval cannot be given"
NO_BANDWIDTH = (
    "the times do not grow with the size; no bandwidth was fitted. Measure larger messages."
)


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
        of = basis(rows, mean_error(y, fit.fitted), "message_size")
        if streaming:
            fitted = nbytes / fit.fitted
            out.residuals.append(residuals(rows, "stream of messages", "B/s", rate, fitted))
        else:
            out.residuals.append(residuals(rows, "message", "s", y, fit.fitted))
            note = NO_LATENCY if fit.value[0] == 0 else ""
            found = Parameter(LATENCY, *fit.coefficient(0), Dimension.SECONDS, **of, note=note)
            out.parameters.append(found)
        if fit.value[1] == 0:
            out.notes.append(f"{sources(rows)}: {NO_BANDWIDTH}")
            continue
        why = "of one message at a time; osu_bw was given too, and is of a stream"
        earlier = [for_people(p, why) if p.key == BANDWIDTH else p for p in out.parameters]
        found = Parameter(BANDWIDTH, *fit.inverse(1), Dimension.BANDWIDTH, **of)
        out.parameters = [*earlier, found]
    return out

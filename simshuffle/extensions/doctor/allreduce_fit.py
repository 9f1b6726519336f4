"""Fit the allreduce of ranks of one host to what their steps take longer than steps of
one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.fit import relative_fit
from simshuffle.extensions.doctor.fitted import RATE, SECONDS
from simshuffle.extensions.doctor.own_host import NO_LIMIT
from simshuffle.spec.units import parse_quantity, readable

NOTICED = 0.01
"""Share of a step from which on what several ranks take longer counts as their
allreduce.
"""


def allreduce_seconds(
    ranks: Sequence[int],
    steps: Sequence[pd.DataFrame],
    *,
    batch_size: int,
    step_s: float,
    step_cores: float,
    cores: int,
) -> dict[int, float]:
    """Return the s of an allreduce that steps show, by the number of ranks.

    The seconds are the median over full batches of the shortest allreduce of a rank. If
    that is nan or no more than `NOTICED` of a step, what several ranks take longer than
    one counts in its place, provided that one rank was recorded and there are enough
    cores. One rank is left out, and so are numbers of ranks whose allreduce is no more
    than `NOTICED` of a step.

    Args:
        ranks: the numbers of ranks that were recorded, the fewest first.
        steps: `step_rows` of each.
        batch_size: samples of a full batch.
        step_s: s of the step of a full batch, without waits.
        step_cores: cores that a rank keeps busy in its step.
        cores: of the host.
    """
    seconds_of_ranks = {}
    for num_ranks, table in zip(ranks, steps, strict=True):
        if num_ranks == 1:
            continue
        full_batches = table[table["samples"] == batch_size]
        extra_s = (
            full_batches["seconds"] - full_batches["queued_s"].fillna(0.0) - step_s
        )
        # of the ranks of a step the last to come waits for nobody: its time is the allreduce's
        ranks_of_step = full_batches.assign(extra_s=extra_s).groupby(["epoch", "batch"])
        seconds = ranks_of_step["allreduce"].min().median()
        is_comparable = ranks[0] == 1 and num_ranks * step_cores <= cores
        if not seconds > NOTICED * step_s and is_comparable:
            seconds = ranks_of_step["extra_s"].min().median()
        if seconds > NOTICED * step_s:
            seconds_of_ranks[num_ranks] = float(seconds)
    return seconds_of_ranks


def allreduce_settings(
    seconds_of_ranks: Mapping[int, float], nbytes: float, source: str
) -> dict[str, Any]:
    """Return the ``allreduce`` of a scenario: a ring of one latency and one bandwidth.

    M ranks do 2 (M - 1) steps of a latency each, and move 2 (M - 1) / M of the
    gradients over the bandwidth. Quantities are text with units, equal inside a host
    and between hosts. Without ``nbytes`` all is latency; with one number of ranks all
    is bandwidth. What is not fitted is 0 s or `NO_LIMIT`.

    Args:
        seconds_of_ranks: s of an allreduce by the number of ranks; if empty, the
            allreduce takes no time.
        nbytes: of the gradients; 0 if not known.
        source: name of the record.
    """
    latency = 0.0
    bandwidth = parse_quantity(NO_LIMIT, RATE)
    if seconds_of_ranks:
        num_ranks = np.array(list(seconds_of_ranks), float)
        # a row for each number of ranks; columns: latencies, bytes; coefficients: s, s a byte
        design = np.column_stack(
            [2 * (num_ranks - 1), 2 * (num_ranks - 1) / num_ranks * nbytes]
        )
        # one number of ranks cannot tell both: it is all bandwidth where there are gradients
        columns = [1] if nbytes else [0]
        if len(seconds_of_ranks) > 1 and nbytes:
            columns = [0, 1]
        seconds = np.array(list(seconds_of_ranks.values()))
        coefficients = np.zeros(2)
        coefficients[columns] = relative_fit(design[:, columns], seconds).value
        latency = coefficients[0]
        if coefficients[1]:
            bandwidth = 1 / coefficients[1]
    latency_text = readable(float(latency), SECONDS)
    bandwidth_text = readable(float(bandwidth), RATE)
    return {
        "kind": "ring",
        "intra_host_latency": latency_text,
        "inter_host_latency": latency_text,
        "intra_host_bus_bandwidth": bandwidth_text,
        "inter_host_bus_bandwidth": bandwidth_text,
        "overlap": "none",
        "source": source,
    }

"""The phases that a result keeps of a timeline, and means over all ranks by iteration.

Phases are kept of all ranks, or of a sample of them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from simshuffle.report.columns import Column, amount, count, text
from simshuffle.report.report import COMPUTING, SLOWDOWN
from simshuffle.report.timeline import (
    PHASE_TYPE,
    PHASES,
    phase_numbers,
    phase_rows,
    phase_table,
)
from simshuffle.spec.arrays import Floats

KeptRanks = Literal["full", "ranks", "none"]
"""Of which ranks a timeline is kept: of all, of those that `sample_ranks` names, of
none.
"""

ITERATION_COLUMNS: dict[str, Column] = {
    "run": text("name of the run"),
    "epoch": count("from 1"),
    "iteration": count(
        "from 1; 0 for phases before the first iteration and after the last one"
    ),
    "phase": text("one of PHASES that a rank had in the iteration", *PHASES),
    "mean_s": amount(
        "s in the phase, mean over all ranks; a rank without the phase counts as 0 s"
    ),
    "least_s": amount("s of the rank with the least time in the phase"),
    "most_s": amount("s of the rank with the most time in the phase"),
}
EVEN_SAMPLE = 8  # ranks of the sample that lie evenly, beside the extreme ones


def seconds_by_rank(phases: pd.DataFrame) -> Floats:
    """Return the seconds in each phase of one epoch, (iterations + 1, M, phases).

    Row 0 is for what goes before the first iteration and follows the last one. Phases
    are in the order of `PHASES`, with those that overlap others. ``phases`` has one row
    or more; a rank and phase without a row has 0 s.
    """
    iterations = int(phases["iteration"].max()) + 1
    ranks = int(phases["rank"].max()) + 1
    # row-major in (iteration, rank, phase)
    flat_index = phases["iteration"].to_numpy(np.int64) * ranks
    flat_index += phases["rank"].to_numpy()
    flat_index *= len(PHASES)
    flat_index += phase_numbers(phases)
    durations = phases["end_s"].to_numpy() - phases["start_s"].to_numpy()
    shape = (iterations, ranks, len(PHASES))
    seconds = np.bincount(flat_index, durations, int(np.prod(shape)))
    return seconds.astype(np.float64, copy=False).reshape(shape)


def iteration_means(phases: pd.DataFrame, seconds: Floats) -> pd.DataFrame:
    """Return means and extremes over the ranks of an epoch: columns
    `ITERATION_COLUMNS`.

    Phases that no rank had in an iteration have no row. Rows are ordered by iteration
    and phase. ``phases`` has one row or more, and ``seconds`` are from
    `seconds_by_rank` of it.
    """
    mean = seconds.mean(axis=1)
    shortest = seconds.min(axis=1)
    longest = seconds.max(axis=1)
    iteration, phase = np.nonzero(longest > 0)
    first = phases.iloc[[0] * len(iteration)]
    return pd.DataFrame(
        {
            "run": first["run"].array,
            "epoch": first["epoch"].array,
            "iteration": iteration.astype(np.int32),
            "phase": pd.Categorical.from_codes(phase, dtype=PHASE_TYPE),
            "mean_s": mean[iteration, phase],
            "least_s": shortest[iteration, phase],
            "most_s": longest[iteration, phase],
        }
    )


def sample_ranks(seconds: Floats) -> list[int]:
    """Return the ranks that stand for all of an epoch, ascending, each once.

    `EVEN_SAMPLE` ranks that lie evenly, from 0 on; and the first of those that
    computed, or waited for others, least and most. ``seconds`` are from
    `seconds_by_rank`.
    """
    seconds_of_phase = dict(zip(PHASES, seconds.sum(axis=0).T, strict=True))
    computing = sum(seconds_of_phase[name] for name in (*COMPUTING, SLOWDOWN))
    waiting = sum(seconds_of_phase[name] for name in PHASES if name.startswith("wait_"))
    extremes = {
        int(rank)
        for seconds_of_rank in (computing, waiting)
        for rank in (np.argmin(seconds_of_rank), np.argmax(seconds_of_rank))
    }
    ranks = seconds.shape[1]
    return sorted(
        {ranks * index // EVEN_SAMPLE for index in range(EVEN_SAMPLE)} | extremes
    )


def no_phases() -> pd.DataFrame:
    """Return the phases table without rows."""
    rows = phase_rows(1, [PHASES[0]], np.zeros((0, 1, 2)), np.zeros((0, 1, 1)))
    return phase_table("", [rows])

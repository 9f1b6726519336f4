"""A timeline of many ranks in short: means over them by iteration, and a sample of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from simshuffle.results.columns import Column, amount, count, text
from simshuffle.results.report import COMPUTING, SLOWDOWN
from simshuffle.results.timeline import PHASES, phase_rows, phase_table
from simshuffle.spec.arrays import Floats

Kept = Literal["full", "ranks", "none"]
"""Of which ranks a timeline is kept: of all, of those that `sample` names, of none."""

ITERATION_COLUMNS: dict[str, Column] = {
    "run": text("name of the run"),
    "epoch": count("from 1"),
    "iteration": count("from 1; 0 for what goes before the first one and follows the last one"),
    "phase": text("one of PHASES that a rank had in the iteration", *PHASES),
    "mean_s": amount("s in it, mean over all ranks; a rank that had none counts as 0 s"),
    "least_s": amount("s of the rank with the least of it"),
    "most_s": amount("s of the rank with the most of it"),
}
SPREAD = 8  # ranks of the sample that lie evenly, beside the extreme ones


def seconds_by_rank(phases: pd.DataFrame) -> Floats:
    """Seconds in each phase, (iterations + 1, M, phases), from the phases table of one epoch of one
    run."""
    iterations, ranks = int(phases["iteration"].max()) + 1, int(phases["rank"].max()) + 1
    # row-major in (iteration, rank, phase)
    place = phases["iteration"].to_numpy(np.int64) * ranks
    place += phases["rank"].to_numpy()
    place *= len(PHASES)
    place += pd.Categorical(phases["phase"], PHASES).codes
    lasting = phases["end_s"].to_numpy() - phases["start_s"].to_numpy()
    shape = (iterations, ranks, len(PHASES))
    seconds = np.bincount(place, lasting, int(np.prod(shape)))
    return seconds.astype(np.float64, copy=False).reshape(shape)


def iterations(phases: pd.DataFrame, seconds: Floats) -> pd.DataFrame:
    """A row for each phase in each iteration of one epoch of one run: columns `ITERATION_COLUMNS`;
    ``seconds`` are from `seconds_by_rank`."""
    mean, least, most = seconds.mean(axis=1), seconds.min(axis=1), seconds.max(axis=1)
    iteration, phase = np.nonzero(most > 0)
    first = phases.iloc[[0] * len(iteration)]
    return pd.DataFrame(
        {
            "run": first["run"].array,
            "epoch": first["epoch"].array,
            "iteration": iteration.astype(np.int32),
            "phase": pd.Categorical.from_codes(phase, pd.Index(PHASES)),
            "mean_s": mean[iteration, phase],
            "least_s": least[iteration, phase],
            "most_s": most[iteration, phase],
        }
    )


def sample(seconds: Floats) -> list[int]:
    """Ranks that stand for all of an epoch, given its `seconds_by_rank`: `SPREAD` that lie evenly,
    from 0 on; and those that computed least and most, and waited for others least and most. Of
    equal ones it is the first."""
    of_phase = dict(zip(PHASES, seconds.sum(axis=0).T, strict=True))
    computing = sum(of_phase[name] for name in (*COMPUTING, SLOWDOWN))
    waiting = sum(of_phase[name] for name in PHASES if name.startswith("wait_"))
    extremes = {
        int(of) for each in (computing, waiting) for of in (np.argmin(each), np.argmax(each))
    }
    ranks = seconds.shape[1]
    return sorted({ranks * place // SPREAD for place in range(SPREAD)} | extremes)


def no_phases() -> pd.DataFrame:
    """The phases table without rows."""
    rows = phase_rows(1, [PHASES[0]], np.zeros((0, 1, 2)), np.zeros((0, 1, 1)))
    return phase_table("", [rows])

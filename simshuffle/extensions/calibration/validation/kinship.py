"""Predict the larger runs of a validation from the smaller runs of their machine, and
learn how much the errors of a machine's runs have in common.

Every measured row on fewer ranks of the same machine counts as a measured run, never one
on as many or more. Rows to which a parameter was fitted say where predictions lie, but
not how large errors are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, special

from simshuffle.extensions.calibration.validation.intervals import (
    find_mechanism,
    num_ranks,
    prediction_intervals,
    signs_of,
)
from simshuffle.extensions.calibration.validation.scores import score_intervals
from simshuffle.job.uncertainty.inputs import Z90
from simshuffle.job.uncertainty.kinship import Kinship, condition_errors
from simshuffle.job.uncertainty.residuals import residuals
from simshuffle.spec.arrays import Flags, Floats

SIZES = {
    "world_size",
    "hosts",
    "accelerators",
    "clients",
    "tasks",
    "epochs",
    "nbytes",
    "workload.dataset.num_samples",
    "workload.local_batch_size",
}
"""Values that differ between runs of one series, as a training grows."""
DAYS = {"log", "from", "to", "cached"}
"""Values that say when jobs of a log ran."""
MIN_OWN_SHARE = 0.1
"""Share of an error's variance that is a run's own, at least (chosen)."""
START = (0.3, 0.5, 0.2, 6.0, 3.0)
"""Shares of machine, series and run, doublings and freedom from which a search starts."""


@dataclass(frozen=True)
class LargerRun:
    """A predicted row and the measured rows on fewer ranks of its machine, which follow
    it in every array of n + 1 rows.
    """

    row: Any  # index of the predicted row
    set: str
    sign: float  # 1 for a time, -1 for a rate
    errors: Floats  # (n + 1,) ln(measured / predicted) of times
    mean: Floats  # (n + 1,) middle of the interval without measured runs
    deviation: Floats  # (n + 1,)
    chance: Floats  # (n + 1,) standard deviation between repetitions
    ranks: Floats  # (n + 1,)
    series: Sequence[str]
    is_fitted: Flags  # (n,)

    def end_logs(self, kinship: Kinship) -> tuple[float, float, float]:
        """Return the middle of the error of the predicted row, its deviation as of a
        normal distribution, and its degrees of freedom, given the measured rows.
        """
        systematic = np.sqrt(np.maximum(self.deviation**2 - self.chance**2, 0.0))
        correlations = kinship.correlations(self.ranks, self.series)
        covariance = correlations * np.outer(systematic, systematic)
        covariance += np.diag(np.minimum(self.chance, self.deviation) ** 2)
        posterior = condition_errors(
            self.mean, covariance, self.errors[1:], kinship.freedom, self.is_fitted
        )
        freedom = kinship.freedom + np.count_nonzero(~self.is_fitted)
        return float(posterior.mean[0]), float(posterior.deviation[0]), float(freedom)


def larger_runs(results: pd.DataFrame) -> list[LargerRun]:
    """Return the predicted rows of a validation for whose machine there are measured
    rows on fewer ranks.

    ``results`` has the columns of the table `validation`, with intervals without
    measured runs.
    """
    has_numbers = (results[["measured", "predicted"]] > 0).all(axis=1)
    rows = results[results["use"].isin(["fit", "predict"]) & has_numbers]
    ends = prediction_intervals(rows)
    rows = rows.assign(
        sign=signs_of(rows),
        ranks=[num_ranks(row) for _, row in rows.iterrows()],
        machine=[name_machine(row) for _, row in rows.iterrows()],
        series=[name_series(row) for _, row in rows.iterrows()],
        chance=[residuals().chance(find_mechanism(row)) for _, row in rows.iterrows()],
    )
    logs = np.log(ends.to_numpy(float) / rows[["predicted"]].to_numpy(float))
    sign = rows["sign"].to_numpy(float)
    rows["mean"] = sign * logs.mean(axis=1)
    rows["deviation"] = (logs[:, 1] - logs[:, 0]) / 2 / Z90
    rows["error"] = sign * np.log(
        (rows["measured"] / rows["predicted"]).to_numpy(float)
    )
    return [*_larger_runs(rows)]


def _larger_runs(rows: pd.DataFrame) -> Iterator[LargerRun]:
    """Yield each predicted row that has kin, from rows with all columns it needs."""
    for _, of_machine in rows.groupby(["set", "machine"], sort=False):
        for index, row in of_machine[of_machine["use"] == "predict"].iterrows():
            smaller = of_machine[of_machine["ranks"] < row["ranks"]]
            if smaller.empty:
                continue
            both = of_machine.loc[[index, *smaller.index]]
            yield LargerRun(
                index,
                row["set"],
                row["sign"],
                both["error"].to_numpy(float),
                both["mean"].to_numpy(float),
                both["deviation"].to_numpy(float),
                both["chance"].to_numpy(float),
                both["ranks"].to_numpy(float),
                both["series"].tolist(),
                (smaller["use"] == "fit").to_numpy(bool),
            )


def _values(row: Any) -> dict[str, str]:
    """Return the values of a row by key; a ratio has the values of its first run."""
    first_run = str(row["values"]).split("|")[0]
    pairs = (piece.split("=", 1) for piece in first_run.split(";") if "=" in piece)
    return {key.strip(): value.strip() for key, value in pairs}


def name_machine(row: Any) -> str:
    """Return the scenario of a row with what its values say of the cluster, apart from
    the load that others put on it.
    """
    values = [
        f"{key}={value}"
        for key, value in sorted(_values(row).items())
        if key.startswith("cluster") and "background" not in key
    ]
    return ";".join([str(row["scenario"]), *values])


def name_series(row: Any) -> str:
    """Return what a row has beside its machine and its size: quantity, model, strategy.

    Epochs of one run are of one series.
    """
    values = [
        f"{key}={value.split()[0] if key == 'job' else value}"
        for key, value in sorted(_values(row).items())
        if key not in SIZES | DAYS and not key.startswith("cluster")
    ]
    return ";".join([re.sub(r"^epoch \d+$", "epoch", str(row["quantity"])), *values])


def learn_kinship(runs: Sequence[LargerRun], without: str = "") -> Kinship:
    """Return the most likely kinship of the errors of larger runs, given the smaller.

    Every set counts once, whatever its rows; the set ``without`` not at all.
    """
    learned = [run for run in runs if run.set != without]
    counts = pd.Series([run.set for run in learned]).value_counts()

    def loss(logs: Floats) -> float:
        kinship = _kinship_of(logs)
        total = 0.01 * float(np.square(logs - start).sum())
        for run in learned:
            total += _surprise(run, kinship) / counts[run.set]
        return total

    start = np.log(START)
    options = {"maxiter": 120, "xatol": 0.02, "fatol": 0.01}
    found = optimize.minimize(loss, start, method="Nelder-Mead", options=options)
    return _kinship_of(found.x)


def _kinship_of(logs: Floats) -> Kinship:
    """Return the kinship of five logarithms: weights of the three shares, of which the
    last is a run's own, doublings and freedom.
    """
    weights = np.exp(logs[:3])
    shares = weights / weights.sum() * (1.0 - MIN_OWN_SHARE)
    doublings, freedom = np.exp(logs[3:])
    return Kinship(float(shares[0]), float(shares[1]), float(doublings), float(freedom))


def _surprise(run: LargerRun, kinship: Kinship) -> float:
    """Return minus the logarithm of the density of a measured value, of a t distribution."""
    middle, deviation, freedom = run.end_logs(kinship)
    scale = deviation * Z90 / special.stdtrit(freedom, 0.95)
    distance = (run.errors[0] - middle) / scale
    constant = special.gammaln(freedom / 2) - special.gammaln((freedom + 1) / 2)
    constant += np.log(freedom * np.pi) / 2 + np.log(scale)
    return float(constant + (freedom + 1) / 2 * np.log1p(distance**2 / freedom))


def narrowed_intervals(
    results: pd.DataFrame, runs: Sequence[LargerRun], kinships: dict[str, Kinship]
) -> pd.DataFrame:
    """Return the rows of larger runs, with the intervals that the smaller runs give them.

    ``kinships`` has that of each set, learned without it.
    """
    out = results.loc[[run.row for run in runs]].copy()
    ends = []
    for run, predicted in zip(runs, out["predicted"], strict=True):
        middle, deviation, _ = run.end_logs(kinships[run.set])
        logs = run.sign * (middle + np.array([-1.0, 1.0]) * Z90 * deviation)
        ends.append(predicted * np.exp(np.sort(logs)))
    out[["interval_low", "interval_high"]] = np.array(ends).reshape(-1, 2)
    return out


def narrow_larger_runs(results: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of `larger_runs` with their intervals without the smaller runs, and
    with them. The kinship that narrows a set is learned without this set.
    """
    runs = larger_runs(results)
    sets = list(dict.fromkeys(run.set for run in runs))
    kinships = {name: learn_kinship(runs, without=name) for name in sets}
    narrowed = narrowed_intervals(results, runs, kinships)
    before = results.loc[narrowed.index].copy()
    before[["interval_low", "interval_high"]] = prediction_intervals(before)
    return before, narrowed


def summarize_narrowing(
    before: pd.DataFrame, narrowed: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return how good intervals are without and with the smaller runs of a machine, a row
    for each set, all over the rows of `narrow_larger_runs`.

    Keys: set, rows, naive_score, and 'without' and 'with', each a tuple of coverage,
    median half width (a share) and interval score.
    """
    rows = []
    for name in dict.fromkeys(narrowed["set"]):
        parts = [table[table["set"] == name] for table in (before, narrowed)]
        scores = [score_intervals(part) for part in parts]
        figures = [
            (score.coverage, median_half_width(part), score.interval_score)
            for part, score in zip(parts, scores, strict=True)
        ]
        rows.append(
            {
                "set": name,
                "rows": len(parts[0]),
                "naive_score": scores[0].naive_score,
                "without": figures[0],
                "with": figures[1],
            }
        )
    return rows


def median_half_width(rows: pd.DataFrame) -> float:
    """Return the median of half the width of intervals, as a share of their middle."""
    ends = rows[["interval_low", "interval_high"]].to_numpy(float)
    return float(np.median((ends[:, 1] - ends[:, 0]) / (ends[:, 1] + ends[:, 0])))

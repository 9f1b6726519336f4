"""Compare settings from tables alone: times to an accuracy, and the Pareto front.

Source of the interval of a probability: C. J. Clopper and E. S. Pearson, 'The use of
confidence or fiducial limits illustrated in the case of the binomial', Biometrika 26
(1934).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from simshuffle.extensions.learning.time_to_accuracy.tables import (
    TARGET_COLUMNS,
    JoinTables,
)
from simshuffle.spec.arrays import Flags, Floats
from simshuffle.studies.training.summary import (
    LEVEL,
    Estimate,
    estimate,
    paired_difference,
)
from simshuffle.studies.training.wording import format_percent

BELOW_GLOBAL = (0.01, 0.03)
"""How far below global's mean final accuracy the default targets are (share)."""
USER_TARGET = "as given"


def clopper_pearson(reached: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the probability of an event.

    The event came in ``reached`` of ``n`` independent trials. The interval is the 2.5th
    percentile of Beta(k, n - k + 1), 0 for k = 0, and the 97.5th of Beta(k + 1, n - k),
    1 for k = n.

    Raises:
        ValueError: n is 0, or ``reached`` not from 0 to n.
    """
    if not 0 <= reached <= n or n == 0:
        raise ValueError(f"{reached} of {n}")
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, reached, n - reached + 1)) if reached else 0.0
    high = (
        float(stats.beta.ppf(1 - tail, reached + 1, n - reached))
        if reached < n
        else 1.0
    )
    return low, high


def default_targets(settings: pd.DataFrame) -> dict[float, str]:
    """Return names by target: global's mean final accuracy less 1 and less 3 points.

    Targets are shares; those not above 0 are left out. The accuracy is of the first
    setting of global shuffle that has one; {} if there is none.
    """
    accuracies = settings.loc[settings["strategy"] == "global", "accuracy"].dropna()
    if not len(accuracies):
        return {}
    global_accuracy = float(accuracies.iloc[0])
    name_by_margin = {
        margin: f"global less {100 * margin:g} point{'' if margin == 0.01 else 's'}"
        for margin in BELOW_GLOBAL
    }
    return {
        global_accuracy - margin: name
        for margin, name in name_by_margin.items()
        if global_accuracy > margin
    }


def targets_table(
    curves: pd.DataFrame,
    seeds: Mapping[str, Sequence[int]],
    targets: Mapping[float, str],
) -> pd.DataFrame:
    """Return a row for each target and setting, columns `TARGET_COLUMNS`.

    Failed seeds count as not reached unless they reached the target before.

    Args:
        curves: rows of all settings, columns `CURVE_COLUMNS`.
        seeds: those trained, to their end or until they failed, by setting; one at
            least for each.
        targets: names of targets, by accuracy (share).
    """
    rows = [
        {
            "setting": setting,
            "target": target,
            "name": name,
            **_target_columns(
                curves[curves["setting"] == setting], target, len(setting_seeds)
            ),
        }
        for target, name in targets.items()
        for setting, setting_seeds in seeds.items()
    ]
    return pd.DataFrame(rows, columns=list(TARGET_COLUMNS))


def first_rows_at_target(curve: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the first evaluation at or above ``target`` of each seed, by seed.

    Seeds that never reached it are left out. ``curve`` has rows of one setting, columns
    `CURVE_COLUMNS`.
    """
    reaching_rows = curve[curve["accuracy"] >= target].sort_values("epoch")
    return reaching_rows.drop_duplicates("seed").set_index("seed")


def _target_columns(curve: pd.DataFrame, target: float, n: int) -> dict[str, Any]:
    """Return the columns of `TARGET_COLUMNS` that are measured.

    ``curve`` has the rows of a setting with ``n`` seeds. Times (s) and epochs are means
    over the seeds that reached the target, NaN where none did. Times are NaN, too,
    where nothing was simulated, and their interval is with fewer than two seeds.
    """
    first_rows = first_rows_at_target(curve, target)
    time = estimate(first_rows["time_s"].tolist())
    low, high = clopper_pearson(len(first_rows), n)
    return {
        "n": n,
        "reached": len(first_rows),
        "probability": len(first_rows) / n,
        "probability_low": low,
        "probability_high": high,
        "time_s": time.mean,
        "time_low_s": time.low,
        "time_high_s": time.high,
        "epochs": float(first_rows["epoch"].mean())
        if len(first_rows)
        else float("nan"),
    }


# --------------------------------------------------------------------------------- the Pareto front

CRITERIA = {
    "storage": "storage_nbytes",
    "time": "total_s",
    "requests": "total_requests",
    "accuracy": "accuracy",
}
"""What settings are compared in, and the column: all better if smaller but accuracy."""


def find_pareto_front(costs: Floats) -> Flags:
    """Return whether each row of ``costs``, (n, criteria), is on the Pareto front:
    (n,).

    Smaller costs are better. A row is on the front if no other dominates it: is nowhere
    larger and somewhere smaller. Equal rows do not dominate each other; a row with a
    NaN is not on the front, and dominates none.
    """
    return np.asarray(~np.isnan(costs).any(axis=1) & ~_dominates(costs).any(axis=0))


def _dominates(costs: Floats) -> Flags:
    """Return whether row i of ``costs`` dominates row j, (n, n).

    A row dominates another if it is nowhere larger, and somewhere smaller.
    """
    # axes: row i, row j, criterion
    no_larger = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
    smaller = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    return np.asarray(no_larger & smaller)


def _costs(settings: pd.DataFrame) -> Floats:
    """Return the costs of settings, (n, criteria), each better if smaller.

    Columns are in the order of `CRITERIA`; accuracy is negated. Settings that were not
    simulated have NaN.
    """
    return (
        settings[list(CRITERIA.values())]
        .assign(accuracy=-settings["accuracy"])
        .to_numpy(float)
    )


def is_on_front(settings: pd.DataFrame) -> Flags:
    """Return whether each row is on the Pareto front of the `CRITERIA`: (n,).

    Rows of settings that were not simulated are not.
    """
    return find_pareto_front(_costs(settings))


@dataclass(frozen=True)
class DominatedSetting:
    """A setting that is not on the front, and the one on the front that beats it."""

    setting: str  # name of the setting
    winner: str  # name of the setting on the front
    # of `CRITERIA`, where the winner is better; else both are equal
    better_criteria: tuple[str, ...]


def find_dominated_settings(settings: pd.DataFrame) -> list[DominatedSetting]:
    """Return every setting that one on the front beats, with the quickest such winner.

    They are in the order of ``settings``. Settings that were not simulated are passed
    over.
    """
    names = settings["setting"].tolist()
    costs = _costs(settings)
    # (n, n): row i is on the front and dominates row j
    beats = _dominates(costs) & find_pareto_front(costs)[:, None]
    time_column = list(CRITERIA).index("time")

    dominated_settings = []
    for loser in np.flatnonzero(beats.any(axis=0)):
        winner = min(
            np.flatnonzero(beats[:, loser]), key=lambda rival: costs[rival][time_column]
        )
        is_better = costs[winner] < costs[loser]
        criteria = tuple(
            name for name, flag in zip(CRITERIA, is_better, strict=True) if flag
        )
        dominated_settings.append(
            DominatedSetting(names[loser], names[winner], criteria)
        )
    return dominated_settings


# ------------------------------------------------------------------------------- final accuracies


def accuracy_difference(tables: JoinTables, setting: str, reference: str) -> Estimate:
    """Estimate the final accuracy of ``setting`` less that of ``reference``.

    It is the mean of paired differences (share), over the seeds that finished in both;
    NaN if there are none. Its interval and p are NaN with fewer than two.
    """
    return paired_difference(
        final_accuracy(tables, setting), final_accuracy(tables, reference)
    )


def final_accuracy(tables: JoinTables, setting: str) -> dict[int, float]:
    """Return the accuracy (share) after the last epoch of the training, by seed.

    Seeds that failed before, or were not evaluated then, are left out.
    """
    epochs = int(tables.settings["epochs"].iloc[0])
    rows = tables.curves[
        (tables.curves["setting"] == setting) & (tables.curves["epoch"] == epochs)
    ]
    return {int(row["seed"]): float(row["accuracy"]) for row in rows.to_dict("records")}


def format_difference(difference: Estimate) -> str:
    """Format a difference of accuracies (share) in points, with sign and half its
    interval.
    """
    return format_percent(difference.mean, difference.low, difference.high, "+")

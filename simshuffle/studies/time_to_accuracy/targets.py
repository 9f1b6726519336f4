"""When a training reaches an accuracy: how probably, and after how long.

Source of the interval: C. J. Clopper and E. S. Pearson, 'The use of confidence or fiducial limits
illustrated in the case of the binomial', Biometrika 26 (1934).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from simshuffle.studies.time_to_accuracy.tables import TARGET_COLUMNS
from simshuffle.studies.training.intervals import LEVEL, estimate

BELOW_GLOBAL = (0.01, 0.03)
"""How far below global's mean final accuracy the default targets are."""
GIVEN = "as given"


def clopper_pearson(reached: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a probability of which ``reached`` of ``n`` independent trials came
    true.

    Its ends are the 2.5th percentile of Beta(k, n - k + 1), 0 for k = 0, and the 97.5th of Beta(k +
    1, n - k), 1 for k = n.

    Raises:
        ValueError: n is 0, or ``reached`` not from 0 to n.
    """
    if not 0 <= reached <= n or n == 0:
        raise ValueError(f"{reached} of {n}")
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, reached, n - reached + 1)) if reached else 0.0
    high = float(stats.beta.ppf(1 - tail, reached + 1, n - reached)) if reached < n else 1.0
    return low, high


def default_targets(settings: pd.DataFrame) -> dict[float, str]:
    """Names by target: global's mean final accuracy less 1 and less 3 points; none without global.

    Args:
        settings: columns strategy, accuracy.
    """
    accuracies = settings.loc[settings["strategy"] == "global", "accuracy"].dropna()
    if not len(accuracies):
        return {}
    reached = float(accuracies.iloc[0])
    named = {
        below: f"global less {100 * below:g} point{'' if below == 0.01 else 's'}"
        for below in BELOW_GLOBAL
    }
    return {reached - below: name for below, name in named.items() if reached > below}


def targets_table(
    curves: pd.DataFrame, seeds: Mapping[str, Sequence[int]], targets: Mapping[float, str]
) -> pd.DataFrame:
    """A row for each setting and target, columns `TARGET_COLUMNS`.

    Args:
        curves: columns `CURVE_COLUMNS`.
        seeds: those of each setting that were trained, to their end or until they failed.
        targets: names by accuracy, in the order wanted.
    """
    rows = []
    for target, name in targets.items():
        for setting, of_setting in seeds.items():
            hits = first_reached(curves[curves["setting"] == setting], target)
            rows.append(
                {"setting": setting, "target": target, "name": name, **_row(hits, len(of_setting))}
            )
    return pd.DataFrame(rows, columns=list(TARGET_COLUMNS))


def first_reached(curve: pd.DataFrame, target: float) -> pd.DataFrame:
    """For each seed that reached ``target`` the row of its first evaluation at or above it, indexed
    by seed.

    Args:
        curve: rows of one setting, columns `CURVE_COLUMNS`.
    """
    above = curve[curve["accuracy"] >= target].sort_values("epoch")
    return above.drop_duplicates("seed").set_index("seed")


def _row(hits: pd.DataFrame, n: int) -> dict[str, Any]:
    time = estimate(hits["time_s"].tolist())
    low, high = clopper_pearson(len(hits), n)
    return {
        "n": n,
        "reached": len(hits),
        "probability": len(hits) / n,
        "probability_low": low,
        "probability_high": high,
        "time_s": time.mean,
        "time_low_s": time.low,
        "time_high_s": time.high,
        "epochs": float(hits["epoch"].mean()) if len(hits) else float("nan"),
    }

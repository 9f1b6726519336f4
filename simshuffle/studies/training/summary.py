"""From runs to settings: means over seeds, differences of one seed, and what statistics rest on.

Sources: Student, 'The probable error of a mean', Biometrika 6 (1908); S. Holm, 'A simple
sequentially rejective multiple test procedure', Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from simshuffle.studies.training.tables import (
    CONDITION,
    EFFECTIVE_SAMPLES,
    INTERVAL_COLUMNS,
    NORMS,
    SETTING,
    SETTING_COLUMNS,
    STRATEGIES,
    number,
    statistics_of,
)
from simshuffle.study.schema import Column, Schema, amount, text

LEVEL = 0.95
"""Of every interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean and how well it is known."""

    n: int  # values
    mean: float  # of them; NaN of none
    # low, high: the 95 % interval by Student's t; NaN of fewer than two
    low: float
    high: float
    # that a mean at least this far from 0 comes by chance where the true one is 0 (two-sided); NaN
    # of fewer than two
    p: float


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of ``values``, which are taken as independent draws from a normal distribution.

    mean ± t s / √n, with the sample's standard deviation s and the 97.5th percentile t of Student's
    distribution of n − 1 degrees of freedom. Of differences of pairs it is the paired t-test. Where
    all values are the same, the interval is that point, and p is 1 if it is 0 and 0 otherwise.
    """
    array = np.asarray(values, np.float64)
    n = len(array)
    mean = float(array.mean()) if n else math.nan
    if n < 2:
        return Estimate(n, mean, math.nan, math.nan, math.nan)
    error = float(array.std(ddof=1)) / math.sqrt(n)
    if error <= abs(mean) * 1e-14:  # all the same, up to rounding
        return Estimate(n, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * error
    return Estimate(
        n, mean, mean - reach, mean + reach, float(2 * stats.t.sf(abs(mean) / error, n - 1))
    )


def holm(p: Sequence[float]) -> list[float]:
    """Each p-value of a family, corrected so that the chance of one false finding or more among all
    is at most the level: the i-th smallest of m (from 0) is multiplied by m − i, at least the one
    before it, and at most 1. NaN stays and does not count."""
    order = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i])
    out = [math.nan] * len(p)
    highest = 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p[i]))
        out[i] = highest
    return out


# ---------------------------------------------------------------------------- from runs to settings


AGAINST = ("global", "local", "partial")
"""What a setting is compared with: runs of the same condition and seed; 'partial' at the same Q."""


def comparison_columns(name: str, other: str, less: str, family: str) -> dict[str, Column]:
    """Columns of a comparison with ``other``, by seed: of the accuracy ``less`` that of the other,
    tested beside all comparisons of the ``family``."""
    meanings = {
        "pairs": f"seeds that this setting and {other} have in common",
        "difference": f"mean over these seeds of the accuracy less that {less}",
        "low": "lower end of its 95 % interval",
        "high": "upper end",
        "p": "p-value of the paired t-test, two-sided",
        "p_holm": f"the same after Holm's correction over all comparisons {family}",
    }
    return {f"{name}_{what}": number(meaning) for what, meaning in meanings.items()}


def compared(name: str, found: Estimate) -> dict[str, Any]:
    """The values of these columns; that of Holm's correction comes with `correct`."""
    values = (found.n, found.mean, found.low, found.high, found.p, math.nan)
    return dict(zip(comparison_columns(name, "", "", ""), values, strict=True))


def correct(table: pd.DataFrame, name: str, family: pd.Series[bool]) -> None:
    """Fill in Holm's correction over the comparisons of a ``family`` of rows, in place."""
    p = table.loc[family, f"{name}_p"].astype(float).tolist()
    table.loc[family, f"{name}_p_holm"] = holm(p)


def _against(name: str) -> dict[str, Column]:
    other = "partial local shuffle at the same Q" if name == "partial" else f"{name} shuffle"
    family = f"with {other} of the study, with the same statistics"
    return comparison_columns(name, other, f"of {other}", family)


SUMMARY_COLUMNS = {
    **SETTING_COLUMNS,
    "statistics": text("where evaluation gets the batch-norm statistics from"),
    "seeds": number("runs that ended as they should"),
    "effective_samples": amount(f"{EFFECTIVE_SAMPLES}; mean over seeds", empty=True),
    "accuracy": number("mean over seeds, share of test samples after the last epoch"),
    **INTERVAL_COLUMNS,
    "best_accuracy": number(
        "mean over seeds of the highest share after any epoch that was evaluated; chosen by the"
        " test samples themselves, so it flatters"
    ),
    "best_low": number("lower end of its 95 % interval"),
    "best_high": number("upper end"),
    **{name: column for other in AGAINST for name, column in _against(other).items()},
}
"""Columns of summary.csv."""
SUMMARY = Schema(SUMMARY_COLUMNS, key=(*SETTING, "statistics"))

Key = tuple[Hashable, ...]
Accuracies = dict[Key, dict[int, float]]
"""Accuracy by seed, by setting."""


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and kind of evaluation statistics, columns `SUMMARY_COLUMNS`, sorted
    by all of them; ``runs`` that are not done are left out."""
    done = runs[runs["status"] == "done"]
    rows = [row for name in statistics_of(done) for row in sorted(_rows(done, name), key=_place)]
    table = pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
    for against in AGAINST:
        for name in dict.fromkeys(table["statistics"]):
            correct(table, against, table["statistics"] == name)
    return table


def _rows(done: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    accuracies = by_seed(done, f"{name}_accuracy")
    highest = by_seed(done, f"{name}_best_accuracy")
    rests_on = by_seed(done, "effective_samples")
    out = []
    for key, values in accuracies.items():
        mean = estimate(list(values.values()))
        row: dict[str, Any] = {
            **dict(zip(SETTING, key, strict=True)),
            "statistics": name,
            "seeds": mean.n,
            "effective_samples": estimate(list(rests_on.get(key, {}).values())).mean,
        }
        best = estimate(list(highest[key].values()))
        row |= {"accuracy": mean.mean, "low": mean.low, "high": mean.high}
        row |= {"best_accuracy": best.mean, "best_low": best.low, "best_high": best.high}
        for against in AGAINST:
            row |= compared(against, paired(accuracies, key, against))
        out.append(row)
    return out


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Where a setting stands among others."""
    norm = list(NORMS).index(row["batch_norm"])
    own = place_of(row["strategy"], row["exchange_fraction"])
    return (row["variant"], norm, row["world_size"], *own)


def place_of(strategy: str, fraction: float | None) -> tuple[int, str, float]:
    """Where a strategy with its Q stands among others."""
    known = STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES)
    return known, strategy, fraction or 0.0


def by_seed(runs: pd.DataFrame, column: str, setting: Iterable[str] = SETTING) -> Accuracies:
    """A column of the runs by a setting, and seed, in the order of the runs; without empty
    values."""
    out: Accuracies = {}
    for row in runs[runs[column].notna()].to_dict("records"):
        key = tuple(None if pd.isna(row[name]) else row[name] for name in setting)
        out.setdefault(key, {})[int(row["seed"])] = float(row[column])
    return out


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate:
    """Return how much larger the first values are, over the seeds that both have."""
    return estimate([first[seed] - second[seed] for seed in first if seed in second])


def paired(accuracies: Accuracies, key: Key, against: str) -> Estimate:
    """The difference of setting ``key`` to what it is compared with, over the seeds of both."""
    condition, (strategy, fraction) = key[: len(CONDITION)], key[len(CONDITION) :]
    if strategy in _NOT_COMPARED[against]:
        return estimate([])
    at = fraction if against == "partial" else _FRACTION[against]
    other = accuracies.get((*condition, against, at), {})
    own = accuracies[key]
    return paired_difference(own, other)


_NOT_COMPARED = {
    "global": {"global"},
    "local": {"global", "local"},
    "partial": {"global", "local", "partial"},
}
"""Strategies that are not compared with each; global with local is the same as local with
global."""
_FRACTION = {"global": None, "local": 0.0}


# -------------------------------------------------------------------------- what statistics rest on


FEWEST = 3
"""Settings that a curve is fitted to, at least."""


@dataclass(frozen=True)
class LossCurve:
    """The loss c (1/n - 1/n of global shuffle), fitted by least squares."""

    settings: int  # that it was fitted to
    slope: float  # c, share of accuracy times samples
    residual: float  # root of the mean square of what it leaves of the losses, share of accuracy
    spread: float  # the same of the losses themselves
    worst: Mapping[Any, Any]  # of `losses`, the row that it misses by most
    miss: float  # by how much this row loses more than the curve says, share of accuracy


def losses(settings: pd.DataFrame) -> pd.DataFrame:
    """The rows of summary.csv with a rank's own statistics, beside global shuffle of the same
    condition: with loss, loss_low, loss_high (accuracy of global shuffle less that of the setting;
    0 and empty for itself) and global_effective_samples."""
    own = settings[(settings["statistics"] == "own") & settings["effective_samples"].notna()]
    reference = own.loc[own["strategy"] == "global", [*CONDITION, "effective_samples"]]
    rows = own.merge(
        reference.rename(columns={"effective_samples": "global_effective_samples"}),
        on=list(CONDITION),
    )
    itself = rows["strategy"] == "global"
    rows = rows.assign(
        loss=(-rows["global_difference"]).mask(itself, 0.0),
        loss_low=-rows["global_high"],
        loss_high=-rows["global_low"],
    )
    return rows[rows["loss"].notna()]


def curve(rows: pd.DataFrame) -> LossCurve | None:
    """The curve of `losses`; None of fewer than `FEWEST` settings, or where all rest on as much."""
    others = rows[rows["strategy"] != "global"]
    x = 1.0 / others["effective_samples"] - 1.0 / others["global_effective_samples"]
    y = others["loss"]
    if len(others) < FEWEST or not (square := float((x * x).sum())) > 0.0:
        return None
    slope = float((x * y).sum()) / square
    missed = (y - slope * x).to_numpy(float)
    worst = int(np.abs(missed).argmax())
    return LossCurve(
        len(others),
        slope,
        math.sqrt(float(np.mean(missed**2))),
        math.sqrt(float(np.mean(y**2))),
        others.to_dict("records")[worst],
        float(missed[worst]),
    )

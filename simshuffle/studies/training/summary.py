"""Summarise runs by setting: means over seeds, differences by seed, and the fitted loss
curve.

Sources: Student, 'The probable error of a mean', Biometrika 6 (1908); S. Holm, 'A
simple sequentially rejective multiple test procedure', Scandinavian Journal of
Statistics 6 (1979).
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
    evaluated_statistics,
    number_column,
)
from simshuffle.study.schema import Column, Schema, amount, text

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval and p-value."""

    n: int  # values
    mean: float  # of them; NaN of none
    # low, high: the 95 % interval by Student's t; NaN of fewer than two
    low: float
    high: float
    # that a mean at least this far from 0 comes by chance where the true one is 0 (two-sided); NaN
    # of fewer than two
    p: float


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean of ``values``, taken as independent draws from a normal
    distribution.

    mean ± t s / √n, with the sample's standard deviation s and the 97.5th percentile t
    of Student's distribution of n − 1 degrees of freedom. Of differences of pairs it is
    the paired t-test, two-sided, against 0. Where all values are equal, the interval is
    that point, and p is 1 if it is 0 and 0 otherwise. Of fewer than two values all but
    the mean is NaN, of none the mean too.
    """
    array = np.asarray(values, np.float64)
    n = len(array)
    mean = float(array.mean()) if n else math.nan
    if n < 2:
        return Estimate(n, mean, math.nan, math.nan, math.nan)
    error = float(array.std(ddof=1)) / math.sqrt(n)
    if error <= abs(mean) * 1e-14:  # all the same, up to rounding
        return Estimate(n, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    half_width = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * error
    return Estimate(
        n,
        mean,
        mean - half_width,
        mean + half_width,
        float(2 * stats.t.sf(abs(mean) / error, n - 1)),
    )


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values of a family after Holm's correction, in the order of ``p``.

    The chance of one false finding or more among all is then at most the level: the i-th
    smallest of m (from 0) is multiplied by m − i, at least the one before it, and at most
    1. NaN stays and does not count.
    """
    order = sorted(
        (i for i, value in enumerate(p) if not math.isnan(value)), key=lambda i: p[i]
    )
    corrected = [math.nan] * len(p)
    highest = 0.0
    for position, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - position) * p[i]))
        corrected[i] = highest
    return corrected


# ---------------------------------------------------------------------------- from runs to settings


REFERENCES = ("global", "local", "partial")
"""Strategies that a setting is compared with, by runs of equal condition and seed;
'partial' at equal Q.
"""


def comparison_columns(
    prefix: str, reference: str, subtrahend: str, family: str
) -> dict[str, Column]:
    """Return the columns of a comparison with a reference, paired by seed.

    They are PREFIX_pairs, _difference, _low, _high, _p and _p_holm, in this order.

    Args:
        prefix: begins the name of each column, before '_'.
        reference: the runs that are compared with, in words.
        subtrahend: the runs whose accuracy is subtracted, in words, with 'of' or 'on'
            before them.
        family: the comparisons that Holm's correction goes over, in words.
    """
    meanings = {
        "pairs": f"seeds that this setting and {reference} have in common",
        "difference": (
            f"mean over these seeds of the accuracy, minus the accuracy {subtrahend}"
        ),
        "low": "lower end of the 95 % interval of this difference",
        "high": "upper end of the interval",
        "p": "p-value of the paired t-test, two-sided",
        "p_holm": f"p-value after Holm's correction over all comparisons {family}",
    }
    return {
        f"{prefix}_{suffix}": number_column(meaning)
        for suffix, meaning in meanings.items()
    }


def comparison_values(prefix: str, difference: Estimate) -> dict[str, Any]:
    """Return the values of `comparison_columns`, by column.

    Holm's correction is NaN until `fill_holm_column`.
    """
    values = (
        difference.n,
        difference.mean,
        difference.low,
        difference.high,
        difference.p,
        math.nan,
    )
    return dict(zip(comparison_columns(prefix, "", "", ""), values, strict=True))


def fill_holm_column(table: pd.DataFrame, prefix: str, family: pd.Series[bool]) -> None:
    """Fill in Holm's correction over the comparisons of a ``family`` of rows, in place.

    ``family`` is True for these rows of ``table``; other rows stay as they are.
    Comparisons without a p-value do not count and stay NaN.
    """
    p = table.loc[family, f"{prefix}_p"].astype(float).tolist()
    table.loc[family, f"{prefix}_p_holm"] = holm(p)


def _reference_columns(reference: str) -> dict[str, Column]:
    """Return the columns of the comparison with a strategy of `REFERENCES`."""
    reference_label = f"{reference} shuffle"
    if reference == "partial":
        reference_label = "partial local shuffle at the same Q"
    family = f"with {reference_label} of the study, with the same statistics"
    return comparison_columns(
        reference, reference_label, f"of {reference_label}", family
    )


SUMMARY_COLUMNS = {
    **SETTING_COLUMNS,
    "statistics": text("where evaluation gets the batch-norm statistics from"),
    "seeds": number_column("number of finished runs"),
    "effective_samples": amount(f"{EFFECTIVE_SAMPLES}; mean over seeds", empty=True),
    "accuracy": number_column(
        "share of test samples classified correctly after the last epoch, mean over seeds"
    ),
    **INTERVAL_COLUMNS,
    "best_accuracy": number_column(
        "highest accuracy after any evaluated epoch, mean over seeds; the test samples themselves"
        " choose the epoch, so it flatters"
    ),
    "best_low": number_column("lower end of the 95 % interval of best_accuracy"),
    "best_high": number_column("upper end of the interval"),
    **{
        name: column
        for reference in REFERENCES
        for name, column in _reference_columns(reference).items()
    },
}
"""Columns of summary.csv."""
SUMMARY = Schema(SUMMARY_COLUMNS, key=(*SETTING, "statistics"))

Key = tuple[Hashable, ...]
Accuracies = dict[Key, dict[int, float]]
"""Accuracy by setting and seed. A setting is the values of `SETTING`, with None for an
empty ``exchange_fraction``.
"""


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each setting and kind of evaluation statistics.

    Columns are `SUMMARY_COLUMNS`. Rows are sorted by statistics ('own' first), variant,
    batch norm, ranks, strategy and Q. ``runs`` that are not done are left out, and runs
    without an accuracy with these statistics do not count. Holm's correction goes over
    all rows with the same statistics.
    """
    finished_runs = runs[runs["status"] == "done"]
    rows = [
        row
        for name in evaluated_statistics(finished_runs)
        for row in sorted(_summary_rows(finished_runs, name), key=_summary_sort_key)
    ]
    table = pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
    for reference in REFERENCES:
        for name in dict.fromkeys(table["statistics"]):
            fill_holm_column(table, reference, table["statistics"] == name)
    return table


def _summary_rows(finished_runs: pd.DataFrame, statistics: str) -> list[dict[str, Any]]:
    """Return the rows of the summary with one kind of evaluation statistics.

    They are in the order of the runs, and Holm's corrections are NaN.
    """
    accuracies = group_values(finished_runs, f"{statistics}_accuracy")
    best_accuracies = group_values(finished_runs, f"{statistics}_best_accuracy")
    effective_samples = group_values(finished_runs, "effective_samples")
    rows = []
    for key, values in accuracies.items():
        mean = estimate(list(values.values()))
        row: dict[str, Any] = {
            **dict(zip(SETTING, key, strict=True)),
            "statistics": statistics,
            "seeds": mean.n,
            "effective_samples": estimate(
                list(effective_samples.get(key, {}).values())
            ).mean,
        }
        best = estimate(list(best_accuracies[key].values()))
        row |= {"accuracy": mean.mean, "low": mean.low, "high": mean.high}
        row |= {
            "best_accuracy": best.mean,
            "best_low": best.low,
            "best_high": best.high,
        }
        for reference in REFERENCES:
            difference = difference_to_reference(accuracies, key, reference)
            row |= comparison_values(reference, difference)
        rows.append(row)
    return rows


def _summary_sort_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a summary row: variant, norm, ranks, strategy, Q."""
    norm = list(NORMS).index(row["batch_norm"])
    strategy_key = strategy_sort_key(row["strategy"], row["exchange_fraction"])
    return (row["variant"], norm, row["world_size"], *strategy_key)


def strategy_sort_key(strategy: str, fraction: float | None) -> tuple[int, str, float]:
    """Return the sort key of a strategy with its Q.

    Known strategies come first, in the order of `STRATEGIES`, then others by name.
    Without a Q (None) a strategy sorts as with 0.
    """
    strategy_rank = (
        STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES)
    )
    return strategy_rank, strategy, fraction or 0.0


def group_values(
    runs: pd.DataFrame, column: str, key_columns: Iterable[str] = SETTING
) -> Accuracies:
    """Group the filled values of a column: {setting: {seed: value}}.

    Runs with NaN in the column are left out, and a setting without any value has no
    entry. Both are in the order of the runs; NaN in a setting becomes None, and a later
    run of equal setting and seed replaces an earlier one.
    """
    values_by_key: Accuracies = {}
    for row in runs[runs[column].notna()].to_dict("records"):
        key = tuple(None if pd.isna(row[name]) else row[name] for name in key_columns)
        values_by_key.setdefault(key, {})[int(row["seed"])] = float(row[column])
    return values_by_key


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float]
) -> Estimate:
    """Estimate by how much the first values exceed the second, over the seeds that both
    have.

    Both map a seed to a value. ``n`` is the number of common seeds, and the mean is NaN
    where there are none.
    """
    return estimate([first[seed] - second[seed] for seed in first if seed in second])


def difference_to_reference(
    accuracies: Accuracies, key: Key, reference: str
) -> Estimate:
    """Estimate the difference of setting ``key`` to a reference, over common seeds.

    It is positive where the setting is better. It is empty (n = 0, all else NaN) for
    strategies that are not compared with it, such as the reference itself, and where
    there are no runs of the reference under the same condition. 'partial' is that of
    equal Q.

    Args:
        accuracies: as `group_values` gives them for the columns `SETTING`.
        key: values of `SETTING`, one of ``accuracies``.
        reference: one of `REFERENCES`.
    """
    condition = key[: len(CONDITION)]
    strategy, fraction = key[len(CONDITION) :]
    if strategy in _NOT_COMPARED[reference]:
        return estimate([])
    reference_fraction = fraction if reference == "partial" else _FRACTION[reference]
    reference_accuracies = accuracies.get(
        (*condition, reference, reference_fraction), {}
    )
    return paired_difference(accuracies[key], reference_accuracies)


_NOT_COMPARED = {
    "global": {"global"},
    "local": {"global", "local"},
    "partial": {"global", "local", "partial"},
}
"""Strategies that are not compared with each reference. Global against local would
repeat local against global.
"""
_FRACTION = {"global": None, "local": 0.0}


# -------------------------------------------------------------------------- what statistics rest on


MIN_SETTINGS = 3
"""Least settings that a curve is fitted to."""


@dataclass(frozen=True)
class LossCurve:
    """The loss c (1/n - 1/n of global shuffle), fitted by least squares, without an
    intercept.

    A loss is the accuracy of global shuffle less that of the setting.
    """

    settings: int  # number of settings that it was fitted to
    slope: float  # c, share of accuracy times samples
    residual: float  # root mean square of losses less the curve, share of accuracy
    spread: float  # root mean square of losses, share of accuracy
    # the row of `losses_against_global` farthest from the curve, above or below
    worst_row: Mapping[Any, Any]
    worst_excess: float  # loss of this row less that of the curve, share of accuracy


def losses_against_global(settings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of summary.csv with a rank's own statistics, beside global
    shuffle's.

    Global shuffle is that of the row's condition. New columns: loss, loss_low,
    loss_high (accuracy of global shuffle less that of the setting over common seeds,
    with its 95 % interval; 0 and an empty interval for global shuffle itself) and
    global_effective_samples.

    Rows without effective samples are left out, as are rows of conditions without
    global shuffle and rows that have no seed in common with it.
    """
    own_statistics = settings[
        (settings["statistics"] == "own") & settings["effective_samples"].notna()
    ]
    reference = own_statistics.loc[
        own_statistics["strategy"] == "global", [*CONDITION, "effective_samples"]
    ]
    rows = own_statistics.merge(
        reference.rename(columns={"effective_samples": "global_effective_samples"}),
        on=list(CONDITION),
    )
    is_global = rows["strategy"] == "global"
    rows = rows.assign(
        loss=(-rows["global_difference"]).mask(is_global, 0.0),
        loss_low=-rows["global_high"],
        loss_high=-rows["global_low"],
    )
    return rows[rows["loss"].notna()]


def fit_loss_curve(rows: pd.DataFrame) -> LossCurve | None:
    """Fit the curve of `losses_against_global` by least squares, without global
    shuffle.

    Settings of all conditions count alike.

    Returns:
        None for fewer than `MIN_SETTINGS` settings, or where all rest on as many
        samples as global shuffle.
    """
    compared_rows = rows[rows["strategy"] != "global"]
    x = (
        1.0 / compared_rows["effective_samples"]
        - 1.0 / compared_rows["global_effective_samples"]
    )
    y = compared_rows["loss"]
    if len(compared_rows) < MIN_SETTINGS or not (square := float((x * x).sum())) > 0.0:
        return None
    slope = float((x * y).sum()) / square
    residuals = (y - slope * x).to_numpy(float)
    worst_index = int(np.abs(residuals).argmax())
    return LossCurve(
        len(compared_rows),
        slope,
        math.sqrt(float(np.mean(residuals**2))),
        math.sqrt(float(np.mean(y**2))),
        compared_rows.to_dict("records")[worst_index],
        float(residuals[worst_index]),
    )

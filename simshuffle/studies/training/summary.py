"""From runs to settings: means over seeds, and differences between runs of one seed."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import pandas as pd

from simshuffle.studies.training.intervals import Estimate, estimate, holm
from simshuffle.studies.training.tables import (
    CONDITION,
    EFFECTIVE_SAMPLES,
    NORMS,
    SETTING,
    SETTING_COLUMNS,
    STRATEGIES,
    schema_of,
    statistics_of,
)

AGAINST = ("global", "local", "partial")
"""What a setting is compared with: runs of the same condition and seed; 'partial' at the same Q."""


def _comparison_columns(name: str) -> dict[str, str]:
    where = "partial local shuffle at the same Q" if name == "partial" else f"{name} shuffle"
    return {
        f"{name}_pairs": f"seeds that this setting and {where} have in common",
        f"{name}_difference": f"mean over these seeds of the accuracy less that of {where}",
        f"{name}_low": "lower end of its 95 % interval",
        f"{name}_high": "upper end",
        f"{name}_p": "p-value of the paired t-test, two-sided",
        f"{name}_p_holm": (
            f"the same after Holm's correction over all comparisons with {where} of the study, with"
            " the same statistics"
        ),
    }


SUMMARY_COLUMNS = {
    **SETTING_COLUMNS,
    "statistics": "where evaluation gets the batch-norm statistics from",
    "seeds": "runs that ended as they should",
    "effective_samples": f"{EFFECTIVE_SAMPLES}; mean over seeds",
    "accuracy": "mean over seeds, share of test samples after the last epoch",
    "low": "lower end of its 95 % interval by Student's t; empty for one seed",
    "high": "upper end",
    "best_accuracy": (
        "mean over seeds of the highest share after any epoch that was evaluated; chosen by the"
        " test samples themselves, so it flatters"
    ),
    "best_low": "lower end of its 95 % interval",
    "best_high": "upper end",
    **{column: text for name in AGAINST for column, text in _comparison_columns(name).items()},
}
"""Columns of summary.csv and their meaning."""
SUMMARY = schema_of(SUMMARY_COLUMNS, ".csv", (*SETTING, "statistics"))

Key = tuple[Hashable, ...]
Accuracies = dict[Key, dict[int, float]]
"""Accuracy by seed, by setting."""


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and kind of evaluation statistics, columns `SUMMARY_COLUMNS`, sorted
    by all of them.

    Args:
        runs: columns `RUN_COLUMNS`; those that are not done are left out.
    """
    done = runs[runs["status"] == "done"]
    rows = [row for name in statistics_of(done) for row in sorted(_rows(done, name), key=_place)]
    table = pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
    for against in AGAINST:
        for name in dict.fromkeys(table["statistics"]):
            family = table["statistics"] == name
            table.loc[family, f"{against}_p_holm"] = holm(
                table.loc[family, f"{against}_p"].astype(float).tolist()
            )
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
            row |= _difference(against, paired(accuracies, key, against))
        out.append(row)
    return out


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Where a setting stands among others."""
    strategy = (
        STRATEGIES.index(row["strategy"]) if row["strategy"] in STRATEGIES else len(STRATEGIES)
    )
    norm = list(NORMS).index(row["batch_norm"])
    return (
        row["variant"],
        norm,
        row["world_size"],
        strategy,
        row["strategy"],
        row["exchange_fraction"] or 0.0,
    )


def by_seed(runs: pd.DataFrame, column: str) -> Accuracies:
    """A column of the runs by setting and seed, in the order of the runs; empty values are left
    out."""
    out: Accuracies = {}
    for row in runs[runs[column].notna()].to_dict("records"):
        fraction = row["exchange_fraction"]
        key = (
            *(row[name] for name in SETTING[:-1]),
            None if fraction is None or math.isnan(fraction) else fraction,
        )
        out.setdefault(key, {})[int(row["seed"])] = float(row[column])
    return out


def paired(accuracies: Accuracies, key: Key, against: str) -> Estimate:
    """The difference of setting ``key`` to what it is compared with, over the seeds that both have;
    of no pairs where there is none."""
    condition, (strategy, fraction) = key[: len(CONDITION)], key[len(CONDITION) :]
    if strategy in _NOT_COMPARED[against]:
        return estimate([])
    other = accuracies.get(
        (*condition, against, fraction if against == "partial" else _FRACTION[against]), {}
    )
    own = accuracies[key]
    return estimate([own[seed] - other[seed] for seed in own if seed in other])


_NOT_COMPARED = {
    "global": {"global"},
    "local": {"global", "local"},
    "partial": {"global", "local", "partial"},
}
"""Strategies that are not compared with each; global with local shuffle is the comparison of local
with global."""
_FRACTION = {"global": None, "local": 0.0}


def _difference(name: str, found: Estimate) -> dict[str, Any]:
    values = (found.n, found.mean, found.low, found.high, found.p, math.nan)
    return dict(zip(_comparison_columns(name), values, strict=True))

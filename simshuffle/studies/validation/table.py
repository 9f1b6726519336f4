"""The table of predicted against measured, and what it comes to: pandas only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.studies.validation.rows import COLUMNS as ROW_COLUMNS
from simshuffle.studies.validation.rows import Row
from simshuffle.study.schema import Column, Schema, amount, flag, real, text

COLUMNS = {
    **{
        name: ROW_COLUMNS[name]
        for name in ("set", "case", "quantity", "unit", "use", "measured", "low", "high")
    },
    "predicted": "what the simulator says; empty where it cannot",
    "predicted_low": "the least it says over what nobody knows: spread and traffic",
    "predicted_high": "the most it says over them",
    "traffic": "by which share the traffic of others may lengthen the time",
    "error": "predicted / measured - 1",
    "inside": "whether the measured range and the predicted one overlap",
    **{
        name: ROW_COLUMNS[name]
        for name in ("kind", "scenario", "values", "spread", "reason", "source")
    },
}
PREDICTED = ("predicted", "predicted_low", "predicted_high", "traffic")
SUMMARY_COLUMNS = {
    "set": "group of rows",
    "use": (
        "fit: a parameter was fitted on these rows; predict: none was; none: they cannot be"
        " predicted"
    ),
    "rows": "their number",
    "mean_error": "mean of |predicted / measured - 1|",
    "median_error": "median of the same",
    "worst_error": "largest of the same",
    "worst_case": "where that is",
    "inside": "share of the rows whose measured and predicted ranges overlap",
}


def table(
    rows: Sequence[Row], predicted: Sequence[tuple[float, float, float, float] | None]
) -> pd.DataFrame:
    """One row for each measured number: columns `COLUMNS`.

    Args:
        rows: from `read_rows`.
        predicted: for each row value, low and high in its unit, and traffic; None where there is no
            prediction.
    """
    nothing = (np.nan, np.nan, np.nan, 0.0)
    out = pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(ROW_COLUMNS))
    for name in ("measured", "low", "high"):
        out[name] = out[name].astype(float)
    values = np.array([one or nothing for one in predicted], float).reshape(-1, 4)
    for name, column in zip(PREDICTED, values.T, strict=True):
        out[name] = column
    out["error"] = out["predicted"] / out["measured"] - 1
    lowest = out[["low", "measured"]].min(axis=1)
    highest = out[["high", "measured"]].max(axis=1)
    out["inside"] = (out["predicted_low"] <= highest) & (out["predicted_high"] >= lowest)
    return out[list(COLUMNS)]


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """What each set comes to, fitted and predicted rows apart: columns `SUMMARY_COLUMNS`."""
    out = []
    for (name, use), part in results.groupby(["set", "use"], sort=False):
        errors = part["error"].abs()
        known = bool(errors.notna().any())
        out.append(
            {
                "set": name,
                "use": use,
                "rows": len(part),
                "mean_error": errors.mean(),
                "median_error": errors.median(),
                "worst_error": errors.max(),
                "worst_case": (
                    _named(part.iloc[int(errors.fillna(-1.0).to_numpy().argmax())]) if known else ""
                ),
                "inside": part["inside"].mean() if known else np.nan,
            }
        )
    return pd.DataFrame(out, columns=list(SUMMARY_COLUMNS))


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How many predicted rows lie within their interval.

    Attributes:
        rows: predicted ones.
        inside: of them those whose measured and predicted ranges overlap.
        intervals: of them those for which an interval is predicted, not one number.
        inside_intervals: those of both.
    """

    rows: int
    inside: int
    intervals: int
    inside_intervals: int


def coverage(results: pd.DataFrame) -> Coverage:
    """The coverage of the predicted rows of `table`."""
    part = results[results["use"] == "predict"]
    interval = part["predicted_high"] > part["predicted_low"]
    inside = part["inside"].astype(bool)
    return Coverage(
        len(part), int(inside.sum()), int(interval.sum()), int((inside & interval).sum())
    )


def _named(row: pd.Series[Any]) -> str:
    return f"{row['case']}, {row['quantity']}"


_KINDS: dict[str, Callable[[str], Column]] = {
    **{
        name: lambda meaning: real(meaning, empty=True)
        for name in ("measured", "low", "high", "predicted", "predicted_low", "predicted_high")
    },
    "error": lambda meaning: real(meaning, empty=True),
    "traffic": amount,
    "inside": flag,
}
SCHEMA = Schema({name: _KINDS.get(name, text)(meaning) for name, meaning in COLUMNS.items()})
SUMMARY = Schema(
    {
        name: text(meaning)
        if name in {"set", "use", "worst_case"}
        else amount(meaning, empty=name != "rows")
        for name, meaning in SUMMARY_COLUMNS.items()
    }
)

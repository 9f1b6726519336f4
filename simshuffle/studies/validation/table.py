"""The table of predicted against measured, and what it comes to: pandas only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from simshuffle.studies.validation.rows import COLUMNS as ROW
from simshuffle.studies.validation.rows import NUMBERS, Row
from simshuffle.study.schema import Schema, amount, flag, real, text

SCHEMA = Schema(
    {
        **{name: text(ROW[name]) for name in ("set", "case", "quantity", "unit", "use")},
        **{name: real(ROW[name], empty=True) for name in NUMBERS},
        "predicted": real("what the simulator says; empty where it cannot", empty=True),
        "predicted_low": real(
            "the least it says over what nobody knows: spread and traffic", empty=True
        ),
        "predicted_high": real("the most it says over them", empty=True),
        "traffic": amount("by which share the traffic of others may lengthen the time"),
        "error": real("predicted / measured - 1", empty=True),
        "inside": flag("whether the measured range and the predicted one overlap"),
        **{
            name: text(ROW[name])
            for name in ("kind", "scenario", "values", "spread", "reason", "source")
        },
    }
)
"""A row for each measured number."""
PREDICTED = ("predicted", "predicted_low", "predicted_high", "traffic")
SUMMARY = Schema(
    {
        "set": text("group of rows"),
        "use": text(
            "fit: a parameter was fitted on these rows; predict: none was; none: they cannot be"
            " predicted"
        ),
        "rows": amount("their number"),
        "mean_error": amount("mean of |predicted / measured - 1|", empty=True),
        "median_error": amount("median of the same", empty=True),
        "worst_error": amount("largest of the same", empty=True),
        "worst_case": text("where that is"),
        "inside": amount(
            "share of the rows whose measured and predicted ranges overlap", empty=True
        ),
    }
)
"""A row for each set, fitted and predicted rows apart."""


def table(
    rows: Sequence[Row], predicted: Sequence[tuple[float, float, float, float] | None]
) -> pd.DataFrame:
    """One row for each measured number: columns of `SCHEMA`.

    Args:
        rows: from `read_rows`.
        predicted: for each row value, low and high in its unit, and traffic; None where there is no
            prediction.
    """
    nothing = (np.nan, np.nan, np.nan, 0.0)
    out = pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(ROW))
    for name in NUMBERS:
        out[name] = out[name].astype(float)
    values = np.array([one or nothing for one in predicted], float).reshape(-1, 4)
    for name, column in zip(PREDICTED, values.T, strict=True):
        out[name] = column
    out["error"] = out["predicted"] / out["measured"] - 1
    lowest = out[["low", "measured"]].min(axis=1)
    highest = out[["high", "measured"]].max(axis=1)
    out["inside"] = (out["predicted_low"] <= highest) & (out["predicted_high"] >= lowest)
    return out[list(SCHEMA.columns)]


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """What each set comes to, fitted and predicted rows apart: columns of `SUMMARY`."""
    out = []
    for (name, use), part in results.groupby(["set", "use"], sort=False):
        errors = part["error"].abs()
        known = bool(errors.notna().any())
        worst = part.iloc[int(errors.fillna(-1.0).to_numpy().argmax())]
        out.append(
            {
                "set": name,
                "use": use,
                "rows": len(part),
                "mean_error": errors.mean(),
                "median_error": errors.median(),
                "worst_error": errors.max(),
                "worst_case": f"{worst['case']}, {worst['quantity']}" if known else "",
                "inside": part["inside"].mean() if known else np.nan,
            }
        )
    return pd.DataFrame(out, columns=list(SUMMARY.columns))


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How many predicted rows lie within their interval."""

    rows: int  # predicted ones
    inside: int  # of them those whose measured and predicted ranges overlap
    intervals: int  # of them those for which an interval is predicted, not one number
    inside_intervals: int  # those of both


def coverage(results: pd.DataFrame) -> Coverage:
    """The coverage of the predicted rows of `table`."""
    part = results[results["use"] == "predict"]
    interval = part["predicted_high"] > part["predicted_low"]
    inside = part["inside"].astype(bool)
    return Coverage(
        len(part), int(inside.sum()), int(interval.sum()), int((inside & interval).sum())
    )

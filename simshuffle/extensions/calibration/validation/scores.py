"""Score intervals: how many measured values they hold, and how wide they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
ALPHA = 0.1
"""Share of the measured values that may lie outside an interval: it is one of 90 %."""


class Scores(NamedTuple):
    """The scores of the intervals of a set; nan without a row with interval and
    measured value.
    """

    coverage: float  # share of the measured values that lie in their interval
    interval_score: float  # mean of `winkler`
    naive_score: float  # the same of predictions times/over 1 + their mean |error|


def winkler(low: Numbers, high: Numbers, measured: Numbers) -> Numbers:
    """Return the interval score of each row, (rows,) as the arguments; small is good.

    It is the width of the interval, and 2 / `ALPHA` times the distance of the measured
    value outside, all of natural logarithms. So it has no unit, and rows of different
    units may be averaged.

    Source: T. Gneiting and A. E. Raftery, Strictly Proper Scoring Rules, Prediction,
    and Estimation, JASA 102 (2007), doi:10.1198/016214506000001437, Eq. 43; R. L.
    Winkler (1972).
    """
    log_low = np.log(low)
    log_high = np.log(high)
    log_measured = np.log(measured)
    outside = np.maximum(log_low - log_measured, 0.0) + np.maximum(
        log_measured - log_high, 0.0
    )
    return np.asarray(log_high - log_low + 2 / ALPHA * outside)


def select_rows_with_interval(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have a measured value, a predicted one and an interval, all
    above 0.

    Others have no logarithm.
    """
    columns = ["measured", "predicted", "interval_low", "interval_high"]
    return results[(results[columns] > 0).all(axis=1)]


def is_in_interval(results: pd.DataFrame) -> pd.Series[bool]:
    """Return (rows,) whether the measured value lies in the interval, the ends
    included; False where either is nan.
    """
    measured = results["measured"]
    return (results["interval_low"] <= measured) & (
        measured <= results["interval_high"]
    )


def score_intervals(results: pd.DataFrame) -> Scores:
    """Score the intervals of the rows of one set that have an interval and a measured
    value (`select_rows_with_interval`); all scores are nan without such rows.

    The naive factor, 1 + the mean relative error, is from all rows that are given.
    """
    rows = select_rows_with_interval(results)
    if rows.empty:
        return Scores(np.nan, np.nan, np.nan)
    naive_factor = 1.0 + (results["predicted"] / results["measured"] - 1).abs().mean()
    columns = ("interval_low", "interval_high", "measured", "predicted")
    low, high, measured, predicted = (rows[name].to_numpy(float) for name in columns)
    return Scores(
        float(is_in_interval(rows).mean()),
        float(winkler(low, high, measured).mean()),
        float(
            winkler(predicted / naive_factor, predicted * naive_factor, measured).mean()
        ),
    )

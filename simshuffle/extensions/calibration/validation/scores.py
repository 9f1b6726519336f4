"""How good intervals are: how many measured values they hold, and what they cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
ALPHA = 0.1
"""Share of the measured values that may lie outside an interval: it is one of 90 %."""


class Scores(NamedTuple):
    """Of the rows of a set; nan where no row has an interval and a measured value."""

    coverage: float  # share of the measured values that lie in their interval
    interval_score: float  # mean of `winkler`
    naive_score: float  # the same of predictions times/over 1 + their mean |error|


def winkler(low: Numbers, high: Numbers, measured: Numbers) -> Numbers:
    """The interval score of each row, (rows,) as the arguments: the width of its interval, and
    2 / `ALPHA` times the distance of the measured value outside, all of natural logarithms. So it
    has no unit, rows of different units may be averaged, and small is good.

    Source: T. Gneiting and A. E. Raftery, Strictly Proper Scoring Rules, Prediction, and
    Estimation, JASA 102 (2007), doi:10.1198/016214506000001437, Eq. 43; R. L. Winkler (1972).
    """
    first, last, value = np.log(low), np.log(high), np.log(measured)
    outside = np.maximum(first - value, 0.0) + np.maximum(value - last, 0.0)
    return np.asarray(last - first + 2 / ALPHA * outside)


def scored(results: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a measured value, a predicted one and an interval, all above 0: others
    have no logarithm."""
    columns = ["measured", "predicted", "interval_low", "interval_high"]
    return results[(results[columns] > 0).all(axis=1)]


def within(results: pd.DataFrame) -> pd.Series[bool]:
    """Of each row, whether the measured value lies in the interval, the ends included."""
    measured = results["measured"]
    return (results["interval_low"] <= measured) & (measured <= results["interval_high"])


def scores(results: pd.DataFrame) -> Scores:
    """What the intervals of the rows of one set come to."""
    rows = scored(results)
    if rows.empty:
        return Scores(np.nan, np.nan, np.nan)
    away = 1.0 + (results["predicted"] / results["measured"] - 1).abs().mean()
    columns = ("interval_low", "interval_high", "measured", "predicted")
    low, high, measured, naive = (rows[name].to_numpy(float) for name in columns)
    return Scores(
        float(within(rows).mean()),
        float(winkler(low, high, measured).mean()),
        float(winkler(naive / away, naive * away, measured).mean()),
    )

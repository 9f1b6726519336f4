"""Intervals and tests for few runs: Student's t, and Holm's correction for several comparisons.

Sources: Student, 'The probable error of a mean', Biometrika 6 (1908); S. Holm, 'A simple
sequentially rejective multiple test procedure', Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

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

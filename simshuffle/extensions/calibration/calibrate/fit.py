"""Fits with relative errors, and intervals. No file, no unit, no tool is known here.

Every law of time is a sum of positive coefficients times known numbers, so one solver serves all.
Measurement errors are relative: a message of 1 GB is not measured more exactly than one of 1 kB, in
percent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import nnls

CONFIDENCE = 0.95
LEAST_DOF = 2
"""Degrees of freedom below which no interval is given: with one, the factor of the t distribution
is 12.7."""
BELOW = 0.9
"""A ceiling lies below this share of what the slope would give at the last place; else nothing
tells it from growing on."""
_HUBER = 2.5
_ITERATIONS = 100
_EXACT = 1e-9
_NOTHING_KNOWN = 50.0  # half a width of a factor e^50: such an interval says nothing
Floats = NDArray[np.float64]
Estimate = tuple[float, float, float]
"""A value and the ends of its interval; nan for both where there is none."""


@dataclass(frozen=True)
class LinearFit:
    """Coefficients c of y = offset + x @ c."""

    value: Floats  # (k,) coefficients, not negative. 0 for one that the data do not need.
    # (k,) ends of the interval; nan where the points are too few, or the coefficient is 0
    low: Floats
    high: Floats
    fitted: Floats  # (n,) values of the law

    def coefficient(self, place: int) -> Estimate:
        """One coefficient."""
        return float(self.value[place]), float(self.low[place]), float(self.high[place])

    def inverse(self, place: int) -> Estimate:
        """1 over one coefficient that is not 0."""
        value, low, high = self.coefficient(place)
        return 1 / value, 1 / high, 1 / low


def relative_fit(x: Floats, y: Floats, offset: Floats | None = None) -> LinearFit:
    """Fit y = offset + x @ c, c >= 0, to the logarithms, with Huber's weights so that single
    outliers do not matter.

    The intervals come from the linearised law in log c with the t distribution, and the covariance
    of Huber's estimator (Huber, Robust Statistics, 1981, section 7.6: K^2 [sum psi^2 / (n - k)] /
    mean(psi')^2 (J'J)^-1). That they hold the true value in 95 % of cases is checked in
    tests/physics/test_calibration.py.

    Args:
        x: (n, k) known factors, not negative.
        y: (n,) measured, positive.
        offset: (n,) part of ``y`` that is known; None for 0.
    """
    known = np.zeros(len(y)) if offset is None else offset
    start = nnls(x / y[:, None], 1.0 - np.minimum(known / y, 1.0))[0]
    active = np.flatnonzero((start > 0) & (x > 0).any(axis=0))
    value, low, high = np.zeros(x.shape[1]), *np.full((2, x.shape[1]), np.nan)
    if len(active):
        value[active], low[active], high[active] = _in_logs(x[:, active], y, known, start[active])
    return LinearFit(value, low, high, known + x @ value)


def _in_logs(x: Floats, y: Floats, known: Floats, start: Floats) -> tuple[Floats, Floats, Floats]:
    theta = np.log(start)
    scale = np.inf
    for step in range(_ITERATIONS):
        residual, jacobian = _residuals(x, y, known, theta)
        if step:
            scale = _scale(residual, x.shape[1])
        weight = np.ones(len(y))
        if scale > _EXACT:
            weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), 1e-300))
        root = np.sqrt(weight)
        change = np.linalg.lstsq(root[:, None] * jacobian, root * residual, rcond=None)[0]
        theta = theta + np.clip(change, -1.0, 1.0)
        if step and np.abs(change).max() < 1e-13:
            break
    residual, jacobian = _residuals(x, y, known, theta)
    half = _half_widths(residual, jacobian, scale)
    half = np.where(half < _NOTHING_KNOWN, half, np.nan)
    return np.exp(theta), np.exp(theta - half), np.exp(theta + half)


def _residuals(x: Floats, y: Floats, known: Floats, theta: Floats) -> tuple[Floats, Floats]:
    parts = x * np.exp(theta)
    fitted = known + parts.sum(axis=1)
    return np.log(y / fitted), parts / fitted[:, None]


def _scale(residual: Floats, parameters: int) -> float:
    """Robust standard deviation: the median of the largest n - k + 1 absolute residuals over
    0.6745."""
    ordered = np.sort(np.abs(residual))[max(parameters - 1, 0) :]
    return float(np.median(ordered) / 0.6745)


def _half_widths(residual: Floats, jacobian: Floats, scale: float) -> Floats:
    count, parameters = jacobian.shape
    dof = count - parameters
    if dof < LEAST_DOF:
        return np.full(parameters, np.nan)
    cut = _HUBER * scale if scale > _EXACT else np.inf
    inside = np.abs(residual) <= cut
    share = inside.mean()
    psi = np.clip(residual, -cut, cut)
    correction = 1 + parameters / count * (1 - share) / share
    variance = correction**2 * (psi @ psi) / dof / share**2
    spread = np.sqrt(variance * np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    out: Floats = stats.t.ppf(0.5 + CONFIDENCE / 2, dof) * spread
    return out


def mean_interval(mean: float, spread: float, count: int) -> tuple[float, float]:
    """The t interval of a mean of ``count`` values with standard deviation ``spread``; nan if they
    are too few."""
    if count - 1 < LEAST_DOF or not np.isfinite(spread):
        return np.nan, np.nan
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1) * spread / np.sqrt(count))
    return mean - half, mean + half


def pooled_half_widths(residual: Floats, counts: NDArray[np.int64]) -> Floats:
    """Half the widths of the t intervals of the means of groups that share one spread: (groups,);
    nan if the rows are too few. ``residual``: (n,) deviations from the means of the groups.
    """
    dof = len(residual) - len(counts)
    if dof < LEAST_DOF:
        return np.full(len(counts), np.nan)
    out: Floats = stats.t.ppf(0.5 + CONFIDENCE / 2, dof) * np.sqrt(
        residual @ residual / dof / counts
    )
    return out


def median_interval(values: Floats) -> tuple[float, float]:
    """The interval of a median by order statistics, whatever the distribution; nan below 6 values,
    where there is none.

    The number of values below the median is binomial with 1/2: the r-th smallest and the r-th
    largest hold the median with probability 1 - 2 P(K < r) (David and Nagaraja, Order Statistics,
    section 7.1). The largest r with at least 95 % is taken.
    """
    ordered, count = np.sort(values), len(values)
    r = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))
    if r < 1:
        return np.nan, np.nan
    return float(ordered[r - 1]), float(ordered[count - r])


def variation(values: Floats) -> Estimate:
    """Standard deviation over mean of log-normal values, and its interval.

    s^2 is the variance of the logarithms, and s^2 (n - 1) / sigma^2 is chi-squared; the ratio is
    sqrt(exp(s^2) - 1). nan where there are fewer than 3 values.
    """
    dof = len(values) - 1
    if dof < LEAST_DOF:
        return np.nan, np.nan, np.nan
    variance = float(np.var(np.log(values), ddof=1))
    ends = variance * dof / stats.chi2.ppf([0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2], dof)
    value, low, high = np.sqrt(np.expm1([variance, *ends]))
    return float(value), float(low), float(high)


def saturation(x: Floats, y: Floats) -> tuple[float, float, NDArray[np.bool_]]:
    """Fit y = min(x slope, ceiling) to the logarithms by least squares: slope, ceiling, and the
    rows on the ceiling.

    Every split of the ascending ``x`` is tried: those below grow, those above are on the ceiling.
    Without a ceiling (all grow) the ceiling is nan and no row is on it; with a single x there is no
    slope (nan), and all are on the ceiling. ``x`` and ``y``: (n,) positive.
    """
    places = np.unique(x)
    if len(places) == 1:
        return np.nan, float(np.exp(np.log(y).mean())), np.ones(len(y), dtype=bool)
    best = (np.inf, np.nan, np.nan, np.zeros(len(y), dtype=bool))
    for first in range(1, len(places) + 1):  # places on the slope
        flat = x > places[first - 1]
        slope = float(np.exp(np.log(y[~flat] / x[~flat]).mean()))
        ceiling = float(np.exp(np.log(y[flat]).mean())) if flat.any() else np.nan
        if ceiling > BELOW * slope * places[-1]:
            continue
        fitted = np.fmin(slope * x, ceiling)
        error = float(np.sum(np.log(y / fitted) ** 2))
        if error < best[0] * (1 - 1e-9):
            best = (error, slope, ceiling, flat)
    return best[1], best[2], best[3]

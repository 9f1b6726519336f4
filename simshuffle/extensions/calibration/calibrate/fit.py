"""Fits with relative errors, and intervals. No file, no unit, no tool is known here.

Every law of time is a sum of positive coefficients times known numbers, so one solver
serves all. Measurement errors are relative: a message of 1 GB is not measured more
exactly than one of 1 kB, in percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import nnls

CONFIDENCE = 0.95
MIN_DOF = 2
"""Degrees of freedom below which no interval is given: with one, the factor of the t
distribution is 12.7.
"""
MAX_CEILING_SHARE = 0.9
"""A ceiling lies below this share of what the slope would give at the largest x; else
nothing tells it from growing on.
"""
_HUBER = 2.5  # robust standard deviations beyond which a residual counts less
_ITERATIONS = 100
_EXACT_SCALE = 1e-9  # deviation of logarithms below which all residuals count alike
_MAX_HALF_WIDTH = 50.0  # half a width of a factor e^50: such an interval says nothing
Floats = NDArray[np.float64]
Estimate = tuple[float, float, float]
"""A value and the ends of its interval; nan for both where there is none."""


@dataclass(frozen=True)
class LinearFit:
    """Coefficients c of y = offset + x @ c."""

    value: (
        Floats  # (k,) coefficients, not negative. 0 for one that the data do not need.
    )
    # (k,) ends of the interval; nan where the points are too few (`MIN_DOF`), the
    # coefficient is 0, or the interval reaches further than a factor of e^50
    low: Floats
    high: Floats
    fitted: Floats  # (n,) values of the law, the offset included

    def coefficient(self, index: int) -> Estimate:
        """Return the coefficient of a column of x, with the ends of its interval: both
        nan where there is none.
        """
        return float(self.value[index]), float(self.low[index]), float(self.high[index])

    def inverse(self, index: int) -> Estimate:
        """Return 1 over a coefficient that is not 0, with the ends of its interval: the
        lower one first, both nan where there is none.
        """
        value, low, high = self.coefficient(index)
        return 1 / value, 1 / high, 1 / low


def relative_fit(x: Floats, y: Floats, offset: Floats | None = None) -> LinearFit:
    """Fit y = offset + x @ c, c >= 0, to the logarithms, with Huber's weights against
    outliers. A coefficient that the data do not need is 0, without an interval.

    The intervals come from the linearised law in log c with the t distribution, and the
    covariance of Huber's estimator (Huber, Robust Statistics, 1981, section 7.6: K^2
    [sum psi^2 / (n - k)] / mean(psi')^2 (J'J)^-1). That they hold the true value in 95
    % of cases is checked in tests/physics/test_calibration.py.

    Args:
        x: (n, k) known factors, not negative.
        y: (n,) measured, positive.
        offset: (n,) part of ``y`` that is known; None for 0.
    """
    known_part = np.zeros(len(y)) if offset is None else offset
    # over y, a row of x @ c is a share of what was measured: 1 where the law is exact
    initial = nnls(x / y[:, None], 1.0 - np.minimum(known_part / y, 1.0))[0]
    active = np.flatnonzero((initial > 0) & (x > 0).any(axis=0))
    value = np.zeros(x.shape[1])
    low, high = np.full((2, x.shape[1]), np.nan)
    if len(active):
        value[active], low[active], high[active] = fit_logarithms(
            x[:, active], y, known_part, initial[active]
        )
    return LinearFit(value, low, high, known_part + x @ value)


def fit_logarithms(
    x: Floats, y: Floats, known_part: Floats, initial: Floats
) -> tuple[Floats, Floats, Floats]:
    """Fit theta = log c by weighted Gauss-Newton steps; return c and the ends of its
    intervals, three arrays of (k,).

    Ends are nan as in `LinearFit`. After `_ITERATIONS` steps the last c is taken.

    Args:
        x: (n, k) factors of the k coefficients above 0.
        y: (n,) measured, positive.
        known_part: (n,) part of ``y`` that is known.
        initial: (k,) coefficients to start from, positive.
    """
    theta = np.log(initial)  # (k,)
    scale = np.inf
    for iteration in range(_ITERATIONS):
        residual, jacobian = log_residuals(x, y, known_part, theta)
        if iteration:
            scale = robust_deviation(residual, x.shape[1])
        weight = np.ones(len(y))
        if scale > _EXACT_SCALE:
            weight = np.minimum(
                1.0, _HUBER * scale / np.maximum(np.abs(residual), 1e-300)
            )
        root = np.sqrt(weight)
        step = np.linalg.lstsq(root[:, None] * jacobian, root * residual, rcond=None)[0]
        theta = theta + np.clip(step, -1.0, 1.0)
        if iteration and np.abs(step).max() < 1e-13:
            break
    residual, jacobian = log_residuals(x, y, known_part, theta)
    half_widths = parameter_half_widths(residual, jacobian, scale)
    half_widths = np.where(half_widths < _MAX_HALF_WIDTH, half_widths, np.nan)
    return np.exp(theta), np.exp(theta - half_widths), np.exp(theta + half_widths)


def log_residuals(
    x: Floats, y: Floats, known_part: Floats, theta: Floats
) -> tuple[Floats, Floats]:
    """Return (n,) log(y / fitted), and (n, k) the derivatives of log(fitted) by theta."""
    # row: a measurement; column: a coefficient; fitted = known_part + sum over columns x e^theta
    terms = x * np.exp(theta)
    fitted = known_part + terms.sum(axis=1)
    return np.log(y / fitted), terms / fitted[:, None]


def robust_deviation(residual: Floats, num_parameters: int) -> float:
    """Return the robust standard deviation of residuals.

    It is the median of the largest n - k + 1 absolute residuals over 0.6745.
    """
    largest = np.sort(np.abs(residual))[max(num_parameters - 1, 0) :]
    return float(np.median(largest) / 0.6745)


def parameter_half_widths(residual: Floats, jacobian: Floats, scale: float) -> Floats:
    """Return (k,) half widths of the intervals of theta; nan if the points are too few.

    Args:
        residual: (n,) logarithms of measured over fitted.
        jacobian: (n, k) derivatives of log(fitted) by theta.
        scale: robust standard deviation of the residuals.
    """
    count, num_parameters = jacobian.shape
    dof = count - num_parameters
    if dof < MIN_DOF:
        return np.full(num_parameters, np.nan)

    # K^2 [sum psi^2 / (n - k)] / mean(psi')^2 (J'J)^-1, with K = correction
    huber_limit = _HUBER * scale if scale > _EXACT_SCALE else np.inf
    is_inside = np.abs(residual) <= huber_limit
    share_inside = is_inside.mean()
    psi = np.clip(residual, -huber_limit, huber_limit)
    correction = 1 + num_parameters / count * (1 - share_inside) / share_inside
    variance = correction**2 * (psi @ psi) / dof / share_inside**2
    spread = np.sqrt(variance * np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    half_widths: Floats = stats.t.ppf(0.5 + CONFIDENCE / 2, dof) * spread
    return half_widths


def mean_interval(mean: float, spread: float, count: int) -> tuple[float, float]:
    """Return the t interval of a mean of ``count`` values with standard deviation
    ``spread``.

    Both ends are nan below 3 values, or if the spread is nan or infinite.
    """
    if count - 1 < MIN_DOF or not np.isfinite(spread):
        return np.nan, np.nan
    half_width = float(
        stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1) * spread / np.sqrt(count)
    )
    return mean - half_width, mean + half_width


def pooled_half_widths(residual: Floats, counts: NDArray[np.int64]) -> Floats:
    """Return (groups,) half widths of the t intervals of means of groups that share one
    spread.

    They are nan if there are fewer than `MIN_DOF` rows more than groups.

    Args:
        residual: (n,) deviations from the means of the groups.
        counts: (groups,) rows of each group.
    """
    dof = len(residual) - len(counts)
    if dof < MIN_DOF:
        return np.full(len(counts), np.nan)
    half_widths: Floats = stats.t.ppf(0.5 + CONFIDENCE / 2, dof) * np.sqrt(
        residual @ residual / dof / counts
    )
    return half_widths


def median_interval(values: Floats) -> tuple[float, float]:
    """Return the interval of a median by order statistics, whatever the distribution.

    Below 6 values there is none, and both ends are nan. The number of values below the
    median is binomial with 1/2: the r-th smallest and the r-th largest hold the median
    with probability 1 - 2 P(K < r) (David and Nagaraja, Order Statistics, section 7.1).
    The largest r with at least 95 % is taken.
    """
    ordered = np.sort(values)
    count = len(values)
    r = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))
    if r < 1:
        return np.nan, np.nan
    return float(ordered[r - 1]), float(ordered[count - r])


def variation(values: Floats) -> Estimate:
    """Return the standard deviation over the mean of log-normal values, and its
    interval.

    s^2 is the variance of the logarithms, and s^2 (n - 1) / sigma^2 is chi-squared; the
    ratio is sqrt(exp(s^2) - 1). All three are nan below 3 values.
    """
    dof = len(values) - 1
    if dof < MIN_DOF:
        return np.nan, np.nan, np.nan
    variance = float(np.var(np.log(values), ddof=1))
    ends = (
        variance
        * dof
        / stats.chi2.ppf([0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2], dof)
    )
    value, low, high = np.sqrt(np.expm1([variance, *ends]))
    return float(value), float(low), float(high)


class Saturation(NamedTuple):
    """The law y = min(x slope, ceiling), fitted to some rows."""

    slope: float  # nan where all rows have one x
    ceiling: float  # nan where all rows grow
    on_ceiling: NDArray[np.bool_]  # (rows,) whether a row lies on the ceiling


def saturation(x: Floats, y: Floats) -> Saturation:
    """Fit y = min(x slope, ceiling) to the logarithms by least squares.

    Every split of the ascending ``x`` is tried: rows below it grow, rows above it are
    on the ceiling. Without a ceiling (all grow, or the ceiling is above
    `MAX_CEILING_SHARE` of the slope's last value) it is nan and no row is on it.
    With a single x there is no slope (nan), and all rows are on the ceiling.

    Args:
        x: (n,) positive.
        y: (n,) positive.
    """
    x_values = np.unique(x)
    if len(x_values) == 1:
        return Saturation(
            np.nan, float(np.exp(np.log(y).mean())), np.ones(len(y), dtype=bool)
        )

    best_fit = Saturation(np.nan, np.nan, np.zeros(len(y), dtype=bool))
    min_error = np.inf
    for num_rising in range(1, len(x_values) + 1):  # distinct x on the slope
        on_ceiling = x > x_values[num_rising - 1]
        slope = float(np.exp(np.log(y[~on_ceiling] / x[~on_ceiling]).mean()))
        ceiling = (
            float(np.exp(np.log(y[on_ceiling]).mean())) if on_ceiling.any() else np.nan
        )
        if ceiling > MAX_CEILING_SHARE * slope * x_values[-1]:
            continue
        fitted = np.fmin(slope * x, ceiling)
        error = float(np.sum(np.log(y / fitted) ** 2))
        if error < min_error * (1 - 1e-9):
            min_error = error
            best_fit = Saturation(slope, ceiling, on_ceiling)
    return best_fit

"""Condition the errors of predictions on measured runs of their machine.

An error is ln(measured / predicted) of a time. The errors of the runs of one machine
are kin: a share of their variance is common to all runs, and a share to the runs that
differ in their number of ranks alone. The second share falls with the number of times
that ranks double between two runs. How large errors are on this machine is not known
either: it is learned from the measured runs, so that errors follow a multivariate t
distribution whose 90 % interval without measured runs is that of a normal distribution.

Source of the formulas: P. Ding, On the Conditional Distribution of the Multivariate t
Distribution, The American Statistician 70 (2016), doi:10.1080/00031305.2016.1164756;
with infinite degrees of freedom they are those of Gaussian conditioning.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.job.uncertainty.inputs import Z90
from simshuffle.spec.arrays import Flags, Floats
from simshuffle.spec.late import special


@dataclass(frozen=True)
class Kinship:
    """The correlation between the errors of two runs of a machine."""

    machine: float  # share of an error's variance that all runs have in common
    series: float  # share that runs at different numbers of ranks have in common, too
    doublings: float  # of the ranks, in which the second share falls by a factor e
    freedom: float  # degrees of freedom of the size of a machine's errors; may be inf

    def correlations(self, ranks: Floats, series: Sequence[Hashable]) -> Floats:
        """Return the correlations (n, n) of the errors of n runs.

        Args:
            ranks: (n,) the number of ranks of each run.
            series: names what a run has beside its number of ranks, such as its
                strategy; runs of equal names are of one series.
        """
        doublings = np.log2(np.asarray(ranks, float))
        distance = np.abs(doublings[:, None] - doublings[None, :])
        numbers = {name: number for number, name in enumerate(dict.fromkeys(series))}
        number_of_run = np.array([numbers[name] for name in series])
        is_one_series = number_of_run[:, None] == number_of_run[None, :]
        shared = self.series * np.exp(-distance / self.doublings)
        correlations = self.machine + np.where(is_one_series, shared, 0.0)
        np.fill_diagonal(correlations, 1.0)
        return np.asarray(correlations)


LEARNED = Kinship(machine=0.20, series=0.69, doublings=8.3, freedom=3.0)
"""The kinship of the rows of the validation: the most likely one, each larger number of
ranks predicted from the smaller ones of its machine (`python benchmarks/kinship.py`).
"""


@dataclass(frozen=True)
class Posterior:
    """The errors of unmeasured runs, conditioned on measured runs."""

    mean: Floats  # (runs,) of the errors
    # (runs, runs): as of a normal distribution with the same 90 % intervals
    covariance: Floats

    @property
    def deviation(self) -> Floats:
        """(runs,) standard deviations."""
        return np.sqrt(np.diag(self.covariance))


def condition_errors(
    mean: Floats,
    covariance: Floats,
    errors: Floats,
    freedom: float,
    is_fitted: Flags | None = None,
) -> Posterior:
    """Return the errors of unmeasured runs, given the errors of n measured ones.

    No deviation is larger than without measured runs. Without any they are as before.

    Args:
        mean: (runs + n,) expected errors, those of the unmeasured runs first.
        covariance: (runs + n, runs + n) of the errors, in the same order.
        errors: (n,) of the measured runs.
        freedom: degrees of freedom of the size of errors; inf for a known size.
        is_fitted: (n,) true for runs to which a parameter of the prediction was fitted.
            Their errors say where the prediction lies, but not how large errors are.
    """
    num_runs = len(mean) - len(errors)
    prior = covariance[:num_runs, :num_runs]
    if not len(errors):
        return Posterior(mean, prior)
    shared = covariance[num_runs:, :num_runs]
    surprise = errors - mean[num_runs:]
    gain = _solve(covariance[num_runs:, num_runs:], shared)
    # symmetric but for rounding
    remaining = prior - shared.T @ gain
    tells_size = np.ones(len(errors), bool) if is_fitted is None else ~is_fitted
    own = np.flatnonzero(tells_size) + num_runs
    factor = _size_factor(
        surprise[tells_size], covariance[np.ix_(own, own)], float(freedom)
    )
    remaining = (remaining + remaining.T) / 2 * factor
    before = np.sqrt(np.diag(prior))
    after = np.sqrt(np.maximum(np.diag(remaining), 0.0))
    cap = np.divide(before, after, out=np.ones(num_runs), where=after > before)
    return Posterior(
        mean[:num_runs] + gain.T @ surprise, remaining * np.outer(cap, cap)
    )


def _size_factor(surprise: Floats, covariance: Floats, freedom: float) -> float:
    """Return by which factor measured errors change the variance of all errors.

    It is below 1 where errors are smaller than expected. A t distribution of ``freedom``
    + n degrees has the scale (freedom + q) / (freedom + n), where q is the squared
    distance of n errors from what was expected. All is measured at the ends of 90 %.
    """
    count = len(surprise)
    if not count or np.isinf(freedom):
        return 1.0
    before, after = special.stdtrit(np.array([freedom, freedom + count]), 0.95)
    distance = surprise @ _solve(covariance, surprise) * (before / Z90) ** 2
    return float((after / before) ** 2 * (freedom + distance) / (freedom + count))


def expected_size_factor(freedom: float, count: int) -> float:
    """Return by which factor one more measured run changes the variance of all errors,
    beside ``count`` runs that there are, if its error is as large as the median one.

    The square of an error over its variance is distributed as F of 1 and ``freedom`` +
    ``count``.
    """
    before = freedom + count
    median = float(special.fdtri(1, before, 0.5))
    quantiles = special.stdtrit(np.array([before, before + 1]), 0.95)
    ratio = float(quantiles[1] / quantiles[0])
    return ratio**2 * (before + median) / (before + 1)


def _solve(covariance: Floats, values: Floats) -> Floats:
    """Return the solution of ``covariance`` x = ``values``, of least norm where runs are
    equal and have no chance of their own.
    """
    return np.asarray(np.linalg.lstsq(covariance, values, rcond=1e-12)[0])

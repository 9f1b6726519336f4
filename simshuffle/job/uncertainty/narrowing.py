"""Narrow the intervals of runs by measured runs of their training.

The covariance of the errors of two runs has three parts. Unknown inputs have one value
for all runs: their part is that of the draws. Errors of laws are kin
(`simshuffle.job.uncertainty.kinship`): what a mechanism's error does to both runs, times
their correlation. Chance is each run's own. Conditioning on the measured errors moves
the middle of an interval, and narrows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.interval import (
    Interval,
    RunDraws,
    Sample,
    UncertainRuns,
    draw_run,
    influential_inputs,
)
from simshuffle.job.uncertainty.kinship import LEARNED, Posterior, condition_errors
from simshuffle.job.uncertainty.residuals import ENDS
from simshuffle.spec.arrays import Flags, Floats
from simshuffle.spec.late import special, stats

SIZES = (
    "world_size",
    "epochs",
    "seed",
    "time_tolerance",
    "workload.local_batch_size",
    "workload.dataset.num_samples",
)
"""Keys in which runs of one series may differ."""


@dataclass(frozen=True)
class KinRun:
    """A run of the machine, measured or only considered."""

    name: str  # such as 'local @64'
    scenario: Scenario
    seconds: float  # of an epoch, as predicted
    measured: float | None = None  # seconds of an epoch; None if it is not measured
    is_fitted: bool = False  # whether a value of the scenario was fitted to it

    @property
    def error(self) -> float:
        """ln(measured / predicted); 0 if it is not measured."""
        return 0.0 if self.measured is None else math.log(self.measured / self.seconds)


@dataclass(frozen=True)
class KinErrors:
    """The errors of runs: first those to predict, then the measured ones.

    Errors are natural logarithms of factors on a prediction.
    """

    targets: Sequence[str]  # names of the runs to predict
    kin: Sequence[KinRun]
    mean: Floats  # (runs,) expected error
    by_inputs: Floats  # (runs, runs) covariance from unknown inputs
    by_model: Floats  # (runs, runs) covariance from errors of laws
    chance: Floats  # (runs,) standard deviations between repetitions
    # (runs,) change of the error for a standard deviation of an input, by its dotted key
    influence: Mapping[str, Floats]

    def posterior(self, without: str = "", size_known: bool = False) -> Posterior:
        """Return the errors of the targets, given the measured ones.

        Args:
            without: dotted key of an input that counts as known; '' for none.
            size_known: whether measured errors say nothing of how large errors are.
        """
        by_inputs = self.by_inputs
        if without:
            influence = self.influence.get(without, np.zeros(len(self.mean)))
            by_inputs = by_inputs - np.outer(influence, influence)
        covariance = by_inputs + self.by_model + np.diag(self.chance**2)
        errors = np.array([run.error for run in self.kin], float)
        is_fitted: Flags = np.array([run.is_fitted for run in self.kin], bool)
        freedom = np.inf if size_known else LEARNED.freedom
        return condition_errors(self.mean, covariance, errors, freedom, is_fitted)

    def with_kin(self, numbers: Sequence[int]) -> KinErrors:
        """Return the errors with the measured runs of these numbers alone."""
        count = len(self.targets)
        rows = np.array([*range(count), *(count + number for number in numbers)])
        return KinErrors(
            self.targets,
            [self.kin[number] for number in numbers],
            self.mean[rows],
            self.by_inputs[np.ix_(rows, rows)],
            self.by_model[np.ix_(rows, rows)],
            self.chance[rows],
            {key: influence[rows] for key, influence in self.influence.items()},
        )

    def prior_deviation(self) -> Floats:
        """Return (runs,) standard deviations of all errors, without measured runs."""
        variance = np.diag(self.by_inputs) + np.diag(self.by_model) + self.chance**2
        return np.sqrt(variance)


@dataclass(frozen=True)
class NarrowedRuns(UncertainRuns):
    """Runs whose intervals measured runs have narrowed."""

    errors: KinErrors
    kin_ends: Sequence[tuple[float, float]]  # s, of the interval of each measured run

    def faster(self, first: str, second: str) -> float:
        """Return the probability that the first run's epoch is shorter than the second's."""
        posterior = self.errors.posterior()
        first_index, second_index = map(self.errors.targets.index, (first, second))
        covariance = posterior.covariance
        variance = (
            covariance[first_index, first_index]
            + covariance[second_index, second_index]
            - 2 * covariance[first_index, second_index]
        )
        distance = (
            math.log(self.intervals[second].value / self.intervals[first].value)
            + posterior.mean[second_index]
            - posterior.mean[first_index]
        )
        if variance <= 0:
            return float(distance > 0)
        return float(special.ndtr(distance / math.sqrt(variance)))

    def width_without(self, run: str, key: str) -> float:
        """Return the width of a run's interval if an input was measured, over that of
        now.
        """
        index = self.errors.targets.index(run)
        now = self.errors.posterior(size_known=True).deviation[index]
        then = self.errors.posterior(without=key, size_known=True).deviation[index]
        return float(min(then / now, 1.0)) if now else 1.0


def narrow_intervals(
    uncertain: UncertainRuns,
    runs: Mapping[str, Scenario],
    kin: Sequence[KinRun],
    ranges: Mapping[str, tuple[float, float]],
    progress: Callable[[float], None] = lambda _: None,
) -> UncertainRuns:
    """Return runs with the intervals that they have in the light of measured runs; as
    they are without any.

    Args:
        uncertain: the runs, with intervals.
        runs: their scenarios, by name.
        kin: the measured runs.
        ranges: of inputs by dotted key, lowest and highest (SI units).
        progress: called with the share done.
    """
    if not kin:
        return uncertain
    errors, draws = kin_errors(uncertain, runs, kin, ranges, progress)
    posterior = errors.posterior()
    prior = errors.prior_deviation()
    intervals = {}
    for index, run in enumerate(errors.targets):
        shrinkage = posterior.deviation[index] / prior[index] if prior[index] else 1.0
        intervals[run] = _moved_interval(
            uncertain.intervals[run],
            errors.mean[index],
            posterior.mean[index],
            float(min(shrinkage, 1.0)),
        )
    ends = [
        single.seconds * np.quantile(run_draws.together, ENDS)
        for single, run_draws in zip(kin, draws, strict=True)
    ]
    return NarrowedRuns(
        intervals,
        uncertain.draws,
        uncertain.inputs,
        uncertain.sample,
        errors,
        [(float(low), float(high)) for low, high in ends],
    )


def _moved_interval(
    interval: Interval, mean: float, posterior_mean: float, shrinkage: float
) -> Interval:
    """Return an interval whose logarithm is moved from one mean error to another, and
    narrowed around it.
    """
    low, high = (
        interval.value
        * math.exp(posterior_mean + shrinkage * (math.log(end / interval.value) - mean))
        for end in (interval.low, interval.high)
    )
    return replace(
        interval,
        low=low,
        high=high,
        centre=interval.value * math.exp(posterior_mean),
        before=(interval.low, interval.high),
    )


def kin_errors(
    uncertain: UncertainRuns,
    runs: Mapping[str, Scenario],
    kin: Sequence[KinRun],
    ranges: Mapping[str, tuple[float, float]],
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[KinErrors, list[RunDraws]]:
    """Return the errors of runs and of their kin, and the draws of the kin.

    Arguments are those of `narrow_intervals`.
    """
    sample, normals = _sample_of_all(uncertain, kin, ranges)
    kin_draws = []
    for index, single in enumerate(kin):
        kin_draws.append(draw_run(single.scenario, sample, index))
        progress((index + 1) / len(kin))
    draws = [*(uncertain.draws[run] for run in runs), *kin_draws]
    scenarios = [*runs.values(), *(single.scenario for single in kin)]
    ranks = np.array([scenario.world_size for scenario in scenarios], float)
    correlations = LEARNED.correlations(ranks, [*map(series_of, scenarios)])

    # (runs, draws) logarithms of factors
    by_inputs, by_model, together = (
        np.log([getattr(run_draws, part) for run_draws in draws])
        for part in ("inputs", "model", "together")
    )
    errors = KinErrors(
        [*runs],
        kin,
        together.mean(axis=1),
        np.atleast_2d(np.cov(by_inputs)),
        np.atleast_2d(np.cov(by_model)) * correlations,
        np.array([run_draws.chance_deviation for run_draws in draws]),
        {key: by_inputs @ normal / len(normal) for key, normal in normals.items()},
    )
    return errors, kin_draws


def series_of(scenario: Scenario) -> str:
    """Return what tells a run from others, but for what grows with a training: ranks,
    batch, samples and epochs.
    """
    document = scenario.to_dict()
    for path in SIZES:
        *above, last = path.split(".")
        record = document
        for part in above:
            record = record[part]
        record.pop(last, None)
    return json.dumps(identity_of(document), sort_keys=True, default=str)


def _sample_of_all(
    uncertain: UncertainRuns,
    kin: Sequence[KinRun],
    ranges: Mapping[str, tuple[float, float]],
) -> tuple[Sample, dict[str, Floats]]:
    """Return the sample with inputs that only measured runs depend on, too, and the
    standard normal numbers (draws,) behind each input, in the mean 0.
    """
    known = {drawn_input.key for drawn_input in uncertain.inputs}
    pairs = {single.name: (single.scenario, single.seconds) for single in kin}
    own_ranges = {key: ends for key, ends in ranges.items() if key in known}
    further = [
        found
        for found in influential_inputs(pairs, own_ranges)
        if found.key not in known
    ]
    factors = dict(uncertain.sample.factors)
    draws = len(uncertain.sample.normal)
    if further:
        points = stats.qmc.Sobol(len(further), seed=1).random(draws)
        normal = stats.norm.ppf(np.clip(points, 1e-6, 1 - 1e-6))
        for k, found in enumerate(further):
            factors[found.key] = found.factors(normal[:, k])
    normals = {}
    for found in [*uncertain.inputs, *further]:
        order = np.argsort(np.argsort(factors[found.key], kind="stable"))
        quantiles = stats.norm.ppf((order + 0.5) / draws)
        normals[found.key] = np.asarray(quantiles)
    return replace(uncertain.sample, factors=factors), normals

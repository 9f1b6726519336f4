"""Estimate 90 % intervals of epochs: errors of inputs, of laws, and chance are drawn
together.

Every draw takes a value for each input, an error for each mechanism (shared by all
runs) and a chance for each run. The closed forms of `simshuffle.job.plan.bounds` say by
which factor the epoch of a run changes; the prediction, simulated or not, is multiplied
by this factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.job.plan.bounds import Bounds, bounds
from simshuffle.job.plan.reading_bounds import OPENS, PFS, REQUESTS, STORE
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import Z90, Input, inputs, keys_of, scale_inputs
from simshuffle.job.uncertainty.residuals import ENDS, Residuals, residuals
from simshuffle.spec.arrays import Floats
from simshuffle.spec.late import stats

DRAWS = 512
"""A power of two, as Sobol' points want it: the ends of an interval are then known to
some 3 % of its width.
"""
INDEX_DRAWS = 128
"""Base points of the indices, each of which takes as many closed forms as there are
inputs, and two.
"""
MAX_INPUTS = 10
"""Inputs whose indices are computed: those that move an epoch most, each alone."""
MIN_SHARE_MOVED = 1e-4
"""Share of an epoch that an input at the end of its range must move to be drawn at all."""
MECHANISM_OF = {OPENS: "files", REQUESTS: "files", PFS: "bandwidth", STORE: "bandwidth"}
"""Mechanism of each resource that samples pass; all other resources belong to hosts:
'step'.
"""
DRAWN_MECHANISMS = ("step", "divided", "files", "bandwidth", "messages")
"""Mechanisms whose errors are drawn."""
Draw = Mapping[str, float]


@dataclass(frozen=True)
class Interval:
    """A 90 % interval in the unit of its value, and the intervals that each part alone
    gives, as factors.
    """

    value: float
    low: float
    high: float
    parts: Mapping[str, tuple[float, float]]  # 'inputs', 'model' and 'chance'
    # with measured runs: the middle of the interval, and its ends without these runs
    centre: float | None = None
    before: tuple[float, float] | None = None


@dataclass(frozen=True)
class InputInfluence:
    """The share of an epoch's uncertainty that comes from an input."""

    input: Input
    first: (
        float  # Sobol' index of first order: share of the variance that it makes alone
    )
    total: float  # the same, with others
    width: float  # of the interval, over that of now, if the input was measured


@dataclass(frozen=True)
class Sample:
    """The `DRAWS` random draws that all runs share."""

    factors: Mapping[str, Floats]  # on each input, by dotted key
    mechanisms: Mapping[str, Floats]  # shares of the errors of each mechanism, 0 to 1
    normal: Floats  # standard normal numbers, for chance


@dataclass(frozen=True)
class RunDraws:
    """Factors on the epoch of a run, (DRAWS,) by each part alone and by all together."""

    inputs: Floats
    model: Floats
    chance: Floats
    together: Floats
    chance_deviation: float  # of the logarithm of ``chance``


@dataclass(frozen=True)
class UncertainRuns:
    """Runs with their intervals, and the factors that were drawn for them."""

    intervals: Mapping[str, Interval]
    draws: Mapping[str, RunDraws]  # of each run
    inputs: Sequence[Input]  # those that were drawn
    sample: Sample

    def faster(self, first: str, second: str) -> float:
        """Return the share of the draws in which the first run's epoch is shorter than
        the second's.
        """
        first_epochs, second_epochs = (
            self.intervals[run].value * self.draws[run].together
            for run in (first, second)
        )
        return float((first_epochs < second_epochs).mean())


def loop_of(scenario: Scenario) -> str:
    """Return the mechanism of the training loop: 'step' where ranks are only
    data-parallel, else 'divided'.
    """
    return "step" if scenario.workload.parallelism.is_data_parallel else "divided"


def perturbed_epoch(nominal: Bounds, model: Draw, loop: str) -> float:
    """Return the closed form of an epoch (s), its parts multiplied by mechanisms'
    errors.

    The first batch is of 'files', the exchange of 'messages', storage as in
    `MECHANISM_OF`; all else is of the loop.

    Args:
        nominal: the closed form without errors.
        model: error of each mechanism, as a factor; 1 where there is none.
        loop: the mechanism of the training loop.
    """
    loop_error = model.get(loop, 1.0)
    message_error = model.get("messages", 1.0)
    passes = replace(
        nominal.passes,
        given=nominal.passes.given * loop_error,
        hooks=nominal.passes.hooks * loop_error,
        jitter=nominal.passes.jitter * loop_error,
    )
    exchange = replace(
        nominal.exchange,
        work=nominal.exchange.work * message_error,
        waiting=nominal.exchange.waiting * message_error,
        barriers=nominal.exchange.barriers * message_error,
        wire=nominal.exchange.wire * message_error,
    )
    return replace(
        nominal,
        passes=passes,
        allreduce=nominal.allreduce * loop_error,
        exchange=exchange,
        importance=nominal.importance * loop_error,
        first_batch=nominal.first_batch * model.get("files", 1.0),
        last_batch=nominal.last_batch * loop_error,
        resources={
            name: seconds * model.get(MECHANISM_OF.get(name, loop), 1.0)
            for name, seconds in nominal.resources.items()
        },
    ).epoch


def mechanism(scenario: Scenario) -> str:
    """Return the mechanism that bounds the epoch: a name of `MECHANISMS`."""
    name = bounds(scenario).bottleneck
    return (
        "messages" if name == "exchange" else MECHANISM_OF.get(name, loop_of(scenario))
    )


def estimate_intervals(
    runs: Mapping[str, tuple[Scenario, float]],
    ranges: Mapping[str, tuple[float, float]],
    progress: Callable[[float], None] = lambda _: None,
) -> UncertainRuns:
    """Estimate the interval of each run's epoch.

    Args:
        runs: a scenario and its predicted epoch (s), by name.
        ranges: of inputs by dotted key, lowest and highest (SI units); others have
            defaults.
        progress: called with the share done.

    Raises:
        InputError: a range is of no input of any run, or does not contain its value.
    """
    drawn = influential_inputs(runs, ranges)
    points = stats.qmc.Sobol(len(drawn) + len(DRAWN_MECHANISMS) + 1, seed=0).random(
        DRAWS
    )
    normal = stats.norm.ppf(np.clip(points, 1e-6, 1 - 1e-6))
    sample = Sample(
        {
            drawn_input.key: drawn_input.factors(normal[:, k])
            for k, drawn_input in enumerate(drawn)
        },
        {name: points[:, len(drawn) + k] for k, name in enumerate(DRAWN_MECHANISMS)},
        normal[:, -1],
    )
    intervals = {}
    draws = {}
    for index, (run, (scenario, value)) in enumerate(runs.items()):
        draws[run] = draw_run(scenario, sample, index)
        low, high = _interval_ends(draws[run].together)
        part_ends = {
            name: _interval_ends(getattr(draws[run], name))
            for name in ("inputs", "model", "chance")
        }
        intervals[run] = Interval(value, value * low, value * high, part_ends)
        progress((index + 1) / len(runs))
    return UncertainRuns(intervals, draws, drawn, sample)


def draw_run(scenario: Scenario, sample: Sample, index: int) -> RunDraws:
    """Return the factors on the epoch of a scenario for every draw of a sample.

    Inputs that the scenario does not have are left out. ``index`` is that of the run: it
    gives the run a chance of its own.
    """
    laws = residuals()
    errors = {
        name: np.exp(_errors(laws, name, scenario, shares))
        for name, shares in sample.mechanisms.items()
    }
    spread = laws.chance(mechanism(scenario))
    # each run has a chance of its own: the same points, in another order
    permutation = np.random.default_rng(index).permutation(DRAWS)
    chance = np.exp(spread * sample.normal[permutation])
    nominal = bounds(scenario)
    loop = loop_of(scenario)
    scenario_keys = keys_of(scenario)
    run_keys = [key for key in sample.factors if key in scenario_keys]

    # (DRAWS,) epochs with the inputs, with the laws' errors, and with both of each draw
    by_inputs, by_model, by_both = np.empty((3, DRAWS))
    for k in range(DRAWS):
        moved = bounds(
            scale_inputs(scenario, {key: sample.factors[key][k] for key in run_keys})
        )
        model = {name: error[k] for name, error in errors.items()}
        by_inputs[k] = moved.epoch
        by_model[k] = perturbed_epoch(nominal, model, loop)
        by_both[k] = perturbed_epoch(moved, model, loop)
    return RunDraws(
        by_inputs / nominal.epoch,
        by_model / nominal.epoch,
        chance,
        by_both / nominal.epoch * chance,
        spread,
    )


def _errors(laws: Residuals, name: str, scenario: Scenario, shares: Floats) -> Floats:
    """Return the logarithms of a mechanism's error, (n,), without the part of chance.

    The rows of the validation hold chance, too; the interval adds it separately.

    Args:
        laws: the errors of all mechanisms.
        name: of the mechanism.
        scenario: whose number of ranks counts.
        shares: (n,) quantiles to return, from 0 to 1.
    """
    quantiles = laws.quantiles(name, scenario.world_size, shares)
    middle = np.median(quantiles)
    spread = quantiles.std()
    systematic_share = (
        max(0.0, 1.0 - (laws.chance(name) / spread) ** 2) ** 0.5 if spread else 1.0
    )
    return np.asarray(middle + (quantiles - middle) * systematic_share)


def _interval_ends(factors: Floats) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles (`ENDS`) of factors."""
    low, high = np.quantile(factors, ENDS)
    return float(low), float(high)


def influential_inputs(
    runs: Mapping[str, tuple[Scenario, float]],
    ranges: Mapping[str, tuple[float, float]],
) -> list[Input]:
    """Return the inputs that move the closed form of any run, the strongest first.

    They move it by more than `MIN_SHARE_MOVED` at an end of their range; each comes
    once, as in the run that it moves most.
    """
    largest_moves: dict[str, tuple[float, Input]] = {}
    for scenario, _ in runs.values():
        nominal = bounds(scenario).epoch
        for candidate in inputs(scenario, ranges):
            moved = max(
                abs(
                    bounds(scale_inputs(scenario, {candidate.key: end})).epoch / nominal
                    - 1
                )
                for end in (candidate.low, candidate.high)
            )
            if moved > max(
                MIN_SHARE_MOVED, largest_moves.get(candidate.key, (0.0, candidate))[0]
            ):
                largest_moves[candidate.key] = (moved, candidate)
    return [
        moving_input
        for _, moving_input in sorted(largest_moves.values(), key=lambda pair: -pair[0])
    ]


def rank_influences(
    scenario: Scenario, interval: Interval, drawn: Sequence[Input]
) -> list[InputInfluence]:
    """Rank the inputs of an interval by their total influence; [] where no input moves
    it.

    Only the first `MAX_INPUTS` are looked at. Indices by Saltelli's method
    (scipy.stats.sobol_indices) over the logarithm of the closed form. A measured input
    has no range, so its total share of the inputs' variance would go.
    """
    scenario_keys = keys_of(scenario)
    scenario_inputs = [
        candidate for candidate in drawn if candidate.key in scenario_keys
    ]
    ranked_inputs = scenario_inputs[:MAX_INPUTS]
    if not ranked_inputs:
        return []

    def logarithm(points: Floats) -> Floats:
        sets = zip(
            *(
                ranked_input.factors(row)
                for ranked_input, row in zip(ranked_inputs, points, strict=True)
            ),
            strict=True,
        )
        keys = [ranked_input.key for ranked_input in ranked_inputs]
        return np.log(
            [
                bounds(scale_inputs(scenario, dict(zip(keys, s, strict=True)))).epoch
                for s in sets
            ]
        )

    if len(ranked_inputs) == 1:
        first = total = np.ones(1)
    else:
        normal = [stats.norm()] * len(ranked_inputs)
        indices = stats.sobol_indices(
            func=logarithm, n=INDEX_DRAWS, dists=normal, rng=0
        )
        first = np.clip(indices.first_order, 0.0, 1.0)
        total = np.clip(indices.total_order, 0.0, 1.0)
    variance = {
        name: (np.log(high / low) / 2 / Z90) ** 2
        for name, (low, high) in interval.parts.items()
    }
    total_variance = sum(variance.values())
    remaining_widths = [
        (1.0 - t * variance["inputs"] / total_variance) ** 0.5
        if total_variance
        else 1.0
        for t in total
    ]
    influences = [
        InputInfluence(
            ranked_input,
            float(first[k]),
            float(total[k]),
            width=float(remaining_widths[k]),
        )
        for k, ranked_input in enumerate(ranked_inputs)
    ]
    return sorted(influences, key=lambda influence: -influence.total)


MAX_FLIP_FACTOR, FLIP_TRIALS = 32.0, 121
"""Largest factor by which a value is made smaller and larger to find where a verdict
changes, and number of factors that are tried.
"""


class ScaledRun:
    """A run with one of its inputs multiplied, by closed forms.

    Every epoch is computed once, however many other runs the run is compared with.
    """

    def __init__(self, scenario: Scenario, seconds: float) -> None:
        self._scenario = scenario
        self._seconds = seconds  # of the predicted epoch, no input multiplied
        self._nominal = bounds(scenario).epoch
        self._epochs: dict[tuple[str, float], float] = {}  # s by input and factor
        self.keys = keys_of(scenario)
        """Dotted keys of the inputs."""

    def epoch(self, key: str, factor: float) -> float:
        """Return the seconds of the epoch with the input ``key`` times ``factor``."""
        if (key, factor) not in self._epochs:
            scaled = bounds(scale_inputs(self._scenario, {key: factor})).epoch
            self._epochs[key, factor] = self._seconds * scaled / self._nominal
        return self._epochs[key, factor]


def find_order_flip(
    first: ScaledRun, second: ScaledRun, drawn: Sequence[Input]
) -> tuple[Input, float] | None:
    """Find the input that, moved least, makes the second run faster than the first.

    Only the first `MAX_INPUTS` that both runs have are tried.

    Args:
        first: the run that is predicted to be faster.
        second: the other run.
        drawn: the inputs to move, the strongest first.

    Returns:
        the input and the factor on its value, 1 if the second run is faster already;
        None if no input does it within `MAX_FLIP_FACTOR`.
    """
    best: tuple[float, Input, float] | None = None
    factors = np.geomspace(1 / MAX_FLIP_FACTOR, MAX_FLIP_FACTOR, FLIP_TRIALS)
    factors = factors[np.argsort(np.abs(np.log(factors)), kind="stable")]
    shared_keys = first.keys & second.keys
    for moved_input in [
        moved_input for moved_input in drawn if moved_input.key in shared_keys
    ][:MAX_INPUTS]:
        key = moved_input.key
        for factor in factors.tolist():
            distance = abs(np.log(factor))
            if best is not None and distance >= best[0]:
                break
            if first.epoch(key, factor) > second.epoch(key, factor):
                best = (distance, moved_input, factor)
                break
    return None if best is None else best[1:]

"""90 % intervals of epochs: what inputs, laws and chance may do to a prediction, drawn together.

Every draw takes one value for each input, one error for each mechanism (shared by all runs) and one
for the chance of each run. The closed forms of `simshuffle.job.plan.bounds` say by which factor the
epoch of a run changes; the prediction, simulated or not, is multiplied with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.job.plan.bounds import Bounds, bounds
from simshuffle.job.plan.reading_bounds import OPENS, PFS, REQUESTS, STORE
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import Z90, Input, inputs, keys_of, scaled
from simshuffle.job.uncertainty.residuals import ENDS, Residuals, residuals
from simshuffle.spec.arrays import Floats
from simshuffle.spec.late import stats

DRAWS = 512
"""A power of two, as Sobol' points want it: the ends of an interval are then known to some 3 % of
its width."""
INDEX_DRAWS = 128
"""Base points of the indices, each of which takes as many closed forms as there are inputs, and
two."""
MOST_INPUTS = 10
"""Inputs whose indices are computed: those that move an epoch most, each alone."""
NOTICED = 1e-4
"""Share of an epoch that an input at the end of its range must move to be drawn at all."""
MECHANISM_OF = {OPENS: "files", REQUESTS: "files", PFS: "bandwidth", STORE: "bandwidth"}
"""Of the resources that samples come through; all others are the hosts' own: 'step'."""
Draw = Mapping[str, float]


@dataclass(frozen=True)
class Interval:
    """Ends of a 90 % interval (same unit as the value), and those that each part alone gives, as
    factors on the value."""

    value: float
    low: float
    high: float
    parts: Mapping[str, tuple[float, float]]  # 'inputs', 'model' and 'chance'


@dataclass(frozen=True)
class Hang:
    """How much of what inputs do to an epoch hangs on one of them."""

    input: Input
    first: float  # Sobol' index of first order: share of the variance that it makes alone
    total: float  # the same, with others
    width: float  # of the interval, over that of now, if the input was measured


@dataclass(frozen=True)
class Uncertain:
    """Runs and what was drawn for them."""

    intervals: Mapping[str, Interval]
    factors: Mapping[str, Floats]  # (DRAWS,) on the epoch of each run
    inputs: Sequence[Input]  # those that were drawn

    def faster(self, first: str, second: str) -> float:
        """Share of the draws in which the first run's epoch is shorter than the second's."""
        a, b = (self.intervals[run].value * self.factors[run] for run in (first, second))
        return float((a < b).mean())


def loop_of(scenario: Scenario) -> str:
    """The mechanism of the training loop."""
    return "step" if scenario.workload.parallelism.by_data else "divided"


def epoch(found: Bounds, model: Draw, loop: str) -> float:
    """The closed form of an epoch (s), each part of it longer by the factor of its mechanism in
    ``model`` (1 where there is none); ``loop`` is that of the training loop."""
    own, sent = model.get(loop, 1.0), model.get("messages", 1.0)
    passes = replace(
        found.passes,
        given=found.passes.given * own,
        hooks=found.passes.hooks * own,
        jitter=found.passes.jitter * own,
    )
    exchange = replace(
        found.exchange,
        work=found.exchange.work * sent,
        waiting=found.exchange.waiting * sent,
        barriers=found.exchange.barriers * sent,
        wire=found.exchange.wire * sent,
    )
    return replace(
        found,
        passes=passes,
        allreduce=found.allreduce * own,
        exchange=exchange,
        importance=found.importance * own,
        first_batch=found.first_batch * model.get("files", 1.0),
        last_batch=found.last_batch * own,
        resources={
            name: seconds * model.get(MECHANISM_OF.get(name, loop), 1.0)
            for name, seconds in found.resources.items()
        },
    ).epoch


def mechanism(scenario: Scenario) -> str:
    """The mechanism that binds the epoch."""
    name = bounds(scenario).bottleneck
    return "messages" if name == "exchange" else MECHANISM_OF.get(name, loop_of(scenario))


def uncertain(
    runs: Mapping[str, tuple[Scenario, float]],
    ranges: Mapping[str, tuple[float, float]],
    progress: Callable[[float], None] = lambda _: None,
) -> Uncertain:
    """Intervals of the epochs of runs, each a scenario and what was predicted (s).

    Args:
        runs: by name.
        ranges: of inputs by dotted key, lowest and highest (SI units); others have defaults.
        progress: is told the share done.

    Raises:
        InputError: a range is of no input of any run, or does not contain its value.
    """
    drawn = _moving(runs, ranges)
    keys = [of.key for of in drawn]
    known = residuals()
    mechanisms = ("step", "divided", "files", "bandwidth", "messages")
    points = stats.qmc.Sobol(len(keys) + len(mechanisms) + 1, seed=0).random(DRAWS)
    normal = stats.norm.ppf(np.clip(points, 1e-6, 1 - 1e-6))
    factors = {of.key: of.factors(normal[:, k]) for k, of in enumerate(drawn)}
    intervals, all_factors = {}, {}
    for number, (run, (scenario, value)) in enumerate(runs.items()):
        errors = {
            name: np.exp(_errors(known, name, scenario, points[:, len(keys) + k]))
            for k, name in enumerate(mechanisms)
        }
        spread = known.chance(mechanism(scenario))
        # each run has a chance of its own: the same points, in another order
        turn = np.random.default_rng(number).permutation(DRAWS)
        chance = np.exp(spread * normal[turn, -1])
        still, loop, there = bounds(scenario), loop_of(scenario), keys_of(scenario)
        own = [key for key in keys if key in there]
        moved = [
            bounds(scaled(scenario, {key: factors[key][i] for key in own})) for i in range(DRAWS)
        ]
        nominal = still.epoch
        by_inputs = np.array([of.epoch for of in moved]) / nominal
        of_draw = [{name: e[i] for name, e in errors.items()} for i in range(DRAWS)]
        by_model = np.array([epoch(still, draw, loop) for draw in of_draw]) / nominal
        both = [epoch(of, draw, loop) for of, draw in zip(moved, of_draw, strict=True)]
        whole = np.array(both) / nominal * chance
        parts = {"inputs": by_inputs, "model": by_model, "chance": chance}
        low, high = _ends(whole)
        of_parts = {name: _ends(each) for name, each in parts.items()}
        intervals[run] = Interval(value, value * low, value * high, of_parts)
        all_factors[run] = whole
        progress((number + 1) / len(runs))
    return Uncertain(intervals, all_factors, drawn)


def _errors(known: Residuals, name: str, scenario: Scenario, shares: Floats) -> Floats:
    """(n,) logarithms of a mechanism's error; what chance does is taken out of them, as the rows
    that they are from had it too."""
    found = known.quantiles(name, scenario.world_size, shares)
    middle, spread = np.median(found), found.std()
    kept = max(0.0, 1.0 - (known.chance(name) / spread) ** 2) ** 0.5 if spread else 1.0
    return np.asarray(middle + (found - middle) * kept)


def _ends(factors: Floats) -> tuple[float, float]:
    low, high = np.quantile(factors, ENDS)
    return float(low), float(high)


def _moving(
    runs: Mapping[str, tuple[Scenario, float]], ranges: Mapping[str, tuple[float, float]]
) -> list[Input]:
    """The inputs that move the closed form of any run, those that move it most first."""
    most: dict[str, tuple[float, Input]] = {}
    for scenario, _ in runs.values():
        nominal = bounds(scenario).epoch
        for of in inputs(scenario, ranges):
            moved = max(
                abs(bounds(scaled(scenario, {of.key: end})).epoch / nominal - 1)
                for end in (of.low, of.high)
            )
            if moved > max(NOTICED, most.get(of.key, (0.0, of))[0]):
                most[of.key] = (moved, of)
    return [of for _, of in sorted(most.values(), key=lambda pair: -pair[0])]


def hangs(scenario: Scenario, interval: Interval, drawn: Sequence[Input]) -> list[Hang]:
    """What the width of an interval hangs on, the largest first; [] where no input moves it.

    Indices by Saltelli's method (scipy.stats.sobol_indices) over the logarithm of the closed form.
    An input that is measured has no range left, so its total share of the inputs' variance goes.
    """
    there = keys_of(scenario)
    tried = [of for of in drawn if of.key in there][:MOST_INPUTS]
    if not tried:
        return []

    def logarithm(points: Floats) -> Floats:
        sets = zip(*(of.factors(row) for of, row in zip(tried, points, strict=True)), strict=True)
        keys = [of.key for of in tried]
        return np.log(
            [bounds(scaled(scenario, dict(zip(keys, s, strict=True)))).epoch for s in sets]
        )

    if len(tried) == 1:
        first = total = np.ones(1)
    else:
        normal = [stats.norm()] * len(tried)
        found = stats.sobol_indices(func=logarithm, n=INDEX_DRAWS, dists=normal, rng=0)
        first, total = (np.clip(of, 0.0, 1.0) for of in (found.first_order, found.total_order))
    variance = {
        name: (np.log(high / low) / 2 / Z90) ** 2 for name, (low, high) in interval.parts.items()
    }
    whole = sum(variance.values())
    left = [(1.0 - t * variance["inputs"] / whole) ** 0.5 if whole else 1.0 for t in total]
    found = [
        Hang(of, float(f), float(t), float(w))
        for of, f, t, w in zip(tried, first, total, left, strict=True)
    ]
    return sorted(found, key=lambda of: -of.total)


REACH_OF_FLIPS, FLIPS = 32.0, 121
"""Times a value is tried smaller and larger to find where a verdict changes, and how often."""


def flip(
    first: tuple[Scenario, float], second: tuple[Scenario, float], drawn: Sequence[Input]
) -> tuple[Input, float] | None:
    """The input that, moved least, makes the second run as fast as the first, and by which factor;
    None if none does within `REACH_OF_FLIPS`."""
    best: tuple[float, Input, float] | None = None
    tried = np.geomspace(1 / REACH_OF_FLIPS, REACH_OF_FLIPS, FLIPS)
    tried = tried[np.argsort(np.abs(np.log(tried)), kind="stable")]
    nominal = [bounds(scenario).epoch for scenario, _ in (first, second)]
    there = keys_of(first[0]) & keys_of(second[0])
    for of in [of for of in drawn if of.key in there][:MOST_INPUTS]:
        for factor in tried.tolist():
            far = abs(np.log(factor))
            if best is not None and far >= best[0]:
                break
            a, b = (
                value * bounds(scaled(scenario, {of.key: factor})).epoch / before
                for (scenario, value), before in zip((first, second), nominal, strict=True)
            )
            if a > b:
                best = (far, of, factor)
                break
    return None if best is None else best[1:]

"""Intervals narrowed by measured runs, by hand: an epoch of compute alone, without unknown inputs,
so that the errors of two runs on as many ranks have one variance, and share 0.20 + 0.69 of what is
not chance."""

import math

import numpy as np
import pytest
from scipy import stats

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.uncertainty import narrowing
from simshuffle.job.uncertainty.interval import estimate_intervals
from simshuffle.job.uncertainty.kinship import LEARNED, Kinship
from simshuffle.job.uncertainty.narrowing import KinRun, NarrowedRuns, narrow_intervals, series_of
from tests.small import small

ALONE = {
    "workload__model": {
        "name": "m",
        "gradient_size": "4 B",
        "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms"}},
        "source": "measured by hand",
    }
}
FORWARD = "workload.model.accelerators.v100-sxm2-16gb.forward"
SIZE_KNOWN = Kinship(LEARNED.machine, LEARNED.series, LEARNED.doublings, np.inf)


def narrow(ratios, ranges=None, **values):
    """Intervals of a run and of twice its samples a rank, given the first one's measured ratios."""
    scenario = small(**ALONE)
    runs = {"a": scenario, "b": small(**ALONE, **(values or {"workload__local_batch_size": 20}))}
    pairs = {name: (run, bounds(run).epoch) for name, run in runs.items()}
    before = estimate_intervals(pairs, ranges or {})
    seconds = pairs["a"][1]
    kin = [KinRun("a", scenario, seconds, ratio * seconds) for ratio in ratios]
    return before, narrow_intervals(before, runs, kin, ranges or {})


def test_one_measured_run_by_hand(monkeypatch):
    monkeypatch.setattr(narrowing, "LEARNED", SIZE_KNOWN)
    before, found = narrow([1.2])
    draws = before.draws["a"]
    model, chance = np.log(draws.model).var(ddof=1), draws.chance_deviation**2
    mean = np.log(draws.together).mean()
    gain = (0.20 + 0.69) * model / (model + chance)
    shift = mean + gain * (math.log(1.2) - mean)
    remaining = 1 - ((0.20 + 0.69) * model) ** 2 / (model + chance) ** 2
    seconds, interval = before.intervals["a"].value, found.intervals["a"]
    assert interval.centre == pytest.approx(seconds * math.exp(shift), rel=1e-3)
    widths = [math.log(each.high / each.low) for each in (before.intervals["a"], interval)]
    assert widths[1] == pytest.approx(widths[0] * remaining**0.5, rel=0.02)
    assert interval.before == (before.intervals["a"].low, before.intervals["a"].high)
    assert interval.value == seconds and interval.low < interval.centre < interval.high
    measured_ends = (before.intervals["a"].low, before.intervals["a"].high)
    assert found.kin_ends == [pytest.approx(measured_ends, rel=0.01)]


def test_without_measured_runs_nothing_is_touched():
    before, found = narrow([])
    assert found is before


def test_runs_of_one_series_differ_in_their_size_alone():
    first = series_of(small(**ALONE))
    assert first == series_of(small(**ALONE, world_size=4, workload__local_batch_size=5, epochs=3))
    assert first == series_of(small(**ALONE, name="other"))
    assert first != series_of(small(**ALONE, workload__exchange="global_shuffle:source=pfs"))
    assert first != series_of(small(**ALONE, cluster__host__cores=7))


def test_an_unknown_input_is_the_same_for_all_runs():
    """Forward is a third of the step, and may be half or four times as long: a measured run tells
    most of it, and then measuring it by itself narrows nothing more."""
    ranges = {FORWARD: (0.5e-3, 4e-3)}
    before, none = narrow([], ranges)
    _, found = narrow([1.3], ranges)
    widths = [
        math.log(each.intervals["b"].high / each.intervals["b"].low) for each in (none, found)
    ]
    assert widths[1] < 0.7 * widths[0]
    assert isinstance(found, NarrowedRuns)
    assert found.width_without("b", FORWARD) > 0.7
    assert found.width_without("b", "no.such.input") == 1.0
    assert before.inputs[0].key == FORWARD


def test_an_input_of_the_measured_run_alone_counts():
    """The run to predict reads from the SSD, the measured one opens files, of unknown rate."""
    key = "cluster.parallel_file_system.open_rate"
    target = small(**ALONE)
    pfs = small(
        **ALONE,
        workload__exchange="global_shuffle:source=pfs",
        cluster__parallel_file_system__open_rate="100 /s",
    )
    before = estimate_intervals({"a": (target, 1.0)}, {})
    seconds = bounds(pfs).epoch
    found = narrow_intervals(before, {"a": target}, [KinRun("p", pfs, seconds, 2 * seconds)], {})
    assert key in found.errors.influence and key not in {each.key for each in before.inputs}
    assert found.errors.influence[key][1] < -0.2  # a faster rate, a shorter epoch
    assert found.intervals["a"].centre == pytest.approx(
        math.exp(np.log(before.draws["a"].together).mean()), rel=0.1
    )


def test_the_order_of_two_runs_by_hand():
    """Their epochs are equal as predicted, so the difference of the errors decides."""
    _, found = narrow([1.0, 1.0], cluster__host__cores=39)
    posterior = found.errors.posterior()
    variance = posterior.covariance[0, 0] + posterior.covariance[1, 1]
    variance -= 2 * posterior.covariance[0, 1]
    distance = (posterior.mean[1] - posterior.mean[0]) / variance**0.5
    assert found.faster("a", "b") == pytest.approx(stats.norm.cdf(distance))
    assert found.faster("b", "a") == pytest.approx(stats.norm.cdf(-distance))
    assert found.faster("a", "b") > 0.5  # laws are too fast, but not that of the measured run
    assert found.faster("a", "a") == 0.0

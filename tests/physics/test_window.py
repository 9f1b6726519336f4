"""Epochs of which only a window of iterations is simulated: what follows by hand where all
iterations are alike, how well means are known, what is left out, and what is said where nothing
is."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection

import simshuffle
from simshuffle.cli import main
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.thinning import thin_scenario
from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim import machine
from simshuffle.job.sim import simulate as simulating
from simshuffle.job.sim.served import OmittedBatches
from simshuffle.job.sim.simulate import (
    IMPORTANCE_UNKNOWN,
    LATE,
    NOT_ALIKE,
    TOO_DIFFERENT,
    ThinnedPlans,
    simulate,
)
from simshuffle.job.sim.steady import (
    FEWEST_BATCHES,
    MeanError,
    SteadyWindow,
    WindowSeconds,
    _long_run,
    fit_window,
    steady_range,
)
from simshuffle.report import report
from simshuffle.report.timeline import PHASE_COLUMNS, PHASES, SOURCE_COLUMNS, Timeline
from simshuffle.studies.simulation.study import STUDY
from simshuffle.workload.exchange import ExchangePlan
from simshuffle.workload.exchange.recording import RecordedPlans, write_plans
from tests import small as scenarios
from tests.drawn import laid_out
from tests.small import small

PARTIAL = "partial_local_shuffle:exchange_fraction=0.1"
WINDOW = {"time_tolerance": 0.01}


def epochs(**values):
    """The epochs of a scenario, whole and with a tolerance of 1 %, and the sources of the
    latter."""
    scenario = small(**values)
    whole, window = simulate(scenario), simulate(scenario.model_copy(update=WINDOW))
    return report.epochs(whole), report.epochs(window), window.sources


# --------------------------------------------------------------------- where iterations are alike


@pytest.mark.parametrize("samples", [600, 603, 606], ids=lambda count: f"{count} of a rank")
@pytest.mark.parametrize("rule", ["nearest", "keep", "drop", "carry"])
def test_a_window_of_like_iterations_is_the_whole_epoch(rule, samples):
    """Without randomness or exchange, so that 9 iterations stand for 57 to 58 like them: times,
    bytes, samples, staging and the breakdown come out to rounding."""
    scenario = small(
        workload__last_batch=rule, workload__dataset__num_samples=8 * samples, epochs=3
    )
    whole, window = simulate(scenario), simulate(scenario.model_copy(update=WINDOW))
    expected, found = report.epochs(whole), report.epochs(window)
    assert (found["iterations_simulated"] <= 12).all()
    assert (found["iterations"] == expected["iterations"]).all()
    same = [name for name in expected.select_dtypes("number") if not name.startswith("iterations")]
    for name in same:
        assert found[name].to_numpy() == pytest.approx(expected[name].to_numpy(), rel=1e-9), name
    of_whole, of_window = report.breakdown(whole), report.breakdown(window)
    assert of_window["seconds"].to_numpy() == pytest.approx(of_whole["seconds"], abs=1e-9)
    sums = of_window.groupby("epoch")["seconds"].sum()
    assert sums.to_numpy() == pytest.approx(found["epoch_s"], rel=1e-12)
    for name in ("samples", "nbytes_staged", "nbytes_ssd_written"):
        values = (table.sources[name].to_numpy(float) for table in (window, whole))
        assert next(values) == pytest.approx(next(values), rel=1e-9), name


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        # pairs of ranks exchange 60 of 600 samples each, of 100 kB: read, sent and written
        (
            "partial_local_shuffle:exchange_fraction=0.1,schedule.partner_rule=random_pairs",
            {"samples_moved": 480, "nbytes_peer": 48e6, "nbytes_ssd_written": 48e6}
            | {"nbytes_ssd": 528e6, "read_requests_ssd": 5280, "nbytes_staged": 480e6}
            | {"read_requests_staged": 8},
        ),
        ("global_shuffle:source=pfs", {"nbytes_pfs": 480e6, "read_requests": 4800}
         | {"file_opens": 4800}),
        (
            "global_shuffle:source=object_store",
            {"nbytes_object_store": 480e6, "read_requests_object_store": 4800}
            | {"object_store_usd": 4800 * 4e-7 + 0.48 * 0.09},
        ),
    ],
)  # fmt: skip
def test_the_sources_of_a_window_are_those_of_the_whole_epoch(exchange, expected):
    """A few of 60 iterations, each of 80 samples; what is not named is 0. The second epoch stages
    nothing."""
    store = {"latency": "1 ms", "bandwidth": "10 GB/s", "request_rate": "1000 k/s"}
    scenario = small(
        workload__exchange=exchange, workload__dataset__num_samples=4800, epochs=2,
        cluster__object_store={**store, "price_per_gigabyte": 0.09},
    )  # fmt: skip
    zero = ("samples_moved nbytes_peer nbytes_pfs nbytes_cached nbytes_ssd nbytes_memory "
            "nbytes_object_store read_requests read_requests_ssd read_requests_object_store "
            "file_opens nbytes_ssd_written nbytes_staged read_requests_staged "
            "object_store_usd")  # fmt: skip
    expected = dict.fromkeys(zero.split(), 0) | {"samples": 4800, "iterations": 60} | expected
    for tolerance in (0.0, 0.01):
        sources = simulate(scenario.model_copy(update={"time_tolerance": tolerance})).sources
        assert ((sources["iterations_simulated"] == 60) == (tolerance == 0)).all()
        first, second = sources[list(expected)].to_dict("records")
        assert first == pytest.approx(expected, rel=1e-12)
        later = {name: 0 for name in expected if name.endswith("_staged")}
        assert second == pytest.approx(expected | later, rel=1e-12)


def test_the_pass_that_measures_importance_reads_the_whole_set_in_a_window_too():
    """4800 samples of 100 kB twice, and those that are sent, a tenth of them or less."""
    exchange = "importance_exchange:exchange_fraction=0.1"
    scenario = small(workload__exchange=exchange, workload__dataset__num_samples=4800)
    for tolerance in (0.0, 0.01):
        sources = simulate(scenario.model_copy(update={"time_tolerance": tolerance})).sources
        row = sources.iloc[0]
        assert 300 < row["samples_moved"] <= 480
        assert row["read_requests_ssd"] == 9600 + row["samples_moved"]
        assert row["nbytes_ssd"] == pytest.approx(960e6 + row["nbytes_ssd_written"], rel=1e-12)
    assert row["iterations_simulated"] < row["iterations"] == 60


def test_a_window_of_the_pass_that_measures_importance_ends_with_the_slowest_host():
    """Hosts of two ranks decode at their own speed, and nothing else varies: 120 batches of 10
    samples, 10 ms of decoding each by two workers, times that of the slowest host."""
    scenario = small(
        workload__exchange="importance_exchange:exchange_fraction=0.1",
        workload__dataset__num_samples=9600,
        workload__dataset__decode="10 ms",
        workload__jitter={"compute": 0, "read": 0, "host_decode": 0.4},
        cluster__host__gpus=2,
    )
    ends = []
    for tolerance in (0.0, 0.01):
        timeline = simulate(scenario.model_copy(update={"time_tolerance": tolerance}))
        ends.append(max(scenarios.seconds(timeline, "importance").values()))
        assert (timeline.sources["iterations_simulated"].item() == 120) == (tolerance == 0)
    assert ends[0] > 1.2 * 120 * 10 * 10e-3 / 2
    assert ends[1] == pytest.approx(ends[0], rel=1e-3)


def test_what_is_sent_is_counted_over_the_whole_epoch():
    """Q = 0.03 of 600 samples are 18 of a rank; a window of 12 iterations sends 4."""
    values = {
        "workload__dataset__num_samples": 4800,
        "workload__exchange": "partial_local_shuffle:exchange_fraction=0.03",
        "workload__local_batch_size": 5,
    }
    whole, window, _ = epochs(**values)
    assert window["iterations_simulated"].item() < 40
    # the permutations differ, and with them who sends to itself
    assert window["samples_moved"].item() == pytest.approx(8 * 18 * 7 / 8, rel=0.15)
    assert window["nbytes_peer"].item() == pytest.approx(window["samples_moved"].item() * 1e5)
    assert whole["samples_moved"].item() == pytest.approx(8 * 18 * 7 / 8, rel=0.15)


def test_staging_of_a_window_varies_as_that_of_the_whole_set(monkeypatch):
    """Shards of 600 samples of 100 kB, of which a few are simulated; 60 kB a sample are 60 kB
    sqrt(600) a shard."""
    staged = []
    stage = machine.stage

    def recorded(workload, resources, shards, tolerance):
        staged.append(shards)
        return stage(workload, resources, shards, tolerance)

    monkeypatch.setattr(machine, "stage", recorded)
    values = {"workload__dataset__num_samples": 4800, "epochs": 2}
    sizes = {"workload__dataset__sample_size": {"mean": "100 kB", "std": "60 kB"}}
    _, window, _ = epochs(**values, **sizes)
    assert (window["iterations_simulated"] < 60).all()
    assert len(staged) == 2  # once each
    for shards in staged:
        assert shards.sum() == pytest.approx(480e6, rel=0.02)
        assert 0.4 < shards.std() / (60e3 * 600**0.5) < 1.6


@pytest.mark.parametrize(
    ("exchange", "tolerance", "is_watched"),
    [
        ("global_shuffle", 0.01, True),
        ("global_shuffle", 0.0, False),
        ("importance_exchange:exchange_fraction=0.1", 0.01, False),
    ],
)
def test_servers_are_watched_in_windows_in_which_training_alone_reads(
    monkeypatch, exchange, tolerance, is_watched
):
    made = []
    watch = machine.ServerWatch
    monkeypatch.setattr(
        machine, "ServerWatch", lambda *arguments: (made.append(arguments), watch(*arguments))[1]
    )
    scenario = small(workload__exchange=exchange, workload__dataset__num_samples=4800)
    simulate(scenario.model_copy(update={"time_tolerance": tolerance}))
    assert bool(made) == is_watched


# ------------------------------------------------------------------------- how well means are known


def coverage(draw, count, repeats=600):
    """In how many of the series the mean, 0, lies in its interval."""
    inside = 0
    for _ in range(repeats):
        values = draw(count)
        inside += abs(float(values.mean())) <= MeanError.from_batch_means(values).half_width
    return inside / repeats


def correlated(rng, count, correlation):
    """An AR(1) series, stationary from the start."""
    values = rng.normal(size=count)
    values[0] /= (1.0 - correlation**2) ** 0.5
    for place in range(1, count):
        values[place] += correlation * values[place - 1]
    return values


@pytest.mark.parametrize("count", [9, 45, 200])
def test_intervals_of_independent_values_hold_the_mean(count):
    rng = np.random.default_rng(count)
    assert 0.93 <= coverage(lambda n: rng.normal(size=n), count) <= 0.975


def test_intervals_of_correlated_values_hold_the_mean():
    rng = np.random.default_rng(2)
    assert coverage(lambda n: correlated(rng, n, 0.6), 120) >= 0.9


def test_intervals_of_values_that_make_up_for_one_another_are_narrower():
    """Differences of independent values: their sum is bounded, so the mean is known better than
    that of values that are independent, and the interval still holds it."""
    rng = np.random.default_rng(3)
    assert coverage(lambda n: np.diff(rng.normal(size=n + 1)), 60) >= 0.93
    values = np.diff(rng.normal(size=61))
    assert (
        MeanError.from_batch_means(values).half_width
        < 0.7 * MeanError.from_batch_means(np.sort(values)).half_width
    )
    shuffled = MeanError.from_batch_means(rng.permutation(values)).half_width
    assert MeanError.from_batch_means(values).half_width < 0.8 * shuffled


def test_a_drift_is_not_settled():
    noise = np.random.default_rng(4).normal(size=40)
    assert MeanError.from_batch_means(noise).settled
    assert not MeanError.from_batch_means(noise + np.where(np.arange(40) < 20, 0.0, 3.0)).settled


def test_values_that_are_alike_are_known_exactly():
    error = MeanError.from_batch_means(np.full(9, 0.25))
    assert error.half_width == 0 and error.settled


def series(lengths, waits=0.0):
    """Iterations of one phase, in which ranks wait for their loaders for this share."""
    lengths = np.asarray(lengths, float)
    return WindowSeconds(lengths[:, None], waits * lengths)


def test_the_iterations_between_the_ends_are_steady():
    """The first two and the last are not, whatever they are: 9 of 12."""
    window = fit_window(series([9, 5, *[1.0] * 9, 0.5]), 100, Loader(), 0.01)
    assert (window.first, window.last, window.steady) == (3, 11, 9)
    assert window.settled and window.half_width == window.mean_half_width == 0


def test_where_ranks_wait_for_loaders_whole_cycles_are_steady():
    """Three workers deliver together: one iteration of 3 s and two of none. Between the 6 batches
    of the prefetching and the last 3 there are 30: their mean is 1 s, of 10 cycles that are
    alike."""
    lengths = np.tile([3.0, 0.0, 0.0], 13) + 1e-9
    window = fit_window(series(lengths, 0.5), 200, Loader(workers=3, prefetch=6), 0.01)
    assert (window.first, window.cycle) == (7, 3)
    assert window.steady % 3 == 0 and window.last <= 36
    assert lengths[window.first - 1 : window.last].mean() == pytest.approx(1.0)
    assert window.half_width == pytest.approx(0.0, abs=1e-9)


def test_six_steady_iterations_are_enough():
    """Between the first two and the last one."""
    for count, enough in ((9, True), (8, False)):
        window = fit_window(series(np.ones(count)), 100, Loader(), 0.01)
        assert window.suffices(0.01) == enough


def test_too_few_cycles_ask_for_more():
    loader = Loader(workers=3, prefetch=6)
    window = fit_window(series(np.tile([3.0, 0.1, 0.1], 5), 0.5), 200, loader, 0.01)
    assert not window.settled and np.isinf(window.mean_half_width)
    assert window.next_size(0.01) >= 32 * 3


def test_the_interval_of_an_epoch_by_hand():
    """9 steady iterations, alternately 1 and 1.2 s at random; nothing else. 91 are left out."""
    steady = np.array([1.0, 1.2, 1.2, 1.0, 1.0, 1.2, 1.0, 1.2, 1.2])
    error = MeanError.from_batch_means(steady)
    window = fit_window(series([1.0, 1.0, *steady, 1.0]), 103, Loader(), 0.01)
    variance = error.variance * (91**2 / 9 + 103)
    assert window.half_width == pytest.approx(error.quantile * variance**0.5)
    assert window.mean_half_width == pytest.approx(error.half_width / steady.mean())
    # as many as bring it to 1 %, with a margin, but no more than four times as many at once
    assert window.next_size(0.01) == 48
    # two ranks whose first batches take 1 and 1.4 s, here and in the epoch it stands for
    seen = WindowSeconds(np.r_[1.0, 1.0, steady, 1.0][:, None], np.zeros(12), np.array([1.0, 1.4]))
    wider = fit_window(seen, 103, Loader(), 0.01).half_width
    assert wider == pytest.approx(np.hypot(window.half_width, 1.96 * 0.2 * 2**0.5))


def test_a_batch_that_may_take_longer_than_those_ahead_last_is_late():
    """8 batches ahead last 16 s. First ones took 10 and 12 s; in 103 iterations 1 ln 103 = 4.6 s
    more are to be expected, in 20 of them 3 s."""
    seen = WindowSeconds(np.full((12, 1), 2.0), np.zeros(12), np.array([10.0, 12.0]))
    assert fit_window(seen, 103, Loader(), 0.01).late
    assert not fit_window(seen, 103, Loader(), 0.01).suffices(0.01)
    assert not fit_window(seen, 20, Loader(), 0.01).late
    assert not fit_window(seen, 103, Loader(prefetch=9), 0.01).late


def test_a_pass_that_is_not_known_well_asks_for_more():
    """1.96 √2 times 0.3 s are 0.83 s: more than 1 % of 30 iterations of 2 s, less than 1.5 %."""
    seen = WindowSeconds(np.full((12, 1), 2.0), np.zeros(12), measured_spread=0.3)
    assert not fit_window(seen, 30, Loader(), 0.01).suffices(0.01)
    assert fit_window(seen, 30, Loader(), 0.01).next_size(0.01) == 24
    assert fit_window(seen, 30, Loader(), 0.015).suffices(0.015)


def test_what_may_happen_unseen_is_in_the_interval():
    """Of 9 iterations none waited for another cycle of 5 ms; so up to a third of 91 may."""
    seen = WindowSeconds(np.full((12, 1), 0.1), np.zeros(12), step=5e-3)
    window = fit_window(seen, 103, Loader(), 0.01)
    assert window.half_width == pytest.approx(91 * 5e-3 / 3)
    assert window.mean_half_width == pytest.approx(5e-3 / 3 / 0.1)


@pytest.mark.parametrize(
    ("waiting", "loader", "steady"),
    [
        ({}, Loader(), (2, 11, 1, False)),
        ({1: 1.0, 11: 1.0}, Loader(), (2, 11, 1, False)),  # outside, where nobody looks
        ({2: 1.0}, Loader(), (6, 11, 1, False)),  # in the first half alone, which is left out
        ({5: 1.0}, Loader(), (6, 11, 1, False)),
        ({6: 1.0}, Loader(), (2, 11, 1, False)),  # 1 s of 5: no more than half of 40 %
        ({6: 1.1}, Loader(workers=2, prefetch=3), (3, 9, 2, True)),  # 3 cycles from 3 to 11 - 2
        ({10: 1.1}, Loader(workers=3, prefetch=3), (3, 6, 3, True)),  # one cycle from 3 to 11 - 3
        ({6: 1.1}, Loader(workers=1, prefetch=1), (2, 10, 1, True)),
        ({6: 1.1}, Loader(workers=4, prefetch=9), (9, 9, 4, True)),  # none
        ({6: 1.1}, Loader(workers=1, prefetch=20), (20, 20, 1, True)),
    ],
)
def test_steady_iterations_are_those_that_load_alike(waiting, loader, steady):
    """12 iterations of 1 s with a tolerance of 40 %; the halves are 2 to 5 and 6 to 10."""
    loading = np.zeros(12)
    for iteration, seconds in waiting.items():
        loading[iteration] = seconds
    assert steady_range(np.ones(12), loading, loader, 0.4) == steady


def test_loaders_for_which_ranks_wait_are_not_late():
    """First batches of 5 and 6 s, where 2 s are loaded ahead: only hidden ones may come late."""
    begin = np.array([5.0, 6.0])
    loader = Loader(workers=1, prefetch=2)
    for loading, late in ((np.zeros(12), True), (np.ones(12), False)):
        seen = WindowSeconds(np.ones((12, 1)), loading, begin)
        assert fit_window(seen, 103, loader, 0.01).late == late


def test_a_phase_that_varies_beside_another_is_known_less_than_the_iteration():
    """Reading takes 1 s or none and waiting the rest of 4 s: iterations are alike, their phases
    not. A third phase that never occurs is left out."""
    reading = np.array([0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    phases = np.stack([reading, 4.0 - reading, np.zeros(9)], axis=1)
    window = fit_window(
        WindowSeconds(np.r_[phases[:2], phases, phases[:1]], np.zeros(12)), 103, Loader(), 0.01
    )
    assert window.half_width == pytest.approx(0.0, abs=1e-9)
    expected = MeanError.from_batch_means(reading).half_width
    assert window.mean_half_width == pytest.approx(expected / 4.0, rel=1e-9)
    assert not window.suffices(0.01)


@pytest.mark.parametrize(
    ("window", "next_size"),
    [
        # 3 of the transient, and 1.3 x 9 x 1.5^2 = 26.3 steady ones
        (SteadyWindow(200, 12, first=3, last=11, mean_half_width=0.015), 30),
        (SteadyWindow(200, 12, first=3, last=11, mean_half_width=0.005), 24),  # twice as many
        (SteadyWindow(200, 12, first=3, last=11, mean_half_width=0.5), 48),  # four times
        (SteadyWindow(200, 12, mean_half_width=np.inf), 24),
        (SteadyWindow(200, 12, mean_half_width=np.inf, cycle=2), 76),  # 12 and 32 cycles
        (SteadyWindow(200, 50, mean_half_width=np.inf, cycle=1), 100),
        (SteadyWindow(200, 12, first=3, last=11, mean_half_width=0.5, longer=7), 7),
    ],
)
def test_the_next_window_is_as_long_as_the_tolerance_needs(window, next_size):
    assert window.next_size(0.01) == next_size
    assert not window.suffices(0.004)
    assert window.suffices(window.mean_half_width)  # no less than what is asked for


T_7 = {0.95: 2.364624, 0.99: 3.499483}
"""Student's t for 7 degrees of freedom, both sides."""


@pytest.mark.parametrize(
    ("values", "variance", "degrees"),
    [
        # lags 1/8 + (1 + 3/8) / 8 = 0.30 of 1 / sqrt(8) = 0.35: independent
        ([1, 1, -1, -1] * 2, 8 / 7, 7),
        # lags -7/8 and 6/8, weighted 2/3 and 1/3: 1 - 2/3 of 8/7
        ([1, -1] * 4, 8 / 21, 7),
        # lags -19/20, 18/20, -17/20, 16/20 by 4/5 to 1/5: 1 - 4/5 of 20/19
        ([1, -1] * 10, 4 / 19, 19),
        # pairs are independent, twelve of them; the first value is in no pair
        ([1, *[1, 1, 1, 1, -1, -1, -1, -1] * 3], 2 * 12 / 11, 11),
        # cycles of three, of which each has the mean 0 or 3
        ([0, 3, -3, 9, 0, 0, 9, 0, 0, 0, 3, -3] * 2, None, 7),
        ([2.5] * 9, 0.0, 8),
    ],
)
def test_the_variance_of_a_mean_counts_what_is_correlated(values, variance, degrees):
    cycle = 1
    if variance is None:  # 0, 3, 3, 0, ... : 3 x 8/7 x (3/2)^2
        cycle, variance = 3, 3 * 8 / 7 * 2.25
    assert _long_run(np.array(values, float), cycle) == pytest.approx((variance, degrees))


def test_the_interval_of_a_mean_is_student_s():
    """Of 8 values, 1 or -1: 2.36 sqrt(8/7 / 8). Of a sum of 30 of which 22 are left out:
    2.36 sqrt(8/7 (22^2 / 8 + 30))."""
    error = MeanError.from_batch_means(np.array([1.0, 1, -1, -1] * 2))
    assert error.quantile == pytest.approx(T_7[0.95], rel=1e-6)
    assert error.half_width == pytest.approx(T_7[0.95] * (1 / 7) ** 0.5, rel=1e-6)
    expected = T_7[0.95] * (8 / 7 * (22**2 / 8 + 30)) ** 0.5
    assert error.reach(22, 30) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_halves_that_differ_by_more_than_their_noise_are_not_settled(sign):
    """1 or -1 in both halves of 4: their means may differ by 3.5 sqrt(8/7 (1/4 + 1/4)) = 2.645. Of
    values that are alike they may not differ at all, but for rounding."""
    noise = np.array([1.0, 1, -1, -1] * 2)
    second_half = np.r_[np.zeros(4), np.ones(4)]
    limit = T_7[0.99] * (4 / 7) ** 0.5
    for values, most in ((noise, limit), (np.ones(8), 1e-12)):
        for share, settled in ((0.9, True), (1.1, False)):
            shifted = values + sign * share * most * second_half
            assert MeanError.from_batch_means(shifted).settled == settled
    assert not MeanError.from_batch_means(np.r_[np.ones(4), np.full(5, 2.0)]).settled


@pytest.mark.parametrize(
    ("values", "variance", "quantile"),
    [
        ([1, 3], 4 / 2, 12.7062),  # one degree of freedom
        ([1, 2, 4, 4], (1 + 4) / (2 * 3), 4.302653),  # three differences are worth two
    ],
)
def test_values_around_a_trend_stray_as_neighbours_differ(values, variance, quantile):
    error = MeanError.around_trend(np.array(values, float))
    assert (error.count, error.settled) == (len(values), True)
    assert error.variance == pytest.approx(variance, rel=1e-12)
    assert error.quantile == pytest.approx(quantile, rel=1e-6)


# -------------------------------------------------------------------------------- weights by hand


def by_hand():
    """Two ranks, 4 iterations of which the middle two stand for 6 others, 1 s of forward pass each;
    rank 1 waits for rank 0, which computes for 3 s in the third."""
    rows = []
    for rank in (0, 1):
        now = 0.0
        for iteration in range(1, 5):
            forward = 3.0 if (rank, iteration) == (0, 3) else 1.0
            wait = 2.0 if (rank, iteration) == (1, 3) else 0.0
            for phase, seconds in (
                ("forward", forward),
                ("wait_allreduce", wait),
                ("allreduce", 0.5),
            ):
                if seconds:
                    rows.append(("r", 1, iteration, rank, phase, now, now + seconds, 0.0))
                now += seconds
    phases = pd.DataFrame(rows, columns=list(PHASE_COLUMNS))
    phases["phase"] = pd.Categorical(phases["phase"], PHASES)
    phases["run"] = pd.Categorical(phases["run"])
    row = dict.fromkeys(SOURCE_COLUMNS, 0.0) | {"run": "r", "strategy": "s", "whole_because": ""}
    row |= {"epoch": 1, "iterations": 10, "iterations_simulated": 4, "samples": 10}
    row |= {"steady_first": 2, "steady_last": 3, "half_width_s": 1.5}
    sources = pd.DataFrame([row])
    return Timeline(phases, pd.DataFrame(), sources)


def test_steady_iterations_count_for_those_that_are_left_out():
    """Two for themselves and six others: four times each. So 1.5 + 4 (1.5 + 3.5) + 1.5 s."""
    timeline = by_hand()
    weights = report.row_weights(timeline)
    assert set(zip(timeline.phases["iteration"], weights, strict=True)) == {
        (1, 1.0),
        (2, 4.0),
        (3, 4.0),
        (4, 1.0),
    }
    row = report.epochs(timeline).iloc[0]
    assert (row["epoch_s"], row["epoch_low_s"], row["epoch_high_s"]) == (23.0, 21.5, 24.5)
    table = report.breakdown(timeline).set_index(["label", "cause"])["seconds"]
    # forward: 1 + 4 (1 + 2) + 1 as the mean of both ranks; 2 s of waiting of one of two, 4 times
    assert table["FW+BW", ""] == 14.0
    assert table["GE+WU", ""] == 5.0
    assert table["GE+WU", "FW+BW"] == 4.0
    assert table.sum() == 23.0


# ---------------------------------------------------------------------------- passes left out


def passes_of(steps, left_out, at_once=1):
    """When each rank goes on, whose batches of a pass take its ``steps`` (s); and the spread."""
    rest = OmittedBatches(left_out, len(steps[0]), np.zeros(len(steps), np.int64), at_once)
    done_at = np.cumsum(steps, axis=1)
    order = np.argsort(done_at[:, -1])
    last = done_at[order, -1]
    ended = np.zeros(len(steps))
    ended[order] = last[-1] + rest.waits(order, last, done_at[:, rest.bounds].T, last[-1])
    return ended, rest.spread


def test_batches_that_are_left_out_take_as_long_as_those_that_are_not():
    """6 of 26 batches, of 2 s each."""
    assert passes_of([[2.0] * 6] * 3, left_out=20) == (pytest.approx([52.0] * 3), 0.0)
    assert passes_of([[2.0] * 6] * 3, left_out=1) == (pytest.approx([14.0] * 3), 0.0)


def test_the_transient_of_a_pass_stands_for_nothing():
    """Two workers: the first 4 batches are of the transient, and the last one may be smaller."""
    steps = [5.0] * 5 + [3.0, 1.0, 3.0, 1.0, 0.5]
    ended, spread = passes_of([steps, steps], left_out=10, at_once=2)
    assert ended == pytest.approx([sum(steps) + 10 * 2.0] * 2)
    assert spread == 0


def test_what_ranks_are_ahead_or_behind_grows_with_the_root_of_the_batches():
    """4 of 16 batches: twice as much. One rank is 1 s behind the mean, the other as much ahead, by
    batches that are in no part of the rest."""
    ended, spread = passes_of([[2.0, 1.0, 1.0, 1.0], [4.0, 1.0, 1.0, 1.0]], left_out=12)
    assert ended == pytest.approx([6.0 + 12.0 - 2.0, 6.0 + 12.0 + 2.0])
    assert spread == pytest.approx(2.0)


def test_parts_of_a_pass_that_differ_are_in_its_spread():
    """Two batches of 1 s, then two of 2 s: 30 that are left out take 30 to 60 s."""
    ended, spread = passes_of([[1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0]] * 2, left_out=30)
    assert ended[0] == pytest.approx(10.0 + 30 * 1.5)
    assert spread == pytest.approx(15.0)


# ----------------------------------------------------------------------------------- thinned plans


@given(
    iterations=st.integers(20, 400),
    over=st.integers(0, 79),
    size=st.integers(8, 60),
    rule=st.sampled_from(["nearest", "keep", "drop", "carry"]),
    cache=st.floats(0.0, 3.0),
)
@settings(max_examples=60, deadline=None)
def test_thinning_keeps_the_last_batch_and_the_share_that_caches_hold(
    iterations, over, size, rule, cache
):
    scenario = PLAIN.model_copy(
        update={
            "workload": PLAIN.workload.model_copy(
                update={
                    "last_batch": rule,
                    "dataset": PLAIN.workload.dataset.model_copy(
                        update={"num_samples": 80 * iterations + over}
                    ),
                }
            ),
            "cluster": PLAIN.cluster.model_copy(
                update={
                    "memory": PLAIN.cluster.memory.model_copy(
                        update={"page_cache": cache * 1e5 * (80 * iterations + over)}
                    )
                }
            ),
        }
    )
    whole = scenario.workload.iterations(8)
    thinning = thin_scenario(scenario, size)
    of = thinning.scenario
    assert of.workload.iterations(8) == min(size, whole) == whole - thinning.left_out
    samples = of.workload.dataset.num_samples
    left_over = scenario.workload.dataset.num_samples - 80 * whole
    if left_over < 0:  # what the last batch lacks
        assert samples - 80 * of.workload.iterations(8) == left_over
    else:
        assert (samples - left_over) % 8 == 0
        assert samples == pytest.approx(80 * min(size, whole) * (1 + left_over / 80 / whole), abs=8)
    assert of.cluster.memory.cache_nbytes / samples == pytest.approx(1e5 * cache)
    assert thinning.factor * samples == pytest.approx(scenario.workload.dataset.num_samples)


PLAIN = small()


@pytest.mark.parametrize(
    ("samples", "iterations", "thinned", "left_out"),
    [
        # 100 iterations of 80 and 37 samples in no batch, 4 a rank and 5 more: of 12 none and 5
        (8037, 12, 965, 88),
        (8037, 50, 50 * 80 + 2 * 8 + 5, 50),
        # the last batch of 100 lacks 10
        (7990, 12, 950, 88),
        (8037, 99, 99 * 80 + 4 * 8 + 5, 1),
    ],
)
def test_a_thinned_scenario_by_hand(samples, iterations, thinned, left_out):
    """Its caches shrink alike, and what it sends and reads grows by what is left out."""
    scenario = small(
        workload__dataset__num_samples=samples,
        workload__exchange="local_shuffle:source=pfs",
        cluster__memory__page_cache="50 MB",
        cluster__cache_tier={"capacity": "300 MB", "bandwidth": "10 GB/s"},
    )
    thinning = thin_scenario(scenario, iterations)
    of = thinning.scenario
    assert (of.workload.dataset.num_samples, thinning.left_out) == (thinned, left_out)
    share = thinned / samples
    assert of.cluster.memory.page_cache == pytest.approx(50e6 * share)
    assert of.cluster.cache_tier.capacity == pytest.approx(300e6 * share)
    assert (thinning.factor, thinning.num_samples) == (pytest.approx(1 / share), samples)
    # 80 a batch of all ranks
    assert thinning.read_factor(480) == pytest.approx(1 + left_out * 80 / 480)


def test_what_is_sent_grows_by_the_quotas_of_the_epoch():
    """A tenth of 1004.625 samples of a rank is 100, and in the third epoch 101; a tenth of 120.625
    is 12. A thousandth is 1, and 0 of the thinned one in the first epoch."""
    exchange = "partial_local_shuffle:exchange_fraction={}"
    scenario = small(workload__dataset__num_samples=8037, workload__exchange=exchange.format(0.1))
    thinning = thin_scenario(scenario, 12)
    assert [thinning.sent_factor(epoch) for epoch in (1, 2, 3)] == [100 / 12, 101 / 12, 100 / 12]
    few = thin_scenario(scenario.with_values({"workload.exchange": exchange.format(0.001)}), 12)
    assert few.sent_factor(1) == few.factor
    local = thin_scenario(scenario.with_values({"workload.exchange": "local_shuffle"}), 12)
    assert local.sent_factor(1) == local.factor == 8037 / 965
    whole = thin_scenario(scenario, 100)
    assert (whole.scenario, whole.left_out, whole.factor) == (scenario, 0, 1.0)
    assert whole.sent_factor(1) == 1.0
    assert thin_scenario(scenario, 99).left_out == 1


def lengths_of(scenario):
    """Shapes of all arrays of the plan of 12 iterations."""
    _, plan = ThinnedPlans(scenario).plan(1, 12)
    exchange = plan.exchange
    return [
        each.shape
        for each in (
            plan.nbytes,
            plan.shards.order,
            plan.training.nbytes,
            plan.sent_from_cache,
            exchange.sample,
            exchange.iteration,
        )
    ]


@pytest.mark.parametrize("exchange", ["global_shuffle", "local_shuffle", PARTIAL])
def test_the_plan_of_a_window_does_not_grow_with_the_data_set(exchange):
    few, many = (
        small(workload__dataset__num_samples=count, workload__exchange=exchange)
        for count in (8_000, 80_000)
    )
    assert lengths_of(few) == lengths_of(many)
    whole = next(plan_epochs(few, sample_nbytes(few)))
    assert len(whole.training.nbytes) == 100


def test_ten_times_the_samples_take_no_more_iterations():
    values = {"workload__jitter": {"compute": 0.02, "read": 0.1}, "workload__exchange": PARTIAL}
    counts = [
        report.epochs(
            simulate(
                small(workload__dataset__num_samples=count, **values).model_copy(update=WINDOW)
            )
        )["iterations_simulated"].item()
        for count in (8_000, 80_000)
    ]
    assert counts[0] == counts[1] <= 24


# ------------------------------------------------------------------------------- one after another


def known(size: int = 0, **fields: object) -> SteadyWindow:
    """A window that asks for one of ``size`` iterations next, if it does not suffice."""
    return SteadyWindow(100, 12, **{"longer": size, **fields})


def vague(size: int) -> SteadyWindow:
    return known(size, mean_half_width=0.5)


def scripted(monkeypatch, script, **values):
    """The iterations of each window that is simulated of epochs of 100, which say what the script
    has, one after the other; the shares done; and the timeline."""
    sizes, shares, remaining = [], [], list(script)

    def candidates(scenario, simulated, thinning, all_iterations):
        sizes.append(simulated.iterations_done)
        if not thinning.left_out:
            return [SteadyWindow(all_iterations, all_iterations)]
        return remaining.pop(0)

    monkeypatch.setattr(simulating, "_candidate_windows", candidates)
    first_epoch = values.pop("first_epoch", 1)
    scenario = small(workload__dataset__num_samples=8000, **values).model_copy(update=WINDOW)
    timeline = simulate(scenario, progress=shares.append, first_epoch=first_epoch)
    assert not remaining
    return sizes, shares, timeline


@pytest.mark.parametrize(
    ("script", "sizes"),
    [
        ([[known()]], [12]),
        ([[vague(20)], [vague(30)], [known()]], [12, 20, 30]),
        ([[vague(30), vague(20)], [known()]], [12, 20]),  # the shorter one of both may do
        ([[vague(74)], [known()]], [12, 74]),
        ([[vague(75)]], [12, 100]),  # three quarters are not worth a window
        ([[known(40, mean_half_width=0.5, late=True)]], [12, 100]),
    ],
)
def test_windows_grow_until_one_is_enough_or_all_is_no_longer(monkeypatch, script, sizes):
    assert scripted(monkeypatch, script)[0] == sizes


@pytest.mark.parametrize(("size", "sizes"), [(47, [12, 40, 47]), (48, [12, 40, 100])])
def test_iterations_that_were_simulated_in_vain_count_too(monkeypatch, size, sizes):
    """12 and 40 of 100: a window of the other 48 takes no less than all."""
    longer = SteadyWindow(100, 40, mean_half_width=0.5, longer=size)
    script = [[vague(40)], [longer], *([[known()]] if size == 47 else [])]
    assert scripted(monkeypatch, script)[0] == sizes


def test_an_epoch_begins_with_the_window_that_was_enough_before(monkeypatch):
    """The shares done are those of two epochs as long as the present window. What windows took
    in vain is not in the times."""
    sizes, shares, timeline = scripted(
        monkeypatch, [[vague(20)], [vague(30)], [known()], [known()]], epochs=2
    )
    assert sizes == [12, 20, 30, 30]
    done = [(k, 2 * size) for size in (12, 20, 30) for k in range(1, size + 1)]
    done += [(30 + k, 60) for k in range(1, 31)]
    assert shares == pytest.approx([part / whole for part, whole in done])
    spans = timeline.phases.groupby("epoch").agg({"start_s": "min", "end_s": "max"})
    assert spans["start_s"].tolist() == [0.0, pytest.approx(spans["end_s"][1], rel=1e-9)]
    assert spans["end_s"][2] == pytest.approx(2 * spans["end_s"][1], rel=1e-9)
    sizes, shares, _ = scripted(monkeypatch, [[known()], [known()]], epochs=3, first_epoch=2)
    assert sizes == [12, 12]
    assert shares == pytest.approx([k / 24 for k in range(1, 25)])


def test_two_warm_epochs_are_alike_in_what_must_be_simulated_whole(monkeypatch):
    """The first one says nothing of the second one, which says it of the third one."""
    late = [known(40, late=True)]
    sizes, _, timeline = scripted(monkeypatch, [late, late], epochs=3)
    assert sizes == [12, 100, 12, 100, 100]
    assert timeline.sources["whole_because"].tolist() == [LATE] * 3
    sizes, _, _ = scripted(monkeypatch, [late, [known()], [known()]], epochs=3)
    assert sizes == [12, 100, 12, 12]


def test_the_candidate_that_suffices_is_the_one_that_counts(monkeypatch):
    better = known(first=4, last=8, half_width=0.25)
    worse = known(20, first=3, last=9, mean_half_width=0.5)
    last = known(first=5, last=9, half_width=0.5)
    for script in ([worse, better], [better, worse], [better, last]):
        _, _, timeline = scripted(monkeypatch, [script])
        row = timeline.sources.iloc[0]
        assert (row["steady_first"], row["steady_last"], row["half_width_s"]) == (4, 8, 0.25)


@pytest.mark.parametrize(
    ("fields", "because"),
    [
        ({"settled": False, "mean_half_width": 0.5}, NOT_ALIKE),
        ({"mean_half_width": 0.0101}, TOO_DIFFERENT),
        ({"mean_half_width": 0.01, "pass_known": False}, IMPORTANCE_UNKNOWN),
    ],
)
def test_what_a_window_lacks_is_why_all_is_simulated(monkeypatch, fields, because):
    sizes, _, timeline = scripted(monkeypatch, [[known(90, **fields)]])
    assert sizes == [12, 100]
    assert timeline.sources["whole_because"].tolist() == [because]


# ------------------------------------------------------------------------------ compared with whole


NOISY = {
    "workload__jitter": {"compute": 0.05, "read": 0.1},
    "workload__dataset__sample_size": {"mean": "100 kB", "std": "50 kB"},
    "workload__dataset__num_samples": 8 * 10 * 100,
    "epochs": 2,
}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"workload__exchange": PARTIAL},
        {"workload__exchange": f"{PARTIAL},schedule=authors"},
        {"workload__exchange": "importance_exchange:exchange_fraction=0.1"},
        {"workload__exchange": "importance_pair:exchange_fraction=0.1"},
        {"workload__exchange": "global_shuffle:source=pfs"},
        {"workload__dataset__decode": "4.5 ms"},
        {"cluster__memory__page_cache": "50 MB", "workload__last_batch": "carry"},
    ],
    ids=lambda values: " ".join(map(str, values.values())) or "local",
)
def test_the_whole_epoch_lies_in_the_interval(values):
    """Or, where an interval misses it, as one of twenty does, within half the tolerance of it."""
    whole, window, _ = epochs(**{**NOISY, **values})
    away = (window["epoch_s"] - whole["epoch_s"]).abs()
    reach = np.maximum(window["epoch_high_s"] - window["epoch_s"], 0.005 * whole["epoch_s"])
    assert (away <= reach).all()
    assert (window["iterations_simulated"] < window["iterations"]).any()


# ------------------------------------------------------------------------- all iterations, and why


def reasons(**values):
    """Why the epochs of a scenario with a tolerance are simulated whole."""
    _, window, sources = epochs(**values)
    assert (window["iterations_simulated"] == window["iterations"]).all()
    assert (window["epoch_low_s"] == window["epoch_s"]).all()
    return set(sources["whole_because"].astype(str))


def test_an_epoch_that_is_not_longer_than_a_window_is_simulated_whole():
    assert reasons(workload__dataset__num_samples=8 * 10 * 14) == {
        "the epoch is too short to leave any out"
    }


def test_loaders_that_go_on_into_the_next_epoch_leave_nothing_out():
    found = reasons(workload__loader__across_epochs=True, epochs=2)
    assert found == {"loaders go on into the next epoch"}


def test_a_recorded_exchange_leaves_nothing_out(tmp_path):
    """One step of it: every rank sends its first sample to the next rank."""
    owner = np.repeat(np.arange(8), 400)
    plan = ExchangePlan(
        sample=np.arange(8)[None, :] * 400,
        target=np.roll(np.arange(8), 1)[None, :],
        iteration=np.zeros(1, np.int64),
        message=np.zeros(1, np.int64),
        draws=np.ones(1, np.int64),
    )
    path = tmp_path / "plans.npz"
    write_plans(path, RecordedPlans(owner, [plan]))
    exchange = {"kind": "recorded", "path": str(path), "exchange_fraction": 0.0025}
    found = reasons(workload__dataset__num_samples=3200, workload__exchange=exchange)
    assert found == {"the exchange is recorded sample by sample"}


def test_iterations_that_differ_much_are_all_simulated():
    found = reasons(
        workload__jitter={"compute": 1.5, "read": 0.0}, workload__dataset__num_samples=8 * 10 * 40
    )
    assert found <= {TOO_DIFFERENT, NOT_ALIKE}


def test_a_saturated_file_system_is_simulated_whole_or_to_its_interval():
    """Reading takes twice as long as computing, so the epoch is the bytes over the bandwidth."""
    values = {
        "workload__exchange": "global_shuffle:source=pfs",
        "cluster__parallel_file_system__read_bandwidth": "150 MB/s",
        "workload__dataset__num_samples": 8 * 10 * 60,
        "workload__dataset__sample_size": {"mean": "100 kB", "std": "100 kB"},
    }
    whole, window, sources = epochs(**values)
    because = sources["whole_because"].item()
    assert because in ("", TOO_DIFFERENT, NOT_ALIKE)
    assert (window["iterations_simulated"] == window["iterations"]).item() == bool(because)
    away = abs(window["epoch_s"].item() - whole["epoch_s"].item())
    assert away <= window["epoch_high_s"].item() - window["epoch_s"].item() + 1e-9


# -------------------------------------------------------------------------------- what users give


@pytest.mark.parametrize(("given", "value"), [("1 %", 0.01), (0.01, 0.01), ("0.5%", 0.005), (0, 0)])
def test_a_tolerance_is_a_share_or_in_percent(given, value):
    assert small(time_tolerance=given).time_tolerance == pytest.approx(value)


# -------------------------------------------------------------------------------- what users see


CALM = {**NOISY, "workload__jitter": {"compute": 0.02, "read": 0.1}}


@pytest.fixture(scope="module")
def result():
    scenario = small(**CALM).model_copy(update=WINDOW)
    swept = scenario.model_copy(update={"sweep": {"workload.exchange": ["local_shuffle", PARTIAL]}})
    return simshuffle.run(swept)


def test_below_the_tables_stands_how_much_was_simulated(result):
    text = str(result)
    assert "of 100 iterations of an epoch were simulated" in text
    assert "±" in text and "by Student's t, of the epoch, from its" in " ".join(text.split())
    whole = simshuffle.run(
        small(**NOISY, workload__loader__across_epochs=True).model_copy(update=WINDOW)
    )
    assert (
        "all iterations of epochs 1 and 2 were simulated, because loaders go on into the next epoch"
        in str(whole)
    )


def test_the_whisker_of_the_figure_is_the_interval_of_the_epoch(result):
    of = result.epochs.set_index(["run", "epoch"])
    row = of.loc["local @8", 2]
    figure = laid_out(STUDY.figures(result)["breakdown"])
    lines = [each for each in figure.axes[0].collections if isinstance(each, LineCollection)]
    ends = [tuple(segment[:, 0]) for line in lines for segment in line.get_segments()]
    expected = (row["epoch_low_s"], row["epoch_high_s"])
    assert any(found == pytest.approx(expected) for found in ends)
    assert "95 % interval of the epoch" in str(
        [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    )


def test_a_saved_result_is_verified_and_compared(result, tmp_path, capsys):
    folder = result.save(tmp_path / "windows")
    assert main(["results", "verify", str(folder)]) == 0
    again = simshuffle.read(folder)
    pd.testing.assert_frame_equal(
        again.tables["epochs"], result.tables["epochs"], check_dtype=False
    )
    capsys.readouterr()
    whole = simshuffle.run(small(**CALM)).save(tmp_path / "whole")
    assert main(["compare", str(folder), str(whole)]) == 0
    assert "time_tolerance" in capsys.readouterr().out


def test_json_has_iterations_and_interval(here, capsys):
    words = ["quickstart", "--set", "sweep={}", "--set", "world_size=8"]
    words += ["--set", "workload.dataset.num_samples=25600", "--set", "time_tolerance=1 %"]
    assert main(["run", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    text = json.dumps(rows)
    for name in ("iterations_simulated", "epoch_low_s", "epoch_high_s"):
        assert name in text


def test_over_seeds_the_interval_is_that_of_the_seeds():
    of = simshuffle.run(small(**CALM).model_copy(update=WINDOW), seeds=3)
    assert (of.epochs["iterations_simulated"] < 100).any()
    assert "the mean over 3 seeds" in str(of)


def test_a_sweep_may_sweep_the_tolerance(tmp_path, capsys):
    small_one = ["--set", "world_size=16", "--set", "workload.dataset.num_samples=25600"]
    words = ["quickstart", "--set", "sweep={}", *small_one, "--over", "time_tolerance=0,1 %,5 %"]
    assert main(["sweep", *words, "--out", str(tmp_path / "swept")]) == 0
    capsys.readouterr()
    table = simshuffle.read(tmp_path / "swept").tables["sweep"]
    simulated = table[table["epoch"] == 2]["iterations_simulated"].tolist()
    assert simulated[0] == 50 > simulated[1] >= simulated[2] >= 12


def test_batches_grow_as_long_as_eight_are_left_of_them():
    """A slow wave: batches of one value, then of two, are correlated. The last batches may be as
    few as `FEWEST_BATCHES`, of four values each."""
    count = 4 * FEWEST_BATCHES
    values = np.cos(np.linspace(0.0, 3.0, count)) + 2.0
    variance, degrees = _long_run(values, 1)
    means = values.reshape(FEWEST_BATCHES, 4).mean(axis=1)
    deviations = means - means.mean()
    lag = float(deviations[1:] @ deviations[:-1]) / float(deviations @ deviations)
    lag = min(lag + (1.0 + 3.0 * lag) / FEWEST_BATCHES, 0.9)
    worth = (1.0 - lag) / (1.0 + lag)
    assert variance == pytest.approx(4 * means.var(ddof=1) / worth)
    assert degrees == pytest.approx(max((FEWEST_BATCHES - 1) * worth, 2.0))

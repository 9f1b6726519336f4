"""Intervals by hand: a small scenario whose epoch is compute alone (800 samples on 8 ranks, 10 a
batch), so that its closed form is proportional to the time of a sample."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simshuffle.errors import InputError
from simshuffle.job.plan.bounds import Bounds, Compute, bounds
from simshuffle.job.plan.exchange_bound import ExchangeBound
from simshuffle.job.plan.reading_bounds import OPENS, PFS
from simshuffle.job.scenario.calibrated import Calibrated
from simshuffle.job.uncertainty import interval
from simshuffle.job.uncertainty.inputs import (
    ESTIMATE,
    MEASURED,
    SHEET,
    Input,
    _dimension,
    _source,
    calibrated_range,
    default_ranges,
    inputs,
    keys_of,
    kind_of,
    scale_inputs,
)
from simshuffle.job.uncertainty.interval import (
    Interval,
    ScaledRun,
    estimate_intervals,
    find_order_flip,
    loop_of,
    rank_influences,
)
from simshuffle.job.uncertainty.interval import perturbed_epoch as epoch_of
from simshuffle.job.uncertainty.report import (
    interval_facts,
    interval_request,
    measured_by,
    ranges_of,
    repeat_options,
)
from simshuffle.job.uncertainty.residuals import Residuals
from simshuffle.spec.units import Dimension
from tests.small import small

DECODE = "workload.dataset.decode"
ALONE = {
    "workload__model": {
        "name": "m",
        "gradient_size": "4 B",
        "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms", "backward": "2 ms"}},
        "source": "measured by hand",
    }
}
FORWARD = "workload.model.accelerators.v100-sxm2-16gb.forward"
BACKWARD = FORWARD.replace("forward", "backward")


def epoch(scenario, model):
    return epoch_of(bounds(scenario), model, loop_of(scenario))


def of(scenario, ranges=None):
    return estimate_intervals({"run": (scenario, bounds(scenario).epoch)}, ranges or {})


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("", ESTIMATE),
        ("estimate: as ABCI", ESTIMATE),
        ("default: half a round trip, estimate", ESTIMATE),
        ("example value", ESTIMATE),
        ("a drive's data sheet; remembered, not re-read", ESTIMATE),
        ("fitted on epochs of 1 and 2 GPUs", MEASURED),
        ("NVIDIA DeepLearningExamples, training throughput, split 1:2 (estimate)", MEASURED),
        ("nccl-tests on two hosts", MEASURED),
        ("InfiniBand EDR, 100 Gbit/s", SHEET),
    ],
)
def test_what_stands_behind_a_number_is_read_from_its_source(source, kind):
    assert kind_of(source) == kind


def test_default_ranges_are_those_of_pairs_of_stated_and_measured():
    """Data sheets: mean -0.124 and standard deviation 0.079 of ln(measured / stated) of 7 pairs."""
    low, high = default_ranges()[SHEET]
    ratios = np.log([38.1 / 40.8, 1920.2 / 2500, 55.4 / 64, 396 / 450, 436 / 450, 0.848, 11 / 12.5])
    assert low == pytest.approx(np.exp(ratios.mean() - 1.645 * ratios.std(ddof=1)), rel=1e-3)
    assert high == 1.0 and low < 0.8
    assert default_ranges()[ESTIMATE][0] < low
    assert default_ranges()[ESTIMATE][1] > 1.5


def test_ten_per_cent_of_the_factors_lie_outside_of_a_range():
    drawn = Input("k", "given", 0.5, 3.0, 1.0, Dimension.SECONDS)
    factors = drawn.factors(stats.norm.ppf(np.linspace(0.0005, 0.9995, 1000)))
    assert (factors < 0.5).mean() == pytest.approx(0.05, abs=2e-3)
    assert (factors > 3.0).mean() == pytest.approx(0.05, abs=2e-3)


def test_an_epoch_of_compute_follows_the_time_of_a_sample():
    """Forward is a third of the step: from 0.5 to 2 ms the epoch is 2.5/3 to 4/3 as long."""
    scenario = small(**ALONE)
    found = of(scenario, {FORWARD: (0.5e-3, 2e-3)})
    low, high = found.intervals["run"].parts["inputs"]
    assert low == pytest.approx(2.5 / 3, rel=0.02)
    assert high == pytest.approx(4 / 3, rel=0.02)
    (most, *_) = rank_influences(scenario, found.intervals["run"], found.inputs)
    assert most.input.key == FORWARD and most.total > 0.95


def test_a_wider_range_makes_a_wider_interval_and_the_whole_contains_the_prediction():
    scenario = small(**ALONE)
    widths = []
    for reach in (1.1, 1.5, 3.0):
        found = of(scenario, {FORWARD: (1e-3 / reach, 1e-3 * reach)}).intervals["run"]
        assert found.low < found.value < found.high
        widths.append(found.high / found.low)
    assert widths == sorted(widths)


def test_an_error_of_a_law_lengthens_its_own_part_of_an_epoch():
    """All of compute and gradients twice as long; files alone, where opens bind: 800 files at 100/s
    take 8 s, and the last batch of 10 x 3 ms comes after them."""
    scenario = small(**ALONE, workload__allreduce__inter_host_bus_bandwidth="1 MB/s")
    assert bounds(scenario).allreduce > 0
    nominal = bounds(scenario)
    doubled = epoch(scenario, {"step": 2.0})
    assert doubled == pytest.approx(2 * nominal.epoch - nominal.first_batch)
    assert epoch(scenario, {"divided": 2.0, "bandwidth": 2.0}) == nominal.epoch
    opens = small(
        **ALONE,
        cluster__parallel_file_system__open_rate="100 /s",
        workload__exchange="global_shuffle:source=pfs",
    )
    of_files = bounds(opens)
    assert of_files.resources["file opens"] == pytest.approx(8.0)
    assert epoch(opens, {"files": 2.0}) == pytest.approx(16.0 + of_files.last_batch)


def test_twice_the_same_run_is_a_toss_and_a_longer_one_is_never_faster():
    scenario, longer = small(**ALONE), small(**ALONE, workload__dataset__num_samples=8000)
    seconds = bounds(scenario).epoch
    found = estimate_intervals(
        {"a": (scenario, seconds), "b": (scenario, seconds), "c": (longer, bounds(longer).epoch)},
        {},
    )
    assert found.faster("a", "b") == pytest.approx(0.5, abs=0.06)
    assert found.faster("a", "c") == 1.0


def test_a_verdict_flips_where_both_take_as_long():
    """30 ms of compute a batch of 10. One worker hides decoding up to some 3 ms a sample, two twice
    as much: a run with one worker that is said to be a little faster is not from there on."""
    one, two = (small(**ALONE, workload__loader={"workers": n, "prefetch": 4}) for n in (1, 2))
    seconds = bounds(one).epoch
    assert bounds(two).epoch == seconds  # both hide all of it now
    drawn = [each for each in inputs(one, {}) if each.key == DECODE]
    of_input, factor = find_order_flip(
        ScaledRun(one, 0.999 * seconds), ScaledRun(two, seconds), drawn
    )
    assert of_input.key == DECODE and 2.0 < factor < 3.5
    assert find_order_flip(ScaledRun(two, 0.999 * seconds), ScaledRun(one, seconds), drawn) is None


def test_chance_is_half_the_range_over_what_half_a_range_of_eight_is():
    rows = pd.DataFrame(
        {
            "set": ["a"] * 6,
            "mechanism": ["step"] * 6,
            "ranks": [8.0] * 6,
            "residual": np.linspace(-0.1, 0.1, 6),
            "repeats": [0.01, 0.02, 0.029, 0.029, 0.05, np.nan],
        }
    )
    assert Residuals(rows).chance("step") == pytest.approx(0.02)
    assert Residuals(rows).chance("files") == pytest.approx(0.02)


def test_the_chance_of_a_mechanism_rests_on_five_rows_of_it():
    """Five of 0.029 count for themselves; of four, the nine rows of 0.29 beside them count too."""
    columns = ["set", "mechanism", "ranks", "residual", "repeats"]
    step, files = ("a", "step", 8.0, 0.1, 0.029), ("b", "files", 8.0, 0.1, 0.29)
    rows = pd.DataFrame([step] * 5 + [files] * 9, columns=columns)
    assert Residuals(rows).chance("step") == pytest.approx(0.02)
    assert Residuals(rows[1:]).chance("step") == pytest.approx(0.2)
    assert Residuals(rows).chance("files") == pytest.approx(0.2)


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.15, 0.5])
def test_what_chance_does_is_taken_out_of_the_errors_of_laws(chance, monkeypatch):
    """Of errors that lie evenly from -0.3 to 0.3, of variance 0.03, chance has its own variance."""
    rows = {"set": "a", "mechanism": "step", "ranks": 8.0, "repeats": 1.45 * chance}
    table = pd.DataFrame({**rows, "residual": np.linspace(-0.3, 0.3, 61)})
    monkeypatch.setattr(interval, "residuals", lambda: Residuals(table))
    scenario = small(**ALONE)
    ends = of(scenario, {FORWARD: (1e-3, 1e-3)}).intervals["run"].parts
    left = max(0.0, 1 - chance**2 / 0.03) ** 0.5
    assert np.log(ends["model"]) == pytest.approx([-0.27 * left, 0.27 * left], rel=0.05, abs=1e-3)
    assert np.log(ends["chance"]) == pytest.approx([-1.645 * chance, 1.645 * chance], rel=0.05)


def test_a_range_that_does_not_contain_its_value_is_refused():
    scenario = small(**ALONE)
    with pytest.raises(InputError, match="a range must contain its value"):
        inputs(scenario, {FORWARD: (2e-3, 3e-3)})
    with pytest.raises(InputError, match="is no time, rate or curve"):
        inputs(scenario, {"workload.dataset.num_samples": (1.0, 2.0)})
    with pytest.raises(InputError, match="is used with --interval only"):
        ranges_of(False, {FORWARD: (1e-3, 2e-3)}, [scenario], 1)
    with pytest.raises(InputError, match="is of at most 64 runs"):
        ranges_of(True, {}, [scenario], 65)


def test_what_a_result_keeps_is_plain_and_names_what_measures_an_input():
    scenario = small(**ALONE)
    found = interval_facts({"run": (scenario, 3.0)}, {FORWARD: (0.5e-3, 2e-3)})
    assert found["runs"]["run"]["seconds"] == 3.0
    (first, *_) = found["hangs"]["run"]
    assert first["key"] == FORWARD and first["value"] == "1 ms"
    assert first["measured_by"].endswith("simshuffle machine calibrate") and first["width"] < 1
    assert found["odds"] == []


@cache
def interval_of(seconds):
    return estimate_intervals({"r": (small(**ALONE), seconds)}, {}).intervals["r"]


@settings(deadline=None, max_examples=10)
@given(st.floats(0.2, 5.0))
def test_a_prediction_and_its_interval_scale_together(factor):
    single, scaled = interval_of(1.0), interval_of(factor)
    assert scaled.low / single.low == pytest.approx(factor)
    assert scaled.high / single.high == pytest.approx(factor)


def test_many_rows_of_one_set_count_as_the_root_of_their_number():
    """One row of -0.2 beside four of 0.2 from one set, of weight 1/2 each: of 3 in all."""
    table = {"set": ["a", *["b"] * 4], "mechanism": "step", "ranks": 8.0, "repeats": np.nan}
    rows = pd.DataFrame({**table, "residual": [-0.2, *[0.2] * 4]})
    found = Residuals(rows).quantiles("step", 8.0, np.array([0.5, 0.875, 1.25]) / 3)
    assert found == pytest.approx([-0.2, 0.0, 0.2])


def test_the_share_of_runs_that_have_an_interval_rises_to_all():
    shares = []
    runs = {name: (small(), 1.0) for name in ("a", "b", "c", "d")}
    estimate_intervals(runs, {}, shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_inputs_that_move_the_epoch_by_a_few_per_cent_are_drawn():
    """Decoding takes nearly all of an epoch: a range of 5 % each way moves it by as much."""
    scenario = small(workload__dataset__decode="20 ms")
    keys = [
        candidate.key
        for candidate in interval.influential_inputs(
            {"a": (scenario, 1.0)}, {"workload.dataset.decode": (0.019, 0.021)}
        )
    ]
    assert "workload.dataset.decode" in keys


def test_the_range_of_a_calibration_holds_its_value():
    def range_of(low, high):
        return calibrated_range(low, high, 1e-3, Dimension.SECONDS)

    assert range_of("0.5 ms", "2 ms") == pytest.approx((0.5, 2.0))
    assert range_of("1.5 ms", "3 ms") == pytest.approx((1.0, 3.0))
    assert range_of("0.1 ms", "0.5 ms") == pytest.approx((0.1, 1.0))
    for low in ("0 s", None, "1 GB/s", {"points": {1: "1 ms"}}):
        assert range_of(low, "2 ms") is None


def test_a_given_range_counts_before_that_of_a_calibration():
    calibrated = [
        Calibrated(key=FORWARD, value="1 ms", low="0.8 ms", high="1.6 ms"),
        Calibrated(key=BACKWARD, value="2 ms", low="1 ms", high="3 ms"),
    ]
    scenario = small(**ALONE).model_copy(update={"calibrated": calibrated})
    found = {each.key: each for each in inputs(scenario, {FORWARD: (1e-3, 4e-3)})}
    forward, back = found[FORWARD], found[BACKWARD]
    assert (forward.kind, forward.low, forward.high) == ("given", 1.0, pytest.approx(4.0))
    assert (back.kind, back.low, back.high) == ("calibrated", 0.5, 1.5)
    assert (forward.value, back.value, back.dimension) == (1e-3, 2e-3, Dimension.SECONDS)
    # what was measured has no range without either
    assert FORWARD not in {each.key for each in inputs(small(**ALONE), {})}
    # both ends of a given range may be the value itself, and 0 may not
    assert inputs(scenario, {FORWARD: (1e-3, 1e-3)})
    with pytest.raises(InputError, match="be above 0"):
        inputs(scenario, {FORWARD: (0.0, 2e-3)})


def test_numbers_of_accelerators_that_no_host_has_are_left_out():
    model = ALONE["workload__model"]
    times = {"forward": "1 ms", "backward": "2 ms"}
    both = {"accelerators": {**model["accelerators"], "other": times}}
    keys = keys_of(small(workload__model={**model, **both}))
    assert FORWARD in keys and FORWARD.replace("v100-sxm2-16gb", "other") not in keys
    # sizes, shares and counts are choices, and zeros are nothing
    assert "cluster.parallel_file_system.open_rate" in keys
    assert "cluster.topology.link_bandwidth" in keys
    assert not {"workload.model.gradient_size", "workload.local_batch_size"} & keys
    assert "cluster.topology.cable_latency" not in keys


def test_a_curve_is_known_at_its_last_point_and_scaled_at_all():
    points = {"points": {1: "2 k/s", 4: "12 k/s", 64: "40 k/s"}}
    scenario = small(**ALONE, cluster__ssd__iops=points)
    key = "cluster.ssd.iops"
    (curve,) = [each for each in inputs(scenario, {key: (2e4, 6e4)}) if each.key == key]
    assert (curve.low, curve.high, curve.value) == (0.5, 1.5, 4e4)
    assert curve.dimension is Dimension.FREQUENCY
    iops = scale_inputs(scenario, {key: 3.0, FORWARD: 2.0}).cluster.ssd.iops
    assert iops.y == (6e3, 36e3, 12e4) and iops.x == (1, 4, 64)
    assert scenario.cluster.ssd.iops.y == (2e3, 12e3, 4e4)


@pytest.mark.parametrize(
    ("written", "dimension"),
    [
        ("5 ms", Dimension.SECONDS),
        ("2 GB/s", Dimension.BANDWIDTH),
        ("3 k/s", Dimension.FREQUENCY),
        ({"points": {"1 B": "2 GB/s", "4 B": "1 s"}}, Dimension.BANDWIDTH),
        ({"1 B": "3 k/s"}, Dimension.FREQUENCY),
        ("3 MB", None),
        ({}, None),
        (3.0, None),
        (None, None),
    ],
)
def test_the_unit_of_a_number_says_what_it_is(written, dimension):
    assert _dimension(written) is dimension


def test_the_longest_beginning_of_a_key_names_its_source():
    sources = {"read": "a", "read.small": "b"}
    assert _source("cluster.ssd.read.small", "cluster.ssd", sources) == "b"
    assert _source("cluster.ssd.read.large.one", "cluster.ssd", sources) == "a"
    assert _source("cluster.ssd.iops", "cluster.ssd", sources) == ""
    assert _source("cluster.ssd.iops", "cluster.ssd", "all") == "all"


def nominal(**resources):
    """Return bounds whose parts are powers of two: any sum of them is of one choice of parts."""
    exchange = ExchangeBound(work=1.0, waiting=2.0, barriers=4.0, wire=8.0, hidden=0.5)
    return Bounds(
        iterations=3,
        passes=Compute(given=16.0, hooks=32.0, jitter=64.0, slowed=4096.0),
        allreduce=128.0,
        exchange=exchange,
        importance=256.0,
        first_batch=512.0,
        last_batch=100.0,
        resources={"decode": 1.0, **resources},
    )


@pytest.mark.parametrize(
    ("errors", "added"),
    [
        ({}, 0.0),
        ({"step": 2.0}, 16 + 32 + 64 + 128 + 256),
        ({"messages": 2.0}, 1 + 2 + 4 + 8),
        ({"files": 2.0}, 512),
        ({"divided": 2.0, "bandwidth": 2.0}, 0.0),
    ],
)
def test_each_part_of_the_loop_has_the_error_of_its_law(errors, added):
    # the loop: all but the last batch, without the half second that is hidden
    assert epoch_of(nominal(), errors, "step") == 1023.0 - 0.5 + added
    if "step" in errors:
        assert epoch_of(nominal(), errors, "divided") == 1022.5
        assert epoch_of(nominal(), {"divided": 2.0}, "divided") == 1022.5 + added


@pytest.mark.parametrize(
    ("resource", "law"),
    [
        (OPENS, "files"),
        (PFS, "bandwidth"),
        ("decode", "step"),
    ],
)
def test_a_resource_has_the_error_of_its_law(resource, law):
    slow = nominal(**{resource: 5000.0})
    last_batch = 100.0 * (2 if law == "step" else 1)
    assert epoch_of(slow, {law: 2.0}, "step") == 10_000.0 + last_batch
    others = dict.fromkeys({"files", "bandwidth", "messages"} - {law}, 1.5)
    assert epoch_of(slow, others, "step") == 5100.0


def given(key, low, high):
    return Input(key, "given", low, high, 1e-3, Dimension.SECONDS)


def test_influence_is_a_share_of_the_variance_and_a_measured_input_takes_it_away():
    """The epoch is in proportion to forward + backward, of 1 ms and 2 ms: of ranges as wide, each
    moves it by 1/3 and 2/3 of that, so the variances are as 1 to 4."""
    scenario = small(**ALONE)
    parts = {"inputs": (np.exp(-1), np.exp(1)), "model": (np.exp(-2), np.exp(2)), "chance": (1, 1)}
    drawn = [given(FORWARD, 0.98, 1.02), given("no.such", 0.5, 2), given(BACKWARD, 0.98, 1.02)]
    back, forward = rank_influences(scenario, Interval(1.0, 0.5, 2.0, parts), drawn)
    assert (back.input.key, forward.input.key) == (BACKWARD, FORWARD)
    for found, share in ((back, 0.8), (forward, 0.2)):
        assert found.total == pytest.approx(share, abs=0.04)
        assert found.first == pytest.approx(share, abs=0.08)
        # the inputs have 1 of 1 + 4 parts of the variance
        assert found.width == pytest.approx((1 - found.total / 5) ** 0.5)
    # one input alone has all of it, and where nothing is uncertain no width goes
    (alone,) = rank_influences(scenario, Interval(1.0, 0.5, 2.0, parts), drawn[:2])
    assert (alone.first, alone.total) == (1.0, 1.0)
    assert alone.width == pytest.approx(0.8**0.5)
    sure = dict.fromkeys(parts, (1.0, 1.0))
    (alone,) = rank_influences(scenario, Interval(1.0, 1.0, 1.0, sure), drawn[:1])
    assert alone.width == 1.0
    assert rank_influences(scenario, Interval(1.0, 0.5, 2.0, parts), drawn[1:2]) == []


def test_the_input_that_must_move_least_flips_an_order():
    """30 ms of compute a batch. One worker needs 25 ms: at 1.2 times that it binds, while passes
    must take less than 25 ms, a forward pass half its time or less."""
    values = {**ALONE, "workload__dataset__decode": "2.4 ms"}
    one, two = (small(**values, workload__loader={"workers": n, "prefetch": 4}) for n in (1, 2))
    seconds = bounds(one).epoch
    assert bounds(two).epoch == seconds
    runs = (ScaledRun(one, 0.999 * seconds), ScaledRun(two, seconds))
    forward, decode = given(FORWARD, 0.5, 2.0), given(DECODE, 0.5, 2.0)
    only_forward, factor = find_order_flip(*runs, [forward])
    assert only_forward is forward and 0.2 < factor < 0.6
    for drawn in ([forward, decode], [decode, forward], [given("no.such", 1, 1)] * 9 + [decode]):
        moved, factor = find_order_flip(*runs, drawn)
        assert moved is decode and 1.1 < factor < 1.4
    # ten inputs are looked at
    idle = given("workload.dataset.encode", 0.5, 2.0)
    assert find_order_flip(*runs, [idle] * 10 + [decode]) is None
    assert find_order_flip(*runs, [idle] * 9 + [decode]) is not None
    # a second run that is faster as it is
    slower = ScaledRun(one, 1.01 * seconds)
    assert find_order_flip(slower, runs[1], [decode])[1] == pytest.approx(1)


def test_a_run_that_is_compared_again_is_not_computed_again(monkeypatch):
    one, two = (ScaledRun(small(**ALONE), seconds) for seconds in (1.0, 2.0))
    forward = given(FORWARD, 0.5, 2.0)
    assert find_order_flip(one, two, [forward]) is None
    assert one.epoch(FORWARD, 2.0) == pytest.approx(4 / 3, rel=0.02)  # 1 ms of 3 ms
    assert one.epoch(FORWARD, 0.5) == pytest.approx(5 / 6, rel=0.02)
    monkeypatch.setattr("simshuffle.job.uncertainty.interval.bounds", None)
    assert find_order_flip(one, two, [forward]) is None
    with pytest.raises(TypeError):
        one.epoch(BACKWARD, 2.0)


def test_several_inputs_of_a_record_are_scaled_together():
    scenario = small(**ALONE)
    scaled = scale_inputs(scenario, {FORWARD: 2.0, DECODE: 3.0, BACKWARD: 0.5})
    at_a_time = scenario
    for key, factor in ((BACKWARD, 0.5), (FORWARD, 2.0), (DECODE, 3.0)):
        at_a_time = scale_inputs(at_a_time, {key: factor})
    assert scaled == at_a_time != scenario == small(**ALONE)
    assert scaled.cluster is scenario.cluster
    assert scale_inputs(scenario, {}) is scenario
    with pytest.raises(AttributeError):
        scale_inputs(scenario, {FORWARD: 2.0, "cluster.ssd.no_such": 2.0})


def test_inputs_come_once_by_the_most_that_they_move_any_run():
    """A tenth of the forward pass is 1/30 of an epoch of compute; of one that decodes, nothing."""
    ranges = {FORWARD: (0.9e-3, 1.1e-3), BACKWARD: (1.9e-3, 2.1e-3)}
    slow = small(**ALONE, workload__dataset__decode="20 ms")
    plain = small(**ALONE)
    runs = {"slow": (slow, 1.0), "plain": (plain, 1.0)}
    drawn = interval.influential_inputs(runs, ranges)
    keys = [each.key for each in drawn]
    assert len(keys) == len(set(keys)) and {FORWARD, BACKWARD, DECODE} <= set(keys)
    # decoding that nobody measured moves the slow run by more than half
    assert keys.index(DECODE) < min(keys.index(FORWARD), keys.index(BACKWARD))
    # what moves an epoch by 1 in 10^5 is not drawn
    tiny = {FORWARD: (1e-3, 1.00002e-3)}
    assert FORWARD not in {each.key for each in interval.influential_inputs(runs, tiny)}


def test_runs_share_the_errors_of_laws_but_not_chance():
    """All factors of equal runs differ by their chances alone."""
    scenario = small(**ALONE)
    found = estimate_intervals({"a": (scenario, 1.0), "b": (scenario, 2.0)}, {})
    first, second = found.draws["a"].together, found.draws["b"].together
    assert not np.array_equal(first, second)
    chance = found.intervals["a"].parts["chance"]
    assert found.intervals["b"].parts["chance"] == pytest.approx(chance)
    assert found.intervals["b"].parts["model"] == pytest.approx(found.intervals["a"].parts["model"])
    # the ratio of two chances spreads by sqrt(2) times one of them
    ends = np.log(np.quantile(first / second, [0.05, 0.95]))
    assert ends == pytest.approx(np.sqrt(2) * np.log(chance), rel=0.15)
    assert found.intervals["b"].high / 2.0 == pytest.approx(np.quantile(second, 0.95))
    assert found.intervals["b"].low / 2.0 == pytest.approx(np.quantile(second, 0.05))


def test_only_the_fastest_runs_and_the_slowest_are_compared(monkeypatch):
    """Eight runs, of which one has other ranks: the five fastest and the slowest are named."""
    monkeypatch.setattr(interval, "DRAWS", 32)
    monkeypatch.setattr(interval, "INDEX_DRAWS", 8)
    monkeypatch.setattr(interval, "FLIP_TRIALS", 3)
    scenario, alone = small(**ALONE), small(**ALONE, world_size=4)
    runs = {f"r{n}": (scenario, 1.06 - 0.01 * n) for n in range(7)} | {"other": (alone, 0.9)}
    shares = []
    facts = interval_facts(runs, {FORWARD: (0.5e-3, 2e-3)}, shares.append)
    assert set(facts["runs"]) == set(runs) and facts["runs"]["other"]["ranks"] == 4
    assert [*facts["hangs"]] == ["other", "r6", "r5", "r4", "r3", "r0"]
    pairs = [(odds["first"], odds["second"]) for odds in facts["odds"]]
    names = ["r6", "r5", "r4", "r3", "r0"]
    assert pairs == [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    assert all(odds["share"] > 0.5 for odds in facts["odds"])
    # 1.00 s are surer less than 1.06 s than less than 1.01 s
    assert facts["odds"][3]["share"] > facts["odds"][0]["share"]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)


def test_what_measures_an_input_is_said_by_the_first_beginning_of_its_key():
    assert measured_by("cluster.ssd.iops") == "simshuffle machine probe"
    assert measured_by("cluster.parallel_file_system.read_bandwidth").startswith("IOR")
    assert measured_by("cluster.parallel_file_system.open_rate").startswith("mdtest")
    assert measured_by("cluster.topology.link_bandwidth").startswith("osu_bw")
    assert measured_by("cluster.object_store.latency").startswith("warp")
    assert "DistributedDataParallel" in measured_by("workload.allreduce.overlap.hooks")
    assert measured_by("workload.allreduce.channels").startswith("nccl-tests")


def test_options_that_repeat_intervals_are_those_that_were_asked_for():
    ranges = {FORWARD: (1e-3, 2e-3)}
    asked = interval_request(ranges)
    assert asked == {"interval": True, "ranges": {FORWARD: [1e-3, 2e-3]}}
    assert repeat_options(asked) == {"interval": True, "ranges": ranges}
    assert interval_request({}) == {"interval": True} and interval_request(None) == {}
    assert repeat_options({}) == {"interval": False, "ranges": {}}
    scenario = small(**ALONE)
    assert ranges_of(True, ranges, [scenario], 64) == ranges
    assert ranges_of(False, {}, [scenario], 65) is None
    with pytest.raises(InputError, match="is no time"):
        ranges_of(True, {"no.such": (1.0, 2.0)}, [scenario], 1)

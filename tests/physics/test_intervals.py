"""Intervals by hand: a small scenario whose epoch is compute alone (800 samples on 8 ranks, 10 a
batch), so that its closed form is proportional to the time of a sample."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simshuffle.errors import InputError
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.uncertainty import interval
from simshuffle.job.uncertainty.inputs import (
    ESTIMATE,
    MEASURED,
    SHEET,
    Input,
    default_ranges,
    inputs,
    kind_of,
)
from simshuffle.job.uncertainty.interval import (
    estimate_intervals,
    find_order_flip,
    loop_of,
    rank_influences,
)
from simshuffle.job.uncertainty.interval import perturbed_epoch as epoch_of
from simshuffle.job.uncertainty.report import interval_facts, ranges_of
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
    of_input, factor = find_order_flip((one, 0.999 * seconds), (two, seconds), drawn)
    assert of_input.key == DECODE and 2.0 < factor < 3.5
    assert find_order_flip((two, 0.999 * seconds), (one, seconds), drawn) is None


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


@settings(deadline=None, max_examples=10)
@given(st.floats(0.2, 5.0))
def test_a_prediction_and_its_interval_scale_together(factor):
    scenario = small(**ALONE)
    one, other = (
        estimate_intervals({"r": (scenario, s)}, {}).intervals["r"] for s in (1.0, factor)
    )
    assert other.low / one.low == pytest.approx(factor)
    assert other.high / one.high == pytest.approx(factor)


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
        for candidate in interval._influential_inputs(
            {"a": (scenario, 1.0)}, {"workload.dataset.decode": (0.019, 0.021)}
        )
    ]
    assert "workload.dataset.decode" in keys

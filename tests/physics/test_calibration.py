"""Calibration: parameters that data were made with are found again, and the intervals hold them as
often as they say."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.calibrate.exchange import (
    COPY,
    OVERHEAD,
    fit_all_to_all,
    fit_message_cost,
)
from simshuffle.extensions.calibration.calibrate.fit import (
    mean_interval,
    median_interval,
    relative_fit,
    saturation,
    variation,
)
from simshuffle.extensions.calibration.calibrate.laws import fit_allreduce, fit_point_to_point
from simshuffle.extensions.calibration.calibrate.storage import fit_opens, fit_transfers
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, measurements_table
from simshuffle.extensions.calibration.calibrate.training import (
    TrainedNetwork,
    fit_epoch_log,
    uncontended_time,
)
from simshuffle.fabric.allreduce.nccl import Ring
from simshuffle.job.plan.findings import _used_at
from tests.small import small

SIZES = [float(1 << k) for k in range(3, 31, 3)]
SEEDS = 400
PREFIX = "workload.allreduce"


def used(rows):
    return pd.Series(True, index=rows.index)


def found(findings):
    return {p.key: p for p in findings.parameters}


def held(hits, trials, confidence=0.95):
    """Whether so many hits are what a binomial law gives in all but one case of 10,000, or up to 3
    % fewer."""
    return (
        stats.binom.ppf(5e-5, trials, confidence - 0.03)
        <= hits
        <= stats.binom.ppf(1 - 5e-5, trials, min(confidence + 0.05, 0.999))
    )


def ring_seconds(ring, ranks, hosts, nbytes):
    """The time of an allreduce by the simulator's own law, each rank sending at the bus
    bandwidth."""
    flows = ring.flows(np.arange(ranks) * hosts // ranks, nbytes)
    return flows.latency + flows.nbytes[0] / flows.cap[0]


def ring(**values):
    default = {
        "kind": "ring",
        "rings": 1,
        "intra_host_latency": "3 us",
        "inter_host_latency": "9 us",
        "intra_host_bus_bandwidth": "20 GB/s",
        "inter_host_bus_bandwidth": "6 GB/s",
    }
    return Ring.model_validate(default | values)


def ring_rows(law, layouts, sizes=SIZES, noise=0.0, rng=None):
    rows = []
    for ranks, hosts in layouts:
        for n in sizes:
            for _ in range(2 if noise else 1):
                factor = math.exp(rng.normal(0, noise)) if noise else 1.0
                seconds = ring_seconds(law, ranks, hosts, n) * factor
                rows.append(
                    MeasuredNumber(
                        "made", len(rows), "nccl-tests", "all_reduce", ranks, hosts, n, seconds
                    )
                )
    return measurements_table(rows)


# ------------------------------------------------------------------------------------ without noise


def test_a_ring_inside_a_host_and_between_hosts_is_found_exactly():
    rows = ring_rows(ring(), [(4, 1), (8, 2), (32, 8)])
    values = {p.key: p.value for p in fit_allreduce(rows, used(rows)).parameters if p.usable}
    assert values == pytest.approx(
        {
            f"{PREFIX}.intra_host_latency": 3e-6,
            f"{PREFIX}.intra_host_bus_bandwidth": 20e9,
            f"{PREFIX}.inter_host_latency": 9e-6,
            f"{PREFIX}.inter_host_bus_bandwidth": 6e9,
        },
        rel=1e-9,
    )


def test_one_gpu_a_host_needs_no_run_inside_a_host():
    rows = ring_rows(ring(), [(8, 8)])
    values = {p.key: p.value for p in fit_allreduce(rows, used(rows)).parameters if p.usable}
    assert values == pytest.approx(
        {f"{PREFIX}.inter_host_latency": 9e-6, f"{PREFIX}.inter_host_bus_bandwidth": 6e9}, rel=1e-9
    )


def test_without_a_run_inside_a_host_all_steps_get_their_mean_latency():
    rows = ring_rows(ring(), [(8, 2)])
    values = found(fit_allreduce(rows, used(rows)))
    mean = (2 * 9e-6 + 12 * 3e-6) / 14
    for side in ("intra", "inter"):
        assert values[f"{PREFIX}.{side}_host_latency"].value == pytest.approx(mean, rel=1e-9)
        assert "do not tell" in values[f"{PREFIX}.{side}_host_latency"].note


def test_a_bandwidth_that_depends_on_the_size_becomes_a_curve_that_gives_the_times_back():
    points = {"1 MB": "2 GB/s", "10 MB": "6 GB/s", "100 MB": "9 GB/s", "1 GB": "7 GB/s"}
    law = ring(inter_host_bus_bandwidth={"points": points})
    sizes = [8.0, 64.0, 512.0, 1e6, 1e7, 1e8, 1e9]
    rows = ring_rows(law, [(8, 8)], sizes)
    result = fit_allreduce(rows, used(rows))
    values = found(result)
    curve = values[f"{PREFIX}.inter_host_bus_bandwidth"]
    assert curve.value == tuple(
        (n, pytest.approx(b, rel=1e-3)) for n, b in ((1e6, 2e9), (1e7, 6e9), (1e8, 9e9), (1e9, 7e9))
    )
    again = ring(
        inter_host_bus_bandwidth=curve.value_in_scenario(curve.value),
        inter_host_latency=f"{values[f'{PREFIX}.inter_host_latency'].value!r} s",
    )
    for n in sizes:
        assert ring_seconds(again, 8, 8, n) == pytest.approx(ring_seconds(law, 8, 8, n), rel=2e-3)
    assert result.residuals[0]["relative"].abs().max() < 2e-3


def test_what_is_beyond_the_limit_is_predicted_and_not_fitted():
    rows = ring_rows(ring(), [(8, 8), (64, 64)])
    rows.loc[rows["ranks"] == 64, "seconds"] *= 2
    result = fit_allreduce(rows, rows["ranks"] <= 8)
    assert found(result)[f"{PREFIX}.inter_host_latency"].value == pytest.approx(9e-6, rel=1e-9)
    assert found(result)[f"{PREFIX}.inter_host_latency"].over["world_size"] == (8, 8)
    residuals = result.residuals[0]
    assert residuals.loc[~residuals["used"], "relative"].to_numpy() == pytest.approx(-0.5, rel=1e-9)


def test_a_message_and_a_stream_of_messages():
    latency = measurements_table(
        MeasuredNumber("a", 1, "osu", "latency", 2, nbytes=n, seconds=1.3e-6 + n / 12e9)
        for n in SIZES
    )
    stream = measurements_table(
        MeasuredNumber("b", 1, "osu", "bandwidth", 2, nbytes=n, rate=n / (2e-7 + n / 11e9))
        for n in SIZES
    )
    both, alone = (
        found(fit_point_to_point(latency, stream)),
        found(fit_point_to_point(latency, stream[:0])),
    )
    assert both["cluster.message_passing.latency"].value == pytest.approx(1.3e-6, rel=1e-9)
    assert both["cluster.message_passing.stream_bandwidth"].value == pytest.approx(11e9, rel=1e-9)
    assert alone["cluster.message_passing.stream_bandwidth"].value == pytest.approx(12e9, rel=1e-9)


def test_all_to_all_is_for_each_rank():
    rows = measurements_table(
        MeasuredNumber("a", 1, "osu", "all_to_all", p, nbytes=m, seconds=(p - 1) * (2e-6 + m / 5e9))
        for p in (4, 16)
        for m in SIZES
    )
    values = found(fit_all_to_all(rows, used(rows)))
    assert values["all to all: latency"].value == pytest.approx(2e-6, rel=1e-9)
    assert values["all to all: bandwidth of a rank"].value == pytest.approx(5e9, rel=1e-9)
    assert not any(p.usable for p in values.values())


def test_algorithms_of_an_all_to_all_are_not_mixed():
    rows = measurements_table(
        MeasuredNumber(
            "a", 1, "pico", "all_to_all", 8, nbytes=m, seconds=7 * (a + m / 5e9), algorithm=name
        )
        for name, a in (("linear", 1e-6), ("bine", 3e-6))
        for m in SIZES
    )
    values = found(fit_all_to_all(rows, used(rows)))
    assert values["all to all linear: latency"].value == pytest.approx(1e-6, rel=1e-9)
    assert values["all to all bine: latency"].value == pytest.approx(3e-6, rel=1e-9)


def linear_rows(sizes, ranks=(16, 1024), name="linear_ompi"):
    """t = L + (M - 1) (o + n / c): L 1.3 us, o 0.8 us, c 4 GB/s. By hand for 16 ranks and 1 KiB:
    1.3 us + 15 (0.8 us + 0.256 us) = 17.14 us."""
    return measurements_table(
        MeasuredNumber(
            *("a", i, "pico", "all_to_all", m),
            nbytes=n,
            seconds=1.3e-6 + (m - 1) * (0.8e-6 + n / 4e9),
            algorithm=name,
        )
        for i, (m, n) in enumerate((m, n) for m in ranks for n in sizes)
    )


SHORT = [8.0, 64.0, 512.0, 1024.0]


@pytest.mark.parametrize("name", ["linear", "linear_ompi", "default-linear"])
def test_what_a_message_costs_the_host_is_found_exactly(name):
    """LogGP (Alexandrov et al., SPAA 1995) with its latency known."""
    rows = linear_rows(SHORT, name=name)
    assert rows["seconds"][3] == pytest.approx(17.14e-6, rel=1e-9)
    result = fit_message_cost(rows, used(rows), 1.3e-6)
    values = found(result)
    assert values[OVERHEAD].value == pytest.approx(0.8e-6, rel=1e-9)
    assert values[COPY].value == pytest.approx(4e9, rel=1e-9)
    assert values[OVERHEAD].usable and "1.3 us" in values[OVERHEAD].note
    assert result.residuals[0]["relative"].abs().max() < 1e-9


def test_a_latency_that_is_taken_too_high_is_missing_from_the_overhead():
    """Of 16 ranks alone: 15 o' = 15 o + L - L', and L' is 3 us longer, so o' = 0.6 us."""
    rows = linear_rows(SHORT, ranks=(16,))
    values = found(fit_message_cost(rows, used(rows), 4.3e-6))
    assert values[OVERHEAD].value == pytest.approx(0.6e-6, rel=1e-9)
    assert values[COPY].value == pytest.approx(4e9, rel=1e-9)


def test_only_short_messages_of_a_linear_all_to_all_count():
    rows = linear_rows([*SHORT, 2048.0, 65536.0])
    long = rows["nbytes"] > 1024
    rows.loc[long, "seconds"] *= 3
    others = linear_rows(SHORT, name="linear_sync_ompi").assign(seconds=1.0)
    both = pd.concat([rows, others, rows.assign(algorithm="", seconds=1.0)], ignore_index=True)
    result = fit_message_cost(both, used(both), 1.3e-6)
    assert found(result)[OVERHEAD].value == pytest.approx(0.8e-6, rel=1e-9)
    assert len(result.residuals[0]) == 2 * len(SHORT)


def test_ranks_beyond_the_limit_are_predicted():
    rows = linear_rows(SHORT)
    rows.loc[rows["ranks"] == 1024, "seconds"] *= 2
    result = fit_message_cost(rows, rows["ranks"] <= 16, 1.3e-6)
    assert found(result)[OVERHEAD].value == pytest.approx(0.8e-6, rel=1e-9)
    beyond = result.residuals[0]
    assert beyond.loc[~beyond["used"], "relative"].to_numpy() == pytest.approx(-0.5, rel=1e-9)


def test_one_size_tells_no_bandwidth_of_copies():
    rows = linear_rows([1024.0])
    result = fit_message_cost(rows, used(rows), 1.3e-6)
    assert found(result)[OVERHEAD].value == pytest.approx(0.8e-6 + 1024 / 4e9, rel=1e-9)
    assert COPY not in found(result) and "one size" in result.notes[0]
    two = pd.concat([rows, linear_rows([64.0], name="linear")], ignore_index=True)
    with pytest.raises(InputError, match="one linear all-to-all"):
        fit_message_cost(two, used(two), 1.3e-6)


@pytest.mark.parametrize("ceiling", [3.0, 16.0, 20.0, 1e9])
def test_a_rate_grows_to_its_ceiling(ceiling):
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    slope, found_ceiling, flat = saturation(x, np.minimum(1.5 * x, ceiling))
    assert slope == pytest.approx(1.5)
    if ceiling > 24:
        assert math.isnan(found_ceiling)
        assert not flat.any()
    else:
        assert found_ceiling == pytest.approx(ceiling)
        assert list(flat) == list(1.5 * x >= ceiling)


def io_rows(operation, rates, tool="ior", **values):
    return measurements_table(
        MeasuredNumber("a", i, tool, operation, c, h, rate=rate, **values)
        for i, (c, h, rate) in enumerate(rates)
    )


def test_servers_and_their_clients():
    rows = io_rows("read", [(4 * h, h, min(h * 1.5e9, 10e9)) for h in (1, 2, 4, 8, 16)])
    values = found(fit_transfers(rows, used(rows), "pfs"))
    assert values["cluster.parallel_file_system.read_bandwidth"].value == pytest.approx(10e9)
    assert values["cluster.parallel_file_system.read_bandwidth"].note == ""
    curve = values["cluster.parallel_file_system.client_bandwidth"].value
    assert curve == tuple((h, pytest.approx(min(1.5e9, 10e9 / h))) for h in (1, 2, 4, 8, 16))
    rising = found(fit_transfers(rows[:3], used(rows[:3]), "pfs"))[
        "cluster.parallel_file_system.read_bandwidth"
    ]
    assert rising.value == pytest.approx(6e9)
    assert "lower bound" in rising.note
    ssd = found(fit_transfers(rows[:3], used(rows[:3]), "ssd"))
    assert ssd["cluster.ssd.read_bandwidth"].value == pytest.approx(1.5e9)


def test_opens_at_their_highest_and_alone():
    rows = io_rows(
        "file_read",
        [(1, 1, 600.0), (32, 8, 19_000.0), (64, 16, 43_000.0), (128, 32, 42_000.0)],
        "mdtest",
        nbytes=1e5,
    )
    values = found(fit_opens(rows, used(rows), "pfs"))
    assert values["cluster.parallel_file_system.open_rate"].value == 43_000
    assert values["cluster.parallel_file_system.open_rate"].note == ""
    assert values["cluster.parallel_file_system.latency"].value == pytest.approx(1 / 600)
    assert set(found(fit_opens(rows, used(rows), "ssd"))) == {"cluster.ssd.latency"}
    rising = found(fit_opens(rows[:3], used(rows[:3]), "pfs"))[
        "cluster.parallel_file_system.open_rate"
    ]
    assert "lower bound" in rising.note


# --------------------------------------------------------------------------------------- epoch logs

NETWORKS = {
    "big": TrainedNetwork("vgg16_chainer", 679e6, "v100", 5e-3),
    "small": TrainedNetwork("resnet50_chainer", 102e6, "v100", 1e-3),
    "hungry": TrainedNetwork("alexnet_chainer", 250e6, "v100", 2e-3),
}
ALONE = {"big": (0.26, 32), "small": (0.18, 64), "hungry": (0.1, 512)}


def iteration(number, ranks, seconds, **how):
    return MeasuredNumber("log", number, "epochs", "iteration", ranks, seconds=seconds, **how)


def log_rows(scales=(1, 4, 8, 16, 32), epochs=9, slow=(1.0, 1.01, 1.3), io=None):
    """Iterations of three networks; every epoch is slowed down by one of ``slow``; ``hungry`` reads
    at ``io`` samples/s at most."""
    rows = []
    for model, (alone, batch) in ALONE.items():
        for p in scales:
            bandwidth = 20e9 if p <= 4 else {"big": 6e9, "small": 9e9, "hungry": 7e9}[model]
            seconds = alone + 2 * (p - 1) / p * NETWORKS[model].gradient_nbytes / bandwidth
            if io and model == "hungry" and p > 1:
                seconds = max(seconds, p * batch / io)
            how = {"count": 99, "model": model, "batch": batch}
            rows += [
                iteration(len(rows), p, seconds * slow[e % len(slow)], epoch=e, **how)
                for e in range(1, epochs + 1)
            ]
            rows[-epochs] = iteration(0, p, 9.0, epoch=1, **how)
    return measurements_table(rows)


def test_an_epoch_log_gives_compute_and_bandwidth_by_size():
    rows = log_rows(slow=(1.0,))
    result = fit_epoch_log(rows, used(rows), NETWORKS, 4, "steady")
    usable = [p for p in result.parameters if p.usable]
    forward = {p.model: p.value for p in usable if p.key.endswith(".forward")}
    assert forward["vgg16_chainer"] == pytest.approx((0.26 - 5e-3) / 3 / 32)
    assert forward["resnet50_chainer"] == pytest.approx((0.18 - 1e-3) / 3 / 64)
    backward = {p.model: p.value for p in usable if p.key.endswith(".backward")}
    assert backward["vgg16_chainer"] == pytest.approx(2 * forward["vgg16_chainer"])
    curves = {p.key: p.value for p in usable if "allreduce" in p.key}
    assert curves[f"{PREFIX}.intra_host_bus_bandwidth"] == tuple(
        (n, pytest.approx(20e9)) for n in (102e6, 250e6, 679e6)
    )
    expected = ((102e6, 9e9), (250e6, 7e9), (679e6, 6e9))
    assert curves[f"{PREFIX}.inter_host_bus_bandwidth"] == tuple(
        (n, pytest.approx(b)) for n, b in expected
    )
    assert pd.concat(result.residuals)["relative"].abs().max() < 1e-9


def test_slow_epochs_and_the_first_do_not_change_the_bandwidth():
    rows = log_rows()
    result = fit_epoch_log(rows, used(rows), NETWORKS, 4, "steady")
    curve = found(result)[f"{PREFIX}.inter_host_bus_bandwidth"].value
    assert dict(curve) == pytest.approx({102e6: 9e9, 250e6: 7e9, 679e6: 6e9}, rel=0.02)


def test_runs_that_wait_for_samples_are_left_out_and_tell_the_rate_of_opens():
    # 16 GPUs would read 16 * 512 / 0.2 = 41,000 samples/s
    rows = log_rows(slow=(1.0,), io=20_000.0)
    result = fit_epoch_log(rows, used(rows), NETWORKS, 4, "steady")
    values = found(result)
    assert dict(values[f"{PREFIX}.inter_host_bus_bandwidth"].value) == pytest.approx(
        {102e6: 9e9, 679e6: 6e9}
    )
    assert values["cluster.parallel_file_system.open_rate"].value == pytest.approx(20_000)
    assert any("hungry on 16 GPUs: the run waits for samples" in note for note in result.notes)
    fewer = fit_epoch_log(rows, rows["ranks"] <= 8, NETWORKS, 4, "steady")
    assert "cluster.parallel_file_system.open_rate" not in found(fewer)
    assert found(fewer)["rate of samples of runs that wait for them"].value == pytest.approx(20_000)


def test_runs_of_as_many_gpus_on_other_hosts_are_fitted_apart():
    """8 GPUs of one host have 20 GB/s, two of each of four hosts 6: an iteration of t(1) = 0.26 s
    takes 2 (7/8) 679 MB / B more, whatever the order of the log."""
    bus = 2 * 7 / 8 * 679e6
    seconds = {4: 0.26 + bus / 6e9, 1: 0.26 + bus / 20e9}
    how = {"count": 99, "model": "big", "batch": 32}
    rows = [iteration(e, 1, 0.26, epoch=e, hosts=1, **how) for e in range(2, 6)]
    for epoch in range(2, 6):
        rows += [
            iteration(10 * epoch + hosts, 8, seconds[hosts], epoch=epoch, hosts=hosts, **how)
            for hosts in seconds
        ]
    rows = measurements_table(rows)
    result = fit_epoch_log(rows, used(rows), {"big": NETWORKS["big"]}, 4, "steady")
    values = found(result)
    assert values[f"{PREFIX}.intra_host_bus_bandwidth"].value == pytest.approx(20e9)
    assert values[f"{PREFIX}.inter_host_bus_bandwidth"].value == pytest.approx(6e9)
    assert pd.concat(result.residuals)["relative"].abs().max() < 1e-9


def test_several_batches_on_one_gpu_are_noted_once_with_the_one_that_is_taken():
    how = {"count": 99, "model": "big"}
    rows = [
        iteration(e, 1, 0.01 * batch, epoch=e, batch=batch, **how)
        for batch in (8, 16, 32)
        for e in range(2, 6)
    ]
    table = measurements_table(rows)
    result = fit_epoch_log(table, used(table), {"big": NETWORKS["big"]}, 4, "steady")
    (note,) = (note for note in result.notes if "several batch sizes" in note)
    assert note.endswith("32.")
    # 5 ms of the update are more than 4 ms: no step times, and so no batch of theirs
    short = measurements_table(
        replace(row, seconds=0.004) if row.batch == 32 else row for row in rows
    )
    result = fit_epoch_log(short, used(short), {"big": NETWORKS["big"]}, 4, "steady")
    assert not any("several batch sizes" in note for note in result.notes)


def test_held_out_scales_are_predicted():
    rows = log_rows(scales=(1, 8, 16, 32, 64), slow=(1.0,))
    result = fit_epoch_log(rows, rows["ranks"] <= 32, NETWORKS, 4, "steady")
    residuals = pd.concat(result.residuals)
    held_out = residuals[~residuals["used"]]
    assert set(held_out["ranks"]) == {64}
    assert held_out["relative"].abs().max() < 1e-9


def test_jitter_needs_a_log_of_iterations():
    rng = np.random.default_rng(2)
    cv = 0.05
    spread = math.sqrt(math.log1p(cv**2))
    how = {"count": 1, "model": "big", "epoch": 2, "batch": 32}
    rows = measurements_table(
        iteration(i, 1, 0.26 * math.exp(rng.normal(0, spread)), **how) for i in range(400)
    )
    jitter = found(fit_epoch_log(rows, used(rows), NETWORKS, 4, "steady"))[
        "workload.jitter.compute"
    ]
    assert jitter.low < cv < jitter.high
    epochs = fit_epoch_log(rows.assign(count=100), used(rows), NETWORKS, 4, "steady")
    assert "workload.jitter.compute" not in found(epochs)


def test_uncontended_is_the_mean_of_the_fastest_quarter():
    assert uncontended_time(np.array([5.0, 1.0, 2.0, 9.0, 8.0, 7.0, 6.0, 5.0])) == 1.5
    assert uncontended_time(np.array([3.0])) == 3.0


# ---------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("count", [5, 12, 40])
def test_intervals_of_a_law_hold_its_coefficients(count):
    coefficients = np.array([5e-6, 1 / 6e9])
    hits = np.zeros(2)
    x = np.column_stack([np.full(count, 14.0), 1.75 * np.geomspace(8, 1e8, count)])
    for seed in range(SEEDS):
        y = x @ coefficients * np.exp(np.random.default_rng(seed).normal(0, 0.05, count))
        fit = relative_fit(x, y)
        hits += (fit.low <= coefficients) & (coefficients <= fit.high)
    assert all(held(hit, SEEDS) for hit in hits), hits / SEEDS


def test_intervals_of_a_ring_hold_its_parameters():
    truth = {f"{PREFIX}.inter_host_latency": 9e-6, f"{PREFIX}.inter_host_bus_bandwidth": 6e9}
    hits = dict.fromkeys(truth, 0)
    trials = 100
    for seed in range(trials):
        rows = ring_rows(ring(), [(8, 8)], noise=0.03, rng=np.random.default_rng(seed))
        values = found(fit_allreduce(rows, used(rows)))
        for key, value in truth.items():
            hits[key] += values[key].low <= value <= values[key].high
    assert all(held(hit, trials) for hit in hits.values()), hits


def test_intervals_of_a_curve_hold_its_points():
    points = {"1 MB": "2 GB/s", "10 MB": "6 GB/s", "100 MB": "9 GB/s", "1 GB": "7 GB/s"}
    law = ring(inter_host_bus_bandwidth={"points": points}, inter_host_latency="0.1 us")
    hits = total = 0
    for seed in range(40):
        sizes, drawn = [8.0, 64.0, 1e6, 1e7, 1e8, 1e9], np.random.default_rng(seed)
        rows = ring_rows(law, [(8, 8)], sizes, noise=0.02, rng=drawn)
        curve = found(fit_allreduce(rows, used(rows)))[f"{PREFIX}.inter_host_bus_bandwidth"]
        for (n, low), (_, high) in zip(curve.low, curve.high, strict=True):
            if n >= 1e6:
                total += 1
                hits += low <= law.inter_host_bus_bandwidth(n) <= high
    assert 0.9 * total <= hits, (hits, total)


def test_intervals_of_medians_means_and_variations():
    hits = np.zeros(3)
    for seed in range(SEEDS):
        values = np.exp(np.random.default_rng(seed).normal(0, 0.1, 9))
        low, high = median_interval(values)
        hits[0] += low <= 1.0 <= high
        low, high = mean_interval(float(values.mean()), float(values.std(ddof=1)), 9)
        hits[1] += low <= math.exp(0.005) <= high
        _, low, high = variation(values)
        hits[2] += low <= math.sqrt(math.expm1(0.01)) <= high
    assert all(held(hit, SEEDS) for hit in hits), hits / SEEDS


def test_too_few_points_have_no_interval():
    assert math.isnan(median_interval(np.arange(1.0, 6.0))[0])
    assert not math.isnan(median_interval(np.arange(1.0, 7.0))[0])
    assert math.isnan(mean_interval(1.0, 0.1, 2)[0])
    assert math.isnan(variation(np.array([1.0, 2.0]))[0])
    x = np.array([[1.0, 8.0], [1.0, 1e9], [1.0, 2e9]])
    assert np.isnan(relative_fit(x, x @ np.array([1e-6, 1e-9])).low).all()


def test_an_outlier_does_not_matter():
    x = np.column_stack([np.full(24, 14.0), np.geomspace(8, 1e9, 24)])
    truth = np.array([5e-6, 1 / 6e9])
    y = x @ truth * np.exp(np.random.default_rng(3).normal(0, 0.01, 24))
    y[20] *= 10
    assert relative_fit(x, y).value == pytest.approx(truth, rel=0.03)


def test_a_coefficient_that_the_data_do_not_need_is_zero_and_has_no_interval():
    x = np.column_stack([np.ones(8), np.geomspace(1e3, 1e9, 8)])
    fit = relative_fit(x, x[:, 1] / 6e9 * np.geomspace(0.9, 1.1, 8))
    assert fit.value[0] == 0
    assert np.isnan(fit.low[0])
    assert fit.value[1] == pytest.approx(1 / 6e9, rel=0.1)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("cluster.parallel_file_system.read_bandwidth", {"clients", "file_size"}),
        ("cluster.parallel_file_system.open_rate", {"clients", "file_size"}),
        ("cluster.parallel_file_system.latency", {"file_size"}),
        ("cluster.ssd.read_bandwidth", {"clients", "file_size"}),
    ],
)
def test_a_rate_hangs_on_who_reads_and_a_latency_on_the_file_alone(key, names):
    used = _used_at(small(), key)
    assert set(used) == names
    assert used["file_size"] == 100e3
    assert used.get("clients", 8 if "parallel" in key else 1) == (8 if "parallel" in key else 1)

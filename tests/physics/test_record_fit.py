"""What a record of a training says of it, by hand, and the same training with other ranks."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from simshuffle.extensions.doctor.fit import fit
from simshuffle.extensions.doctor.predicting import predict
from simshuffle.extensions.doctor.records.record import make_rows
from simshuffle.extensions.doctor.step_fit import busy_cores
from simshuffle.job.scenario.scenario import from_dict
from tests.recorded import Training

STEP_BOUND = Training(samples=100, batch=8, step=(4e-3, 1e-3))
SERVED = Training(
    samples=640,
    batch=8,
    step=(10e-3, 1e-3),
    latency=5e-3,
    nbytes=500_000,
    bandwidth=100e6,
    cpu=1e-3,
)


def within(value, expected, share):
    return value == pytest.approx(expected, rel=share)


def scenario(records, ranks=None):
    fitted = fit(records)
    return from_dict(fitted.on(ranks or max(fitted.ranks)), "fitted")


def test_steps_of_two_batch_sizes_give_what_does_not_grow_with_the_batch():
    # 12 batches of 8 take 12 ms, the last of 4 takes 8 ms: c1 = 4 ms / 4, c0 = 12 ms - 8 ms
    times = scenario(STEP_BOUND.record(1)).step_times
    assert within(times.fixed, 4e-3, 1e-5)
    assert within(times.per_sample, 1e-3, 1e-5)
    # nobody says how the passes divide: 1:2
    assert within(times.forward, 1e-3 / 3, 1e-5)


def test_of_one_batch_size_the_fixed_part_is_a_prior_and_the_step_as_measured():
    times = scenario(replace(STEP_BOUND, samples=96).record(1)).step_times
    assert times.fixed is None
    assert times.measured_batch == 8
    assert within(8 * times.per_sample + times.fixed_seconds, 12e-3, 1e-5)
    # the prior of 11.3 ms would be nearly all of the step: it takes half of it
    assert within(times.fixed_seconds, 6e-3, 1e-5)


def test_one_and_two_ranks_tell_the_latency_of_a_server_and_the_rate_that_all_share():
    # alone a sample waits 5 ms + 500 kB / 100 MB/s = 10 ms; two ranks in step wait 5 + 2 x 5 ms
    found = scenario([SERVED.record(1), SERVED.record(2)]).cluster.store
    assert within(found.latency, 5e-3, 0.01)
    assert within(found.bandwidth, 100e6, 0.01)
    assert within(found.connection_bandwidth, 100e6, 0.01)


@pytest.mark.parametrize("by_sample", [True, False])
def test_ranks_that_are_out_of_step_tell_the_same(by_sample):
    def drawn(ranks):
        rng = np.random.default_rng(ranks)
        return replace(SERVED, rng=rng, samples=1280, by_sample=by_sample).record(ranks)

    found = scenario([drawn(1), drawn(2)]).cluster.store
    # whole batches do not say when in them a worker waits for what
    assert within(found.bandwidth, 100e6, 0.05 if by_sample else 0.15)
    # they meet at the server less often than ranks in step do, but do
    assert 0.5e-3 < found.latency < 4.5e-3
    assert within(found.latency + 500e3 / found.connection_bandwidth, 10e-3, 0.03)


def test_ranks_that_never_meet_at_a_server_tell_its_rate_too():
    # it serves one rank while the other waits out its latency, 10 ms each: waits do not grow
    served = replace(SERVED, bandwidth=50e6, latency=10e-3, cpu=0.0)
    records = [served.record(1), served.record(1)]
    second = records[1]
    turns = second.rows.assign(rank=1, start_s=second.rows["start_s"] + 10e-3)
    both = make_rows(pd.concat([second.rows, turns], ignore_index=True).to_dict("series"))
    records[1] = replace(second, rows=both, about={**second.about, "ranks": 2})
    found = scenario(records).cluster.store
    assert within(found.bandwidth, 50e6, 0.05)
    # two get what they get alone, and four share it
    assert found.latency < 0.5e-3
    assert within(found.connection_bandwidth, 25e6, 0.05)


def test_a_limit_that_was_never_reached_is_known_from_below_only():
    fitted = fit(SERVED.record(1))
    (limit,) = [of for of in fitted.values if of.key.endswith("store.bandwidth")]
    # 500 kB in each 10 ms of waiting were there
    assert within(limit.estimate.low, 50e6, 1e-3)
    assert limit.estimate.value == limit.estimate.high == pytest.approx(100 * limit.estimate.low)
    assert "reached 50 MB/s" in " ".join(fitted.host_notes)
    # alone, a sample waits as long as it did
    store = scenario(SERVED.record(1)).cluster.store
    assert within(store.latency + 500e3 / store.bandwidth, 10e-3, 0.02)


def test_nothing_is_measured_of_reading_where_no_fetch_was_recorded(tmp_path):
    record = SERVED.record(1)
    rows = record.rows[record.rows["operation"].isin(["wait", "step"])]
    record = replace(record, rows=rows.reset_index(drop=True))
    fragment = tmp_path / "probe.yaml"
    fragment.write_text("values:\n  cluster.parallel_file_system.read_bandwidth: 100 MB/s\n")
    for include in ([], [fragment]):
        fitted = fit(record, include)
        assert not [of.key for of in fitted.values if of.key.startswith("cluster.object_store")]
        assert not any("Readers" in note for note in fitted.host_notes)
        store = from_dict(fitted.on(1), "fitted").cluster.store
        assert (store.latency, store.bandwidth, store.connection_bandwidth) == (0.0, 1e15, 1e15)


def test_a_limit_that_was_measured_otherwise_splits_the_wait(tmp_path):
    fragment = tmp_path / "probe.yaml"
    fragment.write_text("values:\n  cluster.parallel_file_system.read_bandwidth: 100 MB/s\n")
    fitted = fit(SERVED.record(1), [fragment])
    found = from_dict(fitted.on(8), "fitted").cluster.store
    assert found.bandwidth == 100e6
    assert within(found.latency, 5e-3, 0.01)
    assert not any("No limit" in note for note in fitted.host_notes)


@pytest.mark.parametrize(
    ("training", "step_s"),
    [
        # the step takes 18 ms, two workers load a batch in 8 x 4 ms / 2
        (replace(SERVED, latency=2e-3, nbytes=0, cpu=2e-3, workers=2), 18e-3),
        # a worker loads a batch in 8 x 11 ms
        (SERVED, 88e-3),
        # four workers: 8 x 12 ms / 4
        (replace(SERVED, latency=10e-3, nbytes=0, cpu=2e-3, workers=4), 24e-3),
    ],
)
def test_a_fitted_scenario_takes_the_epoch_that_was_recorded(training, step_s):
    (expected,) = predict(training.record(1), None, [1], interval=False).ranks
    assert within(expected.epoch_s, training.epoch_s(1), 0.02)
    assert within(expected.step_s, step_s, 0.06)  # max(step, load / W); and the first batch


def test_one_and_two_ranks_tell_what_four_and_eight_take():
    expected = predict([SERVED.record(1), SERVED.record(2)], None, [4, 8], interval=False).ranks
    for of in expected:
        assert within(of.epoch_s, SERVED.epoch_s(of.ranks), 0.02)
        assert of.stall[0] == "read"
    # the server is never idle: 640 x 500 kB at 100 MB/s
    assert within(expected[1].epoch_s, 3.2, 0.2)


def test_random_waits_tell_what_more_ranks_take():
    training = replace(SERVED, workers=2)

    def drawn(ranks):
        return replace(training, rng=np.random.default_rng(ranks))

    records = [drawn(ranks).record(ranks) for ranks in (1, 2)]
    for of in predict(records, None, [4, 8], interval=False).ranks:
        assert within(of.epoch_s, drawn(of.ranks).epoch_s(of.ranks), 0.1)


def test_ranks_share_the_cores_of_their_host():
    # a step keeps a core busy for 8 ms, and a batch takes 8 x 2 ms of one
    host = {"host": {"name": "here", "cores": 4, "memory_nbytes": 1e9}}
    training = Training(
        samples=640, batch=8, step=(0.0, 1e-3), step_cpu=1.0, cpu=2e-3, workers=2, about=host
    )
    fitted = fit(training.record(1))
    # alone 8 ms of steps and of two workers: of 4 cores the steps take 1 of the time
    slower, cores, longer = fitted.share_cores(1)
    assert (slower, cores) == (1.0, 3)
    assert within(longer, 1.0, 1e-4)
    # 8 ranks have 8 x 24 ms of work for 4 cores in 48 ms; their steps take 8 x 8 / 48 of a core
    slower, cores, longer = fitted.share_cores(8)
    assert within(slower, 2.0, 1e-6)
    assert cores == 3
    assert within(longer, 3 / (4 - 8 * 8 / 48), 1e-6)
    (expected,) = predict(training.record(1), None, [8], interval=False).ranks
    assert within(expected.step_s, 48e-3, 0.1)


def test_allreduces_of_two_numbers_of_ranks_tell_latency_and_bandwidth():
    # 2 (M-1) a + 2 (M-1)/M n / B with a = 0.1 ms and n / B = 4 ms: 4.2 ms and 6.6 ms
    model = {"about": {"model": {"gradient_nbytes": 4_000_000, "buckets": [1_000_000, 3_000_000]}}}
    shown = {2: 2 * 0.1e-3 + 4e-3, 4: 6 * 0.1e-3 + 6e-3}
    records = [
        replace(STEP_BOUND, allreduce=seconds, **model).record(ranks)
        for ranks, seconds in shown.items()
    ]
    found = scenario(records)
    allreduce = found.workload.allreduce
    assert within(allreduce.intra_host_latency, 0.1e-3, 1e-3)
    assert within(allreduce.intra_host_bus_bandwidth(4e6), 1e9, 1e-3)
    # and the step is without it
    assert within(float(found.step_times.per_sample), 1e-3, 1e-3)
    # buckets are summed last layer first
    assert found.workload.model.layers.parameters == [750_000, 250_000]


def test_what_two_ranks_take_longer_than_one_is_their_allreduce():
    # 12 ms alone, 16 ms with two: 4 MB at 1 GB/s; so 2 x 3/4 x 4 ms with four
    model = {"about": {"model": {"gradient_nbytes": 4_000_000}}}
    alone = replace(STEP_BOUND, samples=96, **model)
    records = [alone.record(1), replace(alone, step=(8e-3, 1e-3)).record(2)]
    expected = predict(records, None, [2, 4], interval=False).ranks
    assert within(expected[0].parts_s["GE+WU"], 4e-3, 1e-3)
    assert within(expected[1].parts_s["GE+WU"], 6e-3, 1e-3)


def test_waiting_for_a_rank_whose_batch_is_late_is_no_allreduce():
    # steps of 18 ms last until the other rank is there, now this one and now that
    def drawn(ranks):
        rng = np.random.default_rng(ranks)
        model = {"model": {"gradient_nbytes": 4_000_000}}
        return replace(SERVED, rng=rng, meet_in_step=True, about=model).record(ranks)

    allreduce = scenario([drawn(1), drawn(2)]).workload.allreduce
    assert allreduce.intra_host_bus_bandwidth(4e6) > 1e12


def test_a_rank_that_makes_its_batches_itself_does_one_thing_after_the_other():
    # 8 x 11 ms to load, then 18 ms: 106 ms
    record = SERVED.record(1)
    record.about["loaders"][0]["num_workers"] = 0
    (expected,) = predict(record, None, [1], interval=False).ranks
    assert within(expected.step_s, 106e-3, 0.06)


def test_a_data_set_of_unknown_length_is_that_of_its_longest_epoch():
    """Two epochs of 100 samples, and a third that was stopped: not 250 samples."""
    record = replace(STEP_BOUND, epochs=3).record(1)
    for loader in record.about["loaders"]:
        del loader["samples"]
    rows = record.rows[~((record.rows["epoch"] == 2) & (record.rows["batch"] > 6))]
    assert scenario(replace(record, rows=rows)).workload.dataset.num_samples == 100


@pytest.mark.parametrize(("cores", "expected"), [(0.5, 1), (3.7, 3)])
def test_a_container_with_part_of_a_core_has_one(cores, expected):
    about = {"host": {"name": "h", "cores": cores}}
    fitted = fit(replace(STEP_BOUND, about=about).record(1))
    assert fitted.cores == expected
    assert fitted.on(4)["cluster"]["host"]["cores"] >= 1


def test_cores_of_steps_count_only_where_their_time_is_known():
    steps = pd.DataFrame({"seconds": [1.0, 1.0, 4.0], "core_s": [0.5, 0.7, np.nan]})
    assert busy_cores(steps, 2, True) == pytest.approx(1.2)
    assert busy_cores(steps.assign(core_s=np.nan), 2, True) == 2.0

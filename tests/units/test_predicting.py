"""What a prediction from a record is asked, refuses, and hands on."""

import json
from dataclasses import replace

import pytest

from simshuffle.api import run
from simshuffle.errors import InputError
from simshuffle.extensions.doctor.fit import fit
from simshuffle.extensions.doctor.predicting import predict
from simshuffle.extensions.doctor.records.record import make_rows
from simshuffle.job.scenario.calibrated import read_fragment
from simshuffle.job.scenario.scenario import from_dict, load_scenario
from tests.recorded import Training

TRAINING = Training(
    samples=200, batch=8, step=(10e-3, 1e-3), latency=1e-3, nbytes=100_000, bandwidth=1e9, cpu=1e-3
)
RECORD = TRAINING.record(2)


@pytest.fixture(scope="module")
def here():
    return predict(RECORD, None, [4, 2], interval=True)


def test_the_files_of_a_prediction_repeat_it_to_the_last_bit(here, tmp_path):
    paths = here.write(tmp_path)
    assert [path.name for path in paths] == ["train-2.yaml", "train-4.yaml"]
    for path, expected in zip(paths, here.ranks, strict=True):
        epochs = run(path).tables["epochs"]
        assert epochs["epoch_s"].iloc[-1] == expected.epoch_s
        assert epochs["iterations"].iloc[-1] == expected.iterations


def test_a_prediction_says_what_it_rests_on(here):
    assert [of.ranks for of in here.ranks] == [2, 4]
    assert "record of train.py on here, " in here.verdict
    assert "with 2 ranks" in here.verdict
    assert here.verdict.startswith("On this host, with 4 ranks an epoch takes ")
    for of in here.ranks:
        assert of.low_s < of.epoch_s < of.high_s
        assert sum(of.parts_s.values()) == pytest.approx(of.step_s)
    first, listing, *notes = here.parts()
    assert first == here.verdict
    assert listing.row_count == 2
    assert notes == list(here.notes)
    values = json.loads(json.dumps(here.as_json(), allow_nan=False))
    assert values["ranks"][1]["ranks"] == 4
    assert values["files"] == ["train-2.yaml", "train-4.yaml"]


def test_a_machine_brings_its_own_storage_and_accelerators():
    found = predict(
        RECORD, "small-fat-tree", [2], {"workload.dataset.num_samples": 400}, interval=False
    )
    (expected,), scenario = found.ranks, from_dict(fit(RECORD).on(2, "small-fat-tree"), "there")
    assert found.machine == "small-fat-tree"
    assert expected.iterations == 400 // 2 // 8
    assert (expected.low_s, expected.high_s) == (None, None)
    assert scenario.cluster.parallel_file_system.read_bandwidth == 10e9
    assert scenario.step_times == from_dict(fit(RECORD).on(2), "here").step_times
    assert any("The record is of a CPU" in note for note in found.notes)
    assert 0 <= expected.hidden <= 1
    assert expected.next


def test_hooks_of_an_allreduce_are_added_to_steps_that_were_recorded_without():
    def hooks(ranks, **model):
        record = without(TRAINING.record(ranks), model={"gradient_nbytes": 204_400_000, **model})
        found = from_dict(fit(record).on(2, "small-fat-tree"), "there")
        return found.workload.allreduce.overlap.hooks

    assert hooks(1) == pytest.approx(6e-3)
    assert hooks(1, buckets=[204_400_000]) == hooks(2) == 0


def test_a_step_that_is_known_better_is_not_assumed():
    times = "workload.model.accelerators.v100-sxm2-16gb.forward"
    found = predict(RECORD, "small-fat-tree", [2], {times: "1 ms"}, interval=False, hidden=False)
    assert not any("is taken to last as long" in note for note in found.notes)


def test_steps_of_a_cpu_vary_on_it_alone():
    found = fit(RECORD)
    assert set(found.on(2)["workload"]["jitter"]) == {"compute", "read"}
    assert set(found.on(2, "abci")["workload"]["jitter"]) == {"read"}


def test_more_ranks_than_recorded_samples_have_a_place_in_a_larger_set():
    """200 samples were recorded: too few for 256 ranks, if nobody says that there are more."""
    machine, ranks = "abci", [256]
    with pytest.raises(InputError, match="200 samples"):
        predict(RECORD, machine, ranks, interval=False, hidden=False)
    larger = {"workload.dataset.num_samples": 4096}
    found = predict(RECORD, machine, ranks, larger, interval=False, hidden=False)
    assert found.ranks[0].iterations == 2


def test_more_ranks_than_a_machine_twice_over_are_not_guessed():
    found = predict(RECORD, "small-fat-tree", [16], interval=False, hidden=False)
    assert found.ranks[0].next_share is None
    assert "with twice as many" not in found.verdict


def test_a_fitted_training_is_a_scenario_with_sources_and_ranges(tmp_path):
    path = tmp_path / "fitted.yaml"
    path.write_text(fit(RECORD).to_yaml())
    scenario = load_scenario(path)
    known = {of.key: of for of in scenario.calibrated}
    assert "workload.dataset.decode" in known
    for of in known.values():
        assert of.source == "record of train.py on here, 26 batches"
        assert of.note
        assert of.low
    assert scenario.workload.loader.prefetch == 2
    assert scenario.workload.dataset.num_samples == 200
    assert scenario.world_size == 2
    assert run(path).tables["epochs"]["epoch_s"].iloc[-1] > 0


def test_other_scenarios_take_in_what_the_record_says_of_the_workload(tmp_path):
    path = tmp_path / "measured.yaml"
    path.write_text(fit(RECORD).fragment())
    assert "workload.dataset.decode" in read_fragment(path).values


def test_what_was_measured_otherwise_does_not_replace_what_the_record_knows(tmp_path):
    path = tmp_path / "probe.yaml"
    path.write_text(
        "values:\n  workload.dataset.decode: 9 ms\n"
        "  cluster.parallel_file_system.open_rate: 5 k/s\n"
    )
    found = from_dict(fit(RECORD, [path]).on(2), "here")
    assert found.workload.dataset.decode == pytest.approx(1e-3)
    assert found.cluster.parallel_file_system.open_rate == 5000


def test_a_record_without_workers_is_said_to_load_for_nothing():
    rows = RECORD.rows[RECORD.rows["worker"] == -1].reset_index(drop=True)
    fitted = fit(replace(RECORD, rows=rows))
    assert any("loading is taken to cost nothing" in note for note in fitted.notes)
    assert from_dict(fitted.on(2), "here").workload.dataset.decode == 0


def test_a_set_of_which_no_bytes_were_recorded_is_taken_from_memory_elsewhere():
    silent = replace(TRAINING, nbytes=0).record(1)
    assert any("samples/s and no limit: the limit" in note for note in fit(silent).host_notes)
    found = predict(silent, "small-fat-tree", [2], interval=False, hidden=False)
    assert any("samples are taken to be in memory" in note for note in found.notes)
    scenario = from_dict(fit(silent).on(2, "small-fat-tree"), "there")
    assert scenario.workload.source == "memory"


def test_the_first_of_several_epochs_does_not_count():
    record = replace(TRAINING, epochs=2).record(1)
    cold = record.rows["epoch"] == 0
    rows = record.rows.assign(seconds=record.rows["seconds"] * cold.map({True: 3.0, False: 1.0}))
    slow, warm = fit(replace(record, rows=rows)), fit(record)
    assert slow.document["workload"] == warm.document["workload"]


def without(record, **about):
    return replace(record, about={**record.about, **about})


def test_what_cannot_be_predicted_is_refused():
    steps = RECORD.rows["operation"] == "step"
    silent = replace(RECORD, rows=RECORD.rows[~steps].reset_index(drop=True))
    with pytest.raises(InputError, match="must have steps of a training; got none"):
        fit(silent)
    alone = without(replace(RECORD, rows=RECORD.rows[steps].reset_index(drop=True)), loaders=[])
    with pytest.raises(InputError, match="must say how many samples a batch has"):
        fit(alone)
    with pytest.raises(InputError, match="must have steps"):
        fit(replace(RECORD, rows=make_rows({"operation": []})))
    with pytest.raises(InputError, match="different numbers of ranks; got 2 and 2"):
        fit([RECORD, RECORD])
    with pytest.raises(InputError, match="no such"):
        predict(RECORD, "nowhere", [2])
    with pytest.raises(InputError, match="world_size"):
        predict(RECORD, "small-fat-tree", [17])
    for ranks in ([], [0, 2]):
        with pytest.raises(InputError, match="must be numbers, at least 1"):
            predict(RECORD, None, ranks)
    with pytest.raises(InputError, match="no_such"):
        predict(RECORD, None, [2], {"workload.no_such": 1})

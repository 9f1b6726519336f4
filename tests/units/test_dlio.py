"""simshuffle new --from-dlio: workloads of DLIO and MLPerf Storage as scenarios."""

import math

import pytest
import yaml

from simshuffle import run
from simshuffle.cli import main
from simshuffle.cli.new import write_drafts
from simshuffle.cli.new_dlio import read_dlio
from simshuffle.errors import InputError
from simshuffle.plan.bounds import bounds
from simshuffle.results.console import terminal_text
from simshuffle.scenario.scenario import load_scenario

ONE_SAMPLE_A_FILE = {
    "model": {"name": "unet3d", "type": "cnn", "model_size": 499153191},
    "framework": "pytorch",
    "workflow": {"generate_data": False, "train": True, "checkpoint": False},
    "dataset": {
        "data_folder": "data/unet3d/",
        "format": "npz",
        "num_files_train": 7200,
        "num_samples_per_file": 1,
        "record_length_bytes": 146600628,
        "record_length_bytes_stdev": 68341808,
        "record_length_bytes_resize": 2097152,
    },
    "reader": {
        "data_loader": "pytorch",
        "batch_size": 7,
        "read_threads": 4,
        "file_shuffle": "seed",
        "sample_shuffle": "seed",
    },
    "train": {"epochs": 5, "computation_time": 0.162},
    "checkpoint": {"checkpoint_folder": "checkpoints/unet3d", "checkpoint_after_epoch": 5},
    "metric": {"au": 0.9},
}
MANY_SAMPLES_A_FILE = {
    "model": {"name": "resnet50", "type": "cnn"},
    "framework": "tensorflow",
    "workflow": {"generate_data": False, "train": True},
    "dataset": {
        "num_files_train": 1024,
        "num_samples_per_file": 1251,
        "record_length": 114660.07,
        "record_length_resize": 150528,
        "data_folder": "data/resnet50",
        "format": "tfrecord",
    },
    "train": {"computation_time": 0.224, "epochs": 5, "seed_change_epoch": False},
    "reader": {
        "data_loader": "tensorflow",
        "read_threads": 8,
        "computation_threads": 8,
        "prefetch_size": 12,
        "batch_size": 400,
    },
    "metric": {"au": 0.9},
}


def written(folder, plain, name="workload.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(plain))
    return path


def changed(plain, **dotted):
    """The same with other values, by dotted key; None takes a key away."""
    out = yaml.safe_load(yaml.safe_dump(plain))
    for key, value in dotted.items():
        *sections, last = key.split("__")
        at = out
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
        if value is None:
            del at[last]
    return out


def scenario_of(folder, plain, **machine):
    given = {"hosts": "2", "gpus": "4", **machine}
    (path, _), warnings = write_drafts(folder / "mine", given, written(folder, plain))
    return load_scenario(path), warnings


def refused(folder, plain):
    with pytest.raises(InputError) as caught:
        read_dlio(written(folder, plain))
    return {problem.path: problem for problem in caught.value.problems}


def test_files_of_one_sample_become_a_data_set_a_loader_and_pauses(tmp_path):
    scenario, warnings = scenario_of(tmp_path, ONE_SAMPLE_A_FILE)
    workload = scenario.workload
    assert warnings == ()
    assert (scenario.world_size, scenario.epochs) == (8, 5)
    dataset = workload.dataset
    assert (dataset.num_samples, dataset.samples_per_file) == (7200, 1)
    assert (dataset.sample_size.mean, dataset.sample_size.std) == (146600628, 68341808)
    assert (dataset.decoded_nbytes, dataset.decode_seconds) == (2097152, 0)
    times = workload.model.accelerators["emulated"]
    assert 7 * times.per_sample == pytest.approx(0.162, rel=1e-12)
    assert (workload.local_batch_size, workload.last_batch) == (7, "drop")
    # the 2 batches ahead that DLIO has by itself are one for each of 4 workers, rounded up
    assert (workload.loader.workers, workload.loader.prefetch) == (4, 4)
    assert (workload.source, workload.jitter.compute) == ("pfs", 0)


def test_files_of_many_samples_are_read_a_batch_a_request(tmp_path):
    workload = scenario_of(tmp_path, MANY_SAMPLES_A_FILE)[0].workload
    dataset = workload.dataset
    assert dataset.num_samples == 1024 * 1251
    assert (dataset.samples_per_file, dataset.samples_per_request) == (1251, 400)
    assert (dataset.sample_size.mean, dataset.sample_size.std) == (114660.07, 0)
    assert (workload.loader.workers, workload.loader.prefetch) == (8, 16)


def test_what_is_written_says_which_share_passes_and_can_be_simulated(here):
    # each of 2 accelerators asks for 7 samples a second of 1 MB, and the servers give half of it
    plain = changed(
        ONE_SAMPLE_A_FILE,
        dataset__num_files_train=1400,
        dataset__record_length_bytes=1e6,
        dataset__record_length_bytes_stdev=0,
        train__computation_time=1.0,
        train__epochs=1,
    )
    path = written(here, plain)
    assert main(["new", "mine", "--from-dlio", str(path), "--hosts", "1", "--gpus", "2",
                 "--pfs-bandwidth", "7 MB/s"]) == 0  # fmt: skip
    text = (here / "mine.yaml").read_text()
    assert "pause for 0.9 of the time" in text
    assert "never a result of MLPerf" in text
    result = run(load_scenario("mine.yaml"))
    (share,) = result.epochs["accelerator_utilisation"]
    assert share == pytest.approx(0.5, abs=0.03)
    assert f" {share:.1%} " in terminal_text(result.shown())


def test_check_of_a_workload_of_dlio_says_how_a_scenario_is_made_of_it(tmp_path, capsys):
    for plain in (ONE_SAMPLE_A_FILE, {"workload": MANY_SAMPLES_A_FILE}):
        path = written(tmp_path, plain)
        assert main(["check", str(path)]) == 2
        said = capsys.readouterr().err
        assert f"simshuffle new NAME --from-dlio {path} --hosts N" in said and "1 problem" in said


def test_a_file_that_hydra_wrote_is_read_by_its_section(tmp_path):
    inner = read_dlio(written(tmp_path, {"hydra": {}, "workload": ONE_SAMPLE_A_FILE}))
    assert inner == read_dlio(written(tmp_path, ONE_SAMPLE_A_FILE))


def test_every_key_that_is_left_out_is_named(here, capsys):
    plain = changed(
        ONE_SAMPLE_A_FILE,
        workflow__checkpoint=True,
        dataset__colour="red",
        dataset__compression="none",
        dataset__parquet={"columns": [{"name": "a"}], "read_mode": "row_group"},
        reader__sample_shuffle="off",
        reader__odirect=True,
        storage={"storage_type": "s3", "storage_options": {"region": "x"}},
        metrics={"au": 0.5},
    )
    path = written(here, plain)
    assert main(["new", "mine", "--from-dlio", str(path), "--hosts", "2"]) == 0
    said = capsys.readouterr().err.splitlines()
    names = [line.split(":")[1].strip() for line in said if line.startswith("Warning: ")]
    assert sorted(names) == [
        "dataset.colour",
        "dataset.parquet",
        "metrics.au",
        "reader.sample_shuffle",
        "storage.storage_type",
        "workflow.checkpoint",
    ]
    text = (here / "mine.yaml").read_text()
    assert all(f"# Note: {name}: " in text for name in names)


@pytest.mark.parametrize(
    ("key", "value", "path", "rule"),
    [
        ("workflow__train", False, "workflow.train", "nothing is read"),
        ("dataset__format", "synthetic", "dataset.format", "read from nowhere"),
        ("dataset__num_files_train", None, "dataset.num_files_train", "is required"),
        ("dataset__num_files_train", 2.5, "dataset.num_files_train", "whole number"),
        ("dataset__num_samples_per_file", True, "dataset.num_samples_per_file", "a number"),
        ("dataset__record_length_bytes", "${x}", "dataset.record_length_bytes", "a number"),
        ("dataset__record_length_bytes", None, "dataset.record_length_bytes", "is required"),
        ("dataset__record_dims", ["a"], "dataset.record_dims", "list of numbers"),
        ("reader__data_loader", "synthetic", "reader.data_loader", "reads nothing"),
        ("reader__batch_size", 0, "reader.batch_size", "at least 1"),
        ("reader__read_threads", 0, "reader.read_threads", "at least 1"),
        ("reader__prefetch_size", -1, "reader.prefetch_size", "at least 0"),
        ("train__computation_time", 0, "train.computation_time", "longer than 0 s"),
        ("train__computation_time", None, "train.computation_time", "is required"),
        ("train__computation_time", {"type": "x"}, "train.computation_time.type", "distribution"),
        ("train__epochs", float("inf"), "train.epochs", "a number"),
        ("metric__au", 90, "metric.au", "a share"),
        ("dataset__compression", "gzip", "dataset.compression", "must be none"),
        ("dataset__enable_chunking", True, "dataset.enable_chunking", "must be false"),
        ("dataset__hdf5", {"chunk_dims": [8]}, "dataset.hdf5.chunk_dims", "depends on the chunks"),
        ("reader__reader_classname", "my.Reader", "reader.reader_classname", "of your own"),
        ("reader__data_loader_classname", "a.B", "reader.data_loader_classname", "of your own"),
        ("reader__preproces_time", 0.25, "reader.preproces_time", "no key of DLIO"),
        ("dataset__num_sample_per_file", 9, "dataset.num_sample_per_file", "no key of DLIO"),
        ("reader__preprocess_time", {"type": "x"}, "reader.preprocess_time.type", "distribution"),
        ("reader__preprocess_time", {"stdev": 1}, "reader.preprocess_time.mean", "is required"),
        ("reader__preprocess_time", {"mean": 1, "std": 1}, "reader.preprocess_time.std", "no key"),
        ("dataset__parquet", {"columns": [{"read": False}]}, "dataset.parquet.columns", "one col"),
    ],
)
def test_what_is_impossible_is_refused_with_key_value_and_remedy(tmp_path, key, value, path, rule):
    problem = refused(tmp_path, changed(ONE_SAMPLE_A_FILE, **{key: value}))[path]
    assert rule in problem.rule
    assert problem.remedy
    assert value is None or problem.value or problem.rule == "is required"


def test_all_that_is_wrong_is_said_at_once_with_status_2_and_nothing_is_written(here, capsys):
    path = written(here, {"dataset": {}, "reader": {"batch_size": "many"}})
    assert main(["new", "mine", "--from-dlio", str(path), "--hosts", "2"]) == 2
    said = capsys.readouterr().err
    assert "reader.batch_size: must be a number, at least 1; got 'many'. For example 4." in said
    assert "dataset.num_files_train: is required" in said
    assert list(here.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--hosts", "2", "--samples", "7"], "--samples: is decided by the file of DLIO; got 7"),
        (["--hosts", "2", "--ranks", "4,8"], "run NAME.yaml --set 'sweep={world_size: [8, 16]}'"),
        ([], "--hosts: is required"),
    ],
)
def test_the_machine_is_asked_for_and_nothing_else(here, capsys, options, hint):
    path = written(here, ONE_SAMPLE_A_FILE)
    assert main(["new", "mine", "--from-dlio", str(path), *options]) == 2
    assert hint in capsys.readouterr().err


def test_what_makes_no_scenario_is_said_of_dlios_key(tmp_path):
    plain = changed(ONE_SAMPLE_A_FILE, dataset__num_files_train=3)
    with pytest.raises(InputError, match=r"reader\.batch_size: local_batch_size exceeds"):
        scenario_of(tmp_path, plain)


@pytest.mark.parametrize(
    ("time", "mean", "spread"),
    [
        ({"mean": 2.0, "stdev": 0.5}, 2.0, 0.25),
        ({"type": "uniform", "min": 1, "max": 3}, 2.0, 0.288675),
        ({"type": "gamma", "shape": 4, "scale": 0.5}, 2.0, 0.5),
        ({"type": "exponential", "scale": 2}, 2.0, 1.0),
        ({"type": "poisson", "lam": 4}, 4.0, 0.5),
    ],
)
def test_a_drawn_time_keeps_its_mean_and_its_spread(tmp_path, time, mean, spread):
    values = read_dlio(written(tmp_path, changed(ONE_SAMPLE_A_FILE, train__computation_time=time)))[
        0
    ]
    assert float(values["pause"]) == pytest.approx(mean)
    assert float(values["jitter"]) == pytest.approx(spread, rel=1e-5)


def test_the_shape_of_an_array_comes_before_its_length(tmp_path):
    plain = changed(
        ONE_SAMPLE_A_FILE, dataset__record_dims=[16, 4], dataset__record_element_type="float32"
    )
    assert read_dlio(written(tmp_path, plain))[0]["size"] == "256"


def test_a_name_that_is_none_does_not_reach_the_file(tmp_path):
    plain = changed(ONE_SAMPLE_A_FILE, model__name="a: {b\n#", **{"x\ny: [": 1})
    scenario, warnings = scenario_of(tmp_path, plain)
    assert scenario.workload.model.name == "dlio"
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("time", "mean"),
    [
        (0.25, 0.25),
        ({"mean": 0.25}, 0.25),
        ({"mean": 0.25, "stdev": 0.02}, 0.25),
        ({"type": "normal", "mean": 0.25, "stdev": 0.02}, 0.25),
        ({"type": "uniform", "min": 0.1, "max": 0.4}, 0.25),  # (a + b) / 2
        ({"type": "gamma", "shape": 2.5, "scale": 0.1}, 0.25),  # k theta
        ({"type": "exponential", "scale": 0.25}, 0.25),
        ({"type": "poisson", "lam": 0.25}, 0.25),
        # DLIO sleeps |x|: of a standard normal number that is sqrt(2 / pi)
        ({"mean": 0, "stdev": 1}, (2 / math.pi) ** 0.5),
        # at m = s: s (sqrt(2 / (pi e)) + erf(1 / sqrt 2)), for s = 1: 0.48394 + 0.68269
        ({"mean": 1, "stdev": 1}, 1.16663),
    ],
)
@pytest.mark.parametrize("section", ["reader", "data_reader"])
def test_a_drawn_preprocess_time_is_decoding_of_its_mean(tmp_path, time, mean, section):
    plain = changed(ONE_SAMPLE_A_FILE, reader__preprocess_time=time)
    plain[section] = plain.pop("reader")
    values, notes = read_dlio(written(tmp_path, plain))
    assert float(values["decode"]) == pytest.approx(mean, rel=1e-5)
    is_drawn = isinstance(time, dict) and time != {"mean": 0.25}
    assert any("preprocessing always takes its mean" in note for note in notes) == is_drawn


def test_preprocessing_bounds_the_epoch(tmp_path):
    plain = changed(
        ONE_SAMPLE_A_FILE,
        dataset__num_files_train=4000,
        dataset__record_length_bytes=1e6,
        reader__batch_size=8,
        reader__preprocess_time={"mean": 0.25, "stdev": 0.02},
        train__computation_time={"mean": 0.1},
    )
    scenario = scenario_of(tmp_path, plain, hosts="1")[0]
    # 4 ranks x 4 workers / 0.25 s are 64 samples/s: 62.5 s for 4000; computing takes 12.5 s
    epoch = bounds(scenario).epoch
    assert epoch == pytest.approx(4000 / 64, rel=0.01)


def test_readers_that_sleep_without_a_core_are_named(tmp_path):
    plain = changed(ONE_SAMPLE_A_FILE, reader__preprocess_time=0.25)
    assert scenario_of(tmp_path, plain, cores="16")[1] == ()
    (note,) = scenario_of(tmp_path, plain, cores="15")[1]
    assert "15 cores" in note
    assert "16 readers" in note


@pytest.mark.parametrize("machine", [{}, {"topology": "small-fat-tree"}])
def test_odirect_turns_the_page_cache_off(tmp_path, machine):
    path = written(tmp_path, changed(ONE_SAMPLE_A_FILE, reader__odirect=True))
    given = machine or {"hosts": "2", "gpus": "4"}
    (scenario, _), _ = write_drafts(tmp_path / "mine", given, path)
    assert load_scenario(scenario).cluster.memory.cache_nbytes == 0.0


@pytest.mark.parametrize(
    ("storage", "source"),
    [
        ({"storage_type": "s3", "storage_root": "bucket"}, "object_store"),
        ({"storage_type": "s3dlio", "storage_root": "s3://bucket/"}, "object_store"),
        ({"storage_type": "s3dlio", "storage_root": "file:///data"}, "pfs"),
        ({"storage_type": "parallel_fs"}, "pfs"),
        ({"storage_type": "local_fs"}, "pfs"),
    ],
)
def test_an_object_store_is_read_as_one(tmp_path, storage, source):
    scenario, notes = scenario_of(tmp_path, {**ONE_SAMPLE_A_FILE, "storage": storage})
    assert scenario.workload.source == source
    assert any("Amazon S3" in note for note in notes) == (source == "object_store")


def test_columns_that_are_not_read_are_no_bytes(tmp_path):
    columns = [
        {"name": "a", "dtype": "float32", "read": True},
        {"name": "b", "dtype": "float16", "read": False},
        {"name": "c", "dtype": "uint8", "size": 10},
    ]
    parquet = {"read_mode": "row_group", "row_group_size": 100, "columns": columns}
    dataset = {"parquet": parquet, "num_samples_per_file": 1000, "record_length_bytes": 16}
    plain = changed(
        MANY_SAMPLES_A_FILE,
        dataset={**MANY_SAMPLES_A_FILE["dataset"], **dataset, "format": "parquet"},
    )
    found = scenario_of(tmp_path, plain)[0].workload.dataset
    # 4 B and 10 B of the 16 B of a record
    assert found.sample_size.mean == pytest.approx(14)
    assert found.samples_per_request == 100


@pytest.mark.parametrize(("epochs", "named"), [(1, False), (3, True)])
def test_steps_that_end_an_epoch_are_all_that_it_reads(tmp_path, epochs, named):
    plain = changed(ONE_SAMPLE_A_FILE, train__total_training_steps=20, train__epochs=epochs)
    scenario, notes = scenario_of(tmp_path, plain)
    # 20 steps of 7 samples on 8 ranks
    assert scenario.workload.dataset.num_samples == 20 * 7 * 8
    assert scenario.workload.iterations(scenario.world_size) == 20
    assert scenario.epochs == 1
    (note,) = notes
    assert ("stands for the 3" in note) == named
    all_of_them = changed(ONE_SAMPLE_A_FILE, train__total_training_steps=-1)
    assert scenario_of(tmp_path, all_of_them)[0].workload.dataset.num_samples == 7200


def test_fewer_samples_than_a_batch_of_all_ranks_make_no_step(tmp_path):
    plain = changed(ONE_SAMPLE_A_FILE, dataset__num_files_train=64, reader__batch_size=4)
    with pytest.raises(InputError) as caught:
        scenario_of(tmp_path, plain, hosts="4", gpus="8")
    (problem,) = caught.value.problems
    assert problem.path == "dataset.num_files_train"
    # floor(64 / 4 / 32) = 0; 4 x 32 = 128 files make a step, or 64 / 4 = 16 ranks
    assert "128 files" in problem.remedy
    assert "16 ranks" in problem.remedy
    scenario = scenario_of(tmp_path, plain, hosts="2", gpus="8")[0]
    assert scenario.workload.iterations(scenario.world_size) == 1

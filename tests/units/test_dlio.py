"""simshuffle new --from-dlio: workloads of DLIO and MLPerf Storage as scenarios."""

import copy
import math
from pathlib import Path

import pytest
import yaml

from simshuffle import run
from simshuffle.cli import main
from simshuffle.cli.dlio_workload import read_dlio
from simshuffle.cli.new import write_drafts
from simshuffle.cli.new_dlio import without_page_cache
from simshuffle.errors import InputError
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.report.console import terminal_text

DATA = Path(__file__).parents[1] / "data" / "dlio"
ONE_SAMPLE_A_FILE, MANY_SAMPLES_A_FILE = (
    yaml.safe_load((DATA / f"{name}.yaml").read_text()) for name in ("unet3d", "resnet50")
)


def written(folder, plain, name="workload.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(plain))
    return path


def changed(plain, **dotted):
    """The same with other values, by dotted key."""
    out = copy.deepcopy(plain)
    for key, value in dotted.items():
        *sections, last = key.split("__")
        at = out
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return out


def scenario_of(folder, plain, **machine):
    given = {"hosts": "2", "gpus": "4", **machine}
    (path, _), warnings = write_drafts(folder / "mine", given, written(folder, plain))
    return load_scenario(path), warnings


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
    assert f" {share:.1%} " in terminal_text(result.parts_before_verdict())


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
    assert ("stands for all 3" in note) == named
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


@pytest.mark.parametrize(
    "memory",
    ["", "memory: {capacity: 64 GB, page_cache: 5 GB}\n", "memory: {page_cache: 5 GB}\n",
     "memory:\n  capacity: 64 GB\n  page_cache: 5 GB\n"],
)  # fmt: skip
def test_the_page_cache_is_turned_off_however_a_machine_is_written(memory):
    machine = yaml.safe_load(without_page_cache(f"name: mine\n{memory}ssd: {{capacity: 1 TB}}\n"))
    assert machine["memory"]["page_cache"] == "0 B"
    assert machine["memory"].get("capacity", "64 GB") == "64 GB"
    assert machine["ssd"] == {"capacity": "1 TB"}


def test_readers_are_compared_with_the_cores_of_a_named_machine(tmp_path):
    """A host of ABCI has 40 cores and 4 GPUs: 11 readers a GPU are more, and fewer than 64."""
    reader = {"reader__read_threads": 11, "reader__preprocess_time": 0.01}
    plain = changed(ONE_SAMPLE_A_FILE, dataset__num_files_train=40_000, **reader)
    path = written(tmp_path, plain)
    _, warnings = write_drafts(tmp_path / "mine", {"topology": "abci"}, path)
    (note,) = [text for text in warnings if "takes a core" in text]
    assert "a host has 40 cores" in note
    assert "its 44 readers" in note

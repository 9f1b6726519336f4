"""Loaders with other arguments than their script gives, and records of a loop from within."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

import simshuffle.extensions.doctor.recorder
import simshuffle.train
from simshuffle.errors import InputError
from simshuffle.extensions.doctor.records.record import read_parquet
from tests.units.test_recorder import recorded


class Asked(Dataset):
    """A data set that notes what it is asked for."""

    def __init__(self, count=8):
        self.count = count
        self.asked = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows").mkdir()
    return tmp_path / "rows"


@pytest.fixture
def changed(folder):
    """Runs a loop with changes; returns what is known afterwards."""
    return lambda changes, loop: recorded(folder, loop, changes)


def test_arguments_of_the_loader(changed):
    loaders = []

    def loop():
        loaders.append(DataLoader(Asked(), 2))
        list(loaders[0])

    wanted = {
        "num_workers": 1,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory": True,
    }
    record = changed({"loader": {**wanted, "no_such": 1}, "worker_threads": 2}, loop)
    loader = loaders[0]
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 3, True)
    assert set(record.rows_of("fetch")["worker"]) == {0}
    assert record.about["changed"] == [
        "num_workers: 0 to 1",
        "prefetch_factor: None to 3",
        "persistent_workers: False to True",
        *(["pin_memory: False to True"] if torch.accelerator.is_available() else []),
        "worker_threads: 1 to 2",
    ]
    assert "no_such: this DataLoader has no such argument" in record.about["unchanged"]


def test_without_workers_what_needs_them_is_left_out_and_said(changed):
    def loop():
        list(DataLoader(Asked(), 2, num_workers=2, prefetch_factor=4, persistent_workers=True))

    about = changed({"loader": {"num_workers": 0, "prefetch_factor": 8}}, loop).about
    assert about["changed"] == ["num_workers: 2 to 0"]
    assert about["unchanged"] == ["prefetch_factor: there are no workers"]
    assert about["loaders"][0]["num_workers"] == 0


def test_samples_stay_in_memory(changed):
    samples = Asked()

    def loop():
        loader = DataLoader(samples, 4, shuffle=True)
        epochs = [sorted(torch.cat(list(loader)).tolist()) for _ in range(3)]
        assert epochs == [list(range(8))] * 3

    record = changed({"cache": True}, loop)
    assert sorted(samples.asked) == list(range(8))
    assert record.rows_of("fetch")["count"].sum() == 24


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_played_again(changed, workers):
    samples = Asked(10)

    def loop():
        loader = DataLoader(samples, 2, shuffle=False, num_workers=workers)
        for _ in range(2):
            given = [batch.tolist() for batch in loader]
            assert given == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
        assert len(iter(loader)) == 5

    record = changed({"replay": 2}, loop)
    assert samples.asked == ([] if workers else [0, 1, 2, 3])
    waits = record.rows_of("wait").groupby("epoch")["batch"].agg(list)
    assert list(waits) == [[0, 1, 2, 3, 4, -1]] * 2
    assert record.about["changed"] == ["replay: 2 batches are played again"]


def test_in_the_order_of_the_index(changed):
    samples = Asked()
    sampler = torch.utils.data.DistributedSampler(samples, 2, 1)

    def loop():
        given = {"shuffle": {"shuffle": True}, "sampler": {"sampler": RandomSampler(samples)}}
        for each in given.values():
            assert torch.cat(list(DataLoader(samples, 4, **each))).tolist() == list(range(8))
        assert torch.cat(list(DataLoader(samples, 4, sampler=sampler))).tolist() == [1, 3, 5, 7]
        list(DataLoader(Stream(), 4))

    about = changed({"sequential": True, "cache": True}, loop).about
    assert len([each for each in about["changed"] if each.startswith("sequential")]) == 3
    assert {each.partition(":")[0] for each in about["unchanged"]} == {"sequential", "cache"}


def test_threads_of_torch(changed):
    threads = torch.get_num_threads()
    try:
        about = changed({"torch_threads": 1}, lambda: list(DataLoader(Asked(), 2))).about
    finally:
        torch.set_num_threads(threads)
    assert about["threads"] == 1
    assert about["changed"] == [f"torch_threads: {threads} to 1"]


def test_files_of_another_folder(changed, tmp_path):
    for folder in ("slow", "fast"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text(folder)
    (tmp_path / "slow" / "1").write_text("slow")
    given = []

    class Texts(Asked):
        def __getitem__(self, index):
            given.append((tmp_path / "slow" / str(index)).read_text())
            return index

    paths = {str(tmp_path / "slow"): str(tmp_path / "fast")}
    about = changed({"paths": paths}, lambda: list(DataLoader(Texts(2), 2))).about
    assert given == ["fast", "slow"]
    assert about["changed"] == ["paths: files are opened in the other folder"]
    assert about["unchanged"] == ["paths: some files are not in the other folder"]


def test_a_replay_needs_a_length(changed):
    about = changed({"replay": 2}, lambda: list(DataLoader(Stream(), 2))).about
    assert about["unchanged"] == ["replay: the loader has no length"]


# ------------------------------------------------------------------------------------ train.record


def test_a_loop_is_recorded_and_written(tmp_path):
    loader, other = DataLoader(Asked(), 2), DataLoader(Asked(), 4)
    model = nn.Linear(1, 1)
    with simshuffle.train.record(loader) as recording:
        list(other)
        for _ in loader:
            model(torch.zeros(1, 1))
            with recording.phase("copy"):
                pass
    list(loader)  # no longer
    recording.write(tmp_path / "training.parquet")
    record = read_parquet(tmp_path / "training.parquet")
    assert list(record.rows_of("wait")["batch"]) == [0, 1, 2, 3, -1]
    assert len(record.rows_of("copy")) == len(record.rows_of("forward")) == 4
    assert record.about["command"] == sys.orig_argv
    assert "PYTHONPATH" not in recording._environment or (
        os.environ.get("PYTHONPATH") == recording._environment["PYTHONPATH"]
    )


def test_a_recording_in_a_recording_goes_on(tmp_path):
    loader = DataLoader(Asked(), 4)
    with simshuffle.train.record(folder=tmp_path / "kept") as outer:
        list(loader)
        with simshuffle.train.record(loader) as inner:
            list(loader)
        list(loader)
    assert len(inner.record.rows_of("step")) == 4
    assert len(outer.record.rows_of("step")) == 6
    assert len(list((tmp_path / "kept").glob("*.rows"))) == 1


def test_what_a_loop_raises_is_said_and_a_loop_must_take_a_batch():
    with pytest.raises(ZeroDivisionError), simshuffle.train.record():
        _ = 1 / 0
    with pytest.raises(InputError, match="without a batch"), simshuffle.train.record():
        pass
    with (
        pytest.raises(InputError, match="must be one of copy, forward"),
        simshuffle.train.record() as recording,
        recording.phase("walk"),
    ):
        pass


def test_without_a_folder_nothing_is_watched(tmp_path):
    told = {simshuffle.extensions.doctor.recorder.FOLDER: str(tmp_path / "none")}
    for environment in (told, {}):
        given = {
            **os.environ,
            **environment,
            "PYTHONPATH": simshuffle.extensions.doctor.recorder.SITE,
        }
        text = "import io; print(type(open).__name__)"
        run = subprocess.run(
            [sys.executable, "-c", text], env=given, capture_output=True, text=True, check=True
        )
        assert (run.stdout, run.stderr) == ("builtin_function_or_method\n", "")

"""simshuffle train: what it writes, that a stopped study goes on, and that bad input and faults end
in words."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from simshuffle.cli import main
from simshuffle.exchange.recording import read_plans
from simshuffle.studies.training import folder as folders
from simshuffle.studies.training.record import STATISTICS
from simshuffle.studies.training.stored import check_run
from simshuffle.train import shuffling
from simshuffle.train.pool import Outcome

STUDY = {
    "name": "small",
    "description": "Two strategies.",
    "data": "digits:flat=true",
    "model": "mlp:width=16",
    "training": {"epochs": 2, "learning_rate": 0.2},
    "seeds": 2,
    "runs": [
        {
            "exchange": ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.5"],
            "world_size": [32],
        }
    ],
}
TIMES = ["seconds"]
PATIENCE = 120.0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a study."""
    monkeypatch.chdir(tmp_path)
    write({})
    return tmp_path


def write(changes):
    Path("study.yaml").write_text(yaml.safe_dump(STUDY | changes), encoding="utf-8")


def train(*arguments):
    return main(["train", "study.yaml", *arguments])


def only_result():
    (folder,) = [path for path in Path("results").iterdir() if path.is_dir()]
    return folder


def runs_of(folder):
    return folders.read(Path(folder)).tables.runs


def same_results(one, other):
    pd.testing.assert_frame_equal(
        runs_of(one).drop(columns=TIMES), runs_of(other).drop(columns=TIMES)
    )
    plans = sorted(path.name for path in Path(one, "plans").iterdir())
    assert plans
    for name in plans:
        assert Path(one, "plans", name).read_bytes() == Path(other, "plans", name).read_bytes()
    columns = ["run", "epoch", "train_loss", "moved", *(f"{name}_loss" for name in STATISTICS)]
    tables = [folders.read(Path(folder)).tables.epochs[columns] for folder in (one, other)]
    pd.testing.assert_frame_equal(*tables)


def stamps(folder):
    return {
        path: path.stat().st_mtime_ns
        for path in sorted(Path(folder, "runs").rglob("*.*"))
        if path.is_file() and path.name != ".lock"
    }


# ----------------------------------------------------------------------------------- what it writes


def test_a_study_is_trained_once_and_extended_without_repeating(here, capsys):
    assert train() == 0
    folder = only_result()
    out = capsys.readouterr().out
    assert "4 runs: 4 done" in out
    assert "At equal Q" not in out
    assert f"Tables: {folder}" in out
    assert folder.name.startswith("small-")
    assert {path.name for path in folder.iterdir()} >= {
        *folders.FILES,
        "runs",
        "plans",
        "accuracy_epoch.png",
        "accuracy_epoch.pdf",
    }
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    assert meta["state"] == "finished"
    assert set(meta["versions"]) >= {"simshuffle", "numpy", "torch"}
    assert {path.stem for path in (folder / "plans").iterdir()} == {
        name for name in meta["runs"] if name.startswith("partial")
    }
    iterations = pd.read_parquet(folder / "iterations.parquet")
    assert (iterations[["forward_s", "backward_s", "update_s"]] > 0).all().all()
    # done again: nothing is
    before = stamps(folder)
    assert train() == 0
    assert "nothing was trained" in capsys.readouterr().err
    assert stamps(folder) == before
    # a third seed: another study, but the runs of the first two seeds are those that are there
    assert train("--set", "seeds=3") == 0
    assert "2 runs trained; 4 were there" in capsys.readouterr().err
    other = next(path for path in Path("results").iterdir() if path != folder)
    assert len(runs_of(other)) == 6
    # from anew
    assert train("--force", "--processes", "1") == 0
    assert "4 runs trained; 0 were there" in capsys.readouterr().err
    # the report can be had as JSON
    assert train("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["runs"]) == 4
    assert {row["statistics"] for row in printed["summary"]} == set(STATISTICS)


def test_results_do_not_depend_on_the_number_of_processes_and_plans_replay(here):
    assert train("--out", "one", "--processes", "1") == 0
    assert train("--out", "two", "--processes", "2") == 0
    same_results("one", "two")
    path = next(Path("one", "plans").iterdir())
    recorded = read_plans(path)
    assert len(recorded.plans) == 2
    assert (
        sum(plan.samples_moved for plan in recorded.plans)
        == runs_of("one").set_index("run").loc[path.stem, "moved"]
    )


def test_a_folder_keeps_its_runs_when_its_study_changes(here, capsys):
    assert train("--out", "mine", "--set", "seeds=1") == 0
    assert train("--out", "mine") == 0
    assert "2 runs trained; 2 were there" in capsys.readouterr().err
    assert len(runs_of("mine")) == 4
    write({"name": "other"})
    assert train("--out", "mine") == 2
    assert "holds another result" in capsys.readouterr().err
    assert len(runs_of("mine")) == 4


# --------------------------------------------------------------------------------- stopped, resumed


def test_ctrl_c_leaves_whole_runs_and_the_study_goes_on(here, capsys):
    write({"seeds": 6, "training": {"epochs": 25, "learning_rate": 0.2}})
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "simshuffle",
            "train",
            "study.yaml",
            "--out",
            "mine",
            "--processes",
            "2",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not list(here.glob("mine/runs/*/run.json")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        begun = time.monotonic()
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - begun < 10
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    there = [path for path in Path("mine", "runs").iterdir() if path.name != ".lock"]
    assert 1 <= len(there) < 12
    assert f"Interrupted. {len(there)} of 12 runs are in mine" in err
    assert workers
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    for path in there:
        check_run(path)
    assert (
        json.loads(Path("mine", "meta.json").read_text(encoding="utf-8"))["state"] == "unfinished"
    )
    before = stamps("mine")
    assert main(["plot", "mine"]) == 0
    assert f"unfinished: the figures show {len(there)} of 12 runs" in capsys.readouterr().err
    assert train("--out", "mine") == 0
    assert f"{12 - len(there)} runs trained; {len(there)} were there" in capsys.readouterr().err
    assert {path: stamp for path, stamp in stamps("mine").items() if path in before} == before


def test_a_study_that_was_stopped_ends_with_the_same_result(here, capsys):
    assert train("--out", "whole") == 0
    shutil.copytree("whole", "stopped")
    meta = json.loads(Path("stopped", "meta.json").read_text(encoding="utf-8"))
    Path("stopped", "meta.json").write_text(
        json.dumps(meta | {"state": "unfinished"}), encoding="utf-8"
    )
    for name in list(meta["runs"])[1:]:
        shutil.rmtree(Path("stopped", "runs", name))
        Path("stopped", "plans", f"{name}.npz").unlink(missing_ok=True)
    for name in folders.FILES:
        if name != "meta.json":
            Path("stopped", name).unlink()
    assert train("--out", "stopped") == 0
    assert "3 runs trained; 1 were there" in capsys.readouterr().err
    same_results("whole", "stopped")


@pytest.mark.parametrize("name", ["run.json", "epochs.parquet"])
def test_a_damaged_run_is_named_and_never_written_over(name, here, capsys):
    assert train("--out", "mine", "--set", "seeds=1") == 0
    victim = next(path for path in Path("mine", "runs").iterdir() if path.name.startswith("local"))
    (victim / name).write_bytes(b"nonsense")
    capsys.readouterr()
    assert train("--out", "mine") == 2
    told = capsys.readouterr().err
    assert str(victim / name) in told
    assert f"Remove {victim}" in told
    assert "Traceback" not in told
    assert (victim / name).read_bytes() == b"nonsense"
    shutil.rmtree(victim)
    assert train("--out", "mine") == 0
    assert len(runs_of("mine")) == 4


# -------------------------------------------------------------------------------- bad input, faults


def test_a_run_that_diverges_is_reported_and_the_others_go_on(here, capsys):
    block = {
        "exchange": "local_shuffle",
        "world_size": 32,
        "training.learning_rate": [0.2, 1e30],
        "training.decay": "none",
    }
    write({"runs": [block], "seeds": 1})
    assert train("--out", "mine") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 runs: 1 done, 1 failed" in out
    assert "left out of every mean" in out
    runs = runs_of("mine").set_index("status")
    message = runs.loc["failed", "message"]
    assert message in out
    assert "epoch 1" in message
    assert "rank" in message
    assert "1e+30" in message
    assert pd.isna(runs.loc["failed", "own_accuracy"])
    assert 0.1 < runs.loc["done", "own_accuracy"] <= 1
    # it fails in the same way every time, so it is not tried again
    assert train("--out", "mine") == 0


def test_lost_runs_are_named_and_tried_again(here, monkeypatch, capsys):
    def all_lost(jobs, place, **_):
        return Outcome([], [], dict.fromkeys(jobs, "its process was killed by signal 9"))

    with monkeypatch.context() as patched:
        patched.setattr(shuffling, "run_jobs", all_lost)
        assert train("--out", "mine") == 1
    shown = capsys.readouterr()
    assert "4 runs: 4 lost" in shown.out
    assert shown.out.count("its process was killed by signal 9") == 4
    assert "4 runs were lost; the same command tries them again" in shown.err
    assert folders.meta_of(Path("mine"))["state"] == "incomplete"
    assert train("--out", "mine") == 0
    assert "4 runs: 4 done" in capsys.readouterr().out


def test_a_full_disk_is_said_and_runs_stay(here, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "epochs.parquet")

    with monkeypatch.context() as patched:
        patched.setattr(folders, "write_table", full)
        assert train("--out", "mine") == 1
    told = capsys.readouterr().err
    assert "No space left on device" in told
    assert "4 of 4 runs are in mine" in told
    assert {path.name for path in Path("mine").iterdir()} == {"meta.json", "study.yaml", "runs"}
    assert train("--out", "mine") == 0
    assert "0 runs trained; 4 were there" in capsys.readouterr().err


def test_more_ranks_than_samples_are_caught_before_anything_runs(here, capsys):
    write({"runs": [{"exchange": "local_shuffle", "world_size": [4, 5000]}]})
    assert train() == 2
    told = capsys.readouterr().err
    assert "world_size: must not exceed the number of training samples" in told
    assert "5000" in told
    assert not Path("results").exists()


def test_a_network_that_cannot_take_the_samples_is_caught_before_anything_runs(here, capsys):
    write({"model": "small_cnn"})
    assert train() == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("device", "rule"), [("gpu", "must be auto, cpu, cuda"), ("cuda:9999", "torch finds")]
)
def test_a_device_that_is_not_there_is_an_error_in_words(device, rule, here, capsys):
    assert train("--device", device) == 2
    assert rule in capsys.readouterr().err


def test_without_torch_the_verb_says_what_to_install(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert train() == 2
    assert "pip install 'simshuffle[train]'" in capsys.readouterr().err


def test_a_folder_that_holds_something_else_is_left_alone(here, capsys):
    Path("mine").mkdir()
    Path("mine", "file").write_text("x", encoding="utf-8")
    assert train("--out", "mine", "--force") == 2
    assert "holds something else" in capsys.readouterr().err
    assert [path.name for path in Path("mine").iterdir()] == ["file"]


def test_list_names_the_studies(capsys):
    assert main(["list"]) == 0
    assert "studies: " in capsys.readouterr().out

"""simshuffle train: what it writes, that a stopped study goes on, and that bad input and faults end
in words."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
import yaml

from simshuffle.cli import main
from simshuffle.errors import SimulationError
from simshuffle.extensions.learning.filtering.cells import ExtractionCell, RetrainingCell
from simshuffle.studies.training.study import STUDY as KIND
from simshuffle.studies.training.tables import STATISTICS
from simshuffle.study import engine
from simshuffle.study.schema import Schema
from simshuffle.study.store import Disk
from simshuffle.train.cell import OwnCell, TrainingCell
from simshuffle.workload.exchange.recording import read_plans

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
PATIENCE = 600.0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a study."""
    monkeypatch.chdir(tmp_path)
    write({})
    return tmp_path


def write(changes):
    Path("study.yaml").write_text(yaml.safe_dump(STUDY | changes))


def train(*arguments):
    return main(["train", "study.yaml", *arguments])


def results():
    return [path for path in Path("results").iterdir() if path.name[0] != "."]


def only_result():
    (folder,) = results()
    return folder


def tables_of(folder):
    return engine.read(KIND, Path(folder)).tables


def runs_of(folder):
    return tables_of(folder)["runs"]


def same_results(one, other):
    pd.testing.assert_frame_equal(
        runs_of(one).drop(columns=TIMES), runs_of(other).drop(columns=TIMES)
    )
    plans = sorted(path.name for path in Path(one, "plans").iterdir())
    assert plans
    for name in plans:
        assert Path(one, "plans", name).read_bytes() == Path(other, "plans", name).read_bytes()
    columns = ["run", "epoch", "train_loss", "moved", *(f"{name}_loss" for name in STATISTICS)]
    tables = [tables_of(folder)["epochs"][columns] for folder in (one, other)]
    pd.testing.assert_frame_equal(*tables)


def kept(place="."):
    """When each stored run below ``place`` was written, in ns, by its digest."""
    store = Disk(Path(place) / ".cells")
    return {digest: store._entry(digest).stat().st_mtime_ns for digest in store.digests()}


# ----------------------------------------------------------------------------------- what it writes


def test_a_study_is_trained_once_and_extended_without_repeating(here, capsys):
    assert train() == 0
    folder = only_result()
    shown = capsys.readouterr()
    assert "4 runs: 4 done" in shown.out
    assert "At equal Q" not in shown.out
    assert f"Tables: {folder}" in shown.out
    assert "are there already" not in shown.err
    assert folder.name.startswith("small-")
    assert {path.name for path in folder.iterdir()} >= {
        *KIND.files,
        "plans",
        "accuracy_epoch.png",
        "accuracy_epoch.pdf",
    }
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["kind"], meta["state"], meta["lost"]) == ("training", "finished", {})
    assert set(meta["versions"]) >= {"simshuffle", "numpy", "torch"}
    assert {path.stem for path in (folder / "plans").iterdir()} == {
        name for name in meta["runs"] if name.startswith("partial")
    }
    assert {of["num_samples"] for of in meta["runs"].values()} == {1438}
    iterations = pd.read_parquet(folder / "iterations.parquet")
    assert (iterations[["forward_s", "backward_s", "update_s"]] > 0).all().all()
    # done again: nothing is
    before = kept("results")
    assert len(before) == 4
    assert train() == 0
    assert "nothing was trained" in capsys.readouterr().err
    assert kept("results") == before
    # a third seed: another study, but the runs of the first two seeds are those that are there
    assert train("--set", "seeds=3") == 0
    assert "4 of 6 runs are there already" in capsys.readouterr().err
    other = next(path for path in results() if path != folder)
    assert len(runs_of(other)) == len(kept("results")) == 6
    assert kept("results").items() >= before.items()
    same = runs_of(other).set_index("run").loc[runs_of(folder)["run"]].reset_index()
    pd.testing.assert_frame_equal(same, runs_of(folder))
    # the folder can be made anew
    assert train("--force", "--processes", "1") == 0
    assert "4 of 4 runs are there already" in capsys.readouterr().err
    # the report can be had as JSON
    assert train("--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["runs"]) == 4
    assert {row["statistics"] for row in printed["summary"]} == set(STATISTICS)


def test_results_do_not_depend_on_the_number_of_processes_and_plans_replay(here):
    assert train("--out", "a/one", "--processes", "1") == 0
    assert train("--out", "b/two", "--processes", "2") == 0
    same_results("a/one", "b/two")
    path = next(Path("a/one", "plans").iterdir())
    recorded = read_plans(path)
    assert len(recorded.plans) == 2
    assert (
        sum(plan.samples_moved for plan in recorded.plans)
        == runs_of("a/one").set_index("run").loc[path.stem, "moved"]
    )


def test_a_folder_that_is_extended_keeps_its_runs(here, capsys):
    assert train("--out", "mine", "--set", "seeds=1") == 0
    assert train("--out", "mine") == 2
    assert "holds another result" in capsys.readouterr().err
    assert len(runs_of("mine")) == 2
    assert train("--out", "mine", "--force") == 0
    assert "2 of 4 runs are there already" in capsys.readouterr().err
    assert len(runs_of("mine")) == 4


# --------------------------------------------------------------------------------- stopped, resumed


def test_ctrl_c_leaves_whole_runs_and_the_study_goes_on(here, capsys):
    write({"seeds": 3, "training": {"epochs": 6, "learning_rate": 0.2}})
    command = "simshuffle train study.yaml --out mine --processes 2"
    process = subprocess.Popen(
        [sys.executable, "-m", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not list(here.glob(".cells/??/*.json")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    before = kept()
    assert 1 <= len(before) < 6
    assert f"Interrupted. {len(before)} of 6 runs are kept" in err
    assert workers
    assert psutil.wait_procs(workers, timeout=PATIENCE)[1] == []
    assert (runs_of("mine")["status"] == "done").sum() == len(before)
    told = f"UNFINISHED: {6 - len(before)} of 6 runs are missing"
    assert told in Path("mine", "report.txt").read_text()
    assert json.loads(Path("mine", "meta.json").read_text())["state"] == "unfinished"
    assert not list(Path("mine").glob("*.png"))
    assert main(["results", "plot", "mine"]) == 0
    assert "unfinished: the figures show what is there" in capsys.readouterr().err
    assert train("--out", "mine") == 0
    assert f"{len(before)} of 6 runs are there already" in capsys.readouterr().err
    assert (runs_of("mine")["status"] == "done").all()
    assert kept().items() >= before.items()


@pytest.mark.parametrize("suffix", [".json", "/epochs.parquet"])
def test_a_damaged_run_is_never_taken_for_a_whole_one(suffix, here, capsys):
    assert train("--out", "mine") == 0
    victim = f"{next(Disk(Path('.cells')).digests())}{suffix}"
    next(Path(".cells").glob(f"??/{victim}")).write_bytes(b"nonsense")
    capsys.readouterr()
    if suffix != ".json":  # found where it is read; the same command trains it again
        assert train("--out", "mine", "--force") == 1
        told = capsys.readouterr().err
        assert "give the same command again" in " ".join(told.split())
        assert "Traceback" not in told
    assert train("--out", "mine", "--force") == 0
    assert "3 of 4 runs are there already" in capsys.readouterr().err
    assert len(runs_of("mine")) == 4


# -------------------------------------------------------------------------------- bad input, faults


def test_a_run_that_diverges_is_reported_and_the_others_go_on(here, capsys):
    rates = {"training.learning_rate": [0.2, 1e30], "training.decay": "none"}
    write({"runs": [{"exchange": "local_shuffle", "world_size": 32} | rates], "seeds": 1})
    assert train("--out", "mine") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 runs: 1 done, 1 failed" in out
    assert "left out of every mean" in out
    runs = runs_of("mine").set_index("status")
    message = runs.loc["failed", "message"]
    assert message in out
    assert all(word in message for word in ("epoch 1", "rank", "1e+30"))
    assert pd.isna(runs.loc["failed", "own_accuracy"])
    assert 0.1 < runs.loc["done", "own_accuracy"] <= 1
    # it fails in the same way every time, so it is not tried again
    assert train("--out", "mine") == 0


def test_lost_runs_are_named_and_tried_again(here, monkeypatch, capsys):
    """Where all are, it is a failure that leaves nothing."""
    original, why, lost_seeds = TrainingCell.run, "its process died twice", {0, 1}

    def lost(cell, tell):
        if cell.training_run.seed in lost_seeds:
            raise SimulationError(why)
        return original(cell, tell)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingCell, "run", lost)
        assert train("--out", "mine", "--processes", "1") == 1
        assert capsys.readouterr().err.count(why) == 4
        assert not Path("mine").exists()
        lost_seeds.remove(0)
        assert train("--out", "mine", "--processes", "1") == 1
    shown = capsys.readouterr()
    assert "4 runs: 2 done, 2 lost" in shown.out
    assert " ".join(shown.out.split()).count(why) == 2
    assert "2 runs were lost; the same command tries them again" in shown.err
    meta = json.loads(Path("mine", "meta.json").read_text())
    assert meta["state"] == "incomplete"
    assert runs_of("mine")["status"].tolist() == ["done", "lost", "done", "lost"]
    assert train("--out", "mine", "--processes", "1") == 0
    shown = capsys.readouterr()
    assert "4 runs: 4 done" in shown.out
    assert "2 of 4 runs are there already" in shown.err


def test_a_full_disk_is_said_and_runs_stay(here, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "epochs.parquet")

    with monkeypatch.context() as patched:
        patched.setattr(Schema, "write", full)
        assert train("--out", "mine") == 1
    told = capsys.readouterr().err
    assert "No space left on device" in told
    assert not Path("mine").exists()
    assert train("--out", "mine") == 0
    assert "4 of 4 runs are there already" in capsys.readouterr().err


def test_without_torch_the_verb_says_what_to_install(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert train() == 2
    assert "pip install 'simshuffle[train]'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [TrainingCell, OwnCell, ExtractionCell, RetrainingCell])
def test_the_process_that_is_forked_for_each_training_has_had_an_optimiser(kind, monkeypatch):
    """The first one makes torch load for more than a second."""
    made = []
    monkeypatch.setattr(torch.optim, "SGD", lambda *_, **__: made.append(1))
    kind.make_ready()
    assert made == [1]

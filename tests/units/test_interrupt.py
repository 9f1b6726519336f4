"""Interruptions and failures on the way: a result folder is there whole or not at all, and an old
one stays until a new one is there."""

import contextlib
import errno
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from pyarrow.parquet import ParquetWriter

from simshuffle.cli import main
from simshuffle.report import canvas as plots
from tests.contents import contents as content

KEYS = ["world_size=8", "epochs=1", "workload.exchange=local_shuffle"]
ARGUMENTS = ["quickstart", *(word for key in KEYS for word in ("--set", key))]
LARGE = ["abci-imagenet1k", "--set", "world_size=512", "--set", "epochs=100"]
PATIENCE = 600.0


# ------------------------------------------------------------------------------------------- Ctrl-C


def read_until(descriptor, wanted, process):
    """What a terminal shows until ``wanted`` turns up."""
    shown = b""
    deadline = time.monotonic() + PATIENCE
    while wanted not in shown:
        assert process.poll() is None, f"ended early: {shown!r}"
        ready, _, _ = select.select(
            [descriptor], [], [], deadline - time.monotonic() if deadline > time.monotonic() else 0
        )
        assert ready, f"nothing like {wanted!r} in {shown!r}"
        shown += os.read(descriptor, 65536)
    return shown


def drain(descriptor):
    shown = b""
    # reading a terminal that nobody holds open any more is an error on Linux
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 65536):
            shown += chunk
    return shown


@pytest.mark.parametrize("out", [["--out", "mine"], []], ids=["named folder", "default folder"])
def test_ctrl_c_while_simulating_ends_with_130_and_leaves_nothing(out, tmp_path):
    # the progress bar, which only a terminal gets, tells that the simulation has begun
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "simshuffle", "run", *LARGE, *out],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        shown = read_until(ours, b"partial-0.1 streamlined @512", process)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=PATIENCE)
        shown += drain(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 130
    assert b"Traceback" not in shown + stdout
    assert b"Interrupted" in shown
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "where", ["job.sim.cell.simulate_epochs", "studies.simulation.study.all_runs"]
)
def test_an_interrupt_before_writing_leaves_nothing(where, here, monkeypatch, capsys):
    monkeypatch.setattr(f"simshuffle.{where}", raising(KeyboardInterrupt()))
    assert main(["run", *ARGUMENTS, "--out", "mine"]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert list(here.iterdir()) == []


# --------------------------------------------------------------------------- failures while writing


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def writing_and_raising(original, error):
    """Writes, and fails then: a disk that fills up leaves a piece of a file."""

    def fail(*arguments, **named):
        original(*arguments, **named)
        raise error

    return fail


WRITERS = {
    "parquet": (ParquetWriter, "write_table"),
    "csv": (pd.DataFrame, "to_csv"),
    "figure": (plots, "save"),
    "text": (Path, "write_text"),
}


@pytest.fixture(params=WRITERS)
def failing(request, monkeypatch):
    """Makes one of the writers fail with an error."""

    def fail(error):
        owner, name = WRITERS[request.param]
        monkeypatch.setattr(owner, name, writing_and_raising(getattr(owner, name), error))

    return fail


FULL_DISK = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "timeline.parquet")
failures = pytest.mark.parametrize(
    ("error", "status"),
    [(FULL_DISK, 1), (KeyboardInterrupt(), 130)],
    ids=["full disk", "interrupt"],
)


@failures
def test_a_failure_while_writing_is_said_and_leaves_nothing(error, status, failing, here, capsys):
    failing(error)
    assert main(["run", *ARGUMENTS, "--out", "mine"]) == status
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for said in ("No space left on device", "Nothing was written", "free some space"):
        assert (said in message) == (status == 1)
    assert list(here.iterdir()) == []


@pytest.fixture(scope="module")
def made_before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before") / "mine"
    assert main(["run", *ARGUMENTS, "--set", "seed=2", "--out", str(folder)]) == 0
    return content(folder)


@pytest.fixture
def old(made_before, tmp_path, monkeypatch):
    """A result folder made with another seed, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, data in made_before.items():
        (folder / name).write_bytes(data)
    return folder


@failures
def test_a_failure_while_replacing_keeps_the_old_result(
    error, status, failing, old, made_before, tmp_path
):
    failing(error)
    assert main(["run", *ARGUMENTS, "--out", "mine", "--force"]) == status
    assert content(old) == made_before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@failures
@pytest.mark.parametrize("number", [1, 2])
def test_a_failure_while_exchanging_the_folders_keeps_the_old_result(
    number, error, status, old, made_before, tmp_path, monkeypatch
):
    original = Path.rename
    calls = []

    def rename(self, target):
        calls.append(self)
        if len(calls) == number:
            raise error
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert main(["run", *ARGUMENTS, "--out", "mine", "--force"]) == status
    assert len(calls) >= number, "the folders are no longer exchanged by renaming"
    assert content(old) == made_before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_failure_of_plot_keeps_the_old_figure(old, made_before, monkeypatch, capsys):
    monkeypatch.setattr(plots, "save", raising(FULL_DISK))
    assert main(["results", "plot", "mine"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert content(old) == made_before

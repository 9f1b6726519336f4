"""The same cells on a real Dask scheduler with two workers on this machine, one of which is killed
in the middle."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.study import engine
from simshuffle.study.executors import SerialExecutor
from simshuffle.study.store import Disk
from tests.contents import contents as content
from tests.toy import TOY, Square, asked

pytest.importorskip("distributed")
PATIENCE = 600.0
QUIET = ["--no-dashboard", "--host", "127.0.0.1"]


@dataclass
class Bed:
    """A scheduler and its workers."""

    address: str
    workers: list[subprocess.Popen[bytes]]


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=folder, env=environment, stdout=log, stderr=log
        )


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    folder = tmp_path / "bed"
    folder.mkdir()
    written = folder / "scheduler.json"
    arguments = [*QUIET, "--port", "0", "--scheduler-file", str(written)]
    processes = [started(folder, "distributed.cli.dask_scheduler", *arguments)]
    try:
        wait_for(lambda: written.exists() and written.stat().st_size)
        address = json.loads(written.read_text())["address"]
        for name in ("one", "two"):
            options = [*QUIET, "--no-nanny", "--nthreads", "1", "--name", name]
            processes.append(started(folder, "distributed.cli.dask_worker", address, *options))
        yield Bed(address, processes[1:])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_killed_worker_changes_nothing(bed, tmp_path):
    from simshuffle.study.cluster import DaskCluster

    mark = tmp_path / "marks"
    mark.mkdir()
    cells = [Square(number, mark, seconds=0.3) for number in range(1, 9)]
    killed: list[int] = []

    def kill_one(standing: object) -> None:
        if not killed and list(mark.glob("ended-*")):
            victims = {int(path.name.split("-")[2]) for path in mark.glob("[0-9]*")}
            killed.append(next(w.pid for w in bed.workers if w.pid in victims))
            os.kill(killed[0], signal.SIGKILL)

    store = Disk(tmp_path / "cells")
    result = engine.run(TOY, asked(*cells), DaskCluster(bed.address), store, kill_one)
    assert killed
    tried = {int(path.name.split("-")[2]) for path in mark.glob("[0-9]*")}
    assert tried == {worker.pid for worker in bed.workers}
    local = engine.run(TOY, asked(*cells), SerialExecutor(), Disk(tmp_path / "here"))
    folders = [result.save(tmp_path / "there"), local.save(tmp_path / "local")]
    assert content(folders[0]) == content(folders[1])


def test_a_cell_that_kills_its_workers_is_lost_and_named(bed, tmp_path):
    from simshuffle.study.cluster import DaskCluster

    folder = tmp_path / "bed"
    for name in ("three", "four"):  # the scheduler gives a cell four workers before it gives up
        options = [*QUIET, "--no-nanny", "--nthreads", "1", "--name", name]
        arguments = ["distributed.cli.dask_worker", bed.address, *options]
        bed.workers.append(started(folder, *arguments))
    spare = ["distributed.cli.dask_worker", bed.address, *QUIET, "--no-nanny", "--nthreads", "1"]
    bed.workers.append(started(folder, *spare))
    study = dataclasses.replace(TOY, partial=True)
    request = asked(Square(2), Square(9, dies=True))
    try:
        result = engine.run(study, request, DaskCluster(bed.address), Disk(tmp_path / "cells"))
    finally:
        for worker in bed.workers[2:]:
            worker.kill()
            worker.wait()
    assert result.tables["squares"]["name"].tolist() == ["n2"]
    assert "killed" in result.meta["lost"]["n9"]


def test_a_sweep_on_the_cluster_is_that_of_this_machine(bed, tmp_path):
    words = ["sweep", "quickstart", "--set", "sweep={}", "--set", "epochs=1"]
    words += ["--set", "workload.dataset.num_samples=256", "--over", "world_size=4,8"]
    assert main([*words, "--out", str(tmp_path / "a" / "x"), "--scheduler", bed.address]) == 0
    assert main([*words, "--out", str(tmp_path / "b" / "x")]) == 0
    assert content(tmp_path / "a" / "x") == content(tmp_path / "b" / "x")


def test_a_scheduler_that_does_not_answer_is_a_clear_error(tmp_path, monkeypatch):
    from simshuffle.study.cluster import DaskCluster

    monkeypatch.setattr("simshuffle.study.cluster.PATIENCE", "1 s")
    with pytest.raises(InputError, match="--scheduler"):
        engine.run(
            TOY, asked(Square(2)), DaskCluster("tcp://127.0.0.1:9"), Disk(tmp_path / "cells")
        )

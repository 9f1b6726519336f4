"""Jobs on several processes: each written whole, none repeated, one that dies taken for one that
dies."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from simshuffle.errors import InputError, Problem
from simshuffle.train.pool import run_jobs, usable_cores


@dataclass(frozen=True)
class Writing:
    """Writes one file; ends in different ways."""

    text: str
    how: str = ""
    cost: float = 1.0

    def run(self, folder, tell):
        (folder / "half").write_text("begun", encoding="utf-8")
        tell(0.5)
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "leave":
            os._exit(3)
        if self.how == "raise":
            raise ValueError("no such thing")
        if self.how == "wait":
            time.sleep(600)
        (folder / "text").write_text(
            f"{self.text} {os.getpid()} {torch.get_num_threads()}", encoding="utf-8"
        )

    def check(self, folder):
        if not (folder / "text").is_file():
            raise InputError(Problem("", "has no text"), str(folder))


def content(place):
    return {
        path.name: (path / "text").read_text(encoding="utf-8")
        for path in sorted(place.iterdir())
        if path.is_dir()
    }


def test_finished_jobs_are_kept_and_lost_ones_are_named(tmp_path):
    jobs = {
        "good": Writing("a"),
        "dead": Writing("b", "die"),
        "left": Writing("c", "leave"),
        "raised": Writing("d", "raise"),
        "last": Writing("e"),
    }
    seen = []
    outcome = run_jobs(jobs, tmp_path, processes=2, progress=seen.append)
    assert outcome.made == ["good", "last"]
    assert outcome.kept == []
    assert set(outcome.lost) == {"dead", "left", "raised"}
    assert "killed by signal 9" in outcome.lost["dead"]
    assert "memory" in outcome.lost["dead"]
    assert "status 3" in outcome.lost["left"]
    assert outcome.lost["raised"] == "ValueError: no such thing"
    before = content(tmp_path)
    assert set(before) == {"good", "last"}
    assert all(text.endswith(" 1") for text in before.values()), "a job has one thread"
    assert not list(tmp_path.glob(".*.part-*"))
    assert seen[-1].done == 2
    assert seen[-1].share == 1.0
    again = run_jobs(
        {**jobs, "dead": Writing("b"), "left": Writing("c"), "raised": Writing("d")}, tmp_path
    )
    assert again.kept == ["good", "last"]
    assert again.made == ["dead", "left", "raised"]
    assert {name: content(tmp_path)[name] for name in before} == before


def test_costly_jobs_come_first(tmp_path):
    jobs = {
        "short": Writing("a", cost=1.0),
        "long": Writing("b", cost=9.0),
        "middle": Writing("c", cost=5.0),
    }
    run_jobs(jobs, tmp_path, processes=1)
    times = {name: (tmp_path / name / "text").stat().st_mtime_ns for name in jobs}
    assert times["long"] <= times["middle"] <= times["short"]
    assert len({text.split()[1] for text in content(tmp_path).values()}) == 1, "one process for all"


def test_a_damaged_result_is_named_with_a_remedy_and_stays(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "something").write_text("x", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        run_jobs({"bad": Writing("a"), "new": Writing("b")}, tmp_path)
    assert "bad: has no text" in str(caught.value)
    assert f"Remove {tmp_path / 'bad'}" in str(caught.value)
    assert (tmp_path / "bad" / "something").is_file()
    assert not (tmp_path / "new").exists(), "nothing runs before that is settled"


def test_what_a_killed_process_left_half_written_is_swept_away(tmp_path):
    (tmp_path / ".old.part-xyz" / "new").mkdir(parents=True)
    assert run_jobs({}, tmp_path).made == []
    assert not (tmp_path / ".old.part-xyz").exists()


def test_two_at_once_in_one_place_are_refused_and_sigterm_stops_at_once(tmp_path):
    refused = []

    def meanwhile():
        while not list(tmp_path.glob(".*.part-*/new/half")):
            time.sleep(0.05)
        try:
            run_jobs({"other": Writing("b")}, tmp_path)
        except InputError as error:
            refused.append(str(error))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_jobs({"slow": Writing("a", "wait")}, tmp_path)
    thread.join()
    assert "another process is at work" in refused[0]
    assert signal.getsignal(signal.SIGTERM) is before
    assert [path.name for path in Path(tmp_path).iterdir()] == [".lock"]


def test_usable_cores():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)

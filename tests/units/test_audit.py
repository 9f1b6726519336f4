"""The verb audit: real ranks of small loaders are killed and go on, and what they lose is counted.

Sets have 24 samples in batches of 2: two ranks have 6 steps, of 4 samples together.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.extensions.resuming import auditing
from simshuffle.extensions.resuming.accounts import LaterEpochs, count_broken, count_later
from simshuffle.extensions.resuming.audit_tables import SCHEMAS
from simshuffle.extensions.resuming.outcomes import AuditOutcome, KillPoint
from simshuffle.extensions.resuming.script import Script
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import Account
from simshuffle.workload.resuming.law import Batches

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "data" / "audit" / "my_loader.py"
LOADER = """
import os, random, sys, time
import beside
try:
    import counted
except ImportError:
    pass
else:
    raise SystemExit("it sees the modules of the audit")

class Saved:
    def __init__(self, rank, epoch, step, left):
        self.rank, self.epoch, self.step, self.left = rank, epoch, step, left

class Loader:
    def __init__(self, run, saved=None):
        self.run, self.saved, self.epoch, self.step = run, saved, 0, 0
        random.seed(os.environ["MASTER_PORT"])  # another for each run, the same for its ranks

    def set_epoch(self, epoch):
        self.epoch, self.step = epoch, 0

    def __iter__(self):
        run, order = self.run, list(range(24))
        if "random" in sys.argv:
            random.shuffle(order)
            order = order[:20]
        broken = self.saved is not None and self.epoch == self.saved.epoch
        if broken and "right" in sys.argv:
            order = self.saved.left
        elif broken and "turned" in sys.argv:
            order = self.saved.left[::-1]
        elif self.saved is not None and not broken and "half" in sys.argv:
            order = order[:12]
        elif self.saved is not None and not broken and "more" in sys.argv:
            order = order + order[:6]
        elif self.saved is not None and not broken and "later" in sys.argv:
            order = order[::-1]
        self.order = order
        own = order[run.rank :: run.world_size]
        if broken and "share" in sys.argv:  # that of the rank whose state it has
            done = self.saved.step * run.batch_size
            own = order[run.rank :: run.ranks_before][done:]
        for at in range(0, len(own), run.batch_size):
            self.step += 1
            yield own[at : at + run.batch_size]

def make(run):
    return Loader(run)

def state(loader):
    if "stateless" in sys.argv and loader.run.rank == 1:
        raise KeyError("step")
    if "once" in sys.argv and loader.saved is not None:
        left = list(range(loader.step * 4, 24))  # counts from where it went on
    else:
        left = loader.order[loader.step * loader.run.batch_size * loader.run.world_size :]
    if "never-twice" in sys.argv and loader.saved is not None:
        raise ValueError("saved once")
    return Saved(loader.run.rank, loader.epoch, loader.step, left)

def resume(run, states):
    if "waits" in sys.argv and run.rank == 1:
        raise ValueError("no file")
    if "hangs" in sys.argv or "waits" in sys.argv:
        time.sleep(600)
    if "refuses" in sys.argv and len(states) != run.world_size and run.rank == 0:
        raise ValueError("saved by other ranks")
    if "dies" in sys.argv:
        os._exit(3)
    return Loader(run, states[run.rank % len(states)])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a loader that errs as its arguments say."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loader.py").write_text(LOADER)
    (tmp_path / "beside.py").write_text("")
    return tmp_path


PYTHON = [sys.executable, "loader.py"]


def command(*options, kind="right", points=("--at", "3")):
    """The words of an audit of 24 samples."""
    words = ["study", "audit", "--samples", "24", "--batch-size", "2", *points, *options]
    return [*words, "--", *PYTHON, *kind.split()]


def audit(capfd, *options, status=0, **given):
    """What --json prints."""
    assert main(command(*options, "--json", **given)) == status
    return json.loads(capfd.readouterr().out)


def counts(row):
    names = ("outcome", "trained", "rest", "lost", "repeated", "twice", "never", "continues")
    return tuple(row[name] for name in names)


# ------------------------------------------------------------------------------- what is counted


@pytest.mark.parametrize(
    ("kind", "onto", "expected"),
    [
        ("right", "1x2", ("goes on", 12, 12, 0, 0, 0, 0, "same")),
        ("right", "1x1", ("goes on", 12, 12, 0, 0, 0, 0, "same")),
        ("right", "3x1", ("goes on", 12, 12, 0, 0, 0, 0, "same")),
        ("turned", "1x1", ("goes on", 12, 12, 0, 0, 0, 0, "permuted")),
        # rank 0 goes on in its own share; that of rank 1 is nobody's
        ("share", "1x1", ("goes on", 12, 6, 6, 0, 0, 0, "other")),
        # ranks 2 and 3 take the states of ranks 0 and 1, and read what follows the share of these
        # in another residue: 14, 16, .. of rank 2, 15, 17, .. of rank 3
        ("share", "2x2", ("goes on", 12, 22, 0, 0, 10, 0, "other")),
        ("begins again", "1x2", ("begins again", 12, 24, 0, 12, 12, 0, "other")),
    ],
)
def test_what_is_lost_and_repeated_is_counted(kind, onto, expected, capfd):
    bad = "lost" if expected[3] else expected[5]
    found = audit(capfd, "--to", onto, kind=kind, status=int(bool(bad)))
    (row,), (point,), (cost,) = found["resumes"], found["points"], found["costs"]
    assert counts(row) == expected
    assert counts(point) == expected
    assert row["change"] == f"1x2 to {onto}"
    assert found["wrong"] == bool(bad)
    assert found["repeatable"]
    assert cost["state_nbytes"] > 20
    assert 0 < cost["resumed_s"] < cost["resumed_first_s"]
    assert row["first_batch_s"] == cost["resumed_first_s"]


def test_a_sample_that_no_epoch_has_is_never_seen(capfd):
    # of the one epoch that there is, rank 1's second half
    found = audit(capfd, "--to", "1x1", "--epochs", "1", kind="share", status=1)
    assert found["resumes"][0]["never"] == 6
    assert found["resumes"][0]["batch_companions"] is None


def test_ranks_that_are_named_twice_go_on_once(capfd):
    found = audit(capfd, "--to", "1x1", "--to", "01x1", "--epochs", "1", kind="share", status=1)
    assert [row["change"] for row in found["points"]] == ["1x2 to 1x1"]
    assert found["wrong"] == 1


def test_a_loader_that_refuses_says_why_and_one_that_ends_too(capfd):
    found = audit(capfd, "--to", "1x2", "--to", "2x2", kind="refuses", status=1)
    assert [row["outcome"] for row in found["resumes"]] == ["begins again", "refuses"]
    assert "ValueError: saved by other ranks" in found["resumes"][1]["says"]
    assert found["resumes"][1]["lost"] is None
    assert main(command("--to", "2x2", kind="refuses")) == 1
    assert "-v shows each error in full" in capfd.readouterr().out
    found = audit(capfd, "--to", "1x1", kind="dies", status=1)
    assert found["points"][0]["says"] == "exit status 3"
    # the state of one rank cannot be had
    found = audit(capfd, kind="stateless", status=1)
    assert found["points"][0]["says"] == "StateError: state(loader) raises KeyError: 'step'"
    assert found["points"][0]["outcome"] == "refuses"


def test_a_loader_that_hangs_is_killed(capfd):
    found = audit(capfd, "--to", "1x1", "--seconds", "8", kind="hangs", status=1)
    assert found["resumes"][0]["outcome"] == "hangs"
    assert found["costs"][0]["resumed_s"] is None


def test_ranks_that_wait_for_one_that_failed_are_not_waited_for(capfd, monkeypatch):
    monkeypatch.setattr(auditing, "PATIENCE", 0.2)
    begin = time.monotonic()
    found = audit(capfd, "--to", "1x2", kind="waits", status=1)
    assert time.monotonic() - begin < 3000  # it would hang for 600
    assert found["resumes"][0]["outcome"] == "refuses"
    assert found["points"][0]["says"] == "ValueError: no file"


def test_a_loader_that_is_never_the_same_is_counted_within_one_run(capfd):
    # an epoch misses 4 samples, and one that begins again 6 of the 12 that it had at least
    found = audit(capfd, "--to", "1x2", kind="random", status=1)
    assert not found["repeatable"]
    row = found["resumes"][0]
    assert (row["trained"], row["rest"], row["continues"]) == (12, 20, "")
    assert row["lost"] == 0
    assert row["repeated"] >= 8
    assert main(command(kind="random")) == 1
    assert "not repeatable: two uninterrupted runs with the same seed" in capfd.readouterr().out


def test_what_such_a_loader_misses_anyway_is_not_lost():
    """Of 10 samples an epoch has 8, one of them twice. One that is broken off has 4, and 2 more."""

    def rows(*samples):
        return Batches(*np.zeros((2, len(samples)), np.int64), np.array(samples))

    before, after = [rows(8), rows(0, 1, 2, 3)], [rows(4, 5), rows(9, 9, 8)]
    whole, times = rows(0, 1, 2, 3, 4, 5, 6, 7, 0), auditing.AuditTimes(None, None)
    readers, point = Readers(1, 1, 1, 4), KillPoint(1, 1, 0)
    tried = AuditOutcome(
        point, readers, before, after, "", 0, times, times, [whole, rows(9, 8, 5)], 1
    )
    found = count_broken(tried, 10, repeatable=False)
    assert found == Account(4, 2, 8 - 6, 0, 0, 1, never=2, continues="other")
    assert count_later(tried) == LaterEpochs(lost_later=1, twice_later=1, continues="other")


def test_the_worst_of_drawn_points_is_shown_with_all_of_them(capfd):
    given = {"points": ("--try", "4", "--to", "1x1"), "kind": "share", "status": 1}
    found = audit(capfd, **given)
    lost = {(point["epoch"], point["step"]): point["lost"] for point in found["points"]}
    assert len(lost) == 4
    assert all(missing == 12 - 2 * step for (_, step), missing in lost.items())
    assert found["resumes"][0]["lost"] == max(lost.values())
    said = found["resumes"][0]["says"]
    assert re.search(r"\(Step \d of epoch \d, the worst of 4 points\.\)", said)
    assert found["points"] == audit(capfd, **given)["points"]


@pytest.mark.parametrize(
    ("word", "lost", "twice", "continues", "said"),
    [
        # two later epochs of 24 samples have 12, 30 or 24 in reverse
        ("half", 24, 0, "other", "In later epochs 24 samples are lost."),
        ("more", 0, 12, "other", "In later epochs 12 samples come more than once."),
        ("later", 0, 0, "permuted", "Later epochs have their samples in another order"),
    ],
)
def test_epochs_after_the_broken_one_are_counted(word, lost, twice, continues, said, capfd):
    options = ("--to", "1x2", "--epochs", "3")
    found = audit(capfd, *options, kind=f"right {word}", status=int(word != "later"))
    (row,) = found["resumes"]
    assert (row["lost"], row["twice"]) == (0, 0)
    assert (row["lost_later"], row["twice_later"], row["continues"]) == (lost, twice, continues)
    assert "In the broken epoch nothing is lost" in row["says"]
    assert said in row["says"]
    assert (
        "The samples that follow are the expected samples, in the expected order" not in row["says"]
    )


def test_a_run_that_went_on_is_killed_once_more(capfd):
    """Of 6 steps of 4 samples 1 is done, then 2 of the 5 that are left; the state counts from where
    the run went on, so 4 samples come again. In the next epoch it counts from the beginning."""
    given = {"points": ("--at", "1", "--to", "1x2")}
    right = audit(capfd, **given)
    assert right["points"][0]["second"] == "0:2, 1:3"
    assert right["points"][0]["second_outcome"] == "goes on"
    assert (right["points"][0]["second_lost"], right["points"][0]["second_twice"]) == (0, 0)
    found = audit(capfd, **given, kind="right once", status=1)
    (point,) = found["points"]
    assert (point["lost"], point["twice"], point["continues"]) == (0, 0, "same")
    # killed after 1 step, then 2 steps later: the state says 2 of the 3 that are done
    assert (point["second_lost"], point["second_twice"]) == (0, 4)
    assert found["wrong"] == 1
    said = (
        "After a second kill in epoch 0, 2 steps after the run went on or the epoch began, 4"
        " samples"
    )
    assert said in found["resumes"][0]["says"]
    (row,) = audit(capfd, **given, kind="right never-twice", status=1)["resumes"]
    assert "StateError: state(loader) raises ValueError: saved once" in row["says"]


def test_what_was_not_tried_is_said(capfd):
    assert main(command("--to", "1x2", "--epochs", "1", points=("--at", "5"))) == 0
    shown = " ".join(capfd.readouterr().out.split())
    following = shown.partition("Measure next: ")[2]
    assert following == "a second crash of a run; an epoch after a broken one (--epochs 2)."


# ------------------------------------------------------------------------------- the example


def test_the_example_errs_where_ranks_change_and_is_right_with_a_word(capfd):
    words = ["study", "audit", "--at", "10", "--to", "1x2", "--to", "1x1", "--to", "2x2", "--json"]
    assert main([*words, "--", sys.executable, str(EXAMPLE)]) == 1
    rows = json.loads(capfd.readouterr().out)["resumes"]
    # 80 of 240 are done: a single rank leaves out 40, four ranks leave out 40 each
    assert [(of["lost"], of["repeated"]) for of in rows] == [(0, 0), (0, 40), (80, 0)]
    assert main([*words, "--", sys.executable, str(EXAMPLE), "right"]) == 0
    rows = json.loads(capfd.readouterr().out)["resumes"]
    assert {counts(of) for of in rows} == {("goes on", 80, 160, 0, 0, 0, 0, "same")}
    assert len(EXAMPLE.read_text().splitlines()) < 45


# ------------------------------------------------------------------------------- what is written


def test_a_result_folder_has_the_tables_that_are_printed(folder, capfd):
    found = audit(capfd, "--out", "out", status=0)
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        *("columns.json", "costs.csv", "meta.json", "points.csv", "resumes.csv")
    ]
    for name, schema in SCHEMAS.items():
        table = schema.read(folder / "out" / name)
        assert isinstance(table, pd.DataFrame)
        assert table["change"].tolist() == [row["change"] for row in found[name]]
    assert main(command("--out", "out")) == 2
    assert "--out: holds another result" in capfd.readouterr().err
    assert main(command("--out", "out", "--force")) == 0
    shown = capfd.readouterr().out
    answer, basis, *_ = shown.split("\nloader right ")[1].splitlines()
    assert answer == "loses and repeats no samples, and always goes on."
    assert basis == "Rests on: 1 point, 24 samples, seed 0."
    assert "Tables: out" in shown
    assert main(["results", "show", "out"]) == 2
    assert "its tables are CSV files" in capfd.readouterr().err
    assert main(command("--to", "markdown")) == 0
    assert "| 1x2 to 1x1 |" in capfd.readouterr().out


def test_what_the_script_prints_is_shown_if_asked_alone(folder, capfd):
    (folder / "loader.py").write_text(f"print('mine')\n{LOADER}")
    audit(capfd)
    assert main(command("-v")) == 0
    shown = capfd.readouterr()
    assert "mine" in shown.err
    assert "mine" not in shown.out


# ------------------------------------------------------------------------------- being ended

PIDS = """def resume(run, states):
    import pathlib
    pathlib.Path("pids", str(os.getpid())).touch()
"""


def ended(folder, send):
    """Exit status and standard error of an audit whose ranks hang, when it is sent a signal; and
    the processes that it leaves."""
    (folder / "pids").mkdir()
    (folder / "loader.py").write_text(LOADER.replace("def resume(run, states):\n", PIDS))
    process = subprocess.Popen(
        [sys.executable, "-m", "simshuffle", *command("--out", "out", kind="hangs")],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": f"{ROOT}"},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    until = time.monotonic() + 120
    while len(list((folder / "pids").iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, send)  # as a terminal does
    told = process.communicate(timeout=600)[1]
    pids = [path.name for path in (folder / "pids").iterdir()]
    assert len(pids) == 2
    until = time.monotonic() + 300
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return process.returncode, told, [pid for pid in pids if alive(pid)]


def alive(pid):
    try:
        return "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
    except OSError:
        return False


def test_ctrl_c_ends_all_ranks_and_leaves_nothing(folder):
    status, told, left = ended(folder, signal.SIGINT)
    assert status == 130
    assert "Interrupted; nothing was written." in told
    assert "Traceback" not in told
    assert left == []
    names = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert names == {"loader.py", "beside.py", "pids"}


def test_ranks_end_with_an_audit_that_is_killed(folder):
    status, _, left = ended(folder, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert left == []


def test_a_script_that_does_not_load_in_time_is_ended(folder, capfd, monkeypatch):
    monkeypatch.setattr(Script.__init__, "__defaults__", (0.5,))
    (folder / "waits.py").write_text("import time\ntime.sleep(600)")
    begin = time.monotonic()
    assert main(["study", "audit", "--", sys.executable, "waits.py"]) == 2
    assert "waits.py: must be loaded within 0.5 s" in capfd.readouterr().err
    assert time.monotonic() - begin < 300

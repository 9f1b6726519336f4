"""The engine of the studies: what is done once, kept, done again, or lost."""

import dataclasses
import errno
import gc
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from simshuffle.errors import InputError, SimulationError
from simshuffle.study import engine
from simshuffle.study.cell import ROOT, Outcome, Tell, code_digest, digest_of
from simshuffle.study.executors import (
    ONE_THREAD,
    LocalExecutor,
    ProcessExecutor,
    SerialExecutor,
    usable_cores,
)
from simshuffle.study.options import Options
from simshuffle.study.perform import FIRST_ANSWER, Performance, Teller
from simshuffle.study.size import available_memory
from simshuffle.study.standing import (
    LEAST_COST,
    PRIOR_SECONDS,
    StageWatch,
    Standing,
    WorkDone,
    _describe_progress,
    duration,
    estimate_seconds_left,
    listen_to_progress,
    share_teller,
)
from simshuffle.study.store import Disk, Memory
from simshuffle.study.study import fingerprint
from simshuffle.study.verb import Verb
from tests.toy import TOY, Square, asked

PATIENCE = 600.0


def attempts(mark: Path) -> list[int]:
    """The numbers that were tried, once for each attempt, in their order."""
    names = (path.name.split("-") for path in mark.iterdir() if not path.name.startswith("ended"))
    return [int(number) for number, _, _ in sorted(names, key=lambda parts: int(parts[1]))]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "cells")


def squares(mark: Path, *numbers: int, **changes: object) -> list[Square]:
    return [dataclasses.replace(Square(number, mark), **changes) for number in numbers]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ done and kept


def test_stages_follow_one_another_and_are_collected(mark):
    result = engine.run(TOY, asked(*squares(mark, 2, 3)))
    assert result.tables["squares"]["square"].tolist() == [4, 9]
    assert result.tables["sums"]["sum"].tolist() == [13]
    assert result.meta["kind"] == "toy"
    assert result.meta["count"] == 2


def test_what_is_kept_is_not_done_again_and_what_is_new_is(mark, store):
    engine.run(TOY, asked(*squares(mark, 2, 3)), SerialExecutor(), store)
    engine.run(TOY, asked(*squares(mark, 2, 3, 5)), SerialExecutor(), store)
    assert attempts(mark) == [2, 3, 5]


def test_costly_cells_begin_first(mark, store):
    engine.run(TOY, asked(*squares(mark, 1, 7, 3)), ProcessExecutor(1), store)
    assert attempts(mark) == [7, 3, 1]


def test_cells_wait_where_memory_would_not_do_for_two(mark, store):
    cells = squares(mark, 1, 2, 3, seconds=0.2, bytes_needed=6e8)
    engine.run(TOY, asked(*cells), ProcessExecutor(3, memory=1e9), store)
    spans = sorted(tuple(map(float, path.name.split("-")[2:])) for path in mark.glob("ended-*"))
    assert len(spans) == 3
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_cell_larger_than_the_memory_is_done_alone(mark, store):
    cells = squares(mark, 1, 2, bytes_needed=1e15)
    result = engine.run(TOY, asked(*cells), ProcessExecutor(2), store, force_size=True)
    assert len(result.tables["squares"]) == 2


def test_the_available_memory_is_what_the_system_says():
    assert 1e7 < available_memory() < 1e14


def test_little_work_stays_in_this_process(mark, store):
    class Cheap(Square):
        @property
        def cost(self) -> float:
            return 0.1

    engine.run(TOY, asked(Cheap(1, mark), Cheap(2, mark)), LocalExecutor(4), store)
    assert {path.name.split("-")[2] for path in mark.glob("[0-9]*")} == {str(os.getpid())}


def test_processes_compute_with_one_thread(mark, store):
    class Threads(Square):
        def run(self, tell: object) -> Outcome:
            return Outcome({name: os.environ.get(name) for name in ONE_THREAD})

    cell = Threads(1)
    digest = digest_of(cell)
    assert list(
        ProcessExecutor(1).do({digest: cell}, store, StageWatch({digest: cell}, 0, None))
    ) == [digest]
    found = store.get(digest, frozenset())
    assert found is not None
    assert found.values == dict.fromkeys(ONE_THREAD, "1")
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


# ------------------------------------------------------------------------------------- lost, failed


@pytest.mark.parametrize(
    "executor", [SerialExecutor(), ProcessExecutor(2)], ids=["here", "processes"]
)
def test_a_cell_that_fails_is_named_and_the_others_are_kept(executor, mark, store):
    cells = [*squares(mark, 1, 2), *squares(mark, 3, fails=True)]
    with pytest.raises(SimulationError, match=r"3 cannot be squared"):
        engine.run(TOY, asked(*cells), executor, store)
    engine.run(TOY, asked(*squares(mark, 1, 2, 3)), SerialExecutor(), store)
    assert sorted(attempts(mark)) == [1, 2, 3, 3]


def test_a_partial_study_has_a_result_without_what_is_lost(mark, store):
    study = dataclasses.replace(TOY, partial=True)
    cells = [*squares(mark, 1, 2), *squares(mark, 3, fails=True)]
    result = engine.run(study, asked(*cells), SerialExecutor(), store)
    assert result.tables["squares"]["name"].tolist() == ["n1", "n2"]
    assert result.meta["lost"] == {"n3": "3 cannot be squared"}


def test_a_cell_that_kills_its_process_twice_is_lost_and_the_others_are_done(mark, store):
    study = dataclasses.replace(TOY, partial=True)
    cells = [*squares(mark, 1, 2, 3, 4), *squares(mark, 9, dies=True)]
    result = engine.run(study, asked(*cells), ProcessExecutor(2), store)
    assert result.tables["squares"]["name"].tolist() == ["n1", "n2", "n3", "n4"]
    assert list(result.meta["lost"]) == ["n9"]
    assert "died twice" in result.meta["lost"]["n9"]
    assert attempts(mark).count(9) == 2


def test_a_server_that_dies_is_followed_by_another_one(mark, store):
    class Kills(Square):
        def run(self, tell: Tell) -> Outcome:
            super().run(tell)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(PATIENCE)
            raise AssertionError

    study = dataclasses.replace(TOY, partial=True)
    cells = [*squares(mark, 1, 2), Kills(9, mark), *squares(mark, 3, seconds=1.0)]
    result = engine.run(study, asked(*cells), ProcessExecutor(2), store)
    assert result.tables["squares"]["name"].tolist() == ["n1", "n2", "n3"]
    assert list(result.meta["lost"]) == ["n9"]
    assert attempts(mark).count(9) == 2


def test_a_full_disk_ends_all_of_it_and_no_process_is_left(mark, store):
    class Full(Square):
        def run(self, tell: Tell) -> Outcome:
            super().run(tell)
            raise OSError(errno.ENOSPC, "No space left on device")

    cells = [Full(9, mark), *squares(mark, 1, seconds=PATIENCE)]
    with pytest.raises(OSError, match="No space left"):
        engine.run(TOY, asked(*cells), ProcessExecutor(2), store)
    workers = {int(path.name.split("-")[2]) for path in mark.glob("[0-9]*")}
    assert not any(is_alive(worker) for worker in workers)


def test_what_cells_share_is_made_ready_where_their_processes_are_forked(store):
    class Ready(Square):
        @staticmethod
        def make_ready() -> None:
            os.environ["READY"] = str(os.getpid())
            os.environ["COLLECTS"] = str(int(gc.isenabled()))

        def run(self, tell: Tell) -> Outcome:
            collects = [int(os.environ["COLLECTS"]), int(gc.isenabled())]
            processes = [int(os.environ["READY"]), os.getppid(), os.getpid()]
            return Outcome({"square": processes, "collects": collects})

    cells = {digest_of(cell): cell for cell in (Ready(1), Ready(2))}
    assert set(ProcessExecutor(2).do(cells, store, StageWatch(cells, 0, None))) == set(cells)
    of = [store.get(digest, frozenset()) for digest in cells]
    seen = [outcome.values["square"] for outcome in of if outcome is not None]
    # no garbage is looked for while modules are loaded, but while a cell runs it is
    assert [outcome.values["collects"] for outcome in of if outcome is not None] == [[0, 1]] * 2
    assert [ready for ready, _, _ in seen] == [server for _, server, _ in seen]
    assert len({process for _, _, process in seen} - {os.getpid()}) == 2
    assert "READY" not in os.environ


def test_all_cells_lost_is_an_error_with_each_of_them(mark):
    study = dataclasses.replace(TOY, partial=True)
    with pytest.raises(SimulationError, match=r"(?s)2 of 2.*n1: 1 cannot.*n2: 2 cannot"):
        engine.run(study, asked(*squares(mark, 1, 2, fails=True)))


# --------------------------------------------------------------------------------- parts, and files

PARTS = dataclasses.replace(
    TOY,
    partial=True,
    stages=TOY.stages[:1],
    stored={"squares": TOY.stored["squares"]},
    collect=lambda numbers, outcomes: {"squares": squares_of(outcomes)},
    files_in={
        "notes": lambda numbers, outcomes: {
            f"{name}.bin": of.files["note.bin"] for name, of in outcomes.items() if not of.lost
        }
    },
)


def squares_of(outcomes) -> pd.DataFrame:
    rows = [(name, of.values["square"], 0.0) for name, of in outcomes.items() if not of.lost]
    return pd.DataFrame(rows, columns=["name", "square", "third"])


class _Stopped(SerialExecutor):
    """Is interrupted after two cells."""

    def do(self, cells, store, watch):
        yield from super().do(dict(itertools.islice(cells.items(), 2)), store, watch)
        raise KeyboardInterrupt


def test_a_partial_study_that_is_stopped_has_what_is_there_and_goes_on(mark, store, tmp_path):
    request, folder = asked(*squares(mark, 1, 2, 3)), tmp_path / "out"
    wanted = fingerprint(PARTS, request)
    with pytest.raises(engine.Interrupted) as caught:
        engine.run(PARTS, request, _Stopped(), store)
    assert (caught.value.done, caught.value.total) == (2, 3)
    there = caught.value.result
    assert there is not None
    assert there.meta["state"] == "unfinished"
    there.save(folder, draw=False)
    assert not list(folder.glob("*.png"))
    assert engine.read(PARTS, folder).tables["squares"]["square"].tolist() == [1, 4]
    assert engine.find_complete_result(PARTS, folder, wanted) is None
    assert engine.is_continuable(folder, wanted)
    assert not engine.is_continuable(folder, "another")
    engine.run(PARTS, request, SerialExecutor(), store).save(folder, replace=True)
    assert attempts(mark) == [1, 2, 3]
    assert engine.find_complete_result(PARTS, folder, wanted) is not None
    assert not engine.is_continuable(folder, wanted)


def test_nothing_done_is_no_result(mark):
    class Never(SerialExecutor):
        def do(self, cells, store, watch):
            raise KeyboardInterrupt

    with pytest.raises(engine.Interrupted) as caught:
        engine.run(PARTS, asked(*squares(mark, 1, 2)), Never())
    assert caught.value.result is None


def test_files_of_outcomes_lie_in_their_folder_and_are_read_back(mark, store, tmp_path):
    cells = [*squares(mark, 2, 3), *squares(mark, 4, fails=True)]
    request, folder = asked(*cells), tmp_path / "out"
    engine.run(PARTS, request, SerialExecutor(), store).save(folder)
    notes = {path.name: path.read_bytes() for path in (folder / "notes").iterdir()}
    assert notes == {"n2.bin": bytes([2]), "n3.bin": bytes([3])}
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["files"] == {"notes": 2}
    assert (meta["state"], list(meta["lost"])) == ("incomplete", ["n4"])
    again = engine.read(PARTS, folder).save(tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (again / "notes").iterdir()} == notes
    whole, other = asked(*squares(mark, 2, 3)), tmp_path / "whole"
    engine.run(PARTS, whole, SerialExecutor(), store).save(other)
    assert engine.find_complete_result(PARTS, other, fingerprint(PARTS, whole)) is not None
    (other / "notes" / "n3.bin").unlink()
    assert engine.find_complete_result(PARTS, other, fingerprint(PARTS, whole)) is None


# ------------------------------------------------------------------------------------------- stores


def test_an_outcome_is_read_back_as_it_was(store):
    cell = Square(5)
    outcome = cell.run(lambda share: None)
    store.add("ab12", outcome)
    found = store.get("ab12", cell.parts)
    assert found is not None
    assert found.values == outcome.values
    assert {
        name: Path(str(path)).read_bytes() for name, path in found.files.items()
    } == outcome.files
    pd.testing.assert_frame_equal(found.tables["steps"], outcome.tables["steps"])
    assert list(store.digests()) == ["ab12"]


def test_an_outcome_without_the_parts_that_are_wanted_does_not_do(store):
    store.add("ab12", dataclasses.replace(Square(5).run(lambda share: None), files={}))
    assert store.has("ab12", frozenset({"steps.parquet"}))
    assert not store.has("ab12", Square(5).parts)
    assert store.get("ab12", Square(5).parts) is None


@pytest.mark.parametrize("name", ["ab12.json", "ab12/steps.parquet", "ab12/note.bin"])
@pytest.mark.parametrize("damage", ["change", "cut", "remove"])
def test_damage_of_any_byte_is_seen(name, damage, store):
    cell = Square(5)
    store.add("ab12", cell.run(lambda share: None))
    path = store.root / "ab" / name
    written = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(written[:-2])
    else:
        path.write_bytes(bytes([written[0] ^ 1]) + written[1:])
    assert store.get("ab12", cell.parts) is None


def test_a_damaged_outcome_is_named_and_done_again_by_the_same_command(mark, store):
    request = asked(*squares(mark, 2, 3))
    engine.run(TOY, request, SerialExecutor(), store)
    digest = digest_of(request.values.cells["n3"])
    (store.root / digest[:2] / digest / "note.bin").write_bytes(b"?")
    with pytest.raises(SimulationError, match=r"n3.*same command again"):
        engine.run(TOY, request, SerialExecutor(), store)
    engine.run(TOY, request, SerialExecutor(), store)
    assert attempts(mark) == [2, 3, 3]


def test_outcomes_in_memory_are_found_and_forgotten():
    store = Memory()
    store.add("ab", Square(2).run(lambda share: None))
    assert store.has("ab", frozenset()) and store.get("ab", frozenset()) is not None
    store.forget("ab")
    assert not store.has("ab", frozenset())


def test_a_thousand_cells_cost_under_5_ms_each_beside_their_work(tmp_path, store):
    """In processor time: the machine may be busy with other things."""
    request = asked(*(_Plain(number) for number in range(1000)))
    study = dataclasses.replace(
        TOY,
        stages=TOY.stages[:1],
        collect=lambda asked, outcomes: {
            "squares": pd.DataFrame(
                [(n, o.values["square"], 0.0) for n, o in outcomes.items()],
                columns=["name", "square", "third"],
            ),
            "sums": pd.DataFrame({"sum": [0]}),
        },
        decides=("simshuffle.study.engine",),
    )
    begun = time.process_time()
    engine.run(study, request, SerialExecutor(), store, force_size=True)
    assert time.process_time() - begun < 5.0
    begun = time.process_time()
    engine.run(study, request, SerialExecutor(), store)  # listed, found and read back
    assert time.process_time() - begun < 0.5


class _Plain(Square):
    """A square without tables and files."""

    @property
    def parts(self) -> frozenset[str]:
        return frozenset()

    def run(self, tell):
        return dataclasses.replace(super().run(tell), tables={}, files={})


# ------------------------------------------------------------------------------- what stands for it


def test_a_cell_is_known_by_its_key_its_kind_and_its_code(monkeypatch):
    first = digest_of(Square(2))
    assert first == digest_of(Square(2, fails=True))
    assert first != digest_of(Square(3))
    assert first != digest_of(_Plain(2))
    monkeypatch.setattr("simshuffle.study.cell.code_digest", lambda *_: "other code")
    assert first != digest_of(Square(2))


def test_the_code_of_a_module_is_what_it_imports_and_nothing_else(tmp_path, monkeypatch):
    root = tmp_path / "simshuffle"
    sources = {
        "job/__init__.py": "",
        "job/sim/__init__.py": "",
        "job/sim/run.py": "from simshuffle.job.plan import (\n    epochs,\n)\n",
        "job/plan/__init__.py": "",
        "job/plan/epochs.py": "import simshuffle.spec.units\n",
        "job/plan/catalog/models.yaml": "a: 1\n",
        "spec/__init__.py": "",
        "spec/units.py": "",
        "plots.py": "from simshuffle.job.sim import run\n",
    }
    for name, source in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
    monkeypatch.setattr("simshuffle.study.cell.ROOT", root)

    def digest() -> str:
        for function in ("code_digest", "_parse_imports", "_python_files_of_module"):
            getattr(sys.modules["simshuffle.study.cell"], function).cache_clear()
        return code_digest("simshuffle.job.sim.run")

    before = digest()
    (root / "plots.py").write_text("COLOUR = 'red'\n")
    assert digest() == before
    for name in (
        "job/sim/run.py",
        "job/plan/epochs.py",
        "spec/units.py",
        "job/plan/catalog/models.yaml",
    ):
        (root / name).write_text(sources[name] + "# changed\n")
        assert digest() != before, name
        (root / name).write_text(sources[name])
    assert digest() == before
    monkeypatch.undo()
    for function in ("code_digest", "_parse_imports", "_python_files_of_module"):
        getattr(sys.modules["simshuffle.study.cell"], function).cache_clear()
    assert ROOT.name == "simshuffle"


# -------------------------------------------------------------------------------- how far it stands


def test_the_standing_counts_what_was_kept_and_estimates_the_rest(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    told: list[Standing] = []
    watch = StageWatch({"a": Square(10), "b": Square(30)}, num_stored=2, progress=told.append)
    watch.advance("a", 0.0)
    assert told[-1].left_s == pytest.approx(60.0)  # nothing is measured: what the cells cost
    clock[0] += 20.0
    watch.advance("a", 0.5)  # 10 of 60, in 20 s
    assert (told[-1].done, told[-1].total, dict(told[-1].running)) == (2, 4, {"number 10": 0.5})
    assert told[-1].share == pytest.approx(10 / 60)
    slowness = (PRIOR_SECONDS + 20) / (PRIOR_SECONDS + 10)
    assert told[-1].left_s == pytest.approx(slowness * 50.0)
    watch.end("a")
    watch.end("a")  # what is said twice counts once
    watch.advance("b", 0.0)
    assert told[-1].share == pytest.approx(20 / 60)
    watch.end("b")
    assert (told[-1].done, told[-1].share, told[-1].left_s) == (4, 1.0, 0.0)


def test_the_time_that_is_left_knows_how_many_run_at_once_and_which_ends_last(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    told: list[Standing] = []
    watch = StageWatch({"a": Square(0), "b": Square(50), "c": Square(0)}, 0, told.append, at_once=2)
    watch.advance("b", 0.0)
    watch.advance("a", 0.0)
    assert told[-1].left_s == pytest.approx(60.0)  # that of b, and not (10 + 60 + 10) / 2
    clock[0] += 10.0  # both as fast as they cost
    watch.end("a")
    watch.advance("c", 0.0)
    watch.advance("b", 10 / 60)
    assert told[-1].left_s == pytest.approx(50.0)
    watch.drop("c")  # its process died
    watch.advance("b", 0.9)
    assert told[-1].share == pytest.approx((10 + 54) / 80)


@pytest.mark.parametrize("factor", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("later", [0.0, 60.0])
def test_the_time_that_is_left_is_within_a_factor_of_two_from_a_tenth_of_the_way_on(
    monkeypatch, factor, later
):
    """Six cells of 60 s by estimate take ``factor`` times as long; 20 shares are told of each.
    Cells of a later stage have ``later`` s by estimate, and take as many times as long."""
    clock = [0.0]
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    told: list[tuple[float, float | None]] = []
    cells = {str(number): Square(50) for number in range(6)}
    watch = StageWatch(
        cells,
        num_stored=0,
        progress=lambda standing: told.append((clock[0], standing.left_s)),
        later_cost=later,
    )
    for digest in cells:
        for step in range(21):
            watch.advance(digest, step / 20)
            clock[0] += factor * 60.0 / 20 if step < 20 else 0.0
        watch.end(digest)
    whole = clock[0] + factor * later
    late = [(passed, left) for passed, left in told if 0.1 * whole <= passed < 0.99 * clock[0]]
    assert len(late) > 50
    for passed, left in late:
        assert left is not None
        assert 0.5 * (whole - passed) <= left <= 2.0 * (whole - passed)


def test_a_cell_that_says_nothing_takes_as_long_again(monkeypatch):
    """One that said long ago that it is all but done is not said to end at once."""
    clock = [0.0]
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    told: list[Standing] = []
    watch = StageWatch({"a": Square(50)}, 0, told.append)
    watch.advance("a", 0.0)
    clock[0] = 60.0
    watch.advance("a", 1.0)
    assert told[-1].left_s == 0.0
    clock[0] = 90.0
    watch.advance("a", 1.0)
    assert told[-1].left_s == 30.0


def test_cells_that_tell_no_share_do_not_make_the_others_slower(monkeypatch):
    """Two of eight cells of 60 s by estimate are being done for 30 s, and have told nothing."""
    clock = [0.0]
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    told: list[Standing] = []
    watch = StageWatch({str(n): Square(50) for n in range(8)}, 0, told.append, at_once=2)
    watch.advance("0", 0.0)
    watch.advance("1", 0.0)
    clock[0] = 30.0
    watch.tell()
    assert told[-1].left_s == pytest.approx(8 * 60 / 2 - 30)


def test_kinds_of_cells_say_how_slow_they_are_and_a_little_of_the_others(monkeypatch):
    """Of two kinds, a took 20 s for 11 and b nothing yet; a second of estimates counts beside."""
    clock = [100.0]
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    told: list[Standing] = []

    class Cube(Square):
        """Of another kind."""

    past = WorkDone(3.0, 7.0)
    cells = {"a": Square(1), "b": Cube(2), "c": Square(3), "d": Square(-10)}
    watch = StageWatch(cells, 1, told.append, past=past, later_cost=5.0)
    watch.advance("a", 0.0)
    clock[0] = 120.0
    watch.end("a")
    assert watch.took == {"a": 20.0}
    # 12 s of b are left, 13 of c, and of d what any cell takes; 5 s of later stages
    left_of_a, left_of_b = 13.0 + LEAST_COST, 12.0
    slowness_of_a = ((PRIOR_SECONDS + 7) / (PRIOR_SECONDS + 3) + 20) / (PRIOR_SECONDS + 11)
    slowness = (PRIOR_SECONDS + 7 + 20) / (PRIOR_SECONDS + 3 + 11)
    expected = slowness_of_a * left_of_a + slowness * left_of_b + slowness * 5.0
    assert told[-1].left_s == pytest.approx(expected)
    assert (told[-1].done, told[-1].total) == (2, 5)
    done = 3.0 + 11.0
    assert told[-1].share == pytest.approx(done / (done + left_of_a + left_of_b + 5.0))
    assert (past.cost, past.busy) == pytest.approx((14.0, 27.0))
    watch.end("b")  # it never began: how long it took is not known
    assert watch.took == {"a": 20.0}


def test_a_stage_without_cells_is_all_done():
    told: list[Standing] = []
    StageWatch({}, 2, told.append).tell()
    assert told == [Standing(2, 2, 1.0, 0.0, {})]


def test_seconds_that_are_left_follow_from_the_share_done():
    assert estimate_seconds_left(0.25, 10.0) == 30.0
    assert estimate_seconds_left(0.005, 10.0) is None
    assert estimate_seconds_left(0.25, 1.0) is None
    words = [duration(seconds) for seconds in (89.4, 90.0, 5399.0, 5400.0)]
    assert words == ["89 s", "2 min", "90 min", "1.5 h"]
    told: list[Standing] = []
    with listen_to_progress(told.append):
        share_teller("search")(0.5)
    share_teller("nobody")(0.5)
    assert told == [Standing(0, 1, 0.5, None, {"search": 0.5})]


def test_less_than_a_second_is_no_promise():
    standing = Standing(0, 1, 0.99, 0.4, {})
    assert _describe_progress("run", standing) == "run"
    assert (
        _describe_progress("run", dataclasses.replace(standing, left_s=1.2))
        == "run, about 1 s left"
    )


def test_stages_that_follow_count_before_their_cells_are_known():
    """The first stage costs 12 + 13 s by estimate, the second one as much: half is done then."""
    study = dataclasses.replace(TOY, later_cost=lambda numbers, stage: 25.0 if stage == 0 else 0.0)
    told: list[Standing] = []
    engine.run(study, asked(Square(2), Square(3)), progress=told.append)
    first_stage = [standing.share for standing in told if standing.total == 2]
    assert first_stage[-1] == pytest.approx(0.5)
    assert told[-1].share == 1.0


# ------------------------------------------------------------------------------ stopped, and alone


SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from simshuffle.study import engine
    from simshuffle.study.executors import ProcessExecutor
    from simshuffle.study.store import Disk
    from tests.toy import TOY, Square, asked

    def main(place):
        cells = [Square(n, place / "marks", seconds=0.0 if n > 8 else 60.0) for n in (1, 2, 9, 10)]
        try:
            engine.run(TOY, asked(*cells), ProcessExecutor(2), Disk(place / "cells"))
        except engine.Interrupted as stop:
            print(f"kept {stop.done} of {stop.total}")
            sys.exit(130)

    if __name__ == "__main__":
        main(Path(sys.argv[1]))
    """
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_is_stopped_keeps_what_is_done_and_leaves_no_process(number, mark, tmp_path):
    script = tmp_path / "stopped.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        # two are done, two take a minute
        wait_for(lambda: len(list(mark.glob("[0-9]*"))) == 4 or process.poll() is not None)
        assert process.poll() is None
        workers = {int(path.name.split("-")[2]) for path in mark.glob("[0-9]*")}
        process.send_signal(number)
        printed, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert printed == "kept 2 of 4\n"
        assert not list(mark.glob("ended-part-*"))  # what is stopped tidies up
    wait_for(lambda: not any(is_alive(worker) for worker in workers))
    store = Disk(tmp_path / "cells")
    engine.run(TOY, asked(*squares(mark, 1, 2, 9, 10)), SerialExecutor(), store)
    assert sorted(attempts(mark)) == [1, 1, 2, 2, 9, 10]


def wait_for(holds) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_folder_is_for_one_process_at_a_time(tmp_path):
    with engine.hold_folder(tmp_path / "new" / "out"):
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            assert "in use by another process" in pool.apply(held, (tmp_path / "new" / "out",))
    with engine.hold_folder(tmp_path / "new" / "out"):
        pass
    assert list(tmp_path.iterdir()) == []  # what was made for it and stayed empty is gone


def held(folder: Path) -> str:
    try:
        with engine.hold_folder(folder):
            return ""
    except InputError as error:
        return str(error)


def test_a_killed_holder_leaves_the_folder_free(tmp_path):
    (tmp_path / ".out.lock").touch()
    with engine.hold_folder(tmp_path / "out"):
        pass


# ---------------------------------------------------------------------------------------- read back


def test_a_result_of_another_kind_is_refused(tmp_path, mark):
    folder = engine.run(TOY, asked(*squares(mark, 2))).save(tmp_path / "out")
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"kind": "other"}))
    with pytest.raises(InputError, match="simshuffle toy"):
        engine.read(TOY, folder)


def test_processes_refuse_a_store_that_they_do_not_share():
    with pytest.raises(TypeError, match="on disk"):
        engine.run(TOY, asked(Square(2), Square(3)), ProcessExecutor(2), Memory())


@dataclass(frozen=True, kw_only=True)
class NoOptions(Options):
    """Nothing beside what all verbs are asked."""


def test_a_first_answer_is_said_before_the_cells_and_not_where_the_result_is_there(tmp_path):
    heard: list[str] = []
    request = asked(Square(2), Square(3))
    verb = Verb(
        "toy",
        NoOptions,
        lambda options: (TOY, request),
        (),
        first_answer=lambda options, request: [f"about {len(request.values.cells)} squares"],
    )
    teller = Teller(say=heard.append)
    for _ in range(2):
        Performance(verb, NoOptions(out=tmp_path / "toy"), teller).result()
    expected = [FIRST_ANSWER, "  about 2 squares"]
    assert heard[:2] == expected
    assert [line for line in heard[2:] if line in expected] == []

"""What cells took on this machine, and the estimates that rest on it."""

import json
import math
import os

import pytest

from simshuffle.cli import main
from simshuffle.study import cell_times
from simshuffle.study.cell import digest_of
from simshuffle.study.cell_times import (
    FACTOR,
    MAX_REMEMBERED,
    CellTimes,
    calibrations,
    note_cell_times,
)
from simshuffle.study.executors import LocalExecutor
from simshuffle.study.standing import StageWatch, Standing
from simshuffle.study.store import Disk, Memory
from tests.toy import Square


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The file in which they are kept, not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "simshuffle" / "calibration.json"


def test_the_factor_is_the_median_and_holds_for_nine_of_ten():
    """20 ratios: 18 between 2 and 6, whose median is 4, and two outliers."""
    ratios = [2.0, *[4.0] * 16, 6.0, 40.0, 0.1]
    assert CellTimes.from_ratios(ratios) == CellTimes(4.0, 2.0, 20)
    # less than the clock tells apart is not claimed
    assert CellTimes.from_ratios([4.0] * MAX_REMEMBERED).within == 1.5


def test_few_cells_say_little_of_how_much_the_next_one_may_be_off():
    assert CellTimes.from_ratios([5.0, 5.0]) == CellTimes(1.0, FACTOR, 0)
    found = CellTimes.from_ratios([5.0] * 5)
    assert (found.factor, found.count) == (5.0, 5)
    assert found.within == pytest.approx(FACTOR**0.75)
    assert CellTimes.from_ratios([1.0, 5.0, 50.0]).within == 10.0


def test_the_last_ones_of_a_kind_are_remembered(kept):
    assert calibrations() == {}
    note_cell_times([("a", 2.0, 6.0)] * (MAX_REMEMBERED + 5) + [("b", 1.0, 1.0)])
    note_cell_times([("a", 2.0, 8.0)] * MAX_REMEMBERED)
    assert calibrations()["a"] == CellTimes(4.0, 1.5, MAX_REMEMBERED)
    assert calibrations()["b"].count == 0
    assert [each.name for each in kept.parent.iterdir()] == [kept.name]


def test_three_tenths_of_a_second_are_noted(kept):
    note_cell_times([("a", 0.3, 0.1), ("a", 0.1, 0.3), ("a", 0.3, 0.3), ("a", 0.29, 0.29)])
    assert calibrations()["a"].count == 3


def test_what_takes_no_time_is_not_noted(kept):
    note_cell_times([("a", 0.0, 5.0), ("a", 0.1, 0.2), ("a", 5.0, 0.0)])
    assert not kept.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": "0.0.1", "ratios": {"a": [9, 9, 9]}}',
        '{"version": VERSION}',
        '{"version": VERSION, "ratios": [1]}',
        '{"version": VERSION, "ratios": {"a": "x"}}',
        '{"version": VERSION, "ratios": {"a": [null]}}',
        '{"version": VERSION, "ratios": {"a": [-1, 0, Infinity, NaN]}}',
        "\x00\xff",
    ],
)
def test_a_file_that_is_damaged_is_none(kept, text):
    kept.parent.mkdir()
    kept.write_bytes(text.replace("VERSION", json.dumps(cell_times.__version__)).encode("latin1"))
    assert calibrations().get("a", CellTimes()) == CellTimes()
    note_cell_times([("a", 1.0, 2.0)] * 3)
    assert calibrations()["a"].factor == 2.0


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", "/dev/null"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        note_cell_times([("a", 1.0, 2.0)] * 3)
        assert calibrations() == {}


def done(cells, store, clock, monkeypatch):
    """Do cells by the executor of the command line, each of which takes three times its cost on a
    core of its own; two processes share a core."""
    monkeypatch.setattr("simshuffle.study.standing.monotonic", lambda: clock[0])
    monkeypatch.setattr("os.getloadavg", lambda: (2.0 * os.cpu_count(), 0.0, 0.0))
    run = Square.run

    def slow(cell, tell):
        clock[0] += 2 * 3.0 * cell.cost
        return run(cell, tell)

    monkeypatch.setattr(Square, "run", slow)
    by_digest = {digest_of(cell): cell for cell in cells}
    list(LocalExecutor(1).do(by_digest, store, StageWatch(by_digest, 0, None)))


def test_cells_that_are_done_are_noted_and_those_that_fail_are_not(kept, monkeypatch):
    cells = [*(Square(number) for number in range(4)), Square(9, fails=True)]
    done(cells, Memory(), [0.0], monkeypatch)
    found = calibrations()["tests.toy.Square"]
    assert (found.factor, found.count) == (pytest.approx(3.0), 4)


def test_cells_in_processes_are_noted_too(kept, tmp_path):
    cells = {digest_of(cell): cell for cell in (Square(n, seconds=0.01) for n in range(4))}
    list(LocalExecutor(2).do(cells, Disk(tmp_path / "cells"), StageWatch(cells, 0, None)))
    (found,) = calibrations().values()
    assert found.count == 4 and math.isfinite(found.factor)


def test_the_first_estimate_of_the_progress_rests_on_them(kept):
    """Square(10) costs 20 s, and such cells took three times that. So do the stages after it."""
    note_cell_times([("tests.toy.Square", 10.0, 30.0)] * 3)
    told: list[Standing] = []
    watch = StageWatch({"a": Square(10)}, num_stored=0, progress=told.append, later_cost=5.0)
    watch.advance("a", 0.0)
    assert told[-1].left_s == pytest.approx(60.0 + 15.0, rel=0.01)


def check(capsys, *words):
    assert main(["check", "quickstart", "--set", "sweep={}", *words]) == 0
    return capsys.readouterr().out


def test_check_says_what_its_estimate_rests_on(kept, capsys):
    before = " ".join(check(capsys).split())
    assert f"within a factor of {FACTOR:g}, until some were timed on this one" in before
    row = json.loads(check(capsys, "--json"))[0]
    assert (row["simulation_timed"], row["simulation_within"]) == (0, FACTOR)
    kind = "partial_local_shuffle, fluid"
    note_cell_times([(kind, 1.0, 10.0)] * 6)
    words = ("--set", "workload.exchange=partial_local_shuffle:exchange_fraction=0.1")
    text = " ".join(check(capsys, *words).split())
    assert "as the last 6 such runs took on this machine" in text
    slow = json.loads(check(capsys, *words, "--json"))[0]
    assert slow["simulation_timed"] == 6
    kept.unlink()
    fast = json.loads(check(capsys, *words, "--json"))[0]
    start = 0.7
    assert slow["simulation_s"] - start == pytest.approx(10 * (fast["simulation_s"] - start))


def test_a_run_calibrates_the_next_check(kept, capsys, here, monkeypatch):
    """As a user does it; whatever the run took."""
    monkeypatch.setattr(cell_times, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(cell_times, "MIN_CELLS", 1)  # of cells that count
    words = ["quickstart", "--set", "sweep={}", "--set", "world_size=16"]
    assert main(["run", *words, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["check", *words]) == 0
    assert "as the last 1 such runs took" in " ".join(capsys.readouterr().out.split())

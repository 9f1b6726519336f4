"""docs/reference/speed.md has a row for every case of benchmarks/speed.py, in their order."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def speed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("speed")


def rows(speed):
    """The cells of the table between the markers, by case."""
    page = speed.PAGE.read_text()
    found = re.findall(r"<!-- speed -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert len(found) == 1
    _, _, table = found[0].partition(speed.HEAD)
    assert table, "the page has another head than the script"
    cells = [line.strip("| ").split(" | ") for line in table.strip().splitlines()]
    return {name: rest for name, *rest in cells}


def test_the_page_has_a_row_for_every_case_in_their_order(speed):
    names = [case.name for case in speed.CASES]
    assert len(names) == len(set(names))
    assert list(rows(speed)) == [*names, speed.GROWTH_POWER]


def test_the_page_shows_what_is_wanted(speed):
    found = rows(speed)
    for case in speed.CASES:
        wanted = case.wanted.seconds, case.wanted.megabytes
        shown = found[case.name][2], found[case.name][7]
        assert shown == tuple(map(speed.shown, wanted))


def test_a_row_says_how_many_times_the_limit_it_takes(speed):
    before, now, limit = speed.Cost(3.0, 400.0), speed.Cost(1.5, 12_345.0), speed.Cost(0.1)
    assert speed.row("a", before, now, limit, speed.Cost(2.0)) == (
        "| a | 3 | 1.5 | 2 | 0.1 | 15 | 400 | 12,300 | - | - | - |"
    )
    assert speed.row("a", speed.Cost(), now, limit, speed.Cost(), "SimGrid 1 s") == (
        "| a | - | 1.5 | - | 0.1 | 15 | - | 12,300 | - | - | SimGrid 1 s |"
    )


def test_growth_is_from_the_fewest_ranks_to_the_most(speed):
    assert speed.power({8: 64.0, 2: 4.0, 4: 1.0}) == pytest.approx(2.0)
    assert speed.power({8: 64.0}) is None

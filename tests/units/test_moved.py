"""Modules by the names that they had before they were moved into rooms."""

import importlib
import sys
from pathlib import Path

import pandas as pd
import pytest

import simshuffle
from simshuffle.moved import NEW_PLACES, find_new_name
from simshuffle.report import report


@pytest.mark.parametrize("old", NEW_PLACES)
def test_every_new_place_is_there(old):
    path = Path(simshuffle.__file__).parent.joinpath(*NEW_PLACES[old].split("."))
    assert path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("old", [*NEW_PLACES, "exchange.strategies", "studies.planning.costs"])
def test_an_old_name_is_the_same_module_and_says_the_new_one(old):
    name = f"simshuffle.{old}"
    new = find_new_name(name)
    for part in [name, name.rpartition(".")[0]]:
        if find_new_name(part):
            sys.modules.pop(part, None)
    with pytest.warns(FutureWarning) as warned:
        found = importlib.import_module(name)
    assert f"{name} is {new} now; the old name goes in 0.4." == str(warned[-1].message)
    assert found is importlib.import_module(new)


def test_what_has_not_moved_is_left_alone():
    assert [
        find_new_name(name) for name in ("simshuffle.train.run", "numpy.plan", "simshuffle")
    ] == [
        None,
        None,
        None,
    ]


def test_the_breakdown_of_the_papers_has_its_old_name():
    table = pd.DataFrame({"run": ["a"] * 2, "epoch": 1, "label": "IO", "seconds": [1.0, 2.0]})
    with pytest.warns(FutureWarning, match="booked is book_as_papers now; .* goes in 0.4"):
        old = report.booked(table)
    pd.testing.assert_frame_equal(old, report.book_as_papers(table))
    assert old["seconds"].tolist() == [3.0]

"""The public interface is the one of tests/golden/public_api.txt; docs/stability.md has the level
of each name, and the old names are those of the code."""

import importlib
import re

import pytest

from simshuffle import moved
from tests.golden import make_public_api as api
from tests.golden.make_public_api import (
    FILE,
    PAGE,
    find_lost,
    list_changes,
    read_levels,
    read_lines,
)


@pytest.fixture(scope="module")
def names():
    return api.describe_interface()


def test_the_interface_is_that_of_the_golden_file(names):
    text = FILE.read_text("utf-8")
    changes = list_changes(read_lines(text), names)
    assert not changes, "\n".join(changes)
    assert api.write_lines(names) == text


def test_the_page_names_what_there_is(names):
    """Each name has its level by `describe_interface`; here that none is left over."""
    levels = api.read_levels(PAGE.read_text("utf-8"))
    assert sorted(levels.keys() - names.keys()) == []
    assert {"stable", "provisional"} == set(levels.values())


def test_the_page_has_the_old_names_and_the_version_that_ends_them():
    text = PAGE.read_text("utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", text, re.MULTILINE))
    assert rows == moved.OLD_VERBS | {
        old: f"{old.rpartition(' ')[0]} {new}" for old, new in moved.OLD_OPTIONS.items()
    }
    assert f"go in {moved.FAREWELL}" in text


def test_commands_of_the_benchmarks_have_no_old_names(names, monkeypatch):
    """Those that `benchmarks/same_results.py` runs on two checkouts."""
    monkeypatch.syspath_prepend(str(api.ROOT / "benchmarks"))
    cases = importlib.import_module("verb_cases")
    for words in (words for case in cases.CASES for words in case.commands):
        verb = " ".join(words[: 2 if words[0] in cases.GROUPS else 1])
        assert f"verb {verb}" in names, words
        options = [word for word in words if word.startswith("--")]
        assert not [each for each in options if f"{verb} {each}" in moved.OLD_OPTIONS]


@pytest.mark.parametrize(
    "lost",
    [
        "verb run",
        "option run --seeds",
        "function sweep",
        "parameter sweep over",
        "folder sweep",
        "column sweep/summary.csv mean",
        "key workload.dataset",
    ],
)
def test_a_stable_name_does_not_go_without_an_old_one(lost, names):
    left = {name: detail for name, detail in names.items() if name != lost}
    assert find_lost(names, left) == [lost]
    assert lost in list_changes(names, left)[-1]


@pytest.mark.parametrize(
    ("lost", "old"),
    [
        ("verb run", "old verb run"),
        ("verb run", "old refused verb run"),
        ("verb results show", "old removed show"),
        ("option run --seeds", "old option run --seeds"),
        ("option run --seeds", "old verb run"),
        ("parameter sweep over", "old removed sweep"),
        ("column sweep/summary.csv mean", "old removed sweep"),
    ],
)
def test_a_stable_name_may_go_where_a_list_has_it(lost, old, names):
    left = {name: detail for name, detail in names.items() if name != lost} | {old: "now x"}
    assert find_lost(names, left) == []
    assert api.RENEW in list_changes(names, left)[-1]


def test_a_new_verb_needs_a_level(names, monkeypatch):
    text = PAGE.read_text("utf-8").replace("`study sizes`, ", "")
    monkeypatch.setattr(api, "read_levels", lambda _: read_levels(text))
    told = list_changes(names, api.describe_interface())
    assert "~ verb study sizes: stable, verb -> without a level, verb" in told
    assert told[-1] == "verb study sizes: docs/stability.md gives no level, stable or provisional."


def test_a_provisional_name_may_go_and_a_changed_default_is_told(names):
    assert names["verb doctor"].startswith("provisional")
    left = {name: detail for name, detail in names.items() if name != "verb doctor"}
    assert find_lost(names, left) == []
    other = names | {"option run --seeds": "stable, N, default 2"}
    told = list_changes(names, other)
    assert told[0].endswith("default 1 -> stable, N, default 2")
    assert api.RENEW in told[-1]


def test_a_new_column_without_which_older_folders_are_refused_is_told(names):
    column = "column sweep/summary.csv mean"
    assert not names[column].endswith(api.READ)  # it follows from others
    column = "column calibration/measurements.csv rate"
    assert names[column].endswith(api.READ)
    stored = {name: detail for name, detail in names.items() if name != column}
    assert list_changes(stored, names)[-1].startswith(f"{column}: folders of earlier versions")
    filled = names | {column: names[column].removesuffix(api.READ)}
    assert list_changes(stored, filled)[-1].startswith("If it is meant")
    del stored["folder calibration"]
    assert api.find_unreadable(stored, names) == []


def test_nothing_is_written_where_a_stable_name_is_lost(names, tmp_path, monkeypatch, capsys):
    file = tmp_path / "api.txt"
    file.write_text(api.write_lines(names | {"verb gone": "stable, verb"}), "utf-8")
    monkeypatch.setattr(api, "FILE", file)
    monkeypatch.setattr(api, "describe_interface", lambda: names)
    assert api.main() == 1
    assert "- verb gone: stable, verb\nverb gone: stable, so the old" in capsys.readouterr().out
    assert "verb gone" in file.read_text("utf-8")
    file.write_text(api.write_lines(names | {"verb gone": "provisional, verb"}), "utf-8")
    assert api.main() == 0
    assert file.read_text("utf-8") == api.write_lines(names)

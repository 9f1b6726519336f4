"""YAML that is small and means much, or is large: what every reader of it refuses, counted and not
timed."""

import csv
import datetime
from pathlib import Path

import pytest

from simshuffle import validate
from simshuffle.errors import InputError, ScenarioError
from simshuffle.extensions.calibration.validation.table import COLUMNS
from simshuffle.spec import library
from simshuffle.spec.library import (
    MAX_NUMBER,
    MAX_YAML_DEPTH,
    MAX_YAML_LENGTH,
    MAX_YAML_VALUES,
    parse_kind,
    read_value,
    read_yaml,
)

TIMES = ", ".join(["*a{}"] * 9)
BOMB = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"a{level}: &a{level} [{TIMES.replace('{}', str(level - 1))}]\n" for level in range(1, 10)
)
"""Nine levels of nine aliases: 500 bytes that stand for 3.5 billion values."""


def read(folder: Path, text: str):
    path = folder / "x.yaml"
    path.write_text(text)
    return read_yaml(path)


def refused_text(folder: Path, text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(folder, text)
    (problem,) = caught.value.problems
    assert problem.rule and problem.remedy and len(str(problem)) < 400
    assert str(folder / "x.yaml") in str(caught.value)
    return str(problem)


# ------------------------------------------------------------------------------------------- bounds


def test_values_are_counted_with_aliases_written_out(tmp_path, monkeypatch):
    assert "50000 keys and values" in refused_text(tmp_path, BOMB)
    monkeypatch.setattr(library, "MAX_YAML_VALUES", 20)
    # the mapping, two keys, a list of 5 (6 values), and that list twice in a list: 1 + 2 + 6 + 13
    assert "line 2, column" in refused_text(tmp_path, "a: &a [1, 2, 3, 4, 5]\nb: [*a, *a]\n")
    monkeypatch.setattr(library, "MAX_YAML_VALUES", 22)
    assert read(tmp_path, "a: &a [1, 2, 3, 4, 5]\nb: [*a, *a]\n")[0]["b"] == [[1, 2, 3, 4, 5]] * 2
    # documents count together
    assert refused_text(tmp_path, "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n---\n" * 2)
    assert len(read(tmp_path, "[1, 2, 3, 4, 5, 6, 7, 8, 9]\n---\n[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"))


def test_a_merge_is_refused(tmp_path):
    assert "merge" in refused_text(tmp_path, "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")


def test_as_many_values_as_that_are_read(tmp_path, monkeypatch):
    assert MAX_YAML_VALUES == 50_000
    monkeypatch.setattr(library, "MAX_YAML_VALUES", 500)
    assert len(read(tmp_path, f"[{'1,' * 499}]")[0]) == 499
    assert "at most 500 keys and values" in refused_text(tmp_path, f"[{'1,' * 500}]")


@pytest.mark.parametrize("around", [("[", "]"), ("{a: ", "}")])
def test_values_are_nested_so_deep_and_no_deeper(around, tmp_path):
    first, last = around
    assert read(tmp_path, first * (MAX_YAML_DEPTH - 1) + "1" + last * (MAX_YAML_DEPTH - 1))
    for depth in (MAX_YAML_DEPTH, 100_000):
        assert "within one another" in refused_text(tmp_path, first * depth + "1" + last * depth)


def test_aliases_within_aliases_are_deep_too(tmp_path):
    def chain(levels):
        steps = [f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, levels)]
        return "a0: &a0 [1]\n" + "".join(steps)

    assert len(read(tmp_path, chain(MAX_YAML_DEPTH - 2))[0]) == MAX_YAML_DEPTH - 2
    assert "within one another" in refused_text(tmp_path, chain(MAX_YAML_DEPTH - 1))
    assert "within one another" in refused_text(tmp_path, chain(10_000))


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}", "&a {*a : 1}", "&a [[1, *a]]"])
def test_a_value_that_holds_itself_is_refused(text, tmp_path):
    assert "hold itself" in refused_text(tmp_path, text)


def test_a_text_is_so_long_and_no_longer(tmp_path, monkeypatch):
    assert "1000000 characters" in refused_text(tmp_path, "x" * (MAX_YAML_LENGTH + 1))
    monkeypatch.setattr(library, "MAX_YAML_LENGTH", 500)
    assert read(tmp_path, "ü" * 500) == ["ü" * 500]
    assert "500 characters" in refused_text(tmp_path, "ü" * 501)


@pytest.mark.parametrize("head", ["9", "-1", "0x", "0b", "0", "1.", "1e+", "1"])
def test_a_number_is_so_long_and_no_longer(head, tmp_path):
    digits = "0:1" if head == "1" else "1"  # minutes: a number to the base of 60
    fits = (head + digits * MAX_NUMBER)[:MAX_NUMBER]
    if head == "1e+":
        fits = "1.0e+308"
    (found,) = read(tmp_path, fits)
    assert isinstance(found, int | float) and repr(found) and float(found) < 1e309
    assert "at most 100 characters" in refused_text(tmp_path, f"a: {fits}{digits * MAX_NUMBER}")


TAGGED = (
    *("!!int x", "!!int ''", "!!float x", "!!bool x", "!!timestamp x", "!!binary x", "!!omap [1]"),
    *("!!python/object:os.system x", "2001-99-99", "0001-01-01T00:00:00+99:99", "=", "*b"),
)


@pytest.mark.parametrize(
    "text",
    [*(f"a: {value}" for value in TAGGED), "? [1]\n: 2", "\0", "%YAML 9.9\n--- a", "a: 1\na: 2"],
)
def test_a_text_that_does_not_fit_its_tag_is_refused(text, tmp_path):
    refused_text(tmp_path, text)


def test_plain_values_are_read_as_ever(tmp_path):
    text = "a: [1, 0x10, 1_000, 1:30, 1.5, .inf, yes, ~, 2026-01-02, 'x', |-\n  y\n]\n"
    text = text.replace(", |-\n  y\n", "")
    (found,) = read(tmp_path, text)
    date = datetime.date(2026, 1, 2)
    assert found == {"a": [1, 16, 1000, 90, 1.5, float("inf"), True, None, date, "x"]}
    assert read(tmp_path, "") == [] and read(tmp_path, "--- 1\n--- 2") == [1, 2]


# ------------------------------------------------------------------------------------------ readers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run bomb.yaml", "bomb.yaml"),
        ("check quickstart --set cluster=./bomb.yaml", "cluster"),
        ("check quickstart --set include=bomb.yaml", "include"),
        ("train bomb.yaml", "bomb.yaml"),
        ("study tta bomb.yaml quickstart", "bomb.yaml"),
        ("run quickstart --set sweep={bomb}", "--set"),
        ("train quick --set seeds={bomb}", "--set"),
        ("study ablate quickstart --also payload={bomb}", "--also"),
    ],
)
def test_files_and_values_of_the_command_line_are_bounded(words, said, refused):
    in_braces = "{" + BOMB.strip().replace("\n", ", ") + "}"
    arguments = [word.replace("{bomb}", in_braces) for word in words.split()]
    message = refused(arguments, {"bomb.yaml": BOMB})
    assert "50000 keys and values" in message and said in message


def test_a_value_of_the_command_line_is_one_value():
    assert read_value("[1, {a: b}]", "--set x") == [1, {"a": "b"}]
    assert read_value("", "--set x") is None
    for text in ("1\n--- 2", "[", "{a: 1, a: 2}", "!!python/none x", "'\udcff'"):
        with pytest.raises(InputError, match="--set x"):
            read_value(text, "--set x")
    with pytest.raises(InputError, match="exchange_fraction"):
        parse_kind("partial_local_shuffle:exchange_fraction=[")


def test_values_of_own_rows_are_bounded(tmp_path):
    row = dict.fromkeys(COLUMNS, "") | {"set": "own", "case": "c", "source": "s", "unit": "s"}
    row |= {"measured": "1", "use": "predict", "kind": "run", "quantity": "steady epoch"}
    row |= {"scenario": "quickstart", "values": "seed=" + "[" * 60}
    with (tmp_path / "own.csv").open("w", newline="") as file:
        csv.writer(file).writerows([row.keys(), row.values()])
    with pytest.raises(InputError, match="within one another"):
        validate(folder=tmp_path, processes=1, progress=False)


def test_no_other_place_reads_yaml():
    package = Path(library.__file__).parents[1]
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if "yaml.load" in line or "yaml.safe_load" in line or "yaml.full_load" in line
    }
    assert readers == {"spec/library.py"}


def test_shipped_files_are_far_below_the_bounds():
    for folder in ("scenarios", "studies", "topologies"):
        for name in library.shipped_names(folder):
            path = library.shipped_folder(folder) / f"{name}.yaml"
            assert path.stat().st_size < MAX_YAML_LENGTH / 20

"""Dotted keys, names that stand for records, and grids."""

from pathlib import Path

import pytest
import yaml

from simshuffle.errors import InputError, Problem
from simshuffle.spec.overrides import (
    MOST_COMBINATIONS,
    add_axis_values,
    combination_name,
    expand_name,
    grid,
    pin_axis,
    read_axis,
    set_key,
)

TABLES = yaml.safe_load((Path(__file__).parents[1] / "data" / "overrides.yaml").read_text())


def nobody(name):
    if name == "nobody":
        raise InputError(Problem("name", "is not known", repr(name), "Name another."))
    return {"name": name, "size": 1}


@pytest.mark.parametrize(("key", "expected"), TABLES["keys"])
def test_a_dotted_key_is_set_in_mappings_and_lists(key, expected):
    raw, problems = {"a": {"z": 0}, "list": [{"x": 1}, 2]}, []
    assert set_key(raw, key, 7, problems)
    assert (raw, problems) == (expected, [])


def test_what_is_set_is_a_copy():
    raw, value = {}, [1]
    set_key(raw, "a", value, [])
    value.append(2)
    assert raw == {"a": [1]}


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("plain.x", "'plain' holds a plain value; got 3"),
        ("list.9.x", "there is no 'list.9'; got 7"),
        ("list.9", "there is no 'list.9'; got 7"),
        ("list.-1", "there is no 'list.-1'; got 7"),
        ("list.x.y", "there is no 'list.x'; got 7"),
        (f"list.{'9' * 5000}", "there is no 'list.99"),
    ],
)
def test_a_key_that_cannot_be_set_is_a_problem_and_changes_nothing(key, says):
    raw, problems = {"plain": 3, "list": [{}]}, []
    assert not set_key(raw, key, 7, problems)
    assert raw == {"plain": 3, "list": [{}]}
    assert [problem.path for problem in problems] == [key]
    assert says in str(problems[0])


def test_missing_mappings_are_made_or_refused():
    problems = []
    assert not set_key({}, "a.b", 1, problems, create=False)
    assert "there is no 'a'" in str(problems[0])


def test_a_name_on_the_way_is_replaced_by_what_it_names():
    raw, problems = {"w": {"model": "big"}}, []
    references = {"w.model": nobody}
    assert set_key(raw, "w.model.size", 5, problems, references)
    assert raw == {"w": {"model": {"name": "big", "size": 5}}}
    raw = {"w": {"model": "nobody"}}
    assert not set_key(raw, "w.model.size", 5, problems, references)
    assert not expand_name(raw, "w.model", references, problems)
    assert [problem.path for problem in problems] == ["w.model.name"] * 2
    assert raw == {"w": {"model": "nobody"}}
    assert expand_name({"w": 3}, "w.model", references, problems)  # nothing there to be named


def test_a_grid_is_every_combination_or_the_values_side_by_side():
    assert grid({}) == [{}]
    axes = {"a": [1, 2], "b": ["x", "y"]}
    assert grid(axes) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid(axes, zipped=True) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("axes", "zipped", "says"),
    [
        ({"a": [1], "b": []}, False, "b: must list at least one value; got none"),
        ({"a": [1, 2], "b": [1]}, True, "must be equally many; got a: 2, b: 1"),
        ({str(key): range(100) for key in range(8)}, False, "at most 100000 combinations"),
        ({"a": range(MOST_COMBINATIONS + 1)}, True, "at most 100000 combinations; got 100001"),
    ],
)
def test_axes_that_make_no_grid_are_refused(axes, zipped, says):
    with pytest.raises(InputError, match=says):
        grid(axes, zipped)


def test_a_combination_is_named_by_the_last_step_of_its_keys():
    values = {"w.rings": 2, "seed": 3, "cluster": {"name": "abci", "x": 1}, "e": {"kind": "ring"}}
    assert combination_name(values) == "rings=2 seed=3 cluster=abci e=ring"
    assert combination_name(values, {"seed", "e"}) == "rings=2 cluster=abci"


def test_a_key_that_is_set_is_no_longer_an_axis_and_none_is_set_below_an_axis():
    axes, problems = {"a": [1], "a.b": [2], "ab": [3], 4: [5]}, []
    pin_axis(axes, "a", 1, "sweep", problems)
    assert (axes, problems) == ({"ab": [3], 4: [5]}, [])
    pin_axis(axes, "ab.c", 1, "sweep", problems)
    assert "has no effect: sweep.ab sets it for each run" in str(problems[0])


@pytest.mark.parametrize(("text", "key", "values"), TABLES["axes"])
def test_an_axis_of_a_command_line(text, key, values):
    assert read_axis(text) == (key, values)


@pytest.mark.parametrize("text", ["x", "=1", "x=", "x=[1", "x=]1", "x='1"])
def test_an_axis_that_is_none_is_refused(text):
    with pytest.raises(InputError):
        read_axis(text)


def test_a_problem_says_which_values_of_the_axes_it_comes_from():
    axes = {"w.exchange": ["a", "b"], "seed": [1, 2, 3], "one": [7]}
    values = {"w.exchange": "b", "seed": 3, "one": 7}

    def told(path):
        return add_axis_values(Problem(path, "is bad", "x"), axes, values).rule

    assert told("w.exchange.q") == told("w") == "is bad (value 2 of w.exchange, 'b')"
    assert told("seed") == "is bad (value 3 of seed, '3')"
    assert told("one") == "is bad"  # there is no other
    assert told("elsewhere") == "is bad (value 2 of w.exchange, 'b'; value 3 of seed, '3')"

"""Errors as objects."""

import pickle

import pytest

from simshuffle.errors import InputError, Problem, ScenarioError, TopologyError


@pytest.mark.parametrize("kind", [InputError, ScenarioError, TopologyError])
def test_an_error_of_another_process_says_the_same(kind):
    error = kind(
        [Problem("a.b", "must be positive", "-1", "Use 1."), Problem("c", "is missing")],
        "file.yaml",
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.problems, again.source) == (error.problems, error.source)

"""A plain value where a record must stand: the refusal names the key that it belongs to."""

import shlex

import pytest
import yaml

from simshuffle.errors import ScenarioError
from simshuffle.job.scenario.scenario import load_scenario
from tests.contracts.test_refusals import DATA, read_refusals

ROWS = [
    refusal
    for path in sorted(DATA.glob("refusals*.txt"))
    for refusal in read_refusals(path)
    if refusal.said[0].endswith("must be a mapping of keys")
]
FAILURES = {"kind": "exponential", "mean_between": "5 d"}


def remedy_of(key, value, path):
    with pytest.raises(ScenarioError) as caught:
        load_scenario("quickstart", {"sweep": {}, key: value})
    problem = {problem.path: problem for problem in caught.value.problems}[path]
    assert problem.rule == "must be a mapping of keys"
    return problem.remedy


@pytest.mark.parametrize("refusal", ROWS, ids=lambda row: row.command)
def test_what_the_remedy_says_is_taken(refusal):
    """The words are in the row; the key that they name is refused with no such words."""
    key, value = shlex.split(refusal.command)[-1].split("=")
    main_key = refusal.said[-1].removeprefix("or set ")
    with pytest.raises(ScenarioError) as caught:
        load_scenario("quickstart", {"sweep": {}, main_key: yaml.safe_load(value), "name": 3})
    assert all(key != problem.path for problem in caught.value.problems)


def test_a_record_inside_a_union_and_a_list():
    written = remedy_of("failures", {**FAILURES, "repair": "12 h"}, "failures.repair")
    assert written == "Write repair: {mean: 12 h}, or set failures.repair.mean."
    assert "uniform" in remedy_of("background", [0.5], "background.0")


def test_what_fits_no_key_is_told_the_keys_or_kinds():
    assert "sequence_length" in remedy_of(
        "workload.dataset.tokens", True, "workload.dataset.tokens"
    )
    assert "ring" in remedy_of("workload.allreduce", 3, "workload.allreduce")
    with pytest.raises(ScenarioError, match=r"failures\.kind: is required\. Name one of"):
        load_scenario("quickstart", {"failures.repair": "12 h"})

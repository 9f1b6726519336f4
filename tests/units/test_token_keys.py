"""Token data that are not valid: each problem names its path, the value, and what to do."""

from typing import Any

import pytest

from simshuffle.errors import InputError
from tests.small import small

GOOD: dict[str, Any] = {"sequence_length": 1000, "document_length": {"mean": 300, "std": 300}}
SOURCE = {"name": "a", "weight": 1, "tokens": 5000}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"sequence_length": 1}, "sequence_length", "1"),
    ({"bytes_per_token": 3}, "bytes_per_token", "3"),
    ({"document_length": {"mean": 0, "std": 0}}, "document_length.mean", "0"),
    ({"document_length": {"mean": 300}}, "document_length.std", ""),
    ({"packing": "bins"}, "packing", "'bins'"),
    ({"sources": [{**SOURCE, "weight": 0}]}, "sources", "none"),
    ({"sources": [{**SOURCE, "weight": -1}]}, "sources.0.weight", "-1"),
    ({"sources": [{**SOURCE, "tokens": 999}]}, "sources", "999 of 'a'"),
    ({"sources": [SOURCE, SOURCE]}, "sources", "several 'a'"),
    ({"attention": "documents"}, "attention_share", ""),
]


def problems(tokens: dict[str, Any], **more: Any) -> list[Any]:
    dataset = {"name": "t", "num_samples": 800, "tokens": tokens, **more}
    with pytest.raises(InputError) as raised:
        small(workload__dataset=dataset)
    return list(raised.value.problems)


@pytest.mark.parametrize(("values", "path", "value"), BAD)
def test_each_problem_is_told(values, path, value):
    found = {each.path: each for each in problems({**GOOD, **values})}
    each = found[f"workload.dataset.tokens.{path}"]
    assert each.value == value
    assert each.rule and each.remedy


def test_a_size_beside_tokens_or_none_at_all():
    (both,) = problems(GOOD, sample_size={"mean": "4 kB"})
    assert (both.path, both.rule) == ("workload.dataset.sample_size", "follows from tokens")
    with pytest.raises(InputError) as raised:
        small(workload__dataset={"name": "t", "num_samples": 800})
    (none,) = raised.value.problems
    assert (none.path, none.rule) == ("workload.dataset.sample_size", "is required")


def test_requests_of_several_samples_need_sequences_packed_before():
    (found,) = problems(GOOD, samples_per_request=8)
    assert (found.path, found.value) == ("workload.dataset.samples_per_request", "8")
    packed = {"name": "t", "num_samples": 800, "tokens": {**GOOD, "shuffled": "sequences"}}
    at_once = small(workload__dataset={**packed, "samples_per_request": 8})
    assert at_once.workload.dataset.read_at_once == 8.0
    assert at_once.workload.dataset.samples_per_file == 800

"""A plain value where a record must stand: the refusal names the key that it belongs to."""

import pytest

from simshuffle.errors import ScenarioError
from simshuffle.scenario.scenario import load_scenario

FAILURES = {"kind": "exponential", "mean_between": "5 d"}


def remedy_of(key, value, path=None):
    with pytest.raises(ScenarioError) as caught:
        load_scenario("quickstart", {"sweep": {}, key: value})
    problems = {problem.path: problem for problem in caught.value.problems}
    problem = problems[path or key]
    assert problem.rule == "must be a mapping of keys"
    return problem.remedy


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("workload.dataset.sample_size", "110 kB", "sample_size: {mean: 110 kB}"),
        ("workload.dataset.decoded_size", "1 MB", "decoded_size: {mean: 1 MB}"),
        ("workload.dataset", 5, "dataset: {num_samples: 5}"),
        ("workload.loader", 8, "loader: {workers: 8}"),
        ("workload.staging", "memory", "staging: {target: memory}"),
        ("workload.jitter", 0.1, "jitter: {compute: 0.1}"),
        ("workload.checkpoint", 500, "checkpoint: {every: 500}"),
        ("workload.checkpoint", "600 s", "checkpoint: {period: 600 s}"),
        ("workload.model.accelerators.gpu", "1 ms", "gpu: {forward: 1 ms}"),
        ("cluster.ssd", "3 TB", "ssd: {capacity: 3 TB}"),
        ("cluster.parallel_file_system", "9 GB/s", "{read_bandwidth: 9 GB/s}"),
        ("cluster.object_store", "1 ms", "object_store: {latency: 1 ms}"),
        ("recovery", 3, "recovery: {spares: 3}"),
    ],
)
def test_the_key_of_a_plain_value_is_named(key, value, written):
    remedy = remedy_of(key, value)
    assert f"Write {written[written.index('{') :]}" in remedy or written in remedy
    main_key = written.split("{")[1].split(":")[0]
    assert f"or set {key}.{main_key}" in remedy
    # what the remedy says is no refusal of that kind any more
    with pytest.raises(ScenarioError) as caught:
        load_scenario("quickstart", {"sweep": {}, f"{key}.{main_key}": value, "name": 3})
    assert all(key != problem.path for problem in caught.value.problems)


def test_a_record_inside_a_union_and_a_list():
    written = remedy_of("failures", {**FAILURES, "repair": "12 h"}, "failures.repair")
    assert written == "Write repair: {mean: 12 h}, or set failures.repair.mean."
    assert "uniform" in remedy_of("background", [0.5], "background.0")


def test_what_fits_no_key_is_told_the_keys_or_kinds():
    assert "sequence_length" in remedy_of("workload.dataset.tokens", True)
    assert "ring" in remedy_of("workload.allreduce", 3)
    with pytest.raises(ScenarioError, match=r"failures\.kind: is required\. Name one of"):
        load_scenario("quickstart", {"failures.repair": "12 h"})

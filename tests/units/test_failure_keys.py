"""Keys of failures and recovery: names, files of faults, what is refused."""

from pathlib import Path

import pytest

from simshuffle.errors import InputError
from simshuffle.job.reliability.trace import read_trace
from simshuffle.job.scenario.scenario import load_scenario, serialise_scenarios

DATA = Path(__file__).parent.parent / "data" / "faults"
DAY = 86_400.0


def scenario(**values):
    return load_scenario("quickstart", {k.replace("__", "."): v for k, v in values.items()})


def test_a_scenario_without_the_keys_does_not_have_them():
    assert {"failures", "recovery"}.isdisjoint(scenario().to_dict())


def test_failures_are_named_by_the_catalog_or_in_short():
    named = scenario(failures="llama3").failures
    assert named.name == "llama3" and named.kind == "exponential"
    assert named.mean_between == 264 * DAY
    assert sum(named.causes.values()) == 419
    short = (
        "bursty:mean_between=10 d,repair.mean=2 h,variation=1.8,lemons.hosts=0.1,lemons.faults=0.3"
    )
    bursty = scenario(failures=short).failures
    assert (bursty.mean_between, bursty.lemons.faults, bursty.repair.median) == (
        10 * DAY,
        0.3,
        None,
    )
    changed = scenario(failures="infinitehbd", failures__mean_between="100 d").failures
    assert (changed.mean_between, changed.variation) == (100 * DAY, 1.76)


def test_a_scenario_with_the_keys_is_read_back():
    given = scenario(failures="infinitehbd", recovery={"spares": 3, "detect": "2 min"})
    assert given.recovery.detect == 120.0
    assert given.with_values({}) == given


def test_a_trace_is_kept_with_the_scenario():
    path = DATA / "faults.csv"
    given = scenario(failures={"kind": "trace", "path": str(path), "hosts": 10, "length": "30 d"})
    assert len(given.failures.sha256) == 64
    document, files = serialise_scenarios([given])
    assert list(files.values()) == [path] and "inputs/" in document
    found = given.failures.read_file()
    assert (found.hosts, found.length, found.open) == (10, 30 * DAY, 1)


def test_both_formats_are_read():
    csv = read_trace(DATA / "faults.csv").faults
    assert csv.host.tolist() == [0, 1, 0, 2]
    assert [csv.causes[n] for n in csv.cause] == ["gpu", "software", "network", "gpu"]
    assert csv.end_s.tolist() == [1.5 * DAY, 50 * 3600, 4 * DAY, 4 * DAY]
    of = read_trace(DATA / "faults.json")
    assert of.hosts == 2 and of.open == 1 and of.length == 4 * DAY
    assert of.faults.end_s.tolist() == [2.5 * DAY, 2 * DAY, 4 * DAY]
    assert [of.faults.causes[n] for n in of.faults.cause] == ["hbm", "host", "software"]


def test_a_trace_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"failures.*must be a text file in UTF-8"):
        scenario(failures={"kind": "trace", "path": str(tmp_path / "a.csv")})

"""Keys of failures and recovery: names, files of faults, what is refused."""

from pathlib import Path

import pytest

from simshuffle.errors import InputError
from simshuffle.reliability.trace import read_trace
from simshuffle.scenario.scenario import load_scenario, stored

DATA = Path(__file__).parent.parent / "data" / "faults"
DAY = 86_400.0
HEAD = "host,start,end,class\n"
EVENT = '{"node_id": "a", "event_time": %s, "event_type": "fault_%s", "fault_type": "GPU"}'


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
    document, files = stored([given])
    assert list(files.values()) == [path] and "inputs/" in document
    found = given.failures.recorded()
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


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "", "must have the columns"),
        ("a.csv", HEAD, "must hold a fault"),
        ("a.csv", HEAD + "a,2 d,1 d,gpu\n", "must not end before it starts"),
        ("a.csv", HEAD + "a,2,3,gpu\n", "has no unit"),
        ("a.csv", HEAD + "a,2 d,3 d\n", "must have 4 values"),
        ("a.csv", HEAD + ",2 d,3 d,gpu\n", "must name a host"),
        ("a.csv", "host,start,end,class,colour\n", "must have the columns"),
        ("a.csv", HEAD + "a,0 s,0 s,gpu\n", "must end after 0 s"),
        ("a.json", "[", "must be JSON or CSV"),
        ("a.json", "{}", "must be a list of events"),
        ("a.json", "[]", "must hold a fault"),
        ("a.json", "[1]", "must be an event"),
        ("a.json", f"[{EVENT % (2, 'start')}, {EVENT % (1, 'end')}]", "must not end a fault"),
        ("a.json", f"[{EVENT % (-2, 'start')}]", "must be a number of days"),
        ("a.json", f"[{EVENT % ('NaN', 'start')}]", "must be a number of days"),
        ("a.json", f"[{EVENT % (2, 'pause')}]", "must be fault_start or fault_end"),
        ("a.csv", b"\xff\xfe", "must be a text file in UTF-8"),
    ],
)
def test_a_bad_trace_is_refused(tmp_path, name, text, told):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=told) as error:
        scenario(failures={"kind": "trace", "path": str(path)})
    assert "failures" in str(error.value)

"""Keys of failures and recovery: names, files of faults, what is refused."""

import json
import os
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


def event(days, kind, cause, host="a"):
    fault_type = {"Class": cause} if isinstance(cause, str) else cause
    return {
        "node_id": host,
        "event_time": days,
        "event_type": f"fault_{kind}",
        "fault_type": fault_type,
    }


def test_an_end_is_of_the_oldest_open_fault_of_its_host_and_type(tmp_path):
    """Host a has two GPU faults at a time, and one of a fan between; b begins where it ends."""
    events = [
        event(5, "end", "GPU"),
        event(2, "start", "GPU"),
        event(1, "start", "GPU"),
        event(1.5, "start", "Fan"),
        event(3, "end", "GPU"),
        event(4, "end", "Fan"),
        event(0.5, "end", "NIC", "b"),
        event(0.5, "start", "NIC", "b"),
    ]
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(events))
    faults = read_trace(path).faults
    days = [round(seconds / DAY, 9) for seconds in faults.start_s.tolist()]
    assert days == [0.5, 1.0, 1.5, 2.0]
    assert (faults.end_s / DAY).tolist() == pytest.approx([0.5, 3.0, 4.0, 5.0])
    causes = [faults.causes[n] for n in faults.cause]
    assert causes == ["network", "gpu", "host", "gpu"]
    assert faults.host.tolist() == [0, 1, 1, 1]  # numbered as they begin


def test_memory_of_a_gpu_is_a_cause_and_unlisted_classes_are_their_own(tmp_path):
    types = [
        {"Class": "GPU", "Desc": "a DBE at 0x1"},
        {"Class": "Fan", "Desc": "a DBE at 0x1"},
        {"Class": "GPU", "Desc": "lost"},
        {"Class": " Oven "},
        {"Desc": "DBE"},
    ]
    events = [event(day, "start", kind) for day, kind in enumerate(types)]
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(events))
    trace = read_trace(path)
    causes = [trace.faults.causes[n] for n in trace.faults.cause]
    assert causes == ["hbm", "host", "gpu", "oven", "unknown"]
    # all are open at the last event, four days from the beginning
    assert (trace.open, trace.length, set(trace.faults.end_s)) == (5, 4 * DAY, {4 * DAY})


def test_a_trace_lasts_to_its_last_event_or_as_long_as_is_said(tmp_path):
    path = tmp_path / "faults.csv"
    head = "host,start,end,class\n"
    path.write_text(head + "a,1 d,2 d,gpu\nb,3 d,,fan\na,0.5 d,1.5 d,nic\n")
    assert read_trace(path).length == 3 * DAY  # an open fault has begun after the last end
    assert read_trace(path, hosts=2, length=3 * DAY).length == 3 * DAY
    longer = read_trace(path, hosts=5, length=4 * DAY)
    assert (longer.hosts, longer.length, longer.open) == (5, 4 * DAY, 1)
    assert longer.faults.start_s.tolist() == [0.5 * DAY, DAY, 3 * DAY]
    assert longer.faults.end_s.tolist() == [1.5 * DAY, 2 * DAY, 4 * DAY]
    with pytest.raises(InputError, match="at least the 2 hosts"):
        read_trace(path, hosts=1)
    with pytest.raises(InputError, match="at least 3 d"):
        read_trace(path, length=2.9 * DAY)
    # a file that changes is read again
    path.write_text(head + "a,0 s,,gpu\n")
    os.utime(path, (1, 1))
    with pytest.raises(InputError, match="after 0 s"):
        read_trace(path)
    assert read_trace(path, length=DAY).faults.end_s.tolist() == [DAY]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"event_time": True}, "number of days"),
        ({"event_time": "1"}, "number of days"),
        ({"event_time": -0.1}, "number of days"),
        ({"event_time": 1e6}, "number of days"),
        ({"event_type": "fault_pause"}, "fault_start or fault_end"),
        ({"node_id": 3}, "node_id must be text"),
        ({"fault_type": 3}, "fault_type a mapping"),
        ({"more": 1}, "must be an event"),
    ],
)
def test_an_event_that_is_none_is_refused(tmp_path, changes, words):
    path = tmp_path / "faults.json"
    events = [event(0, "start", "GPU"), event(999_999, "start", "GPU")]
    path.write_text(json.dumps(events))
    assert read_trace(path).length == 999_999 * DAY  # both ends of what a time may be
    path.write_text(json.dumps([*events, event(1, "start", "GPU") | changes]))
    os.utime(path, (1, 1))
    with pytest.raises(InputError, match=f"event 3.*{words}|{words}"):
        read_trace(path)


def test_a_trace_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"failures.*must be a text file in UTF-8"):
        scenario(failures={"kind": "trace", "path": str(tmp_path / "a.csv")})

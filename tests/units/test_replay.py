"""simshuffle study replay, and the files of cases: what is printed and written, what is refused and
in which words."""

import copy
import csv
import errno
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.network import Analytic, Fluid, Packet
from simshuffle.network.analytic import alone
from simshuffle.network.case import read_case
from simshuffle.network.flows import latest_ends
from simshuffle.network.replay import network_model, relative_errors, replay

CASES = Path(__file__).parent.parent / "golden" / "simgrid"
SHARED = CASES / "two_share_down.json.gz"
REMEDY = re.compile(
    r"Did you mean|Known:|Add|Write|Use|Give|Name|Put|Save|Correct|For example|Leave|Take"
)

# 0 and 1 share link 0: 1 ends first, with half of it; 2 waits for both; 3 has a route of its own
# and starts late; 4 is a barrier
VALID = {
    "name": "small",
    "desc": "worked out by hand",
    "links": {"name": ["a", "b", "c"], "capacity": [100.0, 50, 100], "latency": [0.0, 1, 0.5]},
    "flows": {
        "src": [0, 0, 1, 1, 2],
        "size": [200, 100.0, 50, 100, 0],
        "start": [0, 0.0, 99, 4, 0],
        "route": [[0], [0], [0, 1], [2], []],
        "after": [[], [], [0, 1], [], [2, 3]],
        "end": [3.0, 2.0, 5.0, 5.5, 5.5],
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(case, name="case.json"):
    Path(name).write_text(json.dumps(case))
    return name


def rows(text):
    header, *body = csv.reader(io.StringIO(text))
    return header, np.array(body, float).reshape(len(body), len(header))


def without(*keys):
    """The valid case without some keys of its flows."""
    case = copy.deepcopy(VALID)
    for key in keys:
        del case["flows"][key]
    return case


# ----------------------------------------------------------------------------------- what comes out


def test_a_case_worked_out_by_hand(capsys):
    assert main(["study", "replay", put(VALID)]) == 0
    captured = capsys.readouterr()
    header, table = rows(captured.out)
    assert header == ["flow", "finish_s"]
    assert table[:, 0].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(table[:, 1], VALID["flows"]["end"], rtol=1e-12)
    lines = captured.err.splitlines()
    assert lines[0] == "small: 5 flows, 3 links, fluid network"
    assert lines[1].split() == ["makespan", "5.5", "s"]
    # alone: flow 0 takes 2 s, 2 another 1 + 1, and 3 ends at 4 + 0.5 + 1, which is later
    assert lines[2].split() == ["lower", "bound", "5.5", "s,", "slowdown", "over", "it", "1"]
    assert "against the case's own ends" in captured.err
    assert "error bound" not in captured.err
    assert re.search(r"solved in +[\d.e-]+ s of processor time", captured.err)


def test_ends_and_summary_are_printed_as_latex_and_markdown(capsys):
    assert main(["study", "replay", put(VALID), "--compare", "--to", "latex"]) == 0
    captured = capsys.readouterr()
    assert "makespan & 5.5 s" in captured.out
    assert r"flow & finish (s) & expected (s) & relative error \\" in captured.out
    ends = [f"{number} & {end!r} & {end!r} &" for number, end in enumerate(VALID["flows"]["end"])]
    assert all(row in captured.out for row in ends)
    assert captured.err == ""
    # the ends are where --out says, and the summary alone on standard output
    assert main(["study", "replay", put(VALID), "--to", "markdown", "--out", "ends.csv"]) == 0
    printed = capsys.readouterr().out
    assert "| makespan | 5.5 s |" in printed
    assert "flow |" not in printed
    header, table = rows(Path("ends.csv").read_text())
    assert header == ["flow", "finish_s"]
    assert main(["study", "replay", put(VALID), "--to", "csv"]) == 2
    assert "--to: must be latex or markdown; got 'csv'" in capsys.readouterr().err
    assert len(table) == len(VALID["flows"]["size"])


def test_the_slowdown_is_that_of_the_makespan(capsys):
    # both start at 0 and want one link of 100: 1 s each alone, and together; the second moves
    # through another one of 50 as well
    case = {
        "links": {"capacity": [100, 50], "latency": [0, 0]},
        "flows": {"size": [100, 100, 50], "route": [[0], [0], [0, 1]]},
    }
    assert main(["study", "replay", put(case)]) == 0
    assert "2.5 s, slowdown over it 1\n" in capsys.readouterr().err
    case["flows"]["route"] = [[0, 1], [0, 1], [0]]
    # link 1 needs 4 s. 2 gets 100/3 until 1.5 s, the others 25 each afterwards, 50 s of link 1 are
    # missing by then
    assert main(["study", "replay", put(case), "--network", "fluid"]) == 0
    assert "lower bound     4 s, slowdown over it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", sorted(CASES.glob("*.json.gz")), ids=lambda path: path.name.removesuffix(".json.gz")
)
def test_every_stored_case_is_replayed_to_the_last_bit(path, capsys):
    assert main(["study", "replay", str(path), "--out", "ends.csv", "--compare"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    largest = float(re.search(r"relative error +(\S+) at most", captured.err)[1])
    assert largest < 1e-9
    header, table = rows(Path("ends.csv").read_text())
    assert header == ["flow", "finish_s", "expected_s", "relative_error"]
    case = read_case(path)
    raw = json.loads(gzip.decompress(path.read_bytes()))
    assert table[:, 1].tolist() == Fluid().finish_times(case.links, case.flows).finish.tolist()
    assert table[:, 2].tolist() == raw["flows"]["end"]
    assert table[:, 3].tolist() == relative_errors(table[:, 1], table[:, 2]).tolist()
    assert table[:, 3].max() == pytest.approx(largest, rel=0.01)


def test_relative_errors():
    found, expected = np.array([1.0, 2.0, 0.0, 1.0]), np.array([2.0, 1.0, 0.0, 0.0])
    assert relative_errors(found, expected).tolist() == [0.5, 1.0, 0.0, np.inf]


def test_the_largest_and_the_median_error_are_those_of_the_flows(capsys):
    case = copy.deepcopy(VALID)
    case["flows"]["end"] = [3.0, 4.0, 5.0, 11.0, 22.0]  # true: 3, 2, 5, 5.5, 5.5
    assert main(["study", "replay", put(case)]) == 0
    assert "relative error  0.75 at most, 0.5 in the median" in capsys.readouterr().err


@pytest.mark.parametrize("model", [Analytic(), Fluid(), Packet()], ids=lambda model: model.kind)
def test_the_chosen_network_answers(model, capsys):
    path = CASES / "p1_w2_32.json.gz"
    assert main(["study", "replay", str(path), "--network", model.kind]) == 0
    captured = capsys.readouterr()
    case = read_case(path)
    assert (
        rows(captured.out)[1][:, 1].tolist()
        == model.finish_times(case.links, case.flows).finish.tolist()
    )
    assert f"992 flows, 128 links, {model.kind} network" in captured.err


def test_settings_reach_the_network():
    assert network_model("fluid", {"tolerance": "0.25", "mtu": None}).tolerance == 0.25
    packet = network_model("packet", {"mtu": "2 KiB", "port_buffer": "128 KiB", "tolerance": None})
    assert (packet.mtu, packet.port_buffer) == (2048, 131072)
    assert network_model("packet", {"mtu": None}) == network_model("packet", {})


def test_an_error_bound_is_stated_if_there_is_one(capsys):
    links = {"capacity": [1e9], "latency": [0.0]}
    case = {
        "links": links,
        "flows": {"size": [1e6, 1.004e6], "route": [[0], [0]]},
    }  # the second has 0.004 of 1.004 MB left at the first end
    Path("near.json").write_text(json.dumps(case))
    assert main(["study", "replay", "near.json", "--tolerance", "0.01"]) == 0
    assert "exact for flows whose bytes are smaller by at most 0.00398" in capsys.readouterr().err
    assert main(["study", "replay", "near.json"]) == 0
    assert "error bound" not in capsys.readouterr().err


def test_a_compressed_table_holds_the_same_and_is_the_same_every_time(capsys):
    for name in ("a.csv", "b.csv.gz", "c.csv.gz"):
        assert main(["study", "replay", str(SHARED), "--out", name]) == 0
    assert main(["study", "replay", str(SHARED)]) == 0
    printed = capsys.readouterr().out.encode()
    assert Path("a.csv").read_bytes() == gzip.decompress(Path("b.csv.gz").read_bytes()) == printed
    assert Path("b.csv.gz").read_bytes() == Path("c.csv.gz").read_bytes()
    assert Path("b.csv.gz").read_bytes()[4:8] == bytes(4)  # where gzip would put the time


def test_a_long_table_is_written_in_pieces(monkeypatch, capsys):
    assert main(["study", "replay", str(SHARED.with_name("fanin_p1_64.json.gz"))]) == 0
    monkeypatch.setattr("simshuffle.network.replay._ROWS_AT_ONCE", 10)
    whole = capsys.readouterr().out
    assert main(["study", "replay", str(SHARED.with_name("fanin_p1_64.json.gz"))]) == 0
    assert capsys.readouterr().out == whole
    assert len(whole.splitlines()) == 64


def test_a_case_may_be_compressed_whatever_its_name_is(folder):
    text = json.dumps(VALID).encode()
    Path("case.json.gz").write_bytes(gzip.compress(text))
    Path("case").write_bytes(gzip.compress(text))
    assert np.array_equal(
        read_case("case").flows.routes, read_case(folder / "case.json.gz").flows.routes
    )


def test_a_case_without_flows_gives_a_table_without_rows(capsys):
    case = {"links": {"capacity": [], "latency": []}, "flows": {"size": [], "route": [], "end": []}}
    assert main(["study", "replay", put(case), "--compare"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "flow,finish_s,expected_s,relative_error\n"
    assert captured.err.startswith("case: 0 flows, 0 links, fluid network\n")


def test_what_is_not_said_has_its_default():
    case = without("after", "start", "end", "src")
    del case["links"]["name"], case["name"]
    got = read_case(put(case, "mine.json"))
    assert (got.name, got.expected, got.links.name(2)) == ("mine", None, "link 2")
    assert got.flows.start.tolist() == [0.0] * 5
    assert len(got.flows.after_to) == 0
    assert got.about == {"desc": "worked out by hand"}


def test_a_case_is_read_as_it_is_written():
    case = read_case(put(VALID))
    assert case.name == "small"
    assert [case.links.name(k) for k in range(3)] == ["a", "b", "c"]
    assert case.links.capacity.tolist() == [100, 50, 100]
    assert case.links.latency.tolist() == [0, 1, 0.5]
    assert case.flows.routes.tolist() == [[0, -1], [0, -1], [0, 1], [2, -1], [-1, -1]]
    assert case.flows.nbytes.tolist() == [200, 100, 50, 100, 0]
    assert case.flows.start.tolist() == [0, 0, 99, 4, 0]
    assert list(zip(case.flows.after_from.tolist(), case.flows.after_to.tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
        (2, 4),
        (3, 4),
    ]
    assert case.expected.tolist() == [3, 2, 5, 5.5, 5.5]


# ---------------------------------------------------------------------------------------- bad input


@pytest.fixture
def refused(folder, capsys):
    """The message with which the command line refuses; nothing is written, and nothing printed."""

    def call(*arguments):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert main(["study", "replay", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        return captured.err

    return call


def changed(key, value):
    """The valid case with another value at a dotted key; an element of a list is a number."""
    case = copy.deepcopy(VALID)
    at = case
    *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    for part in parents:
        at = at[part]
    at[last] = value
    return case


WRONG = {
    "size negative": ("flows.size.1", -5, "flows.size[1]", "got -5", "bytes"),
    "size not a number": ("flows.size.1", float("nan"), "flows.size[1]", "got nan"),
    "size infinite": ("flows.size.1", float("inf"), "flows.size[1]", "got inf"),
    "size a truth value": ("flows.size.0", True, "flows.size[0]", "got True"),
    "size a text": ("flows.size.4", "100", "flows.size[4]", "got '100'", "units are left out"),
    "size null": ("flows.size.4", None, "flows.size[4]", "got None"),
    "size a list": ("flows.size.4", [1], "flows.size[4]", "got [1]"),
    "size beyond all measure": (
        "flows.size.4",
        10**400,
        "flows.size[4]",
        "got 1000",
        "at most 1e+30",
    ),
    "size of no meaning": ("flows.size.4", 1e300, "flows.size[4]", "got 1e+300", "at most 1e+30"),
    "sizes a number": ("flows.size", 5, "flows.size", "got 5", "list of numbers"),
    "start negative": ("flows.start.3", -0.1, "flows.start[3]", "got -0.1"),
    "end negative": ("flows.end.3", -0.1, "flows.end[3]", "got -0.1"),
    "capacity of zero": (
        "links.capacity.1",
        0,
        "links.capacity[1]",
        "got 0",
        "greater than 0",
        "bytes/s",
    ),
    "capacity negative": ("links.capacity.1", -1, "links.capacity[1]", "got -1", "greater than 0"),
    "latency negative": ("links.latency.1", -1, "links.latency[1]", "got -1", "at least 0"),
    "latency a text": ("links.latency.1", "1 us", "links.latency[1]", "got '1 us'"),
    "names too few": ("links.name", ["a"], "links.name", "3 elements", "got 1"),
    "name a number": ("links.name.2", 2, "links.name[2]", "got 2", "text"),
    "latencies too few": ("links.latency", [0.0], "links.latency", "3 elements", "got 1"),
    "sizes too many": ("flows.size", [1] * 6, "flows.start", "6 elements", "got 5"),
    "routes too few": ("flows.route", [[0]], "flows.route", "5 elements", "got 1"),
    "link out of range": ("flows.route.2", [0, 3], "flows.route[2][1]", "got 3.", "from 0 to 2"),
    "link negative": ("flows.route.2.1", -1, "flows.route[2][1]", "got -1"),
    "link beyond all measure": ("flows.route.2.1", 2**70, "flows.route[2][1]", "got 118"),
    "link a fraction": ("flows.route.2.1", 1.0, "flows.route[2][1]", "got 1.0"),
    "link a truth value": ("flows.route.2.1", True, "flows.route[2][1]", "got True"),
    "link a name": ("flows.route.2.1", "b", "flows.route[2][1]", "got 'b'", "by its place"),
    "link null": ("flows.route.2.1", None, "flows.route[2][1]", "got None"),
    "route a number": ("flows.route.2", 0, "flows.route[2]", "got 0", "numbers of a link"),
    "routes a mapping": ("flows.route", {"0": [0]}, "flows.route", "got {'0': [0]}", "list"),
    "route with a loop": ("flows.route.2", [1, 0, 1], "flows.route[2]", "got [1, 0, 1]", "twice"),
    "route with a loop over the first link": (
        "flows.route.2",
        [0, 1, 0],
        "flows.route[2]",
        "got [0, 1, 0]",
        "twice",
    ),
    "after nothing": ("flows.after.2", [5], "flows.after[2][0]", "got 5.", "from 0 to 4"),
    "after itself": ("flows.after.2", [0, 2], "flows.after[2]", "got 2", "itself"),
    "after a number": ("flows.after.2", 1, "flows.after[2]", "got 1"),
    "in a circle": (
        "flows.after.0",
        [2],
        "flows.after[0]",
        "flow 0 waits for 2 waits for 0",
        "circle",
        "as 2 do",
    ),
    "links a list": ("links", [1, 2], "links", "got [1, 2]", "mapping"),
    "flows null": ("flows", None, "flows", "got None", "mapping"),
    "name a list": ("name", ["a"], "name", "got ['a']", "text"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named_with_its_place_and_a_remedy(case, refused):
    key, value, path, *texts = WRONG[case]
    message = refused(put(changed(key, value)))
    lines = [line for line in message.splitlines() if line.startswith(f"  - {path}: ")]
    assert lines, message
    assert all(text in lines[0] for text in texts), message
    assert all(REMEDY.search(line) for line in message.splitlines()[1:]), message
    assert message.startswith("case.json: ")


def test_a_slip_in_an_optional_key_is_not_passed_over(refused):
    for wrong, right in (
        ("afer", "after"),
        ("After", "after"),
        ("strat", "start"),
        ("ends", "end"),
        ("edn", "end"),
    ):
        case = without(right)
        case["flows"][wrong] = VALID["flows"][right]
        message = refused(put(case))
        assert f"  - flows.{wrong}: is not a key of a case" in message
        assert f"Did you mean '{right}'?" in message


def test_other_keys_are_allowed():
    case = without("end") | {"seed": 3}
    case["flows"]["colour"] = ["red"] * 5
    case["links"]["tier"] = [1, 2, 3]
    assert read_case(put(case)).about["seed"] == 3


@pytest.mark.parametrize(
    ("part", "key"),
    [("links", "capacity"), ("links", "latency"), ("flows", "size"), ("flows", "route")],
)
def test_a_missing_key_is_named(part, key, refused):
    case = copy.deepcopy(VALID)
    del case[part][key]
    assert refused(put(case)) == f"case.json: 1 problem\n  - {part}.{key}: is required. Add it.\n"
    case[part][f"{key}s"] = VALID[part][key]
    assert f"{part}.{key}s: is not a key of a case" in refused(put(case))
    del case[part]
    assert refused(put(case)) == f"case.json: 1 problem\n  - {part}: is required. Add it.\n"


def test_all_problems_of_a_file_are_named_at_once_but_not_a_thousand_times(refused):
    case = changed("links.capacity", [0, 50, 100])
    case["flows"] |= {
        "size": [-1.0] * 5,
        "route": [[0], [9], [0, 1], [2], []],
        "after": [[0], [], [], [], []],
        "start": 3,
    }
    message = refused(put(case))
    assert message.splitlines()[0] == "case.json: 5 problems"
    for path in (
        "links.capacity[0]",
        "flows.size[0]",
        "flows.route[1][0]",
        "flows.after[0]",
        "flows.start",
    ):
        assert f"  - {path}: " in message


def test_a_long_circle_is_named_where_it_begins(refused):
    count = 30
    after = [[i + 1] for i in range(count - 1)] + [[10]]  # 0 to 9 wait for the circle of 10 to 29
    case = {
        "links": {"capacity": [1], "latency": [0]},
        "flows": {"size": [1] * count, "route": [[0]] * count, "after": after},
    }
    message = refused(put(case))
    assert "flows.after[10]: " in message
    assert "in a circle, as 20 do" in message
    assert "flow 10 waits for 11 waits for 12 waits for 13 waits for 14 waits for 15 ..." in message


def test_waiting_for_what_stands_behind_is_no_circle(capsys):
    case = {
        "links": {"capacity": [1], "latency": [0]},
        "flows": {"size": [1, 2, 3], "route": [[0]] * 3, "after": [[1, 1], [2], []]},
    }
    assert main(["study", "replay", put(case)]) == 0
    assert rows(capsys.readouterr().out)[1][:, 1].tolist() == [6, 5, 3]


BYTES = {
    "empty": (b"", "line 1, column 1", "must be JSON"),
    "text": (b"links:\n  - a", "line 1, column 1", "must be JSON"),
    "cut off": (json.dumps(VALID, indent=1).encode()[:150], "line 15, column 3", "must be JSON"),
    "two values": (b"{}\n{}", "line 2, column 1", "Extra data"),
    "a list": (b"[1, 2]", "mapping", "'links' and 'flows'", "got [1, 2]"),
    "a number": (b"5", "mapping", "got 5"),
    "null": (b"null", "mapping", "got None"),
    "an empty mapping": (b"{}", "links: is required", "flows: is required"),
    "binary": (bytes(range(128, 256)), "UTF-8"),
    "deep": (b"[" * 100_000, "must be JSON"),
    "deep inside": (b'{"links": ' + b"[" * 500 + b"]" * 500 + b"}", "links: must be a mapping"),
    "a number too long": (b"1" * 5000, "must be JSON"),
    "a key written twice": (b'{"links": {}, "links": {}}', "'links' is written twice"),
    "half a gzip file": (gzip.compress(json.dumps(VALID).encode())[:60], "whole gzip file"),
    "a damaged gzip file": (
        gzip.compress(json.dumps(VALID).encode())[:-8] + b"\0" * 8,
        "whole gzip file",
    ),
    "gzip with more behind it": (gzip.compress(b"{}") + b"more", "whole gzip file"),
}


@pytest.mark.parametrize("kind", BYTES)
def test_a_file_that_is_no_case_is_refused(kind, refused):
    content, *texts = BYTES[kind]
    Path("case.json").write_bytes(content)
    message = refused("case.json")
    assert message.startswith("case.json: ")
    assert all(text in message for text in texts), message
    assert REMEDY.search(message)
    assert len(message) < 1000


def test_a_name_that_ends_in_gz_must_keep_its_promise(refused):
    Path("case.json.gz").write_text(json.dumps(VALID))
    assert "whole gzip file" in refused("case.json.gz")


@pytest.mark.parametrize(
    ("path", "text"),
    [("nowhere.json", "No such file"), (".", "Is a directory"), ("x" * 300, "too long")],
)
def test_a_path_that_cannot_be_read_is_refused(path, text, refused):
    message = refused(path)
    assert text in message
    assert "Give the path" in message


def test_a_path_with_a_zero_byte_is_refused():
    with pytest.raises(InputError, match="null byte"):
        read_case("a\0b")


def test_too_large_a_table_of_routes_is_refused_before_it_is_made(monkeypatch, refused):
    monkeypatch.setattr("simshuffle.network.case.MOST_HOPS", 9)
    assert (
        "flows.route: flows times links of the longest route must be at most 9; got 5 x 2"
        in refused(put(VALID))
    )


def test_a_case_beyond_the_range_of_a_network_is_refused(monkeypatch, refused):
    def finish_times(self, links, flows, progress=None):
        if len(flows) > 1:
            raise ValueError("beyond 32 hours")
        return original(self, links, flows)

    original = Fluid.finish_times
    monkeypatch.setattr(Fluid, "finish_times", finish_times)
    message = refused(put(VALID), "--out", "ends.csv")
    assert (
        "within the range of the fluid network; got beyond 32 hours. Give other numbers" in message
    )


def test_there_is_nothing_to_compare_with(refused):
    assert "--compare: needs a case that says when its flows end" in refused(
        put(without("end")), "--compare"
    )


# ------------------------------------------------------------------------- what floats cannot hold


def two_flows(capacity=(1e9, 1e9), size=(1e6, 1e6), start=(0.0, 0.0), **more):
    """Two flows over the same two links."""
    return {
        "links": {"capacity": list(capacity), "latency": [0.0, 0.0]},
        "flows": {"size": list(size), "start": list(start), "route": [[0, 1]] * 2, **more},
    }


# 1e-14 of the time must be within 1e-3 of what the flow takes alone, here 1 s, or within 1 us;
# 2.22e-16 of all bytes within 1e-3 of the flow's own, or within 1 B; the same of the capacities.
@pytest.mark.parametrize(
    ("held", "lost", "place"),
    [
        ({"start": (0, 0.99e8)}, {"start": (0, 1.01e8)}, "flows[1]"),
        (
            {"start": (0, 0.99e11), "size": (1e9, 1e9)},
            {"start": (0, 1.01e11), "size": (1e9, 1e9)},
            "flows[1]",
        ),
        (
            {"start": (0.99e8, 0), "size": (1e6, 1e6), "after": [[], [0]]},
            {"start": (1.01e8, 0), "size": (1e6, 1e6), "after": [[], [0]]},
            "flows[1]",
        ),
        ({"size": (4.4e15, 1.0)}, {"size": (4.6e15, 1.0)}, "flows.size[1]"),
        ({"size": (4.4e20, 1e8)}, {"size": (4.6e20, 1e8)}, "flows.size[1]"),
        ({"capacity": (4.4e18, 1e6)}, {"capacity": (4.6e18, 1e6)}, "links.capacity[1]"),
    ],
)
def test_what_floats_cannot_hold_is_refused_and_what_they_can_is_not(refused, held, lost, place):
    case = read_case(put(two_flows(**held)))
    ends = replay(case, Fluid()).outcome.finish
    lower = latest_ends(case.flows, alone(case.links, case.flows))
    assert (ends >= lower - np.maximum(1e-3 * alone(case.links, case.flows), 1e-6)).all()
    message = refused(put(two_flows(**lost)))
    assert f"{place}: must not be lost in rounding" in message
    assert "; got " in message
    assert any(remedy in message for remedy in ("near 0 s", "of their own", "within a factor"))


def test_many_flows_that_floats_cannot_hold_are_counted(refused):
    case = two_flows()
    case["flows"] = {"size": [1e6] * 9, "start": [1e30] * 9, "route": [[0]] * 9}
    message = refused(put(case))
    assert "flows[2]" in message
    assert "flows[3]" not in message
    assert "as many more break the same rule; got 6" in message


def test_a_flow_of_1e30_seconds_that_begins_at_0_is_held():
    case = read_case(put(two_flows(capacity=(1.0, 1.0), size=(1e30, 1e30))))
    assert replay(case, Fluid()).outcome.finish == pytest.approx([2e30] * 2)


def test_a_day_of_small_messages_is_held():
    case = read_case(put(two_flows(size=(64, 1e12), start=(86_400.0, 0.0))))
    assert replay(case, Fluid()).outcome.finish == pytest.approx([86_400.0, 1_000.0])


# ---------------------------------------------------------------------------------- random mistakes

GARBAGE = [
    None,
    True,
    -1,
    0,
    3,
    1.5,
    1e-320,
    1e30,
    1e31,
    1e308,
    float("nan"),
    float("inf"),
    10**400,
    2**63,
    -(2**31),
    "",
    "1",
    "0 B",
    [],
    [[]],
]
GARBAGE += [[0], [2, 1], [1, 1], [None], ["a"], {}, {"size": []}, "\ud800", [[[[0]]]], [0] * 50]


# ----------------------------------------------------------------------- interruptions and failures


def test_ctrl_c_while_solving_ends_with_130_and_writes_nothing(folder, monkeypatch, capsys):
    over = threading.Event()

    def slow(self, links, flows, progress=None):
        if len(flows) > 1:
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(60)
        return original(self, links, flows)

    original = Fluid.finish_times
    monkeypatch.setattr(Fluid, "finish_times", slow)
    try:
        assert main(["study", "replay", str(SHARED), "--out", "new/ends.csv"]) == 130
    finally:
        over.set()
    assert "Interrupted; nothing was written." in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1), (KeyboardInterrupt(), 130)],
)
@pytest.mark.parametrize("name", ["ends.csv", "ends.csv.gz"])
def test_a_failure_while_writing_keeps_the_old_file_and_leaves_nothing_beside_it(
    error, status, name, folder, monkeypatch, capsys
):
    def failing(*_, **__):
        yield "flow,finish_s\n"
        raise error

    monkeypatch.setattr("simshuffle.network.replay.csv_rows", failing)
    assert main(["study", "replay", str(SHARED), "--out", name]) == status
    assert list(folder.iterdir()) == []
    Path(name).write_bytes(b"old")
    assert main(["study", "replay", str(SHARED), "--out", name]) == status
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: b"old"}
    assert "Traceback" not in capsys.readouterr().err


def test_a_table_replaces_an_old_one_and_what_a_link_leads_to(folder):
    Path("far").mkdir()
    Path("far/ends.csv").write_text("old")
    Path("ends.csv").symlink_to("far/ends.csv")
    assert main(["study", "replay", str(SHARED), "--out", "ends.csv"]) == 0
    assert Path("ends.csv").is_symlink()
    assert Path("far/ends.csv").read_text().startswith("flow,finish_s\n0,")
    assert sorted(path.name for path in folder.rglob("*")) == ["ends.csv", "ends.csv", "far"]


def into(stdout, name):
    command = [
        sys.executable,
        "-m",
        "simshuffle",
        "study",
        "replay",
        str(CASES / f"{name}.json.gz"),
    ]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=900
    )


@pytest.mark.parametrize("name", ["two_share_down", "p1_w2_32"])
def test_a_reader_that_has_seen_enough_is_no_reason_to_complain(name):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = into(writing, name)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["two_share_down", "p1_w2_32"])
def test_a_full_disk_behind_standard_output_is_said_once(name):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = into(full, name)
    message = (
        "No space left on device. Nothing was written; free some space or choose another --out.\n"
    )
    assert (done.returncode, done.stderr) == (1, message)


def test_help_answers_without_the_packages_that_compute():
    code = (
        "import sys; from simshuffle.cli import main; print(main(['replay', '--help']), {'numba',"
        " 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=900
    )
    assert done.stdout.splitlines()[-1] == "0 set()", done.stderr
    assert all(
        option in done.stdout
        for option in ("--network", "--tolerance", "--mtu", "--port-buffer", "--out", "--compare")
    )

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
import time
from pathlib import Path

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.fabric.network import Analytic, Fluid, Packet
from simshuffle.fabric.network.analytic import isolated_seconds
from simshuffle.fabric.network.case import read_case
from simshuffle.fabric.network.flows import latest_ends
from simshuffle.fabric.network.replay import network_model, relative_errors, replay
from simshuffle.spec.compiling import ONCE
from tests.units.test_cli import imported_by

CASES = Path(__file__).parent.parent / "golden" / "simgrid"
SHARED = CASES / "two_share_down.json.gz"
VALID = json.loads((CASES.parents[1] / "data" / "replay" / "case.json").read_text())
"""Flows 0 and 1 share link 0: 1 ends first, with half of it; 2 waits for both; 3 has a route of its
own and starts late; 4 is a barrier."""

pytestmark = pytest.mark.usefixtures("here")


def put(case, name="case.json"):
    Path(name).write_text(json.dumps(case))
    return name


@pytest.fixture
def replayed(capsys):
    """Replays a case, or the file of one, with options; returns what is printed."""

    def call(case, *options):
        path = put(case) if isinstance(case, dict) else str(case)
        assert main(["study", "replay", path, *options]) == 0
        return capsys.readouterr()

    return call


def rows(text):
    header, *body = csv.reader(io.StringIO(text))
    return header, np.array(body, float).reshape(len(body), len(header))


# ----------------------------------------------------------------------------------- what comes out


def test_a_case_worked_out_by_hand(replayed):
    captured = replayed(VALID)
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


def test_ends_and_summary_are_printed_as_latex_and_markdown(replayed):
    captured = replayed(VALID, "--compare", "--to", "latex")
    assert "makespan & 5.5 s" in captured.out
    assert r"flow & finish (s) & expected (s) & relative error \\" in captured.out
    ends = [f"{number} & {end!r} & {end!r} &" for number, end in enumerate(VALID["flows"]["end"])]
    assert all(row in captured.out for row in ends)
    assert captured.err == ""
    # the ends are where --out says, and the summary alone on standard output
    printed = replayed(VALID, "--to", "markdown", "--out", "ends.csv").out
    assert "| makespan | 5.5 s |" in printed
    assert "flow |" not in printed
    header, table = rows(Path("ends.csv").read_text())
    assert header == ["flow", "finish_s"]
    assert len(table) == len(VALID["flows"]["size"])


def test_the_slowdown_is_that_of_the_makespan(replayed):
    # both start at 0 and want one link of 100: 1 s each alone, and together; the second moves
    # through another one of 50 as well
    case = {
        "links": {"capacity": [100, 50], "latency": [0, 0]},
        "flows": {"size": [100, 100, 50], "route": [[0], [0], [0, 1]]},
    }
    assert "2.5 s, slowdown over it 1\n" in replayed(case).err
    case["flows"]["route"] = [[0, 1], [0, 1], [0]]
    # link 1 needs 4 s. 2 gets 100/3 until 1.5 s, the others 25 each afterwards, 50 s of link 1 are
    # missing by then
    assert "lower bound     4 s, slowdown over it" in replayed(case, "--network", "fluid").err


@pytest.mark.parametrize(
    "path", sorted(CASES.glob("*.json.gz")), ids=lambda path: path.name.removesuffix(".json.gz")
)
def test_every_stored_case_is_replayed_to_the_last_bit(path, replayed):
    captured = replayed(path, "--out", "ends.csv", "--compare")
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


def test_the_largest_and_the_median_error_are_those_of_the_flows(replayed):
    # true: 3, 2, 5, 5.5, 5.5
    case = VALID | {"flows": VALID["flows"] | {"end": [3.0, 4.0, 5.0, 11.0, 22.0]}}
    assert "relative error  0.75 at most, 0.5 in the median" in replayed(case).err


@pytest.mark.parametrize("model", [Analytic(), Fluid(), Packet()], ids=lambda model: model.kind)
def test_the_chosen_network_answers(model, replayed):
    path = CASES / "p1_w2_32.json.gz"
    captured = replayed(path, "--network", model.kind)
    case = read_case(path)
    assert (
        rows(captured.out)[1][:, 1].tolist()
        == model.finish_times(case.links, case.flows).finish.tolist()
    )
    assert f"992 flows, 128 links, {model.kind} network" in captured.err


def test_the_processor_time_is_that_of_the_replay():
    case = read_case(put(VALID))
    began = time.process_time()
    seconds = replay(case, Analytic()).cpu_seconds
    assert 0 <= seconds <= time.process_time() - began


def test_settings_reach_the_network():
    assert network_model("fluid", {"tolerance": "0.25", "mtu": None}).tolerance == 0.25
    packet = network_model("packet", {"mtu": "2 KiB", "port_buffer": "128 KiB", "tolerance": None})
    assert (packet.mtu, packet.port_buffer) == (2048, 131072)
    assert network_model("packet", {"mtu": None}) == network_model("packet", {})


def test_an_error_bound_is_stated_if_there_is_one(replayed):
    """The second flow has 0.004 of 1.004 MB left when the first ends."""
    case = two_flows(size=(1e6, 1.004e6))
    said = replayed(case, "--tolerance", "0.01").err
    assert "exact for flows whose bytes are smaller by at most 0.00398" in said
    # half of 1 GB/s each: 1 MB after 2 ms, and alone 2 ms are the bound of 2.004 MB
    assert "makespan        0.002 s" in said
    assert "lower bound     0.002004 s, slowdown over it 0.998" in said
    assert "error bound" not in replayed(case).err


def test_a_compressed_table_holds_the_same_and_is_the_same_every_time(replayed):
    for name in ("a.csv", "b.csv.gz", "c.csv.gz"):
        replayed(SHARED, "--out", name)
    printed = replayed(SHARED).out.encode()
    assert Path("a.csv").read_bytes() == gzip.decompress(Path("b.csv.gz").read_bytes()) == printed
    assert Path("b.csv.gz").read_bytes() == Path("c.csv.gz").read_bytes()
    assert Path("b.csv.gz").read_bytes()[4:8] == bytes(4)  # where gzip would put the time


def test_a_long_table_is_written_in_pieces(monkeypatch, replayed):
    whole = replayed(CASES / "fanin_p1_64.json.gz").out
    monkeypatch.setattr("simshuffle.fabric.network.replay._ROWS_AT_ONCE", 10)
    assert replayed(CASES / "fanin_p1_64.json.gz").out == whole
    assert len(whole.splitlines()) == 64


def test_a_case_may_be_compressed_whatever_its_name_is():
    text = json.dumps(VALID).encode()
    Path("case.json.gz").write_bytes(gzip.compress(text))
    Path("case").write_bytes(gzip.compress(text))
    routes = [read_case(name).flows.routes for name in ("case", "case.json.gz")]
    assert np.array_equal(*routes)


def test_a_case_without_flows_gives_a_table_without_rows(replayed):
    case = {"links": {"capacity": [], "latency": []}, "flows": {"size": [], "route": [], "end": []}}
    captured = replayed(case, "--compare")
    assert captured.out == "flow,finish_s,expected_s,relative_error\n"
    assert captured.err.startswith("case: 0 flows, 0 links, fluid network\n")


def test_what_is_not_said_has_its_default():
    case = copy.deepcopy(VALID)
    del case["links"]["name"], case["name"]
    for key in ("after", "start", "end", "src"):
        del case["flows"][key]
    got = read_case(put(case, "mine.json"))
    assert (got.name, got.expected, got.links.name(2)) == ("mine", None, "link 2")
    assert got.flows.start.tolist() == [0.0] * 5
    assert len(got.flows.after_to) == 0
    assert got.metadata == {"desc": "worked out by hand"}


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
def refused(refused):
    """The message with which the command line refuses a case; tests/data/refusals-cut3.txt has what
    is wrong at one place of it."""

    def call(case, *options):
        content = json.dumps(case) if isinstance(case, dict) else case
        return refused(["study", "replay", "case.json", *options], {"case.json": content})

    return call


def test_other_keys_are_allowed():
    case = VALID | {"seed": 3, "flows": VALID["flows"] | {"colour": ["red"] * 5}}
    assert read_case(put(case)).metadata["seed"] == 3


def test_all_problems_of_a_file_are_named_at_once_but_not_a_thousand_times(refused):
    case = copy.deepcopy(VALID)
    case["links"]["capacity"][0] = 0
    case["flows"] |= {"size": [-1.0] * 5, "start": 3, "after": [[0], [], [], [], []]}
    case["flows"]["route"][1] = [9]
    message = refused(case)
    assert message.splitlines()[0] == "case.json: 5 problems"
    found = re.findall(r"^  - (\S+): ", message, re.MULTILINE)
    assert {*found} == {
        *("links.capacity[0]", "flows.size[0]", "flows.route[1][0]", "flows.after[0]"),
        "flows.start",
    }


def test_a_long_circle_is_named_where_it_begins(refused):
    count = 30
    after = [[i + 1] for i in range(count - 1)] + [[10]]  # 0 to 9 wait for the circle of 10 to 29
    case = {
        "links": {"capacity": [1], "latency": [0]},
        "flows": {"size": [1] * count, "route": [[0]] * count, "after": after},
    }
    message = refused(case)
    assert "flows.after[10]: " in message
    assert "in a circle, as 20 do" in message
    assert "flow 10 waits for 11 waits for 12 waits for 13 waits for 14 waits for 15 ..." in message


def test_waiting_for_what_stands_behind_is_no_circle(replayed):
    case = {
        "links": {"capacity": [1], "latency": [0]},
        "flows": {"size": [1, 2, 3], "route": [[0]] * 3, "after": [[1, 1], [2], []]},
    }
    assert rows(replayed(case).out)[1][:, 1].tolist() == [6, 5, 3]


PACKED = gzip.compress(json.dumps(VALID).encode())
BYTES = {
    "binary": (bytes(range(128, 256)), "UTF-8"),
    "deep": (b"[" * 100_000, "must be JSON"),
    "deep inside": (b'{"links": ' + b"[" * 500 + b"]" * 500 + b"}", "links: must be a mapping"),
    "a number too long": (b"1" * 5000, "must be JSON"),
    "half a gzip file": (PACKED[:60], "whole gzip file"),
    "a damaged gzip file": (PACKED[:-8] + b"\0" * 8, "whole gzip file"),
    "gzip with more behind it": (gzip.compress(b"{}") + b"more", "whole gzip file"),
}


@pytest.mark.parametrize("kind", BYTES)
def test_a_file_that_is_no_case_is_refused(kind, refused):
    content, said = BYTES[kind]
    message = refused(content)
    assert said in message
    assert len(message) < 1000


def test_a_name_that_ends_in_gz_must_keep_its_promise():
    with pytest.raises(InputError, match="whole gzip file"):
        read_case(put(VALID, "case.json.gz"))


def test_a_path_with_a_zero_byte_is_refused():
    with pytest.raises(InputError, match="null byte"):
        read_case("a\0b")


def test_too_large_a_table_of_routes_is_refused_before_it_is_made(monkeypatch, refused):
    monkeypatch.setattr("simshuffle.fabric.network.case.MOST_HOPS", 9)
    said = "flows.route: flows times links of the longest route must be at most 9; got 5 x 2"
    assert said in refused(VALID)


def test_a_case_beyond_the_range_of_a_network_is_refused(monkeypatch, refused):
    def finish_times(self, links, flows, progress=None):
        if len(flows) > 1:
            raise ValueError("beyond 32 hours")
        return original(self, links, flows)

    original = Fluid.finish_times
    monkeypatch.setattr(Fluid, "finish_times", finish_times)
    said = "within the range of the fluid network; got beyond 32 hours. Give other numbers"
    assert said in refused(VALID, "--out", "ends.csv")


# ------------------------------------------------------------------------- what floats cannot hold


def two_flows(capacity=(1e9, 1e9), size=(1e6, 1e6), start=(0.0, 0.0), **more):
    """Two flows over the same two links."""
    return {
        "links": {"capacity": list(capacity), "latency": [0.0, 0.0]},
        "flows": {"size": list(size), "start": list(start), "route": [[0, 1]] * 2} | more,
    }


BILLION, IN_TURN = {"size": (1e9, 1e9)}, {"after": [[], [0]]}


# 1e-14 of the time must be within 1e-3 of what the flow takes alone, here 1 s, or within 1 us;
# 2.22e-16 of all bytes within 1e-3 of the flow's own, or within 1 B; the same of the capacities.
@pytest.mark.parametrize(
    ("held", "lost", "place"),
    [
        ({"start": (0, 0.99e8)}, {"start": (0, 1.01e8)}, "flows[1]"),
        (BILLION | {"start": (0, 0.99e11)}, BILLION | {"start": (0, 1.01e11)}, "flows[1]"),
        (IN_TURN | {"start": (0.99e8, 0)}, IN_TURN | {"start": (1.01e8, 0)}, "flows[1]"),
        ({"size": (4.4e15, 1.0)}, {"size": (4.6e15, 1.0)}, "flows.size[1]"),
        ({"size": (4.4e20, 1e8)}, {"size": (4.6e20, 1e8)}, "flows.size[1]"),
        ({"capacity": (4.4e18, 1e6)}, {"capacity": (4.6e18, 1e6)}, "links.capacity[1]"),
        # with 2**52 B in all exactly 1 B is lost; of a flow without bytes nothing is
        ({"size": (2.0**52 - 1, 1.0)}, {"size": (2.0**52, 2.0)}, "flows.size[1]"),
        ({"size": (4.6e15, 0.0)}, {"size": (4.6e15, 0.5)}, "flows.size[1]"),
        (
            {"size": (1e6, 0.0), "start": (0, 1e20)},
            {"start": (0, 1e20), "route": [[0, 1], [0]]},
            "flows[1]",
        ),
        # all capacities are small; the first link is the slow one; a slow one that nobody uses
        ({"capacity": (1e-14, 1e-14)}, {"capacity": (1e-14, 4.6e-2)}, "links.capacity[0]"),
        (
            {"capacity": (1e6, 4.6e18), "route": [[1]] * 2},
            {"capacity": (1e6, 4.6e18)},
            "links.capacity[0]",
        ),
    ],
)
def test_what_floats_cannot_hold_is_refused_and_what_they_can_is_not(refused, held, lost, place):
    case = read_case(put(two_flows(**held)))
    ends = replay(case, Fluid()).outcome.finish
    lower = latest_ends(case.flows, isolated_seconds(case.links, case.flows))
    assert (ends >= lower - np.maximum(1e-3 * isolated_seconds(case.links, case.flows), 1e-6)).all()
    message = refused(two_flows(**lost))
    assert f"{place}: must not be lost in rounding" in message
    assert "; got " in message
    assert any(remedy in message for remedy in ("near 0 s", "of their own", "within a factor"))


def test_a_flow_of_1e30_seconds_that_begins_at_0_is_held():
    case = read_case(put(two_flows(capacity=(1.0, 1.0), size=(1e30, 1e30))))
    assert replay(case, Fluid()).outcome.finish == pytest.approx([2e30] * 2)


def test_a_day_of_small_messages_is_held():
    case = read_case(put(two_flows(size=(64, 1e12), start=(86_400.0, 0.0))))
    assert replay(case, Fluid()).outcome.finish == pytest.approx([86_400.0, 1_000.0])


# ----------------------------------------------------------------------- interruptions and failures


def test_ctrl_c_while_solving_ends_with_130_and_writes_nothing(here, monkeypatch, capsys):
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
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1), (KeyboardInterrupt(), 130)],
)
@pytest.mark.parametrize("name", ["ends.csv", "ends.csv.gz"])
def test_a_failure_while_writing_keeps_the_old_file_and_leaves_nothing_beside_it(
    error, status, name, here, monkeypatch, capsys
):
    def failing(*_, **__):
        yield "flow,finish_s\n"
        raise error

    monkeypatch.setattr("simshuffle.fabric.network.replay.csv_rows", failing)
    assert main(["study", "replay", str(SHARED), "--out", name]) == status
    assert list(here.iterdir()) == []
    Path(name).write_bytes(b"old")
    assert main(["study", "replay", str(SHARED), "--out", name]) == status
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {name: b"old"}
    assert "Traceback" not in capsys.readouterr().err


def test_a_table_replaces_an_old_one_and_what_a_link_leads_to(here, replayed):
    Path("far").mkdir()
    Path("far/ends.csv").write_text("old")
    Path("ends.csv").symlink_to("far/ends.csv")
    replayed(SHARED, "--out", "ends.csv")
    assert Path("ends.csv").is_symlink()
    assert Path("far/ends.csv").read_text().startswith("flow,finish_s\n0,")
    assert sorted(path.name for path in here.rglob("*")) == ["ends.csv", "ends.csv", "far"]


def into(stdout, name):
    """Return the status, and what stands on standard error beside that kernels are compiled."""
    command = [sys.executable, *["-m", "simshuffle", "study", "replay"], CASES / f"{name}.json.gz"]
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=900
    )
    return done.returncode, done.stderr.replace(f"{ONCE}\n", "")


@pytest.mark.parametrize("name", ["two_share_down", "p1_w2_32"])
def test_a_reader_that_has_seen_enough_is_no_reason_to_complain(name):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = into(writing, name)
    finally:
        os.close(writing)
    assert answer == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", ["two_share_down", "p1_w2_32"])
def test_a_full_disk_behind_standard_output_is_said_once(name):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        answer = into(full, name)
    message = (
        "No space left on device. Nothing was written; free some space or choose another --out.\n"
    )
    assert answer == (1, message)


def test_help_answers_without_the_packages_that_compute(here):
    assert imported_by(["study", "replay", "--help"], here) == (0, [])


def test_a_pipe_is_not_replaced_by_a_file(capsys):
    os.mkfifo("pipe")  # not a device of this machine: wrong code would replace that
    assert main(["study", "replay", str(SHARED), "--out", "pipe"]) == 2
    assert "--out: is not an ordinary file; got 'pipe'" in capsys.readouterr().err
    assert Path("pipe").is_fifo()

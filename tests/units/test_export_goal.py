"""GOAL: read back by its grammar, a schedule is the program that it was written from."""

import math
import re
from collections import Counter

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.extensions.interop.exports.goal import schedules
from simshuffle.extensions.interop.exports.program import make_program
from tests.units.test_export_formats import COMMAND, exchanging

WORD = r"[a-zA-Z][a-zA-Z0-9_]*"
STATEMENT = re.compile(
    rf"(?:(?P<label>{WORD})\s*:\s*)?(?:calc\s+(?P<ns>\d+)(?:\s+cpu\s+\d+)?"
    r"|(?P<kind>send|recv)\s+(?P<nbytes>\d+)\s*b\s+(?P<way>to|from)\s+(?P<rank>\d+)"
    r"(?:\s+tag\s+(?P<tag>\d+))?(?:\s+cpu\s+\d+)?(?:\s+nic\s+\d+)?)$"
)
DEPENDENCY = re.compile(rf"({WORD})\s+(i?requires)\s+({WORD})$")


def read(text):
    """The statements and dependencies of each rank, by the scanner of txt2bin.re: a statement a
    line, ranks in their order, labels known before they are used."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("//")]
    count = re.fullmatch(r"num_ranks (\d+)", lines.pop(0))
    ranks: list[tuple[dict, list]] = []
    inside = False
    for line in lines:
        if begin := re.fullmatch(r"rank (\d+) \{", line):
            assert not inside
            assert int(begin[1]) == len(ranks)
            ranks.append(({}, []))
            inside = True
        elif line == "}":
            inside = False
        elif edge := DEPENDENCY.match(line):
            assert {edge[1], edge[3]} <= ranks[-1][0].keys(), line
            ranks[-1][1].append(edge.groups())
        else:
            found = STATEMENT.match(line)
            assert inside, line
            assert found, line
            assert found["kind"] is None or (found["kind"] == "send") == (found["way"] == "to")
            assert found["label"] not in ranks[-1][0]
            ranks[-1][0][found["label"]] = found.groupdict()
    assert not inside
    assert len(ranks) == int(count[1])
    return ranks


def simulated(ranks, latency):
    """When each statement ends (ns), by label: LogGOPS with a latency and nothing else. A send ends
    when it has left, and one of more than a byte when it has arrived (rendezvous)."""
    ends = [{} for _ in ranks]
    begun = [{} for _ in ranks]
    arrived = {}
    left = [dict(statements) for statements, _ in ranks]
    while any(left):
        before = sum(map(len, left))
        for rank, (_, edges) in enumerate(ranks):
            for label, what in list(left[rank].items()):
                needs = [
                    (ends if how == "requires" else begun)[rank].get(first)
                    for then, how, first in edges
                    if then == label
                ]
                if None in needs:
                    continue
                begin = max(needs, default=0)
                end = begin + int(what["ns"] or 0)
                if what["kind"] == "send":
                    arrived[rank, int(what["rank"]), what["tag"]] = end + latency
                    end += latency * (int(what["nbytes"]) > 1)
                elif what["kind"] == "recv":
                    key = int(what["rank"]), rank, what["tag"]
                    if key not in arrived:
                        continue
                    end = max(begin, arrived[key])
                begun[rank][label], ends[rank][label] = begin, end
                del left[rank][label]
        assert sum(map(len, left)) < before, "statements wait for each other"
    return ends


@pytest.fixture(
    scope="module", params=["streamlined", "authors", {"barriers": "iteration"}], ids=str
)
def made(request):
    return make_program(exchanging(request.param), 1, 1)


@pytest.fixture(scope="module")
def ranks(made):
    return read("".join(schedules(made)))


def test_read_back_it_is_the_program(made, ranks):
    assert len(ranks) == made.world_size
    sent = {True: 0, False: 0}
    for rank, (statements, _) in enumerate(ranks):
        assert int(statements["store"]["ns"]) == pytest.approx(1e9 * made.store_s[rank], abs=0.5)
        for k, step in enumerate(made.steps):
            assert int(statements[f"w{k}"]["ns"]) == pytest.approx(
                1e9 * step.before_s[rank], abs=0.5
            )
            sends = bool(step.sends[rank])
            sent[sends] += 1
            assert (f"s{k}" in statements) == (f"r{k}" in statements) == sends
            if sends:
                send, receive = statements[f"s{k}"], statements[f"r{k}"]
                assert int(send["rank"]) == step.target[rank]
                assert int(receive["rank"]) == step.source[rank]
                assert int(send["nbytes"]) == pytest.approx(step.nbytes[rank], abs=0.5)
    assert min(sent.values()) > 0, "some rank keeps a sample, so that both are looked at"


def test_every_send_has_its_receipt_and_only_one(ranks):
    def messages(kind):
        return Counter(
            (*sorted_ends(rank, int(what["rank"]), kind), what["tag"], what["nbytes"])
            for rank, (statements, _) in enumerate(ranks)
            for what in statements.values()
            if what["kind"] == kind
        )

    def sorted_ends(rank, other, kind):
        return (rank, other) if kind == "send" else (other, rank)

    assert messages("send") == messages("recv")
    assert max(messages("send").values()) == 1, "a tag tells the messages of a pair apart"


def test_a_network_of_latency_alone_gives_the_times_of_the_schedule(made, ranks):
    """Work one after the other; a barrier ends ceil(log2 M) latencies after the last rank; storing
    waits for the last message."""
    latency = 1300
    ends = simulated(ranks, latency)
    size, rounds = made.world_size, math.ceil(math.log2(made.world_size))
    now, received = np.zeros(size), np.zeros(size)
    for barrier, step in zip(made.barrier_before, made.steps, strict=True):
        if barrier:
            now = np.full(size, now.max() + rounds * latency)
        now = now + np.rint(1e9 * step.before_s)
        both = np.maximum(now, now[step.source]) + latency  # what it sends, and what it receives
        received = np.maximum(received, np.where(step.sends, both, 0))
    stored = np.maximum(now, received) + np.rint(1e9 * made.store_s)
    early = sum(made.barrier_before) * (rounds - 1) * latency  # some leave a barrier before others
    found = np.array([end["store"] for end in ends])
    assert (found <= stored + 1).all()
    assert (found >= stored - early - 1).all()
    if made.barrier_after:
        last = max(max(end.values()) for end in ends)
        assert last <= stored.max() + rounds * latency + 1


def test_ranks_are_written_one_after_the_other(made):
    """The largest piece is that of a rank: a schedule of many ranks is never whole in memory."""
    pieces = list(schedules(made))
    assert len(pieces) == made.world_size
    assert max(map(len, pieces)) < 2 * min(map(len, pieces)) + 500


def test_the_command_writes_a_file(tmp_path, capsys):
    out = tmp_path / "exchange.goal"
    assert main([*COMMAND, "--to", "goal", "--out", str(out), "--iteration", "3"]) == 0
    assert "after iteration 3 of epoch 1" in capsys.readouterr().err
    assert len(read(out.read_text(encoding="ascii"))) == 8

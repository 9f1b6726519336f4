"""Traces of loops in which no DataLoader is called: where a step's time goes, and no word on
waits."""

import json

import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.doctor.records.chakra_schema import BATCH, COLL, COMP, ChakraNode
from simshuffle.extensions.doctor.records.reading import read
from simshuffle.extensions.interop.exports import chakra as written_chakra

PARTS = [
    ("forward", "user_annotation", "## forward ##", 100, 300),
    ("backward", "user_annotation", "## backward ##", 400, 400),
    ("optimizer", "user_annotation", "Optimizer.step#SGD.step", 800, 100),
]
"""Of a step of 1,000 us: what it is, category and name, its begin and how long it lasts."""


def event(kind, name, start, length):
    shape = {"ph": "X", "cat": kind, "name": name, "pid": 7, "tid": 7}
    return {**shape, "ts": 1000.0 + start, "dur": length, "args": {}}


def trace(path, steps, *, stopped=False):
    """A trace of a loop of its own: ``steps`` steps, and the stub that a profiler begins last."""
    events = []
    for step in range(steps):
        begin = 1050.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, 1000))
        events += [event(kind, name, begin + at, lasts) for _, kind, name, at, lasts in PARTS]
    if stopped:
        events.append(event("user_annotation", f"ProfilerStep#{steps}", 1050.0 * steps, 17))
    text = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}
    path.write_text(json.dumps(text))
    return path


@pytest.mark.parametrize(("steps", "stopped"), [(5, False), (5, True), (3, False), (1, True)])
def test_steps_without_a_loader_say_where_their_time_goes(steps, stopped, tmp_path, capsys):
    path = trace(tmp_path / "trace.json", steps, stopped=stopped)
    assert main(["doctor", str(path), "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)["diagnosis"]
    loop = diagnosis["loop"]
    assert loop["batches"] == steps
    assert loop["batch_s"] == pytest.approx(1e-3)
    of_steps = {name: seconds / steps for name, seconds in loop["of_steps"].items()}
    assert of_steps == pytest.approx({"forward": 3e-4, "backward": 4e-4, "optimizer": 1e-4})
    assert not loop["waits_known"]
    verdict = diagnosis["verdict"]
    assert verdict.startswith("A step takes 0.001 s.\nRests on: ")
    assert "no DataLoader is called" in verdict
    assert "Healthy" not in verdict
    assert main(["doctor", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "waiting for data" not in shown
    assert "rest of the step" in shown


def of_three(kinds=(COMP, COMP, COLL)):
    """A trace of three operations of 300, 600 and 200 us, whose first message is its metadata."""
    names = ("aten::linear", "aten::linear backward", "nccl:all_reduce")
    nodes = []
    for place, (name, kind, micros) in enumerate(zip(names, kinds, (300, 600, 200), strict=True)):
        after = (place,) if place else ()
        nodes.append(ChakraNode(place + 1, name, kind, after, micros / 1e6))
    content = written_chakra.encode_trace(nodes)
    return content[content[0] + 1 :]


SCHEMA = b"\x12\x10\x0a\x06schema\xea\x01\x051.0.1"
"""GlobalMetadata with the attribute schema, and no version."""
PID = b"\x12\x07\x0a\x03pid\x48\x07"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (SCHEMA, "names no version of Chakra's schema, but schema 1.0.1 as an attribute: it is"),
        (PID + SCHEMA, "but schema 1.0.1 as an attribute: it is read as 0.0.4"),
        (PID, "The trace names no version of Chakra's schema: it is read as 0.0.4."),
        (b"", "The trace names no version of Chakra's schema: it is read as 0.0.4."),
    ],
)
def test_a_trace_of_chakra_that_names_no_version_is_read_and_says_so(metadata, said, tmp_path):
    path = tmp_path / "trace.0.et"
    path.write_bytes(bytes([len(metadata)]) + metadata + of_three())
    for given in (path, tmp_path):
        record = read(given)
        seconds = record.rows.groupby("operation", observed=True)["seconds"].sum()
        assert seconds["backward"] == pytest.approx(600e-6)
        assert seconds["allreduce"] == pytest.approx(200e-6)
        assert said in " ".join(record.about["notes"])
    assert main(["doctor", str(path)]) == 0


def test_a_trace_without_version_whose_nodes_are_of_another_schema_is_refused(tmp_path):
    path = tmp_path / "trace.0.et"
    path.write_bytes(bytes([len(SCHEMA)]) + SCHEMA + of_three((COMP, 77, BATCH)))
    with pytest.raises(InputError, match=r"must name the version of its schema.*a node of type 77"):
        read(path)

"""What libraries do with their states: the laws answer as the libraries did when they were killed
and went on, batch by batch."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from simshuffle.extensions.resuming.script import Script
from simshuffle.workload.resuming.law import Crash, Refusal
from tests.resumes import record
from tests.resumes.interpreters import python_with
from tests.shared import needs_peers

ASKED_AGAIN, TRIES = 6, 3
NAMES = sorted(path.stem for path in record.RECORDED.glob("*.json"))
PEERS = [pytest.param(name, marks=needs_peers) for name in NAMES if name != "torch_restart"]


def cases(name):
    return json.loads((record.RECORDED / f"{name}.json").read_text())


def said(case):
    """What the law says of a case, as it is recorded."""
    law, data = record.LAW.validate_python(case["law"]), record.data_of(case)
    before, after = (record.readers_of(case, name) for name in ("before", "after"))
    seed, epoch = case["seed"], case["epoch"]
    crash = Crash(before, after, epoch, case["step"])
    whole = law.epoch(data, before, seed, epoch).first_steps(case["step"])
    found = {"trained": record.mark(record.batches(whole, before.world_size))}
    resumed = law.resume(data, crash, seed)
    if isinstance(resumed, Refusal):
        return found | {"error": resumed.error}
    later = law.later_epoch(data, crash, seed, epoch + 1)
    return found | {
        "rest": record.batches(resumed.remaining, after.world_size),
        "later": record.mark(record.batches(later, after.world_size)),
    }


@pytest.mark.parametrize("name", NAMES)
def test_laws_answer_as_the_library_did_when_it_was_killed(name):
    recorded = cases(name)
    assert len(recorded) >= 200
    for number, case in enumerate(recorded):
        answer = said(case)
        if "error" in case and "error" in answer:
            assert case["error"].startswith(answer.pop("error")), (number, case)
        assert answer == {key: case[key] for key in answer}, (number, case)


def asked(script, case):
    """What the library does. Ranks that fail before they are killed are tried again: on a busy
    machine one of MosaicML's may find shared memory of another that has no size yet."""
    answers = (record.answer(script, case) for _ in range(TRIES))
    return next((answer for answer in answers if "failed" not in answer), {"failed": TRIES})


def first_line(answer):
    """An answer, of whose error the lines that follow name places of a machine."""
    return {key: of.splitlines()[0] if key == "error" else of for key, of in answer.items()}


@pytest.mark.parametrize("name", ["torch_restart", *PEERS])
def test_the_library_still_does_what_was_recorded(name, monkeypatch):
    first = cases(name)[:ASKED_AGAIN]
    library = record.LAW.validate_python(first[0]["law"]).library
    python = python_with(record.literal(name, "NEEDS", library))
    # the sockets of workers are below it, whose names must be short; tmp_path is long
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        with Script(record.command(name, python), Path(folder)) as script:
            for number, case in enumerate(first):
                answer = first_line(asked(script, case))
                assert answer == first_line({key: case.get(key, "") for key in answer}), number

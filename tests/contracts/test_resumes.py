"""What libraries do with their states: the laws answer as the libraries did when they were killed
and went on, batch by batch."""

import json

import pytest

from simshuffle.resuming.law import Crash, Refused
from tests.resumes import record

NAMES = sorted(path.stem for path in record.RECORDED.glob("*.json"))


def cases(name):
    return json.loads((record.RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def said(case):
    """What the law says of a case, as it is recorded."""
    law, data = record.LAW.validate_python(case["law"]), record.data_of(case)
    before, after = (record.readers_of(case, name) for name in ("before", "after"))
    seed, epoch = case["seed"], case["epoch"]
    crash = Crash(before, after, epoch, case["step"])
    whole = law.epoch(data, before, seed, epoch).first(case["step"])
    found = {"trained": record.mark(record.batches(whole, before.world_size))}
    resumed = law.resumed(data, crash, seed)
    if isinstance(resumed, Refused):
        return found | {"error": resumed.says}
    later = law.later(data, crash, seed, epoch + 1)
    return found | {
        "rest": record.batches(resumed.rest, after.world_size),
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

"""A sample of `python -m tests.fuzz`: of every reader some inputs are accepted, the others refused,
and none is a fault; and a trial sees a fault where there is one."""

import random
import shutil
import time

import pytest

from simshuffle.errors import InputError
from tests.fuzz import trial
from tests.fuzz.damage import damaged, damages
from tests.fuzz.readers import READERS, Input, Reader, nothing
from tests.fuzz.results import KINDS
from tests.fuzz.trial import ACCEPTED, FAULT, OUTCOMES, REFUSED, SLOW, tried

FILES = {name: reader for name, reader in READERS.items() if not name.startswith("result of")}
DEEP = ("scenario", "--set", "topology", "fragment", "recorded plans")
DEEP += ("trace of a training", "record of a training")
"""Readers that plan or build a network of what they read, or write it: tens of ms each."""


@pytest.mark.parametrize("name", FILES)
def test_odd_files_are_accepted_or_refused(name, here):
    READERS[name].prepare(here)
    count = 60 if name in DEEP else 200
    report = tried(name, READERS[name], range(count), here)
    assert [(fault.number, fault.what, fault.where) for fault in report.faults] == []
    assert report.counts[ACCEPTED] and report.counts[REFUSED]
    assert report.counts.total() == count


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_results_are_shown_or_refused(kind, results_made, here):
    shutil.copytree(results_made(kind), here / "result")  # the last damage stays there
    name = f"result of {kind}"
    report = tried(name, READERS[name], range(8), here)
    assert [(fault.number, fault.what, fault.where) for fault in report.faults] == []
    assert report.counts[ACCEPTED] and report.counts[REFUSED]


def test_a_result_is_whole_again_after_its_damages(result_of):
    folder = result_of("simulation")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    every = list(damages(folder))
    for damage in random.Random(0).sample(every, 50):
        with damaged(folder, damage):
            path = folder / damage.file
            assert (path.read_bytes() if path.is_file() else None) == damage.content
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    what = [(damage.file, damage.what) for damage in every]
    assert len(what) == len(set(what)) > 500
    assert {("meta.json", "kind missing"), ("epochs.csv", "epoch_s all nan")} <= set(what)


def _reading(content: bytes) -> str:
    """A reader with all the outcomes that there are."""
    if content == b"no":
        raise InputError("no")
    if content == b"fault":
        raise KeyError("fault")
    if content == b"slow":
        began = time.process_time()
        while time.process_time() < began + 60:
            pass
    return ""


def test_the_trial_tells_the_outcomes_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "LIMIT", 0.05)
    contents = (b"fine", b"no", b"fault", b"slow", b"fine")
    inputs = iter(contents)
    reader = Reader(
        nothing,
        lambda rng, folder: Input({"file": next(inputs)}),
        lambda folder, arguments: _reading((folder / "file").read_bytes()),
    )
    report = tried("made up", reader, range(5), tmp_path)
    assert [report.counts[outcome] for outcome in OUTCOMES] == [2, 1, 1, 1]
    assert OUTCOMES == (ACCEPTED, REFUSED, FAULT, SLOW)
    fault, slow = report.faults
    assert (fault.number, fault.what, fault.size) == (2, "KeyError", 5)
    assert "_reading" in fault.where and slow.what == "TooSlowError"
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["scenario", "graph, GraphML", "validation rows"])
def test_inputs_are_those_of_their_number(name, tmp_path):
    def drawn(number: int) -> Input:
        return READERS[name].draw(random.Random(f"0 {name} {number}"), tmp_path)

    assert [drawn(number) for number in range(20)] == [drawn(number) for number in range(20)]
    assert len({str(drawn(number)) for number in range(50)}) > 40

"""Work that is done anew for every sample, starts of epochs, evaluation inside the loop, waits that
one recording cannot tell apart, and how sure a diagnosis is."""

import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.extensions.doctor import certainty
from simshuffle.extensions.doctor.brief import MAX_LINES, brief_lines
from simshuffle.extensions.doctor.causes import UNTOLD
from simshuffle.extensions.doctor.certainty import Certainty, bin_of, certainty_of
from simshuffle.extensions.doctor.diagnosis import diagnose
from simshuffle.extensions.doctor.loop import extract_loop
from simshuffle.extensions.doctor.narrow_causes import periodic_causes
from simshuffle.extensions.doctor.recorder.known_calls import (
    EXACT,
    HANDLE,
    NEAR,
    PARSE,
    CallLog,
    watch_known_calls,
)
from simshuffle.extensions.doctor.recorder.loops import _index_of_loader, _reference
from simshuffle.extensions.doctor.recorder.meter import OWN, Meter
from simshuffle.extensions.doctor.recorder.patching import Patches
from simshuffle.extensions.doctor.repeated_work import ANEW, FIRST_USE, repeated_work
from simshuffle.extensions.doctor.start_causes import EVALUATION, STARTS
from simshuffle.extensions.doctor.workers import add_workers
from tests.records_made import Training

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import doctor_calibration

# --------------------------------------------------------------------------- calls that are noted


def test_a_call_for_what_was_just_called_for_is_made_anew():
    log, meter = CallLog(), Meter()
    for number in range(2 * NEAR + 2):
        # the same file in every sample; one for each of the NEAR + 1 samples of an epoch
        log.epoch = number // (NEAR + 1)
        log.note(meter, "json.load", PARSE, "labels.json", 10)
        log.note(meter, "open", EXACT, f"{number % (NEAR + 1)}.npy", 1)
        meter.end_samples(number, 1)
    sums = {line[0]: line[5:] for line in log.longest()}
    count = 2 * NEAR + 2
    assert sums["json.load"] == [count, 10 * count, count - 1, 10 * (count - 1)]
    assert sums["open"] == [count, count, 0, 0]
    assert (meter.noted_calls, meter.repeats) == (2 * count, count - 1)
    assert meter.repeat_ns == 10 * (count - 1)
    own_line = log.longest()[0]
    assert Path(own_line[2]).name == Path(__file__).name
    assert own_line[3] == "test_a_call_for_what_was_just_called_for_is_made_anew"


def test_an_archive_of_many_samples_is_opened_anew_within_an_epoch():
    log, meter = CallLog(), Meter()
    archives = NEAR + 1
    for number in range(4 * archives):
        log.epoch, sample = divmod(number, 2 * archives)
        log.note(meter, "zipfile.ZipFile", HANDLE, f"{sample % archives}.zip", 1)
        log.note(meter, "numpy.load", PARSE, f"{sample}.npy", 1)
        meter.end_samples(number, 1)
    anew = {line[0]: line[7] for line in log.longest()}
    # an archive once in each of two epochs; a sample's own file comes once an epoch
    assert anew == {"zipfile.ZipFile": 2 * archives, "numpy.load": 0}


def test_texts_of_one_length_are_told_apart_and_of_calls_within_calls_the_outer_one_counts():
    patches, log = Patches(), CallLog()
    watch_known_calls(patches, log)
    try:
        OWN.meter = meter = Meter()
        for number in range(4):
            json.loads(json.dumps([number]))
        with Path(__file__).with_name("conftest.json").open("w") as file:
            json.dump([1], file)
        for _ in range(3):
            with open(file.name) as text:  # noqa: PTH123
                json.load(text)
    finally:
        OWN.meter = None
        patches.remove()
        Path(__file__).with_name("conftest.json").unlink(missing_ok=True)
    sums = {line[0]: (line[5], line[7]) for line in log.longest()}
    assert sums == {"json.loads": (4, 0), "json.load": (3, 2)}
    assert meter.repeats == 2
    before = json.loads  # nothing is noted outside a fetch, nor after the end
    assert before("[1]") == [1]
    assert meter.noted_calls == 7


def test_a_loader_made_anew_over_data_that_replaced_the_previous_is_the_same():
    class Data:
        pass

    first, second = Data(), Data()
    facts = {"batch_size": 4}
    known = [(_reference(first), facts)]
    assert _index_of_loader(known, first, facts) == 0
    assert _index_of_loader(known, second, facts) == 1  # both are there: another loader
    assert _index_of_loader(known, first, {"batch_size": 8}) == 1
    del first
    assert _index_of_loader(known, second, facts) == 0
    assert _index_of_loader([(_reference([1]), facts)], [1], facts) == 1  # lists have no references


# ------------------------------------------------------------------------------ repeated work

CALL = {"kind": HANDLE, "file": "/a/data.py", "caller": "Data.__getitem__", "line": 7}


def repeating(*, handle_share, repeat_s=4e-3, kind=HANDLE, function="sqlite3.connect"):
    """A training that makes a handle of 0.5 ms for each of 8 samples of a batch, in a function that
    is seen in such a share of the stacks."""
    record = Training(workers=1, noise=0.0, decode=0.0, transform=5e-3).record()
    fetches = record.rows[record.rows["operation"] == "fetch"]
    repeats = fetches.assign(operation="repeat", seconds=repeat_s, count=8)
    repeats["operation"] = repeats["operation"].astype(record.rows["operation"].dtype)
    rows = (
        np.concatenate([record.rows.index, repeats.index]),
        record.rows,
        repeats,
    )
    import pandas as pd

    table = pd.concat(rows[1:], ignore_index=True)
    calls = 8 * len(repeats)
    line = CALL | {"kind": kind, "function": function, "calls": calls, "anew": calls}
    seconds = repeat_s * len(repeats)
    place = {"operation": "transform", "line": 7, "calls": "", "transforms": False}
    inside = place | {"file": CALL["file"], "function": CALL["caller"]}
    outside = place | {"file": CALL["file"], "function": "other"}
    places = [
        inside | {"count": round(100 * handle_share)},
        outside | {"count": round(100 * (1 - handle_share))},
    ]
    about = {
        "calls": [line | {"seconds": seconds, "anew_s": seconds}],
        "places": places,
    }
    return replace(record, rows=table, about={**record.about, **about})


def test_a_handle_costs_its_first_use_too_and_a_parser_what_it_takes():
    loop = extract_loop(repeating(handle_share=0.9))
    work = repeated_work(loop)
    parts_s = loop.sum_of("fetch") - loop.sum_of("collate")
    beyond_s = 0.9 * parts_s.sum() - 4e-3 * parts_s.size  # of the function, without the calls
    expected_s = 4e-3 * parts_s.size + FIRST_USE * beyond_s
    assert work.saved_s.sum() == pytest.approx(expected_s, rel=1e-6)
    assert work.measured_share == pytest.approx(4e-3 * parts_s.size / expected_s)
    assert work.calls_a_sample == pytest.approx(1.0)
    assert work.where == "`sqlite3.connect` in Data.__getitem__ (data.py:7)"
    parsed = repeated_work(extract_loop(repeating(handle_share=0.9, kind=PARSE)))
    assert parsed.saved_s.sum() == pytest.approx(4e-3 * parts_s.size)


def test_work_done_anew_goes_before_the_code_that_it_is_a_part_of():
    found = diagnose(repeating(handle_share=0.9))
    assert found.causes[0].name == ANEW
    assert "sample code" not in {cause.name for cause in found.causes}
    cure = next(remedy for remedy in found.remedies if remedy.cause == ANEW)
    assert cure.name.startswith(
        "do `sqlite3.connect` in Data.__getitem__ (data.py:7) once a worker"
    )


# ------------------------------------------------------------------------------ scripts for real

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

class Numbers(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        FETCH
        return torch.zeros(8)

class Order(Sampler):
    def __len__(self):
        return 40
    def __iter__(self):
        ORDER
        return iter(range(40))

def evaluate():
    for batch in DataLoader(Numbers(), 8):
        time.sleep(0.02)

if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = DataLoader(Numbers(), 4, sampler=Order(), num_workers=WORKERS, persistent_workers=KEEP)
    for epoch in range(6):
        BETWEEN
        for number, batch in enumerate(loader):
            time.sleep(0.005)
            STEP
"""


def diagnosed(capfd, *, workers=0, **parts):
    text = SCRIPT.replace("WORKERS", str(workers)).replace("KEEP", str(workers > 0))
    for name in ("FETCH", "ORDER", "BETWEEN", "STEP"):
        text = text.replace(name, parts.get(name.lower(), "pass"))
    Path("train.py").write_text(textwrap.dedent(text))
    assert main(["doctor", "--json", "--out", "found", "--", sys.executable, "train.py"]) == 0
    return json.loads(capfd.readouterr().out)["diagnosis"]


@pytest.mark.parametrize(
    ("parts", "sentence", "place"),
    [
        ({"order": "time.sleep(0.2)", "workers": 1}, "The sampler takes 0.2", "Order.__iter__"),
        ({"order": "time.sleep(0.2)"}, "The sampler takes 0.2", "Order.__iter__"),
        ({"between": "time.sleep(0.2)"}, "Between two epochs the script takes 0.2", "<module>"),
    ],
)
def test_what_comes_before_an_epochs_first_batch_is_named(parts, sentence, place, here, capfd):
    first = diagnosed(capfd, **parts)["causes"][0]
    assert first["name"] == STARTS
    assert sentence in first["sentence"]
    assert f"is in {place} (train.py:" in first["sentence"]
    # 0.2 s for ten batches of 5 ms
    assert 0.3 < first["share"] < 0.9


def test_evaluation_inside_the_loop_is_named_and_counts_within_its_step(here, capfd):
    found = diagnosed(capfd, step="number == 6 and evaluate()")
    first = found["causes"][0]
    assert first["name"] == EVALUATION
    assert "After every 10 steps" in first["sentence"]
    assert 0.3 < first["share"] < 0.9  # 0.1 s for ten batches of 5 ms
    assert "loop dips" not in {cause["name"] for cause in found["causes"]}


def test_a_step_that_takes_longer_now_and_then_names_its_line(here, capfd):
    first = diagnosed(capfd, step="number == 6 and time.sleep(0.2)")["causes"][0]
    assert first["name"] == "loop dips"
    line = 1 + Path("train.py").read_text().split("\n").index(
        "            number == 6 and time.sleep(0.2)"
    )
    assert f"is in <module> (train.py:{line})" in first["sentence"]


def test_code_that_waits_is_latency_or_bandwidth_and_the_gains_say_if(here, capfd):
    found = diagnosed(capfd, workers=1, fetch="time.sleep(0.01)")
    first = found["causes"][0]
    assert first["name"] == UNTOLD
    assert "--try tells" in first["sentence"]
    assert "is in Numbers.__getitem__ (train.py:10)" in first["sentence"]
    names = [remedy["name"] for remedy in found["remedies"]]
    assert any("workers, not 1, if it is latency" in name for name in names)
    assert "fewer bytes, or a faster store, if it is bandwidth" in names
    assert not {"transform", "sample code"} & {cause["name"] for cause in found["causes"]}


# ---------------------------------------------------------------------------------- what is healthy


def test_what_costs_less_than_15_percent_is_healthy_and_the_largest_thing_left():
    found = diagnose(
        Training(workers=1, open=0.0, decode=1e-3, transform=1.2e-3, noise=0.0).record()
    )
    assert (found.causes, found.remedies) == ([], [])
    assert "Why: the largest thing left is " in found.verdict()
    quiet = diagnose(Training(copy=0.0, send=0.0, allreduce=0.0, noise=0.0, begin=0.0).record())
    assert "largest" not in quiet.verdict()


def test_updates_of_accumulated_gradients_are_no_dips():
    """Every eighth step updates: 40 ms longer than the 10 ms of the others."""
    record = Training(noise=0.0).record()
    rows = record.rows
    is_other = (rows["operation"] == "optimizer") & (rows["batch"] % 8 != 7)
    updating = (rows["batch"] % 8 == 7) & rows["operation"].isin(["optimizer", "step"])
    longer = rows[~is_other].copy()
    longer["seconds"] += 0.2 * updating[~is_other]
    loop = extract_loop(replace(record, rows=longer))
    assert "loop dips" not in {cause.name for cause in periodic_causes(loop)}
    # where every step updates, the same dips are named
    every = extract_loop(
        replace(record, rows=rows.assign(seconds=rows["seconds"] + 0.2 * updating))
    )
    assert "loop dips" in {cause.name for cause in periodic_causes(every)}


def test_a_worker_in_place_of_none_costs_the_handover_and_shares_the_cores():
    """1 ms to load and 4 ms to step, on two cores that the rank's own threads compute on: a worker
    hides nothing that is worth a handover."""
    tiny = {"size": 1, "decode": 0.0, "transform": 0.0, "open": 0.0, "request": 0.5e-3}
    training = Training(workers=0, cores=2, nbytes=1.0, collate=0.5e-3, noise=0.0, **tiny)
    loop = extract_loop(training.record())
    assert add_workers(loop, 2) is None
    slow = extract_loop(replace(training, collate=30e-3).record())
    assert add_workers(slow, 2) is not None
    busy = replace(slow, own_cores=2.0)  # both cores are full already
    assert add_workers(busy, 2) is None


# -------------------------------------------------------------------------------- how sure it is


def test_certainty_is_of_the_kind_or_of_all_kinds(monkeypatch):
    counts = {
        ("decode", 0.95): Certainty(19, 20),
        ("opens", 0.95): Certainty(1, 4),
        ("opens", 0.0): Certainty(9, 9),
    }
    monkeypatch.setattr(certainty, "_counts", lambda: counts)
    assert certainty_of("decode", 1.0).words() == "sure (19 of 20 such cases)"
    assert certainty_of("opens", 0.96).words() == "likely (20 of 24 such cases)"
    assert certainty_of("opens", 0.96).share == pytest.approx(21 / 26)
    assert certainty_of("opens", 0.6).words() == "not known how sure"
    assert Certainty(1, 4).words() == "unsure (1 of 4 such cases)"
    assert [bin_of(evidence) for evidence in (0.0, 0.5, 0.94, 1.0)] == [0.0, 0.5, 0.8, 0.95]


def test_healthy_counts_for_itself_alone(monkeypatch):
    counts = {("healthy", 0.95): Certainty(9, 10), ("opens", 0.95): Certainty(1, 4)}
    monkeypatch.setattr(certainty, "_counts", lambda: counts)
    assert certainty_of("healthy", 1.0) == Certainty(9, 10)
    assert certainty_of("decode", 1.0) == Certainty(1, 4)


def test_outcomes_are_counted_by_kind_and_evidence():
    outcomes = [
        {"named": "decode", "evidence": "0.97", "put_in": "opens;decode"},
        {"named": "decode", "evidence": "1.0", "put_in": "opens"},
        {"named": "decode", "evidence": "0.6", "put_in": "decode"},
        {"named": "decode", "evidence": "0.6", "put_in": ""},
        {"named": "", "evidence": "1", "put_in": ""},
        {"named": "", "evidence": "1", "put_in": "opens"},
    ]
    rows = doctor_calibration.table_rows(doctor_calibration.count_outcomes(outcomes))
    assert rows == [("decode", 0.5, 1, 2), ("decode", 0.95, 1, 2), ("healthy", 0.95, 1, 2)]


def test_the_shipped_counts_are_of_bins_and_no_more_right_than_cases():
    for (kind, low), count in certainty._counts().items():
        assert kind
        assert low in certainty.BINS
        assert 0 <= count.right <= count.cases


@pytest.mark.parametrize(
    "changes",
    [
        {"open": 15e-3},
        {"decode": 25e-3, "workers": 1, "slow_samples": (0.005, 0.8), "copy": 20e-3},
        {"disk": (1.0, 1.0), "per_disk_byte": 1.6e-7},
        {},
    ],
)
def test_a_diagnosis_is_twenty_lines_at_most_and_ends_with_its_verdict(changes):
    found = diagnose(Training(**changes).record())
    found = replace(found, notes=[*found.notes, *["A note that is long. " * 12] * 5])
    lines = brief_lines(found)
    assert len(lines) <= MAX_LINES
    assert " ".join(lines).endswith(" ".join(found.verdict().split()))
    if found.causes:
        assert lines[0].startswith(f"1. {found.causes[0].name}: ")
        assert found.remedies[0].name[:40] in " ".join(line.strip() for line in lines)


def test_a_remedy_saves_a_batch_at_most():
    found = diagnose(Training(open=30e-3, noise=0.5).record())
    assert all(remedy.high <= found.loop.batch_s * 1.000001 for remedy in found.remedies)

"""What is shown beside a diagnosis: parts of a batch that add up, and what was tried at first."""

from dataclasses import replace
from pathlib import Path

import pytest

from simshuffle.extensions.doctor.causes import UNTOLD
from simshuffle.extensions.doctor.diagnosis import diagnose
from simshuffle.extensions.doctor.gains import Gain
from simshuffle.extensions.doctor.records.reading import read
from simshuffle.extensions.doctor.shown import REST, WAITING, batch_rows, doctor_chart, tries_parts
from simshuffle.extensions.doctor.trying import (
    BOUND,
    WARM,
    Trial,
    TrialOutcome,
    choose_trials,
    conclude,
    try_all,
)
from simshuffle.report import paper

RECORD = Path(__file__).parents[1] / "data" / "doctor" / "record.parquet"
REAL = diagnose(read(RECORD))
"""What is not given below is that of a real record."""
STEPS = {"forward": 1.0, "backward": 3.0, "allreduce": 1.0}
LOOP = replace(
    REAL.loop, batches=5, seconds=10.0, waited_s=4.0, step_s=6.0, of_steps=STEPS, batch_s=2.0
)


def remedy(name, gain_s, change):
    ends = {"low": gain_s / 2, "high": 1.5 * gain_s}
    return replace(REAL.remedies[0], name=name, gain_s=gain_s, change=change, **ends)


WORKERS = {"loader": {"num_workers": 8}}
FOUND = replace(
    REAL, loop=LOOP, remedies=[remedy("other code", 0.8, None), remedy("8 workers", 0.4, WORKERS)]
)


def parts(loop):
    rows = batch_rows(loop)
    assert rows["seconds"].sum() == pytest.approx(loop.batch_s)
    assert rows["share"].sum() == pytest.approx(1.0)
    return dict(zip(rows["part"], rows["seconds"], strict=True))


def test_the_parts_of_a_batch_add_up_to_it():
    found = parts(LOOP)
    assert found == pytest.approx(
        {WAITING: 0.8, "forward": 0.2, "backward": 0.6, "allreduce": 0.2, REST: 0.2}
    )


def test_an_allreduce_in_the_backward_pass_is_no_time_of_its_own():
    """Of a step of 6 s, 1 s and 5 s and 1 s are known: 1 s of the 5 s is the allreduce."""
    steps = {"forward": 1.0, "backward": 5.0, "allreduce": 1.0}
    found = parts(replace(LOOP, of_steps=steps))
    assert found == pytest.approx({WAITING: 0.8, "forward": 0.2, "backward": 0.8, "allreduce": 0.2})


def test_remedies_that_the_recorder_can_make_are_tried_and_the_bound():
    first, bound = choose_trials(FOUND, 3)
    assert (first.name, first.change) == ("8 workers", WORKERS)
    assert first.predicted == pytest.approx((0.2, 0.1, 0.3))
    assert (bound.name, bound.predicted) == (BOUND, None)
    assert [of.name for of in choose_trials(FOUND, 0)] == [BOUND]


def caused(*names, remedies=()):
    causes = [replace(REAL.causes[0], name=name) for name in names]
    return replace(REAL, loop=replace(LOOP, workers=4), causes=causes, remedies=list(remedies))


def test_what_one_recording_cannot_tell_is_tried_first_by_the_one_thing_that_tells():
    threads = remedy("1 thread", 0.9, {"torch_threads": 1})
    workers = remedy("8 workers", 0.4, WORKERS)
    untold = caused(UNTOLD, remedies=[threads, workers])
    assert [(of.name, of.tells) for of in choose_trials(untold, 1)] == [
        ("8 workers", UNTOLD),
        (WARM, "page cache"),
        (BOUND, ""),
    ]
    cores = choose_trials(caused("cores", remedies=[threads, workers]), 2)
    assert [(of.name, of.tells) for of in cores] == [
        ("1 thread", "cores"),
        ("8 workers", ""),
        (BOUND, ""),
    ]
    lock = choose_trials(caused("lock"), 1)[0]
    assert (lock.name, lock.tells) == ("2 workers, not 4", "lock")
    assert lock.change == {"loader": {"num_workers": 2}}
    assert [of.name for of in choose_trials(untold, 0)] == [BOUND]


@pytest.mark.parametrize(
    ("tells", "measured", "words"),
    [
        (UNTOLD, (0.0, -0.1, 0.1), "so it is bandwidth"),
        (UNTOLD, (0.7, 0.6, 0.8), "so it is latency"),
        (UNTOLD, (0.4, 0.2, 0.6), ""),
        ("cores", (0.0, -0.1, 0.1), "not the cores"),
        ("cores", (0.7, 0.6, 0.8), "in each other's way"),
        ("lock", (0.0, -0.05, 0.05), "one at a time"),
        ("lock", (-0.9, -1.0, -0.8), "several at a time"),
        ("page cache", (0.5, 0.4, 0.6), "page cache cold"),
        ("page cache", (0.0, -0.05, 0.05), "takes as long"),
        ("page cache", (0.1, 0.0, 0.2), ""),
        ("", (0.7, 0.6, 0.8), ""),
    ],
)
def test_what_a_trial_tells(tells, measured, words):
    trial = Trial("a trial", {}, Gain(0.8, 0.0, 0.9), tells)
    sentence = conclude(trial, Gain(*measured))
    assert words in sentence
    assert bool(sentence) == bool(words)
    shown = tries_parts([TrialOutcome("a trial", None, Gain(*measured), conclusion=sentence)])
    assert shown[1:] == ([sentence] if sentence else [])


def test_the_second_run_is_held_against_the_recording(monkeypatch):
    record = read(RECORD)
    slower = record.rows.assign(seconds=2.0 * record.rows["seconds"])
    recording = replace(record, rows=slower)
    runs = []

    class Runs:
        def record(self, name, changes=None):
            runs.append(name)
            return record, None

    trial = Trial(WARM, {}, None, "page cache")
    (outcome,) = try_all(Runs(), [trial], recording)
    assert outcome.measured.share == pytest.approx(0.5)
    assert outcome.conclusion.startswith("A second run is faster")
    assert len(runs) == 1  # as it is, and nothing else


@pytest.mark.parametrize(
    ("measured", "within"),
    [((0.2, 0.15, 0.25), True), ((0.35, 0.29, 0.41), True), ((0.4, 0.31, 0.5), False)],
)
def test_what_is_measured_is_as_predicted_where_the_intervals_meet(measured, within):
    assert TrialOutcome("", Gain(0.2, 0.1, 0.3), Gain(*measured)).within is within


def legend(chart):
    return [look.label for _, look in chart.legend_keys()]


def test_the_figure_has_predicted_and_measured_side_by_side():
    tries = [TrialOutcome("8 workers", Gain(0.2, 0.1, 0.3), Gain(0.25, 0.2, 0.3))]
    tries += [TrialOutcome("broken", Gain(0.2, 0.1, 0.3), None, "no memory")]
    chart = doctor_chart(FOUND, tries)
    whole, saved = chart.panels
    assert list(saved.y.ticks.values()) == ["8 workers", "other code"]
    bars, points = saved.marks[1].places(), saved.marks[4].places()
    assert bars["x2"].tolist() == pytest.approx([20.0, 40.0])  # %
    assert saved.marks[2].places()["x"].tolist() == pytest.approx([10.0, 20.0])
    assert saved.marks[2].places()["x2"].tolist() == pytest.approx([30.0, 60.0])
    assert points["x"].tolist() == pytest.approx([25.0])
    assert round(float(points["y"].iloc[0])) == 0  # that of the remedy
    assert whole.marks[0].places()["x2"].max() == pytest.approx(LOOP.batch_s)
    paper.draw(chart)
    assert "measured" in legend(chart) and "measured" not in legend(doctor_chart(FOUND, []))
    shown = tries_parts(tries)
    assert shown[1:] == ["Not measured: broken: no memory."]
    assert tries_parts([]) == []


def test_without_remedies_the_figure_is_a_batch_alone():
    assert len(doctor_chart(replace(FOUND, remedies=[]), []).panels) == 1

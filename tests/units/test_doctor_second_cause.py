"""The cause behind the first one, and causes that others used to hide."""

import json
from dataclasses import replace

import numpy as np
import pytest

from simshuffle.extensions.doctor import diagnosis
from simshuffle.extensions.doctor.brief import brief_lines
from simshuffle.extensions.doctor.causes import candidate_causes
from simshuffle.extensions.doctor.diagnosis import diagnose
from simshuffle.extensions.doctor.joint import without_both
from simshuffle.extensions.doctor.loop import extract_loop
from simshuffle.extensions.doctor.narrow_causes import missing_worker_causes, periodic_causes
from simshuffle.extensions.doctor.recorder.rows import CODES
from simshuffle.extensions.doctor.remedies import crowded_steps
from simshuffle.extensions.doctor.replay import LoopTimes
from simshuffle.extensions.doctor.without_cause import LoopWithoutCause
from tests.records_made import Training

BATCHES = 3


def loop_times(load_s, step_s, workers=1):
    """Three batches that take as long each, of one rank and one epoch."""
    return LoopTimes(
        load_s=np.full((BATCHES, 1), load_s),
        step_s=np.full((BATCHES, 1), step_s),
        worker_start_s=np.zeros((1, workers, 1)),
        epoch_bounds=(0, BATCHES),
        workers=workers,
        prefetch=2,
    )


@pytest.mark.parametrize(
    ("first_load_s", "second_load_s", "load_s"),
    [
        (4.0, 7.0, 1.0),  # parts of 6 s and 3 s of 10 s
        (2.0, 3.0, 2.0),  # 8 s and 7 s are the same time: the larger counts
        (4.0, 11.0, 5.0),  # a change that takes 1 s more
    ],
)
def test_what_two_causes_take_adds_up_where_it_is_not_the_same_time(
    first_load_s, second_load_s, load_s
):
    base = loop_times(10.0, 5.0)
    joint = without_both(base, loop_times(first_load_s, 4.0), loop_times(second_load_s, 3.0))
    assert joint.load_s == pytest.approx(load_s)
    assert joint.step_s == pytest.approx(5.0 - 1.0 - 2.0)


def test_more_workers_and_less_work_are_counted_in_any_order():
    base, less_work, more_workers = (
        loop_times(10.0, 5.0),
        loop_times(4.0, 5.0),
        loop_times(12.0, 5.0, workers=3),
    )
    for pair in ((less_work, more_workers), (more_workers, less_work)):
        joint = without_both(base, *pair)
        assert joint.workers == 3
        assert joint.load_s == pytest.approx(12.0 - 6.0)


def test_a_cause_behind_the_first_is_named_with_what_it_costs_then():
    """Two workers make a batch every 60 ms, a step takes 30 ms, and every eighth saves for 300 ms:
    the workers catch up meanwhile, so decoding shows once nothing is saved."""
    training = Training(
        workers=2, decode=12.5e-3, transform=0.0, checkpoint=(8, 0.3), epochs=1, batches=160
    )
    found = diagnose(training.record())
    names = [cause.name for cause in found.causes[:2]]
    assert names == ["loop dips", "decode"]
    first, second = found.causes[:2]
    no_dips = replace(training, checkpoint=(0, 0.0))
    seconds = no_dips.without(decode=0.0)
    assert second.share_after * found.loop.seconds == pytest.approx(seconds, rel=0.15)
    assert second.share < second.share_after / 2
    assert first.share_after == first.share
    after = f"{100 * second.share_after:.0f} % once loop dips is mended"
    assert any(after in line for line in brief_lines(found))


def test_a_healthy_loop_and_a_sick_one_say_their_confidence_as_a_number():
    for training in (Training(), Training(workers=1)):
        found = diagnose(training.record())
        written = json.loads(json.dumps(found.as_json()))
        assert 0.0 < written["confidence"] < 1.0
        if found.causes:
            assert written["confidence"] == found.causes[0].confidence


CALL = {"function": "numpy.load", "kind": "parse", "file": "/a/b.py", "caller": "f", "line": 3}


@pytest.mark.parametrize(
    ("opens", "file_nbytes", "anew", "are_many"),
    [(4.0, 1e3, 0, True), (1.0, 1e3, 0, False), (4.0, 1e7, 0, False), (4.0, 1e3, 900, False)],
)
def test_many_small_files_of_a_sample_are_opens_and_no_sample_code(
    opens, file_nbytes, anew, are_many
):
    loop = extract_loop(Training(open=1e-3, transform=4e-3, decode=0.0).record())
    count = loop.sum_of("open", "count")
    count[:] = opens * loop.sum_of("fetch", "count")
    timed_s = 0.5 * float((loop.sum_of("open") + loop.sum_of("read")).sum())
    timed_s += 0.25 * float(loop.sum_of("transform").sum())
    # half of the calls were timed: with the others they take half of the code of samples
    calls = int(count.sum() / 2)
    call = {**CALL, "calls": calls, "seconds": timed_s, "anew": anew and calls, "anew_s": 0.0}
    loop = replace(loop, mean_file_nbytes=file_nbytes, known_calls=[call])
    base = loop.times.load_s
    (without,) = (cause for cause in candidate_causes(loop) if cause.name == "opens")
    saved_s = float((base - without.times.load_s).sum())
    opens_s = float(loop.sum_of("open").sum())
    if are_many:
        opens_s += float(loop.sum_of("read").sum() + 0.5 * loop.sum_of("transform").sum())
        assert without.sentence.startswith("A sample has 4 small files: opening and parsing")
    assert saved_s == pytest.approx(opens_s, rel=1e-3)


@pytest.mark.parametrize(
    ("calls", "is_work"),
    [
        ({"numpy.fft.rfft": 20, "": 40}, True),  # operators are calls that nobody sees
        ({"numpy.fft.rfft": 10, "": 40}, False),
        ({"json.load": 50}, False),
    ],
)
def test_code_that_computes_with_a_library_lacks_workers_first(calls, is_work):
    place = {"operation": "transform", "file": "/data/train.py", "function": "f", "line": 3}
    loop = extract_loop(Training(workers=0, transform=8e-3, decode=0.0, collate=0.0).record())
    looks = [{**place, "calls": of, "transforms": False, "count": n} for of, n in calls.items()]
    (cause,) = missing_worker_causes(replace(loop, code_places=looks))
    assert (cause.weight > 1.0) == is_work


def test_an_epoch_that_begins_with_a_shard_begins_with_a_dip_where_samples_have_no_index():
    training = Training(shard=(16, 1.0), epochs=3, batches=48, workers=1)
    loop = extract_loop(training.record())
    seconds = loop.sum_of("fetch")
    firsts = np.array(loop.times.epoch_bounds[:-1])
    seconds[firsts] += 1.0
    saved_s = {}
    for has_index in (True, False):
        samples = loop.samples if has_index else loop.samples.assign(sample=-1)
        causes = periodic_causes(replace(loop, samples=samples))
        (dips,) = (cause for cause in causes if cause.name == "loader dips")
        saved_s[has_index] = float((loop.times.load_s - dips.times.load_s)[firsts].sum())
    assert saved_s[True] == 0.0
    assert saved_s[False] > 0.0


@pytest.mark.parametrize(("is_shuffled", "first"), [(True, "slow sample"), (False, "loader dips")])
def test_slow_reads_that_follow_their_samples_are_no_dips_of_the_loader(is_shuffled, first):
    """The first sample of every sixteenth batch is slow. In the second epoch the blocks of 16
    batches come in another order, or in the same."""
    training = Training(shard=(16, 1.0), batches=96, workers=1)
    record = training.record()
    rows = record.rows
    in_next_block = (rows["sample"] + 16 * training.size) % (training.batches * training.size)
    is_same = (rows["epoch"] == 0) | (rows["sample"] < 0) | (not is_shuffled)
    rows = rows.assign(sample=rows["sample"].where(is_same, in_next_block))
    assert diagnose(replace(record, rows=rows)).causes[0].name == first


def test_steps_of_more_threads_than_cores_may_get_as_much_shorter():
    """Four threads and two workers on two cores: each thread has a third of a core."""
    loop = replace(extract_loop(Training(workers=2).record()), threads=4, cores=2)
    crowded = crowded_steps(loop, loop.times)
    assert crowded.step_s == pytest.approx(loop.times.step_s / 3)
    shorter = replace(loop.times, step_s=loop.times.step_s / 6)
    assert crowded_steps(loop, shorter).step_s == pytest.approx(shorter.step_s)
    roomy = crowded_steps(replace(loop, cores=16), loop.times)
    assert roomy.step_s == pytest.approx(loop.times.step_s)


def test_a_thread_that_holds_the_interpreter_has_a_core_and_delays_batches_that_are_there():
    training = Training(gil=20e-3, workers=2)
    loop = extract_loop(training.record())
    shape = loop.times.load_s.shape
    sums = {name: table.copy() for name, table in loop.sums.items()}
    sums["queued_s"][CODES["step"]] = 4e-3
    sums["cpu_s"][CODES["wait"]] = 1e-3
    times = replace(loop.times, handover_s=np.full(shape, 6e-3))
    loop = replace(loop, sums=sums, times=times)
    blocked_s = loop.times.step_s - _without_interpreter(replace(loop, threads=2)).step_s
    with_core_s = loop.times.step_s - _without_interpreter(loop).step_s
    assert with_core_s == pytest.approx(blocked_s + 4e-3)
    assert _without_interpreter(loop).handover_s == pytest.approx(1e-3)


def _without_interpreter(loop):
    (cause,) = (cause for cause in candidate_causes(loop) if cause.name == "gil")
    return cause.times


@pytest.mark.parametrize(
    ("threads", "late_s", "lost_s"), [(4, 0.0, 9e-3), (2, 0.0, 4e-3), (4, 20e-3, 4e-3)]
)
def test_threads_beyond_the_cores_wait_for_one_another(threads, late_s, lost_s):
    """A step computes for all but 9 ms: 4 ms wait for a core, 5 ms for other threads."""
    loop = extract_loop(Training(workers=2, cores=2, copy=0.0, allreduce=0.0, gil=late_s).record())
    sums = {name: table.copy() for name, table in loop.sums.items()}
    sums["queued_s"][CODES["step"]] = 4e-3
    sums["cpu_s"][CODES["step"]] = sums["seconds"][CODES["step"]] - 9e-3
    loop = replace(loop, sums=sums, threads=threads)
    (cause,) = (cause for cause in candidate_causes(loop) if cause.name == "cores")
    assert np.median(loop.times.step_s - cause.times.step_s) == pytest.approx(lost_s)
    assert ("with waits for one another" in cause.sentence) == (threads == 4)


def test_of_two_causes_of_one_name_the_remedy_is_against_the_heavier(monkeypatch):
    def candidates_with_a_light_one(loop):
        light = LoopWithoutCause("slow worker", loop.times, "It costs nothing.")
        return [*candidate_causes(loop), light]

    monkeypatch.setattr(diagnosis, "candidate_causes", candidates_with_a_light_one)
    found = diagnose(Training(workers=3, slow_worker=(1, 8.0), decode=6e-3).record())
    (remedy,) = (remedy for remedy in found.remedies if remedy.cause == "slow worker")
    assert remedy.share == pytest.approx(found.causes[0].share)

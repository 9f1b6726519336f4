"""What a diagnosis says of records that were made with one cause in them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from simshuffle.errors import InputError
from simshuffle.extensions.doctor.diagnosis import diagnose
from simshuffle.extensions.doctor.gains import Gain
from simshuffle.extensions.doctor.loop import FETCH_PARTS, extract_loop
from simshuffle.extensions.doctor.narrow_causes import slow_rank_causes
from simshuffle.extensions.doctor.quiet import remove_core_waits
from simshuffle.extensions.doctor.ranking import MODEL_ERROR, rank_remedies
from simshuffle.extensions.doctor.recorder.rows import CODES
from simshuffle.extensions.doctor.records.record import Record, make_rows
from simshuffle.extensions.doctor.workers import reduce_computing
from tests.records_made import Training

MADE = yaml.safe_load((Path(__file__).parents[1] / "data" / "doctor" / "causes.yaml").read_text())
HEALTHY_ONES, CAUSES = MADE["healthy"], MADE["causes"]
WORKERS = {"none": ({"workers": 0}, {"workers": 3}), "too few": ({"workers": 1}, {"workers": 3})}


@pytest.mark.parametrize("of", HEALTHY_ONES.values(), ids=HEALTHY_ONES)
def test_what_is_healthy_has_no_cause(of):
    found = diagnose(Training(**of).record())
    assert (found.causes, found.remedies) == ([], [])
    assert found.verdict().startswith("Healthy: ")


@pytest.mark.parametrize(("name", "put_in", "without"), [(k, *v) for k, v in CAUSES.items()])
def test_the_cause_that_was_put_in_comes_first_with_its_seconds(name, put_in, without):
    training = Training(**put_in)
    found = diagnose(training.record())
    assert found.loop.replay_error == pytest.approx(0.0, abs=1e-9)
    assert found.causes[0].name == name.strip()
    assert found.causes[0].evidence > 0.5
    assert found.causes[0].seconds == pytest.approx(training.without(**without), rel=0.05)


@pytest.mark.parametrize(("put_in", "without"), WORKERS.values(), ids=WORKERS)
def test_workers_that_are_too_few(put_in, without):
    training = Training(**put_in)
    found = diagnose(training.record())
    assert found.causes[0].name == "workers"
    change = found.remedies[0].change["loader"]
    assert change["num_workers"] == without["workers"]
    assert change.get("persistent_workers", False) == (put_in["workers"] == 0)
    gain = training.without(**without)
    assert found.remedies[0].gain_s * found.loop.batches == pytest.approx(gain, rel=0.05)


def test_a_straggler_becomes_as_fast_as_its_peers_where_it_is_slow():
    """Rank 1 loads twice as long as its peers' median, rank 3 steps three times as long; rank 2
    loads 1.25 times as long, which is not slow yet."""
    loop = extract_loop(Training(ranks=4).record())
    load, step = [1.0, 2.0, 1.25, 1.0], [1.0, 1.0, 1.0, 3.0]
    of_all = np.ones_like(loop.times.load_s)
    times = replace(loop.times, load_s=of_all * load, step_s=of_all * step)
    loop = replace(loop, times=times)
    all_times = [without.times for without in slow_rank_causes(loop)]
    loads = [times.load_s[-1].tolist() for times in all_times]
    assert loads == [load, [1.0, 1.0, 1.25, 1.0], load, load]
    assert [times.step_s[-1].tolist() for times in all_times] == [step, step, step, [1.0] * 4]


def test_workers_that_begin_at_each_epoch():
    training = Training(persistent=False, begin=2.0, epochs=3)
    found = diagnose(training.record())
    assert found.causes[0].name == "workers anew"
    remedy = found.remedies[0]
    assert remedy.change == {"loader": {"persistent_workers": True}}
    # two epochs after the first, 2 s for the begin of each and 0.2 s for the end of the one before
    assert remedy.gain_s * found.loop.batches == pytest.approx(4.4, rel=0.05)
    # epochs begin by no chance, so the interval is the error of such predictions
    error_s = MODEL_ERROR * found.loop.batch_s
    assert remedy.low > 0.9 * remedy.gain_s - error_s
    assert remedy.high == pytest.approx(remedy.gain_s + error_s, rel=0.1)


def test_threads_that_are_more_than_the_cores_wait_for_one_another():
    found = diagnose(Training(queued=0.2, cores=1).record())
    assert found.causes[0].name == "cores"
    assert found.causes[0].share > 0.3
    record = Training(queued=0.2, cores=6).record()
    threads = replace(record, about={**record.about, "threads": 8})
    changes = [of.change for of in diagnose(threads).remedies if of.cause == "cores"]
    assert changes == [{"torch_threads": 2}]  # four workers have the other cores


def test_what_other_programs_take_is_said_and_is_no_cause():
    """On 16 cores five threads need not wait: others had the cores. Without these the loop is
    healthy, or waits for its files as it would alone."""
    found = diagnose(Training(queued=0.1, cores=16).record())
    assert found.causes == []
    assert any(note.startswith("Other programs had the cores") for note in found.notes)
    alone, beside = (
        diagnose(Training(queued=late, cores=16, open=15e-3).record()) for late in (0.0, 0.1)
    )
    assert [of.causes[0].name for of in (alone, beside)] == ["opens", "opens"]
    assert beside.causes[0].share == pytest.approx(alone.causes[0].share, rel=0.02)


def test_cores_that_others_had_are_told_from_those_that_the_training_had():
    """Five threads on two cores, that wait for one as long as they compute: what others had of the
    cores is the part that they computed of all."""
    own = extract_loop(Training(queued=0.05, cores=2).record())
    computed = sum(np.nansum(own.sum_of(name, "cpu_s")) for name in ("wait", "step", "fetch"))
    rate = computed / own.measured_batch_s.sum()
    for others, left in ((0.0, 1.0), (rate, 0.5), (3 * rate, 0.25)):
        quiet = remove_core_waits(replace(own, cores_of_others=others))
        late = own.sum_of("fetch", "queued_s").sum()
        assert (own.sum_of("fetch") - quiet.sum_of("fetch")).sum() == pytest.approx(
            (1 - left) * late
        )
    assert remove_core_waits(own).sum_of("fetch") == pytest.approx(
        own.sum_of("fetch")
    )  # none is known of


def test_who_computes_less_is_less_in_the_way():
    """A worker that computes nothing any more: steps wait for no core, and a batch is in hand at
    once but for the loop's own work."""
    loop = extract_loop(Training(workers=1, queued=0.0).record())
    sums = {name: of.copy() for name, of in loop.sums.items()}
    sums["queued_s"][CODES["step"]] = 4e-3
    sums["cpu_s"][CODES["wait"]] = 1e-3
    way = replace(loop.times, handover_s=np.full(loop.times.load_s.shape, 5e-3), busy_extra_s=2e-3)
    loop = replace(loop, sums=sums, times=way)
    all_of_it = loop.sum_of("fetch", "cpu_s")
    for part in (0.0, 0.5, 1.0):
        less = reduce_computing(loop, part * all_of_it)
        assert less.step_s == pytest.approx(way.step_s - 4e-3 * part)
        assert less.handover_s == pytest.approx(1e-3 + 4e-3 * (1 - part))
        assert less.busy_extra_s == pytest.approx(2e-3 * (1 - part))
        assert less.load_s == pytest.approx(np.maximum(way.load_s - part * all_of_it, 0.0))


def test_gradients_summed_every_fourth_batch_cost_a_quarter():
    training = Training(ranks=2, allreduce=30e-3, optimizer=4e-3)
    found = diagnose(training.record())
    remedy = next(of for of in found.remedies if of.cause == "allreduce")
    assert remedy.gain_s == pytest.approx(0.75 * (30e-3 + 4e-3), rel=0.1)


def test_what_others_took_is_off_the_parts_of_a_fetch_as_it_is_off_the_whole():
    late, alone = (
        extract_loop(Training(queued=of, cores=16, open=5e-3).record()) for of in (0.05, 0.0)
    )
    quiet = remove_core_waits(late)
    # what is computed took longer, not what is waited for
    for names in (["fetch"], ["open"], ["decode", "transform", "collate"]):
        found, expected = (sum(loop.sum_of(name) for name in names) for loop in (quiet, alone))
        assert found == pytest.approx(expected)


# ------------------------------------------------------------------------------ what is not known


def turns(batches: int, wait: float, step: float, of: str = "") -> Record:
    """Waits and steps alone, as traces of others have them, or the rows ``of`` one operation."""
    batch = np.repeat(np.arange(batches), 2)
    seconds = np.tile([wait, step], batches)
    start = np.concatenate([[0.0], np.cumsum(seconds)[:-1]])
    names = np.tile(["wait", "step"], batches)
    columns = {"operation": names, "batch": batch, "start_s": start, "seconds": seconds}
    record = Record(make_rows(columns), {"made_by": "kineto"}, "made")
    return replace(record, rows=record.rows_of(of)) if of else record


def test_a_record_without_workers_says_that_it_cannot_tell():
    found = diagnose(turns(100, 0.4, 0.1))
    assert (found.causes, found.remedies) == ([], [])
    assert "; this record cannot tell why.\n" in found.verdict()
    assert any("was not recorded" in note for note in found.notes)
    assert found.loop.waited_s == pytest.approx(99 * 0.4)
    assert diagnose(turns(100, 0.001, 0.1)).verdict().startswith("Healthy: ")


def test_nothing_is_made_up_where_computing_times_are_not_known():
    training = Training(open=15e-3)
    record = training.record()
    unknown = record.rows.assign(cpu_s=np.nan, queued_s=np.nan, disk_nbytes=np.nan)
    found = diagnose(replace(record, rows=unknown, about={"loaders": record.about["loaders"]}))
    assert found.causes[0].name == "opens"
    assert found.causes[0].seconds == pytest.approx(training.without(open=0.0), rel=0.05)
    assert not {"cores", "gil", "page cache", "workers"} & {of.name for of in found.causes}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_last_batch_of_an_epoch_has_what_ends_it(ranks):
    """Workers that end take 20 ms: a tenth of what they take to begin."""
    made = Training(ranks=ranks, epochs=3, noise=0.0, persistent=False, begin=0.2, workers=8)
    loop = extract_loop(made.record())
    more = loop.sum_of("step") - loop.sum_of("step")[1]
    expected = np.zeros_like(more)
    expected[[95, 191, 287]] = 0.02
    np.testing.assert_allclose(more, expected, atol=5e-3)
    np.testing.assert_allclose(loop.epoch_end_s, 0.02)


def test_fetches_without_parts_have_as_large_shares_of_what_they_took():
    loop = extract_loop(Training(timed=4, noise=0.3).record())
    seen = np.arange(192) % 4 == 0
    whole = loop.sum_of("fetch") - loop.sum_of("collate")
    np.testing.assert_allclose(sum(map(loop.sum_of, FETCH_PARTS)), whole)
    for name in FETCH_PARTS:
        share = loop.sum_of(name)[seen].sum() / whole[seen].sum()
        np.testing.assert_allclose(loop.sum_of(name)[~seen], whole[~seen] * share)
    nbytes = loop.sum_of("read", "nbytes")
    assert nbytes[~seen] == pytest.approx(nbytes[seen].mean())


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (turns(1, 0.4, 0.1), "RECORD: must have"),
        (turns(2, 0.4, 0.1), "RECORD: must have"),
        (turns(20, 0.0, 0.0), "that take time"),
        (turns(20, 0.4, 0.1, of="fetch"), "must have the waits and steps of a loop"),
        (turns(20, 0.4, 0.1, of="wait"), "at least 3 batches of all ranks"),
    ],
)
def test_a_record_without_a_loop_is_refused(record, said):
    with pytest.raises(InputError, match=said):
        diagnose(record)


def test_clocks_of_ranks_need_not_agree():
    training = Training(ranks=2, slow_rank=(1, 2.0))
    record = training.record()
    late = record.rows["start_s"] + 7.0 * (record.rows["rank"] == 1)
    apart = replace(record, rows=record.rows.assign(start_s=late).sort_values("start_s"))
    assert diagnose(apart) == diagnose(record)


def test_batches_that_are_not_whole_are_left_out_and_other_loaders_are_named():
    record = Training(open=15e-3).record()
    rows = record.rows
    last = (rows["epoch"] == 1) & (rows["batch"] == 95) & (rows["operation"] == "step")
    lost = (rows["epoch"] == 0) & (rows["batch"] == 40) & (rows["operation"] == "fetch")
    other = turns(10, 0.1, 0.1).rows.assign(loader=1)
    found = diagnose(
        replace(record, rows=make_rows(dict(pd.concat([rows[~(last | lost)], other]))))
    )
    assert found.loop.batches == 2 * 96 - 2  # the first and the last
    assert found.causes[0].name == "opens"
    assert "Loops over other loaders took 2 s; only those in steps count." in found.notes
    assert "The loading of 1 batches was not recorded: the median stands for it." in found.notes


def test_what_is_kept_is_what_was_found():
    found = diagnose(Training(workers=1).record())
    kept = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert kept["verdict"] == found.verdict()
    assert kept["causes"][0]["seconds"] == found.causes[0].seconds
    assert kept["remedies"][0]["change"] == found.remedies[0].change


def test_remedies_hold_their_gain_in_their_interval_and_most_comes_first():
    found = diagnose(Training(slow_worker=(2, 4.0), disk=(1.0, 1.0)).record())
    gains = [of.gain_s for of in found.remedies]
    assert gains == sorted(gains, reverse=True)
    assert len(gains) > 1
    assert all(of.low <= of.gain_s <= of.high for of in found.remedies)
    changes = [of.change for of in found.remedies]
    assert {"loader": {"in_order": False}} in changes


def test_what_workers_share_bounds_what_more_of_them_gain():
    """A lock that three of four workers wait for lets one batch through at a time: more workers
    gain nothing, but for the end where nothing is shared."""
    found = diagnose(Training(lock=45e-3, cores=16, decode=0.0, transform=0.0).record())
    assert found.causes[0].name == "lock"
    assert not any("workers, not" in of.name for of in found.remedies)


def test_an_end_of_an_interval_that_is_rounding_alone_is_0():
    candidate = SimpleNamespace(
        name="", assumption_free_share=0.0, cost="", change=None, limit="", cause=""
    )
    loop = SimpleNamespace(times=SimpleNamespace(epoch_bounds=[0, 50]), first_counted_batch=0)
    gains = np.full((50, 1), 0.1)
    (found,) = rank_remedies(
        [candidate],
        gains=gains,
        best_gains=gains,
        loop=loop,
        batch_s=np.ones(50),
        replay_error=1e-17,
    )
    assert found.low == 0
    assert found.high == pytest.approx(0.1 + MODEL_ERROR, abs=0.02)
    assert Gain(0.0, -1e-5, 1e-5).interval == "0.0 to 0.0 %"

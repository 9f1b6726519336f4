"""What a remedy saves of the time of a batch, worked out by hand for loaders of one rank.

W workers that each take T to fetch a batch, and a step of S < T / W: a turn of W batches takes T,
as W fetches go side by side. So a batch takes T / W on average, whatever S is; twice the workers
halve it.
"""

import numpy as np
import pytest

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.doctor.gains import batch_seconds, gain
from simshuffle.extensions.doctor.records.record import Record, make_rows


def record(waits, steps, *, workers=0, prefetch=2, rank=0, loader=0, epoch=0):
    """Of batches one after another, with these waits and steps in s."""
    waits, steps = np.broadcast_arrays(waits, steps)
    begin = np.concatenate([[0.0], np.cumsum(waits + steps)[:-1]])
    count = len(waits)
    columns = {
        "rank": rank,
        "loader": loader,
        "epoch": epoch,
        "batch": np.tile(np.arange(count), 2),
        "operation": np.repeat(["wait", "step"], count),
        "start_s": np.concatenate([begin, begin + waits]),
        "seconds": np.concatenate([waits, steps]),
    }
    known = {"num_workers": workers, "prefetch_factor": prefetch if workers else None}
    return Record(make_rows(columns), {"loaders": [known]}, "made")


def of_workers(workers, fetch, step, turns):
    """A loader that is slower than its training: all its workers end their batches together."""
    turn = np.zeros(workers)
    turn[0] = fetch - workers * step
    return record(np.tile(turn, turns), step, workers=workers)


def test_twice_the_workers_halve_the_time_although_most_batches_wait_for_nothing():
    control, tried = of_workers(4, 4.0, 0.1, 50), of_workers(8, 4.0, 0.1, 25)
    assert batch_seconds(control).median() == pytest.approx(0.1)  # which says nothing is gained
    found = gain(control, tried)
    # the first batches that are left out are no whole turns of 4, so blocks of 8 still are
    assert found == pytest.approx((0.5, 0.5, 0.5), abs=1e-9)


def test_a_training_that_does_not_wait_gains_nothing():
    same = record(np.zeros(100), 0.2, workers=2)
    assert gain(same, record(np.zeros(100), 0.2, workers=4)) == pytest.approx((0.0, 0.0, 0.0))


def test_what_is_slower_loses():
    assert gain(record(np.zeros(50), 0.1), record(np.full(50, 0.1), 0.1)).share == pytest.approx(-1)


def test_the_interval_is_that_of_a_mean_of_noisy_batches():
    """Of n batches with a standard deviation of s: 1.645 s √(2 / n) on either side, for a gain
    near 0 of steps of 1 s."""
    draws = np.random.default_rng(1)
    n, s = 4000, 0.1
    control, tried = (record(np.zeros(n), draws.normal(1.0, s, n)) for _ in range(2))
    found = gain(control, tried)
    assert (found.high - found.low) / 2 == pytest.approx(1.645 * s * np.sqrt(2 / n), rel=0.25)
    assert found.low < 0 < found.high


def test_the_start_of_the_workers_is_no_batch_of_either():
    slow = np.zeros(60)
    slow[0] = 100.0
    assert gain(record(slow, 0.1), record(np.zeros(60), 0.1)).share == pytest.approx(0.0)


def test_batches_that_are_kept_to_be_played_again_count_for_neither():
    """The first 8 are fetched as ever, and the 4 behind them are what 2 workers had on the way."""
    waits = np.where(np.arange(60) < 12, 0.1, 0.0)
    control, bound = record(np.full(60, 0.1), 0.1, workers=2), record(waits, 0.1, workers=2)
    assert gain(control, bound, 8) == pytest.approx((0.5, 0.5, 0.5))
    assert gain(control, bound).share < 0.45


def test_batches_that_one_did_not_reach_count_for_neither():
    """The later ones of the control are slower, and the other one never came so far."""
    steps = np.repeat([0.1, 0.9], 50)
    control, tried = record(np.zeros(100), steps), record(np.zeros(50), 0.1)
    assert gain(control, tried).share == pytest.approx(0.0)


def test_too_few_batches_give_no_gain():
    few = record(np.zeros(8), 0.1)
    with pytest.raises(SimshuffleError, match="only 7 batches"):
        gain(few, few)


def joined(*records, loaders=()):
    rows = {
        name: np.concatenate([of.rows[name].to_numpy() for of in records])
        for name in records[0].rows
    }
    return Record(make_rows(rows), {"loaders": loaders}, "made")


def test_ranks_are_averaged_and_another_loader_is_left_out():
    main = record(np.zeros(4), 1.0)
    other = record(np.zeros(4), 3.0, rank=1)
    test = record(np.zeros(4), 0.5, loader=1)
    known = [{"dataset": "Train"}, {"dataset": "Test"}]
    assert batch_seconds(joined(main, other, test, loaders=known)).tolist() == [2.0] * 4


def test_a_new_loader_for_each_epoch_is_the_same_one():
    """And its start counts, as it comes again and again: only the first one does not."""
    known = [{"dataset": "Train"}] * 3
    waits = np.where(np.arange(27) == 0, 1.0, 0.0)
    again = joined(*(record(waits, 0.1, loader=of) for of in range(3)), loaders=known)
    kept = joined(*(record(np.zeros(27), 0.1, loader=of) for of in range(3)), loaders=known)
    # 80 batches of 0.1 s, and two starts of 1 s
    assert gain(again, kept).share == pytest.approx(2.0 / 10.0)


def test_a_batch_that_is_played_again_has_its_place_and_not_its_number():
    bound = record(np.zeros(60), 0.1)
    bound.rows.loc[bound.rows["batch"] > 7, "batch"] = 7
    assert len(batch_seconds(bound)) == 60

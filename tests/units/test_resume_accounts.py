"""Batches and accounts of epochs that broke off, by hand; and what skips batches of an epoch."""

import numpy as np
import pytest

from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.resuming.account import account_for_epoch, compare_continuation
from simshuffle.workload.resuming.law import (
    NOTHING,
    Batches,
    Crash,
    Refusal,
    batches_from_order,
    cut_into_batches,
    refuse_other_workers,
)
from simshuffle.workload.resuming.samplers import skip_samples
from simshuffle.workload.resuming.skipping import SkipFirstBatches, TransformersTrainer

ROWS = ([0, 0, 0, 1, 1], [0, 0, 1, 0, 1], [5, 3, 1, 4, 2])
DATA = ShardedSet(np.array([64]), np.array([6400.0]))
SLOW, FAST = Readers(1, 2, 1, 4), Readers(1, 4, 1, 4)  # 8 and 4 steps an epoch of 64 samples


def batches(rank, step, sample):
    return Batches(*(np.array(column) for column in (rank, step, sample)))


def listed(rows):
    return [column.tolist() for column in rows.columns]


def test_rows_of_batches():
    rows = batches(*ROWS)
    assert (rows.steps, NOTHING.steps) == (2, 0)
    assert rows.batch.tolist() == [0, 0, 1, 3, 4]
    assert listed(rows.first_steps(1)) == [[0, 0, 1], [0, 0, 0], [5, 3, 4]]
    assert listed(rows.after_steps(1)) == [[0, 1], [0, 0], [1, 2]]
    assert rows.after_steps(2).steps == 0 and rows.first_steps(9).steps == 2
    assert rows.append(rows).step.tolist() == [0, 0, 1, 0, 1, 2, 2, 3, 2, 3]
    assert rows.sort_by_time().sample.tolist() == [5, 3, 4, 1, 2]


def test_ranks_cut_their_own_samples_into_batches():
    sequences = [np.array([7, 8, 9]), np.array([], int), np.array([4])]
    assert listed(cut_into_batches(sequences, 2)) == [[0, 0, 0, 2], [0, 0, 1, 0], [7, 8, 9, 4]]
    assert cut_into_batches([], 2).steps == 0


def test_ranks_take_a_batch_of_each_worker_in_turn():
    """Rank 0 has workers of 3 and 2 samples, in batches of 2: the third is again of worker 0."""
    rank = np.zeros(5, int)
    worker, position = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 1])
    order = EpochOrder(rank, worker, position, np.array([10, 11, 12, 20, 21]))
    found = batches_from_order(order, Readers(1, 1, 2, 2))
    assert listed(found) == [[0] * 5, [0, 0, 1, 1, 2], [10, 11, 20, 21, 12]]


def test_each_rank_passes_over_samples_of_its_own():
    epoch = batches(
        [0] * 5 + [1] * 4, [0, 0, 1, 1, 2, 0, 0, 1, 1], [10, 11, 12, 13, 14, 20, 21, 22, 23]
    )
    rest = skip_samples(epoch, np.array([1, 3]), 2)
    assert listed(rest) == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 0], [11, 12, 13, 14, 23]]
    assert skip_samples(epoch, np.array([5, 9]), 2).steps == 0


@pytest.mark.parametrize(
    ("expected", "remaining", "how"),
    [
        # two ranks of two samples in a step; the same once more
        (([0, 0, 1, 1], [0] * 4, [1, 2, 3, 4]), ([0, 0, 1, 1], [0] * 4, [1, 2, 3, 4]), "same"),
        # one rank has them as if they had been dealt one by one, in two steps
        (([0, 0, 1, 1], [0] * 4, [1, 2, 3, 4]), ([0] * 4, [0, 0, 1, 1], [1, 3, 2, 4]), "same"),
        # one rank has them rank by rank
        (([0, 0, 1, 1], [0] * 4, [1, 2, 3, 4]), ([0] * 4, [0, 0, 1, 1], [1, 2, 3, 4]), "same"),
        # steps of the same samples, in another order
        (([0] * 4, [0, 0, 1, 1], [1, 2, 3, 4]), ([0] * 4, [0, 0, 1, 1], [2, 1, 4, 3]), "same"),
        (([0] * 4, [0, 0, 1, 1], [1, 2, 3, 4]), ([0] * 4, [0, 0, 1, 1], [3, 4, 1, 2]), "permuted"),
        (([0] * 4, [0, 0, 1, 1], [1, 2, 3, 4]), ([0] * 4, [0, 0, 1, 1], [1, 2, 3, 3]), "other"),
        (([0] * 4, [0, 0, 1, 1], [1, 2, 3, 4]), ([0] * 3, [0, 0, 1], [1, 2, 3]), "other"),
    ],
)
def test_how_a_rest_compares_with_what_would_have_followed(expected, remaining, how):
    assert compare_continuation(batches(*expected), batches(*remaining)) == how


def test_an_account_by_hand():
    """Of eight samples 0 to 4 are planned, 0 twice; after [0, 1] come [1, 2, 2]."""
    unbroken = batches([0] * 6, [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 0])
    remaining = batches([0] * 3, [0, 0, 1], [1, 2, 2])
    other = batches([0] * 2, [0, 0], [7, 3])
    found = account_for_epoch(8, unbroken, 1, remaining, [other])
    assert (found.trained, found.rest, found.continues) == (2, 3, "other")
    assert found.lost == 2  # 3 and 4
    assert found.repeated == 1  # 1
    assert (found.twice, found.twice_whole) == (2, 1)  # 1 and 2; 0
    assert found.never == 3  # 4, 5 and 6
    assert account_for_epoch(8, unbroken, 1, remaining).never == 5


def test_another_number_of_workers_is_refused_by_name():
    def error(before, after):
        refusal = refuse_other_workers(Readers(1, 2, before, 4), Readers(1, 2, after, 4))
        return refusal and refusal.error

    assert error(2, 2) is None and error(2, 3) == "AssertionError:"
    assert error(1, 2).endswith("key '_snapshot'") and error(2, 1).endswith("key '_num_yielded'")
    assert Refusal("A: ", "why").message == "A: why" and Refusal("A").message == "A"


def trainer(**values):
    return TransformersTrainer.model_validate({"kind": "transformers_trainer", **values})


def test_a_trainer_divides_all_steps_by_those_of_an_epoch_now():
    """4 + 2 steps of four ranks are 6 of the 8 that two ranks make: two are left of epoch 0."""
    law, crash = trainer(), Crash(FAST, SLOW, epoch=1, step=2)
    epochs = [law.epoch(DATA, SLOW, 3, epoch) for epoch in range(3)]
    rest = law.resume(DATA, crash, 3).remaining
    assert rest.steps == 2 + 8
    assert listed(rest.first_steps(2)) == listed(epochs[0].after_steps(6))
    assert listed(rest.after_steps(2)) == listed(epochs[1])
    assert listed(law.later_epoch(DATA, crash, 3, 2)) == listed(epochs[2])
    again = trainer(ignore_data_skip=True).resume(DATA, crash, 3).remaining
    assert again.steps == 8 + 8


def test_a_trainer_with_fewer_steps_an_epoch_goes_on_in_a_later_one():
    """3 x 8 + 3 steps of two ranks are 27: six epochs of four, and three steps of the seventh."""
    crash = Crash(SLOW, FAST, epoch=3, step=3)
    law = trainer()
    assert law.resume(DATA, crash, 3).remaining.steps == 0
    steps = [law.later_epoch(DATA, crash, 3, epoch).steps for epoch in (4, 5, 6, 7)]
    assert steps == [0, 0, 1, 4]
    rest = law.later_epoch(DATA, crash, 3, 6)
    assert listed(rest) == listed(law.epoch(DATA, FAST, 3, 6).after_steps(3))
    # older versions skip batches of epoch 0, but no batch of a whole epoch
    older = trainer(keeps_epoch=False)
    rest = older.later_epoch(DATA, crash, 3, 6)
    assert listed(rest) == listed(law.epoch(DATA, FAST, 3, 0).after_steps(3))
    assert listed(older.later_epoch(DATA, crash, 3, 7)) == listed(law.epoch(DATA, FAST, 3, 7))


def skipping(**values):
    return SkipFirstBatches.model_validate({"kind": "skip_first_batches", **values})


@pytest.mark.parametrize("dispatch", ["no", "split"])
def test_skipped_batches_are_those_of_the_steps_that_were_done(dispatch):
    law, crash = skipping(dispatch=dispatch), Crash(SLOW, SLOW, epoch=2, step=3)
    expected = law.epoch(DATA, SLOW, 3, 2).after_steps(3)
    remaining = law.resume(DATA, crash, 3).remaining
    assert remaining.steps == 5 and listed(remaining) == listed(expected)
    ended = law.resume(DATA, Crash(SLOW, SLOW, epoch=2, step=8), 3)
    if dispatch == "no":
        assert ended.remaining.steps == 0
    else:
        assert ended.message.startswith("TypeError")


def test_batches_that_are_dispatched_whole_are_skipped_one_a_step():
    """Of three steps of two ranks 3 of 6 batches: 52 of 64 samples follow, in 6.5 steps."""
    law, crash = skipping(dispatch="batches"), Crash(SLOW, SLOW, epoch=2, step=3)
    remaining = law.resume(DATA, crash, 3).remaining
    assert (len(remaining.sample), remaining.steps) == (52, 7)
    assert set(remaining.sample) > set(law.epoch(DATA, SLOW, 3, 2).after_steps(3).sample)


def test_a_loop_that_sets_no_epoch_counts_from_the_restart():
    law, crash = skipping(sets_epoch=False), Crash(SLOW, SLOW, epoch=2, step=3)
    first = law.epoch(DATA, SLOW, 3, 0)
    assert listed(law.resume(DATA, crash, 3).remaining) == listed(first.after_steps(3))
    forgotten = skipping(keeps_iteration=False).resume(DATA, crash, 3).remaining
    assert listed(forgotten) == listed(first.after_steps(3))
    for epoch in (3, 4):
        later = law.later_epoch(DATA, crash, 3, epoch)
        assert listed(later) == listed(law.epoch(DATA, SLOW, 3, epoch - 3))
        plain = skipping().later_epoch(DATA, crash, 3, epoch)
        assert listed(plain) == listed(law.epoch(DATA, SLOW, 3, epoch))

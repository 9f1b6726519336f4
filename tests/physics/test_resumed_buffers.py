"""What is lost and repeated where a buffer is not saved, or nothing is: worked out by hand."""

import numpy as np
import pytest

from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.buffers import WebDatasetRestart
from simshuffle.workload.resuming.hugging_face import HuggingFaceState
from simshuffle.workload.resuming.law import Crash, Refusal

SET = ShardedSet(np.full(20, 10), np.full(20, 1e3))
ALONE = Readers(nodes=1, ranks=1, workers=1, batch_size=1)


def hugging_face(buffer_size, shards=1, formatted=False, **keys):
    of = {
        "kind": "hugging_face",
        "buffer_size": buffer_size,
        "max_buffer_input_shards": shards,
        "formatted": formatted,
    }
    return HuggingFaceState.model_validate({"kind": "hugging_face", "of": of, **keys})


def webdataset(of, **keys):
    return WebDatasetRestart.model_validate({"kind": "webdataset", "of": of, **keys})


def counted(law, step, readers=ALONE, epoch=0):
    crash = Crash(readers, readers, epoch, step)
    resumed = law.resume(SET, crash, 0)
    assert not isinstance(resumed, Refusal), resumed
    return account_for_epoch(SET.size, law.epoch(SET, readers, 0, epoch), step, resumed.remaining)


@pytest.mark.parametrize("step", [1, 5, 6, 23, 150])
def test_what_the_buffer_of_hugging_face_holds_is_lost(step):
    # it reads 10, hands out 5, and for every 5 more that it reads 5 more: 10 - j are in it when j
    # of the last 5 are handed out
    found = counted(hugging_face(10), step)
    assert (found.lost, found.repeated) == (10 - ((step - 1) % 5 + 1), 0)


def test_without_a_buffer_nothing_is_lost():
    assert counted(hugging_face(1), 77).continues == "same"


def test_of_tables_others_are_thrown_away_than_were_trained_on():
    # up to the first sample after the first 5 the buffer is filled as it was, and nothing is lost
    law = hugging_face(10, formatted=True)
    assert all(counted(law, step).continues == "same" for step in range(1, 7))
    # then it begins without the 5 that it had kept, and j of 10 others are thrown away
    found = [counted(law, step) for step in range(7, 150)]
    assert {one.lost - one.repeated for one in found if (one.trained - 1) % 5} == {5}
    assert sum(one.repeated for one in found) > 0


def test_a_worker_with_fewer_runs_than_its_rank_cannot_load_its_state():
    readers = Readers(1, 1, 2, 1)
    refused = hugging_face(12, shards=11).resume(SET, Crash(readers, readers, 0, 5), 0)
    assert isinstance(refused, Refusal)
    assert "IndexError" in refused.error
    assert counted(hugging_face(12, shards=10), 5, readers).lost > 0


def test_without_set_epoch_every_later_epoch_begins_where_the_state_says():
    law, crash = hugging_face(10, set_epoch=False), Crash(ALONE, ALONE, 0, 100)
    for epoch in (1, 5):
        assert len(law.later_epoch(SET, crash, 0, epoch).sample) == SET.size - 105


def test_webdataset_trains_again_on_everything_it_had_trained_on():
    # https://github.com/webdataset/webdataset/issues/271
    law = webdataset({"kind": "webdataset", "detshuffle": True, "buffer_size": 30})
    readers = Readers(2, 2, 1, 5)
    found = counted(law, 4, readers, epoch=1)
    assert (found.repeated, found.twice, found.lost) == (4 * 5 * 4, 4 * 5 * 4, 0)


def test_stages_of_webdataset_count_epochs_from_the_restart():
    of = {"kind": "webdataset", "detshuffle": True, "buffer_size": 30}
    law = webdataset(of, counted_by="stage")
    epochs = [law.epoch(SET, ALONE, 0, epoch).sample.tolist() for epoch in range(4)]
    assert len(set(map(tuple, epochs))) == 4
    crash = Crash(ALONE, ALONE, 2, 9)
    assert law.resume(SET, crash, 0).remaining.sample.tolist() == epochs[0]
    assert law.later_epoch(SET, crash, 0, 3).sample.tolist() == epochs[1]
    # workers that are not kept draw epoch 0 for ever
    workers = Readers(1, 1, 2, 1)
    assert np.array_equal(*(law.epoch(SET, workers, 0, epoch).sample for epoch in (0, 3)))


def test_of_shards_drawn_with_replacement_a_third_is_missed_and_a_restart_draws_the_same():
    # 2 ranks draw 10 of 20 shards each, whole shards without a buffer: a shard is missed with a
    # chance of (1 - 1/20)^20 = 0.36, and one that was trained on half of the epoch is drawn again
    # in the next 20 draws with a chance of 1 - 0.36
    of = {"kind": "webdataset_resampled", "samples": 100, "buffer_size": 1, "detshuffle": False}
    law, readers = webdataset(of), Readers(1, 2, 1, 10)
    missed, again = [], []
    for epoch in range(200):
        whole = law.epoch(SET, readers, 0, epoch)
        missed.append(1 - len(np.unique(whole.sample)) / SET.size)
        rest = law.resume(SET, Crash(readers, readers, epoch, 5), 0).remaining
        again.append(np.isin(np.unique(whole.first_steps(5).sample), rest.sample).mean())
    assert np.mean(missed) == pytest.approx(0.95**20, abs=0.02)
    assert np.mean(again) == pytest.approx(1 - 0.95**20, abs=0.03)
    drawn = webdataset(of | {"detshuffle": True})
    rest = drawn.resume(SET, Crash(readers, readers, 1, 5), 0).remaining
    assert np.array_equal(rest.sample, drawn.epoch(SET, readers, 0, 1).sample)

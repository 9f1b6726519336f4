"""MosaicML Streaming and LitData broken off and gone on with, worked out by hand."""

import numpy as np
import pytest

from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import Crash, Refusal
from simshuffle.workload.resuming.streaming import ResumedLitdata, ResumedMosaicml


def stored(*samples):
    return ShardedSet(np.array(samples), 10.0 * np.array(samples))


def of(law, data, before, after, step, epoch=0):
    """The account of an epoch that ``before`` broke off and ``after`` went on with."""
    crash = Crash(Readers(*before), Readers(*after), epoch, step)
    resumed = law.resume(data, crash, 7)
    assert not isinstance(resumed, Refusal), resumed.error
    whole = law.epoch(data, crash.readers_before, 7, epoch)
    return account_for_epoch(data.size, whole, step, resumed.remaining)


def mosaicml(**order):
    return ResumedMosaicml.model_validate(
        {"kind": "mosaicml_streaming", "of": {"kind": "mosaicml_streaming", **order}}
    )


def litdata(kind, **order):
    return ResumedLitdata.model_validate(
        {"kind": "litdata", "of": {"kind": f"litdata_{kind}", **order}}
    )


@pytest.mark.parametrize("algorithm", ["naive", "py1s", "py1br", "py1e"])
@pytest.mark.parametrize("after", [(1, 4, 3, 6), (4, 2, 2, 3), (1, 1, 1, 24), (3, 1, 2, 8)])
def test_mosaicml_goes_on_with_the_same_iterations_if_the_batch_of_all_ranks_is_kept(
    algorithm, after
):
    # 24 samples of all ranks in an iteration, of 2 hosts before and of all others after
    law, data = mosaicml(shuffle_algo=algorithm), stored(*[24] * 32)
    found = of(law, data, (2, 2, 1, 6), after, step=5, epoch=1)
    assert (found.lost, found.repeated, found.continues) == (0, 0, "same")


def test_mosaicml_reads_again_what_is_no_whole_turn_of_the_hosts():
    # 4 samples were trained on, of which 3 hosts, in turn, can leave out only 3
    law, data = mosaicml(num_canonical_nodes=3), stored(12, 12, 12)
    found = of(law, data, (1, 2, 1, 2), (3, 1, 1, 2), step=1)
    assert (found.trained, found.lost, found.repeated) == (4, 0, 1)


def test_mosaicml_refuses_to_go_on_beyond_the_set_where_canonical_nodes_repeat_samples():
    # 64 canonical nodes with 2 samples each make 128 of 96, and a rank may resume at 97 at most
    law, data = mosaicml(shuffle_algo="py1s"), stored(*[12] * 8)
    host = Readers(1, 1, 1, 1)
    for step, refused in ((97, False), (98, True)):
        found = law.resume(data, Crash(host, host, 0, step), 7)
        assert isinstance(found, Refusal) == refused


def test_mosaicml_forgets_the_hosts_of_the_beginning_unless_workers_persist():
    data, crash = stored(*[12] * 8), Crash(Readers(4, 1, 1, 2), Readers(1, 4, 1, 2), 0, 3)
    law = mosaicml()
    fresh = law.epoch(data, crash.readers_after, 7, 1)
    assert np.array_equal(law.later_epoch(data, crash, 7, 1).sample, fresh.sample)
    kept = law.model_copy(update={"persistent_workers": True}).later_epoch(data, crash, 7, 1)
    assert not np.array_equal(kept.sample, fresh.sample)
    # each of 4 canonical nodes has 24 samples, and each is one rank's
    begun = law.epoch(data, crash.readers_before, 7, 1)
    assert {*kept.sample[kept.rank == 2]} == {*begun.sample[begun.rank == 2]}


def test_litdata_loses_the_rest_of_a_chunk_on_a_parallel_file_system():
    # 2 of the 4 samples of the first chunk were trained on; the others are dealt to nobody
    law, data = litdata("window", window=1), stored(4, 4, 4)
    found = of(law, data, (1, 1, 1, 2), (1, 1, 2, 2), step=1)
    assert (found.lost, found.repeated) == (2, 0)


def test_litdata_begins_the_next_epoch_where_a_rank_counts_whole_batches_that_were_not():
    # each of 2 workers has 3 samples: a batch of 2, and one of 1; 3 batches count as all 6
    law, data = litdata("window"), stored(3, 3)
    readers = Readers(1, 1, 2, 2)
    found = law.resume(data, Crash(readers, readers, 0, 3), 7).remaining
    assert np.array_equal(found.sample, law.epoch(data, readers, 7, 1).sample)
    later = law.later_epoch(data, Crash(readers, readers, 0, 3), 7, 1)
    assert np.array_equal(later.sample, law.epoch(data, readers, 7, 2).sample)


def test_litdata_reads_again_down_to_a_whole_iteration_of_those_who_read_now():
    # 12 samples were trained on; 2 ranks with batches of 4 leave out 8 of them
    law, data = litdata("full", drop_last=False), stored(12, 12, 12, 12)
    found = of(law, data, (1, 1, 1, 4), (1, 2, 1, 4), step=3)
    assert (found.lost, found.repeated) == (0, 4)


def test_litdata_refuses_a_count_of_one_rank_that_exceeds_the_share_of_another():
    # a rank of 2 counts 20 samples, and one of 4 has 12
    law, data = litdata("full"), stored(12, 12, 12, 12)
    crash = Crash(Readers(1, 2, 1, 4), Readers(1, 4, 1, 4), 0, 5)
    assert "num_samples_yielded" in law.resume(data, crash, 7).error
    one = Crash(Readers(1, 1, 1, 4), Readers(1, 4, 1, 4), 0, 1)
    assert "drop_last" in law.resume(data, one, 7).error

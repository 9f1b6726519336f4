"""What comes of the states of loaders of language models where no library was asked: other batches,
and what the recorded cases mean for an epoch."""

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import Crash, Refusal
from tests.resumes.record import LAW, batches

LEVANTER = {"kind": "levanter", "shuffle": "full"}


def set_of(size, shards=1):
    return ShardedSet(np.full(shards, size // shards), np.full(shards, 1.0))


def crash(before, after, step, epoch=0):
    """Readers as (ranks, batch)."""
    return Crash(*(Readers(1, ranks, 1, batch) for ranks, batch in (before, after)), epoch, step)


def accounted(law, data, of, seed=0):
    """What became of the epoch."""
    whole = law.epoch(data, of.readers_before, seed, of.epoch)
    return account_for_epoch(data.size, whole, of.step, law.resume(data, of, seed).remaining)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("single", [[[4, 5, 6], [10, 11, 12]], [[7, 8, 9], [13, 14, 15]]]),
        ("batch", [[[4, 6, 8], [10, 12, 14]], [[5, 7, 9], [11, 13, 15]]]),
    ],
)
def test_megatron_goes_on_with_the_next_sample_in_batches_of_another_size(kind, expected):
    law = LAW.validate_python({"kind": "megatron", "dataloader_type": kind})
    data, of = set_of(18), crash((1, 2), (2, 3), 2)
    assert batches(law.resume(data, of, 0).remaining, 2) == expected
    # and so it does in all later passes: samples 0 to 3 are not seen again
    assert batches(law.later_epoch(data, of, 0, 3), 2) == expected


def test_parts_of_megatron_are_others_when_there_are_other_ranks():
    data, of = set_of(64), crash((2, 2), (4, 2), 8)
    cyclic = {"kind": "megatron", "dataloader_type": "cyclic"}
    dealt = accounted(LAW.validate_python(cyclic | {"data_sharding": False}), data, of)
    parts = accounted(LAW.validate_python(cyclic), data, of)
    assert (dealt.lost, dealt.repeated, dealt.continues) == (0, 0, "same")
    assert parts.lost == parts.repeated > 0


def test_megatron_needs_a_batch_of_each_rank():
    law = LAW.validate_python({"kind": "megatron", "dataloader_type": "cyclic"})
    with pytest.raises(InputError, match="a batch of each rank, 8 samples; got 7 samples"):
        law.resume(set_of(7), crash((1, 1), (4, 2), 3), 0)


@pytest.mark.parametrize(
    ("after", "scheduled", "lost", "repeated", "continues"),
    [
        ((4, 2), False, 0, 0, "same"),
        ((2, 8), False, 24, 0, "other"),  # 3 steps of 16, not of 8
        ((1, 4), False, 0, 12, "other"),
        ((2, 8), True, 0, 0, "same"),
    ],
)
def test_levanter_counts_steps(after, scheduled, lost, repeated, continues):
    law = LAW.validate_python({"kind": "levanter", "of": LEVANTER, "scheduled": scheduled})
    got = accounted(law, set_of(64), crash((2, 4), after, 3))
    assert (got.lost, got.repeated, got.continues) == (lost, repeated, continues)


def test_ray_begins_the_epoch_again():
    law = LAW.validate_python({"kind": "ray_train", "buffer_size": 4})
    got = accounted(law, set_of(64, 8), crash((2, 4), (4, 2), 3))
    assert (got.lost, got.repeated) == (0, got.trained)


def test_states_of_energon_that_are_dropped_are_samples_that_are_lost():
    data, of = set_of(96, 8), crash((2, 4), (1, 4), 6)
    law = LAW.validate_python({"kind": "energon", "restores": "rank"})
    got = accounted(law, data, of)
    # rank 0 goes on with the runs of its half, of which 24 of 48 are left; of the other half
    # nobody reads the 24 that rank 1 had not read
    assert (got.trained, got.rest) == (48, 24)
    assert got.lost == 24
    assert isinstance(law.model_copy(update={"restores": "global"}).resume(data, of, 0), Refusal)

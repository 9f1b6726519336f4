"""Mixtures of sources: what ends an epoch, and what each source has of it."""

import json
from itertools import islice

import numpy as np
import pytest
from pydantic import TypeAdapter

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.mixture import (
    StopRule,
    count_sources,
    draw_samples,
    sources_at_random,
    sources_in_turn,
)
from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import Crash
from simshuffle.workload.resuming.mixture import InterleaveResume, NodesResume
from tests import ray_mix

ORDER = TypeAdapter(AnyOrder)
ALONE = Readers(1, 1, 1, 1)
SOURCES = [np.array([0, 1]), np.array([10, 11, 12])]


def sharded(*samples):
    return ShardedSet(np.array(samples), 100.0 * np.array(samples))


def order(kind, **keys):
    return ORDER.validate_python({"kind": kind, **keys})


def had(made, data, rows):
    """Of each source, how often an epoch has its samples, and how many of them."""
    source = made.source_of(data)
    own = [rows[source[rows] == number] for number in range(source.max() + 1)]
    return [(len(each), len(np.unique(each))) for each in own]


def drawn(stop, exhausted=(False, False)):
    draws = iter([np.array([0, 1, 0, 0, 1, 1, 1, 0, 0])])
    mixed = draw_samples(draws, lambda source, _: SOURCES[source], list(exhausted), stop)
    return mixed.sample.tolist()


# a source of 2 is drawn at 0, 2, 3, ..., one of 3 at 1, 4, 5, 6
@pytest.mark.parametrize(
    ("stop", "samples"),
    [
        (StopRule(needs_all_exhausted=False, restarts_sources=False), [0, 10, 1]),
        (StopRule(needs_all_exhausted=True, restarts_sources=True), [0, 10, 1, 0, 11, 12]),
        (StopRule(needs_all_exhausted=True, restarts_sources=False), [0, 10, 1, 11, 12]),
        (StopRule(needs_all_exhausted=False, restarts_sources=False, ends_late=True), [0, 10, 1]),
        (
            StopRule(needs_all_exhausted=True, restarts_sources=True, ends_late=True),
            [0, 10, 1, 0, 11, 12],
        ),
        (
            StopRule(
                needs_all_exhausted=True, restarts_sources=True, ends_late=True, max_samples=4
            ),
            [0, 10, 1, 0],
        ),
    ],
)
def test_a_mixture_ends_as_it_is_told(stop, samples):
    assert drawn(stop) == samples


def test_a_source_that_is_exhausted_already_does_not_keep_a_mixture_going():
    assert drawn(StopRule(needs_all_exhausted=True, restarts_sources=True), (False, True)) == [
        0,
        10,
        1,
    ]
    assert drawn(StopRule(needs_all_exhausted=False, restarts_sources=True), (False, True)) == []


# of `interleave_datasets`' own docstring: 3 sources of 3, drawn with seed 42
@pytest.mark.parametrize("streamed", [True, False])
def test_sources_are_drawn_as_the_documentation_of_datasets_has_it(streamed):
    made = order(
        "hugging_face_interleave",
        weights=[0.7, 0.2, 0.1],
        stopping="all_exhausted",
        streamed=streamed,
    )
    rows = made.epoch(sharded(3, 3, 3), ALONE, 42, 0).sample
    said = [10, 0, 11, 1, 2, 20, 12, 10, 0, 1, 2, 21, 0, 11, 1, 2, 0, 1, 12, 2, 10, 0, 22]
    assert (rows // 3 * 10 + rows % 3).tolist() == said
    assert had(made, sharded(3, 3, 3), rows) == [(13, 3), (7, 3), (3, 3)]
    found = count_sources(made, sharded(3, 3, 3), rows, 42)
    assert [(of.again, of.cut_off) for of in found] == [(10, 0), (4, 0), (0, 0)]
    assert [round(of.had, 2) for of in found] == [0.57, 0.3, 0.13]


def test_the_last_round_in_turn_is_broken_off_where_sources_are_streamed():
    data, turns = sharded(3, 4, 5), {"weights": [1.0, 1.0, 1.0], "drawn": False}
    first = [0, 3, 7, 1, 4, 8, 2, 5, 9]
    whole = order("hugging_face_interleave", streamed=False, **turns).epoch(data, ALONE, 0, 0)
    assert whole.sample.tolist() == first
    part = order("hugging_face_interleave", **turns).epoch(data, ALONE, 0, 0)
    assert part.sample.tolist() == first[:7]


def test_the_seed_of_interleaved_sources_counts_in_the_first_epoch_alone():
    made, data = order("hugging_face_interleave"), sharded(*[20] * 4)
    epochs = [
        [made.epoch(data, ALONE, seed, epoch).sample.tolist() for seed in (1, 2)]
        for epoch in (0, 1)
    ]
    assert epochs[0][0] != epochs[0][1]
    assert epochs[1][0] == epochs[1][1]


def test_nodes_begin_a_source_again_in_another_order():
    made = order("torchdata_nodes", weights=[0.9, 0.1])
    rows = made.epoch(sharded(4, 8), ALONE, 0, 0).sample
    small = rows[rows < 4]
    passes = [small[at : at + 4].tolist() for at in range(0, len(small) // 4 * 4, 4)]
    assert len(passes) > 5
    assert all(sorted(one) == [0, 1, 2, 3] for one in passes)
    assert len({tuple(one) for one in passes}) > 3


def test_streams_have_what_was_asked_of_them():
    data = sharded(*[10] * 4)
    asked = {"random": [28, 12], "stratified": [27, 9], "per_stream": [28, 12]}
    for batching, rows in asked.items():
        made = order("mosaicml_streams", batching_method=batching)
        handed_out = made.epoch(data, Readers(1, 2, 1, 2), 3, 0)
        assert [times for times, _ in had(made, data, handed_out.sample)] == rows, batching
    # each batch of the two ranks has three samples of the first stream, then one of the second
    handed_out = order("mosaicml_streams", batching_method="stratified").epoch(
        data, Readers(1, 2, 1, 2), 3, 0
    )
    assert handed_out.sample[handed_out.rank == 0].max() < 20


def test_ray_takes_blocks_of_whoever_is_furthest_behind():
    data = sharded(2, 2, 2, 2, 2, 2)
    made = order("ray_mix", weights=[0.5, 0.25], sources=[4, 2])
    # rows 0, 0: the heavier; then 1/3 of 2 is behind 0; then 2/3 of 4 is behind 2
    assert made.mix_shards(data) == [0, 4, 1, 2, 5, 3]
    # rows 0, 2: the lighter is behind by 0.2
    shortest = order("ray_mix", weights=[1.0, 9.0], sources=[4, 2], stopping="stop_on_shortest")
    assert shortest.mix_shards(data) == [4, 0, 5]
    dropped = order("ray_mix", weights=[1.0, 9.0], sources=[4, 2])
    assert dropped.mix_shards(data) == [4, 0, 5, 1, 2, 3]


def test_ray_takes_the_blocks_that_its_operator_takes():
    asked = json.loads(ray_mix.RECORDED.read_text())
    assert len(asked) == 300
    for case in asked:
        assert (
            order("ray_mix", **case["order"]).mix_shards(sharded(*case["samples"]))
            == case["shards"]
        )


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"sources": [1, 2]}, "sources"),
        ({"sources": [1, 1, 2]}, "sources"),
        ({"weights": [1.0, 0.0]}, "weights"),
        ({"weights": [1.0] * 5}, "data.samples"),
    ],
)
def test_sources_that_do_not_fit_are_refused(keys, path):
    for kind in ("hugging_face_interleave", "torchdata_nodes", "mosaicml_streams", "ray_mix"):
        with pytest.raises(InputError) as refused:
            order(kind, **keys).epoch(sharded(3, 3, 3, 3), ALONE, 0, 0)
        assert refused.value.problems[0].path == path


def accounted(law, data, crash, seed=5):
    whole = law.epoch(data, crash.readers_before, seed, crash.epoch)
    resumed = law.resume(data, crash, seed)
    return account_for_epoch(data.size, whole, crash.step, resumed.remaining)


def test_where_every_rank_reads_everything_the_mixture_goes_on_on_others():
    data, keys = sharded(*[30] * 10), {"kind": "hugging_face_interleave"}
    law = InterleaveResume.model_validate({**keys, "of": {**keys, "stopping": "all_exhausted"}})
    # 5 shards of a source are not a multiple of 4 nor of 2 ranks
    found = accounted(law, data, Crash(Readers(1, 4, 1, 4), Readers(1, 2, 1, 4), 1, 10))
    assert (found.lost, found.continues) == (0, "same")
    # but they are of 5: a KeyError
    crash = Crash(Readers(1, 4, 1, 4), Readers(1, 5, 1, 4), 1, 10)
    assert law.resume(data, crash, 5).error == "KeyError"


def test_a_rank_with_nothing_left_begins_its_next_epoch():
    keys = {"kind": "torchdata_nodes"}
    law = NodesResume.model_validate({**keys, "of": {**keys, "stopping": "ALL_DATASETS_EXHAUSTED"}})
    data, readers = sharded(4, 4), Readers(1, 1, 1, 4)
    rest = law.resume(data, Crash(readers, readers, 0, 2), 5).remaining.sample.tolist()
    epochs = [law.epoch(data, readers, 5, epoch).sample.tolist() for epoch in (0, 1)]
    # whose turn it is are the draws of epoch 1; but the source that was known to be exhausted when
    # the state was saved has not been asked since, and is in the order of epoch 0 again
    assert [one < 4 for one in rest] == [one < 4 for one in epochs[1]]
    assert [one for one in rest if one < 4] == [one for one in epochs[0] if one < 4]
    assert [one for one in rest if one > 3] == [one for one in epochs[1] if one > 3]


def test_the_study_says_what_an_epoch_has_of_each_source(capsys):
    words = "loader --order mosaicml_streams --samples 64 --shards 4 --nodes 1 --gpus 1 --epochs 1"
    assert main([*words.split(), "--workers", "1", "--batch-size", "4"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    # 0.7 of 64 samples are 44 and the rest 20, of 32 in each source
    assert "a source has 68.8% of the epoch (70.0% requested), 12 rows again" in said
    assert "a source has 31.2% of the epoch (30.0% requested), 12 samples cut off" in said


def test_ranks_of_nodes_that_had_their_epoch_begin_the_next_one_when_others_are_killed():
    """By chance a rank ends its epoch earlier than another. A state after the last step of the
    longest rank is one of all that the others had: nobody has anything left, so all begin anew."""
    made = order("torchdata_nodes", stopping="FIRST_DATASET_EXHAUSTED", weights=[0.5, 0.5])
    data, readers = sharded(20, 20), Readers(1, 3, 1, 2)
    counts = np.bincount(made.epoch(data, readers, 5, 0).rank, minlength=3)
    last_step = -(-int(counts.max()) // 2)
    assert counts.min() <= 2 * (last_step - 1)  # so that a shorter rank is asked for more
    law = NodesResume(kind="torchdata_nodes", of=made)
    remaining = law.resume(data, Crash(readers, readers, 0, last_step), 5).remaining
    for rank in range(3):
        samples = remaining.sample[remaining.rank == rank]
        # drawn until one of its two shares of about seven samples is exhausted
        assert 7 - 1 <= len(samples) <= 2 * 7
        assert len(set(samples.tolist())) == len(samples)


def test_a_mixture_of_nodes_that_has_had_all_its_batches_ends():
    made = order("torchdata_nodes", stopping="CYCLE_FOREVER", steps=3, weights=[0.5, 0.5])
    data, readers = sharded(20, 20), Readers(1, 2, 1, 2)
    law = NodesResume(kind="torchdata_nodes", of=made)
    resumed = law.resume(data, Crash(readers, readers, 0, 3), 5)
    assert np.bincount(resumed.remaining.rank).tolist() == [6, 6]  # of the next epoch


def test_sources_of_nodes_are_drawn_a_thousand_at_a_time():
    """As the library does: another number would give other sources from the second block on."""
    draws = order("torchdata_nodes", weights=[0.5, 0.5]).draw_sources(1, 0, 2, 0, num_used=1100)
    blocks = [next(draws) for _ in range(3)]
    assert [len(block) for block in blocks] == [0, 900, 1000]


@pytest.mark.parametrize("num_used", [0, 1, 999, 1000, 1001, 2500])
def test_sources_that_were_used_are_left_out_at_the_beginning(num_used):
    """`datasets` draws a thousand at once; the same sources come, however many were used before."""
    shares = np.array([0.2, 0.5, 0.3])

    def drawn_from(first):
        draws = sources_at_random(np.random.default_rng(3), shares, first)
        return np.concatenate(list(islice(draws, 5)))

    assert drawn_from(num_used)[:2000].tolist() == drawn_from(0)[num_used:][:2000].tolist()
    turns = np.concatenate(list(islice(sources_in_turn(3, num_used % 3), 3)))
    assert turns.tolist() == [*range(num_used % 3, 3), 0, 1, 2, 0, 1, 2]


def test_no_more_sources_are_asked_for_than_end_a_mixture():
    """Source 1 is never drawn; two draws exhaust source 0, which ends the mixture."""
    stop = StopRule(needs_all_exhausted=False, restarts_sources=False)
    draws = iter([np.array([0]), np.array([0, 0]), np.array([1])])
    mixed = draw_samples(draws, lambda source, _: SOURCES[source], [False, False], stop)
    assert mixed.sample.tolist() == [0, 1]
    assert mixed.source_of_draw.tolist() == [0, 0]
    assert next(draws).tolist() == [1]


@pytest.mark.parametrize("max_samples", [0, -2])
def test_a_mixture_of_no_samples_asks_for_no_source(max_samples):
    stop = StopRule(
        needs_all_exhausted=True, restarts_sources=True, ends_late=True, max_samples=max_samples
    )
    mixed = draw_samples(iter([]), lambda source, _: SOURCES[source], [False, False], stop)
    assert [len(mixed.sample), len(mixed.draw_index), len(mixed.source_of_draw)] == [0, 0, 0]


def test_draws_are_counted_up_to_a_sample():
    """Source 0 of two samples is passed over from its third draw on: samples are of draws 0, 1, 2,
    5 and 6."""
    stop = StopRule(needs_all_exhausted=True, restarts_sources=False)
    draws = iter([np.array([0, 1, 0, 0, 0, 1, 1, 0])])
    mixed = draw_samples(draws, lambda source, _: SOURCES[source], [False, False], stop)
    assert mixed.sample.tolist() == [0, 10, 1, 11, 12]
    counts = [mixed.counts_after(num_samples, 3) for num_samples in range(6)]
    expected = [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (3, [2, 1, 0])]
    expected += [(6, [4, 2, 0]), (7, [4, 3, 0])]
    assert [(draws, of_source.tolist()) for draws, of_source in counts] == expected


def test_sources_are_counted_in_an_epoch_of_one_sample_or_none():
    made, data = order("ray_mix", weights=[3.0, 1.0], sources=[1, 1]), sharded(2, 3)
    one = count_sources(made, data, np.array([4]), 0)
    assert [(of.asked, of.had, of.again, of.cut_off) for of in one] == [
        (0.75, 0.0, 0, 2),
        (0.25, 1.0, 0, 2),
    ]
    none = count_sources(made, data, np.zeros(0, np.int64), 0)
    assert [(of.had, of.again, of.cut_off) for of in none] == [(0.0, 0, 2), (0.0, 0, 3)]


def test_sources_are_named_by_what_is_wrong_with_them():
    data = sharded(3, 3, 3, 3)
    for keys, value in (
        ({"weights": [1.0, -2.0]}, "-2.0"),
        ({"sources": [3, 2]}, "[3, 2]"),
        ({"sources": [4]}, "[4]"),
    ):
        with pytest.raises(InputError) as refused:
            order("ray_mix", **keys).epoch(data, ALONE, 0, 0)
        assert refused.value.problems[0].value == value
    # shards without samples make no source
    with pytest.raises(InputError, match="must have a sample in each of 2 sources"):
        order("ray_mix", sources=[2, 1]).epoch(sharded(3, 3, 0), ALONE, 0, 0)
    # by default as equal as can be, the first ones longer
    parts = order("ray_mix", weights=[1.0] * 3).shards_of_sources(data)
    assert [part.tolist() for part in parts] == [[0, 1], [2], [3]]

"""Epochs that are broken off again and again, and go on with other ranks: no sample is lost, none
comes twice, and ranks stay even."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simshuffle.errors import InputError
from simshuffle.workload.exchange import (
    GlobalShuffle,
    LoaderShuffle,
    LocalShuffle,
    PartialLocalShuffle,
    Shards,
    empty_plan,
)
from simshuffle.workload.exchange.dealing import RedistributionCost, balance_quotas, deal_samples
from simshuffle.workload.exchange.epochs import Epochs, batch_sizes, epoch_samples
from simshuffle.workload.exchange.states import pack_state, unpack_state
from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.resuming.account import account_for_epoch
from simshuffle.workload.resuming.law import Crash
from simshuffle.workload.resuming.own import SchedulerResume

PARTIAL = [
    PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=q, selection=how)
    for q, how in ((0.1, "random"), (0.5, "oldest"), (1.0, "random"))
]
LOCAL, GLOBAL = LocalShuffle(kind="local_shuffle"), GlobalShuffle(kind="global_shuffle")
STRATEGIES = [LOCAL, GLOBAL, *PARTIAL]


def through(strategy, size, seed, parts, save=False):
    """What is trained on in an epoch whose ``parts`` are (ranks, batch size, iterations that are
    done), of which the last is done to its end, rows (n, M) of each; and how many of them repeat a
    sample by right. Checks that ranks are even, and have equally many batches."""
    run, done, repeated, end = None, [], 0, 0
    for number, (ranks, batch, steps) in enumerate(parts):
        now = Epochs(strategy, size, ranks, batch, seed)
        if run is None:
            now.owner = strategy.first_owner(size, ranks, now.rng("partition"))
        else:
            state = run.state(end)
            now.resume(unpack_state(pack_state(state, run), now) if save else state)
        if not strategy.redraws:
            assert np.ptp(np.bincount(now.owner, minlength=ranks)) <= 1
        shards = now.next_shards()
        assert np.ptp(shards.sizes) <= 1
        rows, left = now.training_rows(shards), len(shards.order)
        if not strategy.redraws:
            assert ((rows < 0) | (now.owner[rows] == np.arange(ranks))).all()
        assert len({-(-n // batch) for n in (rows >= 0).sum(axis=0).tolist()}) <= 1
        iterations = -(-len(rows) // batch)
        last = number == len(parts) - 1
        end = iterations if last else min(now.steps_done + steps, iterations)
        done.append(rows[now.steps_done * batch : end * batch])
        if end == iterations and len(done[-1]):  # a rank that has no batch left repeats a sample
            short = left % (ranks * batch)
            few = ranks - short if 0 < short < ranks else 0
            repeated += -left % ranks if now.remaining is None else few
        run = now
    return run, done, repeated


def check(size, done, repeated):
    """Each sample comes once, but for those that are repeated by right."""
    times = np.zeros(size, int)
    for rows in done:
        np.add.at(times, rows[rows >= 0], 1)
    assert times.min() == 1
    assert times.sum() == size + repeated


@st.composite
def histories(draw):
    size = draw(st.integers(1, 60))
    part = st.tuples(st.integers(1, min(9, size)), st.integers(1, 7), st.integers(0, 9))
    return size, draw(st.lists(part, min_size=1, max_size=5))


@given(st.sampled_from(STRATEGIES), histories(), st.integers(0, 99))
@example(LOCAL, (12, [(4, 1, 2), (3, 1, 1), (5, 1, 0)]), 0)  # fewer are left than ranks
def test_no_crash_loses_or_repeats_a_sample(strategy, history, seed):
    size, parts = history
    run, done, repeated = through(strategy, size, seed, parts, save=True)
    check(size, done, repeated)
    run.finish_epoch(run.next_plan(run.next_shards(), None))
    assert sorted(run.next_shards().order) == list(range(size))  # the next epoch is a whole one


def test_ten_thousand_random_histories():
    rng = np.random.default_rng(7)
    parts_of = [0] * 5
    for number in range(10_000):
        size, ends = int(rng.integers(1, 80)), int(rng.integers(1, 5))
        ranks = rng.integers(1, min(8, size) + 1, ends)
        rest = rng.integers((1, 0), (4, 4), (ends, 2))
        parts = np.column_stack([ranks, rest]).tolist()
        _, done, repeated = through(STRATEGIES[number % 5], size, number, parts)
        check(size, done, repeated)
        parts_of[sum(len(rows) > 0 for rows in done)] += 1
    assert min(parts_of[1:]) > 300  # histories with so many parts in which something was done


# ----------------------------------------------------------------------------------- worked by hand


def test_only_samples_of_the_lost_rank_move():
    """12 samples on 4 ranks; each rank has done one of its three. Without rank 1 there are 8 left
    for 3 ranks, 2 of them rank 1's own, one more for two of them; and 4 others."""
    owner, left = np.repeat([0, -1, 1, 2], 3), np.tile([False, True, True], 4)
    after = deal_samples(owner, left, 3, np.random.default_rng(0))
    assert (after[owner >= 0] == owner[owner >= 0]).all()
    assert sorted(np.bincount(after[left])) == [2, 3, 3]
    assert np.bincount(after).tolist() == [4, 4, 4]


def test_a_new_rank_takes_an_even_part_and_no_more():
    """12 on 3 ranks, nothing done; a fourth takes one from each."""
    owner = np.repeat([0, 1, 2], 4)
    after = deal_samples(owner, np.ones(12, bool), 4, np.random.default_rng(0))
    assert (after != owner).sum() == 3
    assert np.bincount(after).tolist() == [3, 3, 3, 3]


def test_the_ranks_that_get_one_more_are_those_that_have_it():
    """5 left and 6 others for 3 ranks: 2 or 1 left, 4 or 3 in all. Ranks 1 and 2 have the 2; rank 0
    has 3 others, and keeps them as one of the two with 4 in all."""
    left, others = balance_quotas(np.array([1, 2, 2]), np.array([3, 2, 1]), (5, 6))
    assert left.tolist() == [1, 2, 2]
    assert others.tolist() == [3, 2, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5), st.data())
def test_as_few_samples_move_as_can_be(has, data):
    """Against every way to choose the ranks that get one more."""
    left, others = np.array(has).T
    sizes = tuple(int(of.sum()) + data.draw(st.integers(0, 5)) for of in (left, others))
    ranks, kept = len(has), []
    for more in itertools.combinations(range(ranks), sizes[0] % ranks):
        for most in itertools.combinations(range(ranks), sum(sizes) % ranks):
            get = sizes[0] // ranks + np.isin(range(ranks), more)
            rest = sum(sizes) // ranks + np.isin(range(ranks), most) - get
            if rest.min() >= 0:
                kept.append((np.minimum(left, get).sum(), np.minimum(others, rest).sum()))
    get, rest = balance_quotas(left, others, sizes)
    assert (np.minimum(left, get).sum(), np.minimum(others, rest).sum()) == max(kept)


DATA = ShardedSet(np.array([24]), np.array([2400.0]))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_many_ranks_go_on_as_if_nothing_had_happened(strategy):
    law, before = SchedulerResume(kind="own", strategy=strategy), Readers(1, 4, 2, 2)
    whole = law.epoch(DATA, before, 3, 1)
    for workers in (1, 3):
        crash = Crash(before, Readers(2, 2, workers, 2), 1, 2)
        rest = law.resume(DATA, crash, 3).remaining
        expected = whole.after_steps(2)
        for name in ("rank", "step", "sample"):
            assert (getattr(rest, name) == getattr(expected, name)).all()
        later = law.later_epoch(DATA, crash, 3, 3)
        assert (later.sample == law.epoch(DATA, before, 3, 3).sample).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("ranks", "again"), [(1, 0), (2, 0), (3, 1), (5, 0), (9, 1)])
def test_others_train_on_the_rest(strategy, ranks, again):
    """8 of 24 are left, for batches of 2. By 3 ranks in two iterations: one has only 2 and repeats
    one. Of 9 ranks one has none, and trains on another that it has."""
    law, before = SchedulerResume(kind="own", strategy=strategy), Readers(1, 4, 1, 2)
    crash = Crash(before, Readers(1, ranks, 2, 2), 2, 2)
    found = account_for_epoch(
        24, law.epoch(DATA, before, 3, 2), 2, law.resume(DATA, crash, 3).remaining
    )
    assert (found.trained, found.lost) == (16, 0)
    assert (found.rest, found.twice) == (8 + again, again)


def test_what_moves_is_counted():
    """24 samples of 100 bytes on 4 ranks. Rank 3 is gone: its 6 are read again. Two more ranks: 4
    for each, so that each of the old ones gives 2."""
    law, before = SchedulerResume(kind="own", strategy=LOCAL), Readers(1, 4, 1, 2)

    def cost(ranks, came=None):
        return law.redistribution_cost(DATA, Crash(before, Readers(1, ranks, 1, 2), 0, 0), 3, came)

    assert cost(3) == RedistributionCost(stayed=18, sent=0, read=6, sent_nbytes=0, read_nbytes=600)
    assert cost(6) == RedistributionCost(stayed=16, sent=8, read=0, sent_nbytes=800, read_nbytes=0)
    assert cost(4, np.array([0, -1, 2, 3])) == RedistributionCost(
        18, 0, 6, 0, 600
    )  # one was replaced


def test_what_was_sent_to_a_rank_that_is_gone_is_with_its_sender():
    """Q = 1: in each of 12 steps, two an iteration, two ranks swap a sample, or keep theirs. Then
    rank 1 is gone: what it had sent rank 0 has received, and what rank 0 had sent it has still; so
    only what rank 1 had not sent is read again."""
    law, before = SchedulerResume(kind="own", strategy=PARTIAL[2]), Readers(1, 2, 1, 2)
    run = law.order.begin_epoch(DATA, before, 3, 0)
    swap = run.next_plan(run.next_shards(), None).target[:, 0] == 1
    assert 0 < swap.sum() < 12
    for step in range(7):
        crash = Crash(before, Readers(1, 1, 1, 2), 0, step)
        assert law.redistribution_cost(DATA, crash, 3).read == 12 - swap[: 2 * step].sum()


@pytest.mark.parametrize("step", [0, 1])
def test_a_sample_has_been_with_its_rank_since_it_came(step):
    order = SchedulerResume(kind="own", strategy=PARTIAL[1]).order
    run, now = (
        order.begin_epoch(DATA, Readers(1, 4, 1, 2), 3, 2),
        order.new_run(DATA, Readers(1, 3, 1, 2), 3),
    )
    now.resume(run.state(step))
    stays = now.owner == run.owner
    assert 0 < stays.sum() < 24
    now.finish_epoch(empty_plan(3))
    assert (now.epochs_held[stays] == run.epochs_held[stays] + 1).all()
    assert (
        now.epochs_held[~stays] == (step == 0)
    ).all()  # of a whole epoch it was there all the time


def test_a_library_s_order_is_that_of_the_hosts_that_it_was_drawn_for():
    order = {"kind": "mosaicml_streaming"}
    strategy = LoaderShuffle(kind="loader_shuffle", order=order, samples_per_shard=2, workers=1)
    run, now = (Epochs(strategy, 24, ranks, 2, 3) for ranks in (4, 3))
    run.owner, run.ranks_per_host = strategy.first_owner(24, 4, run.rng("partition")), 2
    now.resume(run.state(1))
    done = run.training_rows(run.next_shards())[:2]
    assert sorted(np.concatenate([np.flatnonzero(now.remaining), done.ravel()])) == list(range(24))


REFUSED = {
    "version": (2, "state.version: must be 1; got 2. Load it with the simshuffle that saved it"),
    "owner": (np.zeros(23), "state.owner: must be of the 24 samples of this data set; got 23. Use"),
    "world_size": (0, "state.world_size: must be at least 1 and more than 3"),
    "seed": (4, "state.seed: must be 3: the rest of an epoch follows from it; got 4. Use the"),
    "strategy": ("kind='x'", "state.strategy: must be LocalShuffle(kind='local_shuffle'"),
    "steps": (-1, "state.steps: must be at least 0; got -1. Use the checkpoint of this run."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_state_is_refused(name):
    run = SchedulerResume(kind="own", strategy=LOCAL).order.begin_epoch(
        DATA, Readers(1, 4, 1, 2), 3, 0
    )
    value, says = REFUSED[name]
    with pytest.raises(InputError) as told:
        unpack_state(pack_state(run.state(1), run) | {name: value}, run)
    assert says in str(told.value)


def test_no_ranks_are_refused():
    with pytest.raises(InputError, match="world_size: must be at least 1; got 0"):
        Epochs(LOCAL, 24, 0, 2, 3)


@pytest.mark.parametrize(
    ("size", "ranks", "batch", "kept", "dropped"),
    [
        (10, 2, 2, [2, 2, 1], [2, 2]),
        (11, 2, 2, [2, 2, 2], [2, 2]),  # 6 samples a rank, or 5
        (12, 3, 4, [4], [4]),
        (4, 4, 1, [1], [1]),
    ],
)
def test_batches_of_an_epoch_by_hand(size, ranks, batch, kept, dropped):
    assert batch_sizes(size, ranks, batch, drop_last=False) == kept
    assert batch_sizes(size, ranks, batch, drop_last=True) == dropped


@pytest.mark.parametrize(
    ("size", "ranks", "batch", "says"),
    [
        (10, 11, 1, "must not be more than the 10 samples of the data set; got 11"),
        (10, 0, 1, "must be at least 1; got 0"),
        (11, 2, 6, "must not be more than the 5 samples that a rank has; got 6"),
    ],
)
def test_epochs_without_a_batch_are_refused(size, ranks, batch, says):
    with pytest.raises(InputError, match=says):
        batch_sizes(size, ranks, batch, drop_last=True)


def test_ranks_with_less_repeat_their_own_and_those_with_nothing_that_of_another():
    """Of 7 samples ranks have 3, none and 4: 3 rows, or 2 where the rest is left out."""
    order = np.array([6, 5, 4, 3, 2, 1, 0])
    shards = Shards(order, np.array([0, 3, 3, 7]))
    assert epoch_samples(shards, drop_last=False).T.tolist() == [[6, 5, 4], [3, 3, 3], [3, 2, 1]]
    assert epoch_samples(shards, drop_last=True).T.tolist() == [[6, 5], [3, 3], [3, 2]]
    last = Shards(order, np.array([0, 5, 7, 7]))
    assert epoch_samples(last, drop_last=False).T.tolist() == [[6, 5, 4], [1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_a_rank_repeats_a_sample_only_where_it_had_a_batch_less(batch):
    """7 of 12 samples are left to 3 ranks, 3 to one and 2 to the others. The third row is a batch
    of its own in batches of 1 or 2."""
    run = Epochs(LOCAL, 12, 3, batch, 5)
    run.owner, run.remaining = np.arange(12) % 3, np.isin(np.arange(12), [0, 3, 6, 1, 4, 2, 5])
    rows = run.training_rows(run.next_shards())
    assert sorted([*rows[:2].ravel().tolist(), rows[2, 0]]) == [0, 1, 2, 3, 4, 5, 6]
    assert rows[2, 1:].tolist() == ([-1, -1] if batch > 2 else rows[0, 1:].tolist())


def test_ranks_without_a_sample_that_is_left_train_on_the_first_that_they_own():
    """Where nobody owns any, on that of another."""
    run, drawn = (Epochs(strategy, 12, 3, 2, 5) for strategy in (LOCAL, GLOBAL))
    for epochs in (run, drawn):
        epochs.owner, epochs.remaining = np.arange(12) % 3, np.arange(12) == 9
    assert run.training_rows(run.next_shards()).tolist() == [[9, 1, 2]]
    assert drawn.training_rows(drawn.next_shards()).tolist() == [[9, 9, 9]]


def test_before_the_first_iteration_the_number_of_ranks_alone_counts():
    """Other batches deal the rest of an epoch anew only if some of it was done."""
    run, now = Epochs(LOCAL, 24, 4, 2, 3), Epochs(LOCAL, 24, 4, 3, 3, drop_last=True)
    run.owner = LOCAL.first_owner(24, 4, run.rng("partition"))
    moved = now.resume(run.state(0))
    assert now.remaining is None and now.steps_done == 0
    assert (now.owner == run.owner).all() and (moved.new_owner == run.owner).all()
    now.resume(run.state(1))
    assert now.remaining is not None and now.remaining.sum() == 24 - 4 * 2
    # equal ones go on where they were
    again = Epochs(LOCAL, 24, 4, 2, 3)
    again.resume(run.state(1))
    assert again.remaining is None and again.steps_done == 1


def test_where_nobody_owns_samples_none_are_moved():
    run, now = Epochs(GLOBAL, 24, 4, 2, 3), Epochs(GLOBAL, 24, 3, 2, 3)
    run.owner = GLOBAL.first_owner(24, 4, run.rng("partition"))
    moved = now.resume(run.state(1))
    assert moved.previous_owner.shape == moved.new_owner.shape == (0,)


def test_a_state_without_a_version_is_one_between_epochs():
    run = Epochs(LOCAL, 6, 3, 2, 3, drop_last=True)
    owner = np.array([0, 1, 2, 3, 3, 1])
    found = unpack_state({"owner": owner, "epochs_done": 5}, run)
    assert (found.epochs_done, found.world_size, found.steps) == (5, 4, 0)
    assert (found.batch_size, found.drop_last, found.remaining) == (2, True, None)
    with pytest.raises(InputError, match=r"state\.owner: must be there; got epochs_done"):
        unpack_state({"epochs_done": 5}, run)
    with pytest.raises(InputError, match=r"state\.batch_size: must be there"):
        unpack_state({"version": 1, "owner": owner, "epochs_done": 5, "world_size": 4}, run)
    held = Epochs(PARTIAL[1], 6, 3, 2, 3)
    with pytest.raises(InputError, match=r"state\.held: must be there"):
        unpack_state({"owner": owner, "epochs_done": 5}, held)


@pytest.mark.parametrize("change", [{"world_size": 3}, {"owner": np.arange(24) % 4 - 1}])
def test_owners_are_ranks_of_the_state(change):
    run = Epochs(LOCAL, 24, 4, 2, 3)
    run.owner = np.arange(24) % 4
    packed = pack_state(run.state(0), run)
    assert unpack_state(packed, run).world_size == 4
    with pytest.raises(InputError, match=r"state\.world_size: must be at least 1 and more than"):
        unpack_state(packed | change, run)


def test_seed_and_strategy_count_in_the_middle_of_an_epoch_alone():
    run = Epochs(LOCAL, 24, 4, 2, 3)
    run.owner = np.arange(24) % 4
    between = pack_state(run.state(0), run) | {"seed": 4, "strategy": "another"}
    assert (unpack_state(between, run).owner == run.owner).all()
    # a part of an epoch that was dealt anew is the middle of one before its first iteration, too
    run.remaining = np.arange(24) % 5 == 0
    part = pack_state(run.state(0), run)
    assert (unpack_state(part, run).remaining == run.remaining).all()
    with pytest.raises(InputError, match=r"state\.seed: must be 3"):
        unpack_state(part | {"seed": 4}, run)


def test_epochs_are_counted_from_one_and_each_is_in_an_order_of_its_own():
    """11 samples of 2 ranks; where the rest is left out 5 of each, in two batches of 2."""
    run = Epochs(LOCAL, 11, 2, 2, 3, drop_last=True)
    run.owner = np.arange(11) % 2
    for epoch in (1, 2):
        assert run.epochs_done == epoch - 1
        shards = run.next_shards()
        expected = LOCAL.shards(run.owner, 2, run.rng("shuffle", epoch))
        assert (shards.order == expected.order).all()
        rows = run.training_rows(shards)
        assert rows.tolist() == np.stack([shards.order[:4], shards.order[6:10]], axis=1).tolist()
        run.steps_done, run.remaining = 1, np.ones(11, bool)
        run.finish_epoch(empty_plan(2))
        assert (run.steps_done, run.remaining) == (0, None)

"""On how many samples the running statistics of batch norm rest: worked out by hand, in closed form
and by following who has which sample."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from simshuffle.studies.training.running_statistics import (
    StatisticsMemory,
    effective_number,
    estimate_effective_samples,
    number_by_iteration,
    share_after_epoch,
)
from simshuffle.workload.exchange import (
    GlobalShuffle,
    ImportanceExchange,
    LoaderShuffle,
    LocalShuffle,
    PartialLocalShuffle,
)
from simshuffle.workload.exchange.epochs import Epochs

LOCAL, GLOBAL = LocalShuffle(kind="local_shuffle"), GlobalShuffle(kind="global_shuffle")


def partial(fraction: float, selection: Any = "random") -> PartialLocalShuffle:
    return PartialLocalShuffle(
        kind="partial_local_shuffle", exchange_fraction=fraction, selection=selection
    )


def followed(
    strategy: Any, num_samples: int, ranks: int, batch: int, epochs: int
) -> tuple[list[Any], list[Any]]:
    """What all ranks train on in every epoch, and who had each sample."""
    run = Epochs(strategy, num_samples, ranks, batch, seed=1)
    run.owner = strategy.first_owner(num_samples, ranks, run.rng("partition"))
    trained, owners = [], []
    for _ in range(epochs):
        shards = run.next_shards()
        owner = np.empty(num_samples, np.int64)
        owner[shards.order] = np.repeat(np.arange(ranks), shards.sizes)
        trained.append(run.training_rows(shards))
        owners.append(owner)
        run.finish_epoch(run.next_plan(shards, None))
    return trained, owners


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(("batch", "momentum"), [(8, 0.1), (32, 0.1), (4, 0.5), (2, 1.0)])
def test_of_samples_that_never_come_again_so_many_are_remembered(batch, momentum):
    """Weights m (1-m)^k / b of b samples each: (sum w)^2 / sum w^2 = b (2-m)/m."""
    fresh = np.arange(400 * batch)[:, None]
    expected = batch * (2 - momentum) / momentum
    assert number_by_iteration([fresh], batch, momentum) == pytest.approx([expected], rel=1e-5)
    of = StatisticsMemory([batch] * 400, momentum, 1)
    assert of.number_from_returns(1.0) == pytest.approx(expected, rel=1e-9)
    assert batch != 8 or expected == pytest.approx(152.0)


def test_a_shard_of_one_batch_is_all_that_is_remembered():
    rng = np.random.default_rng(0)
    epochs = [rng.permuted(np.arange(16).reshape(8, 2, order="F"), axis=0) for _ in range(200)]
    assert number_by_iteration(epochs, 8, 0.1) == pytest.approx([8.0, 8.0], rel=1e-9)
    assert StatisticsMemory([8], 0.1, 200).number_from_returns(1.0) == pytest.approx(8.0, rel=1e-6)


def test_five_samples_in_two_epochs_by_hand():
    """m = 1/2. Batches, newest last, of rank 0: (0 1) (2) | (2 0) (1): weights m, m/2, m/4, m/8 of
    batches, shared by their samples. Of rank 1 the samples 3 and 4, the last one of none."""
    half = Fraction(1, 2)
    weight = {0: Fraction(0), 1: Fraction(0), 2: Fraction(0)}
    for batch, age in (((0, 1), 3), ((2,), 2), ((2, 0), 1), ((1,), 0)):
        for sample in batch:
            weight[sample] += half * half**age / len(batch)
    expected = sum(weight.values()) ** 2 / sum(w**2 for w in weight.values())
    epochs = [np.array([[0, 3], [1, 4], [2, 3]]), np.array([[2, 4], [0, 3], [1, -1]])]
    found = number_by_iteration(epochs, 2, 0.5)
    assert found[0] == pytest.approx(float(expected), rel=1e-12)
    # rank 1: (3 4) (3) | (4 3) (): 1/32 + 1/8 + 1/8 and 1/32 + 1/8
    three, four = 1 / 32 + 1 / 8 + 1 / 8, 1 / 32 + 1 / 8
    assert found[1] == pytest.approx((three + four) ** 2 / (three**2 + four**2), rel=1e-12)


def test_a_large_shard_is_not_remembered_whole():
    """1,024 samples a rank, 8 a batch, momentum 0.1: 152, and not 1,024 as by whole epochs."""
    trained, owners = followed(LOCAL, 4096, 4, 8, 3)
    assert number_by_iteration(trained, 8, 0.1) == pytest.approx(152.0, rel=1e-4)
    assert effective_number(owners, 4, share_after_epoch(0.1, 128)) == pytest.approx(
        1024.0, rel=1e-4
    )


# -------------------------------------------------------------------------------- in closed form


@pytest.mark.parametrize(("shard", "batch"), [(16, 8), (64, 8), (20, 8), (12, 4)])
@pytest.mark.parametrize("momentum", [0.03, 0.1, 0.5])
def test_local_and_global_shuffle_rest_on_what_the_closed_form_says(shard, batch, momentum):
    """Within 2 % of the mean over 200 ranks, 20 samples a rank with a last batch of 4 included."""
    ranks, epochs = 200, 60
    sizes = [batch] * (shard // batch) + [shard % batch] * bool(shard % batch)
    of = StatisticsMemory(sizes, momentum, epochs)
    for strategy, stays in ((LOCAL, 1.0), (GLOBAL, 1 / ranks)):
        trained, _ = followed(strategy, shard * ranks, ranks, batch, epochs)
        found = number_by_iteration(trained, batch, momentum)
        assert 1 / np.mean(1 / found) == pytest.approx(of.number_from_returns(stays), rel=0.01)
        assert found.mean() == pytest.approx(of.number_from_returns(stays), rel=0.02)


def test_the_closed_form_of_many_epochs_by_hand():
    """1/n = m/(b (2-m)) + 2 a/((1+a) S), a = 0.9^25: 451 of 625 samples in batches of 25, of which
    samples that never come again would give 475."""
    of, a = StatisticsMemory([25] * 25, 0.1, 90), 0.9**25
    assert of.inverse_without_repeats == pytest.approx(0.1 / (25 * 1.9), rel=1e-12)
    assert of.inverse_of_repeats == pytest.approx(2 * a / ((1 + a) * 625), rel=1e-9)
    assert 1 / of.inverse_without_repeats == pytest.approx(475.0)
    assert of.number_from_returns(1.0) == pytest.approx(431.7, abs=1.0)


@pytest.mark.parametrize("momentum", [0.03, 0.1])
@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_both_counts_say_the_same_of_what_is_lost_against_global_shuffle(momentum, fraction):
    """1/n - 1/n of global shuffle, by iteration and by epoch: a curve that was fitted to one holds
    for the other. Within 3 % of 200 ranks with 32 samples."""
    ranks, shard, batch, epochs = 200, 32, 8, 60
    kept, lost = share_after_epoch(momentum, shard // batch), {}
    for name, strategy in (("local", LOCAL), ("part", partial(fraction)), ("all", GLOBAL)):
        trained, owners = followed(strategy, shard * ranks, ranks, batch, epochs)
        by_iteration = np.mean(1 / number_by_iteration(trained, batch, momentum))
        lost[name] = by_iteration, 1 / effective_number(owners, ranks, kept)
    first, second = (lost["local"][which] - lost["all"][which] for which in (0, 1))
    assert first == pytest.approx(second, rel=0.03)
    # those that go are the first that were trained on, so those that stay weigh more
    first, second = (lost["part"][which] - lost["all"][which] for which in (0, 1))
    assert 1.0 <= first / second < 1.0 + 0.3 * fraction


@pytest.mark.parametrize("ranks", [4, 40])
def test_ranks_together_rest_on_what_their_batches_rest_on_as_one(ranks):
    """Columns of several ranks below one another are one rank with batches as many times as large.
    Within 2 % of 40 ranks with 20 samples that exchange a tenth."""
    all_ranks, shard, batch, epochs = 40, 20, 5, 60
    trained, _ = followed(partial(0.1), shard * all_ranks, all_ranks, batch, epochs)
    alone = number_by_iteration(trained, batch, 0.1)
    groups = [
        rows.reshape(shard, -1, ranks).transpose(0, 2, 1).reshape(shard * ranks, -1)
        for rows in trained
    ]
    together = number_by_iteration(groups, batch * ranks, 0.1)
    of = StatisticsMemory([batch] * (shard // batch), 0.1, epochs)
    number = float(1 / np.mean(1 / alone))
    assert of.pool_ranks(number, ranks, all_ranks) == pytest.approx(together.mean(), rel=0.02)
    assert of.pool_ranks(of.number_from_returns(1.0), 1, all_ranks) == pytest.approx(
        of.number_from_returns(1.0), rel=1e-12
    )
    assert of.pool_ranks(number, 1, 1) == number


# -------------------------------------------------------------------------- before it is trained


@pytest.mark.parametrize(
    "strategy",
    [
        partial(0.1),
        partial(0.3, "oldest"),
        ImportanceExchange(kind="importance_exchange", exchange_fraction=0.3, lagging=True),
    ],
)
def test_fewer_ranks_rest_on_as_much(strategy, monkeypatch):
    """16 samples a rank: n of all 4,096 ranks within 2 % of that of those that are emulated."""
    found = estimate_effective_samples(strategy, 16 * 4096, 4096, 8, epochs=60)
    assert 0 < found.ranks < 4096
    monkeypatch.setattr(
        "simshuffle.studies.training.running_statistics._count_emulated_ranks",
        lambda memory, ranks: ranks,
    )
    whole = estimate_effective_samples(strategy, 16 * 4096, 4096, 8, epochs=60)
    assert whole.ranks == 4096
    assert found.number == pytest.approx(whole.number, rel=0.02)
    assert found.low < found.number < found.high


@pytest.mark.parametrize(
    ("fraction", "selection", "expected"),
    [
        (0.1, "random", 23.7),
        (0.3, "random", 41.7),
        (0.1, "oldest", 26.9),
        (0.3, "oldest", 54.1),
    ],
)
def test_what_trainings_rested_on_is_known_before_them(fraction, selection, expected):
    """1024 ranks with 16 samples: what `test_oldest` has of trainings, by whole epochs; with two
    whole batches an epoch 1/n differs by less than 0.5 %."""
    found = estimate_effective_samples(partial(fraction, selection), 16384, 1024, 8, epochs=30)
    assert found.number == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("selection", ["random", "oldest"])
@pytest.mark.parametrize("fraction", [0.03, 0.25])
def test_no_epochs_have_to_go_by_before(fraction, selection):
    """As many are remembered (18 of eight batches) from the first one on as from the 42nd: within
    2 % of 1/n beyond what fresh samples give, on 64 ranks with 64 samples."""
    strategy, ranks = partial(fraction, selection), 64
    trained, _ = followed(strategy, 64 * ranks, ranks, 8, 60)
    early, late = (number_by_iteration(of, 8, 0.1) for of in (trained[:18], trained[42:]))
    fresh = StatisticsMemory([8] * 8, 0.1, 18).inverse_without_repeats
    more = [float(np.mean(1 / of)) - fresh for of in (early, late)]
    assert more[0] == pytest.approx(more[1], rel=0.02)
    found = estimate_effective_samples(strategy, 64 * 1024, 1024, 8, epochs=90)
    assert found.epochs == 17
    assert 1 / found.number - fresh == pytest.approx(more[0], rel=0.05)


def test_the_three_sizes_of_a_resnet_on_imagenet():
    """1,281,167 samples, 32 a batch: 20,019 samples of each of 64 ranks are as global shuffle, and
    of 2,048 ranks with 626 samples n is 502 for 592."""
    numbers = {}
    for ranks in (64, 512, 2048):
        found = estimate_effective_samples(LOCAL, 1_281_167, ranks, 32)
        numbers[ranks] = (
            found.number,
            estimate_effective_samples(GLOBAL, 1_281_167, ranks, 32).number,
        )
    assert numbers[64][0] == pytest.approx(numbers[64][1], rel=1e-9)
    assert numbers[512][0] == pytest.approx(numbers[512][1], rel=1e-3)
    local, everywhere = numbers[2048]
    a = 0.9**20
    assert 1 / local - 1 / everywhere == pytest.approx(
        2 * a / ((1 + a) * 626) * (1 - 1 / 2048), rel=1e-6
    )


def test_the_order_of_a_loader_is_followed_on_all_ranks():
    strategy = LoaderShuffle.model_validate(
        {"kind": "loader_shuffle", "order": {"kind": "own", "shuffle": "global"}}
    )
    found = estimate_effective_samples(strategy, 1600, 20, 8, epochs=40)
    assert found.ranks == 20
    assert found.number == pytest.approx(
        StatisticsMemory([8] * 10, 0.1, 40).number_from_returns(1 / 20), rel=0.05
    )

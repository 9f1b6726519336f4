"""Samples held longest go first: how old a shard becomes, and on how many samples the statistics of
its rank rest."""

import math
from typing import Any

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.studies.training.running_statistics import share_after_epoch
from simshuffle.workload.exchange import (
    EpochContext,
    ExchangePlan,
    ImportanceExchange,
    ImportancePair,
    PairSchedule,
    PartialLocalShuffle,
    Shards,
)
from simshuffle.workload.exchange.importance import select_samples
from tests.mixing import effective_samples, owners, plan_exchanges
from tests.small import small

RANKS, EACH = 40, 20
PAIRS = PairSchedule(partner_rule="random_pairs")
"""Of an even number of ranks none is its own partner."""


def partial(fraction: float, selection: Any, schedule: Any = None) -> PartialLocalShuffle:
    values = {} if schedule is None else {"schedule": schedule}
    return PartialLocalShuffle(
        kind="partial_local_shuffle", exchange_fraction=fraction, selection=selection, **values
    )


def ages(strategy: Any, epochs: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Of each epoch: ages (N,) of all samples before it and (steps, M) of those that are sent,
    followed by hand."""
    recorded = plan_exchanges(
        strategy, num_samples=RANKS * EACH, world_size=RANKS, batch_size=5, epochs=epochs, seed=seed
    )
    age, before, sent = dict.fromkeys(range(RANKS * EACH), 0), [], []
    for plan in recorded.plans:
        before.append(np.array(list(age.values())))
        sent.append(before[-1][plan.sample])
        age = {sample: years + 1 for sample, years in age.items()}
        for step, targets in zip(plan.sample, plan.target, strict=True):
            for rank, target in enumerate(targets):
                if target != rank:
                    age[int(step[rank])] = 0
    return before, sent


def test_of_equals_the_local_order_decides():
    order = np.array([3, 0, 2, 1, 7, 5, 4, 6], np.int32)
    held = np.array([2, 1, 2, 0, 5, 5, 0, 5])
    found = select_samples(
        "oldest", Shards(order, np.array([0, 4, 8])), 3, None, rng(), epochs_held=held
    )
    assert found.T.tolist() == [[0, 2, 1], [7, 5, 4]]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_ages_of_samples_that_leave_begin_anew():
    """Sample 0 goes to rank 1, and 2 comes for it; rank 2 sends sample 4 to itself."""
    plan = ExchangePlan(
        np.array([[0, 2, 4]]), np.array([[1, 0, 2]]), np.zeros(1, np.int64), np.zeros(1, np.int64)
    )
    assert plan.held_after(None) is None
    after = plan.held_after(np.array([7, 1, 0, 3, 2, 0], np.int32))
    assert after is not None
    assert after.tolist() == [0, 2, 0, 4, 3, 1]


@pytest.mark.parametrize(("fraction", "epochs"), [(0.1, 10), (0.25, 4), (0.5, 2), (1.0, 1)])
def test_every_sample_leaves_after_one_over_q_epochs(fraction, epochs):
    """From then on each of Q n samples was with its rank for 1/Q epochs, this one included; before,
    all that are sent are of the first shards. After k epochs Q n samples have each age below k."""
    before, sent = ages(partial(fraction, "oldest", PAIRS), 3 * epochs)
    for epoch, (held, gone) in enumerate(zip(before, sent, strict=True)):
        oldest = min(epoch, epochs - 1)
        assert (gone == oldest).all()
        young = round(fraction * RANKS * EACH)
        counts = [young] * oldest
        assert np.bincount(held).tolist() == [*counts, RANKS * EACH - sum(counts)]


def test_at_random_ages_are_geometric():
    """After k epochs a share Q (1 - Q)^j has each age j below k, and (1 - Q)^k is there still."""
    fraction, epochs, draws = 0.3, 6, 30
    found = []
    for seed in range(draws):
        before, _ = ages(partial(fraction, "random", PAIRS), epochs, seed)
        found.append(np.bincount(before[-1], minlength=epochs) / (RANKS * EACH))
    k = epochs - 1
    expected = [*(fraction * (1 - fraction) ** np.arange(k)), (1 - fraction) ** k]
    error = np.maximum(np.std(found, axis=0, ddof=1) / math.sqrt(draws), 1e-9)
    assert (np.abs(np.mean(found, axis=0) - expected) < 5 * error).all()


# -------------------------------------------------------------------------- what statistics rest on


def law(shard: int, kept: float, stays: Any) -> float:
    """n = S (1 + a)/(1 - a) / (1 + 2 sum_d a^d p(d)); a rank still has a sample d epochs later with
    probability p(d)."""
    days = range(1, 200)
    return shard * (1 + kept) / (1 - kept) / (1 + 2 * sum(kept**d * stays(d) for d in days))


@pytest.mark.parametrize(
    ("fraction", "at_random", "oldest"), [(0.1, 23.7, 26.9), (0.3, 41.7, 54.1), (0.5, 64.3, 83.6)]
)
def test_statistics_rest_on_more_samples_if_the_oldest_go(fraction, at_random, oldest):
    """1024 ranks with 16 samples, two iterations an epoch, momentum 0.1, 30 epochs: within 1.5 % of
    what trainings had, and within 3 % of the law for ever and many ranks."""
    kept = share_after_epoch(0.1, 2)
    assert kept == pytest.approx(0.81)
    expected = {
        "random": (at_random, law(16, kept, lambda d: (1 - fraction) ** d)),
        "oldest": (oldest, law(16, kept, lambda d: max(0.0, 1 - d * fraction))),
    }
    for selection, (trained, by_law) in expected.items():
        recorded = plan_exchanges(
            partial(fraction, selection),
            num_samples=16384,
            world_size=1024,
            batch_size=8,
            epochs=30,
        )
        found = effective_samples(recorded, kept)
        assert found == pytest.approx(trained, rel=0.015)
        assert found == pytest.approx(by_law, rel=0.03)


# ----------------------------------------------------------------------------- who needs to know it


@pytest.mark.parametrize(
    "strategy",
    [
        partial(0.5, "oldest"),
        ImportanceExchange(
            kind="importance_exchange", exchange_fraction=0.5, selection="oldest", lagging=True
        ),
    ],
)
@pytest.mark.parametrize(
    ("held", "shown"),
    [(None, "None"), (np.zeros(19, int), r"shape \(19,\)"), (np.zeros(20), "shape .* of float64")],
)
def test_without_ages_the_oldest_cannot_be_told(strategy, held, shown):
    assert strategy.needs_held and not strategy.needs_importance
    shards = Shards(np.arange(20, dtype=np.int32), np.arange(5) * 5)
    with pytest.raises(InputError, match=f"held: is needed by {strategy.kind}.*got {shown}"):
        strategy.plan(EpochContext(shards, 5, 1, 1, rng(), held=held))


def test_pairs_by_importance_may_send_their_oldest():
    strategy = ImportancePair(kind="importance_pair", exchange_fraction=0.5, selection="oldest")
    assert strategy.needs_held and strategy.needs_importance
    shards, held = Shards(np.arange(8, dtype=np.int32), np.arange(3) * 4), np.arange(8) % 4
    plan = strategy.plan(EpochContext(shards, 4, 1, 1, rng(), np.arange(8.0), held=held))
    assert sorted(plan.sample.ravel().tolist()) == [2, 3, 6, 7]
    with pytest.raises(ValueError, match="oldest"):
        select_samples("oldest", shards, 1, None, rng())


def test_others_keep_no_ages_and_do_as_ever():
    strategy = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.3)
    assert strategy == partial(0.3, "random")
    assert strategy.first_held(10) is None
    assert not strategy.needs_held


def test_the_simulator_sends_the_oldest():
    """In every epoch, nobody keeps a sample that it has had for longer than one that it sends."""
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 0.3, "selection": "oldest"}
    scenario = small(world_size=4, epochs=6, workload__exchange=exchange)
    held = np.zeros(scenario.workload.dataset.num_samples, int)
    for plan in plan_epochs(scenario, sample_nbytes(scenario)):
        shards, exchange = plan.shards, plan.exchange
        for rank in range(4):
            own = shards.order[shards.start[rank] : shards.start[rank + 1]]
            sent = exchange.sample[:, rank]
            kept = np.setdiff1d(own, sent)
            assert set(sent) <= set(own)
            assert held[sent].min() >= held[kept].max()
        held += 1
        held[exchange.sample[exchange.moving]] = 0


def test_plans_without_a_training_go_on_from_one_another():
    recorded = plan_exchanges(
        partial(0.5, "oldest"), num_samples=24, world_size=3, batch_size=4, epochs=5
    )
    for owner, plan in zip(owners(recorded), recorded.plans, strict=False):
        assert (owner[plan.sample] == np.arange(3)).all()
    with pytest.raises(InputError, match="importance"):
        plan_exchanges(
            ImportanceExchange(kind="importance_exchange", exchange_fraction=0.5),
            num_samples=24,
            world_size=3,
            batch_size=4,
            epochs=1,
        )

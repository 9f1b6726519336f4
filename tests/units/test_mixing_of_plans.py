"""How well an exchange mixes, on plans that can be followed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.exchange import (
    EpochContext,
    ExchangePlan,
    PartialLocalShuffle,
    empty_plan,
    initial_owner,
)
from simshuffle.exchange.recording import RecordedPlans
from tests.mixing import effective_samples

OWNER = np.array([0, 0, 0, 1, 1, 1])


def swapped(owner):
    """Both ranks send all of their three samples to one another."""
    sample = np.stack([np.flatnonzero(owner == 0), np.flatnonzero(owner == 1)], axis=1).astype(
        np.int32
    )
    target = np.tile(np.array([1, 0]), (3, 1))
    return ExchangePlan(sample=sample, target=target, iteration=np.arange(3), message=np.arange(3))


def swaps(epochs):
    plans, owner = [], OWNER
    for _ in range(epochs):
        plans.append(swapped(owner))
        owner = plans[-1].apply(owner)
    return RecordedPlans(OWNER, plans)


def test_a_shard_that_stays_is_what_the_statistics_rest_on():
    stays = RecordedPlans(OWNER, [empty_plan(2)] * 4)
    assert effective_samples(stays, 0.8) == pytest.approx(3.0)


def test_of_two_shards_in_turn_the_older_one_counts_less():
    # after two epochs the weights are kept and 1, three times each
    assert effective_samples(swaps(2), 0.5) == pytest.approx((3 * 0.5 + 3) ** 2 / (3 * 0.25 + 3))
    assert effective_samples(swaps(2), 0.0) == pytest.approx(3.0)
    assert effective_samples(swaps(2), 1.0) == pytest.approx(6.0)
    # after three 1 + kept^2 and kept
    assert effective_samples(swaps(3), 0.5) == pytest.approx(
        (3 * 1.25 + 3 * 0.5) ** 2 / (3 * 1.25**2 + 3 * 0.25)
    )


@given(st.integers(2, 6), st.integers(2, 5), st.floats(0.0, 1.0))
def test_it_rests_on_a_shard_at_least_and_on_all_samples_at_most(world_size, epochs, kept):
    num_samples = 8 * world_size
    rng = np.random.default_rng(world_size)
    owner = initial_owner(num_samples, world_size, rng)
    strategy, start, plans = (
        PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.5),
        owner,
        [],
    )
    for epoch in range(1, epochs + 1):
        shards = strategy.shards(owner, world_size, rng)
        plans.append(
            strategy.plan(
                EpochContext(
                    shards, batch_size=4, iterations=2, epoch=epoch, importance=None, rng=rng
                )
            )
        )
        owner = plans[-1].apply(owner)
    recorded = RecordedPlans(start, plans)
    assert 8 - 1e-9 <= effective_samples(recorded, kept) <= num_samples + 1e-9

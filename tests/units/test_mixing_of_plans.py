"""How well an exchange mixes, on plans that can be followed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.workload.exchange import ExchangePlan, empty_plan
from simshuffle.workload.exchange.recording import RecordedPlans
from tests.mixing import effective_samples
from tests.trained import recorded

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
    plans = recorded(world_size, num_samples, 0.5, epochs)
    assert 8 - 1e-9 <= effective_samples(plans, kept) <= num_samples + 1e-9

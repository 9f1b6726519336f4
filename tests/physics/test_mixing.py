"""How fast exchange parts the samples of a shard: laws of the probability that two samples share a
rank, from the partner rule alone."""

import math
from typing import Any

import numpy as np
import pytest

from simshuffle.workload.exchange import (
    ExchangeSchedule,
    ImportanceExchange,
    ImportancePair,
    PairSchedule,
    PartialLocalShuffle,
    initial_owner,
)
from tests.examples import planned_epoch, rng

RANKS, EACH, BATCH = 50, 40, 10


def together(first: Any, owner: Any) -> float:
    """Of the pairs of samples that shared a rank in ``first``, the share that does in ``owner``."""
    met = np.zeros((RANKS, RANKS))
    np.add.at(met, (first, owner), 1)
    return float((met * (met - 1)).sum() / (RANKS * EACH * (EACH - 1)))


def course(strategy: Any, seed: int, epochs: int) -> list[float]:
    """`together` after each epoch; importances are drawn anew in each, as unequal as losses are."""
    first = owner = initial_owner(RANKS * EACH, RANKS, rng(seed))
    shares = []
    for epoch in range(1, epochs + 1):
        shards = strategy.shards(owner, RANKS, rng(seed, epoch, 1))
        importance = rng(seed, epoch, 3).lognormal(sigma=2, size=len(owner))
        random = rng(seed, epoch, 2)
        plan = planned_epoch(
            strategy, shards, random, batch=BATCH, epoch=epoch, importance=importance
        )
        owner = plan.apply(owner)
        shares.append(together(first, owner))
    return shares


def of_kind(kind: str, fraction: float) -> Any:
    return {
        "partial": PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=fraction),
        "IS": ImportanceExchange(kind="importance_exchange", exchange_fraction=fraction),
        "IS-Pair": ImportancePair(kind="importance_pair", exchange_fraction=fraction),
        "random pairs": PartialLocalShuffle(
            kind="partial_local_shuffle",
            exchange_fraction=fraction,
            schedule=PairSchedule(partner_rule="random_pairs"),
        ),
    }[kind]


@pytest.mark.parametrize("kind", ["IS-Pair", "random pairs"])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9, 1.0])
def test_under_pairing_the_sent_stay_together(kind, fraction):
    """With q = Q n of n samples sent to one partner: (n-q)(n-q-1) + q(q-1) of n(n-1) pairs, whoever
    it is; (1-Q)^2 + Q^2 for large n."""
    sent = round(fraction * EACH)
    exact = ((EACH - sent) * (EACH - sent - 1) + sent * (sent - 1)) / (EACH * (EACH - 1))
    assert course(of_kind(kind, fraction), 1, 1)[0] == pytest.approx(exact, rel=1e-12)
    assert exact == pytest.approx((1 - fraction) ** 2 + fraction**2, abs=1 / EACH)


@pytest.mark.parametrize("kind", ["partial", "IS"])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9, 1.0])
def test_with_a_partner_for_each_sample_the_sent_are_parted(kind, fraction):
    """Both stay with (n-q)(n-q-1) / n(n-1), else they are on one of M ranks by chance; (1-Q)^2 for
    many ranks and large shards."""
    sent, draws = round(fraction * EACH), 20
    stay = (EACH - sent) * (EACH - sent - 1) / (EACH * (EACH - 1))
    found = [course(of_kind(kind, fraction), seed, 1)[0] for seed in range(draws)]
    error = float(np.std(found, ddof=1)) / math.sqrt(draws)
    assert np.mean(found) == pytest.approx(stay + (1 - stay) / RANKS, abs=5 * error)
    assert np.mean(found) == pytest.approx((1 - fraction) ** 2, abs=1 / RANKS + 1 / EACH)


def test_everything_exchanged_in_pairs_swaps_the_shards():
    """At Q = 1 two ranks merely change places: nothing is mixed, in any number of epochs."""
    assert course(of_kind("IS-Pair", 1.0), 2, 5) == [1.0] * 5


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("kind", ["partial", "random pairs"])
def test_mixing_over_epochs(kind, fraction):
    """The share t of pairs that are together follows t' = a t + c (1 - t), for large shards.

    A partner for each sample: whoever goes is anywhere by chance, so a = (1-Q)^2 + (1 - (1-Q)^2)/M
    and c = (1 - (1-Q)^2)/M. One partner, drawn anew each epoch: a = (1-Q)^2 + Q^2; two samples
    apart meet if their ranks are paired, 1/(M-1), and one of them goes, 2 Q (1-Q).
    """
    epochs, draws, share, expected = 6, 12, 1.0, []
    part = 1 - (1 - fraction) ** 2
    for _ in range(epochs):
        if kind == "partial":
            share = (1 - part) * share + part / RANKS
        else:
            share = ((1 - fraction) ** 2 + fraction**2) * share + 2 * fraction * (1 - fraction) / (
                RANKS - 1
            ) * (1 - share)
        expected.append(share)
    found = np.mean(
        [course(of_kind(kind, fraction), seed, epochs) for seed in range(draws)], axis=0
    )
    assert found == pytest.approx(expected, abs=0.5 / EACH)


def test_pairing_by_sum_narrows_the_gap_between_ranks():
    """ "Pairing method (IS-Pair) helps to balance the data distribution among workers": it narrows
    the spread of the ranks' importance.

    Importance that stays with the samples, at first sorted over the ranks: with everything swapped
    between i-th lowest and i-th highest, nothing narrows; with half of it at random, the sums of
    both partners become alike up to chance; after an exchange with a random partner they only do so
    on average.
    """
    importance = np.arange(RANKS * EACH, dtype=np.float64)
    owner = np.repeat(np.arange(RANKS), EACH)

    def spread(fraction: float, rule: Any) -> float:
        of = {"rank_importance": "sum"} if rule == "importance_sorted" else {}
        schedule = ExchangeSchedule(partner_rule=rule, partner_lifetime="epoch", **of)
        strategy = PartialLocalShuffle(
            kind="partial_local_shuffle", exchange_fraction=fraction, schedule=schedule
        )
        shards = strategy.shards(owner, RANKS, rng(1))
        plan = planned_epoch(strategy, shards, rng(2), batch=BATCH, importance=importance)
        return float(np.bincount(plan.apply(owner), importance).std())

    before = float(np.bincount(owner, importance).std())
    assert spread(1.0, "importance_sorted") == pytest.approx(before, rel=1e-12)
    assert spread(0.5, "importance_sorted") < 0.2 * before
    assert spread(0.5, "random_pairs") > 0.4 * before

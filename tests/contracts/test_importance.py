"""Importance decides which samples go and which ranks are paired, by rules that are switched one at
a time."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.errors import InputError
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validate_record
from simshuffle.workload.exchange import (
    ExchangePlan,
    ExchangeSchedule,
    ImportanceExchange,
    PairSchedule,
    PartialLocalShuffle,
    Shards,
    TrainedExchange,
    initial_owner,
)
from simshuffle.workload.exchange import importance as importance_module
from simshuffle.workload.exchange.importance import Selection, rank_importance, select_samples
from simshuffle.workload.exchange.partners import couple_neighbours, pair_by_importance
from simshuffle.workload.exchange.plan import shuffled_shards
from tests.examples import importance_exchange, importance_pair, planned_epoch, rng
from tests.strategies import exchanges, importance_strategies

SELECTIONS: tuple[Selection, ...] = ("importance", "sqrt_importance", "highest", "lowest", "random")
RULES = ("random", "random_pairs", "importance_sorted")


def plan_of(
    strategy: Any,
    shards: Shards,
    importance: Any,
    *,
    seed: int = 0,
    epoch: int = 1,
    iterations: int = 4,
) -> ExchangePlan:
    how: dict[str, Any] = {"batch": 3, "iterations": iterations, "importance": importance}
    return planned_epoch(strategy, shards, rng(seed, epoch, 2), epoch=epoch, **how)


def in_order(*parts: list[int]) -> Shards:
    """Shards with these samples in this order."""
    return Shards(
        np.concatenate(parts).astype(np.int32), np.cumsum([0, *(len(part) for part in parts)])
    )


def alike(ranks: int, each: int) -> Shards:
    """``ranks`` shards of ``each`` samples, numbered in order."""
    return Shards(np.arange(ranks * each), np.arange(ranks + 1) * each)


def six_shards() -> tuple[Shards, Any]:
    """Of 90 samples, and an importance of each."""
    shards = shuffled_shards(initial_owner(90, 6, rng(1)), 6, rng(2))
    return shards, rng(3).exponential(size=90)


def same(a: ExchangePlan, b: ExchangePlan) -> bool:
    return all(
        np.array_equal(getattr(a, field), getattr(b, field))
        for field in ("sample", "target", "iteration", "message")
    )


# --------------------------------------------------------------------------------- which samples go

WEIGHTS = np.array([1.0, 2.0, 5.0])
RANKS = 40_000


def orders(selection: Selection, weights: Any, count: int, seed: int = 0) -> Any:
    """What 40,000 ranks with samples of these importances send: (count, RANKS) places in
    `weights`."""
    sample = select_samples(
        selection, alike(RANKS, len(weights)), count, np.tile(weights, RANKS), rng(seed)
    )
    assert sample.shape == (count, RANKS)
    assert np.array_equal(sample // len(weights), np.broadcast_to(np.arange(RANKS), sample.shape))
    return sample % len(weights)


def near(share: Any, expected: Any) -> bool:
    """Within 5 standard deviations of a share of RANKS draws."""
    p = np.asarray(expected)
    return bool((np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / RANKS)).all())


@pytest.mark.parametrize(("selection", "power"), [("importance", 1.0), ("sqrt_importance", 0.5)])
def test_the_first_sample_is_drawn_in_proportion(selection, power):
    weights = np.array([0.1, 3.0, 0.5, 7.0, 1.0])
    first = np.bincount(orders(selection, weights, 1)[0], minlength=5) / RANKS
    assert near(first, weights**power / (weights**power).sum())


def test_two_of_three_samples_by_hand():
    """Importances 1, 2, 5: i and then j with p_i p_j / (1 - p_i); sample 1 is among the two with
    1/8 + 2/8 1/6 + 5/8 1/3 = 3/8."""
    drawn = orders("importance", WEIGHTS, 2)
    p = WEIGHTS / 8
    for i in range(3):
        for j in {0, 1, 2} - {i}:
            assert near(((drawn[0] == i) & (drawn[1] == j)).mean(), p[i] * p[j] / (1 - p[i]))
    included = np.array([(drawn == i).any(axis=0).mean() for i in range(3)])
    assert near(included, [3 / 8, 59 / 84, 155 / 168])


def test_drawing_goes_on_as_it_began():
    """Three of five without replacement, against the product of conditional probabilities for every
    order that is likely enough."""
    weights = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
    drawn = orders("importance", weights, 3, seed=2)
    for order in ((4, 3, 2), (4, 2, 3), (2, 4, 0), (1, 3, 4), (0, 1, 2)):
        left, expected = weights.sum(), 1.0
        for i in order:
            expected *= weights[i] / left
            left -= weights[i]
        assert near((drawn == np.array(order)[:, None]).all(axis=0).mean(), expected)


@pytest.mark.parametrize("selection", ["importance", "sqrt_importance"])
def test_samples_without_importance_come_last_in_random_order(selection):
    """Their order is the local one, which is shuffled."""
    owner, counts = np.repeat([0, 1], 6), np.zeros((12, 6))
    importance = np.tile([0.0, 1e-300, 0.0, 3.0, 0.0, 0.0], 2)
    for seed in range(2000):
        sample = select_samples(
            selection, shuffled_shards(owner, 2, rng(seed)), 6, importance, rng(seed, 1)
        )
        counts[sample, np.arange(6)[:, None]] += 1
    none = importance == 0
    assert not counts[none, :2].any()
    assert not counts[~none, 2:].any()
    assert np.abs(counts[none, 2:] - 500).max() < 5 * math.sqrt(2000 * 0.25 * 0.75)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_importances_choose_at_random(selection, value):
    """As in the first epoch of lagging importance: each sample stands in each place equally
    often."""
    owner, counts = np.repeat([0, 1], 4), np.zeros((8, 3))
    for seed in range(2000):
        sample = select_samples(
            selection, shuffled_shards(owner, 2, rng(seed)), 3, np.full(8, value), rng(seed, 1)
        )
        counts[sample, np.arange(3)[:, None]] += 1
    assert np.abs(counts - 500).max() < 5 * math.sqrt(2000 * 0.25 * 0.75)


def test_highest_and_lowest_take_equals_in_local_order():
    shards = in_order([3, 0, 2, 1], [7, 5, 4, 6])
    importance = np.array([2.0, 1.0, 2.0, 9.0, 0.0, 4.0, 4.0, 0.0])
    assert select_samples("highest", shards, 3, importance, rng(0)).T.tolist() == [
        [3, 0, 2],
        [5, 6, 7],
    ]
    assert select_samples("lowest", shards, 3, importance, rng(0)).T.tolist() == [
        [1, 0, 2],
        [7, 4, 5],
    ]
    assert select_samples("random", shards, 3, importance, rng(0)).T.tolist() == [
        [3, 0, 2],
        [7, 5, 4],
    ]


@settings(max_examples=60, deadline=None)
@given(
    importance_strategies(),
    st.integers(2, 8),
    st.integers(0, 99),
    st.sampled_from([1e-300, 1e-9, 0.7, 3.0, 1e200]),
)
def test_scale_does_not_matter(strategy, world_size, seed, factor):
    shards = shuffled_shards(
        initial_owner(world_size * 12, world_size, rng(seed)), world_size, rng(seed, 1)
    )
    importance = rng(seed, 3).exponential(size=world_size * 12)
    assert same(
        plan_of(strategy, shards, importance), plan_of(strategy, shards, importance * factor)
    )


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_rank_needs_no_importance_but_its_own(selection):
    shards = shuffled_shards(initial_owner(60, 5, rng(1)), 5, rng(2))
    importance = rng(3).exponential(size=60)
    other = rng(4).exponential(size=60)
    for rank in range(5):
        own = shards.order[shards.start[rank] : shards.start[rank + 1]]
        other[own] = importance[own]
        plans = [
            select_samples(selection, shards, 6, values, rng(5)) for values in (importance, other)
        ]
        assert np.array_equal(plans[0][:, rank], plans[1][:, rank])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SELECTIONS),
    st.lists(st.integers(1, 30), min_size=1, max_size=9),
    st.integers(0, 99),
)
def test_skewed_shards_are_sorted_alike_by_both_ways(selection, sizes, seed):
    """As rows of one table, or one shard after the other."""
    owner = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    shards = shuffled_shards(owner, len(sizes), rng(seed, 1))
    # with equals and zeros
    importance = np.maximum(rng(seed, 2).normal(size=len(owner)), 0).round(1)
    drawn = []
    for padding in (0, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importance_module, "MAX_PADDING", padding)
            drawn.append(select_samples(selection, shards, min(sizes), importance, rng(seed, 3)))
    assert np.array_equal(*drawn)
    assert np.array_equal(
        owner[drawn[0]], np.broadcast_to(np.arange(len(sizes)), (min(sizes), len(sizes)))
    )
    assert len(np.unique(drawn[0])) == drawn[0].size


@pytest.mark.parametrize(
    "strategy",
    [importance_exchange(1), importance_pair(1), importance_pair(1, selection="highest")],
)
def test_no_rank_sends_more_than_the_smallest_shard_has(strategy):
    shards = shuffled_shards(np.repeat([0, 1, 2], [2, 9, 4]), 3, rng(0))
    plan = plan_of(strategy, shards, np.arange(15.0))
    assert plan.sample.shape == (2, 3)
    empty = shuffled_shards(np.repeat([0, 2], [5, 4]), 3, rng(0))
    assert plan_of(strategy, empty, np.arange(9.0)).sample.shape == (0, 3)


@pytest.mark.parametrize("strategy", [importance_exchange(0.5), importance_pair(0.5)])
def test_selection_leaves_the_order_of_training_alone(strategy):
    owner = initial_owner(60, 5, rng(1))
    shards = strategy.shards(owner, 5, rng(2))
    before = shards.order.copy(), shards.start.copy()
    partial = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.5)
    assert np.array_equal(partial.shards(owner, 5, rng(2)).order, before[0])
    importance = rng(3).exponential(size=60)
    copy = importance.copy()
    plan_of(strategy, shards, importance)
    assert np.array_equal(shards.order, before[0]) and np.array_equal(shards.start, before[1])
    assert np.array_equal(importance, copy)


# ------------------------------------------------------------------------------ one thing at a time


@pytest.mark.parametrize("rule", RULES)
def test_selecting_at_random_is_partial_local_shuffle(rule):
    schedule = ExchangeSchedule(
        partner_rule=rule, partner_lifetime="iteration", samples_per_message=2
    )
    shards, importance = six_shards()
    partial = PartialLocalShuffle(
        kind="partial_local_shuffle", exchange_fraction=0.4, schedule=schedule
    )
    other = ImportanceExchange(
        kind="importance_exchange", exchange_fraction=0.4, schedule=schedule, selection="random"
    )
    assert same(plan_of(partial, shards, importance), plan_of(other, shards, importance))
    assert other.needs_importance == partial.needs_importance == (rule == "importance_sorted")


@pytest.mark.parametrize("rule", ["random", "random_pairs"])
@pytest.mark.parametrize("lifetime", ["sample", "iteration", "epoch"])
def test_partners_do_not_depend_on_the_selection(rule, lifetime):
    shards, importance = six_shards()
    schedule = {"partner_rule": rule, "partner_lifetime": lifetime}
    plans = [
        plan_of(importance_exchange(0.4, schedule, selection=selection), shards, importance)
        for selection in SELECTIONS
    ]
    assert all(np.array_equal(plan.target, plans[0].target) for plan in plans)
    assert len({plan.sample.tobytes() for plan in plans}) == len(SELECTIONS)


def test_pair_differs_from_exchange_by_its_schedule_alone():
    shards, importance = six_shards()
    keys = {"partner_rule": "importance_sorted", "partner_lifetime": "epoch"}
    keys |= {"samples_per_message": "iteration", "barriers": "iteration"}
    assert importance_exchange(0.4, keys).schedule == ExchangeSchedule(**keys)
    assert same(
        plan_of(importance_exchange(0.4, keys), shards, importance),
        plan_of(importance_pair(0.4), shards, importance),
    )


def test_pair_has_one_partner_and_one_message_an_iteration():
    shards = shuffled_shards(initial_owner(144, 12, rng(1)), 12, rng(2))
    plan = plan_of(importance_pair(0.7), shards, rng(3).exponential(size=144))
    assert plan.iteration.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # 2.1 an iteration, of 8.4 in all
    assert plan.message.tolist() == plan.iteration.tolist()
    assert (plan.target == plan.target[0]).all()


# --------------------------------------------------------------------------- which ranks are paired

OF_RANKS = in_order([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11, 12])
OF_SAMPLES = np.array([9.0, 0.0, 0.0, 4.0, 4.0, 4.0, 1.0, 1.0, 2.0, 3.0, 3.5, 3.0, 3.0])


@pytest.mark.parametrize(
    ("of", "values", "partners"),
    [
        ("max", [9, 4, 2, 3.5], [2, 3, 0, 1]),
        ("mean", [3, 4, 4 / 3, 3.125], [3, 2, 1, 0]),
        ("sum", [9, 12, 4, 12.5], [1, 0, 3, 2]),
    ],
)
def test_lowest_is_paired_with_highest_by_hand(of, values, partners):
    sample = OF_RANKS.first(2)
    assert rank_importance(of, OF_SAMPLES, OF_RANKS, sample, np.zeros(1, np.int64))[
        0
    ] == pytest.approx(values)
    assert (
        plan_of(importance_pair(0.6, {"rank_importance": of}), OF_RANKS, OF_SAMPLES).target.tolist()
        == [partners] * 2
    )


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_pairs_are_mutual(count):
    values = rng(count).random((5, count))
    drawn = np.array([rng(seed).permutation(count) for seed in range(5)])
    for partner in (pair_by_importance(values, drawn), couple_neighbours(drawn, count)):
        assert np.array_equal(
            np.take_along_axis(partner, partner.astype(np.int64), axis=1),
            np.broadcast_to(np.arange(count), (5, count)),
        )
        assert ((partner == np.arange(count)).sum(axis=1) == count % 2).all()
    place = values.argsort(axis=1).argsort(axis=1)
    partner = pair_by_importance(values, drawn)
    assert (place + np.take_along_axis(place, partner.astype(np.int64), axis=1) == count - 1).all()


@settings(max_examples=80, deadline=None)
@given(exchanges(), st.integers(1, 9), st.integers(0, 99))
def test_whoever_is_sent_to_sends_back(strategy, world_size, seed):
    shards = strategy.shards(
        initial_owner(world_size * 7 + 2, world_size, rng(seed)), world_size, rng(seed, 1)
    )
    plan = plan_of(strategy, shards, rng(seed, 3).exponential(size=world_size * 7 + 2), seed=seed)
    if (
        strategy.exchange_schedule is not None
        and strategy.exchange_schedule.partner_rule != "random"
    ):
        back = np.take_along_axis(plan.target, plan.target, axis=1)
        assert np.array_equal(back, np.broadcast_to(np.arange(world_size), back.shape))
        assert ((~plan.moving).sum(axis=1) == world_size % 2).all()


def test_the_rank_in_the_middle_keeps_its_samples():
    pairs = pair_by_importance(np.array([5.0, 1.0, 3.0, 2.0, 4.0]), np.arange(5))
    assert pairs.tolist() == [1, 0, 2, 4, 3]


@pytest.mark.parametrize("rule", ["random_pairs", "importance_sorted"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_ranks_of_equal_importance_are_paired_at_random(rule, value):
    """Each with each of the five others alike, as in the first epoch of lagging importance."""
    shards, met, draws = alike(6, 4), np.zeros((6, 6)), 2000
    for seed in range(draws):
        plan = plan_of(
            importance_pair(0.3, {"partner_rule": rule}), shards, np.full(24, value), seed=seed
        )
        met[np.arange(6), plan.target[0]] += 1
    assert not met.diagonal().any()
    apart = met[~np.eye(6, dtype=bool)]
    assert np.abs(apart - draws / 5).max() < 5 * math.sqrt(draws * 0.2 * 0.8)


def test_pairs_are_sorted_anew_by_what_is_left():
    """Each rank sends its most important sample first; then the others decide."""
    shards = in_order([0, 1], [2, 3], [4, 5], [6, 7])
    importance = np.array([8.0, 1.0, 7.0, 2.0, 6.0, 4.0, 5.0, 3.0])
    again = importance_pair(
        1, {"partner_lifetime": "iteration", "samples_per_message": 1}, selection="highest"
    )
    plan = planned_epoch(again, shards, rng(0), batch=1, iterations=2, importance=importance)
    assert plan.sample.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # by 8, 7, 6, 5, and then by 1, 2, 4, 3
    assert plan.target.tolist() == [[3, 2, 1, 0], [2, 3, 0, 1]]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["max", "mean", "sum"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.integers(0, 99),
)
def test_importance_of_a_rank_is_that_of_the_samples_not_yet_sent(of, sizes, seed):
    shards = shuffled_shards(
        rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)), len(sizes), rng(seed, 1)
    )
    importance = rng(seed, 2).exponential(size=sum(sizes)).round(1)
    sample = select_samples("importance", shards, min(sizes), importance, rng(seed, 3))
    found = rank_importance(of, importance, shards, sample, np.arange(min(sizes)))
    combine = {"max": max, "sum": sum, "mean": lambda values: sum(values) / len(values)}[of]
    for sent in range(min(sizes)):
        for rank in range(len(sizes)):
            held = set(shards.order[shards.start[rank] : shards.start[rank + 1]].tolist()) - set(
                sample[:sent, rank].tolist()
            )
            assert found[sent, rank] == pytest.approx(combine([importance[i] for i in held]))


def test_nothing_is_sorted_without_importance():
    with pytest.raises(ValueError, match="need the importance"):
        PairSchedule().targets(np.array([[1, 0]]))
    with pytest.raises(ValueError, match="needs the importance"):
        select_samples("highest", alike(2, 3), 1, None, rng(0))
    assert select_samples("random", alike(2, 3), 1, None, rng(0)).tolist() == [[0, 3]]


# ---------------------------------------------------------------------------------- what is refused

NEEDING = [
    importance_exchange(0.5),
    importance_pair(0.5, lagging=True),
    importance_pair(0.5, selection="random"),
    PartialLocalShuffle(
        kind="partial_local_shuffle", exchange_fraction=0.5, schedule=PairSchedule()
    ),
]


@pytest.mark.parametrize("strategy", NEEDING)
@pytest.mark.parametrize(
    ("importance", "text"),
    [
        (None, "importance: is needed by .*; got None"),
        (np.ones(19), r"one number for each of 20 samples; got shape \(19,\)"),
        (np.ones((20, 1)), r"got shape \(20, 1\)"),
        (np.full(20, "1"), "must be real numbers; got an array of <U1"),
        (np.ones(20, complex), "must be real numbers"),
        (
            np.where(np.arange(20) == 13, np.nan, 1.0),
            "finite and not negative; got nan for sample 13 of rank 2",
        ),
        (np.where(np.arange(20) == 4, np.inf, 1.0), "got inf for sample 4 of rank 0"),
        (np.where(np.arange(20) >= 5, -1e-9, 1.0), "got -1e-09 for sample 5 of rank 1"),
    ],
)
def test_what_is_no_importance_is_refused(strategy, importance, text):
    assert strategy.needs_importance
    with pytest.raises(InputError, match=text):
        plan_of(strategy, alike(4, 5), importance)


@pytest.mark.parametrize("convert", [list, np.float32, lambda values: values.astype(np.int64)])
def test_numbers_of_any_kind_are_an_importance(convert):
    importance = rng(0).integers(0, 9, 20).astype(np.float64)
    plans = [
        plan_of(importance_pair(0.5), alike(4, 5), values)
        for values in (importance, convert(importance))
    ]
    assert same(*plans)


@pytest.mark.parametrize("strategy", [importance_pair, importance_exchange])
@pytest.mark.parametrize(
    "change",
    [{"selection": "top"}, {"lagging": 1}, {"fraction": 1.5}, {"rank_importance": "max"}],
)
def test_unknown_keys_and_values_and_keys_without_effect_are_refused(strategy, change):
    with pytest.raises(ValidationError):
        strategy(**{"fraction": 0.1, **change})
    for of in ("mean", "sum"):
        with pytest.raises(ValidationError, match="rank_importance"):
            ExchangeSchedule(rank_importance=of)
        with pytest.raises(ValidationError, match="rank_importance"):
            PairSchedule(partner_rule="random_pairs", rank_importance=of)
        assert PairSchedule(rank_importance=of).rank_importance == of


# ------------------------------------------------------------------------------- as a file has them


class Trained(Spec):
    """A record with an exchange to train with."""

    exchange: TrainedExchange


def test_pair_keeps_its_defaults_where_one_key_is_given():
    exchange = {"kind": "importance_pair", "exchange_fraction": 0.1}
    exchange |= {"schedule": {"rank_importance": "sum"}}
    read, problems = validate_record({"exchange": exchange}, Trained)
    assert read is not None and not problems
    schedule = read.exchange.exchange_schedule
    assert schedule == PairSchedule(rank_importance="sum")
    pairing = (schedule.partner_rule, schedule.partner_lifetime, schedule.samples_per_message)
    assert (*pairing, schedule.barriers) == ("importance_sorted", "epoch", "iteration", "none")
    assert set(PairSchedule.model_fields) == set(ExchangeSchedule.model_fields)
    changed = {
        k
        for k, field in PairSchedule.model_fields.items()
        if field.default != ExchangeSchedule.model_fields[k].default
    }
    assert changed == {"partner_rule", "partner_lifetime", "samples_per_message"}


@pytest.mark.parametrize("kind", ["importance_exchange", "importance_pair"])
def test_problems_name_the_key_without_the_kind(kind):
    exchange = {"kind": kind, "exchange_fraction": 2.0, "selectoin": "highest"}
    exchange |= {"schedule": {"partner_rule": "pairs"}}
    problems = {each.path: each for each in validate_record({"exchange": exchange}, Trained)[1]}
    assert set(problems) == {
        "exchange.exchange_fraction",
        "exchange.selectoin",
        "exchange.schedule.partner_rule",
    }
    assert "selection" in problems["exchange.selectoin"].remedy


@pytest.mark.parametrize(
    ("strategy", "needs", "lagging"),
    [
        (importance_exchange(0.1), True, False),
        (importance_exchange(0.1, lagging=True), True, True),
        (importance_exchange(0.1, selection="random"), False, False),
        (importance_pair(0.1, selection="random", lagging=True), True, True),
        (importance_pair(0.1, {"partner_rule": "random"}, selection="random"), False, False),
        (importance_pair(0.1, {"partner_rule": "random"}), True, False),
        (PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.1), False, False),
        (NEEDING[-1], True, False),
    ],
)
def test_who_needs_importance_and_whose(strategy, needs, lagging):
    assert (strategy.needs_importance, getattr(strategy, "lagging", False)) == (needs, lagging)
    assert strategy.inference_pass == (needs and not lagging)

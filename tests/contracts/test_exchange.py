"""Every exchange strategy keeps all samples, keeps shards balanced, and sends what it says when it
says."""

import math
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simshuffle.errors import ScenarioError
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.workload.exchange import (
    ExchangePlan,
    ExchangeSchedule,
    RankPlaces,
    Shards,
    ShardsContext,
    TrainedExchange,
    initial_owner,
)
from simshuffle.workload.exchange.plan import shuffled_shards
from simshuffle.workload.exchange.schedule import Pairing, epoch_quota, spread_over_iterations
from tests.examples import (
    STRATEGIES,
    importance_exchange,
    importance_pair,
    partial,
    planned_epoch,
    rng,
)
from tests.small import small
from tests.strategies import (
    batch_sizes,
    exchanges,
    importance_strategies,
    partial_local_shuffles,
    schedules,
    world_sizes,
)


@pytest.fixture(params=list(STRATEGIES))
def strategy(request: pytest.FixtureRequest) -> Any:
    return STRATEGIES[request.param]


def planned(
    strategy: Any,
    owner: Any,
    world_size: int,
    *,
    batch: int = 4,
    epoch: int = 1,
    seed: int = 0,
    importance: bool = True,
) -> tuple[Shards, ExchangePlan]:
    """Shards and plan of an epoch with as many iterations as the batches of the largest shard;
    importances are drawn."""
    shards = strategy.epoch_shards(
        ShardsContext(owner, world_size, epoch, rng(seed, epoch, 1), seed, batch)
    )
    plan = planned_epoch(
        strategy,
        shards,
        rng(seed, epoch, 2),
        batch=batch,
        iterations=max(math.ceil(len(owner) / (world_size * batch)), 1),
        epoch=epoch,
        importance=rng(seed, epoch, 3).exponential(size=len(owner)) if importance else None,
        held=strategy.first_held(len(owner)),
    )
    return shards, plan


def carried_out(plan: ExchangePlan, owner: Any, world_size: int) -> list[set[int]]:
    """What every rank holds in the end, passing sample by sample; nobody can send what it does not
    hold, or twice."""
    holds = [set(np.flatnonzero(owner == rank).tolist()) for rank in range(world_size)]
    for samples, targets in zip(plan.sample.tolist(), plan.target.tolist(), strict=True):
        for rank, sample in enumerate(samples):
            holds[rank].remove(sample)
        for sample, target in zip(samples, targets, strict=True):
            holds[target].add(sample)
    return holds


@st.composite
def situations(draw: Any, strategies: Any = None) -> tuple[Any, Any, int, int, int]:
    """A strategy, owners, M, b and the epoch."""
    strategy = draw(exchanges() if strategies is None else strategies)
    world_size = draw(world_sizes())
    owner = initial_owner(
        draw(st.integers(world_size, 150)), world_size, rng(draw(st.integers(0, 1000)))
    )
    return strategy, owner, world_size, draw(batch_sizes()), draw(st.integers(1, 50))


# ----------------------------------------------------------------------------------- every strategy


def test_strategy_answers_what_it_is(strategy):
    assert strategy.tier in {"pfs", "ssd"}
    assert strategy.fraction is None or 0 <= strategy.fraction <= 1
    assert (strategy.exchange_schedule is not None) == (
        strategy.kind not in {"global_shuffle", "local_shuffle", "loader_shuffle"}
    )
    if not strategy.needs_importance:
        planned(strategy, initial_owner(40, 4, rng(0)), 4, importance=False)
    assert (
        type(strategy).model_validate(strategy.model_dump(mode="json", exclude_none=True))
        == strategy
    )


@settings(max_examples=150, deadline=None)
@given(situations())
def test_samples_are_kept_and_shards_stay_balanced(case):
    strategy, owner, world_size, batch, epoch = case
    shards = strategy.shards(owner, world_size, rng(epoch))
    assert sorted(shards.order.tolist()) == list(range(len(owner)))
    assert shards.start[0] == 0 and shards.start[-1] == len(owner)
    assert shards.sizes.sum() == len(owner)
    assert shards.sizes.max() - shards.sizes.min() <= 1
    before = owner.copy()
    _, plan = planned(strategy, owner, world_size, batch=batch, epoch=epoch)
    after = plan.apply(owner)
    assert np.array_equal(owner, before)
    assert after.shape == owner.shape
    if strategy.fraction is None:  # nobody owns samples
        assert np.array_equal(after, owner)
        return
    holds = carried_out(plan, owner, world_size)
    assert [sorted(held) for held in holds] == [
        np.flatnonzero(after == rank).tolist() for rank in range(world_size)
    ]
    assert [len(held) for held in holds] == np.bincount(owner, minlength=world_size).tolist()


@settings(max_examples=150, deadline=None)
@given(situations())
def test_plan_keeps_its_promises(case):
    """Targets are permutations; samples belong to their sender and go out once; steps in order;
    messages within an iteration."""
    strategy, owner, world_size, batch, epoch = case
    shards, plan = planned(strategy, owner, world_size, batch=batch, epoch=epoch)
    steps = len(plan.iteration)
    assert plan.world_size == world_size
    assert plan.sample.shape == plan.target.shape == (steps, world_size)
    assert plan.message.shape == (steps,)
    assert (np.sort(plan.target, axis=1) == np.arange(world_size)).all()
    assert len(np.unique(plan.sample)) == plan.sample.size
    iterations = max(math.ceil(len(owner) / (world_size * batch)), 1)
    assert (np.diff(plan.iteration) >= 0).all()
    assert ((plan.iteration >= 0) & (plan.iteration < iterations)).all()
    for rank in range(world_size):
        own = set(shards.order[shards.start[rank] : shards.start[rank + 1]].tolist())
        assert set(plan.sample[:, rank].tolist()) <= own
    if plan.draws is not None:
        # a permutation is drawn before the first step, and wherever the targets change
        assert plan.draws.shape == (steps,)
        changes = (plan.target[1:] != plan.target[:-1]).any(axis=1)
        assert plan.draws[:1].all() and plan.draws[1:][changes].all()
    if steps:
        assert plan.message[0] == 0
        assert set(np.diff(plan.message).tolist()) <= {0, 1}
    for a, b in pairwise(range(steps)):
        if plan.message[a] == plan.message[b]:
            assert plan.iteration[a] == plan.iteration[b]
            assert np.array_equal(plan.target[a], plan.target[b])


def same(a: tuple[Shards, ExchangePlan], b: tuple[Shards, ExchangePlan]) -> bool:
    return all(
        np.array_equal(getattr(x, field), getattr(y, field))
        for x, y in zip(a, b, strict=True)
        for field in (
            ("order", "start")
            if isinstance(x, Shards)
            else ("sample", "target", "iteration", "message")
        )
    )


def test_same_streams_give_the_same_epoch_and_others_another(strategy):
    scenario = load_scenario("quickstart", {"seed": 3})
    owner = initial_owner(400, 8, scenario.rng("partition"))

    def epoch(number: int, run: Any = scenario) -> tuple[Shards, ExchangePlan]:
        rng = run.rng("shuffle", number)
        shards = strategy.epoch_shards(ShardsContext(owner, 8, number, rng, run.seed, 5))
        importance = run.rng("importance", number).exponential(size=400)
        known = {"importance": importance, "held": strategy.first_held(400)}
        random = run.rng("exchange", number)
        return shards, planned_epoch(strategy, shards, random, iterations=10, epoch=number, **known)

    assert same(epoch(2), epoch(2))
    for other in (epoch(3), epoch(2, load_scenario("quickstart", {"seed": 4}))):
        assert not np.array_equal(epoch(2)[0].order, other[0].order)
        if epoch(2)[1].draws is not None:
            assert not np.array_equal(epoch(2)[1].target, other[1].target)


def test_partners_do_not_depend_on_the_order_of_the_samples():
    """Shuffling and partners are streams of their own."""
    owner = initial_owner(400, 8, rng(0))
    plans = [
        planned_epoch(partial(0.5), shuffled_shards(owner, 8, rng(seed)), rng(9), iterations=10)
        for seed in range(2)
    ]
    assert np.array_equal(plans[0].target, plans[1].target)
    assert not np.array_equal(plans[0].sample, plans[1].sample)


@pytest.mark.parametrize(
    "name", [name for name, strategy in STRATEGIES.items() if not strategy.fraction]
)
def test_nothing_moves(name):
    owner = initial_owner(100, 5, rng(1))
    _, plan = planned(STRATEGIES[name], owner, 5)
    assert plan.sample.shape == (0, 5)
    assert plan.samples_moved == 0
    assert np.array_equal(plan.apply(owner), owner)


@pytest.mark.parametrize("kind", [partial, importance_exchange, importance_pair])
def test_one_rank_moves_nothing(kind):
    owner = initial_owner(20, 1, rng(1))
    _, plan = planned(kind(0.5), owner, 1)
    assert plan.sample.shape == (10, 1)
    assert plan.samples_moved == 0


@pytest.mark.parametrize(
    ("strategy", "world_size", "ranks", "share"),
    [
        (STRATEGIES["global, pfs"], 64, 4, 0.0),
        (STRATEGIES["global, ssd"], 64, 4, 1.0),
        (STRATEGIES["local, ssd"], 64, 4, 4 / 64),
        (STRATEGIES["local, pfs"], 64, 4, 0.0),
        (STRATEGIES["partial 0"], 64, 4, 4 / 64),
        (STRATEGIES["partial 0.3"], 64, 4, 1.3 * 4 / 64),
        (STRATEGIES["partial 0.3"], 4096, 1, 1.3 / 4096),
        (STRATEGIES["partial 1"], 10, 2, 0.4),
        (STRATEGIES["IS 0.3"], 4096, 1, 1.3 / 4096),
        (STRATEGIES["IS-Pair 0.3"], 64, 4, 1.3 * 4 / 64),
    ],
)
def test_stored_share(strategy, world_size, ranks, share):
    """1.3 / 4096 is the 0.03 % of the data set that the authors name."""
    assert strategy.stored_share(world_size, ranks) == pytest.approx(share, rel=1e-12)


# ---------------------------------------------------------------------------------- the plan itself


def test_fixed_points_do_not_count_as_moved():
    plan = ExchangePlan(
        sample=np.array([[0, 3, 6], [1, 4, 7]]),
        target=np.array([[0, 2, 1], [1, 2, 0]]),
        iteration=np.array([0, 0]),
        message=np.array([0, 1]),
    )
    assert plan.moving.tolist() == [[False, True, True], [True, True, True]]
    assert plan.samples_moved == 5
    owner = np.repeat([0, 1, 2], 3)
    assert plan.apply(owner).tolist() == [0, 1, 0, 2, 2, 1, 1, 0, 2]
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_one_rank_a_step_keeps_its_sample_on_average():
    """A random permutation has one fixed point on average, with variance 1."""
    _, plan = planned(partial(1), initial_owner(16 * 2000, 16, rng(4)), 16)
    kept = (~plan.moving).sum(axis=1)
    assert len(kept) == 2000
    assert kept.mean() == pytest.approx(1.0, abs=5 / math.sqrt(2000))


def test_targets_are_uniform():
    """Every rank sends to every rank alike, itself included: 5 standard deviations of a binomial
    count."""
    world_size, steps = 8, 4000
    target = targets_of(ExchangeSchedule(), np.arange(steps), world_size, rng(6))
    counts = np.array(
        [np.bincount(target[:, rank], minlength=world_size) for rank in range(world_size)]
    )
    p = 1 / world_size
    assert np.abs(counts - steps * p).max() < 5 * math.sqrt(steps * p * (1 - p))


def test_samples_to_send_are_drawn_evenly():
    """Over many orders, each sample of a shard goes out in a share Q of the epochs."""
    owner = initial_owner(60, 3, rng(7))
    epochs, sent = 1500, np.zeros(60)
    for seed in range(epochs):
        _, plan = planned(partial(0.3), owner, 3, seed=seed)
        sent[plan.sample.ravel()] += 1
    assert sent.sum() == epochs * 60 * 0.3
    assert np.abs(sent - 0.3 * epochs).max() < 5 * math.sqrt(epochs * 0.3 * 0.7)


# ----------------------------------------------------------------------------------- pace and quota


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100), batch_sizes(40), st.integers(1, 60), st.integers(0, 2000))
def test_pace_is_floor_with_carry(percent, batch, iterations, quota):
    """After iteration i, floor(Q b (i + 1)) samples have gone, in exact arithmetic, until the
    quota; the last iteration takes the rest."""
    fraction = Fraction(percent, 100)
    steps = spread_over_iterations(quota, percent / 100 * batch, iterations)
    assert len(steps) == quota
    for i in range(iterations - 1):
        assert np.count_nonzero(steps <= i) == min(math.floor(fraction * batch * (i + 1)), quota)
    assert np.count_nonzero(steps <= iterations - 1) == quota


@pytest.mark.parametrize(
    ("fraction", "batch", "quota", "sent"),
    [
        (0.1, 32, 16, [3, 3, 3, 3, 4]),
        (0.1, 32, 16, [3, 3, 3, 7]),
        (0.5, 1, 3, [0, 1, 0, 1, 0, 1]),
        (0.1, 32, 10, [3, 3, 3, 1, 0, 0]),
        (1.0, 4, 12, [4, 4, 4]),
        (0.3, 10, 9, [3, 3, 3]),
    ],
)
def test_pace_by_hand(fraction, batch, quota, sent):
    """For example 3.2 samples an iteration: 3, 6, 9, 12, 16."""
    steps = spread_over_iterations(quota, fraction * batch, len(sent))
    assert np.bincount(steps, minlength=len(sent)).tolist() == sent


@settings(max_examples=80, deadline=None)
@given(situations(st.one_of(partial_local_shuffles(), importance_strategies())))
def test_plan_follows_pace_and_quota(case):
    strategy, owner, world_size, batch, epoch = case
    _, plan = planned(strategy, owner, world_size, batch=batch, epoch=epoch)
    quota = epoch_quota(strategy.exchange_fraction, len(owner), world_size, epoch)
    iterations = max(math.ceil(len(owner) / (world_size * batch)), 1)
    assert len(plan.iteration) == quota
    assert np.array_equal(
        plan.iteration,
        spread_over_iterations(quota, strategy.exchange_fraction * batch, iterations),
    )
    assert plan.samples_moved == (plan.target != np.arange(world_size)).sum() <= quota * world_size


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100), world_sizes(2100), st.integers(1, 5000), st.integers(1, 40))
def test_quotas_of_the_epochs_add_up(percent, world_size, per_rank, epochs):
    """The first e quotas sum to the whole number nearest to Q N/M e, unless that asks for more than
    the smallest shard."""
    num_samples = world_size * per_rank + world_size // 3
    exact = Fraction(percent, 100) * num_samples / world_size
    quotas = [
        epoch_quota(percent / 100, num_samples, world_size, epoch) for epoch in range(1, epochs + 1)
    ]
    assert all(0 <= quota <= per_rank for quota in quotas)
    if math.ceil(exact) <= per_rank:
        for count in range(1, epochs + 1):
            assert abs(sum(quotas[:count]) - exact * count) <= Fraction(1, 2) + Fraction(1, 10**6)
        assert max(quotas) - min(quotas) <= 1


def test_quotas_by_hand():
    """N/M = 1251.14: a tenth is 125.11, so that every ninth epoch or so has one more."""
    quotas = [epoch_quota(0.1, 1281167, 1024, epoch) for epoch in range(1, 101)]
    assert set(quotas) == {125, 126}
    assert sum(quotas) == round(0.1 * 1281167 / 1024 * 100) == 12511


@pytest.mark.parametrize(("num_samples", "world_size"), [(60, 6), (61, 6), (65, 6), (7, 7)])
def test_everything_is_exchanged_with_a_fraction_of_one(num_samples, world_size):
    """Where shards differ in size, all but the one surplus sample of the larger ones."""
    owner = initial_owner(num_samples, world_size, rng(3))
    for epoch in range(1, 4):
        _, plan = planned(partial(1), owner, world_size, epoch=epoch)
        assert plan.sample.shape == (num_samples // world_size, world_size)
        if num_samples % world_size == 0:
            assert sorted(plan.sample.ravel().tolist()) == list(range(num_samples))


# ----------------------------------------------------------------------------------------- schedule


def targets_of(
    schedule: ExchangeSchedule, iteration: Any, world_size: int, random: np.random.Generator
) -> Any:
    """Targets of every step, (steps, M)."""
    life = schedule.pairing_of(iteration)
    drawn = schedule.random_orders(life, world_size, random)
    return schedule.targets(drawn, random.random(drawn.shape))[life]


def runs(rows: Any) -> list[int]:
    """Lengths of the runs of equal rows."""
    return [len(list(group)) for _, group in groupby(map(tuple, rows.tolist()))]


ITERATION = np.array([0, 0, 0, 1, 1, 1, 1, 3])


@pytest.mark.parametrize("rule", ["random", "random_pairs", "importance_sorted"])
@pytest.mark.parametrize(
    ("lifetime", "lengths"), [("sample", [1] * 8), ("iteration", [3, 4, 1]), ("epoch", [8])]
)
def test_partners_serve_for_their_lifetime(rule, lifetime, lengths):
    """With 40 ranks, no two permutations are alike by chance."""
    targets = targets_of(
        ExchangeSchedule(partner_rule=rule, partner_lifetime=lifetime), ITERATION, 40, rng(2)
    )
    assert runs(targets) == lengths
    assert (np.sort(targets, axis=1) == np.arange(40)).all()


@pytest.mark.parametrize(
    ("size", "messages"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7]),
        (2, [0, 0, 1, 2, 2, 3, 3, 4]),
        (3, [0, 0, 0, 1, 1, 1, 2, 3]),
        (9, [0, 0, 0, 1, 1, 1, 1, 2]),
        ("iteration", [0, 0, 0, 1, 1, 1, 1, 2]),
    ],
)
def test_messages_group_the_samples_of_an_iteration(size, messages):
    schedule = ExchangeSchedule(partner_lifetime="epoch", samples_per_message=size)
    assert schedule.messages(ITERATION).tolist() == messages


@settings(max_examples=100, deadline=None)
@given(
    schedules(sorted_too=True),
    st.lists(st.integers(0, 6), max_size=40).map(sorted),
    world_sizes(),
    st.integers(0, 99),
)
def test_messages_and_partners_fit(schedule, iteration, world_size, seed):
    steps = np.array(iteration, np.int64)
    messages = schedule.messages(steps)
    targets = targets_of(schedule, steps, world_size, rng(seed))
    assert messages.shape == steps.shape
    assert targets.shape == (len(steps), world_size)
    size = math.inf if schedule.samples_per_message == "iteration" else schedule.samples_per_message
    for at in set(iteration):
        of_iteration = messages[steps == at]
        counts = np.unique(of_iteration, return_counts=True)[1].tolist()
        assert all(count == size for count in counts[:-1]) and counts[-1] <= size
    for number in set(messages.tolist()):
        carried = np.flatnonzero(messages == number)
        assert len(set(steps[carried].tolist())) == 1
        assert (targets[carried] == targets[carried[0]]).all()


@pytest.mark.parametrize(
    "change",
    [
        {"samples_per_message": 0},
        {"samples_per_message": "epoch"},
        {"partner_lifetime": "message"},
        # partners of a sample cannot carry a message of several
        *(
            {"partner_lifetime": "sample", "samples_per_message": size}
            for size in (2, 10, "iteration")
        ),
        *({"exchange_fraction": fraction} for fraction in (-0.1, 1.1, "0.1", float("nan"))),
    ],
)
def test_unknown_schedule_and_fraction_out_of_range_are_refused(change):
    with pytest.raises(ValidationError, match=r"partner_lifetime|samples_per_|exchange_fraction"):
        partial(change.pop("exchange_fraction", 0.1), **change)


# ------------------------------------------------------------------------------------------- mixing


@pytest.mark.parametrize("lifetime", ["sample", "iteration", "epoch"])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_samples_of_a_shard_stay_together(fraction, lifetime):
    """The probability that two samples of one shard are still in one shard after an exchange, with
    n = N/M and q = Q n.

    Both stay with (n-q)(n-q-1) / n(n-1), one goes and comes back with 1/M, and two that go meet
    with certainty if they have the same partner, else with 1/M. For many ranks and large shards:
    (1-Q)^2 with a partner for each sample, (1-Q)^2 + Q^2 with one for all. The bound is 5 standard
    errors over the draws.
    """
    world_size, each, batch, draws = 50, 40, 10, 60
    sent = round(fraction * each)
    steps = spread_over_iterations(sent, fraction * batch, each // batch)
    together = []
    for seed in range(draws):
        owner = initial_owner(world_size * each, world_size, rng(seed))
        _, plan = planned(
            partial(fraction, partner_lifetime=lifetime), owner, world_size, batch=batch, seed=seed
        )
        met = np.zeros((world_size, world_size))
        np.add.at(met, (owner, plan.apply(owner)), 1)
        together.append((met * (met - 1)).sum() / (world_size * each * (each - 1)))
    alike = {"sample": sent, "iteration": (np.bincount(steps) ** 2).sum(), "epoch": sent**2}[
        lifetime
    ] - sent
    total = each * (each - 1)
    both_go = sent * (sent - 1)
    expected = (
        (each - sent) * (each - sent - 1) / total
        + 2 * sent * (each - sent) / total / world_size
        + alike / total
        + (both_go - alike) / total / world_size
    )
    error = float(np.std(together, ddof=1)) / math.sqrt(draws)
    assert np.mean(together) == pytest.approx(expected, abs=5 * error + 1e-12)
    law = (1 - fraction) ** 2 + (fraction**2 if lifetime == "epoch" else 0)
    if lifetime != "iteration":
        assert np.mean(together) == pytest.approx(law, abs=1 / world_size + 1 / each)


# ------------------------------------------------------------------------------------------- shards


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(0, 99))
def test_shuffled_shards_hold_each_rank_its_own(owner, seed):
    """Ranks may have any number of samples, none as well."""
    owners = np.array(owner)
    shards = shuffled_shards(owners, 7, rng(seed))
    for rank in range(7):
        part = shards.order[shards.start[rank] : shards.start[rank + 1]]
        assert sorted(part.tolist()) == np.flatnonzero(owners == rank).tolist()
    assert shards.sizes.tolist() == np.bincount(owners, minlength=7).tolist()


def test_order_of_a_shard_is_random():
    """Each sample stands in each place equally often."""
    owner, draws = np.repeat([0, 1], 5), 5000
    places = np.zeros((10, 5))
    for seed in range(draws):
        shards = shuffled_shards(owner, 2, rng(seed))
        places[shards.order, np.tile(np.arange(5), 2)] += 1
    assert np.abs(places - draws / 5).max() < 5 * math.sqrt(draws * 0.2 * 0.8)


def test_first_samples_of_every_rank():
    shards = Shards(np.array([4, 2, 0, 5, 1, 3, 6]), np.array([0, 3, 5, 7]))
    assert shards.first(2).tolist() == [[4, 5, 3], [2, 1, 6]]
    assert shards.first(0).shape == (0, 3)


@settings(max_examples=100, deadline=None)
@given(world_sizes(300), st.integers(0, 2000), st.integers(0, 99))
def test_initial_shards_differ_by_one_sample_at_most(world_size, more, seed):
    owner = initial_owner(world_size + more, world_size, rng(seed))
    sizes = np.bincount(owner, minlength=world_size)
    assert len(sizes) == world_size
    assert sizes.sum() == world_size + more
    assert sizes.max() - sizes.min() <= 1


def test_initial_partition_is_random():
    draws = 4000
    owners = np.array([initial_owner(8, 4, rng(seed)) for seed in range(draws)])
    counts = np.array([np.bincount(column, minlength=4) for column in owners.T])
    assert np.abs(counts - draws / 4).max() < 5 * math.sqrt(draws * 0.25 * 0.75)


@settings(max_examples=60, deadline=None)
@given(
    exchanges().filter(lambda strategy: strategy.fraction is not None),
    world_sizes(8),
    st.integers(0, 20),
)
def test_shards_stay_balanced_over_many_epochs(strategy, world_size, more):
    owner = initial_owner(world_size * 5 + more, world_size, rng(more))
    sizes = np.bincount(owner, minlength=world_size)
    for epoch in range(1, 9):
        _, plan = planned(strategy, owner, world_size, epoch=epoch)
        owner = plan.apply(owner)
        assert np.array_equal(np.bincount(owner, minlength=world_size), sizes)


@pytest.mark.parametrize(
    "kind", ["partial_local_shuffle", "importance_exchange", "importance_pair"]
)
def test_a_schedule_is_given_by_its_name(kind):
    """The authors': a barrier, decoded images and zeroed buffers; streamlined, the default, none of
    it. Who sends what to whom is the same."""
    made = {
        name: load(f"{kind}:exchange_fraction=0.1{name}")
        for name in ("", ",schedule=streamlined", ",schedule=authors")
    }
    default, streamlined, authors = (made[name].exchange_schedule for name in made)
    assert default == streamlined
    assert (default.name, authors.name) == ("streamlined", "authors")
    assert (default.barriers, default.payload, default.zero_buffer) == ("none", "encoded", 0.0)
    barrier = "iteration" if kind == "importance_pair" else "message"
    assert (authors.barriers, authors.payload, authors.zero_buffer) == (barrier, "decoded", 86e-6)
    pairing = [key for key in Pairing.model_fields if key != "source"]
    assert all(getattr(default, key) == getattr(authors, key) for key in pairing)
    assert default.samples_per_message == authors.samples_per_message


def test_keys_of_a_named_schedule_can_be_set_and_it_is_then_ones_own():
    strategy = load("partial_local_shuffle:exchange_fraction=0.1,schedule=authors:overlap=false")
    schedule = strategy.exchange_schedule
    assert (schedule.barriers, schedule.overlap, schedule.name) == ("message", False, "own")
    read = type(schedule).model_validate(schedule.model_dump(mode="json"))
    assert read == schedule
    named = type(schedule).model_validate("authors")
    assert type(schedule).model_validate(named.model_dump(mode="json")).name == "authors"
    # partners have no part in the name
    strategy = load("partial_local_shuffle:exchange_fraction=0.1,schedule.partner_lifetime=epoch")
    assert strategy.exchange_schedule.name == "streamlined"
    with pytest.raises(ScenarioError, match=r"must be streamlined or authors.*authors"):
        load("partial_local_shuffle:exchange_fraction=0.1,schedule=author")


def load(exchange: str) -> Any:
    return small(workload__exchange=exchange).workload.exchange


def test_a_partition_begins_each_rank_at_its_share_rounded_up():
    """7 samples of 3 ranks: from 0, 7 / 3 and 14 / 3."""
    assert np.bincount(initial_owner(7, 3, rng(0))).tolist() == [3, 2, 2]
    assert np.bincount(initial_owner(2, 5, rng(0)), minlength=5).tolist() == [1, 0, 1, 0, 0]


def test_slices_of_ranks_have_so_many_samples_at_most(monkeypatch):
    """Shards of 3, 2, 4, 7 and 1 samples, five at once: a shard of more is a slice of its own."""
    monkeypatch.setattr("simshuffle.workload.exchange.plan.SAMPLES_AT_ONCE", 5)
    shards = Shards(np.arange(17)[::-1], np.array([0, 3, 5, 9, 16, 17]))
    slices = [(ranks.start, ranks.stop) for ranks in shards.rank_slices()]
    assert slices == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert [shards.slots(slice(*ranks)) for ranks in slices] == [
        slice(0, 5),
        slice(5, 9),
        slice(9, 16),
        slice(16, 17),
    ]
    # samples 16 15 14, 13 12, 11 10 9 8, 7 to 1, and 0
    assert shards.sums(np.arange(17.0)).tolist() == [45, 25, 38, 28, 0]


def test_places_say_how_many_ranks_the_fullest_host_has():
    places = RankPlaces(*(np.array(host) for host in ([0, 1, 1, 2, 1], [0] * 5, [0] * 5)))
    assert places.ranks_per_host == 3


def test_epochs_held_start_again_for_what_has_moved():
    """Ranks 0 and 1 swap samples 0 and 2; rank 2 keeps sample 4, which it sends to itself."""
    plan = ExchangePlan(
        np.array([[0, 2, 4]]), np.array([[1, 0, 2]]), np.zeros(1, int), np.zeros(1, int)
    )
    before = np.array([5, 1, 7, 0, 2, 3])
    assert plan.held_after(before).tolist() == [0, 2, 0, 1, 3, 4]
    assert before.tolist() == [5, 1, 7, 0, 2, 3]
    assert plan.samples_moved == 2
    owner = np.array([0, 0, 1, 1, 2, 2])
    assert plan.apply(owner).tolist() == [1, 0, 0, 1, 2, 2]
    assert owner.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("exchange", "share", "fraction"),
    [
        ({"kind": "local_shuffle"}, 3 / 8, 0),
        ({"kind": "local_shuffle", "source": "pfs"}, 0, 0),
        ({"kind": "global_shuffle"}, 0, None),
        ({"kind": "global_shuffle", "source": "ssd"}, 1, None),
        # what was sent is removed after the epoch
        ({"kind": "partial_local_shuffle", "exchange_fraction": 0.25}, 1.25 * 3 / 8, 0.25),
        ({"kind": "importance_pair", "exchange_fraction": 1}, 2 * 3 / 8, 1),
        ({"kind": "loader_shuffle", "order": "distributed_sampler"}, 0, None),
    ],
)
def test_a_host_of_3_of_8_ranks_keeps_its_share_of_the_set(exchange, share, fraction):
    made = TypeAdapter(TrainedExchange).validate_python(exchange)
    assert made.stored_share(8, 3) == pytest.approx(share)
    assert made.fraction == fraction


@pytest.mark.parametrize(
    ("schedule", "importances"),
    [
        ({}, 0),
        ({"partner_rule": "random_pairs", "partner_lifetime": "epoch"}, 0),
        ({"partner_rule": "importance_sorted", "partner_lifetime": "epoch"}, 1),
        (
            {"partner_rule": "importance_sorted", "partner_lifetime": "epoch"}
            | {"partners_per_epoch": 2},
            100,
        ),
        ({"partner_rule": "importance_sorted", "partner_lifetime": "iteration"}, 100),
    ],
)
def test_importances_are_made_known_as_far_as_partners_need_them(schedule, importances):
    """Of a rank of 100 samples: none, its own, or those of all its samples."""
    made = partial(0.3).model_copy(update={"schedule": ExchangeSchedule(**schedule)})
    assert made.gathered(100) == importances
    assert made.needs_importance == (importances > 0)

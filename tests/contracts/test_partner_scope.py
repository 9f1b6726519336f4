"""Partners among the ranks of a host, a leaf switch or a rack; several of them an epoch; pairs that
are too alike."""

from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import InputError
from simshuffle.job.plan.machine_places import places_on
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.workload.exchange import RankPlaces, partners
from simshuffle.workload.exchange.plan import shuffled_shards
from simshuffle.workload.exchange.schedule import ExchangeSchedule
from tests.examples import cluster, importance_pair, partial, planned_epoch, rng
from tests.small import small
from tests.strategies import fat_tree

RULES = list(partners.RULES)


def targets(
    rule: str, group: Any, importance: Any = None, lives: int = 5, seed: int = 0, **values: Any
) -> Any:
    schedule = ExchangeSchedule(
        partner_rule=rule, partner_scope="leaf", partner_lifetime="sample", **values
    )  # type: ignore[arg-type]
    group = np.asarray(group)
    drawn = schedule.random_orders(np.arange(lives), len(group), rng(seed))
    known = (
        rng(seed + 1).random((lives, len(group)))
        if importance is None
        else np.broadcast_to(importance, (lives, len(group)))
    )
    return schedule.targets(drawn, known, RankPlaces(group, group, group))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(RULES), st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 99)
)
def test_partners_stay_in_their_group(rule, drawn, seed):
    """All of them, but for those that a matching of an odd group leaves over; what is drawn is
    always a permutation."""
    group = np.unique(drawn, return_inverse=True)[1]
    target = targets(rule, group, seed=seed)
    assert (np.sort(target, axis=1) == np.arange(len(group))).all()
    strangers = (group[target] != group).sum(axis=1)
    odd = (np.bincount(group) % 2).sum()
    assert (strangers == (odd // 2 * 2 if rule == "random_pairs" else 0)).all()
    if rule != "random":
        assert (np.take_along_axis(target, target, axis=1) == np.arange(len(group))).all()


@pytest.mark.parametrize("rule", RULES)
def test_one_group_is_all_ranks(rule):
    everyone = ExchangeSchedule(partner_rule=rule, partner_lifetime="sample")  # type: ignore[arg-type]
    drawn = everyone.random_orders(np.arange(5), 9, rng(0))
    known = rng(1).random((5, 9))
    assert np.array_equal(targets(rule, np.zeros(9, int)), everyone.targets(drawn, known))


def test_pairs_of_a_group_are_sorted_in_it():
    """By hand: ranks 0 2 4 have importances 5 1 3, ranks 1 3 5 7 have 9 2 4 8, rank 6 is alone."""
    target = targets(
        "importance_sorted", [0, 1, 0, 1, 0, 1, 2, 1], [5.0, 9.0, 1.0, 2.0, 3.0, 4.0, 7.0, 8.0]
    )
    assert target[0].tolist() == [2, 3, 0, 1, 4, 7, 6, 5]


def test_a_matching_is_uniform_within_the_group():
    """Each of the three matchings of four ranks comes a third of the time: 5 standard
    deviations."""
    target = targets("random_pairs", [0, 0, 0, 0, 1, 1], lives=3000)
    for partner in (1, 2, 3):
        assert (target[:, 0] == partner).mean() == pytest.approx(
            1 / 3, abs=5 * np.sqrt(2 / 9 / 3000)
        )
    assert (target[:, 4] == 5).all()


def test_pairs_that_are_too_alike_keep_their_samples():
    """Sorted: 1 with 8, 3 with 6, 5 with 5.2, of which only the last two differ by less than a half
    of the higher one."""
    importance = [1.0, 6.0, 5.0, 5.2, 3.0, 8.0]
    target = targets("importance_sorted", np.zeros(6, int), importance, least_difference=0.5)
    assert target[0].tolist() == [5, 4, 2, 3, 1, 0]
    target = targets("importance_sorted", np.zeros(6, int), importance, least_difference=0.51)
    assert target[0].tolist() == [5, 1, 2, 3, 4, 0]
    target = targets("importance_sorted", np.zeros(6, int), np.ones(6), least_difference=0.1)
    assert (target == np.arange(6)).all()


def test_several_partners_serve_for_equal_shares_of_the_iterations():
    schedule = ExchangeSchedule(partner_lifetime="epoch", partners_per_epoch=3)
    found = schedule.pairing_of(np.array([0, 0, 1, 2, 3, 3, 4, 5]))
    assert found.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    iterations = np.array([0, 0, 1, 2])
    many = ExchangeSchedule(partner_lifetime="epoch", partners_per_epoch=9)
    one = ExchangeSchedule(partner_lifetime="epoch")
    assert many.pairing_of(iterations).tolist() == [0, 0, 1, 2]
    assert one.pairing_of(iterations).tolist() == [0, 0, 0, 0]
    assert one.pairing_of(iterations[:0]).tolist() == []


@pytest.mark.parametrize(
    "change",
    [
        {"least_difference": 0.1},
        {"partners_per_epoch": 2},
        {"partners_per_epoch": 2, "partner_lifetime": "iteration"},
    ],
)
def test_what_would_have_no_effect_is_refused(change):
    with pytest.raises(ValueError, match="can be set only where"):
        ExchangeSchedule(**change)


def test_partners_of_a_scope_need_the_places():
    shards = shuffled_shards(np.repeat(np.arange(4), 5), 4, rng(0))
    with pytest.raises(InputError, match="partners of the same host"):
        planned_epoch(partial(0.5, partner_scope="host"), shards, rng(0), iterations=1)


def test_samples_never_leave_a_scope_of_pairs_in_even_groups():
    """With four ranks a host and partners of the same host, a sample stays on its host for ever:
    nothing is mixed beyond it."""
    strategy = importance_pair(0.5, {"partner_scope": "host"})
    host = np.repeat(np.arange(3), 4)
    owner = rng(0).permutation(np.repeat(np.arange(12), 10))
    first = host[owner]
    for epoch in range(1, 6):
        shards = shuffled_shards(owner, 12, rng(epoch))
        places = RankPlaces(host, host, host)
        importance = rng(epoch).random(120)
        known = {"importance": importance, "places": places}
        plan = planned_epoch(strategy, shards, rng(9), iterations=2, epoch=epoch, **known)
        owner = plan.apply(owner)
    assert np.array_equal(host[owner], first)


# ------------------------------------------------------------------------------------------- places


def places_of(scenario: Any) -> RankPlaces:
    return Resources(scenario.cluster, scenario.world_size, scenario.rng("placement")).places


def test_places_on_abci():
    """4 ranks a host, 34 hosts a rack; of a pair of hosts the first has its HCAs on leaves 0 and 1,
    the second on 2 and 3."""
    places = places_of(load_scenario("abci-imagenet1k", {"world_size": 512, "sweep": {}}))
    ranks = np.arange(512)
    assert places.host.tolist() == (ranks // 4).tolist()
    assert places.rack.tolist() == (ranks // 136).tolist()
    assert places.leaf[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert places.leaf[8:16].tolist() == places.leaf[:8].tolist()
    assert len(np.unique(places.leaf[:136])) == 4
    assert set(np.unique(places.leaf[136:272])) == {4, 5, 6, 7}


def test_places_on_one_switch():
    places = places_of(small(cluster__host__gpus=4))
    assert places.host.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert not places.leaf.any() and not places.rack.any()


@pytest.mark.parametrize(
    ("text", "ranks", "rule"),
    [
        ("- hosts: 4", 1, "must hold the mapping of one cluster"),
        ("{machine}---\n{machine}", 1, "must hold the mapping of one cluster"),
        ("{machine}hosts: 3\n", 1, "hosts"),
        ("{machine}", 17, "world_size: must not exceed the 16 GPUs"),
    ],
)
def test_places_are_of_one_machine_that_is_large_enough(tmp_path, text, ranks, rule):
    machine = yaml.safe_dump(small().to_dict()["cluster"])
    path = tmp_path / "machine.yaml"
    path.write_text(machine)
    assert places_on(str(path), 16).host.tolist() == list(range(16))
    path.write_text(text.format(machine=machine))
    with pytest.raises(InputError, match=rule):
        places_on(str(path), ranks)


def test_a_scattered_placement_is_drawn_alike_for_every_call(tmp_path):
    base = {"cluster": "small-fat-tree", "world_size": 8, "sweep": {}}
    record = load_scenario("quickstart", base).to_dict()["cluster"] | {"placement": "scattered"}
    path = tmp_path / "machine.yaml"
    path.write_text(yaml.safe_dump(record))
    machine = load_scenario("quickstart", base | {"cluster": str(path)}).cluster
    drawn = Resources(machine, 8, rng(0)).places
    for _ in range(2):
        assert places_on(str(path), 8).leaf.tolist() == drawn.leaf.tolist()
    assert Resources(machine, 8, rng(1)).places.leaf.tolist() != drawn.leaf.tolist()


def test_racks_of_a_fat_tree_are_what_the_topmost_switches_join():
    """Arity 2, three levels: 8 hosts, 4 leaves, 2 pods."""
    places = Resources(cluster(fat_tree(3, 2)), 8, rng(0)).places
    assert places.leaf.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert places.rack.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_simulator_keeps_partners_in_their_scope():
    from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes

    scenario = small(
        cluster__host__gpus=4,
        workload__exchange="partial_local_shuffle:exchange_fraction=0.2,"
        "schedule.partner_scope=host",
    )
    plan = next(plan_epochs(scenario, sample_nbytes(scenario))).exchange
    assert (plan.target // 4 == np.arange(8) // 4).all()
    assert plan.samples_moved > 0

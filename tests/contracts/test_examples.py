"""Every member of a union has an example, and so meets the contracts."""

from typing import Any, get_args

from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.routing import ForwardingTables, Routing
from simshuffle.fabric.topology import Topology
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.storage import Tier
from simshuffle.studies.loader.request import default_orders
from simshuffle.studies.loader.shape import DataSetShape
from simshuffle.studies.training.figures import look_of
from simshuffle.workload.exchange import (
    STYLES,
    Exchange,
    ImportanceExchange,
    Recorded,
    TrainedExchange,
)
from tests.examples import (
    ALGORITHMS,
    ROUTINGS,
    STRATEGIES,
    STRATEGIES_WITHOUT_EXAMPLE,
    TIERS,
    TOPOLOGIES,
    add_own_examples,
    clusters,
    small_topologies,
)
from tests.strategies import members


def test_every_topology_has_an_example_and_a_small_one(tmp_path):
    assert {type(make(tmp_path)) for make in TOPOLOGIES.values()} == set(members(Topology))
    small = small_topologies(tmp_path).values()
    assert {type(each) for each in small} == set(members(Topology))
    assert max(each.num_hosts for each in small) <= 64
    on = {type(machine.topology) for machine, _ in clusters(tmp_path).values()}
    assert on == set(members(Topology))


def test_every_routing_has_an_example():
    # tables from a file have tests of their own
    assert {*map(type, ROUTINGS.values()), ForwardingTables} == set(members(Routing))


def test_every_strategy_has_an_example():
    assert not STRATEGIES_WITHOUT_EXAMPLE, "\n".join(STRATEGIES_WITHOUT_EXAMPLE.values())
    # which has tests of its own
    assert set(members(Exchange)) == set(members(TrainedExchange)) | {Recorded}


def test_an_example_that_cannot_be_used_is_named_and_breaks_no_other(monkeypatch):
    monkeypatch.setattr(ImportanceExchange, "example", {"exchange_fraction": 2})
    strategies: dict[str, Any] = {}
    problems = add_own_examples(strategies)
    assert set(problems) == {"ImportanceExchange", "LoaderShuffle"}
    assert problems["ImportanceExchange"].startswith("ImportanceExchange.example = {'exchange_f")
    assert "less than or equal to 1" in problems["ImportanceExchange"]
    assert "order" in problems["LoaderShuffle"]
    assert strategies["partial_local_shuffle"].fraction == 0.3


def duplicates(values: dict[str, Any]) -> list[str]:
    """Sentences that name two keys with the same value."""
    first: dict[Any, str] = {}
    sentences = []
    for key, value in values.items():
        if value in first:
            sentences.append(f"{key} and {first[value]} both have {value}")
        first.setdefault(value, key)
    return sentences


def test_a_style_is_that_of_a_name_which_the_strategy_has():
    for member in members(TrainedExchange):
        names = {each.short_name for each in STRATEGIES.values() if type(each) is member}
        unused = set(member.styles) - names
        assert not unused, f"{member.__name__}.styles: no example is called {sorted(unused)}"


def test_no_two_strategies_have_the_same_name():
    """Loaders are called by their orders."""
    classes: dict[str, type] = {}
    for strategy in STRATEGIES.values():
        other = classes.setdefault(strategy.short_name, type(strategy))
        assert other is type(strategy), f"{type(strategy)} and {other}: {strategy.short_name}"


def test_the_strategies_of_the_papers_come_first_and_in_their_order():
    papers = ["global", "local", "partial", "IS", "ILag", "IS-Pair", "ILag-Pair"]
    assert [name for name in STYLES if name in papers] == papers


def test_no_two_strategies_look_alike():
    """Neither those with a style, nor loaders, which are drawn by their place."""
    readers = {"nodes": 4, "gpus": 2, "workers": 2, "batch_size": 8}
    shape = DataSetShape(
        samples=4096, samples_per_shard=32, shard_nbytes=0, cache_nbytes=None, epochs=1, **readers
    )
    names = [order.short_name for order in default_orders(shape).values()]
    # LitData's, kept or not, are one order with a smaller cache
    assert len(set(names)) == len(names) - 1
    known = [*STYLES, *dict.fromkeys(names)]
    looks = {name: tuple(look_of(name, known).values()) for name in known}
    assert not duplicates(looks)
    for part in ("colour", "marker"):
        assert not duplicates({name: getattr(style, part) for name, style in STYLES.items()}), part


def test_every_allreduce_algorithm_has_an_example():
    assert {type(each) for each in ALGORITHMS.values()} == set(members(Allreduce))


def test_every_tier_has_an_example():
    tiers = set(get_args(Tier))
    fields = {
        name
        for name, field in Cluster.model_fields.items()
        if {field.annotation, *get_args(field.annotation)} & tiers
    }
    assert fields == set(TIERS)
    assert {type(tier) for tier in TIERS.values()} == tiers

"""Every member of a union has an example, and so meets the contracts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from simshuffle.allreduce import Allreduce
from simshuffle.exchange import Exchange, LoaderShuffle, Recorded, TrainedExchange
from simshuffle.routing import ForwardingTables, Routing
from simshuffle.scenario.cluster import Cluster
from simshuffle.scenario.storage import Tier
from simshuffle.studies.loader.cell import Shape
from simshuffle.studies.loader.request import defaults
from simshuffle.studies.training.figures import COLOURS, MARKERS, look_of
from simshuffle.studies.training.tables import STRATEGIES as STRATEGY_ORDER
from simshuffle.topology import Topology
from tests.examples import (
    ALGORITHMS,
    ROUTINGS,
    STRATEGIES,
    TIERS,
    TOPOLOGIES,
    clusters,
    small_topologies,
)
from tests.strategies import members


def test_every_topology_has_an_example_and_a_small_one(tmp_path: Path) -> None:
    assert {type(make(tmp_path)) for make in TOPOLOGIES.values()} == set(members(Topology))
    small = small_topologies(tmp_path).values()
    assert {type(each) for each in small} == set(members(Topology))
    assert max(each.num_hosts for each in small) <= 64
    on = {type(machine.topology) for machine, _ in clusters(tmp_path).values()}
    assert on == set(members(Topology))


def test_every_routing_has_an_example() -> None:
    # tables from a file have tests of their own
    assert {*map(type, ROUTINGS.values()), ForwardingTables} == set(members(Routing))


def test_every_strategy_has_an_example() -> None:
    assert {type(each) for each in STRATEGIES.values()} == set(members(TrainedExchange))
    # which has tests of its own
    assert set(members(Exchange)) == set(members(TrainedExchange)) | {Recorded}


def test_tables_and_figures_know_the_names_of_all_strategies() -> None:
    """In the order of the papers. Loaders are called by their orders, and drawn by their place."""
    loaders = {of.short_name for of in STRATEGIES.values() if isinstance(of, LoaderShuffle)}
    names = {strategy.short_name for strategy in STRATEGIES.values()} - loaders
    assert names == {"global", "local", "partial", "IS", "ILag", "IS-Pair", "ILag-Pair"}
    assert names == set(STRATEGY_ORDER) == set(COLOURS) == set(MARKERS)
    assert not loaders & names


def test_no_two_orders_of_loaders_look_alike() -> None:
    """Nor like a strategy of the papers; names are all different."""
    readers = {"nodes": 4, "gpus": 2, "workers": 2, "batch_size": 8}
    shape = Shape(
        samples=4096, samples_per_shard=32, shard_nbytes=0, cache_nbytes=None, epochs=1, **readers
    )
    names = [order.short_name for order in defaults(shape).values()]
    # LitData's, kept or not, are one order with a smaller cache
    assert len(set(names)) == len(names) - 1
    known = [*COLOURS, *dict.fromkeys(names)]
    looks = [tuple(look_of(name, known).values()) for name in known]
    assert len(set(looks)) == len(looks)


def test_every_allreduce_algorithm_has_an_example() -> None:
    assert {type(each) for each in ALGORITHMS.values()} == set(members(Allreduce))


def test_every_tier_has_an_example() -> None:
    tiers = set(get_args(Tier))
    fields = {
        name
        for name, field in Cluster.model_fields.items()
        if {field.annotation, *get_args(field.annotation)} & tiers
    }
    assert fields == set(TIERS)
    assert {type(tier) for tier in TIERS.values()} == tiers

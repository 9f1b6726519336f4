"""Which hosts ranks fill, and in which order: by rules, and by names."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import ScenarioError, TopologyError
from simshuffle.fabric.topology.graph import add_host, add_switch, connect, new_graph
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import from_dict, load_scenario
from tests.examples import ABCI, cluster, written
from tests.strategies import fat_tree, star, switch_tree

RUN = {"sweep": {}, "workload.exchange": "local_shuffle"}


def hosts(machine: Cluster, world_size: int, seed: int = 0) -> list[str]:
    return Resources(machine, world_size, np.random.default_rng(seed)).hosts


def placed(placement: Any, machine: Cluster = ABCI, world_size: int = 12) -> list[str]:
    return hosts(machine.model_copy(update={"placement": placement}), world_size)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(1, 25))
def test_round_robin_takes_a_host_of_each_leaf_switch_in_turn(arity, count):
    """On a tree of two levels, K hosts a leaf switch: N hosts are on L = ceil(N / K) leaf switches,
    r = N - (L - 1) K of them on the last one. In the first r rounds all L are asked, then L - 1."""
    count = min(count, arity**2)
    machine = cluster(fat_tree(2, arity), placement="round_robin")
    leaves = -(-count // arity)
    rest = count - (leaves - 1) * arity
    expected = [
        leaf * arity + turn
        for turn in range(arity)
        for leaf in range(leaves)
        if leaf < leaves - 1 or turn < rest
    ]
    assert hosts(machine, count) == [f"h{i:04d}" for i in expected]


def test_round_robin_uses_the_hosts_of_compact():
    for topology in (
        fat_tree(3, 3),
        switch_tree(7, 10, taper=2, rails=2),
        star(5, hcas_per_host=2),
    ):
        hcas = topology.links_per_host
        machine = cluster(topology, gpus=2 * hcas, hcas=hcas, slots=hcas)
        for world_size in (1, machine.num_gpus // 2, machine.num_gpus - 1):
            compact = placed("compact", machine, world_size)
            in_turn = placed("round_robin", machine, world_size)
            assert sorted(in_turn) == sorted(compact)
    assert in_turn == compact  # on one switch


def test_round_robin_on_abci():
    """The first HCA of even hosts is on leaf switch 0 of the rack, that of odd ones on 2."""
    assert placed("round_robin", world_size=12) == ["h0000", "h0001", "h0002"]
    in_turn = placed("round_robin", world_size=4 * 38)
    # of 38 hosts 34 are in the first rack, and 4 in the second
    assert in_turn[:8] == ["h0000", "h0001", "h0034", "h0035", "h0002", "h0003", "h0036", "h0037"]
    assert in_turn[8:] == [f"h{i:04d}" for i in range(4, 34)]


def test_round_robin_looks_at_the_first_hca(tmp_path):
    """Two hosts have it on the first leaf switch, one on the second."""
    graph = new_graph()
    for switch in ("s0", "s1", "s2", "top"):
        add_switch(graph, switch, "spine" if switch == "top" else "leaf", 9e-8)
    for switch in ("s0", "s1", "s2"):
        connect(graph, switch, "top", bandwidth=1e9, latency=1e-9)
    for host, leaves in {"a": "01", "b": "02", "c": "12"}.items():
        add_host(graph, host)
        for leaf in leaves:
            connect(graph, host, f"s{leaf}", bandwidth=1e9, latency=1e-9)
    topology = written(graph, tmp_path / "net.json", multi=True)
    machine = cluster(topology, gpus=2, hcas=2, slots=2, placement="round_robin")
    assert hosts(machine, 6) == ["a", "c", "b"]


def test_ranks_fill_the_hosts_of_any_placement_one_after_the_other():
    machine = cluster(fat_tree(2, 3), gpus=2, placement="round_robin")
    resources = Resources(machine, 9, np.random.default_rng(0))
    assert resources.host_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert resources.hosts == ["h0000", "h0003", "h0001", "h0004", "h0002"]
    # ranks 0 and 2 are on different leaf switches, 0 and 4 on one
    routes, _ = resources.message(np.array([0, 0]), np.array([2, 4]))
    assert (routes >= 0).sum(axis=1).tolist() == [4, 2]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (["h0005", "h0003", "h1087"], ["h0005", "h0003", "h1087"]),
        ("h[0007-0009]", ["h0007", "h0008", "h0009"]),
        ("h0020,h[1080-1090]", None),
        ("h1000, h[0003-0004]", ["h1000", "h0003", "h0004"]),
        ("h[0100-0200]", ["h0100", "h0101", "h0102"]),
    ],
)
def test_hosts_by_name_are_taken_in_their_order(placement, expected):
    """More than the ranks fill may be named; the first ones are taken."""
    if expected is None:
        with pytest.raises(TopologyError, match="name hosts of the topology"):
            placed(placement)
    else:
        assert placed(placement) == expected


def test_hosts_by_name_are_those_of_compact_where_they_are_the_first():
    """To the last bit: links, routes and capacities."""
    machine = cluster(fat_tree(2, 3), gpus=2)
    ranks = np.arange(12)
    src, dst = np.repeat(ranks, 12), np.tile(ranks, 12)
    one, other = (
        Resources(machine.model_copy(update={"placement": p}), 12, np.random.default_rng(0))
        for p in ("compact", "h[0000-0005]")
    )
    assert one.links.names == other.links.names
    assert np.array_equal(one.message(src, dst)[0], other.message(src, dst)[0])


@pytest.mark.parametrize("placement", [["h0001", "h0000", "h0002"], "h[0000-0003]", "round_robin"])
def test_a_scenario_with_a_placement_is_read_back(placement):
    scenario = load_scenario("quickstart", {**RUN, "world_size": 9, "cluster.placement": placement})
    assert from_dict(scenario.to_dict(), "again") == scenario
    assert scenario.cluster.placement == placement


def test_a_run_with_unknown_hosts_ends_before_it_begins():
    scenario = load_scenario("quickstart", {**RUN, "cluster.placement": "x[1-16]"})
    with pytest.raises(TopologyError, match=r"cluster\.placement"):
        hosts(scenario.cluster, 64)
    with pytest.raises(ScenarioError, match=r"cluster.placement.*name the 16 hosts that 64 ranks"):
        load_scenario("quickstart", {**RUN, "cluster.placement": "h[0000-0014]"})


def test_hosts_can_have_names_of_their_own():
    """Places, links and routes are those of the same machine with h0000 and so on."""
    plain = cluster(switch_tree(6, 8, taper=2))
    named = plain.model_copy(update={"host_names": "n[1-2]b[1-4]", "faults": {"n1b2": 0.5}})
    assert placed("compact", named, 3) == ["n1b1", "n1b2", "n1b3"]
    assert placed(["n2b4", "n1b1"], named, 2) == ["n2b4", "n1b1"]
    assert plain.keyed_network != plain.model_copy(update={"host_names": "n[1-8]"}).keyed_network
    by_number = plain.model_copy(update={"faults": {"h0001": 0.5}})
    one, other = (Resources(of, 8, np.random.default_rng(0)) for of in (named, by_number))
    assert one.links.capacity.tolist() == other.links.capacity.tolist()


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        ("n[1-7]", "must name the 8 hosts of the topology; got 7 names"),
        ("n[1-7],n3", "must name each host once; got several times n3"),
        ("n[1-7],leaf.0", "must not be the name of a switch; got leaf.0"),
        ("n[1-", "must be names between commas"),
    ],
)
def test_names_that_do_not_fit_are_one_problem_of_the_key(names, rule):
    machine = cluster(switch_tree(6, 8, taper=2)).model_copy(update={"host_names": names})
    with pytest.raises(TopologyError, match=re.escape(f"cluster.host_names: {rule}")):
        machine.sketch()

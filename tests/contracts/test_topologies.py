"""Every topology builds the network that its numbers say, connected, with units, in the same order
every time."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.errors import TopologyError
from simshuffle.fabric.routing import Fabric, ForwardingTable, MinHop, routing_of_network
from simshuffle.fabric.topology import Custom, FatTree
from simshuffle.fabric.topology.cabling import FAR, Cabling, SwitchGraph
from simshuffle.fabric.topology.graph import (
    Sketch,
    add_host,
    add_switch,
    connect,
    graph_problems,
    new_graph,
)
from simshuffle.job.derived_values import derive_values
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.spec.validation import validate_record
from tests.attached import attach_storage
from tests.examples import SMALL_ABCI, TOPOLOGIES, as_text, written
from tests.strategies import (
    abci,
    abcis,
    fat_tree,
    fat_trees,
    rail_optimised,
    star,
    stars,
    switch_tree,
    switch_trees,
    torus_of,
    trees,
)


@pytest.fixture(params=list(TOPOLOGIES))
def topology(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return TOPOLOGIES[request.param](tmp_path)


def of_kind(graph: Any, kind: str) -> list[str]:
    return [node for node, k in graph.nodes(data="kind") if k == kind]


def tiers(graph: Any) -> Counter[str]:
    """Switches by tier."""
    return Counter(data["tier"] for _, data in graph.nodes(data=True) if data["kind"] == "switch")


def cables(graph: Any) -> Counter[frozenset[str]]:
    """Links by the two tiers that they join."""
    return Counter(
        frozenset((graph.nodes[a]["tier"], graph.nodes[b]["tier"])) for a, b in graph.edges()
    )


def everything(graph: Any) -> tuple[list[Any], list[Any]]:
    return list(graph.nodes(data=True)), list(graph.edges(data=True, keys=True))


# ----------------------------------------------------------------------------------- every topology


def test_a_network_is_connected_and_its_attributes_are_present_and_positive(topology):
    graph = topology.graph()
    assert graph_problems(graph, "topology") == []
    assert nx.is_connected(graph)
    assert isinstance(graph, nx.MultiGraph) and not graph.is_directed()
    for _, data in graph.nodes(data=True):
        assert set(data) - {"coordinates"} == {"kind", "tier", "latency"}
        assert data["kind"] in {"host", "switch"}
        assert isinstance(data["tier"], str) and data["tier"]
        assert isinstance(data["latency"], float)
        assert data["latency"] > 0 if data["kind"] == "switch" else data["latency"] == 0
    places = [graph.nodes[node].get("coordinates") for node in of_kind(graph, "switch")]
    assert set(places) == {None} or len(set(places)) == len(places)  # all, and each its own
    assert len({len(place or ()) for place in places}) == 1
    for a, b, data in graph.edges(data=True):
        assert set(data) == {"bandwidth", "latency"}
        assert all(isinstance(value, float) and 0 <= value < math.inf for value in data.values())
        inside = {graph.nodes[a]["tier"], graph.nodes[b]["tier"]} == {"line", "fabric"}
        assert data["bandwidth"] > 0 and (data["latency"] == 0) == inside
    hosts = of_kind(graph, "host")
    assert topology.num_hosts == len(hosts)
    assert topology.links_per_host == min(graph.degree(host) for host in hosts)
    for host in hosts:
        assert {graph.nodes[other]["kind"] for other in graph.neighbors(host)} == {"switch"}


def test_the_same_graph_is_made_anew_each_time_and_from_the_resolved_record(topology):
    first = topology.graph()
    before = everything(first)
    attach_storage(first, "pfs", bandwidth=1e9, latency=0.0, links=1)
    assert "pfs" in first and everything(topology.graph()) == before
    again = type(topology).model_validate(topology.model_dump(mode="json", exclude_none=True))
    assert everything(again.graph()) == before


_PRINT_ROUTES = """
import hashlib, numpy as np, sys
from pathlib import Path
from simshuffle.fabric.routing import Fabric, routing_of_network
from tests.attached import attach_storage
from tests.examples import small_topologies
digest = hashlib.sha256()
for topology in small_topologies(Path(sys.argv[1])).values():
    graph = topology.graph()
    attach_storage(graph, "pfs", bandwidth=1e9, latency=0.0, links=2)
    fabric = Fabric(graph)
    table = routing_of_network(topology, fabric).router(fabric, 0)
    nodes = [n for n in graph if graph.nodes[n]["kind"] != "switch"]
    ends = np.array([p for n in nodes for p in table.endpoints(n)], np.int32)
    routes = table.routes(np.repeat(ends, len(ends)), np.tile(ends, len(ends)))
    digest.update("".join(table.links.names).encode() + routes.tobytes())
print(digest.hexdigest())
"""


def test_order_and_routes_do_not_depend_on_the_hash_seed(tmp_path):
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_ROUTES, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and digests != {""}


# --------------------------------------------------------------------------------------- as arrays


def test_cabling_has_the_nodes_and_links_of_networkx_in_its_order(topology):
    graph = topology.graph()
    attach_storage(graph, "pfs", bandwidth=1e9, latency=1e-8, links=2)
    sketch = topology.sketch()
    attach_storage(sketch, "pfs", bandwidth=1e9, latency=1e-8, links=2)
    later = Cabling.from_graph(topology.sketch()).with_storage(
        "pfs", bandwidth=1e9, latency=1e-8, links=2
    )
    assert repr(later) == repr(Cabling.from_graph(sketch))
    for cabling in (Cabling.from_graph(graph), Cabling.from_graph(sketch), later):
        names = cabling.names
        nodes = zip(names, cabling.kinds, cabling.tiers, cabling.crossing_latency, strict=True)
        assert [
            (name, {"kind": kind, "tier": tier, "latency": latency})
            for name, kind, tier, latency in nodes
        ] == [
            (name, {key: value for key, value in data.items() if key != "coordinates"})
            for name, data in graph.nodes(data=True)
        ]
        places = [data.get("coordinates", ()) for _, data in graph.nodes(data=True)]
        found = [()] * len(names) if cabling.coordinates is None else cabling.coordinates.tolist()
        assert [tuple(n for n in place if n >= 0) for place in found] == places
        values = zip(
            cabling.ends, cabling.parallel, cabling.bandwidth, cabling.latency, strict=True
        )
        assert [
            (names[a], names[b], key, {"bandwidth": bandwidth, "latency": latency})
            for (a, b), key, bandwidth, latency in values
        ] == list(graph.edges(data=True, keys=True))
        several = [graph.number_of_edges(names[a], names[b]) > 1 for a, b in cabling.ends]
        assert cabling.has_parallel.tolist() == several
        assert cabling.height == graph.graph.get("height")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.data())
def test_depths_parts_and_steps_are_those_of_networkx(count, data):
    """Of any graph: in several parts, with nodes of all kinds in any place."""
    node = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(node, node).filter(lambda p: p[0] != p[1]), max_size=40))
    kinds = data.draw(st.lists(st.sampled_from(["host", "switch", "storage"]), min_size=count))
    graph = new_graph()
    for i in range(count):
        tier = "storage" if kinds[i] == "switch" and i % 5 == 0 else kinds[i]
        graph.add_node(f"n{i}", kind=kinds[i], tier=tier, latency=0.0)
    for a, b in pairs:
        connect(graph, f"n{a}", f"n{b}", bandwidth=1e9, latency=0.0)
    cabling = Cabling.from_graph(graph)
    hosts = of_kind(graph, "host")
    reach = nx.multi_source_dijkstra_path_length(graph, set(hosts), weight=None) if hosts else {}
    assert cabling.depth.tolist() == [
        reach[name] - 1 if name in reach and graph.nodes[name]["kind"] == "switch" else -1
        for name in graph
    ]
    among = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    part = cabling.components(among)
    chosen = graph.subgraph([name for name, one in zip(graph, among, strict=True) if one])
    for component in nx.connected_components(chosen):
        members = sorted(int(name[1:]) for name in component)
        assert set(part[members].tolist()) == {members[0]}
    switches = SwitchGraph(cabling)
    names = [cabling.names[number] for number in switches.nodes]
    linked = nx.Graph(graph.subgraph(names))
    steps = switches.steps(np.arange(len(names), dtype=np.int32))
    for column, goal in enumerate(names):
        for row, name in enumerate(names):
            through = [n for n, free in zip(names, switches.is_transit, strict=True) if free]
            ways = linked.subgraph({*through, goal, name})
            found = nx.single_source_shortest_path_length(ways, goal).get(name, FAR)
            assert steps[row, column] == found


# ------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(
    ("levels", "arity"), [(1, 4), (2, 2), (2, 4), (3, 2), (3, 4), (4, 2), (4, 3)]
)
def test_full_fat_tree_is_a_k_ary_n_tree(levels, arity):
    """k^n hosts; n levels of k^(n-1) switches; k^n links below each level (Petrini & Vanneschi
    1997)."""
    graph = fat_tree(levels, arity).graph()
    assert len(of_kind(graph, "host")) == arity**levels
    assert len(of_kind(graph, "switch")) == levels * arity ** (levels - 1)
    assert set(tiers(graph).values()) == {arity ** (levels - 1)}
    assert len(tiers(graph)) == levels
    assert graph.number_of_edges() == levels * arity**levels
    assert set(cables(graph).values()) == {arity**levels}
    tops = "spine" if levels > 1 else "leaf"
    for switch in of_kind(graph, "switch"):
        assert graph.degree(switch) == (arity if graph.nodes[switch]["tier"] == tops else 2 * arity)


@settings(max_examples=40, deadline=None)
@given(fat_trees(min_levels=2, cut=False))
def test_tapered_fat_tree(topology):
    """A leaf has k hosts and u = k / taper links up, so that every level above has u k^(n-2)
    switches with k links down each."""
    k, n, u = topology.arity, topology.levels, round(topology.arity / topology.taper)
    graph = topology.graph()
    above = [f"level{level}" for level in range(2, n)] + ["spine"]
    assert tiers(graph) == {"leaf": k ** (n - 1), **dict.fromkeys(above, u * k ** (n - 2))}
    expected = {frozenset(("host", "leaf")): k**n}
    for lower, upper in zip(["leaf", *above[:-1]], above, strict=True):
        expected[frozenset((lower, upper))] = u * k ** (n - 1)
    assert cables(graph) == expected


@pytest.mark.parametrize(
    ("arity", "taper", "hosts"),
    [(4, 1, 10), (4, 2, 9), (18, 1, 648), (3, 3, 7), (12, 1, 288), (4, 1, 4)],
)
def test_cut_fat_tree_of_two_levels(arity, taper, hosts):
    graph = fat_tree(2, arity, taper=taper, hosts=hosts).graph()
    leaves, spines = math.ceil(hosts / arity), arity // taper
    assert len(of_kind(graph, "host")) == hosts
    assert tiers(graph) == {"leaf": leaves, "spine": spines}
    assert cables(graph) == {
        frozenset(("host", "leaf")): hosts,
        frozenset(("leaf", "spine")): leaves * spines,
    }


@settings(max_examples=60, deadline=None)
@given(fat_trees())
def test_leaf_switches_are_filled_one_after_the_other(topology):
    graph = topology.graph()
    hosts = of_kind(graph, "host")
    assert len(hosts) == topology.num_hosts
    assert hosts == sorted(hosts)
    leaves = [next(iter(graph.neighbors(host))) for host in hosts]
    order = list(dict.fromkeys(leaves))
    assert leaves == [leaf for leaf in order for _ in range(topology.arity)][: len(hosts)]


@pytest.mark.parametrize(
    "changes",
    [{"taper": 3}, {"taper": 8}, {"taper": 0.5}, {"arity": 1}, {"levels": 0}, {"hosts": 0}],
)
def test_impossible_fat_tree_is_refused(changes):
    with pytest.raises(ValidationError):
        fat_tree(**{"levels": 2, "arity": 4, **changes})


def test_any_whole_number_of_uplinks_can_be_asked_for():
    for arity in range(2, 41):
        for uplinks in range(1, arity + 1):
            assert fat_tree(2, arity, taper=arity / uplinks).uplinks == uplinks


@pytest.mark.parametrize(
    ("levels", "arity", "more", "digest"),
    [
        (1, 5, {}, "a6a44ace20f9470e"),
        (2, 3, {}, "b12360a3fe8c3f73"),
        (2, 4, {"taper": 2, "hosts": 11}, "f7169555b75d3717"),
        (3, 3, {"taper": 3}, "b260e7b58fc64623"),
        (3, 3, {"hosts": 17}, "295d3a531e8e3ead"),
        (4, 2, {"hosts": 9}, "69e59482df202730"),
        (2, 18, {"hosts": 648}, "90f261c6d9b21be9"),
        (3, 4, {"taper": 2, "hosts": 40}, "85a0050c557816ad"),
    ],
)
def test_trees_of_levels_and_arity_stay_what_they_were(levels, arity, more, digest):
    """To the last bit and in the same order: names, attributes, links."""
    graph = fat_tree(levels, arity, **more).graph()
    text = repr((dict(graph.graph), *everything(graph)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("hosts", "switches", "between_switches"),
    [
        (31, {"leaf": 8, "spine": 4}, [256]),
        (63, {"leaf": 16, "spine": 8}, [512]),
        (95, {"leaf": 24, "spine": 16}, [768]),
        (127, {"leaf": 32, "spine": 16}, [1024]),
        (256, {"leaf": 64, "spine": 32}, [2048]),
        (512, {"leaf": 128, "level2": 128, "spine": 64}, [4096, 4096]),
        (1024, {"leaf": 256, "level2": 256, "spine": 128}, [8192, 8192]),
    ],
)
def test_superpods_have_the_published_counts(hosts, switches, between_switches):
    """Switches and cables of NVIDIA's reference architectures, 8 rails on switches of 64 ports: two
    levels as in table 4 of that of the DGX H100 (docs.nvidia.com/dgx-superpod, network fabrics),
    three as in table 3 of that of the DGX B200, which calls our middle level spine and the topmost
    core."""
    topology = switch_tree(64, hosts, rails=8)
    graph = topology.graph()
    assert tiers(graph) == switches
    found = cables(graph)
    assert found.pop(frozenset(("host", "leaf"))) == 8 * hosts
    assert list(found.values()) == between_switches
    for tier, count in switches.items():
        assert f"{count} {tier} switches" in topology.structure()


def test_a_tree_by_hand():
    """64 hosts with 2 HCAs on 40-port switches, tapered 2:1: 13 links up and 26 down, one port
    unused; 64 / 26 = 2.5, so 3 leaf switches a rail; 6 leaf switches with 13 links each: 13 spines
    with a link to every leaf switch (one spine would need 78 ports)."""
    topology = switch_tree(40, 64, taper=2, rails=2)
    graph = topology.graph()
    assert tiers(graph) == {"leaf": 6, "spine": 13}
    assert all(
        graph.number_of_edges(f"leaf.{i}", f"spine.{j}") == 1 for i in range(6) for j in range(13)
    )
    assert [graph.degree(f"leaf.{i}") for i in range(6)] == [39, 39, 12 + 13] * 2
    assert list(graph.neighbors("h0000")) == ["leaf.0", "leaf.3"]
    assert list(graph.neighbors("h0026")) == ["leaf.1", "leaf.4"]
    assert list(graph.neighbors("h0063")) == ["leaf.2", "leaf.5"]
    structure = topology.structure()
    assert "6 leaf switches with 26 links down and 13 up, 1 of 40 ports unused" in structure
    assert "bisection about 800 GB/s" in structure  # 64 x 2 x 12.5 GB/s / 2
    table = ForwardingTable(graph)
    ports = [table.endpoints(host) for host in ("h0000", "h0001", "h0063")]
    near, far, across = (
        table.routes(np.array([a], np.int32), np.array([b], np.int32))
        for a, b in (
            (ports[0][0], ports[1][0]),
            (ports[0][0], ports[2][0]),
            (ports[0][0], ports[1][1]),
        )
    )
    assert [(routes >= 0).sum() for routes in (near, far, across)] == [2, 4, 4]


def test_check_says_what_the_tree_is_made_of():
    assert switch_tree(12, 5, rails=2).structure() == "1 switch with 10 of 12 ports in use"
    assert fat_tree(2, 4).structure() == ""
    plain = {"sweep": {}, "workload.exchange": "local_shuffle"}
    told = derive_values(load_scenario("quickstart", {**plain, "cluster": "a100-fat-tree"}))
    assert told["network"].startswith("6 leaf switches with 26 links down and 13 up, 1 of 40 ports")
    assert "network" not in derive_values(load_scenario("quickstart", plain))


def test_parallel_links_to_few_spines():
    """8 hosts with 2 HCAs on 8-port switches: 4 leaf switches with 4 links up fill two spines."""
    graph = switch_tree(8, 8, rails=2).graph()
    assert tiers(graph) == {"leaf": 4, "spine": 2}
    assert all(
        graph.number_of_edges(f"leaf.{i}", f"spine.{j}") == 2 for i in range(4) for j in range(2)
    )


@settings(max_examples=80, deadline=None)
@given(switch_trees())
def test_tree_of_switches(topology):
    """No switch has more links than ports; a leaf switch has u links up and at most floor(u taper)
    hosts, and above it nothing is lost; rail k of a host is on leaf switches of rail k alone."""
    t, graph = topology, topology.graph()
    switches = of_kind(graph, "switch")
    assert max(graph.degree(switch) for switch in switches) <= (t.ports or 0)
    if t.num_levels == 1:
        assert set(cables(graph).values()) == {t.num_hosts * t.rails}
        return
    hosts_on: Counter[str] = Counter()
    rail_of: dict[str, int] = {}
    for host in of_kind(graph, "host"):
        leaves = list(graph.neighbors(host))
        assert len(set(leaves)) == graph.degree(host) == t.rails
        hosts_on.update(leaves)
        for rail, leaf in enumerate(leaves):
            assert rail_of.setdefault(leaf, rail) == rail
    assert max(hosts_on.values()) <= t.hosts_per_leaf == math.floor(t.uplinks * t.taper + 1e-9)
    assert len(hosts_on) == t.rails * math.ceil(t.num_hosts / t.hosts_per_leaf)
    for leaf, count in hosts_on.items():
        assert graph.degree(leaf) - count == t.uplinks
    spare = (t.ports or 0) - t.uplinks - t.hosts_per_leaf
    assert spare == 0 or math.floor((t.ports or 0) / (t.taper + 1)) * (t.taper + 1) < (t.ports or 0)
    for switch in switches:
        tier = graph.nodes[switch]["tier"]
        if tier == "level2":
            down = sum(graph.nodes[n]["tier"] == "leaf" for _, n in graph.edges(switch))
            assert graph.degree(switch) - down >= down
    found = tiers(graph)
    assert all(f"{count} {tier} switch" in t.structure() for tier, count in found.items())


@pytest.mark.parametrize(
    ("ports", "taper", "rails", "hosts"),
    [(8, 1, 2, 8), (6, 2, 1, 16), (6, 2, 2, 8), (12, 3, 2, 18), (4, 1, 2, 8)],
)
def test_half_of_the_hosts_reach_the_others_at_the_tapered_bandwidth(ports, taper, rails, hosts):
    """The largest flow from one half of the leaf switches to the other is half of hosts x rails x
    bandwidth / taper, each way."""
    topology = switch_tree(ports, hosts, taper=taper, rails=rails)
    assert topology.num_levels > 1
    graph = topology.graph()
    capacity = nx.Graph()
    for a, b, data in graph.edges(data=True):
        before = capacity.get_edge_data(a, b, {"capacity": 0.0})["capacity"]
        capacity.add_edge(a, b, capacity=before + data["bandwidth"])
    for number, host in enumerate(of_kind(graph, "host")):
        capacity.add_edge("first" if number < hosts // 2 else "second", host)
    flow = nx.maximum_flow_value(capacity, "first", "second")
    assert flow == pytest.approx(hosts / 2 * rails * 12.5e9 / taper)


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({"hosts": 600, "levels": 2}, "hosts", "levels: 3 or ports: 44, or at most 520 hosts"),
        ({"hosts": 11, "levels": 1}, "hosts", "1 level of 40-port switches and 4 rails has room"),
        ({"ports": 4, "rails": 5}, "hosts", "fewer rails|ports: "),
        ({"taper": 40}, "taper", "at most 39"),
        ({"hosts": None}, "hosts", "is required with ports"),
        ({"hosts": 100_001, "ports": 64}, "hosts", "x rails must be at most 200000"),
        ({"arity": 4}, "arity", "either ports or arity"),
        ({"ports": None}, "ports", "ports: 40, hosts: 64"),
        ({"ports": None, "arity": 4}, "levels", "ports: 40, hosts: 64"),
        ({"ports": None, "levels": 2}, "arity", "ports: 40, hosts: 64"),
    ],
)
def test_impossible_tree_of_switches_says_what_would_do(changes, path, text):
    values = {
        "kind": "fat_tree",
        "ports": 40,
        "taper": 2,
        "rails": 4 if changes.get("levels") == 1 else 2,
        "hosts": 64,
        "link_bandwidth": "25 GB/s",
        **changes,
    }
    given_values = {key: value for key, value in values.items() if value is not None}
    made, problems = validate_record(given_values, FatTree)
    assert made is None or made.num_hosts
    (problem,) = problems
    assert problem.path.rsplit(".", 1)[-1] == path
    assert re.search(text, f"{problem.rule} {problem.remedy}")
    assert problem.value and problem.remedy


def test_latencies_left_out_say_where_they_are_from():
    given_one = {"kind": "fat_tree", "ports": 8, "hosts": 4, "link_bandwidth": "1 GB/s"}
    both = FatTree.model_validate(given_one)
    assert (both.cable_latency, both.switch_latency) == (26e-9, 90e-9)
    assert isinstance(both.source, dict) and set(both.source) == {"cable_latency", "switch_latency"}
    again = FatTree.model_validate(both.model_dump(mode="json", exclude_none=True))
    assert again == both
    text = FatTree.model_validate({**given_one, "switch_latency": "1 us", "source": "mine"})
    assert text.source == "mine; cable_latency: default: 5 m x 5.2 ns/m, as in topologies/abci.yaml"


def test_abci_has_the_published_counts():
    topology = abci()
    graph = topology.graph()
    assert len(of_kind(graph, "host")) == 1088 == 32 * 34
    assert tiers(graph) == {"leaf": 32 * 4, "fbb": 32 * 3, "spine": 2}
    assert tiers(graph)["leaf"] + tiers(graph)["fbb"] == 224
    assert cables(graph) == {
        frozenset(("host", "leaf")): 1088 * 2,
        frozenset(("leaf", "fbb")): 32 * 4 * 3 * 6,
        frozenset(("fbb", "spine")): 32 * 3 * 2 * 4,
    }
    assert all(graph.number_of_edges("r05.leaf1", f"r05.fbb{i}") == 6 for i in range(3))
    assert all(graph.number_of_edges("r31.fbb2", f"spine{i}") == 4 for i in range(2))
    for r in range(32):
        rack = {f"r{r:02d}.leaf{i}" for i in range(4)}
        host_links = sum(1 for a, b in graph.edges(rack) if "h" in (a[0], b[0]))
        uplinks = sum(1 for i in range(3) for _ in range(graph.degree(f"r{r:02d}.fbb{i}") - 4 * 6))
        assert (host_links, uplinks) == (68, 24)
        assert round(host_links / uplinks, 2) == 2.83
        assert {graph.degree(leaf) for leaf in rack} == {17 + 18}


def test_abci_hosts_stand_in_pairs():
    """Even hosts have HCA 0 and 1 on leaf 0 and 1, odd hosts on leaf 2 and 3."""
    graph = abci().graph()
    for number, host in enumerate(of_kind(graph, "host")):
        rack, place = divmod(number, 34)
        first = 0 if place % 2 == 0 else 2
        assert host == f"h{number:04d}"
        assert list(graph.neighbors(host)) == [
            f"r{rack:02d}.leaf{first}",
            f"r{rack:02d}.leaf{first + 1}",
        ]


@settings(max_examples=30, deadline=None)
@given(abcis())
def test_abci_of_other_sizes(topology):
    graph = topology.graph()
    t = topology
    fbbs = t.racks * t.fbb_switches_per_rack
    assert len(of_kind(graph, "host")) == t.racks * t.hosts_per_rack
    assert tiers(graph) == {
        "leaf": t.racks * t.leaf_switches_per_rack,
        "fbb": fbbs,
        "spine": t.spine_switches,
    }
    assert cables(graph) == {
        frozenset(("host", "leaf")): t.racks * t.hosts_per_rack * t.hcas_per_host,
        frozenset(("leaf", "fbb")): fbbs * t.leaf_switches_per_rack * t.leaf_fbb_links,
        frozenset(("fbb", "spine")): fbbs * t.spine_switches * t.fbb_spine_links,
    }
    assert graph_problems(graph, "") == []


@settings(max_examples=20, deadline=None)
@given(stars())
def test_star(topology):
    graph = topology.graph()
    assert len(of_kind(graph, "host")) == topology.hosts
    assert of_kind(graph, "switch") == ["switch"]
    assert graph.number_of_edges() == topology.hosts * topology.hcas_per_host
    assert {graph.number_of_edges(host, "switch") for host in of_kind(graph, "host")} == {
        topology.hcas_per_host
    }


# ------------------------------------------------------------------------------------- custom files


def all_routes(graph: Any) -> list[list[str]]:
    """The names of the links between all hosts' ports."""
    table = ForwardingTable(graph)
    ports = np.array(
        [port for host in of_kind(graph, "host") for port in table.endpoints(host)], np.int32
    )
    routes = table.routes(np.repeat(ports, len(ports)), np.tile(ports, len(ports)))
    return [[table.links.names[link] for link in route if link >= 0] for route in routes]


@pytest.mark.parametrize("multi", [True, False], ids=["parallel edges", "links"])
@pytest.mark.parametrize("suffix", [".json", ".graphml", ".xml"])
@pytest.mark.parametrize(
    "original",
    [
        abci(**SMALL_ABCI),
        fat_tree(3, 2),
        fat_tree(2, 4, taper=2, hosts=11),
        star(4, hcas_per_host=2),
        switch_tree(8, 8, rails=2),
    ],
)
def test_written_graph_comes_back_with_the_same_routes(original, suffix, multi, tmp_path):
    graph = original.graph()
    again = written(graph, tmp_path / f"net{suffix}", multi=multi).graph()
    assert dict(again.nodes(data=True)) == dict(graph.nodes(data=True))
    ends = [
        Counter((frozenset((a, b)), d["bandwidth"], d["latency"]) for a, b, d in g.edges(data=True))
        for g in (graph, again)
    ]
    assert ends[0] == ends[1]
    assert all_routes(again) == all_routes(graph)


def test_json_may_call_edges_links_and_hold_storage(tmp_path):
    graph = fat_tree(2, 2).graph()
    links = written(graph, tmp_path / "net.json", multi=True, edges="links")
    assert all_routes(links.graph()) == all_routes(graph)
    attach_storage(graph, "lustre", bandwidth=1e9, latency=1e-6, links=2)
    again = written(graph, tmp_path / "net.json", multi=True).graph()
    assert graph_problems(again, "") == []
    assert of_kind(again, "storage") == ["lustre"]


def test_changed_file_is_refused(tmp_path):
    custom = written(fat_tree(2, 2).graph(), tmp_path / "net.json", multi=True)
    kept = custom.model_copy(update={"sha256": custom.digest()})
    assert kept.graph().number_of_nodes() == 4 + 4
    written(fat_tree(2, 3).graph(), tmp_path / "net.json", multi=True)
    with pytest.raises(TopologyError, match="sha256"):
        kept.graph()


def test_size_of_a_file_is_read_once_and_again_when_it_changed(tmp_path, monkeypatch):
    custom = written(fat_tree(2, 2).graph(), tmp_path / "net.json", multi=True)
    assert (custom.num_hosts, custom.links_per_host) == (4, 1)
    with monkeypatch.context() as patched:
        patched.delattr(Custom, "build")
        assert custom.num_hosts == 4
    written(fat_tree(2, 3).graph(), tmp_path / "net.json", multi=True)
    assert custom.num_hosts == 9
    (tmp_path / "net.json").unlink()
    with pytest.raises(TopologyError, match="cannot be read"):
        assert custom.num_hosts


def test_a_file_without_levels_is_routed_by_min_hop(tmp_path):
    """On a ring of four switches the neighbour is 3 links away and the one across 4."""
    custom = ring_file(tmp_path)
    assert custom.num_hosts == 4
    fabric = Fabric(custom.sketch())
    rule = routing_of_network(custom, fabric)
    assert rule == MinHop()
    ends = np.array([0, 0], np.int32), np.array([1, 2], np.int32)
    assert (rule.router(fabric, 0).routes(*ends) >= 0).sum(axis=1).tolist() == [3, 4]


def ring_file(folder: Path) -> Custom:
    """Four switches in a ring, a host at each."""
    graph = new_graph()
    for i in range(4):
        add_switch(graph, f"s{i}", "leaf", 1e-7)
        add_host(graph, f"h{i}")
        connect(graph, f"h{i}", f"s{i}", bandwidth=1e9, latency=1e-9)
    for i in range(4):
        connect(graph, f"s{i}", f"s{(i + 1) % 4}", bandwidth=1e9, latency=1e-9)
    return written(graph, folder / "ring.json", multi=True)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        *(("net.json", text, "node-link") for text in ("{", "[]", '{"nodes": 3}', "not json")),
        ("net.graphml", "<graphml", None),
        ("none.json", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_graph_is_refused(name, text, said, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TopologyError, match=said):
        Custom(kind="custom", path=str(tmp_path / name)).graph()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"bandwidth": 12.5e9}, ".bandwidth"),
        ({"bandwidth": "12.5"}, ".bandwidth"),
        ({"bandwidth": "1 ms"}, ".bandwidth"),
        ({"latency": 0}, ".latency"),
        ({"links": 0}, ".links"),
        ({"links": 1.5}, ".links"),
    ],
)
def test_link_of_a_custom_file_needs_units(change, where, tmp_path):
    text = as_text(fat_tree(2, 2).graph(), multi=False)
    a, b = next(iter(text.edges()))
    text.edges[a, b].update(change)
    (tmp_path / "net.json").write_text(json.dumps(nx.node_link_data(text, edges="edges")))
    with pytest.raises(TopologyError) as caught:
        Custom(kind="custom", path=str(tmp_path / "net.json")).graph()
    assert [problem.path for problem in caught.value.problems] == [f"links.{a}-{b}{where}"]


# ----------------------------------------------------------------------------------- graph_problems


def two_hosts() -> Any:
    graph = new_graph()
    add_switch(graph, "s", "leaf", 9e-8)
    for host in ("a", "b"):
        add_host(graph, host)
        connect(graph, host, "s", bandwidth=1e9, latency=1e-9)
    return graph


def set_node(graph: Any, node: str, key: str, value: object) -> None:
    graph.nodes[node][key] = value


def set_link(graph: Any, key: str, value: object) -> None:
    graph.edges["a", "s", 0][key] = value


def add_linked(graph: Any, switch: str, *others: str) -> None:
    """A switch, hosts that are not there yet, and a link of each to the switch."""
    add_switch(graph, switch, "leaf", 0.0)
    for other in others:
        if other not in graph:
            add_host(graph, other)
        connect(graph, other, switch, **FREE)


def add_beside(graph: Any) -> None:
    """A host whose one link leads to a host."""
    add_host(graph, "c")
    connect(graph, "c", "a", **FREE)


FREE = {"bandwidth": 1e9, "latency": 0.0}
BAD_LINKS = {
    "bandwidth": (None, 0.0, -1.0, math.nan, math.inf, "1 GB/s"),
    "latency": (-1e-9, None),
}
DEFECTS: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "no host": (lambda g: [set_node(g, of, "kind", "switch") for of in "ab"], "net", "host"),
    "unknown kind": (lambda g: set_node(g, "s", "kind", "router"), "net.nodes.s.kind", "router"),
    "no kind": (lambda g: g.nodes["s"].pop("kind"), "net.nodes.s.kind", "None"),
    "loose host": (lambda g: add_host(g, "c"), "net", "c"),
    "loose part": (lambda g: add_linked(g, "t", "c"), "net", "separate"),
    "host without switch": (add_beside, "net.nodes.c", "switch"),
    # two planes: a port of the one cannot reach one of the other, as no route leads through hosts
    "switches joined by hosts only": (lambda g: add_linked(g, "t", "a", "b"), "net", ""),
    # its two directions would have the same name
    "link to itself": (lambda g: connect(g, "s", "s", **FREE), "net.links.s-s", ""),
    **{
        f"{key} {value}": (
            partial(set_link, key=key, value=value),
            f"net.links.s-a.{key}",
            str(value),
        )
        for key, values in BAD_LINKS.items()
        for value in values
    },
    **{
        f"switch {value}": (
            partial(set_node, node="s", key="latency", value=value),
            "net.nodes.s.latency",
            f"{value}",
        )
        for value in (-1e-9, math.nan)
    },
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defect_is_found(name):
    defect, where, text = DEFECTS[name]
    graph = two_hosts()
    assert graph_problems(graph, "net") == []
    defect(graph)
    problems = graph_problems(graph, "net")
    told = [str(problem) for problem in problems]
    assert any(problem.path.startswith(where) and text in str(problem) for problem in problems), (
        told
    )
    assert all(problem.rule and problem.remedy for problem in problems)


def test_link_latency_may_be_zero_and_all_defects_are_found_at_once():
    graph = two_hosts()
    set_link(graph, "latency", 0.0)
    assert graph_problems(graph, "net") == []
    set_link(graph, "bandwidth", 0.0)
    set_link(graph, "latency", None)
    set_node(graph, "s", "kind", "router")
    assert len(graph_problems(graph, "net")) == 3


@settings(max_examples=60, deadline=None)
@given(trees())
def test_any_small_topology_is_a_network(topology):
    assert graph_problems(topology.graph(), "net") == []


# ---------------------------------------------------------------------------------------- as arrays


def test_coordinates_of_fewer_dimensions_are_filled_up():
    sketch = Sketch()
    for name, place in (("a", (1, 2)), ("b", (3,)), ("c", ())):
        add_switch(sketch, name, "leaf", 0.0, place)
    found = Cabling.from_graph(sketch).coordinates
    assert found is not None and found.tolist() == [[1, 2], [3, -1], [-1, -1]]


def test_ports_stand_at_their_ends_whichever_node_a_link_names_first():
    """Cables are ordered by their lower node: a-b, a-c, b-c; that without ports has none."""
    sketch = Sketch()
    for name in "abc":
        add_switch(sketch, name, "leaf", 0.0)
    for a, b, ports in (
        ("c", "b", {"ports": (7, 8)}),
        ("b", "a", {"ports": (1, 2)}),
        ("a", "c", {}),
    ):
        sketch.add_edge(a, b, **FREE, **ports)
    found = Cabling.from_graph(sketch)
    assert found.ends.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert found.insertion_order.tolist() == [1, 2, 0]
    assert found.ports is not None and found.ports.tolist() == [[2, 1], [-1, -1], [8, 7]]
    stored = found.with_storage("pfs", bandwidth=1.0, latency=0.0, links=1)
    assert stored.ports is not None and (stored.ports < 0).all(axis=1).sum() == 1 + 3 + 1


@pytest.mark.parametrize("length", [2, 3, 6])
def test_steps_along_a_line_count_all_its_links(length):
    """From the first of the switches to the last one; one of them alone has no way to another."""
    graph = new_graph()
    for number in range(length):
        add_linked(graph, f"s{number}", f"h{number}")
    for number in range(length - 1):
        connect(graph, f"s{number}", f"s{number + 1}", **FREE)
    steps = SwitchGraph(Cabling.from_graph(graph)).steps(np.array([0], np.int32))
    assert steps.ravel().tolist() == list(range(length))


# ------------------------------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    ("make", "most"),
    [
        # 200,000 HCAs in all
        (lambda hosts: switch_tree(4096, hosts), 200_000),
        (lambda hosts: switch_tree(4096, hosts, rails=4), 50_000),
        (lambda hosts: fat_tree(2, 64, hosts=hosts), 200_000),
        (lambda each: torus_of([1000], hosts_per_switch=each), 200),
        (lambda each: torus_of([1000], hosts_per_switch=2, hcas_per_host=each), 100),
        (lambda pods: rail_optimised(pods=pods, hosts_per_pod=1000, ports=4096), 100),
        # the ports of an only switch; a million links between switches
        (lambda hosts: fat_tree(1, 2, hosts=hosts), 4096),
        (lambda links: torus_of([1000], links=links), 1000),
    ],
)
def test_the_largest_networks_are_accepted_and_none_beyond(make, most):
    assert make(most)
    with pytest.raises(ValidationError):
        make(most + 1)


@pytest.mark.parametrize(
    ("hosts", "levels", "text"),
    [
        # 2 hosts on each leaf switch, half of 4 ports down in the middle, 4 at the top
        (17, 3, "Use levels: 4 or ports: 5, or at most 16 hosts"),
        (33, None, "Use ports: 5, or at most 32 hosts"),
        (9, 2, "Use levels: 3 or ports: 5, or at most 8 hosts"),
    ],
)
def test_the_next_levels_or_ports_that_suffice_are_named(hosts, levels, text):
    values = {"kind": "fat_tree", "ports": 4, "hosts": hosts, "link_bandwidth": "1 GB/s"}
    if levels is not None:
        values["levels"] = levels
    _, (problem,) = validate_record(values, FatTree)
    assert problem.remedy == f"{text}."


def test_parts_that_are_cut_off_are_named_with_their_first_nodes():
    """The largest part has five nodes; of others the first three by name, larger parts first."""
    graph = two_hosts()  # a, b and s
    add_linked(graph, "s", "e")
    add_linked(graph, "p", "p0", "p1", "p2", "p3")
    add_linked(graph, "t", "c")
    add_host(graph, "z")
    problem, loose = graph_problems(graph, "net")
    assert loose.path == "net.nodes.z"
    assert problem.value == "4 separate parts; cut off: a, b, e, c, t, z"
    joined = two_hosts()
    add_linked(joined, "t", "a", "b")
    (problem,) = graph_problems(joined, "net")
    assert problem.value == "2 separate groups of switches"


def test_the_usual_bandwidth_is_that_of_the_same_two_tiers():
    """Of hosts, leaves, spines and cores: the cable from a host to a core is usual by itself, and
    the slow one of three between leaf and spine is not."""
    sketch = Sketch()
    add_host(sketch, "h")
    for name in ("leaf", "spine", "core"):
        add_switch(sketch, name, name, 0.0)
    cables = [("h", "leaf", 5.0), ("h", "core", 99.0), ("spine", "core", 7.0)]
    cables += [("leaf", "spine", rate) for rate in (10.0, 4.0, 10.0)]
    for a, b, rate in cables:
        sketch.add_edge(a, b, bandwidth=rate, latency=0.0)
    found = Cabling.from_graph(sketch)
    assert found.bandwidth.tolist() == [5.0, 99.0, 10.0, 4.0, 10.0, 7.0]
    assert found.usual_bandwidth.tolist() == [5.0, 99.0, 10.0, 10.0, 10.0, 7.0]

"""Every topology builds the network that its numbers say, connected, with units, in the same order
every time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from simshuffle.errors import TopologyError
from simshuffle.topology import Custom, FatTree
from simshuffle.topology.graph import (
    add_host,
    add_switch,
    attach_storage,
    connect,
    graph_problems,
    new_graph,
)
from simshuffle.topology.routing import ForwardingTable
from tests.examples import SMALL_ABCI, TOPOLOGIES, as_text, written
from tests.strategies import abci, abcis, fat_tree, fat_trees, star, stars, trees


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


def test_network_has_no_problems(topology: Any) -> None:
    graph = topology.graph()
    assert graph_problems(graph, "topology") == []
    assert nx.is_connected(graph)


def test_attributes_are_present_and_positive(topology: Any) -> None:
    graph = topology.graph()
    assert isinstance(graph, nx.MultiGraph) and not graph.is_directed()
    for _, data in graph.nodes(data=True):
        assert set(data) == {"kind", "tier", "latency"}
        assert data["kind"] in {"host", "switch"}
        assert isinstance(data["tier"], str) and data["tier"]
        assert isinstance(data["latency"], float)
        assert data["latency"] > 0 if data["kind"] == "switch" else data["latency"] == 0
    for _, _, data in graph.edges(data=True):
        assert set(data) == {"bandwidth", "latency"}
        assert all(isinstance(value, float) and 0 < value < math.inf for value in data.values())


def test_hosts_and_their_links_are_counted_without_the_graph(topology: Any) -> None:
    graph = topology.graph()
    hosts = of_kind(graph, "host")
    assert topology.num_hosts == len(hosts)
    assert topology.links_per_host == min(graph.degree(host) for host in hosts)


def test_hosts_link_only_to_switches(topology: Any) -> None:
    graph = topology.graph()
    for host in of_kind(graph, "host"):
        assert {graph.nodes[other]["kind"] for other in graph.neighbors(host)} == {"switch"}


def test_same_graph_in_the_same_order_twice(topology: Any) -> None:
    assert everything(topology.graph()) == everything(topology.graph())


def test_graph_is_a_new_object_each_time(topology: Any) -> None:
    first = topology.graph()
    attach_storage(first, "pfs", bandwidth=1e9, latency=0.0, links=1)
    assert "pfs" in first and "pfs" not in topology.graph()


def test_resolved_record_reads_back_to_the_same_graph(topology: Any) -> None:
    again = type(topology).model_validate(topology.model_dump(mode="json", exclude_none=True))
    assert everything(again.graph()) == everything(topology.graph())


_PRINT_ROUTES = """
import hashlib, numpy as np, sys
from pathlib import Path
from simshuffle.topology.graph import attach_storage
from tests.examples import small_topologies
digest = hashlib.sha256()
for topology in small_topologies(Path(sys.argv[1])).values():
    graph = topology.graph()
    attach_storage(graph, "pfs", bandwidth=1e9, latency=0.0, links=2)
    table = topology.routing(graph)
    nodes = [n for n in graph if graph.nodes[n]["kind"] != "switch"]
    ends = np.array([p for n in nodes for p in table.endpoints(n)], np.int32)
    routes = table.routes(np.repeat(ends, len(ends)), np.tile(ends, len(ends)))
    digest.update("".join(table.links.names).encode() + routes.tobytes())
print(digest.hexdigest())
"""


def test_order_and_routes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(
    ("levels", "arity"), [(1, 4), (2, 2), (2, 4), (3, 2), (3, 4), (4, 2), (4, 3)]
)
def test_full_fat_tree_is_a_k_ary_n_tree(levels: int, arity: int) -> None:
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
def test_tapered_fat_tree(topology: FatTree) -> None:
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
def test_cut_fat_tree_of_two_levels(arity: int, taper: int, hosts: int) -> None:
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
def test_leaf_switches_are_filled_one_after_the_other(topology: FatTree) -> None:
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
def test_impossible_fat_tree_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        fat_tree(**{"levels": 2, "arity": 4, **changes})


def test_any_whole_number_of_uplinks_can_be_asked_for() -> None:
    for arity in range(2, 41):
        for uplinks in range(1, arity + 1):
            assert fat_tree(2, arity, taper=arity / uplinks).uplinks == uplinks


def test_abci_has_the_published_counts() -> None:
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


def test_abci_hosts_stand_in_pairs() -> None:
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
def test_abci_of_other_sizes(topology: Any) -> None:
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
def test_star(topology: Any) -> None:
    graph = topology.graph()
    assert len(of_kind(graph, "host")) == topology.hosts
    assert of_kind(graph, "switch") == ["switch"]
    assert graph.number_of_edges() == topology.hosts * topology.hcas_per_host
    assert {graph.number_of_edges(host, "switch") for host in of_kind(graph, "host")} == {
        topology.hcas_per_host
    }


# ------------------------------------------------------------------------------------------ storage


@pytest.mark.parametrize(
    ("make", "tier", "tops"),
    [
        pytest.param(lambda: fat_tree(2, 3), "spine", 3, id="full, 2 levels"),
        pytest.param(lambda: fat_tree(3, 2), "spine", 4, id="full, 3 levels"),
        pytest.param(
            lambda: fat_tree(3, 4, hosts=17),
            "spine",
            16,
            id="3 levels, some leaf switches without hosts",
        ),
        pytest.param(
            lambda: fat_tree(4, 2, hosts=9),
            "spine",
            8,
            id="4 levels, some leaf switches without hosts",
        ),
        pytest.param(abci, "spine", 2, id="abci"),
        pytest.param(
            lambda: abci(racks=2, hosts_per_rack=1),
            "spine",
            2,
            id="abci, some leaf switches without hosts",
        ),
        pytest.param(lambda: star(3), "leaf", 1, id="star"),
    ],
)
def test_storage_is_tied_to_every_topmost_switch(
    make: Callable[[], Any], tier: str, tops: int, request: pytest.FixtureRequest
) -> None:
    """Not to leaf switches that happen to have no host, if such networks are accepted at all."""
    try:
        topology = make()
    except ValidationError:
        assert "without hosts" in request.node.name
        return
    graph = topology.graph()
    attach_storage(graph, "pfs", bandwidth=2e9, latency=1e-8, links=3)
    assert graph.nodes["pfs"]["kind"] == "storage"
    assert list(graph.neighbors("pfs")) == ["pfs.switch"]
    tied = [node for node in graph.neighbors("pfs.switch") if node != "pfs"]
    assert {graph.nodes[node]["tier"] for node in tied} == {tier}
    assert len(tied) == tops
    assert {graph.number_of_edges("pfs.switch", node) for node in tied} == {3}
    assert sum(data["bandwidth"] for *_, data in graph.edges("pfs", data=True)) == 2e9 * 3 * tops


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
    ],
)
def test_written_graph_comes_back_with_the_same_routes(
    original: Any, suffix: str, multi: bool, tmp_path: Path
) -> None:
    graph = original.graph()
    again = written(graph, tmp_path / f"net{suffix}", multi=multi).graph()
    assert dict(again.nodes(data=True)) == dict(graph.nodes(data=True))
    ends = [
        Counter((frozenset((a, b)), d["bandwidth"], d["latency"]) for a, b, d in g.edges(data=True))
        for g in (graph, again)
    ]
    assert ends[0] == ends[1]
    assert all_routes(again) == all_routes(graph)


def test_json_with_links_as_key_of_the_edges(tmp_path: Path) -> None:
    graph = fat_tree(2, 2).graph()
    assert all_routes(
        written(graph, tmp_path / "net.json", multi=True, edges="links").graph()
    ) == all_routes(graph)


def test_custom_file_may_hold_storage(tmp_path: Path) -> None:
    graph = fat_tree(2, 2).graph()
    attach_storage(graph, "lustre", bandwidth=1e9, latency=1e-6, links=2)
    again = written(graph, tmp_path / "net.json", multi=True).graph()
    assert graph_problems(again, "") == []
    assert of_kind(again, "storage") == ["lustre"]


def test_changed_file_is_refused(tmp_path: Path) -> None:
    custom = written(fat_tree(2, 2).graph(), tmp_path / "net.json", multi=True)
    kept = custom.model_copy(update={"sha256": custom.digest()})
    assert kept.graph().number_of_nodes() == 4 + 4
    written(fat_tree(2, 3).graph(), tmp_path / "net.json", multi=True)
    with pytest.raises(TopologyError, match="sha256"):
        kept.graph()


def test_size_of_a_file_is_read_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    custom = written(fat_tree(2, 2).graph(), tmp_path / "net.json", multi=True)
    assert (custom.num_hosts, custom.links_per_host) == (4, 1)
    with monkeypatch.context() as patched:
        patched.delattr(Custom, "graph")
        assert custom.num_hosts == 4
    written(fat_tree(2, 3).graph(), tmp_path / "net.json", multi=True)
    assert custom.num_hosts == 9
    (tmp_path / "net.json").unlink()
    with pytest.raises(TopologyError, match="cannot be read"):
        assert custom.num_hosts


def test_file_without_levels_is_refused_unless_shortest_paths_are_accepted(tmp_path: Path) -> None:
    graph = new_graph()
    for i in range(4):
        add_switch(graph, f"s{i}", "leaf", 1e-7)
        add_host(graph, f"h{i}")
        connect(graph, f"h{i}", f"s{i}", bandwidth=1e9, latency=1e-9)
    for i in range(4):
        connect(graph, f"s{i}", f"s{(i + 1) % 4}", bandwidth=1e9, latency=1e-9)
    custom = written(graph, tmp_path / "ring.json", multi=True)
    with pytest.raises(
        TopologyError, match=r"(?s)routes: the switches must stand in levels.*short"
    ):
        assert custom.num_hosts
    with pytest.raises(TopologyError, match="must stand in levels"):
        custom.routing(graph)
    accepting = custom.model_copy(update={"routes": "shortest_path"})
    assert accepting.num_hosts == 4
    ends = np.array([0, 0], np.int32), np.array([1, 2], np.int32)
    assert (accepting.routing(graph).routes(*ends) >= 0).sum(axis=1).tolist() == [3, 4]


@pytest.mark.parametrize("text", ["{", "[]", '{"nodes": 3}', "not json"])
def test_unreadable_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(text)
    with pytest.raises(TopologyError, match="node-link"):
        Custom(kind="custom", path=str(tmp_path / "net.json")).graph()


def test_unreadable_graphml_and_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.graphml").write_text("<graphml")
    with pytest.raises(TopologyError):
        Custom(kind="custom", path=str(tmp_path / "net.graphml")).graph()
    with pytest.raises(TopologyError, match="cannot be read"):
        Custom(kind="custom", path=str(tmp_path / "none.json")).graph()


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
def test_link_of_a_custom_file_needs_units(
    change: dict[str, Any], where: str, tmp_path: Path
) -> None:
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


def no_host(graph: Any) -> None:
    for host in ("a", "b"):
        graph.nodes[host]["kind"] = "switch"


def unknown_kind(graph: Any) -> None:
    graph.nodes["s"]["kind"] = "router"


def missing_kind(graph: Any) -> None:
    del graph.nodes["s"]["kind"]


def loose_host(graph: Any) -> None:
    add_host(graph, "c")


def loose_part(graph: Any) -> None:
    add_switch(graph, "t", "leaf", 0.0)
    add_host(graph, "c")
    connect(graph, "c", "t", bandwidth=1e9, latency=0.0)


def host_without_switch(graph: Any) -> None:
    add_host(graph, "c")
    connect(graph, "c", "a", bandwidth=1e9, latency=0.0)


def switches_joined_by_hosts_only(graph: Any) -> None:
    """Two planes: routes do not lead through hosts, so that a port of one plane cannot reach one of
    the other."""
    add_switch(graph, "t", "leaf", 0.0)
    for host in ("a", "b"):
        connect(graph, host, "t", bandwidth=1e9, latency=0.0)


def link_to_itself(graph: Any) -> None:
    """Its two directions would have the same name."""
    connect(graph, "s", "s", bandwidth=1e9, latency=0.0)


def link_value(key: str, value: object) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.edges["a", "s", 0][key] = value

    return change


def switch_latency(value: object) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.nodes["s"]["latency"] = value

    return change


@pytest.mark.parametrize(
    ("defect", "where", "text"),
    [
        pytest.param(no_host, "net", "host", id="no host"),
        pytest.param(unknown_kind, "net.nodes.s.kind", "router", id="unknown kind"),
        pytest.param(missing_kind, "net.nodes.s.kind", "None", id="no kind"),
        pytest.param(loose_host, "net", "c", id="loose host"),
        pytest.param(loose_part, "net", "separate", id="loose part"),
        pytest.param(host_without_switch, "net.nodes.c", "switch", id="host without switch"),
        pytest.param(switches_joined_by_hosts_only, "net", "", id="switches joined by hosts only"),
        pytest.param(link_to_itself, "net.links.s-s", "", id="link to itself"),
        pytest.param(
            link_value("bandwidth", None), "net.links.s-a.bandwidth", "None", id="no bandwidth"
        ),
        pytest.param(
            link_value("bandwidth", 0.0), "net.links.s-a.bandwidth", "0.0", id="bandwidth 0"
        ),
        pytest.param(
            link_value("bandwidth", -1.0),
            "net.links.s-a.bandwidth",
            "-1.0",
            id="negative bandwidth",
        ),
        pytest.param(
            link_value("bandwidth", math.nan), "net.links.s-a.bandwidth", "nan", id="bandwidth nan"
        ),
        pytest.param(
            link_value("bandwidth", math.inf), "net.links.s-a.bandwidth", "inf", id="bandwidth inf"
        ),
        pytest.param(
            link_value("bandwidth", "1 GB/s"),
            "net.links.s-a.bandwidth",
            "1 GB/s",
            id="bandwidth as text",
        ),
        pytest.param(
            link_value("latency", -1e-9), "net.links.s-a.latency", "-1e-09", id="negative latency"
        ),
        pytest.param(link_value("latency", None), "net.links.s-a.latency", "None", id="no latency"),
        pytest.param(
            switch_latency(-1e-9), "net.nodes.s.latency", "-1e-09", id="negative switch latency"
        ),
        pytest.param(
            switch_latency(math.nan), "net.nodes.s.latency", "nan", id="switch latency nan"
        ),
    ],
)
def test_defect_is_found(defect: Callable[[Any], None], where: str, text: str) -> None:
    graph = two_hosts()
    assert graph_problems(graph, "net") == []
    defect(graph)
    problems = graph_problems(graph, "net")
    assert problems
    assert any(problem.path.startswith(where) and text in str(problem) for problem in problems), [
        str(p) for p in problems
    ]
    assert all(problem.rule and problem.remedy for problem in problems)


def test_link_latency_may_be_zero() -> None:
    graph = two_hosts()
    link_value("latency", 0.0)(graph)
    assert graph_problems(graph, "net") == []


def test_all_defects_are_found_at_once() -> None:
    graph = two_hosts()
    link_value("bandwidth", 0.0)(graph)
    link_value("latency", None)(graph)
    unknown_kind(graph)
    assert len(graph_problems(graph, "net")) == 3


@settings(max_examples=60, deadline=None)
@given(trees())
def test_any_small_topology_is_a_network(topology: Any) -> None:
    assert graph_problems(topology.graph(), "net") == []

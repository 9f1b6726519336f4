"""Dragonflies, tori, HyperX, loop networks, rails and opened directors: counts, diameters and
bisections that were worked out by hand."""

import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.fabric.routing import DModK, Fabric, Router, routing_of_network
from simshuffle.fabric.topology import RailOptimised
from simshuffle.fabric.topology.graph import graph_problems
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.validation import validate_record
from tests.attached import attach_storage
from tests.examples import ABCI
from tests.strategies import (
    abci,
    dln,
    dragonfly,
    dragonfly_plus,
    fat_tree,
    hyperx,
    rail_optimised,
    star,
    switch_tree,
    torus_of,
)

LINK = 12.5  # GB/s of every link of these


def switches(topology: Any) -> Any:
    """The switches of a topology and their links."""
    graph = topology.graph()
    assert graph_problems(graph, "") == []
    return graph.subgraph([n for n, kind in graph.nodes(data="kind") if kind == "switch"])


def routed(topology: Any) -> tuple[Router, Any]:
    """The routes between all ports of different hosts, by the default routing."""
    fabric = Fabric(topology.graph())
    router = routing_of_network(topology, fabric).router(fabric, 0)
    ports = np.arange(len(fabric.switch_of_port), dtype=np.int32)
    src, dst = np.repeat(ports, len(ports)), np.tile(ports, len(ports))
    apart = fabric.inject_link[src] != fabric.inject_link[dst]
    return router, router.routes(src[apart], dst[apart])


def diameter(topology: Any) -> int:
    """Links between switches on the longest route."""
    return int((routed(topology)[1] >= 0).sum(axis=1).max()) - 2


def loads(topology: Any) -> dict[tuple[str, str], set[int]]:
    """Flows on the links between two switches if every port sends to every other one."""
    router, routes = routed(topology)
    load = np.bincount(routes[routes >= 0], minlength=len(router.links.names))
    out: dict[tuple[str, str], set[int]] = {}
    for name, flows in zip(router.links.names, load.tolist(), strict=True):
        a, b = name.split("#")[0].split(">")
        if not {a[0], b[0]} & {"h"}:
            out.setdefault((a, b), set()).add(flows)
    return out


def bisection(topology: Any) -> float:
    """GB/s, both ways together, between two halves of the hosts, whichever are joined least. Each
    switch has as many hosts as every other one that has some."""
    graph = nx.Graph()
    for a, b, data in switches(topology).edges(data=True):
        before = graph.get_edge_data(a, b, {"bandwidth": 0.0})["bandwidth"]
        graph.add_edge(a, b, bandwidth=before + data["bandwidth"] / 1e9)
    names = list(graph)
    number = {name: i for i, name in enumerate(names)}
    hosts = [i for i, name in enumerate(names) if "spine" not in name]
    ends = np.array([(number[a], number[b]) for a, b in graph.edges()])
    width = np.array([data["bandwidth"] for _, _, data in graph.edges(data=True)])
    halves = list(itertools.combinations(hosts, len(hosts) // 2))
    others = [i for i in range(len(names)) if i not in hosts]
    least = np.inf
    for spread in itertools.product([False, True], repeat=len(others)):
        side = np.zeros((len(halves), len(names)), bool)
        np.put_along_axis(side, np.array(halves), True, axis=1)
        side[:, others] = spread
        crossing = side[:, ends[:, 0]] != side[:, ends[:, 1]]
        least = min(least, float((crossing * width).sum(axis=1).min()))
    return 2 * least


def told(topology: Any) -> float:
    """The bisection of `structure`, GB/s."""
    text = topology.structure().split("bisection about ")[1].split(" both ways")[0]
    value, unit = text.split()
    return float(value) * {"GB/s": 1.0, "TB/s": 1e3}[unit]


# ---------------------------------------------------------------------------------------- dragonfly


@pytest.mark.parametrize(("p", "a", "h"), [(1, 2, 1), (1, 4, 2), (2, 4, 2), (2, 3, 1)])
def test_full_dragonfly(p, a, h):
    """g = a h + 1 groups and p a g hosts (Kim et al., ISCA 2008, Sec. 3.1); a (a - 1) / 2 links in
    each group, one between every two groups; each switch has a - 1 + h of them. A route has at most
    a hop in the first group, one between groups and one in the last."""
    topology = dragonfly(hosts_per_switch=p, switches_per_group=a, global_links_per_switch=h)
    graph, g = switches(topology), a * h + 1
    assert topology.num_hosts == p * a * g
    assert graph.number_of_nodes() == a * g
    assert graph.number_of_edges() == g * a * (a - 1) // 2 + g * (g - 1) // 2
    assert set(dict(graph.degree()).values()) == {a - 1 + h}
    between = Counter(
        frozenset((graph.nodes[x]["coordinates"][0], graph.nodes[y]["coordinates"][0]))
        for x, y in graph.edges()
        if graph.nodes[x]["coordinates"][0] != graph.nodes[y]["coordinates"][0]
    )
    assert set(between.values()) == {1} and len(between) == g * (g - 1) // 2
    assert diameter(topology) == 3
    assert told(topology) == pytest.approx(2 * (g // 2) * (g - g // 2) * LINK)


def test_groups_of_a_dragonfly_look_alike():
    """Turned by a group, a dragonfly is the same, as its links lie as in a palm tree."""
    graph = switches(dragonfly(groups=5))

    def turned(name: str) -> str:
        group, switch = name[1:].split(".")
        return f"g{(int(group) + 1) % 5}.{switch}"

    links = Counter(frozenset(ends) for ends in graph.edges())
    assert links == Counter(frozenset(map(turned, ends)) for ends in graph.edges())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 25))
def test_global_links_are_spread_evenly(a, h, groups):
    """floor(a h / (g - 1)) links between every two groups; the numbers of global links of any two
    switches differ by one at most, and none has more than h."""
    groups = min(groups, a * h + 1)
    topology = dragonfly(switches_per_group=a, global_links_per_switch=h, groups=groups)
    graph = switches(topology)
    group = {name: place[0] for name, place in graph.nodes(data="coordinates")}
    apart = [(x, y) for x, y in graph.edges() if group[x] != group[y]]
    pairs = Counter(frozenset((group[x], group[y])) for x, y in apart)
    assert len(pairs) == groups * (groups - 1) // 2
    assert set(pairs.values()) <= {a * h // max(groups - 1, 1)}
    ports = Counter(dict.fromkeys(graph, 0))
    ports.update(name for ends in apart for name in ends)
    assert max(ports.values()) <= h
    assert max(ports.values()) - min(ports.values()) <= 1
    assert graph.number_of_edges() == topology.switch_links


def test_links_of_a_dragonfly_have_their_own_bandwidth_and_length():
    """Of a host 12.5 GB/s and 26 ns, in a group 25 GB/s, between groups 50 GB/s and 104 ns."""
    topology = dragonfly(groups=3, local_bandwidth="25 GB/s", global_bandwidth="50 GB/s")
    graph = topology.graph()
    found = set()
    for a, b, data in graph.edges(data=True):
        host = "h" in (a[0], b[0])
        kind = "host" if host else "local" if a.split(".")[0] == b.split(".")[0] else "global"
        found.add((kind, data["bandwidth"], data["latency"]))
    local = ("local", 25e9, pytest.approx(26e-9))
    assert sorted(found) == [
        ("global", 50e9, pytest.approx(104e-9)),
        ("host", 12.5e9, pytest.approx(26e-9)),
        local,
    ]
    # 8 ports of a group for 2 other groups: 4 links each; 1 x 2 pairs of groups across the middle
    assert told(topology) == pytest.approx(2 * 2 * 4 * 50)
    assert "4 global links between every two groups;" in topology.structure()


def test_aries():
    """A group of Cray XC (Faanes et al., Cray Cascade, SC 2012): 6 chassis of 16 routers, one link
    in a chassis and 3 between chassis: 15 + 3 x 5 = 30 ports of 96 routers, 1440 links; 4 nodes a
    router. Two hops in a group; five from group to group."""
    aries = {"switches_per_group": None, "group_shape": [16, 6], "local_links": [1, 3]}
    topology = dragonfly(**aries, global_links_per_switch=10, groups=1, hosts_per_switch=4)
    graph = switches(topology)
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (96, 96 * 30 // 2)
    assert topology.num_hosts == 384
    small = {**aries, "group_shape": [3, 2]}
    assert diameter(dragonfly(**small, groups=1)) == 2
    assert diameter(dragonfly(**small)) == 5
    # 96 routers: cut between chassis 3 x 3 pairs x 16 x 3 links, in the chassis 8 x 8 x 6
    assert told(topology) == pytest.approx(2 * 8 * 8 * 6 * LINK)


@pytest.mark.parametrize(("groups", "a", "h"), [(2, 4, 1), (4, 3, 1), (2, 5, 2), (4, 3, 2)])
def test_a_dragonfly_is_cut_between_its_groups(groups, a, h):
    """(g / 2)^2 pairs of groups, each with floor(a h / (g - 1)) links; no other halves have fewer
    links between them."""
    topology = dragonfly(switches_per_group=a, global_links_per_switch=h, groups=groups)
    assert (
        told(topology)
        == pytest.approx(2 * (groups // 2) ** 2 * (a * h // (groups - 1)) * LINK)
        == pytest.approx(bisection(topology))
    )


# --------------------------------------------------------------------------------------- dragonfly+


@pytest.mark.parametrize(("p", "leaf", "spine", "h"), [(1, 2, 2, 1), (2, 2, 2, 2), (3, 3, 2, 1)])
def test_full_dragonfly_plus(p, leaf, spine, h):
    """s h + 1 groups (Shpiner et al., HiPINEB 2017, Sec. II), l s links in each and one between
    every two; a leaf switch has s of them, a spine l + h. From leaf to leaf there are three links:
    up, across and down."""
    topology = dragonfly_plus(
        hosts_per_switch=p, leaf_switches=leaf, spine_switches=spine, global_links_per_switch=h
    )
    graph, g = switches(topology), spine * h + 1
    assert topology.num_hosts == p * leaf * g
    assert graph.number_of_nodes() == (leaf + spine) * g
    assert graph.number_of_edges() == g * leaf * spine + g * (g - 1) // 2 == topology.switch_links
    degree = {name: graph.degree(name) for name in graph}
    assert {n for name, n in degree.items() if "leaf" in name} == {spine}
    assert {n for name, n in degree.items() if "spine" in name} == {leaf + h}
    assert diameter(topology) == 3
    for name, place in graph.nodes(data="coordinates"):
        assert name == f"g{place[0]}.{('leaf', 'spine')[place[1]]}{place[2]}"


@pytest.mark.parametrize(
    ("groups", "spine", "h", "across"), [(2, 2, 1, 2), (2, 2, 2, 4), (4, 2, 2, 4), (1, 2, 3, 3)]
)
def test_bisection_of_dragonfly_plus(groups, spine, h, across):
    """Two groups: all s h links; four: 2 x 2 pairs of one link (4 ports for 3 groups). One group is
    a fat tree: each of 2 spines gives 3 of its 6 links to either half of 6 hosts: 3 x 2 / 2."""
    more = {"leaf_switches": 3, "hosts_per_switch": 2} if groups == 1 else {}
    topology = dragonfly_plus(
        groups=groups, spine_switches=spine, global_links_per_switch=h, **more
    )
    assert told(topology) == pytest.approx(2 * across * LINK)
    if groups > 1:
        assert bisection(topology) == pytest.approx(2 * across * LINK)


# -------------------------------------------------------------------------------------------- torus


@pytest.mark.parametrize(
    ("shape", "wrap", "links", "edges", "far", "across"),
    [
        # n links in a ring of n > 2, n - 1 in a line and in a ring of 2; half way round a ring, or
        # from end to end of a line; a ring is cut twice, a line once (Dally & Towles, Principles
        # and Practices of Interconnection Networks, 2004, Sec. 5.2.1)
        ([4], None, 1, 4, 2, 2),
        ([2], None, 1, 1, 1, 1),
        ([4, 4], None, 1, 32, 4, 8),
        ([4, 4], [False, False], 1, 24, 6, 4),
        ([4, 2], None, [2, 3], 2 * 8 + 3 * 4, 3, 8),
        ([6, 2], [False, True], 1, 10 + 6, 6, 2),
        ([2, 2, 2], None, 1, 12, 3, 4),
    ],
)
def test_torus(shape, wrap, links, edges, far, across):
    topology = torus_of(shape, links=links, **({"wrap": wrap} if wrap else {}))
    graph = switches(topology)
    assert topology.num_hosts == graph.number_of_nodes() == np.prod(shape)
    assert graph.number_of_edges() == edges == topology.switch_links
    assert diameter(topology) == far
    assert told(topology) == pytest.approx(2 * across * LINK)
    if topology.num_hosts <= 16:
        assert bisection(topology) == pytest.approx(2 * across * LINK)


def test_tofu_d():
    """Tofu-D (Ajima et al., CLUSTER 2018): ten links a node: two in each of X, Y, Z and B, one in
    each of A and C, which have two nodes."""
    topology = torus_of([4, 3, 3, 2, 3, 2], wrap=[True, True, True, False, True, False])
    graph = switches(topology)
    assert set(dict(graph.degree()).values()) == {10}
    assert graph.number_of_nodes() == 36 * 12
    # without wrap along A and C it is the same, as a ring of two is one cable
    same = switches(torus_of([4, 3, 3, 2, 3, 2]))
    assert sorted(map(sorted, same.edges())) == sorted(map(sorted, graph.edges()))


@pytest.mark.parametrize("shape", [[3, 3], [5, 3], [3, 3, 3]])
def test_dimension_order_loads_all_links_of_a_torus_equally(shape):
    """Of N switches, N n of all pairs pass each ring of n = 2 m + 1: N / n from each of its
    switches to each. So each sends N / n times 1 + 2 + ... + m hops to either side, and each link
    carries that sum of flows."""
    count = int(np.prod(shape))
    for (a, b), found in loads(torus_of(shape)).items():
        place = [[int(n) for n in name[1:].split(".")] for name in (a, b)]
        (size,) = (n for n, x, y in zip(shape, *place, strict=True) if x != y)
        assert found == {count // size * sum(range(1, size // 2 + 1))}


# ------------------------------------------------------------------------------------------- HyperX


@pytest.mark.parametrize(
    ("shape", "links", "edges", "across"),
    [
        # in a row of S switches K S (S - 1) / 2 links; cut where K S is least: K S^2 / 4 links in
        # each of the rows (Ahn et al., SC 2009, Sec. 3.2)
        ([6], 1, 15, 9),
        ([4, 4], 1, 48, 16),
        ([4, 2], 1, 12 + 4, 4),
        ([4, 2], [1, 3], 12 + 12, 8),
        ([2, 2, 2], 1, 12, 4),
        ([5], 2, 20, 12),
    ],
)
def test_hyperx(shape, links, edges, across):
    topology = hyperx(shape, links=links)
    graph = switches(topology)
    assert graph.number_of_nodes() == np.prod(shape) == topology.num_hosts // 2
    assert graph.number_of_edges() == edges == topology.switch_links
    assert diameter(topology) == len(shape)
    assert told(topology) == pytest.approx(2 * across * LINK)
    if graph.number_of_nodes() % 2 == 0:
        assert bisection(topology) == pytest.approx(2 * across * LINK)


def test_uniform_traffic_on_a_hyperx():
    """2 hosts on each of 4 x 3 switches: a link of the first dimension carries what the 3 rows of
    its row's goals get from its switch, 2 x 6 flows; one of the second what goes to 2 hosts from
    the 4 switches of the row, 8 x 2."""
    found = loads(hyperx([4, 3]))
    first = {n for (a, b), each in found.items() for n in each if a[-1] == b[-1]}
    second = {n for (a, b), each in found.items() for n in each if a[:-1] == b[:-1]}
    assert (first, second) == ({2 * 6}, {8 * 2})


# ------------------------------------------------------------------------- distributed loop network


@pytest.mark.parametrize("switches_count", [2, 4, 8, 16, 32])
def test_partners_of_halving_and_doubling_are_linked(switches_count):
    """i and i XOR 2^k are at a distance of 2^k: one hop, for every k. Of n = 2^m switches each has
    2 m - 1 links, one of them to the opposite switch."""
    topology = dln(switches_count)
    graph = switches(topology)
    bits = switches_count.bit_length() - 1
    assert set(dict(graph.degree()).values()) == {2 * bits - 1}
    assert graph.number_of_edges() == switches_count * (2 * bits - 1) // 2 == topology.switch_links
    for i in range(switches_count):
        for k in range(bits):
            assert graph.number_of_edges(f"s{i}", f"s{i ^ 2**k}") == 1


@pytest.mark.parametrize(
    ("count", "shortcuts", "distances", "far"),
    [
        # hops: to the farthest number of a ring of n in sums of +- distances
        (8, None, [1, 2, 4], 2),
        (16, None, [1, 2, 4, 8], 2),  # 5 = 4 + 1, 6 = 8 - 2, 7 = 8 - 1
        (12, None, [1, 2, 4], 2),
        (12, 1, [1, 2], 3),
        (12, 0, [1], 6),
        (12, [4, 6], [1, 4, 6], 2),
        (9, 2, [1, 2, 4], 2),
    ],
)
def test_diameter_of_a_loop_network(count, shortcuts, distances, far):
    topology = dln(count, **({} if shortcuts is None else {"shortcuts": shortcuts}))
    assert topology.distances == distances
    assert diameter(topology) == far
    graph = switches(topology)
    assert graph.number_of_edges() == topology.switch_links
    for a, b in graph.edges():
        apart = (int(b[1:]) - int(a[1:])) % count
        assert min(apart, count - apart) in distances


@pytest.mark.parametrize("shortcuts", [0, 1, 2, [3], [4]])
def test_bisection_of_a_loop_network(shortcuts):
    """Two arcs of 8 switches: at each of two cuts as many links as their distance; those to the
    opposite switch all lead across."""
    topology = dln(8, shortcuts=shortcuts)
    across = sum(d if d == 4 else 2 * d for d in topology.distances)
    assert told(topology) == pytest.approx(2 * across * LINK)
    assert bisection(topology) <= 2 * across * LINK


# ------------------------------------------------------------------------------------------ rails


def tiers(topology: Any) -> Counter[str]:
    """Switches by tier."""
    return Counter(tier for _, tier in switches(topology).nodes(data="tier"))


def flow_bisection(topology: Any) -> float:
    """GB/s, both ways together, between two halves of the hosts, whichever are joined least, at
    most what their HCAs carry: by maximum flow."""
    graph = nx.DiGraph()
    for a, b, data in topology.graph().edges(data=True):
        for x, y in ((a, b), (b, a)):
            before = graph.get_edge_data(x, y, {"capacity": 0.0})["capacity"]
            graph.add_edge(x, y, capacity=before + data["bandwidth"] / 1e9)
    hosts = [f"h{i:04d}" for i in range(topology.num_hosts)]
    least = np.inf
    for half in itertools.combinations(hosts[1:], len(hosts) // 2):
        whole = graph.copy()
        for host in hosts:
            ends = (host, "to") if host in half else ("from", host)
            whole.add_edge(*ends, capacity=np.inf)
        least = min(least, nx.maximum_flow_value(whole, "from", "to"))
    return 2 * float(least)


@pytest.mark.parametrize(
    ("pods", "hosts", "leaves", "spines"),
    [(1, 31, 8, 4), (2, 63, 16, 8), (3, 95, 24, 16), (4, 127, 32, 16)],
)
def test_superpods(pods, hosts, leaves, spines):
    """Scalable units of 32 DGX H100 less one for management, 8 rails on switches of 64 ports: leaf
    and spine switches of table 4 of NVIDIA's reference architecture."""
    topology = rail_optimised(pods=pods, hosts_per_pod=32, hosts=hosts, rails=8, ports=64)
    assert tiers(topology) == {"leaf": leaves, "spine": spines}
    graph = topology.graph()
    assert all(graph.degree(f"pod0.rail{k}.leaf0") <= 64 for k in range(8))
    assert graph.number_of_edges() == 8 * hosts + leaves * 32
    assert max(degree for name, degree in graph.degree() if "spine" in name) <= 64


def test_shared_spines_are_a_fat_tree_with_rails():
    """Where a pod fills its leaf switches, the same links as those of a fat tree of two levels."""
    rails, tree = rail_optimised().graph(), switch_tree(16, 16, rails=2).graph()
    found = [sorted(d for _, d in graph.degree()) for graph in (rails, tree)]
    assert found[0] == found[1]
    assert nx.faster_could_be_isomorphic(nx.Graph(rails), nx.Graph(tree))


def test_a_leaf_switch_for_each_rail_of_a_pod():
    """HCA k of a host is on rail k of its pod, on the second leaf switch where 4 hosts fill one."""
    graph = rail_optimised(hosts_per_pod=6, ports=8, pods=3, spine_layout="pod").graph()
    fabric = Fabric(graph)
    for host in ("h0000", "h0005", "h0017"):
        ports = np.array(fabric.endpoints(host))
        assert fabric.switch_names(fabric.switch_of_port[ports]) == list(graph.neighbors(host))
    assert list(graph.neighbors("h0000")) == ["pod0.rail0.leaf0", "pod0.rail1.leaf0"]
    assert list(graph.neighbors("h0005")) == ["pod0.rail0.leaf1", "pod0.rail1.leaf1"]
    assert list(graph.neighbors("h0006")) == ["pod1.rail0.leaf0", "pod1.rail1.leaf0"]


@pytest.mark.parametrize("layout", ["rail", "pod"])
def test_three_levels_of_rails(layout):
    """4 pods of 4 hosts with 4 rails on 8-port switches: 16 leaf switches with 4 links up; in each
    of 4 blocks 4 of them below 4 spines, which have 4 links up; the 4 spines of one number need 16
    ports above: two core switches. That is half of the 5 n^2 / 4 = 80 switches of a full tree of
    three levels (Al-Fares, Loukissas & Vahdat, SIGCOMM 2008)."""
    topology = rail_optimised(pods=4, hosts_per_pod=4, rails=4, ports=8, spine_layout=layout)
    assert tiers(topology) == {"leaf": 16, "spine": 16, "core": 8}
    graph = topology.graph()
    assert {graph.degree(name) for name, kind in graph.nodes(data="kind") if kind == "switch"} == {
        8
    }
    router, routes = routed(topology)
    names = router.links.names
    for route in routes:
        path = [names[link].split("#")[0].split(">") for link in route if link >= 0]
        first, last = path[0][1], path[-1][0]
        block = [name.split(".")[layout == "rail"] for name in (first, last)]
        cores = any("core" in node for _, node in path)
        assert cores == (block[0] != block[1])
        assert len(path) - 2 == (0 if first == last else 4 if cores else 2)


@pytest.mark.parametrize(
    ("change", "both"),
    [
        # 8 hosts with 2 HCAs: all of it
        ({"pods": 2, "hosts_per_pod": 4, "ports": 8}, 16),
        ({"pods": 2, "hosts_per_pod": 4, "ports": 8, "spine_layout": "rail"}, 16),
        ({"pods": 2, "hosts_per_pod": 4, "ports": 8, "spine_layout": "pod"}, 16),
        # 2 x 2 leaf switches with 2 links up each
        ({"pods": 2, "hosts_per_pod": 4, "ports": 8, "taper": 3, "spine_layout": "pod"}, 8),
        # 2 x 2 leaf switches with 2 links each; their 2 x 2 spines with 2 links down have one up
        (
            {"pods": 2, "hosts_per_pod": 4, "ports": 6, "taper": 2, "spine_layout": "pod"}
            | {"spines": 2, "core_taper": 2},
            4,
        ),
    ],
)
def test_bisection_of_rails(change, both):
    topology = rail_optimised(**change)
    assert told(topology) == pytest.approx(both * LINK)
    assert flow_bisection(topology) == pytest.approx(both * LINK)


@st.composite
def rails(draw: Any) -> RailOptimised:
    """Pods of any size, with a layout for which the ports suffice."""
    pods, per_pod = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    values = {
        "pods": pods,
        "hosts_per_pod": per_pod,
        "hosts": pods * per_pod - draw(st.integers(0, per_pod - 1)),
        "rails": draw(st.integers(1, 3)),
        "ports": draw(st.integers(4, 16)),
        "taper": draw(st.sampled_from([1, 1.5, 3])),
        "spine_layout": draw(st.sampled_from(["shared", "rail", "pod"])),
        "core_taper": draw(st.sampled_from([1, 2])),
    }
    try:
        return rail_optimised(**values)
    except ValidationError as error:
        assert re.search("ports are too few|must have at least one up", str(error))
        reject()


@settings(max_examples=60, deadline=None)
@given(rails())
def test_rails_of_any_size(topology):
    """No switch has more links than ports; every host has one to each rail; every HCA reaches every
    other by going up and then down."""
    graph, depth = topology.graph(), {"leaf": 0, "spine": 1, "core": 2}
    assert graph_problems(graph, "") == []
    assert set(tiers(topology)) == set(list(depth)[: topology.height + 1])
    for node, kind in graph.nodes(data="kind"):
        if kind == "switch":
            assert graph.degree(node) <= topology.ports
        else:
            on = [leaf.split(".")[1] for leaf in graph.neighbors(node)]
            assert on == [f"rail{k}" for k in range(topology.rails)]
    router, routes = routed(topology)
    for route in routes:
        used = [router.links.tiers[link].split(">") for link in route[1:] if link >= 0][:-1]
        ways = [depth[b] - depth[a] for a, b in used]
        assert ways == sorted(ways, reverse=True) and set(map(abs, ways)) <= {1}


@settings(max_examples=60, deadline=None)
@given(rails())
def test_destinations_share_the_links_down_to_their_leaf_switch(topology):
    graph = topology.graph()
    attach_storage(graph, "pfs", bandwidth=1e9, latency=0.0, links=1)
    router = DModK().router(Fabric(graph), 0)
    hosts = [f"h{i:04d}" for i in range(topology.num_hosts)]
    ports = np.array([port for host in hosts for port in router.endpoints(host)], np.int32)
    routes = router.routes(np.full(len(ports), router.endpoints("pfs")[0], np.int32), ports)
    load = np.bincount(routes[routes >= 0], minlength=len(router.links.names))
    down: dict[str, list[int]] = {}
    for name, tier, flows in zip(router.links.names, router.links.tiers, load, strict=True):
        if tier == "spine>leaf":
            down.setdefault(name.split("#")[0].split(">")[1], []).append(int(flows))
    assert len(down) == tiers(topology)["leaf"]
    for leaf, flows in down.items():
        on = sum(node.startswith("h") for node in graph.neighbors(leaf))
        assert sum(flows) == on and max(flows) <= -(-on // len(flows))


# ---------------------------------------------------------------------------------------- directors


def test_opened_directors_of_abci():
    """ABCI's two spines are Mellanox CS7500, with line modules of 18 ports and 18 fabric modules of
    36: four FBB switches with 4 links each fit a line module, so that 96 fill 24, each with a link
    to all fabric modules."""
    opened, closed = abci(directors={"line_ports": 18, "fabric_modules": 18}), abci()
    assert tiers(opened) == {"leaf": 128, "fbb": 96, "line": 2 * 24, "fabric": 2 * 18}
    graph = opened.graph()
    assert {graph.degree(f"spine1.line{i}") for i in range(24)} == {4 * 4 + 18}
    assert {graph.degree(f"spine0.fabric{i}") for i in range(18)} == {24}
    assert graph.number_of_edges("r03.fbb0", "spine0.line0") == 4
    assert graph.number_of_edges("r04.fbb0", "spine0.line1") == 4
    assert graph.number_of_edges("r00.fbb1", "spine1.line8") == 4
    assert (closed.height, opened.height) == (2, 3)
    assert opened.structure() == "every spine director of 24 line and 18 fabric modules"
    below = [
        Counter(frozenset(ends) for ends in topology.graph().edges() if "spine" not in str(ends))
        for topology in (opened, closed)
    ]
    assert below[0] == below[1]


def test_a_way_through_an_opened_director_takes_as_long():
    """Line, fabric and line module take a third of the closed switch each; on one line module a
    message turns after the first."""
    counts: dict[str, Any] = {"racks": 3, "hosts_per_rack": 2, "hcas_per_host": 1}
    counts |= {"leaf_switches_per_rack": 2, "fbb_switches_per_rack": 1, "spine_switches": 1}
    latencies = []
    for directors in (None, {"line_ports": 4, "fabric_modules": 4}):
        topology = abci(**counts, fbb_spine_links=2, directors=directors)
        fabric = Fabric(topology.graph())
        router = routing_of_network(topology, fabric).router(fabric, 0)
        ports = [router.endpoints(f"h000{i}")[0] for i in (0, 2, 4)]
        first, others = np.full(2, ports[0], np.int32), np.array(ports[1:], np.int32)
        latencies.append(router.latencies(router.routes(first, others)))
    # racks 0 and 1 are on the first line module of 4 ports, rack 2 on the second
    assert latencies[1] == pytest.approx(latencies[0] - [2 / 3 * 400e-9, 0])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))
def test_line_modules_have_ports_for_their_links(racks, links, line_ports, fabric_modules):
    counts = {"hosts_per_rack": 2, "leaf_switches_per_rack": 1, "hcas_per_host": 1}
    counts |= {"fbb_switches_per_rack": 1, "spine_switches": 1}
    directors = {"line_ports": line_ports, "fabric_modules": fabric_modules}
    values = {**counts, "racks": racks, "fbb_spine_links": links, "directors": directors}
    whole = line_ports // links  # lower switches on a line module
    if whole == 0 or -(-racks // whole) > line_ports + fabric_modules:
        with pytest.raises(ValidationError, match="have no room"):
            abci(**values)
        return
    graph = switches(abci(**values))
    lines = [name for name in graph if ".line" in name]
    assert len(lines) == -(-racks // whole)
    for line in lines:
        below = [n for n in graph.neighbors(line) if "fbb" in n]
        assert 1 <= len(below) <= whole
        assert all(graph.number_of_edges(n, line) == links for n in below)
        assert graph.degree(line) - links * len(below) == fabric_modules


def test_opened_directors_of_a_fat_tree():
    """Directors with at most 6 line modules of 3 ports."""
    directors = {"line_ports": 3, "fabric_modules": 3}
    topology = switch_tree(8, 16, directors=directors)
    # 4 leaf switches with 4 links up: 2 spines would do by 8 ports each, of 2 links to each; on a
    # line module of 3 ports there is room for one leaf switch with 2 links: 4 of at most 6
    assert tiers(topology) == {"leaf": 4, "line": 2 * 4, "fabric": 2 * 3}
    assert topology.structure().split("; ")[1] == (
        "2 spine switches of 4 line and 3 fabric modules, 2 links to each one below"
    )
    # more hosts than closed spines of 8 ports have room for: 18 leaf switches
    large = switch_tree(8, 72, levels=2, directors=directors)
    assert tiers(large) == {"leaf": 18, "line": 4 * 6, "fabric": 4 * 3}
    with pytest.raises(ValidationError, match="has room for 72"):
        switch_tree(8, 73, levels=2, directors=directors)
    with pytest.raises(ValidationError, match="has room for 32"):
        switch_tree(8, 72, levels=2)


def test_every_shift_is_free_of_contention_in_opened_directors():
    """As in closed ones (Zahavi, JPDC 2012), since they too have full bisection: 18 leaf switches
    with 9 links up to directors of 2 line modules of 9 ports and 9 fabric modules."""
    directors = {"line_ports": 9, "fabric_modules": 9}
    fabric = Fabric(fat_tree(2, 9, hosts=162, directors=directors).graph())
    router = DModK().router(fabric, 0)
    ports = np.arange(162, dtype=np.int32)
    for shift in range(1, 162, 7):
        routes = router.routes(ports, np.roll(ports, -shift))
        assert np.bincount(routes[routes >= 0]).max() == 1


# ------------------------------------------------------------------------------------------ storage


STORED: dict[str, tuple[Callable[[], Any], str, int]] = {
    "full tree of 2 levels": (lambda: fat_tree(2, 3), "spine", 3),
    "full tree of 3 levels": (lambda: fat_tree(3, 2), "spine", 4),
    # some leaf switches without hosts, if such networks are accepted at all
    "cut tree of 3 levels": (lambda: fat_tree(3, 4, hosts=17), "spine", 16),
    "cut tree of 4 levels": (lambda: fat_tree(4, 2, hosts=9), "spine", 8),
    "cut abci": (lambda: abci(racks=2, hosts_per_rack=1), "spine", 2),
    "abci": (abci, "spine", 2),
    "star": (lambda: star(3), "leaf", 1),
    "dragonfly": (dragonfly, "leaf", 36),
    "dragonfly, 37 hosts": (lambda: dragonfly(hosts_per_switch=2, hosts=37), "leaf", 36),
    "Dragonfly+": (dragonfly_plus, "spine", 10),
    "torus": (lambda: torus_of([4, 3]), "leaf", 12),
    "DLN": (lambda: dln(8), "leaf", 8),
    "rails": (lambda: rail_optimised(hosts=9), "spine", 2),
    "rails of their own": (lambda: rail_optimised(spine_layout="rail"), "core", 2),
    "directors": (lambda: abci(directors={"line_ports": 18, "fabric_modules": 18}), "fabric", 36),
}


@pytest.mark.parametrize("name", STORED)
def test_storage_is_tied_to_the_switches_farthest_from_hosts(name):
    """Not to leaf switches that happen to have no host."""
    make, tier, tops = STORED[name]
    try:
        graph = make().graph()
    except ValidationError:
        assert name.startswith("cut")
        return
    attach_storage(graph, "pfs", bandwidth=2e9, latency=1e-8, links=3)
    assert graph.nodes["pfs"]["kind"] == "storage"
    assert list(graph.neighbors("pfs")) == ["pfs.switch"]
    tied = [node for node in graph.neighbors("pfs.switch") if node != "pfs"]
    assert {graph.nodes[node]["tier"] for node in tied} == {tier} and len(tied) == tops
    assert {graph.number_of_edges("pfs.switch", node) for node in tied} == {3}
    assert sum(data["bandwidth"] for *_, data in graph.edges("pfs", data=True)) == 2e9 * 3 * tops


# ------------------------------------------------------------------------------------ fewer hosts


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 4), st.data())
def test_fewer_hosts_are_spread_evenly(size, on, data):
    hosts = data.draw(st.integers(size, size * on))
    topology = torus_of([size], hosts_per_switch=on, hosts=hosts)
    graph = topology.graph()
    found = [
        int(next(iter(graph.neighbors(node)))[1:])
        for node, kind in graph.nodes(data="kind")
        if kind == "host"
    ]
    assert found == sorted(found) and len(found) == hosts
    counts = Counter(found)
    assert len(counts) == size and max(counts.values()) - min(counts.values()) <= 1
    assert max(counts.values()) <= on


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 4), st.data())
def test_fewer_hosts_fill_switches_where_they_are_not_spread(size, on, data):
    hosts = data.draw(st.integers(1, size * on))
    topology = torus_of([size], hosts_per_switch=on, hosts=hosts, spread=False)
    graph = topology.graph()
    found = [
        next(iter(graph.neighbors(node)))
        for node, kind in graph.nodes(data="kind")
        if kind == "host"
    ]
    assert found == [f"s{host // on}" for host in range(hosts)]


# ---------------------------------------------------------------------------------- what is refused

DIRECTORS = {"line_ports": 2, "fabric_modules": 2}
REFUSED: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], str, str]]]] = {
    "dragonfly": (
        {"hosts_per_switch": 2, "switches_per_group": 4, "global_links_per_switch": 2},
        [
            ({"groups": 10}, "groups", "at most 9"),
            ({"group_shape": [2, 2]}, "switches_per_group", "in its place"),
            ({"local_links": [1, 2]}, "local_links", "one for each dimension"),
            ({"hosts": 35}, "hosts", "from 36"),
            ({"hosts": 73}, "hosts", "to 72"),
            ({"hosts_per_switch": 0}, "hosts_per_switch", "greater"),
            ({"global_bandwidth": 5}, "global_bandwidth", "unit"),
            (
                {"switches_per_group": 4096, "global_links_per_switch": 4},
                "hosts_per_switch",
                "200000",
            ),
            ({"switches_per_group": 2000, "groups": 2}, "groups", "1000000"),
            ({"switches_per_group": None}, "switches_per_group", ""),
        ],
    ),
    "dragonfly_plus": (
        {"hosts_per_switch": 2, "leaf_switches": 2, "spine_switches": 2}
        | {"global_links_per_switch": 2},
        [
            ({"groups": 6}, "groups", "at most 5"),
            ({"hosts": 9}, "hosts", "from 10"),
            ({"leaf_switches": 4000, "spine_switches": 4000, "groups": 1}, "groups", "1000000"),
            ({"leaf_spine_links": 0}, "leaf_spine_links", "greater"),
        ],
    ),
    "torus": (
        {"shape": [4, 4]},
        [
            ({"shape": [4, 1]}, "shape.1", "greater"),
            ({"shape": []}, "shape", "at least 1"),
            ({"shape": 4}, "shape", "list"),
            ({"links": [1, 1, 1]}, "links", "2: one for each dimension"),
            ({"links": 0}, "links.0", "greater"),
            ({"wrap": [True]}, "wrap", "2 dimensions"),
            ({"shape": [1024, 1024]}, "hosts_per_switch", "200000"),
            ({"links": 4096, "shape": [1000]}, "shape", "1000000"),
            ({"side": 3}, "side", "known key"),
        ],
    ),
    "hyperx": (
        {"shape": [4, 4], "hosts_per_switch": 1},
        [
            ({"shape": [1]}, "shape.0", "greater"),
            ({"links": [1, 2, 3]}, "links", "one for each dimension"),
            ({"shape": [1024, 64]}, "shape", "1000000"),
            ({"hosts": 3}, "hosts", "from 16"),
        ],
    ),
    "dln": (
        {"switches": 8, "hosts_per_switch": 2},
        [
            ({"shortcuts": [1]}, "shortcuts", "from 2 to 4"),
            ({"shortcuts": [5]}, "shortcuts", "from 2 to 4"),
            ({"shortcuts": [2, 2]}, "shortcuts", "different"),
            ({"shortcuts": 3}, "shortcuts", "from 2 to 4"),
            ({"shortcuts": "2"}, "shortcuts", "list"),
            ({"switches": 1}, "switches", "greater"),
            ({"hosts": 7}, "hosts", "from 8"),
        ],
    ),
    "rail_optimised": (
        {"pods": 2, "hosts_per_pod": 8, "rails": 2, "ports": 16},
        [
            ({"hosts": 8}, "hosts", "from 9 to 16"),
            ({"hosts": 17}, "hosts", "from 9 to 16"),
            ({"spines": 3}, "spines", "evenly"),
            ({"cores": 2}, "cores", "join all"),
            ({"cores": 3, "spine_layout": "rail"}, "cores", "evenly"),
            ({"taper": 40}, "taper", "one of them up"),
            ({"core_taper": 100, "spine_layout": "rail"}, "core_taper", "one up"),
            ({"pods": 20}, "ports", "spines with a link to each of the 40 leaf"),
            ({"pods": 40, "spine_layout": "pod"}, "ports", "cores with a link to each of the 40"),
            ({"pods": 4000, "hosts_per_pod": 40}, "pods", "200000"),
            ({"spine_layout": "core"}, "spine_layout", "'shared'"),
        ],
    ),
    "fat_tree": (
        {"directors": DIRECTORS},
        [
            ({"arity": 4, "levels": 1}, "directors", "at least two levels"),
            ({"arity": 4, "levels": 2, "hosts": 40}, "directors", "4 line modules of 2 ports have"),
            ({"ports": 8, "hosts": 8}, "directors", "at least two levels"),
            (
                {"arity": 4, "levels": 2, "directors": {**DIRECTORS, "line_ports": 0}},
                "directors.line_ports",
                "",
            ),
            (
                {"arity": 4, "levels": 2, "directors": {**DIRECTORS, "line_port": 4}},
                "directors.line_port",
                "'line_ports'",
            ),
        ],
    ),
}


@pytest.mark.parametrize(
    ("kind", "change", "where", "text"),
    [(kind, *row) for kind, (_, rows) in REFUSED.items() for row in rows],
)
def test_what_cannot_be_built_is_one_problem_of_its_key(kind, change, where, text):
    values = {"kind": kind, "link_bandwidth": "1 GB/s", **REFUSED[kind][0], **change}
    topology = {key: value for key, value in values.items() if value is not None}
    raw = ABCI.model_dump(mode="json", exclude_none=True)
    _, problems = validate_record({**raw, "topology": topology}, Cluster)
    (found,) = problems
    assert found.path == f"topology.{where}" and found.rule and found.value
    assert text in f"{found.rule} {found.remedy}"

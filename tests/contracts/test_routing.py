"""Routes are shortest paths, the same for a destination whatever else is asked, and as even and
free of contention as D-mod-K is."""

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simshuffle.errors import TopologyError
from simshuffle.fabric.routing import (
    DimensionOrder,
    DModK,
    Fabric,
    ForwardingTable,
    MinHop,
    Router,
    SModK,
    routing_of_network,
)
from simshuffle.fabric.routing.minimal import MinimalRouter
from simshuffle.fabric.topology import Torus
from simshuffle.fabric.topology.cabling import Cabling, SwitchGraph
from simshuffle.fabric.topology.directed_links import directed_links
from simshuffle.fabric.topology.graph import add_host, add_switch, connect, new_graph
from tests.attached import attach_storage
from tests.examples import SMALL, TOPOLOGIES
from tests.strategies import abci, fat_tree, star, switch_tree, switch_trees, torus_of, trees


def stands_in_levels(graph):
    """Whether D-mod-K knows the routes between the switches of a graph."""
    return SwitchGraph(Cabling.from_graph(graph)).stand_in_levels()


Ints = NDArray[np.int32]
HEIGHT = {"host": 0, "leaf": 1, "level2": 2, "fbb": 2, "level3": 3, "spine": 4, "storage": 5}


class Net:
    """A network with the nodes at the ends of every directed link, and its ports by host."""

    def __init__(self, graph: Any, table: Router | None = None) -> None:
        self.graph = graph
        self.table = ForwardingTable(graph) if table is None else table
        links = self.table.links
        self.number = {name: i for i, name in enumerate(links.names)}
        self.ends = [tuple(name.split("#")[0].split(">")) for name in links.names]
        self.host_of_port: dict[int, str] = {}
        self.storage_ports: list[int] = []
        for node, kind in graph.nodes(data="kind"):
            if kind != "switch":
                self.host_of_port.update(dict.fromkeys(self.table.endpoints(node), node))
            if kind == "storage":
                self.storage_ports += self.table.endpoints(node)
        self.ports = np.array(sorted(set(self.host_of_port) - set(self.storage_ports)), np.int32)

    def pairs(self) -> tuple[Ints, Ints]:
        """All ordered pairs of different host ports."""
        src, dst = np.repeat(self.ports, len(self.ports)), np.tile(self.ports, len(self.ports))
        return src[src != dst], dst[src != dst]

    def path(self, route: Ints) -> list[str]:
        """The nodes of a route, which must be padded at its end only."""
        used = [int(link) for link in route if link >= 0]
        assert used == [int(link) for link in route[: len(used)]]
        for a, b in pairwise(used):
            assert self.ends[a][1] == self.ends[b][0]
        return [self.ends[used[0]][0], *(self.ends[link][1] for link in used)]

    def heights(self, path: list[str]) -> list[int]:
        return [HEIGHT[self.graph.nodes[node]["tier"]] for node in path]

    def load(self, src: Ints, dst: Ints) -> NDArray[np.int64]:
        """Flows on every link."""
        routes = self.table.routes(src, dst)
        return np.bincount(routes[routes >= 0], minlength=len(self.table.links.names))

    def of_tier(self, tier: str) -> list[int]:
        return [i for i, name in enumerate(self.table.links.tiers) if name == tier]


def with_storage(topology: Any) -> Any:
    graph = topology.graph()
    attach_storage(graph, "pfs", bandwidth=12.5e9, latency=26e-9, links=1)
    return graph


def ring_of_switches(count: int, every: int = 1) -> Any:
    """A network that is no tree: each switch has two neighbours, and one in ``every`` has a
    host."""
    graph = new_graph()
    for i in range(count):
        add_switch(graph, f"s{i}", "leaf", 9e-8)
    for i in range(count):
        connect(graph, f"s{i}", f"s{(i + 1) % count}", bandwidth=1e9, latency=1e-9)
    for i in range(0, count, every):
        add_host(graph, f"h{i}")
        connect(graph, f"h{i}", f"s{i}", bandwidth=1e9, latency=1e-9)
    return graph


def mesh_of_switches() -> Any:
    """Switches on 3 x 3 grid points, two hosts each, double links in one direction of the grid."""
    graph = new_graph()
    for x in range(3):
        for y in range(3):
            add_switch(graph, f"s{x}{y}", "leaf", 9e-8)
    for x in range(3):
        for y in range(3):
            if x < 2:
                connect(graph, f"s{x}{y}", f"s{x + 1}{y}", bandwidth=1e9, latency=1e-9, links=2)
            if y < 2:
                connect(graph, f"s{x}{y}", f"s{x}{y + 1}", bandwidth=1e9, latency=1e-9)
            for k in range(2):
                add_host(graph, f"h{x}{y}{k}")
                connect(graph, f"h{x}{y}{k}", f"s{x}{y}", bandwidth=1e9, latency=1e-9)
    return graph


IRREGULAR = {
    "ring": lambda: ring_of_switches(7),
    "ring with hosts on every other switch": lambda: ring_of_switches(12, every=2),
    "mesh": mesh_of_switches,
}
"""Networks whose switches are no tree."""
FULL = [(2, 2), (2, 3), (2, 5), (3, 2), (3, 3), (3, 4), (4, 2)]


def made(name: str, folder: Path, storage: bool = False) -> Net:
    """The network of an example, maybe with storage."""
    if name in IRREGULAR:
        graph, topology = IRREGULAR[name](), None
    else:
        topology = TOPOLOGIES[name](folder)
        graph = topology.graph()
    if storage:
        attach_storage(graph, "pfs", bandwidth=12.5e9, latency=26e-9, links=2)
    fabric = Fabric(graph)
    rule = MinHop() if topology is None else routing_of_network(topology, fabric)
    return Net(graph, rule.router(fabric, 0))


@pytest.fixture(params=[*SMALL, *IRREGULAR])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def net(name: str, tmp_path: Path) -> Net:
    return made(name, tmp_path)


# -------------------------------------------------------------------------------------------- links


def check_links(graph: Any) -> None:
    links = directed_links(Cabling.from_graph(graph))
    between: dict[tuple[str, str], list[int]] = {}
    for number, name in enumerate(links.names):
        a, b = name.split("#")[0].split(">")
        between.setdefault((a, b), []).append(number)
    count = 2 * graph.number_of_edges()
    assert len(links.names) == len(set(links.names)) == len(links.tiers) == len(links) == count
    assert links.capacity.shape == links.latency.shape == (count,)
    assert sorted(number for numbers in between.values() for number in numbers) == list(
        range(count)
    )
    for (a, b), numbers in between.items():
        assert len(numbers) == graph.number_of_edges(a, b)
        for number, data in zip(numbers, graph[a][b].values(), strict=True):
            assert links.names[number].split("#")[0] == f"{a}>{b}"
            assert links.tiers[number] == f"{graph.nodes[a]['tier']}>{graph.nodes[b]['tier']}"
            assert links.cabling.names[links.dst_node[number]] == b
            assert links.capacity[number] == data["bandwidth"]
            assert links.latency[number] == pytest.approx(
                data["latency"] + graph.nodes[b]["latency"], rel=1e-12
            )


def test_every_cable_is_two_links(net):
    check_links(net.graph)
    for k in range(0, len(net.ends), 2):
        assert net.ends[k] == net.ends[k + 1][::-1]


@settings(max_examples=30, deadline=None)
@given(trees())
def test_every_cable_is_two_links_on_any_tree(topology):
    check_links(with_storage(topology))


# -------------------------------------------------------------------------------------------- paths


def distances(net: Net) -> dict[str, dict[str, int]]:
    """Links between switches; where routes are minimal, with as few links between groups as there
    can be, and of those the shortest."""
    switches = nx.Graph(
        net.graph.subgraph([n for n, k in net.graph.nodes(data="kind") if k == "switch"])
    )
    if not isinstance(net.table, MinimalRouter):
        return dict(nx.all_pairs_shortest_path_length(switches))
    group = {name: place[0] for name, place in switches.nodes(data="coordinates") if place}

    def cost(a: str, b: str, _: Any) -> int:
        return 1001 if a in group and b in group and group[a] != group[b] else 1

    steps = dict(nx.all_pairs_dijkstra_path_length(switches, weight=cost))
    return {a: {b: each % 1000 for b, each in to.items()} for a, to in steps.items()}


def check_routes(net: Net, src: Ints, dst: Ints) -> None:
    """From host to host through switches only, over no more links than needed."""
    distance = distances(net)
    for a, b, route in zip(src.tolist(), dst.tolist(), net.table.routes(src, dst), strict=True):
        path = net.path(route)
        assert (path[0], path[-1]) == (net.host_of_port[a], net.host_of_port[b])
        assert all(net.graph.nodes[node]["kind"] == "switch" for node in path[1:-1])
        assert len(path) - 1 == distance[path[1]][path[-2]] + 2


def test_routes_are_shortest_paths(net):
    check_routes(net, *net.pairs())


def test_routes_between_hosts_do_not_change_with_storage(name, tmp_path):
    """The switch of a file system belongs to it: nothing else passes it, and it draws no other
    traffic to it."""
    net, after = made(name, tmp_path), made(name, tmp_path, storage=True)
    before = net.table.routes(*net.pairs())
    names = [
        [[table.links.names[i] for i in route if i >= 0] for route in routes]
        for table, routes in (
            (net.table, before),
            (after.table, after.table.routes(*after.pairs())),
        )
    ]
    assert names[1] == names[0]


def test_routes_to_and_from_storage_are_shortest_paths(name, tmp_path):
    net = made(name, tmp_path, storage=True)
    (port,) = net.storage_ports
    far = np.full(len(net.ports), port, np.int32)
    check_routes(net, far, net.ports)
    check_routes(net, net.ports, far)


def test_ports_of_a_host_are_its_links_and_numbered_leaf_switch_by_leaf_switch(net):
    order = {node: i for i, node in enumerate(net.graph)}
    entered = [
        net.ends[int(net.table.routes(np.array([p], np.int32), net.ports[:1])[0, 0])][1]
        for p in net.ports
    ]
    assert list(net.ports) == list(range(len(net.ports)))
    assert [order[leaf] for leaf in entered] == sorted(order[leaf] for leaf in entered)
    for host in (n for n, k in net.graph.nodes(data="kind") if k == "host"):
        ports = net.table.endpoints(host)
        assert len(ports) == net.graph.degree(host)
        out = {int(net.table.routes(np.array([p], np.int32), net.ports[-1:])[0, 0]) for p in ports}
        into = [net.table.routes(net.ports[-1:], np.array([p], np.int32))[0] for p in ports]
        assert len(out) == len({int(route[route >= 0][-1]) for route in into}) == len(ports)
        assert {net.ends[link][0] for link in out} == {host}
        assert {net.ends[int(route[route >= 0][-1])][1] for route in into} == {host}


def test_routes_are_no_longer_than_the_diameter_and_latency_is_their_sum(net):
    routes = net.table.routes(*net.pairs())
    assert routes.shape[1] == net.table.diameter
    assert (routes >= 0).sum(axis=1).min() >= 2
    latencies = net.table.latencies(routes)
    for route, latency in list(zip(routes, latencies, strict=True))[::7]:
        path = net.path(route)
        cables = sum(net.graph[a][b][0]["latency"] for a, b in pairwise(path))
        crossed = sum(net.graph.nodes[node]["latency"] for node in path[1:-1])
        assert latency == pytest.approx(cables + crossed, rel=1e-12)
    none = np.zeros(0, np.int32)
    assert net.table.routes(none, none).shape == (0, net.table.diameter)
    assert net.table.latencies(net.table.routes(none, none)).shape == (0,)


# ------------------------------------------------------------------------------------------- static


@settings(max_examples=30, deadline=None)
@given(trees(), st.data())
def test_routes_do_not_depend_on_order_or_batching(topology, data):
    graph = topology.graph()
    src, dst = Net(graph).pairs()
    if not len(src):
        return
    whole = ForwardingTable(graph).routes(src, dst)
    order = np.random.default_rng(data.draw(st.integers(0, 2**32))).permutation(len(src))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(src)), max_size=6)))
    fresh = ForwardingTable(graph)
    parts = [fresh.routes(src[part], dst[part]) for part in np.split(order, cuts)]
    assert np.array_equal(np.concatenate(parts), whole[order])
    assert np.array_equal(fresh.routes(src, dst), whole)


@settings(max_examples=40, deadline=None)
@given(trees())
def test_never_up_after_down(topology):
    net = Net(topology.graph())
    for route in net.table.routes(*net.pairs()):
        heights = net.heights(net.path(route))
        top = heights.index(max(heights))
        assert all(b > a for a, b in pairwise(heights[: top + 1]))
        assert all(b < a for a, b in pairwise(heights[top:]))


CUT = [
    fat_tree(3, 4, taper=2),
    fat_tree(2, 6, taper=3),
    fat_tree(3, 3, hosts=14),
    *(fat_tree(4, 2, hosts=hosts) for hosts in (9, 13)),
    switch_tree(7, 10, taper=2, rails=2),
    *(switch_tree(8, hosts, rails=2) for hosts in (8, 20)),
]


@pytest.mark.parametrize("topology", [*(fat_tree(*size) for size in FULL), *CUT])
def test_up_links_follow_d_mod_k(topology):
    """At height l (leaves 0) traffic for port j goes up through link (j // K^l) mod K, links in the
    order of the parents."""
    net = Net(topology.graph())
    parents = [links.parents for links in topology.links()[1:]]
    tier = ["leaf", *(f"level{level}" for level in range(2, topology.num_levels)), "spine"]
    src, dst = net.pairs()
    checked = 0
    for goal, route in zip(dst.tolist(), net.table.routes(src, dst), strict=True):
        path = net.path(route)
        heights = net.heights(path)
        for a, b in list(pairwise(path))[1 : heights.index(max(heights))]:
            height = tier.index(net.graph.nodes[a]["tier"])
            neighbours = list(net.graph.neighbors(a))
            own, *others = net.heights([a, *neighbours])
            above = [n for n, of in zip(neighbours, others, strict=True) if of > own]
            stride = int(np.prod(parents[:height]))
            assert len(above) == parents[height]
            assert b == above[(goal // stride) % len(above)]
            checked += 1
    assert checked


# --------------------------------------------------------------------------------------- even loads


@pytest.mark.parametrize(("levels", "arity"), FULL)
def test_uniform_traffic_loads_all_links_of_a_level_equally(levels, arity):
    """All pairs on a k-ary n-tree: a link above subtrees of s hosts carries s (N - s) / s flows, up
    and down."""
    topology = fat_tree(levels, arity)
    net = Net(topology.graph())
    load = net.load(*net.pairs())
    hosts = arity**levels
    tier = ["host", "leaf", *(f"level{level}" for level in range(2, levels)), "spine"]
    for height, (low, high) in enumerate(pairwise(tier)):
        for name in (f"{low}>{high}", f"{high}>{low}"):
            assert set(load[net.of_tier(name)].tolist()) == {hosts - arity**height}


@pytest.mark.parametrize(
    ("levels", "arity", "taper"), [(2, 4, 1), (2, 4, 2), (3, 2, 1), (3, 3, 1), (3, 4, 2), (4, 2, 1)]
)
def test_reads_from_storage_load_all_links_of_a_level_equally(levels, arity, taper):
    """Every port has a chain of links of its own down the tree, whoever sends."""
    net = Net(with_storage(fat_tree(levels, arity, taper=taper)))
    load = net.load(np.full(len(net.ports), net.storage_ports[0], np.int32), net.ports)
    tier = ["host", "leaf", *(f"level{level}" for level in range(2, levels)), "spine", "storage"]
    for low, high in pairwise(tier):
        numbers = [i for i in net.of_tier(f"{high}>{low}") if net.ends[i][0] != "pfs"]
        assert set(load[numbers].tolist()) == {len(net.ports) // len(numbers)}, f"{high}>{low}"


def test_uniform_traffic_on_abci():
    """All pairs of 2176 HCAs. From a spine to an FBB switch a link serves 2 or 3 of the rack's 68
    destinations (68 / 24), each of them from the 31 x 68 HCAs outside; from an FBB switch to a leaf
    switch, 18 links serve 17 destinations."""
    net = Net(abci().graph())
    load = np.zeros(len(net.ends), np.int64)
    for part in np.array_split(net.ports, 8):
        src, dst = np.repeat(part, len(net.ports)), np.tile(net.ports, len(part))
        load += net.load(src[src != dst], dst[src != dst])
    outside = 31 * 68
    down = load[net.of_tier("spine>fbb")]
    assert set(down.tolist()) == {2 * outside, 3 * outside}
    assert down.sum() == 32 * 68 * outside
    within = load[net.of_tier("fbb>leaf")]
    assert np.count_nonzero(within == 0) == 32 * 4  # one of 18 links a leaf switch is spare
    assert set(within[within > 0].tolist()) <= {2176 - 17}
    for tier in ("leaf>fbb", "fbb>spine"):
        up = load[net.of_tier(tier)]
        assert np.abs(up / up.mean() - 1).max() <= 0.03, tier
    for tier in ("host>leaf", "leaf>host"):
        assert set(load[net.of_tier(tier)].tolist()) == {2175}


def overloaded(net: Net) -> dict[str, tuple[int, float]]:
    """Links between switches that carry more than 1.5 times the mean of their tier when every port
    sends to every other: their load, and that mean. Left out are those that serve one port alone,
    whose flows cannot be spread over several links."""
    src, dst = net.pairs()
    routes = net.table.routes(src, dst)
    tiers = np.array(net.table.links.tiers)
    out = {}
    for tier in [tier for tier in dict.fromkeys(tiers.tolist()) if "host" not in tier]:
        numbers = np.flatnonzero(tiers == tier)
        load = np.bincount(routes[routes >= 0], minlength=len(tiers))[numbers]
        for number, flows in zip(numbers.tolist(), load.tolist(), strict=True):
            on = (routes == number).any(axis=1)
            alone = min(len(np.unique(src[on])), len(np.unique(dst[on]))) == 1
            if flows > 1.5 * load.mean() and not alone:
                out[net.table.links.names[number]] = (flows, float(load.mean()))
    return out


@pytest.mark.parametrize("name", SMALL)
def test_uniform_traffic_loads_the_links_of_a_level_evenly(name, tmp_path):
    net = made(name, tmp_path)
    if stands_in_levels(net.graph):
        assert overloaded(net) == {}


class Grid(Torus):
    """A torus that names no routing."""

    default_routing: ClassVar[str] = "d_mod_k"


@pytest.mark.parametrize("width", [3, 4, 5])
def test_a_torus_keeps_the_contracts_by_dimension_order(width):
    """Along a ring of w switches the mean way is (w^2 - w mod 2) / 4w links; w^2 sources times w^2
    destinations go that way along each of the two axes, whose 4 w^2 links share it."""
    topology = torus_of([width, width])
    fabric = Fabric(topology.sketch())
    rule = routing_of_network(topology, fabric)
    assert isinstance(rule, DimensionOrder)
    net = Net(topology.graph(), rule.router(fabric, 0))
    src, dst = net.pairs()
    check_routes(net, src, dst)
    for route in net.table.routes(src, dst):
        places = [name[1:].split(".") for name in net.path(route)[1:-1]]
        axes = [0 if a[0] != b[0] else 1 for a, b in pairwise(places)]
        assert axes == sorted(axes)  # first along x, then along y
    assert overloaded(net) == {}
    load = net.load(src, dst)[net.of_tier("leaf>leaf")]
    mean = (width**2 - width % 2) / (4 * width) * 2 * width**4 / (4 * width**2)
    assert load.mean() == pytest.approx(mean)
    if width % 2:
        assert set(load.tolist()) == {mean}


@pytest.mark.parametrize("width", [4, 5])
def test_a_network_that_is_not_in_levels_gets_min_hop_unless_another_is_named(width):
    topology = Grid(**torus_of([width, width]).model_dump(mode="json", exclude_none=True))
    fabric = Fabric(topology.sketch())
    assert routing_of_network(topology, fabric) == MinHop()
    for rule in (DModK(), SModK()):
        with pytest.raises(TopologyError, match=r"cluster\.routing.*switches that stand in levels"):
            rule.router(fabric, 0)
    assert overloaded(Net(topology.graph()))  # and rightly: D-mod-K is not made for it
    for tree in (fat_tree(2, 3), abci(racks=2), star(3), switch_tree(8, 8, rails=2)):
        assert routing_of_network(tree, Fabric(tree.sketch())) == DModK()


@pytest.mark.parametrize(
    "graph",
    [fat_tree(3, 3, taper=3).graph(), abci(racks=2).graph(), star(3).graph()],
    ids=["fat tree", "abci", "star"],
)
def test_switches_of_a_tree_stand_in_levels_with_storage_or_without(graph):
    assert stands_in_levels(graph)
    attach_storage(graph, "pfs", bandwidth=12.5e9, latency=26e-9, links=2)
    assert stands_in_levels(graph)


def test_switches_with_one_way_between_them_need_no_levels():
    graph = ring_of_switches(5)
    assert not stands_in_levels(graph)
    graph.remove_edge("s0", "s4")
    assert stands_in_levels(graph)
    assert not stands_in_levels(mesh_of_switches())


# --------------------------------------------------------------------------------------- contention


@pytest.mark.parametrize(
    "topology",
    [
        *(fat_tree(2, arity) for arity in (3, 4, 6)),
        *(fat_tree(3, arity) for arity in (2, 3, 4)),
        fat_tree(2, 4, hosts=24),
        *(switch_tree(ports, hosts, rails=2) for ports, hosts in ((8, 8), (8, 16), (4, 8))),
        switch_tree(12, 24, rails=3),
        switch_tree(8, 32, rails=4),
    ],
)
def test_every_shift_is_free_of_contention(topology):
    """Under D-mod-K, no two flows of a permutation i -> i + s share a link of a full-bisection fat
    tree (Zahavi, JPDC 2012)."""
    net = Net(topology.graph())
    count = len(net.ports)
    for shift in range(1, count):
        assert net.load(net.ports, np.roll(net.ports, -shift)).max() == 1


def share(net: Net, src: Ints, dst: Ints) -> float:
    """Mean over the flows of 1 / (most flows on a link of the route)."""
    routes = net.table.routes(src, dst)
    load = np.append(np.bincount(routes[routes >= 0], minlength=len(net.ends)), 0)
    return float((1.0 / load[routes].max(axis=1)).mean())


@pytest.mark.parametrize(
    ("arity", "leaves", "permutation", "both_ways", "one_way"),
    [(18, 36, 0.664, 0.663, 0.808), (12, 24, 0.680, 0.676, 0.820), (18, 18, 0.687, 0.685, 0.823)],
)
def test_share_of_random_traffic(arity, leaves, permutation, both_ways, one_way):
    """The effective bisection bandwidth of Hoefler, Schneider & Lumsdaine (Cluster 2008), who found
    55 to 60 % on InfiniBand fat trees.

    A random permutation of the hosts; the first half sends to the second, one way or both ways; and
    the permutation itself as traffic. A flow gets 1 / (largest number of flows on a link of its
    route). The expected values come from an independent Monte-Carlo of D-mod-K routing (200 draws),
    which gives 0.51 to 0.54 and 0.68 to 0.70 for random static routes, so that other routing does
    not pass.
    """
    net = Net(fat_tree(2, arity, hosts=arity * leaves).graph())
    rng = np.random.default_rng(2008)
    shares = np.zeros((200, 3))
    half = len(net.ports) // 2
    for row in shares:
        order = net.ports[rng.permutation(len(net.ports))]
        first, second = order[:half], order[half:]
        moving = order != net.ports
        row[:] = (
            share(net, net.ports[moving], order[moving]),
            share(net, np.concatenate([first, second]), np.concatenate([second, first])),
            share(net, first, second),
        )
    assert shares.mean(axis=0) == pytest.approx([permutation, both_ways, one_way], abs=0.01)


@settings(max_examples=40, deadline=None)
@given(switch_trees())
def test_every_port_of_a_tree_of_switches_is_reached_and_no_level_has_a_hot_link(topology):
    """From every HCA of a host to every other one; and the destinations of a leaf switch share its
    links down evenly, whoever sends."""
    net = Net(with_storage(topology))
    src, dst = net.pairs()
    if len(src):
        check_routes(net, src, dst)
    load = net.load(np.full(len(net.ports), net.storage_ports[0], np.int32), net.ports)
    for leaf in [node for node, data in net.graph.nodes(data=True) if data["tier"] == "leaf"]:
        down = [i for i, (a, b) in enumerate(net.ends) if b == leaf and not a.startswith("h")]
        hosts = sum(a == leaf and b.startswith("h") for a, b in net.ends)
        assert load[down].sum() == hosts
        assert load[down].max() <= -(-hosts // len(down))


def test_tapered_tree_shares_its_uplinks():
    """All hosts of a leaf switch with a third of the links up send elsewhere: each gets a third, by
    integer division of the ports."""
    net = Net(fat_tree(2, 6, taper=3).graph())
    assert share(net, net.ports, np.roll(net.ports, -6)) == pytest.approx(1 / 3)
    rails = Net(switch_tree(6, 12, taper=2, rails=2).graph())  # 6 leaf switches of 4 hosts
    assert share(rails, rails.ports, np.roll(rails.ports, -4)) == pytest.approx(1 / 2)

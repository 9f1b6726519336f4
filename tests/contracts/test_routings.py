"""Every routing on every network for which it is known: routes lead where they should through
switches alone, the same for the same seed; and what its rule promises holds, by counting."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter

from simshuffle.errors import TopologyError
from simshuffle.fabric.network.deadlock import ChannelDependencies
from simshuffle.fabric.network.flows import Links
from simshuffle.fabric.network.packet import PacketNetwork
from simshuffle.fabric.routing import (
    Adaptive,
    DimensionOrder,
    DModK,
    Fabric,
    MinHop,
    Minimal,
    RandomStatic,
    Routing,
    RoutingRule,
    SModK,
    UpDown,
    Valiant,
)
from simshuffle.fabric.routing import fabric as fabric_module
from simshuffle.fabric.routing import router as router_module
from simshuffle.fabric.routing import steps as steps_module
from simshuffle.fabric.routing.dimension_order import SwitchGrid
from simshuffle.fabric.routing.min_hop import BalancedRouter
from simshuffle.fabric.routing.minimal import DetourDrawer, MinimalRouter
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    hash_words,
    link_loads,
    uniform_loads,
)
from simshuffle.fabric.topology import DragonflyPlus
from simshuffle.fabric.topology.cabling import Cabling, SwitchGraph
from simshuffle.fabric.topology.graph import (
    add_host,
    add_switch,
    connect,
    graph_problems,
    new_graph,
)
from simshuffle.job.plan.resources import Resources
from simshuffle.spec.library import parse_kind
from tests.attached import attach_storage
from tests.contracts.test_routing import IRREGULAR, Net, mesh_of_switches, ring_of_switches
from tests.examples import ROUTINGS, cluster, small_topologies, written
from tests.strategies import dragonfly as dragonfly_of
from tests.strategies import fat_tree, star, switch_tree, torus_of

Ints = NDArray[np.int32]
CABLE: dict[str, Any] = {"bandwidth": 1e9, "latency": 1e-9}


def dragonfly(groups: int, switches: int, hosts: int) -> Any:
    """Groups of switches that are all linked to one another; between any two groups one link, which
    leaves from the switches of a group in turn; the coordinates of a switch are its group and its
    place there."""
    graph, links = new_graph(), (groups - 1) // switches
    assert links * switches == groups - 1
    places = list(product(range(groups), range(switches)))
    for group, place in places:
        add_switch(graph, f"s{group}.{place}", "leaf", 9e-8, (group, place))
    for group, place in places:
        for other in range(place):
            connect(graph, f"s{group}.{place}", f"s{group}.{other}", **CABLE)
        for host in range(hosts):
            add_host(graph, f"h{group}.{place}.{host}")
            connect(graph, f"h{group}.{place}.{host}", f"s{group}.{place}", **CABLE)
    for a, b in product(range(groups), range(groups)):
        if a < b:
            ends = ((a, (b - a - 1) // links), (b, (groups - (b - a) - 1) // links))
            connect(graph, *(f"s{group}.{place}" for group, place in ends), **CABLE)
    return graph


NETWORKS: dict[str, Callable[[], Any]] = {
    **IRREGULAR,
    "torus": torus_of([4, 4]).graph,
    "dragonfly": lambda: dragonfly(5, 2, 2),
    "dragonfly of one link a switch": lambda: dragonfly(4, 3, 1),
}
"""Beside the small topologies."""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All networks by name, storage attached."""
    folder: Path = tmp_path_factory.mktemp("networks")
    made = {name: topology.graph() for name, topology in small_topologies(folder).items()}
    made |= {name: make() for name, make in NETWORKS.items()}
    for graph in made.values():
        assert graph_problems(graph, "") == []
        attach_storage(graph, "pfs", bandwidth=1e9, latency=0.0, links=2)
    return made


@pytest.fixture(scope="module")
def fabrics(graphs: dict[str, Any]) -> dict[str, Fabric]:
    return {name: Fabric(graph) for name, graph in graphs.items()}


def is_known(rule: RoutingRule, name: str, graph: Any) -> bool:
    """Whether a routing is known for a network, by what its description says."""
    if isinstance(rule, DModK | SModK):
        return SwitchGraph(Cabling.from_graph(graph)).stand_in_levels()
    groups = members_of_groups(graph)
    if isinstance(rule, DimensionOrder):
        return bool(groups)
    if isinstance(rule, Minimal | Valiant) or (isinstance(rule, Adaptive) and rule.detours):
        return (
            bool(groups)
            and all(nx.is_connected(nx.Graph(graph.subgraph(group))) for group in groups.values())
            and all(
                any(True for _ in nx.edge_boundary(graph, *two))
                for two in combinations(groups.values(), 2)
            )
        )
    return True


def members_of_groups(graph: Any) -> dict[int, list[str]]:
    """The switches by the first of their coordinates."""
    out: dict[int, list[str]] = {}
    for node, place in graph.nodes(data="coordinates"):
        if place:
            out.setdefault(place[0], []).append(node)
    return out


DRAWN = [rule for rule in ROUTINGS.values() if rule.drawn and rule != Adaptive()]
"""Those that draw; adaptive routing draws its detours alone."""


@pytest.fixture(params=ROUTINGS)
def rule(request: pytest.FixtureRequest) -> Any:
    return ROUTINGS[str(request.param)]


def nets(
    rule: RoutingRule, graphs: dict[str, Any], fabrics: dict[str, Fabric], seed: int = 1
) -> Iterator[tuple[str, Net]]:
    """The networks for which a routing is known, each with a fresh router."""
    for name, graph in graphs.items():
        if is_known(rule, name, graph):
            yield name, Net(graph, rule.router(fabrics[name], seed))


# ------------------------------------------------------------------------------------- all routings


def test_routes_lead_through_switches_to_the_destination(rule, graphs, fabrics):
    """Never through the switch of the storage; nowhere twice, but for detours."""
    detour = isinstance(rule, Valiant) or rule == Adaptive(detours=True)
    for name, net in nets(rule, graphs, fabrics):
        src, dst = net.pairs()
        routes = net.table.routes(src, dst)
        assert routes.dtype == np.int32 and routes.shape == (len(src), net.table.diameter)
        for a, b, route in zip(src.tolist(), dst.tolist(), routes, strict=True):
            path = net.path(route)
            assert (path[0], path[-1]) == (net.host_of_port[a], net.host_of_port[b]), name
            assert all(net.graph.nodes[node]["kind"] == "switch" for node in path[1:-1])
            assert "pfs.switch" not in path
            assert detour or len(set(path[1:-1])) == len(path) - 2


def test_storage_is_reached_and_read(rule, graphs, fabrics):
    for _, net in nets(rule, graphs, fabrics):
        far = np.full(len(net.ports), net.storage_ports[0], np.int32)
        for src, dst in ((far, net.ports), (net.ports, far)):
            for a, b, route in zip(src, dst, net.table.routes(src, dst), strict=True):
                path = net.path(route)
                ends = (net.host_of_port[int(a)], net.host_of_port[int(b)])
                assert (path[0], path[-1]) == ends
                assert path.count("pfs.switch") == 1


def test_the_same_seed_gives_the_same_routes(rule, graphs, fabrics):
    """By a fresh router, of a network that was made again; any seed does where nothing is drawn."""
    for name, net in nets(rule, graphs, fabrics):
        again = rule.router(Fabric(graphs[name]), 1 if rule.drawn else 2)
        pairs = net.pairs()
        assert np.array_equal(again.routes(*pairs), net.table.routes(*pairs)), name
        if not rule.remembers:
            assert np.array_equal(again.routes(*pairs), net.table.routes(*pairs)), name


@pytest.mark.parametrize("rule", DRAWN, ids=str)
def test_another_seed_gives_other_routes_where_they_are_drawn(rule, fabrics):
    fabric = fabrics["fat tree of 3 levels" if is_known(rule, "", new_graph()) else "dragonfly"]
    ports = np.arange(20, dtype=np.int32)
    src, dst = np.repeat(ports, 20), np.tile(ports, 20)
    found = [rule.router(fabric, seed).routes(src, dst) for seed in (1, 2)]
    assert not np.array_equal(*found)


def test_what_is_not_known_is_refused_by_name(rule, graphs, fabrics):
    for name, graph in graphs.items():
        if not is_known(rule, name, graph):
            with pytest.raises(TopologyError) as caught:
                rule.router(fabrics[name], 0)
            (problem,) = caught.value.problems
            assert problem.path == "cluster.routing"
            assert problem.rule.startswith(rule.kind) and problem.value and problem.remedy


def test_a_switch_looks_at_the_destination_alone_where_that_is_said(rule, graphs, fabrics):
    for name, net in nets(rule, graphs, fabrics):
        if not isinstance(net.table, HopByHop) or not net.table.by_destination:
            continue
        src, dst = net.pairs()
        following: dict[tuple[str, int], int] = {}
        for goal, route in zip(dst.tolist(), net.table.routes(src, dst), strict=True):
            for link in route[1:][route[1:] >= 0].tolist():
                assert following.setdefault((net.ends[link][0], goal), link) == link, name


def test_those_that_look_at_the_destination_alone_say_so(fabrics):
    fabric = fabrics["fat tree of 3 levels"]
    rules = (DModK(), RandomStatic(), MinHop(), UpDown())
    assert all(rule.router(fabric, 0).by_destination for rule in rules)  # type: ignore[attr-defined]
    assert not SModK().router(fabric, 0).by_destination  # type: ignore[attr-defined]


def test_routes_are_shortest_where_that_is_said(rule, graphs, fabrics):
    """But for up*/down*, and, among groups, for ways with one hop between groups."""
    if isinstance(rule, UpDown | Minimal | Valiant) or rule == Adaptive(detours=True):
        return
    for name, net in nets(rule, graphs, fabrics):
        if isinstance(rule, Adaptive) and name.startswith("dragonfly"):
            continue
        among = [n for n, d in net.graph.nodes(data=True) if d["kind"] == "switch"]
        switches = nx.Graph(net.graph.subgraph(n for n in among if n != "pfs.switch"))
        distance = dict(nx.all_pairs_shortest_path_length(switches))
        src, dst = net.pairs()
        for route in net.table.routes(src, dst):
            path = net.path(route)
            assert len(path) - 1 == distance[path[1]][path[-2]] + 2, name


@pytest.mark.parametrize("rule", [Minimal(), Adaptive()], ids=str)
def test_minimal_ways_have_one_hop_between_groups(rule):
    """And at most one inside the first group and one inside the last."""
    net = Net(graph := dragonfly(5, 2, 2), rule.router(Fabric(graph), 0))
    for route in net.table.routes(*net.pairs()):
        switches = [name[1:].split(".") for name in net.path(route)[1:-1]]
        groups = [group for group, _ in switches]
        assert sum(a != b for a, b in pairwise(groups)) == (groups[0] != groups[-1])
        assert max(Counter(groups).values()) <= 2


def test_short_form_and_description_of_each(rule):
    read: Any = TypeAdapter(Routing)
    assert read.validate_python(rule.model_dump(mode="json")) == rule
    assert read.validate_python(parse_kind("ecmp:queue_pairs=4,salt=none")).queue_pairs == 4
    assert rule.describe().startswith(rule.kind)


# ---------------------------------------------------------------------------------------- deadlocks


def circle(net: Net, routes: Ints) -> list[int] | None:
    table = net.table.links
    return ChannelDependencies(Links(table.capacity, table.latency, table.names)).add_routes(routes)


@pytest.mark.parametrize("rule", [DModK(), SModK(), UpDown()], ids=str)
def test_no_link_waits_for_itself_in_a_circle(rule, graphs, fabrics):
    """Up*/down* on any network, the others on trees."""
    for name, net in nets(rule, graphs, fabrics):
        if graphs[name].graph.get("height") is not None or isinstance(rule, UpDown):
            assert circle(net, net.table.routes(*net.pairs())) is None, name


def test_up_down_goes_up_and_then_down_in_trees(graphs, fabrics):
    trees = [name for name, graph in graphs.items() if graph.graph.get("height") is not None]
    assert len(trees) > 10
    for name in trees:
        net = Net(graphs[name], UpDown().router(fabrics[name], 0))
        cabling = fabrics[name].cabling
        height = dict(zip(cabling.names, cabling.depth.tolist(), strict=True))
        for route in net.table.routes(*net.pairs()):
            heights = [height[node] for node in net.path(route)]
            top = heights.index(max(heights))
            assert all(b > a for a, b in pairwise(heights[: top + 1])), name
            assert all(b < a for a, b in pairwise(heights[top:])), name


def lengths(graph: Any, rule: RoutingRule) -> dict[tuple[int, int], int]:
    """Links between the switches of hosts h0, h1, ... on the routes between them."""
    net = Net(graph, rule.router(Fabric(graph), 0))
    out = {}
    for route in net.table.routes(*net.pairs()):
        path = net.path(route)
        out[int(path[0][1:]), int(path[-1][1:])] = len(path) - 3
    return out


@pytest.mark.parametrize("count", [4, 5, 7, 8])
def test_lengths_of_up_down_on_a_ring(count):
    """All switches have hosts, so all are roots, and of two of a level the lower number is up. From
    i to a higher j it leads down all the way, j - i, from 0 to the last one directly. From i to a
    lower j it leads up all the way, i - j; or from the last one up to 0, and down."""
    last = count - 1
    expected = {}
    for i, j in product(range(count), range(count)):
        if i < j:
            expected[i, j] = 1 if (i, j) == (0, last) else j - i
        elif i > j:
            expected[i, j] = min(i - j, 1 + j) if i == last else i - j
    assert lengths(ring_of_switches(count), UpDown()) == expected


def test_lengths_of_up_down_on_a_ring_with_a_root():
    """Root 0 of seven: levels 0 1 2 3 3 2 1, and 3 is above 4. Nothing leads down and up again:
    from 1, 2, 3 to 4 down, to 5 and 6 through the root; from 4 up on either side."""
    expected = {(0, j): min(j, 7 - j) for j in range(1, 7)}
    expected |= {(i, 0): min(i, 7 - i) for i in range(1, 7)}
    for side in ((1, 2, 3), (4, 5, 6)):
        expected |= {(i, j): abs(i - j) for i, j in product(side, side) if i != j}
    for i, j in product((1, 2, 3), (4, 5, 6)):
        expected[i, j] = 4 - i if j == 4 else i + 7 - j
        expected[j, i] = min(4 - i, 3 + i) if j == 4 else 7 - j + i
    assert lengths(ring_of_switches(7), UpDown(roots=["s0"])) == expected


def test_up_down_counts_the_way_that_is_taken():
    """Of switches that all have hosts the lower number is up. From 9 to 8 leads no way down. By 1
    it would be short: up to 0 and down, 3 links; but 1 can go down all the way and does, by 2, 3,
    4. So 9 goes by 5, 6, 7."""
    graph = new_graph()
    for i in range(10):
        add_switch(graph, f"s{i}", "leaf", 9e-8)
        add_host(graph, f"h{i}")
        connect(graph, f"h{i}", f"s{i}", **CABLE)
    ways = [(0, 1), (0, 8), (1, 2), (2, 3), (3, 4), (4, 8), (2, 5), (5, 6), (6, 7), (7, 8)]
    ways += [(1, 9), (5, 9)]
    for a, b in ways:
        connect(graph, f"s{a}", f"s{b}", **CABLE)
    net = Net(graph, UpDown().router(Fabric(graph), 0))
    (route,) = net.table.routes(np.array([9], np.int32), np.array([8], np.int32))
    assert net.path(route) == ["h9", "s9", "s5", "s6", "s7", "s8", "h8"]
    (route,) = net.table.routes(np.array([1], np.int32), np.array([8], np.int32))
    assert net.path(route) == ["h1", "s1", "s2", "s3", "s4", "s8", "h8"]


@pytest.mark.parametrize("busy", ["m", "n"])
def test_up_down_falls_back_on_the_switch_in_the_middle_with_the_most_links(busy):
    """Leaves a and b stand below t0 and t1, the farthest from hosts: as roots they would have all
    between them go down and up again. Of the switches from which none is farther than 3 links, m or
    n has the most: ways go up to it and down. Leaf a has more, and b is farther from it."""
    graph = new_graph()
    below = list("cdefg")
    leaves = ["a", "b", "m", "n", "x", "y", "z", *below]
    for name in [*leaves, "t0", "t1"]:
        add_switch(graph, name, "leaf" if name in leaves else "spine", 9e-8)
    for name in leaves:
        add_host(graph, f"h{name}")
        connect(graph, f"h{name}", name, **CABLE)
    other = "n" if busy == "m" else "m"
    ways = [("a", "t0"), ("b", "t1"), *product("mn", ("t0", "t1")), *product("a", below)]
    for a, b in [*ways, ("x", busy), ("y", busy), ("z", other)]:
        connect(graph, a, b, **CABLE)
    fabric = Fabric(graph)
    net = Net(graph, UpDown().router(fabric, 0))
    paths = [net.path(route) for route in net.table.routes(*net.pairs())]
    assert ["ha", "a", "t0", busy, "t1", "b", "hb"] in paths
    assert ["hb", "b", "t1", busy, "t0", "a", "ha"] in paths
    rule = "up and then down; got roots t0, t1 between which ways go down and up again"
    with pytest.raises(TopologyError, match=rule):
        UpDown(roots=["t0", "t1"]).router(fabric, 0)


@pytest.mark.parametrize("roots", [["s0", "h0"], ["none"]])
def test_roots_must_be_switches(roots):
    with pytest.raises(TopologyError, match=r"names of switches as roots; got '(h0|none)'"):
        UpDown(roots=roots).router(Fabric(ring_of_switches(5)), 0)


def ring_with_coordinates(count: int) -> Any:
    graph = ring_of_switches(count)
    for i in range(count):
        graph.nodes[f"s{i}"]["coordinates"] = (i,)
    return graph


@pytest.mark.parametrize("count", [4, 5, 6, 9])
def test_dimension_order_on_a_ring_is_refused_where_buffers_can_fill(count):
    net = Net(graph := ring_with_coordinates(count), DimensionOrder().router(Fabric(graph), 0))
    found = circle(net, net.table.routes(*net.pairs()))
    if count == 4:
        # half-way round, even and odd destinations go in different directions: no circle closes
        assert found is None
        return
    assert found is not None
    names = {net.table.links.names[link] for link in found}
    assert names in (
        {f"s{i}>s{(i + 1) % count}" for i in range(count)},
        {f"s{(i + 1) % count}>s{i}" for i in range(count)},
    )


# -------------------------------------------------------------------------------------------- trees

FULL = [fat_tree(2, 3), fat_tree(2, 4), fat_tree(3, 2), fat_tree(3, 3), switch_tree(8, 8, rails=2)]


def up_links(net: Net, route: Ints) -> list[int]:
    """The links of a route that lead to a higher level, from switch to switch."""
    heights = net.heights(net.path(route))
    used = route[route >= 0].tolist()
    return [link for link, (a, b) in zip(used, pairwise(heights), strict=True) if 0 < a < b]


@pytest.mark.parametrize("topology", FULL, ids=lambda each: str(each.arity or each.ports))
def test_messages_of_a_source_share_one_chain_of_links_up(topology):
    graph = topology.graph()
    net = Net(graph, SModK().router(Fabric(graph), 0))
    src, dst = net.pairs()
    chains: dict[tuple[int, int], int] = {}
    for a, route in zip(src.tolist(), net.table.routes(src, dst), strict=True):
        for height, link in enumerate(up_links(net, route)):
            assert chains.setdefault((a, height), link) == link
    assert len(chains) == len(net.ports) * (topology.num_levels - 1)


@pytest.mark.parametrize("topology", FULL, ids=lambda each: str(each.arity or each.ports))
def test_s_mod_k_is_d_mod_k_backwards(topology):
    """From a to b it takes the cables that D-mod-K takes from b to a; so the loads of all-to-all
    are those of D-mod-K in the other direction."""
    graph = topology.graph()
    fabric = Fabric(graph)
    by_source, by_destination = (Net(graph, rule.router(fabric, 0)) for rule in (SModK(), DModK()))
    src, dst = by_source.pairs()
    there, back = by_source.table.routes(src, dst), by_destination.table.routes(dst, src)
    for one, other in zip(there, back, strict=True):
        assert [link ^ 1 for link in other[other >= 0][::-1].tolist()] == one[one >= 0].tolist()
    load = by_source.load(src, dst).reshape(-1, 2)
    assert np.array_equal(load[:, ::-1], by_destination.load(src, dst).reshape(-1, 2))


def tree_of(links: list[str], hosts: dict[str, int]) -> Net:
    """A network of switches, each link such as "a:b c" from one to some; by D-mod-K."""
    graph = new_graph()
    pairs = [
        (a, b) for a, _, others in (link.partition(":") for link in links) for b in others.split()
    ]
    for switch in dict.fromkeys(end for pair in pairs for end in pair):
        add_switch(graph, switch, "leaf", 0.0)
    for leaf, count in hosts.items():
        for number in range(count):
            add_host(graph, host := f"{leaf}.h{number}")
            connect(graph, host, leaf, **CABLE)
    for pair in pairs:
        connect(graph, *pair, **CABLE)
    return Net(graph, DModK().router(Fabric(graph), 0))


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        # destination e goes up by b(e % 4), and from there by x for e < 4, else by y, where there
        # are both; down by the (e % 4)th of three switches, counted round
        (
            ["a:a0 a1 a2 a3", "b:b0 b1 b2 b3", "x:a0 a1 a2 b0 b1 b2", "y:a1 a2 a3 b1 b2 b3"],
            ["x a0", "x a1", "x a2", "y a1", "x a0", "y a2", "y a3", "y a1"],
        ),
        # the route up of e is by a(e % 2), then by the (e // 2 % 2)th above; down by the same
        (
            ["a:a0 a1", "a0:t0 t1", "a1:t2 t3", "b:b0", "b0:u0", "f:t0 t1 t2 t3 u0"],
            ["t0 a0", "t2 a1", "t1 a0", "t3 a1"] * 2,
        ),
        (
            ["a:a0 a1", "a0:t0 t1", "a1:t0 t1", "b:b0", "b0:u0", "f:t0 t1 u0"],
            ["t0 a0", "t0 a1", "t1 a0", "t1 a1"] * 2,
        ),
    ],
)
def test_d_mod_k_leads_down_by_the_digits_of_the_way_up(links, expected):
    net = tree_of(links, {"a": 8, "b": 1})
    routes = net.table.routes(np.full(8, 8, np.int32), np.arange(8, dtype=np.int32))
    assert [" ".join(net.path(route)[-4:-2]) for route in routes] == expected


def test_min_hop_gives_links_that_are_alike_equal_numbers_of_destinations(graphs, fabrics):
    """Of each switch, the links that stand in one choice together and in no other: at most one
    destination more or less, storage included."""
    sets = 0
    for name in graphs:
        fabric = fabrics[name]
        router = MinHop().router(fabric, 0)
        assert isinstance(router, BalancedRouter)
        given = np.bincount(router.table[router.table >= 0], minlength=len(fabric.links.names))
        of = fabric.shortest_choices
        choices = [of.links[a:b].tolist() for a, b in pairwise(of.first_link.tolist())]
        members = Counter(link for choice in choices for link in choice)
        for choice in choices:
            if len(choice) > 1 and all(members[link] == 1 for link in choice):
                assert np.ptp(given[choice]) <= 1, name
                sets += 1
    assert sets > 50


def test_min_hop_takes_the_lowest_port_among_equals():
    """Two leaf switches of two hosts and two spines, which are on ports 9 and 8 of each leaf: of
    two destinations of the other leaf switch the first goes by the second spine."""
    graph = fat_tree(2, 2).graph()
    for a, b, data in graph.edges(data=True):
        if "spine" in b:
            data["ports"] = (9 - int(b[-1]), int(a[-1]))
    net = Net(graph, MinHop().router(Fabric(graph), 0))
    routes = net.table.routes(np.zeros(2, np.int32), np.array([2, 3], np.int32))
    assert [net.path(route)[2] for route in routes] == ["spine.1", "spine.0"]


def test_dimension_order_is_the_same_with_a_table_and_on_a_grid(graphs, fabrics, monkeypatch):
    grids = [name for name, fabric in fabrics.items() if SwitchGrid.from_fabric(fabric) is not None]
    assert len(grids) > 3
    for name in grids:
        pairs = Net(graphs[name], DimensionOrder().router(fabrics[name], 0)).pairs()
        found = DimensionOrder().router(fabrics[name], 0).routes(*pairs)
        with monkeypatch.context() as patch:
            patch.setattr(SwitchGrid, "from_fabric", lambda _: None)
            expected = DimensionOrder().router(fabrics[name], 0).routes(*pairs)
        assert [row[row >= 0].tolist() for row in found] == [
            row[row >= 0].tolist() for row in expected
        ], name


# ---------------------------------------------------------------------------- dragonflies, adaptive


def between_groups(net: Net) -> list[int]:
    """The links from group to group."""
    group = [tuple(end.split(".")[0] for end in ends) for ends in net.ends]
    return [i for i, (a, b) in enumerate(group) if a[0] == b[0] == "s" and a != b]


def test_valiant_puts_twice_as_much_on_the_links_between_groups():
    """Of g groups the switch on the way stands in that of the source or of the destination with
    probability 2/g, and then there is one hop between groups in place of two: 2 - 2/g in the mean.
    All pairs 20 times; six standard deviations of a binomial."""
    groups, repeats = 9, 20
    graph = dragonfly(groups, 4, 1)
    fabric = Fabric(graph)
    straight, around = (Net(graph, rule.router(fabric, 3)) for rule in (Minimal(), Valiant()))
    src, dst = (np.tile(ends, repeats) for ends in straight.pairs())
    links = between_groups(straight)
    least, most = (net.load(src, dst)[links].sum() for net in (straight, around))
    assert least == repeats * 36 * 32
    share = 2 / groups
    deviation = np.sqrt(least * share * (1 - share))
    assert abs(most - least * (2 - share)) < 6 * deviation
    assert most / least == pytest.approx(2, abs=0.25)


def test_valiant_draws_anew_for_messages_that_come_later():
    graph = dragonfly(5, 2, 2)
    net = Net(graph, Valiant().router(Fabric(graph), 3))
    pairs = net.pairs()
    first, second = net.table.routes(*pairs), net.table.routes(*pairs)
    assert not np.array_equal(first, second)
    both = Valiant().router(Fabric(graph), 3).routes(*(np.tile(ends, 2) for ends in pairs))
    assert np.array_equal(both, np.concatenate([first, second]))


def test_valiant_spreads_what_minimal_puts_on_one_link():
    """Every host of group i sends to group i + 1, 50 messages each: straight, one link of each
    group takes all 200 of its 4 hosts; by other groups, its 8 links take about 25 (2 - 2/g) each.
    With detours it is something between both."""
    groups, each = 9, 50
    graph = dragonfly(groups, 4, 1)
    fabric = Fabric(graph)
    src = np.repeat(np.arange(groups * 4, dtype=np.int32), each)
    dst = (src + 4) % (groups * 4)
    straight, around, adaptive, detours = (
        Net(graph, rule.router(fabric, 3))
        for rule in (Minimal(), Valiant(), Adaptive(), Adaptive(detours=True))
    )
    links = between_groups(straight)
    for net in (straight, adaptive):
        load = net.load(src, dst)[links]
        assert sorted(set(load.tolist())) == [0, 200] and np.count_nonzero(load) == groups
    mean = 200 * (2 - 2 / groups) / 8
    load = around.load(src, dst)[links]
    assert load.mean() == pytest.approx(mean, rel=0.03)
    assert load.max() < 2 * mean
    some = detours.load(src, dst)[links]
    assert straight.load(src, dst)[links].sum() < some.sum() < load.sum()
    assert load.max() < some.max() < 150


@pytest.mark.parametrize("arity", [2, 3, 4, 6, 18])
def test_adaptive_puts_at_most_two_messages_of_a_permutation_on_a_link(arity):
    """On a full tree of two levels, in any order. Of the ``arity`` spine switches between two leaf
    switches, the links up carry at most arity - 1 messages of other hosts in all, and the links
    down as many: 2 arity - 2 over arity ways. So the least loaded way carries at most one, and its
    links at most two with the new message. (By the links up alone, one down would carry up to
    arity.)"""
    graph = fat_tree(2, arity).graph()
    fabric = Fabric(graph)
    rng = np.random.default_rng(5)
    hosts = np.arange(arity**2, dtype=np.int32)
    for _ in range(30):
        net = Net(graph, Adaptive().router(fabric, 0))
        assert net.load(hosts, rng.permutation(hosts)).max() <= 2


@pytest.mark.parametrize("hosts_per_switch", [1, 2, 3])
def test_adaptive_uses_all_links_between_two_groups(hosts_per_switch):
    """Six leaf and six spine switches a group; a spine switch has one link to each other group. All
    hosts of a group send to another: each of the six links gets hosts_per_switch messages, and each
    link up or down one at most. (If each leaf switch looked at its own links alone, the first spine
    switches would get them all.)"""
    graph = DragonflyPlus(
        kind="dragonfly_plus",
        link_bandwidth="1 GB/s",
        groups=3,
        leaf_switches=6,
        spine_switches=6,
        hosts_per_switch=hosts_per_switch,
        global_links_per_switch=2,
    ).graph()
    net = Net(graph, Adaptive().router(Fabric(graph), 0))
    per_group = 6 * hosts_per_switch
    first = net.ports[:per_group]
    load = net.load(first, net.ports[per_group : 2 * per_group])
    between_groups = load[net.of_tier("spine>spine")]
    assert sorted(between_groups[between_groups > 0]) == [hosts_per_switch] * 6
    assert load.max() == max(hosts_per_switch, 1)


@pytest.mark.parametrize("arity", [2, 3, 4, 6])
def test_adaptive_all_to_all_and_shifts_are_even(arity):
    """Sent in order, the ``arity`` messages of a host to a leaf switch take one link up each, and
    so one link down each: all links of a full tree carry arity (arity - 1). A shift puts one
    message at most on a link: two leaf switches send to each leaf switch, one by its first links
    and the other by the rest."""
    graph = fat_tree(2, arity).graph()
    fabric = Fabric(graph)
    net = Net(graph, Adaptive().router(fabric, 0))
    load = net.load(*net.pairs())
    between = net.of_tier("leaf>spine") + net.of_tier("spine>leaf")
    assert set(load[between].tolist()) == {arity * (arity - 1)}
    for shift in range(1, arity**2):
        net = Net(graph, Adaptive().router(fabric, 0))
        assert net.load(net.ports, np.roll(net.ports, -shift)).max() == 1


# ---------------------------------------------------------------------------------- packet network


@pytest.mark.parametrize("rule", [DimensionOrder(), MinHop(), UpDown()], ids=str)
def test_the_packet_network_refuses_circles_and_names_them(rule, tmp_path):
    """All messages at once between the hosts of a ring of five switches, read from a file."""
    graph = ring_of_switches(5)
    for i in range(5):
        graph.nodes[f"s{i}"]["coordinates"] = str(i)
    machine = cluster(written(graph, tmp_path / "ring.json", multi=True), routing=rule)
    resources = Resources(machine, 5, np.random.default_rng(0))
    ranks = np.arange(5)
    routes, _ = resources.message(np.repeat(ranks, 5), np.tile(ranks, 5))
    far = routes[(routes >= 0).sum(axis=1) > 1]
    table = resources.links
    links = Links(table.capacity, table.latency, table.names)
    network = PacketNetwork(links, mtu=4096.0, port_buffer=65536.0)
    if isinstance(rule, UpDown):
        network.inject(0.0, far, np.ones(len(far)))
        return
    with pytest.raises(TopologyError, match="s0>s1 -> s1>s2 -> s2>s3 -> s3>s4 -> s4>s0 -> s0>s1"):
        network.inject(0.0, far, np.ones(len(far)))


def test_adaptive_routing_remembers_what_it_gave_before():
    """k messages between two leaf switches, asked for one by one, take k different ways up."""
    fabric = Fabric(fat_tree(2, 4).sketch())
    router = Adaptive().router(fabric, 0)
    src, dst = np.array([0], np.int32), np.array([5], np.int32)
    taken = [int(router.routes(src, dst)[0, 1]) for _ in range(8)]
    assert len(set(taken[:4])) == len(set(taken[4:])) == 4


def test_adaptive_routing_looks_at_the_switches_on_its_ways_alone(monkeypatch):
    """It asks for no table of choices of all pairs of switches, with detours or without; and
    whether the switches stand in groups is asked of the network once."""

    def none(*_: object) -> None:
        raise AssertionError("choices of all switches are made")

    looked = 0
    whole = fabric_module.direct_steps

    def counted(*given: Any) -> Any:
        nonlocal looked
        looked += 1
        return whole(*given)

    monkeypatch.setattr(Fabric, "build_choices", none)
    monkeypatch.setattr(fabric_module, "direct_steps", counted)
    for graph, detours in ((dragonfly(5, 2, 2), True), (fat_tree(2, 3).graph(), False)):
        fabric = Fabric(graph)
        router = Adaptive(detours=detours).router(fabric, 1)
        ports = np.arange(len(fabric.switch_of_port), dtype=np.int32)
        for _ in range(3):
            found = router.routes(ports[:-1], ports[1:])
        assert (fabric.entered_switch[found[:, 1]] >= -1).all()
    assert looked == 1


def test_tori_are_no_groups_and_that_takes_no_table(monkeypatch):
    monkeypatch.setattr(fabric_module, "direct_steps", None)
    assert not Fabric(torus_of([4, 4]).graph()).has_linked_groups


def test_adaptive_routing_says_between_whom_no_route_leads():
    """The compiled search would run on over the end of its arrays."""
    fabric = fabric_module.Fabric(fat_tree(2, 4).sketch())
    arcs = fabric.goal_arcs
    nothing = arcs._replace(first_arc=np.zeros_like(arcs.first_arc))
    fabric.__dict__["goal_arcs"] = nothing
    ports = np.array([0, len(fabric.inject_link) - 1], np.int32)
    names = [
        fabric.cabling.names[fabric.links.src_node[fabric.inject_link[port]]] for port in ports
    ]
    with pytest.raises(TopologyError, match=f"no route leads from {names[0]} to {names[1]}"):
        Adaptive().router(fabric, 1).routes(ports[:1], ports[1:])


# --------------------------------------------------------------------------- lengths, hops, batches


@pytest.mark.parametrize(
    ("graph", "rule", "links"),
    [
        # between hosts 2; from a storage system its cable, the one to the switch, the host's
        (star(3).graph(), DModK(), 3),
        (fat_tree(2, 3).graph(), SModK(), 4),
        (fat_tree(3, 2).graph(), DModK(), 6),
        (fat_tree(2, 3).graph(), Adaptive(), 4),
        # 3 of 7 switches on, and room for one more to a storage system
        (ring_of_switches(7), MinHop(), 2 + 3 + 1),
        (star(3).graph(), UpDown(), 2),
        # from switch 3 by the root 0 to 5: 3 up and 2 down
        (ring_of_switches(7), UpDown(roots=["s0"]), 2 + 5),
        # half of a ring of 4, a third of one of 3, and one more to a storage system
        (torus_of([4, 3]).graph(), DimensionOrder(), 2 + (2 + 1) + 1),
        # one hop in each group and one between them; with a detour all three twice
        (dragonfly(5, 2, 2), Minimal(), 2 + 3),
        (dragonfly(5, 2, 2), Valiant(), 2 + 2 * 3),
        (dragonfly(5, 2, 2), Adaptive(), 2 + 3),
        (dragonfly(5, 2, 2), Adaptive(detours=True), 2 + 2 * 3),
    ],
)
def test_routes_are_as_wide_as_the_longest(graph, rule, links):
    assert rule.router(Fabric(graph), 1).diameter == links


class FirstLinks(HopByHop):
    """Takes the first link of each choice, and notes which hops of how many messages it chose."""

    by_destination = True

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.hops: list[tuple[int, int]] = []

    def choose(self, step: MessagePositions) -> Ints:
        self.hops.append((step.hop, len(step.message)))
        return self.select_link(step, np.zeros(len(step.switch), np.int64))


def test_hops_are_counted_from_the_first_switch_on():
    """Of the 8 hosts of a binary tree of three levels, host 0 sends to host 1 of its own leaf
    switch, to 2 below the same switch of level 2, and to 7 by a spine: 0, 2 and 4 hops."""
    router = FirstLinks(Fabric(fat_tree(3, 2).sketch()))
    router.routes(np.zeros(3, np.int32), np.array([1, 2, 7], np.int32))
    assert router.hops == [(1, 2), (2, 2), (3, 1), (4, 1)]
    # all to all: a group of messages for each of 4 leaf switches and 8 destinations; 4 x 2 are at
    # their goal, 4 x 2 have 2 hops within their half of the tree, and 4 x 4 have 4
    router = FirstLinks(router.fabric)
    uniform_loads(router, np.arange(8, dtype=np.int32))
    assert router.hops == [(1, 24), (2, 24), (3, 16), (4, 16)]


@pytest.mark.parametrize("rule", [DModK(), SModK()], ids=str)
def test_loads_do_not_depend_on_how_many_routes_are_found_at_once(rule, monkeypatch):
    """All pairs of 9 hosts on a full tree: 8 messages on each link of a host, and 3 hosts send 6
    each over 3 links up."""
    router = rule.router(Fabric(fat_tree(2, 3).sketch()), 0)
    ports = np.arange(9, dtype=np.int32)
    expected = [8 if "h" in name else 6 for name in router.links.names]
    for at_once in (1, 7, 1 << 20):
        monkeypatch.setattr(router_module, "_ROUTES_AT_ONCE", at_once)
        assert uniform_loads(router, ports).tolist() == expected
    monkeypatch.setattr(router_module, "_ROUTES_AT_ONCE", 2)
    src, dst = np.array([0, 0, 0, 4, 0], np.int32), np.array([1, 1, 1, 3, 1], np.int32)
    load = link_loads(router, src, dst)
    assert load[router.fabric.inject_link[[0, 4]]].tolist() == [4, 1]
    assert load[router.fabric.eject_link[[1, 3]]].tolist() == [4, 1]
    assert load.sum() == 2 * 5


# ---------------------------------------------------------------------------------- hashes, detours


def test_hashes_are_those_of_splitmix64():
    """The first and second number of the generator from seed 1234567 (Vigna's splitmix64.c); each
    word is added to the state, so that a second word 1 follows the first number of another."""
    assert hash_words(1234567).tolist() == [6457827717110365317]
    # the state goes on by the constant: 1234567 + 2 c, whose first step is the second number
    second = np.uint64((1234567 + 0x9E3779B97F4A7C15) % 2**64)
    assert hash_words(second).tolist() == [3203168211198807973]
    # a second word is added to what the first has become
    first = int(hash_words(5)[0])
    sums = np.array([(first + word) % 2**64 for word in (0, 9)], np.uint64)
    assert hash_words(5, np.array([0, 9])).tolist() == hash_words(sums).tolist()


def test_detours_are_drawn_message_by_message_and_not_within_a_group():
    """Of 5 groups of 2 switches; messages are counted on from call to call, those that need no
    detour too."""
    graph = dragonfly(5, 2, 1)
    attach_storage(graph, "pfs", **CABLE, links=1)
    fabric = Fabric(graph)
    pfs = fabric.endpoints("pfs")[0]
    drawer = DetourDrawer(fabric, 7)
    # host 2 g + s is on switch s of group g
    src = np.array([0, 1, pfs, 9, 3, 8], np.int32)
    dst = np.array([9, 0, 4, pfs, 6, 1], np.int32)
    found = [*drawer.draw(src[:3], dst[:3]).tolist(), *drawer.draw(src[3:], dst[3:]).tolist()]
    # every one of the ten switches with hosts may be drawn, but not that of the storage
    drawn = (hash_words(7, np.arange(6)) % np.uint64(10)).tolist()
    assert found == [drawn[0], -1, -1, -1, drawn[4], drawn[5]]
    many = np.zeros(400, np.int32)
    assert set(DetourDrawer(fabric, 1).draw(many, many + 9).tolist()) == set(range(10))


def test_groups_must_be_joined_by_one_hop_for_all_of_their_switches():
    """Two switches in each of two groups, with a link each to the other group; in group 0 they are
    not linked to one another, so that a message between them goes to group 1 and back."""
    graph = new_graph()
    places = list(product(range(2), range(2)))
    for group, place in places:
        add_switch(graph, f"s{group}.{place}", "leaf", 9e-8, (group, place))
        add_host(graph, f"h{group}.{place}")
        connect(graph, f"h{group}.{place}", f"s{group}.{place}", **CABLE)
    for place in range(2):
        connect(graph, f"s0.{place}", f"s1.{place}", **CABLE)
    connect(graph, "s1.0", "s1.1", **CABLE)
    assert not Fabric(graph).has_linked_groups
    connect(graph, "s0.0", "s0.1", **CABLE)
    assert Fabric(graph).has_linked_groups


# -------------------------------------------------------------------------------------------- grids


def grid(positions: list[tuple[int, ...]], links: list[tuple[int, int]]) -> Any:
    """Switches at positions, with a host each, and links between them by their numbers."""
    graph = new_graph()
    for number, position in enumerate(positions):
        add_switch(graph, f"s{number}", "leaf", 9e-8, position)
        add_host(graph, f"h{number}")
        connect(graph, f"h{number}", f"s{number}", **CABLE)
    for a, b in links:
        connect(graph, f"s{a}", f"s{b}", **CABLE)
    return graph


def add_storage(graph: Any, name: str, switches: list[str], **more: Any) -> None:
    graph.add_node(f"{name}.switch", kind="switch", tier="storage", latency=0.0, **more)
    graph.add_node(name, kind="storage", tier="storage", latency=0.0)
    connect(graph, name, f"{name}.switch", **CABLE)
    for switch in switches:
        connect(graph, f"{name}.switch", switch, **CABLE)


# two rows of three: numbers 0 1 2 and 3 4 5; a mesh
PLACES = list(product(range(2), range(3)))
MESH = [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]
ALL = [f"s{number}" for number in range(6)]


def test_a_mesh_is_a_grid_with_storage_at_all_of_its_switches_or_without():
    graph = grid(PLACES, MESH)
    add_storage(graph, "pfs", ALL)
    add_storage(graph, "scratch", ALL)
    for fabric in (Fabric(grid(PLACES, MESH)), Fabric(graph)):
        found = SwitchGrid.from_fabric(fabric)
        assert found is not None
        assert found.longest_distance == 1 + 2  # from corner to corner
        assert found.strides.tolist() == [3, 1]


NO_GRIDS: dict[str, Callable[[], Any]] = {
    "no coordinates": lambda: grid([()] * 6, MESH),
    "a corner is missing": lambda: grid(PLACES[:5], [(0, 1), (1, 2), (3, 4), (0, 3), (1, 4)]),
    "a switch without a place": lambda: grid([*PLACES, ()], [*MESH, (5, 6)]),
    "a link across": lambda: grid(PLACES, [*MESH, (0, 4)]),
    "one row is wired otherwise": lambda: grid(PLACES, [*MESH[1:], (0, 2)]),
    "one row has a link more": lambda: grid(PLACES, [*MESH, (0, 2)]),
    # rows 0 1 and 2 3 of four switches in two columns: no way leads from row 1 to row 2
    "a dimension in two parts": lambda: grid(
        list(product(range(4), range(2))),
        [(0, 2), (1, 3), (4, 6), (5, 7), (0, 1), (2, 3), (4, 5), (6, 7)],
    ),
}


@pytest.mark.parametrize("name", NO_GRIDS)
def test_switches_that_form_no_full_grid_are_none(name):
    assert SwitchGrid.from_fabric(Fabric(NO_GRIDS[name]())) is None


def test_storage_at_some_switches_of_a_grid_or_at_other_storage_makes_it_none():
    some, placed, joined = (grid(PLACES, MESH) for _ in range(3))
    add_storage(some, "pfs", ALL[:5])
    add_storage(placed, "pfs", ALL, coordinates=(0, 0))
    # two that are linked to one another, and each to five switches: six neighbours, too
    add_storage(joined, "pfs", ALL[1:])
    add_storage(joined, "scratch", [*ALL[:5], "pfs.switch"])
    for graph in (some, placed, joined):
        assert SwitchGrid.from_fabric(Fabric(graph)) is None


# ----------------------------------------------------------------------------------------- D-mod-K


def test_reads_take_the_parallel_links_of_storage_by_the_digit_above():
    """Three leaf switches of three hosts below three spines, each with two links to the storage.
    Port p comes down by spine p mod 3, as it goes up by it, and to that by link (p // 3) mod 2."""
    graph = fat_tree(2, 3).graph()
    attach_storage(graph, "pfs", **CABLE, links=2)
    net = Net(graph, DModK().router(Fabric(graph), 0))
    src = np.full(9, net.storage_ports[0], np.int32)
    first = net.table.routes(src, net.ports)[:, 1]
    assert [net.table.links.names[link] for link in first] == [
        f"pfs.switch>spine.{port % 3}#{port // 3 % 2}" for port in range(9)
    ]


def test_dragonflies_of_one_group_have_no_hop_between_groups():
    """4 switches that are all linked: one hop. Valiant draws no detour within a group."""
    fabric = Fabric(dragonfly_of(groups=1).sketch())
    assert fabric.longest_direct_route == 2 + 1
    routes = Valiant().router(fabric, 1).routes(np.zeros(3, np.int32), np.array([1, 2, 3]))
    assert (routes >= 0).sum(axis=1).tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("src", "detour", "straight", "around", "taken"),
    [
        # host 0 by s1.0: s straight and d other messages cost 2 s and 4 d
        (
            0,
            2,
            ["h0.0.0", "s0.0", "s0.1", "s4.0", "h4.0.0"],
            ["h0.0.0", "s0.0", "s1.1", "s1.0", "s1.1", "s4.0", "h4.0.0"],
            "SDSSDSSD",
        ),
        # host 3, whose switch has a link to the goal's, by s0.0: s and 3 d
        (
            3,
            0,
            ["h1.1.0", "s1.1", "s4.0", "h4.0.0"],
            ["h1.1.0", "s1.1", "s0.0", "s0.1", "s4.0", "h4.0.0"],
            "SDSSSDSSSD",
        ),
    ],
)
def test_a_message_goes_round_where_the_straight_way_costs_more(
    src, detour, straight, around, taken
):
    """The load of the fullest link times the links between switches; equal costs go straight. Of 5
    groups of 2 switches group 0 is linked to 4 by its second, and 1 to 4 by its second, too."""
    graph = dragonfly(5, 2, 1)
    router: Any = Adaptive(detours=True).router(Fabric(graph), 0)

    class FixedDetour:
        def draw(self, src: Ints, dst: Ints) -> Ints:
            return np.full(len(src), detour, np.int32)

    router._detours = FixedDetour()
    net = Net(graph, router)
    count = len(taken)
    routes = net.table.routes(np.full(count, src, np.int32), np.full(count, 8, np.int32))
    paths = {"S": straight, "D": around}
    assert [net.path(route) for route in routes] == [paths[way] for way in taken]


def test_minimal_routes_are_the_same_for_every_seed():
    """Two links between any two groups, and between any two switches of a group."""
    fabric = Fabric(dragonfly_of(groups=5, local_links=2).sketch())
    ports = np.arange(20, dtype=np.int32)
    src, dst = np.repeat(ports, 20), np.tile(ports, 20)
    expected = MinimalRouter(fabric, 0).routes(src, dst)
    for seed in (1, 7):
        assert np.array_equal(Minimal().router(fabric, seed).routes(src, dst), expected)
    assert not np.array_equal(MinimalRouter(fabric, 1).routes(src, dst), expected)


@pytest.mark.parametrize(
    ("rule", "graph"), [(UpDown(), mesh_of_switches()), (Minimal(), dragonfly(5, 2, 2))]
)
def test_routes_do_not_depend_on_how_many_steps_are_found_at_once(rule, graph, monkeypatch):
    """Goals are taken one by one, or a few at a time: 24 arcs of the mesh, 30 of the dragonfly."""
    attach_storage(graph, "pfs", **CABLE, links=2)
    pairs = Net(graph, rule.router(Fabric(graph), 0)).pairs()
    expected = rule.router(Fabric(graph), 0).routes(*pairs)
    for at_once in (1, 100):
        monkeypatch.setattr(steps_module, "_STEPS_AT_ONCE", at_once)
        assert np.array_equal(rule.router(Fabric(graph), 0).routes(*pairs), expected)

"""Routing by given tables: the ways that the tables say, and no table that leads nowhere."""

import hashlib

import numpy as np
import pytest

from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.network_fabric import fabric_of_network
from simshuffle.fabric.routing import DModK, Fabric, ForwardingTables, MinHop
from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile, TableRouter
from simshuffle.fabric.topology.graph import Sketch, add_host, add_switch
from tests.attached import attach_storage
from tests.contracts.test_opensm import compare
from tests.strategies import abci, fat_tree, switch_tree

NETWORKS = {
    "two levels": lambda: fat_tree(2, 3),
    "three levels": lambda: fat_tree(3, 3),
    "two rails and parallel links": lambda: switch_tree(8, 8, rails=2),
    "abci": lambda: abci(racks=2, hosts_per_rack=6, leaf_fbb_links=2, fbb_spine_links=2),
}
STORAGE = {"bandwidth": 1e9, "latency": 0.0, "links": 1}


def with_ports(topology):
    """The network, its ports numbered."""
    return fabric_of_network(topology.sketch(), "net").sketch()


def tables_of(router):
    """What a router does, as tables."""
    fabric = router.fabric
    cabling = fabric.cabling
    port_of = np.append(cabling.ports.ravel(), 0)
    table = compare.table_of(router)
    table[fabric.switch_of_port, np.arange(len(fabric.switch_of_port))] = fabric.eject_link
    owners = cabling.names
    places = [
        (owners[node], int(port_of[link]))
        for node, link in zip(
            fabric.links.dst_node[fabric.eject_link].tolist(),
            fabric.inject_link.tolist(),
            strict=True,
        )
    ]
    names = fabric.switch_names(np.arange(len(table)))
    rows = {name: port_of[row].tolist() for name, row in zip(names, table, strict=True)}
    return ForwardingTableFile(destinations=places, switches=rows, source="a router")


def every_pair(fabric):
    ports = np.arange(len(fabric.switch_of_port), dtype=np.int32)
    src, dst = np.repeat(ports, len(ports)), np.tile(ports, len(ports))
    return src[src != dst], dst[src != dst]


@pytest.mark.parametrize("rule", [MinHop(), DModK()], ids=lambda rule: rule.kind)
@pytest.mark.parametrize("name", NETWORKS)
def test_routes_are_those_that_the_tables_say(name, rule, tmp_path):
    fabric = Fabric(with_ports(NETWORKS[name]()))
    router = rule.router(fabric, 0)
    path = tmp_path / "tables.json"
    path.write_text(tables_of(router).to_json())
    given = ForwardingTables(path=str(path)).router(fabric, 0)
    pairs = every_pair(fabric)
    expected, found = router.routes(*pairs), given.routes(*pairs)
    assert found.shape[1] == given.diameter <= router.diameter
    padded = np.full_like(expected, -1)
    padded[:, : found.shape[1]] = found
    np.testing.assert_array_equal(padded, expected)


def test_tables_are_read_back_as_written():
    fabric = Fabric(with_ports(fat_tree(2, 3)))
    tables = tables_of(MinHop().router(fabric, 0))
    assert ForwardingTableFile.model_validate_json(tables.to_json()) == tables


def test_storage_that_the_tables_do_not_know_is_reached_both_ways():
    sketch = with_ports(fat_tree(2, 3))
    tables = tables_of(MinHop().router(Fabric(sketch), 0))
    attach_storage(sketch, "pfs", **STORAGE)
    fabric = Fabric(sketch)
    router = TableRouter(fabric, tables, "x")
    src, dst = every_pair(fabric)
    routes = router.routes(src, dst)
    last = routes[np.arange(len(src)), (routes >= 0).sum(axis=1) - 1]
    np.testing.assert_array_equal(routes[:, 0], fabric.inject_link[src])
    np.testing.assert_array_equal(last, fabric.eject_link[dst])


@pytest.fixture
def small():
    """A tree of two levels, and its tables as they may be changed."""
    fabric = Fabric(with_ports(fat_tree(2, 2)))
    return fabric, tables_of(MinHop().router(fabric, 0)).model_dump()


def refused(fabric, changed):
    with pytest.raises(TopologyError) as caught:
        TableRouter(fabric, ForwardingTableFile(**changed), "the file")
    assert caught.value.source == "the file"
    assert all(problem.remedy for problem in caught.value.problems)
    return caught.value.problems


def port_towards(fabric, switch, other):
    cabling = fabric.cabling
    for (a, b), (p, q) in zip(cabling.ends.tolist(), cabling.ports.tolist(), strict=True):
        if {cabling.names[a], cabling.names[b]} == {switch, other}:
            return p if cabling.names[a] == switch else q
    raise AssertionError(f"{switch} is not linked to {other}")


def names_by_depth(fabric):
    depth = fabric.switches.depth
    names = np.array(fabric.switch_names(np.arange(len(depth))))
    return names[depth == 0].tolist(), names[depth == 1].tolist()


def test_a_circle_is_named(small):
    fabric, changed = small
    leaves, spines = names_by_depth(fabric)
    host, _ = changed["destinations"][0]
    home = fabric.switch_names(fabric.switch_of_port[fabric.endpoints(host)])[0]
    away = next(leaf for leaf in leaves if leaf != home)
    for spine in spines:
        changed["switches"][spine][0] = port_towards(fabric, spine, away)
    problem = refused(fabric, changed)[0]
    assert f"{host} port 1 must be reached" in problem.rule
    assert "a circle: " in problem.value
    assert away in problem.value
    assert any(spine in problem.value for spine in spines)


def test_a_destination_without_a_port_is_named_with_the_switch(small):
    fabric, changed = small
    _, spines = names_by_depth(fabric)
    host, _ = changed["destinations"][0]
    for spine in spines:
        changed["switches"][spine][0] = 0
    problem = refused(fabric, changed)[0]
    assert problem.path in {f"switches.{spine}" for spine in spines}
    assert host in problem.rule
    assert problem.value == "no port for it"


def test_a_port_without_a_cable_is_named(small):
    fabric, changed = small
    _, spines = names_by_depth(fabric)
    changed["switches"][spines[0]][0] = 31
    problem = refused(fabric, changed)[0]
    assert (problem.path, problem.value) == (f"switches.{spines[0]}", "port 31")
    assert "must have a cable" in problem.rule


def test_the_last_switch_sends_to_the_host_itself(small):
    fabric, changed = small
    host, _ = changed["destinations"][0]
    home = fabric.switch_names(fabric.switch_of_port[fabric.endpoints(host)])[0]
    changed["switches"][home][0] = port_towards(fabric, home, names_by_depth(fabric)[1][0])
    assert "must leave by the port that leads there" in refused(fabric, changed)[0].rule


def test_hosts_and_switches_that_are_missing_are_named(small):
    fabric, changed = small
    (leaf, *_), _ = names_by_depth(fabric)
    host, _ = changed["destinations"].pop(0)
    for row in changed["switches"].values():
        row.pop(0)
    del changed["switches"][leaf]
    problems = {problem.path: problem for problem in refused(fabric, changed)}
    assert host in problems["destinations"].value
    assert problems[f"switches.{leaf}"].rule == "every switch needs a table"


def test_a_row_of_another_length_is_refused(small):
    fabric, changed = small
    (leaf, *_), _ = names_by_depth(fabric)
    changed["switches"][leaf].append(1)
    assert "for each of the 4 destinations" in refused(fabric, changed)[0].rule


def test_links_without_ports_are_refused(small):
    _, given = small
    with pytest.raises(TopologyError, match="links with ports"):
        TableRouter(Fabric(fat_tree(2, 2).sketch()), ForwardingTableFile(**given), "x")


def line_of_switches(port_to_s2=2):
    """Switches s1 - s0 - s2 with a host at both ends, and a switch s3 that hangs on s0 alone. The
    middle comes first; ports have numbers of their own, the highest one of s0 leads to s3."""
    sketch = Sketch()
    for name in ("s0", "s1", "s2", "s3"):
        add_switch(sketch, name, "leaf", 1e-7)
    for name in ("h1", "h2"):
        add_host(sketch, name)
    cables = [("s0", "s1", (4, 3)), ("s0", "s2", (port_to_s2, 5)), ("s0", "s3", (9, 8))]
    cables += [("s1", "h1", (7, 1)), ("s2", "h2", (6, 1))]
    for a, b, ports in cables:
        sketch.add_edge(a, b, bandwidth=1e9, latency=0.0, ports=ports)
    return Fabric(sketch)


# ports to h1 and to h2
LINE = {"s0": [4, 2], "s1": [7, 3], "s2": [5, 6], "s3": [8, 8]}


def tables_of_line(**changed):
    return {"destinations": [("h1", 1), ("h2", 1)], "switches": {**LINE, **changed}}


def test_a_route_by_hand_and_its_length():
    fabric = line_of_switches()
    router = TableRouter(fabric, ForwardingTableFile(**tables_of_line()), "x")
    (there, back) = router.routes(np.array([0, 1], np.int32), np.array([1, 0], np.int32))
    names = fabric.links.names
    assert [names[link] for link in there] == ["h1>s1", "s1>s0", "s0>s2", "s2>h2"]
    assert [names[link] for link in back] == ["h2>s2", "s2>s0", "s0>s1", "s1>h1"]
    assert router.diameter == 4
    # two hosts of one switch: no hop between switches
    alone = Fabric(with_ports(fat_tree(1, 2)))
    assert TableRouter(alone, tables_of(MinHop().router(alone, 0)), "x").diameter == 2


@pytest.mark.parametrize(
    ("changed", "path", "rule", "value"),
    [
        ({"s0": [0, 2]}, "switches.s0", "h1 port 1 must be reached", "no port for it"),
        ({"s0": [1, 2]}, "switches.s0", "port towards h1 port 1 must have a cable", "port 1"),
        ({"s0": [2, 2]}, "switches.s2", "h1 port 1 must be reached", "a circle: s2 > s0 > s2"),
        ({"s2": [6, 6]}, "switches.s2", "h1 port 1 must be reached", "no port for it"),
        # past its goal's switch and never back
        ({"s0": [9, 2]}, "switches.s0", "h1 port 1 must be", "a circle: s2 > s0 > s3 > s0"),
    ],
)
def test_a_route_that_ends_nowhere_is_named_by_the_switch_where_it_does(changed, path, rule, value):
    (problem,) = refused(line_of_switches(), tables_of_line(**changed))
    assert (problem.path, problem.value) == (path, value)
    assert rule in problem.rule


def test_port_number_zero_is_no_route_even_where_a_cable_has_that_number():
    (problem,) = refused(line_of_switches(port_to_s2=0), tables_of_line(s0=[4, 0]))
    assert (problem.path, problem.value) == ("switches.s0", "no port for it")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Invalid JSON"),
        ('{"destinations": [], "switches": {"a": [-1]}}', "greater than or equal to 0"),
        ('{"destinations": [["a"]], "switches": {}}', "Field required"),
        ('{"destinations": [], "switches": {}, "more": 1}', "Extra inputs"),
    ],
)
def test_a_file_that_is_none_is_refused(text, told, tmp_path):
    path = tmp_path / "tables.json"
    path.write_text(text)
    with pytest.raises(TopologyError, match=told):
        ForwardingTables(path=str(path)).tables()


def test_a_file_that_is_not_there_or_has_changed_is_refused(small, tmp_path):
    fabric, given = small
    path = tmp_path / "tables.json"
    with pytest.raises(TopologyError, match="cannot be read"):
        ForwardingTables(path=str(path)).router(fabric, 0)
    with pytest.raises(TopologyError, match="is not a file"):
        ForwardingTables(path=str(tmp_path)).router(fabric, 0)
    path.write_text(ForwardingTableFile(**given).to_json())
    same = hashlib.sha256(path.read_bytes()).hexdigest()
    ForwardingTables(path=str(path), sha256=same).router(fabric, 0)
    with pytest.raises(TopologyError, match="no longer the file"):
        ForwardingTables(path=str(path), sha256="0" * 64).router(fabric, 0)

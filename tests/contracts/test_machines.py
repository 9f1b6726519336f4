"""The machines below topologies/: switches, cables, diameter, injection and bisection, worked out
by hand, beside what is published of them."""

import itertools
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.routing import DimensionOrder, Fabric
from simshuffle.fabric.routing.dimension_order import DimensionOrderRouter
from simshuffle.fabric.topology import HyperX, Torus
from simshuffle.fabric.topology.cabling import FAR, Cabling
from simshuffle.job.plan import wiring
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.library import read_yaml, shipped_folder
from simshuffle.spec.validation import validate_record
from tests.attached import attach_storage
from tests.strategies import torus_of

HOST, LEAF, SPINE, MIDDLE = "host", "leaf", "spine", "level2"


# hosts, links between the two switches with hosts that are farthest apart, TB/s of all hosts into
# the fabric, TB/s between two halves of the groups, or of the hosts, one way, and the most ports
# in use on a switch
FIGURES: dict[str, tuple[int, int, float, float, int]] = {
    "summit": (4608, 4, 106.0, 53.0, 36),
    "fugaku": (158_976, 49, 6486.2, 6912 * 6.8e-3, 11),
    "frontier": (9408, 3, 940.8, 136.9, 57),
    "juwels-booster": (936, 3, 93.6, 25.0, 40),
    "perlmutter": (1536, 3, 38.4, 7.2, 26),
    "piz-daint": (5704, 4, 55.3, 7 * 8 * 48 * 4.7e-3, 41),
    "selene": (560, 4, 112.0, 56.0, 40),
    "jupiter": (5884, 3, 588.4, 156.0, 96),
    "leonardo": (3456, 3, 172.8, 45.0, 58),
    "marenostrum5": (1120, 4, 112.0, 28.0, 128),
    "alps": (2688, 3, 268.8, 28.8, 53),
    "aurora": (10_624, 3, 2124.8, 344.5, 50),
    "abci-3": (766, 2, 153.2, 76.6, 128),
    "dgx-h100-pod": (127, 2, 50.8, 25.4, 64),
    "gb200-nvl72": (360, 2, 72.0, 36.0, 64),
}
# switches by tier, and cables by the two tiers that they join
BUILT: dict[str, tuple[dict[str, int], dict[tuple[str, str], int]]] = {
    # 256 racks x 2 leaf switches, 18 links up and 18 down each. 15 x 18 chips of a rail above them
    # (29 x 18 = 522 would do for both rails, not 540), 18 directors x 18 chips at the top. Up,
    # up, down, down. User guide: non-blocking, 23 GB/s a node: 4608 x 23 GB/s = 106 TB/s.
    "summit": (
        {LEAF: 256 * 2, MIDDLE: 15 * 18 * 2, SPINE: 18 * 18},
        {(HOST, LEAF): 4608 * 2, (LEAF, MIDDLE): 512 * 18, (MIDDLE, SPINE): 540 * 18},
    ),
    # RIKEN: 158,976 nodes. A node has 2 + 2 + 2 links in X, Y, Z, 1 in A, 2 in B, 1 in C: of X, Z
    # and B one cable for each node, half of one of A and C, and 22/23 of one of Y, a line here.
    # Half of 24 + 22 + half of 24 + 1 + 1 + 1. Y cut once: 158,976 / 23 links of 6.8 GB/s. With
    # the host's 10 + 1 ports.
    "fugaku": (
        {LEAF: 158_976},
        {(HOST, LEAF): 158_976, (LEAF, LEAF): 4 * 158_976 + 158_976 * 22 // 23},
    ),
    # 74 groups x 32 switches; 9408 of 74 x 128 = 9472 nodes; 31 x 32 / 2 cables in a group, 4 of
    # every two groups. ORNL at ATPESC 2024: 270 TB/s of global links, 57 % of injection: all
    # global links of a half, 37 x 37 x 4 x 25 GB/s = 137 TB/s, both ways 274. 16 + 31 ports, and
    # 292 / 32 to other groups.
    "frontier": (
        {LEAF: 74 * 32},
        {(HOST, LEAF): 9408 * 4, (LEAF, LEAF): 74 * 31 * 16 + 74 * 73 // 2 * 4},
    ),
    # 20 cells of 10 + 10 switches, 2 cables a pair, 10 of every two cells. Kesselheim et al., ISC
    # 2021 workshops (remembered): 400 Tbit/s both ways = 2 x 10 x 10 x 10 x 25 GB/s. 5 hosts x 4,
    # and 20 ports up.
    "juwels-booster": (
        {LEAF: 200, SPINE: 200},
        {(HOST, LEAF): 936 * 4, (LEAF, SPINE): 20 * 10 * 10 * 2, (SPINE, SPINE): 190 * 10},
    ),
    # NERSC: 12 cabinets x 128 nodes. 24 groups of 16 switches, 2 cables of every two groups. 8 + 15
    # ports, and 46 / 16 to other groups.
    "perlmutter": (
        {LEAF: 24 * 16},
        {(HOST, LEAF): 1536 * 2, (LEAF, LEAF): 24 * 15 * 8 + 24 * 23 // 2 * 2},
    ),
    # 15 groups of 6 chassis x 16 routers: 16 x 15 / 2 cables in each of 6 chassis, 3 x 6 x 5 / 2
    # in each of 16 slots; 48 of every two groups, so half of the routers, one next to each other
    # one, have a link to a given group: at most 1 + 1 + 2 hops. 4 + 15 + 5 x 3 + 7 ports.
    "piz-daint": (
        {LEAF: 15 * 96},
        {(HOST, LEAF): 5704, (LEAF, LEAF): 15 * (6 * 120 + 16 * 45) + 15 * 14 // 2 * 48},
    ),
    # NVIDIA, DGX A100 SuperPOD: 4 x 56 leaf and 4 x 80 spine switches; 850 switches in all
    # (Narayanan et al., SC21). 560 hosts / 20 = 28 leaf switches of a rail. 40 ports.
    "selene": (
        {LEAF: 224, MIDDLE: 320, SPINE: 140},
        {(HOST, LEAF): 4480, (LEAF, MIDDLE): 224 * 20, (MIDDLE, SPINE): 320 * 14},
    ),
    # JSC: 15 and 16 switches a group, 25 groups; 32 x 2 NDR200 down from a leaf switch, 2 NDR up
    # to each spine. 20 cables of every two groups: 12 x 13 x 20 x 50 GB/s. 64 ports, of which 32
    # are split in two.
    "jupiter": (
        {LEAF: 375, SPINE: 400},
        {(HOST, LEAF): 5884 * 4, (LEAF, SPINE): 25 * 15 * 32, (SPINE, SPINE): 25 * 24 // 2 * 20},
    ),
    # 19 cells of 180 nodes and one of 36, 18 + 18 switches each; 10 x 4 HDR100 down from a leaf
    # switch and 18 HDR up, one from each spine to each other cell: 190 x 18. CINECA: 400 Gbit/s a
    # node. 10 x 10 x 18 x 25 GB/s. 40 + 18 ports, the 40 being 20 that are split in two.
    "leonardo": (
        {LEAF: 360, SPINE: 360},
        {(HOST, LEAF): 3456 * 4, (LEAF, SPINE): 20 * 18 * 18, (SPINE, SPINE): 190 * 18},
    ),
    # BSC: 7 islands, 1120 nodes of 800 Gbit/s. 10 leaf switches an island with 64 NDR200 down and
    # 64 up, to 8 above, which have 20 x 2 up each: 7 x 8 x 40 x 25 GB/s both ways. Up, up, down,
    # down. 128 NDR200 of a leaf switch are 64 ports of NDR.
    "marenostrum5": (
        {LEAF: 70, "fbb": 56, SPINE: 20},
        {(HOST, LEAF): 4480, ("fbb", LEAF): 7 * 10 * 64, ("fbb", SPINE): 7 * 8 * 40},
    ),
    # CSCS: 24 cabinets x 112 nodes. 32 switches each, 8 cables of every two groups. 16 + 31 ports,
    # and 184 / 32 to other groups.
    "alps": (
        {LEAF: 24 * 32},
        {(HOST, LEAF): 2688 * 4, (LEAF, LEAF): 24 * 31 * 16 + 24 * 23 // 2 * 8},
    ),
    # ALCF: 166 racks x 64 nodes, 2 cables of every two groups; 4 links for the 8 of a host.
    # 10,624 x 200 GB/s; 83 x 83 x 2 x 25 GB/s. 8 + 31 ports, and 330 / 32 to other groups.
    "aurora": (
        {LEAF: 166 * 32},
        {(HOST, LEAF): 10_624 * 4, (LEAF, LEAF): 166 * 31 * 16 + 166 * 165 // 2 * 2},
    ),
    # 12 pods x 8 leaf switches, a cable of each to each of 64 spines. 766 x 200 GB/s.
    "abci-3": (
        {LEAF: 96, SPINE: 64},
        {(HOST, LEAF): 766 * 8, (LEAF, SPINE): 96 * 64},
    ),
    # NVIDIA, RA-11333-001 V11, Table 4, four units: 127 nodes, 32 leaf and 16 spine switches, 1024
    # cables between them; 1020 to nodes and the fabric manager, of which 127 x 8 are to nodes.
    "dgx-h100-pod": (
        {LEAF: 32, SPINE: 16},
        {(HOST, LEAF): 127 * 8, (LEAF, SPINE): 1024},
    ),
    # Units of 144 trays have ceil(144 / 32) = 5 leaf switches a rail, the last unit of 72 three:
    # 4 x (5 + 5 + 3). A cable of each to each of 32 spines. 1,440 x 50 GB/s.
    "gb200-nvl72": (
        {LEAF: 52, SPINE: 32},
        {(HOST, LEAF): 360 * 4, (LEAF, SPINE): 52 * 32},
    ),
}
STARS = {
    "abci-a": "not found",
    "dgx-spark": "the star is their fabric",
    "dgx1-v100": "not found",
    "dgx2h": "not found",
    "h100": "not known",
    "mlperf-storage": "unknown",
    "pascal-25g": "not published",
}
"""What a file says of a fabric that stands as a star."""


def machine(name: str) -> Cluster:
    (raw,) = read_yaml(shipped_folder("topologies") / f"{name}.yaml")
    cluster, problems = validate_record(raw, Cluster)
    assert cluster is not None and not problems
    return cluster


def cabling(name: str) -> Cabling:
    """That of a machine, without its file system."""
    return Cabling.from_graph(machine(name).topology.sketch())


def of_hosts(found: Cabling) -> Any:
    """Which cables lead to hosts."""
    return np.isin(found.ends, found.nodes_of_kind("host")).any(axis=1)


@pytest.mark.parametrize("name", FIGURES)
def test_switches_and_cables(name):
    found = cabling(name)
    hosts, _, injection, _, ports = FIGURES[name]
    tiers = Counter(found.tiers)
    assert tiers.pop(HOST) == hosts == machine(name).topology.num_hosts
    assert tiers == BUILT[name][0]
    names = sorted(set(found.tiers))
    ends = np.sort(np.array([names.index(tier) for tier in found.tiers])[found.ends], axis=1)
    pairs, counts = np.unique(ends, axis=0, return_counts=True)
    cables = {
        (names[a], names[b]): n for (a, b), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    }
    assert cables == BUILT[name][1]
    assert found.bandwidth[of_hosts(found)].sum() / 1e12 == pytest.approx(injection, rel=1e-3)
    used = np.diff(found.neighbours[0])[found.nodes_of_kind("switch")]
    assert used.max() == ports


@pytest.mark.parametrize("name", FIGURES)
def test_bisection(name):
    """What `check --full` says is that of both ways together; where it says none, all cables of the
    topmost switches are."""
    told = machine(name).topology.structure()
    if told:
        both = float(told.split("bisection about ")[1].split(" TB/s")[0])
    else:
        found = cabling(name)
        top = [node for node, tier in enumerate(found.tiers) if tier == SPINE]
        both = found.bandwidth[np.isin(found.ends, top).any(axis=1)].sum() / 1e12
    assert both / 2 == pytest.approx(FIGURES[name][3], rel=0.05)


@pytest.mark.parametrize("name", sorted(set(FIGURES) - {"fugaku"}))
def test_steps_between_the_farthest_switches(name):
    """From some switches with hosts, drawn evenly, to all."""
    fabric = Fabric(cabling(name))
    goals = fabric.goals[:: max(1, len(fabric.goals) // 40)]
    steps = fabric.switches.steps(goals)[fabric.goals]
    assert steps.max() == FIGURES[name][1] < FAR


def test_routes_of_fugaku_reach_everything_at_full_size():
    """Routes by coordinates alone: from one corner to the point farthest from it, and to storage.
    Steps of a ring of n: n // 2; of a line of n: n - 1."""
    cluster = machine("fugaku")
    wires = wiring.wiring(cluster)
    router = wires.router(cluster.routing, np.random.default_rng(0))
    steps = FIGURES["fugaku"][1]
    assert router.diameter == 3 + steps
    corner = np.ravel_multi_index((12, 22, 12, 1, 1, 1), (24, 23, 24, 2, 3, 2))
    here, there = (router.endpoints(f"h{n:04d}")[0] for n in (0, corner))
    pfs = router.endpoints("pfs")[0]
    routes = router.routes(np.array([here, pfs, there], np.int32), np.array([there] * 3, np.int32))
    lengths = (routes >= 0).sum(axis=1)
    assert lengths[0] == 2 + steps
    assert lengths[1] == 3
    names = [wires.fabric.links.names[link] for link in routes[0, : lengths[0]]]
    ends = [name.split("#")[0].split(">") for name in names]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    assert ends[0][0] == "h0000" and ends[-1][0] == "s12.22.12.1.1.1"
    wiring._build_wiring.cache_clear()  # more than a GB


GRIDS: dict[str, Any] = {
    "rings and a line": Torus(
        kind="torus",
        shape=[4, 3, 6],
        links=[1, 2, 1],
        wrap=[True, False, True],
        hosts_per_switch=2,
        link_bandwidth="1 GB/s",
    ),
    "Tofu-D": Torus(
        kind="torus",
        shape=[3, 2, 2, 2, 3, 2],
        wrap=[True, False, True, False, True, False],
        link_bandwidth="4 GB/s",
        grid_bandwidth="1 GB/s",
    ),
    "HyperX": HyperX(
        kind="hyperx", shape=[4, 3, 2], links=[1, 2, 3], hosts_per_switch=2, link_bandwidth="1 GB/s"
    ),
}


class _ByTable(DimensionOrderRouter):
    _grid = None


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("links", [0, 1, 2])
def test_routes_by_coordinates_are_those_of_the_table(name, links):
    sketch = GRIDS[name].sketch()
    if links:
        attach_storage(sketch, "pfs", bandwidth=1e9, latency=0.0, links=links)
    fabric = Fabric(Cabling.from_graph(sketch))
    router, table = DimensionOrder().router(fabric, 0), _ByTable(fabric)
    assert isinstance(router, DimensionOrderRouter) and router._grid is not None
    count = len(fabric.switch_of_port)
    src, dst = (each.ravel().astype(np.int32) for each in np.indices((count, count)))
    assert router.diameter == table.diameter
    assert router.routes(src, dst).tolist() == table.routes(src, dst).tolist()


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("seed", range(4))
def test_links_that_routes_cross_are_among_those_of_the_run(name, seed):
    """A few ports and that of the file system: no message between them leaves those links."""
    cabling = Cabling.from_graph(GRIDS[name].sketch())
    fabric = Fabric(cabling.with_storage("pfs", bandwidth=1e9, latency=0.0, links=2))
    router = DimensionOrder().router(fabric, 0)
    rng = np.random.default_rng(seed)
    ports = np.append(
        rng.choice(len(fabric.switch_of_port) - 2, 3, replace=False), fabric.endpoints("pfs")
    )
    src, dst = (each.ravel() for each in np.meshgrid(ports.astype(np.int32), ports))
    routes = router.routes(src[src != dst], dst[src != dst].astype(np.int32))
    assert set(routes[routes >= 0].tolist()) <= set(router.possible_links(ports).tolist())


def test_a_run_has_the_links_that_its_hosts_can_cross():
    """16 ranks on the first 4 hosts of Fugaku's torus, in B and C: a square of 4 cables, those of
    the hosts, those from each router to the file system, and its own: 13, in both directions; as
    many whatever stands elsewhere."""
    whole = machine("fugaku")
    for shape in ([3, 2, 2, 2, 3, 2], [5, 4, 3, 2, 3, 2]):
        topology = whole.topology.model_copy(update={"shape": shape})
        small = whole.model_copy(update={"topology": topology})
        resources = Resources(small, 16, np.random.default_rng(0))
        assert int(resources.links.cable.sum()) == len(resources.cables) == 26


@pytest.mark.parametrize(("goal", "links"), [(1, 2 + 4), (2, 4 + 4), (3, 12 + 4)])
def test_half_way_round_a_ring_both_ways_are_crossed(goal, links):
    ring = Torus(kind="torus", shape=[6], hosts_per_switch=1, link_bandwidth="1 GB/s")
    fabric = Fabric(ring.sketch())
    ports = np.array([0, goal], np.int32)
    assert len(DimensionOrder().router(fabric, 0).possible_links(ports)) == links


def test_a_torus_has_links_of_two_speeds():
    found = Cabling.from_graph(GRIDS["Tofu-D"].sketch())
    hosts = of_hosts(found)
    assert set(found.bandwidth[hosts].tolist()) == {4e9}
    assert set(found.bandwidth[~hosts].tolist()) == {1e9}
    # cut across Y, B's rings, or any other: 144 routers in all; Y is a line of two
    assert "bisection about 144 GB/s both ways" in GRIDS["Tofu-D"].structure()


def test_hosts_of_a_torus_are_numbered_along_its_folds():
    """A fold of 3 x 2 goes up the first dimension and back: a ring of six. With a line of two as
    the second fold, the seventh host is on the ring's first switch of the next layer."""
    graph = torus_of([3, 2, 2], folds=[[0, 2], [1]]).graph()
    switches = [next(iter(graph.neighbors(f"h{n:04d}"))) for n in range(12)]
    ring = ["0.{}.0", "1.{}.0", "2.{}.0", "2.{}.1", "1.{}.1", "0.{}.1"]
    assert switches == [f"s{place.format(layer)}" for layer in (0, 1) for place in ring]
    by_position = torus_of([3, 2, 2]).graph()
    assert next(iter(by_position.neighbors("h0001"))) == "s0.0.1"


def test_neighbours_in_a_fold_are_neighbours_on_the_torus():
    """However many dimensions: 512 ranks of a job on Tofu-D are one cable from the next."""
    topology = torus_of([4, 4, 4, 2, 2, 2], wrap=[False] * 6, folds=[[0, 3], [1, 4], [2, 5]])
    fabric = Fabric(topology.sketch())
    hosts = [fabric.endpoints(f"h{n:04d}")[0] for n in range(512)]
    logical = np.arange(512).reshape(8, 8, 8)
    router = DimensionOrder().router(fabric, 0)
    for axis in range(3):  # the walk along an axis, closed to a ring
        src = np.array(hosts, np.int32)[logical.ravel()]
        dst = np.array(hosts, np.int32)[np.roll(logical, -1, axis).ravel()]
        assert set((router.routes(src, dst) >= 0).sum(axis=1).tolist()) == {3}


@pytest.mark.parametrize("name", ["frontier", "piz-daint", "jupiter", "summit", "alps"])
def test_cables_of_the_file_system_never_bind(name):
    """Those to one switch carry more than its hosts can take and than the servers send."""
    cluster = machine(name)
    pfs = cluster.parallel_file_system
    each = pfs.link_bandwidth * pfs.links_per_switch
    found = cabling(name)
    hosts = of_hosts(found)
    leaf = found.ends[hosts].max(axis=1)
    assert each >= np.bincount(leaf, found.bandwidth[hosts]).max()
    assert each >= min(pfs.read_bandwidth, 10e12)


# by CINECA's map: node, cell, rack of it and number of the leaf switch in the rack
ON_LEONARDO = [
    (1, 1, 0, 0),
    (8, 1, 0, 0),
    (9, 1, 0, 2),
    (13, 1, 0, 0),
    (15, 1, 0, 1),
    (20, 1, 0, 2),
    (21, 1, 0, 1),
    (30, 1, 0, 2),
    (31, 1, 1, 0),
    (180, 1, 5, 2),
    (181, 2, 0, 0),
    (1282, 8, 0, 1),
    (3420, 19, 5, 2),
    (3421, 20, 0, 0),
]


@pytest.mark.parametrize(("node", "cell", "rack", "switch"), ON_LEONARDO)
def test_hosts_of_leonardo_are_on_their_leaf_switches(node, cell, rack, switch):
    leaf = f"g{cell - 1}.leaf{3 * rack + switch}"
    assert leaves_of(_named("leonardo"), f"lrdn{node:04d}") == {leaf}


def test_cells_of_leonardo_are_full_but_the_last():
    found = _named("leonardo")
    names = np.array(found.names, object)
    ends = names[found.ends[of_hosts(found)]].ravel()
    cells = Counter(name.split(".")[0] for name in ends if ".leaf" in name)
    assert cells.pop("g19") == 36 * 4 and set(cells.values()) == {180 * 4} and len(cells) == 19
    assert {f"lrdn{n:04d}" for n in range(1, 3457)} == set(names[found.nodes_of_kind("host")])


def test_hosts_of_marenostrum_are_called_by_island_rack_and_blade():
    """1120 = 7 x 5 x 32; a switch of an island has links of hosts of that island alone."""
    found = _named("marenostrum5")
    names = [found.names[node] for node in found.nodes_of_kind("host").tolist()]
    first, second, third, last = (names[n] for n in (0, 41, 160, -1))
    assert (first, second, third, last) == ("as01r1b01", "as01r2b10", "as02r1b01", "as07r5b32")
    for name in ("as01r2b10", "as07r5b32"):
        racks = {leaf.split(".")[0] for leaf in leaves_of(found, name)}
        assert racks == {f"r{int(name[2:4]) - 1:02d}"}


@cache
def _named(name: str) -> Cabling:
    """That of a machine whose hosts have names."""
    return machine(name).cabling()


def leaves_of(found: Cabling, host: str) -> set[str]:
    """The switches that a host is linked to."""
    ends = found.ends[(found.ends == found.names.index(host)).any(axis=1)]
    return {found.names[node] for node in ends.ravel().tolist()} - {host}


def test_a_star_stands_for_an_unknown_fabric_only():
    found = {}
    for file in sorted(shipped_folder("topologies").glob("*.yaml")):
        text = file.read_text()
        if "\n  kind: star\n" in text:
            found[file.stem] = " ".join(line[2:] for line in text.splitlines() if line[0] == "#")
    assert set(found) == set(STARS)
    for name, said in STARS.items():
        assert said in found[name], name

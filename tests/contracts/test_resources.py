"""Which links a message, a gradient and a read cross, and the latency on the way."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import TopologyError
from simshuffle.fabric.routing import DModK, Minimal, RandomStatic
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import _build_wiring, check_machine, wiring
from simshuffle.job.scenario.checks import cluster_problems
from simshuffle.job.scenario.cluster import Cluster
from tests.examples import ABCI, MACHINES, SMALL, cluster, clusters, written
from tests.strategies import fat_tree, star, switch_tree, torus_of, trees

NS = 1e-9
STAR = cluster(star(4), gpus=2)


class Machine:
    """Resources with what their links are called."""

    def __init__(self, machine: Cluster, world_size: int, seed: int = 0) -> None:
        self.res = Resources(machine, world_size, np.random.default_rng(seed))
        self.host = machine.host
        self.names = self.res.links.names
        self.ranks = np.arange(world_size)
        self._cables: dict[str, list[str]] = {host: [] for host in self.res.hosts}
        for name in self.names:
            if (node := name.split(">")[0]) in self._cables:
                self._cables[node].append(name)

    def route(self, row: Any) -> list[str]:
        used = [self.names[link] for link in row if link >= 0]
        assert all(link == -1 for link in row[len(used) :])
        return used

    def host_of(self, rank: int) -> str:
        return self.res.hosts[rank // self.host.gpus]

    def gate_of(self, rank: int) -> str:
        """The host whose HCAs the first rails use: the first of the scale-up domain, or the rank's
        own if there is none."""
        domains = self.res.cluster.topology.domains
        number = rank // self.host.gpus
        return self.res.hosts[number if domains is None else number - number % domains.hosts]

    def hca_of(self, rank: int) -> int:
        return (rank % self.host.gpus) // (self.host.gpus // self.host.hcas)

    def slot_of(self, rank: int) -> int:
        return (rank % self.host.gpus) // (self.host.gpus // self.host.pcie_slots)

    def cables(self, host: str) -> list[str]:
        """The links out of a host, in the order of its HCAs."""
        return self._cables[host]

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        count = len(self.ranks)
        return np.repeat(self.ranks, count), np.tile(self.ranks, count)

    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of ranks of different scale-up domains, or hosts: all, or 600 of them."""
        src, dst = self.pairs()
        gates = np.array([self.gate_of(rank) for rank in self.ranks.tolist()])
        far = np.flatnonzero(gates[src] != gates[dst])
        far = np.random.default_rng(5).permutation(far)[:600]
        assert len(far)
        return src[far].astype(np.int32), dst[far].astype(np.int32)


def path(cables: list[str]) -> list[str]:
    """The nodes on joined cables."""
    ends = [name.split("#")[0].split(">") for name in cables]
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    return [ends[0][0], *(b for _, b in ends)]


def reverse(cable: str) -> str:
    ends, _, number = cable.partition("#")
    a, b = ends.split(">")
    return f"{b}>{a}" + (f"#{number}" if number else "")


def several(name: str, count: int, number: int) -> str:
    return f"{name}{number}" if count > 1 else name


@pytest.fixture(params=[*MACHINES, *(f"on {name}" for name in SMALL)])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(*clusters(tmp_path)[request.param])


# ---------------------------------------------------------------------------------------- the table


def check_table(machine: Machine) -> None:
    links = machine.res.links
    count = len(links.names)
    assert len(set(links.names)) == count == len(links.tiers) == len(links.units)
    assert links.capacity.shape == (count,)
    assert np.isfinite(links.capacity).all() and (links.capacity > 0).all()
    unit = {"ssd": "s", "cores": "s", "pfs.open": "ops"}
    assert [unit.get(tier, "B") for tier in links.tiers] == links.units


def test_links_have_unique_names_and_positive_capacities(machine):
    check_table(machine)


@settings(max_examples=30, deadline=None)
@given(trees(), st.data())
def test_links_have_unique_names_on_any_tree(topology, data):
    hcas = topology.links_per_host
    gpus = hcas * data.draw(st.integers(1, 2))
    made = cluster(topology, gpus=gpus, hcas=hcas, slots=data.draw(st.sampled_from([1, gpus])))
    hosts = sum(1 for _, kind in topology.graph().nodes(data="kind") if kind == "host")
    machine = Machine(made, data.draw(st.integers(1, hosts * gpus)))
    check_table(machine)
    reads, latencies = machine.res.pfs_read()
    assert reads.shape == (len(machine.ranks), machine.res.width)
    assert (latencies >= 0).all()


@pytest.mark.parametrize(("hcas", "rails"), [(1, 2), (4, 2), (2, 1)])
def test_hosts_need_an_hca_for_each_rail(hcas, rails):
    machine = cluster(switch_tree(8, 8, rails=rails), gpus=4, hcas=hcas)
    (problem,) = cluster_problems(machine, world_size=4)
    assert problem.path == "cluster.host.hcas" and "one HCA for each rail" in problem.rule
    assert f"hcas: {rails}" in problem.remedy and f"rails: {hcas}" in problem.remedy
    with pytest.raises(TopologyError, match="hcas"):
        wiring(cluster(star(3), gpus=2, hcas=2))


def test_hca_k_is_on_rail_k():
    """4 GPUs and 2 HCAs: messages of GPUs 0 and 1 leave and enter by the leaf switches of rail 0,
    those of GPUs 2 and 3 by those of rail 1; so do gradients of the rings of each rail."""
    topology = switch_tree(7, 10, taper=2, rails=2)
    machine = Machine(cluster(topology, gpus=4, hcas=2, slots=2), 40)
    rail = {f"leaf.{i}": i // 3 for i in range(6)}  # 3 leaf switches a rail, of 4 hosts each
    far = np.arange(4, 40)
    routes, _ = machine.res.message(np.arange(4).repeat(len(far)), np.tile(far, 4))
    for src, dst, route in zip(np.arange(4).repeat(len(far)), np.tile(far, 4), routes, strict=True):
        names = [machine.names[link] for link in route if link >= 0]
        assert names[0].startswith("h0000>leaf.") and names[-1].endswith(f">h{dst // 4:04d}")
        assert rail[names[0].split(">")[1]] == src % 4 // 2
        assert rail[names[-1].split(">")[0]] == dst % 4 // 2
    for k in (0, 1):
        (route,) = machine.res.gradient(*(np.array([x], np.int32) for x in (3, 4, k)))
        first, *cables, last = [machine.names[link] for link in route if link >= 0]
        assert (first, last) == (f"h0000.pcie_out{k}", f"h0001.pcie_in{k}")
        assert cables == [f"h0000>leaf.{3 * k}", f"leaf.{3 * k}>h0001"]


def test_capacities_are_those_of_the_cluster():
    machine = Machine(ABCI, 8)
    capacity = dict(zip(machine.names, machine.res.links.capacity.tolist(), strict=True))
    for host in ("h0000", "h0001"):
        assert {
            capacity[f"{host}.pcie_{way}{slot}"] for way in ("in", "out") for slot in range(2)
        } == {16e9}
        assert {capacity[f"{host}.nvlink{gpu}"] for gpu in range(4)} == {50e9}
        assert capacity[f"{host}.memory"] == 256e9
        assert capacity[f"{host}.ssd"] == 1.0
        assert capacity[f"{host}.cores"] == 40.0
    assert "h0002.ssd" not in capacity
    assert capacity["pfs.bandwidth"] == 77e9
    assert capacity["pfs.open"] == 43e3
    assert {
        capacity[name]
        for name, tier in zip(machine.names, machine.res.links.tiers, strict=True)
        if tier == "leaf>fbb"
    } == {12.5e9}


# -------------------------------------------------------------------------------------------- ranks


def test_ranks_fill_hosts_one_after_the_other(machine):
    res, gpus = machine.res, machine.host.gpus
    assert res.num_hosts == len(res.hosts) == len(set(res.hosts)) == -(-len(machine.ranks) // gpus)
    assert res.host_of.tolist() == [rank // gpus for rank in machine.ranks]
    assert res.gpu_of.tolist() == [rank % gpus for rank in machine.ranks]
    assert res.rail_of.tolist() == [machine.hca_of(rank) for rank in machine.ranks.tolist()]
    assert res.slot_of[machine.ranks].tolist() == [
        machine.slot_of(rank) for rank in machine.ranks.tolist()
    ]


def test_compact_placement_takes_the_first_hosts_whose_gpus_share_hcas_in_pairs():
    assert Machine(ABCI, 10).res.hosts == ["h0000", "h0001", "h0002"]
    assert Machine(ABCI, 8).res.rail_of.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    none = np.zeros(0, np.int64)
    routes, latency = Machine(ABCI, 8).res.message(none, none)
    assert routes.shape[0] == latency.shape[0] == 0
    # reads come from a spine down: 4 cables of 26 ns, one spine, an FBB and a leaf switch
    _, latencies = Machine(ABCI, 144).res.pfs_read()
    assert latencies == pytest.approx(np.full(144, (4 * 26 + 400 + 90 + 90) * NS), rel=1e-12)


def test_scattered_placement_draws_hosts():
    scattered = ABCI.model_copy(update={"placement": "scattered"})
    drawn = [Machine(scattered, 64, seed).res.hosts for seed in range(12)]
    assert all(len(set(hosts)) == 16 and hosts == sorted(hosts) for hosts in drawn)
    assert drawn[0] == Machine(scattered, 64, 0).res.hosts
    assert len({tuple(hosts) for hosts in drawn}) == 12
    numbers = [int(host[1:]) for hosts in drawn for host in hosts]
    assert np.mean(numbers) == pytest.approx(1087 / 2, abs=5 * 1088 / np.sqrt(12 * len(numbers)))


# ----------------------------------------------------------------------------------------- messages


def test_messages_use_memory_inside_a_host_and_the_hcas_of_both_ranks_between_hosts(machine):
    src, dst = machine.pairs()
    inside = src // machine.host.gpus == dst // machine.host.gpus
    routes, latency = machine.res.message(src[inside], dst[inside])
    assert (latency == 0).all()
    for rank, row in zip(src[inside].tolist(), routes, strict=True):
        assert machine.route(row) == [f"{machine.host_of(rank)}.memory"]
    src, dst = machine.apart()
    routes, _ = machine.res.message(src, dst)
    assert routes.shape[1] == machine.res.width
    for a, b, row in zip(src.tolist(), dst.tolist(), routes, strict=True):
        used = machine.route(row)
        nodes = path(used)
        assert (nodes[0], nodes[-1]) == (machine.host_of(a), machine.host_of(b))
        assert used[0] == machine.cables(machine.host_of(a))[machine.hca_of(a)]
        assert used[-1] == reverse(machine.cables(machine.host_of(b))[machine.hca_of(b)])


def test_leaf_switches_of_abci_ranks():
    """Even hosts: GPUs 0, 1 through HCA 0 on leaf 0, GPUs 2, 3 through HCA 1 on leaf 1; odd hosts:
    leaves 2 and 3."""
    machine = Machine(ABCI, 4 * 36)
    routes, _ = machine.res.message(np.arange(8), np.full(8, 4 * 35))
    assert [path(machine.route(row))[1] for row in routes] == [
        f"r00.leaf{leaf}" for leaf in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    routes, _ = machine.res.message(np.full(8, 0), np.arange(4 * 34, 4 * 36))
    assert [path(machine.route(row))[-2] for row in routes] == [
        f"r01.leaf{leaf}" for leaf in (0, 0, 1, 1, 2, 2, 3, 3)
    ]


@pytest.mark.parametrize(
    ("src", "dst", "links", "latency"),
    [
        pytest.param(0, 8, 2, (26 + 90 + 26) * NS, id="same leaf switch"),
        pytest.param(2, 67 * 2 - 4, 2, (26 + 90 + 26) * NS, id="same leaf switch, HCA 1"),
        pytest.param(0, 4, 4, (4 * 26 + 3 * 90) * NS, id="same rack"),
        pytest.param(0, 10, 4, (4 * 26 + 3 * 90) * NS, id="same rack, other HCA"),
        pytest.param(0, 4 * 34, 6, (6 * 26 + 4 * 90 + 400) * NS, id="next rack"),
        pytest.param(3, 4 * 1087 + 1, 6, (6 * 26 + 4 * 90 + 400) * NS, id="last rack"),
    ],
)
def test_latencies_on_abci(src, dst, links, latency):
    machine = Machine(ABCI, 4352)
    for a, b in ((src, dst), (dst, src)):
        routes, latencies = machine.res.message(np.array([a]), np.array([b]))
        assert len(machine.route(routes[0])) == links
        assert latencies.tolist() == pytest.approx([latency], rel=1e-12)


def test_latencies_on_a_fat_tree():
    """Cables of 26 ns and switches of 90 ns: 2 + 1, 4 + 3 and 6 + 5 of them."""
    machine = Machine(cluster(fat_tree(3, 2)), 8)
    _, latencies = machine.res.message(np.zeros(3, int), np.array([1, 2, 4]))
    assert latencies == pytest.approx(
        np.array([2 * 26 + 90, 4 * 26 + 3 * 90, 6 * 26 + 5 * 90]) * NS, rel=1e-12
    )


# ---------------------------------------------------------------------------------------- gradients


def test_gradients_use_nvlink_inside_a_host_and_start_and_end_with_pcie_between(machine):
    src, dst = (a.astype(np.int32) for a in machine.pairs())
    inside = (src // machine.host.gpus == dst // machine.host.gpus) & (src != dst)
    routes = machine.res.gradient(src[inside], dst[inside], np.zeros(inside.sum(), np.int32))
    for rank, row in zip(src[inside].tolist(), routes, strict=True):
        device = f"{machine.host_of(rank)}.nvlink"
        gpus = machine.host.gpus
        assert machine.route(row) == [several(device, gpus, rank % gpus)]
    src, dst = machine.apart()
    for rail in range(machine.host.hcas):
        slot = rail // (machine.host.hcas / machine.host.pcie_slots)
        routes = machine.res.gradient(src, dst, np.full(len(src), rail, np.int32))
        assert routes.shape[1] == machine.res.width
        for a, b, row in zip(src.tolist(), dst.tolist(), routes, strict=True):
            used = machine.route(row)
            here, there = machine.gate_of(a), machine.gate_of(b)
            assert used[0] == several(f"{here}.pcie_out", machine.host.pcie_slots, int(slot))
            assert used[-1] == several(f"{there}.pcie_in", machine.host.pcie_slots, int(slot))
            assert used[1] == machine.cables(here)[rail]
            assert used[-2] == reverse(machine.cables(there)[rail])
            nodes = path(used[1:-1])
            assert (nodes[0], nodes[-1]) == (here, there)


# -------------------------------------------------------------------------------------------- reads


def test_reads_come_from_the_file_system_to_the_hca_of_the_rank(machine):
    routes, latencies = machine.res.pfs_read()
    assert routes.shape == (len(machine.ranks), machine.res.width)
    assert latencies.shape == (len(machine.ranks),)
    for rank, row in enumerate(routes):
        used = machine.route(row)
        host = machine.host_of(rank)
        assert used[0] == "pfs.bandwidth"
        assert used[-1] == reverse(machine.cables(host)[machine.hca_of(rank)])
        nodes = path(used[1:])
        assert (nodes[0], nodes[1], nodes[-1]) == ("pfs", "pfs.switch", host)


def test_reads_reach_a_single_switch():
    machine = Machine(cluster(star(3)), 3)
    routes, latencies = machine.res.pfs_read()
    assert [path(machine.route(row)[1:]) for row in routes] == [
        ["pfs", "pfs.switch", "switch", f"h000{i}"] for i in range(3)
    ]
    assert latencies == pytest.approx(np.full(3, (2 * 26 + 90) * NS), rel=1e-12)


# ----------------------------------------------------------------------------------------- refusals


def test_storage_of_a_custom_network_is_kept():
    cabling = wiring(ABCI).fabric.cabling
    assert [cabling.names[node] for node in cabling.nodes_of_kind("storage")] == ["pfs"]
    assert "pfs" not in ABCI.topology.graph()


def test_same_routes_every_time(machine):
    again = Resources(machine.res.cluster, len(machine.ranks), np.random.default_rng(0))
    assert again.links.names == machine.names
    src, dst = machine.pairs()
    assert np.array_equal(
        again.message(src[::-1], dst[::-1])[0][::-1], machine.res.message(src, dst)[0]
    )
    assert np.array_equal(again.pfs_read()[0], machine.res.pfs_read()[0])


@pytest.mark.parametrize(("every", "switches", "cables"), [(False, 2, 1), (True, 15, 2 * 15)])
def test_cables_that_no_message_can_cross_are_links_only_where_routes_may_change(
    every, switches, cables
):
    """A torus of 5 x 3 switches, each with a host and 8 cables to the file system: 2 ranks are on
    neighbours. A cable is two links; one leads into the file system itself."""
    run = Resources(cluster(torus_of([5, 3])), 2, np.random.default_rng(0), every_cable=every)
    assert run.links.cable.sum() == 2 * (cables + switches * (1 + 8) + 1)


# ----------------------------------------------------------------------------------- made only once


def test_runs_on_one_cluster_share_its_network(monkeypatch):
    """Whatever its name, its hosts and how many ranks there are; another network is another one."""
    made = []
    build = type(STAR.topology).build
    monkeypatch.setattr(
        type(STAR.topology), "build", lambda self, graph: (made.append(self), build(self, graph))
    )
    _build_wiring.cache_clear()
    rng = np.random.default_rng(0)
    first, second = Resources(STAR, 4, rng), Resources(STAR, 8, rng)
    renamed = STAR.model_copy(update={"name": "other", "placement": "scattered"})
    assert wiring(renamed) is wiring(STAR)
    assert first.forwarding is second.forwarding
    assert len(made) == 1
    faster = STAR.topology.model_copy(update={"link_bandwidth": 2 * STAR.topology.link_bandwidth})
    assert wiring(STAR.model_copy(update={"topology": faster})) is not wiring(STAR)
    pfs = STAR.parallel_file_system
    wider = pfs.model_copy(update={"links_per_switch": pfs.links_per_switch + 1})
    assert wiring(STAR.model_copy(update={"parallel_file_system": wider})) is not wiring(STAR)
    _build_wiring.cache_clear()


def test_rules_that_draw_take_one_number_each_and_others_none():
    wires = wiring(cluster(fat_tree(2, 4)))
    for rule in (RandomStatic(), DModK()):
        rng = np.random.default_rng(3)
        router = wires.router(rule, rng)
        numbers = np.random.default_rng(3)
        if rule.drawn:
            alone = rule.router(wires.fabric, int(numbers.integers(2**63)))
            pairs = np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)
            assert np.array_equal(router.routes(*pairs), alone.routes(*pairs))
            assert wires.router(rule, np.random.default_rng(3)) is router
            assert wires.router(rule, rng) is not router
            numbers.integers(2**63)
        assert rng.integers(2**63) == numbers.integers(2**63)
    assert isinstance(wires.router(None, rng), type(wires.router(wires.routing, rng)))


def test_a_routing_that_a_network_does_not_know_is_refused_with_the_machine():
    machine = cluster(fat_tree(2, 4))
    check_machine(machine)
    check_machine(machine.model_copy(update={"routing": DModK()}))
    with pytest.raises(TopologyError):
        check_machine(machine.model_copy(update={"routing": Minimal()}))


def test_a_file_that_changed_is_another_network(tmp_path):
    hosts = []
    for arity in (2, 3):
        custom = written(fat_tree(2, arity).graph(), tmp_path / "net.json", multi=True)
        hosts.append(len(wiring(cluster(custom)).fabric.cabling.nodes_of_kind("host")))
    assert hosts == [4, 9]

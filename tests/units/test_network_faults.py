"""Cables, switches and hosts that are slow or cut: ``cluster.faults``."""

from pathlib import Path

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.errors import InputError, TopologyError
from simshuffle.extensions.interop.fabrics.survey import Survey
from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.fabric.topology.faults import apply_faults
from simshuffle.fabric.topology.graph import Sketch, add_host, add_switch, connect
from simshuffle.job.plan.wiring import check_machine, names_of, routing_of, wiring
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.studies.collective import bench_of_scenario
from tests.strategies import dragonfly, fat_tree, rail_optimised, torus_of

RACK = Path(__file__).parents[2] / "tests" / "data" / "fabrics" / "rack.ibnet"
FAST = "1 TB/s"  # so that cables bind
CABLE = 12.5e9


def scenario(faults, ranks=4, **others):
    """Ranks on the first hosts of a tree of 4 leaf switches with 4 hosts and 2 spine switches."""
    values = {
        "cluster": "small-fat-tree",
        "world_size": ranks,
        "workload.exchange": "local_shuffle",
        "workload.allreduce.intra_host_bus_bandwidth": FAST,
        "workload.allreduce.inter_host_bus_bandwidth": FAST,
        **others,
    }
    return load_scenario("quickstart", values | ({"cluster.faults": faults} if faults else {}))


def ring_seconds(faults, ranks=4):
    return bench_of_scenario(scenario(faults, ranks)).seconds(1e9)


def test_a_slow_host_holds_up_the_ring_by_what_is_left_of_its_cable():
    """4 ranks each send 2 x 3/4 of 1 GB: 120 ms at 12.5 GB/s, 480 ms at a quarter of that."""
    assert ring_seconds({}) == pytest.approx(1.5e9 / CABLE, rel=1e-3)
    for name in ("h0002", "h0002>leaf.0", "leaf.0>h0002", "leaf.0>h0002#0"):
        assert ring_seconds({name: 0.25}) == pytest.approx(1.5e9 / CABLE / 0.25, rel=1e-3)
    assert ring_seconds({"leaf.0": "50 %"}) == pytest.approx(2 * 1.5e9 / CABLE, rel=1e-3)


def test_of_several_shares_the_least_counts_and_a_whole_one_changes_nothing():
    assert ring_seconds({"leaf.0": 0.5, "h0001": 0.1}) == ring_seconds({"h0001": 0.1})
    assert ring_seconds({"leaf.0": 1.0, "spine.1": 1}) == ring_seconds({})


def test_what_the_ranks_do_not_use_may_be_slow():
    assert ring_seconds({"leaf.3": 0.01, "spine.0": 0.01}) == ring_seconds({})


def test_a_spine_switch_that_is_cut_takes_its_share_of_the_bisection():
    """Of 4 leaf switches 2 links lead up each: 2 x 2 x 12.5 GB/s between the halves, then half."""
    found = [
        Survey(wiring(scenario(faults).cluster).fabric).bisection
        for faults in ({}, {"spine.1": 0}, {"leaf.0>spine.1": 0})
    ]
    assert found == pytest.approx([4 * CABLE, 2 * CABLE, 3 * CABLE], rel=1e-3)


def test_hosts_that_are_cut_off_take_no_part():
    """Hosts 4 to 7 are below leaf switch 1; ranks go on behind them."""
    cut = scenario({"leaf.1": 0, "h0001": 0}, ranks=8).cluster
    assert (cut.num_hosts, cut.links_per_host, cut.num_gpus) == (11, 1, 11)
    names = names_of(wiring(cut).fabric, "host")
    assert names == ["h0000", "h0002", "h0003", *(f"h{n:04d}" for n in range(8, 16))]
    with pytest.raises(InputError, match="must not exceed the 11 GPUs"):
        scenario({"leaf.1": 0, "h0001": 0}, ranks=12)


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        (fat_tree(2, 4, taper=2), "d_mod_k"),
        (torus_of([5, 4]), "min_hop"),
        (dragonfly(), "min_hop"),
        (rail_optimised(), "d_mod_k"),
    ],
)
def test_networks_of_all_kinds_are_routed_around_a_cut(topology, kind):
    """Between the first two switches that are linked."""
    hcas = topology.links_per_host
    values = {
        "cluster.topology": topology.model_dump(mode="json", exclude_none=True),
        "cluster.host.gpus": hcas,
        "cluster.host.hcas": hcas,
        "cluster.host.pcie_slots": hcas,
    }
    whole = wiring(scenario({}, ranks=2, **values).cluster)
    cabling, switches = whole.fabric.cabling, whole.fabric.switches
    transit = set(switches.nodes[switches.is_transit].tolist())
    a, b = next(pair for pair in cabling.ends.tolist() if transit.issuperset(pair))
    name = f"{cabling.names[a]}>{cabling.names[b]}"
    cut = scenario({name: 0}, ranks=2, **values)
    assert routing_of(cut.cluster).kind == kind
    wires = wiring(cut.cluster)
    assert len(wires.fabric.cabling.ends) < len(cabling.ends)
    assert name not in wires.fabric.links.names
    router = wires.router(None, np.random.default_rng(0))
    ports = np.flatnonzero(~wires.fabric.is_storage_port).astype(np.int32)
    src, dst = (index.ravel() for index in np.meshgrid(ports, ports))
    src, dst = src[src != dst], dst[src != dst]
    routes = router.routes(src, dst)
    last = routes[np.arange(len(routes)), (routes >= 0).sum(axis=1) - 1]
    assert (last == wires.fabric.eject_link[dst]).all()


def test_cables_of_an_imported_fabric_are_slowed_and_cut(here, capsys):
    assert main(["machine", "import", str(RACK), "--mended", "--out", "m.yaml"]) == 0
    command = ["check", "quickstart", "--set", "cluster=m.yaml", "--set", "world_size=8"]
    assert main([*command, "--set", "cluster.faults={'leaf1>spine1#1': 20 %}"]) == 0
    assert "Slow cables: 1 of 20, 1 (leaf1>spine1#1)" in capsys.readouterr().out
    values = {"cluster": "m.yaml", "world_size": 8}
    cut = load_scenario("quickstart", values | {"cluster.faults": {"leaf1>spine1#1": 0}})
    whole = load_scenario("quickstart", values)
    assert [len(Cabling.from_graph(of.cluster.sketch()).ends) for of in (whole, cut)] == [20, 19]
    check_machine(cut.cluster)


def test_faults_are_written_back_and_left_out_without_any():
    one = scenario({"h0002": "25 %"})
    assert one.to_dict()["cluster"]["faults"] == {"h0002": 0.25}
    assert "faults" not in scenario({}).to_dict()["cluster"]


def small_sketch():
    """A leaf switch with six hosts and two links to a spine switch."""
    sketch = Sketch(height=1)
    for name in ("leaf", "spine"):
        add_switch(sketch, name, name, 1e-7)
    for number in range(6):
        add_host(sketch, f"host{number}")
        connect(sketch, f"host{number}", "leaf", bandwidth=10.0, latency=0.0)
    connect(sketch, "leaf", "spine", bandwidth=40.0, latency=0.0, links=2)
    return sketch


def test_up_to_three_names_that_are_alike_are_told():
    with pytest.raises(TopologyError) as caught:
        apply_faults(small_sketch(), {"host9": 0.5, "leaf>spine#2": 0.0})
    (host, cable) = caught.value.problems
    assert host.path == "cluster.faults.host9"
    told = host.remedy.split(".")[0].removeprefix("There are ").split(", ")
    assert len(told) == 3 and set(told) < {f"host{number}" for number in range(6)}
    assert "leaf>spine#0" in cable.remedy and "leaf>spine#1" in cable.remedy
    with pytest.raises(TopologyError) as caught:
        apply_faults(small_sketch(), {"gpu": 0.5})
    assert caught.value.problems[0].remedy.startswith("simshuffle machine show")


def test_a_cable_that_is_slow_or_cut_by_hand():
    """A slow cable leaves the tree what it is; a cut one does not, and takes its host with it."""
    slow = apply_faults(small_sketch(), {"spine>leaf#1": 0.25, "leaf>spine": 0.5, "host2": 0.1})
    edges = [(a, b, data["bandwidth"]) for a, b, data in slow.edges(data=True)]
    assert edges == [
        *((f"host{number}", "leaf", 1.0 if number == 2 else 10.0) for number in range(6)),
        ("leaf", "spine", 20.0),
        ("leaf", "spine", 10.0),
    ]
    assert slow.graph == {"height": 1}
    cut = apply_faults(small_sketch(), {"host3>leaf": 0.0, "leaf>spine#0": 0})
    assert cut.graph == {}
    assert [name for name, _ in cut.nodes(data=True)] == [
        *("leaf", "spine"),
        *(f"host{number}" for number in (0, 1, 2, 4, 5)),
    ]
    assert len(list(cut.edges(data=True))) == 5 + 1
    whole = small_sketch()
    assert len(list(whole.edges(data=True))) == 8 and len(list(whole.nodes(data=True))) == 8

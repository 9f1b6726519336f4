"""Hosts that are joined beside the network: what goes that way, how long it takes, and that nothing
else does. Each law is worked out by hand."""

from typing import Any

import numpy as np
import pytest

from simshuffle.errors import ScenarioError
from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network import Analytic, Flows, Fluid, Links, Packet
from simshuffle.job.lowering.collectives import Allreduces, gather_seconds, ranks_in_order
from simshuffle.job.lowering.staging import staging_traffic
from simshuffle.job.plan.bounds import allreduce_seconds, bounds
from simshuffle.job.plan.effort import expected_packets
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.checks import allreduce_problems, cluster_problems
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.studies.congestion.traffic import UsedFabric
from tests.examples import ALGORITHMS, ALPHA_INTER, ALPHA_INTRA, cluster, nvls, ring, tree
from tests.small import small
from tests.strategies import rail_optimised

SCALE_UP = {"hosts": 3, "bandwidth": "40 GB/s", "latency": "1 us"}
FAST, CABLE, LATENCY = 40e9, 12.5e9, 1e-6
WIDE = {"intra_host_bus_bandwidth": "1 TB/s", "inter_host_bus_bandwidth": "1 TB/s"}
NBYTES = 100e6


def machine(**changes: Any) -> Cluster:
    """8 hosts of 4 GPUs and 2 HCAs, three in a domain: hosts 0-2, 3-5, 6-7; NVLink of 50 GB/s."""
    values = {"pods": 1, "scale_up": SCALE_UP, **changes.pop("topology", {})}
    return cluster(rail_optimised(**values), gpus=4, hcas=2, slots=2, **changes)


def resources(world_size: int = 32, **changes: Any) -> Resources:
    return Resources(machine(**changes), world_size, np.random.default_rng(3))


ON = resources()
WITHOUT = resources(topology={"scale_up": None})


def named(on: Resources, routes: Any) -> list[list[str]]:
    """Names of the links of routes."""
    return [[on.links.names[link] for link in row if link >= 0] for row in routes.tolist()]


def of(*ranks: int) -> Any:
    return np.array(ranks, np.int32)


# ------------------------------------------------------------------------------------------- routes


def test_messages_inside_a_domain_cross_what_joins_its_gpus_and_nothing_else():
    routes, latency = ON.message(of(1, 0, 31), of(11, 4, 24))
    assert named(ON, routes) == [
        ["h0000.scale_up_out1", "h0002.scale_up_in3"],
        ["h0000.scale_up_out0", "h0001.scale_up_in0"],
        ["h0007.scale_up_out3", "h0006.scale_up_in0"],
    ]
    assert latency.tolist() == [LATENCY] * 3


def test_everything_else_goes_as_without_domains():
    """Messages in a host and between domains, by their links and latencies; reads; and gradients of
    hosts that are the first of their domains."""
    src, dst = (each.ravel() for each in np.meshgrid(np.arange(32), np.arange(32)))
    host = src // 4, dst // 4
    near = (host[0] // 3 == host[1] // 3) & (host[0] != host[1])
    assert 0 < near.sum() < (host[0] != host[1]).sum()
    found, expected = (on.message(src[~near], dst[~near]) for on in (ON, WITHOUT))
    assert named(ON, found[0]) == named(WITHOUT, expected[0])
    assert found[1].tolist() == expected[1].tolist()
    for a, b in zip(ON.pfs_read(), WITHOUT.pfs_read(), strict=True):
        assert a.tolist() == b.tolist() or named(ON, a) == named(WITHOUT, b)
    gradients = of(0, 3, 12), of(12, 24, 27), of(0, 1, 1)
    assert named(ON, ON.gradient(*gradients)) == named(WITHOUT, WITHOUT.gradient(*gradients))
    inside = of(0, 29), of(1, 28), of(0, 0)
    assert named(ON, ON.gradient(*inside)) == [["h0000.nvlink0"], ["h0007.nvlink1"]]


def test_gradients_inside_a_domain_leave_by_the_nvlink_of_their_gpu():
    (route,) = named(ON, ON.gradient(of(7), of(8), of(1)))
    assert route == ["h0001.nvlink3", "h0001.scale_up_out3", "h0002.scale_up_in0"]


@pytest.mark.parametrize(
    ("rail", "here", "there", "hca"),
    [(0, 0, 6, 0), (1, 0, 6, 1), (2, 1, 7, 0), (3, 1, 7, 1), (4, 2, 6, 0), (5, 2, 6, 1)],
)
def test_the_hcas_of_a_domain_count_on_from_host_to_host(rail, here, there, hca):
    """Of the last domain, which has two hosts, the first one carries the rails of the third too."""
    (route,) = named(ON, ON.gradient(of(11), of(24), of(rail)))
    assert route[0] == f"h{here:04d}.pcie_out{hca}"
    assert route[-1] == f"h{there:04d}.pcie_in{hca}"
    assert route[1].startswith(f"h{here:04d}>pod0.rail{hca}.leaf")
    assert route[-2] == f"pod0.rail{hca}.leaf0>h{there:04d}"


def test_a_domain_is_of_hosts_of_the_machine_whichever_ranks_are_on_them():
    on = resources(16, placement=["h0003", "h0000", "h0004", "h0007"])
    assert on.domain_of.tolist() == np.repeat([0, 1, 0, 2], 4).tolist()
    routes = named(on, on.message(of(0, 0), of(8, 4))[0])
    assert routes[0] == ["h0003.scale_up_out0", "h0004.scale_up_in0"]
    assert routes[1][0].startswith("h0003>pod0.rail0.leaf")


def test_the_network_itself_is_the_same():
    def nodes_and_links(on: Resources) -> tuple[Any, Any]:
        graph = on.cluster.topology.graph()
        return list(graph.nodes(data=True)), list(graph.edges(data=True))

    assert nodes_and_links(ON) == nodes_and_links(WITHOUT)
    assert not any("scale_up" in name for name in WITHOUT.links.names)


# -------------------------------------------------------------------------------------------- times


def finish(src: Any, dst: Any, nbytes: float, model: Any = None) -> list[float]:
    """When messages between ranks end that begin together."""
    routes, _ = ON.message(src, dst)
    links = Links(ON.links.capacity, ON.links.latency, ON.links.names)
    flows = Flows.from_lists(routes, np.full(len(routes), nbytes))
    return (model or Fluid()).finish_times(links, flows).finish.tolist()


def test_a_message_inside_a_domain_takes_bytes_over_bandwidth_and_the_latency():
    for model in (Fluid(), Analytic()):
        assert finish(of(0), of(4), 8e6, model) == pytest.approx([LATENCY + 8e6 / FAST])
    (between,) = finish(of(0), of(12), 8e6)
    assert between == pytest.approx(2 * 26e-9 + 90e-9 + 8e6 / CABLE)


def test_a_gpu_sends_and_receives_at_once_and_shares_each_way():
    """Two messages leave GPU 0, to two others; a third comes to it."""
    ends = finish(of(0, 0, 8), of(4, 9, 0), 8e6)
    assert ends == pytest.approx([LATENCY + 16e6 / FAST] * 2 + [LATENCY + 8e6 / FAST])
    into = finish(of(0, 1), of(4, 4), 8e6)
    assert into == pytest.approx([LATENCY + 16e6 / FAST] * 2)


def seconds(allreduce: Allreduce, on: Resources, nbytes: float = NBYTES) -> float:
    allreduces = Allreduces(allreduce, on, np.random.default_rng(5))
    return allreduces.seconds(nbytes, Fluid())


def test_a_ring_inside_a_domain_has_its_bandwidth_and_no_step_between_hosts():
    """12 ranks on 3 hosts: all 22 steps are inside; GPUs that send to the next host are slowest."""
    found = seconds(ring(**WIDE), resources(12))
    assert found == pytest.approx(22 * ALPHA_INTRA + 22 / 12 * NBYTES / FAST)


def test_switches_of_a_domain_take_a_buffer_and_a_part_of_the_sum_from_each_gpu():
    """12 ranks on 3 hosts: every GPU sends n + n/12 and receives as much."""
    assert seconds(nvls(**WIDE), resources(12)) == pytest.approx(
        ALPHA_INTRA + 13 / 12 * NBYTES / FAST
    )


@pytest.mark.parametrize(
    ("channels", "transfer"), [(1, NBYTES / CABLE), (6, 13 / 12 * NBYTES / FAST)]
)
def test_trees_between_two_domains_run_beside_their_switches(channels, transfer):
    """The slower counts: a cable takes n / channels each way, and a GPU as before."""
    found = seconds(nvls(channels, **WIDE), resources(24))
    assert found == pytest.approx(ALPHA_INTRA + 2 * ALPHA_INTER + transfer)


def test_a_ring_inside_a_domain_is_held_by_the_bus_bandwidth_of_a_host():
    found = seconds(ring(inter_host_bus_bandwidth="1 GB/s"), resources(12))
    assert found == pytest.approx(22 * ALPHA_INTRA + 22 / 12 * NBYTES / 21e9)


@pytest.mark.parametrize(("rings", "rate"), [(1, CABLE), (2, 2 * CABLE), (6, FAST)])
def test_rings_across_domains_leave_by_as_many_hcas(rings, rate):
    """24 ranks in 2 domains: 2 of 46 steps cross the network; 6 HCAs carry more than a GPU."""
    found = seconds(ring(rings, **WIDE), resources(24))
    latency = 2 * ALPHA_INTER + 44 * ALPHA_INTRA
    assert found == pytest.approx(latency + 46 / 24 * NBYTES / rate)


def test_rings_that_share_an_hca_of_a_smaller_domain_wait_for_it():
    """The second domain has one host, whose 2 HCAs carry all 4 rings."""
    found = seconds(ring(4, **WIDE), resources(16))
    latency = 2 * ALPHA_INTER + 28 * ALPHA_INTRA
    assert found == pytest.approx(latency + 30 / 16 * NBYTES / (2 * CABLE))


def test_trees_stand_over_domains():
    """A chain of 12 ranks in each of 2 domains, and one edge between: 2 (11 intra + 1 inter)."""
    latency = 2 * (11 * 28e-6 + 50e-6)
    assert seconds(tree(**WIDE), resources(24)) == pytest.approx(latency + NBYTES / CABLE)


def test_hosts_of_a_domain_stay_together_in_any_order():
    """Hosts alternate between domains; a ring leaves each domain once."""
    placement = ["h0000", "h0003", "h0001", "h0004"]
    on = resources(16, placement=placement)
    for order, expected in (("as_given", [0, 2, 1, 3]), ("sorted", [0, 2, 1, 3])):
        ranks = ranks_in_order(order, on, np.random.default_rng(0))  # type: ignore[arg-type]
        assert on.host_of[ranks][::4].tolist() == expected
    flows = Allreduces(ring(order="shuffled"), on, np.random.default_rng(0)).flows(1.0)
    assert flows is not None
    assert (on.domain_of[flows.src] != on.domain_of[flows.dst]).sum() == 2


def test_small_values_are_gathered_over_the_domain_if_there_is_one():
    latency = 1.3e-6
    for world_size, share in ((12, FAST), (24, 2 * CABLE / 4)):
        on = resources(world_size)
        received = (world_size - 1) * 100.0 * 8.0
        steps = int(np.ceil(np.log2(world_size)))
        assert gather_seconds(100.0, on) == pytest.approx(steps * latency + received / share)


# -------------------------------------------------------------------------------------- a whole run


def scenario(**values: Any) -> Scenario:
    """12 ranks of `tests.small.small` on 6 hosts of 2 GPUs, in domains of 2 hosts."""
    topology = {
        "kind": "rail_optimised",
        "pods": 2,
        "hosts_per_pod": 4,
        "rails": 1,
        "ports": 8,
        "link_bandwidth": "10 GB/s",
        "cable_latency": "0 s",
        "switch_latency": "0 s",
        "scale_up": {"hosts": 2, "bandwidth": "40 GB/s", "latency": "1 us"},
    }
    own = {"cluster__topology": topology, "cluster__host__gpus": 2, "world_size": 12}
    own["workload__dataset__num_samples"] = 480
    return small(**{**own, **values})


def bytes_by_tier(run: Scenario) -> dict[str, float]:
    return simulate(run).links.groupby("tier", observed=True)["nbytes"].sum().to_dict()


def test_the_table_of_links_names_what_joins_the_hosts_of_a_domain():
    """All that leaves a GPU that way comes into another; inside one domain no cable carries any."""
    exchange = "partial_local_shuffle:exchange_fraction=1"
    carried = bytes_by_tier(scenario(workload__exchange=exchange))
    assert carried["scale_up_out"] == carried["scale_up_in"] > 0
    assert carried["host>leaf"] == carried["leaf>host"] > 0
    alone = bytes_by_tier(scenario(workload__exchange=exchange, world_size=4))
    assert alone["scale_up_out"] == alone["scale_up_in"] > 0
    assert not {"host>leaf", "leaf>host"} & set(alone)


def test_bytes_of_gradients_inside_a_domain():
    """A ring of 4 ranks on 2 hosts: 2 of its 4 links are between the hosts, in 10 iterations."""
    run = scenario(world_size=4, workload__dataset__num_samples=400)
    carried = bytes_by_tier(run)
    once = 2 * 3 / 4 * run.workload.model.gradient_size
    assert carried["scale_up_out"] == pytest.approx(10 * 2 * once)
    assert carried["nvlink"] == pytest.approx(10 * 4 * once)
    assert "pcie_out" not in carried


@pytest.mark.parametrize("overlap", ["none", "ddp", "horovod"])
@pytest.mark.parametrize("world_size", [4, 7, 12])
def test_no_bound_is_above_the_simulation(world_size, overlap):
    for rings in (1, 2):
        values = {"rings": rings, "inter_host_bus_bandwidth": "1 TB/s", "overlap": overlap}
        run = scenario(
            world_size=world_size, workload__allreduce=ring(1).model_dump(mode="json") | values
        )
        timeline = simulate(run)
        assert bounds(run).epoch <= timeline.phases["end_s"].max() * (1 + 1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("world_size", [12, 13, 27, 32])
def test_no_allreduce_is_faster_than_its_bound(name, world_size):
    made, algorithm = machine(), ALGORITHMS[name]
    assert not allreduce_problems(made, algorithm)
    run = small().model_copy(update={"cluster": made, "world_size": world_size})
    workload = run.workload.model_copy(update={"allreduce": algorithm})
    run = run.model_copy(update={"workload": workload})
    bound = allreduce_seconds(run)
    found = seconds(algorithm, resources(world_size), run.workload.model.gradient_size)
    assert 0.0 < bound <= found * (1 + 1e-9)


def test_the_bound_of_a_ring_inside_a_domain_is_what_it_takes():
    run = scenario(world_size=4)
    nbytes = run.workload.model.gradient_size
    bus = run.workload.allreduce.intra_host_bus_bandwidth
    alpha = run.workload.allreduce.intra_host_latency
    assert bus(nbytes) < FAST  # which binds
    assert allreduce_seconds(run) == pytest.approx(6 * alpha + 1.5 * nbytes / bus(nbytes))
    wide = scenario(world_size=4, workload__allreduce__intra_host_bus_bandwidth="1 TB/s")
    assert allreduce_seconds(wide) == pytest.approx(6 * alpha + 1.5 * nbytes / FAST)


@pytest.mark.parametrize(
    "values", [{"cluster__placement": "scattered"}, {"workload__allreduce__order": "shuffled"}]
)
def test_domains_that_are_drawn_are_left_out_of_the_bound(values):
    assert allreduce_seconds(scenario()) > 0.0
    assert allreduce_seconds(scenario(**values)) == 0.0


def test_packets_are_those_of_cables():
    exchange = "partial_local_shuffle:exchange_fraction=1"
    one = expected_packets(scenario(workload__exchange=exchange, world_size=4), 4096)
    assert one["gradients"] == one["exchange"] == 0.0
    three = expected_packets(scenario(workload__exchange=exchange), 4096)
    assert three["exchange"] == pytest.approx(480 * 2 / 3 * np.ceil(1e5 / 4096))


def test_packets_cross_cables_only():
    """A run packet by packet carries the same bytes over each tier."""
    exchange = "partial_local_shuffle:exchange_fraction=0.5"
    values = {"workload__exchange": exchange, "world_size": 6, "workload__dataset__num_samples": 60}
    fluid = bytes_by_tier(scenario(**values))
    packets = bytes_by_tier(scenario(**values, network=Packet().model_dump(mode="json")))
    assert packets["scale_up_out"] > 0
    assert packets == pytest.approx(fluid)


def test_the_whole_set_is_passed_on_over_the_domain():
    """4 ranks on 2 hosts: each reads half of it from the file system, and passes that on to the
    other while it comes: from the GPU whose rank is the first of its HCA."""
    values = {
        "workload__exchange": "global_shuffle:source=ssd",
        "workload__staging__broadcast": True,
    }
    run = scenario(world_size=4, **values)
    on = Resources(run.cluster, 4, np.random.default_rng(0))
    traffic = staging_traffic(run.workload, on, np.full(4, 12e6))
    assert traffic is not None
    used = [
        [link for link in row if 0 <= link < len(on.links.names)] for row in traffic.batch.routes
    ]
    assert [[on.links.names[link] for link in row] for row in used[2:]] == [
        ["h0000.scale_up_out0", "h0001.scale_up_in0"],
        ["h0001.scale_up_out0", "h0000.scale_up_in0"],
    ]
    assert all("scale_up" not in on.links.names[link] for row in used[:2] for link in row)
    assert traffic.batch.tasks["delay"][2:].tolist() == [LATENCY] * 2
    assert traffic.batch.tasks["nbytes"].tolist() == [24e6] * 4


# --------------------------------------------------------------------------------- congestion study


def test_ports_of_the_congestion_study_are_cables():
    fabric = UsedFabric(resources(24))
    names = [fabric.links.name(port) for port in fabric.ports.tolist()]
    assert [name.split(">")[0] for name in names] == [f"h{rank // 4:04d}" for rank in range(24)]
    assert len(np.unique(fabric.leaf)) == 2  # one for each rail
    inside = fabric.routes(of(0), of(4))[0]
    assert fabric.links.latency[inside].sum() == LATENCY
    alone = UsedFabric(resources(12))
    assert set(alone.ports.tolist()) == {-1} and set(alone.leaf.tolist()) == {0}


# ----------------------------------------------------------------------------------------- refusals


def test_a_domain_has_no_more_bandwidth_than_the_nvlink_of_its_gpus():
    made = machine(topology={"scale_up": {**SCALE_UP, "bandwidth": "60 GB/s"}})
    (problem,) = cluster_problems(made, 4)
    assert problem.path == "cluster.topology.scale_up.bandwidth"
    assert "50 GB/s" in problem.rule and problem.value == "60 GB/s"


def test_rings_have_the_hcas_of_a_domain_and_no_more():
    assert not allreduce_problems(machine(), ring(6))
    (problem,) = allreduce_problems(machine(), ring(7))
    assert "scale-up domains have 6" in problem.rule
    (problem,) = allreduce_problems(machine(topology={"scale_up": None}), ring(3))
    assert "the hosts have 2" in problem.rule


@pytest.mark.parametrize(
    ("change", "key"),
    [({"hosts": 1}, "hosts"), ({"bandwidth": "0 B/s"}, "bandwidth"), ({"gpus": 4}, "gpus")],
)
def test_bad_domains_are_told_by_their_key(change, key):
    with pytest.raises(ScenarioError, match=rf"cluster\.topology\.scale_up\.{key}"):
        scenario(
            cluster__topology__scale_up={"hosts": 2, "bandwidth": "40 GB/s", "latency": "0 s"}
            | change
        )

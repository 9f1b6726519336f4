"""Slow and failed things at times in a run, worked out by hand. Laws: docs/failures.md.

8 hosts with one GPU on one switch of 10 GB/s, 10 iterations, without randomness; or on a tree of 4
leaf switches with 4 hosts and 2 spine switches, cables of 12.5 GB/s.
"""

from collections import Counter
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
import simpy

from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.fabric.routing.detour import Detours
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.topology.graph import add_host, add_switch, connect, new_graph
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import wiring
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.job.sim.faults import ActiveFaults
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.job.sim.recorder import Recorder
from simshuffle.job.sim.simulate import simulate, simulate_epochs
from simshuffle.report import report
from simshuffle.report.timeline import HIDDEN, Timeline
from tests.small import seconds, small

FORWARD, BACKWARD = 9.083e-3, 18.17e-3  # s of a batch of 10
GRADIENT = 102_228_128  # bytes


def fault(what: str, rate: float, at: float = 0.0, lasts: float | None = None, **more: Any) -> Any:
    span = {} if lasts is None else {"for": f"{lasts!r} s"}
    return {"what": what, "rate": rate, "at": f"{at!r} s", **span, **more}


def slowed(*faults: Any, **values: Any) -> Timeline:
    return simulate(small(**({"faults": list(faults)} if faults else {}), **values))


def epoch_s(*faults: Any, **values: Any) -> float:
    return float(report.epochs(slowed(*faults, **values))["epoch_s"].iloc[-1])


def rows_of(scenario: Scenario) -> list[dict[str, Any]]:
    """What of its faults began."""
    rows: list[dict[str, Any]] = []
    list(simulate_epochs(scenario, struck=rows))
    return rows


def when_summed(iteration: int, **values: Any) -> tuple[float, float]:
    """When the allreduce of an iteration begins, and how long it takes (s), without faults."""
    rows = slowed(**values).phases
    row = rows[(rows["phase"] == "allreduce") & (rows["iteration"] == iteration)].iloc[0]
    return float(row["start_s"]), float(row["end_s"] - row["start_s"])


# --------------------------------------------------------------------------------- cables, devices


def test_a_slow_cable_delays_what_crosses_it_by_what_it_has_not_carried():
    """For 4 ms within an allreduce a cable carries a quarter: three quarters of 4 ms are made up
    for."""
    begin, _ = when_summed(1, world_size=2)
    whole = epoch_s(world_size=2)
    for what in ("h0001>switch", "switch>h0001"):
        found = epoch_s(fault(what, 0.25, begin + 2e-3, 4e-3), world_size=2)
        assert found == pytest.approx(whole + 3e-3, rel=1e-9)


def test_of_several_faults_of_one_thing_the_worst_counts():
    begin, _ = when_summed(1, world_size=2)
    both = fault("h0001>switch", 0.25, begin + 2e-3, 4e-3), fault("switch", 0.5, begin + 1e-3, 8e-3)
    # 1 ms at a half, 4 ms at a quarter, 3 ms at a half: of 8 ms 3 are carried
    found = epoch_s(*both, world_size=2)
    assert found == pytest.approx(epoch_s(world_size=2) + 5e-3, rel=1e-9)


def test_what_two_flows_share_is_what_is_left():
    """Rings over a switch at a half: every cable of the ring has 5 GB/s all along."""
    _, alone = when_summed(1)
    found = seconds(slowed(fault("switch", 0.5)), "allreduce")[0]
    sent = 2 * 7 / 8 * GRADIENT
    assert found == pytest.approx(10 * (alone + sent / 10e9), rel=1e-9)


def test_an_ssd_at_a_half_reads_half_as_fast():
    """Each rank reads 10 MB at 20 MB/s, for which all wait; at a half 0.5 s longer."""
    values: dict[str, Any] = {
        "cluster__ssd__read_bandwidth": "20 MB/s",
        "workload__dataset__decode": "0 s",
    }
    whole = epoch_s(**values)
    assert epoch_s(fault("h0002.ssd", 0.5), **values) == pytest.approx(whole + 0.5, rel=1e-9)


def test_a_file_system_that_opens_four_fifths_of_the_files():
    """800 files at 1,000 a second take 0.8 s, and at 800 a second 1 s."""
    values: dict[str, Any] = {
        "workload__exchange": "global_shuffle:source=pfs",
        "cluster__parallel_file_system__open_rate": "1 k/s",
    }
    whole = epoch_s(**values)
    assert epoch_s(fault("pfs.open", 0.8), **values) == pytest.approx(whole + 0.2, rel=1e-9)
    # and the last batch of 1 MB at 4 GB/s of 5 as well
    assert epoch_s(fault("pfs", 0.8), **values) > whole + 0.2


def test_the_links_table_has_healthy_capacities_and_the_load_as_a_share_of_what_was_left():
    table = slowed(fault("h0001>switch", 0.25)).links.set_index("link")
    whole = slowed().links.set_index("link")
    assert (table["capacity"] == whole["capacity"]).all()
    np.testing.assert_allclose(table["nbytes"], whole["nbytes"], rtol=1e-12)
    assert table.loc["h0001>switch", "peak_utilisation"] == 1.0
    nbytes: Any = table.loc["h0001>switch", "nbytes"]
    carried = nbytes / 10e9 / epoch_s(fault("h0001>switch", 0.25))
    assert table.loc["h0001>switch", "mean_utilisation"] == pytest.approx(carried, rel=1e-9)


# --------------------------------------------------------------------------------------------- GPUs


def test_a_gpu_at_half_speed_makes_each_iteration_of_all_longer_by_its_passes():
    whole = epoch_s()
    for what in ("h0003.gpu0", "h0003.gpus"):
        found = epoch_s(fault(what, 0.5))
        assert found == pytest.approx(whole + 10 * (FORWARD + BACKWARD), rel=1e-9)
    waits = seconds(slowed(fault("h0003.gpus", 0.5)), "wait_allreduce")
    assert waits.get(3, 0.0) == pytest.approx(0.0, abs=1e-9)
    assert waits[0] == pytest.approx(10 * (FORWARD + BACKWARD), rel=1e-9)


def test_a_slow_gpu_counts_for_the_iterations_that_begin_while_it_is():
    begins = slowed().phases.query("phase == 'forward' and rank == 3")["start_s"].to_numpy()
    span = float(begins[2]) + 1e-3, float(begins[4]) + 1e-3
    lasts = span[1] - span[0] + 5e-3
    faults = fault("h0003.gpus", 0.25, span[0], lasts), fault("h0003.gpu0", 0.5, span[0], lasts)
    # iteration 4 begins in it, and lasts so long that none of the others does; the worst counts
    assert epoch_s(*faults) == pytest.approx(epoch_s() + 3 * (FORWARD + BACKWARD), rel=1e-9)
    assert seconds(slowed(*faults), "forward")[3] == pytest.approx(13 * FORWARD, rel=1e-9)


def test_a_slow_gpu_slows_the_passes_beside_which_gradients_are_summed():
    overlap = {"kind": "ddp", "slowdown": 0, "hooks": "0 s"}
    timeline = slowed(fault("h0003.gpus", 0.5), workload__allreduce__overlap=overlap)
    assert seconds(timeline, "forward")[3] == pytest.approx(2 * 10 * FORWARD, rel=1e-9)
    assert seconds(timeline, "forward")[0] == pytest.approx(10 * FORWARD, rel=1e-9)


@pytest.mark.parametrize("parallelism", ["filter:ways=4", "sharded_data:stage=3"])
def test_what_ranks_compute_together_is_as_slow_as_the_slowest(parallelism):
    values: dict[str, Any] = {
        "workload__parallelism": parallelism,
        "workload__allreduce__overlap": "none",
    }
    whole, found = slowed(**values), slowed(fault("h0003.gpus", 0.5), **values)
    for rank in range(8):
        times = 2 if rank < 4 or "sharded" in parallelism else 1
        expected = times * seconds(whole, "forward")[rank]
        assert seconds(found, "forward")[rank] == pytest.approx(expected, rel=1e-9)


def test_the_pass_that_measures_importance_is_slower_too():
    values: dict[str, Any] = {"workload__exchange": "importance_exchange:exchange_fraction=0.1"}
    whole, found = slowed(**values), slowed(fault("h0003.gpus", 0.5), **values)
    more = seconds(found, "importance")[3] - seconds(whole, "importance")[3]
    assert more == pytest.approx(10 * small(**values).step_times.inference_of(np.array(10)))


def test_a_slow_host_is_slow_in_all_that_it_has():
    (row,) = rows_of(small(faults=[fault("h0003", 0.5)]))
    # both directions of its cable and of its PCIe slot; NVLink, memory, SSD, cores
    known = {"what": "h0003", "at_s": 0.0, "until_s": None, "rate": 0.5, "rerouted": 0}
    assert row == {**known, "links": 8, "gpus": 1}
    assert epoch_s(fault("h0003", 0.5)) > epoch_s(fault("h0003.gpus", 0.5))


# ---------------------------------------------------------------------------------- failed cables


def across(**values: Any) -> dict[str, Any]:
    """Two ranks below two leaf switches of the tree."""
    return {
        "cluster__topology": TREE_TOPOLOGY,
        "world_size": 2,
        "cluster__placement": ["h0000", "h0004"],
        **values,
    }


TREE_TOPOLOGY: dict[str, Any] = {
    "kind": "fat_tree",
    "levels": 2,
    "arity": 4,
    "taper": 2,
    "link_bandwidth": "10 GB/s",
    "cable_latency": "0 s",
    "switch_latency": "0 s",
}


def used(prefix: str, **values: Any) -> str:
    """The cable from a leaf switch to a spine switch that a run uses most."""
    links = slowed(**values).links
    up = links[links["link"].astype(str).str.startswith(prefix)]
    up = up[~up["link"].astype(str).str.contains(">h")]
    return str(up.sort_values("nbytes").iloc[-1]["link"])


@pytest.mark.parametrize("lasts", [None, 0.2])
def test_new_routes_lead_round_a_failed_cable_once_they_are_known(lasts):
    """The other spine switch carries as much: an allreduce waits for the 3 ms until routes are
    known, and no longer."""
    values = across()
    begin, _ = when_summed(1, **values)
    cable = used("leaf.0>", **values)
    found = fault(cable, 0, begin + 2e-3, lasts, reroute_after="3 ms")
    assert epoch_s(found, **values) == pytest.approx(epoch_s(**values) + 3e-3, rel=1e-6)
    whole = slowed(**values).links.set_index("link")["nbytes"]
    table = slowed(found, **values).links.set_index("link")["nbytes"]
    # all go round it, the one under way is counted where it ended; or the six until it returns
    left = 0 if lasts is None else 40 - 6
    assert table.get(cable, 0.0) == pytest.approx(left * GRADIENT, rel=1e-12)
    other = [name for name in table.index if name.startswith("leaf.0>spine")]
    assert table[other].sum() == pytest.approx(whole[cable], rel=1e-12)
    assert rows_of(small(faults=[found], **values))[0]["rerouted"] == 2


def test_a_cable_that_returns_is_the_way_round_another():
    """While one of both ways up is failed, the other fails for good within the third allreduce,
    which has to wait until the first returns."""
    values = across()
    (first, _), (third, _) = when_summed(1, **values), when_summed(3, **values)
    cable = used("leaf.0>", **values)
    other = next(each for each in ("leaf.0>spine.0", "leaf.0>spine.1") if each != cable)
    found = (
        fault(cable, 0, first + 2e-3, 0.2, reroute_after="3 ms"),
        fault(other, 0, third + 5e-3, reroute_after="3 ms"),
    )
    # 3 ms until routes are known, and until then 2 ms of the third allreduce have passed
    late = 3e-3 + (first + 2e-3 + 0.2) - (third + 5e-3)
    assert epoch_s(*found, **values) == pytest.approx(epoch_s(**values) + late, rel=1e-6)
    assert [row["rerouted"] for row in rows_of(small(faults=[*found], **values))] == [2, 2]
    # a ring of four leaf switches, with a flow up and one down each; two cables fail for good
    ring = ["h0000", "h0004", "h0008", "h0012"]
    values = across(world_size=4, cluster__placement=ring, workload__allreduce__order="as_given")
    found = (
        fault(used("leaf.0>", **values), 0, first + 2e-3, reroute_after="1 ms"),
        fault(used("leaf.2>", **values), 0, first + 4e-3, reroute_after="1 ms"),
    )
    assert [row["rerouted"] for row in rows_of(small(faults=[*found], **values))] == [2, 2]


def test_what_is_rerouted_after_a_loss_counts_in_the_row_of_the_fault():
    """A host is lost 1 ms after a cable of its leaf switch fails; new routes are known 10 s later.
    The allreduce waits for them with the flow up; the one down to the spare host, h0001, takes the
    other spine switch."""
    values = across(epochs=2)
    begin, _ = when_summed(3, **values)
    faults = [
        fault(used("leaf.0>", **values), 0, begin + 2e-3, reroute_after="10 s"),
        fault("h0000", 0, begin + 3e-3),
    ]
    recovery = {"spares": 1, "detect": "1 s", "restart": "2 s"}
    rows = rows_of(small(faults=faults, recovery=recovery, **values))
    assert [row["rerouted"] for row in rows if "leaf" in row["what"]] == [1]


def test_transfers_wait_for_a_failed_cable_that_returns():
    values = across()
    begin, _ = when_summed(1, **values)
    cable = used("leaf.0>", **values)
    for found in (
        fault(cable, 0, begin + 2e-3, 5e-3, on_failure="stall"),
        fault(cable, 0, begin + 2e-3, 5e-3, reroute_after="1 s"),
        fault("leaf.0>h0000", 0, begin + 2e-3, 5e-3, reroute_after="1 ms"),  # there is no other way
    ):
        assert epoch_s(found, **values) == pytest.approx(epoch_s(**values) + 5e-3, rel=1e-6)


def test_what_goes_round_a_failed_cable_shares_what_is_there():
    """The ring of 4 ranks below two leaf switches sends two flows up each, over a spine switch
    each, that take X s after latencies of d s. One stands still from 2 to 3 ms, then they share:
    the other has X + d - 3 ms left, which takes twice that, and then this one 1 ms more: 2 X + 2 d
    - 2 ms in all, where X + d would do."""
    values = across(
        world_size=4,
        cluster__placement=["h0000", "h0004", "h0001", "h0005"],
        workload__allreduce__order="as_given",
    )
    begin, alone = when_summed(20, **values)  # the last
    cable = used("leaf.0>", **values)
    found = fault(cable, 0, begin + 2e-3, reroute_after="1 ms")
    moved = 2 * 3 / 4 * GRADIENT / 10e9
    assert moved == pytest.approx(alone, rel=1e-2)
    expected = epoch_s(**values) + alone - 2e-3
    assert epoch_s(found, **values) == pytest.approx(expected, rel=1e-6)


def test_a_longer_way_round_takes_its_latency_too():
    """Four switches in a ring. From h0000 to h0001 it is one cable, and round the ring three: two
    more, of 100 us and a switch of 7 us each. What does not cross the failed cable stays as it is,
    and so do the links before the first cable and after the last one."""
    ring = {"kind": "torus", "shape": [4], "link_bandwidth": "10 GB/s"}
    ring |= {"cable_latency": "100 us", "switch_latency": "7 us"}
    scenario = small(
        cluster__topology=ring,
        cluster__host__gpus=2,
        world_size=8,
        faults=[fault("s0>s1", 0, 1.0, reroute_after="2 s")],
    )
    resources = Resources(
        scenario.cluster, 8, scenario.rng("placement"), every_cable=True, writes=False
    )
    clock = NetworkClock(simpy.Environment(), resources.network(scenario.network, accounts=8))
    rows: list[dict[str, Any]] = []
    ActiveFaults(scenario, resources, clock, rows)
    clock.env.run(until=2.9)
    assert clock.detour is None
    clock.env.run(until=3.1)
    assert clock.detour is not None
    # of rank 1 on h0000 to ranks 2 on h0001 and 7 on h0003, and back from rank 2
    routes, latency = resources.message(np.array([1, 1, 2]), np.array([2, 7, 0]))
    routes = np.array(routes)
    batch = TransferBatch(tasks(3, work=1.0, delay=latency), routes.astype(np.int32))
    posted = clock.detour(batch)
    names = resources.links.names
    ways = [[names[link] for link in route if link >= 0] for route in posted.routes]
    old_ways = [[names[link] for link in route if link >= 0] for route in batch.routes]
    assert ways[1] == old_ways[1]
    cables = [[name for name in way if ">" in name] for way in ways]
    assert cables[0] == ["h0000>s0", "s0>s3", "s3>s2", "s2>s1", "s1>h0001"]
    assert cables[2] == ["h0001>s1", "s1>s2", "s2>s3", "s3>s0", "s0>h0000"]
    for way, old_way in zip(ways, old_ways, strict=True):
        devices = [name for name in way if ">" not in name]
        assert devices == [name for name in old_way if ">" not in name]
        assert (way[0], way[-1]) == (old_way[0], old_way[-1])
    assert posted.tasks["delay"] - latency == pytest.approx([2 * 107e-6, 0, 2 * 107e-6])
    assert batch.tasks["delay"].tolist() == latency.tolist()
    assert rows == [
        {"what": "s0>s1", "at_s": 1.0, "until_s": None, "rate": 0.0}
        | {"links": 2, "gpus": 0, "rerouted": 0}
    ]


def test_a_detour_is_a_shortest_way_of_those_that_are_left():
    fabric = wiring(small(**across()).cluster).fabric
    rng = np.random.default_rng(1)
    names = fabric.cabling.names
    for _ in range(20):
        cut = rng.choice(len(fabric.links) // 2, int(rng.integers(1, 8)), replace=False)
        detours = Detours(fabric, np.concatenate([2 * cut, 2 * cut + 1]))
        left = nx.MultiGraph()
        left.add_nodes_from(range(len(names)))
        kept = np.delete(fabric.cabling.ends, cut, axis=0)
        left.add_edges_from(kept.tolist())
        left.remove_nodes_from(fabric.cabling.names.index(name) for name in ("pfs", "pfs.switch"))
        for src, dst in rng.integers(0, 16, (20, 2)).tolist():
            a, b = (int(fabric.links.src_node[fabric.inject_link[port]]) for port in (src, dst))
            route = detours.route(src, dst)
            if src == dst:
                continue
            assert (route is not None) == nx.has_path(left, a, b)
            if route is not None:
                assert not set(np.array(route) // 2) & set(cut.tolist())
                assert len(route) == nx.shortest_path_length(left, a, b)
                ends = [
                    (int(fabric.links.src_node[k]), int(fabric.links.dst_node[k])) for k in route
                ]
                assert [ends[0][0], *[end for _, end in ends]] == [
                    a,
                    *[begin for begin, _ in ends[1:]],
                    b,
                ]


@pytest.mark.parametrize(
    ("failed", "port", "used"),
    [([], 1, 1), ([1], 1, 2), ([1], 0, 0), ([2], 2, 0), ([1, 2], 1, 0), ([0, 1, 2], 0, None)],
)
def test_the_next_port_of_a_host_stands_in_for_one_without_a_cable(failed, port, used):
    """Hosts a and b have a port each on three switches that are linked to one another."""
    graph, switches = new_graph(), ("s0", "s1", "s2")
    for switch in switches:
        add_switch(graph, switch, "leaf", 0.0)
    for ends in combinations(switches, 2):
        connect(graph, *ends, bandwidth=1e9, latency=0.0)
    for host in ("a", "b"):
        add_host(graph, host)
        for switch in switches:
            connect(graph, host, switch, bandwidth=1e9, latency=0.0)
    fabric = Fabric(graph)
    a, b = fabric.endpoints("a"), fabric.endpoints("b")
    cut = fabric.inject_link[[a[each] for each in failed]]
    detours = Detours(fabric, np.concatenate([cut, cut ^ 1]).astype(np.int64))
    to, back = detours.route(a[port], b[1]), detours.route(b[1], a[port])
    assert detours.find_unreachable(np.array([b[1], a[port]], np.int32)) == (
        a[port] if used is None else None
    )
    if used is None:
        assert to is None and back is None
        return
    assert to is not None and back is not None
    assert [to[0], to[-1]] == [fabric.inject_link[a[used]], fabric.eject_link[b[1]]]
    assert [back[0], back[-1]] == [fabric.inject_link[b[1]], fabric.eject_link[a[used]]]
    assert len(to) == len(back) == (2 if used == 1 else 3)


# -------------------------------------------------------------------------------- all of it at once


def everything(rate: float) -> list[Any]:
    return [
        {"what": "cables", "every": "20 ms", "rate": rate, "for": "10 ms", "reroute_after": "1 ms"},
        {"what": "hosts", "every": "50 ms", "rate": 0.5, "for": "20 ms"},
        {"what": "gpus", "every": "50 ms", "rate": 0.5, "for": "20 ms"},
        {"what": "ssds", "every": "50 ms", "rate": rate, "for": "5 ms"},
    ]


@pytest.mark.parametrize("rate", [0.25, 0.0])
@pytest.mark.parametrize(
    "exchange", ["partial_local_shuffle:exchange_fraction=0.5", "global_shuffle:source=pfs"]
)
def test_drawn_faults_leave_no_gap_and_lose_no_byte(rate, exchange):
    values = across(
        world_size=8, cluster__placement="scattered", epochs=2, workload__exchange=exchange
    )
    whole, found = simulate(small(**values)), simulate(small(faults=everything(rate), **values))
    phases = found.phases[~found.phases["phase"].isin(HIDDEN)]
    for _, rows in phases.groupby("rank"):
        ordered = rows.sort_values(["start_s", "end_s"])
        np.testing.assert_array_equal(
            ordered["start_s"].to_numpy()[1:], ordered["end_s"].to_numpy()[:-1]
        )
    own = found.links["link"].astype(str).str.match(r"h\d+[.>]")
    of_hosts = found.links[own].groupby("link", observed=True)["nbytes"].sum()
    before = whole.links.groupby("link", observed=True)["nbytes"].sum()
    np.testing.assert_allclose(of_hosts, before[of_hosts.index], rtol=1e-9)
    assert (found.links["mean_utilisation"] <= 1 + 1e-9).all()
    again = simulate(small(faults=everything(rate), **values))
    assert again.phases.equals(found.phases)


def test_a_process_says_when_each_host_is_slow(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "host,start,end,class\na,0.1 s,0.2 s,disk\nb,0.3 s,0.35 s,disk\na,0.9 s,1 s,disk\n"
    )
    process = {"kind": "trace", "path": str(trace), "hosts": 8}
    rows = rows_of(small(faults=[{"what": "ssds", "rate": 0.5, "process": process}], epochs=4))
    spans = np.array([(row["at_s"], row["until_s"]) for row in rows])
    rounds = 1.0 * np.arange(len(rows) // 3 + 1)[:, None, None]
    expected = (np.array([[0.1, 0.2], [0.3, 0.35], [0.9, 1.0]]) + rounds).reshape(-1, 2)
    np.testing.assert_allclose(spans, expected[: len(rows)])
    bursty = {
        "kind": "bursty",
        "variation": 1.8,
        "mean_between": "20 ms",
        "repair": {"mean": "5 ms"},
        "lemons": {"hosts": 0.25, "faults": 0.9},
    }
    rows = rows_of(small(faults=[{"what": "hosts", "rate": 0.5, "process": bursty}], epochs=2))
    gaps, hosts = np.diff([row["at_s"] for row in rows]), Counter(row["what"] for row in rows)
    assert gaps.mean() == pytest.approx(2.5e-3, rel=8 / len(rows) ** 0.5)
    assert gaps.std() / gaps.mean() > 1.3
    lemons = sum(count for _, count in hosts.most_common(2))
    assert lemons / len(rows) == pytest.approx(0.9, abs=0.05)


def test_faults_of_a_machine_that_several_jobs_share_are_of_each_as_it_stands_there():
    jobs: Any = {"a": {"world_size": 4}, "b": {"world_size": 4}}
    names = {"a": "a", "b": "b"}
    whole = dict(simulate_jobs(place_jobs(small(jobs=jobs)), names))
    slow = small(jobs=jobs, faults=[fault("h0005.gpus", 0.5)])
    rows: list[dict[str, Any]] = []
    found = dict(simulate_jobs(place_jobs(slow), names, struck=rows))
    assert found["a"].phases.equals(whole["a"].phases)
    for rank, times in enumerate((1, 2, 1, 1)):  # h0005 is the second host of b
        expected = times * seconds(whole["b"], "forward")[rank]
        assert seconds(found["b"], "forward")[rank] == pytest.approx(expected, rel=1e-9)
    assert [(row["what"], row["gpus"]) for row in rows] == [("h0005.gpus", 1)]


@pytest.mark.parametrize(("what", "slow"), [("h0003.gpu1", [3]), ("h0002.gpus", [0, 1])])
def test_a_gpu_of_a_job_is_one_of_its_host(what, slow):
    """Jobs of 3 and 4 ranks on hosts of two GPUs: the second one has h0002 and h0003."""
    jobs: Any = {"a": {"world_size": 3}, "b": {"world_size": 4}}
    names = {"a": "a", "b": "b"}
    values: dict[str, Any] = {"jobs": jobs, "cluster__host__gpus": 2}
    whole = dict(simulate_jobs(place_jobs(small(**values)), names))
    found = dict(simulate_jobs(place_jobs(small(**values, faults=[fault(what, 0.5)])), names))
    assert seconds(found["a"], "forward") == seconds(whole["a"], "forward")
    for rank in range(4):
        expected = (2 if rank in slow else 1) * seconds(whole["b"], "forward")[rank]
        assert seconds(found["b"], "forward")[rank] == pytest.approx(expected, rel=1e-9)


def test_faults_that_change_nothing_change_nothing():
    whole = slowed()
    for found in (
        slowed(fault("h0003", 1.0)),
        slowed(fault("h0003", 0.5, at=1000.0)),
        slowed(fault("h0012", 0.5)),  # a host without ranks
    ):
        assert found.phases.equals(whole.phases)
        assert found.links.equals(whole.links)


def test_a_recorder_changes_nothing():
    scenario = small(faults=everything(0.25))
    recorded = next(iter(simulate_epochs(scenario, recorder=Recorder(0.5))))
    assert recorded.phases.equals(simulate(scenario).phases)


def test_the_mean_of_drawn_faults_is_as_asked():
    faults = [{"what": "ssds", "every": "1 ms", "rate": 0.9, "for": "2 ms"}]
    rows = rows_of(small(faults=faults, epochs=4))
    at = np.array([row["at_s"] for row in rows])
    lasts = np.array([row["until_s"] for row in rows]) - at
    error = 4 / len(rows) ** 0.5
    assert len(rows) > 1000
    assert np.diff(at).mean() == pytest.approx(1e-3, rel=error)
    assert lasts.mean() == pytest.approx(2e-3, rel=error)
    assert {row["what"] for row in rows} == {f"h000{k}.ssd" for k in range(8)}

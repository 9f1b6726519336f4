"""The three network models behind one interface: whole runs, and transfers in a SimPy model."""

import numpy as np
import pandas as pd
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import ScenarioError, TopologyError
from simshuffle.fabric.network import Analytic, Flows, Fluid, Links, Packet
from simshuffle.fabric.network.batch import TransferBatch, chain_edges, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.hybrid import AnalyticNetwork, HybridNetwork
from simshuffle.fabric.network.models import shared_network
from simshuffle.fabric.network.packet_run import run
from simshuffle.job.plan.effort import expected_packets
from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim import simulate as runs
from simshuffle.job.sim.links import EpochLinkStatistics
from simshuffle.job.sim.simpy_network import SimpyNetwork
from simshuffle.job.sim.simulate import simulate
from tests.small import small

KINDS = ("analytic", "fluid", "packet")
SCENARIOS = {
    "reads": {"workload.exchange": "global_shuffle:source=pfs"},
    "messages": {"workload.exchange": "partial_local_shuffle:exchange_fraction=0.3"},
    "slow rings": {
        "workload.allreduce.inter_host_bus_bandwidth": "3 GB/s",
        "workload.exchange": "global_shuffle:source=pfs",
    },
    "slow streams": {
        "workload.exchange": "partial_local_shuffle:exchange_fraction=0.3",
        "cluster.message_passing.stream_bandwidth": "1 GB/s",
    },
}
FINE = Packet(mtu="0.01 B", port_buffer="1 kB")
"""Packets of a hundredth of a byte: nearly a fluid."""


def scenario(name, kind, **values):
    return small(network={"kind": kind}, **SCENARIOS[name], **values)


def made_with(timeline):
    """Seconds of every phase, summed over ranks and iterations."""
    rows = timeline.phases
    return (rows["end_s"] - rows["start_s"]).groupby(rows["phase"], observed=True).sum()


def end(timeline):
    return timeline.phases["end_s"].max()


@pytest.fixture(scope="module")
def timelines():
    return {(name, kind): simulate(scenario(name, kind)) for name in SCENARIOS for kind in KINDS}


# --------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_bound_is_a_bound(timelines, name):
    bound, fluid, packet = (timelines[name, kind] for kind in KINDS)
    assert end(bound) <= min(end(fluid), end(packet)) * (1 + 1e-9)
    for phase, seconds in made_with(bound).items():
        if phase != "exchange_hidden":  # what a slower network takes longer is hidden longer
            assert seconds <= made_with(fluid)[phase] * (1 + 1e-9), phase


def test_where_gradients_meet_reads_the_bound_is_lower(timelines):
    # a rank's gradients come in at 10 GB/s, and so do its reads: only the bound lets both have the
    # cable
    bound, fluid = (
        made_with(timelines["reads", kind])["allreduce"] for kind in ("analytic", "fluid")
    )
    assert bound < fluid * (1 - 1e-4)


@pytest.mark.parametrize("name", SCENARIOS)
def test_packets_agree_with_the_fluid_where_nothing_collides(timelines, name):
    fluid, packet = timelines[name, "fluid"], timelines[name, "packet"]
    assert end(packet) == pytest.approx(end(fluid), rel=0.03)
    assert made_with(packet)["allreduce"] == pytest.approx(made_with(fluid)["allreduce"], rel=0.03)


def test_cables_are_used_packet_by_packet(timelines):
    for name in SCENARIOS:
        used = timelines[name, "packet"].links
        cables = used[used["tier"].astype(str).str.contains(">")]
        assert len(cables) >= 16
        assert (cables["peak_utilisation"] == 1).all()  # a packet has the cable for itself
        np.testing.assert_allclose(
            cables["busy_s"], cables["nbytes"] / cables["capacity"], rtol=1e-6
        )
    limited = timelines["slow rings", "fluid"].links.set_index("tier").loc["host>leaf"]
    assert (limited["peak_utilisation"] < 0.5).all()


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kind", ["analytic", "packet"])
def test_every_link_carries_the_same_bytes_under_every_model(timelines, name, kind):
    expected, found = (timelines[name, k].links.set_index("link") for k in ("fluid", kind))
    assert list(found.index) == list(expected.index)
    np.testing.assert_allclose(found["nbytes"], expected["nbytes"], rtol=1e-9)
    share = found["nbytes"] / found["capacity"] / end(timelines[name, kind])
    cables = found["unit"] == "B"
    np.testing.assert_allclose(found.loc[cables, "mean_utilisation"], share[cables], rtol=1e-9)


def test_a_link_of_the_bound_may_be_used_twice_over(timelines):
    peak = {kind: timelines["reads", kind].links["peak_utilisation"].max() for kind in KINDS}
    assert peak["analytic"] > 1.1
    assert peak["fluid"] == peak["packet"] == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_scenario_gives_the_same_tables(timelines, kind):
    again = simulate(scenario("reads", kind))
    for table in ("phases", "links", "sources"):
        pd.testing.assert_frame_equal(
            getattr(again, table), getattr(timelines["reads", kind], table)
        )


@pytest.mark.parametrize(("model", "first"), [(Analytic(), 2.0), (Fluid(), 1.0)])
def test_peaks_are_those_of_each_epoch(model, first):
    single = small()
    resources = Resources(single.cluster, single.world_size, single.rng("placement"))
    table = resources.links
    network = shared_network(
        model, Links(table.capacity, table.latency, table.names), table.cable, width=resources.width
    )
    statistics = EpochLinkStatistics(resources, network)
    for epoch, cap in ((1, np.inf), (2, 2e9)):
        network.post(
            network.now,
            TransferBatch(tasks(2, work=1e9, nbytes=1e9, cap=cap), pad_routes([[0], [0]])),
        )
        network.advance(np.inf)
        carried = statistics.close_epoch(epoch, network.now)
        assert carried["peak_utilisation"].tolist() == pytest.approx([first if epoch == 1 else 0.4])
        assert carried["nbytes"].tolist() == pytest.approx([2e9])


# ----------------------------------------------------------------------------------------- refusals


def test_too_many_packets_are_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(runs, "plan_epochs", lambda *_: pytest.fail("the run has begun"))
    many = scenario("reads", "packet", epochs=1000)
    with pytest.raises(
        ScenarioError,
        match=r"network\.kind: .* at most 1e\+09 packets; .* 3\.5e\+09 \(3\.5e\+09 of gradients",
    ) as caught:
        simulate(many)
    assert "4.096 kB" in str(caught.value)
    assert "network.kind: fluid" in caught.value.problems[0].remedy
    for kind in ("fluid", "analytic"):
        with pytest.raises(pytest.fail.Exception, match="the run has begun"):
            simulate(scenario("reads", kind, epochs=1000))


@pytest.mark.parametrize("name", ["reads", "messages"])
def test_the_packets_of_a_run_are_well_foreseen(timelines, name):
    single = scenario(name, "packet")
    foreseen = expected_packets(single, 4096.0)
    links = timelines[name, "packet"].links
    arriving = links.loc[links["tier"] == "leaf>host", "nbytes"].sum()
    assert sum(foreseen.values()) == pytest.approx(arriving / 4096, rel=0.01)
    of_gradients = links.loc[links["tier"] == "pcie_out", "nbytes"].sum() / 4096
    assert foreseen["gradients"] == pytest.approx(of_gradients, rel=1e-3)
    assert foreseen["reads" if name == "reads" else "exchange"] == pytest.approx(
        arriving / 4096 - of_gradients, rel=0.1
    )


# ------------------------------------------------------------------------------- cables and devices

LINKS = Links([10.0, 10.0, 4.0], [0.5, 0.0, 0.0], ["cable", "other cable", "device"])
CABLES = np.array([True, True, False])


def ends(model, batch, count):
    """When the transfers of a batch, tagged 0, 1, ..., end."""
    network = shared_network(model, LINKS, CABLES, width=3, accounts=1, tags=count)
    network.post(0.0, batch)
    network.advance(np.inf)
    assert not network.alive
    return network.finish, network


def together(*parts, **columns):
    """Transfers of (route, bytes), each with the latency of its cables."""
    routes = pad_routes([route for route, _ in parts])
    work = np.array([nbytes for _, nbytes in parts])
    delay = [sum(LINKS.latency[link] for link in route) for route, _ in parts]
    return TransferBatch(
        tasks(
            len(parts),
            **(
                {"work": work, "nbytes": work, "delay": delay, "tag": np.arange(len(parts))}
                | columns
            ),
        ),
        routes,
    )


def test_the_models_by_name():
    made = [shared_network(model, LINKS, CABLES, width=2) for model in (Analytic(), Fluid(), FINE)]
    assert [type(network) for network in made] == [AnalyticNetwork, FluidNetwork, HybridNetwork]


@pytest.mark.parametrize("model", [Analytic(), Fluid(), FINE])
def test_a_transfer_is_as_slow_as_its_slowest_link(model):
    found, _ = ends(model, together(([0, 2], 8.0)), 1)
    assert found == pytest.approx([2.5])
    found, _ = ends(model, together(([1, 0], 8.0)), 1)
    assert found == pytest.approx([1.3])


@pytest.mark.parametrize(("model", "cables"), [(Analytic(), 1.0), (Fluid(), 2.0), (FINE, 2.0)])
def test_only_cables_differ_between_models(model, cables):
    # two on one cable, two on one device, and one that is on another cable and on the device
    found, network = ends(model, together(([1], 10.0), ([1], 10.0), ([2], 4.0), ([2], 4.0)), 4)
    assert found == pytest.approx([cables, cables, 2, 2], rel=0.002)
    network.settle()
    assert network.links["nbytes"].tolist() == pytest.approx([0, 20, 8])
    assert network.links["busy"].tolist() == pytest.approx([0, cables, 2])
    # the bound has two flows of 10 on a cable of 10
    peak = 2.0 if isinstance(model, Analytic) else 1.0
    assert network.links["peak"].tolist() == pytest.approx([0, peak, 1])


@pytest.mark.parametrize("model", [Analytic(), Fluid(), FINE])
def test_a_device_is_shared_by_transfers_with_and_without_cables(model):
    # 2 of 4 each until 4 s; the first has 2 left then
    found, _ = ends(model, together(([1, 2], 10.0), ([2], 8.0)), 2)
    assert found == pytest.approx([4.5, 4.0])


@pytest.mark.parametrize("model", [Analytic(), Fluid(), FINE])
def test_transfers_over_cables_wait_and_are_waited_for(model):
    batch = together(([2], 4.0), ([0], 10.0), ([1, 2], 8.0), ([], 0.0), account=[-1, 0, -1, -1])
    batch.edge_from, batch.edge_to = chain_edges(4)
    found, network = ends(model, batch, 4)
    assert found == pytest.approx([1, 1 + 1.5, 2.5 + 2, 4.5])
    assert network.accounts[0] == pytest.approx(1.5)


@pytest.mark.parametrize("model", [Analytic(), Fluid(), FINE])
def test_groups_are_told_when_cables_have_carried_them(model):
    network = shared_network(model, LINKS, CABLES, width=3)
    group = network.open_group(2)
    network.post(0.0, together(([0], 10.0), ([1], 5.0), group=group, mark=[0, 1]))
    assert network.watch(group)
    upcoming, done = network.advance(0.75)
    assert not done
    assert upcoming > 0.75
    assert network.advance(np.inf)[1] == [group]
    assert network.now == pytest.approx(1.5)
    assert network.close_group(group) == pytest.approx((0.5, 1.5))


def test_what_has_no_bytes_needs_no_packets():
    found, network = ends(FINE, together(([0], 0.0), ([0, 1], 0.0)), 2)
    assert found == pytest.approx([0.5, 0.5])
    network.settle()
    assert not network.links["nbytes"].any()


def test_latency_beyond_that_of_the_cables_is_spent_first():
    found, _ = ends(FINE, together(([0], 10.0), delay=0.75), 1)
    assert found == pytest.approx([1.75])


def test_packets_of_a_limited_transfer_are_spread_over_its_time():
    # 2 and 8 of 10; sent all at once, the first would take 5 and the second would end at 2.6
    found, _ = ends(FINE, together(([1], 10.0), ([1], 16.0), cap=[2.0, np.inf]), 2)
    assert found == pytest.approx([5, 2], rel=0.05)
    assert found[0] == pytest.approx(5)


@pytest.mark.parametrize(
    ("work", "parts", "packets"),
    [
        (2.5, 3, 3),  # 3 parts of 5/6 B
        (2.0, 2, 2),
        (100.0, 16, 112),  # 16 parts of 6.25 B, 7 packets each
    ],
)
def test_the_parts_of_a_limited_transfer_begin_evenly_over_its_time(work, parts, packets):
    """Packets of 1 B at a limit of 2 B/s over a cable of 10 B/s and a latency of 0.5 s."""
    model = Packet(mtu="1 B", port_buffer="1 kB")
    network = shared_network(model, LINKS, CABLES, width=3, tags=1)
    network.post(0.0, together(([0], work), cap=2.0))
    period = work / 2.0 / parts
    for part in range(parts):  # over the cable within a fifth of its period
        network.advance((part + 1) * period * (1 - 1e-9))
        assert network._packets.statistics().nbytes[0] == pytest.approx((part + 1) * work / parts)
    network.advance(np.inf)
    assert network._packets.statistics().packets.tolist() == [packets, 0]
    assert network.finish[0] == pytest.approx(0.5 + work / 2.0)


def test_packets_cross_the_cables_of_a_route_in_order_and_devices_do_not_count():
    """Cable 0 delays a transfer by 10 s, then both need cable 2, over which the other one is alone
    until 8 s; the device between has 4 B/s for the first."""
    links = Links([8.0, 8.0, 1.0, 4.0], [10.0, 0.0, 0.0, 0.0])
    cables = np.array([True, True, True, False])
    model = Packet(mtu="1 B", port_buffer="64 B")
    network = shared_network(model, links, cables, width=3, tags=2)
    records = tasks(2, work=8.0, nbytes=8.0, delay=[10.0, 0.0], tag=[0, 1])
    network.post(0.0, TransferBatch(records, pad_routes([[0, 3, 2], [1, 2]])))
    network.advance(np.inf)
    assert network.finish == pytest.approx([18.0, 8.0])
    network.settle()
    assert network.links["nbytes"].tolist() == [8, 8, 16, 8]


def test_posting_tells_the_next_event_of_either_network():
    network = shared_network(Packet(mtu="1 B", port_buffer="1 kB"), LINKS, CABLES, width=3, tags=3)
    assert network.post(0.0, together(([0], 10.0), delay=0.5)) == 0.0
    upcoming, _ = network.advance(0.0)
    assert upcoming == pytest.approx(0.1)  # when the first packet has left
    assert network.post(0.0, together(([2], 4.0), start=5.0)) == upcoming
    assert network.post(0.0, together(([1], 4.0), start=6.0)) == upcoming
    assert network.post(0.0, together(([2], 4.0), delay=0.01)) == 0.01
    assert network.post(0.0, together(([1], 4.0), delay=0.005)) == 0.005


def test_an_event_at_the_horizon_is_run():
    network = shared_network(Packet(mtu="1 B", port_buffer="1 kB"), LINKS, CABLES, width=3)
    group = network.open_group(1)
    network.post(0.0, together(([2, 0], 4.0), group=group))
    network.watch(group)
    # the device takes 1 s after the latency of 0.5 s; packets are over before
    assert network.advance(1.4)[1] == []
    assert network.advance(1.5)[1] == [group]
    assert network.now == 1.5


def test_a_clock_that_would_run_over_is_refused():
    with pytest.raises(RuntimeError, match=r"36\.4 hours of simulated time; use kind: fluid"):
        ends(FINE, together(([1], 10.0), start=140000.0), 1)
    # 20 s from 131,052 s on are 2**17 s; 19 s are less
    coarse = Packet(mtu="1 B", port_buffer="1 kB")
    with pytest.raises(RuntimeError, match=r"36\.4 hours of simulated time; use kind: fluid"):
        ends(coarse, together(([1], 20.0), start=131052.0, cap=1.0), 1)
    found, _ = ends(coarse, together(([1], 19.0), start=131052.0, cap=1.0), 1)
    assert found == pytest.approx([131071.0], rel=1e-12)


def test_the_bound_leaves_the_batch_as_it_was():
    batch = together(([0], 10.0), ([1], 5.0), ([2], 8.0), cap=[np.inf, 2.0, 30.0])
    network = shared_network(Analytic(), LINKS, CABLES, width=3, tags=3)
    network.post(0.0, batch)
    assert batch.tasks["cap"].tolist() == [np.inf, 2.0, 30.0]
    network.advance(np.inf)
    # 10 / 10 after 0.5 s; 5 at 2; the device has 4
    assert network.finish == pytest.approx([1.5, 2.5, 2.0])


def test_packets_leave_the_batch_as_it_was():
    batch = together(([0], 10.0), ([2, 1], 8.0), cap=[5.0, np.inf], pair=[7, 8])
    kept = batch.tasks.copy(), batch.routes.copy()
    shared_network(FINE, LINKS, CABLES, width=3, tags=2).post(0.0, batch)
    assert (batch.tasks == kept[0]).all()
    assert (batch.routes == kept[1]).all()


# ------------------------------------------------------------------------------------ SimpyNetwork


@pytest.fixture
def env():
    return simpy.Environment()


def finishes(net, *transfers):
    """When transfers (route, bytes, options), all started now, end."""
    events = [
        net.transfer(route, nbytes, **(options[0] if options else {}))
        for route, nbytes, *options in transfers
    ]
    net.env.run()
    return [event.value.finish for event in events]


@pytest.mark.parametrize("model", [Analytic(), Fluid(), Packet()])
def test_one_transfer_by_hand(env, model):
    net = SimpyNetwork(env, capacity=[1e6, 4e5, 2e6], latency=[0.025, 0.0125, 8], model=model)
    assert finishes(net, ([0, 1], 2e5)) == pytest.approx([0.0375 + 0.5])
    assert net.link_statistics().nbytes == pytest.approx([2e5, 2e5, 0])
    assert net.link_statistics().peak_utilisation == pytest.approx(
        [0.4, 1, 0] if not isinstance(model, Packet) else [1, 1, 0]
    )


@pytest.mark.parametrize(
    ("model", "expected"), [(Analytic(), [1, 2]), (Fluid(), [2, 3]), (Packet(), [2, 3])]
)
def test_two_that_share(env, model, expected):
    net = SimpyNetwork(env, capacity=[1e7], model=model)
    assert finishes(net, ([0], 1e7), ([0], 2e7)) == pytest.approx(expected, rel=1e-3)
    assert net.link_statistics().busy_seconds == pytest.approx([expected[-1]])


@pytest.mark.parametrize(("model", "expected"), [(Analytic(), 1), (Fluid(), 8), (Packet(), 8)])
def test_incast(env, model, expected):
    net = SimpyNetwork(env, capacity=[1e7] * 9, latency=[1e-6] * 9, model=model)
    found = finishes(net, *[([sender, 8], 1e7) for sender in range(8)])
    assert found == pytest.approx([expected] * 8, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "expected"),
    [(Analytic(), (1, 1.01)), (Fluid(), (4 / 3, 4 / 3)), (Packet(), (3, 4.1))],
)
def test_who_stands_in_line_behind_an_incast(env, model, expected):
    # link 0 leads to 1, which is free, and to 2, which three others use too: what it has for 2
    # stands before what it has for 1
    net = SimpyNetwork(env, capacity=[1e7] * 6, model=model)
    victim = finishes(
        net, ([0, 1], 1e7), ([0, 2], 2e7), ([3, 2], 2e7), ([4, 2], 2e7), ([5, 2], 2e7)
    )[0]
    assert expected[0] * (1 - 1e-9) <= victim <= expected[1] * (1 + 1e-9)


def test_a_pair_is_a_queue_pair_of_the_packet_network(env):
    net = SimpyNetwork(env, capacity=[1e6], latency=[1], model=Packet())
    pair = {"pair": "p"}
    # the second is on its way while the first is: latency is not paid twice
    assert finishes(net, ([0], 1e6, pair), ([0], 1e6, pair)) == pytest.approx([2, 3])


def test_packets_of_one_moment_go_in_the_order_of_posting_whatever_was_before(env):
    net = SimpyNetwork(env, capacity=[1.0], model=Packet(mtu="1 B", port_buffer="4 B"))
    for _ in range(4):
        begin = env.now
        # of the first 0 to 1 s, of the second 1 to 2 s, then 2 to 3 s
        found = [end - begin for end in finishes(net, ([0], 1.0), ([0], 2.0))]
        assert found == pytest.approx([1, 3])


def test_a_pair_with_a_rate_limit_goes_one_after_the_other(env):
    net = SimpyNetwork(env, capacity=[1e6], model=Packet())
    options = {"pair": "p", "rate_limit": 5e5}
    assert finishes(net, ([0], 1e6, options), ([0], 1e6, options)) == pytest.approx([2, 4])


@pytest.mark.parametrize("model", [Analytic(), Fluid(fair_share="message")])
def test_a_model_without_pairs_has_none(env, model):
    net = SimpyNetwork(env, capacity=[1e6], model=model)
    found = finishes(net, ([0], 1e6, {"pair": "p"}), ([0], 1e6, {"pair": "p"}))
    assert found[0] == found[1]


def test_the_tolerance_of_the_fluid_is_obeyed(env):
    # at 2 s a sixth of the second is left
    assert finishes(
        SimpyNetwork(env, capacity=[10], model=Fluid(tolerance=0.2)), ([0], 10), ([0], 12)
    ) == pytest.approx([2, 2])
    exact = simpy.Environment()
    assert finishes(
        SimpyNetwork(exact, capacity=[10], model=Fluid(tolerance=0.1)), ([0], 10), ([0], 12)
    ) == pytest.approx([2, 2.2])


@pytest.mark.parametrize("model", [Analytic(), Fluid(), Packet()])
def test_the_past_is_refused_under_every_model(env, model):
    net = SimpyNetwork(env, capacity=[1e6], model=model)
    net.transfer([0], 1e7)
    env.step()
    with pytest.raises(RuntimeError, match="run ahead"):
        net.transfer([0], 1e6)


def test_packets_that_are_on_their_way_cannot_be_called_back(env):
    net = SimpyNetwork(env, capacity=[1e6], model=Packet())
    net.transfer([0], 1e7)
    env.timeout(5)
    # up to 5 s nothing can happen outside the network, so that half of the packets have gone
    env.step()
    assert env.now == 0
    with pytest.raises(RuntimeError, match=r"run ahead to 4\.99"):
        net.transfer([0], 1e6)


def test_routes_that_could_deadlock_are_refused(env):
    net = SimpyNetwork(env, capacity=[1e6] * 3, model=Packet())
    for route in ([0, 1], [1, 2], [2, 0]):
        net.transfer(route, 1e6)
    with pytest.raises(TopologyError, match="link 0 -> link 1 -> link 2 -> link 0"):
        env.run()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_packets_posted_on_the_way_equal_packets_posted_at_once(seed, count):
    rng = np.random.default_rng(seed)
    links = Links([1e6, 2e6, 4e6, 1.5e6], [0.0, 0.0625, 0.125, 0.25])
    routes = [
        sorted(rng.choice(4, rng.integers(1, 4), replace=False).tolist()) for _ in range(count)
    ]
    nbytes, start = (
        rng.choice([0.0, 1e5, 2e5, 3.7e5], count),
        np.sort(rng.choice([0.0, 0.5, 0.625, 1.25], count)),
    )
    model = Packet(mtu="10 kB", port_buffer="50 kB")
    env = simpy.Environment()
    net = SimpyNetwork(env, links, model=model)
    found = np.zeros(count)

    def one(i):
        yield env.timeout(start[i])
        found[i] = (yield net.transfer(routes[i], nbytes[i], pair=i)).finish

    for i in range(count):
        env.process(one(i))
    env.process(env.timeout(step) for step in rng.uniform(0, 0.1, 40))
    env.run()
    expected = run(
        links,
        Flows.from_lists(routes, nbytes, start),
        model.mtu,
        model.port_buffer,
        pair=np.arange(count),
    )
    np.testing.assert_allclose(found, expected.outcome.finish, rtol=1e-9)
    np.testing.assert_allclose(net.link_statistics().nbytes, expected.statistics.nbytes, rtol=1e-9)

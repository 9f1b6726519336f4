"""The laws of the fluid network, by hand and against an independent solver.

Source of the laws: max-min fairness as in Bertsekas & Gallager, Data Networks, 2nd ed., section
6.5.2; latency then bandwidth.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import SimulationError
from simshuffle.fabric.network import Analytic, Flows, Fluid, Links, Packet
from simshuffle.fabric.network.analytic import isolated_makespan
from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.fluid_ahead import LARGE
from simshuffle.fabric.network.fluid_solve import binding_links
from tests import reference
from tests.explicit import finish_times

GB = 1e9


def run(capacities, routes, **columns):
    """Ends of transfers posted at 0 s."""
    network = FluidNetwork(capacities, tags=len(routes))
    batch = tasks(len(routes), tag=np.arange(len(routes)), **columns)
    network.post(0.0, TransferBatch(batch, pad_routes(routes)))
    network.advance(math.inf)
    assert network.alive == 0
    return network.finish[: len(routes)], network


def test_one_flow_takes_latency_plus_bytes_over_bandwidth():
    assert finish_times([12.5 * GB], [1e-6], [[0]], [1e6], [0.5]) == pytest.approx(
        [0.5 + 1e-6 + 1e6 / 12.5e9], rel=1e-12
    )


def test_two_flows_share_a_link():
    # 10 GB/s; 10 and 30 MB together: 5 GB/s each until 2 ms, then the larger has 20 MB left and the
    # link alone: 2 ms more.
    assert finish_times([10 * GB], [0.0], [[0], [0]], [10e6, 30e6], [0, 0]) == pytest.approx(
        [2e-3, 4e-3], rel=1e-12
    )


def test_a_late_flow_halves_the_rate_from_then_on():
    # 10 GB/s; 20 MB from 0 s, 10 MB from 1 ms: at 1 ms 10 MB are left of the first; both then run
    # at 5 GB/s and end at 3 ms.
    assert finish_times([10 * GB], [0.0], [[0], [0]], [20e6, 10e6], [0, 1e-3]) == pytest.approx(
        [3e-3, 3e-3], rel=1e-12
    )


def test_what_one_bottleneck_leaves_goes_to_the_others():
    # Links of 10 and 4 GB/s. Flow b crosses both, c only the second: 2 GB/s each; a gets the other
    # 8 of the first.
    ends, _ = run([10 * GB, 4 * GB], [[0], [0, 1], [1]], work=[8e6, 20e6, 20e6])
    assert ends[0] == pytest.approx(1e-3, rel=1e-12)


def test_a_cap_binds_and_leaves_the_rest():
    ends, _ = run([10 * GB], [[0], [0]], work=[2e6, 8e6], cap=[2 * GB, np.inf])
    assert ends == pytest.approx([1e-3, 1e-3], rel=1e-12)


def test_messages_of_a_pair_go_one_after_the_other():
    # Two messages a>b of 10 MB and one c>b of 10 MB into one link of 10 GB/s. By pair: 5 + 5 GB/s;
    # the first of a>b and c>b end at 2 ms, the second of a>b then has the link alone: 3 ms. By
    # message: a third each, all end at 3 ms.
    by_pair, _ = run([10 * GB], [[0], [0], [0]], work=10e6, pair=[1, 1, 2])
    by_message, _ = run([10 * GB], [[0], [0], [0]], work=10e6)
    assert by_pair == pytest.approx([2e-3, 3e-3, 2e-3], rel=1e-12)
    assert by_message == pytest.approx([3e-3] * 3, rel=1e-12)


def test_the_latency_of_a_queued_message_passes_while_it_waits():
    ends, _ = run([10 * GB], [[0], [0]], work=10e6, delay=1e-4, pair=[5, 5])
    assert ends == pytest.approx([1.1e-3, 2.1e-3], rel=1e-12)


def test_after_waits_for_the_latest_and_pays_the_latency_again():
    ends = finish_times(
        [10 * GB], [1e-5], [[0], [0], [0]], [10e6, 20e6, 10e6], [0, 0, 0], [[], [], [0, 1]]
    )
    # 5 GB/s each: 10 MB at 2 ms, 20 MB at 3 ms (+ 10 us); then alone 1 ms (+ 10 us)
    assert ends == pytest.approx([2.01e-3, 3.01e-3, 4.02e-3], rel=1e-9)


def test_a_circle_of_waiting_is_refused():
    with pytest.raises(SimulationError, match="circle"):
        finish_times([1.0], [0.0], [[0], [0]], [1.0, 1.0], [0, 0], [[1], [0]])


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, math.inf])
def test_a_capacity_must_be_positive_and_finite(capacity):
    with pytest.raises(ValueError, match="capacity"):
        finish_times([capacity], [0.0], [[0]], [1.0], [0.0])


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, math.inf])
def test_each_capacity_must_be_positive_and_finite(capacity):
    for links in ([capacity, 2.0], [2.0, capacity]):
        with pytest.raises(ValueError, match="finite and greater than 0"):
            FluidNetwork(links)
        with pytest.raises(ValueError, match="finite and greater than 0"):
            Links(links, [0.0, 0.0])
    assert len(FluidNetwork([0.5, 1e-9]).links) == len(Links([0.5, 1e-9], [0.0, 1e-9])) == 2


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_each_latency_size_and_start_must_be_finite_and_at_least_0(bad):
    for values in ([bad, 1.0], [1.0, bad]):
        with pytest.raises(ValueError, match="latency that is finite and at least 0"):
            Links([1.0, 1.0], values)
        with pytest.raises(ValueError, match="nbytes must be finite and at least 0"):
            Flows.from_lists([[0], [0]], values)
        with pytest.raises(ValueError, match="start must be finite and at least 0"):
            Flows.from_lists([[0], [0]], [0.0, 0.5], values)


def test_arrays_that_do_not_fit_together_are_refused():
    routes, two, three = np.zeros((2, 1)), np.ones(2), np.ones(3)
    for wrong in ((routes[0], two, two), (routes, three, three), (routes, two, three)):
        with pytest.raises(ValueError, match="do not fit together"):
            Flows(*wrong)
    with pytest.raises(ValueError, match="after_from and after_to"):
        Flows(routes, two, two, np.array([0]), np.array([0, 1]))
    for capacity, latency in ((two, three), (np.ones((2, 1)), np.ones((2, 1)))):
        with pytest.raises(ValueError, match="lists of one length"):
            Links(capacity, latency)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_link_is_left_out_if_another_of_all_its_flows_is_tighter(seed):
    """Of links with the same flows and capacity the first stays; those without flows do not."""
    rng = np.random.default_rng(seed)
    links = Links(rng.choice([1.0, 2.0, 3.0], 6), np.arange(6.0))
    routes = [
        rng.choice(6, int(rng.integers(0, 5)), replace=False).tolist()
        for _ in range(int(rng.integers(1, 7)))
    ]
    on = [{i for i, route in enumerate(routes) if link in route} for link in range(6)]

    def binds(link):
        for other in range(6):
            if other != link and on[link] <= on[other]:
                first = on[link] < on[other] or other < link
                if links.capacity[other] < links.capacity[link] or (
                    links.capacity[other] == links.capacity[link] and first
                ):
                    return False
        return bool(on[link])

    expected = [link for link in range(6) if binds(link)]
    found, table = binding_links(links, Flows.from_lists(routes, np.ones(len(routes))))
    assert found.latency.tolist() == expected
    assert found.capacity.tolist() == links.capacity[expected].tolist()
    shortened = [[link for link in row if link >= 0] for row in table.tolist()]
    assert shortened == [[expected.index(k) for k in route if k in expected] for route in routes]
    assert (np.diff(table < 0, axis=1) >= 0).all()  # padded at the end
    assert table.shape[1] == max(1, *map(len, shortened))


def test_no_model_changes_the_flows():
    """Each takes 1 s of the link; the second waits for the first, and its start is ignored."""
    links = Links([2.0], [0.0])
    flows = Flows.from_lists([[0], [0], [0]], [2.0] * 3, [4.0, 9.0, 1.0], [[], [0], []])
    for model in (Analytic(), Fluid(), Packet(mtu="2 B", port_buffer="2 B")):
        assert model.finish_times(links, flows).finish == pytest.approx([5.0, 6.0, 2.0])
        assert flows.start.tolist() == [4.0, 9.0, 1.0]
        assert flows.earliest_post.tolist() == [4.0, 0.0, 1.0]


def test_makespans_below_1_s_are_those_of_the_last_flow():
    """By symmetry (20 flows alike), flow by flow, and as the bound; without flows it is 0."""
    links = Links([8.0, 4.0], [0.0, 0.125])
    alike = Flows.from_lists([[0]] * 20, [0.2] * 20)
    mixed = Flows.from_lists([[0], [1]], [1.0, 1.0])
    for flows, makespan in ((alike, 0.5), (mixed, 0.375)):
        for model in (Fluid(), Analytic()):
            outcome = model.finish_times(links, flows)
            assert outcome.makespan == pytest.approx(makespan, rel=1e-12)
            assert outcome.error_bound == (0.0 if isinstance(model, Fluid) else None)
        assert Analytic().finish_times(links, flows).finish.max() == pytest.approx(
            0.025 if flows is alike else 0.375
        )
    for model in (Fluid(), Analytic()):
        assert model.finish_times(links, Flows.from_lists([], [])).makespan == 0.0
    assert isolated_makespan(links, alike) == pytest.approx(0.025)


def test_an_empty_flow_ends_after_its_latency():
    assert finish_times([1.0], [0.25], [[0], []], [0.0, 0.0], [1.0, 2.0]) == pytest.approx(
        [1.25, 2.0]
    )


def test_no_flows_at_all():
    assert len(finish_times([1.0], [0.0], [], [], [])) == 0


def test_link_statistics():
    # 10 MB alone at 10 GB/s for 1 ms on link 0; link 1 (20 GB/s) carries the same flow: half used.
    _, network = run([10 * GB, 20 * GB], [[0, 1]], work=10e6, nbytes=10e6)
    network.settle()
    assert network.links["work"] == pytest.approx([10e6, 10e6], rel=1e-12)
    assert network.links["nbytes"] == pytest.approx([10e6, 10e6])
    assert network.links["busy"] == pytest.approx([1e-3, 1e-3], rel=1e-12)
    assert network.links["peak"] == pytest.approx([1.0, 0.5], rel=1e-12)
    # links of 1 and 10 saturate, those of 3, 15 and 20 do not: the turn of the one of 3 comes when
    # its flows have their rates, the turns of the others do not come; from 33 flows on in `fill`
    for count in (1, 20):
        _, network = run([1.0, 3.0, 10.0, 15.0, 20.0], [[0, 1], [2, 3, 4]] * count, work=10.0)
        network.settle()
        assert network.links["peak"] == pytest.approx([1, 1 / 3, 1, 2 / 3, 1 / 2], rel=1e-12)


def test_accounts_add_up_delay_and_transfer():
    network = FluidNetwork([10 * GB], accounts=2)
    batch = tasks(3, work=[10e6, 10e6, 0.0], delay=[0, 0, 1e-3], account=[0, 0, 1])
    network.post(0.0, TransferBatch(batch, pad_routes([[0], [0], []])))
    network.advance(math.inf)
    assert network.accounts == pytest.approx([4e-3, 1e-3], rel=1e-12)


def test_advance_stops_at_the_horizon_and_at_watched_groups():
    network = FluidNetwork([10 * GB])
    first, second = network.open_group(1), network.open_group(1)
    batch = tasks(2, work=[10e6, 30e6], group=[first, second])
    assert network.post(0.0, TransferBatch(batch, pad_routes([[0], [0]]))) == 0.0
    assert network.watch(second)
    upcoming, done = network.advance(1e-3)
    assert (upcoming, done) == (pytest.approx(2e-3), [])
    upcoming, done = network.advance(math.inf)
    assert done == [second]
    assert network.now == pytest.approx(4e-3)
    assert not network.watch(first)
    assert network.close_group(first)[1] == pytest.approx(2e-3)


def test_a_transfer_can_wait_for_one_posted_before():
    network = FluidNetwork([10 * GB], tags=2)
    queue = network.open_queues(1)
    first = TransferBatch(tasks(1, work=10e6, tag=0, last_of=queue), pad_routes([[0]]))
    network.post(0.0, first)
    second = TransferBatch(tasks(1, work=10e6, tag=1, after=queue), pad_routes([[0]]))
    network.post(0.0, second)
    network.advance(math.inf)
    assert network.finish == pytest.approx([1e-3, 2e-3], rel=1e-12)
    network.post(3e-3, second)
    # what it should wait for is long over, and its slot may be used again
    network.advance(math.inf)
    assert network.finish[1] == pytest.approx(4e-3, rel=1e-12)


@st.composite
def networks(draw):
    """Random links and flows; few distinct sizes, so that ties happen, and routes of one link."""
    links = draw(st.integers(1, 5))
    count = draw(st.integers(1, 30))
    capacity = [draw(st.sampled_from([1.0, 2.0, 3.5, 10.0])) for _ in range(links)]
    latency = [draw(st.sampled_from([0.0, 0.1, 0.25])) for _ in range(links)]
    narrow = draw(st.booleans())
    routes = [
        draw(
            st.lists(
                st.integers(0, links - 1), unique=True, min_size=1, max_size=1 if narrow else links
            )
        )
        for _ in range(count)
    ]
    size = [draw(st.one_of(st.sampled_from([1.0, 2.0]), st.floats(0.01, 20))) for _ in range(count)]
    start = [draw(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 10))) for _ in range(count)]
    after = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=2)))
        if i and draw(st.booleans())
        else []
        for i in range(count)
    ]
    return capacity, latency, routes, size, start, after


@settings(max_examples=200)
@given(networks())
def test_agrees_with_an_independent_solver(case):
    np.testing.assert_allclose(
        finish_times(*case), reference.finish_times(*case), rtol=1e-7, atol=1e-9
    )


@settings(max_examples=100)
@given(networks(), st.integers(0, 2**32 - 1))
def test_order_independent(case, seed):
    capacity, latency, routes, size, start, _ = case
    ends = finish_times(capacity, latency, routes, size, start)
    order = np.random.default_rng(seed).permutation(len(routes))
    again = finish_times(
        capacity, latency, [routes[i] for i in order], np.array(size)[order], np.array(start)[order]
    )
    np.testing.assert_allclose(again, ends[order], rtol=1e-9)


@settings(max_examples=100)
@given(networks())
def test_never_faster_than_alone_nor_than_any_link_can_carry(case):
    capacity, latency, routes, size, start, _ = case
    ends = finish_times(capacity, latency, routes, size, start)
    begins = np.array(start) + [sum(latency[k] for k in route) for route in routes]
    alone = [size[i] / min(capacity[k] for k in route) for i, route in enumerate(routes)]
    assert (ends >= (begins + alone) * (1 - 1e-9)).all()
    for link, rate in enumerate(capacity):
        users = [i for i, route in enumerate(routes) if link in route]
        if users:
            assert ends[users].max() >= (
                begins[users].min() + sum(size[i] for i in users) / rate
            ) * (1 - 1e-9)


@settings(max_examples=100)
@given(networks())
def test_bytes_are_conserved_and_the_last_bottleneck_never_idles(case):
    capacity, _, routes, size, _, _ = case
    ends, network = run(capacity, routes, work=size, nbytes=size)
    network.settle()
    carried = np.zeros(len(capacity))
    for i, route in enumerate(routes):
        carried[route] += size[i]
    np.testing.assert_allclose(network.links["nbytes"], carried, rtol=1e-9)
    np.testing.assert_allclose(network.links["work"], carried, rtol=1e-7)
    assert (network.links["peak"] <= 1 + 1e-9).all()
    # the flow that ends last was never alone without filling some link: all started at 0 s, so some
    # link is full until the end
    last = int(np.argmax(ends))
    full = [network.links["work"][k] / capacity[k] for k in routes[last]]
    assert max(full) <= ends[last] * (1 + 1e-9)
    assert max(network.links["busy"][k] for k in routes[last]) == pytest.approx(
        ends[last], rel=1e-9
    )


@settings(max_examples=50)
@given(networks(), st.floats(1.5, 8))
def test_faster_links_everywhere_scale_the_time(case, factor):
    capacity, _, routes, size, _, _ = case
    slow, _ = run(capacity, routes, work=size)
    fast, _ = run([factor * c for c in capacity], routes, work=size)
    np.testing.assert_allclose(fast * factor, slow, rtol=1e-9)


def test_many_flows_of_one_link_share_like_any_others():
    # 40 readers of one link of 8 units/s with caps of 1, joined by two flows that leave it for a
    # link of 1: against the plain solver.
    rng = np.random.default_rng(3)
    routes = [[0]] * 40 + [[0, 1], [0, 1]]
    size = rng.uniform(0.5, 5, 42)
    start = np.concatenate([np.zeros(10), rng.uniform(0, 6, 32)])
    caps = np.full(42, 1.0)
    network = FluidNetwork([8.0, 1.0], tags=42)
    network.post(
        0.0,
        TransferBatch(
            tasks(42, work=size, start=start, cap=caps, tag=np.arange(42)), pad_routes(routes)
        ),
    )
    network.advance(math.inf)
    np.testing.assert_allclose(
        network.finish,
        reference.finish_times([8.0, 1.0], [0, 0], routes, size, start, None, caps),
        rtol=1e-9,
    )


@pytest.mark.parametrize("seed", range(6))
def test_many_that_start_and_end_at_the_same_instant(seed):
    """Many ties on few links: flows end and start, and slots are used again, within one instant."""
    rng = np.random.default_rng(seed)
    count = 120
    routes = [[int(rng.integers(2))] if rng.random() < 0.8 else [0, 1] for _ in range(count)]
    size = rng.choice([1.0, 2.0, 4.0], count)
    start = rng.choice([0.0, 2.0, 8.0, 16.0], count)
    after = [
        sorted(set(rng.integers(0, i, 2).tolist())) if i > 20 and rng.random() < 0.6 else []
        for i in range(count)
    ]
    ends = finish_times([4.0, 8.0], [0.0, 0.0], routes, size, start, after)
    np.testing.assert_allclose(
        ends, reference.finish_times([4.0, 8.0], [0.0, 0.0], routes, size, start, after), rtol=1e-9
    )


def test_links_without_flows_change_nothing():
    """With so many links the engine looks ahead; what it finds is the same."""
    rng = np.random.default_rng(5)
    routes = [rng.choice(60, int(rng.integers(1, 5)), replace=False).tolist() for _ in range(600)]
    size, start = rng.exponential(4.0, 600), rng.choice([0.0, 1.0, 2.5, 3.0], 600)
    few = rng.uniform(1.0, 5.0, 60)
    many = np.concatenate([few, np.ones(2 * LARGE)])
    ends = [finish_times(list(c), [0.0] * len(c), routes, size, start) for c in (few, many)]
    np.testing.assert_array_equal(*ends)


def test_a_long_solution_tells_its_progress(monkeypatch):
    monkeypatch.setattr("simshuffle.fabric.network.fluid.SLICE", 20)
    shares = []
    links = Links([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    flows = Flows.from_lists([[k % 3] for k in range(200)], np.arange(1.0, 201.0))
    outcome = Fluid().finish_times(links, flows, shares.append)
    assert len(shares) > 5 and shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1
    np.testing.assert_array_equal(outcome.finish, Fluid().finish_times(links, flows).finish)


def test_memory_grows_with_the_transfers_alive_not_with_their_total():
    network = FluidNetwork([1.0, 1.0])
    batch = TransferBatch(tasks(50, work=1.0, pair=np.arange(50) % 7), pad_routes([[0], [1]] * 25))
    sizes = []
    for round_ in range(200):
        network.post(network.now, batch)
        network.advance(math.inf)
        sizes.append(
            (
                len(network._state.nodes),
                len(network._state.entries),
                len(network._graph.edges),
                len(network._graph.groups),
            )
        )
        assert network.alive == 0, round_
    assert sizes[1] == sizes[-1]

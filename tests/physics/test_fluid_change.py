"""Capacities that change while flows drain, and routes that do: rates stay max-min fair, nothing is
lost, and what a link has carried is the integral of its rate."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from tests import fluid_check as check
from tests.physics.test_fluid_invariants import CAPS, random_batch


def filled(capacity, routes, caps):
    """Max-min fair rates by progressive filling, in plain Python (Bertsekas & Gallager, Data
    Networks, 2nd ed., section 6.5.2)."""
    rates, left = {}, dict(enumerate(capacity))
    rising = set(routes)
    while rising:
        on = {link: [f for f in rising if link in routes[f]] for link in left}
        level = min([left[k] / len(on[k]) for k in on if on[k]] + [caps[f] for f in rising])
        full = {k for k in on if on[k] and left[k] / len(on[k]) <= level * (1 + 1e-9)}
        done = {f for f in rising if full & set(routes[f]) or caps[f] <= level * (1 + 1e-9)}
        for flow in done:
            rates[flow] = level
            for link in routes[flow]:
                left[link] = max(left[link] - level, 0.0)
        rising -= done
    return rates


def assert_fair(network, n_links, healthy=None):
    """All invariants hold, and the rates are those of `filled`."""
    state = network._state
    assert check.violations(state, healthy) == []
    view = check._View(state)
    level, fixed = state.links["level"], state.links["fixed"]
    caps = {
        f: level[view.routes[f][-1]] if fixed[view.routes[f][-1]] else math.inf for f in view.rates
    }
    routes = {f: [k for k in view.routes[f] if k < n_links] for f in view.rates}
    expected = filled(state.load[:n_links, check.CAPACITY].tolist(), routes, caps)
    for flow, rate in view.rates.items():
        assert rate == pytest.approx(expected[flow], rel=1e-6, abs=1e-15)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rates_are_fair_after_every_change_of_a_random_network(seed, capped):
    rng = np.random.default_rng(seed)
    n_links, count = int(rng.integers(2, 25)), int(rng.integers(2, 60))
    healthy = rng.choice([1.0, 2.0, 3.3], n_links)
    caps = rng.choice(CAPS, 3) if capped else [math.inf]
    network = FluidNetwork(healthy, width=4, capped=capped, tags=count)
    batch = random_batch(rng, n_links, count, caps, 0)
    upcoming, now, slow = network.post(0.0, batch), 0.0, np.ones(n_links)
    while upcoming < math.inf:
        change = now + rng.exponential(1.0)
        while upcoming <= change:
            upcoming, _ = network.advance(change)
        now = change
        links = rng.choice(n_links, int(rng.integers(1, n_links + 1)), replace=False)
        slow[links] = rng.choice([1e-9, 0.25, 0.5, 1.0], len(links)) if now < 30 else 1.0
        upcoming = network.set_capacity(links, healthy[links] * slow[links], now)
        assert_fair(network, n_links, healthy)
    network.settle()
    assert network.alive == 0
    carried = np.zeros(n_links)
    for route, work in zip(batch.routes.tolist(), batch.tasks["work"], strict=True):
        carried[[link for link in route if link >= 0]] += work
    assert network.links["work"] == pytest.approx(carried, rel=1e-9, abs=1e-9)
    assert (network.links["peak"] <= 1 + 1e-9).all()


def test_a_flow_ends_when_the_integral_of_the_capacity_has_carried_it():
    network = FluidNetwork([2.0], tags=1)
    network.post(0.0, TransferBatch(tasks(1, work=10.0, tag=0), pad_routes([[0]])))
    network.advance(1.0)
    network.set_capacity([0], [0.5], 1.0)
    network.advance(3.0)
    network.settle(3.0)
    assert network.links["work"][0] == pytest.approx(3.0, rel=1e-12)  # 2 + 2 * 0.5
    network.set_capacity([0], [2.0], 3.0)
    network.advance(math.inf)
    assert network.finish[0] == pytest.approx(6.5, rel=1e-12)  # 10 = 2 + 1 + 3.5 * 2
    network.settle()
    assert network.links["busy"][0] == pytest.approx(6.5, rel=1e-12)
    assert network.links["peak"][0] == 1.0


def test_the_other_flow_gets_what_a_slower_cable_leaves_it():
    # both share link 0 of 2 units/s; link 1 of one of them falls from 2 to 0.5
    network = FluidNetwork([2.0, 2.0], tags=2)
    batch = TransferBatch(tasks(2, work=[8.0, 8.0], tag=[0, 1]), pad_routes([[0, 1], [0]]))
    network.post(0.0, batch)
    network.advance(2.0)
    network.set_capacity([1], [0.5], 2.0)
    network.advance(math.inf)
    # 8 = 2 + 4 * 1.5: at 6 s; by then the first has 2 + 4 * 0.5 = 4, and then 0.5 a second
    assert network.finish == pytest.approx([14.0, 6.0], rel=1e-12)


def test_a_failed_link_lets_its_flows_go_on_when_it_returns():
    network = FluidNetwork([2e9, 2e9], tags=1)
    network.post(0.0, TransferBatch(tasks(1, work=1e10, tag=0), pad_routes([[0, 1]])))
    network.advance(1.0)
    network.set_capacity([1], [2e9 * 1e-9], 1.0)
    network.advance(11.0)
    network.set_capacity([1], [2e9], 11.0)
    network.advance(math.inf)
    assert network.finish[0] == pytest.approx(15.0, abs=1e-7)


@pytest.mark.parametrize("started", [True, False])
def test_a_transfer_goes_on_over_another_route(started):
    network = FluidNetwork([2.0, 2.0, 1.0, 1.0], width=3, tags=2)
    records = tasks(2, work=[8.0, 8.0], nbytes=8.0, tag=[0, 1], start=0.0 if started else 5.0)
    network.post(0.0, TransferBatch(records, pad_routes([[0, 1], [0]])))
    network.advance(2.0)
    slots, routes = network.find_transfers_on([1])
    assert routes.tolist() == [[0, 1, -1, -1]]
    network.reroute(slots, np.array([[0, 2, 3]], np.int32), 2.0)
    assert check.violations(network._state) == []
    network.advance(math.inf)
    network.settle()
    carried = 2.0 if started else 0.0  # by the old route
    begun = 2.0 if started else 5.0
    # 1 unit/s each of link 0, the last one 1 still: links 2 and 3 have no more
    assert network.finish == pytest.approx([begun + 8.0 - carried] * 2, rel=1e-12)
    assert network.links["work"] == pytest.approx([16, carried, 8 - carried, 8 - carried])
    assert network.links["nbytes"].tolist() == [16, 0, 8, 8]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rates_are_fair_after_every_change_of_routes(seed, capped):
    rng = np.random.default_rng(seed)
    n_links, count = int(rng.integers(3, 25)), int(rng.integers(2, 60))
    caps = rng.choice(CAPS, 3) if capped else [math.inf]
    network = FluidNetwork(rng.choice([1.0, 2.0], n_links), width=4, capped=capped, tags=count)
    batch = random_batch(rng, n_links, count, caps, 0)
    upcoming, now = network.post(0.0, batch), 0.0
    while upcoming < math.inf:
        now += rng.exponential(2.0)
        while upcoming <= now:
            upcoming, _ = network.advance(now)
        slots, _ = network.find_transfers_on([0])
        new = np.full((len(slots), 4), -1, np.int32)
        for i in range(len(slots)):
            size = int(rng.integers(1, min(4, n_links - 1) + 1))
            new[i, :size] = 1 + rng.choice(n_links - 1, size, replace=False)
        upcoming = network.reroute(slots, new, now)
        assert len(network.find_transfers_on([0])[0]) == 0
        assert_fair(network, n_links)
    assert network.alive == 0


def test_a_transfer_of_one_link_shares_fairly_when_it_goes_on_over_two():
    """It leaves link 0 to the second flow, and shares links 1 and 2 with one flow each: 1 unit/s of
    the 2 of link 1, so that the flow on link 2 gets the other 2 of 3."""
    network = FluidNetwork([2.0, 2.0, 3.0], width=2, tags=4)
    records = tasks(4, work=100.0, nbytes=100.0, tag=[0, 1, 2, 3])
    network.post(0.0, TransferBatch(records, pad_routes([[0], [0], [1], [2]])))
    network.advance(1.0)
    slots, _ = network.find_transfers_on([0])
    network.reroute(slots[:1], np.array([[1, 2]], np.int32), 1.0)
    assert_fair(network, 3)
    rates = sorted(check._View(network._state).rates.values())
    assert rates == pytest.approx([1.0, 1.0, 2.0, 2.0])


def test_a_rate_limit_goes_with_a_transfer_to_its_new_route():
    """Three flows on link 0 of 3 units/s, one limited to 0.5: 1.25 units/s for the others. At 1 s
    the limited one and an unlimited one go on over links 1 and 2 of 1 unit/s each."""
    network = FluidNetwork([3.0, 1.0, 1.0], width=2, tags=3)
    records = tasks(3, work=4.0, nbytes=7.0, tag=np.arange(3), cap=[math.inf, 0.5, math.inf])
    network.post(0.0, TransferBatch(records, pad_routes([[0], [0], [0]])))
    network.advance(1.0)
    slots, routes = network.find_transfers_on(np.array([0]))
    assert routes.tolist() == [[0, -1, -1]] * 3
    upcoming = network.reroute(slots[1:], np.array([[1, 2], [2, 1]], np.int32), 1.0)
    assert_fair(network, 3)
    # links 1 and 2 leave 0.5 to the unlimited one; the first then has 2.75 units left at 3 units/s
    assert upcoming == pytest.approx(1 + 2.75 / 3)
    network.advance(math.inf)
    network.settle()
    # 3.5 and 2.75 units are left at 1 s, and both go on at 0.5 units/s
    assert network.finish == pytest.approx([1 + 2.75 / 3, 8.0, 1 + 2.75 / 0.5])
    assert network.links["work"] == pytest.approx([4 + 0.5 + 1.25, 3.5 + 2.75, 3.5 + 2.75])
    assert network.links["nbytes"].tolist() == [7, 14, 14]
    assert not network._state.links["n_alive"].any()


def test_a_route_that_leaves_no_place_for_its_rate_limit_is_refused():
    network = FluidNetwork([1.0, 1.0, 1.0], width=2, capped=True, tags=2)
    routes = np.array([[0, 1, 2], [0, 1, -1]], np.int32)
    network.post(0.0, TransferBatch(tasks(1, work=1.0, cap=0.5), routes[1:]))
    with pytest.raises(ValueError, match="3 links does not fit the width of 3"):
        network.post(0.0, TransferBatch(tasks(1, work=1.0, cap=0.5), routes[:1]))

"""The fluid network where much depends on much: most levels move at every event, and many flows
tie.

There the solver sweeps over all saturated links in order instead of repairing a few
(simshuffle/fabric/network/fluid_sweep.py), so small networks say nothing about it. Answers are
compared with the plain solver, and rates with the definition of max-min fairness: feasible, and
every flow has a bottleneck, a full link on which no flow is faster (Bertsekas & Gallager, Data
Networks, 2nd ed., section 6.5.2).
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network import Flows, Fluid, Links
from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.fluid_records import ACTIVE
from tests import reference
from tests.explicit import finish_times


def dense(seed, links=(40, 150), flows=(100, 400), tied=True, hops=4, starts=(0.0,), waiting=0.0):
    """Arguments of `finish_times`: random routes over links of few capacities, flows of few sizes;
    or of all different ones."""
    rng = np.random.default_rng(seed)
    n_links, count = int(rng.integers(*links)), int(rng.integers(*flows))
    capacity = rng.choice([1.0, 2.0, 4.0], n_links) if tied else rng.uniform(1, 5, n_links)
    size = rng.choice([1.0, 2.0, 4.0], count) if tied else rng.exponential(3.0, count)
    routes = [
        rng.choice(n_links, int(rng.integers(1, hops + 1)), replace=False).tolist()
        for _ in range(count)
    ]
    start = rng.choice(starts, count)
    after = [
        sorted(set(rng.integers(0, i, 2).tolist())) if i > 20 and rng.random() < waiting else []
        for i in range(count)
    ]
    return capacity, np.zeros(n_links), routes, size, start, after


def relayed(seed):
    """As `dense`, but most flows start at the end of one of the first: a link loses its last flow
    and gets another at one instant."""
    rng = np.random.default_rng(seed)
    n_links, count = int(rng.integers(30, 60)), int(rng.integers(100, 300))
    capacity, size = rng.choice([1.0, 2.0, 4.0], n_links), rng.choice([1.0, 2.0, 4.0], count)
    routes = [
        rng.choice(n_links, int(rng.integers(1, 4)), replace=False).tolist() for _ in range(count)
    ]
    first = int(rng.integers(40, count))
    after = [[int(rng.integers(first)) // 4 * 4] if i >= first else [] for i in range(count)]
    return capacity, np.zeros(n_links), routes, size, np.zeros(count), after


def all_to_all(leaves, arity, seed):
    """All pairs of a full-bisection tree of two levels by D-mod-K, with sizes that are all
    different."""
    hosts = leaves * arity
    src, dst = (each.ravel() for each in np.divmod(np.arange(hosts * hosts), hosts))
    src, dst = src[src != dst], dst[src != dst]
    up, down = (
        2 * hosts + src // arity * arity + dst % arity,
        3 * hosts + dst // arity * arity + dst % arity,
    )
    far = src // arity != dst // arity
    routes = [
        [a, b, c, hosts + d] if out else [a, hosts + d]
        for a, b, c, d, out in zip(src, up, down, dst, far, strict=True)
    ]
    return (
        np.full(4 * hosts, 2.0),
        np.zeros(4 * hosts),
        routes,
        np.random.default_rng(seed).exponential(1.0, len(src)),
        np.zeros(len(src)),
    )


def network_of(case, **options):
    """The network of a case with all its flows posted, which are tagged, and the time of its first
    event (s)."""
    capacity, _, routes, size, start, *_ = case
    network = FluidNetwork(capacity, tags=len(routes), **{"capped": False} | options)
    batch = tasks(len(routes), work=size, start=start, tag=np.arange(len(routes)))
    return network, network.post(0.0, TransferBatch(batch, pad_routes(routes)))


def rates(network, count):
    """(flows,) units/s now, 0 for those that do not drain."""
    state = network._state
    active = state.nodes[state.nodes["state"] == ACTIVE]
    out = np.zeros(count)
    out[active["tag"]] = state.links["level"][active["bottleneck"]]
    return out


def users_of(case):
    """(links, flows) 1 where a flow uses a link."""
    capacity, _, routes, *_ = case
    uses = np.zeros((len(capacity), len(routes)))
    for flow, route in enumerate(routes):
        uses[route, flow] = 1
    return uses


def check_fair(case, uses, rate, caps=np.inf):
    """Rates are feasible, and every flow has a bottleneck or its limit."""
    capacity = np.asarray(case[0])
    load = uses @ rate
    assert (load <= capacity * (1 + 1e-9)).all()
    assert (rate <= caps * (1 + 1e-9)).all()
    active = rate > 0
    fastest = (uses * rate).max(axis=1)
    bottleneck = (
        (uses > 0)
        & (load >= capacity * (1 - 1e-9))[:, None]
        & (rate >= fastest[:, None] * (1 - 1e-9))
    )
    assert (bottleneck.any(axis=0) | (rate >= caps * (1 - 1e-9)))[active].all()


# --------------------------------------------------------------------------------- the plain solver


def test_these_networks_are_swept():
    """Otherwise this file would test what others do."""
    for case in (dense(0), dense(1, tied=False), all_to_all(4, 4, 0)):
        network, upcoming = network_of(case)
        swept = instants = 0
        while upcoming < math.inf:
            upcoming, _ = network.advance(upcoming)
            swept += int(network.clock["in_order"][0])
            instants += 1
        assert swept > 0.5 * instants


@pytest.mark.parametrize("seed", range(10))
def test_flows_with_many_ties_end_as_by_the_plain_solver(seed):
    case = dense(seed)
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_flows_without_ties_end_as_by_the_plain_solver(seed):
    case = dense(seed, tied=False, flows=(100, 160))
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_flows_that_come_while_others_are_under_way_end_as_by_the_plain_solver(seed):
    """Few at a time, so that rates are repaired and not filled anew; links fall empty, and are used
    again at other levels."""
    case = dense(seed, starts=np.linspace(0, 20, 12), tied=seed % 2 == 0, waiting=0.2)
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 88, 137, 1194, 2042])
def test_links_that_fall_empty_and_fill_again_at_one_instant_are_put_in_order(seed):
    """The later seeds are found by search: with the old place of such a link, a flow keeps a
    bottleneck that is none."""
    case = relayed(seed)
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


def popular(seed):
    """As `dense`, but all flows use the first link, which most of them share alone, and many have a
    rate limit; and these limits."""
    rng = np.random.default_rng(seed)
    capacity, latency, routes, size, _, after = dense(seed, links=(5, 20), flows=(60, 140))
    routes = [
        [0] if rng.random() < 0.7 else [0, *(link for link in route if link > 0)]
        for route in routes
    ]
    limits = np.where(
        rng.random(len(routes)) < 0.5, rng.choice([0.01, 0.03, 0.1, 0.5], len(routes)), np.inf
    )
    return (
        capacity,
        latency,
        routes,
        size,
        rng.choice(np.linspace(0, 200, 40), len(routes)),
        after,
    ), limits


@pytest.mark.parametrize("seed", range(6))
def test_flows_that_share_one_link_alone_end_as_by_the_plain_solver(seed):
    """The level of that link rises above rate limits and falls below them again as flows come and
    go."""
    case, limits = popular(seed)
    capacity, _, routes, size, start, _ = case
    network = FluidNetwork(capacity, tags=len(routes))
    network.post(
        0.0,
        TransferBatch(
            tasks(len(routes), work=size, start=start, cap=limits, tag=np.arange(len(routes))),
            pad_routes(routes),
        ),
    )
    network.advance(math.inf)
    np.testing.assert_allclose(
        network.finish, reference.finish_times(*case, caps=limits), rtol=1e-9
    )


@pytest.mark.parametrize("seed", range(3))
def test_levels_that_are_close_are_still_told_apart(seed):
    capacity, *rest = dense(seed, flows=(100, 200))
    case = capacity * (1 + 1e-7 * np.random.default_rng(seed).random(len(capacity))), *rest
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


@settings(max_examples=6)
@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.integers(2, 6),
    st.sampled_from([(0.0,), (0.0, 1.0, 3.0, 9.0)]),
)
def test_any_dense_network_agrees_with_the_plain_solver(seed, tied, hops, starts):
    case = dense(seed, links=(20, 60), flows=(60, 140), tied=tied, hops=hops, starts=starts)
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


def test_an_all_to_all_of_different_sizes_ends_as_by_the_plain_solver():
    case = all_to_all(4, 4, 1)
    np.testing.assert_allclose(finish_times(*case), reference.finish_times(*case), rtol=1e-9)


# -------------------------------------------------------------------------------------------- rates


@pytest.mark.parametrize(
    "case",
    [
        dense(0, links=(150, 151), flows=(400, 401)),
        dense(1, links=(60, 61), flows=(400, 401)),
        dense(2, links=(150, 151), flows=(400, 401), tied=False),
        dense(3, links=(80, 81), flows=(400, 401), starts=np.linspace(0, 60, 40)),
        all_to_all(5, 4, 2),
    ],
    ids=["tied", "tied and crowded", "all different", "coming and going", "all-to-all"],
)
def test_rates_are_fair_at_every_instant_and_links_carry_what_they_say(case):
    uses, count = users_of(case), len(case[2])
    network, upcoming = network_of(case)
    instants, highest = 0, np.zeros(len(uses))
    while upcoming < math.inf:
        then, before, rate = network.now, network.links["work"].copy(), rates(network, count)
        upcoming, _ = network.advance(upcoming)
        network.settle()
        # nothing was lost or made on the way from the last instant to this one
        np.testing.assert_allclose(
            network.links["work"] - before, uses @ rate * (network.now - then), rtol=1e-6, atol=1e-9
        )
        check_fair(case, uses, rates(network, count))
        highest = np.maximum(highest, uses @ rates(network, count))
        instants += 1
    assert network.alive == 0
    assert instants > 50
    np.testing.assert_allclose(network.links["work"], uses @ case[3], rtol=1e-9)
    np.testing.assert_allclose(network.links["peak"], highest / case[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("seed", "limits"),
    [(0, [0.125, 0.25, 0.5]), (1, [0.05, 0.5, np.inf]), (2, np.linspace(0.02, 0.5, 40))],
)
def test_rate_limits_hold_among_many_flows(seed, limits):
    """40 different limits are more than there is room for at first."""
    case = dense(seed, starts=(0.0, 2.0, 7.0))
    capacity, latency, routes, size, start, _ = case
    caps = np.random.default_rng(seed).choice(limits, len(routes))
    network = FluidNetwork(capacity, tags=len(routes))
    batch = tasks(len(routes), work=size, start=start, cap=caps, tag=np.arange(len(routes)))
    upcoming = network.post(0.0, TransferBatch(batch, pad_routes(routes)))
    uses = users_of(case)
    while upcoming < math.inf:
        upcoming, _ = network.advance(upcoming)
        check_fair(case, uses, rates(network, len(routes)), caps)
    np.testing.assert_allclose(
        network.finish,
        reference.finish_times(capacity, latency, routes, size, start, None, caps),
        rtol=1e-9,
    )


def test_more_rate_limits_can_come_while_flows_are_under_way():
    """Room for them is made while the network is loaded, and rates are repaired then: what is known
    of its links must not be lost."""
    capacity, latency, routes, size, _, _ = dense(4, flows=(260, 261))
    early, late = np.arange(240), np.arange(240, 260)
    start, caps = np.zeros(260), np.full(260, np.inf)
    start[late], caps[late] = 1.5, np.linspace(0.02, 0.5, len(late))
    network = FluidNetwork(capacity, tags=260)
    for part in (early, late):
        now = float(start[part[0]])
        network.advance(now)
        batch = tasks(len(part), work=size[part], cap=caps[part], tag=part)
        network.post(now, TransferBatch(batch, pad_routes([routes[i] for i in part])))
    network.advance(math.inf)
    np.testing.assert_allclose(
        network.finish,
        reference.finish_times(capacity, latency, routes, size, start, None, caps),
        rtol=1e-9,
    )


def test_an_end_is_not_forgotten_when_rate_limits_come():
    # One flow alone ends at 10 s. At 1 s come 20 others with as many limits, so many links away
    # that nobody looks at the first by chance.
    network = FluidNetwork([1.0] * 69 + [100.0], tags=21)
    network.post(0.0, TransferBatch(tasks(1, work=10.0, tag=0), pad_routes([[0]])))
    network.advance(1.0)
    caps = np.linspace(0.1, 2.0, 20)
    network.post(
        1.0,
        TransferBatch(
            tasks(20, work=20 * caps, cap=caps, tag=np.arange(1, 21)), pad_routes([[69]] * 20)
        ),
    )
    network.advance(math.inf)
    assert network.finish == pytest.approx([10.0] + [21.0] * 20, rel=1e-12)


# -------------------------------------------------------------------------------------- invariances


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_the_flows_and_of_the_links_changes_nothing(seed):
    capacity, latency, routes, size, start, _ = dense(
        seed, flows=(300, 400), starts=np.linspace(0, 5, 9)
    )
    rng = np.random.default_rng(seed)
    order, number = rng.permutation(len(routes)), rng.permutation(len(capacity))
    renamed = np.empty(len(capacity))
    renamed[number] = capacity
    ends = finish_times(capacity, latency, routes, size, start)
    again = finish_times(
        renamed, latency, [number[routes[i]].tolist() for i in order], size[order], start[order]
    )
    np.testing.assert_allclose(again, ends[order], rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_twice_the_bandwidth_everywhere_takes_half_the_time(seed):
    """Exactly: a factor of two changes no digit of any number on the way."""
    capacity, latency, routes, size, start, after = dense(
        seed, flows=(300, 400), tied=False, waiting=0.3
    )
    slow = finish_times(capacity, latency, routes, size, start, after)
    assert np.array_equal(2 * finish_times(2 * capacity, latency, routes, size, start, after), slow)
    assert np.array_equal(
        finish_times(capacity, latency, routes, 0.5 * size, start, after) * 2, slow
    )


@pytest.mark.parametrize("seed", range(3))
def test_latency_and_a_later_start_only_shift(seed):
    capacity, latency, _, size, start, _ = dense(seed, flows=(300, 400), starts=(0.0, 1.0, 2.0))
    rng = np.random.default_rng(seed)
    routes = [rng.choice(len(capacity), 3, replace=False).tolist() for _ in size]
    ends = finish_times(capacity, latency, routes, size, start)
    np.testing.assert_allclose(
        finish_times(capacity, latency + 0.25, routes, size, start), ends + 0.75, rtol=1e-9
    )
    np.testing.assert_allclose(
        finish_times(capacity, latency, routes, size, start + 5.0), ends + 5.0, rtol=1e-9
    )


# ---------------------------------------------------------------------------------------- tolerance


def outcome(case, tolerance):
    capacity, latency, routes, size, start, *_ = case
    return Fluid(tolerance=tolerance).finish_times(
        Links(capacity, latency), Flows.from_lists(routes, size, start)
    )


@pytest.mark.parametrize(("more", "end", "spared"), [(0.01, 2.0, 0.01 / 1.01), (0.5, 2.5, 0.0)])
def test_a_flow_ends_with_another_when_little_is_left(more, end, spared):
    # One link of 1 unit/s, flows of 1 and 1 + more: the first ends at 2 s. A share of more / (1 +
    # more) of the other is left.
    found = outcome(([1.0], [0.0], [[0], [0]], [1.0, 1.0 + more], [0.0, 0.0]), 0.02)
    assert found.finish == pytest.approx([2.0, end], rel=1e-12)
    assert found.error_bound == pytest.approx(spared, rel=1e-9)
    assert found.makespan == found.finish.max()


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.05, 0.4])
def test_flows_of_one_link_end_in_groups_by_hand(tolerance):
    """All have had equally much at any time, say d. When the smallest is through, so are those of
    at most d / (1 - tolerance)."""
    size = np.sort(np.random.default_rng(5).uniform(1, 3, 300))
    ends, now, had, i = np.empty(300), 0.0, 0.0, 0
    while i < 300:
        now, had = now + (size[i] - had) * (300 - i) / 2.0, size[i]
        together = int(np.searchsorted((size - had) / size, tolerance, side="right"))
        ends[i:together] = now
        i = together
    found = outcome(([2.0], [0.0], [[0]] * 300, size, np.zeros(300)), tolerance)
    np.testing.assert_allclose(found.finish, ends, rtol=1e-9)
    exact = size.sum() / 2.0  # the link is never idle
    assert exact * (1 - tolerance) * (1 - 1e-9) <= found.makespan <= exact * (1 + 1e-9)
    assert found.error_bound <= tolerance


@pytest.mark.parametrize(("seed", "tolerance"), [(0, 1e-3), (1, 0.03), (2, 0.03), (3, 0.3)])
def test_a_tolerant_answer_is_the_exact_one_for_smaller_flows(seed, tolerance):
    case = dense(seed, tied=False, starts=(0.0, 1.0, 4.0))
    network, upcoming = network_of(case, tolerance=tolerance)
    count = len(case[2])
    drained = np.zeros(count)
    while upcoming < math.inf:
        then, rate = network.now, rates(network, count)
        upcoming, _ = network.advance(upcoming)
        drained += rate * (network.now - then)
    found = outcome(case, tolerance)
    assert np.array_equal(found.finish, network.finish)
    spared = 1 - drained / case[3]
    assert spared.min() > -1e-9
    assert spared.max() == pytest.approx(found.error_bound, rel=1e-6)
    assert 0 < found.error_bound <= tolerance
    capacity, latency, routes, _, start, _ = case
    np.testing.assert_allclose(
        reference.finish_times(capacity, latency, routes, drained, start), found.finish, rtol=1e-7
    )
    # fewer moments to solve for: its purpose
    assert len(np.unique(found.finish)) < len(np.unique(outcome(case, 0.0).finish))


def test_no_tolerance_is_exact():
    case = dense(9, tied=False)
    found = outcome(case, 0.0)
    assert found.error_bound == 0.0
    assert np.array_equal(found.finish, finish_times(*case[:5]))

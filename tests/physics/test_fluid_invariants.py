"""What holds inside the fluid network after every event (tests/fluid_check.py): on
random networks, on a dense all-to-all, and what is found when one thing is out of step."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from tests import fluid_check as check
from tests import reference
from tests.physics.test_dense import all_to_all, dense

CAPS = (0.05, 0.3, 1.0, math.inf)


def step_through(network, upcoming):
    """Run to the end, checking after every event; returns how many there were, and how many of them
    left the links in order."""
    instants = swept = 0
    while upcoming < math.inf:
        upcoming, _ = network.advance(upcoming)
        assert check.violations(network._state) == []
        instants += 1
        swept += int(network.clock["in_order"][0])
    assert network.alive == 0
    return instants, swept


def random_batch(rng, n_links, count, caps, tags):
    """Transfers that come in waves over few links, some of one pair, some waiting for others."""
    routes = [
        rng.choice(n_links, int(rng.integers(0, min(n_links, 4) + 1)), replace=False).tolist()
        for _ in range(count)
    ]
    edges = [(int(rng.integers(0, i)), i) for i in range(1, count) if rng.random() < 0.2]
    before, after = np.array(edges, np.int32).reshape(-1, 2).T
    columns = {
        "work": rng.choice([0.0, 1.0, 2.0, 4.0], count) * rng.choice([1.0, 1.37], count),
        "start": rng.choice(np.linspace(0, 20, 6), count),
        "delay": rng.choice([0.0, 0.5], count),
        "cap": rng.choice(caps, count),
        "pair": np.where(rng.random(count) < 0.2, rng.integers(0, 4, count), -1),
        "tag": np.arange(tags, tags + count),
    }
    return TransferBatch(tasks(count, **columns), pad_routes(routes), before.copy(), after.copy())


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_all_holds_after_every_event_of_a_random_network(seed, capped):
    rng = np.random.default_rng(seed)
    n_links, count = int(rng.integers(1, 30)), int(rng.integers(1, 60))
    caps = rng.choice(CAPS, 3) if capped else [math.inf]
    network = FluidNetwork(rng.choice([1.0, 2.0, 3.3], n_links), width=4, tags=2 * count)
    network.post(0.0, random_batch(rng, n_links, count, caps, 0))
    assert check.violations(network._state) == []
    network.advance(3.0)
    upcoming = network.post(3.0, random_batch(rng, n_links, count, caps, count))
    step_through(network, upcoming)


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_all_holds_after_every_event_of_a_dense_all_to_all(tolerance):
    capacity, _, routes, size, start = all_to_all(4, 4, 0)
    network = FluidNetwork(capacity, width=4, capped=False, tolerance=tolerance)
    posted = tasks(len(routes), work=size, start=start)
    instants, swept = step_through(
        network, network.post(0.0, TransferBatch(posted, pad_routes(routes)))
    )
    assert instants > 20
    assert swept > instants / 2  # both ways to visit are looked at: `dense` repairs


@pytest.mark.parametrize("seed", range(3))
def test_all_holds_after_every_event_where_few_links_change(seed):
    capacity, _, routes, size, start, _ = dense(
        seed, links=(60, 90), flows=(100, 140), hops=2, starts=np.linspace(0, 60, 30)
    )
    network = FluidNetwork(capacity, width=4, capped=False)
    posted = tasks(len(routes), work=size, start=start)
    instants, swept = step_through(
        network, network.post(0.0, TransferBatch(posted, pad_routes(routes)))
    )
    assert swept < instants / 2


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_all_holds_after_every_event_where_many_flows_meet_on_few_links(seed, capped):
    """50 flows come one by one, and slots are used again: heaps move to larger places, and lists of
    flows lose their first, middle and last."""
    rng = np.random.default_rng(seed)
    count = 50
    routes = [rng.choice(5, int(rng.integers(1, 4)), replace=False).tolist() for _ in range(count)]
    work, start = rng.uniform(0.2, 4.0, count), np.sort(rng.uniform(0.0, 9.0, count))
    caps = rng.choice([0.2, 0.5, math.inf], count) if capped else np.full(count, math.inf)
    capacity = np.array([4.0, 3.0, 2.0, 2.0, 1.0])
    network = FluidNetwork(capacity, width=3, capped=capped, tags=count)
    half = count // 2
    for part in (slice(0, half), slice(half, count)):
        columns = {"work": work[part], "start": start[part], "cap": caps[part]}
        columns["tag"] = np.arange(count)[part]
        posted = TransferBatch(tasks(half, **columns), pad_routes(routes[part]))
        upcoming = network.post(network.now, posted)
        while upcoming <= (start[half] if part.start == 0 else sys.float_info.max):
            upcoming, _ = network.advance(upcoming)
            assert check.violations(network._state) == []
    assert network.alive == 0
    assert len(np.unique(network.posted_slots)) == half
    expected = reference.finish_times(capacity, np.zeros(5), routes, work, start, None, caps)
    np.testing.assert_allclose(network.finish, expected, rtol=1e-9)


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_all_holds_where_many_flows_begin_together(seed, capped):
    """60 flows begin at 0 s and 45 more at 2 s, all at new rates: links fill one after the other,
    and the level of some rises while flows below it are stopped."""
    rng = np.random.default_rng(10 + seed)
    count, now = 105, 60
    capacity = np.array([30.0, 21.0, 9.0, 5.0, 4.0, 50.0, 1000.0])
    routes = [rng.choice(7, int(rng.integers(1, 4)), replace=False).tolist() for _ in range(count)]
    work, start = rng.uniform(0.5, 2.0, count), np.repeat([0.0, 2.0], [now, count - now])
    caps = rng.choice([0.05, 0.3, math.inf], count) if capped else np.full(count, math.inf)
    network = FluidNetwork(capacity, width=3, capped=capped, tags=count)
    posted = tasks(count, work=work, start=start, cap=caps, tag=np.arange(count))
    network.post(0.0, TransferBatch(posted, pad_routes(routes)))
    upcoming = 0.0
    while upcoming <= 2.0:
        upcoming, _ = network.advance(upcoming)
        assert check.violations(network._state) == []
        if network.now == 0.0:
            rates = reference.max_min_rates(capacity, routes[:now], caps[:now])
            view = check._View(network._state)
            slots = network.posted_slots[:now]
            assert [view.rates[slot] for slot in slots] == pytest.approx(rates, rel=1e-9)
    network.advance(math.inf)
    network.settle()
    ends = reference.finish_times(capacity, np.zeros(7), routes, work, start, None, caps)
    np.testing.assert_allclose(network.finish, ends, rtol=1e-9)
    carried = [sum(work[i] for i in range(count) if link in routes[i]) for link in range(7)]
    np.testing.assert_allclose(network.links["work"], carried, rtol=1e-9)


# ---------------------------------------------------------------------------- something out of step


def busy_network():
    """A network under way, whose links are in order: some flows share several links, some one, some
    have a rate limit."""
    capacity, _, routes, size, _ = all_to_all(4, 4, 1)
    network = FluidNetwork(capacity, width=4, capped=False)
    network.post(0.0, TransferBatch(tasks(len(routes), work=size), pad_routes(routes)))
    upcoming = 0.0
    while not network.clock["in_order"][0]:
        upcoming, _ = network.advance(upcoming)
    assert check.violations(network._state) == []
    return network._state


def limited_network():
    """The same of a network with rate limits."""
    network = FluidNetwork([4.0, 2.0, 1.0], width=3)
    routes, caps = [[0], [0, 1], [1, 2], [2], [0, 2]], [0.1, 0.2, math.inf, math.inf, 3.0]
    network.post(0.0, TransferBatch(tasks(5, work=10.0, cap=caps), pad_routes(routes)))
    network.advance(0.0)
    assert check.violations(network._state) == []
    return network._state


def _saturated(s, least=2):
    """A link with at least so many flows of its own."""
    return int(np.flatnonzero((s.links["n"] >= least) & (s.links["fixed"] == 0))[0])


def _listed(s):
    s.links["head"][_saturated(s)] = s.hops["next"][s.links["head"][_saturated(s)]]


def _unlinked(s):
    s.hops["prev"][s.hops["next"][s.links["head"][_saturated(s)]]] = -1


def _counted(name):
    def miscount(s):
        s.links[name][_saturated(s)] += 1

    return miscount


def _totalled(name):
    def miscount(s):
        s.clock[name] += 1

    return miscount


def _overlapping(s):
    first, second = np.argsort(s.links["offset"])[-2:]
    s.links["offset"][second] = s.links["offset"][first] + 1


def _cramped(s):
    s.links["reserved"][_saturated(s)] = s.links["n_alive"][_saturated(s)] - 1


def _disordered(s):
    first = s.links["offset"][_saturated(s)]
    s.entries["key"][first] = s.entries["key"][first : first + 2].max() + 1.0


def _misplaced(s):
    s.nodes["place"][s.entries["flow"][s.links["offset"][_saturated(s)]]] += 1


def _wrong_row(s):
    link = int(np.flatnonzero(s.links["n_rows"] > 0)[0])
    s.other_links[s.links["offset"][link] * (s.width - 1)] = link


def _lost_row(s):
    s.links["n_rows"][np.flatnonzero(s.links["n_rows"] > 0)[0]] -= 1


def _other_load(s):
    link = _saturated(s, 1)
    s.load[link, check.OTHER] += 1e-6 * s.load[link, check.CAPACITY]


def _peak(s):
    s.load[np.flatnonzero(s.load[:, check.OTHER] > 0)[0], check.PEAK] = 0.0


def _level(s):
    s.links["level"][_saturated(s)] *= 1 + 1e-6


def _no_bottleneck(s):
    """A link is given one flow that has another for its bottleneck and is slower there: what it
    then takes of both is brought up to date, as is all else but the condition."""
    s.links["level"][s.order[s.clock["n_order"][0] - 1]] *= 0.5


def _floor(s):
    link = int(np.flatnonzero((s.links["n"] > 0) & np.isfinite(s.links["floor"]))[0])
    s.links["floor"][link] = np.inf


def _unordered(s):
    s.order[:2] = s.order[1], s.order[0]


def _left_out(s):
    s.clock["n_order"] -= 1


def _end(s):
    s.ends[_saturated(s)] += 1e-3


def _minimum(s):
    s.ends[-1] = 0.0


CORRUPTIONS = [
    (_listed, "_lists"),
    (_unlinked, "_lists"),
    *[(_counted(name), "_counts") for name in ("n_alive", "n_active", "n_alone", "n", "queued")],
    *[(_totalled(name), "_counts") for name in ("n_alive", "n_active", "n_saturated", "n_dirty")],
    (_overlapping, "_arena"),
    (_cramped, "_arena"),
    (_disordered, "_heaps"),
    (_misplaced, "_heaps"),
    (_wrong_row, "_rows"),
    (_lost_row, "_rows"),
    (_other_load, "_other_loads"),
    (_peak, "_other_loads"),
    (_level, "_levels"),
    (_no_bottleneck, "_bottlenecks"),
    (_floor, "_bottlenecks"),
    (_unordered, "_order"),
    (_left_out, "_order"),
    (_end, "_ends"),
    (_minimum, "_ends"),
]


@pytest.mark.parametrize(("corrupt", "invariant"), CORRUPTIONS)
def test_one_thing_out_of_step_is_found_by_its_invariant(corrupt, invariant):
    state = limited_network() if corrupt is _floor else busy_network()
    corrupt(state)
    law = next(law for law in check.INVARIANTS if law.__name__ == invariant)
    assert list(law(check._View(state)))


def test_every_invariant_has_a_corruption():
    assert {name for _, name in CORRUPTIONS} == {law.__name__ for law in check.INVARIANTS}

"""The shared network for SimPy models, against answers worked out by hand and against posting
everything at once."""

import subprocess
import sys

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network import Flows, Fluid, Links
from simshuffle.job.sim.simpy_network import SimpyNetwork


@pytest.fixture
def env():
    return simpy.Environment()


def send(env, net, ends, name, at, route, nbytes, **options):
    """Start a transfer at a time and note when it has ended, by the clock and by its own word."""
    yield env.timeout(at)
    done = yield net.transfer(route, nbytes, **options)
    assert done.start == at
    assert done.finish == pytest.approx(env.now, rel=1e-12)
    ends[name] = env.now


def run(env, net, *transfers):
    """The ends of transfers, each given as (name, at, route, nbytes) or with a mapping of options
    behind."""
    ends = {}
    for name, at, route, nbytes, *options in transfers:
        env.process(
            send(env, net, ends, name, at, route, nbytes, **(options[0] if options else {}))
        )
    env.run()
    return ends


# --------------------------------------------------------------------------------------- one by one


def test_one_transfer_takes_its_latencies_and_then_its_slowest_link(env):
    net = SimpyNetwork(env, capacity=[10, 4, 20], latency=[0.25, 0.5, 8])
    assert run(env, net, ("a", 2, [0, 1], 100)) == {"a": 2 + 0.75 + 25}


def test_links_may_be_given_whole(env):
    net = SimpyNetwork(env, Links(np.array([10.0]), np.array([0.5])))
    assert run(env, net, ("a", 0, [0], 100)) == {"a": 10.5}


def test_two_share_a_link_and_the_longer_one_has_the_rest(env):
    net = SimpyNetwork(env, capacity=[10])
    # 5 each: the first ends at 2 s, when the second has 10 left for itself
    assert run(env, net, ("short", 0, [0], 10), ("long", 0, [0], 20)) == pytest.approx(
        {"short": 2, "long": 3}
    )


def test_one_that_comes_later_takes_its_share_from_then_on(env):
    net = SimpyNetwork(env, capacity=[10])
    # a alone until 1 s, 10 left; both 5 until b ends at 2 s; a has 5 left
    assert run(env, net, ("a", 0, [0], 20), ("b", 1, [0], 5)) == pytest.approx({"a": 2.5, "b": 2})


def test_shares_are_max_min_fair(env):
    net = SimpyNetwork(env, capacity=[10, 4])
    # b has 4 behind link 1, though half of link 0 would be 5; a has the other 6
    assert run(env, net, ("a", 0, [0], 12), ("b", 0, [0, 1], 8)) == pytest.approx({"a": 2, "b": 2})


def test_latency_uses_no_bandwidth(env):
    net = SimpyNetwork(env, capacity=[10, 100], latency=[0, 1])
    # b is not on link 0 before 1 s
    assert run(env, net, ("a", 0, [0], 10), ("b", 0, [0, 1], 10)) == pytest.approx({"a": 1, "b": 2})


def test_the_transfers_of_a_pair_go_one_after_the_other(env):
    net = SimpyNetwork(env, capacity=[10])
    pair = ("h0", "h1")
    ends = run(
        env,
        net,
        ("a", 0, [0], 10, {"pair": pair}),
        ("b", 0, [0], 10, {"pair": pair}),
        ("c", 0, [0], 10, {"pair": "other"}),
    )
    assert ends == pytest.approx({"a": 2, "c": 2, "b": 3})  # without pairs all would end at 3 s


def test_without_a_pair_all_share(env):
    net = SimpyNetwork(env, capacity=[10])
    assert run(env, net, *[(name, 0, [0], 10) for name in "abc"]) == pytest.approx(
        {"a": 3, "b": 3, "c": 3}
    )


def test_a_rate_limit_leaves_the_rest_to_others(env):
    net = SimpyNetwork(env, capacity=[10])
    ends = run(env, net, ("slow", 0, [0], 4, {"rate_limit": 2}), ("fast", 0, [0], 24))
    # 8 a second beside it, 10 after it
    assert ends == pytest.approx({"slow": 2, "fast": 2 + 8 / 10})


def test_options_of_one_transfer_do_not_stay_for_the_next(env):
    net = SimpyNetwork(env, capacity=[10, 10, 10], latency=[0, 0, 1])
    first = ("first", 0, [0, 1, 2], 10, {"pair": "p", "rate_limit": 1})
    assert run(env, net, first, ("next", 0, [0], 9), ("last", 0, [1], 9)) == pytest.approx(
        {"first": 11, "next": 0.9, "last": 0.9}
    )


@pytest.mark.parametrize(
    ("route", "nbytes", "options", "seconds"),
    [
        ([], 0, {}, 0),
        ([], 10, {}, 0),
        ([0], 0, {}, 0.5),
        ([], 10, {"rate_limit": 4}, 2.5),
        (np.array([0]), np.float64(10), {}, 1.5),
        ((), 10, {"pair": 1}, 0),
    ],
)
def test_transfers_with_nothing_to_do_or_nothing_to_cross(env, route, nbytes, options, seconds):
    net = SimpyNetwork(env, capacity=[10], latency=[0.5])
    assert run(env, net, ("a", 3, route, nbytes, options)) == {"a": 3 + seconds}


# ------------------------------------------------------------------------------------- many at once


def test_many_at_once_end_one_by_one_and_are_told_together(env):
    net = SimpyNetwork(env, capacity=[10, 10], latency=[0, 1])
    told = []

    def process():
        yield env.timeout(1)
        told.append((yield net.transfers([[0], [0], [1], []], [10, 20, 50, 7])))
        told.append(env.now)

    env.process(process())
    env.run()
    assert told[0].tolist() == pytest.approx([3, 4, 7, 1])
    assert told[1] == 7


def test_many_at_once_have_pairs_and_limits(env):
    net = SimpyNetwork(env, capacity=[10])
    event = net.transfers(
        [[0]] * 4, 10, pairs=["p", "p", None, None], rate_limits=[None, None, None, 1]
    )
    env.run(until=event)
    # three at a time; the last has 1, the others 4.5 each: 0 and 2 end at 20/9, then 1 has 9
    assert event.value.tolist() == pytest.approx([20 / 9, 30 / 9, 20 / 9, 10])


def test_many_at_once_may_be_none(env):
    net = SimpyNetwork(env, capacity=[10])
    event = net.transfers([], [])
    env.run()
    assert event.value.shape == (0,)
    assert env.now == 0


def test_batches_that_overlap_do_not_mix_their_ends(env):
    net = SimpyNetwork(env, capacity=[10] * 8)
    found = {}

    def process(number):
        for turn in range(20):
            start = env.now
            ends = yield net.transfers([[number]] * (1 + (number + turn) % 5), 10)
            found[number, turn] = (ends - start).tolist()

    for number in range(8):
        env.process(process(number))
    env.run()
    for (number, turn), seconds in found.items():
        count = 1 + (number + turn) % 5
        assert seconds == pytest.approx([count] * count), (number, turn)
    assert len(found) == 160
    assert len(net._network.finish) <= 2 * 8 * 16  # places are used again


def test_the_ends_of_a_batch_stay_what_they_were(env):
    net = SimpyNetwork(env, capacity=[10])
    first = net.transfers([[0]] * 2, [10, 20])
    env.run()
    net.transfers([[0]] * 2, [30, 40])
    env.run()
    assert first.value.tolist() == pytest.approx([2, 3])


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_transfers_on_the_way_equal_all_of_them_at_once(seed, count):
    rng = np.random.default_rng(seed)
    links = Links(np.array([1.0, 2.0, 4.0, 1.5]), np.array([0.0, 0.25, 0.1, 1.0]))
    routes = [rng.permutation(4)[: rng.integers(0, 4)].tolist() for _ in range(count)]
    nbytes, start = (
        rng.choice([0.0, 1.0, 2.0, 3.7], count),
        rng.choice([0.0, 0.5, 1.0, 2.25], count),
    )
    env = simpy.Environment()
    net = SimpyNetwork(env, links, max_hops=3)
    ends = np.full(count, np.nan)

    def one(i):
        yield env.timeout(start[i])
        ends[i] = (yield net.transfer(routes[i], nbytes[i])).finish

    def several(which):
        yield env.timeout(start[which[0]])
        ends[which] = yield net.transfers([routes[i] for i in which], nbytes[which])

    for moment in np.unique(start):
        which = np.flatnonzero(start == moment)
        cut = rng.integers(0, len(which) + 1)
        if cut:
            env.process(several(which[:cut]))
        for i in which[cut:]:
            env.process(one(i))
    env.run()
    np.testing.assert_allclose(
        ends, Fluid().finish_times(links, Flows.from_lists(routes, nbytes, start)).finish, rtol=1e-9
    )


# ------------------------------------------------------------------------------------ life in SimPy


def test_an_interrupt_stops_the_waiting_and_not_the_transfer(env):
    net = SimpyNetwork(env, capacity=[10])
    seen = {}

    def waiter():
        event = net.transfer([0], 20)
        try:
            yield event
        except simpy.Interrupt:
            seen["interrupted"] = env.now
        yield env.timeout(0.5)
        seen["ended"] = (yield event).finish

    def other(process):
        yield env.timeout(1)
        process.interrupt()
        seen["other"] = (yield net.transfer([0], 10)).finish

    env.process(other(env.process(waiter())))
    env.run()
    # 10 left at 1 s, shared from then on
    assert seen == pytest.approx({"interrupted": 1, "other": 3, "ended": 3})


def test_a_transfer_nobody_waits_for_takes_its_share(env):
    net = SimpyNetwork(env, capacity=[10])
    forgotten = net.transfer([0], 100)
    assert run(env, net, ("a", 0, [0], 10)) == pytest.approx({"a": 2})
    assert forgotten.value == pytest.approx((0, 11))


def test_events_can_be_combined(env):
    net = SimpyNetwork(env, capacity=[10, 10])
    seen = []

    def process():
        slow, fast = net.transfer([0], 100), net.transfer([1], 50)
        yield slow | env.timeout(2)
        seen.append((env.now, slow.triggered))
        yield slow | fast
        seen.append((env.now, slow.triggered))
        yield slow & fast
        seen.append((env.now, slow.triggered))

    env.process(process())
    env.run()
    assert seen == [(2, False), (5, False), (10, True)]


def test_running_in_pieces_changes_nothing(env):
    net = SimpyNetwork(env, capacity=[10])
    first = net.transfer([0], 100)
    env.run(until=3)
    second = net.transfer([0], 20)  # 70 of the first are left
    env.run(until=5)
    assert not second.triggered
    env.run(until=second)
    assert env.now == pytest.approx(7)
    third = net.transfer([0], 10)  # 50 of the first are left
    env.run()
    assert third.value == pytest.approx((7, 9))
    assert first.value == pytest.approx((0, 13))


def test_several_networks_in_one_environment_keep_apart(env):
    nets = [SimpyNetwork(env, capacity=[10 * (k + 1)]) for k in range(3)]
    ends = {}
    for k, net in enumerate(nets):
        for number in range(2):
            env.process(send(env, net, ends, (k, number), number, [0], 30))
    env.run()
    # 10: 20 left at 1 s, so the first ends at 5 and the second at 6. 20: 10 left, 2 and 3. 30: one
    # after the other
    assert ends == pytest.approx({(0, 0): 5, (0, 1): 6, (1, 0): 2, (1, 1): 3, (2, 0): 1, (2, 1): 2})


def test_environments_keep_apart():
    ends = []
    envs = [simpy.Environment(initial_time=start) for start in (0, 100)]
    nets = [SimpyNetwork(env, capacity=[10]) for env in envs]
    events = [net.transfer([0], 10) for net in nets] + [nets[1].transfer([0], 10)]
    for env in envs:
        env.run()
        ends.append(env.now)
    assert [event.value for event in events] == [(0, 1), (100, 102), (100, 102)]
    assert ends == [1, 102]


def test_a_transfer_that_would_be_in_the_past_of_the_network_is_refused(env):
    net = SimpyNetwork(env, capacity=[10])
    net.transfer([0], 100)
    env.step()  # nothing else is planned, so the network is at 10 s already
    assert env.now == 0
    with pytest.raises(RuntimeError, match=r"run ahead to 10\.0 s"):
        net.transfer([0], 10)
    with pytest.raises(RuntimeError, match="run ahead"):
        net.transfers([[0]], 10)
    env.run()
    assert net.transfer([0], 10) is not None


# --------------------------------------------------------------------------------------- statistics


def test_statistics_of_links_by_hand(env):
    net = SimpyNetwork(env, capacity=[10, 5, 20], latency=[0, 1, 0])
    net.transfer([0, 1], 20)  # from 1 to 5 s, 5 a second
    net.transfer([0], 5, rate_limit=2)  # from 0 to 2.5 s
    env.run(until=2)
    now = net.link_statistics()
    assert now.nbytes == pytest.approx([4 + 5, 5, 0])
    assert now.busy_seconds == pytest.approx([2, 1, 0])
    assert now.peak_utilisation == pytest.approx([0.7, 1, 0])
    env.run(until=8)
    later = net.link_statistics()
    assert later.nbytes == pytest.approx([25, 20, 0])
    assert later.busy_seconds == pytest.approx([5, 4, 0])
    assert later.peak_utilisation == pytest.approx([0.7, 1, 0])
    assert now.nbytes == pytest.approx([9, 5, 0])  # a copy


def test_asking_for_statistics_changes_nothing(env):
    net = SimpyNetwork(env, capacity=[10])

    def ask():
        while env.now < 5:
            net.link_statistics()
            yield env.timeout(0.3)

    env.process(ask())
    assert run(env, net, ("a", 0, [0], 20), ("b", 1, [0], 5)) == pytest.approx({"a": 2.5, "b": 2})


# ---------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("route", "nbytes", "options", "text"),
    [
        ([3], 1, {}, r"links from 0 to 2; got \[3\]"),
        ([0, -1], 1, {}, r"links from 0 to 2; got \[0, -1\]"),
        ([0, 1, 0], 1, {}, r"twice; got \[0, 1, 0\]"),
        ([0.0], 1, {}, r"list of link numbers; got \[0\.0\]"),
        (0, 1, {}, "list of link numbers; got 0"),
        ([0, 1, 2], 1, {}, "max_hops of at least that, now 2"),
        ([0], -1, {}, "nbytes must be finite and at least 0; got -1"),
        ([0], float("nan"), {}, "nbytes must be finite"),
        ([0], float("inf"), {}, "nbytes must be finite"),
        ([0], 1, {"rate_limit": 0}, "rate_limit must be greater than 0; got 0"),
        ([0], 1, {"rate_limit": float("nan")}, "rate_limit must be greater than 0"),
    ],
)
def test_what_cannot_be_transferred_is_refused_and_leaves_no_trace(
    env, route, nbytes, options, text
):
    net = SimpyNetwork(env, capacity=[10, 10, 10], max_hops=2)
    with pytest.raises(ValueError, match=text):
        net.transfer(route, nbytes, **options)
    with pytest.raises(ValueError, match=text.partition(";")[0]):
        net.transfers([[1], route], [1, nbytes], rate_limits=[None, options.get("rate_limit")])
    assert run(env, net, ("a", 0, [0], 10)) == {"a": 1}
    assert net.link_statistics().nbytes.tolist() == [10, 0, 0]


def test_lists_of_different_lengths_are_refused(env):
    net = SimpyNetwork(env, capacity=[10])
    for arguments in (([[0]], [1, 2]), ([[0], []], [[1, 2]])):
        with pytest.raises(ValueError, match="do not fit"):
            net.transfers(*arguments)
    for options in ({"pairs": [1]}, {"rate_limits": [1, 2, 3]}):
        with pytest.raises(ValueError, match="2 routes"):
            net.transfers([[0], [0]], 1, **options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "either links, or capacity"),
        ({"latency": [0]}, "either links, or capacity"),
        ({"links": Links(np.ones(1), np.zeros(1)), "capacity": [1]}, "either links, or capacity"),
        ({"links": Links(np.ones(1), np.zeros(1)), "latency": [1]}, "either links, or capacity"),
        ({"capacity": [0]}, "capacity that is finite and greater than 0"),
        ({"capacity": [1], "latency": [-1]}, "latency that is finite and at least 0"),
        ({"capacity": [1], "latency": [0, 0]}, "one length"),
        ({"capacity": [1], "max_hops": 0}, "max_hops must be at least 1; got 0"),
    ],
)
def test_what_is_no_network_is_refused(env, arguments, text):
    with pytest.raises(ValueError, match=text):
        SimpyNetwork(env, **arguments)


def test_it_needs_little_of_the_rest():
    code = (
        "import sys, simshuffle.job.sim.simpy_network; print({'pandas', 'matplotlib', 'networkx',"
        " 'simshuffle.job.scenario.scenario', 'simshuffle.job.sim.simulate'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=900
    )
    assert done.stdout == "set()\n", done.stderr

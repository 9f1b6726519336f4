"""The network under SimPy: posting transfers as the simulation goes gives the times of posting them
all at once."""

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network.batch import TransferBatch, delays, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.job.sim.clock import NetworkClock
from tests.explicit import finish_times


def send(env, clock, at, route, size, ends, number):
    """Wait until ``at``, post one transfer, wait for it, note when."""
    yield env.timeout(at)
    group = clock.network.open_group(1)
    clock.post(TransferBatch(tasks(1, work=size, group=group), pad_routes([route])))
    done = clock.completion(group)
    if done is not None:
        yield done
    ends[number] = env.now
    assert clock.network.close_group(group)[1] == pytest.approx(env.now, rel=1e-12)


def idle(env, steps):
    """Events that have nothing to do with the network."""
    for step in steps:
        yield env.timeout(step)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_posting_on_the_way_equals_posting_at_once(seed, count):
    rng = np.random.default_rng(seed)
    routes = [
        sorted(rng.choice(4, rng.integers(1, 4), replace=False).tolist()) for _ in range(count)
    ]
    size, start = rng.choice([1.0, 2.0, 3.7], count), rng.choice([0.0, 0.5, 1.0, 2.25], count)
    capacity = [1.0, 2.0, 4.0, 1.5]
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork(capacity))
    ends = np.zeros(count)
    for i in range(count):
        env.process(send(env, clock, start[i], routes[i], size[i], ends, i))
    env.process(idle(env, rng.uniform(0, 0.3, 50).tolist()))
    env.run()
    np.testing.assert_allclose(
        ends, finish_times(capacity, [0.0] * 4, routes, size, start), rtol=1e-9
    )


def test_a_group_that_is_complete_needs_no_waiting():
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0]))
    group = clock.network.open_group(2)
    clock.post(
        TransferBatch(tasks(2, work=[1.0, 2.0], group=group, mark=[1, 0]), pad_routes([[0], [0]]))
    )
    env.run(until=10.0)
    assert clock.completion(group) is None
    assert clock.network.close_group(group) == pytest.approx((2.0, 3.0))


def test_time_is_that_of_the_network_to_the_last_bit():
    """Four transfers one after the other, while SimPy has nothing to do: its time is moved on to
    each end, however short the steps are beside the time."""
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([3.0]))
    ends = []

    def sender():
        for size in (1.0, 1e-9, 0.7, 1e5):
            group = clock.network.open_group(1)
            clock.post(TransferBatch(tasks(1, work=size, group=group), pad_routes([[0]])))
            yield clock.completion(group)
            ends.append((env.now, clock.network.close_group(group)[1]))

    env.process(sender())
    env.run()
    assert [now for now, _ in ends] == [end for _, end in ends]
    assert ends[-1][0] == pytest.approx((1.0 + 1e-9 + 0.7 + 1e5) / 3, rel=1e-12)


def test_what_simpy_has_at_the_same_instant_comes_first():
    """A transfer ends at 2 s. What was planned for then, or for earlier, is not passed over; what
    is planned for later has to wait."""
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0]))
    seen = []

    def note(name, delay):
        yield env.timeout(delay)
        seen.append((name, env.now))

    def sender():
        group = clock.network.open_group(1)
        clock.post(TransferBatch(tasks(1, work=2.0, group=group), pad_routes([[0]])))
        yield clock.completion(group)
        seen.append(("transfer", env.now))

    env.process(sender())
    for name, delay in (("later", 2.5), ("with it", 2.0), ("before", 1.5)):
        env.process(note(name, delay))
    env.run()
    assert seen == [("before", 1.5), ("with it", 2.0), ("transfer", 2.0), ("later", 2.5)]


def test_transfers_that_end_together_let_their_waiters_go_in_turn():
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0, 1.0]))
    ends = np.zeros(3)
    for number, route in enumerate(([0], [1])):
        env.process(send(env, clock, 0.0, route, 2.0, ends, number))
    env.process(send(env, clock, 1.0, [1], 0.5, ends, 2))
    env.run()
    assert ends.tolist() == [2.0, 2.5, 2.0]


def test_an_error_in_what_follows_a_completion_stops_the_run():
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0]))

    def sender():
        group = clock.network.open_group(1)
        clock.post(TransferBatch(tasks(1, work=2.0, group=group), pad_routes([[0]])))
        yield clock.completion(group)
        raise LookupError("after the transfer")

    env.process(sender())
    with pytest.raises(LookupError, match="after the transfer"):
        env.run()
    assert env.now == 2.0


def test_a_run_can_end_with_a_completion_and_go_on():
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0, 1.0]))
    ends = np.zeros(1)
    env.process(send(env, clock, 0.0, [0], 4.0, ends, 0))
    group = clock.network.open_group(1)
    clock.post(TransferBatch(tasks(1, work=3.0, group=group), pad_routes([[1]])))
    env.run(until=clock.completion(group))
    assert env.now == 3.0
    env.run()
    assert (ends[0], env.now) == (4.0, 4.0)


def test_groups_are_gathered_watched_and_released_in_the_order_of_their_completion():
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0, 1.0]))
    ended, released = (clock.network.open_groups(1, 2) for _ in range(2))
    seen = []
    clock.watch(ended, lambda index: seen.append((index, env.now)))
    gathered = clock.gather(ended)
    clock.watch(released, lambda index: seen.append((index, env.now)))
    gathered.callbacks.append(lambda _: clock.release(released, ended))
    clock.post(TransferBatch(tasks(2, work=[2.0, 1.0], group=ended), pad_routes([[0], [1]])))
    env.run()
    assert seen == [(1, 1.0), (0, 2.0), (1, 2.0), (0, 2.0)]


def test_parked_transfers_are_made_again_for_groups_that_are_not_complete():
    """Two delays of 1 s; from 1.5 s on they are of 3 s, and the second group completes at 2 s."""
    env = simpy.Environment()
    clock = NetworkClock(env, FluidNetwork([1.0]))
    begun, ended = (clock.network.open_groups(1, 2) for _ in range(2))
    seconds = [1.0]
    index = clock.park(begun, lambda: delays(seconds[0], ended))
    clock.post(delays([1.0, 2.0], begun))

    def slow_down():
        yield env.timeout(1.5)
        seconds[0] = 3.0
        clock.renew()

    env.process(slow_down())
    env.run()
    assert clock.network.ends(ended).tolist() == [2.0, 5.0]
    clock.unpark(index)
    clock.renew()

"""The network under SimPy: posting transfers as the simulation goes gives the times of posting them
all at once."""

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.network.fluid.network import FluidNetwork
from simshuffle.sim.barrier import Barrier, succeed_after
from simshuffle.sim.clock import NetworkClock
from tests.explicit import finish_times


def send(env, clock, at, route, size, ends, number):
    """Wait until ``at``, post one transfer, wait for it, note when."""
    yield env.timeout(at)
    group = clock.open(1)
    clock.post(TransferBatch(tasks(1, work=size, group=group), pad_routes([route])))
    done = clock.completion(group)
    if done is not None:
        yield done
    ends[number] = env.now
    assert clock.close(group)[1] == pytest.approx(env.now, rel=1e-12)


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
    group = clock.open(2)
    clock.post(
        TransferBatch(tasks(2, work=[1.0, 2.0], group=group, mark=[1, 0]), pad_routes([[0], [0]]))
    )
    env.run(until=10.0)
    assert clock.completion(group) is None
    assert clock.close(group) == pytest.approx((2.0, 3.0))


def test_a_meeting_lets_all_go_when_the_last_has_come():
    env = simpy.Environment()
    meeting = Barrier(env, 3, lambda event: succeed_after(env, 0.5, event))
    left = []

    def rank(delay):
        for _ in range(2):
            yield env.timeout(delay)
            yield meeting.arrive()
            left.append(env.now)

    for delay in (1.0, 2.0, 3.0):
        env.process(rank(delay))
    env.run()
    assert left == [3.5] * 3 + [7.0] * 3
    assert meeting.complete_at == 6.5

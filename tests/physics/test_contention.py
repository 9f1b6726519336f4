"""Self-contention and congestion, where every link gives each of its flows the same part: answers
by hand, and beside max-min fair sharing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import SimulationError
from simshuffle.fabric.network import Flows, Fluid, Links
from simshuffle.fabric.network.contention import (
    finish_times,
    first_stage_contention,
    self_contention,
)
from tests.physics.test_symmetry import all_to_all


def equal_links(count, latency=0.0):
    return Links(np.ones(count), np.full(count, latency))


# ------------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize("count", [1, 2, 7])
def test_so_many_flows_on_a_link_take_so_many_times_as_long(count):
    found = self_contention(equal_links(1), Flows.from_lists([[0]] * count, [3.0] * count))
    assert found.finish.tolist() == [3.0 * count] * count
    assert (found.makespan, found.isolated_makespan, found.coefficient) == (3.0 * count, 3.0, count)
    assert (found.first_stage, found.slowest_link) == (count, 0)


def test_after_an_end_the_others_share_what_there_is():
    # 1 byte at 1/2 until 2 s; of the 3 bytes 2 are left then, and move at 1
    found = self_contention(equal_links(1), Flows.from_lists([[0], [0]], [1.0, 3.0]))
    assert found.finish.tolist() == [2.0, 4.0]
    assert found.coefficient == pytest.approx(4 / 3)
    assert found.first_stage == 2.0


def test_what_a_slower_flow_leaves_is_given_to_nobody():
    """Three flows on link 0, one of which goes on over link 1 at a third of it: the other flow on
    link 1 gets a half, and with max-min fair sharing two thirds."""
    links = equal_links(2)
    flows = Flows.from_lists([[0, 1], [0], [0], [1]], [3.0, 3.0, 3.0, 1.0])
    assert finish_times(links, flows).finish == pytest.approx([9.0, 9.0, 9.0, 2.0])
    assert Fluid().finish_times(links, flows).finish == pytest.approx([9.0, 9.0, 9.0, 1.5])


def test_the_slowest_link_counts_and_not_the_fullest():
    # three flows on a link of 6 get 2 each, two on a link of 2 get 1
    links = Links(np.array([6.0, 2.0]), np.zeros(2))
    flows = Flows.from_lists([[0, 1], [0, 1], [0]], [2.0, 2.0, 2.0])
    found = self_contention(links, flows)
    # the third has ended after 1 s; the other two stay at 1, and alone would have 2
    assert found.finish.tolist() == [2.0, 2.0, 1.0]
    assert found.coefficient == 2.0
    # the third is 3 times slower than alone
    assert (found.first_stage, found.slowest_link) == (3.0, 0)


def test_latencies_use_no_link():
    links = Links(np.ones(3), np.array([0.0, 1.0, 0.5]))
    # the second begins after 1 s, when 1 byte of the first is left; the third is on its own
    found = self_contention(links, Flows.from_lists([[0], [1, 0], [2]], [2.0, 2.0, 0.0]))
    assert found.finish.tolist() == [3.0, 4.0, 0.5]
    assert found.isolated_makespan == 3.0


def test_flows_begin_when_they_start_and_when_others_have_ended():
    flows = Flows.from_lists([[0], [0], [0]], [1.0, 2.0, 1.0], [0.0, 0.5, 9.0], [[], [], [0]])
    # 1/2 byte alone, then halves until 1.5 s; flow 2 then begins beside 1.5 bytes of flow 1
    assert finish_times(equal_links(1), flows).finish.tolist() == [1.5, 4.0, 3.5]


def test_a_barrier_waits_for_all():
    # two steps of two messages; the gate is flow 4, without links
    flows = Flows.from_lists(
        [[0], [1], [0], [0], []], [1.0, 3.0, 1.0, 1.0, 0.0], predecessors=[[], [], [4], [4], [0, 1]]
    )
    found = self_contention(equal_links(2), flows)
    assert found.finish.tolist() == [1.0, 3.0, 5.0, 5.0, 3.0]
    assert found.coefficient == 5.0 / 4.0
    assert found.first_stage == 1.0  # the two that wait are not asked


def test_what_moves_nothing_ends_at_once():
    flows = Flows.from_lists([[], [0], [0]], [7.0, 0.0, 1.0], [2.0, 0.0, 0.0])
    found = self_contention(equal_links(1, latency=0.25), flows)
    assert found.finish.tolist() == [2.0, 0.25, 1.25]
    assert (found.first_stage, found.slowest_link) == (1.0, 0)
    nothing = self_contention(equal_links(1), Flows.from_lists([], []))
    assert (nothing.makespan, nothing.coefficient, nothing.first_stage, nothing.slowest_link) == (
        0,
        1,
        1,
        -1,
    )


def test_an_end_so_near_that_the_clock_does_not_move_is_reached():
    # from 1e6 s on the clock goes in steps of 1e-10 s
    flows = Flows.from_lists([[0], [0], [0]], [1e-14, 3e-14, 1.0], [1e6, 1e6, 1e6 + 1])
    assert finish_times(equal_links(1), flows).finish.tolist() == [1e6, 1e6, 1e6 + 2]


def test_flows_that_wait_in_a_circle_are_refused():
    flows = Flows.from_lists([[0], [0], [0]], [1.0] * 3, predecessors=[[], [2], [1]])
    with pytest.raises(SimulationError, match="2 flows wait for each other in a circle"):
        finish_times(equal_links(1), flows)


def test_flows_of_others_while_they_last():
    # half of link 0 until the second one's byte is over at 2 s, then 1 more byte at 1
    flows = Flows.from_lists([[0], [1, 0], [1]], [2.0, 1.0, 8.0])
    assert finish_times(equal_links(2), flows).finish[0] == 3.0


def test_flows_that_wait_may_meet_others_and_end_sooner_than_in_the_fluid_network():
    """The first flow gets 2/3 of link 0 there and 1/2 here. What waits for it begins sooner there,
    and so is in the way of flow 3."""
    flows = Flows.from_lists(
        [[0], [1], [1], [0, 1], [0, 1]],
        [4.0, 2.0, 4.0, 3.0, 1.0],
        predecessors=[[], [], [], [], [0]],
    )
    links = equal_links(2)
    assert finish_times(links, flows).finish == pytest.approx([8, 6, 10, 8, 10])
    assert Fluid().finish_times(links, flows).finish == pytest.approx([6, 6, 10, 9, 9])


def test_a_tolerance_skips_at_most_that_share():
    rng = np.random.default_rng(1)
    links, flows = all_to_all(18, 6, 3)
    flows = Flows(flows.routes, flows.nbytes * rng.uniform(0.9, 1.1, len(flows)), flows.start)
    exact, near = finish_times(links, flows), finish_times(links, flows, 0.05)
    assert exact.error_bound == 0.0
    assert 0.0 < near.error_bound <= 0.05
    # as if flows were smaller by that share
    assert 0.95 * exact.makespan <= near.makespan <= exact.makespan


def test_an_all_to_all_is_that_of_the_fluid_network_where_one_tier_binds():
    # hosts' own links are shared by all messages of a host; two spines for six hosts bind
    for spines in (2, 6):
        links, flows = all_to_all(18, 6, spines)
        found, fair = finish_times(links, flows), Fluid().finish_times(links, flows)
        assert found.makespan == pytest.approx(fair.makespan, rel=1e-9), spines


# --------------------------------------------------------------------------------------- properties


@st.composite
def cases(draw, *, start=True):
    count = draw(st.integers(1, 5))
    capacity = [draw(st.sampled_from([1.0, 2.0, 3.0])) for _ in range(count)]
    latency = [draw(st.sampled_from([0.0, 0.5])) for _ in range(count)]
    flows = draw(st.integers(1, 9))
    routes = [
        draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        for _ in range(flows)
    ]
    nbytes = [float(draw(st.integers(0, 6))) for _ in range(flows)]
    begin = [draw(st.sampled_from([0.0, 0.5, 2.0])) if start else 0.0 for _ in range(flows)]
    return Links(np.array(capacity), np.array(latency)), Flows.from_lists(routes, nbytes, begin)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_no_flow_ends_before_it_does_in_the_fluid_network(case):
    links, flows = case
    found = finish_times(links, flows).finish
    assert (found >= Fluid().finish_times(links, flows).finish * (1 - 1e-9)).all()


@given(cases(start=False), st.sampled_from([0.25, 3.0]))
@settings(max_examples=100, deadline=None)
def test_only_ratios_count(case, factor):
    links, flows = case
    links = Links(links.capacity, np.zeros(len(links)))
    found = self_contention(links, flows)
    larger = self_contention(links, Flows(flows.routes, flows.nbytes * factor, flows.start))
    faster = self_contention(Links(links.capacity * factor, links.latency), flows)
    assert larger.finish == pytest.approx(found.finish * factor, rel=1e-9)
    assert faster.finish == pytest.approx(found.finish / factor, rel=1e-9)
    assert larger.coefficient == pytest.approx(found.coefficient, rel=1e-9)
    assert found.coefficient >= 1 - 1e-12


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from([0.0, 0.5])), min_size=1
    )
)
@settings(max_examples=100, deadline=None)
def test_it_is_the_fluid_network_where_the_slowest_link_is_that_of_all_flows_on_it(given_flows):
    """Every flow crosses a link of its own, as fast as the shared one or faster."""
    shared = 4
    links = Links(
        np.append(np.array([1.0, 2.0, 2.0, 5.0]), np.full(len(given_flows), 5.0)),
        np.zeros(shared + len(given_flows)),
    )
    flows = Flows.from_lists(
        [[shared + i, link] for i, (link, _, _) in enumerate(given_flows)],
        [float(size) for _, size, _ in given_flows],
        [start for _, _, start in given_flows],
    )
    found = finish_times(links, flows).finish
    assert found == pytest.approx(Fluid().finish_times(links, flows).finish, rel=1e-9)


@given(st.permutations(range(8)))
def test_a_permutation_over_links_of_its_own_has_no_contention(order):
    flows = Flows.from_lists([[i, 8 + to] for i, to in enumerate(order)], [1.0] * 8)
    found = self_contention(equal_links(16), flows)
    assert (found.coefficient, found.first_stage) == (1.0, 1.0)


@given(cases())
@settings(max_examples=100, deadline=None)
def test_the_first_stage_is_counted_flow_by_flow(case):
    links, flows = case
    slower = [1.0]
    for route, nbytes in zip(flows.routes.tolist(), flows.nbytes, strict=True):
        if nbytes:
            on = {
                link: sum(
                    link in r and n > 0 for r, n in zip(flows.routes, flows.nbytes, strict=True)
                )
                for link in route
                if link >= 0
            }
            whole = min(links.capacity[link] for link in on)
            slower.append(whole / min(links.capacity[link] / on[link] for link in on))
    assert first_stage_contention(links, flows)[0] == pytest.approx(max(slower))

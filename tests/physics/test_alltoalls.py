"""All-to-alls by hand on an ideal switch of 16 hosts, 10 GB/s a cable, cables and switch without
latency: o = 1 us, copies at 1 GB/s, copies up to 1000 B, asked for from 5000 B on, L = 2 us.

A message of 100 B takes its hosts 1 + 0.1 = 1.1 us, one of 2000 B 1 + 1 = 2 us, one of 10 kB
2 + 1 = 3 us. A byte takes a cable 0.1 ns.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.job.lowering import alltoalls as lowering
from simshuffle.job.lowering.alltoalls import ALGORITHMS, Alltoalls, AlltoallTimes
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.host_work import LARGE, SMALL
from tests.small import small

US = 1e-6
COSTS = {
    "cluster__message_passing": {
        "latency": "2 us",
        "overhead": "1 us",
        "copy_bandwidth": "1 GB/s",
        "copy_limit": "1000 B",
        "eager_limit": "5000 B",
    }
}


def law(ranks=8, **values):
    cluster = small(**COSTS, **values, world_size=ranks).cluster
    return Alltoalls(Resources(cluster, ranks, np.random.default_rng(0)))


def test_all_at_once_the_host_posts_while_small_messages_travel():
    """L + 7 x 1.1 us; 7 x 100 B take the cable 0.07 us meanwhile."""
    parts = law().parts("linear", 100.0)
    assert parts.seconds == pytest.approx(2 * US + 7 * 1.1 * US)
    assert parts.host == parts.seconds
    assert parts.links == pytest.approx(700 * 1e-10)


def test_all_at_once_the_slower_of_host_and_links_counts():
    """Copies cost no more from 1000 B on, so 7 x 2 us; at 0.1 GB/s 7 x 2000 B take 140 us."""
    assert law().seconds("linear", 2000.0) == pytest.approx(16 * US)
    slow = law(cluster__topology__link_bandwidth="0.1 GB/s")
    assert slow.seconds("linear", 2000.0) == pytest.approx(2 * US + 140 * US)


def test_what_is_asked_for_first_travels_when_all_are_posted():
    """Three trips, 7 x (2 + 1) us of posting and 7 x 10 kB over 10 GB/s."""
    assert law().seconds("linear", 1e4) == pytest.approx((6 + 21 + 7) * US)


def test_a_step_of_pairs_is_a_trip_a_message_and_its_bytes():
    """Seven steps of 2 + 1.1 us and 100 B over 10 GB/s."""
    parts = law().parts("pairwise", 100.0)
    assert parts.seconds == pytest.approx(7 * (3.1 + 0.01) * US)
    assert (parts.host, parts.links) == pytest.approx((7 * 3.1 * US, 7 * 0.01 * US))
    assert law().seconds("pairwise", 1e4) == pytest.approx(7 * (6 + 3 + 1) * US)


def test_ranks_of_a_host_share_its_cable():
    """Of two hosts with four ranks each, four of seven messages leave; all at once each of the two
    cables carries 4 x 4 x 10 kB = 160 kB in 16 us, and the memory of a host twelve messages."""
    shared = law(
        cluster__host={
            **small().cluster.host.model_dump(),
            "gpus": 4,
            "nvlink_bandwidth": "50 GB/s",
            "pcie_bandwidth": "16 GB/s",
        }
    )
    assert shared.parts("linear", 1e4).links == pytest.approx(16 * US)


def test_bruck_packs_half_of_all_blocks_for_each_of_three_steps():
    """Four blocks of 100 B a step: 2 + 1.4 us, 0.04 us of wire, packed and unpacked at 11 GB/s;
    all eight are put into a buffer and taken out of it."""
    copies = (2 * 800 + 3 * 2 * 400) / SMALL
    parts = law().parts("bruck", 100.0)
    assert parts.seconds == pytest.approx(3 * 3.44 * US + copies)
    assert (parts.host, parts.links) == pytest.approx((3 * 3.4 * US + copies, 3 * 0.04 * US))


def test_bruck_has_one_more_step_for_a_ninth_rank():
    """Its fourth step sends one block, of the rank 8 further: 2 + 1.1 us and 0.01 us of wire."""
    copies = (2 * 900 + 2 * (3 * 400 + 100)) / SMALL
    expected = (3 * 3.44 + 3.11) * US + copies
    assert law(9).seconds("bruck", 100.0) == pytest.approx(expected)


def test_bruck_fills_fresh_pages_where_the_buffer_is_large():
    """8 x 4 MiB reach the threshold from which on memory is given back: filled at 2.3 GB/s."""
    n = 4 * 2.0**20
    steps = 3 * (3 * 2 * US + 3 * US + 4 * n * 1e-10 + 2 * 4 * n / SMALL)
    assert law().seconds("bruck", n) == pytest.approx(8 * n / LARGE + 8 * n / SMALL + steps)


@pytest.mark.parametrize("slow_host", ["h0000", "h0001", "h0002"])
def test_a_rank_waits_for_its_own_partner_and_for_no_other(slow_host):
    """Three ranks, the third behind a cable of 0.1 GB/s: 1000 B take 10 us more to and from it. It
    does not matter which one of the ring is the third.

    Step one, to the next: rank 1 ends at 4 us, which has its message from rank 0; ranks 0 and 2 at
    14. Step two, to the one after: rank 0 sends at 14 to rank 2, which ends at 14 + 2 + 10 + 2."""
    slow = law(3, cluster__faults={slow_host: 0.01})
    assert slow.seconds("pairwise", 1000.0) == pytest.approx(28 * US)
    # all at once, both messages to it and both from it share its cable
    assert slow.parts("linear", 1000.0).links == pytest.approx(20 * US)
    # Bruck's steps among three are the same two, one block each, packed and unpacked
    copies = (2 * 3000 + 2 * 2 * 1000) / SMALL
    assert slow.seconds("bruck", 1000.0) == pytest.approx(28 * US + copies)


def test_a_slow_cable_delays_what_its_rank_sends_and_what_it_receives():
    """The cable of rank 0 at 0.1 GB/s: of three messages, each to the next rank, those to ranks 0
    and 1 take 2 + 10 + 2 us, and the other one 0.1 us of wire."""
    of = law(3, cluster__faults={"switch>h0000": 0.01})
    ends = of._step(np.zeros(3), of._shift(1), 1000.0, 1.0, 1.0)
    assert ends == pytest.approx(np.array([14.0, 14.0, 4.1]) * US)


def test_all_at_once_the_longest_way_counts():
    """Ranks 0 and 1 share a host, and rank 2 is two cables of 3 us away from both."""
    law_of_pairs = law(3, cluster__host__gpus=2, cluster__topology__cable_latency="3 us")
    assert law_of_pairs.seconds("linear", 100.0) == pytest.approx((2 + 6 + 2 * 1.1) * US)


def test_a_late_rank_delays_whom_it_sends_to_and_who_asks_it():
    """Four ranks, each to the next, rank 1 ten us late. A message of 100 B from it arrives at rank
    2 at 10 + 2 + 0.01 us; nobody else is later than its own. One of 10 kB is asked for: rank 0
    waits until rank 1 is there, then 6 + 1 us, and rank 1 has both."""
    of = law(4)
    late = np.array([0.0, 10.0, 0.0, 0.0]) * US
    small_ends = of._step(late, of._shift(1), 100.0, 1.0, 1.0)
    assert small_ends == pytest.approx(np.array([3.11, 11.1, 13.11, 3.11]) * US)
    large_ends = of._step(late, of._shift(1), 1e4, 1.0, 1.0)
    assert large_ends == pytest.approx(np.array([20.0, 20.0, 20.0, 10.0]) * US)


@pytest.mark.parametrize("algorithm", ["linear", "pairwise"])
def test_some_distances_stand_for_all(monkeypatch, algorithm):
    """Of 7 distances on a switch that treats all alike, three or two say as much as seven."""
    whole = law().parts(algorithm, 1e4)
    for count in (3, 2):
        monkeypatch.setattr(lowering, "MAX_SHIFTS", count)
        sampled = law()
        parts = sampled.parts(algorithm, 1e4)
        assert (parts.seconds, parts.host, parts.links) == pytest.approx(
            (whole.seconds, whole.host, whole.links)
        )
        # evenly spread, from the first to the last
        assert sorted(sampled._shifts) == {3: [1, 4, 7], 2: [1, 7]}[count]


def test_open_mpi_chooses_bruck_for_small_messages_of_twelve_ranks_or_more():
    assert law(12).resolve_algorithm("default", 199.0) == "bruck"
    assert (
        law(12).resolve_algorithm("default", 200.0)
        == law(8).resolve_algorithm("default", 1.0)
        == "linear"
    )
    assert law(1).parts("linear", 100.0) == AlltoallTimes(0.0, 0.0, 0.0)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 16), st.floats(1.0, 1e7), st.sampled_from(ALGORITHMS))
def test_both_parts_together_are_no_less_than_the_whole_and_each_is_no_more(ranks, n, algorithm):
    parts = law(ranks).parts(algorithm, n)
    whole = parts.seconds * (1 + 1e-9)
    assert max(parts.host, parts.links) <= whole
    assert parts.seconds <= (parts.host + parts.links) * (1 + 1e-9)
    assert parts.links * 0.99 <= law(ranks).parts(algorithm, 2 * n).links

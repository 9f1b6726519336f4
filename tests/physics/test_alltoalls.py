"""All-to-alls by hand on an ideal switch of 16 hosts, 10 GB/s a cable, cables and switch without
latency: o = 1 us, copies at 1 GB/s, copies up to 1000 B, asked for from 5000 B on, L = 2 us.

A message of 100 B takes its hosts 1 + 0.1 = 1.1 us, one of 2000 B 1 + 1 = 2 us, one of 10 kB
2 + 1 = 3 us. A byte takes a cable 0.1 ns.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network import Analytic, Packet
from simshuffle.job.lowering import alltoalls as lowering
from simshuffle.job.lowering.alltoalls import ALGORITHMS, IN_CACHE, Alltoalls, AlltoallTimes, _Step
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


def shift(ranks, distance):
    """The messages from every rank to the one ``distance`` further."""
    return next(ranks._find_shifts([distance]))


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


@pytest.mark.parametrize("algorithm", ["linear", "pairwise", "bruck"])
def test_no_answer_depends_on_what_was_asked_before(algorithm):
    """Adaptive routing remembers its messages, but those of another algorithm or size are none of
    this one's."""
    tree = {"kind": "fat_tree", "levels": 2, "arity": 6, "taper": 2, "link_bandwidth": "1 GB/s"}
    adaptive = {"cluster__topology": tree, "cluster__routing": {"kind": "adaptive"}}
    asked = law(22, **adaptive)
    for other in sorted({"linear", "pairwise", "bruck"} - {algorithm}):
        asked.seconds(other, 3e4)
    assert asked.parts(algorithm, 1e5) == law(22, **adaptive).parts(algorithm, 1e5)


def test_steps_go_through_the_network_that_is_given():
    """Pairs meet nobody, so packets take as long as flows; and the analytic network, in which links
    are never shared, lets both ranks of a host send 10 kB at once in 1 us."""
    cluster = small(**COSTS, world_size=8).cluster
    packets = Alltoalls(Resources(cluster, 8, np.random.default_rng(0)), Packet())
    for algorithm in ("pairwise", "bruck"):
        expected = law().seconds(algorithm, 1e4)
        assert packets.seconds(algorithm, 1e4) == pytest.approx(expected, rel=1e-6)
    shared = small(**FREE, cluster__host=TWO_A_HOST, world_size=4).cluster
    alone = Alltoalls(Resources(shared, 4, np.random.default_rng(0)), Analytic())
    assert alone._simulate([_Step(shift(alone, 2), 1e4)], 0.0) == pytest.approx(3 * US)
    assert packets.list_messages("bruck", 100.0) == [(8, 400.0)] * 3
    assert packets.list_messages("pairwise", 100.0) == [(8, 100.0)] * 7
    assert packets.list_messages("linear", 100.0) == []


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
    """Four blocks of 100 B a step: 2 + 1.4 us, 0.04 us of wire, packed and unpacked in the cache at
    22 GB/s; all eight are put into a buffer and taken out of it."""
    copies = (2 * 800 + 3 * 2 * 400) / IN_CACHE
    parts = law().parts("bruck", 100.0)
    assert parts.seconds == pytest.approx(3 * 3.44 * US + copies)
    assert (parts.host, parts.links) == pytest.approx((3 * 3.4 * US + copies, 3 * 0.04 * US))


def test_bruck_has_one_more_step_for_a_ninth_rank():
    """Its fourth step sends one block, of the rank 8 further: 2 + 1.1 us and 0.01 us of wire."""
    copies = (2 * 900 + 2 * (3 * 400 + 100)) / IN_CACHE
    expected = (3 * 3.44 + 3.11) * US + copies
    assert law(9).seconds("bruck", 100.0) == pytest.approx(expected)


def test_bruck_copies_slower_from_where_its_buffer_leaves_the_cache():
    """Eight blocks of 128 KiB fit 1 MiB; one byte more each, and copies run at 11 GB/s in place of
    22."""
    inside, outside = (law().parts("bruck", 2.0**17 + more) for more in (0.0, 1.0))
    copied = (2 * 8 + 3 * 2 * 4) * 2.0**17
    assert inside.host == pytest.approx(3 * (6 + 3) * US + copied / IN_CACHE)
    assert outside.host - inside.host == pytest.approx(copied / IN_CACHE, rel=1e-4)


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
    copies = (2 * 3000 + 2 * 2 * 1000) / IN_CACHE
    assert slow.seconds("bruck", 1000.0) == pytest.approx(28 * US + copies)


def test_a_slow_cable_delays_what_its_rank_sends_and_what_it_receives():
    """The cable of rank 0 at 0.1 GB/s: of three messages, each to the next rank, those to ranks 0
    and 1 take 2 + 10 + 2 us, and the other one 0.1 us of wire."""
    slow = law(3, cluster__faults={"switch>h0000": 0.01})
    ends = slow._simulate([_Step(shift(slow, 1), 1000.0)], 0.0)
    assert ends[0] == pytest.approx(np.array([14.0, 14.0, 4.1]) * US)


def test_all_at_once_the_longest_way_counts():
    """Ranks 0 and 1 share a host, and rank 2 is two cables of 3 us away from both."""
    law_of_pairs = law(3, cluster__host__gpus=2, cluster__topology__cable_latency="3 us")
    assert law_of_pairs.seconds("linear", 100.0) == pytest.approx((2 + 6 + 2 * 1.1) * US)


FREE = {
    "cluster__message_passing": {
        "latency": "2 us",
        "overhead": "0 s",
        "copy_limit": "0 B",
        "eager_limit": "20 kB",
    }
}
TWO_A_HOST = {**small().cluster.host.model_dump(), "gpus": 2, "nvlink_bandwidth": "50 GB/s"}
INSIDE = 1e4 / small().cluster.memory.bandwidth / US
"""us that 10 kB take the memory of a host."""


def drift(*steps):
    """When each of four ranks, two on each of two hosts, ends each step, us; L = 2 us is all that
    a message costs. A step is a distance and bytes."""
    cluster = small(**FREE, cluster__host=TWO_A_HOST, world_size=4).cluster
    ranks = Alltoalls(Resources(cluster, 4, np.random.default_rng(0)))
    return ranks._simulate([_Step(shift(ranks, far), n) for far, n in steps], 0.0) / US


def test_a_late_rank_delays_whom_it_sends_to_and_who_asks_it():
    """Each rank sends 10 kB to the next. 0 -> 1 and 2 -> 3 stay inside, so ranks 1 and 3 are early;
    1 -> 2 and 3 -> 0 take a cable 1 us. Then each sends to the next again.

    10 kB from the early ranks leave at once. 30 kB are asked for: they wait until ranks 2 and 0 are
    there, at 3 us, and their senders wait for them."""
    early = 2 + INSIDE
    ends = drift((1, 1e4), (1, 1e4))
    assert ends[0] == pytest.approx([3.0, early, 3.0, early])
    assert ends[1] == pytest.approx([early + 3, 5 + INSIDE, early + 3, 5 + INSIDE])
    assert drift((1, 1e4), (1, 3e4))[1] == pytest.approx(3.0 + 6 + 3)


def test_messages_of_ranks_that_drift_share_a_cable_while_both_travel():
    """By distance 2 both ranks of a host send over its cable: 20 kB in 2 us. After the step above,
    ranks 1 and 3 begin before 3 us and have the cable alone until the others come at 5 us."""
    assert drift((2, 1e4))[0] == pytest.approx(2.0 + 2.0)
    ends = drift((1, 1e4), (2, 1e4))
    seconds_alone = 5.0 - (2 + INSIDE + 2)
    early_end = 5.0 + 2 * (1.0 - seconds_alone)
    assert 0 < seconds_alone < 1
    assert ends[1] == pytest.approx(
        [early_end + seconds_alone, early_end, early_end + seconds_alone, early_end]
    )


@pytest.mark.parametrize("algorithm", ["linear", "pairwise"])
def test_some_distances_stand_for_all(monkeypatch, algorithm):
    """Of 7 distances on a switch that treats all alike, three or two say as much as seven."""
    whole = law().parts(algorithm, 1e4)
    for count in (3, 2):
        monkeypatch.setattr(lowering, "MAX_SHIFTS", count)
        monkeypatch.setattr(lowering, "MAX_MESSAGES", 8 * count)
        sampled = law()
        parts = sampled.parts(algorithm, 1e4)
        assert (parts.seconds, parts.host, parts.links) == pytest.approx(
            (whole.seconds, whole.host, whole.links)
        )
        # evenly spread, from the first to the last
        assert sampled._spread_distances(count) == {3: [1, 4, 7], 2: [1, 7]}[count]
        assert parts.sampling == pytest.approx(0.0, abs=1e-15)


def test_sampled_steps_say_by_how_much_they_may_err(monkeypatch):
    """Eight ranks on two hosts. Steps of distance 1 and 7 send one message over a cable, 1 us; 2
    and 6 two, 3 and 5 three, 4 four. All seven have 16 us of wire, and steps over 1, 4 and 7 of 1,
    4 and 1 us stand for 7/3 as many."""
    host = {**small().cluster.host.model_dump(), "gpus": 4, "nvlink_bandwidth": "50 GB/s"}
    monkeypatch.setattr(lowering, "MAX_MESSAGES", 8 * 3)
    sampled = law(cluster__host=host).parts("pairwise", 1e4)
    steps = np.array([10.0, 13.0, 10.0])  # 6 us of trips, 3 of the host, and the wire
    assert sampled.seconds == pytest.approx(steps.sum() * 7 / 3 * US, rel=0.05)
    assert sampled.sampling == pytest.approx(2 * 7 * steps.std() / math.sqrt(3) * US, rel=0.2)
    monkeypatch.setattr(lowering, "MAX_MESSAGES", 8 * 7)
    complete = law(cluster__host=host).parts("pairwise", 1e4)
    assert complete.sampling == 0.0
    assert abs(complete.seconds - sampled.seconds) <= sampled.sampling


def test_open_mpi_chooses_bruck_for_small_messages_of_twelve_ranks_or_more():
    assert law(12).resolve_algorithm("default", 199.0) == "bruck"
    assert (
        law(12).resolve_algorithm("default", 200.0)
        == law(8).resolve_algorithm("default", 1.0)
        == "linear"
    )
    assert law(1).parts("linear", 100.0) == AlltoallTimes(0.0, 0.0, 0.0, 0.0)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 16), st.floats(1.0, 1e7), st.sampled_from(ALGORITHMS))
def test_neither_hosts_nor_links_alone_take_longer_than_both(ranks, n, algorithm):
    parts = law(ranks).parts(algorithm, n)
    assert max(parts.host, parts.links) <= parts.seconds * (1 + 1e-9)
    assert parts.links * 0.99 <= law(ranks).parts(algorithm, 2 * n).links

"""What messages cost an exchange, by hand, on networks without latency whose cables carry 10 GB/s:
o = 1 us, copies at 1 GB/s, copies up to 1000 B, asked for from 5000 B on, L = 2 us.

A message of 100 B costs 2 us of trip and 1 + 0.1 us of its hosts, one of 10 kB three trips and
2 + 1 us. A barrier of 8 ranks is 3 latencies, one of 16 is 4. Law:
`simshuffle.job.lowering.alltoalls`.
"""

from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.network import Analytic, Fluid, Packet
from simshuffle.job.lowering.alltoalls import Alltoalls
from simshuffle.job.plan.resources import Resources
from simshuffle.studies.congestion.messages import message_seconds, seconds_with_messages
from simshuffle.studies.congestion.patterns import PATTERNS, Variant, variants
from simshuffle.studies.congestion.traffic import UsedFabric, build_exchange
from tests.small import small
from tests.strategies import fat_tree

US = 1e-6
COSTS = {
    "latency": "2 us",
    "overhead": "1 us",
    "copy_bandwidth": "1 GB/s",
    "copy_limit": "1000 B",
    "eager_limit": "5000 B",
}
NOTHING = {"latency": "0 s", "overhead": "0 s", "copy_limit": "0 B", "eager_limit": "1 TB"}
SILENT = {"link_bandwidth": "10 GB/s", "cable_latency": "0 s", "switch_latency": "0 s"}
STEPWISE = [name for name in PATTERNS if name != "all_to_all"]


class Case:
    """Ranks on hosts of their own that send ``nbytes`` (steps, ranks), a sample an iteration."""

    def __init__(self, nbytes: Any, costs: Any = COSTS, **values: Any) -> None:
        self.nbytes = np.asarray(nbytes, float)
        ranks = self.nbytes.shape[1]
        self.cluster = small(cluster__message_passing=costs, world_size=ranks, **values).cluster
        self.resources = Resources(self.cluster, ranks, np.random.default_rng(0))
        self.fabric = UsedFabric(self.resources)

    def both(self, variant: Variant, model: Any = None) -> tuple[float, float]:
        """s with what messages cost, and on the wire."""
        model = model or Fluid()
        rng, steps = np.random.default_rng(4), np.arange(len(self.nbytes))
        importance = np.random.default_rng(5).random(self.nbytes.shape[1])
        traffic = build_exchange(
            variant, self.fabric, self.nbytes, steps, rng=rng, importance=importance
        )
        wire = model.finish_times(self.fabric.links, traffic.flows)
        found = seconds_with_messages(self.fabric, traffic, self.cluster, model, wire.makespan)
        return found, wire.makespan

    def seconds(self, variant: Variant, model: Any = None) -> float:
        """s with what messages cost."""
        return self.both(variant, model)[0]


def star(steps: int, nbytes: float, ranks: int = 8, **values: Any) -> Case:
    return Case(np.full((steps, ranks), nbytes), **values)


def tapered(steps: int, nbytes: float) -> Case:
    """Four hosts on each of four leaf switches, with half as much bandwidth above them."""
    tree = fat_tree(2, 4, **SILENT, taper=2).model_dump(mode="json")
    return star(steps, nbytes, 16, cluster__topology=tree)


PAIR = Variant("pairing_random", "sample")
GATED = Variant("pairing_random", "sample", barrier=True)
NEAR = Variant("pairing_topology", "sample")
ALL = Variant("all_to_all")


# ---------------------------------------------------------------------------------------- in steps


@pytest.mark.parametrize("model", [Fluid(), Analytic()])
def test_each_message_of_a_chain_is_a_trip_its_hosts_work_and_its_bytes(model):
    assert star(4, 100.0).seconds(PAIR, model) == pytest.approx(4 * (2 + 1.1 + 0.01) * US)
    assert star(4, 2000.0).seconds(PAIR, model) == pytest.approx(4 * (2 + 2 + 0.2) * US)


def test_what_is_asked_for_first_takes_three_trips_and_another_overhead():
    assert star(4, 1e4).seconds(PAIR) == pytest.approx(4 * (3 * 2 + 3 + 1) * US)


def test_a_request_and_its_answer_cross_the_cables_too():
    """Two cables of 1 us: three times for the message, once with its bytes."""
    case = star(4, 1e4, cluster__topology__cable_latency="1 us")
    assert case.both(PAIR) == pytest.approx((4 * (3 * 4 + 3 + 1) * US, 4 * 3 * US))


def test_barriers_take_the_trips_of_their_own_messages():
    """Three of them between four messages, each log2 8 = 3 latencies."""
    assert star(4, 100.0).seconds(GATED) == pytest.approx((4 * 3.11 + 3 * 6) * US)


def test_a_rank_with_larger_samples_is_behind_by_what_they_cost():
    """Ranks of 100 B and of 1000 B: copies of 0.1 and 1 us; the slowest decides, in each step if
    there are barriers."""
    nbytes = np.full((2, 8), 100.0)
    nbytes[0, 3] = nbytes[1, 5] = 1000.0
    small_one, large_one = 2 + 1.1 + 0.01, 2 + 2 + 0.1
    assert Case(nbytes).seconds(PAIR) == pytest.approx((small_one + large_one) * US)
    assert Case(nbytes).seconds(GATED) == pytest.approx((2 * large_one + 6) * US)


@pytest.mark.parametrize("pattern", STEPWISE)
def test_with_barriers_equal_costs_come_on_top_of_any_contention(pattern):
    """All of a step begin together, only later: so the wire is what it was."""
    nbytes = np.random.default_rng(1).lognormal(12.0, 0.4, (5, 16))
    assert nbytes.min() > 5000.0
    tree = fat_tree(2, 4, **SILENT, taper=2).model_dump(mode="json")
    found, wire = Case(nbytes, cluster__topology=tree).both(Variant(pattern, "sample", True))
    assert found - wire == pytest.approx((5 * (6 + 3) + 4 * 4 * 2) * US, rel=1e-9)


def test_packets_wait_as_flows_do():
    """Pairs meet nobody, so the packets of a message are as long under way as before."""
    found, wire = star(4, 1e4).both(GATED, Packet())
    assert found - wire == pytest.approx((4 * (6 + 3) + 3 * 6) * US, rel=1e-6)
    found, wire = star(4, 1e4).both(PAIR, Packet())
    assert found - wire == pytest.approx(4 * 9 * US, rel=1e-6)


def test_shifts_take_as_long_as_the_pairwise_algorithm_of_all_to_alls():
    """To every other rank once, on a network where nothing collides."""
    for nbytes in (100.0, 2000.0, 1e4):
        case = star(7, nbytes)
        law = Alltoalls(case.resources).seconds("pairwise", nbytes)
        assert case.seconds(Variant("linear_shift", "sample")) == pytest.approx(law)


# ---------------------------------------------------------------------------------------- at once


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (100.0, 2 + 7 * 1.1),  # posting; 0.07 us of wire meanwhile
        (4900.0, 2 + 7 * 2.0),  # posting; 3.43 us of wire meanwhile
        (1e4, 6 + 7 * 3.0 + 7.0),  # three trips, and the wire when all are posted
    ],
)
def test_all_to_all_posts_while_small_messages_travel_and_before_large_ones(nbytes, expected):
    case = star(7, nbytes)  # seven samples: one for each other rank
    assert case.seconds(ALL) == pytest.approx(expected * US)
    assert case.seconds(ALL) == pytest.approx(Alltoalls(case.resources).seconds("linear", nbytes))


def test_all_to_all_waits_for_slow_links_where_they_are_slower_than_its_posts():
    """7 x 2000 B over 0.1 GB/s are 140 us; 7 x 2 us of posting."""
    slow = star(7, 2000.0, cluster__topology__link_bandwidth="0.1 GB/s")
    assert slow.seconds(ALL) == pytest.approx((2 + 140) * US)


# ---------------------------------------------------------------------------------- who is faster


def test_pairs_lose_with_small_samples_and_win_with_large_ones_where_links_decide():
    """15 samples of each of 16 ranks. Pairs on a leaf switch send over their own cables alone; of
    an all-to-all 12 of 15 go up, four hosts over two cables, which takes 1.6 times as long.

    100 B: 2 + 15 x 1.1 us at once, 15 x 3.11 us in pairs, and 14 x 8 us more with barriers; on the
    wire pairs are faster. 1 MB: 6 + 45 + 2400 us at once, 15 x 109 us in pairs."""
    few = tapered(15, 100.0)
    at_once, pairs, gated = (
        few.seconds(of) for of in (ALL, NEAR, Variant("pairing_topology", "sample", True))
    )
    assert at_once == pytest.approx(18.5 * US)
    assert pairs == pytest.approx(46.65 * US)
    assert gated == pytest.approx((46.65 + 112) * US)
    assert few.both(ALL)[1] / few.both(NEAR)[1] == pytest.approx(1.6)
    many = tapered(15, 1e6)
    assert many.seconds(ALL) == pytest.approx((6 + 45 + 2400) * US)
    assert many.seconds(NEAR) == pytest.approx(15 * 109 * US)


# ------------------------------------------------------------------------------------- no cost


@pytest.mark.parametrize("variant", variants(PATTERNS), ids=str)
@pytest.mark.parametrize("model", [Fluid(), Analytic(), Packet()], ids=lambda of: of.kind)
def test_messages_that_cost_nothing_leave_the_wire_to_the_last_bit(variant, model):
    nbytes = np.random.default_rng(2).lognormal(9.0, 0.4, (3, 8))
    values = {"cluster__topology__cable_latency": "26 ns"}
    found, wire = Case(nbytes, NOTHING, **values).both(variant, model)
    assert found == wire
    assert Case(nbytes, COSTS, **values).both(variant, model)[1] == wire


def test_the_cost_of_each_message_is_that_of_its_size():
    case = Case([[100.0, 2000.0, 1e4, 100.0]])
    traffic = build_exchange(
        Variant("linear_shift"),
        case.fabric,
        case.nbytes,
        np.zeros(1, int),
        rng=np.random.default_rng(0),
        importance=np.zeros(4),
    )
    found = message_seconds(case.fabric.links, traffic, case.cluster.message_passing)
    assert found == pytest.approx(np.array([3.1, 4.0, 9.0, 3.1]) * US)

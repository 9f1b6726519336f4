"""ECMP against the laws of balls in bins: how full the fullest link is, how many stay unused, and
what is lost where switches hash alike."""

from collections.abc import Sequence
from fractions import Fraction
from math import comb, factorial

import numpy as np
import pytest
from numpy.typing import NDArray

from simshuffle.fabric.routing import Ecmp, Fabric
from simshuffle.fabric.routing.ecmp import max_choices_on_route
from simshuffle.fabric.topology.base import Interconnect
from tests.contracts.test_routing import Net
from tests.strategies import fat_tree, star, switch_tree

Longs = NDArray[np.int64]
SEEDS = 2500
CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46}
"""Of chi-square by degrees of freedom: 0.1 % of fair draws are beyond it."""


def up_counts(rule: Ecmp, fabric: Fabric, src: Sequence[int], dst: Sequence[int]) -> Longs:
    """(seeds, up-links) flows on each link from the first leaf switch up."""
    tiers = np.array(fabric.links.tiers)
    up = np.flatnonzero(tiers == "leaf>spine")
    up = up[[fabric.links.names[link].startswith("leaf.0>") for link in up]]
    ends = np.array(src, np.int32), np.array(dst, np.int32)
    out = np.zeros((SEEDS, len(up)), np.int64)
    for seed in range(SEEDS):
        routes = rule.router(fabric, seed).routes(*ends)
        out[seed] = np.bincount(routes[routes >= 0], minlength=len(tiers))[up]
    return out


def at_most(flows: int, links: int, most: int) -> Fraction:
    """Probability that no link has more than ``most`` of ``flows`` flows: n! / k^n times the
    coefficient of x^n in (sum over i <= m of x^i / i!)^k."""
    row = [Fraction(1)] + [Fraction(0)] * flows
    for _ in range(links):
        row = [
            sum((row[n - i] / factorial(i) for i in range(min(n, most) + 1)), start=Fraction(0))
            for n in range(flows + 1)
        ]
    return row[flows] * factorial(flows) / Fraction(links) ** flows


def test_law_of_the_fullest_link_by_hand():
    """Two flows on two links are apart in half of all cases; three on three in 3!/27."""
    assert at_most(2, 2, 1) == Fraction(1, 2)
    assert at_most(3, 3, 1) == Fraction(6, 27)
    assert at_most(3, 3, 2) == 1 - Fraction(3, 27)


@pytest.mark.parametrize(("flows", "links"), [(2, 2), (4, 4), (8, 4), (8, 8), (6, 3)])
def test_the_fullest_link_has_as_many_flows_as_the_fullest_of_bins(flows, links):
    """Host i of the first leaf switch sends to host i of the second one. Frequencies over seeds
    against the exact law, by chi-square, values with fewer than five expected draws together."""
    topology = fat_tree(2, flows, taper=flows / links)
    hosts = range(flows)
    counts = up_counts(Ecmp(), Fabric(topology.sketch()), hosts, [i + flows for i in hosts])
    assert (counts.sum(axis=1) == flows).all() and counts.shape[1] == links
    seen = np.bincount(counts.max(axis=1), minlength=flows + 1)
    law = np.diff([float(at_most(flows, links, most)) for most in range(-1, flows + 1)])
    expected = SEEDS * law[np.r_[0 : flows + 1]]
    rare = expected < 5
    seen_of = np.append(seen[~rare], seen[rare].sum())
    expected_of = np.append(expected[~rare], expected[rare].sum())
    if expected_of[-1] < 5:  # the rest is too rare by itself: to the most frequent value
        top = int(expected_of[:-1].argmax())
        seen_of[top] += seen_of[-1]
        expected_of[top] += expected_of[-1]
        seen_of, expected_of = seen_of[:-1], expected_of[:-1]
    chi_square = float(((seen_of - expected_of) ** 2 / expected_of).sum())
    assert chi_square < CRITICAL[len(expected_of) - 1]
    unused(counts, flows, links)


def unused(counts: Longs, flows: int, links: int) -> None:
    """k (1 - 1/k)^n links are unused in the mean; five standard errors of the exact variance."""
    none, two = (1 - 1 / links) ** flows, max(0.0, 1 - 2 / links) ** flows
    mean = links * none
    variance = links * (links - 1) * two + mean - mean**2
    found = (counts == 0).sum(axis=1).mean()
    assert abs(found - mean) < 5 * np.sqrt(variance / SEEDS)


def used_in_the_mean(links: int, connections: int, ports: int) -> float:
    """Links that the connections of one pair use: of c connections D have different source ports,
    with surjections P(D = d) = C(p, d) d! S(c, d) / p^c, and d ports use k (1 - (1 - 1/k)^d)."""
    total = 0.0
    for distinct in range(1, min(ports, connections) + 1):
        surjections = sum(
            (-1) ** i * comb(distinct, i) * (distinct - i) ** connections
            for i in range(distinct + 1)
        )
        probability = comb(ports, distinct) * surjections / ports**connections
        total += probability * links * (1 - (1 - 1 / links) ** distinct)
    return total


@pytest.mark.parametrize(
    ("queue_pairs", "ports"), [(1, 16384), (4, 16384), (16, 16384), (4, 2), (16, 4), (8, 1)]
)
def test_queue_pairs_and_ports_spread_the_messages_of_a_pair(queue_pairs, ports):
    """32 messages from one host to another over 4 links: as many ways as different ports of its
    connections reach. Each connection takes every ``queue_pairs``-th message."""
    rule = Ecmp(queue_pairs=queue_pairs, ports=ports)
    fabric = Fabric(fat_tree(2, 4).sketch())
    counts = up_counts(rule, fabric, [0] * 32, [4] * 32)
    assert (counts % (32 // queue_pairs) == 0).all()
    used = (counts > 0).sum(axis=1)
    mean = used_in_the_mean(4, queue_pairs, ports)
    assert abs(used.mean() - mean) <= 5 * np.sqrt(used.var() / SEEDS) + 1e-9
    if min(queue_pairs, ports) == 1:
        assert (used == 1).all() and mean == pytest.approx(1)
    routes = rule.router(fabric, 7).routes(np.zeros(32, np.int32), np.full(32, 4, np.int32))
    assert np.array_equal(routes[:-queue_pairs], routes[queue_pairs:])


# ------------------------------------------------------------------------------------ polarisation


def used_above(topology: Interconnect, rule: Ecmp, seed: int) -> dict[str, float]:
    """The share of the links of each tier that all-to-all uses."""
    graph = topology.graph()
    net = Net(graph, rule.router(Fabric(graph), seed))
    load = net.load(*net.pairs())
    return {
        tier: float((load[net.of_tier(tier)] > 0).mean())
        for tier in ("leaf>level2", "level2>spine")
    }


@pytest.mark.parametrize("arity", [2, 3, 4])
def test_switches_that_hash_alike_use_one_link_in_k_of_the_second_level(arity):
    """On k-ary trees of three levels. A leaf switch sends a header h by link h mod k, so a switch
    of the second level that all leaf switches reach by their link c gets only headers with h mod k
    = c, and sends them all by its own link c."""
    for seed in range(5):
        shares = used_above(fat_tree(3, arity), Ecmp(salt="none"), seed)
        assert shares == {"leaf>level2": 1.0, "level2>spine": pytest.approx(1 / arity)}
        shares = used_above(fat_tree(3, arity), Ecmp(), seed)
        assert shares["level2>spine"] > 1 / arity
    if arity > 2:  # with few flows a link may stay unused by chance
        assert used_above(fat_tree(3, arity), Ecmp(), 0)["level2>spine"] == 1.0


@pytest.mark.parametrize(
    ("topology", "choices"),
    [
        (star(3), 0),
        (fat_tree(1, 5), 0),
        (fat_tree(2, 3), 1),
        (fat_tree(3, 3), 2),
        (fat_tree(4, 2), 3),
        (switch_tree(8, 8, rails=2), 2),  # parallel links, up and down
    ],
    ids=["star", "1 level", "2 levels", "3 levels", "4 levels", "parallel links"],
)
def test_polarisation_is_warned_of_where_a_way_has_two_choices(topology, choices):
    fabric = Fabric(topology.sketch())
    assert max_choices_on_route(fabric) == choices
    assert Ecmp().warnings(fabric) == []
    found = Ecmp(salt="none").warnings(fabric)
    assert [problem.path for problem in found] == ["cluster.routing.salt"] * (choices > 1)

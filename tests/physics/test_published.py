"""What others have published about networks, computed with the fluid network itself, and with the
packet network where it must agree.

The fluid gives a permutation of equal messages that start together exactly these times. Let c be
the largest number of flows on a link, and B / C the time of one message alone. The rate of a flow
is never below C / c, since its bottleneck has at most c flows and none on it is faster; and the
link with c flows needs c B / C. So the last one ends at c B / C. By the same reason a flow whose
route has at most m flows on a link ends by m B / C: 1 / m, the share that effective bisection
bandwidth is made of, is the least of what it may get.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest

from simshuffle.fabric.network import Flows, Fluid, Links, Packet
from simshuffle.fabric.routing import ForwardingTable
from tests.strategies import fat_tree

LINE_RATE = 12.5e9  # bytes/s
PER_HOST = 2.0**26  # bytes
ALONE = PER_HOST / LINE_RATE  # s


class Tree:
    """A two-level tree: ``arity`` hosts on each of ``leaves`` switches, each linked to ``spines``
    spines."""

    def __init__(self, arity, leaves, spines=None):
        self.arity, self.hosts, self.spines = arity, arity * leaves, spines or arity
        self.up = 2 * self.hosts
        self.down = self.up + leaves * self.spines
        count = self.down + leaves * self.spines
        self.links = Links(np.full(count, LINE_RATE), np.zeros(count))

    def routes(self, src, dst, spine=None):
        """Through spine destination mod K, or a given one for each flow."""
        spine = dst % self.spines if spine is None else spine
        a, b = src // self.arity, dst // self.arity
        far = a != b
        out = np.full((len(src), 4), -1, np.int32)
        out[:, 0] = src
        out[~far, 1] = self.hosts + dst[~far]
        out[far, 1], out[far, 2] = (
            (self.up + a * self.spines + spine)[far],
            (self.down + b * self.spines + spine)[far],
        )
        out[far, 3] = self.hosts + dst[far]
        return out

    def congestion(self, routes):
        """(flows,) the largest number of flows on a link of each route."""
        load = np.append(np.bincount(routes[routes >= 0], minlength=len(self.links)), 0)
        return load[routes].max(axis=1)


def permutation(hosts, rng):
    """Source and destination of a random permutation without the hosts that it leaves where they
    are."""
    dst = rng.permutation(hosts)
    src = np.arange(hosts)
    return src[src != dst], dst[src != dst]


def bisection(hosts, rng, both_ways):
    """A random half of the hosts sends to the other half."""
    a, b = rng.permutation(hosts).reshape(2, -1)
    return (np.concatenate([a, b]), np.concatenate([b, a])) if both_ways else (a, b)


# ----------------------------------------------------------------------------------- random traffic


RANDOM, BY_DESTINATION = "random static", "D-mod-K"


@pytest.mark.parametrize(
    ("arity", "leaves", "routing", "one_way", "both_ways", "permuted"),
    [
        (18, 36, RANDOM, 0.681, 0.511, 0.512),
        (12, 24, RANDOM, 0.694, 0.527, 0.530),
        (18, 18, RANDOM, 0.699, 0.533, 0.535),
        (20, 40, RANDOM, 0.681, 0.508, None),
        (12, 11, RANDOM, 0.724, 0.564, None),
        (20, 40, BY_DESTINATION, 0.806, 0.659, None),
        (12, 11, BY_DESTINATION, 0.839, 0.711, None),
    ],
)
def test_share_of_random_traffic_by_routing(arity, leaves, routing, one_way, both_ways, permuted):
    """Effective bisection bandwidth (Hoefler, Schneider & Lumsdaine, Cluster 2008): mean over flows
    of 1 / most flows on a link.

    They found 55 to 60 % on InfiniBand fat trees of full bisection, between random static and
    destination-based routes here. The expected values are of an independent Monte-Carlo;
    tests/contracts/test_routing.py has those of D-mod-K for the package's own routes.
    """
    tree, rng = Tree(arity, leaves), np.random.default_rng(2008)
    shares = np.zeros((200, 3))
    for row in shares:
        for k, (src, dst) in enumerate(
            (
                bisection(tree.hosts, rng, False),
                bisection(tree.hosts, rng, True),
                permutation(tree.hosts, rng),
            )
        ):
            spine = rng.integers(0, tree.spines, len(src)) if routing is RANDOM else None
            row[k] = (1.0 / tree.congestion(tree.routes(src, dst, spine))).mean()
    expected = [one_way, both_ways] if permuted is None else [one_way, both_ways, permuted]
    assert shares.mean(axis=0)[: len(expected)] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("routing", "most", "share"), [(BY_DESTINATION, 4.8, 0.664), (RANDOM, 5.4, 0.512)]
)
def test_a_random_permutation_takes_as_long_as_its_most_crowded_link(routing, most, share):
    """648 hosts: 4.8 and 5.4 times as long as at line rate, on average over permutations."""
    tree, rng = Tree(18, 36), np.random.default_rng(7)
    times, least, means = [], [], []
    for _ in range(40):
        src, dst = permutation(tree.hosts, rng)
        routes = tree.routes(
            src, dst, rng.integers(0, tree.spines, len(src)) if routing is RANDOM else None
        )
        congestion = tree.congestion(routes)
        found = Fluid().finish_times(
            tree.links, Flows(routes, np.full(len(src), PER_HOST), np.zeros(len(src)))
        )
        assert found.makespan == pytest.approx(congestion.max() * ALONE, rel=1e-9)
        assert (found.finish <= congestion * ALONE * (1 + 1e-9)).all()
        # every way down has one flow, so only the link up is shared: there is nothing to gain
        # elsewhere
        if routing is BY_DESTINATION:
            np.testing.assert_allclose(found.finish, congestion * ALONE, rtol=1e-9)
        times.append(found.makespan / ALONE)
        least.append((1 / congestion).mean())
        means.append((ALONE / found.finish).mean())
    assert np.mean(times) == pytest.approx(most, abs=0.25)
    assert np.mean(least) == pytest.approx(share, abs=0.01)
    gain = np.mean(means) / np.mean(least)  # what some cannot use, others get
    assert gain == pytest.approx(1.0, rel=1e-9) if routing is BY_DESTINATION else gain > 1.01


def test_measured_bisection_bandwidth_lies_between_the_two_routings():
    """55 to 60 % on InfiniBand: above random static routes, below destination-based ones that are
    even."""
    tree, rng = Tree(18, 36), np.random.default_rng(1)
    found = {}
    for routing in (RANDOM, BY_DESTINATION):
        means = []
        for _ in range(20):
            src, dst = bisection(tree.hosts, rng, True)
            spine = rng.integers(0, tree.spines, len(src)) if routing is RANDOM else None
            means.append((1 / tree.congestion(tree.routes(src, dst, spine))).mean())
        found[routing] = np.mean(means)
    assert found[RANDOM] < 0.55
    assert found[BY_DESTINATION] > 0.60


# ---------------------------------------------------------------------------------- regular traffic


def package_tree(levels, arity, **more):
    """Links without latency, and all routes, of the package's own fat tree."""
    topology = fat_tree(levels, arity, **more)
    table = ForwardingTable(topology.graph())
    return (
        Links(table.links.capacity, np.zeros(len(table.links.capacity))),
        table,
        topology.num_hosts,
    )


def all_pairs(hosts):
    src, dst = (each.ravel() for each in np.divmod(np.arange(hosts * hosts, dtype=np.int32), hosts))
    return src[src != dst], dst[src != dst]


@pytest.mark.parametrize(
    ("levels", "arity", "more"),
    [(2, 8, {}), (3, 4, {}), (4, 2, {}), (2, 6, {"hosts": 30})],
    ids=["8x8", "4x4x4", "2x2x2x2", "6x5"],
)
def test_every_shift_runs_at_line_rate(levels, arity, more):
    """Shift permutations do not contend under D-mod-K (Zahavi, Journal of Parallel and Distributed
    Computing 72, 2012)."""
    links, table, hosts = package_tree(levels, arity, **more)
    src, nbytes = np.arange(hosts, dtype=np.int32), 2e6
    for shift in range(1, hosts, 3):
        flows = Flows(
            table.routes(src, (src + shift) % hosts), np.full(hosts, nbytes), np.zeros(hosts)
        )
        assert Fluid().finish_times(links, flows).finish == pytest.approx(
            [nbytes / LINE_RATE] * hosts, rel=1e-12
        )
        assert Packet().finish_times(links, flows).finish == pytest.approx(
            [nbytes / LINE_RATE] * hosts, rel=0.03
        )


@pytest.mark.parametrize(("levels", "arity"), [(2, 8), (3, 4), (4, 2)])
def test_an_all_to_all_loads_a_level_evenly_and_takes_its_bound(levels, arity):
    """All pairs on full bisection: a link above s hosts carries B (N - s), and the hosts' own
    links, the fullest, are never idle."""
    links, table, hosts = package_tree(levels, arity)
    src, dst = all_pairs(hosts)
    flows = Flows(table.routes(src, dst), np.full(len(src), 1e6), np.zeros(len(src)))
    carried, tiers = flows.link_bytes(links), np.array(table.links.tiers)
    below = {"host": 1, "leaf": arity} | {
        f"level{level}": arity**level for level in range(2, levels)
    }
    for tier in set(tiers.tolist()):
        subtree = min(below.get(end, hosts) for end in tier.split(">"))
        assert set(carried[tiers == tier].tolist()) == {1e6 * (hosts - subtree)}
    assert Fluid().finish_times(links, flows).makespan == pytest.approx(
        (hosts - 1) * 1e6 / LINE_RATE, rel=1e-12
    )


# ---------------------------------------------------------------------------------------- 512 hosts


FULL, TAPERED = (16, 32, 16), (32, 16, 11)  # hosts of a leaf switch, leaf switches, spines


@pytest.mark.parametrize(
    ("shape", "expected"), [(FULL, 5.37e-3), (TAPERED, 15.13e-3)], ids=["full", "tapered"]
)
def test_an_all_to_all_of_512_hosts(shape, expected):
    """64 MiB a host at 12.5 GB/s, as SimGrid 4.1 says.

    By hand: at line rate 5.369 ms. 11 spines for 32 hosts: a spine leads to 2 or 3 hosts of a leaf
    switch, so the links that lead to 3 carry 3 * 480 of 511 parts of 64 MiB each.
    """
    tree = Tree(*shape)
    src, dst = all_pairs(tree.hosts)
    flows = Flows(tree.routes(src, dst), np.full(len(src), PER_HOST / 511), np.zeros(len(src)))
    found = Fluid().finish_times(tree.links, flows).makespan
    assert found == pytest.approx(expected, abs=5e-6)
    assert found == pytest.approx(flows.link_bytes(tree.links).max() / LINE_RATE, rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "least", "median", "most"),
    [(FULL, 21.5, 26.8, 26.8), (TAPERED, 32.2, 37.6, 43.0)],
    ids=["full", "tapered"],
)
def test_a_random_matching_of_512_hosts(shape, least, median, most):
    """Each host exchanges 64 MiB with one other: 4 to 5 times as long as at line rate, even with
    full bisection; 6 to 8 times if tapered.

    So SimGrid 4.1 on 20 random matchings: least, median and most (ms). About one in ten of all
    matchings takes longer.
    """
    tree = Tree(*shape)
    times = []
    for seed in range(100):
        src, dst = bisection(tree.hosts, np.random.default_rng(seed), True)
        flows = Flows(tree.routes(src, dst), np.full(len(src), PER_HOST), np.zeros(len(src)))
        times.append(Fluid().finish_times(tree.links, flows).makespan * 1e3)
    steps = np.array(times) / (ALONE * 1e3)
    np.testing.assert_allclose(steps, np.round(steps), rtol=1e-9)
    inside = (np.array(times) > least - 0.1) & (np.array(times) < most + 0.1)
    assert inside.mean() > 0.8
    # the largest load of a link is a whole number of messages
    assert np.median(times) == pytest.approx(median, abs=ALONE * 1e3 + 0.1)


# ------------------------------------------------------------------------------------------- incast


def test_the_figure_of_an_incast_shows_what_it_says():
    """A flow beside an incast keeps its half of a link by fluid, and gets no more than a sender of
    the incast by packets."""
    figure = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "figures" / "incast.py"))
    senders = [0, 1, 2, 3, 8, 24]
    rates = figure["victim_rates"](senders)
    assert rates["fluid"] == pytest.approx([LINE_RATE / 2] * len(senders), rel=0.002)
    assert rates["packet"] == pytest.approx([LINE_RATE / max(n, 2) for n in senders], rel=0.03)

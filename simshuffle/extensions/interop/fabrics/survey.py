"""What a network is made of, how far its hosts are from one another and how many ways there are
between them; patterns of who sends to whom; and what ``simshuffle machine show`` prints of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import refuse
from simshuffle.fabric.routing import Fabric
from simshuffle.fabric.routing.router import Router, link_loads, uniform_loads
from simshuffle.fabric.topology.cabling import FAR
from simshuffle.spec.arrays import Ints, Ints32, Ints64
from simshuffle.spec.late import csgraph, sparse
from simshuffle.spec.units import Dimension, readable

_WAYS_COUNTED, _FEWEST = 1 << 25, 8
"""Links times leaf switches to which ways are counted, at most, and these switches at least: a few
seconds, and less than 1 GB."""
MANY_PORTS = 4096
"""Of hosts, up to which a message between any two is the pattern that is shown unless one is
named: its loads are those of every pair."""
_PAIRS_PER_S, _LONGEST = 3.6e6, 600.0
"""Pairs of ports whose messages are counted in a second (10,752 ports, adaptive routing, in 32 s on
a core of an AMD EPYC), and seconds beyond which a pattern is refused."""


class Survey:
    """What can be said of a network without sending anything.

    Args:
        fabric: the network.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    @cached_property
    def nodes(self) -> dict[str, int]:
        """How many nodes there are, by tier: hosts first, then switches from the hosts up."""
        cabling = self.fabric.cabling
        count = Counter(cabling.tiers)
        height = dict(zip(cabling.tiers, cabling.depth, strict=True))
        return {tier: count[tier] for tier in sorted(count, key=lambda tier: height[tier])}

    @cached_property
    def adapters(self) -> int:
        """Links between hosts, or whatever is no switch, and switches."""
        return len(self.fabric.switch_of_port)

    @cached_property
    def cables(self) -> dict[tuple[str, ...], Counter[float]]:
        """How many cables of each bandwidth (bytes/s in each direction) join two tiers, that nearer
        to the hosts first."""
        cabling = self.fabric.cabling
        tiers = list(self.nodes)
        rank = {tier: i for i, tier in enumerate(tiers)}
        low, high = np.sort(np.array([rank[of] for of in cabling.tiers])[cabling.ends], axis=1).T
        rates, rate = np.unique(cabling.bandwidth, return_inverse=True)
        # one number for each two tiers and bandwidth, which is taken apart again below
        number = (low * len(tiers) + high) * len(rates) + rate
        known, first, counts = np.unique(number, return_index=True, return_counts=True)
        found: dict[tuple[str, ...], Counter[float]] = {}
        for of in np.argsort(first).tolist():
            pair, which = divmod(int(known[of]), len(rates))
            names = (tiers[pair // len(tiers)], tiers[pair % len(tiers)])
            found.setdefault(names, Counter())[float(rates[which])] = int(counts[of])
        return {pair: found[pair] for pair in sorted(found, key=lambda of: [rank[t] for t in of])}

    @cached_property
    def sample(self) -> Ints32:
        """Leaf switches to which distances and ways are counted, from all others: all of them, or
        as many as keep that short, evenly spaced."""
        most = max(_FEWEST, _WAYS_COUNTED // max(len(self.fabric.switches.arc_src), 1))
        if len(self.leaves) <= most:
            return self.leaves
        places = np.linspace(0, len(self.leaves) - 1, most).astype(np.int64)
        return np.asarray(self.leaves[places])

    @cached_property
    def _steps(self) -> NDArray[np.int16]:
        """(switches, sample) steps to the leaf switches that are looked at."""
        return np.asarray(self.fabric.switches.steps(self.sample))

    @cached_property
    def _host_ports(self) -> Ints32:
        return np.array([port for ports in _of_hosts(self.fabric) for port in ports], np.int32)

    @cached_property
    def leaves(self) -> Ints32:
        """The switches with ports of hosts, ascending."""
        return np.unique(self.fabric.switch_of_port[self._host_ports])

    @cached_property
    def diameter(self) -> int:
        """Links on the longest of the shortest ways between two hosts, those of the hosts
        included."""
        steps = self._steps[self.leaves]
        return 2 + int(steps[steps < FAR].max())

    @cached_property
    def mean_distance(self) -> float:
        """Links on the shortest way, those of the hosts included; mean over all pairs of ports of
        hosts, a port and itself left out."""
        ports = np.bincount(
            np.searchsorted(self.leaves, self.fabric.switch_of_port[self._host_ports])
        )
        of_sample = ports[np.searchsorted(self.leaves, self.sample)]
        # a port and itself is no pair, and no step from its switch to itself would count it
        pairs = float((ports.sum() - 1) * of_sample.sum())
        return 2.0 + float(ports @ self._steps[self.leaves] @ of_sample) / max(pairs, 1.0)

    @cached_property
    def bisection(self) -> float:
        """Bytes/s in one direction that get from the first half of the hosts, in their order, to
        the second at most (the smallest cut between the two halves)."""
        cabling = self.fabric.cabling
        hosts = cabling.nodes_of_kind("host")
        half = len(hosts) // 2
        count = len(cabling.names)
        unit = float(cabling.bandwidth.min()) / 1000.0  # capacities must be whole numbers
        weight = np.maximum(np.rint(cabling.bandwidth / unit), 1).astype(np.int64)
        a, b = cabling.ends.T.astype(np.int64)
        # two nodes more: one before the first half, one behind the second
        first = np.concatenate([np.full(half, count), hosts[half:]])
        second = np.concatenate([hosts[:half], np.full(len(hosts) - half, count + 1)])
        most = int(weight.sum())
        rows = np.concatenate([a, b, first])
        columns = np.concatenate([b, a, second])
        capacity = np.concatenate([weight, weight, np.full(len(first), most)])
        scale = max(1, -(-most // (2**31 - 1)))
        matrix = sparse.coo_matrix(
            (np.maximum(capacity // scale, 1), (rows, columns)), (count + 2, count + 2)
        ).tocsr()
        flow = csgraph.maximum_flow(matrix.astype(np.int32), count, count + 1).flow_value
        return float(flow) * scale * unit

    @cached_property
    def shortest_ways(self) -> tuple[int, float, int]:
        """How many shortest ways lead from one leaf switch to another: least, mean and most over
        all pairs."""
        of, steps = self.fabric.switches, self._steps
        ways = np.zeros(steps.shape)
        ways[self.sample, np.arange(len(self.sample))] = 1.0
        links = self.fabric.links_per_arc * of.is_transit[of.arc_dst]
        onward = sparse.coo_matrix(
            (links, (of.arc_src, of.arc_dst)), (len(ways), len(ways))
        ).tocsr()
        for number in range(1, int(steps[steps < FAR].max(initial=0)) + 1):
            before = np.where(steps == number - 1, ways, 0.0)
            np.copyto(ways, onward @ before, where=steps == number)
        apart = ways[self.leaves][self.leaves[:, None] != self.sample]
        if not len(apart):
            return 1, 1.0, 1
        return int(apart.min()), float(apart.mean()), int(apart.max())


def host_ports(fabric: Fabric) -> Ints32:
    """(hosts, rails) the ports of every host, as many as the host with the fewest has."""
    each = _of_hosts(fabric)
    rails = min(map(len, each))
    return np.array([ports[:rails] for ports in each], np.int32)


def _of_hosts(fabric: Fabric) -> list[list[int]]:
    names = fabric.cabling.names
    return [fabric.endpoints(names[host]) for host in fabric.cabling.nodes_of_kind("host").tolist()]


def _pairs(hosts: int, rng: np.random.Generator) -> Ints64:
    order = rng.permutation(hosts)
    even = hosts - hosts % 2
    out = np.arange(hosts)
    out[order[0:even:2]], out[order[1:even:2]] = order[1:even:2], order[0:even:2]
    return out


PARTNERS: dict[str, Callable[[int, np.random.Generator], Ints64]] = {
    "random_permutation": lambda hosts, rng: rng.permutation(hosts),
    "random_pairs": _pairs,
    "half_shift": lambda hosts, _: (np.arange(hosts) + hosts // 2) % hosts,
    "next": lambda hosts, _: (np.arange(hosts) + 1) % hosts,
}
"""To which host each one sends: another for everyone, in pairs, the one half-way around the list of
hosts, the next one."""
ALL_TO_ALL = "all_to_all"
PATTERNS = (ALL_TO_ALL, *PARTNERS)


def pattern_loads(router: Router, pattern: str, rng: np.random.Generator) -> Ints64:
    """(links,) messages of a pattern on each link: every port of every host sends one to the port
    of the same rail of its partner; in ``all_to_all`` one to every other port."""
    ports = host_ports(router.fabric)
    if pattern == ALL_TO_ALL:
        return uniform_loads(router, ports.ravel())
    partner = PARTNERS[pattern](len(ports), rng)
    away = np.flatnonzero(partner != np.arange(len(ports)))
    return link_loads(router, ports[away].ravel(), ports[partner[away]].ravel())


def usual_pattern(survey: Survey) -> str:
    """The pattern that is shown unless one is named."""
    return ALL_TO_ALL if survey.adapters <= MANY_PORTS else "random_permutation"


def check_effort(survey: Survey, pattern: str) -> None:
    """Refuse a pattern whose messages take too long to be counted.

    Raises:
        InputError: it does; with the estimate.
    """
    seconds = survey.adapters**2 / _PAIRS_PER_S
    if pattern == ALL_TO_ALL and seconds > _LONGEST:
        rule = f"counts the messages of {survey.adapters**2:,} pairs of adapters: about"
        rule += f" {seconds / 3600:.1f} hours here, at most {_LONGEST / 60:g} minutes are taken"
        remedy = "Take random_permutation, or another pattern in which each host has one partner."
        refuse("--pattern", rule, pattern, remedy, "command line")


def facts(survey: Survey) -> dict[str, str]:
    """What a network is made of, and how far apart and how well linked its hosts are; by name, for
    people."""
    nodes, cabling = survey.nodes, survey.fabric.cabling
    tiers = {cabling.tiers[node] for node in cabling.nodes_of_kind("switch").tolist()}
    switches = {tier: n for tier, n in nodes.items() if tier in tiers}
    least, mean, most = survey.shortest_ways
    most_text = str(most) if most < 10**9 else f"{most:.3g}"
    ways = f"{least} to {most_text} between two leaf switches, mean {mean:.3g}"
    bandwidth = readable(survey.bisection, Dimension.BANDWIDTH)
    of, seen = len(survey.leaves), len(survey.sample)
    to = f" (from all to {seen:,} of {of:,} leaf switches)" if seen < of else ""
    out = {
        "hosts": str(len(cabling.nodes_of_kind("host"))),
        "adapters": f"{survey.adapters} attached to switches",
        "switches": f"{sum(switches.values())}: "
        + ", ".join(f"{n} {tier}" for tier, n in switches.items()),
        "cables": "; ".join(_cables(*each) for each in survey.cables.items()),
        "longest way": f"{survey.diameter} links; mean {survey.mean_distance:.2f}{to}",
        "bisection": f"{bandwidth} each way, between the first half of the hosts and the second",
        "shortest ways": ways + to,
    }
    others = len(cabling.nodes_of_kind("other"))
    return out | ({"others": f"{others} that take no part"} if others else {})


def _cables(tiers: tuple[str, ...], rates: Counter[float]) -> str:
    each = ", ".join(
        f"{count} of {readable(rate, Dimension.BANDWIDTH)}" for rate, count in rates.most_common()
    )
    return f"{rates.total()} {'-'.join(tiers)} ({each})"


def load_table(router: Router, loads: Ints) -> pd.DataFrame:
    """Messages on the links of every tier: columns tier, links, mean, most, full_at (bytes/s at
    which every message can go at the same time, as long as the busiest link of the tier allows)."""
    links = router.links
    table = pd.DataFrame({"tier": links.tiers, "load": loads, "capacity": links.capacity})
    table = table[~table["tier"].str.contains("storage")]
    rate = table["capacity"] / table["load"].where(table["load"] > 0)
    by_tier = table.assign(rate=rate).groupby("tier", sort=False)
    return by_tier.agg(
        links=("load", "size"), mean=("load", "mean"), most=("load", "max"), full_at=("rate", "min")
    ).reset_index()


def route_rows(router: Router, source: str, target: str) -> list[tuple[str, str, str, str]]:
    """The route between two hosts, for every rail: rail, link, bytes/s, latency of the link, for
    people.

    Raises:
        InputError: one of them is no host, or both are the same.
    """
    fabric = router.fabric
    names = [fabric.cabling.names[host] for host in fabric.cabling.nodes_of_kind("host").tolist()]
    unknown = [name for name in (source, target) if name not in names]
    if unknown or source == target:
        found = ", ".join(map(repr, unknown)) or f"{source!r} twice"
        close = get_close_matches(unknown[0], names, 3) if unknown else []
        remedy = f"There are {len(names)}, such as {', '.join(close or names[:2])}."
        refuse("--route", "needs the names of two hosts", found, remedy, "command line")
    ports = host_ports(fabric)
    a, b = (ports[names.index(name)] for name in (source, target))
    out = []
    for rail, route in enumerate(router.routes(a, b)):
        for link in route[route >= 0].tolist():
            links = router.links
            rate = readable(float(links.capacity[link]), Dimension.BANDWIDTH)
            latency = readable(float(links.latency[link]), Dimension.SECONDS)
            out.append((str(rail), links.names[link], rate, latency))
    return out

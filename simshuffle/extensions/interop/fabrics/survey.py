"""Survey a network: nodes, cables, distances, routes, bisection, and loads of patterns.

``simshuffle machine show`` prints the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

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

_MAX_COUNTED_LINKS = 1 << 25
"""Links times sampled leaf switches, at most: counting takes a few seconds and less
than 1 GB.
"""
_MIN_SAMPLED_LEAVES = 8
"""Leaf switches to which routes are counted, at least, or all of fewer."""
MAX_ADAPTERS_ALL_TO_ALL = 4096
"""Adapters up to which ``all_to_all`` is the default pattern: it counts the loads of
every pair.
"""
_PAIRS_PER_S = 3.6e6
"""Pairs of ports whose messages are counted in a second: 10,752 ports, adaptive
routing, in 32 s on a core of an AMD EPYC.
"""
_MAX_SECONDS = 600.0
"""Estimated seconds beyond which a pattern is refused."""


class RouteCounts(NamedTuple):
    """Number of shortest routes from one leaf switch to another, over all pairs."""

    smallest: int
    mean: float
    largest: int


class Survey:
    """Measures of a network that need no messages: counts, distances, routes,
    bisection.

    Args:
        fabric: the network.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    @cached_property
    def nodes_per_tier(self) -> dict[str, int]:
        """Number of nodes of each tier: hosts and other devices first, then switches
        from the hosts up.
        """
        cabling = self.fabric.cabling
        count_of_tier = Counter(cabling.tiers)
        depth_of_tier = dict(zip(cabling.tiers, cabling.depth, strict=True))
        return {
            tier: count_of_tier[tier]
            for tier in sorted(count_of_tier, key=lambda tier: depth_of_tier[tier])
        }

    @cached_property
    def num_adapters(self) -> int:
        """Number of ports of hosts and other devices that are attached to switches."""
        return len(self.fabric.switch_of_port)

    @cached_property
    def cables_per_tiers(self) -> dict[tuple[str, ...], Counter[float]]:
        """Number of cables of each bandwidth (bytes/s each way), by the two tiers that
        they join.

        The tier nearer to the hosts comes first, and so do the pairs nearer to them.
        """
        cabling = self.fabric.cabling
        tiers = list(self.nodes_per_tier)
        index_of_tier = {tier: index for index, tier in enumerate(tiers)}
        tier_of_node = np.array([index_of_tier[tier] for tier in cabling.tiers])
        # (cables,) tier of the end nearer to the hosts, and of the other end
        low, high = np.sort(tier_of_node[cabling.ends], axis=1).T
        bandwidths, bandwidth_index = np.unique(cabling.bandwidth, return_inverse=True)

        # code = (low * tiers + high) * bandwidths + bandwidth, taken apart again below
        code_of_cable = (low * len(tiers) + high) * len(bandwidths) + bandwidth_index
        codes, first_cable, counts = np.unique(
            code_of_cable, return_index=True, return_counts=True
        )
        cables: dict[tuple[str, ...], Counter[float]] = {}
        for index in np.argsort(first_cable).tolist():
            both_tiers, bandwidth = divmod(int(codes[index]), len(bandwidths))
            low_tier, high_tier = divmod(both_tiers, len(tiers))
            counter = cables.setdefault((tiers[low_tier], tiers[high_tier]), Counter())
            counter[float(bandwidths[bandwidth])] = int(counts[index])

        pairs = sorted(cables, key=lambda pair: [index_of_tier[tier] for tier in pair])
        return {pair: cables[pair] for pair in pairs}

    @cached_property
    def sampled_leaves(self) -> Ints32:
        """The leaf switches to which distances and routes from all others are counted.

        They are all leaf switches, or as many, evenly spaced, as keep the count short.
        """
        num_arcs = max(len(self.fabric.switches.arc_src), 1)
        max_leaves = max(_MIN_SAMPLED_LEAVES, _MAX_COUNTED_LINKS // num_arcs)
        if len(self.leaves) <= max_leaves:
            return self.leaves
        positions = np.linspace(0, len(self.leaves) - 1, max_leaves).astype(np.int64)
        return np.asarray(self.leaves[positions])

    @cached_property
    def _steps_to_sample(self) -> NDArray[np.int16]:
        """(switches, sampled leaves) steps from each switch to each sampled leaf, `FAR`
        where no route leads.
        """
        return np.asarray(self.fabric.switches.steps(self.sampled_leaves))

    @cached_property
    def _host_ports(self) -> Ints32:
        """(ports,) the ports of all hosts, host after host."""
        return np.array(
            [port for ports in _ports_of_hosts(self.fabric) for port in ports], np.int32
        )

    @cached_property
    def leaves(self) -> Ints32:
        """The switches to which hosts are attached, ascending."""
        return np.unique(self.fabric.switch_of_port[self._host_ports])

    @cached_property
    def diameter(self) -> int:
        """Number of links on the longest of the shortest routes between two hosts.

        The links of the hosts themselves count. Only routes to `sampled_leaves` are
        measured; hosts that cannot reach one another do not count.
        """
        steps = self._steps_to_sample[self.leaves]
        return 2 + int(steps[steps < FAR].max())

    @cached_property
    def mean_distance(self) -> float:
        """Mean number of links on the shortest route between two ports of hosts.

        The mean is over all pairs of different ports, the second at `sampled_leaves`.
        The links of the hosts themselves count. Switches without a route between them
        count with `FAR` links. With a single port the mean is 2.
        """
        # (leaves,) and (sampled leaves,) number of ports of hosts on each
        leaf_of_port = np.searchsorted(
            self.leaves, self.fabric.switch_of_port[self._host_ports]
        )
        ports_of_leaf = np.bincount(leaf_of_port)
        ports_of_sample = ports_of_leaf[
            np.searchsorted(self.leaves, self.sampled_leaves)
        ]
        # a port and itself is no pair, and no step from its switch to itself would count it
        num_pairs = float((ports_of_leaf.sum() - 1) * ports_of_sample.sum())
        steps = self._steps_to_sample[self.leaves]
        # sum over pairs of ports = ports of leaf x steps x ports of sampled leaf
        sum_of_steps = float(ports_of_leaf @ steps @ ports_of_sample)
        return 2.0 + sum_of_steps / max(num_pairs, 1.0)

    @cached_property
    def bisection(self) -> float:
        """Bytes/s that can flow from the first half of the hosts to the second.

        This is the smallest cut between the two halves, with hosts in their order, to a
        thousandth of the slowest cable or coarser. The hosts' own cables limit it, too.
        A single host gives 0.
        """
        cabling = self.fabric.cabling
        hosts = cabling.nodes_of_kind("host")
        num_first_half = len(hosts) // 2
        num_nodes = len(cabling.names)
        unit = (
            float(cabling.bandwidth.min()) / 1000.0
        )  # capacities must be whole numbers
        units_of_cable = np.maximum(np.rint(cabling.bandwidth / unit), 1).astype(
            np.int64
        )
        total_units = int(units_of_cable.sum())
        first_end, second_end = cabling.ends.T.astype(np.int64)

        # two nodes more: a source with arcs to the first half, a sink with arcs from the second
        source_node = num_nodes
        sink_node = num_nodes + 1
        num_second_half = len(hosts) - num_first_half
        added_from = np.concatenate(
            [np.full(num_first_half, source_node), hosts[num_first_half:]]
        )
        added_to = np.concatenate(
            [hosts[:num_first_half], np.full(num_second_half, sink_node)]
        )

        # capacity of each arc, from row to column: cables both ways, and the added arcs
        rows = np.concatenate([first_end, second_end, added_from])
        columns = np.concatenate([second_end, first_end, added_to])
        capacity = np.concatenate(
            [units_of_cable, units_of_cable, np.full(len(added_from), total_units)]
        )
        units_per_step = max(1, -(-total_units // (2**31 - 1)))
        steps_of_arc = np.maximum(capacity // units_per_step, 1)
        shape = (num_nodes + 2, num_nodes + 2)
        matrix = sparse.coo_matrix((steps_of_arc, (rows, columns)), shape).tocsr()
        flow = csgraph.maximum_flow(
            matrix.astype(np.int32), source_node, sink_node
        ).flow_value
        return float(flow) * units_per_step * unit

    @cached_property
    def shortest_routes(self) -> RouteCounts:
        """Least, mean and largest number of shortest routes from one leaf switch to
        another, of `sampled_leaves`; 1 each with a single leaf switch.

        Parallel links are different routes. 0 stands where no route leads.
        """
        switches = self.fabric.switches
        steps = self._steps_to_sample
        # (switches, sampled leaves) number of shortest routes; 1 from a leaf switch to itself
        routes = np.zeros(steps.shape)
        routes[self.sampled_leaves, np.arange(len(self.sampled_leaves))] = 1.0
        links = self.fabric.links_per_arc * switches.is_transit[switches.arc_dst]
        shape = (len(routes), len(routes))
        links_to_switch = sparse.coo_matrix(
            (links, (switches.arc_src, switches.arc_dst)), shape
        ).tocsr()
        # routes at distance d = sum over next switches of links x routes at distance d - 1
        for distance in range(1, int(steps[steps < FAR].max(initial=0)) + 1):
            routes_one_step_less = np.where(steps == distance - 1, routes, 0.0)
            np.copyto(
                routes, links_to_switch @ routes_one_step_less, where=steps == distance
            )
        routes_between_leaves = routes[self.leaves][
            self.leaves[:, None] != self.sampled_leaves
        ]
        if not len(routes_between_leaves):
            return RouteCounts(1, 1.0, 1)
        return RouteCounts(
            smallest=int(routes_between_leaves.min()),
            mean=float(routes_between_leaves.mean()),
            largest=int(routes_between_leaves.max()),
        )


def host_ports(fabric: Fabric) -> Ints32:
    """Return (hosts, rails) ports of hosts, as many of each as the host with the fewest
    has; further ports are left out.
    """
    ports_of_hosts = _ports_of_hosts(fabric)
    rails = min(map(len, ports_of_hosts))
    return np.array([ports[:rails] for ports in ports_of_hosts], np.int32)


def _ports_of_hosts(fabric: Fabric) -> list[list[int]]:
    """Return the ports of every host, in the order of the hosts."""
    names = fabric.cabling.names
    return [
        fabric.endpoints(names[host])
        for host in fabric.cabling.nodes_of_kind("host").tolist()
    ]


def _draw_pairs(hosts: int, rng: np.random.Generator) -> Ints64:
    """Draw (hosts,) partners in pairs; with an odd number of hosts, one keeps itself."""
    order = rng.permutation(hosts)
    num_paired = hosts - hosts % 2
    partner = np.arange(hosts)
    first = order[0:num_paired:2]
    second = order[1:num_paired:2]
    partner[first] = second
    partner[second] = first
    return partner


PARTNER_PATTERNS: dict[str, Callable[[int, np.random.Generator], Ints64]] = {
    "random_permutation": lambda hosts, rng: rng.permutation(hosts),
    "random_pairs": _draw_pairs,
    "half_shift": lambda hosts, _: (np.arange(hosts) + hosts // 2) % hosts,
    "next": lambda hosts, _: (np.arange(hosts) + 1) % hosts,
}
"""(hosts,) to which host each host sends, by pattern: any host, the other one of a
pair, the host half-way around the list of hosts, the next host.
"""
ALL_TO_ALL = "all_to_all"
PATTERNS = (ALL_TO_ALL, *PARTNER_PATTERNS)


def pattern_loads(router: Router, pattern: str, rng: np.random.Generator) -> Ints64:
    """Return (links,) how many messages of a pattern cross each link.

    Every port of every host sends one message to the port of the same rail of its
    host's partner, if that is another host; in ``all_to_all`` one to every other port,
    of its own host, too. Ports beyond those of `host_ports` send none.

    Args:
        router: the routes.
        pattern: one of `PATTERNS`.
        rng: source of random partners; other patterns draw nothing.
    """
    ports = host_ports(router.fabric)
    if pattern == ALL_TO_ALL:
        return uniform_loads(router, ports.ravel())
    partner = PARTNER_PATTERNS[pattern](len(ports), rng)
    senders = np.flatnonzero(partner != np.arange(len(ports)))
    return link_loads(router, ports[senders].ravel(), ports[partner[senders]].ravel())


def default_pattern(survey: Survey) -> str:
    """Return the pattern that is shown unless one is named: ``all_to_all`` up to
    `MAX_ADAPTERS_ALL_TO_ALL` adapters, else ``random_permutation``.
    """
    return (
        ALL_TO_ALL
        if survey.num_adapters <= MAX_ADAPTERS_ALL_TO_ALL
        else "random_permutation"
    )


def check_effort(survey: Survey, pattern: str) -> None:
    """Refuse a pattern whose messages take too long to count: of ``all_to_all`` alone.

    Raises:
        InputError: it takes more than `_MAX_SECONDS`; the message has the estimate.
    """
    seconds = survey.num_adapters**2 / _PAIRS_PER_S
    if pattern == ALL_TO_ALL and seconds > _MAX_SECONDS:
        rule = f"must take at most {_MAX_SECONDS / 60:g} minutes, but the messages of"
        rule += f" {survey.num_adapters**2:,} pairs of adapters take {seconds / 3600:.1f} hours"
        remedy = "Use random_permutation, or another pattern in which each host has one partner."
        refuse("--pattern", rule, pattern, remedy, "command line")


def describe_network(survey: Survey) -> dict[str, str]:
    """Return texts about a network's parts, distances and bandwidth, by what each is
    about.

    Keys are 'hosts', 'adapters', 'switches', 'cables', 'longest way', 'bisection',
    'shortest ways', and 'others' if there are other devices.
    """
    nodes = survey.nodes_per_tier
    cabling = survey.fabric.cabling
    switch_tiers = {
        cabling.tiers[node] for node in cabling.nodes_of_kind("switch").tolist()
    }
    switches = {
        tier: num_nodes for tier, num_nodes in nodes.items() if tier in switch_tiers
    }
    switch_text = ", ".join(
        f"{num_nodes} {tier}" for tier, num_nodes in switches.items()
    )

    routes = survey.shortest_routes
    largest = str(routes.largest) if routes.largest < 10**9 else f"{routes.largest:.3g}"
    route_text = f"{routes.smallest} to {largest} between two leaf switches, mean {routes.mean:.3g}"
    num_leaves = len(survey.leaves)
    num_sampled = len(survey.sampled_leaves)
    sample_note = ""
    if num_sampled < num_leaves:
        sample_note = f" (from all leaf switches to {num_sampled:,} of {num_leaves:,})"
    bandwidth = readable(survey.bisection, Dimension.BANDWIDTH)
    facts = {
        "hosts": str(len(cabling.nodes_of_kind("host"))),
        "adapters": f"{survey.num_adapters} attached to switches",
        "switches": f"{sum(switches.values())}: {switch_text}",
        "cables": "; ".join(
            _describe_cables(tiers, rates)
            for tiers, rates in survey.cables_per_tiers.items()
        ),
        "longest way": f"{survey.diameter} links; mean {survey.mean_distance:.2f}{sample_note}",
        "bisection": f"{bandwidth} each way, between the first half of the hosts and the second",
        "shortest ways": route_text + sample_note,
    }
    num_others = len(cabling.nodes_of_kind("other"))
    return facts | ({"others": f"{num_others} that take no part"} if num_others else {})


def _describe_cables(tiers: tuple[str, ...], rates: Counter[float]) -> str:
    """Return the number of cables between two tiers, and how many have each bandwidth,
    as text, the most common first.
    """
    rate_texts = ", ".join(
        f"{count} of {readable(rate, Dimension.BANDWIDTH)}"
        for rate, count in rates.most_common()
    )
    return f"{rates.total()} {'-'.join(tiers)} ({rate_texts})"


def load_table(router: Router, loads: Ints) -> pd.DataFrame:
    """Return a table of the messages on the links of every tier.

    Columns are tier, links (their number), mean and most (messages on a link), and
    full_at: bytes/s at which each message can flow if all do at once, as the link of
    the tier with the least bandwidth for a message allows. full_at is NaN for a tier
    without messages. Links without messages count in the mean. Tiers of storage are
    left out. Rows are in the order of the links.
    """
    links = router.links
    table = pd.DataFrame(
        {"tier": links.tiers, "load": loads, "capacity": links.capacity}
    )
    table = table[~table["tier"].str.contains("storage")]
    rate = table["capacity"] / table["load"].where(table["load"] > 0)
    links_by_tier = table.assign(rate=rate).groupby("tier", sort=False)
    return links_by_tier.agg(
        links=("load", "size"),
        mean=("load", "mean"),
        most=("load", "max"),
        full_at=("rate", "min"),
    ).reset_index()


def route_rows(
    router: Router, source: str, target: str
) -> list[tuple[str, str, str, str]]:
    """Return the route between two hosts for every rail, as texts for people.

    A row holds rail (from 0), link, and bandwidth and latency of the link. There is one
    for each link, rail after rail, in the order of the route. Rails are those of
    `host_ports`: as many as the host of the fabric with the fewest ports has.

    Raises:
        InputError: one of the names is no host, or both are the same.
    """
    fabric = router.fabric
    names = [
        fabric.cabling.names[host]
        for host in fabric.cabling.nodes_of_kind("host").tolist()
    ]
    unknown = [name for name in (source, target) if name not in names]
    if unknown or source == target:
        value = ", ".join(map(repr, unknown)) or f"{source!r} twice"
        similar_names = get_close_matches(unknown[0], names, 3) if unknown else []
        remedy = f"There are {len(names)} hosts, such as {', '.join(similar_names or names[:2])}."
        refuse("--route", "needs the names of two hosts", value, remedy, "command line")
    ports = host_ports(fabric)
    source_ports = ports[names.index(source)]
    target_ports = ports[names.index(target)]
    rows = []
    for rail, route in enumerate(router.routes(source_ports, target_ports)):
        for link in route[route >= 0].tolist():
            links = router.links
            rate = readable(float(links.capacity[link]), Dimension.BANDWIDTH)
            latency = readable(float(links.latency[link]), Dimension.SECONDS)
            rows.append((str(rail), links.names[link], rate, latency))
    return rows

"""What a network is made of, how far its hosts are from one another, and how many ways there are
between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.spec.late import csgraph, sparse
from simshuffle.topology.cabling import FAR

_TOGETHER = 1 << 22  # pairs of switches looked at at once: some 100 MB


@dataclass(frozen=True)
class Cables:
    """The cables between two tiers.

    Attributes:
        tiers: their names, that nearer to the hosts first.
        count: how many there are.
        bandwidths: (bytes/s in each direction, cables), the most common first.
    """

    tiers: tuple[str, str]
    count: int
    bandwidths: list[tuple[float, int]]


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
        return len(self.fabric.at)

    @cached_property
    def cables(self) -> list[Cables]:
        """All cables by the tiers that they join."""
        cabling = self.fabric.cabling
        rank = {tier: i for i, tier in enumerate(self.nodes)}
        found: dict[tuple[str, str], Counter[float]] = {}
        for (a, b), rate in zip(cabling.ends.tolist(), cabling.bandwidth.tolist(), strict=True):
            pair = sorted((cabling.tiers[a], cabling.tiers[b]), key=rank.__getitem__)
            found.setdefault((pair[0], pair[1]), Counter())[rate] += 1
        return [
            Cables(pair, sum(rates.values()), rates.most_common())
            for pair, rates in sorted(found.items(), key=lambda item: [rank[t] for t in item[0]])
        ]

    @cached_property
    def _steps(self) -> NDArray[np.int16]:
        """(goals, goals) steps between the switches with ports of hosts."""
        return self.fabric.switches.steps(self._leaves)[self._leaves]

    @cached_property
    def _host_ports(self) -> Ints:
        cabling = self.fabric.cabling
        ports = [
            p
            for host in cabling.of_kind("host")
            for p in self.fabric.endpoints(cabling.names[host])
        ]
        return np.array(ports, np.int32)

    @cached_property
    def _leaves(self) -> Ints:
        return np.unique(self.fabric.at[self._host_ports])

    @cached_property
    def diameter(self) -> int:
        """Links on the longest of the shortest ways between two hosts, those of the hosts
        included."""
        return 2 + int(self._steps[self._steps < FAR].max())

    @cached_property
    def mean_distance(self) -> float:
        """Links on the shortest way, those of the hosts included; mean over all pairs of ports of
        hosts, a port and itself left out."""
        ports = np.bincount(np.searchsorted(self._leaves, self.fabric.at[self._host_ports]))
        weight = np.outer(ports, ports) - np.diag(ports)
        return 2.0 + float((self._steps * weight).sum() / max(weight.sum(), 1))

    @cached_property
    def bisection(self) -> float:
        """Bytes/s in one direction that get from the first half of the hosts, in their order, to
        the second at most (the smallest cut between the two halves)."""
        cabling = self.fabric.cabling
        hosts = cabling.of_kind("host")
        half = len(hosts) // 2
        count = len(cabling.names)
        unit = float(cabling.bandwidth.min()) / 1000.0  # capacities must be whole numbers
        weight = np.maximum(np.rint(cabling.bandwidth / unit), 1).astype(np.int64)
        a, b = cabling.ends.T.astype(np.int64)
        # two nodes more: one before the first half, one behind the second
        ends = [(count, host) for host in hosts[:half]] + [
            (host, count + 1) for host in hosts[half:]
        ]
        first, second = np.array(ends).T if ends else (np.zeros(0, int), np.zeros(0, int))
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
        of, steps = self.fabric.switches, self.fabric.switches.steps(self._leaves)
        ways = np.zeros(steps.shape)
        ways[self._leaves, np.arange(len(self._leaves))] = 1.0
        parallel = self.fabric.parallel
        for number in range(1, int(steps[steps < FAR].max(initial=0)) + 1):
            for begin in range(0, len(self._leaves), max(1, _TOGETHER // max(len(of.here), 1))):
                part = slice(begin, begin + max(1, _TOGETHER // max(len(of.here), 1)))
                nearer = steps[of.there, part] == number - 1
                nearer &= (steps[of.here, part] == number) & of.transit[of.there][:, None]
                add = np.where(nearer, ways[of.there, part] * parallel[:, None], 0.0)
                np.add.at(ways[:, part], of.here, add)
        apart = ways[self._leaves][~np.eye(len(self._leaves), dtype=bool)]
        if not len(apart):
            return 1, 1.0, 1
        return int(apart.min()), float(apart.mean()), int(apart.max())

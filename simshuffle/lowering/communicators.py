"""Groups of ranks that communicate, many at once on one fabric."""

from __future__ import annotations

from copy import copy

import numpy as np

from simshuffle.allreduce import Allreduce
from simshuffle.lowering.collectives import Recipes, with_measured
from simshuffle.lowering.gradients import ranks_in_order
from simshuffle.lowering.groups import Groups
from simshuffle.network.batch import TransferBatch
from simshuffle.parallelism.step import ALL, Group, Node
from simshuffle.plan.resources import Resources
from simshuffle.spec.arrays import Ints32


class Communicators:
    """Groups of ranks that communicate on one fabric.

    A model group is ``ways`` ranks that follow one another as the allreduce goes through the hosts;
    a data group has one rank of each model group, at the same place.

    Allreduces are those of ``allreduce`` over a group's ranks. Allgather and reduce-scatter are
    each half of one around rings, whatever the algorithm: NCCL has nothing else for them, and MPI
    libraries take rings for long messages too (Thakur, Rabenseifner and Gropp, Int. J. High
    Perform. Comput. Appl. 19, 2005, section 4.1). All else are messages from member to member, with
    the latencies of a step and the bus bandwidths of the allreduce.

    Args:
        ways: ranks of a model group; must divide the world size.
        rng: draws the order of hosts that are shuffled.
        bus_bandwidth: that replaces those of the allreduce inside model groups (bytes/s).
        step_latency: that replaces those of the allreduce inside model groups (s).
    """

    def __init__(
        self,
        allreduce: Allreduce,
        resources: Resources,
        ways: int,
        rng: np.random.Generator,
        bus_bandwidth: float | None = None,
        step_latency: float | None = None,
    ) -> None:
        self.resources, self._allreduce = resources, allreduce
        order = ranks_in_order(allreduce.order, resources, rng)
        self._all = Groups(order[None], Recipes(allreduce), resources)
        self._known: dict[tuple[object, ...], Groups] = {}
        self._divide(ways, bus_bandwidth, step_latency)

    def divided(
        self, ways: int, bus_bandwidth: float | None = None, step_latency: float | None = None
    ) -> Communicators:
        """The same ranks in other groups; what is known of those that stay as they are is
        shared."""
        other = copy(self)
        other._divide(ways, bus_bandwidth, step_latency)
        return other

    def _divide(self, ways: int, bus_bandwidth: float | None, step_latency: float | None) -> None:
        order = self._all.ranks[0]
        if len(order) % ways:
            raise ValueError(f"{ways} ranks of a group do not divide {len(order)} ranks")
        model = order.reshape(-1, ways)
        measured = bus_bandwidth, step_latency
        self.ways = ways
        self._of: dict[Group, Groups] = {
            "model": self._groups(model, *measured),
            "data": self._groups(np.ascontiguousarray(model.T), None, None),
            "all": self._all,
        }

    def _groups(
        self, ranks: Ints32, bus_bandwidth: float | None, step_latency: float | None
    ) -> Groups:
        if (
            ranks.size == self._all.ranks.size == ranks.shape[1]
            and bus_bandwidth is None
            and step_latency is None
        ):
            return self._all
        key = (*ranks.shape, ranks[0, 0], ranks[0, -1], bus_bandwidth, step_latency)
        if key not in self._known:
            recipes = Recipes(with_measured(self._allreduce, bus_bandwidth, step_latency))
            self._known[key] = Groups(ranks, recipes, self.resources)
        return self._known[key]

    def ranks(self, group: Group) -> Ints32:
        """(groups, members) the ranks of each group of a kind."""
        return self._of[group].ranks

    def _taking_part(self, node: Node) -> Groups:
        """The groups that a node is of: all of its kind, or the data group of one member."""
        groups = self._of[node.group]
        if node.group != "data" or node.member == ALL:
            return groups
        return self._groups(groups.ranks[node.member : node.member + 1], None, None)

    def seconds(self, node: Node) -> float:
        """Time (s) of what a node sends, all its groups at once and nothing else on the
        machine; 0 if nobody sends anything. See `ClosedForm`."""
        return self._taking_part(node).seconds(node)

    def batch(self, node: Node) -> tuple[TransferBatch, Ints32] | None:
        """What a node sends, of all its groups, which each node is laid out as once.

        Returns:
            The transfers, and the number of each one's group, (transfers,); None if nobody sends
            anything.
        """
        return self._taking_part(node).batch(node)

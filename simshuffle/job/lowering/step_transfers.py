"""A step of training among groups of ranks, as transfers: computing as delays, sending as flows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network import Network
from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.job.lowering.collectives import Recipes, ranks_in_order, with_measured
from simshuffle.job.lowering.groups import Groups
from simshuffle.job.plan.resources import Resources
from simshuffle.spec.arrays import Floats, Ints, Ints32
from simshuffle.workload.parallelism.step import ALL, Group, Node, Step


class Communicators:
    """Groups of ranks that communicate on one fabric.

    A model group is ``ways`` ranks that follow one another as the allreduce goes through the hosts;
    a data group has one rank of each model group, at the same place.

    Allgather and reduce-scatter are each half of an allreduce around rings, whatever the algorithm:
    NCCL has nothing else for them, and MPI libraries take rings for long messages too (Thakur,
    Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005, section 4.1). All else are
    messages from member to member, with the latencies and bus bandwidths of the allreduce.

    ``ways`` must divide the world size; ``rng`` draws the order of hosts that are shuffled.
    ``bus_bandwidth`` (bytes/s) and ``step_latency`` (s) replace those of the allreduce inside model
    groups.
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
        """The same ranks in other groups; what is known of those that stay is shared."""
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
        alone = ranks.size == self._all.ranks.size == ranks.shape[1]
        if alone and bus_bandwidth is None and step_latency is None:
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
        """Time (s) of what a node sends, all its groups at once: see `Groups.seconds`."""
        return self._taking_part(node).seconds(node)

    def batch(self, node: Node) -> tuple[TransferBatch, Ints32] | None:
        """What a node sends, of all its groups: see `Groups.batch`."""
        return self._taking_part(node).batch(node)


@dataclass(frozen=True)
class StepTransfers:
    """What model groups compute and send in a step."""

    # the transfers. What is computed is a transfer without links whose delay are its seconds.
    batch: TransferBatch
    begins: Ints32  # (groups,) the transfer, of no time, that all of a group wait for
    # (groups,) the transfer, of no time, that waits for all of a group, and for all that it has a
    # part in
    ends: Ints32
    computes: Ints32  # (computing,) the transfers that compute
    seconds: Floats  # (computing,) their s
    of: Ints32  # (computing,) whose they are: places in ``begins``

    def posted(self, factor: Floats) -> TransferBatch:
        """The transfers if each group computes ``factor``, (groups,), times as long."""
        records = self.batch.tasks.copy()
        records["delay"][self.computes] = self.seconds * factor[self.of]
        return TransferBatch(records, self.batch.routes, self.batch.edge_from, self.batch.edge_to)


def step_transfers(
    step: Step, communicators: Communicators, groups: Sequence[int] | None = None
) -> StepTransfers:
    """A step as transfers: each node begins when all have ended for which it waits. A node in which
    ranks of all model groups take part waits for all of them, and all wait for it; so all have to
    be there (ValueError). ``groups`` are numbers of the model groups; None for all."""
    count = len(communicators.ranks("model"))
    chosen = np.arange(count) if groups is None else np.asarray(groups)
    made = _Made(communicators, chosen, whole=len(chosen) == count)
    for number, node in enumerate(step.nodes):
        made.add(number, node)
    return made.transfers()


def step_seconds(step: Step, communicators: Communicators, model: Network) -> float:
    """Time (s) of a step of all groups while nothing else uses the machine, its cables shared as
    ``model`` says."""
    batch = step_transfers(step, communicators).batch
    return communicators.resources.seconds_alone(batch, model)


class _Made:
    """The transfers so far."""

    def __init__(self, communicators: Communicators, chosen: Ints, whole: bool) -> None:
        self._communicators, self._whole = communicators, whole
        self._place = np.full(len(communicators.ranks("model")), -1, np.int32)
        self._place[chosen] = np.arange(len(chosen))
        self._width = communicators.resources.width
        self._groups, self._count = len(chosen), 0
        self._records: list[NDArray[Any]] = []
        self._routes: list[Ints32] = []
        self._edges: list[tuple[Ints32, Ints32]] = []
        self._computed: list[tuple[Ints32, float]] = []
        self._ends: list[Ints32] = []
        self._last: set[int] = set()
        self._begins = self._joins(len(chosen))

    def add(self, number: int, node: Node) -> None:
        """Add a node."""
        self._last.difference_update(node.after)
        self._last.add(number)
        before = [self._ends[k] for k in node.after] or [self._begins]
        if node.collective is None:
            computing = self._joins(self._groups, node.seconds)
            self._computed.append((computing, node.seconds))
            for end in before:
                self._edge(end, computing)
            self._ends.append(computing)
        else:
            self._ends.append(self._sent(node, before))

    def _sent(self, node: Node, before: list[Ints32]) -> Ints32:
        """Add what is sent; gives its ends, one for each group."""
        laid = self._communicators.batch(node)
        common = node.group != "model"
        if common and not self._whole:
            raise ValueError(f"'{node.label}' joins all groups")
        if common:
            known = np.unique(np.concatenate(before))
            ready = known
            if len(known) > 1:
                ready = self._joins(1)
                self._edge(known, np.broadcast_to(ready, len(known)))
        elif len(before) > 1:
            ready = self._joins(self._groups)
            for end in before:
                self._edge(end, ready)
        else:
            ready = before[0]
        if laid is not None:
            batch, of = laid
            of = np.zeros_like(of) if common else self._place[of]
            if not self._whole:
                kept = np.flatnonzero(of >= 0)  # of the chosen groups
                batch, of = batch.selected(kept), of[kept]
            first = self._add(batch.tasks, batch.routes)
            self._edge(batch.edge_from + first, batch.edge_to + first)
            begins, ends = (
                np.flatnonzero(np.bincount(edge, minlength=len(batch)) == 0).astype(np.int32)
                for edge in (batch.edge_to, batch.edge_from)
            )
            self._edge(ready[of[begins]], begins + first)
            done = self._joins(len(ready))
            self._edge(ends + first, done[of[ends]])
            silent = np.bincount(of, minlength=len(ready)) == 0
            ready = np.where(silent, ready, done)
        return np.broadcast_to(ready, self._groups)

    def transfers(self) -> StepTransfers:
        """All of them."""
        ends = self._joins(self._groups)
        for number in sorted(self._last):
            self._edge(self._ends[number], ends)
        if not self._last:
            self._edge(self._begins, ends)
        edge_from, edge_to = (np.concatenate(each) for each in zip(*self._edges, strict=True))
        batch = TransferBatch(
            np.concatenate(self._records), np.concatenate(self._routes), edge_from, edge_to
        )
        none = np.zeros(0, np.int32)
        computes = [computing for computing, _ in self._computed]
        seconds = [np.full(self._groups, seconds) for _, seconds in self._computed]
        return StepTransfers(
            batch,
            self._begins,
            ends,
            np.concatenate([none, *computes]),
            np.concatenate([none.astype(np.float64), *seconds]),
            np.tile(np.arange(self._groups, dtype=np.int32), len(computes)),
        )

    def _add(self, records: NDArray[Any], routes: Ints32) -> np.int32:
        first = self._count
        self._records.append(records)
        self._routes.append(routes)
        self._count += len(records)
        return np.int32(first)

    def _joins(self, count: int, seconds: float = 0.0) -> Ints32:
        """Transfers without links."""
        first = self._add(tasks(count, delay=seconds), np.full((count, self._width), -1, np.int32))
        return first + np.arange(count, dtype=np.int32)

    def _edge(self, edge_from: Ints32, edge_to: Ints32) -> None:
        self._edges.append((edge_from, edge_to))

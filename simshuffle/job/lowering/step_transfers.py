"""Turn a step of training among groups of ranks into transfers: computing as delays,
sending as flows.
"""

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
from simshuffle.job.lowering.collectives import (
    Recipes,
    override_performance,
    ranks_in_order,
)
from simshuffle.job.lowering.groups import Groups
from simshuffle.job.plan.resources import Resources
from simshuffle.spec.arrays import Floats, Ints, Ints32
from simshuffle.workload.parallelism.step import ALL, Group, Node, Step


class Communicators:
    """Groups of ranks that communicate on one fabric.

    A model group is ``group_size`` ranks that follow one another as the allreduce goes
    through the hosts; a data group has one rank of each model group, at the same place.

    Allgather and reduce-scatter are each half of an allreduce around rings, whatever
    the algorithm: NCCL has nothing else for them, and MPI libraries take rings for long
    messages too (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl.
    19, 2005, section 4.1). All else are messages from member to member, with the
    latencies and bus bandwidths of the allreduce.

    ``ways`` is the group size. Seconds and transfers of a node are kept once computed.

    Args:
        group_size: ranks of a model group; must divide the world size.
        rng: draws the order of hosts if the allreduce shuffles them; else untouched.
        bus_bandwidth: bytes/s in place of the allreduce's inside model groups; None for
            its own.
        step_latency: s in place of the allreduce's inside model groups; None for its
            own.
        input_bandwidth: bytes/s in place of the allreduce's for groups of kind 'input';
            None for its own.

    Raises:
        ValueError: the group size does not divide the world size.
    """

    def __init__(
        self,
        allreduce: Allreduce,
        resources: Resources,
        *,
        group_size: int,
        rng: np.random.Generator,
        bus_bandwidth: float | None = None,
        step_latency: float | None = None,
        input_bandwidth: float | None = None,
    ) -> None:
        self.resources = resources
        self._allreduce = allreduce
        order = ranks_in_order(allreduce.order, resources, rng)
        self._all = Groups(order[None], Recipes(allreduce), resources)
        self._groups_by_key: dict[tuple[object, ...], Groups] = {}
        self._divide(group_size, bus_bandwidth, step_latency, input_bandwidth)

    def regroup(
        self,
        group_size: int,
        bus_bandwidth: float | None = None,
        step_latency: float | None = None,
        input_bandwidth: float | None = None,
    ) -> Communicators:
        """Return these ranks in model groups of another size; unchanged groups are
        shared.

        Arguments are those of the class: a bandwidth or latency of None is again the
        allreduce's, not the one that these groups have.

        Raises:
            ValueError: ``group_size`` does not divide the world size.
        """
        regrouped = copy(self)
        regrouped._divide(group_size, bus_bandwidth, step_latency, input_bandwidth)
        return regrouped

    def _divide(
        self,
        group_size: int,
        bus_bandwidth: float | None,
        step_latency: float | None,
        input_bandwidth: float | None,
    ) -> None:
        """Set the groups of each kind for model groups of ``group_size`` ranks.

        Raises:
            ValueError: the size does not divide the number of ranks.
        """
        order = self._all.ranks[0]
        if len(order) % group_size:
            raise ValueError(
                f"{group_size} ranks of a group do not divide {len(order)} ranks"
            )
        model_groups = order.reshape(-1, group_size)
        measured = bus_bandwidth, step_latency
        self.ways = group_size
        self._groups_of_kind: dict[Group, Groups] = {
            "model": self._groups(model_groups, *measured),
            "members": self._groups(model_groups, None, None),
            "input": self._groups(model_groups, input_bandwidth, None),
            "data": self._groups(np.ascontiguousarray(model_groups.T), None, None),
            "all": self._all,
        }

    def _groups(
        self, ranks: Ints32, bus_bandwidth: float | None, step_latency: float | None
    ) -> Groups:
        """Return groups of ``ranks``, (groups, members), with these values in place of
        the allreduce's; made once.

        All ranks in one group, both values None, are those of kind 'all'.
        """
        is_whole_world = ranks.size == self._all.ranks.size == ranks.shape[1]
        if is_whole_world and bus_bandwidth is None and step_latency is None:
            return self._all
        key = (*ranks.shape, ranks[0, 0], ranks[0, -1], bus_bandwidth, step_latency)
        if key not in self._groups_by_key:
            recipes = Recipes(
                override_performance(self._allreduce, bus_bandwidth, step_latency)
            )
            self._groups_by_key[key] = Groups(ranks, recipes, self.resources)
        return self._groups_by_key[key]

    def ranks(self, group: Group) -> Ints32:
        """Return the ranks of each group of a kind, (groups, members)."""
        return self._groups_of_kind[group].ranks

    def _groups_of_node(self, node: Node) -> Groups:
        """Return the groups that a node is of: all of its kind, or, if it names a
        member of 'data', the data group of that member alone.
        """
        groups = self._groups_of_kind[node.group]
        if node.group != "data" or node.member == ALL:
            return groups
        return self._groups(groups.ranks[node.member : node.member + 1], None, None)

    def seconds(self, node: Node) -> float:
        """Return the seconds that a node sends, all its groups at once on an idle
        machine, its ``count`` messages one after the other; 0 if nobody sends.
        """
        return self._groups_of_node(node).seconds(node)

    def batch(self, node: Node) -> tuple[TransferBatch, Ints32] | None:
        """Return the transfers that a node sends in all its groups, and (transfers,)
        the number of each one's group; None if nobody sends. Kept: do not change them.
        """
        return self._groups_of_node(node).batch(node)


@dataclass(frozen=True)
class StepTransfers:
    """Transfers of a step: the computing and sending of model groups.

    Arrays hold indices of transfers in ``batch``.
    """

    # the transfers. What is computed is a transfer without links whose delay are its seconds.
    batch: TransferBatch
    begins: Ints32  # (groups,) the transfer, of no time, that all of a group wait for
    # (groups,) the transfer, of no time, that waits for all of a group, and for all that it has a
    # part in
    ends: Ints32
    computes: Ints32  # (computing,) the transfers that compute, node by node
    seconds: Floats  # (computing,) their s
    group_of: Ints32  # (computing,) whose they are: positions in ``begins``

    def with_computing_scaled(self, factor: Floats) -> TransferBatch:
        """Return a new batch in which each group computes ``factor``, (groups,), times
        as long as in ``batch``.
        """
        records = self.batch.tasks.copy()
        records["delay"][self.computes] = self.seconds * factor[self.group_of]
        return TransferBatch(
            records, self.batch.routes, self.batch.edge_from, self.batch.edge_to
        )


def step_transfers(
    step: Step, communicators: Communicators, groups: Sequence[int] | None = None
) -> StepTransfers:
    """Turn a step into transfers: each node begins when all nodes for which it waits
    have ended.

    A node in which ranks of all model groups take part waits for all groups, and all
    wait for it. A node that sends nothing, as in groups of one rank, takes no time.

    Args:
        groups: numbers of the model groups, each once, in the order of ``begins`` and
            ``ends``; None for all.

    Raises:
        ValueError: a node is of kind 'data' or 'all', and ``groups`` are not all.
    """
    count = len(communicators.ranks("model"))
    chosen = np.arange(count) if groups is None else np.asarray(groups)
    builder = _StepBuilder(communicators, chosen, is_complete=len(chosen) == count)
    for index, node in enumerate(step.nodes):
        builder.add(index, node)
    return builder.transfers()


def step_seconds(step: Step, communicators: Communicators, model: Network) -> float:
    """Simulate a step of all groups while nothing else uses the machine; return its s.

    ``model`` says how cables are shared.
    """
    batch = step_transfers(step, communicators).batch
    return communicators.resources.seconds_alone(batch, model)


class _StepBuilder:
    """Builds the transfers of a step, node by node."""

    def __init__(
        self, communicators: Communicators, chosen: Ints, is_complete: bool
    ) -> None:
        self._communicators = communicators
        self._is_complete = is_complete
        self._slot_of_group = np.full(len(communicators.ranks("model")), -1, np.int32)
        self._slot_of_group[chosen] = np.arange(len(chosen))
        self._width = communicators.resources.width
        self._groups = len(chosen)
        self._count = 0
        self._records: list[NDArray[Any]] = []
        self._routes: list[Ints32] = []
        self._edges: list[tuple[Ints32, Ints32]] = []
        self._computed: list[tuple[Ints32, float]] = []
        self._ends: list[Ints32] = []
        self._unawaited: set[int] = set()
        self._begins = self._append_joins(len(chosen))

    def add(self, index: int, node: Node) -> None:
        """Append the transfers of a node; ``index`` is its place in the step, from 0.

        Nodes are added in the order of the step.
        """
        self._unawaited.difference_update(node.predecessors)
        self._unawaited.add(index)
        predecessors = [self._ends[k] for k in node.predecessors] or [self._begins]
        if node.collective is None:
            computing = self._append_joins(self._groups, node.seconds)
            self._computed.append((computing, node.seconds))
            for end_transfers in predecessors:
                self._edge(end_transfers, computing)
            self._ends.append(computing)
        else:
            self._ends.append(self._append_messages(node, predecessors))

    def _append_messages(self, node: Node, predecessors: list[Ints32]) -> Ints32:
        """Append what a node sends; return the transfers that end it, one for each
        group: where a group sends nothing, those that the node waited for. A node that
        joins all groups has one end for all of them.

        Raises:
            ValueError: the node joins all groups, and not all are chosen.
        """
        laid = self._communicators.batch(node)
        is_common = node.joins_groups
        if is_common and not self._is_complete:
            raise ValueError(f"'{node.label}' joins all groups")
        if is_common:
            predecessor_ends = np.unique(np.concatenate(predecessors))
            ready = predecessor_ends
            if len(predecessor_ends) > 1:
                ready = self._append_joins(1)
                self._edge(
                    predecessor_ends, np.broadcast_to(ready, len(predecessor_ends))
                )
        elif len(predecessors) > 1:
            ready = self._append_joins(self._groups)
            for end_transfers in predecessors:
                self._edge(end_transfers, ready)
        else:
            ready = predecessors[0]
        if laid is not None:
            batch, slot = laid
            slot = np.zeros_like(slot) if is_common else self._slot_of_group[slot]
            if not self._is_complete:
                selected = np.flatnonzero(slot >= 0)  # of the chosen groups
                batch = batch.select(selected)
                slot = slot[selected]
            first = self._append(batch.tasks, batch.routes)
            self._edge(batch.edge_from + first, batch.edge_to + first)
            begins, ends = (
                np.flatnonzero(np.bincount(edge, minlength=len(batch)) == 0).astype(
                    np.int32
                )
                for edge in (batch.edge_to, batch.edge_from)
            )
            self._edge(ready[slot[begins]], begins + first)
            joined = self._append_joins(len(ready))
            self._edge(ends + first, joined[slot[ends]])
            silent = np.bincount(slot, minlength=len(ready)) == 0
            ready = np.where(silent, ready, joined)
        return np.broadcast_to(ready, self._groups)

    def transfers(self) -> StepTransfers:
        """Return the finished step."""
        ends = self._append_joins(self._groups)
        for index in sorted(self._unawaited):
            self._edge(self._ends[index], ends)
        if not self._unawaited:
            self._edge(self._begins, ends)
        edge_from, edge_to = (
            np.concatenate(ends_of_edges)
            for ends_of_edges in zip(*self._edges, strict=True)
        )
        batch = TransferBatch(
            np.concatenate(self._records),
            np.concatenate(self._routes),
            edge_from,
            edge_to,
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

    def _append(self, records: NDArray[Any], routes: Ints32) -> np.int32:
        """Append transfers; return the number of the first."""
        first = self._count
        self._records.append(records)
        self._routes.append(routes)
        self._count += len(records)
        return np.int32(first)

    def _append_joins(self, count: int, seconds: float = 0.0) -> Ints32:
        """Append ``count`` transfers without links, of ``seconds`` s each; return their
        numbers.
        """
        first = self._append(
            tasks(count, delay=seconds), np.full((count, self._width), -1, np.int32)
        )
        return first + np.arange(count, dtype=np.int32)

    def _edge(self, edge_from: Ints32, edge_to: Ints32) -> None:
        """Note that transfers ``edge_to`` wait for ``edge_from``, one for one."""
        self._edges.append((edge_from, edge_to))

"""Find which operations of a training step wait for which, in a table of a real job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.kinds import COLLECTIVES, LOCAL, PASSING, Role
from simshuffle.extensions.doctor.blame.trace import JobTrace

PEERS = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
"""Kind that receives what a stage sends, and its stage, counted from the sender's."""
CLOCK_S = 1e-3
"""Seconds by which clocks of ranks may differ (chosen above the 0.5 ms of the
artifact).
"""


class OperationGroup(NamedTuple):
    """Operations that end together: when all have begun, and what they transfer is
    there.
    """

    members: tuple[int, ...]  # indices in `JobTrace.operations`
    # indices of the operations each member waits for
    dependencies: tuple[tuple[int, ...], ...]
    in_all_pipelines: bool  # whether the group includes the operations of all pipelines


def find_dependencies(trace: JobTrace, source: str = "") -> list[OperationGroup]:
    """Find what waits for what, from the kinds and the order of the starts; the groups
    are in an order in which they can be replayed.

    A rank computes one operation after the other, and does one collective after the
    other. A collective begins after what the rank computed before it. An all-gather
    ends before the computation that came after it, any collective before what follows
    that is neither forward nor backward, or for which every rank was idle while the
    collective ran. The i-th send begins after the i-th computation of its direction.
    The i-th receive begins after the computation before, and ends before the i-th. A
    send and its receive end together, as do a collective's operations.

    Args:
        trace: of a job.
        source: its name, for errors.

    Raises:
        InputError: sends have no receives or computations, or operations wait for one
            another in a circle.
    """
    builder = _DependencyBuilder(trace, source)
    for stage in range(len(trace.stages)):
        builder.add_stage(stage)
    dependencies = builder.dependencies
    groups = list(builder.find_groups())
    ordered: list[OperationGroup] = []
    replayed: set[int] = set()
    while groups:
        ready = [
            group
            for group in groups
            if all(dependencies[member] <= replayed for member in group[0])
        ]
        if not ready:
            rule = "operations must not wait for one another in a circle"
            first = trace.operations[groups[0][0][0]]
            remedy = "Leave out steps whose operations are in another order."
            refuse("start", rule, f"{first[1]} of stage {first[0]}", remedy, source)
        for members, in_all_pipelines in ready:
            waits_for = tuple(tuple(sorted(dependencies[member])) for member in members)
            ordered.append(OperationGroup(members, waits_for, in_all_pipelines))
            replayed.update(members)
        groups = [group for group in groups if group not in ready]
    return ordered


class _DependencyBuilder:
    """Collects what every operation of a trace waits for, stage by stage.

    Attributes:
        dependencies: for each operation the indices of those that it waits for.
    """

    def __init__(self, trace: JobTrace, source: str) -> None:
        self._trace = trace
        self._source = source
        self._index_of = {
            operation: index for index, operation in enumerate(trace.operations)
        }
        self.dependencies: list[set[int]] = [set() for _ in self._index_of]
        self._role = [trace.roles[kind] for _, kind, _ in trace.operations]
        # (operations,) s; the axes of a trace are operation, step, pipeline
        self._start = np.median(trace.starts, axis=(1, 2))
        self._end = np.median(trace.starts + trace.durations, axis=(1, 2))

    def add_stage(self, stage: int) -> None:
        """Add the dependencies of a stage's operations on others of their rank.

        Raises:
            InputError: a send or a receive has no computation.
        """
        start = self._start
        end = self._end
        role = self._role
        of_stage = sorted(
            (
                index
                for operation, index in self._index_of.items()
                if operation[0] == stage
            ),
            key=lambda index: (start[index], self._trace.operations[index]),
        )
        local = [index for index in of_stage if role[index] in LOCAL]
        collectives = [index for index in of_stage if role[index] in COLLECTIVES]
        passes_samples = any(role[index] in PASSING for index in of_stage)
        for chain in (local, collectives):
            for previous, following in pairwise(chain):
                self.dependencies[following].add(previous)
        for collective in collectives:
            earlier = [
                index for index in local if end[index] <= start[collective] + CLOCK_S
            ]
            self.dependencies[collective].update(earlier[-1:])
            for following in local:
                is_awaited = (
                    role[collective] is Role.GATHER
                    or role[following] is not Role.ONWARD
                )
                is_awaited = is_awaited or (
                    not passes_samples
                    and _fills_gap(self._trace, collective, following, local)
                )
                is_earlier = start[collective] < start[following]
                if (
                    is_awaited
                    and is_earlier
                    and end[collective] <= start[following] + CLOCK_S
                ):
                    self.dependencies[following].add(collective)
        for index in of_stage:
            if role[index] in PASSING:
                self._add_transfer(index)

    def _add_transfer(self, operation: int) -> None:
        """Add the dependencies of a send or a receive, and of the computation that
        waits for it.
        """
        stage, kind, repetition = self._trace.operations[operation]
        direction, _, act = kind.partition("-")
        computation = f"{direction}-compute"
        computing = self._index_of.get((stage, computation, repetition))
        if computing is None:
            rule = (
                f"must have a {computation} for each {kind};"
                " a stage with several parts of a model is not supported"
            )
            self._refuse_transfer(operation, rule)
        if repetition:
            self.dependencies[operation].add(
                self._index_of[stage, kind, repetition - 1]
            )
        if act == "send":
            self.dependencies[operation].add(computing)
            return
        self.dependencies[computing].add(operation)
        if repetition:
            self.dependencies[operation].add(
                self._index_of[stage, computation, repetition - 1]
            )

    def _refuse_transfer(self, operation: int, rule: str) -> NoReturn:
        """Refuse a send or a receive that breaks ``rule``."""
        stage, kind, repetition = self._trace.operations[operation]
        value = f"{kind} {repetition + 1} of stage {self._trace.stages[stage]}"
        refuse(
            "kind",
            rule,
            value,
            "Leave out operations that pass nothing on.",
            self._source,
        )

    def find_groups(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Yield groups of operations of a pipeline that end together, each operation in
        one group, and whether the group includes all pipelines.

        Raises an InputError if a send or a receive has no counterpart.
        """
        receivers = {
            receive: (send, -offset) for send, (receive, offset) in PEERS.items()
        }
        for (stage, kind, repetition), index in self._index_of.items():
            role = self._trace.roles[kind]
            if role in PASSING:
                peer_kind, offset = PEERS[kind] if kind in PEERS else receivers[kind]
                peer = self._index_of.get((stage + offset, peer_kind, repetition))
                if peer is None:
                    rule = f"every {kind} must have its {peer_kind} in the neighbouring stage"
                    self._refuse_transfer(index, rule)
                if kind in PEERS:
                    yield (index, peer), False
            elif role in (Role.ENDS, Role.EVERYONE):
                operations = [
                    (number, kind, repetition)
                    for number in range(len(self._trace.stages))
                ]
                members = [
                    self._index_of[operation]
                    for operation in operations
                    if operation in self._index_of
                ]
                if index == members[0]:
                    yield tuple(members), role is Role.EVERYONE
            else:
                yield (index,), role in (Role.COLLECTIVE, Role.GATHER)


def _fills_gap(
    trace: JobTrace, collective: int, following: int, local: Sequence[int]
) -> bool:
    """Return whether every rank computes nothing while a collective runs, in every
    step, between the computation before it and ``following``; ``local`` has what the
    rank computes, in order. False if nothing is before, or it takes `CLOCK_S` at most.
    """
    position = local.index(following)
    if not position:
        return False
    start = trace.starts[collective]  # (step, pipeline) s, as are all times below
    end = start + trace.durations[collective]
    previous = local[position - 1]
    previous_end = trace.starts[previous] + trace.durations[previous]
    is_idle = (previous_end <= start + CLOCK_S) & (
        end <= trace.starts[following] + CLOCK_S
    )
    return bool(is_idle.all() and trace.durations[collective].max() > CLOCK_S)

"""Find which operations of a training step wait for which, in a table of a real job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.kinds import COLLECTIVES, LOCAL, PASSING, Role
from simshuffle.extensions.doctor.blame.trace import JobTrace

PEERS = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
"""Kind that receives what a stage sends, and its stage, counted from the sender's."""
CLOCK_S = 1e-3
"""Seconds by which clocks of ranks may differ (chosen above the 0.5 ms of the artifact)."""


class OperationGroup(NamedTuple):
    """Operations that end together: when all have begun, and what they transfer is there."""

    members: tuple[int, ...]  # indices of the operations
    dependencies: tuple[tuple[int, ...], ...]  # indices of the operations each member waits for
    in_all_pipelines: bool  # whether the group includes the operations of all pipelines


def find_dependencies(trace: JobTrace, source: str = "") -> list[OperationGroup]:
    """Find what waits for what, from the kinds and the order of the starts; the groups are in an
    order in which they can be replayed.

    A rank computes one operation after the other, and does one collective after the other. A
    collective begins after what the rank computed before it. An all-gather ends before the
    computation that came after it, any collective before what follows that is neither forward nor
    backward, or for which every rank was idle while the collective ran. The i-th send begins after
    the i-th computation of its direction. The i-th receive begins after the computation before, and
    ends before the i-th. A send and its receive end together, as do a collective's operations.

    Args:
        trace: of a job.
        source: its name.

    Raises:
        InputError: sends have no receives, or all operations wait for one another.
    """
    index_of = {operation: index for index, operation in enumerate(trace.operations)}
    dependencies: list[set[int]] = [set() for _ in index_of]
    for stage in range(len(trace.stages)):
        _add_rank_dependencies(trace, stage, index_of, dependencies, source)
    groups = list(_find_groups(trace, index_of, source))
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


def _add_rank_dependencies(
    trace: JobTrace,
    stage: int,
    index_of: Mapping[tuple[int, str, int], int],
    dependencies: list[set[int]],
    source: str,
) -> None:
    """Add the dependencies of a stage's operations on others of their rank.

    Args:
        trace: of a job.
        stage: its index.
        index_of: index of each operation.
        dependencies: for each operation the indices of those that it waits for; is extended.
        source: name of the trace.
    """
    start = np.median(trace.starts, axis=(1, 2))
    end = np.median(trace.starts + trace.durations, axis=(1, 2))
    of_stage = sorted(
        (index for operation, index in index_of.items() if operation[0] == stage),
        key=lambda index: (start[index], trace.operations[index]),
    )
    role = [trace.roles[operation[1]] for operation in trace.operations]
    local = [index for index in of_stage if role[index] in LOCAL]
    collectives = [index for index in of_stage if role[index] in COLLECTIVES]
    passes_samples = any(role[index] in PASSING for index in of_stage)
    for chain in (local, collectives):
        for previous, following in pairwise(chain):
            dependencies[following].add(previous)
    for collective in collectives:
        earlier = [index for index in local if end[index] <= start[collective] + CLOCK_S]
        dependencies[collective].update(earlier[-1:])
        for following in local:
            is_awaited = role[collective] is Role.GATHER or role[following] is not Role.ONWARD
            is_awaited = is_awaited or (
                not passes_samples and _fills_gap(trace, collective, following, local)
            )
            is_earlier = start[collective] < start[following]
            if is_awaited and is_earlier and end[collective] <= start[following] + CLOCK_S:
                dependencies[following].add(collective)
    for index in of_stage:
        if role[index] in PASSING:
            _add_passing_dependencies(trace, index, index_of, dependencies, source)


def _fills_gap(trace: JobTrace, collective: int, following: int, local: Sequence[int]) -> bool:
    """Return whether every rank computes nothing while a collective runs, in every step, between
    the computation before it and ``following``; ``local`` has what the rank computes, in order."""
    position = local.index(following)
    if not position:
        return False
    start = trace.starts[collective]
    end = start + trace.durations[collective]
    previous = local[position - 1]
    previous_end = trace.starts[previous] + trace.durations[previous]
    is_idle = (previous_end <= start + CLOCK_S) & (end <= trace.starts[following] + CLOCK_S)
    return bool(is_idle.all() and trace.durations[collective].max() > CLOCK_S)


def _add_passing_dependencies(
    trace: JobTrace,
    operation: int,
    index_of: Mapping[tuple[int, str, int], int],
    dependencies: list[set[int]],
    source: str,
) -> None:
    """Add the dependencies of a send or a receive, and of the computation that waits for it.

    Args:
        trace: of a job.
        operation: index of the send or receive.
        index_of: index of each operation.
        dependencies: for each operation the indices of those that it waits for; is extended.
        source: name of the trace.
    """
    stage, kind, repetition = trace.operations[operation]
    direction, _, act = kind.partition("-")
    computation = f"{direction}-compute"
    computing = index_of.get((stage, computation, repetition))
    if computing is None:
        rule = f"must have a {computation} for each {kind}; several parts of a model in a stage"
        value = f"{kind} {repetition + 1} of stage {trace.stages[stage]}"
        refuse("kind", f"{rule} are not known", value, "Leave out what passes nothing.", source)
    if repetition:
        dependencies[operation].add(index_of[stage, kind, repetition - 1])
    if act == "send":
        dependencies[operation].add(computing)
        return
    dependencies[computing].add(operation)
    if repetition:
        dependencies[operation].add(index_of[stage, computation, repetition - 1])


def _find_groups(
    trace: JobTrace, index_of: Mapping[tuple[int, str, int], int], source: str
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield groups of operations of a pipeline that end together, each operation in one group, and
    whether the group includes all pipelines."""
    receivers = {receive: (send, -offset) for send, (receive, offset) in PEERS.items()}
    for (stage, kind, repetition), index in index_of.items():
        role = trace.roles[kind]
        if role in PASSING:
            peer_kind, offset = PEERS[kind] if kind in PEERS else receivers[kind]
            peer = index_of.get((stage + offset, peer_kind, repetition))
            if peer is None:
                rule = f"every {kind} must have its {peer_kind} in the stage beside"
                value = f"{kind} {repetition + 1} of stage {trace.stages[stage]}"
                refuse("kind", rule, value, "Leave out what passes nothing.", source)
            if kind in PEERS:
                yield (index, peer), False
        elif role in (Role.ENDS, Role.EVERYONE):
            operations = [(number, kind, repetition) for number in range(len(trace.stages))]
            members = [index_of[operation] for operation in operations if operation in index_of]
            if index == members[0]:
                yield tuple(members), role is Role.EVERYONE
        else:
            yield (index,), role in (Role.COLLECTIVE, Role.GATHER)

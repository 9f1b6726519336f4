"""Find operations of a trace that hold others, as the timers of Megatron-LM and
DeepSpeed do, and operations in which ranks wait for one another without a name that
says so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.kinds import LOCAL, Role
from simshuffle.extensions.doctor.blame.trace import JobTrace
from simshuffle.spec.arrays import Floats

UNCOVERED = 0.05
"""Share of an operation outside those that it holds, from which on it is more than
their bracket (chosen).
"""
SAME_END = 0.25
"""Spread of the ends of an operation over ranks, as a share of the spread of its
starts, below which ranks end it together (chosen).
"""
MIN_PAIRS = 4
"""Pairs of ranks and steps that must end together, so that it is not by chance
(chosen).
"""
RESOLUTION_S = 1e-6
"""Seconds by which a nested operation may lie outside: a tick of the profiler's clock."""


def untangle(trace: JobTrace, source: str) -> JobTrace:
    """Return the trace without operations that hold, or are part of, others, and with
    the role of a collective for those that all ranks end together.

    A local operation that holds other local ones is left out if at most `UNCOVERED` of
    it is beside what it holds. If it is longer and holds one local kind, that kind is
    left out instead. So is whatever runs inside a kind that all ranks end together. A
    kind is left out as a whole: in all stages, and however often it comes in a step.
    The notes of the trace name both changes; a trace without any is returned itself.

    Raises:
        InputError: an operation holds several local kinds and more beside them.
    """
    inside = _containment(trace)
    role = np.array(
        [trace.roles[kind] for _, kind, _ in trace.operations], dtype=object
    )
    is_local = np.array(
        [operation_role in LOCAL for operation_role in role], dtype=bool
    )
    left_out: dict[str, str] = {}
    for outer in np.flatnonzero(is_local).tolist():
        outer_kind = trace.operations[outer][1]
        inner = np.flatnonzero(inside[outer]).tolist()
        inner_kinds = sorted(
            {trace.operations[index][1] for index in inner if is_local[index]}
        )
        if not inner_kinds or outer_kind in left_out:
            continue
        uncovered = _uncovered_share(trace, outer, inner)
        if uncovered <= UNCOVERED:
            parts = sorted({trace.operations[index][1] for index in inner})
            left_out[outer_kind] = f"{outer_kind} (consists of {', '.join(parts)})"
        elif len(inner_kinds) == 1:
            left_out[inner_kinds[0]] = f"{inner_kinds[0]} (part of {outer_kind})"
        else:
            rule = "an operation that contains others must be no longer than these together"
            value = (
                f"{outer_kind}, {uncovered:.0%} of it outside {', '.join(inner_kinds)}"
            )
            refuse(
                "kind",
                rule,
                value,
                f"Leave out {outer_kind}, or the operations in it.",
                source,
            )
    meeting = _meeting_kinds(trace, left_out)
    for outer, (_, kind, _) in enumerate(trace.operations):
        if kind in meeting:
            for index in np.flatnonzero(inside[outer]).tolist():
                inner_kind = trace.operations[index][1]
                left_out[inner_kind] = f"{inner_kind} (part of {kind})"
    return _leave_out(trace, left_out, meeting)


def _containment(trace: JobTrace) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return flags (operations, operations): whether one (row) holds another (column)
    of its stage on every rank, in every step.

    It begins before and ends after, up to `RESOLUTION_S`, and is somewhere longer. An
    operation holds none of its own kind, and none that takes 0 s everywhere.
    """
    starts = trace.starts
    ends = trace.starts + trace.durations
    stage = np.array([operation[0] for operation in trace.operations])
    kind = np.array([operation[1] for operation in trace.operations])
    inside = np.zeros((len(stage), len(stage)), dtype=bool)
    # starts and ends are (operations, steps, pipelines): flags hold for all of these
    for outer in range(len(stage)):
        begins = (starts >= starts[outer] - RESOLUTION_S).all(axis=(1, 2))
        finishes = (ends <= ends[outer] + RESOLUTION_S).all(axis=(1, 2))
        shorter = (trace.durations < trace.durations[outer]).any(axis=(1, 2))
        lasts = (trace.durations > 0).any(axis=(1, 2))
        inside[outer] = begins & finishes & shorter & lasts
        inside[outer] &= (stage == stage[outer]) & (kind != kind[outer])
    return inside


def _uncovered_share(trace: JobTrace, outer: int, inner: list[int]) -> float:
    """Return the share of an operation's s in which nothing runs that it holds, over
    all ranks and steps.

    Args:
        trace: of a job.
        outer: index of the operation.
        inner: indices of the operations that it holds, at least one; they may overlap.
    """
    # (inner, steps x pipelines), each column in the order of its starts
    starts = trace.starts[inner].reshape(len(inner), -1)
    ends = starts + trace.durations[inner].reshape(len(inner), -1)
    order = np.argsort(starts, axis=0)
    starts = np.take_along_axis(starts, order, 0)
    ends = np.take_along_axis(ends, order, 0)
    reached = np.maximum.accumulate(ends, axis=0)
    covered: Floats = ends[0] - starts[0]
    for index in range(1, len(inner)):
        fresh = ends[index] - np.maximum(starts[index], reached[index - 1])
        covered = covered + np.maximum(fresh, 0.0)
    total = float(trace.durations[outer].sum())
    return 1.0 - float(covered.sum()) / total


def _meeting_kinds(trace: JobTrace, left_out: dict[str, str]) -> set[str]:
    """Return the local kinds that all ranks of a stage end together although they begin
    them one after the other: they wait for one another there.

    In every step all ranks are in it at once, and where starts differ, ends spread by
    at most `SAME_END` of the starts' spread. Kinds whose starts never differ, kinds
    with fewer than `MIN_PAIRS` pairs, and the keys of ``left_out`` are not among them.
    """
    meeting = set()
    ends = trace.starts + trace.durations
    kinds = np.array([operation[1] for operation in trace.operations])
    for kind in dict.fromkeys(kinds.tolist()):
        is_kind = kinds == kind
        num_pairs = is_kind.sum() * trace.starts.shape[1] * (trace.starts.shape[2] - 1)
        if trace.roles[kind] not in LOCAL or kind in left_out or num_pairs < MIN_PAIRS:
            continue
        # (operations of the kind, steps): over the pipelines, the last axis
        start_spread = np.ptp(trace.starts[is_kind], axis=2)
        end_spread = np.ptp(ends[is_kind], axis=2)
        overlap = trace.starts[is_kind].max(axis=2) <= ends[is_kind].min(axis=2)
        starts_differ = start_spread > RESOLUTION_S
        ends_together = end_spread <= SAME_END * start_spread
        if starts_differ.any() and overlap.all() and ends_together[starts_differ].all():
            meeting.add(kind)
    return meeting


def _leave_out(
    trace: JobTrace, left_out: dict[str, str], meeting: set[str]
) -> JobTrace:
    """Return the trace without some kinds, with others as collectives, and notes on
    both; the trace itself if there are none.

    Args:
        trace: of a job.
        left_out: for each kind to leave out, its name and the reason, as notes say it.
        meeting: kinds that become collectives.
    """
    if not left_out and not meeting:
        return trace
    retained = [
        index
        for index, operation in enumerate(trace.operations)
        if operation[1] not in left_out
    ]
    notes = list(trace.notes)
    if left_out:
        notes.append(f"Left out: {'; '.join(left_out.values())}.")
    notes += [
        f"Ranks end {kind} together, so they wait for one another in it: a rank that is slow"
        f" within {kind} does not show, a rank that comes late does."
        for kind in sorted(meeting)
    ]
    return replace(
        trace,
        operations=[trace.operations[index] for index in retained],
        starts=trace.starts[retained],
        durations=trace.durations[retained],
        roles={**trace.roles, **dict.fromkeys(meeting, Role.COLLECTIVE)},
        notes=tuple(notes),
    )

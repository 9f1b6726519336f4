"""Find who makes a training step slow, from a table of the operations that a real job
measured.

The operations are replayed as they were, as if nobody were slow, and with one rank,
stage or kind of operation at a time as the others are.

The method, and what waits for what: Lin et al., "Understanding Stragglers in Large
Model Training Using What-if Analysis", OSDI 2025, section 3, and its artifact
ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from simshuffle.extensions.doctor.blame.dependencies import (
    OperationGroup,
    find_dependencies,
)
from simshuffle.extensions.doctor.blame.kinds import LOCAL, PASSING
from simshuffle.extensions.doctor.blame.nesting import untangle
from simshuffle.extensions.doctor.blame.trace import JobTrace
from simshuffle.report.console import new_table
from simshuffle.spec.arrays import Floats
from simshuffle.study.verdict import Verdict

if TYPE_CHECKING:
    from rich.table import Table

SLOW = 1.05
"""A slow-down from which on somebody is called slow (chosen)."""
ROUNDING = 1e-6
"""Share of a step below which a difference is rounding (times since 1970 in s are known
to 2.4e-7 s as float64).
"""
MAX_ROWS = 5
"""Rows of ranks, stages and kinds each that a terminal shows at most."""


@dataclass(frozen=True)
class SuspectSaving:
    """Seconds of a step that are saved if one rank, stage or kind alone is not slow."""

    by: str  # rank, stage or kind
    name: str  # number of the rank or stage, or name of the kind
    # mean over the steps; below 0 where it is faster than the typical, 0 for rounding
    saved_s: float


@dataclass(frozen=True)
class Blame:
    """Duration of a step, and who makes it longer; all times are means over the steps,
    in s.
    """

    source: str  # name of the trace
    steps: int  # number of steps in the trace
    ranks: int  # number of ranks of all stages
    measured_s: float  # from the first start to the last end of any rank in a step
    step_s: float  # replayed, without gaps that no operation explains
    ideal_s: float  # replayed, all operations of a kind as `typical_durations` has them
    slow_down: float  # step_s / ideal_s; 1 where ideal_s is 0
    saved: list[SuspectSaving]  # every rank, stage and kind, worst first
    notes: tuple[str, ...] = ()  # sentences: what was read as another kind, or left out

    def rows(self, grouping: str) -> list[SuspectSaving]:
        """Return the rows of ``saved`` on ranks, stages or kinds, worst first.

        ``grouping`` is "rank", "stage" or "kind". A single stage has no row.
        """
        return [row for row in self.saved if row.by == grouping]

    def verdict(self) -> Verdict:
        """Return how slow a step is, who alone explains half of that or more, and on
        what that rests.

        Of the worst rank, the worst stage and the worst kind it names the first that
        explains half; it says so if none does. Nobody is slow below a slow-down of
        `SLOW`.
        """
        lost_s = self.step_s - self.ideal_s
        rests_on = (
            f"{self.steps} steps of {self.ranks} ranks; a replayed step takes {self.step_s:.3g} s,"
            f" a measured one {self.measured_s:.3g} s."
        )
        if self.slow_down < SLOW:
            gain = f"{max(lost_s, 0):.3g} s less if all were alike"
            answer = f"Nobody is slow: a step would take {gain}."
            return Verdict([answer], rests_on=rests_on)
        worst = [
            rows[0]
            for grouping in ("rank", "stage", "kind")
            if (rows := self.rows(grouping))
        ]
        main_suspects = [row for row in worst if row.saved_s >= lost_s / 2]
        why = "no rank, stage or kind alone explains half of that."
        if main_suspects:
            row = main_suspects[0]
            why = (
                f"if only {row.by} {row.name} were not slow, {row.saved_s:.3g} s less."
            )
        answer = f"If nobody were slow, a step would take {lost_s:.3g} s less."
        return Verdict([answer], why=why, rests_on=rests_on)

    def parts(self) -> list[str | Table]:
        """Return what a terminal shows: a table of the times, one of the `MAX_ROWS`
        worst ranks, stages and kinds each, the notes, and the verdict.
        """
        title = f"{self.source}: {self.ranks} ranks, {self.steps} steps"
        times = new_table(title, ["a step"], ["seconds"])
        times.add_row("measured", f"{self.measured_s:.4g}")
        times.add_row("replayed, without unexplained gaps", f"{self.step_s:.4g}")
        times.add_row("if nobody were slow", f"{self.ideal_s:.4g}")
        times.add_row("slow-down (a ratio)", f"{self.slow_down:.3g}")
        table = new_table(
            "Time saved if only this were not slow", ["by", "which"], ["seconds"]
        )
        for grouping in ("rank", "stage", "kind"):
            rows = self.rows(grouping)
            for row in rows[:MAX_ROWS]:
                table.add_row(grouping, row.name, f"{row.saved_s:.4f}")
            if len(rows) > MAX_ROWS:
                table.add_row("", f"and {len(rows) - MAX_ROWS} more", "")
        return [times, table, *self.notes, *self.verdict().lines()]

    def as_json(self) -> dict[str, Any]:
        """Return all fields by their names, ``verdict`` as a text, and
        ``verdict_parts``, as plain values, in s.
        """
        verdict = self.verdict()
        return {**asdict(self), **verdict.as_json(), "verdict": verdict.text()}


def _common_start(starts: Sequence[Floats], in_all_pipelines: bool) -> Floats:
    """Return when all operations of a group have begun, (steps, pipelines) s; with
    ``in_all_pipelines`` all pipelines of a step have one time.

    Args:
        starts: (steps, pipelines) s of each operation.
        in_all_pipelines: whether the operations of all pipelines belong to the group.
    """
    latest: Floats = reduce(np.maximum, starts)
    if in_all_pipelines:
        return np.broadcast_to(latest.max(1, keepdims=True), latest.shape)
    return latest


def durations_without_waits(
    trace: JobTrace, groups: Sequence[OperationGroup]
) -> Floats:
    """Return what each operation takes itself, (operations, steps, pipelines) s.

    An operation of a group takes the time from when the last of the group begins, at
    least 0. An operation that forms a group alone takes what was measured.
    """
    durations = trace.durations.copy()
    for members, _, in_all_pipelines in groups:
        if len(members) > 1 or in_all_pipelines:
            start = _common_start(
                [trace.starts[member] for member in members], in_all_pipelines
            )
            for member in members:
                end = trace.starts[member] + trace.durations[member]
                durations[member] = np.maximum(end - start, 0.0)
    return durations


def typical_durations(trace: JobTrace, durations: Floats) -> Floats:
    """Return for each operation what its kind typically takes, (operations,) s.

    All operations of a kind have one value. Over all stages, steps and ranks, it is the
    mean of kinds that a rank does alone, and the median of kinds that communicate, as
    in the paper.

    Args:
        trace: of a job.
        durations: (operations, steps, pipelines) s without waiting.
    """
    kinds = np.array([operation[1] for operation in trace.operations])
    typical_s = np.empty(len(kinds))
    for kind in np.unique(kinds):
        is_kind = kinds == kind
        average = np.mean if trace.roles[str(kind)] in LOCAL else np.median
        typical_s[is_kind] = average(durations[is_kind])
    return typical_s


def replay_steps(groups: Sequence[OperationGroup], durations: Floats) -> Floats:
    """Return what each step takes, (steps,) s, if operations begin when what they wait
    for ended: until the last end in any pipeline.

    Args:
        groups: in an order in which they can be replayed.
        durations: (operations, steps, pipelines) s without waiting.
    """
    ends = np.zeros_like(durations)
    for members, dependencies, in_all_pipelines in groups:
        starts = [
            ends[list(indices)].max(axis=0, initial=0.0) for indices in dependencies
        ]
        start = _common_start(starts, in_all_pipelines)
        for member in members:
            ends[member] = start + durations[member]
    longest: Floats = ends.max(axis=(0, 2))
    return longest


def blame(trace: JobTrace, source: str) -> Blame:
    """Find who makes the steps of a trace slow.

    Operations that hold others are left out first, and kinds that all ranks end
    together count as collectives (`untangle`). Differences of at most `ROUNDING` of a
    step count as 0.

    Args:
        trace: of a job.
        source: its name.

    Raises:
        InputError: an operation holds several others and more beside them, sends have
            no receives or computations, or operations wait in a circle.
    """
    trace = untangle(trace, source)
    groups = find_dependencies(trace, source)
    durations = durations_without_waits(trace, groups)
    typical_s = typical_durations(trace, durations)
    typical = np.broadcast_to(typical_s[:, None, None], durations.shape)
    step_s = float(replay_steps(groups, durations).mean())
    ideal_s = float(replay_steps(groups, typical).mean())
    if abs(step_s - ideal_s) <= ROUNDING * step_s:
        ideal_s = step_s
    savings = []
    for suspect_kind, name, index in _suspects(trace):
        changed = durations.copy()
        changed[index] = typical[index]
        saved_s = step_s - float(replay_steps(groups, changed).mean())
        saved_s = saved_s if abs(saved_s) > ROUNDING * step_s else 0.0
        savings.append(SuspectSaving(suspect_kind, name, saved_s))
    savings.sort(key=lambda row: -row.saved_s)
    return Blame(
        source=source,
        steps=durations.shape[1],
        ranks=sum(map(len, trace.ranks)),
        measured_s=float((trace.starts + trace.durations).max(axis=(0, 2)).mean()),
        step_s=step_s,
        ideal_s=ideal_s,
        slow_down=step_s / ideal_s if ideal_s else 1.0,
        saved=savings,
        notes=trace.notes,
    )


def _suspects(trace: JobTrace) -> Iterator[tuple[str, str, Any]]:
    """Yield what may be slow alone: "rank", "stage" or "kind", the name, and the index
    into arrays of (operations, steps, pipelines).

    A send and its receive are one kind, as "forward send and receive". A single stage
    is no suspect.
    """
    stages = np.array([operation[0] for operation in trace.operations])
    for stage, number in enumerate(trace.stages):
        operations = np.flatnonzero(stages == stage)
        for pipeline, rank in enumerate(trace.ranks[stage]):
            yield "rank", str(rank), np.s_[operations, :, pipeline]
        if len(trace.stages) > 1:
            yield "stage", str(number), operations
    names = [
        kind.rpartition("-")[0] + " send and receive"
        if trace.roles[kind] in PASSING
        else kind
        for _, kind, _ in trace.operations
    ]
    for name in dict.fromkeys(names):
        yield "kind", name, np.flatnonzero(np.array(names) == name)

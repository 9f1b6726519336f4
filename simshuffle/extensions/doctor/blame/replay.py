"""Who makes a training step slow: a table of the operations that a real job measured, replayed as
it was, as if nobody were slow, and with one rank, stage or kind of operation at a time as the
others are.

The method, and what waits for what: Lin et al., "Understanding Stragglers in Large Model Training
Using What-if Analysis", OSDI 2025, section 3, and its artifact ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.kinds import COLLECTIVES, LOCAL, PASSING, Role
from simshuffle.extensions.doctor.blame.nesting import untangle
from simshuffle.extensions.doctor.blame.trace import JobTrace
from simshuffle.report.console import new_table
from simshuffle.spec.arrays import Floats

if TYPE_CHECKING:
    from rich.table import Table

PEERS = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
"""Who receives what a stage sends: the kind, and the stage counted from its own."""
CLOCK_S = 1e-3
"""By how much clocks of ranks may differ, in s (chosen above the 0.5 ms of the artifact)."""
SLOW = 1.05
"""A slow-down from which on somebody is called slow (chosen)."""
NOTHING = 1e-6
"""Share of a step below which a difference is rounding (times since 1970 in s are known to 2.4e-7
s as float64)."""
SHOWN = 5
"""Rows of ranks, stages and kinds each that a terminal shows."""


class Together(NamedTuple):
    """Operations that end when all of them have begun and what they transfer is there."""

    members: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]  # of each member, what it waits for
    everywhere: bool  # with those of all other pipelines


@dataclass(frozen=True)
class Saved:
    """What goes of a step if one rank, stage or kind alone is not slow."""

    by: str  # rank, stage or kind
    name: str
    saved_s: float  # below 0 where it is faster than the typical


@dataclass(frozen=True)
class Blame:
    """What a step takes, and by whom; all times are means over the steps, in s."""

    source: str
    steps: int
    ranks: int
    measured_s: float  # from the first start to the last end
    step_s: float  # replayed, without gaps that no operation explains
    ideal_s: float  # replayed, all operations of a kind alike
    slow_down: float  # step_s / ideal_s
    saved: list[Saved]  # worst first
    notes: tuple[str, ...] = ()  # what was read as something else, or left out

    def rows(self, by: str) -> list[Saved]:
        """Those of ``saved`` of ranks, stages or kinds, worst first."""
        return [row for row in self.saved if row.by == by]

    def verdict(self) -> str:
        """One sentence: how slow, and the narrowest that half of it goes with."""
        lost = self.step_s - self.ideal_s
        if self.slow_down < SLOW:
            return f"Nobody is slow: a step would take {max(lost, 0):.3g} s less if all were alike."
        worst = [rows[0] for by in ("rank", "stage", "kind") if (rows := self.rows(by))]
        found = [row for row in worst if row.saved_s >= lost / 2]
        head = f"If nobody were slow, a step would take {lost:.3g} s less;"
        if not found:
            return f"{head} no rank, stage or kind alone is half of that."
        row = found[0]
        return f"{head} if {row.by} {row.name} alone were not, {row.saved_s:.3g} s less."

    def parts(self) -> list[str | Table]:
        """What a terminal shows: the times, the worst of each, the sentence."""
        title = f"{self.source}: {self.ranks} ranks, {self.steps} steps"
        times = new_table(title, ["a step"], ["seconds"])
        times.add_row("measured", f"{self.measured_s:.4g}")
        times.add_row("replayed, without unexplained gaps", f"{self.step_s:.4g}")
        times.add_row("if nobody were slow", f"{self.ideal_s:.4g}")
        times.add_row("slow-down (a ratio)", f"{self.slow_down:.3g}")
        table = new_table("What would go if it alone were not slow", ["by", "which"], ["seconds"])
        for by in ("rank", "stage", "kind"):
            rows = self.rows(by)
            for row in rows[:SHOWN]:
                table.add_row(by, row.name, f"{row.saved_s:.4f}")
            if len(rows) > SHOWN:
                table.add_row("", f"and {len(rows) - SHOWN} more", "")
        return [times, table, *self.notes, self.verdict()]

    def as_json(self) -> dict[str, Any]:
        """All as plain values, in s."""
        return {**asdict(self), "verdict": self.verdict()}


# ------------------------------------------------------------------------------ what waits for what


def rules(trace: JobTrace, source: str = "") -> list[Together]:
    """What waits for what, in an order in which it can be replayed; found from the names of kinds
    and from the order of the starts.

    A rank computes one operation after the other, and does one collective after the other. A
    collective begins after what the rank computed before it. An all-gather ends before the
    computation that came after it, any collective before what follows that is neither forward nor
    backward, or for which every rank was idle while the collective ran. The
    i-th send begins after the i-th computation of its direction, the i-th receive after the one
    before, and ends before the i-th. A send and its receive end together, as do a collective's
    operations. Raises an InputError if sends have no receives, or all wait for one another."""
    number = {operation: index for index, operation in enumerate(trace.operations)}
    after: list[set[int]] = [set() for _ in number]
    for stage in range(len(trace.stages)):
        _within_ranks(trace, stage, number, after, source)
    groups = list(_groups(trace, number, source))
    ordered: list[Together] = []
    done: set[int] = set()
    while groups:
        ready = [group for group in groups if all(after[of] <= done for of in group[0])]
        if not ready:
            rule = "operations must not wait for one another in a circle"
            first = trace.operations[groups[0][0][0]]
            remedy = "Leave out steps whose operations are in another order."
            refuse("start", rule, f"{first[1]} of stage {first[0]}", remedy, source)
        for members, everywhere in ready:
            ordered.append(
                Together(members, tuple(tuple(sorted(after[of])) for of in members), everywhere)
            )
            done.update(members)
        groups = [group for group in groups if group not in ready]
    return ordered


def _within_ranks(
    trace: JobTrace,
    stage: int,
    number: Mapping[tuple[int, str, int], int],
    after: list[set[int]],
    source: str,
) -> None:
    """Add to ``after`` what operations wait for that the same rank does."""
    start = np.median(trace.starts, axis=(1, 2))
    end = np.median(trace.starts + trace.durations, axis=(1, 2))
    ours = sorted(
        (index for (of, _, _), index in number.items() if of == stage),
        key=lambda index: (start[index], trace.operations[index]),
    )
    role = [trace.roles[operation[1]] for operation in trace.operations]
    local = [index for index in ours if role[index] in LOCAL]
    collectives = [index for index in ours if role[index] in COLLECTIVES]
    passes = any(role[index] in PASSING for index in ours)
    for chain in (local, collectives):
        for before, behind in pairwise(chain):
            after[behind].add(before)
    for of in collectives:
        after[of].update([x for x in local if end[x] <= start[of] + CLOCK_S][-1:])
        for behind in local:
            awaited = role[of] is Role.GATHER or role[behind] is not Role.ONWARD
            awaited = awaited or (not passes and _fills_gap(trace, of, behind, local))
            if awaited and start[of] < start[behind] and end[of] <= start[behind] + CLOCK_S:
                after[behind].add(of)
    for index in ours:
        if role[index] in PASSING:
            _passing(trace, index, number, after, source)


def _fills_gap(trace: JobTrace, collective: int, behind: int, local: Sequence[int]) -> bool:
    """Return whether every rank computes nothing while a collective runs, in every step, between
    the computation before it and ``behind``; ``local`` has what the rank computes, in order."""
    place = local.index(behind)
    if not place:
        return False
    start, end = trace.starts[collective], trace.starts[collective] + trace.durations[collective]
    before = local[place - 1]
    before_end = trace.starts[before] + trace.durations[before]
    is_idle = (before_end <= start + CLOCK_S) & (end <= trace.starts[behind] + CLOCK_S)
    return bool(is_idle.all() and trace.durations[collective].max() > CLOCK_S)


def _passing(
    trace: JobTrace,
    of: int,
    number: Mapping[tuple[int, str, int], int],
    after: list[set[int]],
    source: str,
) -> None:
    """Add to ``after`` what a send or a receive waits for, and what for it."""
    stage, kind, index = trace.operations[of]
    direction, _, act = kind.partition("-")
    computation = f"{direction}-compute"
    if (computed := number.get((stage, computation, index))) is None:
        rule = f"must have a {computation} for each {kind}; several parts of a model in a stage"
        value = f"{kind} {index + 1} of stage {trace.stages[stage]}"
        refuse("kind", f"{rule} are not known", value, "Leave out what passes nothing.", source)
    if index:
        after[of].add(number[stage, kind, index - 1])
    if act == "send":
        after[of].add(computed)
        return
    after[computed].add(of)
    if index:
        after[of].add(number[stage, computation, index - 1])


def _groups(
    trace: JobTrace, number: Mapping[tuple[int, str, int], int], source: str
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Operations of a pipeline that end together, each in one group, and whether those of other
    pipelines do, too."""
    receivers = {peer: (kind, -by) for kind, (peer, by) in PEERS.items()}
    for (stage, kind, index), of in number.items():
        role = trace.roles[kind]
        if role in PASSING:
            peer, by = PEERS[kind] if kind in PEERS else receivers[kind]
            other = number.get((stage + by, peer, index))
            if other is None:
                rule = f"every {kind} must have its {peer} in the stage beside"
                value = f"{kind} {index + 1} of stage {trace.stages[stage]}"
                refuse("kind", rule, value, "Leave out what passes nothing.", source)
            if kind in PEERS:
                yield (of, other), False
        elif role in (Role.ENDS, Role.EVERYONE):
            stages = range(len(trace.stages))
            members = [number[x, kind, index] for x in stages if (x, kind, index) in number]
            if of == members[0]:
                yield tuple(members), role is Role.EVERYONE
        else:
            yield (of,), role in (Role.COLLECTIVE, Role.GATHER)


# --------------------------------------------------------------------------------------- the replay


def _met(times: Sequence[Floats], everywhere: bool) -> Floats:
    """When all have begun (step, pipeline)."""
    latest: Floats = reduce(np.maximum, times)
    return np.broadcast_to(latest.max(1, keepdims=True), latest.shape) if everywhere else latest


def own_durations(trace: JobTrace, groups: Sequence[Together]) -> Floats:
    """What each operation takes itself (operation, step, pipeline), s: of what several do
    together, from when the last of them begins."""
    own = trace.durations.copy()
    for members, _, everywhere in groups:
        if len(members) > 1 or everywhere:
            begun = _met([trace.starts[of] for of in members], everywhere)
            for of in members:
                own[of] = np.maximum(trace.starts[of] + trace.durations[of] - begun, 0.0)
    return own


def typical(trace: JobTrace, own: Floats) -> Floats:
    """For each operation what its kind typically takes (operation,), s: over all stages, steps and
    ranks the mean of what is computed, the median of what is communicated, as in the paper."""
    kinds = np.array([operation[1] for operation in trace.operations])
    found = np.empty(len(kinds))
    for kind in np.unique(kinds):
        of = kinds == kind
        found[of] = (np.mean if trace.roles[str(kind)] in LOCAL else np.median)(own[of])
    return found


def replay(groups: Sequence[Together], own: Floats) -> Floats:
    """What each step takes (step,), s, if operations take ``own`` and begin when what they wait
    for has ended."""
    ends = np.zeros_like(own)
    for members, after, everywhere in groups:
        begun = _met([ends[list(of)].max(axis=0, initial=0.0) for of in after], everywhere)
        for of in members:
            ends[of] = begun + own[of]
    longest: Floats = ends.max(axis=(0, 2))
    return longest


def blame(trace: JobTrace, source: str) -> Blame:
    """Who makes the steps of a trace slow; ``source`` is its name. Errors as of `rules`."""
    trace = untangle(trace, source)
    groups = rules(trace, source)
    own = own_durations(trace, groups)
    usual = np.broadcast_to(typical(trace, own)[:, None, None], own.shape)
    step_s = float(replay(groups, own).mean())
    ideal_s = float(replay(groups, usual).mean())
    if abs(step_s - ideal_s) <= NOTHING * step_s:
        ideal_s = step_s
    saved = []
    for by, name, where in _suspects(trace):
        changed = own.copy()
        changed[where] = usual[where]
        saved_s = step_s - float(replay(groups, changed).mean())
        saved.append(Saved(by, name, saved_s if abs(saved_s) > NOTHING * step_s else 0.0))
    saved.sort(key=lambda row: -row.saved_s)
    measured = (trace.starts + trace.durations).max(axis=(0, 2)).mean()
    ratio = step_s / ideal_s if ideal_s else 1.0
    ranks = sum(map(len, trace.ranks))
    times = (float(measured), step_s, ideal_s, ratio)
    return Blame(source, own.shape[1], ranks, *times, saved, trace.notes)


def _suspects(trace: JobTrace) -> Iterator[tuple[str, str, Any]]:
    """Ranks, stages and kinds: by what, its name, and where it is in (operation, step, pipeline). A
    send and its receive are one kind."""
    stages = np.array([operation[0] for operation in trace.operations])
    for stage, number in enumerate(trace.stages):
        of = np.flatnonzero(stages == stage)
        for pipeline, rank in enumerate(trace.ranks[stage]):
            yield "rank", str(rank), np.s_[of, :, pipeline]
        if len(trace.stages) > 1:
            yield "stage", str(number), of
    names = [
        kind.rpartition("-")[0] + " send and receive" if trace.roles[kind] in PASSING else kind
        for _, kind, _ in trace.operations
    ]
    for name in dict.fromkeys(names):
        yield "kind", name, np.flatnonzero(np.array(names) == name)

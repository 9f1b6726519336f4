"""Points: a way to divide training, at a world size. What each takes by closed form, pure numbers
without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simshuffle.errors import Problem
from simshuffle.parallelism import GroupParallelism, Job, Node, Parallelism, Step
from simshuffle.studies.oracle.tables import LOOP, MEMORY

if TYPE_CHECKING:
    from simshuffle.studies.oracle.machine import Scale

MOST_PIECES = 32
"""Layers next to one another go together in so many pieces at most: hundreds by themselves tell no
more."""
TOLERANCE = 0.01
"""Share of the loop that a hidden exchange may add, as of `simshuffle study hiding`."""
Row = dict[str, Any]
Seconds = Callable[[Node], float]


@dataclass(frozen=True)
class Point:
    """What a strategy takes at a world size."""

    row: Row  # of the table `points`, without what follows from a budget or from other points
    sent: Mapping[str, float]  # s an epoch of communication by what it is for


def impossible(name: str, parallelism: Parallelism, scale: Scale, problem: Problem) -> Point:
    """A point that cannot be: why is its only number."""
    given = f"; got {problem.value}" if problem.value else ""
    why = f"{problem.rule}{given}. {problem.remedy}".rstrip()
    return Point({**_about(name, parallelism, scale), "feasible": False, "why_not": why}, {})


def point(
    name: str, parallelism: Parallelism, job: Job, scale: Scale, seconds_of: Seconds
) -> Point:
    """What a strategy takes.

    Args:
        name: of the strategy.
        parallelism: the strategy.
        job: what is trained, at that world size.
        scale: what all strategies have in common there.
        seconds_of: s of each node of communication, alone on the machine.
    """
    iterations = iterations_of(parallelism, scale)
    step = step_of(parallelism, job, scale)
    costs, memory = step.costs(seconds_of), parallelism.memory(job)
    exposed, exchange = iterations * costs.exposed, scale.bounds.exchange.seconds
    parts = {
        "compute_s": iterations * costs.compute,
        "waiting_s": (iterations - 1) * costs.compute * (scale.slowest - 1.0),
        "bubble_s": iterations * costs.bubble,
        "exposed_s": exposed,
        "exchange_s": scale.shown(exchange, exposed),
        "startup_s": scale.bounds.first_batch + scale.bounds.importance,
    }
    loop = sum(parts[name] for name in LOOP)
    resource, io = scale.io
    input_s = max(io + costs.seconds - loop, 0.0)  # a step follows the last batch
    least = loop - iterations * (costs.seconds - _hidden_step(step, seconds_of))
    hidden = iterations * costs.hidden
    without = loop - parts["exchange_s"]
    row = {
        **_about(name, parallelism, scale),
        "feasible": True,
        "why_not": "",
        **parts,
        "loop_s": loop,
        "input_s": input_s,
        "epoch_s": loop + input_s,
        "epoch_low_s": max(least, io),
        "epoch_high_s": loop - parts["exchange_s"] + exchange + hidden + io,
        "hidden_s": hidden,
        "io_s": io,
        "io_by": resource,
        **{f"{part}_nbytes": float(getattr(memory, part)) for part in MEMORY},
        "memory_nbytes": float(memory.total),
        "hidden_exchange": scale.hidden_fraction(without, exposed, TOLERANCE),
        "samples_per_s": scale.samples * scale.scenario.world_size / (loop + input_s),
    }
    sent = {label: iterations * seconds for label, seconds in costs.by_label.items()}
    return Point({**row, **bottleneck(row, sent)}, sent)


def step_of(parallelism: Parallelism, job: Job, scale: Scale) -> Step:
    """The step of a mean iteration, whose batch may be smaller as the last one of an epoch is."""
    batch = scale.samples / scale.bounds.iterations
    return parallelism.step(replace(job, batch=batch), MOST_PIECES)


def iterations_of(parallelism: Parallelism, scale: Scale) -> int:
    """Iterations of an epoch: as many times more as the samples that a group's ranks read are more
    than those of its batch."""
    whole, batch = scale.bounds.iterations, scale.scenario.workload.local_batch_size
    if not isinstance(parallelism, GroupParallelism):
        return whole
    ways = parallelism.group_size(scale.scenario.world_size)
    return max(round(whole * ways * batch / parallelism.samples(batch, ways)), 1)


def _hidden_step(step: Step, seconds_of: Seconds) -> float:
    """s of a step whose communication between replicas all hides that may: nothing waits for it,
    and it is one after the other."""
    between = 0.0
    ends: list[float] = []
    for node in step.nodes:
        seconds = node.seconds if node.collective is None else seconds_of(node)
        if node.collective is not None and node.group != "model":
            between += seconds
            seconds = 0.0
        begin = 0.0
        for k in node.after:
            begin = max(begin, ends[k])
        ends.append(begin + seconds)
    return max(max(ends, default=0.0), between)


def _about(name: str, parallelism: Parallelism, scale: Scale) -> Row:
    scenario = scale.scenario
    size, ways = scenario.world_size, parallelism.group_size(scenario.world_size)
    batch = scenario.workload.local_batch_size
    if isinstance(parallelism, GroupParallelism):
        batch = int(parallelism.samples(batch, ways))
    return {
        "world_size": size,
        "strategy": name,
        "kind": getattr(parallelism, "kind", ""),
        "ways": ways,
        "replicas": size // ways,
        "group_batch": batch,
        "hosts": scenario.hosts,
        "iterations": iterations_of(parallelism, scale),
        "io_by": "",
        "bottleneck": "",
    }


def bottleneck(row: Mapping[str, Any], sent: Mapping[str, float]) -> Row:
    """The largest part of the epoch and its s: reading, if the loop waits for it; else a part of
    the loop, of communication by what it is for.

    Args:
        row: of `points`.
        sent: s an epoch of communication by what it is for; what shows of each is in proportion.
    """
    if row["input_s"] > 0:
        return {"bottleneck": row["io_by"], "bottleneck_s": row["io_s"]}
    whole = sum(sent.values())
    parts = {
        "compute": row["compute_s"],
        "waiting for the slowest": row["waiting_s"],
        "pipeline bubble": row["bubble_s"],
        "exchange": row["exchange_s"],
        "first batch": row["startup_s"],
        **{label: row["exposed_s"] * s / whole for label, s in sent.items() if whole},
    }
    largest = max(parts, key=lambda name: parts[name])
    return {"bottleneck": largest, "bottleneck_s": parts[largest]}


def against_one(rows: Iterable[Row], alone: Row) -> None:
    """Add speed-up and efficiency to rows, against the row of data parallelism on one GPU."""
    for row in rows:
        if row["feasible"]:
            row["speedup"] = row["samples_per_s"] / alone["samples_per_s"]
            row["efficiency"] = row["speedup"] / row["world_size"]

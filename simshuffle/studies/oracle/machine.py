"""A machine at a world size: what all strategies have in common there, such as reading,
the exchange of samples and waiting for the slowest; and the time and memory of each
strategy, by closed form and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from simshuffle.fabric.network import Fluid
from simshuffle.job.lowering.division import job_of
from simshuffle.job.lowering.step_transfers import Communicators, step_seconds
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.exchange_bound import exchange_bound, expected_largest
from simshuffle.job.plan.reading_bounds import cable_bandwidth
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import routing_of
from simshuffle.job.scenario.host_work import payload_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import stream
from simshuffle.studies.oracle.tables import LOOP, MEMORY
from simshuffle.workload.exchange.sending import SendingStrategy
from simshuffle.workload.parallelism import (
    Data,
    DividedWorkload,
    GroupParallelism,
    Node,
    Parallelism,
    Step,
)

MOST_PIECES = 32
"""Layers next to one another go together in so many pieces at most: hundreds by
themselves tell no more.
"""
TOLERANCE = 0.01
"""Share of the loop that a hidden exchange may add, as of `simshuffle study hiding`."""
Row = dict[str, Any]
Seconds = Callable[[Node], float]
Point = tuple[Row, dict[str, float]]
"""A strategy at a world size: its row of the table `points`, without columns that
follow from a budget or from other points; and communication in s an epoch, by purpose.
"""
FRACTIONS: Floats = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 25)])
"""Exchange fractions whose cost is worked out; between them it is interpolated."""
ITERATIONS = 64
"""Iterations that an exchange is worked out for; in a longer epoch all are alike."""


class OracleMachine:
    """The machine of a scenario with so many ranks, and what all strategies share on
    it.

    Attributes:
        scenario: at that world size, without sweep, with data parallelism in its
            default settings.
        bounds: lower bounds of its epoch.
        samples: that a rank trains on in the epoch, in the mean.
        slowest: factor by which the slowest rank takes longer for an iteration than the
            mean of all.
        exchange: (len(FRACTIONS),) s an epoch that an exchange of each fraction adds,
            at least; None where no fraction is exchanged.
    """

    def __init__(self, scenario: Scenario, world_size: int) -> None:
        workload = scenario.workload.model_copy(update={"parallelism": Data()})
        changes = {"world_size": world_size, "sweep": {}, "workload": workload}
        self.scenario = scenario.model_copy(update=changes)
        self.bounds = bounds(self.scenario)
        self.samples = float(self.bounds.iterations * workload.local_batch_size)
        if workload.last_batch != "carry":
            self.samples = min(self.samples, workload.dataset.num_samples / world_size)
        self.slowest = expected_largest(world_size, workload.jitter.compute)
        reduced = self.bounds.allreduce / self.bounds.iterations
        self.exchange = _exchange(self.scenario, self.bounds.iterations, reduced)
        self._groups: dict[Any, Communicators] = {}

    @cached_property
    def job(self) -> DividedWorkload:
        """Return the workload that is trained, with its layers."""
        return job_of(self.scenario, self.scenario.world_size)

    @cached_property
    def _communicators(self) -> Communicators:
        """Return the groups of one rank, from which all others are regrouped."""
        scenario = self.scenario
        placement, order = (
            stream(scenario.seed, stream_name)
            for stream_name in ("placement", "host_order")
        )
        resources = Resources(scenario.cluster, scenario.world_size, placement)
        allreduce = scenario.workload.allreduce_on(scenario.cluster)
        return Communicators(allreduce, resources, group_size=1, rng=order)

    def communicators(self, parallelism: Parallelism) -> Communicators:
        """Return the groups of ranks that communicate.

        Strategies with groups of one size and equal settings share them; they are kept.
        """
        group_size = parallelism.group_size(self.scenario.world_size)
        strategy_settings = [
            getattr(parallelism, key, None)
            for key in ("bus_bandwidth", "step_latency", "input_bandwidth")
        ]
        key = (group_size, *strategy_settings)
        if key not in self._groups:
            self._groups[key] = self._communicators.regroup(
                group_size, *strategy_settings
            )
        return self._groups[key]

    def step(self, parallelism: Parallelism) -> Step:
        """Return the step of an iteration with a batch of mean size.

        The mean may be below the batch size, as the last batch of an epoch may be
        smaller. Layers go together in `MOST_PIECES` pieces at most.
        """
        batch = self.samples / self.bounds.iterations
        return parallelism.step(replace(self.job, batch=batch), MOST_PIECES)

    def simulated(self, strategy: Parallelism) -> tuple[float, float]:
        """Return the s of a step by closed form, and simulated by the fluid network.

        In the simulation all transfers share the cables.
        """
        communicators = self.communicators(strategy)
        step = self.step(strategy)
        closed = step.costs(communicators.seconds).seconds
        return closed, step_seconds(step, communicators, Fluid())

    def point(self, name: str, strategy: Parallelism) -> Point:
        """Return the row of a strategy by closed form, and its communication in s an
        epoch.

        If it is impossible, ``feasible`` is False, the row has the first reason and no
        times, and communication is {}.
        """
        batch = self.scenario.workload.local_batch_size
        for problem in strategy.problems(
            self.job.layers, self.scenario.world_size, batch
        ):
            got_text = f"; got {problem.value}" if problem.value else ""
            reason = f"{problem.rule}{got_text}. {problem.remedy}".rstrip()
            return {
                **self._about(name, strategy),
                "feasible": False,
                "why_not": reason,
            }, {}
        return self.possible(name, strategy, self.communicators(strategy).seconds)

    def possible(self, name: str, strategy: Parallelism, seconds_of: Seconds) -> Point:
        """Return row and communication of a strategy without a check that it is
        possible.

        ``seconds_of`` gives the s of each node of communication, alone on the machine.
        """
        describing_columns = self._about(name, strategy)
        epoch_bounds = self.bounds
        iterations = describing_columns["iterations"]
        step = self.step(strategy)
        costs = step.costs(seconds_of)
        memory = strategy.memory(self.job)
        exposed = iterations * costs.exposed
        exchange = epoch_bounds.exchange.seconds
        exposed_exchange = exchange - epoch_bounds.exchange.hidden
        parts = {
            "compute_s": iterations * costs.compute,
            "waiting_s": (iterations - 1) * costs.compute * (self.slowest - 1.0),
            "bubble_s": iterations * costs.bubble,
            "exposed_s": exposed,
            "exchange_s": exposed_exchange,
            "startup_s": epoch_bounds.first_batch + epoch_bounds.importance,
        }
        loop = sum(parts[name] for name in LOOP)
        resource = max(
            epoch_bounds.resources, key=lambda name: epoch_bounds.resources[name]
        )
        io = epoch_bounds.resources[resource]
        input_s = max(io + costs.seconds - loop, 0.0)  # a step follows the last batch
        shortest_loop = loop - iterations * (
            costs.seconds - _hidden_step(step, seconds_of)
        )
        hidden = iterations * costs.hidden
        loop_without_exchange = loop - exposed_exchange
        row = {
            **describing_columns,
            "feasible": True,
            "why_not": "",
            **parts,
            "loop_s": loop,
            "input_s": input_s,
            "epoch_s": loop + input_s,
            "epoch_low_s": max(shortest_loop, io),
            "epoch_high_s": loop_without_exchange + exchange + hidden + io,
            "hidden_s": hidden,
            "io_s": io,
            "io_by": resource,
            **{f"{part}_nbytes": float(getattr(memory, part)) for part in MEMORY},
            "memory_nbytes": float(memory.total),
            "hidden_exchange": self.hidden_fraction(loop_without_exchange),
            "samples_per_s": self.samples * self.scenario.world_size / (loop + input_s),
        }
        sent = {
            label: iterations * seconds for label, seconds in costs.by_label.items()
        }
        return {**row, **bottleneck(row, sent)}, sent

    def hidden_fraction(self, loop: float) -> float | None:
        """Return Q*, the largest exchange fraction that is hidden, from 0 to 1.

        It adds no more than `TOLERANCE` to the loop without exchange (``loop`` s an
        epoch). With several hosts, their cables carry its bytes within the loop. None
        where no fraction is exchanged.
        """
        if self.exchange is None:
            return None
        largest = float(np.interp(TOLERANCE * loop, self.exchange, FRACTIONS))
        scenario = self.scenario
        schedule = scenario.workload.exchange.exchange_schedule
        if schedule is None or scenario.hosts == 1:
            return largest
        ranks = scenario.cluster.ranks_per_host(scenario.world_size)
        nbytes = (
            ranks * self.samples * payload_nbytes(schedule, scenario.workload.dataset)
        )
        carried = scenario.cluster.host.hcas * cable_bandwidth(scenario) * loop
        return min(largest, carried / nbytes)

    def _about(self, name: str, parallelism: Parallelism) -> Row:
        """Return the columns of table `points` that describe a strategy, without times.

        With groups that have batches of their own size, the iterations are scaled to as
        many samples an epoch. ``io_by`` and ``bottleneck`` are ''.
        """
        scenario = self.scenario
        size = scenario.world_size
        group_size = parallelism.group_size(scenario.world_size)
        batch = scenario.workload.local_batch_size
        iterations = self.bounds.iterations
        if isinstance(parallelism, GroupParallelism):
            # as many times more as the samples that a group's ranks read are more than its batch's
            samples = parallelism.samples(batch, group_size)
            iterations = max(round(iterations * group_size * batch / samples), 1)
            batch = int(samples)
        return {
            "world_size": size,
            "strategy": name,
            "kind": getattr(parallelism, "kind", ""),
            "ways": group_size,
            "replicas": size // group_size,
            "group_batch": batch,
            "hosts": scenario.hosts,
            "iterations": iterations,
            "io_by": "",
            "bottleneck": "",
        }


def _hidden_step(step: Step, seconds_of: Seconds) -> float:
    """Return the s of a step that hides all communication between replicas that it may:
    no node waits for this communication, and its collectives run one after the other.
    """
    replica_seconds = 0.0
    ends: list[float] = []
    for node in step.nodes:
        seconds = node.seconds if node.collective is None else seconds_of(node)
        if node.joins_groups:
            replica_seconds += seconds
            seconds = 0.0
        begin = 0.0
        for k in node.predecessors:
            begin = max(begin, ends[k])
        ends.append(begin + seconds)
    return max(max(ends, default=0.0), replica_seconds)


def bottleneck(row: Mapping[str, Any], sent: Mapping[str, float]) -> Row:
    """Return the largest part of the epoch: columns ``bottleneck`` and
    ``bottleneck_s``.

    If the loop waits for reading, it is the resource that reads slowest, with all of
    its s; else a part of the loop. Of communication the exposed part is divided by
    purpose, in proportion to ``sent`` (s an epoch).
    """
    if row["input_s"] > 0:
        return {"bottleneck": row["io_by"], "bottleneck_s": row["io_s"]}
    total_sent = sum(sent.values())
    parts = {
        "compute": row["compute_s"],
        "waiting for the slowest": row["waiting_s"],
        "pipeline bubble": row["bubble_s"],
        "exchange": row["exchange_s"],
        "first batch": row["startup_s"],
        **{
            label: row["exposed_s"] * seconds / total_sent
            for label, seconds in sent.items()
            if total_sent
        },
    }
    largest = max(parts, key=lambda name: parts[name])
    return {"bottleneck": largest, "bottleneck_s": parts[largest]}


def _exchange(scenario: Scenario, iterations: int, reduced: float) -> Floats | None:
    """Return the s an epoch that each of `FRACTIONS` adds, (len(FRACTIONS),).

    They are extrapolated from the first `ITERATIONS` iterations, and never fall with
    the fraction. What other communication hides is not in them. None with one rank, or
    if the strategy does not send a fraction.

    Args:
        scenario: at a world size.
        iterations: of the epoch.
        reduced: s that the allreduce of an iteration takes.
    """
    workload = scenario.workload
    exchange = scenario.workload.exchange
    if not isinstance(exchange, SendingStrategy) or scenario.world_size == 1:
        return None
    part = min(iterations, ITERATIONS)
    count = part * workload.local_batch_size * scenario.world_size
    samples = min(count, workload.dataset.num_samples)
    dataset = workload.dataset.model_copy(update={"num_samples": samples})
    seconds = []
    for fraction in FRACTIONS.tolist():
        fraction_exchange = exchange.model_copy(update={"exchange_fraction": fraction})
        fraction_workload = workload.model_copy(
            update={"dataset": dataset, "exchange": fraction_exchange}
        )
        bound = exchange_bound(
            scenario.model_copy(update={"workload": fraction_workload}), part, reduced
        )
        seconds.append((bound.seconds - bound.hidden) * iterations / part)
    return np.maximum.accumulate(seconds)


def assumptions(scenario: Scenario) -> list[str]:
    """Return sentences on the assumptions behind the numbers of all points."""
    workload = scenario.workload
    accelerator = scenario.cluster.host.accelerator
    model = workload.model
    source = workload.model.source
    key = f"accelerators.{accelerator}.forward"
    times_source = (
        source
        if isinstance(source, str)
        else source.get(key) or source.get("accelerators")
    )
    times = f"step times of {model.name} on {accelerator}"
    strategy = workload.parallelism
    overlap = workload.allreduce.overlap
    precision = "mixed precision" if strategy.precision == "mixed" else "FP32"
    recompute_text = " and activations computed again" if strategy.recompute else ""
    hidden = (
        "gradients are summed after the backward pass"
        if overlap.kind == "none"
        else f"gradients are summed beside the backward pass (overlap: {overlap.kind})"
    )
    return [
        # of a source the first sentence
        f"{times} ({times_source.split('; ', 1)[0].split(': ', 1)[0].strip()})"
        if times_source
        else times,
        hidden,
        f"routing: {routing_of(scenario.cluster).describe()}",
        (
            "closed forms of each collective: all groups send at once, and nothing else is on the"
            " cables"
        ),
        f"memory of {precision} with the optimiser {strategy.optimiser}{recompute_text}, without"
        " libraries and fragmentation",
    ]

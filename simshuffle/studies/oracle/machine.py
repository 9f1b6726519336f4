"""What strategies take on a machine at a world size, by closed form and simulated."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from simshuffle.allreduce import NoOverlap
from simshuffle.lowering.communicators import Communicators
from simshuffle.lowering.step_transfers import step_seconds
from simshuffle.lowering.training_step import job_of
from simshuffle.network import Fluid
from simshuffle.parallelism import Job, Parallelism
from simshuffle.plan.resources import Resources, routing
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.rng import stream
from simshuffle.studies.oracle.points import Point, impossible, point, step_of
from simshuffle.studies.oracle.scale import Scale, scale_of
from simshuffle.studies.oracle.strategies import Named


class Machine:
    """The machine of a scenario with so many ranks on it.

    Args:
        scenario: its sweep, world size and parallelism are not looked at.
        world_size: M.
    """

    def __init__(self, scenario: Scenario, world_size: int) -> None:
        self._scenario, self._world_size = scenario, world_size
        self._groups: dict[Any, Communicators] = {}

    @cached_property
    def scale(self) -> Scale:
        """What all strategies have in common."""
        return scale_of(self._scenario, self._world_size)

    @cached_property
    def job(self) -> Job:
        """What is trained."""
        layers = self._scenario.workload.model.layer_list
        return job_of(self.scale.scenario, self._world_size, layers)

    @cached_property
    def _resources(self) -> Resources:
        rng = stream(self._scenario.seed, "placement")
        return Resources(self._scenario.cluster, self._world_size, rng)

    @cached_property
    def _communicators(self) -> Communicators:
        rng = stream(self._scenario.seed, "host_order")
        return Communicators(self._scenario.workload.allreduce, self._resources, 1, rng)

    def communicators(self, parallelism: Parallelism) -> Communicators:
        """Who sends to whom; the same for strategies with groups of the same size."""
        ways = parallelism.group_size(self._world_size)
        own = [getattr(parallelism, key, None) for key in ("bus_bandwidth", "step_latency")]
        key = (ways, *own)
        if key not in self._groups:
            self._groups[key] = self._communicators.divided(ways, *own)
        return self._groups[key]

    def point(self, named: Named) -> Point:
        """What a strategy takes by closed form, or why it cannot be."""
        strategy, layers = named.strategy, self.job.layers
        batch = self._scenario.workload.local_batch_size
        for problem in strategy.problems(layers, self._world_size, batch):
            return impossible(named.name, strategy, self.scale, problem)
        seconds_of = self.communicators(strategy).seconds
        return point(named.name, strategy, self.job, self.scale, seconds_of)

    def simulated(self, named: Named) -> tuple[float, float]:
        """s of a step by closed form, and with all its transfers on the cables at once."""
        communicators = self.communicators(named.strategy)
        step = step_of(named.strategy, self.job, self.scale)
        closed = step.costs(communicators.seconds).seconds
        return closed, step_seconds(step, communicators, Fluid())


def assumptions(scenario: Scenario) -> list[str]:
    """What the numbers of all points rest on, in words."""
    workload, accelerator = scenario.workload, scenario.cluster.host.accelerator
    model, source = workload.model, workload.model.source
    key = f"accelerators.{accelerator}.forward"
    said = source if isinstance(source, str) else source.get(key) or source.get("accelerators")
    times = f"step times of {model.name} on {accelerator}"
    overlap = workload.allreduce.overlap
    hidden = (
        "gradients are summed after the backward pass"
        if isinstance(overlap, NoOverlap)
        else f"gradients are summed beside the backward pass (overlap: {overlap.kind})"
    )
    return [
        f"{times} ({_first_sentence(said)})" if said else times,
        hidden,
        f"routing: {routing(scenario.cluster).describe()}",
        "each collective alone on the cables, of all groups at once, in closed form",
        f"memory of {_kept(workload.parallelism)}, without what libraries and fragments take",
    ]


def _kept(strategy: Parallelism) -> str:
    """What is kept, in words."""
    precision = "mixed precision" if strategy.precision == "mixed" else "FP32"
    again = " and activations computed again" if strategy.recompute else ""
    return f"{precision} with the optimiser {strategy.optimiser}{again}"


def _first_sentence(text: str) -> str:
    return text.split("; ", maxsplit=1)[0].split(": ", maxsplit=1)[0].strip()

"""A machine at a world size: what all strategies have in common there, such as reading, the
exchange of samples and waiting for the slowest; and what each takes, by closed form and
simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce import NoOverlap
from simshuffle.exchange.sending import SendingStrategy
from simshuffle.lowering.division import job_of
from simshuffle.lowering.step_transfers import Communicators, step_seconds
from simshuffle.network import Fluid
from simshuffle.parallelism import Data, Job, Parallelism
from simshuffle.plan.bounds import Bounds, bounds, exchange_bound, expected_largest
from simshuffle.plan.host_work import payload_nbytes
from simshuffle.plan.reading_bounds import cable_bandwidth
from simshuffle.plan.resources import Resources
from simshuffle.plan.wiring import routing
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.rng import stream
from simshuffle.studies.oracle.points import Point, impossible, point, step_of
from simshuffle.studies.oracle.strategies import Named

Floats = NDArray[np.float64]
FRACTIONS: Floats = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 25)])
"""Exchange fractions whose cost is worked out; between them it is interpolated."""
ITERATIONS = 64
"""Iterations that an exchange is worked out for; in a longer epoch all are alike."""


@dataclass(frozen=True)
class Scale:
    """A world size."""

    scenario: Scenario  # at that world size, with data parallelism
    bounds: Bounds  # lower bounds of its epoch
    samples: float  # that a rank trains on in the epoch, in the mean
    slowest: float  # what the slowest rank takes for an iteration, over the mean of all
    # (len(FRACTIONS),) s an epoch of each exchange fraction, at least; None where no fraction is
    # exchanged
    exchange: Floats | None

    @property
    def io(self) -> tuple[str, float]:
        """The slowest resource through which samples come, and s an epoch of it."""
        name = max(self.bounds.resources, key=lambda each: self.bounds.resources[each])
        return name, self.bounds.resources[name]

    def shown(self, exchange: float, exposed: float) -> float:
        """What an exchange of ``exchange`` s an epoch adds to communication of ``exposed`` s that
        nothing hides: it may run beside it, where that overlaps with the backward pass."""
        return max(exchange - exposed, 0.0) if self.bounds.beside_exchange else exchange

    def hidden_fraction(self, loop: float, exposed: float, tolerance: float) -> float | None:
        """Q*: the largest exchange fraction that adds no more than ``tolerance`` of the loop
        without exchange, and whose bytes the cables carry within it; None where no fraction is
        exchanged.

        Args:
            loop: s an epoch without exchange.
            exposed: s of communication in it that nothing hides.
            tolerance: share of the loop.
        """
        if self.exchange is None:
            return None
        allowed = tolerance * loop + (exposed if self.bounds.beside_exchange else 0.0)
        largest = float(np.interp(allowed, self.exchange, FRACTIONS))
        scenario = self.scenario
        schedule = scenario.workload.exchange.exchange_schedule
        if schedule is None or scenario.hosts == 1:
            return largest
        ranks = scenario.cluster.ranks_per_host(scenario.world_size)
        nbytes = ranks * self.samples * payload_nbytes(schedule, scenario.workload.dataset)
        carried = scenario.cluster.host.hcas * cable_bandwidth(scenario) * loop
        return min(largest, carried / nbytes)


def scale_of(scenario: Scenario, world_size: int) -> Scale:
    """What all strategies have in common at a world size of ``scenario``, whose sweep is not
    followed."""
    workload = scenario.workload.model_copy(update={"parallelism": Data()})
    changes = {"world_size": world_size, "sweep": {}, "workload": workload}
    sized = scenario.model_copy(update=changes)
    found = bounds(sized)
    trained = float(found.iterations * workload.local_batch_size)
    if workload.last_batch != "carry":
        trained = min(trained, workload.dataset.num_samples / world_size)
    slowest = expected_largest(world_size, workload.jitter.compute)
    return Scale(sized, found, trained, slowest, _exchange(sized, found.iterations))


def _exchange(scenario: Scenario, iterations: int) -> Floats | None:
    """See `Scale`: what a part of the epoch takes, as often as it fits into the epoch."""
    workload, exchange = scenario.workload, scenario.workload.exchange
    if not isinstance(exchange, SendingStrategy) or scenario.world_size == 1:
        return None
    part = min(iterations, ITERATIONS)
    count = part * workload.local_batch_size * scenario.world_size
    samples = min(count, workload.dataset.num_samples)
    dataset = workload.dataset.model_copy(update={"num_samples": samples})
    seconds = []
    for fraction in FRACTIONS.tolist():
        own = exchange.model_copy(update={"exchange_fraction": fraction})
        sent = workload.model_copy(update={"dataset": dataset, "exchange": own})
        bound = exchange_bound(scenario.model_copy(update={"workload": sent}), part)
        seconds.append(bound.seconds * iterations / part)
    return np.maximum.accumulate(seconds)


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
        return job_of(self.scale.scenario, self._world_size)

    @cached_property
    def _resources(self) -> Resources:
        rng = stream(self._scenario.seed, "placement")
        return Resources(self._scenario.cluster, self._world_size, rng)

    @cached_property
    def _communicators(self) -> Communicators:
        rng = stream(self._scenario.seed, "host_order")
        allreduce = self._scenario.workload.allreduce_on(self._scenario.cluster)
        return Communicators(allreduce, self._resources, 1, rng)

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

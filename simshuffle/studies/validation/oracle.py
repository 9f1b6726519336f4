"""Predictions of training that is divided among GPUs, by the closed forms of the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simshuffle.errors import InputError, Problem
from simshuffle.lowering.training_step import communicators_of, job_of
from simshuffle.plan.bounds import bounds
from simshuffle.plan.exchange_bounds import expected_largest
from simshuffle.plan.resources import Resources
from simshuffle.spec.rng import stream
from simshuffle.studies.validation.runs import load

INPUT = "input"
"""What a group does to give its members their part of the samples, which reports of compute and
communication leave out."""
QUANTITIES = (
    "compute",
    "communication",
    "compute and communication",
    "epoch",
    "iteration",
    "iteration with input",
)
"""The first four of an epoch, which alone of them has the input; 'iteration' is compute and
communication of one."""


@dataclass(frozen=True)
class Parts:
    """What an iteration takes, in s.

    Attributes:
        iterations: of an epoch, with a part of one at its end.
        compute: of the rank that computes longest.
        communication: that nothing hides, with pipeline bubbles and waiting for the slowest, and
            without the input.
        handed: handing round the input within groups.
        read: what the slowest resource needs through which the samples come.
    """

    iterations: float
    compute: float
    communication: float
    handed: float
    read: float

    def quantity(self, name: str) -> float:
        """One of `QUANTITIES` (s).

        Raises:
            InputError: there is no such quantity.
        """
        if name not in QUANTITIES:
            rule = f"must be one of {', '.join(QUANTITIES)}"
            raise InputError(Problem("quantity", rule, repr(name), "Choose one."))
        both = self.compute + self.communication
        whole = max(both + self.handed, self.read)
        each = (self.compute, self.communication, both, whole)
        return dict(
            zip(QUANTITIES, (*(self.iterations * s for s in each), both, whole), strict=True)
        )[name]


def parts_of(scenario: str, values: Mapping[str, str]) -> Parts:
    """What an iteration takes as a scenario divides training, alone on the machine.

    Args:
        scenario: its name below ``scenarios/``, whose model lists its layers.
        values: set in it.

    Raises:
        InputError: a value of the scenario is not valid.
    """
    resolved = load(scenario, values)
    workload, world_size = resolved.workload, resolved.world_size
    parallelism, job = workload.parallelism, job_of(resolved)
    resources = Resources(resolved.cluster, world_size, stream(resolved.seed, "placement"))
    costs = parallelism.step(job).costs(communicators_of(resolved, resources).seconds)
    handed = costs.by_label.get(INPUT, 0.0)
    waiting = costs.compute * (expected_largest(world_size, workload.jitter.compute) - 1.0)
    found = bounds(resolved)
    return Parts(
        iterations=workload.dataset.num_samples / (world_size * job.batch),
        compute=costs.compute,
        communication=costs.exposed + costs.bubble - handed + waiting,
        handed=handed,
        read=max(found.resources.values()) / found.iterations,
    )

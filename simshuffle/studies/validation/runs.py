"""What is compared of a training run: simulated, or as the closed forms of the oracle have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from simshuffle.errors import InputError, Problem
from simshuffle.lowering.division import communicators_of, job_of
from simshuffle.plan.bounds import bounds, expected_largest
from simshuffle.plan.resources import Resources
from simshuffle.results import report
from simshuffle.scenario.scenario import Scenario, load_scenario
from simshuffle.sim.simulate import simulate
from simshuffle.spec.library import read_value
from simshuffle.spec.rng import stream

QUANTITIES = ("steady epoch", "first epoch", "staging", "throughput", "run time")
PARTS = (
    "compute",
    "communication",
    "compute and communication",
    "epoch",
    "iteration",
    "iteration with input",
)
"""The first four of an epoch, which alone of them has the input; 'iteration' is compute and
communication of one."""
INPUT = "input"
"""What a group does to give its members their part of the samples, which reports of compute and
communication leave out."""


def load(scenario: str, values: Mapping[str, str]) -> Scenario:
    """A scenario, by its name below ``scenarios/``, with other values, given as text.

    Raises:
        ScenarioError: the scenario or a value is not valid.
    """
    return load_scenario(scenario, {key: read_value(text, key) for key, text in values.items()})


def check_quantity(name: str, known: Sequence[str]) -> None:
    """See that a quantity is known.

    Raises:
        InputError: it is not.
    """
    if name not in known:
        rule = f"must be one of {', '.join(known)}"
        raise InputError(Problem("quantity", rule, repr(name), "Choose one."))


@dataclass(frozen=True)
class Times:
    """What is compared of a simulated run."""

    epochs: Sequence[float]  # (epochs,) s of each epoch, the cold first one included
    staging: float  # s of copying before the first epoch
    samples: int  # samples trained on in the last epoch

    def quantity(self, name: str) -> float:
        """The value of one of `QUANTITIES`: s, or samples/s for the throughput.

        Raises:
            InputError: there is no such quantity, or the run has a single epoch and the steady ones
                are asked for.
        """
        check_quantity(name, QUANTITIES)
        if name == "first epoch":
            return self.epochs[0]
        if name == "staging":
            return self.staging
        if name == "run time":
            return sum(self.epochs)
        if len(self.epochs) < 2:
            rule = f"must be at least 2 for a {name}"
            raise InputError(Problem("epochs", rule, "1", "Set epochs=2."))
        steady = median(self.epochs[1:])
        return steady if name == "steady epoch" else self.samples / steady


def times(scenario: str, values: Mapping[str, str]) -> Times:
    """Simulate a scenario; arguments as of `load`.

    Raises:
        ScenarioError: the scenario or a value is not valid.
    """
    timeline = simulate(load(scenario, values))
    table = report.epochs(timeline)
    samples = int(timeline.sources["samples"].iloc[-1])
    return Times(table["epoch_s"].tolist(), float(table["staging_s"].iloc[0]), samples)


@dataclass(frozen=True)
class Parts:
    """What an iteration takes, in s."""

    iterations: float  # of an epoch, with a part of one at its end
    compute: float  # of the rank that computes longest
    # that nothing hides, with pipeline bubbles and waiting for the slowest, and without the input
    communication: float
    handed: float  # handing round the input within groups
    read: float  # what the slowest resource needs through which the samples come

    def quantity(self, name: str) -> float:
        """One of `PARTS` (s).

        Raises:
            InputError: there is no such quantity.
        """
        check_quantity(name, PARTS)
        both = self.compute + self.communication
        whole = max(both + self.handed, self.read)
        each = (self.compute, self.communication, both, whole)
        values = (*(self.iterations * s for s in each), both, whole)
        return values[PARTS.index(name)]


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

"""Predictions that are simulated training runs, or ratios of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from simshuffle.errors import InputError, Problem
from simshuffle.results import report
from simshuffle.scenario.scenario import Scenario, load_scenario
from simshuffle.sim.simulate import simulate
from simshuffle.spec.library import read_value

QUANTITIES = ("steady epoch", "first epoch", "staging", "throughput", "run time")


@dataclass(frozen=True)
class Times:
    """What is compared of a run.

    Attributes:
        epochs: (epochs,) s of each epoch, the cold first one included.
        staging: s of copying before the first epoch.
        samples: samples trained on in the last epoch.
    """

    epochs: tuple[float, ...]
    staging: float
    samples: int

    def quantity(self, name: str) -> float:
        """The value of one of `QUANTITIES`: s, or samples/s for the throughput.

        Raises:
            InputError: there is no such quantity, or the run has a single epoch and the steady ones
                are asked for.
        """
        if name not in QUANTITIES:
            raise InputError(
                Problem(
                    "quantity", f"must be one of {', '.join(QUANTITIES)}", repr(name), "Choose one."
                )
            )
        if name == "first epoch":
            return self.epochs[0]
        if name == "staging":
            return self.staging
        if name == "run time":
            return sum(self.epochs)
        if len(self.epochs) < 2:
            raise InputError(
                Problem("epochs", f"must be at least 2 for a {name}", "1", "Set epochs=2.")
            )
        steady = median(self.epochs[1:])
        return steady if name == "steady epoch" else self.samples / steady


def load(scenario: str, values: Mapping[str, str]) -> Scenario:
    """A scenario, by its name below ``scenarios/``, with other values, given as text.

    Raises:
        ScenarioError: the scenario or a value is not valid.
    """
    return load_scenario(scenario, {key: read_value(text, key) for key, text in values.items()})


def times(scenario: str, values: Mapping[str, str]) -> Times:
    """Simulate a scenario; arguments as of `load`.

    Raises:
        ScenarioError: the scenario or a value is not valid.
    """
    timeline = simulate(load(scenario, values))
    table = report.epochs(timeline)
    samples = int(timeline.sources["samples"].iloc[-1])
    return Times(
        tuple(float(s) for s in table["epoch_s"]), float(table["staging_s"].iloc[0]), samples
    )

"""The inputs that a plan moves to see what its choice depends on, each in the unit that
the user wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simshuffle.extensions.planning.cells import OPEN_RATE, READ_BANDWIDTH
from simshuffle.extensions.planning.written import format_in_unit
from simshuffle.job.plan.effort import compute_seconds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import keys_of, scale_inputs
from simshuffle.spec.units import Dimension, format_quantity

CAPACITY_KEYS = {"ssd": "cluster.ssd.capacity", "memory": "cluster.memory.capacity"}
CAPACITY, STEP_TIME = "capacity", "step time"
NIC_KEYS = ("cluster.topology.link_bandwidth", "cluster.topology.host_bandwidth")
DIGITS = 4  # of a value that is set and simulated


@dataclass(frozen=True)
class MovedInput:
    """An input of a plan that is moved; all its keys are multiplied by one factor."""

    name: str  # name of the input, such as 'open rate'
    base: Scenario  # scenario whose input is moved
    value_by_key: Mapping[str, float]  # value of each key, in SI units; not empty
    dimension: Dimension  # dimension of the values
    unit: str  # unit in which the user wrote it; '' if unknown

    @property
    def key(self) -> str:
        """Return the first key of the input, which names the input in tables."""
        return next(iter(self.value_by_key))

    def value(self, factor: float = 1.0) -> float:
        """Return the value multiplied by ``factor``, in SI units.

        The value of the step time is the s of one batch, forward and backward, which is
        what is timed. That of another input is the value of its first key.
        """
        if self.name != STEP_TIME:
            return self.value_by_key[self.key] * factor
        return compute_seconds(
            scale_inputs(self.base, dict.fromkeys(self.value_by_key, factor))
        )

    def settings(self, factor: float) -> dict[str, str]:
        """Return the keys with values multiplied by ``factor``, as ``--set`` has them.

        Values are texts with a unit, rounded to `DIGITS` digits.
        """
        return {
            key: format_quantity(float(f"{value * factor:.{DIGITS}g}"), self.dimension)
            for key, value in self.value_by_key.items()
        }

    def format_value(self, factor: float, digits: int = DIGITS) -> str:
        """Return `value` at ``factor`` as text in the unit of the user, rounded to
        ``digits`` digits.
        """
        return format_in_unit(self.value(factor), self.unit, self.dimension, digits)


def keys_of_inputs(base: Scenario) -> dict[str, list[str]]:
    """Return the dotted keys of every input that is moved, by the name of the input.

    The inputs are the capacity for samples (of the staging tier), open rate, PFS
    bandwidth, step time and NIC. A step time or NIC without keys in the scenario is
    left out. The first key names the input in tables.
    """
    scenario_keys = keys_of(base)
    time_prefix = f"workload.model.accelerators.{base.cluster.host.accelerator}."
    keys = {
        CAPACITY: [CAPACITY_KEYS[base.workload.staging.target]],
        "open rate": [OPEN_RATE],
        "PFS bandwidth": [READ_BANDWIDTH],
        STEP_TIME: sorted(
            (key for key in scenario_keys if key.startswith(time_prefix)),
            key=_forward_first,
        ),
        "NIC": [key for key in NIC_KEYS if key in scenario_keys],
    }
    return {name: input_keys for name, input_keys in keys.items() if input_keys}


def moved_inputs(base: Scenario, units: Mapping[str, str]) -> dict[str, MovedInput]:
    """Return the moved inputs of a scenario, by the name of the input.

    Args:
        base: the scenario.
        units: the unit that the user wrote for a key, by key. That of the first key of
            an input counts; without one the unit is ''.
    """
    dimensions = {
        CAPACITY: Dimension.NBYTES,
        "open rate": Dimension.FREQUENCY,
        STEP_TIME: Dimension.SECONDS,
    }
    inputs = {}
    for name, keys in keys_of_inputs(base).items():
        value_by_key = {key: _value_at_key(base, key) for key in keys}
        dimension = dimensions.get(name, Dimension.BANDWIDTH)
        inputs[name] = MovedInput(
            name, base, value_by_key, dimension, units.get(keys[0], "")
        )
    return inputs


def _forward_first(key: str) -> tuple[bool, str]:
    """Return a sort key: keys of forward passes first, then by name."""
    return not key.endswith(".forward"), key


def _value_at_key(record: Any, key: str) -> float:
    """Return the number at a dotted key; of a curve the value at its last point."""
    for name in key.split("."):
        record = record[name] if isinstance(record, dict) else getattr(record, name)
    return float(getattr(record, "y", (record,))[-1])

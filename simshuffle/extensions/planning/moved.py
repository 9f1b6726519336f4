"""The inputs that a plan moves to see what its choice hangs on, each in the unit of its user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simshuffle.extensions.planning.cells import OPEN_RATE, READ_BANDWIDTH
from simshuffle.extensions.planning.written import in_unit
from simshuffle.job.plan.effort import compute_seconds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import keys_of, scale_inputs
from simshuffle.spec.units import Dimension, format_quantity

CAPACITY_KEYS = {"ssd": "cluster.ssd.capacity", "memory": "cluster.memory.capacity"}
SPACE, STEP = "capacity", "step time"
NIC_KEYS = ("cluster.topology.link_bandwidth", "cluster.topology.host_bandwidth")
DIGITS = 4  # of a value that is set and simulated


@dataclass(frozen=True)
class MovedInput:
    """An input, which may have several keys that are multiplied alike."""

    name: str
    base: Scenario
    plain: Mapping[str, float]  # the value of each key, in SI units
    dimension: Dimension
    unit: str  # in which its user wrote it; '' if that is not known

    @property
    def key(self) -> str:
        """The first key."""
        return next(iter(self.plain))

    def value(self, factor: float = 1.0) -> float:
        """Return the value multiplied by ``factor``, in SI units: of the step time the seconds of
        a batch, forward and backward, which is what is timed; of others that of their key."""
        if self.name != STEP:
            return self.plain[self.key] * factor
        return compute_seconds(scale_inputs(self.base, dict.fromkeys(self.plain, factor)))

    def values(self, factor: float) -> dict[str, str]:
        """Return the keys with values multiplied by ``factor``, as ``--set`` has them."""
        return {
            key: format_quantity(float(f"{value * factor:.{DIGITS}g}"), self.dimension)
            for key, value in self.plain.items()
        }

    def shown(self, factor: float, digits: int = DIGITS) -> str:
        """Return the value multiplied by ``factor``, in the unit of the user."""
        return in_unit(self.value(factor), self.unit, self.dimension, digits)


def keys_of_inputs(base: Scenario) -> dict[str, list[str]]:
    """Return the keys of every input of a scenario that is moved, by the name of the input."""
    scenario_keys = keys_of(base)
    times = f"workload.model.accelerators.{base.cluster.host.accelerator}."
    keys = {
        SPACE: [CAPACITY_KEYS[base.workload.staging.target]],
        "open rate": [OPEN_RATE],
        "PFS bandwidth": [READ_BANDWIDTH],
        STEP: sorted((key for key in scenario_keys if key.startswith(times)), key=_forward_first),
        "NIC": [key for key in NIC_KEYS if key in scenario_keys],
    }
    return {name: named for name, named in keys.items() if named}


def moved_inputs(base: Scenario, units: Mapping[str, str]) -> dict[str, MovedInput]:
    """Return the inputs by name. ``units``: those that the user wrote, by key."""
    dimensions = {
        SPACE: Dimension.NBYTES,
        "open rate": Dimension.FREQUENCY,
        STEP: Dimension.SECONDS,
    }
    inputs = {}
    for name, keys in keys_of_inputs(base).items():
        plain = {key: _value(base, key) for key in keys}
        dimension = dimensions.get(name, Dimension.BANDWIDTH)
        inputs[name] = MovedInput(name, base, plain, dimension, units.get(keys[0], ""))
    return inputs


def _forward_first(key: str) -> tuple[bool, str]:
    return not key.endswith(".forward"), key


def _value(record: Any, key: str) -> float:
    """Return the number at a dotted key; of a curve the value at its last point."""
    for name in key.split("."):
        record = record[name] if isinstance(record, dict) else getattr(record, name)
    return float(getattr(record, "y", (record,))[-1])

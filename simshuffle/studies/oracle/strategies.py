"""Names of ways to divide training at a world size, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from simshuffle.errors import InputError, Problem
from simshuffle.layers import LayerList
from simshuffle.parallelism import AnyParallelism, Data, Parallelism
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.library import by_kind

REPLICAS = "data+"
"""Begins the name of a strategy of several groups, each with samples of its own."""
_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyParallelism)
COMMON = ("precision", "optimiser", "recompute")
"""Keys that all strategies take over from the scenario's."""


@dataclass(frozen=True)
class Named:
    """A strategy at a world size.

    Attributes:
        name: what tables call it.
        strategy: itself.
        asked: what it was asked for as; '' for none in particular.
    """

    name: str
    strategy: Parallelism
    asked: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        """The strategy as plain values."""
        return self.strategy.model_dump(mode="json", exclude_none=True)

    @classmethod
    def of(cls, name: str, plain: Mapping[str, Any]) -> Named:
        """That of plain values."""
        return cls(name, _ADAPTER.validate_python(dict(plain)))


def alone(scenario: Scenario) -> Named:
    """Data parallelism."""
    return Named("data", Data(**_common(scenario)))


def _common(scenario: Scenario) -> dict[str, Any]:
    own = scenario.workload.parallelism
    return {name: getattr(own, name) for name in COMMON}

"""Names of ways to divide training at a world size, and which of them are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simshuffle.errors import InputError, Problem
from simshuffle.layers import LayerList
from simshuffle.parallelism import AnyParallelism, Data, Parallelism
from simshuffle.parallelism.candidates import candidates, name_of
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.library import by_kind
from simshuffle.study.options import COMMAND_LINE

REPLICAS = "data+"
"""Begins the name of a strategy of several groups, each with samples of its own."""
_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyParallelism)
COMMON = tuple(name for name in Parallelism.model_fields if name != "source")
"""Keys that all strategies take over from the scenario's."""


@dataclass(frozen=True)
class Named:
    """A strategy at a world size."""

    name: str  # what tables call it
    strategy: Parallelism  # itself
    asked: str = ""  # what it was asked for as; '' for none in particular

    @property
    def plain(self) -> dict[str, Any]:
        """The strategy as plain values."""
        return self.strategy.model_dump(mode="json", exclude_none=True)

    @classmethod
    def of(cls, name: str, plain: Mapping[str, Any]) -> Named:
        """That of plain values."""
        return cls(name, _ADAPTER.validate_python(dict(plain)))


def alone(scenario: Scenario) -> Named:
    """Data parallelism, with what the scenario's strategy says of all."""
    return Named(Data.short_name, Data(**_common(scenario)))


def chosen(
    scenario: Scenario, layers: LayerList, world_size: int, names: Sequence[str]
) -> list[Named]:
    """The strategies at a world size that are asked for, each once, in the order in which they are.

    Args:
        scenario: what they are for.
        layers: of its model.
        world_size: M.
        names: a kind with values ('spatial:ways=4'); a name of a table; or the short name or kind
            of several, of those with replicas alone behind 'data+'. None for all.

    Raises:
        InputError: a kind is not known, or its values are not valid.
    """
    there = _all(scenario, layers, world_size)
    if not names:
        return there
    found: dict[str, Named] = {}
    for name in names:
        for each in _of_name(scenario, there, world_size, name):
            found.setdefault(each.name, replace(each, asked=name))
    return list(found.values())


def known_names(scenario: Scenario, layers: LayerList, sizes: Sequence[int]) -> list[str]:
    """Kinds and names of all strategies at these world sizes, as a command line takes them."""
    names: dict[str, None] = {}
    for size in sizes:
        for each in _all(scenario, layers, size):
            names |= {_kind(each.strategy): None, _typed(each.name): None}
    return list(names)


def _all(scenario: Scenario, layers: LayerList, world_size: int) -> list[Named]:
    workload = scenario.workload
    batch, gpus = workload.local_batch_size, scenario.cluster.host.gpus
    found = candidates(layers, world_size, batch, gpus, workload.parallelism)
    return [Named(name, strategy) for name, strategy in found.items()]


def _common(scenario: Scenario) -> dict[str, Any]:
    own = scenario.workload.parallelism
    return {name: getattr(own, name) for name in COMMON}


def _kind(strategy: Parallelism) -> str:
    return str(getattr(strategy, "kind", ""))


def _typed(name: str) -> str:
    """A name of a table as it can be typed without quotes: 'data+spatial (4)' is
    data+spatial-4."""
    return re.sub(r"[ (]+", "-", name.strip()).rstrip(")")


def _of_name(scenario: Scenario, there: Sequence[Named], world_size: int, name: str) -> list[Named]:
    divided = name.startswith(REPLICAS)
    bare = name.removeprefix(REPLICAS)
    if ":" in bare:
        return [_valued(scenario, there, world_size, name, bare)]
    exact = [each for each in there if _typed(name).lower() == _typed(each.name).lower()]
    of_kind = [
        each
        for each in there
        if bare.lower() in {each.strategy.short_name.lower(), _kind(each.strategy)}
        and (each.name.startswith(REPLICAS) or not divided)
    ]
    return of_kind or exact


def _valued(
    scenario: Scenario, there: Sequence[Named], world_size: int, name: str, bare: str
) -> Named:
    """The strategy of a kind with values: its name is as it is written, unless it is one that is
    there anyway."""
    try:
        plain = by_kind(bare)
        found: Parallelism = _ADAPTER.validate_python({**_common(scenario), **plain})
    except InputError as error:
        problems = [replace(each, path="--strategies") for each in error.problems]
        raise InputError(problems, COMMAND_LINE) from None
    except ValidationError as error:
        raise InputError([_wrong(each, name) for each in error.errors()], COMMAND_LINE) from None
    known = name_of(found, world_size)
    if all(each.strategy == found for each in there if each.name == known):
        others = [key for key in plain if key not in {"kind", "stage", _ways_key(found)}]
        if not others:
            return Named(known, found)
    divided = 1 < found.group_size(world_size) < world_size
    return Named(f"{REPLICAS if divided else ''}{bare}", found)


def _ways_key(strategy: Parallelism) -> str:
    return str(getattr(strategy, "ways_key", ""))


def _wrong(error: Any, name: str) -> Problem:
    where = ".".join(map(str, error["loc"]))
    rule = f"{where}: {error['msg']}" if where else str(error["msg"])
    return Problem("--strategies", rule, repr(name), "Write it as workload.parallelism.")

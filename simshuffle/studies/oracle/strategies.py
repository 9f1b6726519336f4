"""Names of ways to divide training at a world size, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simshuffle.errors import InputError, Problem
from simshuffle.layers import LayerList
from simshuffle.parallelism import AnyParallelism, Data, Parallelism
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.library import by_kind
from simshuffle.studies.oracle.given import COMMAND_LINE

try:
    from simshuffle.parallelism import candidates
except ImportError:
    from simshuffle.parallelism import *
    def candidates(layers, M, b):
        out=[Data()]
        if M>1: out+=[ShardedData(stage=k) for k in (1,2,3)]
        w=2
        while w<=min(M,64):
            for f in (lambda: Spatial(ways=w), lambda: Filter(ways=w), lambda: Channel(ways=w), lambda: Pipeline(stages=w), lambda: Tensor(ways=w)):
                x=f()
                if not list(x.problems(layers,M,b)): out.append(x)
            w*=2
        return out

REPLICAS = "data+"
"""Begins the name of a strategy of several groups, each with samples of its own."""
_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyParallelism)
COMMON = tuple(name for name in Parallelism.model_fields if name != "source")
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
    """Data parallelism, with what the scenario's strategy says of all."""
    return Named(Data.short_name, Data(**_common(scenario)))


def name_of(strategy: Parallelism, world_size: int) -> str:
    """What tables call it: 'data+' if there are several groups, its short name, how many ranks
    divide the model or which stage, and what else is not as usual."""
    ways = strategy.group_size(world_size)
    leading = getattr(strategy, "ways_key", "stage")
    parts = [strategy.short_name]
    if hasattr(strategy, leading):
        parts.append(str(getattr(strategy, leading)))
    for key, field in type(strategy).model_fields.items():
        value = getattr(strategy, key)
        if key in {"kind", "source", leading, *COMMON} or value == field.default:
            continue
        parts.append(value if isinstance(value, str) else f"{key}={value:g}")
    return (REPLICAS if 1 < ways < world_size else "") + "-".join(parts)


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
    """Short names and names of all strategies at these world sizes."""
    names: dict[str, None] = {}
    for size in sizes:
        for each in _all(scenario, layers, size):
            names |= {each.strategy.short_name: None, each.name: None}
    return list(names)


def _all(scenario: Scenario, layers: LayerList, world_size: int) -> list[Named]:
    batch, common = scenario.workload.local_batch_size, _common(scenario)
    found = candidates(layers, world_size, batch)
    named = [each.model_copy(update=common) for each in found]
    return [Named(name_of(each, world_size), each) for each in named]


def _common(scenario: Scenario) -> dict[str, Any]:
    own = scenario.workload.parallelism
    return {name: getattr(own, name) for name in COMMON}


def _of_name(
    scenario: Scenario, there: Sequence[Named], world_size: int, name: str
) -> list[Named]:
    divided = name.startswith(REPLICAS)
    bare = name.removeprefix(REPLICAS)
    if ":" in bare:
        strategy = _valued(scenario, name, bare)
        return [Named(name_of(strategy, world_size), strategy)]
    if exact := [each for each in there if bare == each.name.removeprefix(REPLICAS)]:
        return exact
    return [
        each
        for each in there
        if bare in {each.strategy.short_name, each.strategy.kind}
        and (each.name.startswith(REPLICAS) or not divided)
    ]


def _valued(scenario: Scenario, name: str, bare: str) -> Parallelism:
    """The strategy of a kind with values."""
    try:
        plain = by_kind(bare)
    except InputError as error:
        raise InputError(
            [replace(each, path="--strategies") for each in error.problems], COMMAND_LINE
        ) from None
    plain = {**_common(scenario), **plain}
    try:
        found: Parallelism = _ADAPTER.validate_python(plain)
    except ValidationError as error:
        problems = [
            Problem(
                "--strategies",
                ".".join(map(str, each["loc"])) + f": {each['msg']}",
                repr(name),
                "As in workload.parallelism of a scenario.",
            )
            for each in error.errors(include_url=False)
        ]
        raise InputError(problems, COMMAND_LINE) from None
    return found

"""Exchange strategies. To add one, write its class and add it to the unions; one that is not part
of the package is made known with `register`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, get_args

from pydantic import Field, SerializeAsAny, WrapValidator

from simshuffle.workload.exchange.base import (
    EpochContext,
    ShardsContext,
    Source,
    Strategy,
    Style,
)
from simshuffle.workload.exchange.loader_shuffle import LoaderShuffle
from simshuffle.workload.exchange.plan import (
    ExchangePlan,
    RankPlaces,
    Shards,
    empty_plan,
    initial_owner,
)
from simshuffle.workload.exchange.recorded import Recorded
from simshuffle.workload.exchange.schedule import ExchangeSchedule, MessageSchedule
from simshuffle.workload.exchange.strategies import (
    GlobalShuffle,
    ImportanceExchange,
    ImportancePair,
    LocalShuffle,
    PairSchedule,
    PartialLocalShuffle,
)

_REGISTERED: dict[str, type[Strategy]] = {}


def register(strategy: type[Strategy]) -> type[Strategy]:
    """Let scenarios and trainings use a strategy of your own, by its ``kind`` in a file or as an
    object; usable as a decorator. Raises a ValueError if it has no ``kind: Literal["NAME"]``, or
    another strategy has the same."""
    kinds = get_args(strategy.model_fields["kind"].annotation)
    if len(kinds) != 1:
        raise ValueError(f"{strategy.__name__} needs a kind: Literal[...] of one name")
    taken = {*_REGISTERED, *(get_args(m.model_fields["kind"].annotation)[0] for m in _MEMBERS)}
    if kinds[0] in taken:
        raise ValueError(f"there is a strategy {kinds[0]!r} already")
    _REGISTERED[kinds[0]] = strategy
    return strategy


def _registered(value: Any, member: Any) -> Any:
    """``value`` as a strategy that was registered, or else as a member of the union."""
    if isinstance(value, Strategy):
        return value
    own = _REGISTERED.get(str(value.get("kind"))) if isinstance(value, Mapping) else None
    return member(value) if own is None else own.model_validate(value)


_OPEN = (Field(discriminator="kind"), WrapValidator(_registered))

_Trained: TypeAlias = (
    GlobalShuffle
    | LocalShuffle
    | PartialLocalShuffle
    | ImportanceExchange
    | ImportancePair
    | LoaderShuffle
)

TrainedExchange = Annotated[SerializeAsAny[_Trained], *_OPEN]
"""The strategies that decide what is exchanged; a training follows one of them."""

Exchange = Annotated[SerializeAsAny[_Trained | Recorded], *_OPEN]
"""What can be simulated: those, and a recorded training."""

_MEMBERS: tuple[type[Strategy], ...] = get_args(get_args(Exchange)[0])

STYLES: dict[str, Style] = {
    name: style for member in _MEMBERS for name, style in member.styles.items()
}
"""How figures draw the strategies of the package, by short name, in the order of tables."""

__all__ = [
    "STYLES",
    "EpochContext",
    "Exchange",
    "ExchangePlan",
    "ExchangeSchedule",
    "GlobalShuffle",
    "ImportanceExchange",
    "ImportancePair",
    "LoaderShuffle",
    "LocalShuffle",
    "MessageSchedule",
    "PairSchedule",
    "PartialLocalShuffle",
    "RankPlaces",
    "Recorded",
    "Shards",
    "ShardsContext",
    "Source",
    "Strategy",
    "Style",
    "TrainedExchange",
    "empty_plan",
    "initial_owner",
    "register",
]

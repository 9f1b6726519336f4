"""Exchange strategies. To add one, write its class and add it to the unions; a strategy
that is not part of the package is made known with `register`.
"""

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
    """Make a strategy class of your own known by its ``kind``, and return the class.

    Scenarios and trainings of this process may then name the kind in a file, or be
    given an object of the class. Usable as a decorator.

    Raises:
        ValueError: if the class has no ``kind: Literal["NAME"]``, or another strategy
            has the same.
    """
    kinds = get_args(strategy.model_fields["kind"].annotation)
    if len(kinds) != 1:
        raise ValueError(f"{strategy.__name__} needs a kind: Literal[...] of one name")
    taken_kinds = {
        *_REGISTERED,
        *(get_args(m.model_fields["kind"].annotation)[0] for m in _MEMBERS),
    }
    if kinds[0] in taken_kinds:
        raise ValueError(f"there is a strategy {kinds[0]!r} already")
    _REGISTERED[kinds[0]] = strategy
    return strategy


def _validate_strategy(strategy: Any, validate_member: Any) -> Any:
    """Return ``strategy`` as an object of its registered class, or as a member of the
    union; an object of any strategy as it is.
    """
    if isinstance(strategy, Strategy):
        return strategy
    registered_class = (
        _REGISTERED.get(str(strategy.get("kind")))
        if isinstance(strategy, Mapping)
        else None
    )
    return (
        validate_member(strategy)
        if registered_class is None
        else registered_class.model_validate(strategy)
    )


_VALIDATORS = (Field(discriminator="kind"), WrapValidator(_validate_strategy))

_Trained: TypeAlias = (
    GlobalShuffle
    | LocalShuffle
    | PartialLocalShuffle
    | ImportanceExchange
    | ImportancePair
    | LoaderShuffle
)

TrainedExchange = Annotated[SerializeAsAny[_Trained], *_VALIDATORS]
"""The strategies that decide what is exchanged; a training follows one of them."""

Exchange = Annotated[SerializeAsAny[_Trained | Recorded], *_VALIDATORS]
"""The strategies that can be simulated: `TrainedExchange`, and a recorded training."""

_MEMBERS: tuple[type[Strategy], ...] = get_args(get_args(Exchange)[0])

STYLES: dict[str, Style] = {
    name: style for member in _MEMBERS for name, style in member.styles.items()
}
"""The style in which figures draw each strategy of the package, by short name, in table
order; without those of `register`.
"""

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

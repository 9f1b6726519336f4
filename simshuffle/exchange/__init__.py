"""Exchange strategies, one file each. To add one, write a file and add it to the unions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.exchange.base import Source, Strategy
from simshuffle.exchange.global_shuffle import GlobalShuffle
from simshuffle.exchange.importance import RankImportance, Selection
from simshuffle.exchange.importance_exchange import ImportanceExchange
from simshuffle.exchange.importance_pair import ImportancePair, PairSchedule
from simshuffle.exchange.local_shuffle import LocalShuffle
from simshuffle.exchange.partial_local_shuffle import PartialLocalShuffle
from simshuffle.exchange.plan import ExchangePlan, Places, Shards, empty_plan, initial_owner
from simshuffle.exchange.recorded import Recorded
from simshuffle.exchange.schedule import ExchangeSchedule

TrainedExchange = Annotated[
    GlobalShuffle | LocalShuffle | PartialLocalShuffle | ImportanceExchange | ImportancePair,
    Field(discriminator="kind"),
]
"""The strategies that decide what is exchanged; a training follows one of them."""

Exchange = Annotated[
    GlobalShuffle
    | LocalShuffle
    | PartialLocalShuffle
    | ImportanceExchange
    | ImportancePair
    | Recorded,
    Field(discriminator="kind"),
]
"""What can be simulated: those, and a recorded training."""

__all__ = [
    "Exchange",
    "ExchangePlan",
    "ExchangeSchedule",
    "GlobalShuffle",
    "ImportanceExchange",
    "ImportancePair",
    "LocalShuffle",
    "PairSchedule",
    "PartialLocalShuffle",
    "Places",
    "RankImportance",
    "Recorded",
    "Selection",
    "Shards",
    "Source",
    "Strategy",
    "TrainedExchange",
    "empty_plan",
    "initial_owner",
]

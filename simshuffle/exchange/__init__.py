"""Exchange strategies, one file each. To add one, write a file and add it to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.exchange.base import Source, Strategy
from simshuffle.exchange.global_shuffle import GlobalShuffle
from simshuffle.exchange.local_shuffle import LocalShuffle
from simshuffle.exchange.partial_local_shuffle import PartialLocalShuffle
from simshuffle.exchange.plan import ExchangePlan, Shards, initial_owner
from simshuffle.exchange.schedule import ExchangeSchedule

Exchange = Annotated[GlobalShuffle | LocalShuffle | PartialLocalShuffle, Field(discriminator="kind")]

__all__ = [
    "Exchange",
    "ExchangePlan",
    "ExchangeSchedule",
    "GlobalShuffle",
    "LocalShuffle",
    "PartialLocalShuffle",
    "Shards",
    "Source",
    "Strategy",
    "initial_owner",
]

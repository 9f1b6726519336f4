"""The content of ``meta.json`` of a comparison, as it is checked when a result is read."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.study.schema import LARGEST


class MessageCost(TypedDict):
    """The cost of a message, as ``meta.json`` holds it."""

    what: str  # it carries
    nbytes: Annotated[float, Field(ge=0, le=LARGEST)]
    host_s: Annotated[float, Field(ge=0, le=LARGEST)]
    trips: Annotated[int, Field(ge=1)]


class StatedValue(TypedDict):
    """A number of the cluster that the costs of messages rest on."""

    key: str
    value: str
    source: str  # '' where one text is for all


class Messages(TypedDict):
    """The costs of messages and their sources, as ``meta.json`` holds them."""

    costs: list[MessageCost]
    values: list[StatedValue]
    source: str  # of all of them; '' where each has its own


class EffortMeta(TypedDict):
    """The limit of what was simulated, as ``meta.json`` holds it."""

    most_messages: Annotated[int, Field(ge=0)]
    packets: Annotated[int, Field(ge=1)]
    seeds: Annotated[int, Field(ge=1)]
    packet_seeds: Annotated[int, Field(ge=1)]
    seeds_asked: Annotated[int, Field(ge=1)]


class CongestionMeta(TypedDict):
    """The content of ``meta.json`` of a comparison."""

    message_latency_s: Annotated[float, Field(ge=0, le=LARGEST)]
    messages: NotRequired[Messages]  # what they cost, if that is counted
    jitter: NotRequired[Annotated[float, Field(ge=0, lt=1)]]
    sizes_equal: NotRequired[bool]
    effort: NotRequired[EffortMeta]  # where not all was simulated

"""The content of ``meta.json`` of a comparison, as it is checked when a result is read."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.study.schema import LARGEST


class MessageCost(TypedDict):
    """The cost of a message, as ``meta.json`` holds it."""

    what: str  # what the message carries, such as 'a sample'
    nbytes: Annotated[float, Field(ge=0, le=LARGEST)]  # mean bytes of the message
    # s of sender and receiver together
    host_s: Annotated[float, Field(ge=0, le=LARGEST)]
    trips: Annotated[int, Field(ge=1)]  # how often the message crosses the network


class StatedValue(TypedDict):
    """A number of the cluster that the costs of messages rest on."""

    key: str  # of the cluster's ``message_passing``
    value: str  # with its unit
    source: str  # 'no source' where none is stated; '' where one text is for all values


class Messages(TypedDict):
    """The costs of messages and their sources, as ``meta.json`` holds them."""

    costs: list[MessageCost]
    values: list[StatedValue]
    source: str  # of all values; '' where each value has its own


class EffortMeta(TypedDict):
    """The limit of what was simulated, as ``meta.json`` holds it."""

    most_messages: Annotated[int, Field(ge=0)]  # of one exchange, roughly; 0 for all
    packets: Annotated[int, Field(ge=1)]  # in one run of the packet model
    seeds: Annotated[int, Field(ge=1)]  # for analytic and fluid
    packet_seeds: Annotated[int, Field(ge=1)]  # for packet
    seeds_asked: Annotated[int, Field(ge=1)]  # requested for analytic and fluid


class CongestionMeta(TypedDict):
    """The content of ``meta.json`` of a comparison."""

    # of the smallest number of ranks
    message_latency_s: Annotated[float, Field(ge=0, le=LARGEST)]
    messages: NotRequired[Messages]  # what messages cost, if that is counted
    # share of its size by which a sample is larger or smaller at most; 0 for none
    jitter: NotRequired[Annotated[float, Field(ge=0, lt=1)]]
    sizes_equal: NotRequired[bool]  # whether all samples have one size
    effort: NotRequired[EffortMeta]  # where not all was simulated

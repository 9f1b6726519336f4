"""Cluster: a topology, what stands in every host, the storage tiers, and where the ranks are
placed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.spec.record import Bandwidth, Count, Seconds, Sourced, Spec
from simshuffle.storage import LocalSsd, Memory, ParallelFileSystem
from simshuffle.topology import Topology


class Host(Sourced):
    """What every host has. Each GPU belongs to a rank; GPUs share PCIe slots and HCAs in equal
    consecutive groups."""

    gpus: Count
    accelerator: str
    cores: Count
    hcas: Count
    pcie_slots: Count
    pcie_bandwidth: Bandwidth
    nvlink_bandwidth: Bandwidth

    @model_validator(mode="after")
    def _even_shares(self) -> Host:
        for name in ("hcas", "pcie_slots"):
            count = getattr(self, name)
            if count > self.gpus or self.gpus % count:
                raise PydanticCustomError(
                    "shares", "gpus must be a multiple of {name}", {"name": name}
                )
        return self


class MessagePassing(Sourced):
    """What the message layer costs the exchange: ``latency`` of one message (software and HCA),
    ``stream_bandwidth`` of one pair."""

    latency: Seconds
    stream_bandwidth: Bandwidth | None = None


class Cluster(Spec):
    """A machine. ``placement``: consecutive hosts ('compact') or hosts drawn at random
    ('scattered')."""

    name: str
    topology: Topology
    host: Host
    ssd: LocalSsd
    memory: Memory
    parallel_file_system: ParallelFileSystem
    message_passing: MessagePassing
    placement: Literal["compact", "scattered"] = "compact"
    description: Annotated[str, Field(default="")] = ""

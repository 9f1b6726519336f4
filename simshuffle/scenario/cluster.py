"""Cluster: a topology, what stands in every host, the storage tiers, and where the ranks are
placed."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.routing import Routing
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

    default_sources: ClassVar[dict[str, str]] = {
        "latency": "default: half a round trip of MPI over InfiniBand (1.0-1.3 us), estimate",
    }

    latency: Seconds = 1.3e-6
    stream_bandwidth: Bandwidth | None = None


class Cluster(Spec):
    """A machine. ``placement``: consecutive hosts ('compact') or hosts drawn at random
    ('scattered'). Ranks fill the hosts one after the other."""

    name: str
    topology: Topology
    routing: Routing | None = None
    host: Host
    ssd: LocalSsd
    memory: Memory
    parallel_file_system: ParallelFileSystem
    message_passing: MessagePassing = Field(default_factory=MessagePassing)
    placement: Literal["compact", "scattered"] = "compact"
    description: Annotated[str, Field(default="")] = ""

    @property
    def num_gpus(self) -> int:
        """GPUs of all hosts; raises a `TopologyError` if the topology cannot be used."""
        return self.topology.num_hosts * self.host.gpus

    def hosts_for(self, world_size: int) -> int:
        """Hosts that so many ranks fill, the last one maybe in part: ceil(M / gpus)."""
        return -(-world_size // self.host.gpus)

    def ranks_per_host(self, world_size: int) -> int:
        """Ranks of every host but maybe the last: min(M, gpus)."""
        return min(world_size, self.host.gpus)

    def host_of(self, world_size: int) -> NDArray[np.int32]:
        """(M,) number of the host of each rank."""
        return np.arange(world_size, dtype=np.int32) // np.int32(self.host.gpus)

"""Cluster: a topology, what stands in every host, the storage tiers, and where the
ranks are placed.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from simshuffle.errors import InputError, Problem, TopologyError
from simshuffle.fabric.routing import Routing
from simshuffle.fabric.topology import Topology
from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.fabric.topology.faults import apply_faults
from simshuffle.fabric.topology.graph import Sketch, check_graph
from simshuffle.job.scenario.cache_tier import CacheTier
from simshuffle.job.scenario.storage import (
    LocalSsd,
    Memory,
    ObjectStore,
    ParallelFileSystem,
)
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.hostlist import expand_node_list
from simshuffle.spec.record import (
    Bandwidth,
    CacheArgument,
    Count,
    Fraction,
    NBytes,
    Seconds,
    Sourced,
    Spec,
)

PLACEMENTS = ("compact", "scattered", "round_robin")
"""Placements that name no hosts."""


class Host(Sourced):
    """The devices of every host. Each GPU belongs to a rank; GPUs share PCIe slots and
    HCAs in equal consecutive groups.

    Attributes:
        gpus: of a host; each belongs to a rank.
        accelerator: what the GPUs are: a key of 'workload.model.accelerators'.
        cores: of a host, shared by its loaders.
        hcas: of a host; must divide 'gpus'. A host needs as many links to switches.
        pcie_slots: of a host; must divide 'gpus'.
        pcie_bandwidth: of a slot, in each direction.
        nvlink_bandwidth: of a GPU to those of its host, in each direction.
    """

    gpus: Count
    accelerator: str
    cores: Count
    hcas: Count
    pcie_slots: Count
    pcie_bandwidth: Bandwidth
    nvlink_bandwidth: Bandwidth

    @model_validator(mode="after")
    def _even_shares(self) -> Host:
        """Refuse GPUs that are no multiple of the HCAs, or of the PCIe slots."""
        for name in ("hcas", "pcie_slots"):
            count = getattr(self, name)
            if count > self.gpus or self.gpus % count:
                raise ValueError(f"gpus must be a multiple of {name}")
        return self


class MessagePassing(Sourced):
    """Costs of the message layer in an exchange. The last four are the costs of a
    message for the host, which an all-to-all alone and the study of congestion count
    (docs/congestion.md).

    Attributes:
        latency: of one message of the exchange: software and HCA.
        stream_bandwidth: of one message at most; if left out, only links limit it.
        overhead: of the sender and receiver of one message together: LogGP's two o.
        copy_bandwidth: bytes/s at which both together copy what is sent eagerly.
        copy_limit: bytes from which on an HCA reads a message where it lies, which
            costs the host no more than copying so many bytes.
        eager_limit: bytes from which on the receiver is asked first (rendezvous).
    """

    default_sources: ClassVar[dict[str, str]] = {
        "latency": "default: half a round trip of MPI over InfiniBand (1.0-1.3 us), estimate",
        "overhead": "default: estimate, between 0.26 us of MareNostrum 5 and 0.9 us of Leonardo",
        "copy_bandwidth": "default: UCX's own estimate, 0.245 ns/B (openucx/ucx, pull 6162)",
        "copy_limit": "default: 2,008 to 2,154 B (openucx/ucx, pulls 6162 and 7950)",
        "eager_limit": "default: segments of 8,247 B (openucx/ucx, issue 11097), estimate",
    }

    latency: Seconds = 1.3e-6
    stream_bandwidth: Bandwidth | None = None
    overhead: Seconds = 0.5e-6
    copy_bandwidth: Bandwidth = 4.1e9
    copy_limit: NBytes = 2048
    eager_limit: NBytes = 8192

    def host_seconds(self, nbytes: float) -> float:
        """Return the seconds that a message of ``nbytes`` bytes takes of its sender and
        receiver together: overheads, its request's included, and copying.
        """
        messages = 1 + (nbytes >= self.eager_limit)  # the request is a message too
        return (
            messages * self.overhead
            + min(nbytes, self.copy_limit) / self.copy_bandwidth
        )

    def trips(self, nbytes: float) -> int:
        """Return the number of times that a message of ``nbytes`` bytes crosses the
        network: 1, or 3 with a request and the answer to it.
        """
        return 3 if nbytes >= self.eager_limit else 1

    def all_at_once(
        self, count: int, nbytes: float, wire: float, route: float
    ) -> float:
        """Seconds until ``count`` messages of ``nbytes`` bytes, which every rank posts
        one after the other, have ended; ``wire`` is what they take where they cost
        nothing, and ``route`` the latency of their cables, which is in it. Eager ones
        travel while others are posted, so the slower of both counts; those that are
        asked for travel when all are posted, so both do.
        """
        posting = count * self.host_seconds(nbytes)
        trips = self.trips(nbytes)
        if trips == 1:
            return self.latency + max(posting + route, wire)
        return trips * self.latency + (trips - 1) * route + posting + wire


class Cluster(Spec):
    """A machine.

    Attributes:
        name: of the machine.
        topology: how hosts and switches are linked.
        routing: which of the ways through the network messages take; that of the
            topology if left out.
        host: what stands in every host.
        ssd: the SSD of a host.
        memory: the memory of a host.
        parallel_file_system: the file system that all hosts share.
        object_store: one that all hosts reach, Amazon S3 and the like; none if left
            out.
        cache_tier: a cache that all hosts share, in front of the file system or the
            object store; none if left out.
        message_passing: what the message layer costs the exchange.
        placement: which hosts ranks fill, one after the other: the first ones
            ('compact'), these in such an order that each leaf switch gets one in turn
            ('round_robin'), hosts drawn at random ('scattered'), or hosts by name: a
            list, or a node list of Slurm.
        host_names: what the hosts of the topology are called, in its order: a node list
            of Slurm, as 'lrdn[0001-3456]'; h0000 and so on if left out.
        faults: by the name of a host, a switch (all of its cables) or a cable
            ('leaf.0>spine.1', with '#1' the second of parallel ones) the share of its
            bandwidth that is left; 0 cuts it, and hosts that are cut off take no part.
        description: in words.
    """

    name: str
    topology: Topology
    routing: Routing | None = None
    host: Host
    ssd: LocalSsd
    memory: Memory
    parallel_file_system: ParallelFileSystem
    object_store: ObjectStore | None = None
    cache_tier: CacheTier | None = None
    message_passing: MessagePassing = Field(default_factory=MessagePassing)
    placement: str | list[str] = "compact"
    host_names: str | None = None
    faults: dict[str, Fraction] | None = None
    description: str = ""

    @field_validator("placement", mode="before")
    @classmethod
    def _text_or_list(cls, placement: object) -> object:
        """Refuse what is neither text nor a list of texts."""
        parts = placement if isinstance(placement, list) else [placement]
        if not all(isinstance(part, str) for part in parts):
            raise ValueError("must be text, or a list of names of hosts")
        return placement

    @property
    def named_hosts(self) -> list[str] | None:
        """The hosts that ``placement`` names; None if it is a rule. Raises an
        InputError if it is no node list.
        """
        if isinstance(self.placement, list):
            return self.placement
        return (
            None if self.placement in PLACEMENTS else expand_node_list(self.placement)
        )

    @property
    def store(self) -> ObjectStore:
        """``object_store``, where it is known that there is one: a scenario that reads
        from it is checked for that. An AssertionError if there is none.
        """
        assert self.object_store is not None  # noqa: S101 - see above
        return self.object_store

    def sketch(self) -> Sketch:
        """Return the graph of the network with its faults. Raises a `TopologyError` if
        it cannot be used, or if ``host_names`` are not those of its hosts.
        """
        network = self.topology.sketch()
        if self.host_names is not None:
            self._call_hosts(network, self.host_names)
        return apply_faults(network, self.faults) if self.faults else network

    def _call_hosts(self, network: Sketch, text: str) -> None:
        """Rename the hosts of ``network`` by a node list.

        Raises:
            TopologyError: it is no list of as many distinct names that no switch has.
        """
        key = "cluster.host_names"
        rule = ""
        value = ""
        try:
            names = expand_node_list(text)
        except InputError as error:
            raise TopologyError(
                [p.below(key) for p in error.problems], self.name
            ) from None
        hosts = self.topology.num_hosts
        other_names = {
            name for name, data in network.nodes(data=True) if data["kind"] != "host"
        }
        if len(names) != hosts:
            rule = f"must name the {hosts} hosts of the topology"
            value = f"{len(names)} names"
        elif twice := [name for name, count in Counter(names).items() if count > 1]:
            rule = "must name each host once"
            value = f"several times {twice[0]}"
        elif switch := other_names.intersection(names):
            rule = "must not be the name of a switch"
            value = min(switch)
        if rule:
            remedy = "Write for example 'node[0001-1024]'."
            raise TopologyError(
                Problem(key, rule, value, remedy), f"topology of {self.name}"
            )
        network.rename_hosts(names)

    def cabling(self) -> Cabling:
        """The cables of `sketch`. Raises a TopologyError if it has loose parts, no
        host, or a link without a positive bandwidth.
        """
        problems, cabling = check_graph(self.sketch(), "cluster.topology")
        if problems or cabling is None:
            raise TopologyError(problems, f"topology of {self.name}")
        return cabling

    @property
    def is_cut(self) -> bool:
        """True if a fault leaves a share of 0: cables of the topology are missing."""
        return 0.0 in (self.faults or {}).values()

    @property
    def keyed_network(self) -> CacheArgument[Cluster]:
        """The cluster as a cached argument: its key is equal for equal networks, names
        of hosts and faults.
        """
        key = (self.topology.key, self.host_names, *(self.faults or {}).items())
        return CacheArgument(key, self)

    @property
    def num_hosts(self) -> int:
        """Hosts that are not cut off; raises as `sketch`."""
        return (
            _connected_hosts(self.keyed_network)[0]
            if self.faults
            else self.topology.num_hosts
        )

    @property
    def links_per_host(self) -> int:
        """Links to switches of the host with the fewest; raises as `sketch`."""
        return (
            _connected_hosts(self.keyed_network)[1]
            if self.faults
            else self.topology.links_per_host
        )

    @property
    def num_gpus(self) -> int:
        """GPUs of all hosts; raises as `sketch`."""
        return self.num_hosts * self.host.gpus

    def hosts_for(self, world_size: int) -> int:
        """Hosts that so many ranks fill, the last one maybe in part: ceil(M / gpus)."""
        return -(-world_size // self.host.gpus)

    @property
    def hosts_per_domain(self) -> int:
        """Hosts of a scale-up domain but maybe the last; 1 if there are none."""
        return 1 if self.topology.domains is None else self.topology.domains.hosts

    @property
    def hcas_per_domain(self) -> int:
        """HCAs of a scale-up domain; of a host if there are none."""
        return self.hosts_per_domain * self.host.hcas

    def domains_for(self, world_size: int) -> int:
        """Scale-up domains of so many ranks on consecutive hosts; hosts if there are
        none.
        """
        return -(-self.hosts_for(world_size) // self.hosts_per_domain)

    def ranks_per_host(self, world_size: int) -> int:
        """Ranks of every host but maybe the last: min(M, gpus)."""
        return min(world_size, self.host.gpus)

    def capacity(self, tier: Literal["ssd", "memory"]) -> float:
        """Bytes that a host holds on its SSD, or in its memory."""
        return self.memory.capacity if tier == "memory" else self.ssd.capacity

    def host_of(self, world_size: int) -> Ints32:
        """(M,) number of the host of each rank."""
        return np.arange(world_size, dtype=np.int32) // np.int32(self.host.gpus)

    def domain_of(self, world_size: int) -> Ints32:
        """(M,) number of the scale-up domain of each rank on consecutive hosts; of its
        host if there are none.
        """
        return self.host_of(world_size) // np.int32(self.hosts_per_domain)


@lru_cache(maxsize=64)
def _connected_hosts(network: CacheArgument[Cluster]) -> tuple[int, int]:
    """Count the hosts of a network with faults, without those that are cut off, and the
    links of the host with the fewest.
    """
    cabling = Cabling.from_graph(network.argument.sketch())
    hosts = cabling.nodes_of_kind("host")
    return len(hosts), int(np.diff(cabling.neighbours[0])[hosts].min())

"""The star: all hosts on one switch, so that hosts contend only for their own links."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simshuffle.fabric.topology.base import Interconnect
from simshuffle.fabric.topology.graph import Graph, add_host, add_switch, connect
from simshuffle.spec.record import MOST_HOSTS, Bandwidth, Few, Seconds, Sourced


class Star(Sourced, Interconnect):
    """``hosts`` hosts on one ideal switch.

    Attributes:
        hosts: in all.
        hcas_per_host: links of a host to the switch.
        link_bandwidth: of a link, in each direction.
        cable_latency: of every cable.
        switch_latency: of crossing the switch.
    """

    kind: Literal["star"]
    hosts: Annotated[int, Field(ge=1, le=MOST_HOSTS)]
    hcas_per_host: Few = 1
    link_bandwidth: Bandwidth
    cable_latency: Seconds
    switch_latency: Seconds

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return self.hosts

    @property
    def links_per_host(self) -> int:
        """Links of a host to the switch: one for each HCA."""
        return self.hcas_per_host

    @property
    def height(self) -> int:
        """Number of switch levels less one: 0."""
        return 0

    def build(self, graph: Graph) -> None:
        """Add hosts ``h0000`` and one switch ``switch``."""
        add_switch(graph, "switch", "leaf", self.switch_latency)
        for host in range(self.hosts):
            add_host(graph, f"h{host:04d}")
            connect(
                graph,
                f"h{host:04d}",
                "switch",
                bandwidth=self.link_bandwidth,
                latency=self.cable_latency,
                links=self.hcas_per_host,
            )

"""The interconnect of ABCI (2018-2024) at switch level: racks of leaf and
full-bisection switches under two spine directors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.fabric.topology.base import Interconnect
from simshuffle.fabric.topology.directors import Directors
from simshuffle.fabric.topology.graph import Graph, add_host, add_switch, connect
from simshuffle.spec.record import Bandwidth, Few, Seconds, Sourced


class Abci(Sourced, Interconnect):
    """Racks, or islands, with leaf switches and, above them, full-bisection (FBB)
    switches; few links from those to the spine.

    The HCAs of a rack, host by host, go to its leaf switches in turn. With twice as
    many leaf switches as HCAs, hosts stand in pairs: the even host of a pair has its
    HCAs on the first leaf switches, the odd one on the next ones.

    Attributes:
        racks: in all.
        hosts_per_rack: hosts of a rack.
        hcas_per_host: links of a host to leaf switches.
        leaf_switches_per_rack, fbb_switches_per_rack: switches of a rack, by their
            level.
        spine_switches: in all; each is a director.
        leaf_fbb_links: parallel links from each leaf switch to each FBB switch of the
            rack.
        fbb_spine_links: parallel links from each FBB switch to each spine switch.
        link_bandwidth: of a link, in each direction.
        cable_latency: of every cable.
        leaf_latency, fbb_latency, spine_latency: of crossing such a switch.
        directors: what the spine switches are made of; one ideal switch each if left
            out.
    """

    kind: Literal["abci"]
    racks: Annotated[int, Field(ge=1, le=1024)]
    hosts_per_rack: Annotated[int, Field(ge=1, le=1024)]
    hcas_per_host: Few
    leaf_switches_per_rack: Few
    fbb_switches_per_rack: Few
    spine_switches: Few
    leaf_fbb_links: Few
    fbb_spine_links: Few
    link_bandwidth: Bandwidth
    cable_latency: Seconds
    leaf_latency: Seconds
    fbb_latency: Seconds
    spine_latency: Seconds
    directors: Directors | None = None

    @model_validator(mode="after")
    def _check_leaf_switches(self) -> Abci:
        """Raise a PydanticCustomError where a leaf switch of a rack has no host, or the
        FBB switches do not fit a director.
        """
        if self.hosts_per_rack * self.hcas_per_host < self.leaf_switches_per_rack:
            raise PydanticCustomError(
                "leaf",
                "every leaf switch of a rack needs a host: give more hosts or fewer leaf switches",
            )
        if self.directors and (
            director_problem := self.directors.problem(*self._spine_children)
        ):
            raise director_problem
        return self

    @property
    def _spine_children(self) -> tuple[int, int, int]:
        """Return the arguments of `Directors.problem`: racks, parallel links of each
        FBB switch to a spine switch, and FBB switches per rack.
        """
        return self.racks, self.fbb_spine_links, self.fbb_switches_per_rack

    @property
    def num_hosts(self) -> int:
        """Number of hosts in all racks."""
        return self.racks * self.hosts_per_rack

    @property
    def links_per_host(self) -> int:
        """Links of a host to leaf switches: one for each HCA."""
        return self.hcas_per_host

    @property
    def height(self) -> int:
        """Number of switch levels less one: 2, or 3 if the spine switches are
        ``directors``.
        """
        return 3 if self.directors else 2

    def structure(self) -> str:
        """Describe the modules of ``directors`` in words; empty without directors."""
        if self.directors is None:
            return ""
        return (
            f"every spine director of {self.directors.describe(*self._spine_children)}"
        )

    def build(self, graph: Graph) -> None:
        """Add hosts ``h0000``, switches ``r00.leaf0``, ``r00.fbb0``, ``spine0``, or its
        modules ``spine0.line3`` and ``spine0.fabric7``.
        """
        cable: dict[str, Any] = {
            "bandwidth": self.link_bandwidth,
            "latency": self.cable_latency,
        }
        spines = [f"spine{s}" for s in range(self.spine_switches)]
        ideal_spines = [] if self.directors else spines
        for spine in ideal_spines:
            add_switch(graph, spine, "spine", self.spine_latency)
        for rack in range(self.racks):
            leaves = [
                f"r{rack:02d}.leaf{i}" for i in range(self.leaf_switches_per_rack)
            ]
            fbbs = [f"r{rack:02d}.fbb{i}" for i in range(self.fbb_switches_per_rack)]
            for name in leaves:
                add_switch(graph, name, "leaf", self.leaf_latency)
            for name in fbbs:
                add_switch(graph, name, "fbb", self.fbb_latency)
                for spine in ideal_spines:
                    connect(graph, name, spine, links=self.fbb_spine_links, **cable)
                for leaf in leaves:
                    connect(graph, leaf, name, links=self.leaf_fbb_links, **cable)
            for i in range(self.hosts_per_rack):
                host = f"h{rack * self.hosts_per_rack + i:04d}"
                add_host(graph, host)
                for hca in range(self.hcas_per_host):
                    connect(
                        graph,
                        host,
                        leaves[(i * self.hcas_per_host + hca) % len(leaves)],
                        **cable,
                    )
        if self.directors:
            self._add_director_modules(graph, spines, cable)

    def _add_director_modules(
        self, graph: Graph, spines: list[str], cable: dict[str, Any]
    ) -> None:
        """Add the line and fabric modules of every spine switch, with their links to
        the FBB switches.
        """
        assert self.directors is not None  # noqa: S101 - where it is called
        # one set for each index of an FBB switch in its rack
        fbb_sets = [
            [f"r{rack:02d}.fbb{i}" for rack in range(self.racks)]
            for i in range(self.fbb_switches_per_rack)
        ]
        for spine in spines:
            self.directors.add_modules(
                graph,
                spine,
                self.spine_latency,
                fbb_sets,
                links=self.fbb_spine_links,
                cable=cable,
            )

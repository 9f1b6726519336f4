"""Rail-optimised fabrics of pods: in a pod one leaf switch for each rail."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simshuffle.fabric.topology.base import Interconnect, ScaleUp, problem
from simshuffle.fabric.topology.fat_tree import MOST_PORTS, ROUNDING, Taper
from simshuffle.fabric.topology.graph import Graph, add_host, add_switch, connect
from simshuffle.fabric.topology.populated import Populated, format_count
from simshuffle.spec.record import MOST_HOSTS, Bandwidth, Count, Few, Seconds, Sourced
from simshuffle.spec.units import Dimension, readable


class RailOptimised(Sourced, Interconnect):
    """``pods`` (scalable units) of ``hosts_per_pod`` hosts with an HCA on each of
    ``rails`` rails. In a pod every rail has a leaf switch of its own, or as many as its
    hosts need; ``hosts`` are fewer, so that the last pod is not full (NVIDIA DGX
    SuperPOD reference architectures).

    All switches have ``ports`` ports. A leaf switch has u = floor(ports / (taper + 1))
    links up and at most floor(u taper) hosts. ``spine_layout`` says which leaf switches
    a spine is linked to:

    - ``shared``: all. There are two levels.
    - ``rail``: all of one rail. Core switches above join the rails.
    - ``pod``: all of one pod. Core switches above join the pods.

    The first spines of all rails, or pods, are linked to ``cores`` core switches of
    their own, the second ones to as many others, and so on.

    Attributes:
        pods: scalable units.
        hosts_per_pod: hosts of a pod.
        rails: HCAs of a host; ``cluster.host.hcas`` must be the same.
        hosts: in all; fewer than fit leave room in the last pod. All if left out.
        ports: of every switch.
        taper: links below a leaf switch to those above it: 1 is full bisection.
        spine_layout: which leaf switches a spine is linked to: all, those of one rail,
            or those of one pod.
        spines: in all, of a rail or of a pod; the fewest over which links spread evenly
            if left out.
        cores: switches above the spines of one number; the fewest over which links
            spread evenly if left out.
        core_taper: links below a spine to those above it.
        link_bandwidth: of a link, in each direction.
        cable_latency: of every cable.
        switch_latency: of crossing a switch.
        scale_up: what joins the GPUs of several hosts beside this network.
    """

    hcas_are_rails: ClassVar[bool] = True
    default_sources: ClassVar[dict[str, str]] = Populated.default_sources

    kind: Literal["rail_optimised"]
    pods: Few
    hosts_per_pod: Count
    rails: Annotated[int, Field(ge=1, le=64)]
    hosts: Count | None = None
    ports: Annotated[int, Field(ge=2, le=MOST_PORTS)]
    taper: Taper = 1.0
    spine_layout: Literal["shared", "rail", "pod"] = "shared"
    spines: Few | None = None
    cores: Few | None = None
    core_taper: Taper = 1.0
    link_bandwidth: Bandwidth
    cable_latency: Seconds = 26e-9
    switch_latency: Seconds = 90e-9
    scale_up: ScaleUp | None = None

    @model_validator(mode="after")
    def _check(self) -> RailOptimised:
        """Raise a PydanticCustomError where hosts, spines or core switches do not go
        together with the ports.
        """
        self._check_hosts()
        if self.uplinks == 0:
            rule = (
                f"a leaf switch of {self.ports} ports must have at least one of them up"
            )
            raise problem(
                "taper", rule, f"{self.taper:g}", f"Use at most {self.ports - 1}."
            )
        self._check_switch_count("spines", self.spines, self._spine_counts)
        if self.num_blocks == 1 and self.cores is not None:
            rule = "there are none: the spines join all leaf switches"
            raise problem(
                "cores", rule, self.cores, "Leave it out, or choose a spine_layout."
            )
        if self.num_blocks > 1:
            links_down = self._leaves_per_block * self._spine_links
            if self._core_links_of_spine(links_down) == 0:
                links = format_count(links_down, "link")
                rule = f"a spine with {links} down must have at least one up"
                remedy = f"Use at most {links_down}."
                raise problem("core_taper", rule, f"{self.core_taper:g}", remedy)
            self._check_switch_count("cores", self.cores, self._core_counts)
        return self

    def _check_hosts(self) -> None:
        """Raise a PydanticCustomError where there are too many hosts, or pods without
        hosts.
        """
        max_hosts = self.pods * self.hosts_per_pod
        min_hosts = max_hosts - self.hosts_per_pod + 1
        if max_hosts * self.rails > MOST_HOSTS:
            rule = f"x hosts_per_pod x rails must be at most {MOST_HOSTS}"
            raise problem("pods", rule, f"{max_hosts} x {self.rails}", "Give fewer.")
        if not min_hosts <= self.num_hosts <= max_hosts:
            pods = -(-self.num_hosts // self.hosts_per_pod)
            rule = f"must be from {min_hosts} to {max_hosts}: all pods but the last"
            raise problem(
                "hosts", f"{rule} are full", self.num_hosts, f"Use pods: {pods}."
            )

    def _check_switch_count(
        self, key: str, requested: int | None, possible_counts: list[int]
    ) -> None:
        """Raise a PydanticCustomError where the links of a block cannot be spread
        evenly over its upper switches, by their ports.

        Args:
            key: 'spines' or 'cores', the upper switches.
            requested: their number as the user wrote it; None if left out.
            possible_counts: the numbers that are possible.
        """
        lower = "leaf switches" if key == "spines" else "spines"
        if not possible_counts:
            count = self._leaves_per_block if key == "spines" else self.num_blocks
            raise problem(
                "ports",
                f"are too few for {key} with a link to each of the {count} {lower} below them",
                self.ports,
                "Use more ports, fewer pods or rails, or another spine_layout.",
            )
        if requested is not None and requested not in possible_counts:
            raise problem(
                key,
                f"the links of the {lower} must spread over them evenly, within their ports",
                requested,
                f"Use {', '.join(map(str, possible_counts))}.",
            )

    @property
    def uplinks(self) -> int:
        """Number of links from a leaf switch up."""
        return math.floor(self.ports / (self.taper + 1) + ROUNDING)

    @property
    def _leaves_per_pod(self) -> int:
        """Number of leaf switches that a full pod has on each rail."""
        return -(-self.hosts_per_pod // self._hosts_per_leaf)

    @property
    def _hosts_per_leaf(self) -> int:
        """Number of hosts that a leaf switch has ports for, by its taper."""
        return math.floor(self.uplinks * self.taper + ROUNDING)

    @property
    def num_blocks(self) -> int:
        """Number of blocks: sets of leaf switches with spines of their own."""
        return {"shared": 1, "rail": self.rails, "pod": self.pods}[self.spine_layout]

    @property
    def _leaves_per_block(self) -> int:
        """Number of leaf switches of a block, if all its pods are full."""
        return self.pods * self.rails // self.num_blocks * self._leaves_per_pod

    @property
    def _spine_counts(self) -> list[int]:
        """List the possible numbers of spines of a block, ascending; empty if the ports
        are too few.
        """
        uplinks = self.uplinks
        num_leaves = self._leaves_per_block
        return [
            num_spines
            for num_spines in range(1, uplinks + 1)
            if uplinks % num_spines == 0
            and num_leaves * uplinks // num_spines
            + self._core_links_of_spine(num_leaves * uplinks // num_spines)
            <= self.ports
        ]

    @property
    def _core_counts(self) -> list[int]:
        """List the possible numbers of core switches above the spines with one index,
        ascending; empty if the ports are too few.
        """
        uplinks = self._core_links_of_spine(self._leaves_per_block * self._spine_links)
        return [
            num_cores
            for num_cores in range(1, uplinks + 1)
            if uplinks % num_cores == 0
            and self.num_blocks * uplinks // num_cores <= self.ports
        ]

    def _core_links_of_spine(self, links_down: int) -> int:
        """Number of links from a spine up to core switches, if it has ``links_down``
        links down; 0 if there is only one block.
        """
        return (
            math.floor(links_down / self.core_taper + ROUNDING)
            if self.num_blocks > 1
            else 0
        )

    @property
    def num_spines(self) -> int:
        """Number of spines of a block: ``spines``, or the fewest that are possible."""
        return self.spines or self._spine_counts[0]

    @property
    def num_cores(self) -> int:
        """Number of core switches above the spines with one index: ``cores``, or the
        fewest that are possible; 0 if there is only one block.
        """
        return 0 if self.num_blocks == 1 else self.cores or self._core_counts[0]

    @property
    def num_hosts(self) -> int:
        """Number of hosts: ``hosts``, or as many as all pods hold."""
        return self.hosts or self.pods * self.hosts_per_pod

    @property
    def links_per_host(self) -> int:
        """Links of a host to leaf switches: one for each rail."""
        return self.rails

    @property
    def domains(self) -> ScaleUp | None:
        """Scale-up domains that join hosts beside the network: ``scale_up``; None if
        there are none.
        """
        return self.scale_up

    @property
    def height(self) -> int:
        """Number of switch levels less one: 1, or 2 with core switches."""
        return 1 if self.num_blocks == 1 else 2

    @property
    def _spine_links(self) -> int:
        """Number of parallel links between a leaf switch and a spine."""
        return self.uplinks // self.num_spines

    @property
    def _core_links(self) -> int:
        """Number of parallel links between a spine and a core switch; only where there
        are core switches.
        """
        return (
            self._core_links_of_spine(self._leaves_per_block * self._spine_links)
            // self.num_cores
        )

    @property
    def _leaves(self) -> list[tuple[int, int, int]]:
        """List (rail, pod, index in both) of each leaf switch that has hosts, rail by
        rail.
        """
        hosts_in_last_pod = self.num_hosts - (self.pods - 1) * self.hosts_per_pod
        return [
            (rail, pod, leaf)
            for rail in range(self.rails)
            for pod in range(self.pods)
            for leaf in range(self._leaves_per_pod)
            if pod < self.pods - 1 or leaf * self._hosts_per_leaf < hosts_in_last_pod
        ]

    def structure(self) -> str:
        """Describe switches, links, scale-up domains and bisection bandwidth in words."""
        leaves = len(self._leaves)
        spines = self.num_blocks * self.num_spines
        links_per_leaf = format_count(self._spine_links, "link")
        bisection_links = min(self.num_hosts * self.rails, leaves * self.uplinks)
        spines_of_block = (
            ""
            if self.num_blocks == 1
            else f", {self.num_spines} of each {self.spine_layout}"
        )
        sentences = [
            f"{leaves} leaf switch{'es' * (leaves > 1)} with up to {self._hosts_per_leaf} links"
            f" down and {self.uplinks} up",
            f"{format_count(spines, 'spine')}{spines_of_block},"
            f" {links_per_leaf} to each leaf switch",
        ]
        if self.num_cores:
            links = format_count(self._core_links, "link")
            num_cores = self.num_cores * self.num_spines
            sentences.append(
                f"{format_count(num_cores, 'core')}, {links} to each spine below"
            )
            if self.spine_layout == "pod":
                bisection_links = min(
                    bisection_links, spines * self.num_cores * self._core_links
                )
        if self.scale_up is not None:
            domain_size = self.scale_up.hosts
            domains = format_count(-(-self.num_hosts // domain_size), "scale-up domain")
            sentences.append(f"{domains} of up to {domain_size} hosts")
        bandwidth = readable(bisection_links * self.link_bandwidth, Dimension.BANDWIDTH)
        return "; ".join(
            (*sentences, f"bisection about {bandwidth} both ways together")
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``pod0.rail1.leaf0``, rail by rail, ``spine0``, ``rail1.spine0``
        or ``pod0.spine0``, ``core0.1`` by the number of its spines and its own; and
        hosts ``h0000``.
        """
        cable: dict[str, Any] = {
            "bandwidth": self.link_bandwidth,
            "latency": self.cable_latency,
        }
        leaf_names = {
            (rail, pod, leaf): f"pod{pod}.rail{rail}.leaf{leaf}"
            for rail, pod, leaf in self._leaves
        }
        for name in leaf_names.values():
            add_switch(graph, name, "leaf", self.switch_latency)
        spine_names = [
            [f"{self._prefix(block)}spine{i}" for i in range(self.num_spines)]
            for block in range(self.num_blocks)
        ]
        for name in (name for block in spine_names for name in block):
            add_switch(graph, name, "spine", self.switch_latency)
        parallel = self._spine_links
        for (rail, pod, _), name in leaf_names.items():
            block = {"shared": 0, "rail": rail, "pod": pod}[self.spine_layout]
            for spine in spine_names[block]:
                connect(graph, name, spine, links=parallel, **cable)
        if self.num_cores:
            self._add_cores(graph, spine_names, cable)
        for host in range(self.num_hosts):
            add_host(graph, f"h{host:04d}")
            pod, index_in_pod = divmod(host, self.hosts_per_pod)
            for rail in range(self.rails):
                leaf = leaf_names[rail, pod, index_in_pod // self._hosts_per_leaf]
                connect(graph, f"h{host:04d}", leaf, **cable)

    def _add_cores(
        self, graph: Graph, spines: list[list[str]], cable: dict[str, Any]
    ) -> None:
        """Add the core switches, and their links to the spines with one index in every
        block.
        """
        num_cores = self.num_cores
        parallel = self._core_links
        for spine_index, spine_column in enumerate(zip(*spines, strict=True)):
            for core_index in range(num_cores):
                core = f"core{spine_index}.{core_index}"
                add_switch(graph, core, "core", self.switch_latency)
                for spine in spine_column:
                    connect(graph, spine, core, links=parallel, **cable)

    def _prefix(self, block: int) -> str:
        """Return the beginning of the names of a block's spines."""
        return "" if self.spine_layout == "shared" else f"{self.spine_layout}{block}."

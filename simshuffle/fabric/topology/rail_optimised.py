"""Rail-optimised fabrics of pods: in a pod one leaf switch for each rail."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simshuffle.fabric.topology.base import Interconnect, ScaleUp, problem
from simshuffle.fabric.topology.fat_tree import MOST_PORTS, ROUNDING, Taper
from simshuffle.fabric.topology.graph import Graph, add_host, add_switch, connect
from simshuffle.fabric.topology.populated import Populated, of
from simshuffle.spec.record import MOST_HOSTS, Bandwidth, Count, Few, Seconds, Sourced
from simshuffle.spec.units import Dimension, readable


class RailOptimised(Sourced, Interconnect):
    """``pods`` (scalable units) of ``hosts_per_pod`` hosts with an HCA on each of ``rails`` rails.
    In a pod every rail has a leaf switch of its own, or as many as its hosts need; ``hosts`` are
    fewer, so that the last pod is not full (NVIDIA DGX SuperPOD reference architectures).

    All switches have ``ports`` ports. A leaf switch has u = floor(ports / (taper + 1)) links up and
    at most floor(u taper) hosts. ``spine_layout`` says which leaf switches a spine is linked to:

    - ``shared``: all. There are two levels.
    - ``rail``: all of one rail. Core switches above join the rails.
    - ``pod``: all of one pod. Core switches above join the pods.

    The first spines of all rails, or pods, are linked to ``cores`` core switches of their own, the
    second ones to as many others, and so on.

    Attributes:
        pods: scalable units.
        hosts_per_pod: hosts of a pod.
        rails: HCAs of a host; ``cluster.host.hcas`` must be the same.
        hosts: in all; fewer than fit leave room in the last pod. All if left out.
        ports: of every switch.
        taper: links below a leaf switch to those above it: 1 is full bisection.
        spine_layout: which leaf switches a spine is linked to: all, those of one rail, or those of
            one pod.
        spines: in all, of a rail or of a pod; the fewest over which links spread evenly if left
            out.
        cores: switches above the spines of one number; the fewest over which links spread evenly if
            left out.
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
    def _is_possible(self) -> RailOptimised:
        self._check_hosts()
        if self.uplinks == 0:
            rule = f"a leaf switch of {self.ports} ports must have at least one of them up"
            raise problem("taper", rule, f"{self.taper:g}", f"Use at most {self.ports - 1}.")
        self._check_number("spines", self.spines, self._spine_counts)
        if self.num_blocks == 1 and self.cores is not None:
            rule = "there are none: the spines join all leaf switches"
            raise problem("cores", rule, self.cores, "Leave it out, or choose a spine_layout.")
        if self.num_blocks > 1:
            below = self._leaves_of_a_block * self._spine_links
            if self._above(below) == 0:
                rule = f"a spine with {of(below, 'link')} down must have at least one up"
                raise problem("core_taper", rule, f"{self.core_taper:g}", f"Use at most {below}.")
            self._check_number("cores", self.cores, self._core_counts)
        return self

    def _check_hosts(self) -> None:
        most = self.pods * self.hosts_per_pod
        if most * self.rails > MOST_HOSTS:
            rule = f"x hosts_per_pod x rails must be at most {MOST_HOSTS}"
            raise problem("pods", rule, f"{most} x {self.rails}", "Give fewer.")
        if not most - self.hosts_per_pod < self.num_hosts <= most:
            pods = -(-self.num_hosts // self.hosts_per_pod)
            rule = f"must be from {most - self.hosts_per_pod + 1} to {most}: all pods but the last"
            raise problem("hosts", f"{rule} are full", self.num_hosts, f"Use pods: {pods}.")

    def _check_number(self, key: str, given: int | None, possible: list[int]) -> None:
        """Raises a PydanticCustomError where links cannot be spread evenly over the upper switches
        of a block, by their ports."""
        lower = "leaf switches" if key == "spines" else "spines"
        if not possible:
            count = self._leaves_of_a_block if key == "spines" else self.num_blocks
            raise problem(
                "ports",
                f"are too few for {key} with a link to each of the {count} {lower} below them",
                self.ports,
                "Use more ports, fewer pods or rails, or another spine_layout.",
            )
        if given is not None and given not in possible:
            raise problem(
                key,
                f"the links of the {lower} must spread over them evenly, within their ports",
                given,
                f"Use {', '.join(map(str, possible))}.",
            )

    @property
    def uplinks(self) -> int:
        """Links from a leaf switch up."""
        return math.floor(self.ports / (self.taper + 1) + ROUNDING)

    @property
    def _leaves_of_a_pod(self) -> int:
        """Of a full pod, on each rail."""
        return -(-self.hosts_per_pod // self._hosts_per_leaf)

    @property
    def _hosts_per_leaf(self) -> int:
        return math.floor(self.uplinks * self.taper + ROUNDING)

    @property
    def num_blocks(self) -> int:
        """Sets of leaf switches with spines of their own."""
        return {"shared": 1, "rail": self.rails, "pod": self.pods}[self.spine_layout]

    @property
    def _leaves_of_a_block(self) -> int:
        return self.pods * self.rails // self.num_blocks * self._leaves_of_a_pod

    @property
    def _spine_counts(self) -> list[int]:
        """Possible numbers of spines of a block."""
        up, below = self.uplinks, self._leaves_of_a_block
        return [
            n
            for n in range(1, up + 1)
            if up % n == 0 and below * up // n + self._above(below * up // n) <= self.ports
        ]

    @property
    def _core_counts(self) -> list[int]:
        """Possible numbers of core switches above the spines of one number."""
        up = self._above(self._leaves_of_a_block * self._spine_links)
        return [
            n for n in range(1, up + 1) if up % n == 0 and self.num_blocks * up // n <= self.ports
        ]

    def _above(self, below: int) -> int:
        """Links up from a spine with so many down."""
        return math.floor(below / self.core_taper + ROUNDING) if self.num_blocks > 1 else 0

    @property
    def num_spines(self) -> int:
        """Of a block: ``spines``, or the fewest."""
        return self.spines or self._spine_counts[0]

    @property
    def num_cores(self) -> int:
        """Above the spines of one number: ``cores``, or the fewest; 0 if one block is all."""
        return 0 if self.num_blocks == 1 else self.cores or self._core_counts[0]

    @property
    def num_hosts(self) -> int:
        """``hosts``, or those of all pods."""
        return self.hosts or self.pods * self.hosts_per_pod

    @property
    def links_per_host(self) -> int:
        """One for each rail."""
        return self.rails

    @property
    def domains(self) -> ScaleUp | None:
        """``scale_up``."""
        return self.scale_up

    @property
    def height(self) -> int:
        """1, or 2 with core switches."""
        return 1 if self.num_blocks == 1 else 2

    @property
    def _spine_links(self) -> int:
        """Parallel links of a leaf switch and a spine."""
        return self.uplinks // self.num_spines

    @property
    def _core_links(self) -> int:
        """Parallel links of a spine and a core switch."""
        return self._above(self._leaves_of_a_block * self._spine_links) // self.num_cores

    @property
    def _leaves(self) -> list[tuple[int, int, int]]:
        """Rail, pod and number of each leaf switch with hosts."""
        last = self.num_hosts - (self.pods - 1) * self.hosts_per_pod
        return [
            (rail, pod, leaf)
            for rail in range(self.rails)
            for pod in range(self.pods)
            for leaf in range(self._leaves_of_a_pod)
            if pod < self.pods - 1 or leaf * self._hosts_per_leaf < last
        ]

    def structure(self) -> str:
        """See `Interconnect.structure`."""
        leaves, spines = len(self._leaves), self.num_blocks * self.num_spines
        both = min(self.num_hosts * self.rails, leaves * self.uplinks)
        each = "" if self.num_blocks == 1 else f", {self.num_spines} of each {self.spine_layout}"
        told = [
            f"{leaves} leaf switch{'es' * (leaves > 1)} with up to {self._hosts_per_leaf} links"
            f" down and {self.uplinks} up",
            f"{of(spines, 'spine')}{each}, {of(self._spine_links, 'link')} to each leaf switch",
        ]
        if self.num_cores:
            links = of(self._core_links, "link")
            count = self.num_cores * self.num_spines
            told.append(f"{of(count, 'core')}, {links} to each spine below")
            if self.spine_layout == "pod":
                both = min(both, spines * self.num_cores * self._core_links)
        if self.scale_up is not None:
            count = -(-self.num_hosts // self.scale_up.hosts)
            told.append(f"{of(count, 'scale-up domain')} of up to {self.scale_up.hosts} hosts")
        middle = readable(both * self.link_bandwidth, Dimension.BANDWIDTH)
        return "; ".join((*told, f"bisection about {middle} both ways together"))

    def build(self, graph: Graph) -> None:
        """Add switches ``pod0.rail1.leaf0``, rail by rail, ``spine0``, ``rail1.spine0`` or
        ``pod0.spine0``, ``core0.1`` by the number of its spines and its own; and hosts
        ``h0000``."""
        cable: dict[str, Any] = {"bandwidth": self.link_bandwidth, "latency": self.cable_latency}
        names = {at: f"pod{at[1]}.rail{at[0]}.leaf{at[2]}" for at in self._leaves}
        for name in names.values():
            add_switch(graph, name, "leaf", self.switch_latency)
        spines = [
            [f"{self._prefix(block)}spine{i}" for i in range(self.num_spines)]
            for block in range(self.num_blocks)
        ]
        for name in (name for block in spines for name in block):
            add_switch(graph, name, "spine", self.switch_latency)
        parallel = self._spine_links
        for (rail, pod, _), name in names.items():
            block = {"shared": 0, "rail": rail, "pod": pod}[self.spine_layout]
            for spine in spines[block]:
                connect(graph, name, spine, links=parallel, **cable)
        if self.num_cores:
            self._add_cores(graph, spines, cable)
        for host in range(self.num_hosts):
            add_host(graph, f"h{host:04d}")
            pod, place = divmod(host, self.hosts_per_pod)
            for rail in range(self.rails):
                leaf = names[rail, pod, place // self._hosts_per_leaf]
                connect(graph, f"h{host:04d}", leaf, **cable)

    def _add_cores(self, graph: Graph, spines: list[list[str]], cable: dict[str, Any]) -> None:
        count, parallel = self.num_cores, self._core_links
        for number, below in enumerate(zip(*spines, strict=True)):
            for i in range(count):
                core = f"core{number}.{i}"
                add_switch(graph, core, "core", self.switch_latency)
                for spine in below:
                    connect(graph, spine, core, links=parallel, **cable)

    def _prefix(self, block: int) -> str:
        return "" if self.spine_layout == "shared" else f"{self.spine_layout}{block}."

"""Groups of switches that are linked to one another: dragonflies, in which every two switches of a
group and every two groups are linked; and Dragonfly+, whose groups are of leaf and spine switches,
linked by their spines."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.hyperx import mesh_bisection, mesh_links, meshes, places
from simshuffle.fabric.topology.populated import Each, Populated, Shape, of, of_each
from simshuffle.spec.record import Bandwidth, Few, Seconds


class Grouped(Populated):
    """Groups, every two of them joined by the same number of global links: as many as there are
    ports for; ports that are left over are not used.

    Global links lie as in a palm tree (Camarero, Vallejo & Beivide, Topological Characterization of
    Hamming and Dragonfly Networks and Its Implications on Routing, ACM TACO 11, 2014): a group's
    first port leads to the next group, the second to the one after that, and so on, in as many
    rounds as two groups have links. The ports in use are spread evenly over the switches. So all
    groups look alike.

    Attributes:
        groups: how many; as many as can be linked if left out.
        global_links_per_switch: ports of a switch for links to other groups; of a Dragonfly+ of
            each spine switch.
        local_bandwidth: of links in a group; 'link_bandwidth' if left out.
        global_bandwidth: of links between groups; 'link_bandwidth' if left out.
        global_cable_latency: of a cable between groups.
    """

    default_routing: ClassVar[str] = "minimal"
    sized_by: ClassVar[str] = "groups"
    default_sources: ClassVar[dict[str, str]] = {
        **Populated.default_sources,
        "global_cable_latency": "default: estimate, 20 m x 5.2 ns/m",
    }

    groups: Few | None = None
    global_links_per_switch: Few
    local_bandwidth: Bandwidth | None = None
    global_bandwidth: Bandwidth | None = None
    global_cable_latency: Seconds = 104e-9

    @property
    @abstractmethod
    def gateways(self) -> int:
        """Switches of a group with global links."""

    @property
    @abstractmethod
    def links_in_group(self) -> int:
        """Links between switches of a group."""

    def _check(self) -> None:
        if self.num_groups > self._global_ports + 1:
            raise problem(
                "groups",
                f"must be at most {self._global_ports + 1}: a group has {self.gateways} x"
                f" {self.global_links_per_switch} global links, and needs one to every other group",
                self.num_groups,
                "Use fewer groups, or a larger global_links_per_switch.",
            )
        super()._check()

    @property
    def _global_ports(self) -> int:
        """Of a group."""
        return self.gateways * self.global_links_per_switch

    @property
    def num_groups(self) -> int:
        """``groups``, or as many as can be linked."""
        return self.groups or self._global_ports + 1

    @property
    def links_between_groups(self) -> int:
        """Global links of every two groups."""
        return self._global_ports // (self.num_groups - 1) if self.num_groups > 1 else 0

    @property
    def switch_links(self) -> int:
        """Those of all groups, and those between each two."""
        count = self.num_groups
        pairs = count * (count - 1) // 2
        return count * self.links_in_group + pairs * self.links_between_groups

    @property
    def _local_cable(self) -> dict[str, Any]:
        return {**self._cable, "bandwidth": self.local_bandwidth or self.link_bandwidth}

    @property
    def _between_halves(self) -> float:
        """Bytes/s from one half of the groups to the other."""
        half = self.num_groups // 2
        links = half * (self.num_groups - half) * self.links_between_groups
        return links * (self.global_bandwidth or self.link_bandwidth)

    @property
    def _global_told(self) -> str:
        unused = self._global_ports - self.links_between_groups * (self.num_groups - 1)
        idle = (
            f", {unused} of {self._global_ports} global ports of a group unused" if unused else ""
        )
        return f"{of(self.links_between_groups, 'global link')} between every two groups{idle}"

    def _add_global_links(self, graph: Graph, gateways: list[list[str]]) -> None:
        """Link groups, of which the names of the switches with global links are given."""
        bandwidth = self.global_bandwidth or self.link_bandwidth
        cable: dict[str, Any] = {"bandwidth": bandwidth, "latency": self.global_cable_latency}
        for here, port, there, other in self._global_links():
            connect(graph, gateways[here][port], gateways[there][other], **cable)

    def _global_links(self) -> Iterator[tuple[int, int, int, int]]:
        """Group and switch at one end of each global link, and at the other."""
        count, rounds, switches = self.num_groups, self.links_between_groups, self.gateways
        used = rounds * (count - 1)
        for here in range(count):
            for port in range(used):
                turn, ahead = divmod(port, count - 1)
                there = (here + ahead + 1) % count
                if here < there:
                    other = turn * (count - 1) + count - 2 - ahead
                    yield here, port * switches // used, there, other * switches // used


class Dragonfly(Grouped):
    """A dragonfly (Kim, Dally, Scott & Abts, Technology-Driven, Highly-Scalable Dragonfly Topology,
    ISCA 2008): ``groups`` of ``switches_per_group`` switches with ``hosts_per_switch`` hosts and
    ``global_links_per_switch`` ports for links to other groups. The switches of a group are all
    linked to one another, by ``local_links`` parallel links, as those of Slingshot are; or, with
    ``group_shape``, only along the rows of a grid: Aries has ``group_shape: [16, 6]`` with
    ``local_links: [1, 3]``.

    Attributes:
        switches_per_group: switches of a group, all linked to one another; or 'group_shape'.
        group_shape: switches of a group in every dimension of a grid, linked along its rows only.
        local_links: parallel links between two switches of a group; one number, or one for each
            dimension.
    """

    kind: Literal["dragonfly"]
    switches_per_group: Few | None = None
    group_shape: Shape | None = None
    local_links: Each = Field(default=[1])

    def _check(self) -> None:
        if (self.switches_per_group is None) == (self.group_shape is None):
            raise problem(
                "switches_per_group",
                "is required, or group_shape in its place",
                "none" if self.group_shape is None else "both",
                "Write for example switches_per_group: 8.",
            )
        _ = self._links
        super()._check()

    @property
    def _shape(self) -> list[int]:
        return self.group_shape or [self.switches_per_group or 1]

    @property
    def gateways(self) -> int:
        """All of a group."""
        return math.prod(self._shape)

    @property
    def switches_with_hosts(self) -> int:
        """All of all groups."""
        return self.num_groups * self.gateways

    @property
    def _links(self) -> list[int]:
        """Parallel ones in every dimension of a group."""
        return of_each(self.local_links, "local_links", len(self._shape))

    @property
    def links_in_group(self) -> int:
        """In every dimension a full mesh in each row."""
        return mesh_links(self._shape, self._links)

    def structure(self) -> str:
        """See `Interconnect.structure`."""
        middle, told = self._between_halves, self._global_told
        if self.num_groups == 1:
            local = self.local_bandwidth or self.link_bandwidth
            middle = mesh_bisection(self._shape, self._links) * local
            told = "global ports unused"
        return self._told(
            self.switches_with_hosts,
            f"{of(self.num_groups, 'group')} of {self.gateways} switches",
            told,
            bisection=middle,
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``g0.s3``, or ``g0.s3.1`` by their places in a group, and hosts
        ``h0000``."""
        switches = [
            {at: f"g{group}.s{'.'.join(map(str, at))}" for at in places(self._shape)}
            for group in range(self.num_groups)
        ]
        for group, names in enumerate(switches):
            for at, name in names.items():
                add_switch(graph, name, "leaf", self.switch_latency, (group, *at))
        for names in switches:
            for here, there, dimension in meshes(self._shape):
                parallel = self._links[dimension]
                connect(graph, names[here], names[there], links=parallel, **self._local_cable)
        self._add_global_links(graph, [list(names.values()) for names in switches])
        self._add_hosts(graph, [name for names in switches for name in names.values()])


class DragonflyPlus(Grouped):
    """Dragonfly+ (Shpiner et al., Dragonfly+: Low Cost Topology for Scaling Datacenters, HiPINEB
    2017): in every one of the ``groups`` each of ``leaf_switches`` is linked to each of
    ``spine_switches`` by ``leaf_spine_links``. Leaf switches have ``hosts_per_switch`` hosts, spine
    switches ``global_links_per_switch`` ports for links to other groups.

    Attributes:
        leaf_switches: of a group.
        spine_switches: of a group.
        leaf_spine_links: parallel links between a leaf and a spine switch of a group.
    """

    kind: Literal["dragonfly_plus"]
    leaf_switches: Few
    spine_switches: Few
    leaf_spine_links: Few = 1

    @property
    def gateways(self) -> int:
        """The spine switches of a group."""
        return self.spine_switches

    @property
    def switches_with_hosts(self) -> int:
        """The leaf switches of all groups."""
        return self.num_groups * self.leaf_switches

    @property
    def links_in_group(self) -> int:
        """Between all leaf and all spine switches."""
        return self.leaf_switches * self.spine_switches * self.leaf_spine_links

    def structure(self) -> str:
        """See `Interconnect.structure`."""
        middle, told = self._between_halves, self._global_told
        if self.num_groups == 1:
            # each spine switch is linked to as many leaf switches in one half as in the other
            local = self.local_bandwidth or self.link_bandwidth
            middle, told = self.links_in_group * local / 2, "global ports unused"
        each = self.leaf_switches + self.spine_switches
        return self._told(
            self.num_groups * each,
            f"{of(self.num_groups, 'group')} of {self.leaf_switches} leaf and"
            f" {self.spine_switches} spine switches",
            told,
            bisection=middle,
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``g0.leaf1`` and ``g0.spine2``, and hosts ``h0000``."""
        groups = range(self.num_groups)
        leaves = [[f"g{g}.leaf{i}" for i in range(self.leaf_switches)] for g in groups]
        spines = [[f"g{g}.spine{i}" for i in range(self.spine_switches)] for g in groups]
        for group in groups:
            for number, (tier, names) in enumerate([("leaf", leaves), ("spine", spines)]):
                for i, name in enumerate(names[group]):
                    add_switch(graph, name, tier, self.switch_latency, (group, number, i))
        for lower, upper in zip(leaves, spines, strict=True):
            for leaf in lower:
                for spine in upper:
                    connect(graph, leaf, spine, links=self.leaf_spine_links, **self._local_cable)
        self._add_global_links(graph, spines)
        self._add_hosts(graph, [name for names in leaves for name in names])

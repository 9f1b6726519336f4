"""Topologies of switch groups that are linked to one another.

In a dragonfly, every two switches of a group and every two groups are linked. The
groups of a Dragonfly+ consist of leaf and spine switches, and the spine switches link
the groups.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.hyperx import (
    grid_positions,
    mesh_bisection,
    mesh_links,
    mesh_pairs,
)
from simshuffle.fabric.topology.populated import (
    NumberPerDimension,
    Populated,
    Shape,
    expand_to_dimensions,
    format_count,
)
from simshuffle.spec.record import Bandwidth, Few, Seconds


class GlobalLink(NamedTuple):
    """A link between two groups, by the indices of its switches among the switches of
    their group that have global links.
    """

    src_group: int  # the group at one end
    src_gateway: int  # index of the switch there, among the gateways of that group
    dst_group: int  # the group at the other end
    dst_gateway: int  # index of the switch there


class Grouped(Populated):
    """Groups of switches, any two joined by equally many global links: as many as there
    are ports for; ports that are left over are not used.

    Global links lie as in a palm tree (Camarero, Vallejo & Beivide, Topological
    Characterization of Hamming and Dragonfly Networks and Its Implications on Routing,
    ACM TACO 11, 2014): a group's first port leads to the next group, the second to the
    one after that, and so on, in as many rounds as two groups have links. The ports in
    use are spread evenly over the switches. So all groups look alike.

    Attributes:
        groups: how many; as many as can be linked if left out.
        global_links_per_switch: ports of a switch for links to other groups; of a
            Dragonfly+ of each spine switch.
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
        """Number of switches of a group that have global links."""

    @property
    @abstractmethod
    def links_in_group(self) -> int:
        """Number of links between switches of one group."""

    def _check(self) -> None:
        """Raise a PydanticCustomError where a group has too few global ports for a link
        to every other one; then check as `Populated` does.
        """
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
        """Number of ports of a group for global links."""
        return self.gateways * self.global_links_per_switch

    @property
    def num_groups(self) -> int:
        """Number of groups: ``groups``, or one more than a group has global ports."""
        return self.groups or self._global_ports + 1

    @property
    def links_between_groups(self) -> int:
        """Number of global links between every two groups; 0 if there is one group."""
        return self._global_ports // (self.num_groups - 1) if self.num_groups > 1 else 0

    @property
    def switch_links(self) -> int:
        """Number of links between switches: inside all groups, and between every two
        groups.
        """
        count = self.num_groups
        pairs = count * (count - 1) // 2
        return count * self.links_in_group + pairs * self.links_between_groups

    @property
    def _local_cable(self) -> dict[str, Any]:
        """Bandwidth and latency of a cable in a group, as arguments of `connect`."""
        return {**self._cable, "bandwidth": self.local_bandwidth or self.link_bandwidth}

    @property
    def _group_bisection(self) -> float:
        """Bandwidth, in bytes/s in one direction, of the global links from one half of
        the groups to the other; 0 with one group.
        """
        half_of_groups = self.num_groups // 2
        links = (
            half_of_groups
            * (self.num_groups - half_of_groups)
            * self.links_between_groups
        )
        return links * (self.global_bandwidth or self.link_bandwidth)

    @property
    def _global_links_text(self) -> str:
        """The global links, and the global ports that are not used, in words."""
        unused_ports = self._global_ports - self.links_between_groups * (
            self.num_groups - 1
        )
        remark = (
            f", {unused_ports} of {self._global_ports} global ports of a group unused"
            if unused_ports
            else ""
        )
        links = format_count(self.links_between_groups, "global link")
        return f"{links} between every two groups{remark}"

    def _add_global_links(self, graph: Graph, gateways: list[list[str]]) -> None:
        """Link the groups to one another.

        Args:
            graph: the network that links are added to.
            gateways: for each group, the names of its switches with global links.
        """
        bandwidth = self.global_bandwidth or self.link_bandwidth
        cable: dict[str, Any] = {
            "bandwidth": bandwidth,
            "latency": self.global_cable_latency,
        }
        for link in self._list_global_links():
            src = gateways[link.src_group][link.src_gateway]
            dst = gateways[link.dst_group][link.dst_gateway]
            connect(graph, src, dst, **cable)

    def _list_global_links(self) -> Iterator[GlobalLink]:
        """Iterate over all global links, each once, from the lower to the higher group."""
        num_groups = self.num_groups
        num_ports = self.links_between_groups * (num_groups - 1)
        gateways = self.gateways
        for src_group in range(num_groups):
            # port p of a group leads, in round r, to the group d + 1 after it, p = r (G - 1) + d
            for src_port in range(num_ports):
                turn, distance = divmod(src_port, num_groups - 1)
                dst_group = (src_group + distance + 1) % num_groups
                if src_group < dst_group:
                    dst_port = turn * (num_groups - 1) + num_groups - 2 - distance
                    yield GlobalLink(
                        src_group=src_group,
                        src_gateway=src_port * gateways // num_ports,
                        dst_group=dst_group,
                        dst_gateway=dst_port * gateways // num_ports,
                    )


class Dragonfly(Grouped):
    """A dragonfly (Kim, Dally, Scott & Abts, Technology-Driven, Highly-Scalable
    Dragonfly Topology, ISCA 2008): ``groups`` of ``switches_per_group`` switches with
    ``hosts_per_switch`` hosts and ``global_links_per_switch`` ports for links to other
    groups. The switches of a group are all linked to one another, by ``local_links``
    parallel links, as those of Slingshot are; or, with ``group_shape``, only along the
    rows of a grid: Aries has ``group_shape: [16, 6]`` with ``local_links: [1, 3]``.

    Attributes:
        switches_per_group: switches of a group, all linked to one another; or
            'group_shape'.
        group_shape: switches of a group in every dimension of a grid, linked along its
            rows only.
        local_links: parallel links between two switches of a group; one number, or one
            for each dimension.
    """

    kind: Literal["dragonfly"]
    switches_per_group: Few | None = None
    group_shape: Shape | None = None
    local_links: NumberPerDimension = Field(default=[1])

    def _check(self) -> None:
        """Raise a PydanticCustomError unless there is one of ``switches_per_group`` and
        ``group_shape``, with fitting ``local_links``; then check as `Grouped` does.
        """
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
        """Switches of a group in every dimension; one dimension without a grid."""
        return self.group_shape or [self.switches_per_group or 1]

    @property
    def gateways(self) -> int:
        """Number of switches of a group that have global links: every switch of the
        group.
        """
        return math.prod(self._shape)

    @property
    def switches_with_hosts(self) -> int:
        """Number of switches with hosts: all switches of all groups."""
        return self.num_groups * self.gateways

    @property
    def _links(self) -> list[int]:
        """Number of parallel links between two switches of a group, for each dimension.

        Raises:
            PydanticCustomError: ``local_links`` does not have one number for each.
        """
        return expand_to_dimensions(self.local_links, "local_links", len(self._shape))

    @property
    def links_in_group(self) -> int:
        """Number of links inside a group: a full mesh in each row of every dimension."""
        return mesh_links(self._shape, self._links)

    def structure(self) -> str:
        """Describe groups, links and bisection bandwidth in words."""
        bisection = self._group_bisection
        global_links = self._global_links_text
        if self.num_groups == 1:
            local_bandwidth = self.local_bandwidth or self.link_bandwidth
            bisection = mesh_bisection(self._shape, self._links) * local_bandwidth
            global_links = "global ports unused"
        return self._describe(
            self.switches_with_hosts,
            f"{format_count(self.num_groups, 'group')} of {self.gateways} switches",
            global_links,
            bisection=bisection,
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``g0.s3``, or ``g0.s3.1`` by their places in a group, and hosts
        ``h0000``."""
        names_by_position = [
            {
                position: f"g{group}.s{'.'.join(map(str, position))}"
                for position in grid_positions(self._shape)
            }
            for group in range(self.num_groups)
        ]
        for group, names in enumerate(names_by_position):
            for position, name in names.items():
                add_switch(graph, name, "leaf", self.switch_latency, (group, *position))
        for names in names_by_position:
            for src, dst, dimension in mesh_pairs(self._shape):
                parallel = self._links[dimension]
                connect(
                    graph, names[src], names[dst], links=parallel, **self._local_cable
                )
        self._add_global_links(
            graph, [list(names.values()) for names in names_by_position]
        )
        self._add_hosts(
            graph, [name for names in names_by_position for name in names.values()]
        )


class DragonflyPlus(Grouped):
    """Dragonfly+ (Shpiner et al., Dragonfly+: Low Cost Topology for Scaling
    Datacenters, HiPINEB 2017): in every one of the ``groups`` each of ``leaf_switches``
    is linked to each of ``spine_switches`` by ``leaf_spine_links``. Leaf switches have
    ``hosts_per_switch`` hosts, spine switches ``global_links_per_switch`` ports for
    links to other groups.

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
        """Number of switches of a group that have global links: its spine switches."""
        return self.spine_switches

    @property
    def switches_with_hosts(self) -> int:
        """Number of switches with hosts: the leaf switches of all groups."""
        return self.num_groups * self.leaf_switches

    @property
    def links_in_group(self) -> int:
        """Number of links between all leaf and all spine switches of a group."""
        return self.leaf_switches * self.spine_switches * self.leaf_spine_links

    def structure(self) -> str:
        """Describe groups, links and bisection bandwidth in words."""
        bisection = self._group_bisection
        global_links = self._global_links_text
        if self.num_groups == 1:
            # each spine switch is linked to as many leaf switches in one half as in the other
            local_bandwidth = self.local_bandwidth or self.link_bandwidth
            bisection = self.links_in_group * local_bandwidth / 2
            global_links = "global ports unused"
        switches_per_group = self.leaf_switches + self.spine_switches
        return self._describe(
            self.num_groups * switches_per_group,
            f"{format_count(self.num_groups, 'group')} of {self.leaf_switches} leaf and"
            f" {self.spine_switches} spine switches",
            global_links,
            bisection=bisection,
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``g0.leaf1`` and ``g0.spine2``, and hosts ``h0000``."""
        groups = range(self.num_groups)
        leaves = [[f"g{g}.leaf{i}" for i in range(self.leaf_switches)] for g in groups]
        spines = [
            [f"g{g}.spine{i}" for i in range(self.spine_switches)] for g in groups
        ]
        for group in groups:
            for tier_index, (tier, names) in enumerate(
                [("leaf", leaves), ("spine", spines)]
            ):
                for i, name in enumerate(names[group]):
                    add_switch(
                        graph, name, tier, self.switch_latency, (group, tier_index, i)
                    )
        for lower, upper in zip(leaves, spines, strict=True):
            for leaf in lower:
                for spine in upper:
                    connect(
                        graph,
                        leaf,
                        spine,
                        links=self.leaf_spine_links,
                        **self._local_cable,
                    )
        self._add_global_links(graph, spines)
        self._add_hosts(graph, [name for names in leaves for name in names])

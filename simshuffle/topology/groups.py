"""Groups of switches that are linked to one another: what dragonfly and Dragonfly+ share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from simshuffle.spec.record import Bandwidth, Few, Seconds
from simshuffle.topology.base import problem
from simshuffle.topology.graph import Graph, connect
from simshuffle.topology.populated import Populated, of


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

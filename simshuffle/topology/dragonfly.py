"""Dragonflies: groups of switches, every two switches of a group and every two groups linked."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from simshuffle.spec.record import Few
from simshuffle.topology.base import problem
from simshuffle.topology.graph import Graph, add_switch, connect
from simshuffle.topology.groups import Grouped
from simshuffle.topology.hyperx import mesh_bisection, mesh_links, meshes, places
from simshuffle.topology.populated import Each, Shape, of, of_each


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

"""Tori and meshes of any number of dimensions."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.hyperx import places
from simshuffle.fabric.topology.populated import Each, Populated, Shape, of_each
from simshuffle.spec.record import Bandwidth, Few


class Torus(Populated):
    """Switches on a grid of ``shape``, each linked to the next one in every dimension; a ring of
    two is one cable, not two.

    Tofu-D (Ajima et al., CLUSTER 2018) is ``shape: [X, Y, Z, 2, 3, 2]`` with ``wrap: [true, true,
    true, false, true, false]``.

    Attributes:
        shape: switches in every dimension.
        links: parallel links to the next switch; one number, or one for each dimension.
        wrap: which dimensions are rings; the others are lines. All if left out.
        hosts_per_switch: hosts on each switch that has some.
        grid_bandwidth: of links between switches; 'link_bandwidth' if left out.
    """

    default_routing: ClassVar[str] = "dimension_order"
    sized_by: ClassVar[str] = "shape"

    kind: Literal["torus"]
    shape: Shape
    links: Each = Field(default=[1])
    wrap: list[bool] | None = None
    hosts_per_switch: Few = 1
    grid_bandwidth: Bandwidth | None = None

    def _check(self) -> None:
        of_each(self.links, "links", len(self.shape))
        if self.wrap is not None and len(self.wrap) != len(self.shape):
            rule = f"must say true or false of each of the {len(self.shape)} dimensions"
            raise problem("wrap", rule, self.wrap, "Leave it out if all are rings.")
        super()._check()

    @property
    def _dimensions(self) -> list[tuple[int, int, bool]]:
        """Of each its switches, its links and whether the last is linked to the first."""
        count = len(self.shape)
        links, wrap = of_each(self.links, "links", count), self.wrap or [True] * count
        closed = [ring and size > 2 for size, ring in zip(self.shape, wrap, strict=True)]
        return list(zip(self.shape, links, closed, strict=True))

    @property
    def switches_with_hosts(self) -> int:
        """All of the grid."""
        return math.prod(self.shape)

    @property
    def switch_links(self) -> int:
        """In every dimension as many as switches in each ring, or one fewer in each line."""
        count = self.switches_with_hosts
        return sum(
            links * (size if closed else size - 1) * (count // size)
            for size, links, closed in self._dimensions
        )

    def structure(self) -> str:
        """See `Interconnect.structure`."""
        count = self.switches_with_hosts
        middle = min(links * (1 + closed) * (count // n) for n, links, closed in self._dimensions)
        return self._told(count, bisection=middle * (self.grid_bandwidth or self.link_bandwidth))

    def build(self, graph: Graph) -> None:
        """Add switches ``s0.0.0`` by their coordinates, and hosts ``h0000``."""
        at = list(places(self.shape))
        names = [f"s{'.'.join(map(str, place))}" for place in at]
        cable = {**self._cable, "bandwidth": self.grid_bandwidth or self.link_bandwidth}
        for place, name in zip(at, names, strict=True):
            add_switch(graph, name, "leaf", self.switch_latency, place)
        # of each dimension, from how far behind a switch the next one stands
        strides = [math.prod(self.shape[dimension + 1 :]) for dimension in range(len(self.shape))]
        steps = list(zip(self._dimensions, strides, strict=True))
        for here, (place, name) in enumerate(zip(at, names, strict=True)):
            for coordinate, ((size, links, closed), stride) in zip(place, steps, strict=True):
                if coordinate + 1 < size:
                    connect(graph, name, names[here + stride], links=links, **cable)
                elif closed:
                    connect(graph, name, names[here - coordinate * stride], links=links, **cable)
        self._add_hosts(graph, names)

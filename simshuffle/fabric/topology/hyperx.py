"""HyperX: switches on a grid, each linked to all others of its row in every dimension."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.populated import Each, Populated, Shape, of_each

Place = tuple[int, ...]


class HyperX(Populated):
    """HyperX (Ahn et al., HyperX: Topology, Routing, and Packaging of Efficient Large-Scale
    Networks, SC 2009): switches on a grid of ``shape``, each linked to all others that differ in
    one coordinate.

    Attributes:
        shape: switches in every dimension; one dimension is a full mesh, two are a flattened
            butterfly.
        links: parallel links between two switches of a row; one number, or one for each dimension.
    """

    default_routing: ClassVar[str] = "dimension_order"
    sized_by: ClassVar[str] = "shape"

    kind: Literal["hyperx"]
    shape: Shape
    links: Each = Field(default=[1])

    def _check(self) -> None:
        of_each(self.links, "links", len(self.shape))
        super()._check()

    @property
    def switches_with_hosts(self) -> int:
        """All of the grid."""
        return math.prod(self.shape)

    @property
    def switch_links(self) -> int:
        """In every dimension a full mesh in each row."""
        return mesh_links(self.shape, of_each(self.links, "links", len(self.shape)))

    def structure(self) -> str:
        """See `Interconnect.structure`."""
        links = of_each(self.links, "links", len(self.shape))
        middle = mesh_bisection(self.shape, links) * self.link_bandwidth
        return self._told(self.switches_with_hosts, bisection=middle)

    def build(self, graph: Graph) -> None:
        """Add switches ``s0.0`` by their coordinates, and hosts ``h0000``."""
        names = {place: f"s{'.'.join(map(str, place))}" for place in places(self.shape)}
        for place, name in names.items():
            add_switch(graph, name, "leaf", self.switch_latency, place)
        links = of_each(self.links, "links", len(self.shape))
        for here, there, dimension in meshes(self.shape):
            connect(graph, names[here], names[there], links=links[dimension], **self._cable)
        self._add_hosts(graph, list(names.values()))


def places(shape: list[int]) -> Iterator[Place]:
    """All places of a grid, the last coordinate running fastest."""
    return itertools.product(*map(range, shape))


def meshes(shape: list[int]) -> Iterator[tuple[Place, Place, int]]:
    """All pairs of places that differ in one coordinate, each once, and in which."""
    for place in places(shape):
        for dimension, size in enumerate(shape):
            for other in range(place[dimension] + 1, size):
                yield place, (*place[:dimension], other, *place[dimension + 1 :]), dimension


def mesh_links(shape: list[int], links: list[int]) -> int:
    """Links of `meshes`, with so many in each dimension."""
    count = math.prod(shape)
    return sum(count * (size - 1) // 2 * n for size, n in zip(shape, links, strict=True))


def mesh_bisection(shape: list[int], links: list[int]) -> int:
    """Links of `meshes` between two halves of the grid, cut where they are fewest (Ahn et al.)."""
    count = math.prod(shape)
    return min(
        n * (size // 2) * -(-size // 2) * (count // size)
        for size, n in zip(shape, links, strict=True)
    )

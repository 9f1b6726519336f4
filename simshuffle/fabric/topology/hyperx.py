"""HyperX: switches on a grid, each linked to all others of its row in every dimension."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.populated import (
    NumberPerDimension,
    Populated,
    Shape,
    expand_to_dimensions,
)

Position = tuple[int, ...]


class HyperX(Populated):
    """HyperX (Ahn et al., HyperX: Topology, Routing, and Packaging of Efficient
    Large-Scale Networks, SC 2009): switches on a grid of ``shape``, each linked to all
    others that differ in one coordinate.

    Attributes:
        shape: switches in every dimension; one dimension is a full mesh, two are a
            flattened butterfly.
        links: parallel links between two switches of a row; one number, or one for each
            dimension.
    """

    default_routing: ClassVar[str] = "dimension_order"
    sized_by: ClassVar[str] = "shape"

    kind: Literal["hyperx"]
    shape: Shape
    links: NumberPerDimension = Field(default=[1])

    def _check(self) -> None:
        """Raise a PydanticCustomError where ``links`` does not fit ``shape``; then
        check as `Populated` does.
        """
        expand_to_dimensions(self.links, "links", len(self.shape))
        super()._check()

    @property
    def switches_with_hosts(self) -> int:
        """Number of switches with hosts: all of the grid."""
        return math.prod(self.shape)

    @property
    def switch_links(self) -> int:
        """Number of links between switches: a full mesh in each row of every dimension."""
        return mesh_links(
            self.shape, expand_to_dimensions(self.links, "links", len(self.shape))
        )

    def structure(self) -> str:
        """Describe switches, links and bisection bandwidth in words."""
        links = expand_to_dimensions(self.links, "links", len(self.shape))
        bisection = mesh_bisection(self.shape, links) * self.link_bandwidth
        return self._describe(self.switches_with_hosts, bisection=bisection)

    def build(self, graph: Graph) -> None:
        """Add switches ``s0.0`` by their coordinates, and hosts ``h0000``."""
        names = {
            position: f"s{'.'.join(map(str, position))}"
            for position in grid_positions(self.shape)
        }
        for position, name in names.items():
            add_switch(graph, name, "leaf", self.switch_latency, position)
        links = expand_to_dimensions(self.links, "links", len(self.shape))
        for src, dst, dimension in mesh_pairs(self.shape):
            connect(
                graph, names[src], names[dst], links=links[dimension], **self._cable
            )
        self._add_hosts(graph, list(names.values()))


def grid_positions(shape: list[int]) -> Iterator[Position]:
    """Iterate over all positions of a grid, the last coordinate running fastest."""
    return itertools.product(*map(range, shape))


def mesh_pairs(shape: list[int]) -> Iterator[tuple[Position, Position, int]]:
    """Iterate over all pairs of grid positions that differ in one coordinate, each pair
    once, the lower position first, with the dimension of that coordinate.
    """
    for position in grid_positions(shape):
        for dimension, size in enumerate(shape):
            for coordinate in range(position[dimension] + 1, size):
                yield (
                    position,
                    (*position[:dimension], coordinate, *position[dimension + 1 :]),
                    dimension,
                )


def mesh_links(shape: list[int], links: list[int]) -> int:
    """Number of links of a grid whose rows are full meshes.

    Args:
        shape: switches in every dimension.
        links: parallel links between two switches of a row, for each dimension.
    """
    num_switches = math.prod(shape)
    return sum(
        num_switches * (size - 1) // 2 * parallel
        for size, parallel in zip(shape, links, strict=True)
    )


def mesh_bisection(shape: list[int], links: list[int]) -> int:
    """Number of links between two halves of a grid whose rows are full meshes, cut
    across the dimension where they are fewest (Ahn et al.). An odd dimension is cut
    beside its middle.

    Args:
        shape: switches in every dimension.
        links: parallel links between two switches of a row, for each dimension.
    """
    num_switches = math.prod(shape)
    return min(
        parallel * (size // 2) * -(-size // 2) * (num_switches // size)
        for size, parallel in zip(shape, links, strict=True)
    )

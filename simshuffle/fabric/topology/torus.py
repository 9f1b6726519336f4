"""Tori and meshes of any number of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, product
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.hyperx import grid_positions
from simshuffle.fabric.topology.populated import (
    NumberPerDimension,
    Populated,
    Shape,
    expand_to_dimensions,
)
from simshuffle.spec.record import Bandwidth, Few


class TorusDimension(NamedTuple):
    """A dimension of a torus or mesh."""

    size: int  # switches in every row
    links: int  # parallel links between neighbours
    is_closed: (
        bool  # True if a further link joins the last switch of a row to the first
    )


def walk_grid(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the positions of a walk through a grid, each next to the one before.

    It goes along the first dimension, and back along it when another one has moved on.
    """
    walk: list[tuple[int, ...]] = [()]
    for size in sizes:
        walk = [
            (*position, layer)
            for layer in range(size)
            for position in (walk if layer % 2 == 0 else reversed(walk))
        ]
    return walk


class Torus(Populated):
    """Switches on a grid of ``shape``, each linked to the next one in every dimension;
    a ring of two is one cable, not two.

    Tofu-D (Ajima et al., CLUSTER 2018) is ``shape: [X, Y, Z, 2, 3, 2]`` with ``wrap:
    [true, true, true, false, true, false]``. A job sees a torus of up to three
    dimensions, each folded into a pair of those six: ``folds: [[0, 3], [1, 4], [2, 5]]``
    (Ajima, Sumimoto & Shimizu, IEEE Computer 42(11), 2009).

    Attributes:
        shape: switches in every dimension.
        links: parallel links to the next switch; one number, or one for each dimension.
        wrap: which dimensions are rings; the others are lines. All if left out.
        folds: the dimensions, from 0, through which each dimension of a job is folded:
            hosts are numbered along a walk through the first list, then along the
            second. If left out, they are numbered by position, the last dimension first.
        hosts_per_switch: hosts on each switch that has some.
        grid_bandwidth: of links between switches; 'link_bandwidth' if left out.
    """

    default_routing: ClassVar[str] = "dimension_order"
    sized_by: ClassVar[str] = "shape"

    kind: Literal["torus"]
    shape: Shape
    links: NumberPerDimension = Field(default=[1])
    wrap: list[bool] | None = None
    folds: list[list[int]] | None = None
    hosts_per_switch: Few = 1
    grid_bandwidth: Bandwidth | None = None

    def _check(self) -> None:
        """Raise a PydanticCustomError where ``links``, ``wrap`` or ``folds`` does not
        fit ``shape``; then check as `Populated` does.
        """
        expand_to_dimensions(self.links, "links", len(self.shape))
        if self.wrap is not None and len(self.wrap) != len(self.shape):
            rule = f"must say true or false of each of the {len(self.shape)} dimensions"
            raise problem("wrap", rule, self.wrap, "Leave it out if all are rings.")
        folded = sorted(chain.from_iterable(self.folds or []))
        if self.folds is not None and folded != list(range(len(self.shape))):
            rule = f"must name each of the dimensions 0 to {len(self.shape) - 1} once"
            raise problem("folds", rule, self.folds, "Write for example [[0, 2], [1]].")
        super()._check()

    def _order_switches(self) -> list[int]:
        """List the switches in the order in which hosts are numbered, as indices of
        `grid_positions`.
        """
        if self.folds is None:
            return list(range(self.switches_with_hosts))
        index_of = {
            position: i for i, position in enumerate(grid_positions(self.shape))
        }
        dimensions = list(chain.from_iterable(self.folds))
        walks = [walk_grid([self.shape[k] for k in fold]) for fold in self.folds]
        order = []
        for parts in product(*reversed(walks)):  # the last of a product goes fastest
            places = zip(dimensions, chain.from_iterable(reversed(parts)), strict=True)
            order.append(index_of[tuple(place for _, place in sorted(places))])
        return order

    @property
    def _dimensions(self) -> list[TorusDimension]:
        """List the dimensions of the grid; a ring of two is not closed."""
        num_dimensions = len(self.shape)
        links = expand_to_dimensions(self.links, "links", num_dimensions)
        wrap = self.wrap or [True] * num_dimensions
        return [
            TorusDimension(size, parallel, is_ring and size > 2)
            for size, parallel, is_ring in zip(self.shape, links, wrap, strict=True)
        ]

    @property
    def switches_with_hosts(self) -> int:
        """Number of switches with hosts: all of the grid."""
        return math.prod(self.shape)

    @property
    def switch_links(self) -> int:
        """Number of links between switches, parallel ones counted: each row of n
        switches has n times ``links`` if it is a ring, n - 1 times if it is a line.
        """
        num_switches = self.switches_with_hosts
        return sum(
            links * (size if is_closed else size - 1) * (num_switches // size)
            for size, links, is_closed in self._dimensions
        )

    def structure(self) -> str:
        """Describe switches, links and bisection bandwidth in words."""
        num_switches = self.switches_with_hosts
        bisection_links = min(
            links * (1 + is_closed) * (num_switches // size)
            for size, links, is_closed in self._dimensions
        )
        bandwidth = self.grid_bandwidth or self.link_bandwidth
        return self._describe(num_switches, bisection=bisection_links * bandwidth)

    def build(self, graph: Graph) -> None:
        """Add switches ``s0.0.0`` by their coordinates, and hosts ``h0000``."""
        positions = list(grid_positions(self.shape))
        names = [f"s{'.'.join(map(str, position))}" for position in positions]
        cable = {**self._cable, "bandwidth": self.grid_bandwidth or self.link_bandwidth}
        for position, name in zip(positions, names, strict=True):
            add_switch(graph, name, "leaf", self.switch_latency, position)
        # position (c_0, ..., c_d) has the index sum of c_k * stride_k, stride_k = n_k+1 * ... * n_d
        strides = [math.prod(self.shape[k + 1 :]) for k in range(len(self.shape))]
        dimensions = list(zip(self._dimensions, strides, strict=True))
        for index, (position, name) in enumerate(zip(positions, names, strict=True)):
            for coordinate, (dimension, stride) in zip(
                position, dimensions, strict=True
            ):
                if coordinate + 1 < dimension.size:
                    next_index = index + stride
                elif dimension.is_closed:
                    next_index = index - coordinate * stride
                else:
                    continue
                connect(graph, name, names[next_index], links=dimension.links, **cable)
        self._add_hosts(graph, [names[index] for index in self._order_switches()])

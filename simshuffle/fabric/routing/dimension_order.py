"""Dimension order routing: one coordinate after the other. Routes on grids of switches
are found from coordinates alone, so that large networks need no table of all pairs
of switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    unsuited,
)
from simshuffle.fabric.routing.steps import line_steps
from simshuffle.spec.arrays import Flags, Ints32, Ints64


class DimensionOrder(RoutingRule):
    """Dimension order, for switches with coordinates (torus, HyperX): first the way in
    the first dimension, then in the second, and so on, each the shorter way around.
    Half-way round a ring, even and odd destinations go different ways; so do they over
    parallel links. On the rings of a torus routes wait for one another in a circle,
    which real machines break by virtual channels.
    """

    kind: Literal["dimension_order"] = "dimension_order"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router by dimension order; ``seed`` is not used.

        Raises:
            TopologyError: the switches have no coordinates.
        """
        check_coordinates(fabric, self.kind)
        return DimensionOrderRouter(fabric)


def check_coordinates(fabric: Fabric, kind: str) -> None:
    """Raise a TopologyError where the switches have no coordinates, which routing
    ``kind`` needs.
    """
    if fabric.groups is None:
        raise unsuited(
            f"{kind} is for switches with coordinates",
            "none",
            "Use another routing, such as min_hop, or another topology.",
        )


class DimensionOrderRouter(HopByHop):
    """Routes by dimension order, constant; the switches must have coordinates, see
    `check_coordinates`.
    """

    by_destination = True

    @cached_property
    def choices(self) -> Choices:
        """The links by which a switch may send, see `HopByHop.choices`: of those that
        begin a shortest route, the ones along the first dimension in which the message
        still has to move. Links of a storage system's switch come after all dimensions.
        """
        fabric = self.fabric
        switches = fabric.switches
        coordinates = fabric.cabling.coordinates
        assert coordinates is not None  # noqa: S101 - checked where the router is made
        position = coordinates[switches.nodes]
        # the storage switch has none: it comes after all dimensions
        src_position = position[switches.arc_src]
        dst_position = position[switches.arc_dst]
        both_on_grid = (src_position >= 0).all(axis=1) & (dst_position >= 0).all(axis=1)
        # (arcs,) the first dimension in which the two ends of an arc differ
        differs = src_position != dst_position
        dimension = np.where(both_on_grid, differs.argmax(axis=1), position.shape[1])
        steps = switches.steps(fabric.goals)

        def nearer(switch: int, arcs: slice) -> Flags:
            """(arcs, goals) True on shortest routes, in their first dimension."""
            is_shortest = steps[switches.arc_dst[arcs]] == steps[switch] - 1
            allowed = fabric.is_passable(arcs) & is_shortest
            allowed_dimension = np.where(
                allowed, dimension[arcs][:, None], np.iinfo(np.int64).max
            )
            return np.asarray(
                allowed & (allowed_dimension == allowed_dimension.min(axis=0))
            )

        return fabric.build_choices(nearer)

    @cached_property
    def _grid(self) -> SwitchGrid | None:
        """The grid that the switches form; None if they do not."""
        return SwitchGrid.from_fabric(self.fabric)

    @property
    def diameter(self) -> int:
        """Number of links of the longest route; on a grid with room for one hop between
        a storage system and the grid, even if there is none. See `Router.diameter`.
        """
        return (
            super().diameter if self._grid is None else 3 + self._grid.longest_distance
        )

    def possible_links(self, ports: Ints32) -> Ints32:
        """The links that messages among ``ports`` (n,) may cross; on a grid those
        between coordinates that some route has. See `Router.possible_links`.
        """
        if self._grid is None:
            return super().possible_links(ports)
        fabric = self.fabric
        is_between = self._grid.switches_between(
            np.unique(fabric.switch_of_port[ports])
        )
        is_near = np.append(
            is_between, False
        )  # the last one for nodes that are no switch
        src_switch = fabric.switch_of_node[self.links.src_node]
        is_used = is_near[src_switch] & is_near[fabric.entered_switch]
        is_used[fabric.inject_link[ports]] = True
        is_used[fabric.eject_link[ports]] = True
        return np.flatnonzero(is_used).astype(np.int32)

    def choice_of(self, switches: Ints32, goal: Ints32) -> Ints32:
        """(n,) the choice of each switch; on a grid all 0, as no table of all pairs of
        switches is made. See `HopByHop.choice_of`.
        """
        return (
            super().choice_of(switches, goal)
            if self._grid is None
            else np.zeros_like(switches)
        )

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message; where several may be next (parallel links,
        two ways around a ring), by its destination port modulo their number.
        """
        if self._grid is None:
            return self.select_link(step, step.dst)
        arcs = self._grid.next_arcs(step.switch, self.fabric.goals[step.goal])
        return self.fabric.select_link(arcs, step.dst)


@dataclass(frozen=True)
class SwitchGrid:
    """Switches on a full grid on which all lines of a dimension are wired alike, as in
    a torus or a HyperX; and switches of storage systems, each linked to every switch of
    the grid.
    """

    position: (
        Ints32  # (switches, dimensions) coordinates; -1 for switches of storage systems
    )
    strides: Ints64  # (dimensions,) the flat index of a position is position @ strides
    switch_at: Ints32  # (positions,) the switch at each flat index
    # for each dimension (size, size, most): [c, d] are the coordinates that come next after c on
    # shortest routes to d, -1 where there are fewer than the most
    next_coordinates: list[Ints32]
    arc_keys: Ints64  # (arcs,) src * switches + dst of all arcs, ascending
    arc_of_key: Ints64  # (arcs,) the arc of each of these keys
    longest_distance: int  # steps between the two switches farthest apart

    @staticmethod
    def from_fabric(fabric: Fabric) -> SwitchGrid | None:
        """Return the grid of a network; None if its switches form none.

        They form none if they have no coordinates, positions are empty or taken twice,
        lines of a dimension are wired differently, or some switches cannot reach each
        other along a line. Nor do they if a link leads along no line, or a storage
        system's switch is not linked to exactly the switches of the grid.
        """
        switches = fabric.switches
        coordinates = fabric.cabling.coordinates
        if coordinates is None or not switches.is_transit.any():
            return None
        position = coordinates[switches.nodes]
        grid_position = position[switches.is_transit]
        shape = grid_position.max(axis=0) + 1
        storage_position = position[~switches.is_transit]
        if (grid_position < 0).any() or (storage_position >= 0).any():
            return None
        if shape.prod() != len(grid_position):
            return None
        strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
        flat_index = grid_position @ strides
        switch_at = np.full(len(grid_position), -1, np.int32)
        switch_at[flat_index] = np.flatnonzero(switches.is_transit)
        wirings = _find_wired_pairs(fabric, position, shape)
        if (
            (switch_at < 0).any()
            or wirings is None
            or not _storage_is_linked_to_all(fabric)
        ):
            return None
        steps = [line_steps(wiring) for wiring in wirings]
        if any((distances < 0).any() for distances in steps):
            return None
        arc_keys = (
            switches.arc_src.astype(np.int64) * len(switches.nodes) + switches.arc_dst
        )
        order = np.argsort(arc_keys)
        next_coordinates = [
            _next_coordinates(wiring, distances)
            for wiring, distances in zip(wirings, steps, strict=True)
        ]
        longest_distance = sum(int(distances.max()) for distances in steps)
        return SwitchGrid(
            position=position,
            strides=strides,
            switch_at=switch_at,
            next_coordinates=next_coordinates,
            arc_keys=arc_keys[order],
            arc_of_key=order,
            longest_distance=longest_distance,
        )

    def switches_between(self, ends: Ints32) -> Flags:
        """(switches,) True for the switches whose coordinates, dimension by dimension,
        lie on a route between some of the switches ``ends`` (n,).
        """
        end_position = self.position[ends]
        is_on_grid = (end_position >= 0).all(axis=1)
        is_between: Flags = np.asarray((self.position >= 0).all(axis=1))
        for dimension, next_coordinates in enumerate(self.next_coordinates):
            goals = np.unique(end_position[is_on_grid, dimension])
            is_reached = np.zeros(
                len(next_coordinates) + 1, bool
            )  # the last one for -1
            # coordinates that are goals, then those that follow them on routes to other goals
            frontier = goals
            while len(frontier):
                is_reached[frontier] = True
                adjacent = np.unique(next_coordinates[np.ix_(frontier, goals)])
                frontier = adjacent[~is_reached[adjacent] & (adjacent >= 0)]
            is_between &= is_reached[self.position[:, dimension]]
        is_between[ends] = True
        return is_between

    def next_arcs(self, src: Ints32, dst: Ints32) -> Ints64:
        """(n, most) the arcs by which dimension order goes on from each of the switches
        ``src`` (n,) to ``dst`` (n,), another switch, ascending; a number larger than
        all arcs where there are fewer. To and from the switch of a storage system it is
        the arc between the two.
        """
        max_choices = max(table.shape[2] for table in self.next_coordinates)
        next_switch = np.full((len(src), max_choices), -1, np.int64)
        src_position = self.position[src]
        dst_position = self.position[dst]
        touches_storage = (src_position < 0).any(axis=1) | (dst_position < 0).any(
            axis=1
        )
        next_switch[touches_storage, 0] = dst[touches_storage]
        first_dimension = (src_position != dst_position).argmax(axis=1)
        for dimension, next_coordinates in enumerate(self.next_coordinates):
            # a row for each message that moves along this dimension, a column for each of the
            # coordinates that may come next: flat index + (next - coordinate) * stride
            messages = np.flatnonzero((first_dimension == dimension) & ~touches_storage)
            coordinate = src_position[messages, dimension]
            goal_coordinate = dst_position[messages, dimension]
            next_coordinate = next_coordinates[coordinate, goal_coordinate].astype(
                np.int64
            )
            flat_index = (src_position[messages] @ self.strides)[:, None]
            distance = next_coordinate - coordinate[:, None]
            next_flat_index = flat_index + distance * self.strides[dimension]
            valid_index = np.where(next_coordinate < 0, flat_index, next_flat_index)
            switch = np.where(next_coordinate < 0, -1, self.switch_at[valid_index])
            next_switch[messages, : next_coordinate.shape[1]] = switch
        arc_key = src[:, None].astype(np.int64) * len(self.position) + next_switch
        key_index = np.searchsorted(self.arc_keys, arc_key).clip(
            max=len(self.arc_keys) - 1
        )
        arc = self.arc_of_key[key_index]
        return np.sort(np.where(next_switch < 0, len(self.arc_of_key), arc), axis=1)


def _find_wired_pairs(
    fabric: Fabric, position: Ints32, shape: Ints32
) -> list[Flags] | None:
    """Find the pairs of coordinates that are wired: for each dimension (size, size)
    True where two are linked, on all lines alike; None if lines differ, or an arc leads
    along no line.

    Args:
        fabric: the network.
        position: (switches, dimensions) coordinates, -1 for switches of storage
            systems.
        shape: (dimensions,) switches in every dimension.
    """
    switches = fabric.switches
    is_inner = (
        switches.is_transit[switches.arc_src] & switches.is_transit[switches.arc_dst]
    )
    src_position = position[switches.arc_src[is_inner]]
    dst_position = position[switches.arc_dst[is_inner]]
    differs = src_position != dst_position
    if (differs.sum(axis=1) != 1).any():
        return None
    wirings = []
    for dimension, size in enumerate(shape.tolist()):
        is_along = differs[:, dimension]
        # (size, size) number of arcs from each coordinate to each other, over all lines
        src = src_position[is_along, dimension].astype(np.int64)
        pair = src * size + dst_position[is_along, dimension]
        count = np.bincount(pair, minlength=size * size).reshape(size, size)
        num_lines = len(switches.is_transit[switches.is_transit]) // size
        if not np.isin(count, (0, num_lines)).all():
            return None
        wirings.append(count > 0)
    return wirings


def _storage_is_linked_to_all(fabric: Fabric) -> bool:
    """Return True if every switch of a storage system is linked to all switches of the
    grid, and to no other switch of a storage system.
    """
    switches = fabric.switches
    storage_switches = np.flatnonzero(~switches.is_transit)
    num_neighbours = np.diff(switches.first_arc)[storage_switches]
    joins_storage = (
        ~switches.is_transit[switches.arc_src] & ~switches.is_transit[switches.arc_dst]
    )
    return bool(
        (num_neighbours == switches.is_transit.sum()).all() and not joins_storage.any()
    )


def _next_coordinates(wiring: Flags, steps: Ints32) -> Ints32:
    """(size, size, most) `SwitchGrid.next_coordinates` of one dimension, from its
    wiring (size, size) and the steps (size, size) between coordinates.
    """
    size = len(wiring)
    # (coordinate, goal, next)
    is_nearer = wiring[:, None, :] & (steps.T[None] == steps[:, :, None] - 1)
    max_choices = max(1, int(is_nearer.sum(axis=2).max()))
    candidates = np.where(is_nearer, np.arange(size), size)
    lowest = np.sort(candidates, axis=2)[:, :, :max_choices]
    return np.where(lowest == size, -1, lowest).astype(np.int32)

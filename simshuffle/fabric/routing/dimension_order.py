"""Dimension order: one coordinate after the other; and ways on grids of switches, found from
coordinates alone, for networks too large for a table of all pairs of switches."""

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
    """Dimension order, for switches with coordinates (torus, HyperX): first the way in the first
    dimension, then in the second, and so on, each the shorter way around. Half-way round a ring,
    even and odd destinations go different ways; so do they over parallel links. On the rings of a
    torus routes wait for one another in a circle, which real machines break by virtual channels.
    """

    kind: Literal["dimension_order"] = "dimension_order"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        check_coordinates(fabric, self.kind)
        return DimensionOrderRouter(fabric)


def check_coordinates(fabric: Fabric, kind: str) -> None:
    """Raises a TopologyError where the switches have no coordinates, which ``kind`` needs."""
    if fabric.groups is None:
        raise unsuited(
            f"{kind} is for switches with coordinates",
            "none",
            "Use another routing, such as min_hop, or another topology.",
        )


class DimensionOrderRouter(HopByHop):
    """Routes by dimension order."""

    by_destination = True

    @cached_property
    def choices(self) -> Choices:
        """See `HopByHop.choices`: of the shortest ways, those of the first dimension in which
        something is left to go."""
        fabric = self.fabric
        of = fabric.switches
        coordinates = fabric.cabling.coordinates
        assert coordinates is not None  # noqa: S101 - checked where the router is made
        place = coordinates[of.nodes]
        # the storage switch has none: it comes after all dimensions
        known = (place[of.arc_src] >= 0).all(axis=1) & (place[of.arc_dst] >= 0).all(axis=1)
        differs = place[of.arc_src] != place[of.arc_dst]
        dimension = np.where(known, differs.argmax(axis=1), place.shape[1])
        steps = of.steps(fabric.goals)

        def nearer(switch: int, here: slice) -> Flags:
            allowed = fabric.passable(here) & (steps[of.arc_dst[here]] == steps[switch] - 1)
            rank = np.where(allowed, dimension[here][:, None], np.iinfo(np.int64).max)
            return np.asarray(allowed & (rank == rank.min(axis=0)))

        return fabric.choices_of(nearer)

    @cached_property
    def _grid(self) -> SwitchGrid | None:
        return SwitchGrid.of(self.fabric)

    @property
    def diameter(self) -> int:
        """See `Router.diameter`."""
        return super().diameter if self._grid is None else 3 + self._grid.farthest

    def crossed(self, ports: Ints32) -> Ints32:
        """See `Router.crossed`: on a grid those between coordinates that some route has."""
        if self._grid is None:
            return super().crossed(ports)
        fabric, links = self.fabric, self.links
        # the last one is of what is no switch
        near = np.append(self._grid.among(np.unique(fabric.at[ports])), False)
        used = near[fabric.number[links.src_node]] & near[fabric.entered]
        used[fabric.inject[ports]] = used[fabric.eject[ports]] = True
        return np.flatnonzero(used).astype(np.int32)

    def choice_of(self, here: Ints32, goal: Ints32) -> Ints32:
        """See `HopByHop.choice_of`; on a grid there are none, and no table of all pairs."""
        return super().choice_of(here, goal) if self._grid is None else np.zeros_like(here)

    def choose(self, step: MessagePositions) -> Ints32:
        """See `HopByHop.choose`."""
        if self._grid is None:
            return self.of_count(step, step.dst)
        ways = self._grid.ways(step.here, self.fabric.goals[step.goal])
        return self.fabric.link_of(ways, step.dst)


@dataclass(frozen=True)
class SwitchGrid:
    """Switches on a full grid on which all lines of a dimension are wired alike, as in a torus or a
    HyperX; and switches of storage systems, each of them linked to all of it."""

    place: Ints32  # (switches, dimensions) coordinates; -1 of the switches of storage
    strides: Ints64  # (dimensions,) of a place in ``at``
    at: Ints32  # (places,) the switch at each place
    # for each dimension (size, size, most): by coordinate and that of the goal the ones next on the
    # shortest ways along it, -1 where there are fewer than the most
    nearer: list[Ints32]
    pairs: Ints64  # (ways,) first switch x switches + second of all ways, ascending
    way: Ints64  # (ways,) the number of each of them
    farthest: int  # steps between the two switches farthest apart

    @staticmethod
    def of(fabric: Fabric) -> SwitchGrid | None:
        """That of a network; None if it is not a grid."""
        of, coordinates = fabric.switches, fabric.cabling.coordinates
        if coordinates is None or not of.is_transit.any():
            return None
        place = coordinates[of.nodes]
        inner = place[of.is_transit]
        shape = inner.max(axis=0) + 1
        if (inner < 0).any() or (place[~of.is_transit] >= 0).any() or shape.prod() != len(inner):
            return None
        strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
        flat = inner @ strides
        at = np.full(len(inner), -1, np.int32)
        at[flat] = np.flatnonzero(of.is_transit)
        lines = _lines(fabric, place, shape)
        if (at < 0).any() or lines is None or not _storage_is_linked_to_all(fabric):
            return None
        steps = [line_steps(line) for line in lines]
        if any((each < 0).any() for each in steps):
            return None
        pairs = of.arc_src.astype(np.int64) * len(of.nodes) + of.arc_dst
        order = np.argsort(pairs)
        nearer = [_nearer(line, each) for line, each in zip(lines, steps, strict=True)]
        farthest = sum(int(each.max()) for each in steps)
        return SwitchGrid(place, strides, at, nearer, pairs[order], order, farthest)

    def among(self, ends: Ints32) -> Flags:
        """(switches,) those whose coordinates, each by itself, lie on a way between some of the
        switches ``ends`` (n,)."""
        place = self.place[ends]
        inner = (place >= 0).all(axis=1)
        out: Flags = np.asarray((self.place >= 0).all(axis=1))
        for dimension, nearer in enumerate(self.nearer):
            goals = np.unique(place[inner, dimension])
            found = np.zeros(len(nearer) + 1, bool)  # the last one for -1
            new = goals
            while len(new):
                found[new] = True
                following = np.unique(nearer[np.ix_(new, goals)])
                new = following[~found[following] & (following >= 0)]
            out &= found[self.place[:, dimension]]
        out[ends] = True
        return out

    def ways(self, here: Ints32, there: Ints32) -> Ints64:
        """(n, most) numbers of the ways from each of ``here`` by which dimension order goes on to
        ``there``, another switch, ascending; a number larger than all where there are fewer."""
        most = max(each.shape[2] for each in self.nearer)
        following = np.full((len(here), most), -1, np.int64)
        place, goal = self.place[here], self.place[there]
        stored = (place < 0).any(axis=1) | (goal < 0).any(axis=1)
        following[stored, 0] = there[stored]
        first = (place != goal).argmax(axis=1)
        for dimension, nearer in enumerate(self.nearer):
            rows = np.flatnonzero((first == dimension) & ~stored)
            now, to = place[rows, dimension], goal[rows, dimension]
            found = nearer[now, to].astype(np.int64)
            flat = place[rows] @ self.strides
            moved = flat[:, None] + (found - now[:, None]) * self.strides[dimension]
            valid = np.where(found < 0, flat[:, None], moved)
            following[rows, : found.shape[1]] = np.where(found < 0, -1, self.at[valid])
        pair = here[:, None].astype(np.int64) * len(self.place) + following
        number = self.way[np.searchsorted(self.pairs, pair).clip(max=len(self.pairs) - 1)]
        return np.sort(np.where(following < 0, len(self.way), number), axis=1)


def _lines(fabric: Fabric, place: Ints32, shape: Ints32) -> list[Flags] | None:
    """For each dimension (size, size) which coordinates are linked, on all lines alike; None if
    lines differ, or a way leads along no line."""
    of = fabric.switches
    inner = of.is_transit[of.arc_src] & of.is_transit[of.arc_dst]
    here, there = place[of.arc_src[inner]], place[of.arc_dst[inner]]
    differs = here != there
    if (differs.sum(axis=1) != 1).any():
        return None
    lines = []
    for dimension, size in enumerate(shape.tolist()):
        along = differs[:, dimension]
        pair = here[along, dimension].astype(np.int64) * size + there[along, dimension]
        count = np.bincount(pair, minlength=size * size).reshape(size, size)
        if not np.isin(count, (0, len(of.is_transit[of.is_transit]) // size)).all():
            return None
        lines.append(count > 0)
    return lines


def _storage_is_linked_to_all(fabric: Fabric) -> bool:
    """Whether every switch of a storage system is linked to all others, and to no such switch."""
    of = fabric.switches
    stored = np.flatnonzero(~of.is_transit)
    counts = np.diff(of.first_arc)[stored]
    among = ~of.is_transit[of.arc_src] & ~of.is_transit[of.arc_dst]
    return bool((counts == of.is_transit.sum()).all() and not among.any())


def _nearer(line: Flags, steps: Ints32) -> Ints32:
    """See `SwitchGrid.nearer`."""
    size = len(line)
    # (coordinate, goal, next)
    good = line[:, None, :] & (steps.T[None] == steps[:, :, None] - 1)
    most = max(1, int(good.sum(axis=2).max()))
    following = np.where(good, np.arange(size), size)
    least = np.sort(following, axis=2)[:, :, :most]
    return np.where(least == size, -1, least).astype(np.int32)

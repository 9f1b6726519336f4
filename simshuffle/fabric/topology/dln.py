"""Distributed loop networks: a ring of switches with shortcuts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.fabric.topology.populated import Populated
from simshuffle.spec.record import Count


def _list_powers_of_two(value: object) -> object:
    """Turn a number n of shortcuts into their distances 2, 4, ..., 2^n, at most 50 of
    them; other values are returned as they are.
    """
    if type(value) is not int or value < 0:
        return value
    return [2**k for k in range(1, min(value, 50) + 1)]


Powers = Annotated[int, Field(ge=0)]
_number_to_list = BeforeValidator(
    _list_powers_of_two, json_schema_input_type=Powers | list[Count]
)


class Dln(Populated):
    """A distributed loop network: ``switches`` on a ring, each linked to those at the
    distances ``shortcuts`` in both directions as well. They are a list, or the number
    of powers of two, 2, 4, 8, and so on. The default are all powers of two up to half
    of the ring.

    Then switches at a distance of a power of two have a link of their own, as have all
    pairs that communicate in halving and doubling (the variant of Truong & Wahib,
    CCGrid 2021, of the DLN of Koibuchi et al., A Case for Random Shortcut Topologies
    for HPC Interconnects, ISCA 2012).

    Attributes:
        switches: on the ring.
        shortcuts: distances of the switches that each is linked to, on both sides; a
            number n stands for 2, 4, ..., 2^n. If left out, all powers of two up to
            half of the ring.
    """

    default_routing: ClassVar[str] = "min_hop"
    sized_by: ClassVar[str] = "switches"

    kind: Literal["dln"]
    switches: Annotated[int, Field(ge=2, le=65_536)]
    shortcuts: Annotated[list[Count], _number_to_list] | None = None

    def _check(self) -> None:
        """Raise a PydanticCustomError where two shortcuts are equal, or one is below 2
        or above half of the ring; then check as `Populated` does.
        """
        half_ring = self.switches // 2
        wrong_distances = [
            distance
            for distance in self.shortcuts or []
            if not 2 <= distance <= half_ring
        ]
        if wrong_distances or len(set(self.shortcuts or [])) < len(
            self.shortcuts or []
        ):
            raise problem(
                "shortcuts",
                f"must be different distances from 2 to {half_ring}, half of the ring",
                self.shortcuts,
                "Leave it out for all powers of two.",
            )
        super()._check()

    @property
    def distances(self) -> list[int]:
        """Distances along the ring between linked switches: 1, then the shortcuts as
        given; if left out, all powers of two up to half of the ring.
        """
        if self.shortcuts is not None:
            return [1, *self.shortcuts]
        return [
            2**k
            for k in range(self.switches.bit_length())
            if 2 ** (k + 1) <= self.switches
        ]

    @property
    def switches_with_hosts(self) -> int:
        """Number of switches with hosts: all of the ring."""
        return self.switches

    @property
    def switch_links(self) -> int:
        """Number of links between switches: one for each switch and distance, half as
        many between opposite switches.
        """
        return sum(self._links_at_distance(distance) for distance in self.distances)

    def _links_at_distance(self, distance: int) -> int:
        """Number of links between switches at a distance along the ring: one for each
        switch, half as many at half of the ring.
        """
        return self.switches // 2 if 2 * distance == self.switches else self.switches

    def structure(self) -> str:
        """Describe in words the switches, the distances of their links and the
        bisection bandwidth.
        """
        # each of the two cuts of the ring is crossed by as many links as their distance
        bisection_links = sum(
            distance * 2 * self._links_at_distance(distance) // self.switches
            for distance in self.distances
        )
        distances = ", ".join(map(str, self.distances))
        return self._describe(
            self.switches,
            f"linked at the distances {distances} along the ring",
            bisection=bisection_links * self.link_bandwidth,
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``s0`` and hosts ``h0000``."""
        names = [f"s{i}" for i in range(self.switches)]
        for i, name in enumerate(names):
            add_switch(graph, name, "leaf", self.switch_latency, (i,))
        for distance in self.distances:
            for i in range(self._links_at_distance(distance)):
                peer = names[(i + distance) % self.switches]
                connect(graph, names[i], peer, **self._cable)
        self._add_hosts(graph, names)

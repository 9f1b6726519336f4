"""What every routing makes: a `Router`, which says over which links messages go; and how it finds
its way from switch to switch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.routing.fabric import Choices, Fabric, Ints
from simshuffle.topology.cabling import DirectedLinks

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Step:
    """Where messages are: each at a switch that is not its goal."""

    hop: int  # how many links each has passed
    here: Ints  # (n,) the switch
    goal: Ints  # (n,) the place of the switch where it is going in `Fabric.goals`
    choice: Ints  # (n,) which of `Choices` it has
    # src, dst: (n,) the ports from and to which it is sent
    src: Ints
    dst: Ints
    message: NDArray[np.int64]  # (n,) its number in what was asked for


class Router(ABC):
    """The routes over one network.

    A router may remember what it gave before: one that spreads messages by load does. So each
    simulation makes one of its own.

    Attributes:
        fabric: the network.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    @property
    def constant(self) -> bool:
        """Whether all messages from a port to another take one route, whenever they are asked
        for."""
        return True

    def afresh(self) -> Router:
        """The same routes as if none had been asked for yet."""
        return self

    @property
    def links(self) -> DirectedLinks:
        """All links of the network."""
        return self.fabric.links

    def endpoints(self, node: str) -> list[int]:
        """See `Fabric.endpoints`."""
        return self.fabric.endpoints(node)

    def leaves(self, endpoints: Ints) -> list[str]:
        """The switch that each of ``endpoints`` (n,) is attached to."""
        return self.fabric.switch_names(self.fabric.at[endpoints])

    def latencies(self, routes: Ints) -> NDArray[np.float64]:
        """(n,) sum of the link latencies of each route (s)."""
        every: NDArray[np.float64] = np.where(routes < 0, 0.0, self.links.latency[routes])
        return np.asarray(every.sum(axis=1))

    @property
    def diameter(self) -> int:
        """Links of the longest route that there can be, the injecting and ejecting ones
        included."""
        return self.fabric.longest_way

    def crossed(self, ports: Ints) -> Ints:
        """The links that messages among ``ports`` (n,) may cross, ascending; more of them where
        only a search of all routes would tell."""
        return np.arange(len(self.links), dtype=np.int32)

    @abstractmethod
    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Links from port ``src[i]`` to ``dst[i]``: (n, `diameter`) int32, padded with -1."""


class HopByHop(Router):
    """Routes of which every switch chooses the next link."""

    by_destination = False
    """Whether a switch looks at the destination alone, as a linear forwarding table does."""

    @cached_property
    def choices(self) -> Choices:
        """The links that a switch chooses among; those of all shortest ways."""
        return self.fabric.shortest

    def choice_of(self, here: Ints, goal: Ints) -> Ints:
        """(n,) which of `choices` the switches ``here`` have for places in `Fabric.goals`."""
        return self.choices.of[here, goal]

    @abstractmethod
    def choose(self, step: Step) -> Ints:
        """(n,) the link by which each message goes on."""

    def stops(self, src: Ints, dst: Ints) -> list[Ints]:
        """The switches through which messages have to go before they turn to their destination, as
        places in `Fabric.goals`, (n,) each; there are none."""
        return []

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """See `Router.routes`."""
        out = np.full((len(src), self.diameter), -1, np.int32)
        if not len(src):
            return out
        fabric = self.fabric
        out[:, 0] = fabric.inject[src]
        here = fabric.at[src]
        length = np.ones(len(src), np.int64)
        for goal in [*self.stops(src, dst), fabric.goal_of[dst]]:
            self._go(out, length, here, goal, src, dst)
        out[np.arange(len(src)), length] = fabric.eject[dst]
        return out

    def _go(
        self, out: Ints, length: NDArray[np.int64], here: Ints, goal: Ints, src: Ints, dst: Ints
    ) -> None:
        """Go on from the switches ``here`` to the goals, noting the links in ``out`` from
        ``length`` on; both arrays, and ``here``, are moved on."""
        fabric = self.fabric
        there = fabric.goals[goal]
        rows = np.flatnonzero(here != there)
        hop = 1
        while len(rows):
            place, to = here[rows], goal[rows]
            choice = self.choice_of(place, to)
            step = Step(hop, place, to, choice, src[rows], dst[rows], rows)
            following = self.choose(step)
            out[rows, length[rows]] = following
            length[rows] += 1
            here[rows] = fabric.entered[following]
            rows = rows[here[rows] != there[rows]]
            hop += 1

    def of_count(self, step: Step, number: NDArray[np.integer]) -> Ints:
        """(n,) the link with that number, modulo how many there are, among those of each choice."""
        of = self.choices
        first = of.first[step.choice]
        count = of.first[step.choice + 1] - first
        return of.links[first + (number % count.astype(number.dtype)).astype(np.int64)]


def mixed(*words: NDArray[np.integer] | int) -> Words:
    """(n,) numbers that look random and are the same for the same words: each word, an array (n,)
    or one number, is stirred in by the finaliser of SplitMix64 (Steele, Lea & Flood, Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014)."""
    state: Words = np.zeros(1, np.uint64)
    for word in words:
        state = state + np.uint64(0x9E3779B97F4A7C15) + np.asarray(word).astype(np.uint64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state

"""What every routing answers; what it makes: a `Router`, which says over which links messages go,
and finds its way from switch to switch; and what goes over every link."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.topology.cabling import concatenate_ranges
from simshuffle.fabric.topology.directed_links import DirectedLinks
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32, Ints64
from simshuffle.spec.record import Spec

Words = NDArray[np.uint64]
_TOGETHER = 1 << 20  # routes found at once: some 50 MB


@dataclass(frozen=True)
class MessagePositions:
    """Where messages are: each at a switch that is not its goal."""

    hop: int  # how many links each has passed
    here: Ints32  # (n,) the switch
    goal: Ints32  # (n,) the place of the switch where it is going in `Fabric.goals`
    choice: Ints32  # (n,) which of `Choices` it has
    # src, dst: (n,) the ports from and to which it is sent
    src: Ints32
    dst: Ints32
    message: Ints64  # (n,) its number in what was asked for


class Router(ABC):
    """The routes over one network.

    A router may remember what it gave before: one that spreads messages by load does. So each
    simulation makes one of its own.

    Attributes:
        fabric: the network.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    constant = True
    """Whether all messages from a port to another take one route, whenever they are asked for."""

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

    def leaves(self, endpoints: Ints32) -> list[str]:
        """The switch that each of ``endpoints`` (n,) is attached to."""
        return self.fabric.switch_names(self.fabric.at[endpoints])

    def latencies(self, routes: Ints32) -> Floats:
        """(n,) sum of the link latencies of each route (s)."""
        every: Floats = np.where(routes < 0, 0.0, self.links.latency[routes])
        return np.asarray(every.sum(axis=1))

    @property
    def diameter(self) -> int:
        """Links of the longest route that there can be, the injecting and ejecting ones
        included."""
        return self.fabric.longest_way

    def crossed(self, ports: Ints32) -> Ints32:
        """The links that messages among ``ports`` (n,) may cross, ascending; more of them where
        only a search of all routes would tell."""
        return np.arange(len(self.links), dtype=np.int32)

    @abstractmethod
    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """Links from port ``src[i]`` to ``dst[i]``: (n, `diameter`) int32, padded with -1."""


class HopByHop(Router):
    """Routes of which every switch chooses the next link."""

    by_destination = False
    """Whether a switch looks at the destination alone, as a linear forwarding table does."""

    @cached_property
    def choices(self) -> Choices:
        """The links that a switch chooses among; those of all shortest ways."""
        return self.fabric.shortest

    def choice_of(self, here: Ints32, goal: Ints32) -> Ints32:
        """(n,) which of `choices` the switches ``here`` have for places in `Fabric.goals`."""
        return self.choices.of[here, goal]

    @abstractmethod
    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) the link by which each message goes on."""

    def stops(self, src: Ints32, dst: Ints32) -> list[Ints32]:
        """The switches through which messages have to go before they turn to their destination, as
        places in `Fabric.goals`, (n,) each; there are none."""
        return []

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
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
        self, out: Ints32, length: Ints64, here: Ints32, goal: Ints32, src: Ints32, dst: Ints32
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
            step = MessagePositions(hop, place, to, choice, src[rows], dst[rows], rows)
            following = self.choose(step)
            out[rows, length[rows]] = following
            length[rows] += 1
            here[rows] = fabric.entered[following]
            rows = rows[here[rows] != there[rows]]
            hop += 1

    def of_count(self, step: MessagePositions, number: Ints) -> Ints32:
        """(n,) the link with that number, modulo how many there are, among those of each choice."""
        of = self.choices
        first = of.first[step.choice]
        count = of.first[step.choice + 1] - first
        return of.links[first + (number % count.astype(number.dtype)).astype(np.int64)]


def mixed(*words: Ints | int) -> Words:
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


class RoutingRule(Spec, ABC):
    """Which of the ways through a network messages take, by a few numbers.

    Attributes:
        drawn: whether it draws: another seed gives other routes.
        remembers: whether what a router gave before changes what it gives next.
    """

    drawn: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    @abstractmethod
    def router(self, fabric: Fabric, seed: int) -> Router:
        """The routes over a network; ``seed`` is for what is drawn.

        Raises:
            TopologyError: the routing is not known for this network.
        """

    def warnings(self, fabric: Fabric) -> list[Problem]:
        """What is valid on a network and seldom meant."""
        return []

    def short(self) -> str:
        """As it is written in short: its kind, and the keys that are not the default ones, such as
        ``ecmp:queue_pairs=4``."""
        keys = self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
        given = ",".join(f"{key}={value}" for key, value in keys.items())
        return f"{self._name}:{given}" if given else self._name

    def describe(self) -> str:
        """Its kind and keys, for people."""
        keys = self.model_dump(mode="json", exclude={"kind"}, exclude_none=True)
        given = ", ".join(f"{key} {value}" for key, value in keys.items())
        return f"{self._name} ({given})" if given else self._name

    @property
    def _name(self) -> str:
        return str(getattr(self, "kind", type(self).__name__))


def unsuited(rule: str, found: str, remedy: str) -> TopologyError:
    """The error of a routing that is not known for a network."""
    return TopologyError(Problem("cluster.routing", rule, found, remedy), "routing")


def loads(router: Router, src: Ints32, dst: Ints32) -> Ints64:
    """(links,) how many of the messages from port ``src[i]`` to ``dst[i]``, (n,), each link has."""
    out = np.zeros(len(router.links), np.int64)
    for begin in range(0, len(src), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        routes = router.routes(src[part], dst[part])
        out += np.bincount(routes[routes >= 0], minlength=len(out))
    return out


def uniform_loads(router: Router, ports: Ints32) -> Ints64:
    """(links,) how many of the messages from every one of ``ports`` (n,) to every other one each
    link has.

    Where switches look at the destination alone, the messages of all ports of a switch are followed
    together.
    """
    if not (isinstance(router, HopByHop) and router.by_destination):
        src, dst = np.repeat(ports, len(ports)), np.tile(ports, len(ports))
        return loads(router, src[src != dst], dst[src != dst])
    fabric = router.fabric
    out = np.zeros(len(router.links), np.int64)
    out[fabric.inject[ports]] = len(ports) - 1
    out[fabric.eject[ports]] = len(ports) - 1
    at = fabric.at[ports]
    switches, weight = np.unique(at, return_counts=True)
    width = max(1, _TOGETHER // len(switches))
    for begin in range(0, len(ports), width):
        to = ports[begin : begin + width]
        here = np.repeat(switches, len(to)).astype(np.int32)
        _follow(router, here, np.tile(to, len(switches)), np.repeat(weight, len(to)), out)
    return out


def _follow(router: HopByHop, here: Ints32, dst: Ints32, weight: Ints64, out: Ints64) -> None:
    """Add the messages, ``weight`` of each kind, on their way from the switches ``here``."""
    fabric = router.fabric
    goal = fabric.goal_of[dst]
    rows = np.flatnonzero(here != fabric.at[dst])
    hop = 1
    while len(rows):
        place, to = here[rows], goal[rows]
        # whichever port of the switch they are from
        step = MessagePositions(
            hop, place, to, router.choice_of(place, to), dst[rows], dst[rows], rows
        )
        following = router.choose(step)
        out += np.bincount(following, weight[rows], len(out)).astype(np.int64)
        here[rows] = fabric.entered[following]
        rows = rows[here[rows] != fabric.at[dst[rows]]]
        hop += 1


def reach(router: Router, ports: Ints32) -> Flags:
    """(links,) the links that messages between any two of ``ports`` (n,) may take.

    Those of all shortest ways; where there are groups of switches that are linked to one another,
    of all ways with one hop between groups; all links between switches where a routing goes by
    way of others.
    """
    fabric = router.fabric
    out = np.zeros(len(router.links), bool)
    out[fabric.inject[ports]] = out[fabric.eject[ports]] = True
    grouped = fabric.grouped
    if router.diameter > (fabric.direct_way if grouped else fabric.longest_way):
        out[fabric.between] = True
        return out
    of = fabric.direct if grouped else fabric.shortest
    goals = np.unique(fabric.goal_of[ports])
    at = fabric.goals[goals]
    seen = np.zeros((len(fabric.switches.nodes), len(goals)), bool)
    here, to = (index.ravel() for index in np.meshgrid(at, np.arange(len(goals)), indexing="ij"))
    while len(here):
        seen[here, to] = True
        choice = of.of[here, goals[to]]
        some = choice >= 0  # there is none at the goal itself
        first, end = of.first[choice[some]], of.first[choice[some] + 1]
        links = of.links[concatenate_ranges(first, end)]
        out[links] = True
        pairs = fabric.entered[links].astype(np.int64) * len(goals) + np.repeat(
            to[some], end - first
        )
        here, to = np.divmod(np.unique(pairs), len(goals))
        new = ~seen[here, to]
        here, to = here[new], to[new]
    return out

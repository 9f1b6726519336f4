"""The interface of every routing (`RoutingRule`) and of the router that it makes for a
network (`Router`, `HopByHop`); and the loads that routes put on links.
"""

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
_ROUTES_AT_ONCE = 1 << 20  # routes found at once: some 50 MB


@dataclass(frozen=True)
class MessagePositions:
    """Positions of messages: each stands at a switch that is not its goal."""

    hop: int  # 1 at the first choice on the way to the goal, 2 at the next one, ...
    switch: Ints32  # (n,) the switch where each message is
    goal: Ints32  # (n,) index in `Fabric.goals` of the switch where it goes
    choice: Ints32  # (n,) index of its choice in `Choices`
    src: Ints32  # (n,) the port that sent it
    dst: Ints32  # (n,) the port that it is for
    message: Ints64  # (n,) its index among the messages that are routed together


class Router(ABC):
    """The routes over one network.

    A router may remember what it gave before: one that spreads messages by load does.
    So each simulation makes one of its own.

    Attributes:
        fabric: the network.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    constant = True
    """Whether all messages between two ports take one route, at any time."""

    def without_history(self) -> Router:
        """Return a router with the routes that this one gave before any message was
        routed.
        """
        return self

    @property
    def links(self) -> DirectedLinks:
        """The directed links of the network."""
        return self.fabric.links

    def endpoints(self, node: str) -> list[int]:
        """List the ports of a host or storage system, by switch, then by parallel link.

        Raises:
            KeyError: no node of this name has a port.
        """
        return self.fabric.endpoints(node)

    def leaf_names(self, endpoints: Ints32) -> list[str]:
        """List the name of the switch that each of the ports ``endpoints`` (n,) is
        attached to.
        """
        return self.fabric.switch_names(self.fabric.switch_of_port[endpoints])

    def latencies(self, routes: Ints32) -> Floats:
        """(n,) latency of each route (s): the sum over its cables and the nodes that
        they enter.

        Args:
            routes: (n, width) links of each route, padded with -1.
        """
        # the padding, -1, finds the zero at the end
        latencies = np.append(self.links.latency, 0.0).take(routes)
        return np.asarray(latencies.sum(axis=1))

    @property
    def diameter(self) -> int:
        """Number of links that no route exceeds, the injecting and ejecting links
        included. It is an upper bound, and the width of `routes`.
        """
        return self.fabric.longest_route

    def possible_links(self, ports: Ints32) -> Ints32:
        """The links that messages among ``ports`` (n,) may cross, ascending.

        The result may hold links that no message crosses: by default all links.
        """
        return np.arange(len(self.links), dtype=np.int32)

    @abstractmethod
    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """(n, `diameter`) int32 links from port ``src[i]`` to ``dst[i]``, the injecting
        and ejecting links included, padded with -1.

        A router that remembers counts these messages as sent.
        """


class HopByHop(Router):
    """Routes of which every switch chooses the next link."""

    by_destination = False
    """Whether switches route by the destination alone, as linear forwarding tables do."""

    @cached_property
    def choices(self) -> Choices:
        """The choices among which switches pick the next link: by default all links
        that begin a shortest route.
        """
        return self.fabric.shortest_choices

    def choice_of(self, switches: Ints32, goal: Ints32) -> Ints32:
        """(n,) index in `choices` of the choice that each of ``switches`` (n,) has
        towards ``goal`` (n,), an index in `Fabric.goals`.
        """
        index = self.choices.index
        # a number for each pair: with two arrays of indices numpy takes ten times as long
        return index.ravel().take(switches * np.int64(index.shape[1]) + goal)

    @abstractmethod
    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) the next link of each message."""

    def intermediate_goals(self, src: Ints32, dst: Ints32) -> list[Ints32]:
        """List the goals that messages must pass before they turn to their destination.

        Returns:
            For each stage (n,) indices in `Fabric.goals`; by default no stage.
        """
        return []

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """(n, `diameter`) int32 links of each route, switch by switch; see
        `Router.routes`.
        """
        routes = np.full((len(src), self.diameter), -1, np.int32)
        if not len(src):
            return routes
        fabric = self.fabric
        routes[:, 0] = fabric.inject_link[src]
        switch = fabric.switch_of_port[src]
        length = np.ones(len(src), np.int64)
        for goal in [*self.intermediate_goals(src, dst), fabric.goal_of_port[dst]]:
            self._extend_routes(routes, length, switch, goal, src=src, dst=dst)
        routes[np.arange(len(src)), length] = fabric.eject_link[dst]
        return routes

    def _extend_routes(
        self,
        routes: Ints32,
        length: Ints64,
        switch: Ints32,
        goal: Ints32,
        *,
        src: Ints32,
        dst: Ints32,
    ) -> None:
        """Extend the routes of messages from where they are to their goals.

        Args:
            routes: (n, diameter) links; the next ones are written to it.
            length: (n,) links of each route so far; moved on.
            switch: (n,) where each message is; moved on.
            goal: (n,) index in `Fabric.goals` of where it goes.
            src, dst: (n,) its ports.
        """
        fabric = self.fabric
        goal_switch = fabric.goals[goal]
        messages = np.flatnonzero(switch != goal_switch)
        hop = 1
        while len(messages):
            here = switch.take(messages)
            towards = goal.take(messages)
            step = MessagePositions(
                hop=hop,
                switch=here,
                goal=towards,
                choice=self.choice_of(here, towards),
                src=src.take(messages),
                dst=dst.take(messages),
                message=messages,
            )
            next_link = self.choose(step)
            routes[messages, length.take(messages)] = next_link
            length[messages] += 1
            entered = switch[messages] = fabric.entered_switch.take(next_link)
            messages = messages.compress(entered != goal_switch.take(messages))
            hop += 1

    def select_link(self, step: MessagePositions, index: Ints) -> Ints32:
        """(n,) link of each message: the one with ``index`` (n,), modulo the number of
        links of its choice.
        """
        choices = self.choices
        first = choices.first_link[step.choice]
        count = choices.first_link[step.choice + 1] - first
        return choices.links[
            first + (index % count.astype(index.dtype)).astype(np.int64)
        ]


def hash_words(*words: Ints | int) -> Words:
    """Hash words: (n,) uint64 that look random and are equal for equal words; (1,) if
    all words are numbers. The order of the words matters.

    Each word, an array (n,) or one number, is stirred in by the finaliser of SplitMix64
    (Steele, Lea & Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
    """
    state: Words = np.zeros(1, np.uint64)
    for word in words:
        state = (
            state + np.uint64(0x9E3779B97F4A7C15) + np.asarray(word).astype(np.uint64)
        )
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


class RoutingRule(Spec, ABC):
    """A routing, described by a few numbers: how the route of each message is selected
    among the routes that a network offers.

    Attributes:
        drawn: whether it draws: another seed gives other routes.
        remembers: whether what a router gave before changes what it gives next.
    """

    drawn: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    @abstractmethod
    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return the router of a network; ``seed`` is for routings that draw.

        Raises:
            TopologyError: the routing is not known for this network.
        """

    def warnings(self, fabric: Fabric) -> list[Problem]:
        """List the warnings about this routing on a network: what is valid but seldom
        intended.
        """
        return []

    def short(self) -> str:
        """Return the short form: the kind, and the keys that are not the default ones,
        such as ``ecmp:queue_pairs=4``.
        """
        keys = self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
        settings = ",".join(f"{key}={value}" for key, value in keys.items())
        return f"{self._kind_name}:{settings}" if settings else self._kind_name

    def describe(self) -> str:
        """Describe the routing by its kind and keys, for people."""
        keys = self.model_dump(mode="json", exclude={"kind"}, exclude_none=True)
        settings = ", ".join(f"{key} {value}" for key, value in keys.items())
        return f"{self._kind_name} ({settings})" if settings else self._kind_name

    @property
    def _kind_name(self) -> str:
        """The kind of the routing; the name of its class if it has none."""
        return str(getattr(self, "kind", type(self).__name__))


def unsuited(rule: str, observed: str, remedy: str) -> TopologyError:
    """Return the error of a routing that is not known for a network.

    Args:
        rule: which networks the routing is for.
        observed: what this network has instead.
        remedy: a sentence that says which routing to use.
    """
    return TopologyError(Problem("cluster.routing", rule, observed, remedy), "routing")


def link_loads(router: Router, src: Ints32, dst: Ints32) -> Ints64:
    """(links,) number of messages on each link, if one goes from each port ``src[i]``
    to ``dst[i]``, (n,). A router that remembers counts these messages as sent.
    """
    out = np.zeros(len(router.links), np.int64)
    for begin in range(0, len(src), _ROUTES_AT_ONCE):
        batch = slice(begin, begin + _ROUTES_AT_ONCE)
        routes = router.routes(src[batch], dst[batch])
        out += np.bincount(routes[routes >= 0], minlength=len(out))
    return out


def uniform_loads(router: Router, ports: Ints32) -> Ints64:
    """(links,) number of messages on each link, if every one of ``ports`` (n,) sends
    one to every other. ``ports`` holds no port twice.

    Where switches look at the destination alone, the messages of all ports of a switch
    are followed together. A router that remembers counts the messages as sent.
    """
    if not (isinstance(router, HopByHop) and router.by_destination):
        src = np.repeat(ports, len(ports))
        dst = np.tile(ports, len(ports))
        return link_loads(router, src[src != dst], dst[src != dst])
    fabric = router.fabric
    out = np.zeros(len(router.links), np.int64)
    out[fabric.inject_link[ports]] = len(ports) - 1
    out[fabric.eject_link[ports]] = len(ports) - 1
    switch_of_port = fabric.switch_of_port[ports]
    switches, ports_per_switch = np.unique(switch_of_port, return_counts=True)
    width = max(1, _ROUTES_AT_ONCE // len(switches))
    for begin in range(0, len(ports), width):
        targets = ports[begin : begin + width]
        switch = np.repeat(switches, len(targets)).astype(np.int32)
        _follow_to_ports(
            router,
            switch,
            np.tile(targets, len(switches)),
            np.repeat(ports_per_switch, len(targets)),
            out,
        )
    return out


def _follow_to_ports(
    router: HopByHop, switch: Ints32, dst: Ints32, weight: Ints64, out: Ints64
) -> None:
    """Add the load of groups of messages on the links between switches of their routes.

    Args:
        router: a router by destination.
        switch: (n,) where each group of messages is; moved on.
        dst: (n,) the port where it goes.
        weight: (n,) messages of each group.
        out: (links,) messages on each link; changed in place.
    """
    fabric = router.fabric
    goal = fabric.goal_of_port[dst]
    messages = np.flatnonzero(switch != fabric.switch_of_port[dst])
    hop = 1
    while len(messages):
        here = switch[messages]
        towards = goal[messages]
        targets = dst[messages]
        step = MessagePositions(
            hop=hop,
            switch=here,
            goal=towards,
            choice=router.choice_of(here, towards),
            src=targets,  # not read: the switch looks at the destination alone
            dst=targets,
            message=messages,
        )
        next_link = router.choose(step)
        out += np.bincount(next_link, weight[messages], len(out)).astype(np.int64)
        switch[messages] = fabric.entered_switch[next_link]
        messages = messages[switch[messages] != fabric.switch_of_port[dst[messages]]]
        hop += 1


def reachable_links(router: Router, ports: Ints32) -> Flags:
    """(links,) True for the links that messages between any two of ``ports`` (n,) may
    take.

    These are the injecting and ejecting links of the ports, and the links of all
    shortest routes. Where all groups of switches are linked, they are the links of all
    routes with at most one hop between groups instead. Where a routing makes longer
    routes (by `Router.diameter`), all links between switches are True.
    """
    fabric = router.fabric
    is_reached = np.zeros(len(router.links), bool)
    is_reached[fabric.inject_link[ports]] = True
    is_reached[fabric.eject_link[ports]] = True
    has_groups = fabric.has_linked_groups
    if router.diameter > (
        fabric.longest_direct_route if has_groups else fabric.longest_route
    ):
        is_reached[fabric.switch_links] = True
        return is_reached
    choices = fabric.direct_choices if has_groups else fabric.shortest_choices
    goals = np.unique(fabric.goal_of_port[ports])
    goal_switch = fabric.goals[goals]
    # search from all pairs of a switch with ports and a goal: a pair is a row of `is_visited` (the
    # switch where a message is) and a column (its goal)
    is_visited = np.zeros((len(fabric.switches.nodes), len(goals)), bool)
    switch = np.repeat(goal_switch, len(goals))
    column = np.tile(np.arange(len(goals)), len(goals))
    while len(switch):
        is_visited[switch, column] = True
        choice = choices.index[switch, goals[column]]
        has_links = choice >= 0  # there is none at the goal itself
        first_link = choices.first_link[choice[has_links]]
        end_link = choices.first_link[choice[has_links] + 1]
        links = choices.links[concatenate_ranges(first_link, end_link)]
        is_reached[links] = True

        next_switch = fabric.entered_switch[links].astype(np.int64)
        next_column = np.repeat(column[has_links], end_link - first_link)
        pair = np.unique(next_switch * len(goals) + next_column)
        switch, column = np.divmod(pair, len(goals))
        is_new = ~is_visited[switch, column]
        switch = switch[is_new]
        column = column[is_new]
    return is_reached

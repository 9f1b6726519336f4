"""Minimal routing of dragonflies, from group to group at once, and Valiant routing, by
way of a switch drawn at random.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simshuffle.fabric.routing.dimension_order import check_coordinates
from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    hash_words,
    unsuited,
)
from simshuffle.spec.arrays import Ints32


class Minimal(RoutingRule):
    """Minimal routing, for switches that stand in groups (dragonfly, Dragonfly+): to a
    switch that has a link to the group of the destination, over it, and on to the
    destination (Kim et al., Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA
    2008). Of several such ways, source and destination choose one by a hash. Where all
    routes are in use, some wait for one another in a circle, which real machines break
    by virtual channels.
    """

    kind: Literal["minimal"] = "minimal"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router with at most one hop between groups; ``seed`` is not used.

        Raises:
            TopologyError: the switches do not stand in groups that are all linked.
        """
        check_groups(fabric, self.kind)
        return MinimalRouter(fabric, 0)


def check_groups(fabric: Fabric, kind: str) -> None:
    """Raise a TopologyError where the switches do not stand in groups of which each is
    linked to all others, which routing ``kind`` needs.
    """
    check_coordinates(fabric, kind)
    if not fabric.has_linked_groups:
        raise unsuited(
            f"{kind} is for groups of switches of which each is linked to all others",
            "groups without a link between them",
            "Use another routing, such as dimension_order or min_hop.",
        )


class MinimalRouter(HopByHop):
    """Routes with at most one hop between groups, chosen by a hash among equals.

    Args:
        fabric: a network whose groups are all linked, see `check_groups`.
        seed: another seed chooses other links.
    """

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric)
        self.seed = seed

    @cached_property
    def choices(self) -> Choices:
        """The choices among links with at most one hop between groups; see
        `HopByHop.choices`.
        """
        return self.fabric.direct_choices

    @property
    def diameter(self) -> int:
        """Number of links of the longest route; see `Router.diameter`."""
        return self.fabric.longest_direct_route

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, by a hash of switch, source and destination;
        see `HopByHop.choose`.
        """
        return self.select_link(
            step, hash_words(self.seed, step.switch, step.src, step.dst)
        )


class Valiant(RoutingRule):
    """Valiant routing (Valiant & Brebner, STOC 1981; for dragonflies Kim et al., ISCA
    2008): every message goes to a switch drawn at random among those with hosts, and
    from there to its destination; each part of the way as `Minimal`. Between switches
    of one group it goes straight. It makes any traffic look uniform, and puts twice as
    much of it on the links.
    """

    drawn: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    kind: Literal["valiant"] = "valiant"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router by way of random switches, which ``seed`` draws.

        Raises:
            TopologyError: the switches do not stand in groups that are all linked.
        """
        check_groups(fabric, self.kind)
        return _ValiantRouter(fabric, seed)


class _ValiantRouter(MinimalRouter):
    """Routes by way of random switches, another one for each message."""

    constant = False

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric, seed)
        self._detours = DetourDrawer(fabric, seed)

    def without_history(self) -> Router:
        """Return a router that draws again from the first message on."""
        return _ValiantRouter(self.fabric, self.seed)

    @property
    def diameter(self) -> int:
        """Number of links that no route exceeds: two longest minimal routes."""
        return 2 * (self.fabric.longest_direct_route - 2) + 2

    def intermediate_goals(self, src: Ints32, dst: Ints32) -> list[Ints32]:
        """List one array of goals (n,): the switch drawn for each message, its own
        first switch where none is drawn. The next call draws for further messages.
        """
        detour = self._detours.draw(src, dst)
        return [np.where(detour < 0, self.fabric.goal_of_port[src], detour)]


class DetourDrawer:
    """A random switch for each of a sequence of messages, to go by.

    Args:
        fabric: a network whose switches stand in groups.
        seed: another seed draws other switches.
    """

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self._fabric = fabric
        self._seed = seed
        self._sent = 0

    def draw(self, src: Ints32, dst: Ints32) -> Ints32:
        """Draw a switch for each message between two ports, ``src`` and ``dst`` (n,)
        each. The next call draws for the messages after these.

        Returns:
            (n,) index in `Fabric.goals`; -1 within a group, and to and from switches
            without a group, such as those of storage. The switch may be in the group of
            either port.
        """
        fabric = self._fabric
        groups = self._fabric.groups
        assert groups is not None  # noqa: S101 - checked where a router is made
        message = np.arange(self._sent, self._sent + len(src))
        self._sent += len(src)
        candidates = np.flatnonzero(groups[fabric.goals] >= 0)
        detour = candidates[
            (hash_words(self._seed, message) % np.uint64(len(candidates))).astype(
                np.int64
            )
        ]
        src_group = groups[fabric.switch_of_port[src]]
        dst_group = groups[fabric.switch_of_port[dst]]
        return np.where(
            (src_group == dst_group) | (src_group < 0) | (dst_group < 0), -1, detour
        ).astype(np.int32)

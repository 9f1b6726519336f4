"""Forwarding tables of shortest routes: filled as OpenSM's default engine does, so
that links get about equal numbers of destinations; or drawn at random.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simshuffle.fabric.routing.fabric import Choices, Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    hash_words,
)
from simshuffle.spec.arrays import Ints32, Ints64


class MinHop(RoutingRule):
    """Min-hop as OpenSM balances it (``osm_ucast_mgr.c`` and ``osm_switch.c`` of
    github.com/linux-rdma/opensm).

    Destinations are taken switch by switch, those with the most ports first, and at a
    switch by its port numbers, if those are known. For each, every switch takes of the
    links that begin a shortest way the one with the fewest destinations so far; among
    equals that of the lowest port. It is for any network. Where there are circles,
    routes may wait for one another in a circle.
    """

    kind: Literal["min_hop"] = "min_hop"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router by balanced forwarding tables; see `RoutingRule.router`."""
        return BalancedRouter(fabric)


class BalancedRouter(HopByHop):
    """Forwarding tables over the router's choices, filled so that links get equal
    numbers of destinations.
    """

    by_destination = True

    @cached_property
    def table(self) -> Ints32:
        """(switches, ports) the link by which each switch sends to each port; -1 where
        no route leads, and at the switch of the port itself.
        """
        fabric = self.fabric
        choices = self.choices
        table = np.full(
            (len(fabric.switches.nodes), len(fabric.switch_of_port)), -1, np.int32
        )
        num_destinations = np.zeros(len(fabric.links) + 1, np.int64)
        num_destinations[-1] = np.iinfo(
            np.int64
        ).max  # what fills up the rows of fewer links
        num_links = np.diff(choices.first_link)
        port_order = fabric.port_order
        ports_at = np.bincount(fabric.switch_of_port, minlength=len(table))[
            fabric.goals
        ]
        for goal in np.argsort(
            -ports_at, kind="stable"
        ).tolist():  # those with the most first
            switches = np.flatnonzero(choices.index[:, goal] >= 0)
            links_of_switch = _links_by_choice(
                choices, choices.index[switches, goal], num_links, port_order
            )
            # a row for each switch, a column for each of its links to choose from
            rows = np.arange(len(switches))
            for port in self._ports_in_order(goal):
                columns = num_destinations[links_of_switch].argmin(axis=1)
                chosen_links = links_of_switch[rows, columns]
                num_destinations[chosen_links] += 1
                table[switches, port] = chosen_links
        return table

    def _ports_in_order(self, goal: int) -> Ints32:
        """List the ports at a goal switch, by the port number of the switch that leads
        there; ascending if port numbers are not known.
        """
        fabric = self.fabric
        ports = np.flatnonzero(fabric.switch_of_port == fabric.goals[goal]).astype(
            np.int32
        )
        port_order = fabric.port_order
        if port_order is None:
            return ports
        return np.asarray(
            ports[np.argsort(port_order[fabric.eject_link[ports]], kind="stable")]
        )

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, looked up in the table; see
        `HopByHop.choose`.
        """
        return self.table[step.switch, step.dst]


def _links_by_choice(
    choices: Choices, choice: Ints32, num_links: Ints64, port_order: Ints32 | None
) -> Ints64:
    """(n, most) the links of each of the choices ``choice`` (n,), by port number if
    that is known, padded with -1.

    Args:
        choices: all choices.
        choice: (n,) some of them.
        num_links: (choices,) links of each.
        port_order: (links,) port number by which each link leaves its node; None if no
            number is known.
    """
    # a row for each choice, a column for each of its links, in the order of `choices.links`
    links_per_row = num_links[choice]
    max_links = int(links_per_row.max(initial=1))
    column = np.arange(max_links)
    link_index = np.minimum(
        choices.first_link[choice][:, None] + column, len(choices.links) - 1
    )
    has_link = column < links_per_row[:, None]
    links = np.where(has_link, choices.links[link_index], -1).astype(np.int64)
    if port_order is not None:
        port = np.where(links < 0, np.iinfo(np.int64).max, port_order[links])
        links = np.take_along_axis(
            links, np.argsort(port, axis=1, kind="stable"), axis=1
        )
    return links


class RandomStatic(RoutingRule):
    """Random static routing: every switch draws for every destination one of the links
    that begin a shortest route, once and for all.
    """

    drawn: ClassVar[bool] = True

    kind: Literal["random_static"] = "random_static"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router that draws links by a hash of the seed; see
        `RoutingRule.router`.
        """
        return _RandomStaticRouter(fabric, seed)


class _RandomStaticRouter(HopByHop):
    """Routes by links drawn for each pair of a switch and a destination."""

    by_destination = True

    def __init__(self, fabric: Fabric, seed: int) -> None:
        super().__init__(fabric)
        self._seed = seed

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, by a hash of seed, switch and destination."""
        return self.select_link(step, hash_words(self._seed, step.switch, step.dst))

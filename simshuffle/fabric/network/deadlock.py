"""Deadlocks of a routing: circles in the channel dependency graph.

Where no packet is dropped, a packet keeps its place in the buffer of one link until
the next link of its route takes it. So link a waits for link b if some route has b
right after a. Routes can be served whatever the traffic if and only if these
dependencies have no circle (Dally & Seitz, Deadlock-Free Message Routing in
Multiprocessor Interconnection Networks, IEEE Transactions on Computers C-36, 1987).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.network.flows import Links
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.compiling import entry


class ChannelDependencies:
    """The channel dependency graph: which links wait for which, over all routes added
    so far.

    Args:
        links: the links of the network.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        # waiting link * number of links + link waited for, ascending
        self._pairs = np.empty(0, np.int64)

    def add_routes(self, routes: Ints32) -> list[int] | None:
        """Add routes, (n, hops) int32 links padded with -1, unless they close a circle.

        Returns:
            None; or one circle that they would close together with all routes added
            before, and then none of them is added. The circle lists links of which
            each is followed by the next on some route, and the last by the first,
            beginning with the lowest index; a single link for a route that crosses it
            twice in a row.
        """
        num_links = len(self._links)
        new_pairs = np.setdiff1d(
            _unique_pairs(np.ascontiguousarray(routes, np.int32), num_links),
            self._pairs,
            assume_unique=True,
        )
        if not len(new_pairs):
            return None
        pairs = np.sort(np.concatenate([self._pairs, new_pairs]))
        waiting_link, awaited_link = np.divmod(pairs, num_links)
        offsets = np.zeros(num_links + 1, np.int64)
        np.cumsum(np.bincount(waiting_link, minlength=num_links), out=offsets[1:])
        circle = find_circle(offsets, awaited_link)
        if circle is None:
            self._pairs = pairs
        return circle

    def refuse_circles(self, routes: Ints32) -> None:
        """Add routes, (n, hops) int32 links padded with -1, if they close no circle.

        Raises:
            TopologyError: they close a circle; it has the names of the links of one
                circle. None of the routes is added then.
        """
        circle = self.add_routes(routes)
        if circle is not None:
            raise TopologyError(deadlock_problem(self._links, circle), "routes")


def deadlock_problem(links: Links, circle: Sequence[int]) -> Problem:
    """Return the problem of routes that wait for each other in a circle of links.

    Its value lists the names of the links of ``circle``, the first again at the end.
    """
    names = " -> ".join(links.name(link) for link in [*circle, circle[0]])
    return Problem(
        "network",
        "routes must not have links wait for each other in a circle: their buffers can fill up and"
        " never empty (deadlock)",
        names,
        "Route without circles, as up and then down in a tree, or use a network without buffers"
        " (kind: fluid).",
    )


def find_circle(offsets: Ints64, edge_targets: Ints64 | Ints32) -> list[int] | None:
    """Find one circle in a directed graph.

    Args:
        offsets: (nodes + 1,) where the edges of each node begin in ``edge_targets``.
        edge_targets: (edges,) the node to which each edge leads. An edge may stand
            there twice.

    Returns:
        Nodes of which each leads to the next, and the last to the first, beginning with
        the lowest; a single node for an edge from it to itself; None if there is no
        circle.
    """
    count = len(offsets) - 1
    num_waiting = np.bincount(edge_targets, minlength=count)
    _remove_unawaited_links(
        offsets, edge_targets.astype(np.int64), num_waiting, np.empty(count, np.int64)
    )
    if not num_waiting.any():
        return None
    # each node that is left lies on a circle or behind one: it has a predecessor that is left
    src = np.repeat(np.arange(count), np.diff(offsets))
    edges_inside = np.flatnonzero(
        (num_waiting[src] > 0) & (num_waiting[edge_targets] > 0)
    )
    predecessor = dict(
        zip(
            edge_targets[edges_inside].tolist(), src[edges_inside].tolist(), strict=True
        )
    )
    node = int(np.flatnonzero(num_waiting)[0])
    path: dict[int, None] = {}
    while node not in path:
        path[node] = None
        node = predecessor[node]
    nodes_on_path = list(path)
    circle = nodes_on_path[nodes_on_path.index(node) :][::-1]
    lowest = circle.index(min(circle))
    return circle[lowest:] + circle[:lowest]


def _unique_pairs(routes: Ints32, num_links: int) -> Ints64:
    """Pairs of neighbouring links on the routes, each pair once, as first * num_links +
    second; in no order.
    """
    table = np.full(1 << 16, -1, np.int64)
    while not _collect_pairs(routes, num_links, table):
        table = np.full(4 * len(table), -1, np.int64)
    return table[table >= 0]


@entry
def _collect_pairs(routes: Ints32, num_links: int, table: Ints64) -> bool:
    """Enter the pairs of neighbouring links into a hash table, empty where it is -1;
    return False if it would get more than half full, with some pairs left out.

    Args:
        routes: (n, hops) links, padded with -1.
        num_links: the pair (a, b) is entered as a * num_links + b.
        table: (a power of two,) changed in place.
    """
    mask = table.shape[0] - 1
    free_places = table.shape[0] >> 1
    for i in range(routes.shape[0]):
        for hop in range(routes.shape[1] - 1):
            if routes[i, hop + 1] < 0:
                break
            key = np.int64(routes[i, hop]) * num_links + routes[i, hop + 1]
            slot = (key * 0x9E3779B1 >> 7) & mask
            while table[slot] >= 0 and table[slot] != key:
                slot = (slot + 1) & mask
            if table[slot] < 0:
                if free_places == 0:
                    return False
                free_places -= 1
                table[slot] = key
    return True


@entry
def _remove_unawaited_links(
    offsets: Ints64, edge_targets: Ints64, num_waiting: Ints64, stack: Ints64
) -> None:
    """Remove the links for which no other waits, again and again, until every link
    that is left lies on a circle or behind one.

    Args:
        offsets, edge_targets: see `find_circle`.
        num_waiting: (links,) how many edges lead to each link; changed in place to how
            many come from links that are left, 0 for removed links.
        stack: (links,) scratch.
    """
    top = 0
    for link in range(num_waiting.shape[0]):
        if num_waiting[link] == 0:
            stack[top] = link
            top += 1
    while top > 0:
        top -= 1
        link = stack[top]
        for k in range(offsets[link], offsets[link + 1]):
            num_waiting[edge_targets[k]] -= 1
            if num_waiting[edge_targets[k]] == 0:
                stack[top] = edge_targets[k]
                top += 1

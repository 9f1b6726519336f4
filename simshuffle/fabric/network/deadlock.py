"""Whether a routing can deadlock: circles in the channel dependency graph.

Where no packet is dropped, a packet keeps its place in the buffer of one link until the next link
of its route takes it. So link a waits for link b if some route has b right after a. Routes can be
served whatever the traffic if and only if these dependencies have no circle (Dally & Seitz,
Deadlock-Free Message Routing in Multiprocessor Interconnection Networks, IEEE Transactions on
Computers C-36, 1987).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.network.flows import Links
from simshuffle.spec.arrays import Ints32, Ints64
from simshuffle.spec.compiling import entry


class ChannelDependencies:
    """Which links wait for which, over all routes seen so far.

    Args:
        links: the links of the network.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        # waiting link * number of links + link waited for, ascending
        self._known = np.empty(0, np.int64)

    def add(self, routes: Ints32) -> list[int] | None:
        """Take in routes, (n, hops) int32 links padded with -1.

        Returns:
            None; or a circle that they would close, and then they are not taken in: links of which
            each is followed by the next on some route, and the last by the first.
        """
        count = len(self._links)
        new = np.setdiff1d(
            _unique_pairs(np.ascontiguousarray(routes, np.int32), count),
            self._known,
            assume_unique=True,
        )
        if not len(new):
            return None
        known = np.sort(np.concatenate([self._known, new]))
        waiting, waited = np.divmod(known, count)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(waiting, minlength=count), out=offsets[1:])
        circle = circle_in(offsets, waited)
        if circle is None:
            self._known = known
        return circle

    def refuse_circles(self, routes: Ints32) -> None:
        """As `add`.

        Raises:
            TopologyError: a circle, with the names of its links.
        """
        circle = self.add(routes)
        if circle is not None:
            raise TopologyError(deadlock(self._links, circle), "routes")


def deadlock(links: Links, circle: Sequence[int]) -> Problem:
    """What to tell the user about a circle of links."""
    names = " -> ".join(links.name(link) for link in [*circle, circle[0]])
    return Problem(
        "network",
        "routes must not have links wait for each other in a circle: their buffers can fill up and"
        " never empty (deadlock)",
        names,
        "Route without circles, as up and then down in a tree, or use a network without buffers"
        " (kind: fluid).",
    )


def circle_in(offsets: Ints64, following: Ints64 | Ints32) -> list[int] | None:
    """Numbers of which each is followed by the next, and the last by the first; None if there is no
    such circle. Those that follow number k are from ``offsets[k]`` to ``offsets[k + 1]`` in
    ``following``."""
    count = len(offsets) - 1
    left = np.bincount(following, minlength=count)
    _take_away(offsets, following.astype(np.int64), left, np.empty(count, np.int64))
    if not left.any():
        return None
    # each number that is left follows another one that is
    first = np.repeat(np.arange(count), np.diff(offsets))
    among = np.flatnonzero((left[first] > 0) & (left[following] > 0))
    before = dict(zip(following[among].tolist(), first[among].tolist(), strict=True))
    number = int(np.flatnonzero(left)[0])
    path: dict[int, None] = {}
    while number not in path:
        path[number] = None
        number = before[number]
    steps = list(path)
    circle = steps[steps.index(number) :][::-1]
    least = circle.index(min(circle))
    return circle[least:] + circle[:least]


def _unique_pairs(routes: Ints32, count: int) -> Ints64:
    """Neighbouring links of the routes, each pair once, as first * count + second; in no order."""
    table = np.full(1 << 16, -1, np.int64)
    while not _collect_pairs(routes, count, table):
        table = np.full(4 * len(table), -1, np.int64)
    return table[table >= 0]


@entry
def _collect_pairs(routes: Ints32, count: int, table: Ints64) -> bool:
    """Enter the pairs into a hash table, empty where it is -1; False if it gets more than half
    full."""
    mask = table.shape[0] - 1
    room = table.shape[0] >> 1
    for i in range(routes.shape[0]):
        for hop in range(routes.shape[1] - 1):
            if routes[i, hop + 1] < 0:
                break
            key = np.int64(routes[i, hop]) * count + routes[i, hop + 1]
            place = (key * 0x9E3779B1 >> 7) & mask
            while table[place] >= 0 and table[place] != key:
                place = (place + 1) & mask
            if table[place] < 0:
                if room == 0:
                    return False
                room -= 1
                table[place] = key
    return True


@entry
def _take_away(offsets: Ints64, waited: Ints64, waits: Ints64, stack: Ints64) -> None:
    """Take away, again and again, the links for which none waits.

    ``waits``: (links,) how many links wait for each; afterwards how many still do, 0 for those
    taken away. ``stack``: (links,) scratch.
    """
    top = 0
    for link in range(waits.shape[0]):
        if waits[link] == 0:
            stack[top] = link
            top += 1
    while top > 0:
        top -= 1
        link = stack[top]
        for k in range(offsets[link], offsets[link + 1]):
            waits[waited[k]] -= 1
            if waits[waited[k]] == 0:
                stack[top] = waited[k]
                top += 1

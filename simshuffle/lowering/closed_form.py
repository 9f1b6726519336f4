"""Seconds of flows as a formula of their bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simshuffle.allreduce import AllreduceFlows
from simshuffle.spec.arrays import Flags, Floats, Ints32

NO_BUS, INSIDE, BETWEEN = 0, 1, 2
"""What bounds a flow: a link, or the bus bandwidth inside hosts or between them."""


class ClosedForm:
    """How long flows take that begin together, of any number of bytes.

    A flow lasts its delay and then its bytes over its cap, or over the slowest link of its route;
    and no shorter than its most loaded link is busy with the flows of its step: from the first of
    their delays on, for all of their bytes over its capacity. Steps follow one another as their
    edges say. Of flows without edges this is a lower bound of what they take on a fluid network,
    and what they do take where each step of them has one bottleneck.

    All but delays is in proportion to the bytes, so flows are laid out once, for one byte.

    Args:
        flows: of one byte.
        between: (flows,) whether each is bounded by the bus bandwidth between hosts.
        bus: (flows,) its bytes over its cap, if the bus bandwidth were 1 byte/s.
        routes: (flows, hops) the links of each, padded with -1; None leaves them out.
        capacity: (links,) bytes/s.
    """

    def __init__(
        self,
        flows: AllreduceFlows,
        between: Flags,
        bus: Floats,
        routes: Ints32 | None = None,
        capacity: Floats | None = None,
    ) -> None:
        self._flows, self._between, self._bus = flows, between, bus
        delay = np.asarray(flows.delay, np.float64)
        self._slowest = np.zeros(len(flows))
        self._begin, self._busy = delay, np.zeros(len(flows))
        links: list[tuple[Floats, Floats]] = []
        if routes is not None and capacity is not None:
            self._slowest, self._begin, self._busy, used = _loads(flows, routes, capacity)
            links = [used]
        self._rows: list[tuple[float, float, int]] | None = None
        if not len(flows.edge_to):
            self._rows = [
                *_largest(delay[~between], bus[~between], INSIDE),
                *_largest(delay[between], bus[between], BETWEEN),
                *_largest(delay, self._slowest, NO_BUS),
            ]
            for begin, busy in links:
                self._rows += _largest(begin, busy, NO_BUS)

    def seconds(self, nbytes: float, inside: float, between: float) -> float:
        """Time (s) of flows of ``nbytes`` bytes for each for which they are laid out; ``inside``
        and ``between`` are bus bandwidths inside hosts and between them (bytes/s)."""
        if self._rows is not None:
            over = (1.0, inside, between)
            return max(delay + nbytes * busy / over[bus] for delay, busy, bus in self._rows)
        bus = np.where(self._between, self._bus / between, self._bus / inside)
        alone = self._flows.delay + nbytes * np.maximum(bus, self._slowest)
        np.maximum(alone, self._begin + nbytes * self._busy, out=alone)
        return replace(self._flows, nbytes=alone, delay=0.0).seconds(np.ones(len(alone)))


def _loads(
    flows: AllreduceFlows, routes: Ints32, capacity: Floats
) -> tuple[Floats, Floats, Floats, tuple[Floats, Floats]]:
    """What links do to flows.

    Returns:
        (flows,) s that the bytes of each take over its slowest link; (flows,) the first delay of
        those on its most loaded one in its step, and s that this is busy; and the last two of every
        link and step.
    """
    row, hop = np.nonzero(routes >= 0)
    link = routes[row, hop].astype(np.int64)
    steps = np.asarray(flows.step)
    several = bool(steps[-1] > 0)
    if several:
        used, place = np.unique(steps[row] * len(capacity) + link, return_inverse=True)
        of = capacity[used % len(capacity)]
    else:
        present = np.zeros(len(capacity), bool)
        present[link] = True
        used = np.flatnonzero(present)
        number = np.cumsum(present) - 1
        place, of = number[link], capacity[used]
    busy = np.bincount(place, flows.nbytes[row], len(used)) / of
    delay = np.asarray(flows.delay, np.float64)
    begin = np.full(len(used), delay.min())
    if begin[0] < delay.max():
        begin[:] = np.inf
        np.minimum.at(begin, place, delay[row])
    slowest = np.full(len(flows), np.inf)
    np.minimum.at(slowest, row, of[place])
    most, first = np.zeros(len(flows)), delay
    if several:
        # the links of each flow by what they are busy, the busiest last
        order = np.lexsort([busy[place], row])
        last = order[np.flatnonzero(np.diff(row[order], append=-1))]
        most, first = busy[place[last]], begin[place[last]]
    return flows.nbytes / slowest, first, most, (begin, busy)


def _largest(delay: Floats, busy: Floats, bus: int) -> list[tuple[float, float, int]]:
    """Those of ``delay + n * busy`` that are largest for some n: by falling ``busy`` each with a
    longer delay than all before."""
    order = np.lexsort([-delay, -busy])
    longest = np.maximum.accumulate(delay[order])
    kept = order[np.flatnonzero(np.diff(longest, prepend=-1.0) > 0)]
    return [(d, b, bus) for d, b in zip(delay[kept].tolist(), busy[kept].tolist(), strict=True)]

"""Flows that wait for others: their order, level by level."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import SimulationError
from simshuffle.network.flows import Floats, Flows

Longs = NDArray[np.int64]


def successors(flows: Flows) -> tuple[Longs, NDArray[np.int32]]:
    """For each flow those that wait for it: (flows + 1,) offsets into the second array, (edges,)
    int32."""
    offsets = np.zeros(len(flows) + 1, np.int64)
    np.cumsum(np.bincount(flows.after_from, minlength=len(flows)), out=offsets[1:])
    return offsets, flows.after_to[np.argsort(flows.after_from, kind="stable")]


def latest_ends(flows: Flows, seconds: Floats) -> Floats:
    """(flows,) s: end of each flow if it took ``seconds`` from its post on: the critical path.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    ends = flows.posted + seconds
    if not len(flows.after_to):
        return ends
    offsets, following = successors(flows)
    waiting = np.bincount(flows.after_to, minlength=len(flows))
    posted = flows.posted.copy()  # the flows stay as they are, for another model
    level = np.flatnonzero(waiting == 0)
    reached = len(level)
    while len(level):
        counts = offsets[level + 1] - offsets[level]
        place = np.repeat(offsets[level] - np.cumsum(counts) + counts, counts) + np.arange(
            counts.sum()
        )
        to = following[place]
        np.maximum.at(posted, to, np.repeat(ends[level], counts))
        level, edges = np.unique(to, return_counts=True)
        waiting[level] -= edges  # not over all flows: a long chain has as many levels as flows
        level = level[waiting[level] == 0]
        ends[level] = posted[level] + seconds[level]
        reached += len(level)
    if reached < len(flows):
        raise SimulationError(
            f"{len(flows) - reached} flows wait for each other in a circle and never start"
        )
    return ends

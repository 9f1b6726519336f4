"""Lanes: where what overlaps is put side by side."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def lanes(begin: Ints, end: Ints) -> Ints:
    """(n,) the lane of each slice from ``begin`` to ``end``, from 0: the first that is free, so
    that those of a lane follow one another."""
    out = np.zeros(len(begin), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    opened = 0
    for place in np.lexsort((end, begin)).tolist():
        at = int(begin[place])
        while busy and busy[0][0] <= at:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, opened = opened, opened + 1
        out[place] = lane
        heapq.heappush(busy, (int(end[place]), lane))
    return out

"""Spans of time, and how much of another they cover."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Span = tuple[int, int]
"""From, until: ns."""


def covered(spans: Sequence[Span]) -> Callable[[int, int], float]:
    """What gives of any time from start to end how much of it is within some spans (ns), which may
    overlap."""
    ends = list[Span]()
    for start, end in sorted(spans):
        if ends and start <= ends[-1][1]:
            ends[-1] = (ends[-1][0], max(ends[-1][1], end))
        else:
            ends.append((start, end))
    if not ends:
        return lambda start, end: 0.0
    first = ends[0][0]  # moments are told from it: as floats they would not be whole
    moments = np.array([(start - first, end - first) for start, end in ends], np.float64)
    lengths = np.diff(moments, axis=1)[:, 0]
    done = np.cumsum(lengths)
    within = np.stack([done - lengths, done], axis=1)

    def length(start: int, end: int) -> float:
        found = np.interp([start - first, end - first], moments.ravel(), within.ravel())
        return float(found[1] - found[0])

    return length

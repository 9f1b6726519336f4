"""Measure how much of a time is covered by spans of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Span = tuple[int, int]
"""Start and end, ns."""


def coverage_of(spans: Sequence[Span]) -> Callable[[int, int], float]:
    """Return a function that gives how much of the time from start to end some spans
    cover, ns.

    Args:
        spans: in any order; they may overlap, and such a time counts once. Without any,
            nothing is covered.
    """
    merged = list[Span]()
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    if not merged:
        return lambda start, end: 0.0

    # moments are counted from the first: as floats they would not be whole
    origin = merged[0][0]
    # (spans, 2): start and end of each, and the covered ns before each of these moments
    moments = np.array(
        [(start - origin, end - origin) for start, end in merged], np.float64
    )
    lengths = np.diff(moments, axis=1)[:, 0]
    covered_to_end = np.cumsum(lengths)
    covered_until = np.stack([covered_to_end - lengths, covered_to_end], axis=1)

    def covered_between(start: int, end: int) -> float:
        ends = [start - origin, end - origin]
        covered = np.interp(ends, moments.ravel(), covered_until.ravel())
        return float(covered[1] - covered[0])

    return covered_between

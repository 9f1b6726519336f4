"""Searches for the largest number of samples that adds no more than is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

FIRST, STRIDE = 4, 16
"""Samples of a rank that are tried first; and, while all numbers tried are hidden, the
most times as many that are tried next.
"""


def search_exactly(
    added: Callable[[int], float],
    tolerance: float,
    max_number: int,
    resolution: float = 0.0,
) -> tuple[int, bool]:
    """Search the largest number up to ``max_number`` that adds at most ``tolerance``.

    What is added is taken to be about in proportion to the number: the search goes on
    where the line through the results reaches the tolerance. Every third step halves
    the range. Without a ``resolution``, the number is hidden and the next one is not;
    twice the next one is tried too. If hiding is not monotone, the border lies below
    all numbers that were found not to be hidden while searching.

    Args:
        added: simulates a number, and returns what it adds, in the unit of
            ``tolerance``.
        tolerance: the most that counts as hidden.
        max_number: at least 1.
        resolution: share of the number to which it is searched; 0 for to the last one.

    Returns:
        The number, 0 if 1 adds too much; and whether all numbers tried agree: smaller
        ones are hidden, and larger ones are not.
    """
    seconds_of_number = {0: 0.0}
    low = 0
    high = max_number + 1
    number = min(FIRST, max_number)
    while high - low > max(1, int(resolution * low)):
        seconds_of_number[number] = added(number)
        low, high = (
            (number, high) if seconds_of_number[number] <= tolerance else (low, number)
        )
        number = next_number(seconds_of_number, tolerance, low, high, max_number)
    if not resolution and 2 * high <= max_number and 2 * high not in seconds_of_number:
        seconds_of_number[2 * high] = added(2 * high)
    return low, is_monotone(seconds_of_number, tolerance, low)


def is_monotone(
    seconds_of_number: Mapping[int, float], tolerance: float, border: int
) -> bool:
    """Return whether exactly the numbers up to ``border`` add at most ``tolerance``."""
    return all(
        (value <= tolerance) == (number <= border)
        for number, value in seconds_of_number.items()
    )


def next_number(
    seconds_of_number: Mapping[int, float],
    tolerance: float,
    low: int,
    high: int,
    max_number: int,
) -> int:
    """Return the number to try next.

    Between ``low``, which is hidden, and ``high``, which is not: by the secant, or the
    middle every third time. If ``high`` is above ``max_number``, all numbers tried are
    hidden: 2 to `STRIDE` times ``low``, at most ``max_number``.
    """
    if high > max_number:
        reached = (
            low * tolerance / seconds_of_number[low]
            if low and seconds_of_number[low] > 0
            else STRIDE * low
        )
        return min(max(2 * low, min(int(reached), STRIDE * low), 1), max_number)
    if len(seconds_of_number) % 3 == 0:
        return (low + high) // 2
    slope = (seconds_of_number[high] - seconds_of_number[low]) / (high - low)
    return min(
        max(int(low + (tolerance - seconds_of_number[low]) / slope), low + 1), high - 1
    )


@dataclass(frozen=True)
class ExchangePoint:
    """The time that an exchange adds to the epoch."""

    over: float  # s; below 0 where the epoch with the exchange is shorter
    half_width: (
        float  # s, half of its 95 % interval; 0 where all iterations were simulated
    )


@dataclass(frozen=True)
class Border:
    """The number of samples of a rank that are hidden."""

    samples: int
    # low, high: an interval of that number, by the intervals of the epochs and the distance to the
    # nearest simulated number
    low: int
    high: int
    added: float  # s that they add; interpolated where they were not simulated
    steady: bool  # whether all numbers tried agree: smaller ones are hidden, larger ones not
    # a simulated number that is no longer hidden; else the largest simulated one. None where all
    # samples are hidden
    tried: int | None


RESOLUTION = 0.01
"""Share of the hidden samples to which a search that is not exact finds their number."""
MOST_TRIALS = 8
"""Simulated numbers after which an approximate search ends."""
BEYOND, BEYOND_LINEAR = 0.5, 0.1
"""Share of the distance to the nearest simulated number by which an answer may be off;
and where samples are so few that each adds as much as another.
"""


def approach_border(
    simulated: Callable[[int], ExchangePoint],
    allowed: float,
    max_number: int,
    start: int,
    *,
    affordable: Callable[[int], bool],
    linear: int = 0,
) -> Border:
    """Find about how many samples add no more than ``allowed`` (s), from ``start`` on.

    The search ends when the number is known to `RESOLUTION`, the last simulated epoch
    is as long as allowed within its interval, the border is within ``linear``, more
    than `MOST_TRIALS` points (0 included) are known, or the next number is not
    ``affordable``. The answer lies on the line between the simulated numbers around it;
    above all of them, on the line through 0. ``steady`` leaves out points whose
    interval holds ``allowed``; ``added`` is at most ``allowed``.

    Args:
        simulated: simulates a number of samples.
        allowed: s, 0 or more.
        max_number: the most samples.
        start: the first number, from 1 to ``max_number``; simulated without asking.
        affordable: whether one more number may be simulated.
        linear: samples up to which each adds as much as another.
    """
    points = {0: ExchangePoint(0.0, 0.0)}
    number = start
    while True:
        points[number] = simulated(number)
        low, high = _bracket(points, allowed, max_number)
        step = max(1, int(RESOLUTION * low))
        estimate = _interpolate_number(points, allowed, low, high, max_number)
        is_close = abs(points[number].over - allowed) <= points[number].half_width
        is_linear = low == 0 and high <= linear
        is_known = low == max_number or high - low <= step or is_close or is_linear
        if is_known or len(points) > MOST_TRIALS:
            break
        number = min(max(round(estimate), low + 1), high - 1, max_number)
        if (
            number - low < step
        ):  # the line ends at the number that is hidden: try the next ones
            number = min(low + step, high - 1, max_number)
        elif high - number < step:
            number = max(high - step, low + 1)
        if not affordable(number):
            break
    samples = (
        max_number if low == max_number else int(min(max(estimate, low), high - 1))
    )
    beyond = BEYOND_LINEAR if is_linear else BEYOND
    lowest_number, highest_number = number_interval(
        samples, points, allowed, max_number, beyond
    )
    tried = (
        None if samples == max_number else high if high <= max_number else max(points)
    )
    decided = {
        number: point.over
        for number, point in points.items()
        if abs(point.over - allowed) > point.half_width
    }
    return Border(
        samples,
        lowest_number,
        highest_number,
        added=min(allowed, float(np.interp(samples, *_points_by_number(points)))),
        steady=is_monotone(decided, allowed, samples),
        tried=tried,
    )


def _points_by_number(
    points: Mapping[int, ExchangePoint],
) -> tuple[list[int], list[float]]:
    """Return the simulated numbers, ascending, and the s that each adds."""
    numbers = sorted(points)
    return numbers, [points[number].over for number in numbers]


def _bracket(
    points: Mapping[int, ExchangePoint], allowed: float, max_number: int
) -> tuple[int, int]:
    """Return the largest hidden number below the smallest unhidden one, and the latter.

    The latter is ``max_number`` + 1 if no point adds more than ``allowed``.
    """
    high = min(
        (n for n, point in points.items() if point.over > allowed),
        default=max_number + 1,
    )
    return max(n for n in points if n < high), high


def _interpolate_number(
    points: Mapping[int, ExchangePoint],
    allowed: float,
    low: int,
    high: int,
    max_number: int,
) -> float:
    """Return the number (not rounded) that adds ``allowed``, on a line.

    The line goes from ``low`` to ``high``.

    If no number is known to add too much, the line goes through 0 and ``low``. It ends
    at ``max_number``, which is returned if ``low`` adds nothing.
    """
    low_over = points[low].over
    if high <= max_number:
        return low + (high - low) * (allowed - low_over) / (
            points[high].over - low_over
        )
    return min(low * allowed / low_over, max_number) if low_over > 0.0 else max_number


def number_interval(
    samples: int,
    points: Mapping[int, ExchangePoint],
    allowed: float,
    max_number: int,
    beyond: float = BEYOND,
) -> tuple[int, int]:
    """Return the lowest and highest number that the answer ``samples`` may be.

    They follow from the interval of the nearest simulated point, and from ``beyond``,
    the share of the distance to it by which the answer may be off. If ``samples`` is
    ``max_number``, that distance counts only where the point is hidden within its
    interval. Without a simulated point above 0 both are ``samples``; if the nearest
    point adds nothing and ``samples`` is less, they are 0 and ``max_number``.
    """
    nearest = min((n for n in points if n), key=lambda n: abs(n - samples), default=0)
    if not nearest:
        return samples, samples
    point = points[nearest]
    if samples == max_number:
        longest = point.over + point.half_width
        if longest > allowed:
            return int(nearest * allowed / longest), max_number
        return math.floor(max_number - beyond * (max_number - nearest)), max_number
    slope = point.over / nearest
    if slope <= 0.0:
        return 0, max_number
    deviation = math.hypot(point.half_width / slope, beyond * (nearest - samples))
    return max(math.floor(samples - deviation), 0), min(
        math.ceil(samples + deviation), max_number
    )

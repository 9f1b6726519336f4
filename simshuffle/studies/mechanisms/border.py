"""Searches for the largest number of samples that adds no more than is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

FIRST, STRIDE = 4, 16
"""Samples of a rank that are tried first, and how many times as many as are hidden
next.
"""


def search_exactly(
    added: Callable[[int], float],
    tolerance: float,
    max_number: int,
    resolution: float = 0.0,
) -> tuple[int, bool]:
    """Search the largest number up to ``max_number`` that adds at most ``tolerance``.

    Returned are the number and true if all that was tried agrees: less is hidden, and
    more is not. ``max_number`` is at least 1; 0 is returned if 1 adds too much. What is
    added is about in proportion to the number, so the search goes on where the line
    through what is known reaches the tolerance; every third step halves what is left,
    so that it ends soon whatever is added. In the end the number is known to be hidden
    and the next one not to be (or, with a ``resolution``, one that is larger by that
    share); without one, twice that one is tried too. Were hiding not monotone, a border
    is found all the same, below everything that is known not to be hidden.
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
    """Return whether what each number adds is within the tolerance up to ``border``,
    and not above.
    """
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

    It is between one that is hidden and one that is not, by the secant, or the middle
    every third time; above all hidden ones 2 to `STRIDE` times as many.
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

    over: float  # s
    half_width: (
        float  # s, half of its 95 % interval; 0 where all iterations were simulated
    )


@dataclass(frozen=True)
class Border:
    """The number of samples of a rank that are hidden."""

    samples: int
    # low, high: samples, between which that number is by the intervals of the epochs
    low: int
    high: int
    added: float  # s that they add
    steady: bool  # whether all that was tried agrees
    # samples that are no longer hidden, or hardly; None where all are hidden
    tried: int | None


RESOLUTION = 0.01
"""Share of the hidden samples to which a search that is not exact finds their number."""
MOST_TRIALS = 8
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
    """Find about how many samples add no more than ``allowed`` (s), from ``start`` on;
    up to ``linear`` samples each adds as much as another.

    The search ends when the number is known to `RESOLUTION`, the last simulated epoch
    is as long as allowed within its interval, the border is within ``linear``, more
    than `MOST_TRIALS` points (0 included) are known, or the next number is not
    ``affordable``; ``start`` is simulated without asking. The answer lies on the line
    between the simulated numbers around it.
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
    """Return the border of the simulated points: the last hidden one and the next.

    The first that adds more than allowed is the upper one, ``max_number`` + 1 if none
    does.
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
    """Return the number that adds as much as is allowed, on a line through its
    neighbours.

    Above all simulated numbers the line goes through 0, up to ``max_number``.
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
    """Return the numbers between which the answer ``samples`` is, by the intervals of
    the simulated points and the distance to the nearest one.
    """
    nearest = min((n for n in points if n), key=lambda n: abs(n - samples), default=0)
    if not nearest:
        return samples, samples
    point = points[nearest]
    if samples == max_number:
        longest = point.over + point.half_width
        return (
            int(max_number * allowed / longest) if longest > allowed else max_number
        ), max_number
    slope = point.over / nearest
    if slope <= 0.0:
        return 0, max_number
    deviation = math.hypot(point.half_width / slope, beyond * (nearest - samples))
    return max(math.floor(samples - deviation), 0), min(
        math.ceil(samples + deviation), max_number
    )

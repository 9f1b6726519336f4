"""Searches for the largest number of samples that adds no more than is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

FIRST, STRIDE = 4, 16
"""Samples of a rank that are tried first, and how many times as many as are hidden next."""


def largest(
    added: Callable[[int], float], tolerance: float, most: int, resolution: float = 0.0
) -> tuple[int, bool]:
    """The largest number up to ``most`` (at least 1) that adds no more than ``tolerance`` while no
    smaller one that was tried adds more, and whether all that was tried agrees: less is hidden, and
    more is not. What is added is about in proportion to the number, so the search goes on where the
    line through what is known reaches the tolerance; every third step halves what is left, so that
    it ends soon whatever is added. In the end the number is known to be hidden and the next one not
    to be (or, with a ``resolution``, one that is larger by that share), and twice that one is tried
    too. Were hiding not monotone, a border is found all the same, below everything that is known
    not to be hidden."""
    known = {0: 0.0}
    low, high, number = 0, most + 1, min(FIRST, most)
    while high - low > max(1, int(resolution * low)):
        known[number] = added(number)
        low, high = (number, high) if known[number] <= tolerance else (low, number)
        number = next_number(known, tolerance, low, high, most)
    if not resolution and 2 * high <= most and 2 * high not in known:
        known[2 * high] = added(2 * high)
    return low, agree(known, tolerance, low)


def agree(known: Mapping[int, float], tolerance: float, border: int) -> bool:
    """Whether what each number adds is within the tolerance up to ``border``, and not above."""
    return all((value <= tolerance) == (number <= border) for number, value in known.items())


def next_number(
    known: Mapping[int, float], tolerance: float, low: int, high: int, most: int
) -> int:
    """The number to try next, between one that is hidden and one that is not, or too many."""
    if high > most:
        reached = low * tolerance / known[low] if low and known[low] > 0 else STRIDE * low
        return min(max(2 * low, min(int(reached), STRIDE * low), 1), most)
    if len(known) % 3 == 0:
        return (low + high) // 2
    slope = (known[high] - known[low]) / (high - low)
    return min(max(int(low + (tolerance - known[low]) / slope), low + 1), high - 1)


@dataclass(frozen=True)
class ExchangePoint:
    """What an exchange adds to the epoch."""

    over: float  # s
    half_width: float  # s, half of its 95 % interval; 0 where all iterations were simulated


@dataclass(frozen=True)
class Border:
    """How many samples of a rank are hidden."""

    samples: int
    # low, high: samples, between which that number is by the intervals of the epochs
    low: int
    high: int
    added: float  # s that they add
    steady: bool  # whether all that was tried agrees
    tried: int | None  # samples that are no longer hidden, or hardly; None where all are hidden


RESOLUTION = 0.01
"""Share of the hidden samples to which a search that is not exact finds their number."""
MOST_TRIALS = 8
BEYOND, BEYOND_LINEAR = 0.5, 0.1
"""Share of the distance to the nearest simulated number by which an answer may be off; and where
samples are so few that each adds as much as another."""


def approach(
    simulated: Callable[[int], ExchangePoint],
    allowed: float,
    most: int,
    start: int,
    affordable: Callable[[int], bool],
    linear: int = 0,
) -> Border:
    """Find about how many samples add no more than ``allowed`` (s), from ``start`` on; up to
    ``linear`` samples each adds as much as another.

    The search ends when the number is known to `RESOLUTION`, a simulated epoch is as long as
    allowed within its interval, or no further simulation is ``affordable``. The answer lies on the
    line between the simulated numbers around it.
    """
    known = {0: ExchangePoint(0.0, 0.0)}
    number = start
    while True:
        known[number] = simulated(number)
        low, high = _around(known, allowed, most)
        step = max(1, int(RESOLUTION * low))
        estimate = _estimate(known, allowed, low, high, most)
        is_close = abs(known[number].over - allowed) <= known[number].half_width
        is_linear = low == 0 and high <= linear
        is_known = low == most or high - low <= step or is_close or is_linear
        if is_known or len(known) > MOST_TRIALS:
            break
        number = min(max(round(estimate), low + 1), high - 1, most)
        if number - low < step:  # the line ends at the number that is hidden: try the next ones
            number = min(low + step, high - 1, most)
        elif high - number < step:
            number = max(high - step, low + 1)
        if not affordable(number):
            break
    samples = most if low == most else int(min(max(estimate, low), high - 1))
    beyond = BEYOND_LINEAR if is_linear else BEYOND
    fewest, largest_number = spread(samples, known, allowed, most, beyond)
    tried = None if samples == most else high if high <= most else max(known)
    decided = {
        number: point.over
        for number, point in known.items()
        if abs(point.over - allowed) > point.half_width
    }
    return Border(
        samples,
        fewest,
        largest_number,
        added=min(allowed, float(np.interp(samples, *_line(known)))),
        steady=agree(decided, allowed, samples),
        tried=tried,
    )


def _line(known: Mapping[int, ExchangePoint]) -> tuple[list[int], list[float]]:
    numbers = sorted(known)
    return numbers, [known[number].over for number in numbers]


def _around(known: Mapping[int, ExchangePoint], allowed: float, most: int) -> tuple[int, int]:
    """The largest number below which all that was tried is hidden, and the next that is not."""
    high = min((n for n, point in known.items() if point.over > allowed), default=most + 1)
    return max(n for n in known if n < high), high


def _estimate(
    known: Mapping[int, ExchangePoint], allowed: float, low: int, high: int, most: int
) -> float:
    """The number that adds as much as is allowed, on the line through what is known around it."""
    below = known[low].over
    if high <= most:
        return low + (high - low) * (allowed - below) / (known[high].over - below)
    return min(low * allowed / below, most) if below > 0.0 else most


def spread(
    samples: int,
    known: Mapping[int, ExchangePoint],
    allowed: float,
    most: int,
    beyond: float = BEYOND,
) -> tuple[int, int]:
    """Numbers between which the answer ``samples`` is, by the intervals of what was simulated and
    the distance to it."""
    nearest = min((n for n in known if n), key=lambda n: abs(n - samples), default=0)
    if not nearest:
        return samples, samples
    point = known[nearest]
    if samples == most:
        longest = point.over + point.half_width
        return (int(most * allowed / longest) if longest > allowed else most), most
    slope = point.over / nearest
    if slope <= 0.0:
        return 0, most
    off = math.hypot(point.half_width / slope, beyond * (nearest - samples))
    return max(math.floor(samples - off), 0), min(math.ceil(samples + off), most)

"""Steady epochs from a window: what the iterations that were simulated say of the whole epoch, and
how well that is known.

After the first iterations, in which loaders fill up, and before the last ones, in which they run
empty, the iterations of an epoch are alike: a stationary series, whose mean stands for those that
are left out. Its variance is that of means of batches that are long enough to be uncorrelated, with
Student's t (A. M. Law, "Simulation Modeling and Analysis", 5th ed., 2015, section 9.5.3).

Where ranks wait for their loaders, the workers of each have begun together and deliver together:
one long iteration is followed by as many short ones as there are other workers. There the series is
one of such cycles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.results.timeline import EXCLUSIVE
from simshuffle.scenario.workload import Loader
from simshuffle.spec.late import special

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
FEWEST_BATCHES = 6
"""Means that an interval rests on at least: fewer say little of their own variance."""
LAG_LIMIT = 2.0
"""Correlation of batch means with the next that is taken for noise, in its own standard error."""
SETTLED = 0.99
"""Confidence at which the two halves of a window must not differ."""
MARGIN = 1.3
"""How many times the iterations that a tolerance needs are simulated next, since the variance that
this rests on is an estimate."""
BEGIN = 2
"""Iterations at the beginning of an epoch that are not like the others, where loaders keep up."""
LOADING = [EXCLUSIVE.index("io"), EXCLUSIVE.index("decode")]


@dataclass(frozen=True)
class Window:
    """What the simulated iterations of an epoch say of all of them.

    Attributes:
        iterations: of the epoch.
        simulated: of them.
        first, last: of those simulated, from 1, the ones whose mean stands for those that were left
            out; 0 if none were.
        half_width: of the 95 % interval of the epoch's duration (s).
        settled: whether the two halves of the steady iterations are alike.
        mean_half_width: the same of the mean of a steady iteration, the largest of all phases, as a
            share of the iteration.
    """

    iterations: int
    simulated: int
    first: int = 0
    last: int = 0
    half_width: float = 0.0
    settled: bool = True
    mean_half_width: float = 0.0

    @property
    def steady(self) -> int:
        """How many iterations stand for others."""
        return self.last - self.first + 1 if self.last else 0

    def needed(self, tolerance: float) -> int:
        """Iterations to simulate next, if these do not do."""
        more = 0.0
        if math.isfinite(self.mean_half_width):
            more = MARGIN * self.steady * (self.mean_half_width / tolerance) ** 2
        return math.ceil(max(2.0 * self.simulated, self.simulated - self.steady + more))


def window_of(seconds: Floats, iterations: int, loader: Loader, tolerance: float) -> Window:
    """What a window says.

    Args:
        seconds: (n, phases) s of every simulated iteration, mean over ranks, as from
            `simshuffle.results.timeline.seconds_by_iteration`; n at least 8.
        iterations: of the whole epoch, more than n.
        loader: of each rank.
        tolerance: of time.
    """
    simulated = len(seconds)
    first, last, cycle = steady_range(seconds, loader, tolerance)
    part = seconds[first:last]
    if len(part) < cycle * FEWEST_BATCHES:
        return Window(iterations, simulated, settled=False, mean_half_width=math.inf)
    lengths = part.sum(axis=1)
    whole = MeanError.of(lengths, cycle)
    phases = [MeanError.of(column, cycle) for column in part.T if column.any()]
    left_out = iterations - simulated
    # of the mean that stands for others, and of how the epoch itself strays about its own mean
    spread = math.sqrt((left_out**2 / len(part) + iterations) * whole.variance)
    return Window(
        iterations=iterations,
        simulated=simulated,
        first=first + 1,
        last=last,
        half_width=whole.quantile * spread,
        settled=whole.settled,
        mean_half_width=max(each.half_width for each in (whole, *phases)) / float(lengths.mean()),
    )


def steady_range(seconds: Floats, loader: Loader, tolerance: float) -> tuple[int, int, int]:
    """The steady iterations [first, last), and how many make a cycle; see `window_of`.

    The last one never belongs to them, for its batch may be smaller. Where ranks wait for their
    loaders for more than half the tolerance, the batches of the prefetching at the beginning do not
    either, nor the last batches of all workers, which nothing follows.
    """
    middle = seconds[BEGIN:-1]
    if middle[:, LOADING].sum() <= tolerance / 2.0 * middle.sum():
        return BEGIN, len(seconds) - 1, 1
    cycle = min(loader.workers, loader.prefetch)
    first = max(loader.prefetch, BEGIN)
    last = len(seconds) - 1 - cycle
    return first, first + max(last - first, 0) // cycle * cycle, cycle


@dataclass(frozen=True)
class MeanError:
    """How well the mean of a stationary series of ``count`` values is known.

    Attributes:
        variance: of a value, as if values were not correlated: ``count`` times that of the mean.
        quantile: of Student's t, for the interval.
        settled: whether the two halves differ by no more than this explains.
    """

    count: int
    variance: float
    quantile: float
    settled: bool

    @property
    def half_width(self) -> float:
        """Of the interval of the mean."""
        return self.quantile * math.sqrt(self.variance / self.count)

    @classmethod
    def of(cls, values: Floats, cycle: int = 1) -> MeanError:
        """From means of batches of whole cycles: the shortest ones that are not correlated; if
        there are none, the longest, with their correlation."""
        count = len(values)
        length = cycle
        while True:
            batches = count // length
            means = values[count - batches * length :].reshape(batches, length).mean(axis=1)
            variance = length * float(means.var(ddof=1))
            lag = _lag_correlation(means)
            if abs(lag) * math.sqrt(batches) <= LAG_LIMIT:
                break
            if count // (2 * length) < FEWEST_BATCHES:
                variance *= max(1.0, (1.0 + lag) / max(1.0 - lag, 0.1))
                break
            length *= 2
        half = count // 2
        apart = abs(float(values[:half].mean()) - float(values[half:].mean()))
        error = math.sqrt(variance * (1.0 / half + 1.0 / (count - half)))
        degrees = batches - 1
        return cls(
            count,
            variance,
            quantile=float(special.stdtrit(degrees, (1.0 + CONFIDENCE) / 2.0)),
            settled=apart <= float(special.stdtrit(degrees, (1.0 + SETTLED) / 2.0)) * error,
        )


def _lag_correlation(means: Floats) -> float:
    """Correlation of each value with the next; 0 where all are alike."""
    away = means - means.mean()
    total = float(away @ away)
    return float(away[:-1] @ away[1:]) / total if total > 0 else 0.0

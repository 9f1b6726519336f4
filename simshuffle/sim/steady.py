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
LAGS = 4
"""Correlations that are summed where they are negative: longer ones are noise."""
FIRST_CYCLES = 32
"""Cycles that are simulated first where ranks wait for their loaders: fewer seldom do."""
MOST_GROWTH = 4.0
"""How many times as long the next window is at most: a short one may mislead."""


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
            share of the iteration; infinite where they are too few to tell.
        cycle: iterations that belong together.
    """

    iterations: int
    simulated: int
    first: int = 0
    last: int = 0
    half_width: float = 0.0
    settled: bool = True
    mean_half_width: float = 0.0
    cycle: int = 1

    @property
    def steady(self) -> int:
        """How many iterations stand for others."""
        return self.last - self.first + 1 if self.last else 0

    def needed(self, tolerance: float) -> int:
        """Iterations to simulate next, if these do not do."""
        others = self.simulated - self.steady
        if math.isfinite(self.mean_half_width):
            more = MARGIN * self.steady * (self.mean_half_width / tolerance) ** 2
            most = MOST_GROWTH * self.simulated
        else:
            more = most = others + FIRST_CYCLES * self.cycle if self.cycle > 1 else 0.0
        return math.ceil(max(2.0 * self.simulated, min(others + more, most)))


def window_of(
    seconds: Floats, loading: Floats, iterations: int, loader: Loader, tolerance: float
) -> Window:
    """What a window says.

    Args:
        seconds: (n, phases) s of every simulated iteration, mean over ranks, as from
            `simshuffle.results.timeline.seconds_by_iteration`; n at least 8.
        loading: (n,) the longest that a rank waited for its loader (s).
        iterations: of the whole epoch, more than n.
        loader: of each rank.
        tolerance: of time.
    """
    simulated = len(seconds)
    first, last, cycle = steady_range(seconds.sum(axis=1), loading, loader, tolerance)
    part = seconds[first:last]
    if len(part) < cycle * FEWEST_BATCHES:
        unknown = math.inf
        return Window(iterations, simulated, settled=False, mean_half_width=unknown, cycle=cycle)
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
        cycle=cycle,
    )


def steady_range(
    lengths: Floats, loading: Floats, loader: Loader, tolerance: float
) -> tuple[int, int, int]:
    """The steady iterations [first, last), and how many make a cycle; see `window_of`.

    The last one never belongs to them, for its batch may be smaller. Where ranks wait for their
    loaders in the second half of the window for more than half the tolerance, the batches of the
    prefetching at the beginning do not either, nor the last batches of all workers, which nothing
    follows; where they do so in the first half only, it is the time in which loaders fill up.
    """
    middle, end = len(lengths) // 2, len(lengths) - 1

    def waits(low: int, high: int) -> bool:
        return bool(loading[low:high].sum() > tolerance / 2.0 * lengths[low:high].sum())

    if waits(middle, end):
        cycle = min(loader.workers, loader.prefetch)
        first = max(loader.prefetch, BEGIN)
        return first, first + max(end - cycle - first, 0) // cycle * cycle, cycle
    return (middle if waits(BEGIN, middle) else BEGIN), end, 1


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
            lags = _correlations(means, min(LAGS, batches // 4))
            significance = lags[0] * math.sqrt(batches)
            if significance < -LAG_LIMIT:  # what one batch takes longer, the next ones catch up
                variance *= max(1.0 + 2.0 * sum(lags), 2.0 / batches)
                break
            if significance <= LAG_LIMIT:
                break
            if count // (2 * length) < FEWEST_BATCHES:
                variance *= (1.0 + lags[0]) / max(1.0 - lags[0], 0.1)
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


def _correlations(means: Floats, most: int) -> list[float]:
    """Correlation of each value with the next, the one after that, ... up to ``most`` of them, at
    least one; 0 where all are alike."""
    away = means - means.mean()
    total = float(away @ away)
    return [
        float(away[:-k] @ away[k:]) / total if total > 0 else 0.0
        for k in range(1, max(most, 1) + 1)
    ]

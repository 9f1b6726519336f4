"""Steady epochs from a window: what the iterations that were simulated say of the whole
epoch, and how well that is known.

After the first iterations, in which loaders fill up, and before the last ones, in which
they run empty, the iterations of an epoch are alike: a stationary series, whose mean
stands for those that are left out. Its variance is that of means of batches that are
long enough to be uncorrelated, with Student's t (A. M. Law, "Simulation Modeling and
Analysis", 5th ed., 2015, section 9.5.3).

Where ranks wait for their loaders, the workers of each have begun together and deliver
together: one long iteration is followed by as many short ones as there are other
workers. There the series is one of such cycles.

What is not left out is simulated once, and might have come out otherwise: an epoch
begins when the last rank has its first batch, and has measured importance. That strays
about as much as the ranks differ in it (as the maximum of exponential variables does;
that of normal ones strays less).

Batches that are loaded ahead hide how long loading takes, until one takes longer than
they last. Whether that may happen in an epoch is told by the first batches, for which
all ranks wait.

Under Horovod what is ready a moment too late waits for the next cycle of the
coordinator. Few iterations do, and perhaps none of those simulated. What is not seen in
n of them happens in less than 3/n, at 95 % (J. A. Hanley and A. Lippman-Hand, "If
nothing goes wrong, is everything all right?", JAMA 249, 1983).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from simshuffle.job.plan.effort import BEGIN, FEWEST_BATCHES
from simshuffle.job.scenario.workload import Loader
from simshuffle.spec.arrays import Floats
from simshuffle.spec.late import special

CONFIDENCE = 0.95
CATCHES_UP = 2.0
"""Correlation of successive batch means, in standard errors. Below its negative, later
batches catch up what a slow batch lost; above one standard error batches are alike.
"""
MOST_ALIKE = 0.9
"""Correlation that is counted at most."""
FEWEST_DEGREES = 2.0
"""Degrees of freedom that are counted at least."""
ROUNDING = 1e-12
"""s that are not told apart."""
SETTLED = 0.99
"""Confidence at which the two halves of a window must not differ."""
MARGIN = 1.3
"""Ratio of the iterations of the next window to those that the tolerance needs by the
estimated variance.
"""
LAGS = 4
"""Correlations that are summed where they are negative: longer ones are noise."""
UNSEEN = 3.0
"""Times that something may have happened that was not seen, at 95 %."""
NORMAL = 1.96
"""Standard deviations of a 95 % interval."""
FIRST_CYCLES = 32
"""Cycles that are simulated first where ranks wait for their loaders: fewer seldom do."""
MOST_GROWTH = 4.0
"""Largest ratio of the next window's length to this one's; a short window may mislead."""


@dataclass(frozen=True)
class SteadyWindow:
    """The simulated iterations of an epoch, and how precisely they estimate the epoch."""

    iterations: int  # of the epoch
    simulated: int  # of them
    # first, last: of those simulated, from 1, the ones whose mean stands for those that were left
    # out; 0 if none were
    first: int = 0
    last: int = 0
    half_width: float = 0.0  # of the 95 % interval of the epoch's duration (s)
    settled: bool = True  # whether the two halves of the steady iterations are alike
    # half the 95 % interval of the mean of a steady iteration, the largest of all phases, as a
    # share of the iteration; infinite where they are too few to tell
    mean_half_width: float = 0.0
    cycle: int = 1  # iterations that belong together
    pass_known: bool = (
        True  # whether the end of an inference pass is known to the tolerance
    )
    # whether a batch may take longer to load than those ahead last, though none did
    late: bool = False
    longer: int = 0  # iterations to simulate next, where that is known; else 0

    @property
    def steady(self) -> int:
        """The number of iterations that stand for others; 0 if none do."""
        return self.last - self.first + 1 if self.last else 0

    def suffices(self, tolerance: float) -> bool:
        """Return whether the window tells the epoch to the share ``tolerance``.

        It must be settled, have no batch that may be late, and know the end of the
        inference pass.
        """
        is_known = self.pass_known and self.mean_half_width <= tolerance
        return is_known and self.settled and not self.late

    def next_size(self, tolerance: float) -> int:
        """Return how many iterations to simulate next, if this window does not suffice.

        ``longer`` if that is known; else at least twice as many, and `MOST_GROWTH`
        times at most. Where the half width is infinite, `FIRST_CYCLES` cycles, or twice
        as many if that is more. The number may exceed the epoch's iterations.
        ``tolerance`` is a share, more than 0.
        """
        if self.longer:
            return self.longer
        transient = self.simulated - self.steady
        if math.isfinite(self.mean_half_width):
            steady_needed = (
                MARGIN * self.steady * (self.mean_half_width / tolerance) ** 2
            )
            max_iterations = MOST_GROWTH * self.simulated
        else:
            steady_needed = max_iterations = (
                transient + FIRST_CYCLES * self.cycle if self.cycle > 1 else 0.0
            )
        return math.ceil(
            max(2.0 * self.simulated, min(transient + steady_needed, max_iterations))
        )


@dataclass(frozen=True)
class WindowSeconds:
    """The seconds of the iterations that were simulated of an epoch."""

    # (n, phases) s of every iteration, mean over ranks, as from
    # `simshuffle.report.timeline.seconds_by_iteration`; n at least 8
    seconds: Floats
    loading: Floats  # (n,) the longest that a rank waited for its loader (s)
    # (M,) s that each rank waited for its first batch; one 0 if unknown
    first_loading: Floats = field(default_factory=lambda: np.zeros(1))
    # how well it is known when an inference pass before it ends (s), see
    # `simshuffle.job.sim.served.OmittedBatches`
    measured_spread: float = 0.0
    # s of which an iteration may take one more or less, seldom: a cycle of Horovod's coordinator; 0
    # if there is none
    step: float = 0.0


def fit_window(
    window: WindowSeconds, iterations: int, loader: Loader, tolerance: float
) -> SteadyWindow:
    """Fit the window of an epoch of ``iterations``, more than were simulated.

    Times may be off by the share ``tolerance``. Where steady iterations are too few,
    its ``mean_half_width`` is infinite, it is not settled, and no iterations stand for
    others.
    """
    seconds = window.seconds
    simulated = len(seconds)
    first, last, cycle, waits = steady_range(
        seconds.sum(axis=1), window.loading, loader, tolerance
    )
    part = seconds[first:last]
    if len(part) < cycle * FEWEST_BATCHES:
        unknown = math.inf
        return SteadyWindow(
            iterations, simulated, settled=False, mean_half_width=unknown, cycle=cycle
        )
    lengths = part.sum(axis=1)
    iteration_error = MeanError.from_batch_means(lengths, cycle)
    phases = [
        MeanError.from_batch_means(column, cycle) for column in part.T if column.any()
    ]
    left_out = iterations - simulated
    unseen = UNSEEN * window.step / len(part)
    reach = max(iteration_error.reach(left_out, iterations), left_out * unseen)
    half_width = max(
        unseen, *(error.half_width for error in (iteration_error, *phases))
    )
    length = float(lengths.mean())
    begin = window.first_loading
    # when all ranks have their first batch: in this epoch, and in the one that it stands for
    begun = (
        NORMAL * math.sqrt(2.0) * math.hypot(float(begin.std()), window.measured_spread)
    )
    # what a batch takes to load at most: an exponential tail that strays as the first ones do
    longest = float(begin.max() + begin.std() * math.log(iterations))
    measured = NORMAL * math.sqrt(2.0) * window.measured_spread
    return SteadyWindow(
        iterations=iterations,
        simulated=simulated,
        first=first + 1,
        last=last,
        half_width=math.hypot(reach, begun),
        settled=iteration_error.settled,
        mean_half_width=half_width / length,
        cycle=cycle,
        pass_known=measured <= tolerance * length * iterations,
        late=not waits and longest > loader.prefetch * length,
    )


def steady_range(
    lengths: Floats, loading: Floats, loader: Loader, tolerance: float
) -> tuple[int, int, int, bool]:
    """Return the steady iterations and whether ranks wait for their loaders in them.

    The last one never belongs to them, for its batch may be smaller. Where ranks wait
    for their loaders in the second half of the window for more than half the tolerance,
    the batches of the prefetching at the beginning do not either, nor the last batches
    of all workers, which nothing follows. Where they do so in the first half only, that
    half is left out as the time in which loaders fill up.

    Args:
        lengths: (n,) s of the iterations that were simulated.
        loading: (n,) s, the longest that a rank waited for its loader in each.
        loader: of the workload.
        tolerance: share by which times may be off.

    Returns:
        first and end, from 0, end excluded; how many make a cycle, 1 if ranks do not
        wait; whether ranks wait. ``end`` may equal ``first``.
    """
    middle = len(lengths) // 2
    end = len(lengths) - 1

    def waits(low: int, high: int) -> bool:
        """Return whether ranks wait for loaders in iterations [low, high)."""
        return bool(loading[low:high].sum() > tolerance / 2.0 * lengths[low:high].sum())

    if waits(middle, end):
        cycle = loader.at_once
        first = max(loader.prefetch, BEGIN)
        return first, first + max(end - cycle - first, 0) // cycle * cycle, cycle, True
    return (middle if waits(BEGIN, middle) else BEGIN), end, 1, False


@dataclass(frozen=True)
class MeanError:
    """The precision of the mean of a stationary series of ``count`` values."""

    count: int
    variance: float  # of a value, as if none were correlated: ``count`` times that of the mean
    quantile: float  # of Student's t, for the 95 % interval: standard errors to a side
    settled: bool  # whether the two halves differ by no more than this explains

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of the mean, in units of the values."""
        return self.quantile * math.sqrt(self.variance / self.count)

    def reach(self, left_out: int, iterations: int) -> float:
        """Return half the 95 % interval of a sum over an epoch of ``iterations``.

        The mean stands for ``left_out`` of them: the error is of that mean, and of how
        the epoch itself strays about its own.
        """
        return self.quantile * math.sqrt(
            (left_out**2 / self.count + iterations) * self.variance
        )

    @classmethod
    def from_batch_means(cls, values: Floats, cycle: int = 1) -> MeanError:
        """Estimate the error of the mean from means of batches of whole cycles.

        ``values``, (n,), are in the order of time, at least `FEWEST_BATCHES` cycles of
        ``cycle`` values. First values that fill no batch are left out of the variance.
        """
        count = len(values)
        half_count = len(values) // 2
        variance, degrees = _long_run(values, cycle)
        first_half = values[:half_count]
        second_half = values[half_count:]
        # what strays within the halves says what their means may differ by
        within = np.concatenate(
            [first_half - first_half.mean(), second_half - second_half.mean()]
        )
        expected, expected_degrees = _long_run(within, cycle)
        error = math.sqrt(expected * (1.0 / half_count + 1.0 / (count - half_count)))
        difference = abs(float(first_half.mean()) - float(second_half.mean()))
        max_difference = _student(SETTLED, expected_degrees) * error
        quantile = _student(CONFIDENCE, degrees)
        return cls(
            count, variance, quantile, settled=difference <= max_difference + ROUNDING
        )

    @classmethod
    def around_trend(cls, values: Floats) -> MeanError:
        """Estimate the error of independent values, (n,), around means that change
        slowly; n is at least 2.

        By what neighbours differ (J. von Neumann, "Distribution of the ratio of the
        mean square successive difference to the variance", Annals of Mathematical
        Statistics 12, 1941). It counts as settled.
        """
        steps = np.diff(values)
        # as many as two thirds of the differences are worth
        quantile = _student(CONFIDENCE, max(2.0 * len(steps) / 3.0, 1.0))
        return cls(
            len(values),
            float(steps @ steps) / (2.0 * len(steps)),
            quantile,
            settled=True,
        )


def _student(confidence: float, degrees: float) -> float:
    """Return the number of standard errors that an interval of ``confidence``, 0 to 1,
    reaches to either side, with that many ``degrees`` of freedom.
    """
    return float(special.stdtrit(degrees, (1.0 + confidence) / 2.0))


def _long_run(values: Floats, cycle: int) -> tuple[float, float]:
    """Return the variance of a stationary series' mean, times its count, and its
    degrees of freedom. It is 0 where all batches are alike.

    From the shortest batches of whole cycles whose means are not correlated; if there
    are none, the longest, with their correlation r, by which each counts as (1 - r) /
    (1 + r) of one. Of few values r comes out too small by (1 + 3 r) / count (M. G.
    Kendall, Biometrika 41, 1954). Negative correlations are weighted so that no
    variance can be negative (W. K. Newey and K. D. West, Econometrica 55, 1987).
    """
    count = len(values)
    length = cycle
    while True:
        batches = count // length
        means = values[count - batches * length :].reshape(batches, length).mean(axis=1)
        variance = length * float(means.var(ddof=1))
        if variance == 0:
            return 0.0, batches - 1.0
        lags = _correlations(means, min(LAGS, batches // 4))
        noise = 1.0 / math.sqrt(batches)
        if lags[0] < -CATCHES_UP * noise:
            weighted = sum(
                lag * (1.0 - k / (len(lags) + 1)) for k, lag in enumerate(lags, 1)
            )
            return variance * (1.0 + 2.0 * weighted), batches - 1.0
        correlation = min(lags[0] + (1.0 + 3.0 * lags[0]) / batches, MOST_ALIKE)
        if correlation <= noise:
            return variance, batches - 1.0
        if count // (2 * length) < FEWEST_BATCHES:
            worth = (1.0 - correlation) / (1.0 + correlation)
            return variance / worth, max((batches - 1.0) * worth, FEWEST_DEGREES)
        length *= 2


def _correlations(means: Floats, max_lag: int) -> list[float]:
    """Return the correlations at lags 1, 2, ... up to ``max_lag``, at least one lag.

    Not all ``means`` may be alike: their correlation would be 0 / 0.
    """
    deviations = means - means.mean()
    total = float(deviations @ deviations)
    return [
        float(deviations[:-k] @ deviations[k:]) / total
        for k in range(1, max(max_lag, 1) + 1)
    ]

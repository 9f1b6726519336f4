"""Windows: what an exchange adds to an epoch, from a few iterations that are simulated
with it and without. Both have equal sizes, orders and jitters, so that their
differences are of the exchange alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from simshuffle.job.plan.effort import WORTH_LEAVING_OUT, effort
from simshuffle.job.plan.hidden import fraction_of
from simshuffle.job.plan.thinning import thin_scenario
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report import kept_phases
from simshuffle.report.report import WHOLE
from simshuffle.report.timeline import EXCLUSIVE, Timeline
from simshuffle.spec.arrays import Floats
from simshuffle.studies.mechanisms.border import ExchangePoint
from simshuffle.studies.mechanisms.variants import EPOCHS, seconds, warm_epoch
from simshuffle.study.cell import Tell

FEWEST, MOST = 12, 512
"""Iterations of a window, at least and at most."""
BEGIN = 1  # iterations that are unlike the others, at least
PARTS = 6
"""Means of parts of a window that its interval rests on."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Window:
    """The iterations that stand for an epoch."""

    scenario: Scenario  # of so many iterations an epoch; its time_tolerance is 0
    iterations: int  # of the window
    epoch_iterations: int  # of the whole epoch

    @property
    def left_out(self) -> int:
        """Return the number of iterations that are not simulated; 0 for a whole epoch."""
        return self.epoch_iterations - self.iterations

    @property
    def cost(self) -> float:
        """Estimate the s of one core that the simulation of the window takes."""
        return effort(self.scenario).seconds


def window_size(scenario: Scenario, seconds_of_core: float) -> int:
    """Return how many iterations can be simulated in ``seconds_of_core`` s of one core.

    They are from `FEWEST`, however long these take, to `MOST`. They are all iterations
    of the epoch where few would be left out.
    """
    total_iterations = scenario.workload.iterations(scenario.world_size, EPOCHS)
    seconds_of_fewest, seconds_of_double = (
        window_of(scenario, min(count, total_iterations)).cost
        for count in (FEWEST, 2 * FEWEST)
    )
    seconds_per_iteration = max(seconds_of_double - seconds_of_fewest, 1e-9) / FEWEST
    affordable = min(
        FEWEST
        + int(max(seconds_of_core - seconds_of_fewest, 0.0) / seconds_per_iteration),
        MOST,
    )
    return (
        total_iterations
        if affordable >= WORTH_LEAVING_OUT * total_iterations
        else affordable
    )


def window_of(scenario: Scenario, iterations: int) -> Window:
    """Return the window of so many iterations; the whole epoch if it has no more.

    Data set and caches shrink with it. Of each rank's samples as large a part is sent
    as in the epoch, rounded to whole samples, at least one.
    """
    total_iterations = scenario.workload.iterations(scenario.world_size, EPOCHS)
    exact = scenario.model_copy(update={"time_tolerance": 0.0})
    if iterations >= total_iterations:
        return Window(exact, total_iterations, total_iterations)
    thinned_scenario = thin_scenario(exact, iterations).scenario
    fraction = scenario.workload.exchange.fraction
    if fraction:
        shard = scenario.workload.dataset.num_samples / scenario.world_size
        samples = max(round(fraction * shard * iterations / total_iterations), 1)
        share = {"exchange_fraction": min(fraction_of(thinned_scenario, samples), 1.0)}
        exchange = thinned_scenario.workload.exchange.model_copy(update=share)
        workload = thinned_scenario.workload.model_copy(update={"exchange": exchange})
        thinned_scenario = thinned_scenario.model_copy(update={"workload": workload})
    return Window(thinned_scenario, iterations, total_iterations)


@dataclass(frozen=True)
class SimulatedWindow:
    """The outcome of a simulated window."""

    timeline: Timeline
    epoch_seconds: float  # of the window
    # (iterations,) s of phases that exclude one another, mean over ranks
    iteration_seconds: Floats


def simulate_window(window: Window, tell: Tell | None = None) -> SimulatedWindow:
    """Simulate the second epoch of a window."""
    timeline = warm_epoch(window.scenario, tell)
    # rows are iterations, columns ranks, then phases that exclude one another
    by_rank = kept_phases.seconds_by_rank(timeline.phases)
    seconds_of_iteration = by_rank[1:, :, : len(EXCLUSIVE)].sum(axis=-1).mean(axis=1)
    return SimulatedWindow(timeline, seconds(timeline)[WHOLE], seconds_of_iteration)


def added(
    window: Window, samples: int, exchanged: SimulatedWindow, baseline: SimulatedWindow
) -> ExchangePoint:
    """Return what ``samples`` of each rank add to the epoch (s), with its half width.

    Of a window, the mean difference of its steady iterations stands for those left out.
    The half width is half of the 95 % interval (Student's t) from `PARTS` means. It is
    0, and nothing is scaled, for a whole epoch.

    Args:
        window: the iterations that were simulated, with an exchange.
        samples: samples of a rank in the epoch, to which the window's are scaled.
        exchanged: the window with an exchange.
        baseline: the window of as many iterations without.
    """
    over = exchanged.epoch_seconds - baseline.epoch_seconds
    if not window.left_out:
        return ExchangePoint(over, 0.0)
    count = min(len(exchanged.iteration_seconds), len(baseline.iteration_seconds))
    differences = (
        exchanged.iteration_seconds[:count] - baseline.iteration_seconds[:count]
    )
    # (iterations,) without the first eighth, which is unlike the others, and the last
    steady = differences[BEGIN + count // 8 : -1]
    means = [float(part.mean()) for part in np.array_split(steady, PARTS)]
    quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, PARTS - 1))
    half_width = quantile * float(np.std(means, ddof=1)) / math.sqrt(PARTS)
    # the window sends a whole number of samples: as many as about so many of the epoch
    sent = (window.scenario.workload.exchange.fraction or 0.0) * window.epoch_iterations
    sent *= window.scenario.workload.dataset.num_samples / window.scenario.world_size
    scale = samples * window.iterations / sent if sent else 1.0
    epoch_over = over + float(steady.mean()) * window.left_out
    return ExchangePoint(scale * epoch_over, scale * half_width * window.left_out)

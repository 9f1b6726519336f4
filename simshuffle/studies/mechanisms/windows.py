"""What an exchange adds to an epoch, from a few iterations that are simulated with it and without:
the same sizes, orders and jitters, so that their differences are of the exchange alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from simshuffle.job.plan.effort import WORTH_LEAVING_OUT, effort, thinned
from simshuffle.job.plan.hidden import fraction_of
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

    scenario: Scenario  # of so many iterations an epoch, without tolerance
    iterations: int
    of_epoch: int  # iterations of the epoch

    @property
    def left_out(self) -> int:
        """Iterations that are not simulated."""
        return self.of_epoch - self.iterations

    @property
    def cost(self) -> float:
        """s of one core."""
        return effort(self.scenario).seconds


def window_size(scenario: Scenario, seconds_of_core: float) -> int:
    """Iterations of an exchange that take so long to simulate; all where few were left out."""
    whole = scenario.workload.iterations(scenario.world_size, EPOCHS)
    few, more = (window_of(scenario, min(count, whole)).cost for count in (FEWEST, 2 * FEWEST))
    each = max(more - few, 1e-9) / FEWEST
    found = min(FEWEST + int(max(seconds_of_core - few, 0.0) / each), MOST)
    return whole if found >= WORTH_LEAVING_OUT * whole else found


def window_of(scenario: Scenario, iterations: int) -> Window:
    """The window of so many iterations; of each rank's samples as large a part is sent as in the
    epoch, made whole."""
    whole = scenario.workload.iterations(scenario.world_size, EPOCHS)
    exact = scenario.model_copy(update={"time_tolerance": 0.0})
    if iterations >= whole:
        return Window(exact, whole, whole)
    thin = thinned(exact, iterations).scenario
    fraction = scenario.workload.exchange.fraction
    if fraction:
        shard = scenario.workload.dataset.num_samples / scenario.world_size
        samples = max(round(fraction * shard * iterations / whole), 1)
        share = {"exchange_fraction": min(fraction_of(thin, samples), 1.0)}
        exchange = thin.workload.exchange.model_copy(update=share)
        workload = thin.workload.model_copy(update={"exchange": exchange})
        thin = thin.model_copy(update={"workload": workload})
    return Window(thin, iterations, whole)


@dataclass(frozen=True)
class SimulatedWindow:
    """A window that was simulated."""

    timeline: Timeline
    epoch_seconds: float  # of the window
    iteration_seconds: Floats  # (iterations,) mean over ranks


def simulate_window(window: Window, tell: Tell | None = None) -> SimulatedWindow:
    """Simulate the second epoch of a window."""
    timeline = warm_epoch(window.scenario, tell)
    # rows are iterations, columns ranks, then phases that exclude one another
    by_rank = kept_phases.seconds_by_rank(timeline.phases)
    each = by_rank[1:, :, : len(EXCLUSIVE)].sum(axis=-1).mean(axis=1)
    return SimulatedWindow(timeline, seconds(timeline)[WHOLE], each)


def added(
    window: Window, samples: int, exchanging: SimulatedWindow, alone: SimulatedWindow
) -> ExchangePoint:
    """What the exchange of ``samples`` of each rank adds to the whole epoch, given the window with
    an exchange and without."""
    over = exchanging.epoch_seconds - alone.epoch_seconds
    if not window.left_out:
        return ExchangePoint(over, 0.0)
    count = min(len(exchanging.iteration_seconds), len(alone.iteration_seconds))
    differences = exchanging.iteration_seconds[:count] - alone.iteration_seconds[:count]
    steady = differences[BEGIN + count // 8 : -1]
    means = [float(part.mean()) for part in np.array_split(steady, PARTS)]
    quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, PARTS - 1))
    half_width = quantile * float(np.std(means, ddof=1)) / math.sqrt(PARTS)
    # the window sends a whole number of samples: as many as about so many of the epoch
    sent = (window.scenario.workload.exchange.fraction or 0.0) * window.of_epoch
    sent *= window.scenario.workload.dataset.num_samples / window.scenario.world_size
    scale = samples * window.iterations / sent if sent else 1.0
    whole = over + float(steady.mean()) * window.left_out
    return ExchangePoint(scale * whole, scale * half_width * window.left_out)

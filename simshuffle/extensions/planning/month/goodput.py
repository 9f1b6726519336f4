"""The share of a long training that is useful: where its time goes, for any period of
its saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.extensions.planning.month.hosts import PHASES, JobCourse
from simshuffle.spec.arrays import Floats, Ints64

CATEGORIES = ("training", "slower", "stalls", "lost", *PHASES)
"""Uses of the time of a training: training that counts; the loss of speed on fewer
hosts; waits for saves; training since the last save that a failure undid; and the
phases after a failure.
"""
TRAINING, SLOWER, STALLS, LOST = range(4)
"""Indices in `CATEGORIES`."""


@dataclass(frozen=True)
class Saves:
    """The period of a training's saves, and their cost."""

    period_s: float  # of training between two saves
    stall_s: float  # for which training stands at each
    # from the begin of a save until a failure cannot undo it; raised to stall_s if it is less
    usable_s: float


def time_by_category(course: JobCourse, saves: Saves) -> Floats:
    """Divide stretches and interruptions by category: (S, categories) s, as
    `CATEGORIES`.

    A row is a stretch and the interruption after it; its sum is the length of both.
    Periods begin anew in each stretch. Training after the last usable save is lost,
    unless nothing interrupts the stretch. On a share of the hosts that share of the
    training that stays is 'training', the remainder 'slower'.
    """
    durations = course.end_s - course.begin_s
    training, stalls = _training_and_stalls(durations, saves)
    kept_seconds = np.where(
        course.cause < 0, training, _usable_saves(durations, saves) * saves.period_s
    )
    rows = np.zeros((len(durations), len(CATEGORIES)))
    rows[:, TRAINING] = kept_seconds * course.share
    rows[:, SLOWER] = kept_seconds - rows[:, TRAINING]
    rows[:, STALLS] = stalls
    rows[:, LOST] = training - kept_seconds
    rows[:, LOST + 1 :] = course.down_s
    return rows


def _training_and_stalls(length: Floats, saves: Saves) -> tuple[Floats, Floats]:
    """Return the seconds of training, and of stalls, in stretches of ``length`` s.

    Each is (S,), as ``length``.
    """
    cycle = saves.period_s + saves.stall_s
    full_cycles = np.floor(length / cycle)
    training = full_cycles * saves.period_s + np.minimum(
        length - full_cycles * cycle, saves.period_s
    )
    return training, length - training


def _usable_saves(length: Floats, saves: Saves) -> Ints64:
    """Count the saves that are usable at the end of stretches of ``length`` s, (S,).

    Save k begins after k periods and k - 1 stalls.
    """
    cycle = saves.period_s + saves.stall_s
    usable = max(saves.usable_s, saves.stall_s)
    count: Ints64 = (
        np.floor((length - saves.period_s - usable) / cycle).astype(np.int64) + 1
    )
    return np.maximum(count, 0)


def completion_time(course: JobCourse, saves: Saves, work: float) -> float:
    """Return when ``work`` s of useful training are done (s); infinite if they never
    are.

    They are seconds on all hosts that the job wants. What is done until an interruption
    counts, even where the interruption undoes it later.
    """
    useful = time_by_category(course, saves)[:, TRAINING]
    useful_before = np.concatenate([[0.0], np.cumsum(useful)[:-1]])
    # what is done until an interruption counts, even where it undoes it later
    useful_within = (
        _training_and_stalls(course.end_s - course.begin_s, saves)[0] * course.share
    )
    sufficient = np.flatnonzero(useful_before + useful_within >= work * (1 - 1e-12))
    if not len(sufficient):
        return float("inf")
    first = int(sufficient[0])
    remaining_work = (work - useful_before[first]) / course.share[first]
    stalls = max(np.ceil(remaining_work / saves.period_s - 1e-9) - 1, 0.0)
    return float(course.begin_s[first] + remaining_work + stalls * saves.stall_s)


def truncate_course(course: JobCourse, length: float) -> JobCourse:
    """Return a course cut off after ``length`` s (above 0), or itself if it is no
    longer.

    A stretch that is cut has the cause -1; of a cut interruption the first phases stay.
    """
    if length >= course.length:
        return course
    count = int(np.searchsorted(course.begin_s, length, side="left"))
    end = course.end_s[:count].copy()
    down = course.down_s[:count].copy()
    cause = course.cause[:count].copy()
    if end[-1] >= length:
        end[-1], cause[-1], down[-1] = length, -1, 0.0
    else:
        remaining_seconds = length - end[-1]
        for phase, seconds in enumerate(course.down_s[count - 1]):
            down[-1, phase] = min(seconds, remaining_seconds)
            remaining_seconds -= down[-1, phase]
    return JobCourse(
        course.begin_s[:count],
        end,
        course.share[:count],
        cause,
        down,
        course.causes,
        length,
    )


def best_period(periods: Sequence[float], goodput: Sequence[float]) -> float:
    """Return the best period (s) between saves, given the goodput at each of
    ``periods``.

    A period p costs a p + b / p + c to first order, of lost work and of stalls. The law
    is fitted to the periods around the cheapest that cost at most a quarter of the
    range more, so that chance in a single period decides nothing; the best is sqrt(b /
    a), within these periods. The cheapest where these are fewer than four, or no law
    fits.

    Args:
        periods: s, ascending.
        goodput: share of useful time at each of the periods.
    """
    period = np.asarray(periods, float)
    cost = 1.0 - np.asarray(goodput, float)
    lowest = float(cost.min())
    highest = float(cost.max())
    cheap = np.flatnonzero(cost <= lowest + 0.25 * (highest - lowest))
    first = int(cheap[0])
    last = int(cheap[-1]) + 1
    period = period[first:last]
    cost = cost[first:last]
    cheapest = float(period[int(cost.argmin())])
    if len(period) < 4:
        return cheapest
    scale = cheapest
    terms = np.column_stack([period / scale, scale / period, np.ones_like(period)])
    a, b, _ = np.linalg.lstsq(terms, cost, rcond=None)[0]
    if a <= 0 or b <= 0:
        return cheapest
    return float(np.clip(scale * np.sqrt(b / a), period[0], period[-1]))

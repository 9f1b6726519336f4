"""What share of a long training is useful: where its time goes, for any period of its saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.job.reliability.hosts import PHASES, Course
from simshuffle.spec.arrays import Floats, Ints64

CATEGORIES = ("training", "slower", "stalls", "lost", *PHASES)
"""What the time of a training is spent on: training that counts; what it is slower for fewer hosts;
waiting for saves; training since the last save that a failure undid; and what follows a failure."""
USEFUL, SLOWER, STALLS, LOST = range(4)


@dataclass(frozen=True)
class Saves:
    """When a training saves, and what that takes."""

    period_s: float  # of training between two saves
    stall_s: float  # for which training stands at each
    # from the begin of a save until a failure cannot undo it; not before the stall is over
    usable_s: float


def spent(of: Course, saves: Saves) -> Floats:
    """(S, categories) s of every time of training and of what follows it: the sums of the rows are
    their lengths. Training after the last save that was usable is lost, unless nothing interrupts
    it."""
    length = of.end_s - of.begin_s
    training, stalls = _until(length, saves)
    kept = np.where(of.cause < 0, training, _saved(length, saves) * saves.period_s)
    rows = np.zeros((len(length), len(CATEGORIES)))
    rows[:, USEFUL] = kept * of.share
    rows[:, SLOWER] = kept - rows[:, USEFUL]
    rows[:, STALLS] = stalls
    rows[:, LOST] = training - kept
    rows[:, LOST + 1 :] = of.down_s
    return rows


def _until(length: Floats, saves: Saves) -> tuple[Floats, Floats]:
    """s of training, and of stalls, in times of ``length`` s."""
    cycle = saves.period_s + saves.stall_s
    full = np.floor(length / cycle)
    training = full * saves.period_s + np.minimum(length - full * cycle, saves.period_s)
    return training, length - training


def _saved(length: Floats, saves: Saves) -> Ints64:
    """Saves that were usable at the end of times of ``length`` s: the k-th begins after k periods
    and k - 1 stalls."""
    cycle = saves.period_s + saves.stall_s
    usable = max(saves.usable_s, saves.stall_s)
    found: Ints64 = np.floor((length - saves.period_s - usable) / cycle).astype(np.int64) + 1
    return np.maximum(found, 0)


def ended_at(of: Course, saves: Saves, work: float) -> float:
    """s at which ``work`` s of useful training are done; infinite if they never are."""
    useful = spent(of, saves)[:, USEFUL]
    before = np.concatenate([[0.0], np.cumsum(useful)[:-1]])
    # what is done until an interruption counts, even where it undoes it later
    there = _until(of.end_s - of.begin_s, saves)[0] * of.share
    reaching = np.flatnonzero(before + there >= work * (1 - 1e-12))
    if not len(reaching):
        return float("inf")
    first = int(reaching[0])
    left = (work - before[first]) / of.share[first]
    stalls = max(np.ceil(left / saves.period_s - 1e-9) - 1, 0.0)
    return float(of.begin_s[first] + left + stalls * saves.stall_s)


def shortened(of: Course, length: float) -> Course:
    """A course that ends earlier."""
    if length >= of.length:
        return of
    count = int(np.searchsorted(of.begin_s, length, side="left"))
    end, down = of.end_s[:count].copy(), of.down_s[:count].copy()
    cause = of.cause[:count].copy()
    if end[-1] >= length:
        end[-1], cause[-1], down[-1] = length, -1, 0.0
    else:
        down[-1] *= 0.0
        left = length - end[-1]
        for place, seconds in enumerate(of.down_s[count - 1]):
            down[-1, place] = min(seconds, left)
            left -= down[-1, place]
    return Course(of.begin_s[:count], end, of.share[:count], cause, down, of.causes, length)


def best_period(periods: Sequence[float], goodput: Sequence[float]) -> float:
    """The best of ``periods`` (s, ascending), of which the share of useful time is known.

    What a period p costs is a p + b / p + c to first order, of lost work and of stalls. This is
    fitted to the periods around the cheapest that cost at most a quarter of the range of all more,
    so that chance in one of them decides nothing; the best is sqrt(b / a), within them.
    """
    p, cost = np.asarray(periods, float), 1.0 - np.asarray(goodput, float)
    lowest, highest = float(cost.min()), float(cost.max())
    near = np.flatnonzero(cost <= lowest + 0.25 * (highest - lowest))
    first, last = int(near[0]), int(near[-1]) + 1
    p, cost = p[first:last], cost[first:last]
    raw = float(p[int(cost.argmin())])
    if len(p) < 4:
        return raw
    unit = raw
    terms = np.column_stack([p / unit, unit / p, np.ones_like(p)])
    a, b, _ = np.linalg.lstsq(terms, cost, rcond=None)[0]
    if a <= 0 or b <= 0:
        return raw
    return float(np.clip(unit * np.sqrt(b / a), p[0], p[-1]))

"""The time of an exchange of many steps, estimated from some of its steps, with an
interval.

The steps are drawn at random, and kept in their order. Let T be the time of all n
steps, m the number of simulated steps, and b a closed form: the s that the busiest link
needs.

*With barriers* T is the sum of the times of the steps, each of which starts on an idle
network. The regression estimator (Cochran, Sampling Techniques, 3rd ed., 1977, section
7.2) predicts the steps that were left out from their b: T = n (mean t + slope (mean b
of all - mean b of the simulated)). The interval is two standard errors, from the
residuals and the finite population.

*Without barriers, with fresh partners*, the network is in a steady state once ranks have drifted
apart. In it the mean rank needs the same time for every byte: the slope of its ends over bytes,
from a fourth of the simulated steps to three fourths. The last rank is behind the mean one as after
a random walk, by the square root of the number of steps. So T = mean end of m + slope (bytes of all
- bytes of m) + (last end - mean end) sqrt(n / m).

*Without barriers, with one partner for the epoch*, the busiest link works all the time,
and T is in proportion to b.

Without barriers the interval is the largest error seen beside simulations of all steps,
see `drift_width` and `WIDTH_OF_PAIRS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.fabric.network import Links
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.studies.congestion.traffic import ExchangeTraffic

WIDTH_OF_PAIRS = 0.03
"""Share of the time by which an interval is wide to either side where partners stay: a
fourth of the steps was off by 0.8 % (512 ranks, pairs on one leaf).
"""
FEWEST_STEPS = 32
"""Steps that are simulated at least."""
WORTH = 1.5
"""Only an exchange of more than so many times the steps that are simulated is sampled."""


@dataclass(frozen=True)
class TimeEstimate:
    """An estimated time (s), and the interval that holds it."""

    seconds: float
    low: float
    high: float

    @classmethod
    def within(cls, seconds: float, width: float, bound: float = 0.0) -> TimeEstimate:
        """Return an estimate that is off by at most ``width`` s, and is not below
        ``bound`` s.

        ``seconds`` and the low end are raised to ``bound`` where they are below.
        """
        seconds = max(seconds, bound)
        return cls(seconds, max(seconds - width, bound), seconds + width)


def choose_steps(steps: int, count: int, rng: np.random.Generator) -> Ints64:
    """Draw ``count`` different of the ``steps`` steps, and return their indices
    ascending, (count,).
    """
    return np.sort(rng.permutation(steps)[:count]).astype(np.int64)


def busiest_seconds(links: Links, traffic: ExchangeTraffic) -> Floats:
    """Return the s that the busiest link of each step needs for its bytes, without
    latency, (steps,).
    """
    messages = traffic.messages
    steps = traffic.steps
    step_of_message = np.repeat(np.arange(steps), traffic.senders)
    # (steps, links + 1) bytes; the first column is what pads routes
    nbytes = np.zeros(steps * (len(links) + 1))
    for hop in traffic.flows.routes[:messages].T:
        cell_index = step_of_message * (len(links) + 1) + hop + 1
        weights = traffic.flows.nbytes[:messages]
        nbytes += np.bincount(cell_index, weights=weights, minlength=len(nbytes))
    return np.asarray((nbytes.reshape(steps, -1)[:, 1:] / links.capacity).max(axis=1))


def estimate_barrier_steps(
    ends: Floats, barrier: float, busiest: Floats, chosen: Ints64
) -> TimeEstimate:
    """Estimate the time of all steps of an exchange with barriers.

    A step takes a mean and a slope times what its busiest link needs, fitted to the
    simulated steps; the interval is two standard errors to either side. Estimate and
    interval are at least the sum of ``busiest``.

    Args:
        ends: (m,) s at which each simulated step had ended on all ranks, m at least 3,
            with the barriers between the simulated steps.
        barrier: s that a barrier takes; there is none before the first step.
        busiest: (n,) s that the busiest link of each step needs.
        chosen: (m,) indices of the simulated steps among the n steps.
    """
    steps = len(busiest)
    count = len(chosen)
    seconds = np.diff(ends, prepend=0.0)
    seconds[0] += barrier
    sampled_busiest = busiest[chosen]
    deviations = sampled_busiest - sampled_busiest.mean()
    variance = float(deviations @ deviations)
    slope = float(deviations @ seconds) / variance if variance > 0 else 0.0
    residuals = seconds - seconds.mean() - slope * deviations
    total = (
        steps * (seconds.mean() + slope * (busiest.mean() - sampled_busiest.mean()))
        - barrier
    )
    unsampled_share = 1 - count / steps
    error = steps * np.sqrt(
        unsampled_share * residuals @ residuals / (count - 2) / count
    )
    return TimeEstimate.within(float(total), 2 * float(error), float(busiest.sum()))


def drift_width(steps: int, count: int, *, by_distance: bool) -> float:
    """Return the share of the time by which the interval of ``count`` of ``steps``
    steps with fresh partners is wide to either side.

    With 32 and 64 of 400 steps on 128 and 512 ranks, random permutations were off by
    4.1 and 1.5 % at most, in sixteen draws. A shift or xor orders its steps
    ``by_distance``, which keeps ranks in step, and is off by twice as much.
    """
    return float(0.4 * (1 + by_distance) * np.sqrt((1 - count / steps) / count))


def estimate_drifting_chain(
    finish: Floats, nbytes: Floats, chosen: Ints64, width: float
) -> TimeEstimate:
    """Estimate the time of all steps without barriers, with fresh partners.

    The mean end grows with the bytes sent, at the pace of the middle half of the
    simulated steps; the lag of the last rank grows with the root of the steps.

    Args:
        finish: (m, M) s at which each rank has ended each simulated step.
        nbytes: (n,) bytes of each step, over all ranks, more than 0.
        chosen: (m,) indices of the simulated steps among the n steps; m is at least 4.
        width: share of the time by which the interval is wide to either side.
    """
    steps = len(nbytes)
    count = len(chosen)
    quarter = count // 4 - 1
    three_quarters = 3 * count // 4 - 1
    mean_end = finish.mean(axis=1)
    sent_nbytes = np.cumsum(nbytes[chosen])
    slope = (mean_end[three_quarters] - mean_end[quarter]) / (
        sent_nbytes[three_quarters] - sent_nbytes[quarter]
    )
    lag = finish[-1].max() - mean_end[-1]
    total = (
        mean_end[-1]
        + slope * (nbytes.sum() - sent_nbytes[-1])
        + lag * np.sqrt(steps / count)
    )
    return TimeEstimate.within(float(total), width * float(total))


def estimate_paired_chain(
    seconds: float, busiest: float, total_busiest: float
) -> TimeEstimate:
    """Estimate the time of all steps without barriers, with one partner for the epoch.

    The time is in proportion to what the busiest link needs. The interval is
    `WIDTH_OF_PAIRS` of the time to either side.

    Args:
        seconds: s that the simulated steps take.
        busiest: s that the busiest link needs for the simulated steps, more than 0.
        total_busiest: s that the busiest link needs for all steps; the estimate and the
            low end are at least as much.
    """
    total = seconds / busiest * total_busiest
    return TimeEstimate.within(total, WIDTH_OF_PAIRS * total, total_busiest)

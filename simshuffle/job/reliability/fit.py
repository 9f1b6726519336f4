"""Fit a bursty process to recorded faults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.job.reliability.processes import Bursty
from simshuffle.job.reliability.trace import FaultTrace

WORST_SHARE = 0.05
"""The share of hosts that are looked at as lemons: 20 of 400, as in README of the
traces.
"""
DRAWS = 400
"""Machines that are drawn to see what share of faults the worst hosts have by chance
alone.
"""
MIN_FAULTS = 20
"""Faults from which on something is fitted: of fewer, a variation says nothing."""


@dataclass(frozen=True)
class FaultFit:
    """Statistics of recorded faults, and the process that reproduces them."""

    faults: int  # number of them
    hosts: int  # that were watched
    mean_between: float  # s of one host between two of its faults
    # standard deviation over mean of the time between two faults of the machine; 1 if
    # there are no gaps
    variation: float
    # s; of the faults that ended before the end of the trace, or of all if none did
    repair_mean: float
    repair_median: float
    worst_faults: float  # the share of the faults that the worst hosts have
    by_chance: float  # the share that they would have if all hosts were alike
    # its variation is at least 1; its median repair is at least 1 s, at most the mean
    process: Bursty

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as plain values by field; ``process`` is a mapping, too.

        Keys of ``process`` that are None are left out.
        """
        return {
            **asdict(self),
            "process": self.process.model_dump(mode="json", exclude_none=True),
        }


def fit_process(
    trace: FaultTrace, worst: float = WORST_SHARE, longest_gap: float = np.inf
) -> FaultFit:
    """Fit a bursty process to a trace.

    The worst hosts of a machine have more than their share of faults by chance alone.
    The lemons' share is therefore the share with which drawn machines have, in the
    mean, what was recorded. The process has no lemons where chance explains it. The
    weights of its causes are the numbers of recorded faults.

    Args:
        trace: what was recorded; its faults are in order of their starts.
        worst: the share of hosts that are lemons; at least one host is.
        longest_gap: gaps longer than this (s) are left out of the variation, as
            unrecorded time.

    Raises:
        InputError: there are fewer than `MIN_FAULTS` faults.
    """
    faults = trace.faults
    if len(faults) < MIN_FAULTS:
        rule = f"must have at least {MIN_FAULTS} faults to fit"
        refuse("trace", rule, str(len(faults)), "Give a longer trace.", "fit")
    gaps = np.diff(faults.start_s)
    gaps = gaps[gaps <= longest_gap]
    has_ended = faults.end_s < trace.length
    repairs = (faults.end_s - faults.start_s)[
        has_ended if has_ended.any() else slice(None)
    ]
    counts = np.bincount(faults.host, minlength=trace.hosts)
    num_worst = max(round(worst * trace.hosts), 1)
    share = float(np.sort(counts)[-num_worst:].sum() / len(faults))
    lemons = lemon_share(trace.hosts, len(faults), num_worst, share)
    by_chance = worst_share(
        trace.hosts, len(faults), num_worst, num_worst / trace.hosts
    )
    mean = float(repairs.mean())
    median = float(np.median(repairs))
    host_interval = trace.hosts * trace.length / len(faults)
    variation = float(gaps.std() / gaps.mean()) if gaps.size and gaps.mean() else 1.0
    causes = np.bincount(faults.cause, minlength=len(faults.causes)).astype(float)
    values: dict[str, Any] = {
        "kind": "bursty",
        "mean_between": f"{host_interval!r} s",
        "variation": max(variation, 1.0),
        "repair": {
            "mean": f"{mean!r} s",
            "median": f"{min(max(median, 1.0), mean)!r} s",
        },
        "causes": dict(zip(faults.causes, causes.tolist(), strict=True)),
    }
    if lemons > num_worst / trace.hosts:
        values["lemons"] = {"hosts": num_worst / trace.hosts, "faults": lemons}
    process = Bursty.model_validate(values)
    return FaultFit(
        len(faults),
        trace.hosts,
        host_interval,
        variation,
        mean,
        median,
        share,
        by_chance,
        process,
    )


def worst_share(hosts: int, faults: int, num_worst: int, lemons: float) -> float:
    """Return the share of ``faults`` on the ``num_worst`` hosts that fail most often.

    The share is the mean over `DRAWS` drawn machines in which ``num_worst`` lemons have
    the share ``lemons``. Equal arguments give equal results.
    """
    rng = np.random.default_rng(0)  # the same machines for every share
    chances = np.full(hosts, (1 - lemons) / max(hosts - num_worst, 1))
    chances[:num_worst] = lemons / num_worst
    counts = rng.multinomial(faults, chances / chances.sum(), size=DRAWS)
    worst = np.partition(counts, hosts - num_worst, axis=1)[:, hosts - num_worst :]
    return float(worst.sum() / (DRAWS * faults))


def lemon_share(hosts: int, faults: int, num_worst: int, share: float) -> float:
    """Find the lemons' share of faults with which the worst hosts have ``share``.

    By bisection, at most 0.999; num_worst / hosts where chance alone explains it.
    """
    low = num_worst / hosts
    high = 0.999
    if num_worst >= hosts or share <= worst_share(hosts, faults, num_worst, low):
        return low
    for _ in range(20):
        midpoint = 0.5 * (low + high)
        if worst_share(hosts, faults, num_worst, midpoint) < share:
            low = midpoint
        else:
            high = midpoint
    return 0.5 * (low + high)

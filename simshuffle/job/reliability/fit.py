"""The bursty process that fits recorded faults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.job.reliability.processes import Bursty
from simshuffle.job.reliability.trace import FaultTrace

WORST = 0.05
"""The share of hosts that are looked at as lemons: 20 of 400, as in README of the traces."""
DRAWS = 400
"""Machines that are drawn to see what share of faults the worst hosts have by chance alone."""
FEWEST = 20
"""Faults from which on something is fitted: of fewer, a variation says nothing."""


@dataclass(frozen=True)
class FaultFit:
    """What recorded faults say, and the process that has the same."""

    faults: int
    hosts: int
    mean_between: float  # s of one host between two of its faults
    variation: float  # of the time between two faults of the machine
    repair_mean: float  # s; of faults that ended
    repair_median: float  # s
    worst_faults: float  # the share of the faults that the worst hosts have
    by_chance: float  # the share that they would have if all hosts were alike
    process: Bursty

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "process": self.process.model_dump(mode="json", exclude_none=True)}


def fit(trace: FaultTrace, worst: float = WORST, quiet: float = np.inf) -> FaultFit:
    """The fit of a trace. ``worst`` is the share of hosts that are lemons; gaps longer than
    ``quiet`` s are left out of the variation, as when nothing was recorded.

    The worst hosts of a machine have more than their share by chance alone. So the lemons' share is
    the one with which drawn machines have, in the mean, what was recorded.

    Raises:
        InputError: there are fewer than `FEWEST` faults.
    """
    faults = trace.faults
    if len(faults) < FEWEST:
        rule = f"must have at least {FEWEST} faults to fit"
        refuse("trace", rule, str(len(faults)), "Give a longer trace.", "fit")
    gaps = np.diff(faults.start_s)
    gaps = gaps[gaps <= quiet]
    ended = faults.end_s < trace.length
    repairs = (faults.end_s - faults.start_s)[ended if ended.any() else slice(None)]
    counts = np.bincount(faults.host, minlength=trace.hosts)
    few = max(round(worst * trace.hosts), 1)
    share = float(np.sort(counts)[-few:].sum() / len(faults))
    lemons = lemon_share(trace.hosts, len(faults), few, share)
    by_chance = worst_share(trace.hosts, len(faults), few, few / trace.hosts)
    mean, median = float(repairs.mean()), float(np.median(repairs))
    between = trace.hosts * trace.length / len(faults)
    variation = float(gaps.std() / gaps.mean()) if gaps.size and gaps.mean() else 1.0
    causes = np.bincount(faults.cause, minlength=len(faults.causes)).astype(float)
    values: dict[str, Any] = {
        "kind": "bursty",
        "mean_between": f"{between!r} s",
        "variation": max(variation, 1.0),
        "repair": {"mean": f"{mean!r} s", "median": f"{min(max(median, 1.0), mean)!r} s"},
        "causes": dict(zip(faults.causes, causes.tolist(), strict=True)),
    }
    if lemons > few / trace.hosts:
        values["lemons"] = {"hosts": few / trace.hosts, "faults": lemons}
    process = Bursty.model_validate(values)
    return FaultFit(
        len(faults), trace.hosts, between, variation, mean, median, share, by_chance, process
    )


def worst_share(hosts: int, faults: int, few: int, lemons: float) -> float:
    """The share of ``faults`` that the ``few`` hosts with most of them have, in the mean of drawn
    machines in which as many lemons have the share ``lemons``."""
    rng = np.random.default_rng(0)  # the same machines for every share
    chances = np.full(hosts, (1 - lemons) / max(hosts - few, 1))
    chances[:few] = lemons / few
    counts = rng.multinomial(faults, chances / chances.sum(), size=DRAWS)
    worst = np.partition(counts, hosts - few, axis=1)[:, hosts - few :]
    return float(worst.sum() / (DRAWS * faults))


def lemon_share(hosts: int, faults: int, few: int, share: float) -> float:
    """The share of the faults that ``few`` lemons have, so that the worst ``few`` hosts have
    ``share``, by bisection; few / hosts where chance alone explains it."""
    low, high = few / hosts, 0.999
    if few >= hosts or share <= worst_share(hosts, faults, few, low):
        return low
    for _ in range(20):
        middle = 0.5 * (low + high)
        if worst_share(hosts, faults, few, middle) < share:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)

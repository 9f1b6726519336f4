"""How often to save, what share of the time is useful then, and how many spare hosts there must be:
from months of failures that are drawn, as ``simshuffle month`` draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simshuffle.extensions.planning.month.cell import Month
from simshuffle.job.reliability.daly import daly
from simshuffle.job.reliability.goodput import CATEGORIES, time_by_category
from simshuffle.job.reliability.trace import DAY
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.study.cell import Outcome, PlainCell, Tell

WAITING = 0.01
"""Share of the time that a job waits for hosts, at most."""
DAYS, SEEDS = 30.0, 20
"""Of the months that are drawn, as of ``simshuffle month``."""
_PLACE = CATEGORIES.index("waiting")


@dataclass(frozen=True)
class MonthsCell(PlainCell):
    """The months of a strategy, on a scenario with failures and checkpoints."""

    document: Mapping[str, Any]  # the scenario with the strategy
    epoch: Mapping[str, Any]  # as of `simshuffle.extensions.planning.month.epoch.EpochCell`
    name: str  # of the strategy

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [identity_of(self.document), dict(self.epoch)]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"months of {self.name}"

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: period_s, goodput, spares, waiting (share of the time) and hosts_free;
        spares is None if those that the machine has are not enough."""
        scenario = from_dict(self.document, self.name)
        month = Month(scenario, self.epoch)
        free = scenario.cluster.num_hosts - scenario.hosts
        known: dict[int, float] = {}

        def waiting(spares: int) -> float:
            if spares not in known:
                month.restarts = replace(month.restarts, spares=spares, policy="spare")
                courses = month.courses(SEEDS, DAYS * DAY, lambda _: None)
                saves = month.saves(month.period)
                waited = sum(float(time_by_category(of, saves)[:, _PLACE].sum()) for of in courses)
                known[spares] = waited / (SEEDS * DAYS * DAY)
                tell(min(0.9, len(known) / 20))
            return known[spares]

        spares = fewest(lambda count: waiting(count) <= WAITING, free)
        used = free if spares is None else spares
        waited = waiting(used)
        month.restarts = replace(month.restarts, spares=used, policy="spare")
        stall = month.saves(1e3 * month.period).stall_s
        month.period = daly(stall, month.between) if stall > 0 else month.period
        courses = month.courses(SEEDS, DAYS * DAY, lambda _: None)
        saves = month.saves(month.period)
        rows = [month.row(seed, of, saves) for seed, of in enumerate(courses)]
        return Outcome(
            {
                "period_s": month.period,
                "goodput": sum(row["goodput"] for row in rows) / SEEDS,
                "spares": spares,
                "waiting": waited,
                "hosts_free": free,
            }
        )


def fewest(enough: Any, most: int) -> int | None:
    """The smallest whole number from 0 to ``most`` that is ``enough``, as all larger ones are; None
    if there is none. By doubling, then by bisection."""
    if enough(0):
        return 0
    low, high = 0, 1
    while high < most and not enough(high):
        low, high = high, 2 * high
    high = min(high, most)
    if high < 1 or not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

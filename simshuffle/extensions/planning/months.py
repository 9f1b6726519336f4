"""Period of checkpoints, useful share of the time, and spare hosts of a strategy, from
drawn months of failures.

The months are those that ``simshuffle month`` draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simshuffle.extensions.planning.month.cell import Month
from simshuffle.extensions.planning.month.goodput import CATEGORIES, time_by_category
from simshuffle.job.reliability.trace import DAY
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.study.cell import Outcome, PlainCell, Tell

MAX_WAITING = 0.01
"""Largest share of the time that a job may wait for hosts."""
DAYS, SEEDS = 30.0, 20
"""Days of a month, and number of months that are drawn: the defaults of ``simshuffle
month``.
"""
_WAITING_INDEX = CATEGORIES.index("waiting")


@dataclass(frozen=True)
class MonthsCell(PlainCell):
    """Cell that draws the months of a strategy, on a scenario with failures and
    checkpoints.
    """

    document: Mapping[str, Any]  # scenario with the strategy
    # as of `simshuffle.extensions.planning.month.epoch.EpochCell`
    epoch: Mapping[str, Any]
    name: str  # name of the strategy

    @property
    def key(self) -> Any:
        """Return what decides the outcome: the scenario and its epoch."""
        return [identity_of(self.document), dict(self.epoch)]

    @property
    def label(self) -> str:
        """Return the name of the cell for people."""
        return f"months of {self.name}"

    def run(self, tell: Tell) -> Outcome:
        """Search the fewest spare hosts, then draw the months with them and Daly's
        period.

        The scenario's own spares and policy do not count: the policy is 'spare'. Where
        saves stall nothing or no host fails, the scenario's period stands for Daly's.

        The outcome has ``period_s``, ``goodput`` (mean over seeds), ``spares``,
        ``waiting`` (share of the time that a job waits for hosts, with the scenario's
        period) and ``hosts_free``. ``spares`` is None if the hosts that the machine has
        keep waiting above `MAX_WAITING`; all of them are then used.

        Raises:
            InputError: the months would have too many faults (`Month.draw_courses`).
        """
        scenario = from_dict(self.document, self.name)
        month = Month(scenario, self.epoch)
        free_hosts = scenario.cluster.num_hosts - scenario.hosts
        waiting_by_spares: dict[int, float] = {}

        def waiting_share_of(spares: int) -> float:
            """Return the share of the time that a job waits for hosts; leaves
            ``month`` with so many spares.
            """
            if spares not in waiting_by_spares:
                month.restarts = replace(month.restarts, spares=spares, policy="spare")
                courses = month.draw_courses(SEEDS, DAYS * DAY, lambda _: None)
                saves = month.saves(month.period)
                waiting_seconds = sum(
                    float(time_by_category(course, saves)[:, _WAITING_INDEX].sum())
                    for course in courses
                )
                waiting_by_spares[spares] = waiting_seconds / (SEEDS * DAYS * DAY)
                tell(min(0.9, len(waiting_by_spares) / 20))
            return waiting_by_spares[spares]

        spares = find_fewest(
            lambda count: waiting_share_of(count) <= MAX_WAITING, free_hosts
        )
        used_spares = free_hosts if spares is None else spares
        waiting_share = waiting_share_of(used_spares)
        month.restarts = replace(month.restarts, spares=used_spares, policy="spare")
        month.period = month.formula_periods().get("daly", month.period)
        courses = month.draw_courses(SEEDS, DAYS * DAY, lambda _: None)
        saves = month.saves(month.period)
        rows = [
            month.seed_row(seed, course, saves) for seed, course in enumerate(courses)
        ]
        return Outcome(
            {
                "period_s": month.period,
                "goodput": sum(row["goodput"] for row in rows) / SEEDS,
                "spares": spares,
                "waiting": waiting_share,
                "hosts_free": free_hosts,
            }
        )


def find_fewest(is_enough: Any, limit: int) -> int | None:
    """Return the smallest whole number from 0 to ``limit`` that is enough; None if
    there is none.

    The search doubles, then bisects: it takes for granted that every number above an
    enough one is enough, too. 0 is tried even if ``limit`` is below 0.
    """
    if is_enough(0):
        return 0
    low = 0
    high = 1
    while high < limit and not is_enough(high):
        low = high
        high = 2 * high
    high = min(high, limit)
    if high < 1 or not is_enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high

"""The months of a run: failures drawn, followed, and counted for every period of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.job.plan.checkpoint_bounds import (
    drain_seconds,
    restore_seconds,
    save_seconds,
    stall_seconds,
)
from simshuffle.job.plan.holding import reread_seconds
from simshuffle.job.plan.recovery import mean_interruption
from simshuffle.job.reliability.daly import daly, share, young
from simshuffle.job.reliability.faults import Faults
from simshuffle.job.reliability.goodput import (
    CATEGORIES,
    LOST,
    TRAINING,
    Saves,
    best_period,
    completion_time,
    time_by_category,
    truncate_course,
)
from simshuffle.job.reliability.hosts import JobCourse, RestartPolicy, follow_job
from simshuffle.job.reliability.trace import DAY
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.recovery import Recovery
from simshuffle.job.scenario.scenario import Scenario, from_dict
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import stream
from simshuffle.study.cell import Outcome, PlainCell, Tell

GRID = np.geomspace(1 / 16, 16, 49)
"""Periods that are tried, over Daly's: each 12 % above the one before."""
MOST_FAULTS = 3e6
"""Faults of all seeds together: each takes 20 us."""
LOST_FOR_EVER = 50.0
"""A training that takes so many times as long as it would without failures never ends."""


@dataclass(frozen=True)
class MonthCell(PlainCell):
    """The months of a run."""

    document: Mapping[str, Any]  # its scenario as plain values
    epoch: Mapping[str, Any]  # what `simshuffle.extensions.planning.month.epoch.EpochCell` found
    label: str
    days: float | None  # of each month
    epochs: int | None  # that are trained in each, where there are no days
    period: float | None  # s of training between checkpoints; the scenario's if None
    seeds: int

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        asked = [self.days, self.epochs, self.period, self.seeds]
        return [identity_of(self.document), dict(self.epoch), *asked]

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: rows of every table, and the numbers that the months rest on."""
        scenario = from_dict(self.document, self.label)
        month = Month(scenario, self.epoch, self.period)
        work = None if self.epochs is None else month.work(self.epochs)
        length = work if self.days is None else self.days * DAY
        assert length is not None, "one of both is given"  # noqa: S101
        courses = month.courses(self.seeds, length, tell)
        periods = month.tried(courses)
        if work is not None:
            courses = [month.until(seed, of, work) for seed, of in enumerate(courses)]
        saves = month.saves(month.period)
        days = [month.row(seed, of, saves) for seed, of in enumerate(courses)]
        causes = _by_cause(courses, saves)
        return Outcome(
            {"days": days, "periods": periods, "causes": causes, "inputs": month.inputs()}
        )


class Month:
    """What the months of a scenario rest on. ``epoch`` is of `EpochCell`; ``period`` is of training
    between two checkpoints (s), the scenario's if None."""

    def __init__(
        self, scenario: Scenario, epoch: Mapping[str, Any], period: float | None = None
    ) -> None:
        self._scenario, self._epoch = scenario, epoch
        self._recovery = recovery = scenario.recovery or Recovery()
        self._failures = failures = scenario.failures
        checkpoint = scenario.workload.checkpoint
        assert checkpoint is not None, "the request has seen it"  # noqa: S101
        each = float(epoch["steady_s"]) / int(epoch["iterations"])
        own = checkpoint.period or (checkpoint.every or 1) * each
        self.period = period or own
        self.restarts = RestartPolicy(
            scenario.hosts,
            recovery.spares,
            recovery.policy,
            recovery.detect,
            recovery.restart,
            restore_seconds(scenario),
            reread_seconds(scenario) if recovery.reread else 0.0,
            failures.in_place if failures is not None else (),
        )

    @property
    def between(self) -> float:
        """s between two faults of the hosts of the job; infinite where none fails."""
        if self._failures is None:
            return math.inf
        return DAY / max(self._failures.expected_faults(self.restarts.hosts, DAY), 1e-300)

    def work(self, epochs: int) -> float:
        """s of training of so many epochs."""
        of = self._epoch
        return float(of["staging_s"] + of["first_s"] + (epochs - 1) * of["steady_s"])

    def trained(self, useful: float) -> float:
        """Epochs that ``useful`` s of training are."""
        first = float(self._epoch["staging_s"] + self._epoch["first_s"])
        if useful < first:
            return useful / first
        return 1.0 + (useful - first) / float(self._epoch["steady_s"])

    def saves(self, period: float) -> Saves:
        """What saving takes with a period of training (s) between two saves."""
        plain = self._scenario.workload
        checkpoint = plain.checkpoint.model_copy(update={"period": period, "every": None})  # type: ignore[union-attr]
        workload = plain.model_copy(update={"checkpoint": checkpoint})
        scenario = self._scenario.model_copy(update={"workload": workload})
        usable = save_seconds(scenario) + drain_seconds(scenario)
        return Saves(period, stall_seconds(scenario), usable)

    def courses(self, seeds: int, length: float, tell: Tell) -> list[JobCourse]:
        """A course of ``length`` s for each seed."""
        if self._failures is not None:
            hosts = self.restarts.hosts + self.restarts.spares
            expected = seeds * self._failures.expected_faults(hosts, length)
            if expected > MOST_FAULTS:
                rule = f"must have at most {MOST_FAULTS:g} faults in all months"
                remedy = "Use fewer seeds or days, or a longer failures.mean_between."
                refuse("failures", rule, f"{expected:.3g}", remedy, self._scenario.name)
        found = []
        for seed in range(seeds):
            found.append(self._course(seed, length))
            tell((seed + 1) / (seeds + 1))
        return found

    def _course(self, seed: int, length: float) -> JobCourse:
        hosts = self.restarts.hosts + self.restarts.spares
        rng = stream(self._scenario.seed + seed, "failures")
        none = np.zeros(0)
        faults = Faults(none.astype(int), none, none, none.astype(int), ())
        if self._failures is not None:
            faults = self._failures.draw(rng, hosts, length)
        return follow_job(faults, self.restarts, length)

    def until(self, seed: int, of: JobCourse, work: float) -> JobCourse:
        """The course of a seed until ``work`` s of training are done; ``of`` is one that may be too
        short."""
        saves = self.saves(self.period)
        while math.isinf(end := completion_time(of, saves, work)):
            if of.length > LOST_FOR_EVER * work:
                rule = f"must end within {LOST_FOR_EVER:g} times its length without failures"
                useful = time_by_category(of, saves)[:, TRAINING].sum() / of.length
                found = f"{100 * useful:.2g} % useful"
                remedy = "Use a shorter --period, more spares, or fewer failures."
                problem = Problem("--epochs", rule, found, remedy)
                raise ScenarioError(problem, self._scenario.name)
            of = self._course(seed, 2 * of.length)
        return truncate_course(of, end)

    def row(self, seed: int, of: JobCourse, saves: Saves) -> dict[str, Any]:
        """What became of the days of a seed."""
        seconds = time_by_category(of, saves).sum(axis=0)
        days = dict(zip((f"{name}_days" for name in CATEGORIES), seconds / DAY, strict=True))
        useful = float(seconds[TRAINING])
        return {
            "seed": self._scenario.seed + seed,
            "days": of.length / DAY,
            **{name: float(value) for name, value in days.items()},
            "goodput": useful / of.length,
            "interruptions": int(np.count_nonzero(of.cause >= 0)),
            "epochs": self.trained(useful),
        }

    def tried(self, courses: Sequence[JobCourse]) -> list[dict[str, Any]]:
        """Every period that is tried in the same months, by its length; Daly's, Young's, the one in
        use, and the best of these three and of the fit to the others (`best_period`) among them."""
        stall, between = self.saves(1e3 * self.period).stall_s, self.between
        known = {"used": self.period}
        if math.isfinite(between) and stall > 0:
            known |= {"daly": daly(stall, between), "young": young(stall, between)}
        around = known.get("daly", self.period) * GRID
        goodput = [self._goodput(courses, period) for period in around]
        found = [("grid", *each) for each in zip(around, goodput, strict=True)]
        named = [(name, of, self._goodput(courses, of)) for name, of in known.items()]
        found += named
        if "daly" in known:
            fitted = best_period(around.tolist(), [float(of.mean()) for of in goodput])
            candidates = [("best", fitted, self._goodput(courses, fitted)), *named]
            found.append(("best", *max(candidates, key=lambda of: float(of[2].mean()))[1:]))
        rows = [self._tried(*each) for each in found]
        return sorted(rows, key=lambda row: (row["period_s"], row["which"]))

    def _goodput(self, courses: Sequence[JobCourse], period: float) -> Floats:
        saves = self.saves(period)
        return np.array(
            [time_by_category(of, saves)[:, TRAINING].sum() / of.length for of in courses]
        )

    def _tried(self, which: str, period: float, goodput: Floats) -> dict[str, Any]:
        low, high = np.quantile(goodput, (0.05, 0.95)).tolist()
        saves, of = self.saves(period), self.restarts
        down = of.detect_s + of.restart_s + of.restore_s
        exact = period / (period + saves.stall_s)
        if math.isfinite(self.between):
            exact = share(period, saves.stall_s, down, self.between)
        row = {"which": which, "period_s": float(period), "goodput": float(goodput.mean())}
        return {**row, "low": low, "high": high, "formula": exact}

    def inputs(self) -> dict[str, Any]:
        """The numbers that the months rest on, in s."""
        of, saves = self.restarts, self.saves(self.period)
        return {
            "hosts": of.hosts,
            "spares": of.spares,
            "policy": of.policy,
            "between_s": self.between if math.isfinite(self.between) else None,
            "period_s": self.period,
            "save_s": saves.usable_s,
            "stall_s": saves.stall_s,
            "detect_s": of.detect_s,
            "restart_s": of.restart_s,
            "restore_s": of.restore_s,
            "reread_s": of.reread_s,
            "first_s": self._epoch["staging_s"] + self._epoch["first_s"],
            "steady_s": self._epoch["steady_s"],
            **self._data(),
            "reads_share": self._epoch["reads_s"] / self._epoch["steady_s"],
            "simulated": self._epoch["epochs"],
        }

    def _data(self) -> dict[str, Any]:
        """What an interruption does to the epoch, where a loader's law says it."""
        found = mean_interruption(self._scenario)
        law = self._recovery.resume
        if found is None or law is None:
            return {"loader": "", **dict.fromkeys(("repeated", "lost", "refused"))}
        return {"loader": law.short_name, **asdict(found)}


def _by_cause(courses: Sequence[JobCourse], saves: Saves) -> list[dict[str, Any]]:
    """Interruptions of a month by their cause, and the days that each cause costs: training that is
    lost, and all until training goes on."""
    count: dict[str, int] = {}
    cost: dict[str, float] = {}
    for of in courses:
        seconds = time_by_category(of, saves)[:, LOST:].sum(axis=1)
        for number, value in zip(of.cause.tolist(), seconds.tolist(), strict=True):
            if number >= 0:
                name = of.causes[number]
                count[name] = count.get(name, 0) + 1
                cost[name] = cost.get(name, 0.0) + value
    months = len(courses)
    return [
        {"cause": name, "interruptions": times / months, "days": cost[name] / DAY / months}
        for name, times in sorted(count.items(), key=lambda item: -cost[item[0]])
    ]

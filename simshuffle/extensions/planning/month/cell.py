"""The months of a run: its failures are drawn, its course is followed, and each period
of checkpoints is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.extensions.planning.month.daly import daly, share, young
from simshuffle.extensions.planning.month.goodput import (
    CATEGORIES,
    LOST,
    TRAINING,
    Saves,
    best_period,
    completion_time,
    time_by_category,
    truncate_course,
)
from simshuffle.extensions.planning.month.hosts import (
    JobCourse,
    RestartPolicy,
    follow_job,
)
from simshuffle.job.plan.checkpoint_bounds import (
    drain_seconds,
    restore_seconds,
    save_seconds,
    stall_seconds,
)
from simshuffle.job.plan.holding import reread_seconds
from simshuffle.job.plan.recovery import mean_interruption
from simshuffle.job.reliability.faults import Faults
from simshuffle.job.reliability.trace import DAY
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.recovery import Recovery
from simshuffle.job.scenario.scenario import Scenario, from_dict
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import stream
from simshuffle.study.cell import Outcome, PlainCell, Tell

PERIOD_GRID = np.geomspace(1 / 16, 16, 49)
"""(49,) periods of the grid, over Daly's: each 12 % above the one before."""
MAX_FAULTS = 3e6
"""Faults of all seeds together: each takes 20 us."""
MAX_SLOWDOWN = 50.0
"""A training that takes so many times as long as it would without failures never ends."""


@dataclass(frozen=True)
class MonthCell(PlainCell):
    """Cell that draws and follows the months of a run."""

    document: Mapping[str, Any]  # scenario as plain values
    # outcome of `simshuffle.extensions.planning.month.epoch.EpochCell`
    epoch: Mapping[str, Any]
    label: str  # name of the run, for people
    days: float | None  # days of each month; None if epochs count
    epochs: int | None  # epochs that are trained in each month; None if days count
    period: float | None  # s of training between checkpoints; the scenario's if None
    seeds: int  # number of months that are drawn

    @property
    def key(self) -> Any:
        """Return what decides the outcome: scenario, epoch, length, period and seeds."""
        length = [self.days, self.epochs, self.period, self.seeds]
        return [identity_of(self.document), dict(self.epoch), *length]

    def run(self, tell: Tell) -> Outcome:
        """Draw and follow the months, and return the rows of every table.

        The outcome has the rows ``days``, ``periods`` and ``causes``, and one row
        ``inputs``, all without their column run. With ``epochs``, each month ends when
        these are trained; the periods are compared before, on months of the length that
        the epochs take without failures.

        Raises:
            InputError: the months would have too many faults, or a training with
                ``epochs`` would hardly ever end.
        """
        scenario = from_dict(self.document, self.label)
        month = Month(scenario, self.epoch, self.period)
        work_seconds = (
            None if self.epochs is None else month.training_seconds(self.epochs)
        )
        course_seconds = work_seconds if self.days is None else self.days * DAY
        assert course_seconds is not None, "one of both is given"  # noqa: S101
        courses = month.draw_courses(self.seeds, course_seconds, tell)
        periods = month.compare_periods(courses)
        if work_seconds is not None:
            courses = [
                month.extend_course(seed, course, work_seconds)
                for seed, course in enumerate(courses)
            ]
        saves = month.saves(month.period)
        days = [
            month.seed_row(seed, course, saves) for seed, course in enumerate(courses)
        ]
        causes = _interruptions_by_cause(courses, saves)
        return Outcome(
            {
                "days": days,
                "periods": periods,
                "causes": causes,
                "inputs": month.inputs(),
            }
        )


class PeriodGoodput(NamedTuple):
    """A period of checkpoints and the goodput that it gives in the drawn months."""

    name: str  # one of `simshuffle.extensions.planning.month.tables.WHICH`
    period: float  # s of training between two checkpoints
    goodputs: Floats  # (seeds,) share of the time that is useful


class Month:
    """The model of a scenario whose months are drawn: its epochs, failures, saves and
    restarts.
    """

    def __init__(
        self, scenario: Scenario, epoch: Mapping[str, Any], period: float | None = None
    ) -> None:
        """Read the failures, the checkpoints and the recovery of a scenario.

        Args:
            scenario: the scenario, with a checkpoint.
            epoch: the outcome of `EpochCell`.
            period: s of training between two checkpoints; the scenario's if None. A
                number of iterations counts as these in a steady epoch.
        """
        self._scenario = scenario
        self._epoch = epoch
        self._recovery = recovery = scenario.recovery or Recovery()
        self._failures = failures = scenario.failures
        checkpoint = scenario.workload.checkpoint
        assert checkpoint is not None, "the request has seen it"  # noqa: S101
        iteration_seconds = float(epoch["steady_s"]) / int(epoch["iterations"])
        scenario_period = (
            checkpoint.period or (checkpoint.every or 1) * iteration_seconds
        )
        self.period = period or scenario_period
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
    def seconds_between_faults(self) -> float:
        """Return the mean time (s) between two faults of the hosts of the job, without
        spares; infinite where the scenario has no failures.
        """
        if self._failures is None:
            return math.inf
        faults = self._failures.expected_faults(self.restarts.hosts, DAY)
        return DAY / faults if faults else math.inf

    def training_seconds(self, epochs: int) -> float:
        """Return the s of training that staging and ``epochs`` epochs take, without
        failures and saves.
        """
        epoch = self._epoch
        return float(
            epoch["staging_s"] + epoch["first_s"] + (epochs - 1) * epoch["steady_s"]
        )

    def count_epochs(self, useful_seconds: float) -> float:
        """Return the number of epochs, with a fraction, that ``useful_seconds`` s of
        training are.

        The first epoch includes the staging; every further one is a steady one.
        """
        first_seconds = float(self._epoch["staging_s"] + self._epoch["first_s"])
        if useful_seconds < first_seconds:
            return useful_seconds / first_seconds
        return 1.0 + (useful_seconds - first_seconds) / float(self._epoch["steady_s"])

    def saves(self, period: float) -> Saves:
        """Return the saves with ``period`` s of training between two, whatever the
        scenario has.

        They have the stall of a save, and the s until no failure can undo it.
        """
        scenario_workload = self._scenario.workload
        saved = scenario_workload.checkpoint
        assert saved is not None, "the request has seen it"  # noqa: S101
        checkpoint = saved.model_copy(update={"period": period, "every": None})
        workload = scenario_workload.model_copy(update={"checkpoint": checkpoint})
        scenario = self._scenario.model_copy(update={"workload": workload})
        usable_seconds = save_seconds(scenario) + drain_seconds(scenario)
        return Saves(period, stall_seconds(scenario), usable_seconds)

    def draw_courses(
        self, seeds: int, course_seconds: float, tell: Tell
    ) -> list[JobCourse]:
        """Draw a course of ``course_seconds`` s for each seed; report the progress.

        The k-th course, from 0, is drawn with the scenario's seed + k: drawn again it
        is equal. Spare hosts fail, too. Without failures nothing is drawn.

        Raises:
            InputError: the months would have more than `MAX_FAULTS` faults.
        """
        if self._failures is not None:
            hosts = self.restarts.hosts + self.restarts.spares
            expected_faults = seeds * self._failures.expected_faults(
                hosts, course_seconds
            )
            if expected_faults > MAX_FAULTS:
                rule = f"must have at most {MAX_FAULTS:g} faults in all months"
                remedy = "Use fewer seeds or days, or a longer failures.mean_between."
                refuse(
                    "failures",
                    rule,
                    f"{expected_faults:.3g}",
                    remedy,
                    self._scenario.name,
                )
        courses = []
        for seed in range(seeds):
            courses.append(self._draw_course(seed, course_seconds))
            tell((seed + 1) / (seeds + 1))
        return courses

    def _draw_course(self, seed: int, course_seconds: float) -> JobCourse:
        """Draw the faults of a seed and follow the job for ``course_seconds`` s."""
        hosts = self.restarts.hosts + self.restarts.spares
        rng = stream(self._scenario.seed + seed, "failures")
        no_times = np.zeros(0)
        faults = Faults(
            no_times.astype(int), no_times, no_times, no_times.astype(int), ()
        )
        if self._failures is not None:
            faults = self._failures.draw(rng, hosts, course_seconds)
        return follow_job(faults, self.restarts, course_seconds)

    def extend_course(
        self, seed: int, course: JobCourse, work_seconds: float
    ) -> JobCourse:
        """Return the course of a seed up to the end of ``work_seconds`` s of useful
        training.

        Args:
            seed: index of the seed.
            course: a course of that seed; if it is too short, it is drawn anew at twice
                the length, until it is long enough. If it is too long, it is cut off.
            work_seconds: s of useful training.

        Raises:
            ScenarioError: the course would last more than `MAX_SLOWDOWN` times the
                work.
        """
        saves = self.saves(self.period)
        while math.isinf(end_seconds := completion_time(course, saves, work_seconds)):
            if course.length > MAX_SLOWDOWN * work_seconds:
                rule = (
                    f"the training must end within {MAX_SLOWDOWN:g} times its length without"
                    " failures"
                )
                useful_share = (
                    time_by_category(course, saves)[:, TRAINING].sum() / course.length
                )
                useful_text = f"{100 * useful_share:.2g} % of the time useful"
                remedy = "Use a shorter --period, more spares, or fewer failures."
                problem = Problem("--epochs", rule, useful_text, remedy)
                raise ScenarioError(problem, self._scenario.name)
            course = self._draw_course(seed, 2 * course.length)
        return truncate_course(course, end_seconds)

    def seed_row(self, seed: int, course: JobCourse, saves: Saves) -> dict[str, Any]:
        """Return the row of table ``days`` for a seed, without its run.

        It has the days of each category, goodput (share), interruptions and epochs
        (with a fraction); the seed is counted from the scenario's.
        """
        seconds = time_by_category(course, saves).sum(axis=0)
        days = dict(
            zip((f"{name}_days" for name in CATEGORIES), seconds / DAY, strict=True)
        )
        useful_seconds = float(seconds[TRAINING])
        return {
            "seed": self._scenario.seed + seed,
            "days": course.length / DAY,
            **{name: float(value) for name, value in days.items()},
            "goodput": useful_seconds / course.length,
            "interruptions": int(np.count_nonzero(course.cause >= 0)),
            "epochs": self.count_epochs(useful_seconds),
        }

    def formula_periods(self) -> dict[str, float]:
        """Return the periods (s) between saves by the formulas of Daly and Young, as
        'daly' and 'young'; {} where hosts never fail or a save stalls nothing.
        """
        stall_seconds = self.saves(1e3 * self.period).stall_s
        fault_seconds = self.seconds_between_faults
        if stall_seconds <= 0 or not math.isfinite(fault_seconds):
            return {}
        return {
            "daly": daly(stall_seconds, fault_seconds),
            "young": young(stall_seconds, fault_seconds),
        }

    def compare_periods(self, courses: Sequence[JobCourse]) -> list[dict[str, Any]]:
        """Evaluate every period in the drawn months: the rows of table ``periods``.

        The periods are a grid around Daly's (or the one in use), the one in use, and
        where hosts fail and a save stalls Daly's and Young's. ``best`` is then the best
        of the last three and of the fit to the grid (`best_period`). Rows are in the
        order of periods.
        """
        named_periods = {"used": self.period, **self.formula_periods()}

        # periods with the goodput of each seed, (seeds,)
        grid = [
            PeriodGoodput("grid", period, self._seed_goodputs(courses, period))
            for period in named_periods.get("daly", self.period) * PERIOD_GRID
        ]
        named_results = [
            PeriodGoodput(name, period, self._seed_goodputs(courses, period))
            for name, period in named_periods.items()
        ]
        evaluated = [*grid, *named_results]

        if "daly" in named_periods:
            fitted = best_period(
                [float(candidate.period) for candidate in grid],
                [float(candidate.goodputs.mean()) for candidate in grid],
            )
            fit = PeriodGoodput("best", fitted, self._seed_goodputs(courses, fitted))
            best = max(
                [fit, *named_results],
                key=lambda candidate: float(candidate.goodputs.mean()),
            )
            evaluated.append(best._replace(name="best"))
        rows = [self._period_row(candidate) for candidate in evaluated]
        return sorted(rows, key=lambda row: (row["period_s"], row["which"]))

    def _seed_goodputs(self, courses: Sequence[JobCourse], period: float) -> Floats:
        """Return (seeds,) the goodput (share of useful training) of each course with
        ``period`` s of training between checkpoints.
        """
        saves = self.saves(period)
        return np.array(
            [
                time_by_category(course, saves)[:, TRAINING].sum() / course.length
                for course in courses
            ]
        )

    def _period_row(self, candidate: PeriodGoodput) -> dict[str, Any]:
        """Return the row of table ``periods`` for a period of checkpoints, with Daly's
        formula beside it.

        Goodput is the mean over seeds, low and high are its 5 % and 95 % quantiles.
        Without failures the formula leaves out nothing but the stalls.
        """
        period = candidate.period
        goodputs = candidate.goodputs
        low, high = np.quantile(goodputs, (0.05, 0.95)).tolist()
        saves = self.saves(period)
        restarts = self.restarts
        down_seconds = restarts.detect_s + restarts.restart_s + restarts.restore_s
        formula_goodput = period / (period + saves.stall_s)
        if math.isfinite(self.seconds_between_faults):
            formula_goodput = share(
                period, saves.stall_s, down_seconds, self.seconds_between_faults
            )
        return {
            "which": candidate.name,
            "period_s": float(period),
            "goodput": float(goodputs.mean()),
            "low": low,
            "high": high,
            "formula": formula_goodput,
        }

    def inputs(self) -> dict[str, Any]:
        """Return the numbers that the months rest on: the row of table ``inputs``,
        without its run.

        Times are in s; between_s is None without failures. first_s has the staging in
        it, reads_share is of the steady epoch, and simulated counts epochs.
        """
        restarts = self.restarts
        saves = self.saves(self.period)
        between_s = self.seconds_between_faults
        return {
            "hosts": restarts.hosts,
            "spares": restarts.spares,
            "policy": restarts.policy,
            "between_s": between_s if math.isfinite(between_s) else None,
            "period_s": self.period,
            "save_s": saves.usable_s,
            "stall_s": saves.stall_s,
            "detect_s": restarts.detect_s,
            "restart_s": restarts.restart_s,
            "restore_s": restarts.restore_s,
            "reread_s": restarts.reread_s,
            "first_s": self._epoch["staging_s"] + self._epoch["first_s"],
            "steady_s": self._epoch["steady_s"],
            **self._loader_inputs(),
            "reads_share": self._epoch["reads_s"] / self._epoch["steady_s"],
            "simulated": self._epoch["epochs"],
        }

    def _loader_inputs(self) -> dict[str, Any]:
        """Return the loader, and the shares of the data set that an interruption costs.

        They are means over the moments at which a failure may come. ``repeated``,
        ``lost`` and ``refused`` are None, and the loader '', where no law of a loader
        says them.
        """
        interruption = mean_interruption(self._scenario)
        resume_law = self._recovery.resume
        if interruption is None or resume_law is None:
            return {"loader": "", **dict.fromkeys(("repeated", "lost", "refused"))}
        return {"loader": resume_law.short_name, **asdict(interruption)}


def _interruptions_by_cause(
    courses: Sequence[JobCourse], saves: Saves
) -> list[dict[str, Any]]:
    """Return the rows of table ``causes``: mean interruptions of a month and their
    days.

    Means are over ``courses``. The days are lost training, and all time until training
    goes on. The cause that costs most comes first; a cause that never interrupts is
    left out.
    """
    interruptions_by_cause: dict[str, int] = {}
    seconds_by_cause: dict[str, float] = {}
    for course in courses:
        seconds = time_by_category(course, saves)[:, LOST:].sum(axis=1)
        for cause_index, lost_seconds in zip(
            course.cause.tolist(), seconds.tolist(), strict=True
        ):
            if cause_index >= 0:
                name = course.causes[cause_index]
                interruptions_by_cause[name] = interruptions_by_cause.get(name, 0) + 1
                seconds_by_cause[name] = seconds_by_cause.get(name, 0.0) + lost_seconds
    num_months = len(courses)
    return [
        {
            "cause": name,
            "interruptions": num_interruptions / num_months,
            "days": seconds_by_cause[name] / DAY / num_months,
        }
        for name, num_interruptions in sorted(
            interruptions_by_cause.items(), key=lambda item: -seconds_by_cause[item[0]]
        )
    ]

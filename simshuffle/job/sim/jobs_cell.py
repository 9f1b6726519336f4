"""Jobs side by side as one cell, from which each has an outcome like that of a run alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from simshuffle.errors import InputError
from simshuffle.job.plan.effort import SHARED_NBYTES, Effort, effort
from simshuffle.job.scenario.scenario import Scenario, from_dict
from simshuffle.job.sim.cell import NAMELESS, TABLES, TIMELINES, Reporting, RunCell, give_back
from simshuffle.job.sim.faults import Row
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.long_table import LazyTables, get_long
from simshuffle.study.store import TABLE


@dataclass(frozen=True)
class JobsCell(RunCell):
    """A scenario with jobs, all of which name their hosts."""

    @cached_property
    def _jobs(self) -> dict[str, Scenario]:
        return self.scenario.of_jobs()

    @property
    def _efforts(self) -> list[Effort]:
        """Those of its jobs; none where the scenario is not valid: that is said at once."""
        try:
            return [effort(one) for one in from_dict(self.document, self.label).of_jobs().values()]
        except InputError:
            return []

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return sum(of.seconds for of in self._efforts)

    @property
    def timed_as(self) -> str:
        """As for `Cell`."""
        return "jobs"

    @property
    def memory(self) -> float:
        """As for `Cell`: what every job adds to a process."""
        return sum(of.nbytes - SHARED_NBYTES for of in self._efforts)

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        names = (*TIMELINES[self.timeline][:1], *TABLES[1:])
        return frozenset(
            f"{_part(job, name)}{TABLE}" for job in self.document["jobs"] for name in names
        )

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the values of each job under its name, and its tables behind it."""
        self.hold_little()
        reporting = {name: Reporting(one, self.timeline) for name, one in self._jobs.items()}
        nameless = dict.fromkeys(reporting, NAMELESS)
        struck: list[Row] = []
        for job, timeline in simulate_jobs(self.scenario, nameless, tell, struck):
            give_back()  # before tables are made of it
            reporting[job].add(timeline)
            del timeline  # the next epoch needs its room
            give_back()
        for of in reporting.values():
            of.struck += struck
        outcomes = {job: of.outcome() for job, of in reporting.items()}
        for job, record in (self.scenario.jobs or {}).items():
            outcomes[job].values["facts"]["start_s"] = record.start
        tables = {
            _part(job, name): get_long(of.tables, name)
            for job, of in outcomes.items()
            for name in of.tables
        }
        return Outcome({job: dict(of.values) for job, of in outcomes.items()}, LazyTables(tables))


def of_job(outcome: Outcome, job: str) -> Outcome:
    """What a job has of the outcome of a `JobsCell`, like that of a `RunCell`."""
    head = _part(job, "")
    tables = {
        name.removeprefix(head): get_long(outcome.tables, name)
        for name in outcome.tables
        if name.startswith(head)
    }
    values: Mapping[str, object] = outcome.values[job]
    return Outcome(values, LazyTables(tables), lost=outcome.lost)


def _part(job: str, table: str) -> str:
    """The name of a table of a job; names of jobs have no dot."""
    return f"{job}.{table}"

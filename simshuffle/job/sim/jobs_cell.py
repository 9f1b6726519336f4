"""Jobs side by side as one cell, from which each has an outcome like that of a run
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simshuffle.errors import InputError
from simshuffle.job.plan.effort import SHARED_NBYTES, Effort, effort
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.job.sim.cell import (
    NAMELESS,
    TABLES,
    TIMELINES,
    Reporting,
    RunCell,
    give_back,
)
from simshuffle.job.sim.faults import Row
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.long_table import LazyTables, get_long
from simshuffle.study.store import TABLE


@dataclass(frozen=True)
class JobsCell(RunCell):
    """A scenario with jobs, all of which name their hosts.

    Tables are kept of all jobs: ``with_tables`` has no effect.
    """

    @property
    def _efforts(self) -> list[Effort]:
        """The efforts of the jobs; none where the scenario is not valid, which is
        reported at once.
        """
        try:
            return [
                effort(job)
                for job in from_dict(self.document, self.label).of_jobs().values()
            ]
        except InputError:
            return []

    @property
    def cost(self) -> float:
        """Seconds of one core that all jobs are expected to take; 0 where the scenario
        is not valid.
        """
        return sum(job_effort.seconds for job_effort in self._efforts)

    @property
    def timed_as(self) -> str:
        """The kind of run: several jobs."""
        return "jobs"

    @property
    def memory(self) -> float:
        """Bytes that all jobs add to a process, beyond those that processes share; 0
        where the scenario is not valid.
        """
        return sum(job_effort.nbytes - SHARED_NBYTES for job_effort in self._efforts)

    @property
    def parts(self) -> frozenset[str]:
        """The names of the tables that the outcome holds: JOB.TABLE, and the ending of
        tables.

        The timeline is that of ``timeline``; none for 'none'.
        """
        names = (*TIMELINES[self.timeline][:1], *TABLES[1:])
        return frozenset(
            f"{_part(job, name)}{TABLE}"
            for job in self.document["jobs"]
            for name in names
        )

    def run(self, tell: Tell) -> Outcome:
        """Simulate all jobs; return the values of each job under its name, and its
        tables as JOB.TABLE.

        Values are those of a `RunCell`, with the fact ``start_s``, s at which the job
        begins. Every job has all faults of the machine. ``tell`` is called with the
        share done.

        Raises:
            SimshuffleError: the scenario is not valid, or a job is refused.
        """
        self.hold_little()
        reporting = {
            name: Reporting(scenario, self.timeline)
            for name, scenario in self.scenario.of_jobs().items()
        }
        nameless = dict.fromkeys(reporting, NAMELESS)
        struck: list[Row] = []
        for job, timeline in simulate_jobs(self.scenario, nameless, tell, struck):
            give_back()  # before tables are made of it
            reporting[job].add(timeline)
            del timeline  # the next epoch needs its room
            give_back()
        for job_reporting in reporting.values():
            job_reporting.struck += struck
        outcomes = {
            job: job_reporting.outcome() for job, job_reporting in reporting.items()
        }
        for job, record in (self.scenario.jobs or {}).items():
            outcomes[job].values["facts"]["start_s"] = record.start
        tables = {
            _part(job, name): get_long(job_outcome.tables, name)
            for job, job_outcome in outcomes.items()
            for name in job_outcome.tables
        }
        return Outcome(
            {job: dict(job_outcome.values) for job, job_outcome in outcomes.items()},
            LazyTables(tables),
        )


def of_job(outcome: Outcome, job: str) -> Outcome:
    """Return the part of a job in a `JobsCell`'s outcome, like the outcome of a
    `RunCell`.

    Tables have their names without the job's. A lost outcome has no values.
    """
    head = _part(job, "")
    tables = {
        name.removeprefix(head): get_long(outcome.tables, name)
        for name in outcome.tables
        if name.startswith(head)
    }
    values: Mapping[str, object] = {} if outcome.lost else outcome.values[job]
    return Outcome(values, LazyTables(tables), lost=outcome.lost)


def _part(job: str, table: str) -> str:
    """Return the name of a table of a job: JOB.TABLE; names of jobs have no dot."""
    return f"{job}.{table}"

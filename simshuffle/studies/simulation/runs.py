"""What is simulated: runs by name, each by itself or as a job beside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NotRequired

from typing_extensions import TypedDict

from simshuffle.errors import InputError
from simshuffle.job.plan.hidden import PARTIAL, largest_hidden_fraction
from simshuffle.job.plan.jobs import isolate_job, place_jobs
from simshuffle.job.plan.warming import warming_sentence
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.sim.jobs_cell import JobsCell, of_job
from simshuffle.report import intervals
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.report import Booking
from simshuffle.spec.overrides import combination_name
from simshuffle.studies.simulation.jobs import ALONE
from simshuffle.study.cell import Outcome
from simshuffle.study.study import Outcomes

MOST_RANKS = 4
"""Numbers of ranks for which a hidden fraction is computed, the largest."""
TOLERANCE = 0.01
"""Share of an epoch that a hidden exchange may add, as of ``simshuffle study hiding``."""


class HostWaitedFor(TypedDict):
    """Seconds that others wait for a host, by what it does."""

    host: str
    label: str
    seconds: float


class RunMeta(TypedDict):
    """Facts on a run in ``meta.json``."""

    storage_per_host_nbytes: float
    staged_to: str | None
    staging_s: float
    start_s: NotRequired[float]  # of a job, when its first epoch begins
    routing: NotRequired[str]
    slow_cables: NotRequired[dict[str, Any]]
    killed: NotRequired[dict[str, Any]]
    faults: NotRequired[list[dict[str, Any]]]
    losses: NotRequired[list[dict[str, Any]]]
    completeness: NotRequired[list[dict[str, Any]]]
    extrapolated: NotRequired[list[str]]
    waited_for: NotRequired[list[HostWaitedFor]]


class HiddenFraction(TypedDict):
    """Largest exchanged fraction that is hidden, and the schedule."""

    fraction: float
    schedule: str


class SimulationMeta(TypedDict):
    """Facts on a simulation in ``meta.json``."""

    runs: dict[str, RunMeta]
    hidden: NotRequired[dict[str, HiddenFraction]]
    not_steady: NotRequired[str]
    labels: NotRequired[Booking]
    timeline: NotRequired[KeptRanks]
    seeds: NotRequired[int]  # there, where there are several
    interval: NotRequired[bool]
    ranges: NotRequired[dict[str, list[float]]]
    intervals: NotRequired[intervals.Intervals]


@dataclass(frozen=True)
class SimulatedRuns:
    """What is simulated."""

    # without sweep and jobs, by the name of the run, each with its first seed
    scenarios: Mapping[str, Scenario]
    timeline: KeptRanks = "full"  # the ranks of which the timeline is kept
    seeds: int = 1  # of each run
    # of inputs, by dotted key, lowest and highest (SI units); None without intervals
    ranges: Mapping[str, tuple[float, float]] | None = None
    # scenarios with jobs, by the name of their cell; of runs that are jobs the cell and the job
    machines: Mapping[str, Scenario] = field(default_factory=dict)
    jobs: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def cells(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The name of each cell, its run, and of several seeds the seed, which is a column of its
        tables then. The seeds of a run are one after another."""
        for run, single in self.scenarios.items():
            if run in self.jobs:
                yield self.jobs[run][0], run, {}
                continue
            for number in range(single.seed, single.seed + self.seeds):
                seed = {"seed": number} if self.seeds > 1 else {}
                yield f"{run} {combination_name(seed)}".rstrip(), run, seed

    def cell_of(self, name: str, run: str, seed: Mapping[str, Any]) -> RunCell:
        """A cell, as `cells` names it."""
        if run in self.jobs:
            return JobsCell(self.machines[name].to_dict(), name, timeline=self.timeline)
        plain = self.scenarios[run].to_dict()
        return RunCell({**plain, **seed}, name, timeline=self.timeline)

    def outcome(self, outcomes: Outcomes, name: str, run: str) -> Outcome:
        """What a run has of the outcome of its cell."""
        return of_job(outcomes[name], self.jobs[run][1]) if run in self.jobs else outcomes[name]


def side_by_side(runs: Mapping[str, Scenario]) -> tuple[dict[str, Scenario], SimulatedRuns]:
    """The jobs of ``runs`` as runs of their own: each beside the others, and alone on the same
    hosts. Returns all runs without jobs, and the cells of those that are jobs.

    Raises:
        ScenarioError: a job cannot be placed.
        TopologyError: as `simshuffle.job.plan.jobs.settled`.
    """
    singles, machines, jobs = dict[str, Scenario](), dict[str, Scenario](), {}
    for label, scenario in runs.items():
        if scenario.jobs is None:
            singles[label] = scenario
            continue
        behind = f" {label}" if len(runs) > 1 else ""
        placed = place_jobs(scenario)
        machines[together := f"together{behind}"] = placed
        for job, single in placed.of_jobs().items():
            for run, cell in ((f"{job}{behind}", together), (f"{job}{behind}{ALONE}",) * 2):
                singles[run], jobs[run] = single, (cell, job)
            machines[f"{job}{behind}{ALONE}"] = isolate_job(placed, job)
    return singles, SimulatedRuns(singles, machines=machines, jobs=jobs)


def facts_by_forms(runs: SimulatedRuns, seconds: Mapping[Any, float]) -> dict[str, Any]:
    """Return what closed forms say beside the simulation, as ``meta.json`` has it: what stays
    hidden, and that later epochs differ. ``seconds``: of the last epoch of each run."""
    steady = "" if runs.jobs else warming_sentence(runs.scenarios, seconds)
    found = {"hidden": hidden_fractions(runs), "not_steady": steady}
    return {name: fact for name, fact in found.items() if fact}


def hidden_fractions(runs: SimulatedRuns) -> dict[str, Any]:
    """Return the largest exchanged fraction that stays hidden, and its schedule, by the number of
    ranks, of the most ranks.

    The exchange is that of a run on as many ranks, or partial local shuffle where none exchanges a
    fraction. Nothing is said of jobs and of runs with faults, of which closed forms know nothing.
    """
    scenarios: dict[int, Scenario] = {}
    for single in [] if runs.jobs else runs.scenarios.values():
        known = scenarios.get(single.world_size)
        is_better = known is None or not known.workload.exchange.fraction
        if is_better and _has_closed_form(single):
            scenarios[single.world_size] = single
    found = {}
    for ranks in sorted(scenarios)[-MOST_RANKS:]:
        single = scenarios[ranks]
        with suppress(InputError):  # the hosts may have no room for a shard
            if not single.workload.exchange.fraction:
                single = single.with_values({"workload.exchange": PARTIAL})
            schedule = single.workload.exchange.exchange_schedule
            found[str(ranks)] = {
                "fraction": largest_hidden_fraction(single, TOLERANCE),
                "schedule": "" if schedule is None else schedule.name,
            }
    return found


def _has_closed_form(single: Scenario) -> bool:
    by_data = single.workload.parallelism.is_data_parallel
    return single.world_size > 1 and by_data and not (single.faults or single.failures)

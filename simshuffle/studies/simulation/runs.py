"""The runs that a simulation consists of, each by itself or as a job beside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NotRequired

from typing_extensions import TypedDict

from simshuffle.errors import InputError
from simshuffle.job.plan.hidden import PARTIAL, largest_hidden_fraction
from simshuffle.job.plan.jobs import isolate_job, place_jobs
from simshuffle.job.plan.warming import warming_sentence
from simshuffle.job.scenario.measured import MeasuredScenario
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.sim.jobs_cell import JobsCell, of_job
from simshuffle.report import intervals
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.report import Booking
from simshuffle.spec.overrides import combination_name
from simshuffle.studies.simulation.jobs import ISOLATED_SUFFIX
from simshuffle.study.cell import Outcome
from simshuffle.study.study import Outcomes

MAX_WORLD_SIZES = 4
"""Number of world sizes, the largest ones, for which a hidden fraction is computed."""
HIDDEN_TOLERANCE = 0.01
"""Share of an epoch that a hidden exchange may add, as of ``simshuffle study hiding``."""


class HostWaitedFor(TypedDict):
    """Seconds for which ranks wait for a host, with the label that its ranks spend
    longer in.
    """

    host: str
    label: str
    seconds: float  # of an epoch, mean over ranks, beyond the median of the other hosts


class RunMeta(TypedDict):
    """Facts on a run in ``meta.json``."""

    storage_per_host_nbytes: float  # of samples
    staged_to: str | None  # 'memory' or 'ssd'; None if hosts hold no samples
    staging_s: float  # 0 for none
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

    fraction: float  # Q; 0 if none is
    schedule: str  # its name; '' for none


class SimulationMeta(TypedDict):
    """Facts on a simulation in ``meta.json``."""

    runs: dict[str, RunMeta]  # by name
    hidden: NotRequired[dict[str, HiddenFraction]]  # by number of ranks, as text
    not_steady: NotRequired[str]  # sentence on epochs after the last that differ
    labels: NotRequired[Booking]
    timeline: NotRequired[KeptRanks]
    seeds: NotRequired[int]  # there, where there are several
    interval: NotRequired[bool]
    ranges: NotRequired[dict[str, list[float]]]
    intervals: NotRequired[intervals.Intervals]


@dataclass(frozen=True)
class SimulatedRuns:
    """The request of a simulation: its runs, seeds, and cells."""

    # scenario of each run without sweep and jobs and with its first seed, by the name of the run
    scenarios: Mapping[str, Scenario]
    timeline: KeptRanks = "full"  # ranks of which the timeline is stored
    seeds: int = 1  # seeds of each run
    # lowest and highest value of inputs (SI units), by dotted key; None without intervals
    ranges: Mapping[str, tuple[float, float]] | None = None
    # runs that were measured, which are predicted, too
    measured: Sequence[MeasuredScenario] = ()
    # scenarios with jobs, by the name of their cell
    machines: Mapping[str, Scenario] = field(default_factory=dict)
    # name of the cell and of the job, by the name of each run that is a job
    jobs: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def cells(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the name of each cell, its run, and its seed as a column of its tables.

        The column is {} where a run has one seed, else {'seed': number}. Seeds count
        from the scenario's own on. Jobs that run together are several runs of one cell.
        A run that is a job is yielded once, with {}, whatever ``seeds`` is.
        """
        for run, scenario in self.scenarios.items():
            if run in self.jobs:
                yield self.jobs[run][0], run, {}
                continue
            for seed in range(scenario.seed, scenario.seed + self.seeds):
                seed_column = {"seed": seed} if self.seeds > 1 else {}
                yield (
                    f"{run} {combination_name(seed_column)}".rstrip(),
                    run,
                    seed_column,
                )

    def cell_of(self, name: str, run: str, seed_column: Mapping[str, Any]) -> RunCell:
        """Return the cell that `cells` names; the arguments are what `cells` yields."""
        if run in self.jobs:
            return JobsCell(self.machines[name].to_dict(), name, timeline=self.timeline)
        document = self.scenarios[run].to_dict()
        return RunCell({**document, **seed_column}, name, timeline=self.timeline)

    def outcome(self, outcomes: Outcomes, name: str, run: str) -> Outcome:
        """Return the part of a cell's outcome that belongs to a run.

        It is the whole outcome unless the run is a job.
        """
        return (
            of_job(outcomes[name], self.jobs[run][1])
            if run in self.jobs
            else outcomes[name]
        )


def divide_jobs(
    runs: Mapping[str, Scenario],
) -> tuple[dict[str, Scenario], SimulatedRuns]:
    """Divide scenarios with jobs into runs: each job on its hosts, once beside the
    other jobs and once in isolation.

    Returns:
        All runs, by name, each without jobs of its own; and the request of these runs,
        with ``machines`` and ``jobs`` filled. A run of a job has the job's name, and
        behind a space the name of its scenario, if there are several scenarios; that in
        isolation ends in `ISOLATED_SUFFIX`, too. A scenario without jobs is one run.

    Raises:
        ScenarioError: a job cannot be placed.
        TopologyError: as `simshuffle.job.plan.jobs.place_jobs`.
    """
    scenarios: dict[str, Scenario] = {}
    machines: dict[str, Scenario] = {}
    jobs: dict[str, tuple[str, str]] = {}
    for run_name, scenario in runs.items():
        if scenario.jobs is None:
            scenarios[run_name] = scenario
            continue
        run_suffix = f" {run_name}" if len(runs) > 1 else ""
        placed_jobs = place_jobs(scenario)
        joint_cell = f"together{run_suffix}"
        machines[joint_cell] = placed_jobs
        for job, job_scenario in placed_jobs.of_jobs().items():
            joint_run = f"{job}{run_suffix}"
            isolated_run = f"{joint_run}{ISOLATED_SUFFIX}"
            for run, cell in ((joint_run, joint_cell), (isolated_run, isolated_run)):
                scenarios[run] = job_scenario
                jobs[run] = (cell, job)
            machines[isolated_run] = isolate_job(placed_jobs, job)
    return scenarios, SimulatedRuns(scenarios, machines=machines, jobs=jobs)


def closed_form_facts(
    runs: SimulatedRuns, seconds: Mapping[Any, float]
) -> dict[str, Any]:
    """Return the facts by closed forms for ``meta.json``; those that are empty are left
    out.

    ``hidden`` is as of `hidden_fractions`, ``not_steady`` a sentence on later epochs
    that differ. If any run is a job, there are no facts on any run.

    Args:
        runs: the request.
        seconds: s of the last epoch of each run.
    """
    warming = "" if runs.jobs else warming_sentence(runs.scenarios, seconds)
    facts = {"hidden": hidden_fractions(runs), "not_steady": warming}
    return {name: fact for name, fact in facts.items() if fact}


def hidden_fractions(runs: SimulatedRuns) -> dict[str, Any]:
    """Return the largest exchange fraction that stays hidden, and its schedule, by
    world size.

    The exchange is that of a run on as many ranks, or partial local shuffle where none
    exchanges a fraction. Only the `MAX_WORLD_SIZES` largest world sizes count. Keys are
    texts, values those of `HiddenFraction`. Closed forms do not cover faults, failures,
    one rank, model parallelism, and hosts without room: such runs are left out. If any
    run is a job, all are: the result is {}.
    """
    scenarios: dict[int, Scenario] = {}
    for scenario in [] if runs.jobs else runs.scenarios.values():
        chosen = scenarios.get(scenario.world_size)
        is_better = chosen is None or not chosen.workload.exchange.fraction
        if is_better and _has_closed_form(scenario):
            scenarios[scenario.world_size] = scenario
    fractions = {}
    for ranks in sorted(scenarios)[-MAX_WORLD_SIZES:]:
        scenario = scenarios[ranks]
        with suppress(InputError):  # the hosts may have no room for a shard
            if not scenario.workload.exchange.fraction:
                scenario = scenario.with_values({"workload.exchange": PARTIAL})
            schedule = scenario.workload.exchange.exchange_schedule
            fractions[str(ranks)] = {
                "fraction": largest_hidden_fraction(scenario, HIDDEN_TOLERANCE),
                "schedule": "" if schedule is None else schedule.name,
            }
    return fractions


def _has_closed_form(scenario: Scenario) -> bool:
    """Return true if closed forms cover the exchange of a scenario: data parallelism on
    two ranks or more, without faults and failures.
    """
    by_data = scenario.workload.parallelism.is_data_parallel
    return (
        scenario.world_size > 1
        and by_data
        and not (scenario.faults or scenario.failures)
    )

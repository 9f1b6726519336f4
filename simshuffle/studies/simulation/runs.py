"""What is simulated: runs by name, each by itself or as a job beside others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simshuffle.plan.jobs import alone, settled
from simshuffle.results.report import Kept
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.cell import RunCell
from simshuffle.sim.jobs_cell import JobsCell, of_job
from simshuffle.spec.overrides import combination_name
from simshuffle.studies.simulation.jobs import ALONE
from simshuffle.study.cell import Outcome
from simshuffle.study.study import Outcomes


@dataclass(frozen=True)
class Runs:
    """What is simulated."""

    # without sweep and jobs, by the name of the run, each with its first seed
    scenarios: Mapping[str, Scenario]
    timeline: Kept = "full"  # the ranks of which the timeline is kept
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


def side_by_side(runs: Mapping[str, Scenario]) -> tuple[dict[str, Scenario], Runs]:
    """The jobs of ``runs`` as runs of their own: each beside the others, and alone on the same
    hosts. Returns all runs without jobs, and the cells of those that are jobs.

    Raises:
        ScenarioError: a job cannot be placed.
        TopologyError: as `simshuffle.plan.jobs.settled`.
    """
    singles, machines, jobs = dict[str, Scenario](), dict[str, Scenario](), {}
    for label, scenario in runs.items():
        if scenario.jobs is None:
            singles[label] = scenario
            continue
        behind = f" {label}" if len(runs) > 1 else ""
        placed = settled(scenario)
        machines[together := f"together{behind}"] = placed
        for job, single in placed.of_jobs().items():
            for run, cell in ((f"{job}{behind}", together), (f"{job}{behind}{ALONE}",) * 2):
                singles[run], jobs[run] = single, (cell, job)
            machines[f"{job}{behind}{ALONE}"] = alone(placed, job)
    return singles, Runs(singles, machines=machines, jobs=jobs)

"""START HERE. run(scenario): every run of a scenario's sweep is planned, simulated, and reported.

A scenario names a cluster and a workload; every epoch is planned as traffic (`plan`); the plan is
simulated into a timeline (`sim`); the tables and the figure read only the timeline (`report`,
`plots`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simshuffle.errors import Problem, ScenarioError
from simshuffle.plan.summary import extrapolated
from simshuffle.results import report
from simshuffle.results.timeline import Timeline, concatenate
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.simulate import check_size, simulate
from simshuffle.studies.simulation import result as results
from simshuffle.studies.simulation.result import Result

Progress = Callable[[str, float], None]
"""Called with the name of the run and the share of it that is done, from 0 to 1."""


def run(scenario: Scenario | Sequence[Scenario], progress: Progress | None = None) -> Result:
    """Simulate one or more scenarios, each with all runs of its sweep.

    Args:
        scenario: from `simshuffle.load_scenario`.
        progress: told of the progress, if given.

    Returns:
        All tables; call `Result.save` to write them to a folder.

    Raises:
        ScenarioError: two runs have the same name, a value of a sweep is not valid, or a run has
            too many packets.
    """
    scenarios = [scenario] if isinstance(scenario, Scenario) else list(scenario)
    runs = all_runs(scenarios)
    for single in runs.values():  # before the first of them is simulated
        check_size(single)
    timelines = []
    for name, single in runs.items():
        tell = (lambda share, name=name: progress(name, share)) if progress else None
        timelines.append(simulate(single, name, tell))
    timeline = concatenate(timelines)
    epochs = report.epochs(timeline)
    text = resolved_yaml(scenarios)
    return Result(timeline, epochs, report.breakdown(timeline), _meta(runs, timeline, text), text)


def all_runs(scenarios: Sequence[Scenario]) -> dict[str, Scenario]:
    """Every run of every scenario by its name; the scenario's name goes in front where it is needed
    to tell them apart."""
    expanded = [(s.name, s.runs()) for s in scenarios]
    names = [name for _, runs in expanded for name in runs]
    out: dict[str, Scenario] = {}
    for scenario_name, runs in expanded:
        for name, single in runs.items():
            full = name if names.count(name) == 1 else f"{scenario_name} {name}"
            if full in out:
                raise ScenarioError(
                    Problem(
                        "name",
                        "two runs must not be the same",
                        repr(full),
                        "Give the scenarios different names.",
                    )
                )
            out[full] = single
    return out


def resolved_yaml(scenarios: Sequence[Scenario]) -> str:
    """The resolved scenarios, one YAML document each."""
    return "---\n".join(scenario.to_yaml() for scenario in scenarios)


def _meta(runs: dict[str, Scenario], timeline: Timeline, text: str) -> dict[str, Any]:
    return {
        "fingerprint": results.fingerprint(text),
        "versions": results.versions(),
        "runs": {name: _run_meta(name, single, timeline) for name, single in runs.items()},
    }


def _run_meta(name: str, scenario: Scenario, timeline: Timeline) -> dict[str, Any]:
    table = report.epochs(
        Timeline(
            *(t[t["run"] == name] for t in (timeline.phases, timeline.links, timeline.sources))
        )
    )
    beyond = extrapolated(scenario)
    return {
        **({"extrapolated": beyond} if beyond else {}),
        "seed": scenario.seed,
        "hosts": scenario.hosts,
        "iterations": scenario.workload.iterations(scenario.world_size),
        "storage_per_host_nbytes": scenario.storage_per_host,
        "staged_to": scenario.workload.source if scenario.storage_per_host else None,
        "staging_s": float(table["staging_s"].iloc[0]),
        "samples_per_s": table["samples_per_s"].tolist(),
    }

"""How precisely a plan simulates: as exactly as asked, or as much as fits into a minute."""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.job.plan.effort import effort, expected_iterations, first_window
from simshuffle.job.scenario.scenario import Scenario

TOLERANCE = "time_tolerance"
COARSE = 0.05
"""Time tolerance of runs that would take long: windows of a few iterations do."""
LIGHT = 4.0
"""s of one core, by estimate, up to which a run has the tolerance of its scenario all the same."""
MOST_SECONDS = 40.0
"""s of one core, by estimate, that the runs of all strategies may take within a minute; searches
may take as many."""
INPUT_SECONDS = 8.0
"""The same of all runs that the turning points of one input are held against."""
POINT_SECONDS = 4.0
"""The same of all runs of one value at which a turning point is held against simulations."""


def coarse_values(scenario: Scenario, exact: bool) -> dict[str, float]:
    """Return the values, none or a time tolerance, that a run is simulated with."""
    heavy = not exact and scenario.time_tolerance < COARSE and effort(scenario).seconds > LIGHT
    return {TOLERANCE: COARSE} if heavy else {}


def seconds_of_run(scenario: Scenario) -> float:
    """Return s of one core that a run takes, by estimate; a coarse one that of its first window."""
    seconds = effort(scenario).seconds
    if scenario.time_tolerance < COARSE:
        return seconds
    return seconds * min(1.0, first_window(scenario) / expected_iterations(scenario))


def runs_in_time(scenarios: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """Return the scenarios, by name, that fit into a minute: those that would take long with a
    coarse time tolerance, and those that take longest left out until all others fit. One is kept
    whatever it takes."""
    coarse = {}
    for name, scenario in scenarios.items():
        values = coarse_values(scenario, exact=False)
        coarse[name] = scenario.with_values(values) if values else scenario
    costs = {name: seconds_of_run(scenario) for name, scenario in coarse.items()}
    left, kept = MOST_SECONDS, set[str]()
    for name in sorted(costs, key=lambda name: costs[name]):
        if kept and costs[name] > left:
            break
        left -= costs[name]
        kept.add(name)
    return {name: scenario for name, scenario in coarse.items() if name in kept}

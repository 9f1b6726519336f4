"""Precision of the simulations of a plan: the scenario's own, or as much as fits into a
minute.
"""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.job.plan.effort import effort, expected_iterations, first_window
from simshuffle.job.scenario.scenario import Scenario

TOLERANCE = "time_tolerance"
COARSE_TOLERANCE = 0.05
"""Time tolerance of runs that would take long: windows of a few iterations do."""
LIGHT_SECONDS = 4.0
"""s of one core, by estimate, up to which a run has the tolerance of its scenario all
the same.
"""
MAX_SECONDS = 40.0
"""s of one core, by estimate, that the runs of all strategies may take within a minute;
searches may take as many.
"""
INPUT_SECONDS = 8.0
"""s of one core, by estimate, of all runs that the turning points of one input are
compared with.
"""
POINT_SECONDS = 4.0
"""s of one core, by estimate, of all runs of one value at which a turning point is
simulated.
"""


def coarse_settings(scenario: Scenario, exact: bool) -> dict[str, float]:
    """Return the settings that make a long run coarse: {}, or `TOLERANCE` and its
    value.

    A run is coarse without ``exact`` if its scenario is more precise than
    `COARSE_TOLERANCE` and it takes more than `LIGHT_SECONDS` by estimate.
    """
    is_heavy = (
        not exact
        and scenario.time_tolerance < COARSE_TOLERANCE
        and effort(scenario).seconds > LIGHT_SECONDS
    )
    return {TOLERANCE: COARSE_TOLERANCE} if is_heavy else {}


def seconds_of_run(scenario: Scenario) -> float:
    """Estimate the seconds of one core that a run takes.

    A run with a time tolerance of `COARSE_TOLERANCE` or more ends within its first
    window, so it takes that share of a full run.
    """
    seconds = effort(scenario).seconds
    if scenario.time_tolerance < COARSE_TOLERANCE:
        return seconds
    return seconds * min(1.0, first_window(scenario) / expected_iterations(scenario))


def runs_in_time(scenarios: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """Return the scenarios, by name, whose runs fit into `MAX_SECONDS` together.

    A run that would take long has a coarse time tolerance set in its scenario
    (`coarse_settings`). The runs that take longest are left out until the others fit;
    the shortest is retained in any case. The order is that of the argument.
    """
    scenarios_in_time = {}
    for name, scenario in scenarios.items():
        values = coarse_settings(scenario, exact=False)
        scenarios_in_time[name] = scenario.with_values(values) if values else scenario
    costs = {
        name: seconds_of_run(scenario) for name, scenario in scenarios_in_time.items()
    }
    seconds_left = MAX_SECONDS
    retained_names: set[str] = set()
    for name in sorted(costs, key=lambda name: costs[name]):
        if retained_names and costs[name] > seconds_left:
            break
        seconds_left -= costs[name]
        retained_names.add(name)
    return {
        name: scenario
        for name, scenario in scenarios_in_time.items()
        if name in retained_names
    }

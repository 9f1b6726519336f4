"""The runs that a verb answers for, where the scenario has a sweep."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from simshuffle.errors import Problem, ScenarioError
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.overrides import short_text

WORLD_SIZE, EXCHANGE = "world_size", "workload.exchange"
"""Keys whose sweep most verbs follow."""
MOST_LISTED = 4
"""Most values of a key that a message lists."""


def runs_followed(
    scenario: Scenario, verb: str, followed: Collection[str] = ()
) -> dict[str, Scenario]:
    """Return the runs of a scenario's sweep by name, in its order.

    Args:
        scenario: with or without a sweep.
        verb: who asks, as the message calls it: 'simshuffle study oracle'.
        followed: keys that may be swept, and with them all keys below.

    Raises:
        ScenarioError: several values of another key are swept, or a run is not valid.
            A single value of any key is fine.
    """
    problems = [
        _find_unfollowed(key, values, verb)
        for key, values in scenario.sweep.items()
        if len(values) > 1 and not _is_below(key, followed)
    ]
    if problems:
        raise ScenarioError(problems, scenario.name)
    return scenario.runs()


def single_run(
    scenario: Scenario, verb: str, irrelevant: Collection[str] = ()
) -> Scenario:
    """Return the one run of a scenario; keys that are ``irrelevant`` to the verb may be
    swept: then the first of the runs.

    Raises:
        ScenarioError: several values of another key are swept, or a run is not valid.
    """
    return next(iter(runs_followed(scenario, verb, irrelevant).values()))


def _is_below(key: str, followed: Collection[str]) -> bool:
    """Return True if a dotted key is one of ``followed``, or below one."""
    return any(
        key == ancestor or key.startswith(f"{ancestor}.") for ancestor in followed
    )


def _find_unfollowed(key: str, values: list[Any], verb: str) -> Problem:
    """Return the problem of a swept key that a verb does not follow."""
    listed = ", ".join(map(short_text, values[:MOST_LISTED])) + ", ..." * (
        len(values) > MOST_LISTED
    )
    remedy = f"Choose a value: --set '{key}={_written(values[0])}'."
    return Problem(f"sweep.{key}", f"is not followed by {verb}", listed, remedy)


def _written(value: Any) -> str:
    """A value as --set takes it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)

"""What is said of the inputs of runs: those that change nothing, and those that decide and that
nobody gave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simshuffle.job.plan.findings import batch_sizes, partial_batch
from simshuffle.job.plan.idle_inputs import IdleInput, idle_inputs
from simshuffle.job.plan.warming import warming_sentence
from simshuffle.job.uncertainty.decisive import decisive_inputs

if TYPE_CHECKING:
    from simshuffle.job.scenario.scenario import Scenario

IDLE = "Changes nothing here: {}."
DECISIVE = "Not given, and what the epochs hang on most: {}."
NONE_DECISIVE = "Nothing that was not given moves an epoch by more than 2 %."
UNMEASURED = "Neither measured nor from a data sheet, and what the epochs hang on most: {}."


def idle_of_files(scenarios: Sequence[Scenario], runs: Mapping[str, Scenario]) -> list[IdleInput]:
    """Return the inputs that change nothing in any run and that the files set."""
    return [
        idle
        for idle in idle_inputs(runs)
        if any(_is_set(scenario, idle.key.split(".")) for scenario in scenarios)
    ]


def _is_set(record: Any, path: Sequence[str]) -> bool:
    """Return whether a file sets the value at a path of a record, or one of its defaults does."""
    first, *rest = path
    if first not in getattr(record, "model_fields_set", ()):
        return False
    return not rest or _is_set(getattr(record, first), rest)


def advise_on_files(
    rows: Sequence[dict[str, Any]], scenarios: Sequence[Scenario], runs: Mapping[str, Scenario]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the verdicts of runs with what is said of their inputs and of later epochs, and that
    as lines."""
    idle, decisive = idle_of_files(scenarios, runs), decisive_inputs(runs)
    told = warming_sentence(runs, {row["run"]: row["epoch_s"] for row in rows})
    more: dict[str, Any] = {
        "idle_inputs": [asdict(each) for each in idle],
        "decisive_inputs": [asdict(each) for each in decisive],
    }
    more |= {"not_steady": told} if told else {}
    parts = ((IDLE, idle), (UNMEASURED, decisive))
    lines = [
        head.format("; ".join(each.describe() for each in found)) for head, found in parts if found
    ]
    return [{**row, **more} for row in rows], [*filter(None, [told]), *lines]


def advise_on_answers(
    scenario: Scenario,
    given: Mapping[str, str],
    option_of_key: Mapping[str, str],
    known: Collection[str] = (),
) -> list[str]:
    """Return what is said of the answers to the questions of `simshuffle new`.

    Args:
        scenario: that was written.
        given: the answers that the user gave, by the options.
        option_of_key: the option that decides a dotted key.
        known: further dotted keys that are given.
    """
    runs = scenario.runs()
    named = []
    for idle in idle_inputs(runs):
        option = option_of_key.get(idle.key)
        if option is not None and option in given:
            named.append(idle.describe(f"{option} {given[option]}"))
    if "--timed" in given and given.get("--overlap") == "none":
        named.append(
            f"--timed {given['--timed']} (with --overlap none nothing is added to a batch)"
        )
    known = {key for key, option in option_of_key.items() if option in given} | {*known}
    lines = [IDLE.format("; ".join(named))] if named else []
    decisive = [
        found.describe(option_of_key.get(found.key, "")) for found in decisive_inputs(runs, known)
    ]
    sizes = {name: batch_sizes(run) for name, run in runs.items()}
    partial = {name: problem for name in sizes if (problem := partial_batch(*sizes[name]))}
    lines += [f"Warning: {problem} ({name})" for name, problem in [*partial.items()][:1]]
    return [*lines, DECISIVE.format("; ".join(decisive)) if decisive else NONE_DECISIVE]

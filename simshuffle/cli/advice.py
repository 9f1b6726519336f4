"""Sentences on the inputs of runs that change nothing, and on those that decide but
were not given.
"""

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

IDLE_SENTENCE = "Inputs without effect here: {}."
DECISIVE_SENTENCE = "The epochs depend most on inputs that you did not give: {}."
NONE_DECISIVE_SENTENCE = "No input that you left out moves an epoch by more than 2 %."
UNMEASURED_SENTENCE = (
    "The epochs depend most on inputs that are neither measured nor from a data sheet:"
    " {}."
)


def find_idle_inputs(
    scenarios: Sequence[Scenario], runs: Mapping[str, Scenario]
) -> list[IdleInput]:
    """Return the inputs that change nothing in any run and that a scenario sets.

    [] if any run has jobs or background traffic.

    Args:
        scenarios: as written; a value is set if a file, a machine or an option gives
            it, and not if it is a default.
        runs: runs of these scenarios by name.
    """
    return [
        idle
        for idle in idle_inputs(runs)
        if any(_is_set(scenario, idle.key.split(".")) for scenario in scenarios)
    ]


def _is_set(record: Any, path: Sequence[str]) -> bool:
    """Return True if the value at a path of a record was given, False if it is a
    default or there is none.
    """
    field, *subpath = path
    if field not in getattr(record, "model_fields_set", ()):
        return False
    return not subpath or _is_set(getattr(record, field), subpath)


def advise_on_files(
    rows: Sequence[dict[str, Any]],
    scenarios: Sequence[Scenario],
    runs: Mapping[str, Scenario],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the verdicts of runs with further findings, and the findings as lines.

    Args:
        rows: verdicts, with 'run' and 'epoch_s' (s of the last epoch).
        scenarios: as written.
        runs: runs of these scenarios by name.

    Returns:
        Copies of the rows, each with the same findings over all runs: 'idle_inputs' and
        'decisive_inputs' (lists, which may be empty), and the sentence 'not_steady'
        only where caches still fill. Then a line for each finding that is not empty.
    """
    idle = find_idle_inputs(scenarios, runs)
    decisive = decisive_inputs(runs)
    steadiness = warming_sentence(runs, {row["run"]: row["epoch_s"] for row in rows})
    findings: dict[str, Any] = {
        "idle_inputs": [asdict(finding) for finding in idle],
        "decisive_inputs": [asdict(finding) for finding in decisive],
    }
    findings |= {"not_steady": steadiness} if steadiness else {}
    sentences = ((IDLE_SENTENCE, idle), (UNMEASURED_SENTENCE, decisive))
    lines = [
        sentence.format("; ".join(finding.describe() for finding in inputs))
        for sentence, inputs in sentences
        if inputs
    ]
    return [{**row, **findings} for row in rows], [*filter(None, [steadiness]), *lines]


def advise_on_answers(
    scenario: Scenario,
    answer_of_option: Mapping[str, str],
    option_of_key: Mapping[str, str],
    given_keys: Collection[str] = (),
) -> list[str]:
    """Return sentences on the answers to the questions of `simshuffle new`.

    In this order: given answers that change nothing; a warning for the first run in
    which no batch is full; and inputs that are not given and decide. The last sentence
    is always there, and says so if no input decides.

    Args:
        scenario: that was written.
        answer_of_option: the answers that the user gave, by option ('--hosts').
        option_of_key: the option that decides a dotted key.
        given_keys: further dotted keys that are given.
    """
    runs = scenario.runs()
    idle_answers = []
    for idle in idle_inputs(runs):
        option = option_of_key.get(idle.key)
        if option is not None and option in answer_of_option:
            idle_answers.append(idle.describe(f"{option} {answer_of_option[option]}"))
    if "--timed" in answer_of_option and answer_of_option.get("--overlap") == "none":
        timing = answer_of_option["--timed"]
        idle_answers.append(
            f"--timed {timing} (--overlap none adds nothing to the batch time)"
        )
    answered_keys = {
        key for key, option in option_of_key.items() if option in answer_of_option
    }
    lines = [IDLE_SENTENCE.format("; ".join(idle_answers))] if idle_answers else []
    decisive = [
        decisive_input.describe(option_of_key.get(decisive_input.key, ""))
        for decisive_input in decisive_inputs(runs, answered_keys | {*given_keys})
    ]
    sizes = {name: batch_sizes(run) for name, run in runs.items()}
    problem_of_run = {
        name: problem for name in sizes if (problem := partial_batch(*sizes[name]))
    }
    lines += [
        f"Warning: {problem} ({name})"
        for name, problem in [*problem_of_run.items()][:1]
    ]
    return [
        *lines,
        DECISIVE_SENTENCE.format("; ".join(decisive))
        if decisive
        else NONE_DECISIVE_SENTENCE,
    ]

"""What stands behind the numbers of a new scenario: who measured, read or guessed them, which
decides how far an interval reaches (docs/trust.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from simshuffle.cli.new_questions import (
    BY_FORMAT,
    ESTIMATE,
    MEASURED,
    NONE,
    QUESTIONS,
    SHEET,
    SOURCE,
    SOURCE_QUESTIONS,
    listed,
)
from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import suggest_nearest

KINDS = {"measured": MEASURED, "data_sheet": SHEET, "estimated": ESTIMATE}
"""What stands behind the numbers that an option names, by the name of its question."""
BY_NAME = {question.name: question for question in SOURCE_QUESTIONS}
SENTENCES = {
    MEASURED: "measured, as given to simshuffle new",
    SHEET: "data sheet, as given to simshuffle new",
    ESTIMATE: "estimate, as given to simshuffle new",
}
NOT_GIVEN = "estimate: nobody gave it to simshuffle new"
INPUTS = {q.name.replace("_", "-"): q for q in QUESTIONS if q.behind}
"""The questions whose numbers have a source, by the names that options have for them."""


def sources(given: Mapping[str, str]) -> dict[str, str]:
    """Return the source of each of `INPUTS` by the name of its question.

    Args:
        given: answers that the user gave, by name.

    Raises:
        InputError: an option names what is no such number, was not given, or is named twice.
    """
    named: dict[str, str] = {}
    problems = []
    for option, kind in KINDS.items():
        answer = " ".join(given.get(option, NONE).split())
        if problem := BY_NAME[option].problem(answer):
            problems.append(problem)
            continue
        for name in listed(answer) if answer != NONE else []:
            wrong = _problem(option, name, given, named)
            if wrong is not None:
                problems.append(wrong)
            else:
                named[INPUTS[name].name] = kind
    if problems:
        raise InputError(problems, SOURCE)
    texts = {}
    for question in INPUTS.values():
        kind = named.get(question.name, question.behind)
        texts[question.name] = SENTENCES[kind] if _is_given(question.name, given) else NOT_GIVEN
    return texts


def _problem(
    option: str, name: str, given: Mapping[str, str], named: Mapping[str, str]
) -> Problem | None:
    """Return what is wrong with naming a number in an option."""
    flag = BY_NAME[option].option
    if name not in INPUTS:
        return Problem(flag, "must name numbers", repr(name), suggest_nearest(name, [*INPUTS]))
    if INPUTS[name].name in named:
        remedy = "Leave it out of one of the options."
        return Problem(flag, f"names {name}, which another option names, too", name, remedy)
    if not _is_given(INPUTS[name].name, given):
        rule = f"names {name}, which is not given: what is taken in its place is an estimate"
        return Problem(flag, rule, name, f"Give --{name} too, or leave it out here.")
    return None


def _is_given(name: str, given: Mapping[str, str]) -> bool:
    return given.get(name, BY_FORMAT) != BY_FORMAT


def quoted(sources_by_key: Mapping[str, str], indent: int) -> str:
    """Return sources by key as lines of YAML below ``source:``, indented by that many blanks."""
    lines = (f"{' ' * indent}{key}: {json.dumps(text)}" for key, text in sources_by_key.items())
    return "\n".join(["source:", *lines])

"""The sources of the numbers in a new scenario: whether they were measured, read or
guessed.

They decide how far an interval reaches (docs/trust.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from simshuffle.cli.new_questions import (
    BY_FORMAT,
    DATA_SHEET,
    ESTIMATE,
    MEASURED,
    NONE,
    PROBLEM_SOURCE,
    QUESTIONS,
    SOURCE_QUESTIONS,
    split_answer,
)
from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import suggest_nearest

KIND_OF_QUESTION = {
    "measured": MEASURED,
    "data_sheet": DATA_SHEET,
    "estimated": ESTIMATE,
}
"""What stands behind the numbers that an option names, by the name of its question."""
BY_NAME = {question.name: question for question in SOURCE_QUESTIONS}
SENTENCE_OF_KIND = {
    MEASURED: "measured, as given to simshuffle new",
    DATA_SHEET: "data sheet, as given to simshuffle new",
    ESTIMATE: "estimate, as given to simshuffle new",
}
NOT_GIVEN = "estimate: nobody gave it to simshuffle new"
QUESTION_OF_INPUT = {q.name.replace("_", "-"): q for q in QUESTIONS if q.source_kind}
"""The questions whose numbers have a source, by the names that options have for them."""


def describe_sources(user_answers: Mapping[str, str]) -> list[str]:
    """Return a sentence on which of the user's numbers count as measured, and how to say
    that some are guesses; [] where none do, or the user has said what is behind them.
    """
    sources = sources_of_inputs(user_answers)
    measured_options = [
        question.option
        for question in QUESTION_OF_INPUT.values()
        if sources[question.name] == SENTENCE_OF_KIND[MEASURED]
    ]
    if not measured_options or any(user_answers.get(name) for name in KIND_OF_QUESTION):
        return []
    guess = measured_options[0].removeprefix("--")
    return [
        f"Taken as measured: {', '.join(measured_options)}. Name those that you guessed, and"
        f" intervals get wider: --estimated {guess}."
    ]


def sources_of_inputs(user_answers: Mapping[str, str]) -> dict[str, str]:
    """Return the source of each of `QUESTION_OF_INPUT`, by the name of its question.

    A source is a sentence: the kind that an option says, else the question's own;
    `NOT_GIVEN` where the user gave no number.

    Args:
        user_answers: answers that the user gave, by name.

    Raises:
        InputError: an option names what is no such number, was not given, or is named
            twice.
    """
    kind_of_input: dict[str, str] = {}
    problems = []
    for option, kind in KIND_OF_QUESTION.items():
        answer = " ".join(user_answers.get(option, NONE).split())
        if answer_problem := BY_NAME[option].problem(answer):
            problems.append(answer_problem)
            continue
        for name in split_answer(answer) if answer != NONE else []:
            problem = naming_problem(option, name, user_answers, kind_of_input)
            if problem is not None:
                problems.append(problem)
            else:
                kind_of_input[QUESTION_OF_INPUT[name].name] = kind
    if problems:
        raise InputError(problems, PROBLEM_SOURCE)
    texts = {}
    for question in QUESTION_OF_INPUT.values():
        kind = kind_of_input.get(question.name, question.source_kind)
        texts[question.name] = (
            SENTENCE_OF_KIND[kind]
            if _is_given(question.name, user_answers)
            else NOT_GIVEN
        )
    return texts


def naming_problem(
    option: str,
    name: str,
    user_answers: Mapping[str, str],
    kind_of_input: Mapping[str, str],
) -> Problem | None:
    """Return the problem with naming a number in an option; None if there is none.

    Args:
        option: name of the question about sources.
        name: of the number, as options have it.
        user_answers: answers that the user gave, by name.
        kind_of_input: kinds that options have given so far, by the names of questions.
    """
    flag = BY_NAME[option].option
    if name not in QUESTION_OF_INPUT:
        remedy = suggest_nearest(name, [*QUESTION_OF_INPUT])
        return Problem(flag, "must name numbers", repr(name), remedy)
    if QUESTION_OF_INPUT[name].name in kind_of_input:
        remedy = "Leave it out of one of the options."
        return Problem(
            flag, f"names {name}, which another option names, too", name, remedy
        )
    if not _is_given(QUESTION_OF_INPUT[name].name, user_answers):
        rule = f"names {name}, which is not given: its default is an estimate"
        return Problem(flag, rule, name, f"Give --{name} too, or leave it out here.")
    return None


def _is_given(name: str, user_answers: Mapping[str, str]) -> bool:
    """Return whether the user gave a number: neither `BY_FORMAT` nor `NONE`."""
    return user_answers.get(name, NONE) not in {BY_FORMAT, NONE}


def source_lines(sources_by_key: Mapping[str, str], indent: int) -> str:
    """Return sources by key as quoted lines of YAML below ``source:``.

    The first line, ``source:``, is not indented; the others are, by ``indent`` blanks.
    """
    lines = (
        f"{' ' * indent}{key}: {json.dumps(text)}"
        for key, text in sources_by_key.items()
    )
    return "\n".join(["source:", *lines])

"""The verb new: a commented scenario and its machine, from a few questions or from
options.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import Force, check_paths, say, write_files
from simshuffle.cli.help import command, keyword
from simshuffle.cli.new_answers import machine_answers
from simshuffle.cli.new_questions import (
    BY_NAME,
    CHOICES,
    FITTING,
    LIST_KINDS,
    NONE,
    QUESTIONS,
    SHAPES,
    SOURCE_QUESTIONS,
    STRATEGY_OF_WAY,
    Question,
    questions_of,
    split_answer,
)
from simshuffle.cli.new_sources import describe_sources
from simshuffle.study.options import Argument, Option, words

app = typer.Typer()

ALL_QUESTIONS = BY_NAME | {question.name: question for question in SOURCE_QUESTIONS}
"""Questions by the names of their answers, in the order in which the help lists them."""
TOPOLOGY = "topology"
"""The question that decides what else is asked."""
COLUMNS = 90
"""Width of a line that says what to answer."""
FILE_SUFFIXES = (".yaml", "-cluster.yaml")
"""What follows NAME in the names of the scenario's and the machine's files."""


def new(
    name: Path,
    from_dlio: Path | None,
    force: bool,
    **answer_of_question: str | Sequence[str] | None,
) -> None:
    """Write a commented scenario and its machine.

    They are NAME.yaml and NAME-cluster.yaml. On a terminal it asks, and says what to
    answer where you do not know. It asks nothing if --hosts, --samples, --sample-size,
    --batch-size, --batch-time and --gradients are given, and what --topology needs.
    With --from-dlio it asks nothing, and needs --hosts alone.
    """
    # NAME.yaml and NAME.yml mean NAME; an option whose value is empty is not given
    if name.suffix in {".yaml", ".yml"}:
        name = name.with_suffix("")
    check_paths(name, replace=force, option="NAME", suffixes=FILE_SUFFIXES)
    answers = {
        key: answer if isinstance(answer, str) else ",".join(answer)
        for key, answer in answer_of_question.items()
        if answer
    }
    questions = questions_of(answers.get(TOPOLOGY, BY_NAME[TOPOLOGY].default))
    is_incomplete = from_dlio is None and any(
        question.needed and question.name not in answers for question in questions
    )
    if is_incomplete and sys.stdin.isatty():
        answers = user_answers(answers, ask_questions(answers))
        questions = questions_of(answers.get(TOPOLOGY, BY_NAME[TOPOLOGY].default))
        answered_questions = [
            question
            for question in (*questions, *SOURCE_QUESTIONS)
            if question.name in answers
        ]
        words = [
            word
            for question in answered_questions
            for word in (question.option, answers[question.name])
        ]
        say(
            f"The same without questions: {shlex.join(['simshuffle', 'new', str(name), *words])}"
        )
    (scenario, machine), warnings = write_drafts(name, answers, from_dlio)
    for text in warnings:
        say(f"Warning: {text}" if from_dlio else text)
    is_of_dlio = from_dlio is not None
    for line in list_advice(scenario, answers, is_of_dlio=is_of_dlio):
        say(line)
    for line in describe_sources(answers):
        say(line)
    typer.echo(f"Scenario: {scenario}\nMachine: {machine}")
    typer.echo(f"Next: simshuffle check {shlex.quote(str(scenario))}")


def write_drafts(
    stem: Path, answers: Mapping[str, str], dlio_file: Path | None = None
) -> tuple[list[Path], tuple[str, ...]]:
    """Write the scenario ``stem``.yaml and its machine ``stem``-cluster.yaml, both or
    none.

    Args:
        stem: path of the scenario, without suffix.
        answers: by the names of the questions; the user's alone, without defaults.
        dlio_file: a file of DLIO in place of the answers that are not about the
            machine.

    Returns:
        The paths of the scenario and of its machine; and a sentence for each strategy
        that is left out, or for each thing that a file of DLIO leaves out or assumes.
        Files that exist are replaced.

    Raises:
        InputError: an answer is missing or not valid, or the answers or the file of
            DLIO do not make a scenario.
    """
    from simshuffle.cli.new_dlio import dlio_drafts
    from simshuffle.cli.new_scenario import draft_texts

    if dlio_file is None:
        texts, notes = draft_texts(stem.name, answers)
    else:
        texts, notes = dlio_drafts(stem.name, dlio_file, answers)
    return write_files(stem.parent, texts), notes


def user_answers(
    option_answers: Mapping[str, str], all_answers: Mapping[str, str]
) -> dict[str, str]:
    """Return the answers that the user gave: options, and what was typed at a prompt.

    An answer that equals the question's default counts as taken by Enter, unless an
    option gave it. It is left out, so that it counts as an estimate. A needed one
    stays; if it has a ``source_kind``, the answer 'estimated' names it. A machine's own
    value that Enter took stays.

    Args:
        option_answers: answers of options, by the names of the questions.
        all_answers: these and the answers of all prompts (`ask_questions`).
    """
    typed_answers = {
        name: answer
        for name, answer in all_answers.items()
        if name in option_answers
        or ALL_QUESTIONS[name].needed
        or answer != ALL_QUESTIONS[name].default
    }
    accepted_defaults = [
        question.option.removeprefix("--")
        for question in QUESTIONS
        if question.source_kind
        and question.needed
        and question.name not in option_answers
        if typed_answers.get(question.name) == question.default
    ]
    estimated = typed_answers.get("estimated", NONE)
    estimated_names = [name for name in split_answer(estimated) if name != NONE]
    if names := list(dict.fromkeys([*estimated_names, *accepted_defaults])):
        typed_answers["estimated"] = ",".join(names)
    return typed_answers


def list_advice(
    scenario: Path, answers: Mapping[str, str], *, is_of_dlio: bool
) -> list[str]:
    """Return sentences on answers that change nothing, and on inputs that decide.

    ``scenario`` is the file that was written, and is read. ``answers`` are the user's,
    by the names of the questions. A file of DLIO has given the loader and the decoding,
    too.
    """
    from simshuffle.cli.advice import advise_on_answers
    from simshuffle.job.scenario.scenario import load_scenario
    from simshuffle.job.uncertainty.decisive import DECODE, WORKERS

    written = load_scenario(scenario)
    answer_of_option = {
        ALL_QUESTIONS[name].option: answer for name, answer in answers.items()
    }
    option_of_key = {question.key: question.option for question in QUESTIONS}
    device = f"workload.model.accelerators.{written.cluster.host.accelerator}.forward"
    option_of_key |= {device: "--batch-time", DECODE: "--decode"}
    keys_of_file = (DECODE, WORKERS) if is_of_dlio else ()
    return advise_on_answers(written, answer_of_option, option_of_key, keys_of_file)


def ask_questions(answers: dict[str, str]) -> dict[str, str]:
    """Ask on the terminal the questions that have no answer yet; return all answers.

    Questions that the topology does not need are neither asked nor answered.
    ``answers`` stay as they are. A machine that is chosen at its prompt decides
    defaults; one that ``answers`` have decides none. Where hosts have no SSD, its
    speeds are not asked for and have their defaults. Guesses are asked
    for at last, if any number that was asked for or given differs from its default.
    """
    say(
        "Press Enter where you do not know the answer: the value in brackets is then used."
    )
    typed_answers: dict[str, str] = {}
    group = ""
    answers_of_machine: dict[str, str] = {}
    for question in QUESTIONS:
        if question.name != TOPOLOGY and question not in questions_of(
            (answers | typed_answers)[TOPOLOGY]
        ):
            continue
        is_pointless = (
            question.name in {"ssd_read", "ssd_write"}
            and (answers | typed_answers)["ssd"] == "none"
        )
        if question.name in answers or is_pointless:
            typed_answers[question.name] = answers.get(question.name, question.default)
            continue
        if question.group != group:
            group = question.group
            say(f"\n{group}")
        typed_answers[question.name] = ask_question(
            question, answers_of_machine.get(question.name, question.default)
        )
        if question.name == TOPOLOGY:
            answers_of_machine = machine_answers(typed_answers[TOPOLOGY])
    estimates_question = SOURCE_QUESTIONS[0]
    known_answers = answers | typed_answers
    defaults = {question.name: question.default for question in QUESTIONS}
    defaults |= answers_of_machine
    is_typed = any(
        question.source_kind
        and known_answers.get(question.name, defaults[question.name])
        != defaults[question.name]
        for question in QUESTIONS
    )
    if estimates_question.name not in answers and is_typed:
        say(f"\n{estimates_question.group}")
        typed_answers[estimates_question.name] = ask_question(
            estimates_question, estimates_question.default
        )
    return answers | typed_answers


def ask_question(question: Question, default: str) -> str:
    """Ask a question on the terminal until its answer is valid, and return that."""
    for line in question.lines(COLUMNS)[question.measure == "" :]:
        typer.secho(f"  {line}", dim=True, err=True)
    while True:
        answer: str = typer.prompt(
            f"  {question.text}", default=default, err=True
        ).strip()
        problem = question.problem(answer)
        if problem is None:
            return answer
        say(f"  {problem.rule}. {problem.remedy}")


_WORDS_OF_KIND = {
    **{kind: words(*choices) for kind, choices in CHOICES.items()},
    "topology": words(*SHAPES),
    "ways": words(*STRATEGY_OF_WAY, FITTING),
}
"""Completions of an answer that is one of few words, by the kind of the answer."""
_NAME = Annotated[
    Path, Argument("NAME", "Name of the scenario, with or without a folder.")
]
_FROM_DLIO = Annotated[
    Path | None,
    Option(
        "FILE",
        "Take data set and model from a workload of DLIO or MLPerf Storage (YAML), whose"
        " accelerators only pause. You still describe the machine.",
    ),
]
_OPTIONS = [
    typer.Option(
        question.option,
        metavar="VALUE",
        help=f"{question.text}. "
        + ("Needed." if question.needed else f"Default: {question.default}."),
        autocompletion=_WORDS_OF_KIND.get(str(question.kind)),
        rich_help_panel=question.group,
    )
    for question in (*QUESTIONS, *SOURCE_QUESTIONS)
]
command(
    app,
    "Describe",
    "simshuffle new mycluster",
    "simshuffle new mycluster --hosts 64 --hcas 2",
    "simshuffle new mycluster --topology dragonfly --hosts 48 --groups 4",
    "simshuffle new mycluster --topology juwels-booster --ranks 256",
    "simshuffle new storage --from-dlio unet3d_h100.yaml --hosts 4 --gpus 8",
    parameters=[
        keyword("name", _NAME, Path("mycluster")),
        keyword("from_dlio", _FROM_DLIO, None),
        *(
            keyword(
                question.name,
                Annotated[
                    (list[str] if question.kind in LIST_KINDS else str) | None, option
                ],
                None,
            )
            for question, option in zip(ALL_QUESTIONS.values(), _OPTIONS, strict=True)
        ),
        keyword("force", Force, False),
    ],
)(new)

"""The verb new: a commented scenario and its machine, from a few questions or from options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import Force, check_place, say, write_together
from simshuffle.cli.help import command, keyword
from simshuffle.cli.new_questions import (
    BY_NAME,
    CHOICES,
    FITTING,
    LISTS,
    NONE,
    QUESTIONS,
    SHAPES,
    SOURCE_QUESTIONS,
    WAYS,
    Question,
    asked_of,
    decided,
    listed,
)
from simshuffle.study.options import Argument, Option, words

app = typer.Typer()

ALL_QUESTIONS = BY_NAME | {question.name: question for question in SOURCE_QUESTIONS}
"""By the names of their answers, in the order in which the help lists them."""
TOPOLOGY = "topology"
"""The question that decides what else is asked."""
COLUMNS = 90
"""Of a line that says what to answer."""
ENDS = (".yaml", "-cluster.yaml")
"""Of the files of the scenario and of its machine, what follows their name."""


def new(
    name: Path, from_dlio: Path | None, force: bool, **given: str | Sequence[str] | None
) -> None:
    """Write a commented scenario and its machine.

    They are NAME.yaml and NAME-cluster.yaml. On a terminal it asks, and says what to answer where
    you do not know. It asks nothing if --hosts, --samples, --sample-size, --batch-size,
    --batch-time and --gradients are given, and what --topology needs. With --from-dlio it asks
    nothing, and needs --hosts alone.
    """
    if name.suffix in {".yaml", ".yml"}:
        name = name.with_suffix("")
    check_place(name, replace=force, option="NAME", ends=ENDS)
    answers = {
        key: answer if isinstance(answer, str) else ",".join(answer)
        for key, answer in given.items()
        if answer
    }
    asked = asked_of(answers.get(TOPOLOGY, BY_NAME[TOPOLOGY].default))
    missing = from_dlio is None and any(q.needed and q.name not in answers for q in asked)
    if missing and sys.stdin.isatty():
        answers = _told(answers, _asked(answers))
        asked = asked_of(answers.get(TOPOLOGY, BY_NAME[TOPOLOGY].default))
        known = [q for q in (*asked, *SOURCE_QUESTIONS) if q.name in answers]
        words = [word for question in known for word in (question.option, answers[question.name])]
        say(f"The same without questions: {shlex.join(['simshuffle', 'new', str(name), *words])}")
    (scenario, machine), warnings = write_drafts(name, answers, from_dlio)
    for text in warnings:
        say(f"Warning: {text}" if from_dlio else text)
    for line in _advice(scenario, answers, is_of_dlio=from_dlio is not None):
        say(line)
    typer.echo(f"Scenario: {scenario}\nMachine: {machine}")
    typer.echo(f"Next: simshuffle check {shlex.quote(str(scenario))}")


def write_drafts(
    stem: Path, given: Mapping[str, str], dlio: Path | None = None
) -> tuple[list[Path], tuple[str, ...]]:
    """Write the scenario ``stem``.yaml and its machine ``stem``-cluster.yaml, both whole or none;
    ``dlio`` is a file of DLIO in place of the answers that are not about the machine. Returns the
    paths; and what is left out, a sentence each: of the strategies, or of DLIO's file. Raises an
    InputError as `drafts` and `dlio_drafts`."""
    from simshuffle.cli.new_dlio import dlio_drafts
    from simshuffle.cli.new_scenario import drafts

    made = drafts(stem.name, given) if dlio is None else dlio_drafts(stem.name, dlio, given)
    return write_together(stem.parent, made[0]), made[1]


def _told(given: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return the answers that the user gave: options, and what was typed at a prompt.

    What Enter took is left out, so that it counts as an estimate; a number that must be given is
    named among the estimates instead.
    """
    typed = {
        name: answer
        for name, answer in asked.items()
        if name in given or ALL_QUESTIONS[name].needed or answer != ALL_QUESTIONS[name].default
    }
    taken = [
        question.option.removeprefix("--")
        for question in QUESTIONS
        if question.behind and question.needed and question.name not in given
        if typed.get(question.name) == question.default
    ]
    guesses = [name for name in listed(typed.get("estimated", NONE)) if name != NONE]
    if names := list(dict.fromkeys([*guesses, *taken])):
        typed["estimated"] = ",".join(names)
    return typed


def _advice(scenario: Path, answers: Mapping[str, str], *, is_of_dlio: bool) -> list[str]:
    """Return what is to be known of the answers: those that change nothing, and what decides.
    A file of DLIO has given the loader and the decoding, too."""
    from simshuffle.cli.advice import advise_on_answers
    from simshuffle.job.scenario.scenario import load_scenario
    from simshuffle.job.uncertainty.decisive import DECODE, WORKERS

    written = load_scenario(scenario)
    given = {ALL_QUESTIONS[name].option: answer for name, answer in answers.items()}
    option_of_key = {question.at: question.option for question in QUESTIONS}
    device = f"workload.model.accelerators.{written.cluster.host.accelerator}.forward"
    option_of_key |= {device: "--batch-time", DECODE: "--decode"}
    by_file = (DECODE, WORKERS) if is_of_dlio else ()
    return advise_on_answers(written, given, option_of_key, by_file)


def _asked(answers: dict[str, str]) -> dict[str, str]:
    """Answers from the terminal to all questions that have none yet."""
    say("Press Enter where you do not know: what stands in brackets is taken.")
    out: dict[str, str] = {}
    group = ""
    known: dict[str, str] = {}
    for question in QUESTIONS:
        if question.name != TOPOLOGY and question not in asked_of((answers | out)[TOPOLOGY]):
            continue
        pointless = question.name in {"ssd_read", "ssd_write"} and (answers | out)["ssd"] == "none"
        if question.name in answers or pointless:
            out[question.name] = answers.get(question.name, question.default)
            continue
        if question.group != group:
            group = question.group
            say(f"\n{group}")
        out[question.name] = _answer(question, known.get(question.name, question.default))
        if question.name == TOPOLOGY:
            known = decided(out[TOPOLOGY])
    guesses = SOURCE_QUESTIONS[0]
    is_typed = any(q.behind and (answers | out).get(q.name) != q.default for q in QUESTIONS)
    if guesses.name not in answers and is_typed:
        say(f"\n{guesses.group}")
        out[guesses.name] = _answer(guesses, guesses.default)
    return answers | out


def _answer(question: Question, default: str) -> str:
    for line in question.lines(COLUMNS)[question.measure == "" :]:
        typer.secho(f"  {line}", dim=True, err=True)
    while True:
        answer: str = typer.prompt(f"  {question.text}", default=default, err=True).strip()
        problem = question.problem(answer)
        if problem is None:
            return answer
        say(f"  {problem.rule}. {problem.remedy}")


_WORDS = {
    **{kind: words(*of) for kind, of in CHOICES.items()},
    "topology": words(*SHAPES),
    "ways": words(*WAYS, FITTING),
}
"""What there is of each kind of an answer that is one of few words."""
_NAME = Annotated[Path, Argument("NAME", "Of the scenario, with or without a folder.")]
_FROM_DLIO = Annotated[
    Path | None,
    Option(
        "FILE",
        "A workload of DLIO or MLPerf Storage (YAML), in place of the questions about data set and"
        " model; its accelerators only pause. The machine is still yours to describe.",
    ),
]
_OPTIONS = [
    typer.Option(
        question.option,
        metavar="VALUE",
        help=f"{question.text}. "
        + ("Needed." if question.needed else f"Default: {question.default}."),
        autocompletion=_WORDS.get(str(question.kind)),
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
                Annotated[(list[str] if question.kind in LISTS else str) | None, option],
                None,
            )
            for question, option in zip(ALL_QUESTIONS.values(), _OPTIONS, strict=True)
        ),
        keyword("force", Force, False),
    ],
)(new)

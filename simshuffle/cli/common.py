"""What the verbs share: options, scenarios from the command line, progress, messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simshuffle.scenario.scenario import Scenario

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Set a value of the scenario; may be given several times.",
    ),
]
ScenarioArgument = Annotated[
    list[str],
    typer.Argument(metavar="SCENARIO...", help="Scenario files, or names below scenarios/."),
]


def load(references: Sequence[str], assignments: Sequence[str] | None) -> list[Scenario]:
    """The scenarios of all files; every problem of every file in one error."""
    from simshuffle.scenario.scenario import load_scenarios

    assigned = values(assignments or [])
    scenarios: list[Scenario] = []
    failures: list[InputError] = []
    for reference in references:
        try:
            loaded = load_scenarios(reference, assigned)
            for single in loaded:
                single.runs()
            scenarios += loaded
        except InputError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise _Several(failures)
    return scenarios


class _Several(InputError):
    """The errors of several files, below one another."""

    def __init__(self, errors: list[InputError]) -> None:
        self.errors = errors
        super().__init__([problem for error in errors for problem in error.problems])

    def _text(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def values(assignments: Sequence[str]) -> dict[str, Any]:
    """``KEY.PATH=VALUE`` texts as a mapping; values are read as YAML."""
    from simshuffle.spec.library import read_value

    values: dict[str, Any] = {}
    problems = []
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            problems.append(
                Problem(
                    "--set",
                    "is written KEY.PATH=VALUE",
                    repr(text),
                    "For example --set world_size=512.",
                )
            )
            continue
        try:
            values[key.strip()] = read_value(value, f"--set {key}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems, "command line")
    return values


@contextmanager
def progress_bars() -> Iterator[Callable[[str, float], None] | None]:
    """A progress bar with an estimate of the time left; none where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=share)

        yield report


def say(text: str) -> None:
    """Write a line to standard error."""
    typer.echo(text, err=True)

"""What the verbs share: options, scenarios from the command line, progress, messages."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simshuffle.scenario.scenario import Scenario
    from simshuffle.study.standing import Progress

LOADING = 1_000_000
"""New objects between two searches for reference cycles while a command loads what it needs, which
it keeps: Python's own 700 make them a sixth of the time of a short command."""
LOADED = 10_000
"""The same afterwards."""

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Set a value of the scenario; may be given several times.",
    ),
]


def choice(option: str, *known: str, metavar: str, text: str) -> Any:
    """An option of typer that takes one of a few words, which the shell completes.

    Args:
        option: as it is written, such as '--to'.
        known: the words.
        metavar: what the help calls them.
        text: what the help says.
    """

    def check(value: str | None) -> str | None:
        if value is not None and value not in known:
            rule, remedy = f"must be {' or '.join(known)}", "Write one of them, or leave it out."
            raise InputError(Problem(option, rule, repr(value), remedy), "command line")
        return value

    return typer.Option(
        option, metavar=metavar, help=text, callback=check, autocompletion=begun_with(*known)
    )


def begun_with(*known: str) -> Callable[[str], list[str]]:
    """What completes one of a few words: those that begin as what is written."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def loaded() -> None:
    """All that a command needs is loaded: no reference cycles are searched for there, and others
    as often as they should be. Nothing is changed where a program calls `main`."""
    if gc.get_threshold()[0] == LOADING:
        gc.freeze()
        gc.set_threshold(LOADED)


def scenario_names(incomplete: str) -> list[str]:
    """Shipped scenarios whose name begins so; the shell completes files."""
    return _shipped_names("scenarios", incomplete)


def study_names(incomplete: str) -> list[str]:
    """Shipped studies whose name begins so."""
    return _shipped_names("studies", incomplete)


def machine_names(incomplete: str) -> list[str]:
    """Shipped machines whose name begins so."""
    return _shipped_names("topologies", incomplete)


def _shipped_names(folder: str, incomplete: str) -> list[str]:
    from simshuffle.spec.library import shipped_names

    return [name for name in shipped_names(folder) if name.startswith(incomplete)]


def any_of(*complete: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """What completes one of several things: all that each of ``complete`` finds."""
    return lambda incomplete: [word for each in complete for word in each(incomplete)]


def result_folders(incomplete: str) -> list[str]:
    """Result folders whose path begins so, here and in results/ where it names no folder."""
    head, slash, _ = incomplete.rpartition("/")
    places = [f"{head}{slash}"] if slash else ["", "results/"]
    return [
        f"{place}{path.parent.name}"
        for place in places
        for path in sorted(Path(place or ".").glob("*/meta.json"))
        if f"{place}{path.parent.name}".startswith(incomplete)
    ]


ResultFolder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="A result folder.", autocompletion=result_folders),
]
NetworkName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A machine, by its name or file; or a network's file.",
        autocompletion=machine_names,
    ),
]
ScenarioArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario files, or names below scenarios/.",
        autocompletion=scenario_names,
    ),
]
ScenarioName = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or a name below scenarios/.",
        autocompletion=scenario_names,
    ),
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


def values(
    assignments: Sequence[str], option: str = "--set", example: str = "world_size=512"
) -> dict[str, Any]:
    """``KEY.PATH=VALUE`` texts of an option as a mapping; values are read as YAML."""
    from simshuffle.spec.library import read_value

    values: dict[str, Any] = {}
    problems = []
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            problems.append(
                Problem(
                    option,
                    "is written KEY.PATH=VALUE",
                    repr(text),
                    f"For example {option} {example}.",
                )
            )
            continue
        try:
            values[key.strip()] = read_value(value, f"{option} {key}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems, "command line")
    return values


@dataclass
class _Volume:
    quiet: bool = False
    verbose: bool = False


_volume = _Volume()


def set_volume(*, quiet: bool, verbose: bool) -> None:
    """How much is said from now on, added to what was asked for before.

    Raises:
        InputError: less and more are asked for.
    """
    quiet, verbose = quiet or _volume.quiet, verbose or _volume.verbose
    if quiet and verbose:
        problem = Problem("--quiet", "cannot be combined with --verbose", "", "Leave one out.")
        raise InputError(problem, "command line")
    _volume.quiet, _volume.verbose = quiet, verbose
    if quiet:
        logging.getLogger("simshuffle").setLevel(logging.ERROR)


def reset_volume() -> None:
    """Say what is usual, from now on."""
    _volume.quiet = _volume.verbose = False
    logging.getLogger("simshuffle").setLevel(logging.NOTSET)


@contextmanager
def study_progress(noun: str) -> Iterator[Progress | None]:
    """Tells how far the cells of a study are, which are called ``noun``; None if that is not
    wanted."""
    if _volume.quiet:
        yield None
        return
    from simshuffle.study import progress

    with progress.study_progress(noun) as tell:
        yield tell


@contextmanager
def share_progress(noun: str) -> Iterator[Callable[[float], None] | None]:
    """Tells the share done of a single thing that is no cell, called ``noun``; None if that is not
    wanted."""
    from simshuffle.study.standing import Standing, left

    begun = monotonic()
    with study_progress(noun) as tell:

        def report(share: float) -> None:
            if tell is not None:
                tell(Standing(0, 1, share, left(share, monotonic() - begun), {noun: share}))

        yield None if tell is None else report


class Stopped(Exception):
    """Ctrl-C, after which something is kept; its text says what."""


def complain(text: str) -> None:
    """Write to standard error what went wrong."""
    typer.echo(text, err=True)


def say(text: str) -> None:
    """Write a line to standard error, unless errors and results alone are wanted."""
    if not _volume.quiet:
        typer.echo(text, err=True)


def detail(text: str) -> None:
    """Write a line to standard error, if more than usual is wanted."""
    if _volume.verbose:
        typer.echo(text, err=True)

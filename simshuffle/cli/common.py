"""What the verbs share: options, files that are written whole or not at all, how results are
printed, progress, messages."""

from __future__ import annotations

import gc
import json as json_
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from simshuffle.errors import InputError, Problem, SimshuffleWarning, refuse
from simshuffle.job.scenario.options import SET, machine_names, result_folders
from simshuffle.spec.library import is_folder
from simshuffle.study.options import COMMAND_LINE, Argument, Option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.table import Table

    from simshuffle.report.excerpt import Excerpt
    from simshuffle.study.standing import Progress
    from simshuffle.study.study import Result

LOADING = 1_000_000
"""New objects between two searches for reference cycles while a command loads what it needs, which
it keeps: Python's own 700 make them a sixth of the time of a short command."""
LOADED = 10_000
"""The same afterwards."""

OUT_FILE = "FILE|FOLDER"
"""What the help calls the ``--out`` of verbs that write a file, see `file_in`."""


NAME_RULE = "must be letters, digits, '.', '_' and '-'"


def file_in(out: Path | None, name: str) -> Path | None:
    """The file that ``--out`` means: in a folder that is there, the one of the verb's own ``name``;
    None if nothing is said."""
    return out / name if out is not None and is_folder(out) else out


def is_name(text: str) -> bool:
    """Whether something may be called so."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", text) is not None


def check_place(
    stem: Path, *, replace: bool, option: str = "--out", ends: Iterable[str] = ("",)
) -> None:
    """See that the files ``stem`` with each of ``ends`` can be written; ``option`` says the name.
    Raises an InputError if they cannot."""
    problems = []
    if not is_name(stem.name):
        problems = [Problem(option, NAME_RULE, repr(stem.name), "For example mycluster.")]
    elif not stem.parent.is_dir():
        rule = "must be in a folder that is there"
        problems = [Problem(option, rule, str(stem), "Make the folder.")]
    else:
        for path in (stem.parent / f"{stem.name}{end}" for end in ends):
            if path.is_dir():
                rule = "must not be that of a folder"
                problems.append(Problem(option, rule, str(path), "Choose another name."))
            elif os.path.lexists(path) and not replace:
                remedy = "Choose another name, or use --force to replace it."
                problems.append(Problem(option, "must not be there already", str(path), remedy))
    if problems:
        raise InputError(problems, "new files")


def write_together(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files of a folder, by their names, all whole or none, and return their paths; what is
    there is replaced."""
    from simshuffle.report.folders import room_for

    written: list[Path] = []
    with room_for(folder / next(iter(texts)), folder) as room:
        for name, text in texts.items():
            Path(room, name).write_text(text, encoding="utf-8")
        try:
            for name in texts:
                place = folder / name
                if os.path.lexists(place):
                    place.rename(Path(room, f"old-{name}"))
                written.append(place)
                Path(room, name).rename(place)
        except BaseException:
            for place in written:
                place.unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    Path(room, f"old-{place.name}").rename(place)
            raise
    return written


def loaded() -> None:
    """All that a command needs is loaded: no reference cycles are searched for there, and others
    as often as they should be. Nothing is changed where a program calls `main`."""
    if gc.get_threshold()[0] == LOADING:
        gc.freeze()
        gc.set_threshold(LOADED)


Set = Annotated[Mapping[str, Any] | None, SET]
AsJson = Annotated[
    bool, Option("", "Print the tables as JSON on standard output, and nothing else.")
]
FORMATS = ("latex", "markdown")
To = Annotated[
    str | None,
    Option(
        "FORMAT",
        "latex (booktabs) or markdown: print the tables so on standard output, and nothing else.",
        choices=FORMATS,
    ),
]
Force = Annotated[bool, Option("", "Replace the files that are there.")]
ResultFolder = Annotated[Path, Argument("RESULT", "A result folder.", complete=result_folders)]
NetworkName = Annotated[
    str,
    Argument(
        "NAME", "A machine, by its name or file; or a network's file.", complete=machine_names
    ),
]


def split_formats(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Split the words of ``--to`` into those that are no format, and the first that is one."""
    others = [word for word in words if word not in FORMATS]
    return others, next((word for word in words if word in FORMATS), None)


def check_format(values: Mapping[str, Any]) -> None:
    """See that the options of a verb, by name, ask for JSON or another format, not for both.
    Raises an InputError if they do."""
    words = values.get("to") or ()
    _, to = split_formats([words] if isinstance(words, str) else words)
    if values.get("json") and to is not None:
        refuse("--to", "cannot be combined with --json", to, "Leave one out.", COMMAND_LINE)


def show(
    result: Result,
    folder: Path | None,
    *,
    json: bool,
    to: str | None = None,
    width: int = 100,
    after: Iterable[str] = (),
    excerpt: Excerpt | None = None,
) -> None:
    """Print a result, where it is if it stays there, and last its verdict.

    Args:
        result: what is shown.
        folder: where it is kept; None for nowhere.
        json: whether all is printed as JSON.
        to: one of `FORMATS`, or None for a terminal.
        width: columns where there is no terminal.
        after: lines on what was done with the result.
        excerpt: which rows and columns of its tables are printed; None for all.
    """
    if json:
        print_json(result.as_json())
        return
    if to is not None:
        exported = result.exported()
        chosen = exported if excerpt is None else excerpt.take_from(exported, COMMAND_LINE)
        print_parts(chosen, to, width)
        return
    details = result.details() if _volume["verbose"] else []
    parts = [*details, *result.parts_before_verdict()]
    if excerpt is not None:
        parts = excerpt.take_from(parts, COMMAND_LINE)
    print_parts(parts, width=width)
    for line in [*_places(folder), *after]:
        typer.echo(line)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else width
    for line in result.answer(columns):
        typer.echo(line)


def _places(folder: Path | None) -> Iterator[str]:
    """Where the tables and figures of a result are."""
    if folder is None:
        return
    figures = sorted(folder.glob("*.png"))
    yield f"Tables: {folder}"
    if len(figures) == 1:
        yield f"Figure: {figures[0]} and {figures[0].with_suffix('.pdf')}"
    elif figures:
        both = "both" if len(figures) == 2 else "all"
        yield f"Figures: {', '.join(map(str, figures))}, and {both} as .pdf"


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words at the first '--': those before it, and the command behind it."""
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end]], [*words[end + 1 :]]


def print_answer(
    as_json: Callable[[], Any],
    parts: Callable[[], Iterable[str | Table]],
    *,
    json: bool,
    to: str | None = None,
) -> None:
    """Print what a verb answers: its plain values for ``json``, or else its texts and tables."""
    if json:
        print_json(as_json())
    else:
        print_parts(parts(), to)


def print_json(values: Any) -> None:
    """Print plain values, and those of numpy, as JSON."""
    text = json_.dumps(values, indent=1, allow_nan=False, default=lambda value: value.item())
    typer.echo(text)


def print_parts(parts: Iterable[str | Table], to: str | None = None, width: int = 100) -> None:
    """Print texts and tables, as a terminal shows them or in that format; ``width`` in columns
    where there is no terminal."""
    if to is not None:
        from simshuffle.report.console import export_parts

        typer.echo(export_parts(parts, to), nl=False)
        return
    from rich.console import Console

    from simshuffle.report.console import print_whole

    console = Console(width=None if sys.stdout.isatty() else width)
    for part in parts:
        print_whole(console, part)


# ---------------------------------------------------------------------------------------- messages

_volume = {"quiet": False, "verbose": False}


def set_volume(*, quiet: bool, verbose: bool) -> None:
    """How much is said from now on, added to what was asked for before. Raises an InputError if
    less and more are asked for."""
    _volume["quiet"] |= quiet
    _volume["verbose"] |= verbose
    if _volume["quiet"] and _volume["verbose"]:
        rule, remedy = "cannot be combined with --verbose", "Leave one out."
        refuse("--quiet", rule, "", remedy, COMMAND_LINE)
    if _volume["quiet"]:
        logging.getLogger("simshuffle").setLevel(logging.ERROR)


def reset_volume() -> None:
    """Say what is usual, from now on."""
    _volume.update(quiet=False, verbose=False)
    logging.getLogger("simshuffle").setLevel(logging.NOTSET)


@contextmanager
def study_progress(noun: str) -> Iterator[Progress | None]:
    """Tells how far the cells of a study are, which are called ``noun``; None if that is not
    wanted."""
    if _volume["quiet"]:
        yield None
        return
    from simshuffle.study import standing

    with standing.study_progress(noun) as tell:
        yield tell


def share_progress(noun: str) -> AbstractContextManager[Callable[[float], None] | None]:
    """Tells the share done of a single thing that is no cell, called ``noun``; None if that is not
    wanted."""
    from simshuffle.study.standing import show_share

    return show_share(noun, study_progress)


def complain(text: str) -> None:
    """Write to standard error what went wrong."""
    typer.echo(text, err=True)


def say(text: str) -> None:
    """Write a line to standard error, unless errors and results alone are wanted."""
    if not _volume["quiet"]:
        typer.echo(text, err=True)


def detail(text: str) -> None:
    """Write a line to standard error, if more than usual is wanted."""
    if _volume["verbose"]:
        typer.echo(text, err=True)


@contextmanager
def warnings_said() -> Iterator[None]:
    """Warnings of simshuffle are told as everything else is; others stay what they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", SimshuffleWarning)
        shown = warnings.showwarning

        def told(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, SimshuffleWarning):
                say(f"Warning: {message}")
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = told
        yield

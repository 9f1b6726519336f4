"""Helpers that all verbs share.

They are options, files that are written all or none, printing of results, progress, and
messages.
"""

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
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from simshuffle.errors import InputError, Problem, SimshuffleWarning, refuse
from simshuffle.job.scenario.options import SET, result_folders
from simshuffle.spec.library import is_folder
from simshuffle.study.options import COMMAND_LINE, Argument, Option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.table import Table

    from simshuffle.report.excerpt import Excerpt
    from simshuffle.study.standing import Progress
    from simshuffle.study.study import Result

LOADING_THRESHOLD = 1_000_000
"""New objects between two searches for reference cycles while a command loads what it
needs, which it keeps: Python's own 700 make them a sixth of the time of a short
command.
"""
LOADED_THRESHOLD = 10_000
"""The same afterwards."""

OUT_FILE = "FILE|FOLDER"
"""What the help calls the ``--out`` of verbs that write a file, see `output_file`."""


NAME_RULE = "must be letters, digits, '.', '_' and '-'"


def output_file(out: Path | None, name: str) -> Path | None:
    """Return the file that ``--out`` means; None if it is not given.

    For a folder that exists, it is the file ``name`` in there; else ``out`` itself.
    """
    return out / name if out is not None and is_folder(out) else out


def is_name(text: str) -> bool:
    """Return whether a text may be a name.

    It is of letters, digits, '.', '_' and '-', at most 100, and begins with a letter or
    digit.
    """
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", text) is not None


def check_paths(
    stem: Path, *, replace: bool, option: str = "--out", suffixes: Iterable[str] = ("",)
) -> None:
    """Check that the files ``stem`` with each of ``suffixes`` can be written.

    Nothing is written, and only the folder and existing files are looked at.

    Args:
        stem: path without suffix.
        replace: whether files that exist may be replaced.
        option: that names the path, for the error.
        suffixes: what follows the path in the names of the files.

    Raises:
        InputError: the name of ``stem`` breaks `is_name`, its folder is missing, or a
            file is a folder or may not be replaced.
    """
    problems = []
    if not is_name(stem.name):
        problems = [
            Problem(option, NAME_RULE, repr(stem.name), "For example mycluster.")
        ]
    elif not stem.parent.is_dir():
        rule = "must be in a folder that is there"
        problems = [Problem(option, rule, str(stem), "Make the folder.")]
    else:
        for path in (stem.parent / f"{stem.name}{suffix}" for suffix in suffixes):
            if path.is_dir():
                rule = "must not be the path of a folder"
                problems.append(
                    Problem(option, rule, str(path), "Choose another name.")
                )
            elif os.path.lexists(path) and not replace:
                remedy = "Choose another name, or use --force to replace it."
                problems.append(
                    Problem(option, "must not be there already", str(path), remedy)
                )
    if problems:
        raise InputError(problems, "new files")


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files of a folder, all or none; return their paths in the order of the
    texts.

    Files that exist are replaced, and come back if one cannot be written.

    Args:
        folder: that exists.
        texts: texts by the names of the files; at least one.

    Raises:
        OSError: a file cannot be written.
    """
    from simshuffle.report.folders import room_for

    paths: list[Path] = []
    with room_for(folder / next(iter(texts)), folder) as draft_folder:
        # all are written before the first one is renamed to its place
        for name, text in texts.items():
            Path(draft_folder, name).write_text(text, encoding="utf-8")
        try:
            for name in texts:
                path = folder / name
                if os.path.lexists(path):
                    path.rename(Path(draft_folder, f"old-{name}"))
                paths.append(path)
                Path(draft_folder, name).rename(path)
        except BaseException:
            for path in paths:
                path.unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    Path(draft_folder, f"old-{path.name}").rename(path)
            raise
    return paths


def tune_process() -> None:
    """Leave what a command has loaded out of garbage collection from now on.

    Reference cycles are then searched for every `LOADED_THRESHOLD` objects, and
    matplotlib is imported without what only interactive help shows. Nothing is changed
    where a program calls `main`.
    """
    if gc.get_threshold()[0] == LOADING_THRESHOLD:
        from simshuffle.report.style import leave_out_property_tables

        gc.freeze()
        gc.set_threshold(LOADED_THRESHOLD)
        leave_out_property_tables()


Set = Annotated[Mapping[str, Any] | None, SET]
AsJson = Annotated[
    bool, Option("", "Print the tables as JSON on standard output, and nothing else.")
]
FORMATS = ("latex", "markdown")
To = Annotated[
    str | None,
    Option(
        "FORMAT",
        "latex (booktabs) or markdown: print only the tables on standard output, in this format.",
        choices=FORMATS,
    ),
]
Force = Annotated[bool, Option("", "Replace existing files.")]
ResultFolder = Annotated[
    Path, Argument("RESULT", "A result folder.", complete=result_folders)
]


def split_formats(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Split the words of ``--to`` into those that are no format, and the first format.

    The format is None if there is none; further ones are dropped.
    """
    other_words = [word for word in words if word not in FORMATS]
    return other_words, next((word for word in words if word in FORMATS), None)


def check_format(values: Mapping[str, Any]) -> None:
    """Check that the options of a verb, by name, do not ask for both JSON and another
    format.

    ``to`` may be one word or several; words that are no format do not matter.

    Raises:
        InputError: they do.
    """
    words = values.get("to") or ()
    _, format_name = split_formats([words] if isinstance(words, str) else words)
    if values.get("json") and format_name is not None:
        refuse(
            "--to",
            "cannot be combined with --json",
            format_name,
            "Leave one out.",
            COMMAND_LINE,
        )


def show(
    result: Result,
    folder: Path | None,
    *,
    json: bool,
    table_format: str | None = None,
    width: int = 100,
    extra_lines: Iterable[str] = (),
    excerpt: Excerpt | None = None,
) -> None:
    """Print a result to standard output: its texts and tables, its files, its verdict.

    As JSON or in a format for documents, its values or tables alone are printed:
    neither files nor ``extra_lines`` nor verdict.

    Args:
        result: to print; its details too with --verbose.
        folder: that holds the result; None for nowhere.
        json: whether all is printed as JSON; this comes before ``table_format``.
        table_format: one of `FORMATS`, or None for a terminal.
        width: columns where there is no terminal.
        extra_lines: lines on what was done with the result.
        excerpt: which rows and columns of its tables are printed; None for all. JSON
            has all.

    Raises:
        InputError: no table has a row or column that the excerpt names.
    """
    if json:
        print_json(result.as_json())
        return
    if table_format is not None:
        exported = result.exported()
        chosen_parts = (
            exported if excerpt is None else excerpt.take_from(exported, COMMAND_LINE)
        )
        print_parts(chosen_parts, table_format, width)
        return
    details = result.details() if _volume["verbose"] else []
    parts = [*details, *result.parts_before_verdict()]
    if excerpt is not None:
        parts = excerpt.take_from(parts, COMMAND_LINE)
    print_parts(parts, width=width)
    for line in [*list_files(folder), *extra_lines]:
        typer.echo(line)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else width
    for line in result.answer(columns):
        typer.echo(line)


def list_files(folder: Path | None) -> Iterator[str]:
    """Yield lines that name the folder of a result and its figures; none for None.

    Figures are the folder's .png files; each is taken to have a .pdf beside it.
    """
    if folder is None:
        return
    figures = sorted(folder.glob("*.png"))
    yield f"Tables: {folder}"
    if len(figures) == 1:
        yield f"Figure: {figures[0]} and {figures[0].with_suffix('.pdf')}"
    elif figures:
        count_word = "both" if len(figures) == 2 else "all"
        yield f"Figures: {', '.join(map(str, figures))}, and {count_word} as .pdf"


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words at the first '--': those before it, and the command after it.

    Neither has that '--'. Without one there is no command, [].
    """
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end]], [*words[end + 1 :]]


def print_answer(
    as_json: Callable[[], Any],
    parts: Callable[[], Iterable[str | Table]],
    *,
    json: bool,
    table_format: str | None = None,
) -> None:
    """Print the answer of a verb.

    It is plain values for ``json``, else texts and tables; only one of both functions
    is called.
    """
    if json:
        print_json(as_json())
    else:
        print_parts(parts(), table_format)


def print_json(values: Any) -> None:
    """Print values as JSON; scalars of numpy are written as numbers.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json_.dumps(
        values, indent=1, allow_nan=False, default=lambda value: value.item()
    )
    typer.echo(text)


def print_parts(
    parts: Iterable[str | Table], table_format: str | None = None, width: int = 100
) -> None:
    """Print texts and tables.

    Args:
        parts: texts and tables.
        table_format: one of `FORMATS`, or None for a terminal.
        width: columns where there is no terminal.
    """
    if table_format is not None:
        from simshuffle.report.console import export_parts

        typer.echo(export_parts(parts, table_format), nl=False)
        return
    from rich.console import Console

    from simshuffle.report.console import print_whole

    console = Console(width=None if sys.stdout.isatty() else width)
    for part in parts:
        print_whole(console, part)


# ---------------------------------------------------------------------------------------- messages

_volume = {"quiet": False, "verbose": False}


def set_volume(*, quiet: bool, verbose: bool) -> None:
    """Set how much is printed from now on, added to what was asked for before.

    False takes nothing back; `reset_volume` does. With ``quiet`` the logger
    'simshuffle' tells errors alone.

    Raises:
        InputError: both less and more are asked for.
    """
    _volume["quiet"] |= quiet
    _volume["verbose"] |= verbose
    if _volume["quiet"] and _volume["verbose"]:
        rule = "cannot be combined with --verbose"
        remedy = "Leave one out."
        refuse("--quiet", rule, "", remedy, COMMAND_LINE)
    if _volume["quiet"]:
        logging.getLogger("simshuffle").setLevel(logging.ERROR)


def reset_volume() -> None:
    """Print the usual messages from now on, as without --quiet and --verbose."""
    _volume.update(quiet=False, verbose=False)
    logging.getLogger("simshuffle").setLevel(logging.NOTSET)


@contextmanager
def study_progress(noun: str) -> Iterator[Progress | None]:
    """Show how far the cells of a study are, which are called ``noun``.

    Yields the function to call with each `Standing`, or None with --quiet.
    """
    if _volume["quiet"]:
        yield None
        return
    from simshuffle.study import standing

    with standing.study_progress(noun) as progress:
        yield progress


def share_progress(noun: str) -> AbstractContextManager[Callable[[float], None] | None]:
    """Show the finished share of a single task that is no cell, called ``noun``.

    Its context yields the function to call with the share (0 to 1), or None with
    --quiet.
    """
    from simshuffle.study.standing import show_share

    return show_share(noun, study_progress)


def complain(text: str) -> None:
    """Print to standard error what went wrong, with --quiet too."""
    typer.echo(text, err=True)


def say(text: str) -> None:
    """Print a line to standard error, unless --quiet asks for errors and results alone."""
    if not _volume["quiet"]:
        typer.echo(text, err=True)


def say_detail(text: str) -> None:
    """Print a line to standard error, if --verbose asks for more than usual."""
    if _volume["verbose"]:
        typer.echo(text, err=True)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print warnings of simshuffle as other messages, within this context.

    With --quiet they are dropped. A text is printed once for each line that warns.
    Other warnings stay as they are.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default", SimshuffleWarning)
        show_other_warning = warnings.showwarning

        def say_or_show(
            message: Warning | str,
            category: type[Warning],
            *place: Any,
            **named_place: Any,
        ) -> None:
            """Print a warning of simshuffle; show another one as before, with its
            place.
            """
            if issubclass(category, SimshuffleWarning):
                say(f"Warning: {message}")
            else:
                show_other_warning(message, category, *place, **named_place)

        warnings.showwarning = cast("Any", say_or_show)
        yield

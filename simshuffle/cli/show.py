"""How results are printed: as tables on a terminal, for a paper, or as JSON."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.errors import refuse
from simshuffle.study.options import COMMAND_LINE, Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.table import Table

    from simshuffle.study.study import Result

AsJson = Annotated[
    bool, Option("", "Print the tables as JSON on standard output, and nothing else.")
]
To = Annotated[
    str | None,
    Option(
        "FORMAT",
        "latex (booktabs) or markdown: print the tables so on standard output, and nothing else.",
        choices=("latex", "markdown"),
    ),
]


def check_format(json: bool, to: str | None) -> None:
    """See that JSON is not wanted beside the format ``to``.

    Raises:
        InputError: it is.
    """
    if json and to is not None:
        refuse("--to", "cannot be combined with --json", to, "Leave one out.", COMMAND_LINE)


def show(
    result: Result, folder: Path | None, *, json: bool, to: str | None = None, width: int = 100
) -> None:
    """Print a result, and where it is if it stays there; ``width`` in columns where there is no
    terminal."""
    if json:
        print_json(result.as_json())
        return
    print_parts(result.exported() if to else result.parts(), to, width)
    if folder is None or to is not None:
        return
    typer.echo(f"Tables: {folder}")
    figures = sorted(folder.glob("*.png"))
    if len(figures) == 1:
        typer.echo(f"Figure: {figures[0]} and {figures[0].with_suffix('.pdf')}")
    elif figures:
        both = "both" if len(figures) == 2 else "all"
        typer.echo(f"Figures: {', '.join(map(str, figures))}, and {both} as .pdf")


def print_found(
    as_json: Callable[[], Any],
    parts: Callable[[], Iterable[str | Table]],
    *,
    json: bool,
    to: str | None,
) -> None:
    """Print what was found: as plain values, or as texts and tables."""
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
        from simshuffle.results.export import exported

        typer.echo(exported(parts, to), nl=False)
        return
    from rich.console import Console

    from simshuffle.results.console import print_whole

    console = Console(width=None if sys.stdout.isatty() else width)
    for part in parts:
        print_whole(console, part)

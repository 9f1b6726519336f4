"""How results are printed: as tables on a terminal, for a paper, or as JSON."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import choice
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from simshuffle.study.study import Result

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the tables as JSON on standard output, and nothing else."),
]
To = Annotated[
    str | None,
    choice(
        "--to",
        "latex",
        "markdown",
        metavar="FORMAT",
        text="latex (booktabs) or markdown: print the tables so on standard output, and nothing"
        " else.",
    ),
]


def check_format(json: bool, to: str | None) -> None:
    """See that JSON is not wanted beside the format ``to``.

    Raises:
        InputError: it is.
    """
    if json and to is not None:
        rule, remedy = "cannot be combined with --json", "Leave one out."
        raise InputError(Problem("--to", rule, to, remedy), "command line")


def show(
    result: Result, folder: Path | None, *, json: bool, to: str | None = None, width: int = 100
) -> None:
    """Print a result, and where it is if it stays there; ``width`` in columns where there is no
    terminal."""
    if json:
        print_json(result.as_json())
        return
    print_parts(result.exported() if to else result.parts(), to, width)
    if folder is not None and to is None:
        figures = _figures(sorted(folder.glob("*.png")))
        typer.echo(f"Tables: {folder}" + (f"\n{figures}" if figures else ""))


def print_json(values: Any) -> None:
    """Print plain values, and those of numpy, as JSON."""
    text = json_.dumps(values, indent=1, allow_nan=False, default=lambda value: value.item())
    typer.echo(text)


def print_parts(parts: Iterable[str | Table], to: str | None = None, width: int = 100) -> None:
    """Print texts and tables, as a terminal shows them or in that format; ``width`` in columns
    where there is no terminal."""
    if to is not None:
        from simshuffle.results.console import exported

        typer.echo(exported(parts, to), nl=False)
        return
    from rich.console import Console

    from simshuffle.results.console import print_whole

    console = Console(width=None if sys.stdout.isatty() else width)
    for part in parts:
        print_whole(console, part)


def _figures(paths: Sequence[Path]) -> str:
    """Where the figures are; '' if there are none."""
    if not paths:
        return ""
    if len(paths) == 1:
        return f"Figure: {paths[0]} and {paths[0].with_suffix('.pdf')}"
    both = "both" if len(paths) == 2 else "all"
    return f"Figures: {', '.join(map(str, paths))}, and {both} as .pdf"

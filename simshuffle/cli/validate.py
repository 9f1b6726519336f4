"""The verb that compares with what was measured elsewhere: validate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import progress_bars
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer()


@app.command()
def validate(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET", help="A set of rows; may be given several times. Default: all."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Folder of CSV files; the default is what comes with simshuffle."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the table and the figure; nothing is written without it."),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print rows and summary as JSON on standard output, and nothing else."
        ),
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all rows as Markdown tables.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Simulations at once; the default is one on each core."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the folder.")] = False,
) -> None:
    """Predict what was measured on real machines, and print the errors: fitted and predicted rows
    apart."""
    from simshuffle.results.folders import check_place
    from simshuffle.studies.validation import folder as folders
    from simshuffle.studies.validation import text, validate

    if json and markdown:
        raise InputError(
            Problem("--markdown", "cannot be combined with --json", "both", "Leave one out."),
            "command line",
        )
    if out is not None:
        check_place(out, replace=force)  # before the simulations, not after them
    with progress_bars() as bars:
        results = validate(
            only, folder, processes, (lambda share: bars("validate", share)) if bars else None
        )
    if out is not None:
        folders.save(results, out, replace=force)
    if json:
        typer.echo(text.as_json(results))
        return
    if markdown:
        typer.echo(f"{text.markdown_summary(results)}\n\n{text.markdown(results)}")
        return
    _print(results)
    if out is not None:
        typer.echo(f"Tables: {out}\nFigure: {out / 'validation.png'} and {out / 'validation.pdf'}")


def _print(results: pd.DataFrame) -> None:
    from rich.console import Console

    from simshuffle.studies.validation import text

    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in text.parts(results):
        console.print(table, highlight=False, markup=False)

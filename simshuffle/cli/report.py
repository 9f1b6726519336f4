"""The verb report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.help import command

app = typer.Typer()


@command(
    app,
    "Results",
    "simshuffle report results/quickstart --out quickstart.html",
    "simshuffle report results/before results/after --out both.html",
)
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RESULT...", help="Result folders, one or more.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page; the default is NAME-report.html here, after the folders.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a file that is not the page of the same results."),
    ] = False,
) -> None:
    """Write results as one HTML page.

    A browser shows it without a network."""
    from simshuffle.page.write import write_page

    typer.echo(f"Page: {write_page(folders, out, force)}")

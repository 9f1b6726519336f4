"""The verb report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import OUT_FILE, file_in
from simshuffle.cli.help import command
from simshuffle.study.options import Argument, Option

app = typer.Typer()


@command(
    app,
    "Results",
    "simshuffle report results/quickstart --out quickstart.html",
    "simshuffle report results/before results/after --out both.html",
)
def report(
    folders: Annotated[list[Path], Argument("RESULT", "Result folders, one or more.", many=True)],
    out: Annotated[
        Path | None,
        Option(OUT_FILE, "The page. Default: NAME-report.html here, after the results."),
    ] = None,
    force: Annotated[
        bool, Option("", "Replace a file that is not the page of the same results.")
    ] = False,
) -> None:
    """Write results as one HTML page.

    A browser shows it without a network."""
    from simshuffle.page.write import default_name, write_page

    place = file_in(out, default_name(folders))
    typer.echo(f"Page: {write_page(folders, place, force)}")

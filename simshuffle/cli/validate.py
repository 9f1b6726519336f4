"""The verb that compares with what was measured elsewhere: validate."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.help import command
from simshuffle.cli.verb import Force, Options, ProcessCount, Scheduler, To, make, show

app = typer.Typer()


@command(
    app,
    "Believe",
    "simshuffle validate",
    "simshuffle validate --only testbed --out validated --to markdown",
)
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
            "--from",
            metavar="FOLDER",
            help="Folder of CSV files; the default is what comes with simshuffle.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the table and the figure; nothing is written without it.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print rows and summary as JSON on standard output, and nothing else."
        ),
    ] = False,
    to: To = None,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
    force: Force = False,
) -> None:
    """Predict what was measured on real machines, and print the errors: fitted and predicted rows
    apart."""
    from simshuffle.studies.validation.study import STUDY, request

    asked = request(only, folder)
    with _place(out) as place:
        options = Options(place, json, force, processes, scheduler, "prediction", to=to)
        result, made = make(STUDY, asked, options)
        show(result, made if out is not None else None, json=json, to=to, width=120)


@contextmanager
def _place(out: Path | None) -> Iterator[Path]:
    """Where the result is written: ``out``, or a place that is removed at the end."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "validation"

"""The verb that compares data-loading policies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import SetOption, say, values

app = typer.Typer()


@app.command()
def policies(
    study: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario or study: a file, a name below scenarios/, or nopfs.",
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A policy; may be given several times. Default: all."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A case of a study; may be given several times. Default: all."
        ),
    ] = None,
    set_: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Result folder; the default is results/policies-NAME-FINGERPRINT."),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the tables as JSON on standard output, and nothing else."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is in the result folder.")
    ] = False,
) -> None:
    """Compare data-loading policies: epoch time, ratio to the lower bound, bytes by source,
    coverage and storage."""
    from rich.console import Console

    from simshuffle.results.folders import check_place
    from simshuffle.studies.policies import folder as folders
    from simshuffle.studies.policies import text
    from simshuffle.studies.policies.study import load

    loaded = load(study, values(set_ or [])).only(case or [])
    chosen = policy or []
    mark = folders.fingerprint(loaded, chosen)
    folder = (
        out
        if out is not None
        else Path("results") / f"policies-{loaded.name.replace('/', '-')}-{mark}"
    )
    result = None if force else folders.existing(folder, mark)
    if result is None:
        check_place(folder, replace=force)
        result = folders.comparison(loaded, chosen)
        result.save(folder, replace=force)
    else:
        say(f"{folder} already holds this comparison; nothing was computed.")
    if json:
        typer.echo(result.as_json())
        return
    console = Console(width=None if sys.stdout.isatty() else 100)
    for part in text.parts(loaded, result.policies):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
    typer.echo(f"Tables: {folder}\nFigure: {folder / 'policies.png'}, and as .pdf")

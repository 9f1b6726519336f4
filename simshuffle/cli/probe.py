"""The verb probe: what a sample costs this host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.help import command
from simshuffle.study.options import Argument, Option

app = typer.Typer()


@command(
    app,
    "Describe",
    "simshuffle machine probe",
    "simshuffle machine probe imagenet/train --exchange > costs.yaml",
)
def probe(
    folder: Annotated[
        Path | None,
        Argument("FOLDER", "Of your data set, or a part of it; the default is made photographs."),
    ] = None,
    exchange: Annotated[
        bool,
        Option("", "Set the costs of an exchange too, for a scenario that does not sweep it."),
    ] = False,
) -> None:
    """Measure what reading, decoding, pickling and writing a sample of FOLDER costs this host, and
    print it as a fragment that a scenario includes."""
    from simshuffle.studies.calibrate.sample_costs import probe as measure

    typer.echo(measure(folder).to_yaml(exchange=exchange), nl=False)

"""The verb blame: who makes the steps of a real training job slow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import AsJson, To, check_format, print_json, print_parts
from simshuffle.cli.help import command
from simshuffle.study.options import Argument

app = typer.Typer()


@command(
    app,
    "Results",
    "simshuffle blame tests/data/blame/slow-rank.csv",
    "simshuffle blame steps.parquet --to markdown",
)
def blame(
    trace: Annotated[
        Path,
        Argument(
            "TRACE",
            "A CSV or Parquet file: rank, stage, step, kind, start and duration (in seconds) of"
            " each operation.",
        ),
    ],
    json: AsJson = False,
    to: To = None,
) -> None:
    """Say who makes the steps of a real job slow.

    Replays its operations as if one rank, stage or kind, or nobody, were slow. Simulates nothing
    else."""
    from simshuffle.blame.replay import blame as blamed
    from simshuffle.blame.trace import read_trace

    check_format(json, to)
    found = blamed(read_trace(trace), str(trace))
    if json:
        print_json(found.as_json())
    else:
        print_parts(found.parts(), to)

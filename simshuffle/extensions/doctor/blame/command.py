"""The verb blame: who makes the steps of a real training job slow, or the epochs of a
run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import AsJson, To, print_answer
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.job.scenario.options import result_folders
from simshuffle.study.options import COMMAND_LINE, Argument, Option

app = typer.Typer()


@command(
    app,
    "Results",
    "simshuffle study blame results/quickstart",
    "simshuffle study blame tests/data/blame/slow-rank.csv",
    "simshuffle study blame steps.parquet --to markdown",
)
def blame(
    trace: Annotated[
        Path,
        Argument(
            "TRACE",
            "A result folder of run, or its name below results/; or a CSV or Parquet file: rank,"
            " stage, step, kind, start and duration (in seconds) of each operation.",
            complete=result_folders,
        ),
    ],
    run: Annotated[
        str | None,
        Option("NAME", "Only this run of the result; the default is all runs."),
    ] = None,
    epoch: Annotated[
        int | None,
        Option("N", "This epoch of the result; the default is the last one."),
    ] = None,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Say who makes a real or a simulated job slow.

    Of a result: which host, rank, link or server the others waited for, and in which
    phase. Of a trace: replays its operations as if one rank, stage or kind, or nobody,
    were slow. Simulates nothing else.
    """
    folder = next(
        (path for path in (trace, Path("results") / trace) if path.is_dir()), None
    )
    if folder is not None:
        from simshuffle.extensions.doctor.blame.runs import blame_runs
        from simshuffle.study.registry import read_folder

        runs = blame_runs(read_folder(folder), str(folder), run or "", epoch)
        print_answer(runs.as_json, runs.parts, json=json, table_format=to)
    else:
        from simshuffle.extensions.doctor.blame.replay import blame as blame_trace
        from simshuffle.extensions.doctor.blame.trace import read_trace

        for flag, value in (("--run", run), ("--epoch", epoch)):
            if value is not None:
                rule = "is for results only, not for a trace"
                remedy = "Leave it out."
                refuse(flag, rule, str(value), remedy, COMMAND_LINE)
        replayed = blame_trace(read_trace(trace), str(trace))
        print_answer(replayed.as_json, replayed.parts, json=json, table_format=to)

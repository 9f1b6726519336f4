"""The verb ``results export``: write a run for another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    Set,
    say,
    share_progress,
    tune_process,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.job.scenario.options import scenario_names
from simshuffle.spec.library import is_folder
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

app = typer.Typer()

Source = Annotated[
    str,
    Argument(
        "SOURCE",
        "A result folder of run, a scenario file, or a name below scenarios/.",
        complete=scenario_names,
    ),
]
ToOption = Annotated[
    str,
    Option(
        "FORMAT",
        "perfetto (a timeline for ui.perfetto.dev), chakra (traces for ASTRA-sim),"
        " chakra-storage (with nodes of storage, which ASTRA-sim refuses), htsim (messages),"
        " goal (LogGOPSim, ATLAHS), simgrid (an MPI program and its platform);"
        " infragraph, ibsim, graphml or json (the network, as machine export).",
        complete=words(place="simshuffle.extensions.interop.exports.export:FORMATS"),
    ),
]
Ranks = Annotated[
    str | None,
    Option(
        "RANK,...",
        "perfetto: numbers, 4-7, slowest, fastest, sample, all. Default: all ranks if at"
        " most 16, else slowest,fastest,sample.",
        read=",".join,
        many=True,
    ),
]
Messages = Annotated[
    str | None,
    Option(
        "WHICH",
        "perfetto: chosen (messages of the ranks shown, the default), or none (no"
        " simulation: only the tables of the result).",
        complete=words("chosen", "none"),
    ),
]


@command(
    app,
    "Results",
    "simshuffle results export results/quickstart --to perfetto --out trace.json.gz",
    "simshuffle results export quickstart --to perfetto --ranks slowest,0-3",
)
def export(
    source: Source,
    *,
    to: ToOption,
    out: Annotated[
        Path | None,
        Option(OUT_FILE, "File or folder to write. Default: RUN-FORMAT, here."),
    ] = None,
    run: Annotated[
        str | None,
        Option(
            "NAME", "Run to export. Default: the first run that the format can take."
        ),
    ] = None,
    epoch: Annotated[
        str | None,
        Option(
            "N",
            "Epoch, from 1; perfetto also takes a span such as 2-4.",
            "--epoch --epochs",
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        Option("N", "Iteration of the epoch, from 1. Default: the first that sends."),
    ] = None,
    ranks: Ranks = None,
    messages: Messages = None,
    set_: Set = None,
    force: Annotated[bool, Option("", "Replace an existing file or folder.")] = False,
) -> None:
    """Write a run of SOURCE for another tool."""
    from simshuffle.extensions.interop.exports.export import (
        check_out,
        default_out,
        format_of,
    )
    from simshuffle.extensions.interop.exports.export import export as write
    from simshuffle.extensions.interop.exports.source import read_source

    export_format = format_of(to)
    chosen_options = {
        "epoch": epoch,
        "epochs": epoch
        if epoch is not None and not epoch.strip().isdecimal()
        else None,
        "iteration": iteration,
        "ranks": ranks,
        "messages": messages,
    }
    for name, value in chosen_options.items():
        if value is not None and name not in export_format.options:
            rule = (
                "must be one epoch"
                if name == "epochs"
                else "is no option of this format"
            )
            refuse(
                f"--{name}",
                f"{rule} (--to {to})",
                str(value),
                "Leave it out.",
                COMMAND_LINE,
            )
    folder = (
        out if export_format.suffix and out is not None and is_folder(out) else None
    )
    if out is not None and folder is None:  # before anything is read
        check_out(out, folder=not export_format.suffix, replace=force)
    sends = "iteration" in export_format.options
    exported = read_source(
        source, set_ or {}, run, epoch, iteration, must_exchange=sends
    )
    if run is None and len(exported.runs) > 1:
        say(
            f"Exports '{exported.run}', one of {len(exported.runs)} runs; --run NAME names another."
        )
    path = (
        (folder or Path()) / default_out(exported, to) if folder or out is None else out
    )
    tune_process()
    with share_progress("export") as tell:
        lines = write(
            exported, to, path, tell, ranks=ranks, messages=messages, replace=force
        )
    for line in lines:
        say(line)
    typer.echo(f"Written: {path}")

"""The verb export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import OUT_FILE, SetOption, is_folder, loaded, say, share_progress
from simshuffle.cli.help import command
from simshuffle.errors import InputError, Problem
from simshuffle.scenario.options import assignments, scenario_names
from simshuffle.study.options import words

app = typer.Typer()


SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A result folder of run, a scenario file, or a name below scenarios/.",
        autocompletion=scenario_names,
    ),
]
ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help="perfetto (a timeline for ui.perfetto.dev), chakra (traces for ASTRA-sim), htsim (its"
        " messages), goal (LogGOPSim, ATLAHS), simgrid (an MPI program and its platform);"
        " infragraph, ibsim, graphml or json (the network, as machine export).",
        autocompletion=words(place="simshuffle.exports.export:FORMATS"),
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar=OUT_FILE, help="What to write. Default: RUN-FORMAT, here."),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="NAME",
        help="Of several runs. Default: the first that has what is written.",
    ),
]
EpochOption = Annotated[
    str | None,
    typer.Option("--epoch", "--epochs", metavar="N", help="From 1; perfetto takes 2-4 too."),
]
IterationOption = Annotated[
    int | None,
    typer.Option(
        "--iteration", metavar="N", help="From 1, of the epoch. Default: the first that sends."
    ),
]
RanksOption = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="RANK,...",
        help="perfetto: numbers, 4-7, slowest, fastest, sample, all. Default: all of up to 16"
        " ranks, else slowest,fastest,sample.",
    ),
]
MessagesOption = Annotated[
    str | None,
    typer.Option(
        "--messages",
        metavar="WHICH",
        help="perfetto: chosen (of the ranks shown, the default), or none (no simulation: the"
        " tables of the result alone).",
        autocompletion=words("chosen", "none"),
    ),
]


@command(
    app,
    "Results",
    "simshuffle export results/quickstart --to perfetto --out trace.json.gz",
    "simshuffle export quickstart --to perfetto --ranks slowest,0-3 --epoch 2",
)
def export(
    source: SourceArgument,
    to: ToOption,
    out: OutOption = None,
    run: RunOption = None,
    epoch: EpochOption = None,
    iteration: IterationOption = None,
    ranks: RanksOption = None,
    messages: MessagesOption = None,
    set_: SetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a run of SOURCE for another tool."""
    from simshuffle.exports.export import check_out, default_out, format_of
    from simshuffle.exports.export import export as write
    from simshuffle.exports.source import read_source

    kind = format_of(to)
    given = {
        "epoch": epoch,
        "epochs": epoch if epoch is not None and not epoch.strip().isdecimal() else None,
        "iteration": iteration,
        "ranks": ranks,
        "messages": messages,
    }
    foreign = [name for name, value in given.items() if value is not None]
    for name in foreign:
        if name not in kind.options:
            rule = "must be one epoch" if name == "epochs" else "is no option of this format"
            problem = Problem(f"--{name}", f"{rule} (--to {to})", str(given[name]), "Leave it out.")
            raise InputError(problem, "command line")
    inside = bool(kind.suffix) and out is not None and is_folder(out)
    if out is not None and not inside:  # before anything is read
        check_out(out, folder=not kind.suffix, replace=force)
    found = read_source(source, assignments(set_ or []), run, epoch, iteration, sends=kind.sends)
    if run is None and len(found.runs) > 1:
        say(f"Of {len(found.runs)} runs this is '{found.run}'; --run NAME names another.")
    path = default_out(found, to) if out is None or inside else out
    path = out / path if inside and out is not None else path
    loaded()
    with share_progress("export") as tell:
        said = write(found, to, path, tell, ranks=ranks, messages=messages, replace=force)
    for line in said:
        say(line)
    typer.echo(f"Written: {path}")

"""Verbs on the network alone: replay, congestion."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import SetOption, progress_bars, say, values
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from simshuffle.studies.congestion.folder import Comparison

app = typer.Typer()


@app.command()
def replay(
    case: Annotated[
        Path,
        typer.Argument(
            metavar="CASE", help="A JSON file with links and flows, compressed with gzip or not."
        ),
    ],
    network: Annotated[
        str, typer.Option(metavar="MODEL", help="The network model: analytic, fluid or packet.")
    ] = "fluid",
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="fluid: error allowed for less work, from 0 (exact) to below 1."
        ),
    ] = None,
    mtu: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="packet: bytes of a packet, such as '4096 B'."),
    ] = None,
    port_buffer: Annotated[
        str | None, typer.Option(metavar="SIZE", help="packet: buffer of a port, such as '64 KiB'.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file (.csv or .csv.gz); the default is standard output."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Put the ends that CASE expects, and the errors, beside each end."
        ),
    ] = False,
) -> None:
    """Say when the flows of CASE end: a CSV table; a summary on standard error."""
    from simshuffle.network.replay.case import read_case
    from simshuffle.network.replay.files import check_target, whole_file
    from simshuffle.network.replay.replay import csv_rows, network_model, summary
    from simshuffle.network.replay.replay import replay as replay_case

    model = network_model(network, {"tolerance": tolerance, "mtu": mtu, "port_buffer": port_buffer})
    if out is not None:
        check_target(out, case)
    given = read_case(case)
    if compare and given.expected is None:
        raise InputError(
            Problem(
                "--compare",
                "needs a case that says when its flows end",
                "no flows.end",
                "Leave it out.",
            ),
            str(case),
        )
    with progress_bars() as progress:
        result = replay_case(
            given, model, (lambda share: progress("replay", share)) if progress else None
        )
    if out is None:
        sys.stdout.writelines(csv_rows(result, compare=compare))
        sys.stdout.flush()  # an error comes here, and not at the end of the process
    else:
        with whole_file(out) as file:
            file.writelines(csv_rows(result, compare=compare))
    for line in summary(result):
        say(line)


@app.command()
def congestion(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a name below scenarios/.")
    ],
    pattern: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A pattern; may be given several times. Default: all."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="analytic, fluid or packet; several times for several. Default: fluid, packet.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for analytic and fluid.")] = 5,
    packet_seeds: Annotated[
        int, typer.Option(min=1, help="Seeds for packet, of those for the others.")
    ] = 3,
    packets: Annotated[
        int, typer.Option(min=1, help="Packets in one run of packet; what is more is left out.")
    ] = 2_000_000,
    world_size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="M",
            help="Ranks; may be given several times. Default: the sweep's, or the scenario's.",
        ),
    ] = None,
    set_: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Result folder; the default is results/congestion-NAME-FINGERPRINT."),
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
    """Compare all-to-all with pairwise exchange on the bytes of SCENARIO: times, what decides, and
    a verdict."""
    from simshuffle.results.folders import check_place
    from simshuffle.studies.congestion import folder as folders
    from simshuffle.studies.congestion import request
    from simshuffle.studies.congestion.compare import Settings

    settings = request.chosen(
        Settings(seeds=seeds, packet_seeds=packet_seeds, packets=packets),
        pattern or [],
        network or [],
    )
    scenarios = request.scenarios(scenario, values(set_ or []), world_size or [])
    mark = request.fingerprint(scenarios, settings)
    folder = (
        out
        if out is not None
        else Path("results") / f"congestion-{scenarios[0].name.replace('/', '-')}-{mark}"
    )
    result = None if force else folders.existing(folder, mark)
    if result is None:
        check_place(folder, replace=force)  # before a long comparison, not after it
        with progress_bars() as progress:
            result = request.comparison(
                scenarios, settings, request.with_estimate(progress, say, monotonic)
            )
        result.save(folder, replace=force)
    else:
        say(f"{folder} already holds this comparison; nothing was computed.")
    if json:
        typer.echo(folders.as_json(result.tables))
        return
    _print_comparison(result)
    typer.echo(
        f"Tables: {folder}\nFigures: {folder / 'times.png'}, {folder / 'heat.png'}, and both as"
        " .pdf"
    )


def _print_comparison(result: Comparison) -> None:
    from rich.console import Console

    from simshuffle.studies.congestion import text

    console = Console(width=None if sys.stdout.isatty() else 100)
    for part in text.parts(result.tables, result.meta["message_latency_s"]):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
